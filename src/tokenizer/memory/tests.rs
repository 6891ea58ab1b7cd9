use super::*;
use crate::blocks::namespace;

fn scope(model: &str) -> Scope {
    Scope { root: namespace("", model, None, None), block_size: 4, tokenizer: 1 }
}

/// One token a byte; a boundary after each `|`.
fn tokens(text: &str) -> Vec<TokenId> {
    text.bytes().map(u32::from).collect()
}

fn state(scope: Scope, text: &str) -> (Vec<BlockHash>, Chain) {
    let (mut hashes, mut chain) = (Vec::new(), Chain::new(scope.root, scope.block_size));
    chain.extend(&tokens(text), &mut hashes);
    (hashes, chain)
}

/// What the filter does: go on from what is remembered, remember each boundary. Gives bytes reused and the hashes.
fn serve(memory: &mut PromptMemory, scope: Scope, text: &str) -> (usize, Vec<BlockHash>) {
    let (mut trail, beginning) = memory.find(scope, text);
    let (mut at, mut hashes, mut chain) = match beginning {
        Some(beginning) => (beginning.at, beginning.hashes, beginning.chain),
        None => (Boundary::default(), Vec::new(), Chain::new(scope.root, scope.block_size)),
    };
    let reused = at.bytes;
    while let Some(next) = text[at.bytes..].find('|') {
        let end = at.bytes + next + 1;
        chain.extend(&tokens(&text[at.bytes..end]), &mut hashes);
        at = Boundary { bytes: end, tokens: end };
        memory.remember(&mut trail, text, at, &hashes, &chain);
    }
    chain.extend(&tokens(&text[at.bytes..]), &mut hashes);
    (reused, hashes)
}

fn random_text(random: &mut impl FnMut(usize) -> usize) -> String {
    (0..random(900)).map(|_| if random(40) == 0 { '|' } else { char::from(b'a' + random(3) as u8) }).collect()
}

fn generator(mut state: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n.max(1)
    }
}

#[test]
fn remembered_equals_plain_for_random_edits_and_any_bound() {
    for (seed, bound) in [(1, 1 << 20), (2, 20_000), (3, 600), (4, 0)] {
        let mut random = generator(seed);
        let mut memory = PromptMemory::new(bound, 77);
        let mut texts = vec![random_text(&mut random)];
        let mut reused = 0;
        for _ in 0..1500 {
            let old = &texts[random(texts.len())];
            let keep = random(old.len() + 1);
            let text = format!("{}{}", &old[..keep], random_text(&mut random));
            let scope = if random(10) == 0 { scope("other") } else { scope("m") };
            let (bytes, hashes) = serve(&mut memory, scope, &text);
            assert_eq!(hashes, state(scope, &text).0);
            reused += bytes;
            assert!(memory.bytes() <= bound, "{} of {bound}", memory.bytes());
            if texts.len() < 30 {
                texts.push(text);
            } else {
                let at = random(30);
                texts[at] = text;
            }
        }
        assert_eq!(reused as u64, memory.counters().bytes_saved);
        assert_eq!(memory.counters().hits + memory.counters().misses, 1500);
        if bound == 1 << 20 {
            assert!(reused > 100_000, "{reused}");
        }
    }
}

#[test]
fn the_next_turn_starts_where_the_last_boundary_was() {
    let mut memory = PromptMemory::new(1 << 20, 1);
    let turn = format!("{}|user|", "s".repeat(5000));
    assert_eq!(serve(&mut memory, scope("m"), &turn).0, 0);
    let next = format!("{turn}answer|more");
    assert_eq!(serve(&mut memory, scope("m"), &next).0, turn.len());
    assert_eq!(serve(&mut memory, scope("m"), &next).0, turn.len() + 7);
}

#[test]
fn nothing_crosses_scopes() {
    let mut memory = PromptMemory::new(1 << 20, 1);
    serve(&mut memory, scope("m"), "a|b|");
    for other in [scope("n"), Scope { block_size: 8, ..scope("m") }, Scope { tokenizer: 2, ..scope("m") }] {
        assert!(memory.find(other, "a|b|").1.is_none());
    }
    assert!(memory.find(scope("m"), "a|b|").1.is_some());
}

#[test]
fn the_cost_is_what_is_held() {
    let mut memory = PromptMemory::new(1 << 20, 1);
    for turn in 1..200 {
        serve(&mut memory, scope("m"), &"0123456789|".repeat(turn));
    }
    // 199 entries, each with its share of 8-byte hashes: nothing counts twice.
    let full = ENTRY * 199 + (199 * 11 / 4) * 8 + 199 * 4 * 3;
    assert!(memory.bytes() <= full && memory.bytes() > ENTRY * 199, "{}", memory.bytes());
    while memory.oldest != NO_SLOT {
        memory.evict(memory.oldest);
    }
    assert_eq!((memory.bytes(), memory.len(), memory.rests.len()), (0, 0, 0));
}

#[test]
fn a_conversation_of_any_length_goes_without_recursion() {
    let mut memory = PromptMemory::new(1 << 30, 1);
    let text = "x|".repeat(100_000);
    serve(&mut memory, scope("m"), &text);
    assert_eq!(memory.len(), 100_000);
    drop(memory);
}
