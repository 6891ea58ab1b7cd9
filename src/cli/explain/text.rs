//! An explanation for people.

use crate::cli::state::{LEGEND, LOAD, address, feed, load, title, trust, trust_notes};
use crate::cli::table::{Paint, grouped, harmless, table};
use crate::explain::Explanation;
use crate::look::{Candidate, Choice, Prefill};
use crate::request::Api;

/// Rows of the table of blocks, unless all are asked for.
const ROWS: usize = 24;
/// Ids of a block that are shown.
const IDS: usize = 6;

/// How much is shown, and how.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    /// Every block of the table.
    pub all_blocks: bool,
    /// Neither prompt nor blocks.
    pub brief: bool,
    /// Colours.
    pub paint: Paint,
}

/// The whole text: what it comes to, the prompt, the blocks.
pub fn explanation(e: &Explanation, style: Style) -> String {
    let mut out = summary(e, style.paint);
    if style.brief {
        return out;
    }
    if let Some(prompt) = &e.prompt {
        let marked = if e.block_ends.is_empty() { "" } else { ", ⟦n⟧ ends block n" };
        out.push_str(&format!("\n{}\n", style.paint.bold(&format!("prompt{marked}"))));
        out.push_str(&mark(prompt, &e.block_ends, style.paint));
        if !out.ends_with('\n') {
            out.push('\n');
        }
    }
    if !e.token_ids.is_empty() {
        out.push_str(&format!("\n{}\n", style.paint.bold("blocks")));
        out.push_str(&blocks(e, style.all_blocks));
    }
    out
}

/// The answer of one worker: what it does with the request, why, and the replicas in the order of their cost.
/// `shown` is the explanation that stands above already.
pub fn choice(c: &Choice, shown: &Explanation, paint: Paint) -> String {
    let mut out = format!("{}\nfeed    {}\n", paint.bold(&title(c.slot, &c.live_slots)), feed(&c.feed, paint));
    if !c.explanation.agrees(shown) {
        out.push_str(&format!("its own answer differs:\n{}", summary(&c.explanation, paint)));
    }
    out.push_str(&format!("pick    {}\n", pick(c, paint)));
    if c.candidates.is_empty() {
        return out;
    }
    out.push_str(&format!("\n{}\n", candidates(&c.candidates, c.explanation.block_hashes.len() as u64)));
    if c.compared > c.candidates.len() as u64 {
        out.push_str(&format!("the best {} of {} replicas\n", c.candidates.len(), grouped(c.compared)));
    }
    if let Some(prefill) = &c.prefill {
        out.push_str(&format!("\nprefill {}\n", self::prefill(prefill, paint)));
        if !prefill.candidates.is_empty() {
            out.push_str(&format!("\n{}\n", candidates(&prefill.candidates, c.explanation.block_hashes.len() as u64)));
        }
    }
    out
}

/// Replicas in the order of their cost, of a prompt of so many blocks.
fn candidates(list: &[Candidate], total: u64) -> String {
    let mut headers = vec!["replica", "trust", "blocks", "uncached", "cost", "prefill", "load", "crowd"];
    // Few requests are for an adapter.
    let adapter = list.iter().any(|r| r.adapter.is_some());
    if adapter {
        headers.extend(["adapter", "loading"]);
    }
    headers.extend(LOAD);
    let rows = list.iter().map(|r| {
        let mut row = vec![
            address(&r.address, r.rank),
            trust(&r.trust, &r.trust_reason),
            format!("{} of {}", grouped(r.matched_blocks), grouped(total)),
            grouped(r.uncached_tokens),
            format!("{:.0}", r.cost),
            format!("{:.0}", r.cost_prefill),
            format!("{:.0}", r.cost_load),
            format!("{:.0}", r.cost_crowding),
        ];
        if adapter {
            row.extend([r.adapter.clone().unwrap_or_default(), format!("{:.0}", r.cost_adapter)]);
        }
        row.extend(load(&r.load));
        row
    });
    table(&headers, 2, rows).trim_fmt()
}

/// Who prefills.
fn prefill(prefill: &Prefill, paint: Paint) -> String {
    let (uncached, from) = (grouped(prefill.uncached_tokens), grouped(prefill.from));
    match &prefill.pick {
        Some(pick) => {
            format!("{}: {uncached} tokens are not cached above, and {from} are worth it", paint.bold(&harmless(pick)))
        }
        None if prefill.uncached_tokens < prefill.from => {
            format!(
                "where it is answered: {uncached} tokens are not cached there, {from} would be worth another replica"
            )
        }
        None => "where it is answered: no replica is there for it, or policy.remote_prefill is 0".to_owned(),
    }
}

/// What the columns of all these tables mean; empty where there is none.
pub fn legend(choices: &[Choice]) -> String {
    let candidates: Vec<&Candidate> = choices.iter().flat_map(|c| &c.candidates).collect();
    if candidates.is_empty() {
        return String::new();
    }
    let adapter = match candidates.iter().any(|r| r.adapter.is_some()) {
        true => {
            "adapter, loading: whether its engine has the LoRA adapter ready, and what loading adds to the cost\n\
             (policy.adapter); one that is known not to serve it is not listed where another does\n"
        }
        false => "",
    };
    format!(
        "\nblocks: of the prompt, from its start, that it holds\n\
         cost: prefill + load + crowd, in tokens; the least wins\n\
         prefill: tokens of the prompt that are not there, or not relied on, less what a copy of them would\n\
         have saved to earlier requests (policy.copy)\n\
         crowd: for being home to more conversations than others\n{adapter}{LEGEND}{}",
        trust_notes(candidates.iter().map(|r| r.trust.as_str()))
    )
}

/// Where the request goes, and why there.
fn pick(c: &Choice, paint: Paint) -> String {
    let Some(pick) = &c.pick else {
        let why = match (&c.no_pick, &c.explanation.no_key) {
            (Some(reason), _) => format!("{}: {}", reason.reason, harmless(&reason.detail)),
            (None, Some(reason)) => format!("no key, {}", reason.reason),
            (None, None) => "no reason given".to_owned(),
        };
        return format!("{}: {why}", paint.bold("left to Envoy, by least request"));
    };
    let why = match c.reason.as_deref() {
        Some("cache") => "it holds more of the prompt than any other",
        Some("load") => "it costs least, though another holds as much of the prompt or more",
        Some("tie") => "several cost the same, the lot decided",
        Some("only") => "there is no other",
        _ => "it costs least",
    };
    format!("{}: {why}", paint.bold(pick))
}

fn summary(e: &Explanation, paint: Paint) -> String {
    let api = match e.api {
        Some(Api::ChatCompletions) => "chat completions",
        Some(Api::Completions) => "completions",
        Some(Api::Messages) => "messages",
        Some(Api::Responses) => "responses",
        Some(Api::Tokenize) => "tokenize",
        None => "none",
    };
    let lora = e.lora.as_deref().map(|name| format!(", LoRA adapter {name}")).unwrap_or_default();
    let model = format!("{}{lora}", e.model.as_deref().unwrap_or("unknown"));
    let mut out = format!("api     {api}\nmodel   {}\n", harmless(&model));
    if !e.token_ids.is_empty() {
        let source = match &e.prompt {
            Some(prompt) => format!("{} bytes", grouped(prompt.len() as u64)),
            None => "ids from the client".to_owned(),
        };
        let goes_on = if e.open_ended { ", goes on with something that has no key" } else { "" };
        out.push_str(&format!("prompt  {} tokens, {source}{goes_on}\n", grouped(e.token_ids.len() as u64)));
    }
    let key = match &e.no_key {
        Some(reason) => format!("none: {}: {}", paint.bold(&reason.reason), harmless(&reason.detail)),
        None => {
            let salt = if e.cache_salt { ", with a cache_salt" } else { "" };
            format!("{} blocks of {} tokens{salt}", grouped(e.block_hashes.len() as u64), e.block_size)
        }
    };
    out.push_str(&format!("key     {key}\n"));
    out
}

/// The text with a mark at the end of each block.
fn mark(text: &str, ends: &[usize], paint: Paint) -> String {
    let (mut out, mut from) = (String::new(), 0);
    for (i, end) in ends.iter().enumerate() {
        // A token may end within a character.
        let end = text.floor_char_boundary(*end).max(from);
        out.push_str(&harmless(&text[from..end]));
        out.push_str(&paint.mark(&format!("⟦{i}⟧")));
        from = end;
    }
    out.push_str(&harmless(&text[from..]));
    out
}

fn blocks(e: &Explanation, all: bool) -> String {
    let size = e.block_size.max(1) as usize;
    let full = e.block_hashes.len();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (i, ids) in e.token_ids.chunks(size).enumerate() {
        let hash = e.block_hashes.get(i).cloned();
        let name = if hash.is_some() { i.to_string() } else { "-".to_owned() };
        let first = i * size;
        let shown: Vec<String> = ids.iter().take(IDS).map(u32::to_string).collect();
        let more = if ids.len() > IDS { " …" } else { "" };
        rows.push(vec![
            hash.unwrap_or_else(|| "no hash".to_owned()),
            format!("{}{more}", shown.join(" ")),
            name,
            format!("{first}-{}", first + ids.len() - 1),
        ]);
    }
    let hidden = if all { 0 } else { rows.len().saturating_sub(ROWS) };
    if hidden > 0 {
        let (head, tail) = (ROWS / 2, rows.len() - ROWS / 2);
        let note = format!("… {hidden} more (--all-blocks)");
        rows.splice(head..tail, [vec![note, String::new(), "…".to_owned(), "…".to_owned()]]);
    }
    let rows = rows.into_iter().map(|mut row| {
        row.rotate_left(2);
        row
    });
    let mut table = table(&["block", "tokens", "hash", "ids"], 4, rows);
    for column in table.column_iter_mut().take(2) {
        column.set_cell_alignment(comfy_table::CellAlignment::Right);
    }
    let rest = e.token_ids.len() - (full * size).min(e.token_ids.len());
    let note = if rest > 0 { format!("{rest} tokens after the last full block have no hash\n") } else { String::new() };
    format!("{}\n{note}", table.trim_fmt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::Reason;

    const STYLE: Style = Style { all_blocks: false, brief: false, paint: Paint::plain() };

    fn example(tokens: u32) -> Explanation {
        let prompt: String = (0..tokens).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
        Explanation {
            api: Some(Api::Completions),
            model: Some("m".into()),
            prompt: Some(prompt),
            token_ids: (0..tokens).collect(),
            block_size: 4,
            block_hashes: (0..tokens / 4).map(|i| format!("{i:016x}")).collect(),
            block_ends: (1..=tokens as usize / 4).map(|i| i * 4).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn blocks_are_marked_in_the_prompt_and_listed() {
        let text = explanation(&example(10), STYLE);
        assert!(text.contains("abcd⟦0⟧efgh⟦1⟧ij\n"), "{text}");
        assert!(text.contains("2 blocks of 4 tokens"), "{text}");
        assert!(text.contains("2 tokens after the last full block"), "{text}");
        assert!(text.contains("0000000000000001"), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
    }

    #[test]
    fn long_tables_are_cut_in_the_middle_unless_asked_for() {
        let cut = explanation(&example(400), STYLE);
        assert!(cut.contains("… 76 more") && !cut.contains(&format!("{:016x}", 50)), "{cut}");
        let all = explanation(&example(400), Style { all_blocks: true, ..STYLE });
        assert!(all.contains(&format!("{:016x}", 50)) && !all.contains("more"), "{all}");
    }

    #[test]
    fn a_mark_never_splits_a_character() {
        assert_eq!(mark("aé€b", &[2, 4, 9], Paint::plain()), "a⟦0⟧é⟦1⟧€b⟦2⟧");
    }

    #[test]
    fn the_choice_of_a_worker_says_where_and_why() {
        let candidate = |address: &str, blocks, [prefill, load, crowding]: [f64; 3]| Candidate {
            address: address.into(),
            trust: "exact".into(),
            matched_blocks: blocks,
            uncached_tokens: prefill as u64,
            cost: prefill + load + crowding,
            cost_prefill: prefill,
            cost_load: load,
            cost_crowding: crowding,
            ..Default::default()
        };
        let shown = example(10);
        let mut c = Choice {
            slot: Some(1),
            live_slots: vec![0, 1],
            explanation: shown.clone(),
            candidates: vec![
                candidate("10.0.0.1:8000", 2, [2.0, 16.0, 0.0]),
                candidate("10.0.0.12:8000", 0, [10.0, 1234.0, 3.0]),
            ],
            compared: 3,
            pick: Some("10.0.0.1:8000".into()),
            reason: Some("cache".into()),
            ..Default::default()
        };
        let text = choice(&c, &shown, Paint::plain());
        assert!(text.starts_with("worker with slot 1 (live slots: 0, 1)\nfeed    none"), "{text}");
        assert!(text.contains("\npick    10.0.0.1:8000: it holds more of the prompt than any other\n"), "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("8000 ") || line.contains("trust ")).collect();
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(lines[0], "blocks"), end(lines[1], "2 of 2"), "{text}");
        assert_eq!(end(lines[0], "cost"), end(lines[2], "1247"), "{text}");
        assert_eq!(end(lines[0], "load"), end(lines[2], "1234"), "{text}");
        assert!(text.contains("the best 2 of 3 replicas\n") && !text.contains("differs"), "{text}");
        let text = text + &legend(&[c.clone()]);
        assert!(text.contains("\ncost: "), "{text}");
        assert!(text.lines().all(|line| line == line.trim_end() && line.chars().count() <= 120), "{text}");

        (c.candidates[0].adapter, c.candidates[1].adapter) = (Some("loaded".into()), Some("served".into()));
        (c.candidates[1].cost, c.candidates[1].cost_adapter) = (1759.0, 512.0);
        let of_adapter = choice(&c, &shown, Paint::plain()) + &legend(&[c.clone()]);
        assert!(
            of_adapter.contains("served") && of_adapter.contains(" 512 ") && of_adapter.contains("policy.adapter"),
            "{of_adapter}"
        );

        let list = vec![candidate("10.0.0.7:8000", 1, [6.0, 0.0, 0.0])];
        let apart = Prefill { pick: Some("10.0.0.7:8000".into()), uncached_tokens: 20, from: 16, candidates: list };
        c.prefill = Some(apart);
        let text = choice(&c, &shown, Paint::plain());
        let expected = "\nprefill 10.0.0.7:8000: 20 tokens are not cached above, and 16 are worth it\n\nreplica ";
        assert!(text.contains(expected), "{text}");
        c.prefill = Some(Prefill { uncached_tokens: 3, from: 16, ..Prefill::default() });
        let text = choice(&c, &shown, Paint::plain());
        assert!(text.contains("\nprefill where it is answered: 3 tokens are not cached there"), "{text}");
        c.prefill = None;

        c.explanation.no_key = Some(Reason { reason: "model_off".into(), detail: String::new() });
        (c.candidates, c.pick) = (Vec::new(), None);
        let text = choice(&c, &shown, Paint::plain());
        assert!(text.contains("its own answer differs") && text.contains("key     none: model_off"), "{text}");
        assert!(text.ends_with("pick    left to Envoy, by least request: no key, model_off\n"), "{text}");
    }

    #[test]
    fn a_request_without_a_key_says_why() {
        let reason = Reason { reason: "too_short".into(), detail: "3 tokens".into() };
        let text = explanation(&Explanation { no_key: Some(reason), ..Default::default() }, STYLE);
        assert!(text.contains("key     none: too_short: 3 tokens\n"), "{text}");
    }
}
