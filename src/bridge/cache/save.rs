//! A cache as bytes and back, for checkpoints. Orphans are not kept.

use hashbrown::HashMap;

use super::groups::{Group, Groups};
use super::nodes::{LINKED, NONE, OLD, ROOT, UNKEYED};
use super::{Cache, CacheConfig};
use crate::blocks::BlockHash;
use crate::bridge::wire::{EngineHash, GroupKind};
use crate::feed::record::{Record, Tier};
use crate::feed::wire::{Reader, Writer};
use crate::feed::{FeedReplicaId, FrameError};

const BAD: FrameError = FrameError::Record("checkpoint of a cache");

impl Cache {
    /// Appends it to `out`.
    pub fn save(&self, out: &mut Writer) {
        out.u32(self.block_size.unwrap_or(0));
        out.u8(u8::from(self.accepted));
        out.u8(u8::from(self.truncated));
        out.u8(u8::from(self.groups.nameless_hybrid));
        let (groups, lanes) = self.groups.parts();
        out.u8(groups.len() as u8);
        for group in groups {
            out.u32(group.number);
            let (kind, window) = match group.kind {
                GroupKind::Unknown => (0, 0),
                GroupKind::Full => (1, 0),
                GroupKind::Sliding(window) => (2, window),
                GroupKind::NotCached => (3, 0),
                GroupKind::Unproven => (4, 0),
            };
            out.u8(kind);
            out.u32(window);
            out.u32(group.block_size);
        }
        out.u8(lanes.len() as u8);
        for (tier, slot) in lanes {
            out.u8(*tier as u8);
            out.u8(*slot as u8);
        }
        let order = self.nodes.in_order();
        let place: HashMap<_, _> = order.iter().enumerate().map(|(at, ix)| (*ix, at as u32)).collect();
        out.u32(order.len() as u32);
        for ix in order {
            let node = &self.nodes[ix];
            out.u64(node.key.0);
            out.u64(node.block.0);
            out.u32(place.get(&node.parent).copied().unwrap_or(NONE));
            out.u8(node.flags & (LINKED | UNKEYED | OLD | ROOT));
            let counts = node.counts();
            out.u8(counts.len() as u8);
            counts.iter().for_each(|c| out.u16(*c));
        }
        let pairs: Vec<_> = self.salted.iter().flat_map(|(raw, names)| names.iter().map(move |n| (raw, n))).collect();
        out.u32(pairs.len() as u32);
        for (raw, name) in pairs {
            out.u64(raw.0);
            out.u64(name.0);
        }
    }

    /// Reads what [`Cache::save`] wrote; the records that tell the feed of it go to `out`.
    pub fn load(
        config: CacheConfig,
        replica: FeedReplicaId,
        r: &mut Reader<'_>,
        out: &mut Vec<Record>,
    ) -> Result<Cache, FrameError> {
        let mut cache = Cache::new(config);
        let block_size = r.u32()?;
        if cache.block_size.is_some_and(|configured| block_size != 0 && configured != block_size) {
            return Err(FrameError::Record("another block size than the configured one"));
        }
        cache.block_size = cache.block_size.or((block_size != 0).then_some(block_size));
        cache.accepted = r.u8()? != 0;
        cache.truncated = r.u8()? != 0;
        let nameless = r.u8()? != 0;
        let mut groups = Vec::new();
        for _ in 0..r.u8()? {
            let (number, kind, window, block_size) = (r.u32()?, r.u8()?, r.u32()?, r.u32()?);
            let kind = match kind {
                0 => GroupKind::Unknown,
                1 => GroupKind::Full,
                2 => GroupKind::Sliding(window),
                3 => GroupKind::NotCached,
                4 => GroupKind::Unproven,
                _ => return Err(BAD),
            };
            groups.push(Group { number, kind, block_size });
        }
        let mut lanes = Vec::new();
        for _ in 0..r.u8()? {
            lanes.push((Tier::from_u8(r.u8()?).ok_or(BAD)?, usize::from(r.u8()?)));
        }
        cache.groups = Groups::from_parts(groups, lanes, nameless).ok_or(BAD)?;
        let n = r.u32()?;
        let mut order = Vec::new();
        for _ in 0..n {
            let (key, block) = (EngineHash(r.u64()?), BlockHash(r.u64()?));
            let (parent, flags) = (r.u32()?, r.u8()? & (LINKED | UNKEYED | OLD | ROOT));
            let ix = cache.nodes.restore(key, block, flags).ok_or(BAD)?;
            if parent != NONE {
                cache.nodes.adopt(*order.get(parent as usize).ok_or(BAD)?, ix);
            }
            for lane in 0..r.u8()? {
                let count = r.u16()?;
                cache.nodes[ix].set(usize::from(lane), count);
            }
            if flags & OLD != 0 {
                cache.old += 1;
                cache.old_by_block.insert(block, ix);
            }
            order.push(ix);
        }
        for _ in 0..r.u32()? {
            let (raw, name) = (EngineHash(r.u64()?), EngineHash(r.u64()?));
            cache.salted.entry(raw).or_default().push(name);
        }
        order.into_iter().for_each(|ix| cache.mark(ix));
        cache.flush(replica, out);
        Ok(cache)
    }
}
