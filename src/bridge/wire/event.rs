//! vLLM's and SGLang's payloads to [`EngineBatch`]. Fields are taken by name from maps and by place from arrays.

use xxhash_rust::xxh3::xxh3_64;

use super::msgpack::{Bad, Kind, Reader};
use super::skip::Skip;
use super::{EngineBatch, EngineHash, Event, GroupKind, Removed, Stored, extra};
use crate::blocks::TokenId;
use crate::feed::record::Tier;

/// Decodes one payload. What can be read before the bytes end is kept.
pub fn decode(payload: &[u8]) -> EngineBatch {
    let mut batch = EngineBatch::default();
    let mut r = Reader::new(payload);
    if let Err(skip) = outer(&mut r, &mut batch) {
        batch.skipped.push(skip);
    }
    batch
}

fn broken(bad: Bad) -> Skip {
    match bad {
        Bad::Broken => Skip::NotMsgpack,
        Bad::Type => Skip::NotABatch,
    }
}

fn outer(r: &mut Reader<'_>, batch: &mut EngineBatch) -> Result<(), Skip> {
    match r.kind().map_err(broken)? {
        Kind::Array => {
            let n = r.array().map_err(broken)?;
            if n < 2 {
                return Err(Skip::NotABatch);
            }
            batch.ts = r.f64().map_err(broken)?;
            events(r, batch)?;
            if n > 2 && r.kind() == Ok(Kind::Int) {
                batch.rank = r.u32().ok();
            }
            Ok(())
        }
        Kind::Map => {
            let mut seen = false;
            for _ in 0..r.map().map_err(broken)? {
                match r.str().map_err(broken)? {
                    "ts" => batch.ts = r.f64().map_err(broken)?,
                    "events" => {
                        seen = true;
                        events(r, batch)?;
                    }
                    "data_parallel_rank" | "attn_dp_rank" | "dp_rank" if r.kind() == Ok(Kind::Int) => {
                        let start = r.clone();
                        batch.rank = r.u32().ok();
                        if batch.rank.is_none() {
                            *r = start;
                            r.skip().map_err(broken)?;
                        }
                    }
                    _ => r.skip().map_err(broken)?,
                }
            }
            if seen { Ok(()) } else { Err(Skip::NotABatch) }
        }
        _ => Err(Skip::NotABatch),
    }
}

fn events(r: &mut Reader<'_>, batch: &mut EngineBatch) -> Result<(), Skip> {
    for _ in 0..r.array().map_err(broken)? {
        let start = r.clone();
        match event(r) {
            Ok(Ok(event)) => {
                batch.read += 1;
                push(&mut batch.events, event);
            }
            Ok(Err(skip)) => {
                batch.skipped.push(skip);
                *r = start;
                r.skip().map_err(broken)?;
            }
            Err(bad) => {
                // The event may be misread rather than broken: pass over it as a plain value.
                *r = start;
                r.skip().map_err(broken)?;
                batch.skipped.push(if bad == Bad::Type { Skip::BadField } else { Skip::NotMsgpack });
            }
        }
    }
    Ok(())
}

/// Engines say of each evicted block alone that it is gone: removals in a row become one.
fn push(events: &mut Vec<Event>, event: Event) {
    match (events.last_mut(), event) {
        (Some(Event::Removed(last)), Event::Removed(next)) if (last.tier, last.group) == (next.tier, next.group) => {
            last.hashes.extend(next.hashes);
        }
        (_, event) => events.push(event),
    }
}

/// All fields that any event type has.
#[derive(Default)]
struct Fields<'a> {
    hashes: Option<Vec<EngineHash>>,
    parent: Option<EngineHash>,
    tokens: Option<Vec<TokenId>>,
    block_size: Option<u32>,
    lora_id: bool,
    medium: Option<&'a str>,
    lora_name: Option<&'a str>,
    extra: Vec<extra::BlockKeys>,
    group: Option<u32>,
    kind: Option<&'a str>,
    window: Option<u32>,
    remote: bool,
    salt: Option<&'a str>,
}

const STORED: &[&str] = &[
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: &[&str] = &["block_hashes", "medium", "group_idx"];

/// The outer result is about the bytes, the inner about their meaning.
fn event(r: &mut Reader<'_>) -> Result<Result<Event, Skip>, Bad> {
    let mut fields = Fields::default();
    let kind;
    if r.kind()? == Kind::Array {
        let n = r.array()?;
        if n == 0 {
            return Ok(Err(Skip::UnknownType));
        }
        kind = r.str()?;
        let names = match kind {
            "BlockStored" => STORED,
            "BlockRemoved" => REMOVED,
            _ => &[],
        };
        for place in 0..n - 1 {
            match names.get(place) {
                // SGLang 0.5.18 puts what it added into a map after its last field, which lands among vLLM's.
                Some(_) if r.kind()? == Kind::Map => map(r, &mut fields, &mut None)?,
                Some(name) => fields.take(name, r)?,
                None => r.skip()?,
            }
        }
    } else {
        let mut tag = None;
        map(r, &mut fields, &mut tag)?;
        match tag {
            Some(tag) => kind = tag,
            None => return Ok(Err(Skip::MissingField)),
        }
    }
    Ok(match kind {
        "BlockStored" => fields.stored(),
        "BlockRemoved" => fields.removed(),
        "AllBlocksCleared" => Ok(Event::Cleared),
        _ => Err(Skip::UnknownType),
    })
}

fn map<'a>(r: &mut Reader<'a>, fields: &mut Fields<'a>, tag: &mut Option<&'a str>) -> Result<(), Bad> {
    for _ in 0..r.map()? {
        match r.str()? {
            "type" => *tag = Some(r.str()?),
            name => fields.take(name, r)?,
        }
    }
    Ok(())
}

impl<'a> Fields<'a> {
    fn take(&mut self, name: &str, r: &mut Reader<'a>) -> Result<(), Bad> {
        let text = |r: &mut Reader<'a>| Ok(if r.nil()? { None } else { Some(r.str()?) });
        match name {
            "block_hashes" => self.hashes = if r.nil()? { None } else { Some(hashes(r)?) },
            "parent_block_hash" => self.parent = if r.nil()? { None } else { Some(hash(r)?) },
            "token_ids" => self.tokens = if r.nil()? { None } else { Some(tokens(r)?) },
            "block_size" => self.block_size = if r.nil()? { None } else { Some(r.u32()?) },
            "lora_id" => {
                self.lora_id = r.kind()? != Kind::Nil;
                r.skip()?;
            }
            "medium" => self.medium = text(r)?,
            "lora_name" => self.lora_name = text(r)?,
            "extra_keys" => self.extra = extra::read(r)?,
            "group_idx" => self.group = if r.nil()? { None } else { Some(r.u32()?) },
            "kv_cache_spec_kind" => self.kind = text(r)?,
            "kv_cache_spec_sliding_window" => self.window = if r.nil()? { None } else { Some(r.u32()?) },
            "locality" => self.remote = text(r)? == Some("REMOTE"),
            "cache_salt" => self.salt = text(r)?,
            _ => r.skip()?,
        }
        Ok(())
    }

    fn tier(&self) -> Option<Tier> {
        if self.remote {
            return Some(Tier::Disk);
        }
        self.medium.map(|m| match m {
            m if m.starts_with("GPU") || m.starts_with("DEVICE") => Tier::Gpu,
            m if m.starts_with("CPU") || m.starts_with("HOST") => Tier::Cpu,
            _ => Tier::Disk,
        })
    }

    fn kind(&self) -> GroupKind {
        match (self.kind, self.window) {
            (None, None) => GroupKind::Unknown,
            (None | Some("sliding_window" | "sliding_window_mla"), Some(window)) if window > 0 => {
                GroupKind::Sliding(window)
            }
            (Some("full_attention" | "mla_attention" | "sink_full_attention"), _) => GroupKind::Full,
            (Some("encoder_only_attention" | "cross_attention"), _) => GroupKind::NotCached,
            _ => GroupKind::Unproven,
        }
    }

    fn salted(&mut self) -> u64 {
        let mask = match self.salt {
            Some(salt) => xxh3_64(salt.as_bytes()),
            None => return 0,
        };
        self.hashes.iter_mut().flatten().chain(&mut self.parent).for_each(|h| h.0 ^= mask);
        mask
    }

    fn stored(mut self) -> Result<Event, Skip> {
        let salt_mask = self.salted();
        let (tier, kind) = (self.tier(), self.kind());
        let hashes = self.hashes.ok_or(Skip::MissingField)?;
        let block_size = self.block_size.filter(|b| *b > 0).ok_or(Skip::MissingField)?;
        let meaning =
            extra::interpret(self.extra, self.lora_name.map(str::to_owned), self.lora_id, self.parent.is_none());
        if self.lora_id && meaning.lora.is_none() {
            return Err(Skip::LoraWithoutName);
        }
        Ok(Event::Stored(Stored {
            hashes,
            parent: self.parent,
            tokens: self.tokens.unwrap_or_default(),
            block_size,
            lora: meaning.lora,
            salt: self.salt.map(str::to_owned).or(meaning.salt),
            salt_mask,
            unkeyed_from: meaning.unkeyed_from,
            tier,
            group: self.group.unwrap_or(0),
            kind,
        }))
    }

    fn removed(mut self) -> Result<Event, Skip> {
        self.salted();
        let tier = self.tier().unwrap_or(Tier::Gpu);
        let hashes = self.hashes.ok_or(Skip::MissingField)?;
        Ok(Event::Removed(Removed { hashes, tier, group: self.group.unwrap_or(0) }))
    }
}

fn hash(r: &mut Reader<'_>) -> Result<EngineHash, Bad> {
    if r.kind()? == Kind::Int {
        return Ok(EngineHash(r.int()?.0));
    }
    let bytes = r.bytes()?;
    Ok(EngineHash(match bytes.last_chunk::<8>() {
        // A cryptographic digest: vLLM's integer form is its last 8 bytes.
        Some(tail) if bytes.len() >= 16 => u64::from_be_bytes(*tail),
        _ => xxh3_64(bytes),
    }))
}

fn hashes(r: &mut Reader<'_>) -> Result<Vec<EngineHash>, Bad> {
    let n = r.array()?;
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        // Most often integers of full length; in between whatever there is.
        let left = n - out.len();
        if r.u64s(left, |hash| out.push(EngineHash(hash))) == 0 {
            out.push(hash(r)?);
        }
    }
    Ok(out)
}

/// Token ids; SGLang with EAGLE sends pairs (token, its successor): the first of each counts.
fn tokens(r: &mut Reader<'_>) -> Result<Vec<TokenId>, Bad> {
    let n = r.array()?;
    let mut out = Vec::with_capacity(n);
    while out.len() < n {
        let left = n - out.len();
        if r.u32s(left, &mut out) > 0 {
            continue;
        }
        if r.kind()? == Kind::Array {
            let width = r.array()?;
            if width == 0 {
                return Err(Bad::Type);
            }
            out.push(r.u32()?);
            (1..width).try_for_each(|_| r.skip())?;
        } else {
            out.push(r.u32()?);
        }
    }
    Ok(out)
}
