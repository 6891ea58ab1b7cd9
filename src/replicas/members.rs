//! Membership: address and rank to a dense local number, and what is known of each.

use std::collections::VecDeque;
use std::rc::Rc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::clock::{SECOND, Time};
use crate::feed::FeedReplicaId;
use crate::feed::record::{Adapters, LoadReport, ReplicaInfo, Standing, Trust};
use crate::feed::role::Role;
use crate::index::Column;
use crate::routing::Wants;

/// A replica's dense local number. Means nothing in another VM; may be given anew when a replica goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaIdx(pub u16);

/// A replica's name between VMs: a hash of its address and rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplicaKey(pub u64);

impl ReplicaKey {
    /// The key of one rank of an engine.
    pub fn new(address: &str, rank: u32) -> ReplicaKey {
        ReplicaKey(xxh3_64_with_seed(address.as_bytes(), u64::from(rank)))
    }
}

/// A replica named in the configuration.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StaticReplica {
    /// `ip:port` as Envoy's cluster has it.
    pub address: String,
    /// The served model.
    pub model: String,
    /// Tokens per block.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Data-parallel rank.
    #[serde(default)]
    pub rank: u32,
    /// Blocks that its cache can hold; 0 when unknown.
    #[serde(default)]
    pub capacity_blocks: u64,
    /// What it is for.
    #[serde(default)]
    pub role: Role,
}

fn default_block_size() -> u32 {
    16
}

/// What is known of one replica.
#[derive(Debug)]
pub struct Replica {
    /// Its name between VMs.
    pub key: ReplicaKey,
    /// `ip:port`.
    pub address: Rc<str>,
    /// Data-parallel rank.
    pub rank: u32,
    /// Served model.
    pub model: Rc<str>,
    /// Tokens per block.
    pub block_size: u32,
    /// Blocks that its cache can hold; 0 when unknown.
    pub capacity_blocks: u64,
    /// Trust in its events, as the bridge has it.
    pub trust: Trust,
    /// Why.
    pub reason: Rc<str>,
    /// See [`ReplicaInfo::dense`].
    pub dense: bool,
    /// Its place in the index; `None` only while none is free.
    pub column: Option<Column>,
    /// The last load that its engine reported, and when it was read.
    pub reported: Option<(LoadReport, Time)>,
    /// Requests of that report beyond those that were booked when it came.
    pub others: u32,
    /// Its number in the feed of the current leader.
    pub feed: Option<FeedReplicaId>,
    /// Named in the configuration: stays when the feed does not know it.
    pub fixed: bool,
    /// Prompt tokens a second that it was seen to prefill; 0 until measured.
    pub prefill_rate: f64,
    /// Prefixes that it lacks and that others were asked for.
    pub wants: Wants,
    /// When this VM sent a request there last.
    pub picked: Time,
    /// What it is for.
    pub role: Role,
    /// Its LoRA adapters, as the bridge has them.
    pub adapters: Adapters,
    /// Adapters that this VM sent requests for lately, latest last: the engine loads them before it says so.
    warmed: VecDeque<(Box<str>, Time)>,
}

/// So long the engine may have an adapter ready without a reading of its metrics that says so.
const WARMED: u64 = 5 * SECOND;
/// Adapters remembered of that, for each replica.
const MAX_WARMED: usize = 16;

impl Replica {
    /// A request for an adapter was sent there.
    pub fn warm(&mut self, adapter: &str, now: Time) {
        self.warmed.retain(|(name, _)| **name != *adapter);
        self.warmed.push_back((adapter.into(), now));
        if self.warmed.len() > MAX_WARMED {
            self.warmed.pop_front();
        }
    }

    /// What a request for an adapter finds there.
    pub fn standing(&self, adapter: &str, now: Time) -> Standing {
        let warm = |(name, at): &(Box<str>, Time)| **name == *adapter && now.since(*at) < WARMED;
        match self.adapters.standing(adapter) {
            Standing::Served | Standing::Unknown if self.warmed.iter().any(warm) => Standing::Loaded,
            known => known,
        }
    }
}

/// A change that [`Members::upsert`] made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was not there.
    New(ReplicaIdx),
    /// It is another model, or cut into other blocks: what it held means nothing now.
    Other(ReplicaIdx),
    /// It has events now, or has them no more: what is believed of it comes from elsewhere.
    Events(ReplicaIdx),
    /// Its trust or capacity changed.
    Details(ReplicaIdx),
    /// Nothing changed.
    Same(ReplicaIdx),
}

impl Change {
    /// The replica.
    pub fn idx(self) -> ReplicaIdx {
        match self {
            Change::New(i) | Change::Other(i) | Change::Events(i) | Change::Details(i) | Change::Same(i) => i,
        }
    }
}

/// All replicas.
#[derive(Debug, Default)]
pub struct Members {
    list: Vec<Option<Replica>>,
    by_key: HashMap<ReplicaKey, ReplicaIdx>,
    by_feed: HashMap<FeedReplicaId, ReplicaIdx>,
    by_model: HashMap<Rc<str>, Rc<[ReplicaIdx]>>,
    version: u64,
    prefills: bool,
}

/// More than this are not taken in.
pub const MAX_REPLICAS: usize = 1024;

impl Members {
    /// The replica with a local number.
    pub fn get(&self, idx: ReplicaIdx) -> Option<&Replica> {
        self.list.get(usize::from(idx.0)).and_then(Option::as_ref)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, idx: ReplicaIdx) -> Option<&mut Replica> {
        self.list.get_mut(usize::from(idx.0)).and_then(Option::as_mut)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (ReplicaIdx, &Replica)> {
        self.list.iter().enumerate().filter_map(|(i, r)| r.as_ref().map(|r| (ReplicaIdx(i as u16), r)))
    }

    /// Local numbers are below this.
    pub fn width(&self) -> usize {
        self.list.len()
    }

    /// The replica that the current leader gave this number.
    pub fn of_feed(&self, id: FeedReplicaId) -> Option<ReplicaIdx> {
        self.by_feed.get(&id).copied()
    }

    /// The replica of this key.
    pub fn of_key(&self, key: ReplicaKey) -> Option<ReplicaIdx> {
        self.by_key.get(&key).copied()
    }

    /// A replica at this address, of the same model as `like`; the same rank when there is one.
    pub fn at_address(&self, address: &str, like: ReplicaIdx) -> Option<ReplicaIdx> {
        let like = self.get(like)?;
        self.of_key(ReplicaKey::new(address, like.rank))
            .or_else(|| self.iter().find(|(_, r)| &*r.address == address && r.model == like.model).map(|(i, _)| i))
    }

    /// The replicas that serve a model.
    pub fn serving(&self, model: &str) -> Option<Rc<[ReplicaIdx]>> {
        self.by_model.get(model).cloned()
    }

    /// Whether some replica is there to prefill for others.
    pub fn prefills(&self) -> bool {
        self.prefills
    }

    /// Another one whenever somebody came, left or serves another model.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Forgets the numbers of the former leader.
    pub fn forget_numbers(&mut self) {
        self.by_feed.clear();
        self.list.iter_mut().flatten().for_each(|r| r.feed = None);
    }

    /// Takes in a replica, or what is new about it; `None` when there are too many.
    pub fn upsert(&mut self, info: &ReplicaInfo, from_feed: bool) -> Option<Change> {
        let key = ReplicaKey::new(&info.address, info.rank);
        let change = match self.of_key(key) {
            Some(idx) => {
                let replica = self.get_mut(idx)?;
                let other = *replica.model != *info.model || replica.block_size != info.block_size;
                let events = (replica.trust == Trust::NoEvents) != (info.trust == Trust::NoEvents);
                let details = replica.trust != info.trust
                    || replica.capacity_blocks != info.capacity_blocks
                    || replica.dense != info.dense
                    || replica.adapters != info.adapters
                    || replica.role != info.role
                    || *replica.reason != *info.reason;
                if *replica.reason != *info.reason {
                    replica.reason = info.reason.as_str().into();
                }
                (replica.dense, replica.role) = (info.dense, info.role);
                if replica.adapters != info.adapters {
                    replica.adapters = info.adapters.clone();
                }
                if other {
                    (replica.model, replica.block_size) = (info.model.as_str().into(), info.block_size);
                }
                (replica.trust, replica.capacity_blocks) = (info.trust, info.capacity_blocks);
                match (other, events, details) {
                    (true, ..) => Change::Other(idx),
                    (_, true, _) => Change::Events(idx),
                    (.., true) => Change::Details(idx),
                    _ => Change::Same(idx),
                }
            }
            None => {
                let free = self.list.iter().position(Option::is_none).unwrap_or(self.list.len());
                if free >= MAX_REPLICAS {
                    return None;
                }
                if free == self.list.len() {
                    self.list.push(None);
                }
                *self.list.get_mut(free)? = Some(Replica {
                    key,
                    address: info.address.as_str().into(),
                    rank: info.rank,
                    model: info.model.as_str().into(),
                    block_size: info.block_size,
                    capacity_blocks: info.capacity_blocks,
                    trust: info.trust,
                    reason: info.reason.as_str().into(),
                    dense: info.dense,
                    role: info.role,
                    adapters: info.adapters.clone(),
                    warmed: VecDeque::new(),
                    column: None,
                    reported: None,
                    others: 0,
                    feed: None,
                    fixed: false,
                    prefill_rate: 0.0,
                    wants: Wants::default(),
                    picked: Time(0),
                });
                let idx = ReplicaIdx(free as u16);
                self.by_key.insert(key, idx);
                Change::New(idx)
            }
        };
        let idx = change.idx();
        if from_feed {
            let replica = self.get_mut(idx)?;
            if let Some(old) = replica.feed.replace(info.id).filter(|old| *old != info.id) {
                self.by_feed.remove(&old);
            }
            self.by_feed.insert(info.id, idx);
        }
        if matches!(change, Change::New(_) | Change::Other(_)) {
            self.group();
        }
        self.prefills = self.list.iter().flatten().any(|replica| replica.role == Role::Prefill);
        Some(change)
    }

    /// Lets a replica go; gives what was known of it.
    pub fn remove(&mut self, idx: ReplicaIdx) -> Option<Replica> {
        let replica = self.list.get_mut(usize::from(idx.0)).and_then(Option::take)?;
        self.by_key.remove(&replica.key);
        self.prefills = self.list.iter().flatten().any(|replica| replica.role == Role::Prefill);
        if let Some(feed) = replica.feed {
            self.by_feed.remove(&feed);
        }
        self.group();
        Some(replica)
    }

    fn group(&mut self) {
        self.version += 1;
        let mut groups: HashMap<Rc<str>, Vec<ReplicaIdx>> = HashMap::new();
        for (idx, replica) in self.iter() {
            groups.entry(replica.model.clone()).or_default().push(idx);
        }
        self.by_model = groups.into_iter().map(|(model, list)| (model, list.into())).collect();
    }
}

/// The candidate that a session points at: the same one in every VM, and few change when one comes or goes.
pub(super) fn rendezvous(
    session: &str,
    candidates: impl Iterator<Item = ReplicaIdx>,
    members: &Members,
) -> Option<ReplicaIdx> {
    let score = |idx: &ReplicaIdx| members.get(*idx).map(|r| xxh3_64_with_seed(session.as_bytes(), r.key.0));
    candidates.max_by_key(score)
}
