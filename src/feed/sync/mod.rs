//! How a router VM stays in step with the bridge: a pure state machine over frames, snapshot answers and time.
//!
//! * A batch with the next seq is applied. One that was applied already is ignored. One further ahead is applied
//!   too, since records set what they name, but something in between is lost: everything is *unconfirmed* until
//!   it has been pulled range by range. Nothing is thrown away before its range arrives.
//! * A higher term is a new leader, whose replica numbers mean something else: the same applies. A lower term, or
//!   a foreign bridge in the same term, is ignored.
//! * What has to be pulled is found by [digests](super::digest): those of all drawers are asked for, and the drawers
//!   that differ are pulled.
//! * An answer is held until the batch that it includes has been applied; then its range is made what it says,
//!   then the later batches are applied again for that range. They are kept while a pull is under way, bounded;
//!   when they do not reach back to the answer, the answer is dropped and asked for again.
//! * When all drawers agree, asking for digests goes on for ever, slowly: the scrub. What it repairs is counted.
//!
//! All work is queued and done by [`Sync::work`] under a budget, in order, so a slice can end anywhere.

mod compare;
mod face;

use std::collections::VecDeque;
use std::rc::Rc;

use super::batch::{BatchReader, HEADER_BYTES};
use super::digest::{DRAWERS, Digests, bounds};
use super::record::{Record, hit_ends_at};
use super::snapshot::Snapshot;
use super::wire::Reader;
use super::{Epoch, FeedReplicaId, FrameError};
use crate::blocks::BlockHash;
use crate::clock::{Budget, Time};
use compare::Comparing;
pub use face::{Pull, SyncCounts, SyncSettings, SyncState, Target, Verdict};

#[derive(Debug)]
enum Job {
    /// A batch; `at` is where its next record begins, `current` the one under way and the blocks done of it.
    Frame { frame: Rc<[u8]>, at: usize, current: Option<(Record, usize)> },
    /// The leader is another one from here on.
    Epoch,
    /// The replicas of an answer.
    Answer(Option<Box<Snapshot>>),
    /// The blocks of the answer.
    Range,
    /// Digests are compared.
    Compare(Box<Comparing>),
    /// The batches after the answer again, for its range.
    Replay { frames: VecDeque<Rc<[u8]>>, from: u64, through: u64 },
}

#[derive(Debug)]
enum Answer {
    Blocks(Box<Snapshot>),
    Digests(Box<Digests>),
}

impl Answer {
    fn seq(&self) -> u64 {
        match self {
            Answer::Blocks(snapshot) => snapshot.seq,
            Answer::Digests(digests) => digests.seq,
        }
    }
}

#[derive(Debug)]
enum Asking {
    /// Nothing under way; the next one not before.
    Idle { not_before: Time },
    /// Asked for.
    Asked { pull: Pull, since: Time },
    /// Here, but ahead of what has been applied.
    Waiting { answer: Answer, since: Time },
    /// Being applied.
    Applying { valid: bool },
}

/// Changes of replicas remembered while an answer is awaited.
const MAX_NEWS: usize = 4096;

/// The state machine. See the [module](self).
#[derive(Debug)]
pub struct Sync {
    settings: SyncSettings,
    lead: Option<Epoch>,
    received: u64,
    applied: u64,
    last_frame: Option<Time>,
    jobs: VecDeque<Job>,
    job_bytes: usize,
    /// Frames received since the pull under way was asked for, without a hole: the first has seq `log_from`.
    log: VecDeque<Rc<[u8]>>,
    log_from: u64,
    log_bytes: usize,
    /// The last seq at which a batch changed more than single blocks: an older answer cannot be mended.
    reshaped: u64,
    /// Replicas that batches told of, with the seq received by then: what an older answer says of them is old.
    news: VecDeque<(u64, FeedReplicaId)>,
    pull: Asking,
    failures: u32,
    /// Drawers below this one have been compared in this turn.
    compared: usize,
    /// Ranges that differ and have not come.
    wanted: VecDeque<(u64, u64)>,
    /// A whole turn of pulls has to be made before everything is confirmed.
    synced: bool,
    counts: SyncCounts,
}

impl Sync {
    /// Knows nothing and waits for the first batch.
    pub fn new(settings: SyncSettings) -> Self {
        Sync {
            settings,
            lead: None,
            received: 0,
            applied: 0,
            last_frame: None,
            jobs: VecDeque::new(),
            job_bytes: 0,
            log: VecDeque::new(),
            log_from: 1,
            log_bytes: 0,
            reshaped: 0,
            news: VecDeque::new(),
            pull: Asking::Idle { not_before: Time(0) },
            failures: 0,
            compared: 0,
            wanted: VecDeque::new(),
            synced: false,
            counts: SyncCounts::default(),
        }
    }

    /// Changes times and sizes.
    pub fn configure(&mut self, settings: SyncSettings) {
        self.settings = settings;
    }

    /// The bridge lease names this leader: pulling can begin before its first batch comes.
    pub fn adopt(&mut self, epoch: Epoch, now: Time) {
        if self.lead.is_none_or(|lead| epoch.term > lead.term) {
            self.lead_by(epoch, 0, now);
        }
    }

    /// All that was believed may be wrong (a slot was lost): it must be pulled again.
    pub fn distrust(&mut self, now: Time) {
        self.unconfirm(now);
        self.clear_log(self.received + 1);
    }

    /// A batch as it came out of the queue.
    pub fn on_frame(&mut self, frame: &[u8], now: Time) -> Verdict {
        let header = match BatchReader::new(frame) {
            Ok(reader) => reader.header,
            Err(error) => {
                self.counts.bad += 1;
                return Verdict::Bad(error);
            }
        };
        let lead = self.lead.unwrap_or_default();
        let verdict = if header.epoch == lead && self.lead.is_some() {
            if header.seq == self.received + 1 {
                Verdict::Next
            } else if header.seq <= self.received {
                // Its sender is alive all the same.
                self.last_frame = Some(now);
                self.counts.duplicates += 1;
                return Verdict::Duplicate;
            } else if self.received == 0 && !self.synced {
                // The first one since the leader is known: what was before it has to be pulled anyway.
                self.clear_log(header.seq);
                Verdict::Next
            } else {
                self.counts.gaps += 1;
                self.unconfirm(now);
                self.clear_log(header.seq);
                Verdict::Gap
            }
        } else if self.lead.is_none() || header.epoch.term > lead.term {
            self.lead_by(header.epoch, header.seq, now);
            Verdict::NewEpoch
        } else {
            self.counts.foreign += 1;
            return Verdict::Foreign;
        };
        self.received = header.seq;
        self.last_frame = Some(now);
        if self.job_bytes + frame.len() > self.settings.backlog_bytes {
            // Too far behind: forget what waits, pull it later.
            self.drop_backlog(now);
            self.applied = self.received;
            return Verdict::Gap;
        }
        let frame: Rc<[u8]> = frame.into();
        self.remember(&frame);
        self.push(Job::Frame { frame, at: 0, current: None });
        verdict
    }

    /// What to ask the bridge for, now. One at a time: ask again only after it has been answered or has failed.
    pub fn next_pull(&mut self, now: Time) -> Option<Pull> {
        match &self.pull {
            Asking::Idle { not_before } if self.lead.is_some() && now >= *not_before => {
                self.clear_log(self.received + 1);
                let pull = match self.wanted.front() {
                    Some((from, through)) => Pull::Range { from: *from, through: *through },
                    None => Pull::Digests { from: bounds(self.compared).0 },
                };
                self.pull = Asking::Asked { pull, since: now };
                Some(pull)
            }
            Asking::Asked { since, .. } | Asking::Waiting { since, .. }
                if now.since(*since) > self.settings.pull_deadline =>
            {
                self.on_pull_failed(now);
                None
            }
            _ => None,
        }
    }

    /// The body of an answer.
    pub fn on_snapshot(&mut self, body: &[u8], now: Time) -> Verdict {
        let Asking::Asked { pull, since } = self.pull else { return Verdict::Unasked };
        let read = match Digests::is(body) {
            true => Digests::decode(body).map(|digests| Answer::Digests(Box::new(digests))),
            false => Snapshot::decode(body).map(|snapshot| Answer::Blocks(Box::new(snapshot))),
        };
        let answer = match read {
            Ok(answer) => answer,
            Err(error) => {
                self.counts.bad += 1;
                self.on_pull_failed(now);
                return Verdict::Bad(error);
            }
        };
        let (epoch, asked) = match &answer {
            Answer::Blocks(s) => {
                let fits = matches!(pull, Pull::Range { from, through } if s.from == from && s.through <= through);
                (s.epoch, fits)
            }
            Answer::Digests(d) => (d.epoch, pull == Pull::Digests { from: d.from }),
        };
        if !asked {
            return Verdict::Unasked; // late, of a pull given up; the right one may still come
        }
        if Some(epoch) != self.lead {
            self.counts.foreign += 1;
            self.on_pull_failed(now);
            return Verdict::Foreign;
        }
        self.failures = 0;
        self.pull = Asking::Waiting { answer, since };
        Verdict::Next
    }

    /// The pull under way got no answer, or one with an error status.
    pub fn on_pull_failed(&mut self, now: Time) {
        if matches!(self.pull, Asking::Asked { .. } | Asking::Waiting { .. }) {
            self.counts.failed_pulls += 1;
            let wait = self.settings.retry.saturating_mul(1 << self.failures.min(4));
            self.failures += 1;
            self.pull = Asking::Idle { not_before: now.after(wait) };
        }
    }

    /// Whether [`Sync::work`] has something to do.
    pub fn has_work(&self) -> bool {
        !self.jobs.is_empty() || self.answer_ready()
    }

    /// Applies what waits, as long as `budget` allows (asked every few dozen blocks). True: nothing waits any more.
    pub fn work(&mut self, target: &mut dyn Target, now: Time, budget: Budget<'_>) -> bool {
        loop {
            self.try_answer(now);
            let Some(mut job) = self.jobs.pop_front() else { return true };
            if !budget() || !self.step(&mut job, target, now, budget) {
                self.jobs.push_front(job);
                return false;
            }
            if let Job::Frame { frame, .. } = &job {
                self.job_bytes = self.job_bytes.saturating_sub(frame.len());
            }
        }
    }

    /// Whether everything believed is confirmed.
    pub fn synced(&self) -> bool {
        self.synced
    }

    /// Nanoseconds since the leader was last heard of; `None`: never.
    pub fn feed_age(&self, now: Time) -> Option<u64> {
        self.last_frame.map(|at| now.since(at))
    }

    /// The leader followed, and the last batch applied: what a slot's heartbeat says.
    pub fn applied(&self) -> (Epoch, u64) {
        (self.lead.unwrap_or_default(), self.applied)
    }

    /// Where it stands.
    pub fn state(&self) -> SyncState {
        let lead = self.lead.unwrap_or_default();
        SyncState {
            term: lead.term,
            epoch: lead.id,
            received: self.received,
            applied: self.applied,
            synced: self.synced,
            cursor: self.confirmed(),
            backlog_bytes: self.job_bytes,
            counts: self.counts,
        }
    }

    /// How much of all hashes has been confirmed in this turn.
    fn confirmed(&self) -> u64 {
        let missing = |sum: u64, (from, through): &(u64, u64)| sum.saturating_add(through.saturating_sub(*from));
        let done = bounds(self.compared).0.saturating_sub(u64::from(self.compared == 0));
        if self.compared >= DRAWERS { u64::MAX } else { done }.saturating_sub(self.wanted.iter().fold(0, missing))
    }

    fn lead_by(&mut self, epoch: Epoch, first: u64, now: Time) {
        self.lead = Some(epoch);
        self.counts.epochs += 1;
        self.received = 0;
        self.applied = 0;
        self.reshaped = 0;
        self.failures = 0;
        self.unconfirm(now);
        self.clear_log(first);
        self.push(Job::Epoch);
    }

    /// Everything has to be compared anew. An answer under way may still be of use.
    fn unconfirm(&mut self, now: Time) {
        self.synced = false;
        self.compared = 0;
        self.wanted.clear();
        match &mut self.pull {
            Asking::Applying { valid } => *valid = false,
            Asking::Idle { not_before } => *not_before = now,
            Asking::Asked { pull: Pull::Digests { from: 0 }, .. } => {}
            // It is not what the new turn begins with.
            Asking::Asked { .. } | Asking::Waiting { .. } => self.pull = Asking::Idle { not_before: now },
        }
    }

    fn push(&mut self, job: Job) {
        if let Job::Frame { frame, .. } = &job {
            self.job_bytes += frame.len();
        }
        self.jobs.push_back(job);
    }

    fn drop_backlog(&mut self, now: Time) {
        self.counts.gaps += 1;
        self.jobs.retain(|job| matches!(job, Job::Epoch));
        self.job_bytes = 0;
        self.unconfirm(now);
        if matches!(self.pull, Asking::Applying { .. }) {
            self.pull = Asking::Idle { not_before: now };
        }
        self.clear_log(self.received + 1);
    }

    fn clear_log(&mut self, from: u64) {
        self.log.clear();
        self.log_bytes = 0;
        self.log_from = from;
        self.news.clear();
    }

    /// Keeps a frame for the answer under way.
    fn remember(&mut self, frame: &Rc<[u8]>) {
        if matches!(self.pull, Asking::Idle { .. } | Asking::Applying { .. }) {
            self.clear_log(self.received + 1);
            return;
        }
        self.log.push_back(frame.clone());
        self.log_bytes += frame.len();
        while self.log_bytes > self.settings.log_bytes {
            let Some(oldest) = self.log.pop_front() else { break };
            self.log_bytes -= oldest.len();
            self.log_from += 1;
        }
    }

    /// Takes up the answer that waits, if its turn has come. Only between two jobs.
    fn try_answer(&mut self, now: Time) {
        if !self.answer_ready() {
            return;
        }
        let Asking::Waiting { answer, .. } = std::mem::replace(&mut self.pull, Asking::Applying { valid: true }) else {
            return;
        };
        let seq = answer.seq();
        // A batch that it does not include is not at hand any more, or changed more than single blocks.
        if seq + 1 < self.log_from || self.reshaped > seq {
            self.pull = Asking::Idle { not_before: now };
            return;
        }
        let skip = (seq + 1).saturating_sub(self.log_from);
        let known = (self.applied + 1).saturating_sub(self.log_from).saturating_sub(skip);
        let frames = self.log.iter().skip(skip as usize).take(known as usize).cloned().collect();
        match answer {
            Answer::Blocks(snapshot) => {
                let (from, through) = (snapshot.from, snapshot.through);
                self.jobs.push_front(Job::Replay { frames, from, through });
                self.jobs.push_front(Job::Range);
                self.jobs.push_front(Job::Answer(Some(snapshot)));
            }
            Answer::Digests(digests) => {
                self.jobs.push_front(Job::Compare(Box::new(Comparing::new(*digests, frames))));
            }
        }
    }

    fn answer_ready(&self) -> bool {
        let Asking::Waiting { answer, .. } = &self.pull else { return false };
        let between = !matches!(self.jobs.front(), Some(Job::Frame { current: Some(_), .. }));
        answer.seq() <= self.applied && between && !self.jobs.iter().any(|job| matches!(job, Job::Epoch))
    }

    /// The replicas of an answer that includes batch `seq` are all there are.
    fn replicas(&mut self, seq: u64, records: &[Record], target: &mut dyn Target, now: Time) {
        let mut ids = Vec::new();
        for record in records {
            if let Record::Replica(info) = record {
                ids.push(info.id);
                if !self.news.iter().any(|(at, id)| *at > seq && *id == info.id) {
                    target.replica(info, now);
                }
            }
        }
        target.only(&ids, now);
    }

    /// One job, or a part of it. True: done.
    fn step(&mut self, job: &mut Job, target: &mut dyn Target, now: Time, budget: Budget<'_>) -> bool {
        match job {
            Job::Epoch => {
                target.new_epoch();
                true
            }
            Job::Frame { frame, at, current } => loop {
                if let Some((record, within)) = current {
                    match self.apply(record, within, target, now, budget) {
                        true => *current = None,
                        false => return false,
                    }
                }
                match next_record(frame, at) {
                    Ok(Some(record)) => *current = Some((record, 0)),
                    end => {
                        if end.is_err() {
                            self.counts.bad += 1;
                            self.unconfirm(now);
                        }
                        self.frame_done(frame);
                        return true;
                    }
                }
                if !budget() {
                    return false;
                }
            },
            Job::Answer(snapshot) => {
                let Some(snapshot) = snapshot.take() else { return true };
                self.replicas(snapshot.seq, &snapshot.records, target, now);
                target.range_begin(*snapshot);
                true
            }
            Job::Compare(comparing) => self.compare(comparing, target, now, budget),
            Job::Range => match target.range_apply(budget) {
                Some(repaired) => {
                    self.counts.repaired += if self.synced { repaired } else { 0 };
                    true
                }
                None => false,
            },
            Job::Replay { frames, from, through } => {
                while let Some(frame) = frames.front() {
                    if !budget() {
                        return false;
                    }
                    replay(frame, *from..=*through, target);
                    frames.pop_front();
                }
                self.ranged(*through);
                self.answered(now);
                true
            }
        }
    }

    /// An answer was applied.
    fn answered(&mut self, now: Time) {
        self.counts.answers += 1;
        let valid = matches!(self.pull, Asking::Applying { valid: true });
        if valid && self.compared >= DRAWERS && self.wanted.is_empty() {
            self.compared = 0;
            self.counts.cycles += 1;
            self.synced = true;
        }
        let pause = if valid && self.synced { self.settings.scrub_pause } else { 0 };
        self.pull = Asking::Idle { not_before: now.after(pause) };
    }

    /// A range has come, up to `through`.
    fn ranged(&mut self, through: u64) {
        if matches!(self.pull, Asking::Applying { valid: true })
            && let Some((_, last)) = self.wanted.pop_front()
            && let Some(next) = through.checked_add(1).filter(|next| *next <= last)
        {
            self.wanted.push_front((next, last));
        }
    }

    fn frame_done(&mut self, frame: &[u8]) {
        let Some(header) = BatchReader::header_of(frame) else { return };
        self.counts.batches += 1;
        if Some(header.epoch) == self.lead {
            self.applied = self.applied.max(header.seq);
        }
    }

    /// Applies a record, or a part of it from block `within` on. True: done.
    fn apply(
        &mut self,
        record: &Record,
        within: &mut usize,
        target: &mut dyn Target,
        now: Time,
        budget: Budget<'_>,
    ) -> bool {
        match record {
            Record::Replica(info) => {
                if target.replica(info, now) || self.news.len() >= MAX_NEWS {
                    self.reshaped = self.received;
                }
                self.news.push_back((self.received, info.id));
                self.news.truncate(MAX_NEWS);
            }
            Record::Gone(id) => {
                target.gone(*id, now);
                self.reshaped = self.received;
            }
            Record::Cleared(id) => {
                target.cleared(*id, now);
                self.reshaped = self.received;
            }
            Record::Load(id, load) => target.load(*id, load, now),
            // Only snapshots have them.
            Record::Held { .. } => {}
            Record::Stored { replica, tier, parent, ends, hashes } => {
                while let Some((part, rest)) = part(hashes, *within) {
                    let parent = match within.checked_sub(1) {
                        Some(last) => hashes.get(last).copied(),
                        None => *parent,
                    };
                    let ends = ends.get(*within >> 3..).unwrap_or_default();
                    if !target.stored(*replica, *tier, parent, part, ends) && self.synced {
                        self.counts.gaps += 1;
                        self.unconfirm(now);
                    }
                    *within += part.len();
                    self.counts.blocks += part.len() as u64;
                    if rest && !budget() {
                        return false;
                    }
                }
            }
            Record::Removed { replica, tier, hashes } => {
                while let Some((part, rest)) = part(hashes, *within) {
                    target.removed(*replica, *tier, part);
                    *within += part.len();
                    self.counts.blocks += part.len() as u64;
                    if rest && !budget() {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// Blocks that are applied between two looks at the budget, which may cost as much as ten of them; a multiple of 8, so
/// that the bytes of `ends` fit.
const STRIDE: usize = 256;

/// The next few hashes, and whether more follow.
fn part(hashes: &[BlockHash], within: usize) -> Option<(&[BlockHash], bool)> {
    let rest = hashes.get(within..)?;
    let part = rest.get(..STRIDE).unwrap_or(rest);
    (!part.is_empty()).then_some((part, part.len() < rest.len()))
}

/// The record that begins `at` bytes behind the header. The checksum was looked at when the frame came in.
fn next_record(frame: &[u8], at: &mut usize) -> Result<Option<Record>, FrameError> {
    let body = frame.get(HEADER_BYTES..frame.len().saturating_sub(8)).unwrap_or_default();
    let mut reader = Reader(body.get(*at..).unwrap_or_default());
    while !reader.0.is_empty() {
        let record = Record::read(&mut reader)?;
        *at = body.len() - reader.0.len();
        if record.is_some() {
            return Ok(record);
        }
    }
    Ok(None)
}

/// Applies what a batch says of blocks within `range` again.
fn replay(frame: &[u8], range: std::ops::RangeInclusive<u64>, target: &mut dyn Target) {
    let mut at = 0;
    while let Ok(Some(record)) = next_record(frame, &mut at) {
        match record {
            Record::Stored { replica, tier, ends, hashes, .. } => {
                for (i, hash) in hashes.iter().enumerate().filter(|(_, hash)| range.contains(&hash.0)) {
                    let end = hit_ends_at(&ends, i);
                    target.stored(replica, tier, None, &[*hash], &[u8::from(end)]);
                }
            }
            Record::Removed { replica, tier, mut hashes } => {
                hashes.retain(|hash| range.contains(&hash.0));
                target.removed(replica, tier, &hashes);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
