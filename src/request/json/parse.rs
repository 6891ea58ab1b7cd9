//! The parser.

use std::cell::Cell;
use std::sync::Arc;

use super::budget::{self, Budget};
use super::string::{Stop, Unescaped, plain_prefix};
use super::{Json, JsonMap, JsonSeq, Text};

/// Arrays and objects may nest this deep.
pub const MAX_DEPTH: usize = 128;

/// Python refuses to convert longer ones.
const MAX_INT_DIGITS: usize = 4300;

/// Items of an array that are collected before it gets memory of its own.
const FEW: usize = 64;

/// What kind of refusal it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Python's parser refuses it too.
    #[default]
    Syntax,
    /// Python's parser would take it; nothing sensible can come of it.
    Refused,
    /// Its values would take more memory than a text of this length may.
    Memory,
}

/// Why there is no value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JsonError {
    /// Whose fault it is.
    pub fault: Fault,
    /// What is wrong, and at which byte.
    pub what: String,
}

impl std::fmt::Display for JsonError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.what)
    }
}

/// Parses a whole text, with the memory that its length allows.
pub fn parse(bytes: &[u8]) -> Result<Json, JsonError> {
    parse_within(bytes, &mut Budget::of(bytes.len()))
}

/// Parses a whole text that is a part of the request under way, within what that has left.
pub fn parse_part(bytes: &[u8]) -> Result<Json, JsonError> {
    budget::with_current(|budget| {
        let state = State { budget: *budget, ..SPARE.take() };
        let (value, state) = run_through(bytes, state);
        *budget = state.budget;
        SPARE.set(state.emptied());
        value
    })
}

thread_local! {
    /// What the parts of requests are parsed with, one after the other: most are small, and would spend more time on
    /// memory than on their text.
    static SPARE: Cell<State> = Cell::default();
}

/// Parses a whole text.
pub fn parse_within(bytes: &[u8], budget: &mut Budget) -> Result<Json, JsonError> {
    let (value, state) = run_through(bytes, State::new(*budget));
    *budget = state.budget;
    value
}

fn run_through(bytes: &[u8], state: State) -> (Result<Json, JsonError>, State) {
    let bytes = bytes.strip_prefix(BOM).unwrap_or(bytes);
    let mut parser = Parser { bytes, state };
    let value = parser.run(usize::MAX);
    // Without a limit there is nothing to go on with.
    let value = value.and_then(|value| value.ok_or_else(|| parser.error("the text ends inside a value")));
    (value, parser.state)
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// A body that is parsed in steps; comes to the same as [`parse`].
#[derive(Debug)]
pub struct Parsing {
    text: Vec<u8>,
    state: State,
}

impl Parsing {
    /// Takes the body.
    pub fn new(mut text: Vec<u8>) -> Parsing {
        if text.starts_with(BOM) {
            text.drain(..BOM.len());
        }
        let state = State::new(Budget::of(text.len()));
        Parsing { text, state }
    }

    /// Bytes of the whole text.
    pub fn bytes(&self) -> usize {
        self.text.len()
    }

    /// What its values leave of the memory that they may take.
    pub fn left(&self) -> Budget {
        self.state.budget
    }

    /// Parses about `max_bytes` more. `None`: there is more to come.
    pub fn step(&mut self, max_bytes: usize) -> Result<Option<Json>, JsonError> {
        let state = std::mem::take(&mut self.state);
        let limit = state.at.max(state.plain).saturating_add(max_bytes.max(1));
        let mut parser = Parser { bytes: &self.text, state };
        let done = parser.run(limit);
        self.state = parser.state;
        done
    }
}

/// How far a parser has come.
#[derive(Debug, Default)]
struct State {
    at: usize,
    /// The arrays and objects around the next value, the outermost first.
    open: Vec<Open>,
    /// What the small ones of them hold so far: when one ends, its part moves to memory of its exact size.
    items: Vec<Json>,
    entries: Vec<(Text, Json)>,
    /// Of a string at whose quote the parser stands: up to where it was looked at, all of it plain.
    plain: usize,
    /// A string with escapes, as far as it is read.
    string: Option<Unescaped>,
    scratch: Unescaped,
    budget: Budget,
}

impl State {
    fn new(budget: Budget) -> State {
        State { budget, ..State::default() }
    }

    /// The same memory for another text, unless it has grown.
    fn emptied(mut self) -> State {
        if self.items.capacity().max(self.entries.capacity()) > 4 * FEW {
            return State::default();
        }
        self.open.clear();
        self.items.clear();
        self.entries.clear();
        State { open: self.open, items: self.items, entries: self.entries, ..State::default() }
    }
}

/// An array or object that is not at its end.
#[derive(Debug)]
enum Open {
    /// Its items stand from here on.
    Seq(usize),
    /// One of many items, and what each of them costs.
    LongSeq(Vec<Json>, usize),
    /// Its entries stand from here on; the last one has its key already, and waits for its value.
    Map(usize),
    LargeMap(JsonMap, Text),
}

/// A string that begins without escapes.
enum Plain<'a> {
    /// All of it.
    Text(&'a str),
    /// It has some.
    Escapes,
    /// It goes on beyond the limit.
    More,
}

/// A string is looked at so far, whatever the limit; in tests hardly, so that steps end anywhere in it.
const AHEAD: usize = if cfg!(test) { 1 } else { 4 << 10 };

struct Parser<'a> {
    bytes: &'a [u8],
    state: State,
}

impl<'a> Parser<'a> {
    fn error(&self, what: &str) -> JsonError {
        JsonError { fault: Fault::Syntax, what: format!("{what} at byte {}", self.state.at) }
    }

    fn refusal(&self, what: &str) -> JsonError {
        JsonError { fault: Fault::Refused, ..self.error(what) }
    }

    fn take(&mut self, bytes: usize) -> Result<(), JsonError> {
        match self.state.budget.take(bytes) {
            true => Ok(()),
            false => Err(JsonError { fault: Fault::Memory, ..self.error("too many small values for its length") }),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.state.at).copied()
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.state.at += 1;
        }
    }

    fn eat(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.state.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str, value: Json) -> Result<Json, JsonError> {
        if self.bytes.get(self.state.at..).is_some_and(|rest| rest.starts_with(word.as_bytes())) {
            self.state.at += word.len();
            Ok(value)
        } else {
            Err(self.error("not a JSON value"))
        }
    }

    /// Parses up to `limit`, at least one value or a part of one. `None`: there is more to come.
    fn run(&mut self, limit: usize) -> Result<Option<Json>, JsonError> {
        if self.state.at == 0 {
            self.space();
        }
        loop {
            let Some(mut value) = self.value(limit)? else {
                // An array or object was opened, or a long string is not at its end.
                if self.state.at.max(self.state.plain) >= limit {
                    return Ok(None);
                }
                continue;
            };
            loop {
                self.space();
                let closed = match self.state.open.last() {
                    None => return self.end(value).map(Some),
                    Some(Open::Seq(_) | Open::LongSeq(..)) => {
                        self.put_item(value)?;
                        self.close(b']', "expected ',' or ']'")?
                    }
                    Some(Open::Map(_) | Open::LargeMap(..)) => {
                        self.put_entry(value)?;
                        self.close(b'}', "expected ',' or '}'")?
                    }
                };
                match closed {
                    Some(whole) => value = whole,
                    None => break,
                }
            }
            if self.state.at >= limit {
                return Ok(None);
            }
        }
    }

    fn end(&self, value: Json) -> Result<Json, JsonError> {
        match self.peek() {
            None => Ok(value),
            Some(_) => Err(self.error("text after the value")),
        }
    }

    fn put_item(&mut self, value: Json) -> Result<(), JsonError> {
        match self.state.open.last_mut() {
            Some(Open::LongSeq(items, cost)) => {
                let cost = *cost;
                items.push(value);
                self.take(cost)
            }
            Some(Open::Seq(base)) => {
                let base = *base;
                self.state.items.push(value);
                if self.state.items.len() - base < FEW {
                    return self.take(budget::ITEM);
                }
                // With their number known they need not grow.
                let more = self.scalars_ahead();
                let cost = if more > 1 { budget::ITEM } else { budget::ITEM * budget::GROWING };
                let mut items = Vec::with_capacity(FEW.saturating_add(more.max(FEW)));
                items.extend(self.state.items.drain(base..));
                if let Some(open) = self.state.open.last_mut() {
                    *open = Open::LongSeq(items, cost);
                }
                self.take(budget::ITEM)
            }
            _ => Ok(()),
        }
    }

    /// How many numbers, or such, the array still has, if it has nothing else: arrays of token ids are long, and
    /// to grow by doubling costs them three times their size. Each byte is looked at once, as in such an array
    /// there is no other.
    fn scalars_ahead(&self) -> usize {
        let rest = self.bytes.get(self.state.at..).unwrap_or_default();
        let scalars = rest.iter().take_while(|byte| !matches!(byte, b']' | b'[' | b'{' | b'"'));
        // The parser stands at the comma before the next item.
        scalars.filter(|byte| **byte == b',').count().min(self.state.budget.items_left())
    }

    fn put_entry(&mut self, value: Json) -> Result<(), JsonError> {
        match self.state.open.last_mut() {
            Some(Open::LargeMap(map, key)) => {
                map.insert(std::mem::replace(key, Text::from("")), value);
                self.take(budget::ENTRY * budget::GROWING + size_of::<u64>() * budget::GROWING)
            }
            Some(Open::Map(base)) => {
                let base = *base;
                let entries = &mut self.state.entries;
                let here = entries.get_mut(base..).unwrap_or_default();
                if let Some(((key, waiting), before)) = here.split_last_mut() {
                    match before.iter_mut().find(|(name, _)| name.is(key.as_str())) {
                        None => *waiting = value,
                        Some((_, old)) => {
                            *old = value;
                            entries.pop();
                        }
                    }
                }
                if entries.len().saturating_sub(base) >= JsonMap::SEARCHED_KEYS {
                    let map = JsonMap::from_entries(entries.split_off(base));
                    if let Some(open) = self.state.open.last_mut() {
                        *open = Open::LargeMap(map, Text::from(""));
                    }
                }
                self.take(budget::ENTRY)
            }
            _ => Ok(()),
        }
    }

    fn closed(&mut self, open: Open) -> Json {
        match open {
            Open::Seq(base) => Json::Seq(Arc::new(JsonSeq(self.state.items.drain(base..).collect()))),
            Open::LongSeq(mut items, _) => {
                // Growing by doubling leaves up to half of it unused.
                items.shrink_to_fit();
                Json::Seq(Arc::new(JsonSeq(items)))
            }
            Open::Map(base) => Json::Map(Arc::new(JsonMap::from_entries(self.state.entries.drain(base..).collect()))),
            Open::LargeMap(mut map, _) => {
                map.shrink_to_fit();
                Json::Map(Arc::new(map))
            }
        }
    }

    /// After an item: the whole array or object, or what stands before the next item is passed over.
    fn close(&mut self, bracket: u8, otherwise: &str) -> Result<Option<Json>, JsonError> {
        if self.eat(bracket) {
            let open = self.state.open.pop();
            return Ok(open.map(|open| self.closed(open)));
        }
        if !self.eat(b',') {
            return Err(self.error(otherwise));
        }
        self.space();
        if bracket == b'}' {
            self.key()?;
        }
        Ok(None)
    }

    /// A value, or `None` where one begins that holds others or where a string goes on beyond the limit.
    fn value(&mut self, limit: usize) -> Result<Option<Json>, JsonError> {
        if self.state.string.is_some() {
            return Ok(self.rest_of_string(limit)?.map(Json::Str));
        }
        match self.peek() {
            Some(b'"') => match self.plain_string(limit)? {
                Plain::Text(text) => Ok(Some(Json::Str(Text::from(text)))),
                Plain::Escapes => Ok(self.string_with_escapes(limit)?.map(Json::Str)),
                Plain::More => Ok(None),
            },
            Some(b'{') => {
                self.enter()?;
                if self.eat(b'}') {
                    return Ok(Some(Json::empty_map()));
                }
                self.take(budget::MAP)?;
                self.state.open.push(Open::Map(self.state.entries.len()));
                self.key()?;
                Ok(None)
            }
            Some(b'[') => {
                self.enter()?;
                if self.eat(b']') {
                    return Ok(Some(Json::empty_seq()));
                }
                self.take(budget::SEQ)?;
                self.state.open.push(Open::Seq(self.state.items.len()));
                Ok(None)
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(Some),
            Some(b't') => self.word("true", Json::Bool(true)).map(Some),
            Some(b'f') => self.word("false", Json::Bool(false)).map(Some),
            Some(b'n') => self.word("null", Json::Null).map(Some),
            Some(b'N' | b'I') => Err(self.refusal("NaN or Infinity")),
            Some(_) => Err(self.error("not a JSON value")),
            None => Err(self.error("the text ends inside a value")),
        }
    }

    fn enter(&mut self) -> Result<(), JsonError> {
        if self.state.open.len() >= MAX_DEPTH {
            return Err(self.refusal("nested too deeply"));
        }
        self.state.at += 1;
        self.space();
        Ok(())
    }

    /// A key of the innermost object, and the colon after it.
    #[inline]
    fn key(&mut self) -> Result<(), JsonError> {
        if self.peek() != Some(b'"') {
            return Err(self.error("expected a key"));
        }
        // Each move of a text costs some nanoseconds: it is made where it stays.
        match self.plain_string(usize::MAX)? {
            Plain::Text(key) => self.put_key(Text::from(key)),
            Plain::Escapes | Plain::More => {
                let key = self.string_with_escapes(usize::MAX)?.unwrap_or_else(|| Text::from(""));
                self.put_key(key);
            }
        }
        self.space();
        if !self.eat(b':') {
            return Err(self.error("expected ':'"));
        }
        self.space();
        Ok(())
    }

    #[inline(always)]
    fn put_key(&mut self, next: Text) {
        match self.state.open.last_mut() {
            Some(Open::LargeMap(_, key)) => *key = next,
            _ => self.state.entries.push((next, Json::Null)),
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.state.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.state.at += 1;
        }
        self.state.at - start
    }

    fn number(&mut self) -> Result<Json, JsonError> {
        let start = self.state.at;
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
            self.state.at += 1;
            is_float = true;
            if self.digits() == 0 {
                return Err(self.error("not a JSON number"));
            }
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.state.at += 1;
            is_float = true;
            if let Some(b'+' | b'-') = self.peek() {
                self.state.at += 1;
            }
            if self.digits() == 0 {
                return Err(self.error("not a JSON number"));
            }
        }
        let text = self.bytes.get(start..self.state.at).unwrap_or_default();
        let text = std::str::from_utf8(text).unwrap_or_default();
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
        let text = Arc::from(text);
        self.take(budget::STRING)?;
        Ok(Json::BigInt(text))
    }

    /// A string without escapes; the parser stands at its opening quote, and still does where it is none or goes on beyond
    /// the limit.
    #[inline]
    fn plain_string(&mut self, limit: usize) -> Result<Plain<'a>, JsonError> {
        let quote = self.state.at;
        let from = self.state.plain.max(quote + 1);
        let rest = self.bytes.get(from..).unwrap_or_default();
        let ahead = rest.get(..limit.saturating_sub(from).max(AHEAD)).unwrap_or(rest);
        let len = plain_prefix(ahead);
        if len == ahead.len() && len < rest.len() {
            self.state.plain = from + len;
            return Ok(Plain::More);
        }
        self.state.plain = 0;
        self.state.at = from + len;
        match self.peek() {
            Some(b'"') => {
                let text = self.utf8(self.bytes.get(quote + 1..from + len).unwrap_or_default())?;
                self.state.at += 1;
                self.take(Text::overhead_of(text))?;
                Ok(Plain::Text(text))
            }
            Some(b'\\') => {
                self.state.at = quote;
                Ok(Plain::Escapes)
            }
            _ => self.at_special().map(|()| Plain::Escapes),
        }
    }

    /// Any string; the parser stands at its opening quote. `None`: it goes on beyond the limit.
    #[inline(never)]
    fn string_with_escapes(&mut self, limit: usize) -> Result<Option<Text>, JsonError> {
        self.state.at += 1;
        let mut out = std::mem::take(&mut self.state.scratch);
        out.clear();
        self.state.string = Some(out);
        self.rest_of_string(limit)
    }

    /// The rest of a string with escapes.
    fn rest_of_string(&mut self, limit: usize) -> Result<Option<Text>, JsonError> {
        let mut out = self.state.string.take().unwrap_or_default();
        if !self.escaped(&mut out, limit)? {
            self.state.string = Some(out);
            return Ok(None);
        }
        let text = Text::from(self.utf8(out.bytes())?);
        self.take(Text::overhead_of(text.as_str()))?;
        // Kept for the next string, unless one long string would hold the memory for the rest of the body.
        if out.capacity() <= 64 * 1024 {
            self.state.scratch = out;
        }
        Ok(Some(text))
    }

    /// Only strings hold other bytes than those of ASCII, so this is where they are looked at, once.
    fn utf8<'b>(&self, string: &'b [u8]) -> Result<&'b str, JsonError> {
        simdutf8::basic::from_utf8(string).map_err(|_| self.error("invalid UTF-8 in the string before"))
    }

    /// After bytes that stand for themselves.
    fn at_special(&self) -> Result<(), JsonError> {
        match self.peek() {
            Some(b'"' | b'\\') => Ok(()),
            Some(_) => Err(self.error("a control character in a string")),
            None => Err(self.error("the text ends inside a string")),
        }
    }

    /// Goes on to the end of a string. `false`: it stopped at the limit.
    fn escaped(&mut self, out: &mut Unescaped, limit: usize) -> Result<bool, JsonError> {
        loop {
            let start = self.state.at;
            let rest = self.bytes.get(start..).unwrap_or_default();
            let (read, stop) = out.read(rest, limit.saturating_sub(start));
            self.state.at += read;
            match stop {
                Stop::Quote => {
                    self.state.at += 1;
                    return Ok(true);
                }
                Stop::Backslash if self.state.at >= limit => return Ok(false),
                Stop::Backslash => {}
                Stop::Other => return self.at_special().map(|()| false),
            }
            self.state.at += 1; // the backslash
            match self.peek() {
                Some(b'u') => out.push(self.unicode()?),
                Some(_) => return Err(self.error("an unknown escape")),
                None => return Err(self.error("the text ends inside a string")),
            }
            self.state.at += 1;
        }
    }

    /// `\uXXXX`, or a pair of them; stands at the `u`, ends at the last digit.
    fn unicode(&mut self) -> Result<char, JsonError> {
        let high = self.hex()?;
        if !(0xd800..0xe000).contains(&high) {
            return char::from_u32(high).ok_or_else(|| self.refusal("a lone surrogate"));
        }
        let pair = self.bytes.get(self.state.at + 1..self.state.at + 3) == Some(b"\\u");
        if high < 0xdc00 && pair {
            self.state.at += 2;
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
        let digits = self.bytes.get(self.state.at + 1..self.state.at + 5).unwrap_or_default();
        let mut code = 0;
        for digit in digits {
            let value = char::from(*digit).to_digit(16).ok_or_else(|| self.error("a malformed \\u escape"))?;
            code = code << 4 | value;
        }
        if digits.len() != 4 {
            return Err(self.error("a malformed \\u escape"));
        }
        self.state.at += 4;
        Ok(code)
    }
}
