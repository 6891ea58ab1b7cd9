//! Attention groups: which blocks of which group make a prefix hit.
//!
//! Layers of one kind of attention share a group, and the engine announces blocks per group. A hit of length L
//! needs of a full-attention group every block of L, of a group with a sliding window w the last
//! `min(L/bs, ceil((w-1)/bs))` blocks of it (vLLM 0.32 with Gemma 3: holds for every recorded call). For other
//! kinds no rule is proven: a block where such a group holds nothing is taken for no end of a hit, and the
//! replica is not called exact.

use super::nodes::{Ix, NONE, Nodes, ROOT};
use crate::bridge::wire::GroupKind;
use crate::feed::record::Tier;

/// More groups than any model has.
pub const MAX_GROUPS: usize = 32;

/// One group of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// The engine's number.
    pub number: u32,
    /// Its kind.
    pub kind: GroupKind,
    /// Tokens per block.
    pub block_size: u32,
}

/// All groups of one replica, and the lanes of counts that they use in the nodes.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    groups: Vec<Group>,
    lanes: Vec<(Tier, usize)>,
    /// Lengths did not fit while the engine names no kinds.
    pub nameless_hybrid: bool,
}

impl Groups {
    /// The place of a group; `None` when there are too many. The flag: something about the groups changed, so
    /// that all blocks must be looked at again.
    pub fn learn(&mut self, number: u32, kind: GroupKind, block_size: u32) -> Option<(usize, bool)> {
        match self.groups.iter().position(|g| g.number == number) {
            Some(slot) => {
                let group = &mut self.groups[slot];
                let better = kind != GroupKind::Unknown && kind != group.kind;
                if better {
                    group.kind = kind;
                }
                Some((slot, better))
            }
            None if self.groups.len() < MAX_GROUPS => {
                self.groups.push(Group { number, kind, block_size });
                Some((self.groups.len() - 1, true))
            }
            None => None,
        }
    }

    /// The lane of a group that is known already.
    pub fn known_lane(&self, tier: Tier, number: u32) -> Option<usize> {
        let slot = self.groups.iter().position(|g| g.number == number)?;
        self.lanes.iter().position(|l| *l == (tier, slot))
    }

    /// The lane of (tier, group at `slot`).
    pub fn lane(&mut self, tier: Tier, slot: usize) -> usize {
        match self.lanes.iter().position(|l| *l == (tier, slot)) {
            Some(lane) => lane,
            None => {
                self.lanes.push((tier, slot));
                self.lanes.len() - 1
            }
        }
    }

    /// The tier that `lane` counts.
    pub fn tier_of(&self, lane: usize) -> Option<Tier> {
        self.lanes.get(lane).map(|l| l.0)
    }

    /// Whether counts of `lane` decide about where hits end.
    pub fn decides_ends(&self, lane: usize) -> bool {
        let kind = self.lanes.get(lane).map(|(_, slot)| self.groups[*slot].kind);
        matches!(kind, Some(GroupKind::Sliding(_) | GroupKind::Unproven))
    }

    /// Whether every block that is held may end a hit.
    pub fn is_simple(&self) -> bool {
        !self.groups.iter().any(|g| matches!(g.kind, GroupKind::Sliding(_) | GroupKind::Unproven))
    }

    /// The most blocks that a window looks back.
    pub fn reach(&self) -> u32 {
        self.groups.iter().map(need).max().unwrap_or(0)
    }

    /// The tiers that hold the whole of a block, one bit each.
    pub fn tiers(&self, nodes: &Nodes, ix: Ix) -> u8 {
        let node = &nodes[ix];
        if let [only] = self.lanes.as_slice() {
            return if node.count(0) > 0 { 1 << only.0 as u8 } else { 0 };
        }
        let full = |g: &Group| matches!(g.kind, GroupKind::Full | GroupKind::Unknown);
        let any_full = self.groups.iter().any(full);
        let mut bits = 0;
        for tier in [Tier::Gpu, Tier::Cpu, Tier::Disk] {
            let mut wanted = self.groups.iter().enumerate();
            let complete = wanted.all(|(slot, g)| {
                let counts = if any_full { full(g) } else { g.kind != GroupKind::NotCached };
                !counts || self.lanes.iter().position(|l| *l == (tier, slot)).is_some_and(|l| node.count(l) > 0)
            });
            if complete && !self.groups.is_empty() {
                bits |= 1 << tier as u8;
            }
        }
        bits
    }

    /// Whether a hit may end at the block, if the full-attention groups hold all before.
    pub fn may_end(&self, nodes: &Nodes, ix: Ix) -> bool {
        let held = |slot: usize, ix: Ix| {
            self.lanes.iter().enumerate().any(|(lane, l)| l.1 == slot && nodes[ix].count(lane) > 0)
        };
        self.groups.iter().enumerate().all(|(slot, group)| {
            let mut at = ix;
            for _ in 0..need(group) {
                if at == NONE {
                    return false;
                }
                if nodes[at].flags & ROOT != 0 {
                    break;
                }
                if !held(slot, at) {
                    return false;
                }
                at = nodes[at].parent;
            }
            true
        })
    }

    /// Why what is known of the replica is not exact, whatever its events say.
    pub fn not_exact(&self) -> Option<&'static str> {
        if self.groups.iter().any(|g| g.kind == GroupKind::Unproven) {
            return Some("attention_group_without_rule");
        }
        if self.nameless_hybrid {
            return Some("attention_groups_without_kind");
        }
        let mut sizes = self.groups.iter().filter(|g| g.kind != GroupKind::NotCached).map(|g| g.block_size);
        let first = sizes.next();
        sizes.any(|s| Some(s) != first).then_some("attention_groups_of_several_block_sizes")
    }

    /// For checkpoints: the groups and lanes.
    pub fn parts(&self) -> (&[Group], &[(Tier, usize)]) {
        (&self.groups, &self.lanes)
    }

    /// From a checkpoint; `None` if lanes name groups that are not there.
    pub fn from_parts(groups: Vec<Group>, lanes: Vec<(Tier, usize)>, nameless_hybrid: bool) -> Option<Groups> {
        let fits = groups.len() <= MAX_GROUPS && lanes.iter().all(|(_, slot)| *slot < groups.len());
        fits.then_some(Groups { groups, lanes, nameless_hybrid })
    }
}

/// How many blocks back from its end a hit needs of a group that does not need all.
fn need(group: &Group) -> u32 {
    match group.kind {
        GroupKind::Sliding(window) => window.saturating_sub(1).div_ceil(group.block_size.max(1)),
        GroupKind::Unproven => 1,
        GroupKind::Full | GroupKind::Unknown | GroupKind::NotCached => 0,
    }
}
