//! Text to ids and block hashes.
//!
//! *First*: a tokenizer that has seen a text of 8,000 tokens, and now another one. *Seen*: the same once more. Each
//! number is that of the quickest run; where there are steps, the sum of their quickest runs.

use std::rc::Rc;

use kvroute::blocks::{Chain, namespace};
use kvroute::pack::Pack;
use kvroute::tokenizer::memory::{PromptMemory, Scope};
use kvroute::tokenizer::{Boundary, Encoding, Step, Tokenizer};

use super::clock::{Clock, Rows, best, timed};
use super::inputs::{Inputs, Random};
use super::spec::Spec;

/// Bytes of a slice's step, as the filter takes them.
const STEP: usize = 4 << 10;
/// Runs of which the quickest counts.
const ROUNDS: usize = 15;
/// Steps between two looks at the clock.
const TOGETHER: usize = 12;

/// Measures the pack of the spec.
pub fn run(spec: &Spec, clock: Clock<'_>) -> Result<Rows, String> {
    let mut rows = Rows::new();
    let pack = Pack::parse(spec.bytes("pack")?.to_vec()).map_err(|error| error.0)?;
    let pack = pack.first().ok_or("no pack")?;
    let open = || pack.tokenizer().map_err(|error| error.0);
    let filled = fill();
    let before = pages();
    let first = open()?;
    first.clone().encode(spec.text("text")?.get(..20_000).unwrap_or_default(), false).map_err(|error| error.0)?;
    rows.insert("memory".into(), (pages() - before) as f64 * 65536.0);
    drop((first, filled));
    rows.insert("start".into(), best(clock, 9, || drop(open())));
    let inputs = Inputs::of(spec)?;
    for (name, text) in inputs.single() {
        // The filter has the text in this form already.
        let text: Rc<str> = text.into();
        let (mut first, mut seen) = (Steps::new(TOGETHER), Steps::new(TOGETHER));
        for _ in 0..ROUNDS {
            let tokenizer = open()?;
            let _ = tokenizer.clone().encode(inputs.warm_up(), false);
            first.take(&tokenizer, &text, clock)?;
            seen.take(&tokenizer, &text, clock)?;
        }
        rows.insert(format!("{name} first"), first.sum());
        rows.insert(format!("{name} seen"), seen.sum());
        let text = &*text;
        let ids = open()?.encode(text, false).map_err(|error| error.0)?.len();
        rows.insert(format!("{name} ids"), ids as f64);
    }
    next_turn(&open()?, &inputs, clock, &mut rows)?;
    slices(&open, clock, &mut rows)?;
    Ok(rows)
}

/// Takes what the allocator has left of the memory so far, so that what is taken after it makes the memory grow.
fn fill() -> Vec<Vec<u8>> {
    let begin = pages();
    let blocks = std::iter::from_fn(|| Some(Vec::with_capacity(16 << 10)));
    // Natively nothing is known of the memory.
    let more = |_: &Vec<u8>| cfg!(target_family = "wasm") && pages() == begin;
    blocks.take_while(more).collect()
}

#[cfg(target_family = "wasm")]
fn pages() -> usize {
    core::arch::wasm32::memory_size(0)
}

#[cfg(not(target_family = "wasm"))]
fn pages() -> usize {
    0
}

/// What the steps of an encoding take, some at a time, in microseconds and at their quickest of some rounds: another
/// program that gets the core for some milliseconds is not a part of it.
struct Steps {
    times: Vec<f64>,
    at_a_time: usize,
}

impl Steps {
    fn new(at_a_time: usize) -> Steps {
        Steps { times: Vec::new(), at_a_time }
    }

    fn take(&mut self, tokenizer: &Rc<dyn Tokenizer>, text: &Rc<str>, clock: Clock<'_>) -> Result<(), String> {
        let mut begun = clock();
        let mut encoding = tokenizer.clone().start(text.clone(), false);
        let (mut ids, mut last) = (Vec::new(), Step::More);
        for number in 0.. {
            for _ in 0..self.at_a_time {
                ids.clear();
                last = encoding.step(STEP, &mut ids).map_err(|error| error.0)?;
                if last == Step::Done {
                    break;
                }
            }
            let now = clock();
            let time = (now - begun) as f64 / 1e3;
            begun = now;
            match self.times.get_mut(number) {
                Some(quickest) => *quickest = quickest.min(time),
                None => self.times.push(time),
            }
            if last == Step::Done {
                break;
            }
        }
        Ok(())
    }

    fn sum(&self) -> f64 {
        self.times.iter().sum()
    }

    fn longest(&self) -> f64 {
        self.times.iter().copied().fold(0.0, f64::max)
    }
}

/// Text to block hashes of a conversation whose turn before is remembered.
fn next_turn(tokenizer: &Rc<dyn Tokenizer>, inputs: &Inputs, clock: Clock<'_>, rows: &mut Rows) -> Result<(), String> {
    let scope = Scope { root: namespace("", "m", None, None), block_size: 16, tokenizer: 1 };
    let (mut quickest, mut reused) = (f64::INFINITY, 0);
    for _ in 0..ROUNDS {
        let mut memory = PromptMemory::new(32 << 20, 1);
        serve(&mut memory, scope, tokenizer, &inputs.long.as_str().into());
        let text: Rc<str> = inputs.next.as_str().into();
        quickest = quickest.min(timed(clock, || reused = serve(&mut memory, scope, tokenizer, &text)));
    }
    rows.insert("next turn".into(), quickest);
    rows.insert("next turn, bytes tokenized".into(), (inputs.next.len() - reused) as f64);
    Ok(())
}

/// As the filter does it; gives the bytes that were known.
fn serve(memory: &mut PromptMemory, scope: Scope, tokenizer: &Rc<dyn Tokenizer>, text: &Rc<str>) -> usize {
    let (mut trail, beginning) = memory.find(scope, text);
    let (at, mut hashes, mut chain) = match beginning {
        Some(beginning) => (beginning.at, beginning.hashes, beginning.chain),
        None => (Boundary::default(), Vec::new(), Chain::new(scope.root, scope.block_size)),
    };
    let resumed = (at.bytes > 0).then(|| tokenizer.clone().resume(text.clone(), false, at)).flatten();
    let mut encoding: Box<dyn Encoding> = resumed.unwrap_or_else(|| tokenizer.clone().start(text.clone(), false));
    let (mut ids, mut given, mut known) = (Vec::new(), at.tokens, at);
    loop {
        ids.clear();
        let Ok(step) = encoding.step(STEP, &mut ids) else { break };
        chain.extend(&ids, &mut hashes);
        given += ids.len();
        if let Some(boundary) = encoding.boundary().filter(|at| at.tokens == given && *at != known) {
            memory.remember(&mut trail, text, boundary, &hashes, &chain);
            known = boundary;
        }
        if step == Step::Done {
            break;
        }
    }
    at.bytes
}

/// The longest steps on inputs that are made to be long.
fn slices(
    open: &dyn Fn() -> Result<Rc<dyn Tokenizer>, String>,
    clock: Clock<'_>,
    rows: &mut Rows,
) -> Result<(), String> {
    let inputs: [(&str, String); 6] = [
        ("10 MB of spaces", " ".repeat(10_000_000)),
        ("10 MB of one letter", "a".repeat(10_000_000)),
        ("10 MB of line breaks", "\n".repeat(10_000_000)),
        ("10 MB of signs", "=-".repeat(5_000_000)),
        ("1 MB of letters in one word", Random(3).letters(1_000_000)),
        ("1 MB of accents", "e\u{301}".repeat(333_000)),
    ];
    let mut all = Vec::new();
    for (name, text) in inputs {
        let text: Rc<str> = text.into();
        let mut steps = Steps::new(1);
        for _ in 0..3 {
            steps.take(&open()?, &text, clock)?;
        }
        rows.insert(format!("{name}, all"), steps.sum());
        rows.insert(format!("{name}, longest step"), steps.longest());
        all.extend(steps.times);
    }
    all.sort_by(f64::total_cmp);
    rows.insert("longest step at p99.9".into(), all.get(all.len() * 999 / 1000).copied().unwrap_or(f64::NAN));
    Ok(())
}
