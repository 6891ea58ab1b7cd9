//! Matching a chain: one hash after another, as they become known; or, where several are known, by jumps.
//!
//! A replica whose events say so holds of each chain a beginning without a hole (*dense*), so where it holds a
//! block, it holds all before. Then a few probes find where the first of them ends, and what lies before is not
//! looked at. One that had to give up blocks for the byte bound is walked block by block, of which dozens are looked
//! up together: their reads do not wait for one another.

use super::PLANE;
use super::store::{Column, Index, TIERS, bits};
use super::table::TOGETHER;
use crate::blocks::BlockHash;
use crate::feed::record::Tier;

/// Fewer blocks than this are walked.
const WORTH_A_JUMP: usize = 8;
/// Blocks looked at first, since many chains end soon.
const FIRST: usize = 8;
/// Places looked at together: their reads wait for memory at the same time.
const PROBES: usize = 16;

/// How much of a chain one replica holds, in blocks from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Blocks held without a hole.
    pub blocks: u32,
    /// Blocks up to the last place where a hit may end.
    pub end: u32,
    /// Of `end`, blocks that only host memory holds.
    pub cpu: u32,
    /// Of `end`, blocks that only disk or remote storage holds.
    pub disk: u32,
    /// Of `end`, blocks that are only predicted.
    pub predicted: u32,
    /// Of `end`, blocks that are not confirmed.
    pub unconfirmed: u32,
}

/// A walk along one chain. Ask [`Walk::push`] for each hash until it says that nobody goes further.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    planes: Vec<PlaneWalk>,
    depth: u32,
}

#[derive(Clone, Debug)]
struct PlaneWalk {
    plane: usize,
    alive: u64,
    /// Those that hold beginnings without holes.
    dense: u64,
    /// Those for which the last block was one where a hit may end.
    ended: u64,
    /// And those for which the one before it was.
    ended_before: u64,
    held: [Held; PLANE],
}

impl Walk {
    /// A walk that looks at these columns only.
    pub fn new(columns: impl Iterator<Item = Column>) -> Self {
        let mut walk = Walk::default();
        for column in columns {
            let at = walk.planes.iter().position(|p| p.plane == column.plane());
            match at.and_then(|at| walk.planes.get_mut(at)) {
                Some(plane) => plane.alive |= column.bit(),
                None => walk.planes.push(PlaneWalk {
                    plane: column.plane(),
                    alive: column.bit(),
                    dense: 0,
                    ended: 0,
                    ended_before: 0,
                    held: [Held::default(); PLANE],
                }),
            }
        }
        walk
    }

    /// These columns hold of each chain a beginning without a hole on the accelerator, and a hit may end at each of
    /// its blocks.
    pub fn dense(mut self, columns: impl Iterator<Item = Column>) -> Self {
        for column in columns {
            if let Some(plane) = self.planes.iter_mut().find(|p| p.plane == column.plane()) {
                plane.dense |= column.bit();
            }
        }
        self
    }

    /// Blocks walked so far.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether anybody holds everything so far.
    pub fn alive(&self) -> bool {
        self.planes.iter().any(|p| p.alive != 0)
    }

    /// The next block of the chain. `predicted` gives the predicted holders of it in a plane. False: nobody
    /// holds the chain up to here any more, and further hashes change nothing.
    pub fn push(&mut self, index: &Index, hash: BlockHash, predicted: impl Fn(usize, BlockHash) -> u64) -> bool {
        let mut any = false;
        for plane in self.planes.iter_mut().filter(|p| p.alive != 0) {
            let mut tiers = [(0, 0); TIERS];
            for (tier, held) in tiers.iter_mut().enumerate() {
                *held = index.get(plane.plane, tier, hash);
            }
            plane.step(tiers, predicted(plane.plane, hash), self.depth);
            any |= plane.alive != 0;
        }
        if any {
            self.depth += 1;
        }
        any
    }

    /// The next blocks of the chain, as [`Walk::push`] would take them, but without waiting for memory at each.
    /// Few are looked ahead at first, since many chains end soon.
    pub fn push_all(
        &mut self,
        index: &Index,
        hashes: &[BlockHash],
        predicted: impl Fn(usize, BlockHash) -> u64,
    ) -> bool {
        let (mut rest, mut ahead) = (hashes, FIRST);
        while !rest.is_empty() && self.alive() {
            let jumped = if rest.len() >= WORTH_A_JUMP { self.jump(index, rest) } else { 0 };
            rest = rest.get(jumped..).unwrap_or_default();
            // Where the jump ended somebody ends, so look at one; without a jump, at several.
            let look = if jumped > 0 { 1 } else { ahead };
            let (some, more) = rest.split_at_checked(look).unwrap_or((rest, &[]));
            let (depth, mut most) = (self.depth, 0);
            for plane in self.planes.iter_mut().filter(|p| p.alive != 0) {
                most = plane.steps(index, some, depth, &predicted).max(most);
            }
            self.depth = depth.saturating_add(u32::try_from(most).unwrap_or(u32::MAX));
            (rest, ahead) = (more, TOGETHER);
        }
        self.alive()
    }

    /// Goes over the blocks at the beginning of `hashes` that all who are left hold. Gives their number; 0 as well
    /// where that cannot be told by probes.
    fn jump(&mut self, index: &Index, hashes: &[BlockHash]) -> usize {
        let walked = |p: &&PlaneWalk| p.alive & !p.dense != 0 || p.alive & index.truncated_in(p.plane) != 0;
        let held = |walk: &Walk, hash: &BlockHash| {
            let mut planes = walk.planes.iter().filter(|p| p.alive != 0);
            planes.all(|p| index.get(p.plane, Tier::Gpu as usize, *hash).0 & p.alive == p.alive)
        };
        if self.planes.iter().any(|p| walked(&p)) || !hashes.first().is_some_and(|hash| held(self, hash)) {
            return 0;
        }
        // All hold what is before `good`; somebody does not hold `bad`, or it is the end.
        let (mut good, mut bad) = (1, hashes.len());
        while good < bad {
            let step = (bad - good).div_ceil(PROBES);
            let place = |n: usize| good.saturating_add((n + 1).saturating_mul(step)).min(bad) - 1;
            let mut probes = [BlockHash(0); PROBES];
            for (n, probe) in probes.iter_mut().enumerate() {
                *probe = hashes.get(place(n)).copied().unwrap_or(BlockHash(0));
            }
            self.planes.iter().filter(|p| p.alive != 0).for_each(|p| index.warm(p.plane, &probes));
            (good, bad) = match probes.iter().position(|hash| !held(self, hash)) {
                Some(0) => (good, place(0)),
                Some(n) => (place(n - 1) + 1, place(n)),
                None => (bad, bad),
            };
        }
        for plane in self.planes.iter_mut().filter(|p| p.alive != 0) {
            plane.ended_before = if good > 1 { plane.alive } else { plane.ended };
            plane.ended = plane.alive;
        }
        self.depth = self.depth.saturating_add(u32::try_from(good).unwrap_or(u32::MAX));
        good
    }

    /// What a column holds of the chain walked so far. A hit ends after at most `most` blocks: the engine always
    /// computes the last token, so that of a chain the last block may not count. No more than one is given up.
    pub fn held(&self, column: Column, most: u32) -> Held {
        // Most often all planes are there, in order.
        let direct = self.planes.get(column.plane()).filter(|p| p.plane == column.plane());
        let Some(plane) = direct.or_else(|| self.planes.iter().find(|p| p.plane == column.plane())) else {
            return Held::default();
        };
        let mut held = plane.held.get(column.bit().trailing_zeros() as usize).copied().unwrap_or_default();
        if plane.alive & column.bit() != 0 {
            held.blocks = self.depth;
            if plane.ended & column.bit() != 0 {
                held.end = match self.depth.checked_sub(1) {
                    Some(before) if before >= most && plane.ended_before & column.bit() != 0 => before,
                    Some(before) if before >= most => held.end,
                    _ => self.depth,
                };
            }
        }
        held.end = held.end.min(most);
        // Lower tiers and predictions are counted as the chain goes; behind the last end they don't matter, and
        // they are taken to lie there first.
        let behind = held.blocks.saturating_sub(held.end);
        held.predicted = held.predicted.saturating_sub(behind);
        held.cpu = held.cpu.saturating_sub(behind);
        held.disk = held.disk.saturating_sub(behind);
        held.unconfirmed = held.unconfirmed.saturating_sub(behind);
        held
    }
}

impl PlaneWalk {
    /// The next blocks, at most [`TOGETHER`], of which the first is block number `depth`. Gives how many of them
    /// somebody still holds.
    fn steps(
        &mut self,
        index: &Index,
        hashes: &[BlockHash],
        depth: u32,
        predicted: impl Fn(usize, BlockHash) -> u64,
    ) -> usize {
        let held = index.get_all(self.plane, hashes);
        let mut warm = false;
        for (n, (hash, held)) in hashes.iter().zip(held).enumerate() {
            if held & self.alive == self.alive {
                // All who are left have it where it counts most: what else is known of it changes nothing.
                (self.ended_before, self.ended) = (self.ended, self.alive);
                continue;
            }
            if !std::mem::replace(&mut warm, true) {
                index.warm(self.plane, hashes.get(n..).unwrap_or_default());
            }
            let tiers = std::array::from_fn(|tier| index.get(self.plane, tier, *hash));
            self.step(tiers, predicted(self.plane, *hash), depth.saturating_add(n as u32));
            if self.alive == 0 {
                return n;
            }
        }
        hashes.len()
    }

    fn step(&mut self, [gpu, cpu, disk, perhaps]: [(u64, u64); TIERS], predicted: u64, depth: u32) {
        let before = self.alive;
        self.alive &= gpu.0 | cpu.0 | disk.0 | perhaps.0 | predicted;
        let ended = (gpu.1 | cpu.1 | disk.1 | perhaps.1 | predicted) & self.alive;
        for bit in bits(before & !self.alive) {
            self.with(bit, |held| held.blocks = depth);
        }
        for bit in bits(self.ended & !ended) {
            self.with(bit, |held| held.end = depth);
        }
        (self.ended_before, self.ended) = (self.ended, ended);
        let lower = self.alive & !gpu.0;
        if lower != 0 {
            bits(lower & cpu.0).for_each(|bit| self.with(bit, |held| held.cpu += 1));
            bits(lower & !cpu.0 & disk.0).for_each(|bit| self.with(bit, |held| held.disk += 1));
            let rest = lower & !cpu.0 & !disk.0;
            bits(rest & predicted).for_each(|bit| self.with(bit, |held| held.predicted += 1));
            bits(rest & !predicted).for_each(|bit| self.with(bit, |held| held.unconfirmed += 1));
        }
    }

    fn with(&mut self, bit: u32, change: impl FnOnce(&mut Held)) {
        if let Some(held) = self.held.get_mut(bit as usize) {
            change(held);
        }
    }
}
