//! Model directory to pack.

use std::path::Path;
use std::rc::Rc;

use super::container::{self, SectionKind};
use super::source::ModelDir;
pub use super::source::{SourceOptions, mistral_file};
use super::{Meta, Pack, PackError};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::compact::compile;
use crate::tokenizer::compact::corpus::{self, Random};
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
    let (tables, engine_note) = match compact(&source.tokenizer_json, &crate_tokenizer) {
        Ok(tables) => (tables, String::new()),
        Err(why) => (
            vec![(SectionKind::TokenizerJson, source.tokenizer_json.clone())],
            format!("by the tokenizers crate, slower: {why}"),
        ),
    };
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
        engine_note,
        template: source.template,
    };
    let meta = serde_json::to_vec(&meta).map_err(|e| PackError::new(format!("meta: {e}")))?;
    let mut sections = vec![(SectionKind::Meta as u32, &meta[..])];
    sections.extend(tables.iter().map(|(kind, bytes)| (*kind as u32, &bytes[..])));
    Ok(container::write(&[sections]))
}

/// Identifies the files that [`build`] would read, and what it would refuse before the long work. See
/// [`Meta::fingerprint`].
pub fn fingerprint(dir: &Path, options: &BuildOptions) -> Result<String, PackError> {
    Ok(ModelDir::read(dir, &options.source)?.fingerprint)
}

/// The tables of the own engine, if it understands the tokenizer and gives the crate's ids on generated text.
fn compact(tokenizer_json: &[u8], reference: &HfTokenizer) -> Result<compile::Tables, String> {
    let tables = compile::compile(tokenizer_json)?;
    let compact = Rc::new(compile::open(&tables, Default::default())?);
    let added = reference.added_tokens();
    let generated = (0..GENERATED).map(|seed| {
        let mut random = Random(seed);
        let specials: Vec<String> = match added.is_empty() {
            true => Vec::new(),
            false => (0..8).filter_map(|_| added.get(random.below(added.len())).cloned()).collect(),
        };
        corpus::text(&mut random, 4000, &specials)
    });
    let points: Vec<char> = (0..LAST_CODE_POINT).filter_map(char::from_u32).collect();
    let sweep = points.chunks(512).map(|block| corpus::contexts(block.iter().copied()));
    for text in generated.chain(sweep) {
        let ids = compact.clone().encode(&text, false).map_err(|e| e.0)?;
        let expected = reference.whole(&text, false).map_err(|e| e.0)?;
        if ids != expected {
            return Err(format!("the own engine differs from it: {}", difference(&ids, &expected)));
        }
    }
    Ok(tables)
}

/// Texts of 4 KB that every compact pack is checked on.
const GENERATED: u64 = 300;
/// And every code point up to here: beyond are unassigned planes, tags and private use.
const LAST_CODE_POINT: u32 = 0x32400;

fn difference(ids: &[u32], expected: &[u32]) -> String {
    let at = ids.iter().zip(expected).take_while(|(a, b)| a == b).count();
    format!("id {at} is {:?}, expected {:?}", ids.get(at), expected.get(at))
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
    let (name, engine) = (pack.name(), pack.tokenizer()?.engine());
    Err(PackError::new(format!("pack {name:?} ({engine}) differs from the crate: {}", difference(&ids, &expected))))
}
