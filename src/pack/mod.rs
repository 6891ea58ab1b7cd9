//! The model pack: everything that turns requests for one model into token ids, in one flat file.
//!
//! `kvroute pack` makes it from a model directory; the filter uses it in place, as bytes of the wasm's own data
//! segment or of its configuration, the native side as a file. A file holds one pack or several.
//!
//! | part | module |
//! |---|---|
//! | the bytes: header, section table, checksum | [`container`] |
//! | a pack that was read: name, template, tokenizer | this one |
//! | packs inside the running wasm | [`embedded`] |
//! | model directory to pack | `build`, `source` (native) |
//! | packs into a finished wasm and out of it | `wasm` (native) |
//!
//! Reading costs one checksum over the bytes and the parse of a small JSON; nothing big is copied or rebuilt.

#[cfg(not(target_family = "wasm"))]
pub mod build;
pub mod container;
pub mod embedded;
#[cfg(not(target_family = "wasm"))]
mod source;
#[cfg(test)]
pub mod tests;
#[cfg(not(target_family = "wasm"))]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
pub mod wasm;

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::template::TemplateSource;
use crate::tokenizer::{Tokenizer, compact::Compact, hf::HfTokenizer};
use container::{PackBytes, Section, SectionKind};

/// Why bytes are not a pack, or a directory cannot be made into one. The text names the place and the mend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackError(pub String);

impl PackError {
    /// An error from its text.
    pub fn new(text: impl Into<String>) -> Self {
        PackError(text.into())
    }
}

impl std::fmt::Display for PackError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for PackError {}

/// What a pack says about itself, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// The model's name, as requests give it unless the configuration has another one.
    pub name: String,
    /// Version of the kvroute that made the pack.
    pub made_by: String,
    /// XXH3-128 over names and bytes of the source files, in hex. Two packs with the same fingerprint and the
    /// same `made_by` give the same ids for the same request.
    pub fingerprint: String,
    /// The source files: name and size.
    pub sources: Vec<(String, u64)>,
    /// What `add_special_tokens` puts before and after a text.
    #[serde(default)]
    pub specials: Specials,
    /// The tokenizer's engine, and why it is not the compact one if it is not.
    #[serde(default)]
    pub engine_note: String,
    /// The chat template with what belongs to it.
    #[serde(default)]
    pub template: TemplateSource,
}

/// The ids that the tokenizer's post-processor adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Specials {
    /// Before the text.
    pub prefix: Vec<u32>,
    /// After the text.
    pub suffix: Vec<u32>,
}

/// One model, read from a pack file. Cheap to clone; can be sent to other threads.
#[derive(Clone, Debug)]
pub struct Pack {
    bytes: PackBytes,
    meta: std::sync::Arc<Meta>,
    /// All but the meta section.
    sections: Vec<Section>,
}

impl Pack {
    /// Reads all packs of a file. The bytes are kept and used in place.
    pub fn parse(bytes: impl Into<PackBytes>) -> Result<Vec<Pack>, PackError> {
        let bytes = bytes.into();
        let mut packs: Vec<Pack> = Vec::new();
        for sections in container::read(bytes.as_slice())? {
            let index = packs.len() + 1;
            let find = |kind: SectionKind| sections.iter().find(|s| s.kind == kind as u32);
            let missing =
                |what: &str| PackError::new(format!("pack {index} of the file has no {what}; pack the model again"));
            let meta = find(SectionKind::Meta).ok_or_else(|| missing("meta section"))?;
            let meta: Meta = serde_json::from_slice(bytes.section(meta)?).map_err(|e| {
                PackError::new(format!("pack {index} of the file: meta section: {e}; pack the model again"))
            })?;
            find(SectionKind::Compact)
                .or_else(|| find(SectionKind::TokenizerJson))
                .ok_or_else(|| missing("tokenizer section"))?;
            let sections = sections.iter().filter(|s| s.kind != SectionKind::Meta as u32).copied().collect();
            if packs.iter().any(|p| p.name() == meta.name) {
                return Err(PackError::new(format!(
                    "two packs have the name {:?}; give one another --name",
                    meta.name
                )));
            }
            packs.push(Pack { bytes: bytes.clone(), meta: meta.into(), sections });
        }
        Ok(packs)
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        &self.meta.name
    }

    /// Identifies the source files, see [`Meta::fingerprint`].
    pub fn fingerprint(&self) -> &str {
        &self.meta.fingerprint
    }

    /// The chat template and what belongs to it.
    pub fn template_source(&self) -> &TemplateSource {
        &self.meta.template
    }

    /// All that the pack says about itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Bytes of the tokenizer.
    pub fn tokenizer_bytes(&self) -> usize {
        self.sections.iter().map(|section| section.len).sum()
    }

    /// Which engine the pack is for: "compact", or "tokenizer.json" for the `tokenizers` crate.
    pub fn tokenizer_kind(&self) -> &'static str {
        let kind = if self.section(SectionKind::Compact).is_some() {
            SectionKind::Compact
        } else {
            SectionKind::TokenizerJson
        };
        SectionKind::label(kind as u32)
    }

    fn section(&self, kind: SectionKind) -> Option<&Section> {
        self.sections.iter().find(|section| section.kind == kind as u32)
    }

    /// Makes the tokenizer. Each one has its own caches: make it once a thread and share the `Rc`.
    pub fn tokenizer(&self) -> Result<Rc<dyn Tokenizer>, PackError> {
        let named = |e: String| PackError::new(format!("pack {:?}: {e}", self.name()));
        let specials = self.meta.specials.clone();
        if self.section(SectionKind::Compact).is_some() {
            let compact = Compact::new(self.bytes.clone(), self.sections.clone(), specials).map_err(|e| named(e.0))?;
            return Ok(Rc::new(compact));
        }
        let section = self.section(SectionKind::TokenizerJson).ok_or_else(|| named("no tokenizer".into()))?;
        let tokenizer = HfTokenizer::from_json(self.bytes.section(section)?, specials).map_err(|e| named(e.0))?;
        Ok(Rc::new(tokenizer))
    }
}
