//! Follows the sequence numbers of one stream of an engine: a pure state machine.
//!
//! An engine counts its messages from 0 and carries no identity of its process, so a restart shows as a number
//! that goes back. A message that arrives twice goes back as well: the two are told apart by a digest of the
//! payload of the latest messages.

use xxhash_rust::xxh3::xxh3_64;

/// Latest messages whose digest is remembered.
const REMEMBERED: usize = 4096;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The first message of this stream. Number 0: nothing was missed.
    Initial,
    /// The next one.
    Contiguous,
    /// Seen before: ignore it.
    Duplicate,
    /// Messages from `from` up to this one are missing.
    Gap {
        /// The first missing number.
        from: u64,
    },
    /// The engine began anew.
    Restarted,
}

/// The place in a stream.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    next: Option<u64>,
    /// Digest of message n at n mod [`REMEMBERED`], with n.
    digests: Vec<(u64, u64)>,
}

impl Cursor {
    /// The next number expected; `None` before the first message.
    pub fn next(&self) -> Option<u64> {
        self.next
    }

    /// The last number taken, and the digest of its payload.
    pub fn last(&self) -> Option<(u64, u64)> {
        let seq = self.next?.checked_sub(1)?;
        self.digest(seq).map(|d| (seq, d))
    }

    /// Goes on where an earlier process stopped.
    pub fn restored(last: u64, digest: u64) -> Cursor {
        let mut cursor = Cursor { next: Some(last.saturating_add(1)), digests: Vec::new() };
        cursor.remember(last, digest);
        cursor
    }

    /// The digest by which messages are compared.
    pub fn digest_of(payload: &[u8]) -> u64 {
        xxh3_64(payload)
    }

    /// What message `seq` with `digest` means. Changes nothing: [`Cursor::take`] does, once it is applied.
    pub fn look(&self, seq: u64, digest: u64) -> Seen {
        match self.next {
            None => Seen::Initial,
            Some(next) if seq == next => Seen::Contiguous,
            Some(next) if seq > next => Seen::Gap { from: next },
            Some(_) if self.digest(seq) == Some(digest) => Seen::Duplicate,
            Some(_) => Seen::Restarted,
        }
    }

    /// Message `seq` was applied.
    pub fn take(&mut self, seq: u64, digest: u64) {
        self.next = Some(seq.saturating_add(1));
        self.remember(seq, digest);
    }

    /// Forgets everything: the engine began anew.
    pub fn reset(&mut self) {
        *self = Cursor::default();
    }

    fn digest(&self, seq: u64) -> Option<u64> {
        let at = (seq % REMEMBERED as u64) as usize;
        self.digests.get(at).filter(|(s, _)| *s == seq).map(|(_, d)| *d)
    }

    fn remember(&mut self, seq: u64, digest: u64) {
        if self.digests.is_empty() {
            // No message has number 2⁶⁴ − 1: engines use it as the end mark of a replay.
            self.digests = vec![(u64::MAX, 0); REMEMBERED];
        }
        self.digests[(seq % REMEMBERED as u64) as usize] = (seq, digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_from_its_start() {
        let mut cursor = Cursor::default();
        assert_eq!(cursor.look(0, 1), Seen::Initial);
        cursor.take(0, 1);
        assert_eq!(cursor.look(1, 2), Seen::Contiguous);
        cursor.take(1, 2);
        assert_eq!(cursor.look(0, 1), Seen::Duplicate);
        assert_eq!(cursor.look(1, 2), Seen::Duplicate);
        assert_eq!(cursor.look(4, 5), Seen::Gap { from: 2 });
        assert_eq!(cursor.look(2, 3), Seen::Contiguous);
    }

    #[test]
    fn going_back_with_other_content_is_a_restart() {
        let mut cursor = Cursor::default();
        (0..9000).for_each(|n| cursor.take(n, n + 7));
        assert_eq!(cursor.look(0, 99), Seen::Restarted);
        assert_eq!(cursor.look(8999, 1), Seen::Restarted);
        assert_eq!(cursor.look(8999, 9006), Seen::Duplicate);
        cursor.reset();
        assert_eq!(cursor.look(5, 1), Seen::Initial);
    }

    #[test]
    fn goes_on_after_a_checkpoint() {
        let cursor = Cursor::restored(41, 7);
        assert_eq!(cursor.last(), Some((41, 7)));
        assert_eq!(cursor.look(42, 0), Seen::Contiguous);
        assert_eq!(cursor.look(41, 7), Seen::Duplicate);
        assert_eq!(cursor.look(41, 8), Seen::Restarted);
    }

    #[test]
    fn the_largest_number_is_no_overflow() {
        let mut cursor = Cursor::default();
        cursor.take(u64::MAX, 1);
        assert_eq!(cursor.look(u64::MAX, 2), Seen::Contiguous);
    }
}
