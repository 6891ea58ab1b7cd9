//! The blocks of one tier held by one plane of 64 replicas.

use super::segment::{Entry, KEY, KEY_BITS, Line, Seed, Segment, Slot};
use crate::blocks::BlockHash;
use crate::feed::digest::DRAWERS;

/// Segments of a table: one for each drawer, that is, each value of the first 12 bits of a hash.
pub(super) const SEGMENTS: usize = DRAWERS;
const _: () = assert!(SEGMENTS == 1 << (64 - KEY_BITS));

/// Hashes that are looked for together.
pub(super) const TOGETHER: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    segments: Box<[Segment]>,
    entries: usize,
    slot_bytes: usize,
    /// Where [`Table::make_room`] goes on.
    hand: usize,
}

/// What storing needs to know of the room that is left.
pub(super) struct Room<'a> {
    /// Bytes that all tables together may still take.
    pub free: usize,
    /// Told of each entry that had to go.
    pub evicted: &'a mut dyn FnMut(Slot),
    /// Where the memory comes from.
    pub headroom: &'a mut Headroom,
}

/// Lets the memory of the VM grow in large steps: a step may cost a copy of all of it, and each segment that grows would
/// ask for one. The first step is as large as the index may become; memory that is not written to costs nothing.
#[derive(Debug)]
pub(super) struct Headroom {
    first: usize,
    left: usize,
}

const STEP: usize = 8 << 20;

impl Headroom {
    /// For an index of at most `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Headroom { first: max_bytes, left: 0 }
    }

    /// So many bytes are about to be allocated.
    fn before(&mut self, bytes: usize) {
        if cfg!(target_family = "wasm") {
            match self.left.checked_sub(bytes) {
                Some(left) => self.left = left,
                None => {
                    let step = std::mem::take(&mut self.first).max(STEP);
                    let mut room = Vec::<u8>::new();
                    // Given back at once, it is where the next ones come from.
                    let got = room.try_reserve_exact(step).is_ok();
                    drop(std::hint::black_box(room));
                    self.left = if got { step - (step >> 2) } else { STEP };
                }
            }
        }
    }
}

impl Table {
    /// An empty table.
    pub fn new() -> Self {
        let segments = (0..SEGMENTS).map(|_| Segment::default()).collect();
        Table { segments, entries: 0, slot_bytes: 0, hand: 0 }
    }

    /// Entries: blocks that at least one replica of the plane holds.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Bytes of it all.
    pub fn bytes(&self) -> usize {
        Self::empty_bytes() + self.slot_bytes
    }

    /// Bytes of a table without entries.
    pub fn empty_bytes() -> usize {
        SEGMENTS * size_of::<Segment>()
    }

    fn segment(&self, hash: BlockHash) -> Option<&Segment> {
        self.segments.get((hash.0 >> KEY_BITS) as usize)
    }

    /// The line where the search for `hash` begins, and the next.
    fn line(&self, hash: BlockHash, seed: Seed) -> [&Line; 2] {
        self.segment(hash).and_then(|s| s.line(hash.0 & KEY, seed)).unwrap_or([&Line::EMPTY; 2])
    }

    /// Where the searches for `hashes`, at most [`TOGETHER`], begin, all of it read. One after the other, the searches
    /// would each wait for memory; these reads depend on nothing and follow one another at once, so the processor
    /// waits for all of them together. Those that go on do so in the next line: that one is read as well.
    fn lines(&self, hashes: &[BlockHash], seed: Seed) -> [[&Line; 2]; TOGETHER] {
        let mut lines = [[&Line::EMPTY; 2]; TOGETHER];
        lines.iter_mut().zip(hashes).for_each(|(lines, hash)| *lines = self.line(*hash, seed));
        let some = || lines.iter().take(hashes.len());
        std::hint::black_box(some().fold(false, |sum, [line, _]| sum ^ line.full()));
        let last = |[line, next]: [&Line; 2]| (if line.full() { next } else { line }).full();
        std::hint::black_box(some().fold(false, |sum, lines| sum ^ last(*lines)));
        lines
    }

    /// Brings what searches for `hashes` will read into the processor's cache.
    pub fn warm(&self, hashes: &[BlockHash], seed: Seed) {
        hashes.chunks(TOGETHER).for_each(|some| _ = self.lines(some, seed));
    }

    /// The holders of each of `hashes`, at most [`TOGETHER`].
    pub fn get_all(&self, hashes: &[BlockHash], seed: Seed) -> [u64; TOGETHER] {
        let mut held = [0; TOGETHER];
        for ((held, hash), line) in held.iter_mut().zip(hashes).zip(self.lines(hashes, seed)) {
            let [line, next] = line;
            let key = hash.0 & KEY;
            *held = line.holders(key).or_else(|| next.holders(key)).unwrap_or_else(|| self.get(*hash, seed));
        }
        held
    }

    pub fn get(&self, hash: BlockHash, seed: Seed) -> u64 {
        self.segment(hash).and_then(|s| s.get(hash.0 & KEY, seed)).map_or(0, |slot| slot.holders)
    }

    pub fn depth(&self, hash: BlockHash, seed: Seed) -> Option<u64> {
        self.segment(hash).and_then(|s| s.get(hash.0 & KEY, seed)).map(Slot::depth)
    }

    pub fn touch(&mut self, hash: BlockHash, seed: Seed) {
        if let Some(segment) = self.segments.get_mut((hash.0 >> KEY_BITS) as usize) {
            segment.touch(hash.0 & KEY, seed);
        }
    }

    /// Within `cover`, makes `holders` those of `hash`. Gives the holders within `cover` before. `holders` must not be
    /// empty.
    pub fn set(
        &mut self,
        hash: BlockHash,
        cover: u64,
        holders: u64,
        depth: u64,
        seed: Seed,
        room: &mut Room<'_>,
    ) -> u64 {
        let Some(segment) = self.segments.get_mut((hash.0 >> KEY_BITS) as usize) else { return 0 };
        let key = hash.0 & KEY;
        // At most: find it full, grow or evict, then it fits.
        for _ in 0..3 {
            let used = segment.used();
            match segment.entry(key, depth, seed) {
                Entry::Slot(slot) => {
                    let before = slot.holders & cover;
                    slot.holders = (slot.holders & !cover) | (holders & cover);
                    self.entries += segment.used() - used;
                    return before;
                }
                Entry::Full => match segment.growth().filter(|more| *more <= room.free) {
                    Some(more) => {
                        room.headroom.before(segment.bytes() + more);
                        segment.grow(seed);
                        self.slot_bytes += more;
                        room.free -= more;
                    }
                    None => {
                        segment.evict(seed, &mut *room.evicted);
                        self.entries = (self.entries + segment.used()).saturating_sub(used);
                    }
                },
            }
        }
        0
    }

    /// Takes `holders` off `hash`; gives those that were on it.
    pub fn remove(&mut self, hash: BlockHash, holders: u64, seed: Seed) -> u64 {
        let Some(segment) = self.segments.get_mut((hash.0 >> KEY_BITS) as usize) else { return 0 };
        let used = segment.used();
        let gone = segment.remove(hash.0 & KEY, holders, seed);
        self.entries -= used - segment.used();
        gone
    }

    /// Slots of segment number `at`.
    pub fn size(&self, at: usize) -> usize {
        self.segments.get(at).map_or(0, |segment| segment.size())
    }

    /// Takes `dead` off everything in segment number `at`, and gives back room. False: there is no such segment.
    pub fn sweep(&mut self, at: usize, dead: u64, seed: Seed) -> bool {
        let Some(segment) = self.segments.get_mut(at) else { return false };
        let (used, bytes) = (segment.used(), segment.bytes());
        segment.sweep(dead, seed);
        segment.shrink(seed);
        self.entries -= used - segment.used();
        self.slot_bytes -= bytes - segment.bytes();
        true
    }

    /// Gives up entries and the room that they took, a few segments at a time. Gives the bytes freed.
    pub fn make_room(&mut self, seed: Seed, gone: &mut dyn FnMut(Slot)) -> usize {
        let mut freed = 0;
        for _ in 0..8 {
            self.hand = if self.hand + 1 >= SEGMENTS { 0 } else { self.hand + 1 };
            let Some(segment) = self.segments.get_mut(self.hand) else { return freed };
            let (used, bytes) = (segment.used(), segment.bytes());
            // Down to a half, so that shrinking pays.
            while segment.used() * 2 > used.max(2) {
                segment.evict(seed, &mut *gone);
            }
            segment.shrink(seed);
            self.entries -= used - segment.used();
            self.slot_bytes -= bytes - segment.bytes();
            freed += bytes - segment.bytes();
        }
        freed
    }

    /// The entries of segment number `at`, with whole hashes.
    pub fn segment_entries(&self, at: usize) -> impl Iterator<Item = (BlockHash, u64)> {
        let first = (at as u64) << KEY_BITS;
        let slots = self.segments.get(at).into_iter().flat_map(Segment::slots);
        slots.filter(|s| s.holders != 0).map(move |s| (BlockHash(first | s.key()), s.holders))
    }
}
