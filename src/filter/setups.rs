//! The configurations of a VM: one for each of its root contexts, which are as many as listeners that differ.
//!
//! Models, paths, headers, weights and the limits of a request are those of the root context that it comes by. The
//! index, the feed and the slices belong to the VM: for them the newest configuration holds.

use std::rc::Rc;

use super::models::Setup;
use crate::config::{Config, ConfigError};
use crate::pack::Pack;
use crate::replicas::StaticReplica;

/// See the [module](self).
pub struct Setups {
    /// Of the root contexts that live, the newest last.
    roots: Vec<(u32, Rc<Setup>)>,
    newest: Rc<Setup>,
}

impl Setups {
    /// The first one.
    pub fn new(root: u32, config: Config, packs: &[Pack]) -> Result<Setups, ConfigError> {
        let newest = Rc::new(Setup::new(config, packs)?);
        Ok(Setups { roots: vec![(root, newest.clone())], newest })
    }

    /// That of a root context, new or again.
    pub fn put(&mut self, root: u32, config: Config, packs: &[Pack]) -> Result<Rc<Setup>, ConfigError> {
        let known = self.all().find(|setup| setup.config == config).cloned();
        let setup = known.map_or_else(|| Setup::new(config, packs).map(Rc::new), Ok)?;
        self.roots.retain(|(other, _)| *other != root);
        self.roots.push((root, setup.clone()));
        self.newest = setup.clone();
        Ok(setup)
    }

    /// A root context has ended. The last one's configuration stays.
    pub fn remove(&mut self, root: u32) {
        self.roots.retain(|(other, _)| *other != root);
        if let Some((_, newest)) = self.roots.last() {
            self.newest = newest.clone();
        }
    }

    /// The newest one: what belongs to the VM is taken from it.
    pub fn newest(&self) -> &Rc<Setup> {
        &self.newest
    }

    /// Those of all root contexts that live, the newest first.
    pub fn all(&self) -> impl Iterator<Item = &Rc<Setup>> {
        self.roots.iter().rev().map(|(_, setup)| setup)
    }

    /// Fields that belong to the VM and differ.
    pub fn disputed(&self) -> Vec<&'static str> {
        let new = &self.newest.config;
        let differs = |what: &dyn Fn(&Config) -> bool| self.all().any(|old| what(&old.config));
        let fields = [
            ("bridge", differs(&|old| old.bridge != new.bridge)),
            ("secret", differs(&|old| old.secret != new.secret)),
            ("limits.index_bytes", differs(&|old| old.limits.index_bytes != new.limits.index_bytes)),
            (
                "limits.prompt_memory_bytes",
                differs(&|old| old.limits.prompt_memory_bytes != new.limits.prompt_memory_bytes),
            ),
            ("limits.slice_ms", differs(&|old| old.limits.slice_ms != new.limits.slice_ms)),
        ];
        fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// The replicas that any of them names; where two name the same one, as the newer says.
    pub fn replicas(&self) -> Vec<StaticReplica> {
        let mut replicas: Vec<StaticReplica> = Vec::new();
        for replica in self.all().flat_map(|setup| static_replicas(&setup.config)) {
            if replicas.iter().all(|r| (&r.address, r.rank) != (&replica.address, replica.rank)) {
                replicas.push(replica);
            }
        }
        replicas
    }
}

fn static_replicas(config: &Config) -> impl Iterator<Item = StaticReplica> {
    let block_size = |model: &str| config.model(model).map_or(16, |(_, m)| m.block_size);
    config.replicas.iter().map(move |r| StaticReplica {
        address: r.address.clone(),
        model: r.model.clone(),
        block_size: block_size(&r.model),
        rank: r.rank,
        role: r.role,
        capacity_blocks: r.capacity_blocks,
    })
}
