//! The parser.

use std::sync::Arc;

use super::{Json, JsonMap, Text};

/// Arrays and objects may nest this deep.
pub const MAX_DEPTH: usize = 128;

/// Python refuses to convert longer ones.
const MAX_INT_DIGITS: usize = 4300;

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    /// Python's parser would take it; it is refused here because nothing sensible can come of it.
    pub refused: bool,
    /// What is wrong, and at which byte.
    pub what: String,
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Parses a whole body.
pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
    let body = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        Err(error) => {
            let what = format!("invalid UTF-8 at byte {}", error.valid_up_to());
            return Err(JsonError { refused: false, what });
        }
    };
    let mut parser = Parser { text, bytes: text.as_bytes(), at: 0, scratch: String::new() };
    parser.space();
    let value = parser.value(0)?;
    parser.space();
    match parser.peek() {
        None => Ok(value),
        Some(_) => Err(parser.error("text after the value")),
    }
}

struct Parser<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    scratch: String,
}

impl<'a> Parser<'a> {
    fn error(&self, what: &str) -> JsonError {
        JsonError { refused: false, what: format!("{what} at byte {}", self.at) }
    }

    fn refusal(&self, what: &str) -> JsonError {
        JsonError { refused: true, ..self.error(what) }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        if self.bytes.get(self.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            self.at += word.len();
            Ok(value)
        } else {
            Err(self.error("not a JSON value"))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json, JsonError> {
        match self.peek() {
            Some(b'"') => Ok(Json::Str(self.string()?)),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true", Json::Bool(true)),
            Some(b'f') => self.word("false", Json::Bool(false)),
            Some(b'n') => self.word("null", Json::Null),
            Some(b'N' | b'I') => Err(self.refusal("NaN or Infinity")),
            Some(_) => Err(self.error("not a JSON value")),
            None => Err(self.error("the text ends inside a value")),
        }
    }

    fn enter(&mut self, depth: usize) -> Result<(), JsonError> {
        if depth >= MAX_DEPTH {
            return Err(self.refusal("nested too deeply"));
        }
        self.at += 1;
        self.space();
        Ok(())
    }

    fn array(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.enter(depth)?;
        let mut items = Vec::new();
        if self.eat(b']') {
            return Ok(Json::seq(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat(b']') {
                return Ok(Json::seq(items));
            }
            if !self.eat(b',') {
                return Err(self.error("expected ',' or ']'"));
            }
            self.space();
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, JsonError> {
        self.enter(depth)?;
        let mut map = JsonMap::default();
        if self.eat(b'}') {
            return Ok(Json::Map(Arc::new(map)));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a key"));
            }
            let key = self.string()?;
            self.space();
            if !self.eat(b':') {
                return Err(self.error("expected ':'"));
            }
            self.space();
            let value = self.value(depth + 1)?;
            map.insert(key, value);
            self.space();
            if self.eat(b'}') {
                return Ok(Json::Map(Arc::new(map)));
            }
            if !self.eat(b',') {
                return Err(self.error("expected ',' or '}'"));
            }
            self.space();
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.at;
        let negative = self.eat(b'-');
        let leading_zero = self.peek() == Some(b'0');
        let digits = self.digits();
        if negative && self.peek() == Some(b'I') {
            return Err(self.refusal("NaN or Infinity"));
        }
        if digits == 0 || (leading_zero && digits > 1) {
            return Err(self.error("not a JSON number"));
        }
        let mut is_float = false;
        if self.peek() == Some(b'.') {
            self.at += 1;
            is_float = true;
            if self.digits() == 0 {
                return Err(self.error("not a JSON number"));
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            is_float = true;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("not a JSON number"));
            }
        }
        let text = self.text.get(start..self.at).unwrap_or_default();
        if is_float {
            return text.parse().map(Json::Float).map_err(|_| self.error("not a JSON number"));
        }
        if let Ok(value) = text.parse() {
            return Ok(Json::Int(value));
        }
        if digits > MAX_INT_DIGITS {
            return Err(self.refusal("an integer with too many digits"));
        }
        // "-0" fits an i64, so what is left has no leading zero and prints as it stands.
        debug_assert!(!negative || text.len() > 2);
        Ok(Json::BigInt(text.into()))
    }

    /// A string; the parser stands at its opening quote.
    fn string(&mut self) -> Result<Text, JsonError> {
        self.at += 1;
        let start = self.at;
        self.plain_run()?;
        if self.peek() == Some(b'"') {
            let text = self.text.get(start..self.at).unwrap_or_default();
            self.at += 1;
            return Ok(Text::from(text));
        }
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        out.push_str(self.text.get(start..self.at).unwrap_or_default());
        let result = self.escaped(&mut out).map(|()| Text::from(out.as_str()));
        // Kept for the next string, unless one long string would hold the memory for the rest of the body.
        if out.capacity() <= 64 * 1024 {
            self.scratch = out;
        }
        result
    }

    /// Passes over bytes that stand for themselves.
    fn plain_run(&mut self) -> Result<(), JsonError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        self.at += plain_prefix(rest);
        match self.peek() {
            Some(b'"' | b'\\') => Ok(()),
            Some(_) => Err(self.error("a control character in a string")),
            None => Err(self.error("the text ends inside a string")),
        }
    }

    fn escaped(&mut self, out: &mut String) -> Result<(), JsonError> {
        loop {
            if self.eat(b'"') {
                return Ok(());
            }
            self.at += 1; // the backslash
            let simple = match self.peek() {
                Some(b'"') => '"',
                Some(b'\\') => '\\',
                Some(b'/') => '/',
                Some(b'b') => '\u{8}',
                Some(b'f') => '\u{c}',
                Some(b'n') => '\n',
                Some(b'r') => '\r',
                Some(b't') => '\t',
                Some(b'u') => self.unicode()?,
                Some(_) => return Err(self.error("an unknown escape")),
                None => return Err(self.error("the text ends inside a string")),
            };
            self.at += 1;
            out.push(simple);
            let start = self.at;
            self.plain_run()?;
            out.push_str(self.text.get(start..self.at).unwrap_or_default());
        }
    }

    /// `\uXXXX`, or a pair of them; stands at the `u`, ends at the last digit.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let high = self.hex()?;
        if !(0xd800..0xe000).contains(&high) {
            return char::from_u32(high).ok_or_else(|| self.refusal("a lone surrogate"));
        }
        let pair = self.bytes.get(self.at + 1..self.at + 3) == Some(b"\\u");
        if high < 0xdc00 && pair {
            self.at += 2;
            let low = self.hex()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return char::from_u32(code).ok_or_else(|| self.refusal("a lone surrogate"));
            }
        }
        Err(self.refusal("a lone surrogate"))
    }

    /// Four digits after the `u` at which the parser stands; ends at the last one.
    fn hex(&mut self) -> Result<u32, JsonError> {
        let digits = self.bytes.get(self.at + 1..self.at + 5).unwrap_or_default();
        let mut code = 0;
        for digit in digits {
            let value = char::from(*digit).to_digit(16).ok_or_else(|| self.error("a malformed \\u escape"))?;
            code = code << 4 | value;
        }
        if digits.len() != 4 {
            return Err(self.error("a malformed \\u escape"));
        }
        self.at += 4;
        Ok(code)
    }
}

/// How many bytes from the start are none of `"`, `\` and control characters. Eight at a time.
fn plain_prefix(bytes: &[u8]) -> usize {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut passed = 0;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        let quote = word ^ (ONES * b'"' as u64);
        let backslash = word ^ (ONES * b'\\' as u64);
        // The lowest marked byte is always right; a borrow can only mark bytes above it.
        let marked = (word.wrapping_sub(ONES * 0x20) & !word)
            | (quote.wrapping_sub(ONES) & !quote)
            | (backslash.wrapping_sub(ONES) & !backslash);
        let marked = marked & HIGH;
        if marked != 0 {
            return passed + (marked.trailing_zeros() >> 3) as usize;
        }
        passed += 8;
    }
    let tail = chunks.remainder();
    passed + tail.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)).unwrap_or(tail.len())
}
