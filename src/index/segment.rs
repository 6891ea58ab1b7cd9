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

/// What [`Segment::entry`] found.
pub(super) enum Entry<'a> {
    /// The slot of the key; new ones have no holders yet and must be given some.
    Slot(&'a mut Slot),
    /// The key is absent and the segment is full.
    Full,
}

/// Slots in one line of the cache.
const LINE: usize = 4;

/// One line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub(super) struct Line([Slot; LINE]);

impl Line {
    /// Where there is no line at all.
    pub const EMPTY: Line = Line([Slot { word: 0, holders: 0 }; LINE]);

    /// The holders of `key`. `None`: the search goes on in the next line. A line fills from its first slot on, and
    /// empty slots are all zero; all four are compared without a branch, since nobody can guess which one it is.
    pub fn holders(&self, key: u64) -> Option<u64> {
        let held = self.0.iter().fold(0, |held, slot| held | if slot.key() == key { slot.holders } else { 0 });
        (held != 0 || !self.full()).then_some(held)
    }

    /// The place of `key` in the line, or of its first empty slot, without a branch as well.
    fn place(&self, key: u64) -> Option<usize> {
        let fits = |slot: &Slot| u32::from(slot.holders == 0) | u32::from(slot.key() == key);
        let [a, b, c, d] = &self.0;
        let mask = fits(a) | (fits(b) << 1) | (fits(c) << 2) | (fits(d) << 3);
        (mask != 0).then(|| mask.trailing_zeros() as usize)
    }

    /// Slots in use, which are its first ones.
    fn used(&self) -> usize {
        self.0.iter().map(|slot| usize::from(slot.holders != 0)).sum()
    }

    /// Whether it has no empty slot. Reading that brings the line into the processor's cache.
    pub fn full(&self) -> bool {
        let [.., last] = &self.0;
        last.holders != 0
    }
}

#[derive(Debug, Default)]
pub(super) struct Segment {
    lines: Box<[Line]>,
    used: u32,
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

    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.lines.iter().flat_map(|line| line.0.iter())
    }

    fn slots_mut(&mut self) -> impl Iterator<Item = &mut Slot> {
        self.lines.iter_mut().flat_map(|line| line.0.iter_mut())
    }

    fn slot(&self, at: usize) -> Option<&Slot> {
        self.lines.get(at >> 2)?.0.get(at & 3)
    }

    fn slot_mut(&mut self, at: usize) -> Option<&mut Slot> {
        self.lines.get_mut(at >> 2)?.0.get_mut(at & 3)
    }

    /// The line that a key belongs to.
    fn home(&self, key: u64, seed: Seed) -> usize {
        ((seed.mix(key) * self.lines.len() as u64) >> 32) as usize
    }

    /// The line where a search for `key` begins, and the one after it, where three of ten go on.
    pub fn line(&self, key: u64, seed: Seed) -> Option<[&Line; 2]> {
        match self.lines.get(self.home(key, seed)..)? {
            [line, next, ..] => Some([line, next]),
            [line] => Some([line, line]),
            [] => None,
        }
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

    pub fn get(&self, key: u64, seed: Seed) -> Option<&Slot> {
        self.slot(self.find(key, seed)?).filter(|slot| slot.holders != 0)
    }

    fn get_mut(&mut self, key: u64, seed: Seed) -> Option<&mut Slot> {
        let at = self.find(key, seed)?;
        self.slot_mut(at).filter(|slot| slot.holders != 0)
    }

    /// Whether one more entry would pass the load of 0.7.
    fn full(&self) -> bool {
        (self.used() + 1) * 10 > self.size() * 7
    }

    /// The slot of `key`, made when absent (with `depth` in units of 8 blocks).
    pub fn entry(&mut self, key: u64, depth: u64, seed: Seed) -> Entry<'_> {
        let full = self.full();
        let Some(at) = self.find(key, seed) else { return Entry::Full };
        let used = &mut self.used;
        let slot = self.lines.get_mut(at >> 2).and_then(|line| line.0.get_mut(at & 3));
        let Some(slot) = slot else { return Entry::Full };
        if slot.holders == 0 {
            if full {
                return Entry::Full;
            }
            *used += 1;
            *slot = Slot { word: (key & KEY) | (depth.min(255) << DEPTH_AT), holders: 0 };
        }
        if slot.useful() < USEFUL_NEW {
            slot.set_useful(USEFUL_NEW);
        }
        Entry::Slot(slot)
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
        for slot in old.iter().flat_map(|line| line.0.iter().take_while(|slot| slot.holders != 0)) {
            // All keys are different: the first empty slot is the place.
            let mut at = self.home(slot.key(), seed);
            while let Some(line) = self.lines.get_mut(at) {
                let used = line.used();
                if let Some(place) = line.0.get_mut(used) {
                    *place = *slot;
                    break;
                }
                at = if at + 1 >= lines { 0 } else { at + 1 };
            }
        }
    }

    /// Takes `holders` out of the slot of `key`, and the slot with the last of them. Gives those that were in.
    pub fn remove(&mut self, key: u64, holders: u64, seed: Seed) -> u64 {
        let Some(at) = self.find(key, seed) else { return 0 };
        let Some(slot) = self.slot_mut(at) else { return 0 };
        let gone = slot.holders & holders;
        if gone == 0 {
            return 0;
        }
        slot.holders &= !gone;
        if slot.holders == 0 {
            self.close(at, seed);
        }
        gone
    }

    /// Makes the slot at `hole`, already without holders, an empty one. The last of its line takes its place; if the
    /// line was full, one that went on to a later line for want of room comes back, and leaves a hole there.
    fn close(&mut self, hole: usize, seed: Seed) {
        self.used = self.used.saturating_sub(1);
        let count = self.lines.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + count - from };
        let (mut at, mut slot) = (hole >> 2, hole & 3);
        // Each time round it goes on to a later line.
        for _ in 0..count {
            let Some(line) = self.lines.get_mut(at) else { return };
            let last = line.0.iter().rposition(|other| other.holders != 0).unwrap_or(slot).max(slot);
            line.0.swap(slot, last);
            if let Some(place) = line.0.get_mut(last) {
                *place = Slot::default();
            }
            if last + 1 < LINE {
                return;
            }
            let mut next = at;
            let found = loop {
                next = if next + 1 >= count { 0 } else { next + 1 };
                let Some(line) = self.lines.get(next).filter(|_| next != at) else { return };
                let back = |other: &Slot| {
                    other.holders != 0 && distance(self.home(other.key(), seed), next) >= distance(at, next)
                };
                match line.0.iter().position(back) {
                    Some(found) => break found,
                    None if line.full() => {}
                    None => return,
                }
            };
            let from = self.lines.get(next).and_then(|line| line.0.get(found)).copied();
            let to = self.lines.get_mut(at).and_then(|line| line.0.get_mut(last));
            if let (Some(from), Some(to)) = (from, to) {
                *to = from;
            }
            (at, slot) = (next, found);
        }
    }

    /// Takes `dead` out of every slot.
    pub fn sweep(&mut self, dead: u64, seed: Seed) {
        let mut at = 0;
        while let Some(slot) = self.slot_mut(at) {
            let hit = slot.holders & dead != 0;
            slot.holders &= !dead;
            if hit && slot.holders == 0 {
                self.close(at, seed); // another one may stand here now: look again
            } else {
                at += 1;
            }
        }
    }

    /// The key was of use to a request.
    pub fn touch(&mut self, key: u64, seed: Seed) {
        if let Some(slot) = self.get_mut(key, seed)
            && slot.useful() < USEFUL_HIT
        {
            slot.set_useful(USEFUL_HIT);
        }
    }

    /// Gives up about an eighth of the entries (at least one), the least useful first, and lets the others age.
    pub fn evict(&mut self, seed: Seed, mut gone: impl FnMut(Slot)) {
        let mut ranks: Vec<u16> = self.slots().filter(|s| s.holders != 0).map(Slot::rank).collect();
        if ranks.is_empty() {
            return;
        }
        let most = (ranks.len() >> 3).max(1);
        let (below, limit, _) = ranks.select_nth_unstable(most - 1);
        let limit = *limit;
        // Of those at the limit only as many as are still missing.
        let mut at_limit = most - below.iter().filter(|rank| **rank < limit).count();
        let mut victims = Vec::with_capacity(most);
        for slot in self.slots_mut().filter(|s| s.holders != 0) {
            if slot.rank() < limit || (slot.rank() == limit && at_limit > 0) {
                at_limit -= usize::from(slot.rank() == limit);
                victims.push(*slot);
            } else {
                slot.set_useful(slot.useful().saturating_sub(1));
            }
        }
        for slot in victims {
            self.remove(slot.key(), u64::MAX, seed);
            gone(slot);
        }
    }
}
