//! Finds added tokens in a text: the leftmost, of those that begin there the longest, as Hugging Face
//! `tokenizers` does.
//!
//! A trie in two flat tables of u32, so that it can lie in a pack and be used in place:
//!
//! ```text
//! nodes: (first edge, edges, id or NONE) each     edges: target << 8 | byte, sorted by byte within a node
//! ```
//!
//! A search looks at each byte that some token begins with and walks from there: the time is at most the length
//! of the text times that of the longest token, and in practice that of a scan for `<`.

use std::collections::{BTreeMap, HashSet};

use crate::blocks::TokenId;

const NONE: u32 = u32::MAX;
/// In a node's id: the token is not a boundary.
const INNER: u32 = 1 << 31;

/// An added token in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where it begins.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// Its id.
    pub id: TokenId,
    /// Whether its end is a place where any other text may follow, see [`boundaries`].
    pub boundary: bool,
}

/// An added token as it is told to [`AddedTokens::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedToken<'t> {
    /// What it matches.
    pub content: &'t [u8],
    /// Below 2^31.
    pub id: TokenId,
    /// See [`Found::boundary`].
    pub boundary: bool,
}

/// Which of `seconds` (found in what `firsts` leave) and `firsts` are boundaries: where such a token ends, it ends
/// whatever follows. Not so when the token is a part of another one, or when one of `firsts` can begin inside one of
/// `seconds` and take its end away.
pub fn boundaries(firsts: &[&[u8]], seconds: &[&[u8]]) -> (Vec<bool>, Vec<bool>) {
    let mut inside: HashSet<&[u8]> = HashSet::new();
    let mut starts: HashSet<&[u8]> = HashSet::new();
    let all: HashSet<&[u8]> = firsts.iter().chain(seconds).copied().collect();
    for token in &all {
        for from in 0..token.len() {
            for to in from + 1..=token.len() {
                match token.get(from..to) {
                    Some(part) if part.len() < token.len() && all.contains(part) => _ = inside.insert(part),
                    _ => {}
                }
            }
        }
    }
    for token in firsts {
        starts.extend((1..token.len()).filter_map(|to| token.get(..to)));
    }
    let cut = |token: &[u8]| (1..token.len()).any(|from| token.get(from..).is_some_and(|end| starts.contains(end)));
    let first = firsts.iter().map(|token| !inside.contains(token)).collect();
    let second =
        seconds.iter().map(|token| !inside.contains(token) && !cut(token) && !firsts.contains(token)).collect();
    (first, second)
}

/// The tables, wherever they live.
#[derive(Clone, Copy, Debug)]
pub struct Trie<'a> {
    nodes: &'a [[u8; 12]],
    edges: &'a [[u8; 4]],
    /// Which bytes a token begins with.
    first: &'a FirstBytes,
}

/// Tables on the heap.
#[derive(Clone, Debug)]
pub struct AddedTokens {
    nodes: Vec<u8>,
    edges: Vec<u8>,
    first: FirstBytes,
}

impl AddedTokens {
    /// A set of tokens. Empty ones are ignored.
    pub fn new<'t>(tokens: impl Iterator<Item = AddedToken<'t>>) -> Self {
        // A node while building: its edges and its id.
        let mut tree: Vec<(BTreeMap<u8, usize>, u32)> = vec![(BTreeMap::new(), NONE)];
        for AddedToken { content, id, boundary } in tokens {
            let mut at = 0;
            for byte in content {
                let next = tree.len();
                let Some((edges, _)) = tree.get_mut(at) else { break };
                at = *edges.entry(*byte).or_insert(next);
                if at == next {
                    tree.push((BTreeMap::new(), NONE));
                }
            }
            if let (false, Some(node)) = (content.is_empty(), tree.get_mut(at)) {
                node.1 = if boundary { id } else { id | INNER };
            }
        }
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        for (children, id) in &tree {
            for number in [(edges.len() >> 2) as u32, children.len() as u32, *id] {
                nodes.extend_from_slice(&number.to_le_bytes());
            }
            for (byte, target) in children {
                edges.extend_from_slice(&((*target as u32) << 8 | u32::from(*byte)).to_le_bytes());
            }
        }
        let first = Trie::first_bytes(&nodes, &edges);
        AddedTokens { nodes, edges, first }
    }

    /// The tables for a pack: nodes and edges.
    pub fn tables(&self) -> (&[u8], &[u8]) {
        (&self.nodes, &self.edges)
    }

    /// See [`Trie::find`].
    pub fn find(&self, text: &[u8], from: usize) -> Option<Found> {
        Trie::new(&self.nodes, &self.edges, &self.first).find(text, from)
    }
}

/// The bytes that tokens begin with, and the search for the next one of them.
#[derive(Clone, Copy, Debug)]
pub struct FirstBytes {
    any: [bool; 256],
    /// What may come after it.
    second: [bool; 256],
    /// The only one, eight times, if there is one only.
    only: Option<u64>,
}

impl Default for FirstBytes {
    fn default() -> Self {
        FirstBytes::new(std::iter::empty(), [true; 256])
    }
}

impl FirstBytes {
    fn new(bytes: impl Iterator<Item = u8>, second: [bool; 256]) -> Self {
        let (mut any, mut count, mut last) = ([false; 256], 0, 0);
        for byte in bytes {
            if let Some(flag) = any.get_mut(usize::from(byte)) {
                *flag = true;
            }
            (count, last) = (count + 1, byte);
        }
        FirstBytes { any, second, only: (count == 1).then(|| u64::from_ne_bytes([last; 8])) }
    }

    /// Whether no token begins with any byte.
    pub fn is_empty(&self) -> bool {
        !self.any.contains(&true)
    }

    /// Whether the byte after one of them, if there is any, may be a token's second one.
    #[inline]
    fn goes_on(&self, byte: Option<&u8>) -> bool {
        byte.and_then(|byte| self.second.get(usize::from(*byte))).is_none_or(|yes| *yes)
    }

    /// Where the first of them is.
    fn position(&self, text: &[u8]) -> Option<usize> {
        let mut skipped = 0;
        if let Some(only) = self.only {
            // Most prompts have one `<` in hundreds of bytes: eight bytes at a time.
            const ONES: u64 = 0x0101_0101_0101_0101;
            for chunk in text.as_chunks::<8>().0 {
                let equal = u64::from_ne_bytes(*chunk) ^ only;
                if equal.wrapping_sub(ONES) & !equal & (ONES << 7) != 0 {
                    break;
                }
                skipped += 8;
            }
        }
        let rest = text.get(skipped..)?;
        let found = rest.iter().position(|byte| self.any.get(usize::from(*byte)).is_some_and(|yes| *yes))?;
        Some(skipped + found)
    }
}

impl<'a> Trie<'a> {
    /// A view of tables. Damaged ones find nothing or the wrong thing, but do no harm.
    pub fn new(nodes: &'a [u8], edges: &'a [u8], first: &'a FirstBytes) -> Self {
        Trie { nodes: nodes.as_chunks().0, edges: edges.as_chunks().0, first }
    }

    /// Which bytes a token of these tables begins with.
    pub fn first_bytes(nodes: &[u8], edges: &[u8]) -> FirstBytes {
        let none = FirstBytes::default();
        let trie = Trie::new(nodes, edges, &none);
        let (firsts, mut second) = (trie.edges_of(0).0, [false; 256]);
        for first in firsts {
            let (edges, id) = trie.edges_of((u32::from_le_bytes(*first) >> 8) as usize);
            let bytes = edges.iter().map(|edge| usize::from(edge[0]));
            // After a token of one byte anything may come.
            let any = (id != NONE).then_some(0..256).into_iter().flatten();
            bytes.chain(any).for_each(|byte| second.get_mut(byte).into_iter().for_each(|may| *may = true));
        }
        FirstBytes::new(firsts.iter().map(|edge| edge[0]), second)
    }

    fn edges_of(&self, node: usize) -> (&'a [[u8; 4]], u32) {
        let Some([a, b, c, d, e, f, g, h, id @ ..]) = self.nodes.get(node) else { return (&[], NONE) };
        let (start, count) =
            (u32::from_le_bytes([*a, *b, *c, *d]) as usize, u32::from_le_bytes([*e, *f, *g, *h]) as usize);
        let edges = self.edges.get(start..).and_then(|rest| rest.get(..count)).unwrap_or_default();
        (edges, u32::from_le_bytes(*id))
    }

    /// The longest token that `text` begins with at `at`.
    pub fn at(&self, text: &[u8], at: usize) -> Option<Found> {
        let mut found = None;
        let (mut edges, _) = self.edges_of(0);
        for (end, byte) in text.iter().enumerate().skip(at) {
            let Some(edge) = edges.iter().find(|edge| edge[0] == *byte) else { break };
            let (next, id) = self.edges_of((u32::from_le_bytes(*edge) >> 8) as usize);
            if id != NONE {
                found = Some(Found { start: at, end: end + 1, id: id & !INNER, boundary: id & INNER == 0 });
            }
            edges = next;
        }
        found
    }

    /// The first token at or after `from`.
    pub fn find(&self, text: &[u8], from: usize) -> Option<Found> {
        self.find_before(text, from, text.len())
    }

    /// The first token that begins in `from..to`; it may end after that.
    pub fn find_before(&self, text: &[u8], from: usize, to: usize) -> Option<Found> {
        let starts = text.get(..to.min(text.len()))?;
        let mut at = from;
        loop {
            let rest = starts.get(at..)?;
            at += self.first.position(rest)?;
            if self.first.goes_on(text.get(at + 1))
                && let Some(found) = self.at(text, at)
            {
                return Some(found);
            }
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(tokens: &[(&str, u32)], text: &str) -> Option<Found> {
        (0..text.len()).find_map(|start| {
            let here = tokens.iter().filter(|(t, _)| text.as_bytes()[start..].starts_with(t.as_bytes()));
            here.max_by_key(|(t, _)| t.len()).map(|(t, id)| Found {
                start,
                end: start + t.len(),
                id: *id,
                boundary: false,
            })
        })
    }

    #[test]
    fn leftmost_then_longest() {
        let tokens = [("<a>", 1), ("<a>b", 2), ("b>c", 3), ("\n", 4), ("\n\n", 5), ("｜", 6), ("a", 7)];
        let token = |(t, id): &(&'static str, u32)| AddedToken { content: t.as_bytes(), id: *id, boundary: false };
        let added = AddedTokens::new(tokens.iter().map(token));
        for text in ["", "<", "x<a>b>c", "<a>bb>c", "\n\n\n", "ö｜", "<<a>", "b>", "xb>c", "b>ab>c"] {
            assert_eq!(added.find(text.as_bytes(), 0), slow(&tokens, text), "{text:?}");
        }
    }

    #[test]
    fn what_can_be_swallowed_is_no_boundary() {
        let (first, second) = boundaries(&[b"<a>", b"\n", b"\n\n", b">x"], &[b"<u>", b"<v", b"a"]);
        assert_eq!(first, [true, false, true, true]);
        assert_eq!(second, [false, true, false]);
    }

    #[test]
    fn damaged_tables_do_no_harm() {
        let added = AddedTokens::new([(&b"<a>"[..], 1), (b"<b>", 2)].into_iter().map(|(content, id)| AddedToken {
            content,
            id,
            boundary: true,
        }));
        let (nodes, edges) = added.tables();
        for at in 0..nodes.len() {
            let mut broken = nodes.to_vec();
            broken[at] = 0xff;
            let first = Trie::first_bytes(&broken, edges);
            Trie::new(&broken, edges, &first).find(b"x<a><b>", 0);
        }
    }
}
