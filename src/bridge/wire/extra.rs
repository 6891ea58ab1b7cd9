//! What besides tokens went into a block: `extra_keys`, one entry a block.
//!
//! | form | vLLM | example |
//! |---|---|---|
//! | bare | to 0.30 in hashes, to 0.33 in events | `["salt"]`, `["adapter"]`, `[["image", 17]]` |
//! | tagged | | `[["cache_salt", "salt"]]`, `[["lora", "adapter", "/path"]]`, `[["mm", "image", 17]]` |
//! | typed | `event_version` 1 | `[{"salt": "salt"}]`, `[{"name": "adapter"}]`, `[{"modality": …, "hash": …}]` |
//!
//! Bare strings have no names: the adapter's is known from the event, one more at the start of a prompt is the
//! salt, everything else is content.

use super::msgpack::{Bad, Kind, Reader};

/// The keys of one block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockKeys {
    /// Index of the block in its event.
    pub block: usize,
    /// Strings without a name.
    pub bare: Vec<String>,
    /// A named salt.
    pub salt: Option<String>,
    /// A named adapter.
    pub lora: Option<String>,
    /// Content that tokens do not tell.
    pub content: bool,
}

/// Reads the field; blocks without keys are left out.
pub fn read(r: &mut Reader<'_>) -> Result<Vec<BlockKeys>, Bad> {
    let mut out = Vec::new();
    if r.nil()? {
        return Ok(out);
    }
    for block in 0..r.array()? {
        if r.nil()? {
            continue;
        }
        let mut keys = BlockKeys { block, ..BlockKeys::default() };
        if r.kind()? == Kind::Array {
            for _ in 0..r.array()? {
                key(r, &mut keys)?;
            }
        } else {
            key(r, &mut keys)?;
        }
        if keys != (BlockKeys { block, ..BlockKeys::default() }) {
            out.push(keys);
        }
    }
    Ok(out)
}

fn key(r: &mut Reader<'_>, keys: &mut BlockKeys) -> Result<(), Bad> {
    match r.kind()? {
        Kind::Nil => r.skip(),
        Kind::Str => {
            keys.bare.push(r.str()?.to_owned());
            Ok(())
        }
        Kind::Array => tagged(r, keys),
        Kind::Map => typed(r, keys),
        _ => {
            keys.content = true;
            r.skip()
        }
    }
}

fn tagged(r: &mut Reader<'_>, keys: &mut BlockKeys) -> Result<(), Bad> {
    let n = r.array()?;
    let tag = if n >= 2 && r.kind()? == Kind::Str { Some(r.str()?) } else { None };
    let mut left = n - usize::from(tag.is_some());
    if let Some(tag @ ("cache_salt" | "lora")) = tag
        && r.kind()? == Kind::Str
    {
        let value = Some(r.str()?.to_owned());
        left -= 1;
        if tag == "lora" { keys.lora = value } else { keys.salt = value }
    } else {
        keys.content = true;
    }
    (0..left).try_for_each(|_| r.skip())
}

fn typed(r: &mut Reader<'_>, keys: &mut BlockKeys) -> Result<(), Bad> {
    let (mut salt, mut name, mut other) = (None, None, false);
    for _ in 0..r.map()? {
        let field = r.str()?;
        match field {
            "salt" | "cache_salt" if r.kind()? == Kind::Str => salt = Some(r.str()?.to_owned()),
            "name" | "lora_name" if r.kind()? == Kind::Str => name = Some(r.str()?.to_owned()),
            "hash" | "modality" | "value" | "block_offset" => {
                other = true;
                r.skip()?;
            }
            _ => r.skip()?,
        }
    }
    keys.content |= other || (salt.is_none() && name.is_none());
    if !other {
        keys.salt = salt.or(keys.salt.take());
        keys.lora = name.or(keys.lora.take());
    }
    Ok(())
}

/// What the keys of an event mean together.
#[derive(Debug, Default, PartialEq)]
pub struct Meaning {
    /// The adapter.
    pub lora: Option<String>,
    /// The salt.
    pub salt: Option<String>,
    /// First block with content that tokens do not tell.
    pub unkeyed_from: Option<usize>,
}

/// Sorts the keys out. `lora`: the adapter that the event names; `lora_id`: that it has one at all; `first`: the
/// event begins a prompt.
pub fn interpret(blocks: Vec<BlockKeys>, lora: Option<String>, lora_id: bool, first: bool) -> Meaning {
    let mut meaning = Meaning { lora, ..Meaning::default() };
    for keys in blocks {
        let BlockKeys { block, mut bare, salt, lora, content } = keys;
        if meaning.lora.is_none() {
            meaning.lora = lora;
        }
        if meaning.lora.is_none() && lora_id && !bare.is_empty() {
            meaning.lora = Some(bare.remove(0));
        } else if let Some(at) = bare.iter().position(|b| Some(b) == meaning.lora.as_ref()) {
            bare.remove(at);
        }
        if first && block == 0 {
            meaning.salt = salt.or_else(|| if bare.len() == 1 { bare.pop() } else { None });
        }
        if content || !bare.is_empty() {
            meaning.unkeyed_from.get_or_insert(block);
        }
    }
    meaning
}
