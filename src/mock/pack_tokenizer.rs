//! The tokenizer of a model pack, with the rendering that the engine does before it.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use xxhash_rust::xxh3::xxh3_64;

use super::prompt::{PromptTokenizer, Refusal, TokenizerFactory};
use super::words::{Dice, Vocabulary};
use crate::blocks::TokenId;
use crate::explain::truncate;
use crate::nokey::{NoKey, NoKeyReason};
use crate::pack::wasm;
use crate::request::{Api, Body, EngineFlags, PromptInput, Renderer};
use crate::tokenizer::Tokenizer;

struct PackTokenizer {
    renderer: Renderer,
    tokenizer: Rc<dyn Tokenizer>,
    specials_in_front: usize,
    vocabulary: Vocabulary,
}

/// Reads the pack once; each thread makes its own tokenizer of it. `name` may be left out where the file has one
/// pack only.
pub fn factory(file: PathBuf, name: Option<String>, flags: EngineFlags) -> anyhow::Result<TokenizerFactory> {
    let bytes = std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let packs = wasm::packs_of(bytes).with_context(|| file.display().to_string())?;
    let pack = match &name {
        Some(name) => packs.into_iter().find(|pack| pack.name() == name),
        None if packs.len() > 1 => bail!("{} has {} packs; say which one", file.display(), packs.len()),
        None => packs.into_iter().next(),
    };
    let pack = pack.with_context(|| format!("{} has no such pack", file.display()))?;
    Ok(Arc::new(move || {
        let tokenizer = pack.tokenizer()?;
        let renderer = Renderer::new(pack.template_source().clone(), &flags).map_err(anyhow::Error::msg)?;
        let encode = |text: &str| tokenizer.clone().encode(text, false).ok();
        let vocabulary = Vocabulary::of(&encode)
            .with_context(|| format!("the tokenizer of {:?} has hardly any word as one token", pack.name()))?;
        let specials_in_front = pack.meta().specials.prefix.len();
        Ok(Box::new(PackTokenizer { renderer, tokenizer, specials_in_front, vocabulary }))
    }))
}

impl PromptTokenizer for PackTokenizer {
    fn tokens(&self, api: Api, body: &[u8]) -> Result<Vec<TokenId>, Refusal> {
        match self.exact(api, body) {
            Ok(tokens) => Ok(tokens),
            // An engine would know the tokens. Any others do, as long as they are those of this request alone.
            Err(NoKeyReason { kind: NoKey::Unsupported, .. }) => Ok(stand_in(body)),
            Err(reason) => Err(Refusal::bad_request(reason.detail)),
        }
    }

    fn vocabulary(&self) -> Vocabulary {
        self.vocabulary.clone()
    }
}

impl PackTokenizer {
    fn exact(&self, api: Api, body: &[u8]) -> Result<Vec<TokenId>, NoKeyReason> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let prepared = self.renderer.prepare(api, &Body::parse(body)?, now)?;
        let mut ids = match prepared.input {
            PromptInput::Ids(ids) => ids,
            PromptInput::Pieces(pieces) => {
                let mut ids = Vec::new();
                for piece in &pieces {
                    let more = self.tokenizer.clone().encode(piece, prepared.add_special_tokens);
                    ids.extend(more.map_err(|error| NoKeyReason::new(NoKey::TokenizerError, error.0))?);
                }
                ids
            }
            PromptInput::Text(text) => self
                .tokenizer
                .clone()
                .encode(&text, prepared.add_special_tokens)
                .map_err(|error| NoKeyReason::new(NoKey::TokenizerError, error.0))?,
        };
        if let Some(cut) = prepared.truncate {
            truncate(&mut ids, cut, if prepared.add_special_tokens { self.specials_in_front } else { 0 });
        }
        if prepared.open_ended {
            // What follows has no text: an image, say. Its bytes stand in for it.
            ids.pop();
            ids.extend(stand_in(body));
        }
        Ok(ids)
    }
}

/// About as many tokens as the body may have; different from the first one on for different bodies.
fn stand_in(body: &[u8]) -> Vec<TokenId> {
    let mut dice = Dice(xxh3_64(body));
    (0..body.len().div_ceil(4)).map(|_| dice.below(100_000) as TokenId).collect()
}
