//! One small open-addressing table: linear probing, backward-shift deletion, growth by five eighths.
//!
//! A slot takes 16 bytes, four to a line of the processor's cache. A key belongs to a line, and at most seven slots of
//! ten are used, so a search rarely leaves the line in which it begins.

/// Bits of a key that are the hash; the others are [`Slot::useful`] and [`Slot::depth`]. The 12 bits of the hash
/// that fall away are the number of the segment.
pub(super) const KEY_BITS: u32 = 52;
pub(super) const KEY: u64 = (1 << KEY_BITS) - 1;
const DEPTH_AT: u32 = 52;
const USEFUL_AT: u32 = 60;

/// How useful a block is when it is stored, of 15.
const USEFUL_NEW: u64 = 6;
/// How useful a block is when a request has just matched it.
const USEFUL_HIT: u64 = 15;

/// A growing segment never has more slots than this, so no growth takes longer than about a millisecond.
const MAX_SLOTS: usize = 1 << 16;
const MIN_SLOTS: usize = 8;

/// Who holds one block. No holders: an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    word: u64,
    pub holders: u64,
}

/// Bytes of a slot.
pub(super) const SLOT_BYTES: usize = size_of::<Slot>();

impl Slot {
    pub fn key(&self) -> u64 {
        self.word & KEY
    }
    fn useful(&self) -> u64 {
        self.word >> USEFUL_AT
    }
    fn set_useful(&mut self, useful: u64) {
        self.word = (self.word & !(15 << USEFUL_AT)) | (useful << USEFUL_AT);
    }
    /// Depth in the chain in units of 8 blocks, at most 255.
    pub fn depth(&self) -> u64 {
        (self.word >> DEPTH_AT) & 255
    }
    /// Small: goes first. Least useful first, of those the deepest.
    fn rank(&self) -> u16 {
        ((self.useful() << 8) | (255 - self.depth())) as u16
    }
}

/// The random of this VM that decides where in a segment a key goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed {
    xor: u64,
    multiply: u64,
}

impl Seed {
    pub fn new(random: u64) -> Self {
        Seed { xor: random, multiply: random.rotate_left(32).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 }
    }
    fn mix(self, key: u64) -> u64 {
        let mut x = (key ^ self.xor).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        x ^= x >> 32;
        x.wrapping_mul(self.multiply) >> 32
    }
}

/// Slots in one line of the cache.
const LINE: usize = 4;
/// Lines that a segment which grows reads at once; a power of two.
const LINES_AT_ONCE: usize = 16;

/// One line: the words of its slots, and their holders. It fills from its first slot on, and empty slots are all zero.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Line {
    words: [u64; LINE],
    holders: [u64; LINE],
}

impl Line {
    /// Where there is no line at all.
    pub const EMPTY: Line = Line { words: [0; LINE], holders: [0; LINE] };

    /// The holders of `key`, and whether that is all there is to know: if not, the search goes on in the next line. All
    /// four slots are compared without a branch, since nobody can guess which one it is.
    pub fn holders(&self, key: u64) -> (u64, bool) {
        let held = four::of_equal(&self.words, KEY, key, &self.holders);
        (held, (held != 0) | !self.full())
    }

    /// The place of `key` in the line, or of its first empty slot, without a branch as well.
    fn place(&self, key: u64) -> Option<usize> {
        let fits = four::equal(&self.words, KEY, key) | self.empty();
        (fits != 0).then(|| fits.trailing_zeros() as usize & (LINE - 1))
    }

    /// A bit for each slot that is empty.
    fn empty(&self) -> u32 {
        four::equal(&self.holders, u64::MAX, 0)
    }

    /// Slots in use, which are its first ones.
    fn used(&self) -> usize {
        LINE - self.empty().count_ones() as usize
    }

    /// Whether it has no empty slot.
    fn full(&self) -> bool {
        self.last() != 0
    }

    /// The holders of its last slot. Reading them brings the line into the processor's cache.
    pub fn last(&self) -> u64 {
        let [.., last] = self.holders;
        last
    }

    /// Takes out a slot that is in use; the last one that is takes its place. Whether it was full before.
    #[inline(always)]
    fn close(&mut self, at: usize) -> bool {
        let last = self.used().saturating_sub(1);
        let slot = self.slot(last);
        self.put(at, slot);
        self.put(last, Slot::default());
        last + 1 == LINE
    }

    fn slot(&self, at: usize) -> Slot {
        let of = |list: &[u64; LINE]| list.get(at & (LINE - 1)).copied().unwrap_or(0);
        Slot { word: of(&self.words), holders: of(&self.holders) }
    }

    fn put(&mut self, at: usize, slot: Slot) {
        let at = at & (LINE - 1);
        if let (Some(word), Some(holders)) = (self.words.get_mut(at), self.holders.get_mut(at)) {
            (*word, *holders) = (slot.word, slot.holders);
        }
    }
}

/// Four numbers at once.
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod four {
    use core::arch::wasm32::*;

    /// A bit for each number of `list` that is `wanted` within `mask`.
    #[inline(always)]
    pub fn equal([a, b, c, d]: &[u64; 4], mask: u64, wanted: u64) -> u32 {
        let (mask, wanted) = (u64x2_splat(mask), u64x2_splat(wanted));
        let of = |a, b| u32::from(u64x2_bitmask(u64x2_eq(v128_and(u64x2(a, b), mask), wanted)));
        of(*a, *b) | of(*c, *d) << 2
    }

    /// Of those numbers, what `of` has in their places, taken together.
    #[inline(always)]
    pub fn of_equal([a, b, c, d]: &[u64; 4], mask: u64, wanted: u64, [e, f, g, h]: &[u64; 4]) -> u64 {
        let (mask, wanted) = (u64x2_splat(mask), u64x2_splat(wanted));
        let some = |a, b, of| v128_and(u64x2_eq(v128_and(u64x2(a, b), mask), wanted), of);
        let all = v128_or(some(*a, *b, u64x2(*e, *f)), some(*c, *d, u64x2(*g, *h)));
        u64x2_extract_lane::<0>(all) | u64x2_extract_lane::<1>(all)
    }
}

/// The same where there is nothing for it.
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod four {
    #[inline(always)]
    pub fn equal(list: &[u64; 4], mask: u64, wanted: u64) -> u32 {
        let bit = |(at, number): (usize, &u64)| u32::from(number & mask == wanted) << at;
        list.iter().enumerate().map(bit).fold(0, |bits, bit| bits | bit)
    }

    #[inline(always)]
    pub fn of_equal(list: &[u64; 4], mask: u64, wanted: u64, of: &[u64; 4]) -> u64 {
        let some = |(number, of): (&u64, &u64)| if number & mask == wanted { *of } else { 0 };
        list.iter().zip(of).map(some).fold(0, |all, some| all | some)
    }
}

#[derive(Debug, Default)]
pub(super) struct Segment {
    lines: Box<[Line]>,
    used: u32,
    /// Slots that may be in use: seven of ten.
    most: u32,
}

impl Segment {
    pub fn used(&self) -> usize {
        self.used as usize
    }

    pub fn bytes(&self) -> usize {
        self.size() * SLOT_BYTES
    }

    /// Slots, used or not.
    pub fn size(&self) -> usize {
        self.lines.len() * LINE
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.lines.iter().flat_map(|line| (0..LINE).map(|at| line.slot(at)))
    }

    fn slot(&self, at: usize) -> Option<Slot> {
        self.lines.get(at >> 2).map(|line| line.slot(at))
    }

    fn put(&mut self, at: usize, slot: Slot) {
        if let Some(line) = self.lines.get_mut(at >> 2) {
            line.put(at, slot);
        }
    }

    /// The line that a key belongs to, as long as the segment neither grows nor shrinks. Never the last one, so that
    /// there is always a next.
    pub fn home(&self, key: u64, seed: Seed) -> usize {
        ((seed.mix(key) * self.lines.len().saturating_sub(1) as u64) >> 32) as usize
    }

    /// The line where a search begins, and the one after it, where three searches of ten go on.
    pub fn lines(&self, home: usize) -> &[Line; 2] {
        self.lines.get(home..).and_then(|lines| lines.first_chunk()).unwrap_or(&[Line::EMPTY; 2])
    }

    /// The place of `key`, or of the empty slot where it would go. `None`: no slot at all.
    fn find(&self, key: u64, seed: Seed) -> Option<usize> {
        let mut at = self.home(key, seed);
        for _ in 0..self.lines.len() {
            if let Some(place) = self.lines.get(at)?.place(key) {
                return Some(at * LINE + place);
            }
            at = if at + 1 >= self.lines.len() { 0 } else { at + 1 };
        }
        None
    }

    pub fn get(&self, key: u64, seed: Seed) -> Option<Slot> {
        self.slot(self.find(key, seed)?).filter(|slot| slot.holders != 0)
    }

    /// Within `cover`, makes `holders` those of `key`, with `depth` in units of 8 blocks where it is new. Gives the
    /// holders within `cover` before; `None`: it is absent, and the segment is full. There must be `holders`.
    pub fn set(&mut self, key: u64, (cover, holders): (u64, u64), depth: u64, seed: Seed) -> Option<u64> {
        let at = self.find(key, seed)?;
        self.set_at(at >> 2, key, (cover, holders), depth)
    }

    /// The same where the search begins at line `home`. `None` as well where it ends in neither that line nor the next.
    #[inline(always)]
    pub fn set_at(&mut self, home: usize, key: u64, (cover, holders): (u64, u64), depth: u64) -> Option<u64> {
        let (at, place) = self.near(home, key)?;
        let line = self.lines.get_mut(at)?;
        let Slot { mut word, holders: held } = line.slot(place);
        if held == 0 {
            // One more would pass the load of 0.7.
            if self.used >= self.most {
                return None;
            }
            self.used += 1;
            word = (key & KEY) | (depth.min(255) << DEPTH_AT) | (USEFUL_NEW << USEFUL_AT);
        }
        if word >> USEFUL_AT < USEFUL_NEW {
            word = (word & !(15 << USEFUL_AT)) | (USEFUL_NEW << USEFUL_AT);
        }
        line.put(place, Slot { word, holders: (held & !cover) | (holders & cover) });
        Some(held & cover)
    }

    /// The line and the place in it of `key`, or of the empty slot where it would go, where the search begins at line
    /// `home` and ends there or in the next line.
    #[inline(always)]
    fn near(&self, home: usize, key: u64) -> Option<(usize, usize)> {
        if let Some(place) = self.lines.get(home)?.place(key) {
            return Some((home, place));
        }
        Some((home + 1, self.lines.get(home + 1)?.place(key)?))
    }

    /// The bytes that [`Segment::grow`] would add; `None` when it may not grow any more.
    pub fn growth(&self) -> Option<usize> {
        let now = self.lines.len();
        (self.size() < MAX_SLOTS).then(|| (self.next_size() - now) * LINE * SLOT_BYTES)
    }

    /// Lines after the next growth.
    fn next_size(&self) -> usize {
        let now = self.lines.len();
        (now + (now >> 1) + (now >> 3)).max(now + 1).max(MIN_SLOTS >> 2)
    }

    pub fn grow(&mut self, seed: Seed) {
        self.rebuild(self.next_size(), seed);
    }

    /// Lets go of slots when most are empty. True when it did.
    pub fn shrink(&mut self, seed: Seed) -> bool {
        let enough = self.used() + (self.used() >> 1);
        if enough + MIN_SLOTS >= self.size() - (self.size() >> 2) {
            return false;
        }
        self.rebuild(if self.used == 0 { 0 } else { (enough.max(MIN_SLOTS) >> 2) + 1 }, seed);
        true
    }

    /// `lines` must have room for what is there.
    fn rebuild(&mut self, lines: usize, seed: Seed) {
        let old = std::mem::replace(&mut self.lines, vec![Line::default(); lines].into_boxed_slice());
        self.most = (lines * LINE * 7).checked_div(10).map_or(0, |most| most as u32);
        // Slots in use of each line: looking at a line that was just written to would take longer.
        let mut used = vec![0u8; lines];
        for some in old.chunks(LINES_AT_ONCE) {
            // First those in use, one after the other, in a list that is written without a branch.
            let (mut slots, mut count) = ([Slot::default(); LINES_AT_ONCE * LINE], 0);
            for slot in some.iter().flat_map(|line| (0..LINE).map(|at| line.slot(at))) {
                if let Some(place) = slots.get_mut(count & (LINES_AT_ONCE * LINE - 1)) {
                    *place = slot;
                }
                count += usize::from(slot.holders != 0);
            }
            for slot in slots.iter().take(count) {
                // All keys are different: the first empty slot is the place.
                let mut at = self.home(slot.key(), seed);
                while let Some(place) = used.get_mut(at) {
                    if usize::from(*place) < LINE {
                        self.put(at * LINE + usize::from(*place), *slot);
                        *place += 1;
                        break;
                    }
                    at = if at + 1 >= lines { 0 } else { at + 1 };
                }
            }
        }
    }

    /// Takes `holders` out of the slot of `key`, and the slot with the last of them. Gives those that were in.
    pub fn remove(&mut self, key: u64, holders: u64, seed: Seed) -> u64 {
        let Some(at) = self.find(key, seed) else { return 0 };
        self.remove_at(at >> 2, key, holders, seed).unwrap_or(0)
    }

    /// The same where the search begins at line `home`. `None`: it ends in neither that line nor the next.
    #[inline(always)]
    pub fn remove_at(&mut self, home: usize, key: u64, holders: u64, seed: Seed) -> Option<u64> {
        let (at, place) = self.near(home, key)?;
        let line = self.lines.get_mut(at)?;
        let slot = line.slot(place);
        let gone = slot.holders & holders;
        if gone == slot.holders {
            if gone != 0 {
                self.close(at * LINE + place, seed);
            }
        } else {
            line.put(place, Slot { holders: slot.holders & !gone, ..slot });
        }
        Some(gone)
    }

    /// Takes out the slot at `hole`, which is in use. The last of its line takes its place; if the line was full, one
    /// that went on to a later line for want of room comes back, and leaves a hole there.
    #[inline(always)]
    fn close(&mut self, hole: usize, seed: Seed) {
        self.used = self.used.saturating_sub(1);
        if self.lines.get_mut(hole >> 2).is_some_and(|line| line.close(hole)) {
            self.come_back(hole >> 2, seed);
        }
    }

    /// The line at `at` was full, and now its last slot is empty.
    fn come_back(&mut self, mut at: usize, seed: Seed) {
        let count = self.lines.len();
        let distance = |from: usize, to: usize| to.wrapping_sub(from).wrapping_add(if to >= from { 0 } else { count });
        // Each time round it goes on to a later line.
        for _ in 0..count {
            let mut next = at;
            let found = loop {
                next = if next + 1 >= count { 0 } else { next + 1 };
                let Some(line) = self.lines.get(next).filter(|_| next != at) else { return };
                let back = |slot: usize| {
                    let other = line.slot(slot);
                    let back = distance(self.home(other.key(), seed), next) >= distance(at, next);
                    u32::from((other.holders != 0) & back) << slot
                };
                let back = back(0) | back(1) | back(2) | back(3);
                if back != 0 {
                    break back.trailing_zeros() as usize;
                }
                if !line.full() {
                    return;
                }
            };
            let Some(from) = self.lines.get_mut(next) else { return };
            let slot = from.slot(found);
            let full = from.close(found);
            self.put(at * LINE + LINE - 1, slot);
            if !full {
                return;
            }
            at = next;
        }
    }

    /// Takes `dead` out of every slot.
    pub fn sweep(&mut self, dead: u64, seed: Seed) {
        let mut at = 0;
        while let Some(slot) = self.slot(at) {
            let left = slot.holders & !dead;
            if left != slot.holders {
                if left == 0 {
                    self.close(at, seed); // another one may stand here now: look again
                    continue;
                }
                self.put(at, Slot { holders: left, ..slot });
            }
            at += 1;
        }
    }

    /// The key was of use to a request.
    pub fn touch(&mut self, key: u64, seed: Seed) {
        let Some(at) = self.find(key, seed) else { return };
        if let Some(mut slot) = self.slot(at).filter(|slot| slot.holders != 0 && slot.useful() < USEFUL_HIT) {
            slot.set_useful(USEFUL_HIT);
            self.put(at, slot);
        }
    }

    /// Gives up about an eighth of the entries (at least one), the least useful first, and lets the others age.
    pub fn evict(&mut self, seed: Seed, mut gone: impl FnMut(Slot)) {
        let mut ranks: Vec<u16> = self.slots().filter(|s| s.holders != 0).map(|s| s.rank()).collect();
        if ranks.is_empty() {
            return;
        }
        let most = (ranks.len() >> 3).max(1);
        let (below, limit, _) = ranks.select_nth_unstable(most - 1);
        let limit = *limit;
        // Of those at the limit only as many as are still missing.
        let mut at_limit = most - below.iter().filter(|rank| **rank < limit).count();
        let mut victims = Vec::with_capacity(most);
        let mut at = 0;
        while let Some(mut slot) = self.slot(at) {
            if slot.holders == 0 {
            } else if slot.rank() < limit || (slot.rank() == limit && at_limit > 0) {
                at_limit -= usize::from(slot.rank() == limit);
                victims.push(slot);
            } else {
                slot.set_useful(slot.useful().saturating_sub(1));
                self.put(at, slot);
            }
            at += 1;
        }
        for slot in victims {
            self.remove(slot.key(), u64::MAX, seed);
            gone(slot);
        }
    }
}
