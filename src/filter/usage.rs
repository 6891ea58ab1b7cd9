//! What an answer says of the engine's cache: the counts of its `usage`, read from the passing bytes.
//!
//! | API | prompt | cached |
//! |---|---|---|
//! | chat, completions | `prompt_tokens` | `prompt_tokens_details.cached_tokens` |
//! | responses | `input_tokens` | `input_tokens_details.cached_tokens` |
//! | messages | `input_tokens` + `cache_read_input_tokens` + `cache_creation_input_tokens` | `cache_read_input_tokens` |
//!
//! The text of an answer cannot be taken for it: there a quotation mark has a backslash before it. Of several counts
//! (an event stream may repeat them) the last one holds.

/// Bytes kept of a piece, so that a key and its number may be cut anywhere.
const KEEP: usize = 64;
const SUFFIX: &[u8] = b"tokens\":";
const NAMES: [&[u8]; 5] = [b"\"prompt_", b"\"cached_", b"\"input_", b"\"cache_read_input_", b"\"cache_creation_input_"];

/// Reads an answer piece by piece.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    tail: Vec<u8>,
    counts: [Option<u64>; NAMES.len()],
}

impl Usage {
    /// The next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut piece = std::mem::take(&mut self.tail);
        piece.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(at) = find(piece.get(from..).unwrap_or_default()) {
            let value = from + at + SUFFIX.len();
            self.take(piece.get(..from + at).unwrap_or_default(), piece.get(value..).unwrap_or_default());
            from = value;
        }
        self.tail = piece.split_off(piece.len().saturating_sub(KEEP));
    }

    /// Some bytes were not seen.
    pub fn skip(&mut self) {
        self.tail.clear();
    }

    /// Tokens of the prompt, and how many of them were cached. `None`: it does not say.
    pub fn seen(&self) -> Option<(u64, u64)> {
        let [prompt, cached, input, read, created] = self.counts;
        match (prompt.or(input), cached, read) {
            (Some(prompt), Some(cached), _) => Some((prompt, cached)),
            (Some(input), None, Some(read)) => {
                Some((input.saturating_add(read).saturating_add(created.unwrap_or(0)), read))
            }
            _ => None,
        }
    }

    fn take(&mut self, before: &[u8], after: &[u8]) {
        let Some(place) = NAMES.iter().position(|name| before.ends_with(name)) else { return };
        let digits = after.iter().skip_while(|b| b.is_ascii_whitespace()).take(19);
        let digits: Vec<u8> = digits.copied().take_while(u8::is_ascii_digit).collect();
        let number = std::str::from_utf8(&digits).ok().and_then(|text| text.parse().ok());
        if let (Some(count), Some(_)) = (self.counts.get_mut(place), number) {
            // A number that is cut off here is read again with what follows.
            *count = number;
        }
    }
}

fn find(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        // The rarest byte of it first.
        let rest = bytes.get(from..)?;
        let at = from + rest.iter().position(|b| *b == b'k')?;
        let start = at.checked_sub(2);
        if let Some(start) = start
            && bytes.get(start..).is_some_and(|rest| rest.starts_with(SUFFIX))
        {
            return Some(start);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERS: [(&str, Option<(u64, u64)>); 8] = [
        (
            r#"{"usage":{"prompt_tokens":84,"total_tokens":90,"prompt_tokens_details":{"cached_tokens":64}}}"#,
            Some((84, 64)),
        ),
        (r#"{"usage": {"prompt_tokens": 84, "prompt_tokens_details": {"cached_tokens": 0}}}"#, Some((84, 0))),
        (r#"{"usage":{"prompt_tokens":84,"prompt_tokens_details":null}}"#, None),
        (r#"{"usage":{"input_tokens":84,"input_tokens_details":{"cached_tokens":16}}}"#, Some((84, 16))),
        (
            r#"{"usage":{"input_tokens":20,"cache_read_input_tokens":64,"cache_creation_input_tokens":3}}"#,
            Some((87, 64)),
        ),
        (
            r#"{"content":"\"prompt_tokens\":1,\"cached_tokens\":2","usage":{"prompt_tokens":9,"cached_tokens":8}}"#,
            Some((9, 8)),
        ),
        (
            "data: {\"usage\":{\"prompt_tokens\":1,\"cached_tokens\":0}}\n\ndata: {\"usage\":{\"prompt_tokens\":7,\"cached_tokens\":5}}\n\n",
            Some((7, 5)),
        ),
        (r#"{"choices":[{"text":"a token costs k"}]}"#, None),
    ];

    #[test]
    fn counts_are_read_in_whatever_pieces_they_come() {
        for (answer, expected) in ANSWERS {
            for size in [1, 2, 3, 5, 7, 11, 64, 1000] {
                let mut usage = Usage::default();
                answer.as_bytes().chunks(size).for_each(|piece| usage.push(piece));
                assert_eq!(usage.seen(), expected, "{answer} in pieces of {size}");
            }
            let mut usage = Usage::default();
            // Much before it, and a cut at every place.
            usage.push(&[b'k'; 1000]);
            let (head, tail) = answer.as_bytes().split_at(answer.len() / 2);
            usage.push(head);
            usage.push(tail);
            assert_eq!(usage.seen(), expected);
        }
    }
}
