//! Puts packs into the finished filter, and finds them there.
//!
//! The pack file becomes an active data segment above the memory that the linker laid out, a second segment
//! writes its place into the exported descriptor (see [`super::embedded`]). A custom section keeps how many
//! pages there were before, so that packing a packed wasm again replaces its packs.

use std::borrow::Cow;

use wasm_encoder::{
    ConstExpr, CustomSection, DataCountSection, DataSection, ExportKind, ExportSection, MemorySection, MemoryType,
    Module, RawSection,
};
use wasmparser::{DataKind, ExternalKind, Operator, Parser, Payload};

use super::embedded::{DESCRIPTOR_EXPORT, DESCRIPTOR_MAGIC};
use super::{Pack, PackError};

const CUSTOM: &str = "kvroute.packs";
const PAGE: u64 = 65536;
const DESCRIPTOR_LEN: usize = 16;

/// Names of exports, by lines, that the filter says it has no use for: Envoy calls what is exported.
const UNUSED: &str = "kvroute.unused";

/// A filter taken apart as far as packing needs it.
struct Filter<'a> {
    descriptor: u32,
    /// Pages before any pack was added.
    pages: u64,
    /// What [`UNUSED`] says.
    unused: &'a str,
    /// The data segments that are not ours.
    segments: Vec<wasmparser::Data<'a>>,
    packs: Option<&'a [u8]>,
}

/// The pack file inside a filter; `None` if it has none.
pub fn extract(wasm: &[u8]) -> Result<Option<&[u8]>, PackError> {
    Ok(Filter::parse(wasm)?.packs)
}

/// The packs of a pack file, or of the filter that has them in it.
pub fn packs_of(bytes: Vec<u8>) -> Result<Vec<Pack>, PackError> {
    match is_wasm(&bytes) {
        false => Pack::parse(bytes),
        true => match extract(&bytes)? {
            Some(packs) => Pack::parse(packs.to_vec()),
            None => Err(PackError::new("no pack in it; put one in with kvroute pack --wasm")),
        },
    }
}

/// Whether bytes are a wasm module at all.
pub fn is_wasm(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\0asm")
}

/// The filter with `packs` (a pack file) in it, in place of those that it had.
pub fn embed(wasm: &[u8], packs: &[u8]) -> Result<Vec<u8>, PackError> {
    let filter = Filter::parse(wasm)?;
    let address = filter.pages * PAGE;
    let pages = (address + packs.len() as u64).div_ceil(PAGE);
    if pages > 16384 {
        return Err(PackError::new(format!(
            "the packs need {pages} pages of memory, a VM has 16384; pack fewer models"
        )));
    }
    let mut descriptor = DESCRIPTOR_MAGIC.to_le_bytes().to_vec();
    descriptor.extend_from_slice(&(address as u32).to_le_bytes());
    descriptor.extend_from_slice(&(packs.len() as u32).to_le_bytes());

    let mut module = Module::new();
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(broken)? {
            Payload::MemorySection(section) => {
                let mut memories = MemorySection::new();
                for memory in section {
                    let memory = memory.map_err(broken)?;
                    memories.memory(MemoryType {
                        minimum: pages,
                        maximum: memory.maximum.map(|max| max.max(pages)),
                        memory64: memory.memory64,
                        shared: memory.shared,
                        page_size_log2: memory.page_size_log2,
                    });
                }
                module.section(&memories);
            }
            Payload::ExportSection(section) => {
                let mut exports = ExportSection::new();
                for export in section {
                    let export = export.map_err(broken)?;
                    if !filter.unused.lines().any(|name| name == export.name) {
                        let kind = match export.kind {
                            ExternalKind::Func | ExternalKind::FuncExact => ExportKind::Func,
                            ExternalKind::Table => ExportKind::Table,
                            ExternalKind::Memory => ExportKind::Memory,
                            ExternalKind::Global => ExportKind::Global,
                            ExternalKind::Tag => ExportKind::Tag,
                        };
                        exports.export(export.name, kind, export.index);
                    }
                }
                module.section(&exports);
            }
            Payload::DataCountSection { .. } => {
                module.section(&DataCountSection { count: filter.segments.len() as u32 + 2 });
            }
            Payload::DataSection(_) => {
                let mut data = DataSection::new();
                for segment in &filter.segments {
                    data.raw(&wasm[segment.range.start as usize..segment.range.end as usize]);
                }
                data.active(0, &ConstExpr::i32_const(address as i32), packs.iter().copied());
                data.active(0, &ConstExpr::i32_const(filter.descriptor as i32), descriptor.iter().copied());
                module.section(&data);
            }
            Payload::CustomSection(section) if section.name() == CUSTOM => {}
            other => {
                if let Some((id, range)) = other.as_section() {
                    module.section(&RawSection { id, data: &wasm[range.start as usize..range.end as usize] });
                }
            }
        }
    }
    let before = filter.pages.to_le_bytes();
    module.section(&CustomSection { name: CUSTOM.into(), data: Cow::Borrowed(&before) });
    Ok(module.finish())
}

fn broken(e: impl std::fmt::Display) -> PackError {
    PackError::new(format!("damaged wasm: {e}; build or copy it again"))
}

fn not_ours(what: &str) -> PackError {
    PackError::new(format!("not kvroute's filter: {what}; give the kvroute.wasm of this release"))
}

impl<'a> Filter<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, PackError> {
        if !is_wasm(bytes) {
            return Err(not_ours("not a wasm module"));
        }
        let (mut pages, mut before, mut global, mut globals, mut segments) = (None, None, None, Vec::new(), Vec::new());
        let mut unused = "";
        for payload in Parser::new(0).parse_all(bytes) {
            match payload.map_err(broken)? {
                Payload::MemorySection(section) => {
                    for memory in section {
                        pages = Some(memory.map_err(broken)?.initial);
                    }
                }
                Payload::GlobalSection(section) => {
                    for item in section {
                        globals.push(i32_const(&item.map_err(broken)?.init_expr));
                    }
                }
                Payload::ExportSection(section) => {
                    for export in section {
                        let export = export.map_err(broken)?;
                        if export.name == DESCRIPTOR_EXPORT && export.kind == ExternalKind::Global {
                            global = Some(export.index as usize);
                        }
                    }
                }
                Payload::DataSection(section) => {
                    for segment in section {
                        segments.push(segment.map_err(broken)?);
                    }
                }
                Payload::CustomSection(section) if section.name() == UNUSED => {
                    unused = std::str::from_utf8(section.data()).map_err(broken)?;
                }
                Payload::CustomSection(section) if section.name() == CUSTOM => {
                    before = section.data().first_chunk().map(|b| u64::from_le_bytes(*b));
                }
                _ => {}
            }
        }
        let pages = pages.ok_or_else(|| not_ours("no memory"))?;
        // No global of the filter is imported, so export indices count from the section's first.
        let descriptor = global.and_then(|index| globals.get(index).copied().flatten());
        let descriptor = descriptor.ok_or_else(|| not_ours("the descriptor of its packs is not exported"))?;
        if !segments.iter().any(|s| magic_at(s, descriptor)) {
            return Err(not_ours("the descriptor of its packs has another layout"));
        }
        let mut packs = None;
        if before.is_some() {
            let ours = segments.len().checked_sub(2).ok_or_else(|| broken("its packs are gone"))?;
            packs = Some(segments[ours].data);
            segments.truncate(ours);
        }
        Ok(Filter { descriptor, pages: before.unwrap_or(pages), unused, segments, packs })
    }
}

fn i32_const(expr: &wasmparser::ConstExpr<'_>) -> Option<u32> {
    match expr.get_operators_reader().into_iter().next()?.ok()? {
        Operator::I32Const { value } => Some(value as u32),
        _ => None,
    }
}

fn magic_at(segment: &wasmparser::Data<'_>, descriptor: u32) -> bool {
    let DataKind::Active { offset_expr, .. } = &segment.kind else { return false };
    let Some(offset) = i32_const(offset_expr).and_then(|base| descriptor.checked_sub(base)) else { return false };
    let bytes = segment.data.get(offset as usize..offset as usize + DESCRIPTOR_LEN);
    bytes.is_some_and(|b| b.starts_with(&DESCRIPTOR_MAGIC.to_le_bytes()))
}
