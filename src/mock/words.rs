//! Pseudo-text: answers of the mock, and prompts of the load generator.

use std::collections::HashSet;

use crate::blocks::TokenId;

/// Common short words; most tokenizers have one token for each of them behind a space.
pub const WORDS: [&str; 96] = [
    "time",
    "year",
    "people",
    "way",
    "day",
    "man",
    "thing",
    "woman",
    "life",
    "child",
    "world",
    "school",
    "state",
    "family",
    "student",
    "group",
    "country",
    "problem",
    "hand",
    "part",
    "place",
    "case",
    "week",
    "company",
    "system",
    "program",
    "question",
    "work",
    "government",
    "number",
    "night",
    "point",
    "home",
    "water",
    "room",
    "mother",
    "area",
    "money",
    "story",
    "fact",
    "month",
    "lot",
    "right",
    "study",
    "book",
    "eye",
    "job",
    "word",
    "business",
    "issue",
    "side",
    "kind",
    "head",
    "house",
    "service",
    "friend",
    "father",
    "power",
    "hour",
    "game",
    "line",
    "end",
    "member",
    "law",
    "car",
    "city",
    "community",
    "name",
    "team",
    "minute",
    "idea",
    "body",
    "information",
    "back",
    "face",
    "others",
    "level",
    "office",
    "door",
    "health",
    "person",
    "art",
    "war",
    "history",
    "party",
    "result",
    "change",
    "morning",
    "reason",
    "research",
    "moment",
    "air",
    "teacher",
    "force",
    "food",
    "paper",
];

/// A small pseudo-random generator (SplitMix64): the same seed gives the same text everywhere.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// The next number.
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }
}

/// `count` words with a space between them.
pub fn text(dice: &mut Dice, count: usize) -> String {
    let words: Vec<&str> = (0..count).map(|_| WORDS[dice.below(WORDS.len())]).collect();
    words.join(" ")
}

/// A token that can stand anywhere in an answer, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub id: TokenId,
    /// What it adds to the text.
    pub text: String,
}

/// What answers are made of: one token a word, chosen so that the client's next turn, which has the answer as
/// text, becomes the same tokens again. A real engine's text does that nearly always, and prefix reuse across
/// turns depends on it.
#[derive(Clone, Debug)]
pub struct Vocabulary {
    first: Vec<Piece>,
    rest: Vec<Piece>,
}

impl Vocabulary {
    /// Asks the tokenizer which words qualify. `None` when hardly any does.
    pub fn of(encode: &dyn Fn(&str) -> Option<Vec<TokenId>>) -> Option<Vocabulary> {
        let piece = |text: String| match encode(&text)?[..] {
            [id] => Some(Piece { id, text }),
            _ => None,
        };
        let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
        let first: Vec<Piece> = WORDS.iter().filter_map(|word| piece(capital(word))).take(16).collect();
        let rest: Vec<Piece> = WORDS.iter().filter_map(|word| piece(format!(" {word}"))).collect();
        let vocabulary = Vocabulary { first, rest };
        vocabulary.keeps_its_tokens(encode).then_some(vocabulary)
    }

    /// One token a byte.
    pub fn bytes() -> Vocabulary {
        let pieces: Vec<Piece> =
            (b'a'..=b'z').map(|byte| Piece { id: byte.into(), text: char::from(byte).into() }).collect();
        Vocabulary { first: pieces.clone(), rest: pieces }
    }

    /// An answer of `tokens` tokens.
    pub fn answer(&self, seed: u64, tokens: usize) -> Vec<&Piece> {
        let mut dice = Dice(seed);
        (0..tokens)
            .map(|i| if i == 0 { &self.first } else { &self.rest })
            .map(|pieces| &pieces[dice.below(pieces.len())])
            .collect()
    }

    fn keeps_its_tokens(&self, encode: &dyn Fn(&str) -> Option<Vec<TokenId>>) -> bool {
        let different: HashSet<TokenId> = self.rest.iter().map(|piece| piece.id).collect();
        if self.first.is_empty() || different.len() < 8 {
            return false;
        }
        let answer = self.answer(1, 200);
        let text: String = answer.iter().map(|piece| piece.text.as_str()).collect();
        let ids: Vec<TokenId> = answer.iter().map(|piece| piece.id).collect();
        encode(&text).is_some_and(|encoded| encoded == ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(word: &str) -> TokenId {
        word.bytes().fold(7, |id, byte| id.wrapping_mul(31).wrapping_add(byte.into()))
    }

    #[test]
    fn a_tokenizer_that_leaves_spaces_behind_words_gives_no_vocabulary() {
        let encode = |text: &str| Some(text.split_inclusive(' ').map(id).collect());
        assert!(Vocabulary::of(&encode).is_none());
    }

    #[test]
    fn only_words_of_one_token_are_used() {
        // A token is a word with the space before it; of long words there are two.
        let encode = |text: &str| {
            let starts = text.char_indices().filter(|(i, c)| *i == 0 || *c == ' ').map(|(i, _)| i);
            let ends = text.char_indices().filter(|(i, c)| *i > 0 && *c == ' ').map(|(i, _)| i).chain([text.len()]);
            let ids = |word: &str| if word.len() > 7 { vec![id(word), 1] } else { vec![id(word)] };
            Some(starts.zip(ends).flat_map(|(start, end)| ids(&text[start..end])).collect())
        };
        let vocabulary = Vocabulary::of(&encode).unwrap();
        let answer = vocabulary.answer(5, 40);
        assert_eq!(answer, vocabulary.answer(5, 40));
        assert_ne!(answer, vocabulary.answer(6, 40));
        assert!(answer.iter().all(|piece| piece.text.len() <= 7));
        assert!(answer[0].text.starts_with(char::is_uppercase));
    }
}
