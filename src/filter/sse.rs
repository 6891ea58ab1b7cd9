//! Finds the first `data:` line of an event stream, in whatever pieces it comes.
//!
//! The headers of a streamed answer come before its prefill, and comment lines may keep the connection alive
//! meanwhile: only data says that the first token is there.

/// Reads the head of a response body until the first data.
#[derive(Clone, Debug)]
pub struct FirstData {
    /// How many bytes of "data:" the line has matched so far; `None`: this line is another one.
    matched: Option<usize>,
    found: bool,
}

const FIELD: &[u8] = b"data:";

impl Default for FirstData {
    fn default() -> Self {
        FirstData { matched: Some(0), found: false }
    }
}

impl FirstData {
    /// Takes the next bytes of the body. True: the first data is in, now or before.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            if self.found {
                break;
            }
            self.matched = match (*byte, self.matched) {
                (b'\n' | b'\r', _) => Some(0),
                (byte, Some(n)) if FIELD.get(n) == Some(&byte) => Some(n + 1),
                _ => None,
            };
            self.found = self.matched == Some(FIELD.len());
        }
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_that_begins_with_data_counts() {
        for (body, expected) in [
            ("data: {}", true),
            (": keep-alive\n\ndata: {}", true),
            (": keep-alive\r\n\r\ndata:{}", true),
            ("event: x\rdata: y", true),
            (": data: no", false),
            ("event: data:\n\n: x\n", false),
            ("dat", false),
            ("datadata:\n", false),
        ] {
            assert_eq!(FirstData::default().push(body.as_bytes()), expected, "{body:?}");
            let mut piecewise = FirstData::default();
            let found = body.bytes().fold(false, |_, b| piecewise.push(&[b]));
            assert_eq!(found, expected, "{body:?} byte by byte");
        }
    }

    #[test]
    fn found_stays_found() {
        let mut first = FirstData::default();
        assert!(first.push(b"data: x\n\n"));
        assert!(first.push(b": comment\n"));
    }
}
