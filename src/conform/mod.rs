//! Does kvroute come to the engine's own tokens? The check that a user runs before trusting the filter.
//!
//! A *case* is a request with what the engine made of it. Cases come from a file ([`cases`]), or a live engine is
//! asked for them ([`engine`]). What kvroute makes of the same request is an [`Explanation`], from a pack or out of
//! a running gateway; [`judge`] holds the two side by side and names the first difference.
//!
//! Where the engine answered an error there is nothing to compare, so anything counts as right. Where it answered
//! and kvroute refuses, the case failed, unless the reason is one of the limits that README lists
//! ([`crate::nokey::LIMITS`]).

pub mod cases;
pub mod engine;
pub mod flags;

use serde::Serialize;

use crate::blocks::TokenId;
use crate::explain::{Explanation, Reason};
use crate::nokey::LIMITS;
use cases::Case;

/// How a case came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Text and ids are the engine's.
    Identical,
    /// The engine answered an error: there are no ids.
    EngineRefused {
        /// Its status.
        status: u16,
    },
    /// kvroute has no key, for a reason that README lists.
    Limit(Reason),
    /// kvroute has no key, and should have one.
    Refused(Reason),
    /// Other text or ids than the engine's.
    Differs(Difference),
}

impl Verdict {
    /// Whether the case counts as failed.
    pub fn failed(&self) -> bool {
        matches!(self, Verdict::Refused(_) | Verdict::Differs(_))
    }
}

/// The first place where the two differ.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Difference {
    /// In the text; `None` where the texts are equal, or the engine's is not known.
    pub text: Option<TextDifference>,
    /// In the ids.
    pub tokens: Option<TokenDifference>,
}

/// See [`Difference`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextDifference {
    /// Byte of the engine's text.
    pub byte: usize,
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
    /// What both have before the place.
    pub before: String,
    /// How the engine's goes on.
    pub expected: String,
    /// How kvroute's goes on.
    pub got: String,
}

/// See [`Difference`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenDifference {
    /// Number of the first id that differs, from 0.
    pub index: usize,
    /// The block that it is in, from 0.
    pub block: usize,
    /// Ids of the engine.
    pub expected_total: usize,
    /// Ids of kvroute.
    pub got_total: usize,
    /// What both have before the place.
    pub before: Vec<TokenId>,
    /// The engine's ids from there on.
    pub expected: Vec<TokenId>,
    /// kvroute's ids from there on.
    pub got: Vec<TokenId>,
}

/// Characters and ids that are shown of each side.
const SHOWN: usize = 48;
const SHOWN_IDS: usize = 8;

/// Compares what the engine and what kvroute made of a request.
pub fn judge(case: &Case, ours: &Explanation) -> Verdict {
    if case.status != 200 {
        return Verdict::EngineRefused { status: case.status };
    }
    if let Some(reason) = ours.no_key.as_ref().filter(|_| ours.token_ids.is_empty()) {
        let limit = LIMITS.iter().any(|limit| reason.detail.starts_with(limit));
        return if limit { Verdict::Limit(reason.clone()) } else { Verdict::Refused(reason.clone()) };
    }
    // The recorded text of a truncated prompt is that of its ids.
    let texts = (case.prompt.as_deref(), ours.prompt.as_deref());
    let text = match texts {
        (Some(expected), Some(got)) if !ours.truncated => text_difference(expected, got),
        _ => None,
    };
    // Of a list of prompts one is routed by, and it is one of the engine's.
    let equal = case.ids.iter().any(|ids| if ours.open_ended { starts(ids, ours) } else { *ids == ours.token_ids });
    let tokens = (!equal).then(|| token_difference(closest(&case.ids, &ours.token_ids), ours));
    match (&text, &tokens) {
        (None, None) => Verdict::Identical,
        _ => Verdict::Differs(Difference { text, tokens }),
    }
}

/// Of an open end, every block with a hash must be the engine's.
fn starts(ids: &[TokenId], ours: &Explanation) -> bool {
    let keyed = ours.block_hashes.len() * ours.block_size as usize;
    ids.len() >= keyed && ids[..keyed] == ours.token_ids[..keyed]
}

fn closest<'a>(lists: &'a [Vec<TokenId>], got: &[TokenId]) -> &'a [TokenId] {
    lists.iter().max_by_key(|ids| same(ids, got)).map_or(&[], Vec::as_slice)
}

fn same<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

fn text_difference(expected: &str, got: &str) -> Option<TextDifference> {
    if expected == got {
        return None;
    }
    let byte = expected.char_indices().zip(got.chars()).find(|((_, a), b)| a != b).map(|((at, _), _)| at);
    let byte = byte.unwrap_or(expected.len().min(got.len()));
    let head = &expected[..byte];
    let line_start = head.rfind('\n').map_or(0, |at| at + 1);
    let shown = |text: &str| text[byte..].chars().take(SHOWN).collect::<String>();
    let from = head.char_indices().rev().take(SHOWN / 2).last().map_or(byte, |(at, _)| at);
    Some(TextDifference {
        byte,
        line: head.matches('\n').count() + 1,
        column: head[line_start..].chars().count() + 1,
        before: head[from..].to_owned(),
        expected: shown(expected),
        got: shown(got),
    })
}

fn token_difference(expected: &[TokenId], ours: &Explanation) -> TokenDifference {
    let got = &ours.token_ids;
    let index = same(expected, got);
    let shown = |ids: &[TokenId]| ids[index..].iter().take(SHOWN_IDS).copied().collect();
    TokenDifference {
        index,
        block: index / ours.block_size.max(1) as usize,
        expected_total: expected.len(),
        got_total: got.len(),
        before: got[index.saturating_sub(SHOWN_IDS / 2)..index].to_vec(),
        expected: shown(expected),
        got: shown(got),
    }
}

/// Totals of a set of cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// All.
    pub cases: usize,
    /// Text and ids are the engine's.
    pub identical: usize,
    /// The engine answered an error.
    pub engine_refused: usize,
    /// No key, for a reason that README lists.
    pub limits: usize,
    /// The engine has no endpoint for the ids of the API.
    pub not_checkable: usize,
    /// The rest.
    pub failed: usize,
}

impl Totals {
    /// Counts a case; `None` could not be checked.
    pub fn count(&mut self, verdict: Option<&Verdict>) {
        self.cases += 1;
        *match verdict {
            None => &mut self.not_checkable,
            Some(Verdict::Identical) => &mut self.identical,
            Some(Verdict::EngineRefused { .. }) => &mut self.engine_refused,
            Some(Verdict::Limit(_)) => &mut self.limits,
            Some(Verdict::Refused(_) | Verdict::Differs(_)) => &mut self.failed,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(prompt: &str, ids: &[u32]) -> Case {
        Case { status: 200, prompt: Some(prompt.into()), ids: vec![ids.to_vec()], ..Case::default() }
    }

    fn ours(prompt: &str, ids: &[u32]) -> Explanation {
        Explanation { prompt: Some(prompt.into()), token_ids: ids.to_vec(), block_size: 4, ..Explanation::default() }
    }

    #[test]
    fn the_first_difference_has_its_place() {
        let expected = case("one\ntwö three", &[1, 2, 3, 4, 5, 6]);
        assert_eq!(judge(&expected, &ours("one\ntwö three", &[1, 2, 3, 4, 5, 6])), Verdict::Identical);
        let Verdict::Differs(difference) = judge(&expected, &ours("one\ntwö tree", &[1, 2, 3, 4, 9])) else {
            panic!()
        };
        let text = difference.text.unwrap();
        assert_eq!((text.byte, text.line, text.column), (10, 2, 6));
        assert_eq!((text.before.as_str(), text.expected.as_str(), text.got.as_str()), ("one\ntwö t", "hree", "ree"));
        let tokens = difference.tokens.unwrap();
        assert_eq!((tokens.index, tokens.block, tokens.expected_total, tokens.got_total), (4, 1, 6, 5));
        assert_eq!((tokens.before, tokens.expected, tokens.got), (vec![1, 2, 3, 4], vec![5, 6], vec![9]));
    }

    #[test]
    fn one_text_that_goes_on_differs_at_the_others_end() {
        let Verdict::Differs(difference) = judge(&case("ab", &[1]), &ours("abc", &[1, 2])) else { panic!() };
        assert_eq!(difference.text.unwrap().byte, 2);
        assert_eq!(difference.tokens.unwrap().index, 1);
    }

    #[test]
    fn equal_texts_with_other_ids_fail() {
        let verdict = judge(&case("ab", &[1]), &ours("ab", &[2]));
        assert!(matches!(&verdict, Verdict::Differs(Difference { text: None, tokens: Some(_) })), "{verdict:?}");
        assert!(verdict.failed());
    }

    #[test]
    fn a_list_is_right_with_any_of_its_prompts_and_an_open_end_with_its_blocks() {
        let list = Case { status: 200, ids: vec![vec![1], vec![2, 3]], ..Case::default() };
        assert_eq!(judge(&list, &ours("", &[2, 3])), Verdict::Identical);
        let open = Explanation { open_ended: true, block_hashes: vec!["x".into()], ..ours("abcd", &[1, 2, 3, 4, 5]) };
        let whole = Case { prompt: None, ..case("", &[1, 2, 3, 4, 6, 7]) };
        assert_eq!(judge(&whole, &open), Verdict::Identical);
        let other = Case { prompt: None, ..case("", &[1, 2, 3, 9, 6, 7]) };
        assert!(judge(&other, &open).failed());
    }

    #[test]
    fn refusals_fail_unless_the_engine_refused_too_or_readme_lists_them() {
        let refused = |detail: &str| Explanation {
            no_key: Some(Reason { reason: "unsupported".into(), detail: detail.into() }),
            ..Explanation::default()
        };
        assert!(judge(&case("", &[1]), &refused("no idea")).failed());
        assert!(matches!(judge(&case("", &[1]), &refused(LIMITS[0])), Verdict::Limit(_)));
        let error = Case { status: 400, ..Case::default() };
        assert_eq!(judge(&error, &refused("no idea")), Verdict::EngineRefused { status: 400 });
    }

    #[test]
    fn a_prompt_below_one_block_is_compared_all_the_same() {
        let short = Explanation {
            no_key: Some(Reason { reason: "too_short".into(), detail: "2 tokens".into() }),
            ..ours("ab", &[1, 2])
        };
        assert_eq!(judge(&case("ab", &[1, 2]), &short), Verdict::Identical);
        assert!(judge(&case("ab", &[1, 3]), &short).failed());
    }
}
