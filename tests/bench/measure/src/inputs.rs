//! The texts that are tokenized.

use super::spec::Spec;

/// The texts.
pub struct Inputs {
    /// Of 100,000 tokens.
    pub long: String,
    short: String,
    warm_up: String,
    /// Its next turn.
    pub next: String,
    letters: String,
    letter: String,
    spaces: String,
    base64: String,
    cjk: String,
}

/// Numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }

    /// Letters.
    pub fn letters(&mut self, count: usize) -> String {
        (0..count).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }
}

/// Paragraphs of `text` as the messages of a chat, up to so many bytes.
fn chat(text: &str, skip: usize, bytes: usize, (open, close): (&str, &str)) -> String {
    let mut out = String::with_capacity(bytes + 4096);
    for (number, part) in text.split("\n\n").skip(skip).enumerate() {
        let role = ["user", "assistant"][number & 1];
        out.push_str(&format!("{open}{role}\n{part}{close}\n"));
        if out.len() >= bytes {
            break;
        }
    }
    out
}

impl Inputs {
    /// From the spec's text.
    pub fn of(spec: &Spec) -> Result<Inputs, String> {
        let text = spec.text("text")?;
        let marks = (spec.text("open")?, spec.text("close")?);
        let mut random = Random(1);
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let base64 = (0..100_000).map(|_| char::from(alphabet[random.below(64)])).collect();
        // Three thousand characters of three bytes: more kinds of pairs than any text has.
        let cjk = (0..33_334).filter_map(|_| char::from_u32(0x4e00 + random.below(3000) as u32)).collect();
        let parts = text.split("\n\n").count();
        let long = chat(text, 0, 432_000, marks);
        let next = format!("{long}{}", chat(text, parts / 2, 2_000, marks));
        Ok(Inputs {
            short: chat(text, parts / 3, 36_000, marks),
            warm_up: chat(text, parts * 2 / 3, 36_000, marks),
            next,
            long,
            letters: random.letters(100_000),
            letter: "a".repeat(100_000),
            spaces: " ".repeat(100_000),
            base64,
            cjk,
        })
    }

    /// What a tokenizer has seen before.
    pub fn warm_up(&self) -> &str {
        &self.warm_up
    }

    /// The texts that are tokenized by themselves.
    pub fn single(&self) -> [(&'static str, &str); 7] {
        [
            ("100k tokens", &self.long),
            ("8k tokens", &self.short),
            ("one word", &self.letters),
            ("one letter", &self.letter),
            ("spaces", &self.spaces),
            ("base64", &self.base64),
            ("CJK", &self.cjk),
        ]
    }
}
