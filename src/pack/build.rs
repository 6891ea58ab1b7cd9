//! Model directory to pack.

use std::path::Path;
use std::rc::Rc;

use super::container::{self, SectionKind};
use super::source::ModelDir;
pub use super::source::SourceOptions;
use super::{Meta, Pack, PackError};
use crate::tokenizer::hf::HfTokenizer;

/// What to pack and how.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// The model's name; the directory's if not given.
    pub name: Option<String>,
    /// Judging the directory.
    pub source: SourceOptions,
}

/// Makes a pack file of one model.
pub fn build(dir: &Path, options: &BuildOptions) -> Result<Vec<u8>, PackError> {
    let source = ModelDir::read(dir, &options.source)?;
    let file = |e: String| PackError::new(format!("{}: {e}", dir.join("tokenizer.json").display()));
    let crate_tokenizer =
        Rc::new(HfTokenizer::from_json(&source.tokenizer_json, Default::default()).map_err(|e| file(e.0))?);
    let specials = crate_tokenizer.probe_specials().ok_or_else(|| {
        file("post_processor: does more than putting special tokens around a text; kvroute cannot follow it".into())
    })?;
    let name = options.name.clone().or_else(|| source.default_name());
    let name = name
        .filter(|n| !n.is_empty())
        .ok_or_else(|| PackError::new("the directory has no name; give one with --name"))?;
    let meta = Meta {
        name,
        made_by: env!("CARGO_PKG_VERSION").to_owned(),
        fingerprint: source.fingerprint,
        sources: source.files,
        specials,
        engine_note: String::new(),
        template: source.template,
    };
    let meta = serde_json::to_vec(&meta).map_err(|e| PackError::new(format!("meta: {e}")))?;
    Ok(container::write(&[vec![
        (SectionKind::Meta as u32, &meta),
        (SectionKind::TokenizerJson as u32, &source.tokenizer_json),
    ]]))
}

/// Puts the packs of several files into one.
pub fn merge(files: &[Vec<u8>]) -> Result<Vec<u8>, PackError> {
    let mut packs = Vec::new();
    for file in files {
        for sections in container::read(file)? {
            let bytes = |s: &container::Section| file.get(s.offset..s.offset + s.len).unwrap_or_default();
            packs.push(sections.iter().map(|s| (s.kind, bytes(s))).collect());
        }
    }
    let merged = container::write(&packs);
    // Names must differ.
    Pack::parse(merged.clone())?;
    Ok(merged)
}

/// Compares a pack's tokenizer with the reference made from `tokenizer_json` on `text`.
pub fn verify(pack: &Pack, reference: &HfTokenizer, text: &str) -> Result<usize, PackError> {
    let ids = pack.tokenizer()?.encode(text, false).map_err(|e| PackError::new(e.0))?;
    let expected = reference.whole(text, false).map_err(|e| PackError::new(e.0))?;
    if ids == expected {
        return Ok(ids.len());
    }
    let at = ids.iter().zip(&expected).take_while(|(a, b)| a == b).count();
    Err(PackError::new(format!(
        "pack {:?} ({}): id {at} of the text is {:?}, the tokenizers crate says {:?}",
        pack.name(),
        pack.tokenizer()?.engine(),
        ids.get(at),
        expected.get(at)
    )))
}
