//! The blocks of one tier held by one plane of 64 replicas.

use super::segment::{KEY, KEY_BITS, Line, Seed, Segment, Slot};
use crate::blocks::BlockHash;
use crate::feed::digest::DRAWERS;

/// Segments of a table: one for each drawer, that is, each value of the first 12 bits of a hash.
pub(super) const SEGMENTS: usize = DRAWERS;
const _: () = assert!(SEGMENTS == 1 << (64 - KEY_BITS));

/// Hashes that are looked for together.
pub(super) const TOGETHER: usize = 64;

/// What a step along a chain adds to the depth: an eighth of the steps, chosen by the hash, count, so that a unit of
/// depth is 8 blocks, also in runs of one.
pub(super) fn deeper(hash: BlockHash) -> u64 {
    u64::from(hash.0 & 7 == 0)
}

#[derive(Debug)]
pub(super) struct Table {
    segments: Box<[Segment; SEGMENTS]>,
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
        let segments: Box<[Segment]> = (0..SEGMENTS).map(|_| Segment::default()).collect();
        // Of that length, a segment's number needs no look at whether it exists.
        let segments = segments.try_into().unwrap_or_else(|_| Box::new(std::array::from_fn(|_| Segment::default())));
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

    fn segment_mut(&mut self, hash: BlockHash) -> Option<&mut Segment> {
        self.segments.get_mut((hash.0 >> KEY_BITS) as usize)
    }

    /// The lines where the searches for `hashes`, at most [`TOGETHER`], begin, and those after them. One after the other,
    /// the searches would each wait for memory; so all places are worked out first, and then read in turn, which depends
    /// on nothing: the processor waits for all of them together.
    #[inline(always)]
    fn lines(&self, hashes: &[BlockHash], seed: Seed) -> ([u32; TOGETHER], [&[Line; 2]; TOGETHER]) {
        let (mut homes, mut lines) = ([0; TOGETHER], [&[Line::EMPTY; 2]; TOGETHER]);
        for ((home, lines), hash) in homes.iter_mut().zip(&mut lines).zip(hashes) {
            if let Some(segment) = self.segment(*hash) {
                let at = segment.home(hash.0 & KEY, seed);
                (*home, *lines) = (at as u32, segment.lines(at));
            }
        }
        std::hint::black_box(lines.iter().take(hashes.len()).fold(0, |sum, [line, _]| sum ^ line.last()));
        (homes, lines)
    }

    /// Brings what searches for `hashes`, at most [`TOGETHER`], will read into the processor's cache. Gives the lines
    /// where they begin.
    #[inline(always)]
    pub fn warm(&self, hashes: &[BlockHash], seed: Seed) -> [u32; TOGETHER] {
        let (homes, lines) = self.lines(hashes, seed);
        // Those that go on do so in the next line.
        let last = |[line, next]: &[Line; 2]| (if line.last() != 0 { next } else { line }).last();
        std::hint::black_box(lines.iter().take(hashes.len()).fold(0, |sum, lines| sum ^ last(lines)));
        homes
    }

    /// The holders of each of `hashes`, at most [`TOGETHER`].
    pub fn get_all(&self, hashes: &[BlockHash], seed: Seed) -> [u64; TOGETHER] {
        let (_, lines) = self.lines(hashes, seed);
        let mut all = [0; TOGETHER];
        // Those that go on, one after the other, in a list that is written without a branch.
        let (mut open, mut count) = ([0u8; TOGETHER], 0);
        for (at, ((held, hash), [line, _])) in all.iter_mut().zip(hashes).zip(&lines).enumerate() {
            let (holders, known) = line.holders(hash.0 & KEY);
            *held = holders;
            if let Some(place) = open.get_mut(count & (TOGETHER - 1)) {
                *place = at as u8;
            }
            count += usize::from(!known);
        }
        let open = open.get(..count).unwrap_or_default();
        let next = |at: &u8| lines.get(usize::from(*at)).map_or(&Line::EMPTY, |[_, next]| next);
        std::hint::black_box(open.iter().fold(0, |sum, at| sum ^ next(at).last()));
        for at in open {
            let (Some(held), Some(hash)) = (all.get_mut(usize::from(*at)), hashes.get(usize::from(*at))) else {
                continue;
            };
            let (holders, known) = next(at).holders(hash.0 & KEY);
            *held = if known { holders } else { self.get(*hash, seed) };
        }
        all
    }

    pub fn get(&self, hash: BlockHash, seed: Seed) -> u64 {
        self.segment(hash).and_then(|s| s.get(hash.0 & KEY, seed)).map_or(0, |slot| slot.holders)
    }

    pub fn depth(&self, hash: BlockHash, seed: Seed) -> Option<u64> {
        self.segment(hash).and_then(|s| s.get(hash.0 & KEY, seed)).map(|slot| slot.depth())
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
        (cover, holders): (u64, u64),
        depth: u64,
        seed: Seed,
        room: &mut Room<'_>,
    ) -> u64 {
        let Some(segment) = self.segments.get_mut((hash.0 >> KEY_BITS) as usize) else { return 0 };
        // At most: find it full, grow or evict, then it fits.
        for _ in 0..3 {
            let used = segment.used();
            if let Some(before) = segment.set(hash.0 & KEY, (cover, holders), depth, seed) {
                self.entries += segment.used() - used;
                return before;
            }
            match segment.growth().filter(|more| *more <= room.free) {
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
            }
        }
        0
    }

    /// Makes `holder` a holder of each of `hashes`, and takes `depth` along. Gives how many it did not hold before.
    pub fn set_all(
        &mut self,
        hashes: &[BlockHash],
        holder: u64,
        depth: &mut u64,
        seed: Seed,
        room: &mut Room<'_>,
    ) -> u32 {
        let (mut rest, mut new) = (hashes, 0);
        while !rest.is_empty() {
            let some = rest.get(..TOGETHER).unwrap_or(rest);
            let homes = self.warm(some, seed);
            let bytes = self.slot_bytes;
            let mut done = 0;
            for (hash, home) in some.iter().zip(homes) {
                done += 1;
                *depth += deeper(*hash);
                let Some(segment) = self.segments.get_mut((hash.0 >> KEY_BITS) as usize) else { continue };
                let used = segment.used();
                if let Some(before) = segment.set_at(home as usize, hash.0 & KEY, (holder, holder), *depth) {
                    self.entries += segment.used() - used;
                    new += u32::from(before == 0);
                    continue;
                }
                new += u32::from(self.set(*hash, (holder, holder), *depth, seed, room) == 0);
                // Where a segment grew, the places of its keys are others.
                if self.slot_bytes != bytes {
                    break;
                }
            }
            rest = rest.get(done..).unwrap_or_default();
        }
        new
    }

    /// Takes `holders` off `hash`; gives those that were on it.
    pub fn remove(&mut self, hash: BlockHash, holders: u64, seed: Seed) -> u64 {
        let Some(segment) = self.segment_mut(hash) else { return 0 };
        let used = segment.used();
        let gone = segment.remove(hash.0 & KEY, holders, seed);
        let less = used - segment.used();
        self.entries -= less;
        gone
    }

    /// Takes `holder` off each of `hashes`. Gives how many it was on.
    pub fn remove_all(&mut self, hashes: &[BlockHash], holder: u64, seed: Seed) -> u32 {
        let mut gone = 0;
        for some in hashes.chunks(TOGETHER) {
            let homes = self.warm(some, seed);
            for (hash, home) in some.iter().zip(homes) {
                let Some(segment) = self.segment_mut(*hash) else { continue };
                let used = segment.used();
                let key = hash.0 & KEY;
                let held = segment.remove_at(home as usize, key, holder, seed);
                let held = held.unwrap_or_else(|| segment.remove(key, holder, seed));
                let less = used - segment.used();
                self.entries -= less;
                gone += u32::from(held != 0);
            }
        }
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
