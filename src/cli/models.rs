//! Packs, with what a configuration or the arguments say about their models: what `explain` and `conform` ask.

use std::path::Path;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::config::Config;
use crate::explain::Model;
use crate::nokey::{NoKey, NoKeyReason};
use crate::pack::{Pack, wasm};
use crate::request::{ApiPaths, EngineFlags, Renderer};
use crate::tokenizer::Tokenizer;

/// The packs of a file, with what stands in a configuration about them.
pub struct Models {
    packs: Vec<Pack>,
    config: Option<Config>,
}

/// A model, and all that decides its keys.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its name in the block hashes.
    pub name: String,
    /// The LoRA adapter that the request names.
    pub lora: Option<String>,
    /// Name of its pack.
    pub pack: String,
    /// Flags of its engine.
    pub flags: EngineFlags,
    /// Tokens per block.
    pub block_size: u32,
    /// The deployment's seed.
    pub hash_seed: String,
}

/// A model with its template compiled and its tokenizer made.
pub struct Ready {
    /// What it was made of.
    pub chosen: Chosen,
    /// Its renderer.
    pub renderer: Renderer,
    tokenizer: Rc<dyn Tokenizer>,
    specials_in_front: usize,
}

impl Models {
    /// Reads a pack file, or a filter with packs, and a router's configuration.
    pub fn read(pack: &Path, config: Option<&Path>) -> Result<Models> {
        let at = || pack.display().to_string();
        let packs = wasm::packs_of(std::fs::read(pack).with_context(at)?).with_context(at)?;
        let config = config.map(|path| {
            let at = || path.display().to_string();
            Config::parse(&std::fs::read(path).with_context(at)?).with_context(at)
        });
        Ok(Models { packs, config: config.transpose()? })
    }

    /// Ends of the paths of each API.
    pub fn paths(&self) -> ApiPaths {
        self.config.as_ref().map_or_else(ApiPaths::default, |config| config.paths.clone())
    }

    /// The header whose value is the salt of a tenant.
    pub fn tenant_header(&self) -> Option<&str> {
        self.config.as_ref()?.tenant_salt.header.as_deref()
    }

    /// What the configuration says of the model that a request is for; `None` without a configuration.
    pub fn configured(&self, asked: Option<&str>) -> Option<Result<Chosen, NoKeyReason>> {
        let config = self.config.as_ref()?;
        Some(config.asked(asked).and_then(|(_, model, lora)| match model.enabled {
            false => Err(NoKeyReason::new(NoKey::ModelOff, format!("model {:?}", model.name))),
            true => Ok(Chosen {
                name: model.name.clone(),
                lora: lora.map(str::to_owned),
                pack: model.pack.clone(),
                flags: model.engine.clone(),
                block_size: model.block_size,
                hash_seed: config.hash_seed.clone(),
            }),
        }))
    }

    /// The pack of this name, or the only one, whatever its name.
    pub fn pack_of(&self, name: Option<&str>) -> Result<&Pack> {
        match (self.packs.as_slice(), name) {
            ([only], _) => Ok(only),
            (_, name) => self.pack(name.unwrap_or_default()),
        }
    }

    fn pack(&self, name: &str) -> Result<&Pack> {
        let names: Vec<&str> = self.packs.iter().map(Pack::name).collect();
        let found = self.packs.iter().find(|pack| pack.name() == name);
        found.with_context(|| format!("no pack {name:?} in the file; it has {}", names.join(", ")))
    }

    /// Compiles the template and makes the tokenizer.
    pub fn ready(&self, chosen: Chosen) -> Result<Ready> {
        let pack = self.pack(&chosen.pack)?;
        let renderer = Renderer::new(pack.template_source().clone(), &chosen.flags);
        let renderer = renderer.map_err(|error| anyhow::anyhow!("pack {:?}: {error}", pack.name()))?;
        let (tokenizer, specials_in_front) = (pack.tokenizer()?, pack.meta().specials.prefix.len());
        Ok(Ready { chosen, renderer, tokenizer, specials_in_front })
    }
}

impl Ready {
    /// The same, as [`crate::explain::explain`] takes it.
    pub fn model(&self) -> Model<'_> {
        Model {
            name: &self.chosen.name,
            lora: self.chosen.lora.as_deref(),
            renderer: &self.renderer,
            tokenizer: self.tokenizer.clone(),
            specials_in_front: self.specials_in_front,
            block_size: self.chosen.block_size,
            hash_seed: &self.chosen.hash_seed,
        }
    }
}

/// The wall clock in seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
