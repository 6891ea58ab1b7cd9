//! Where in a text its ids end, for people to look at. Not on the path of requests: it turns the merge table
//! round, which costs some milliseconds.

use hashbrown::HashMap;

use super::{Compact, Merges, View};
use crate::blocks::TokenId;

/// No token has more bytes; a damaged table might say so.
const LONGEST: usize = 4096;

/// What ids are made of.
struct Spelling<'a> {
    bytes: HashMap<TokenId, u8>,
    pairs: HashMap<TokenId, (TokenId, TokenId)>,
    words: HashMap<TokenId, &'a [u8]>,
}

impl<'a> Spelling<'a> {
    fn of(compact: &'a Compact, merges: Merges<'_>) -> Self {
        Spelling {
            bytes: (0..=u8::MAX).zip(compact.symbols).map(|(byte, id)| (id, byte)).collect(),
            pairs: merges.pairs().map(|(left, right, id)| (id, (left, right))).collect(),
            words: compact.exceptions.iter().map(|(word, id)| (*id, word.as_ref())).collect(),
        }
    }

    /// The bytes of an id of the vocabulary, appended to `out`. False: it is none.
    fn spell(&self, id: TokenId, out: &mut Vec<u8>) -> bool {
        let mut left = vec![id];
        while let Some(id) = left.pop() {
            if let Some(byte) = self.bytes.get(&id) {
                out.push(*byte);
            } else if let Some((first, second)) = self.pairs.get(&id) {
                left.extend([*second, *first]);
            } else if let Some(word) = self.words.get(&id) {
                out.extend_from_slice(word);
            } else {
                return false;
            }
            if out.len() + left.len() > LONGEST {
                return false;
            }
        }
        true
    }
}

/// The ends of `ids` in `text`; those in front and behind stand for no text. `None` where an id does not stand in
/// the text as it is spelled, which is so where the text was normalised. An id that ends within a character ends
/// with it.
pub fn ends(compact: &Compact, view: &View<'_>, text: &str, ids: &[TokenId], add: bool) -> Option<Vec<usize>> {
    if compact.header.characters {
        return None; // a space and the character that stands for it are spelled alike
    }
    let spelling = Spelling::of(compact, view.merges);
    let around = |list: &[TokenId]| if add { list.len() } else { 0 };
    let (front, behind) = (around(&compact.specials.prefix), around(&compact.specials.suffix));
    let last = ids.len().checked_sub(behind)?;
    let (bytes, mut at, mut spelled) = (text.as_bytes(), 0, Vec::new());
    let mut out = Vec::with_capacity(ids.len());
    for (number, id) in ids.iter().enumerate() {
        if number >= front && number < last {
            spelled.clear();
            let added = |trie: &super::Trie<'_>| trie.at(bytes, at).filter(|found| found.id == *id);
            let added = added(&view.first).or_else(|| view.second.as_ref().and_then(added));
            at = match added {
                Some(found) => found.end,
                None if spelling.spell(*id, &mut spelled) && bytes.get(at..)?.starts_with(&spelled) => {
                    at + spelled.len()
                }
                None => return None,
            };
        }
        out.push(text.ceil_char_boundary(at));
    }
    (at == text.len()).then_some(out)
}
