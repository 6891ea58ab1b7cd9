//! What the engines said, in a file, and back: so that what a bridge came to believe can be followed elsewhere.
//!
//! One JSON object a line. The first names the format; one `replica` line describes each stream; each further line
//! is one input of one stream ([`Input`]) as it was handed to its state machine, payloads in base64, so that the
//! same inputs come to the same state. The file contains the token ids of every prompt.

use std::fs::File;
use std::io::{BufRead, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use super::cache::Word;
use super::config::ReplicaSpec;
use super::scrape::Reading;
use super::stream::Input;
use crate::blocks::BlockHash;

const FORMAT: u32 = 1;
/// Lines that wait for the disk at most; more are counted as lost.
const QUEUE: usize = 4096;
/// Metrics are read many times a second; so often they are noted.
const READINGS: Duration = Duration::from_secs(1);

/// One line of a recording.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Line {
    /// The first line.
    Recording {
        /// Of the file.
        format: u32,
        /// Of kvroute.
        version: String,
        /// Seconds since 1970.
        started: f64,
        /// The deployment's seed: without it other hashes come out.
        hash_seed: String,
    },
    /// A stream begins; the further lines name it by its number.
    Replica {
        /// The number.
        stream: usize,
        /// As configured.
        spec: ReplicaSpec,
        /// Data-parallel rank.
        rank: u32,
    },
    /// An input of a stream.
    Input {
        /// Milliseconds since the start of the recording.
        t: u64,
        /// Of which stream.
        stream: usize,
        /// What.
        #[serde(flatten)]
        input: Noted,
    },
    /// The disk was too slow, or the file reached its bound: so many lines are missing from here on.
    Lost {
        /// How many.
        lines: u64,
    },
}

/// An [`Input`] as a line has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "input", rename_all = "snake_case")]
#[allow(missing_docs)] // as in `Input`
pub enum Noted {
    Announced,
    Connected,
    Disconnected,
    BadMessage,
    Live { seq: u64, payload: String, replayable: bool },
    ReplayBegins,
    Replayed { seq: u64, payload: String },
    ReplayEnds { complete: bool },
    Reading(Reading),
    Heard { chain: Vec<u64>, claimed: usize, cached: Option<usize> },
}

impl Noted {
    fn of(input: &Input<'_>) -> Noted {
        match input {
            Input::Announced => Noted::Announced,
            Input::Connected => Noted::Connected,
            Input::Disconnected => Noted::Disconnected,
            Input::BadMessage => Noted::BadMessage,
            Input::Live { seq, payload, replayable } => {
                Noted::Live { seq: *seq, payload: BASE64_STANDARD.encode(payload), replayable: *replayable }
            }
            Input::ReplayBegins => Noted::ReplayBegins,
            Input::Replayed { seq, payload } => Noted::Replayed { seq: *seq, payload: BASE64_STANDARD.encode(payload) },
            Input::ReplayEnds { complete } => Noted::ReplayEnds { complete: *complete },
            Input::Reading(reading) => Noted::Reading((*reading).clone()),
            Input::Heard(word) => {
                let chain = word.chain.iter().map(|block| block.0).collect();
                Noted::Heard { chain, claimed: word.claimed, cached: word.cached }
            }
        }
    }

    /// Calls `take` with the input that was noted.
    pub fn with<R>(&self, take: impl FnOnce(Input<'_>) -> R) -> Result<R, String> {
        let bytes = |text: &str| BASE64_STANDARD.decode(text).map_err(|e| format!("payload: {e}"));
        Ok(match self {
            Noted::Announced => take(Input::Announced),
            Noted::Connected => take(Input::Connected),
            Noted::Disconnected => take(Input::Disconnected),
            Noted::BadMessage => take(Input::BadMessage),
            Noted::Live { seq, payload, replayable } => {
                take(Input::Live { seq: *seq, payload: &bytes(payload)?, replayable: *replayable })
            }
            Noted::ReplayBegins => take(Input::ReplayBegins),
            Noted::Replayed { seq, payload } => take(Input::Replayed { seq: *seq, payload: &bytes(payload)? }),
            Noted::ReplayEnds { complete } => take(Input::ReplayEnds { complete: *complete }),
            Noted::Reading(reading) => take(Input::Reading(reading)),
            Noted::Heard { chain, claimed, cached } => {
                let chain: Vec<BlockHash> = chain.iter().map(|block| BlockHash(*block)).collect();
                take(Input::Heard(Word { chain: &chain, claimed: *claimed, cached: *cached }))
            }
        })
    }
}

/// Writes a recording from a thread of its own: whoever notes something never waits for the disk.
#[derive(Debug)]
pub struct Recorder {
    lines: SyncSender<Line>,
    lost: AtomicU64,
    streams: AtomicU64,
    begun: Instant,
}

impl Recorder {
    /// Begins a file of at most `max_bytes`.
    pub fn create(path: &Path, max_bytes: u64, hash_seed: &str) -> Result<Recorder, String> {
        let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let (lines, queue) = sync_channel(QUEUE);
        let shown = path.display().to_string();
        std::thread::spawn(move || match write(BufWriter::new(file), &queue, max_bytes) {
            Ok(true) => {}
            Ok(false) => tracing::warn!("{shown}: the recording has reached {max_bytes} bytes and ends"),
            Err(error) => tracing::warn!("{shown}: {error}; the recording ends"),
        });
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let recorder = Recorder { lines, lost: AtomicU64::new(0), streams: AtomicU64::new(0), begun: Instant::now() };
        recorder.send(Line::Recording {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").into(),
            started: since.map_or(0.0, |d| d.as_secs_f64()),
            hash_seed: hash_seed.into(),
        });
        Ok(recorder)
    }

    /// A stream begins; gives its number.
    pub fn stream(&self, spec: &ReplicaSpec, rank: u32) -> Tape {
        let stream = self.streams.fetch_add(1, Ordering::Relaxed) as usize;
        self.send(Line::Replica { stream, spec: spec.clone(), rank });
        Tape { stream, read: None }
    }

    /// Notes an input of a stream.
    pub fn note(&self, tape: &mut Tape, input: &Input<'_>) {
        if matches!(input, Input::Reading(_)) {
            if tape.read.is_some_and(|at| at.elapsed() < READINGS) {
                return;
            }
            tape.read = Some(Instant::now());
        }
        let t = self.begun.elapsed().as_millis() as u64;
        self.send(Line::Input { t, stream: tape.stream, input: Noted::of(input) });
    }

    fn send(&self, line: Line) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && self.lines.try_send(Line::Lost { lines: lost }).is_err() {
            self.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if let Err(TrySendError::Full(_)) = self.lines.try_send(line) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// One stream's place in a recording.
#[derive(Debug)]
pub struct Tape {
    stream: usize,
    read: Option<Instant>,
}

/// False: the bound is reached.
fn write(mut out: impl Write, lines: &Receiver<Line>, max_bytes: u64) -> std::io::Result<bool> {
    let mut written = 0;
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            Err(_) => {
                // Nothing waits: what was noted is on the disk.
                out.flush()?;
                let Ok(line) = lines.recv() else { return Ok(true) };
                line
            }
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        written += text.len() as u64;
        if written > max_bytes {
            serde_json::to_writer(&mut out, &Line::Lost { lines: 1 })?;
            out.write_all(b"\n")?;
            out.flush()?;
            return Ok(false);
        }
        out.write_all(&text)?;
    }
}

/// Reads a recording line by line; an error names the line.
pub fn read(input: impl BufRead) -> impl Iterator<Item = Result<Line, String>> {
    input.lines().enumerate().map(|(at, line)| {
        let wrong = |e: String| format!("line {}: {e}", at + 1);
        let line = line.map_err(|e| wrong(e.to_string()))?;
        let line = serde_json::from_str(&line).map_err(|e| wrong(e.to_string()))?;
        match (at, &line) {
            (0, Line::Recording { format: FORMAT, .. }) => {}
            (0, Line::Recording { format, .. }) => {
                return Err(wrong(format!("format {format} is newer than this build: update it")));
            }
            (0, _) => return Err(wrong("not a recording of kvroute bridge --record".into())),
            _ => {}
        }
        Ok(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ReplicaSpec {
        ReplicaSpec::parse("name=a,http=http://10.0.0.1:8000,model=m,kv=tcp://10.0.0.1:5557").unwrap()
    }

    #[test]
    fn what_was_noted_is_read_back() {
        let path = std::env::temp_dir().join(format!("kvroute-recording-{}", std::process::id()));
        let reading = Reading { running: 3, start_time: Some(1.5), ..Reading::default() };
        let recorder = Recorder::create(&path, 1 << 20, "seed").unwrap();
        let mut tape = recorder.stream(&spec(), 2);
        let inputs = [
            Input::Connected,
            Input::ReplayBegins,
            Input::Replayed { seq: 0, payload: &[0, 255, 10] },
            Input::ReplayEnds { complete: true },
            Input::Live { seq: u64::MAX, payload: b"\n", replayable: true },
            Input::BadMessage,
            Input::Reading(&reading),
            Input::Reading(&reading), // not again within a second
            Input::Disconnected,
        ];
        inputs.iter().for_each(|input| recorder.note(&mut tape, input));
        drop(recorder);
        // The writer ends by itself: until then the file grows.
        let lines = loop {
            let text = std::fs::read_to_string(&path).unwrap();
            if text.lines().last().is_some_and(|l| l.contains("\"disconnected\"")) && text.ends_with('\n') {
                break read(text.as_bytes()).collect::<Result<Vec<_>, _>>().unwrap();
            }
            std::thread::yield_now();
        };
        assert!(matches!(&lines[0], Line::Recording { hash_seed, .. } if hash_seed == "seed"));
        assert_eq!(lines[1], Line::Replica { stream: 0, spec: spec(), rank: 2 });
        let noted: Vec<Noted> = lines[2..]
            .iter()
            .map(|l| match l {
                Line::Input { input, stream: 0, .. } => input.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        let mut expected: Vec<Noted> = inputs.iter().map(Noted::of).collect();
        expected.remove(7);
        assert_eq!(noted, expected);
        noted[4].with(|input| assert!(matches!(input, Input::Live { payload: b"\n", .. }))).unwrap();
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_bound_holds_and_what_is_no_recording_is_refused() {
        let (send, receive) = sync_channel(10);
        for _ in 0..10 {
            let input = Noted::Live { seq: 1, payload: "x".repeat(100), replayable: true };
            send.send(Line::Input { t: 0, stream: 0, input }).unwrap();
        }
        let mut out = Vec::new();
        assert!(!write(&mut out, &receive, 600).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert!(text.len() < 700 && text.ends_with("{\"what\":\"lost\",\"lines\":1}\n"), "{text}");
        let error = |text: &str| read(text.as_bytes()).find_map(Result::err).unwrap();
        assert!(error("{}").contains("line 1"));
        assert!(error(&text).contains("not a recording"));
        let newer = r#"{"what":"recording","format":9,"version":"9","started":0.0,"hash_seed":""}"#;
        assert!(error(newer).contains("update it"));
    }
}
