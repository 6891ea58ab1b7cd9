//! The filter's file: where it is, and the one with a model in it, kept so that it is made only once.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xxhash_rust::xxh3::Xxh3;

use crate::pack::build::{self, BuildOptions};
use crate::pack::wasm;

/// The plain filter: the file that was `given`, else what `KVROUTE_WASM` names, else `kvroute.wasm` beside this
/// program, else what cargo has built.
pub fn find_filter(given: Option<&Path>) -> Result<PathBuf> {
    let named = given.map(|path| ("--wasm", path.to_owned()));
    let named = named.or_else(|| Some(("KVROUTE_WASM", std::env::var_os("KVROUTE_WASM")?.into())));
    if let Some((who, path)) = named {
        anyhow::ensure!(path.is_file(), "{who}: there is no file {}", path.display());
        return Ok(path);
    }
    const BUILT: &str = "wasm32-wasip1/release/kvroute.wasm";
    let beside = std::env::current_exe().ok().and_then(|exe| {
        let dir = exe.parent()?.to_owned();
        // target/PROFILE/kvroute: the filter's own target stands beside the profile.
        Some([dir.join("kvroute.wasm"), dir.parent()?.join(BUILT)])
    });
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let mut places = beside.into_iter().flatten().chain([target.join(BUILT)]);
    places.find(|path| path.is_file()).context(
        "the filter, kvroute.wasm, is neither beside this program nor where cargo builds it: give --wasm, set \
         KVROUTE_WASM, or build it (cargo build --release --lib --target wasm32-wasip1)",
    )
}

/// The filter with the model of a directory in it, from `cache` if it was made before of the same files by the same
/// program. `packing` is called before the long work.
pub fn packed_filter(
    cache: &Path,
    filter: &Path,
    model: &Path,
    options: &BuildOptions,
    packing: impl FnOnce(),
) -> Result<PathBuf> {
    let plain = std::fs::read(filter).with_context(|| filter.display().to_string())?;
    let mut hash = Xxh3::new();
    hash.update(&std::fs::read(std::env::current_exe()?)?);
    for part in [&plain[..], build::fingerprint(model, options)?.as_bytes()] {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.update(format!("{options:?}").as_bytes());
    let dir = cache.join("filters");
    let name = options.name.as_deref().or_else(|| model.file_name()?.to_str()).unwrap_or("model");
    let plain_name: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '-' }).collect();
    let file = dir.join(format!("{plain_name}-{:032x}.wasm", hash.digest128()));
    if file.is_file() {
        return Ok(file);
    }
    packing();
    // The filter first: what is not the filter is said before the long work.
    wasm::extract(&plain).with_context(|| filter.display().to_string())?;
    let pack = build::build(model, options)?;
    let made = wasm::embed(&plain, &pack)?;
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let temporary = file.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&temporary, made).with_context(|| temporary.display().to_string())?;
    std::fs::rename(&temporary, &file).with_context(|| file.display().to_string())?;
    Ok(file)
}
