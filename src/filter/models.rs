//! A configuration with its models ready to render, and the tokenizers of the VM.

use std::rc::Rc;

use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{self, Config, ConfigError};
use crate::explain;
use crate::nokey::{NoKey, NoKeyReason};
use crate::pack::Pack;
use crate::replicas::ReplicaKey;
use crate::request::Renderer;
use crate::tokenizer::Tokenizer;
use crate::tokenizer::memory::PromptMemory;

/// One model: its configuration and, unless it is switched off, what renders for it.
pub struct Model {
    /// As the configuration has it.
    pub config: config::Model,
    ready: Option<(Pack, Renderer)>,
}

/// A checked configuration with its models. Never changes; a request keeps the one it began with.
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// Its models, in its order.
    pub models: Vec<Model>,
    /// Where its requests may go, in order: without a bridge only to the replicas that it names itself, whatever
    /// other listeners of the VM name.
    pub only: Option<Vec<ReplicaKey>>,
}

impl Setup {
    /// Finds the packs and compiles the templates.
    pub fn new(config: Config, packs: &[Pack]) -> Result<Setup, ConfigError> {
        let models = config.models.iter().enumerate();
        let models = models.map(|(i, m)| Model::new(m.clone(), packs, &format!("models[{i}]")));
        let models = models.collect::<Result<_, _>>()?;
        let only = config.bridge.is_none().then(|| {
            let mut only: Vec<_> = config.replicas.iter().map(|r| ReplicaKey::new(&r.address, r.rank)).collect();
            only.sort_unstable();
            only
        });
        Ok(Setup { models, only, config })
    }
}

/// That the engine's flags or the template cannot be followed.
pub fn cannot_follow(path: &str, what: &str) -> ConfigError {
    ConfigError::new(&format!("{path}.engine"), format!("cannot be followed: {what}"))
}

impl Model {
    /// Finds the pack and compiles the template of the model whose configuration stands at `path`.
    pub fn new(config: config::Model, packs: &[Pack], path: &str) -> Result<Model, ConfigError> {
        if !config.enabled {
            return Ok(Model { config, ready: None });
        }
        let Some(pack) = packs.iter().find(|p| p.name() == config.pack) else {
            let names: Vec<&str> = packs.iter().map(Pack::name).collect();
            let mend = match names.is_empty() {
                true => "this wasm has no packs, add it with kvroute pack --wasm".to_owned(),
                false => format!("this wasm has {}", names.join(", ")),
            };
            return Err(ConfigError::new(&format!("{path}.pack"), format!("\"{}\" is not there: {mend}", config.pack)));
        };
        let renderer =
            Renderer::new(pack.template_source().clone(), &config.engine).map_err(|what| cannot_follow(path, &what))?;
        Ok(Model { config, ready: Some((pack.clone(), renderer)) })
    }

    fn ready(&self) -> Result<&(Pack, Renderer), NoKeyReason> {
        let off = || NoKeyReason::new(NoKey::ModelOff, format!("{} is switched off", self.config.name));
        self.ready.as_ref().ok_or_else(off)
    }

    /// What an operator should know.
    pub fn warnings(&self) -> &[String] {
        self.ready.as_ref().map_or(&[], |(_, renderer)| renderer.warnings())
    }

    /// What renders for it.
    pub fn renderer(&self) -> Result<&Renderer, NoKeyReason> {
        Ok(&self.ready()?.1)
    }

    /// How many ids stand in front of a text that gets special tokens.
    pub fn specials_in_front(&self) -> usize {
        self.ready.as_ref().map_or(0, |(pack, _)| pack.meta().specials.prefix.len())
    }

    /// Identifies its tokenizer for the [`PromptMemory`].
    pub fn tokenizer_id(&self, add_special_tokens: bool) -> u64 {
        let pack = self.ready.as_ref().map_or("", |(pack, _)| pack.name());
        // Packs are part of the VM's code: as long as it lives, one name is one tokenizer.
        xxh3_64(pack.as_bytes()) << 1 | u64::from(add_special_tokens)
    }

    /// The same, as `explain` needs it.
    pub fn explainable<'a>(
        &'a self,
        tokenizers: &mut Tokenizers,
        lora: Option<&'a str>,
        hash_seed: &'a str,
    ) -> Result<explain::Model<'a>, NoKeyReason> {
        Ok(explain::Model {
            name: &self.config.name,
            lora,
            renderer: self.renderer()?,
            tokenizer: tokenizers.of(self)?,
            specials_in_front: self.specials_in_front(),
            block_size: self.config.block_size,
            hash_seed,
        })
    }
}

/// What all jobs of a VM work with.
pub struct Tools {
    /// Its tokenizers.
    pub tokenizers: Tokenizers,
    /// What its earlier prompts began with.
    pub memory: PromptMemory,
}

/// The tokenizers of a VM by their packs. Made when they are first needed: that takes long for some, and a VM
/// that only checks a configuration never needs them.
#[derive(Default)]
pub struct Tokenizers {
    made: HashMap<String, Result<Rc<dyn Tokenizer>, NoKeyReason>>,
}

impl Tokenizers {
    /// The tokenizer of a model.
    pub fn of(&mut self, model: &Model) -> Result<Rc<dyn Tokenizer>, NoKeyReason> {
        let (pack, _) = model.ready()?;
        if let Some(made) = self.made.get(pack.name()) {
            return made.clone();
        }
        let made = pack.tokenizer().map_err(|e| NoKeyReason::new(NoKey::TokenizerError, e.to_string()));
        self.made.insert(pack.name().to_owned(), made.clone());
        made
    }

    /// Makes the next one that the models will need; false when all are there.
    pub fn warm(&mut self, setup: &Setup) -> bool {
        let cold = setup.models.iter().find(|m| m.ready().is_ok_and(|(p, _)| !self.made.contains_key(p.name())));
        cold.map(|model| self.of(model)).is_some()
    }
}
