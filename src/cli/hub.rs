//! `MODEL` of the command line: a directory, or a model of the hub whose files are brought.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};

use crate::hub::{Hub, Source};

/// A model's directory.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    /// Where its files are.
    pub dir: PathBuf,
    /// What it is called where nobody says it.
    pub name: String,
    /// What people should know.
    pub notes: Vec<String>,
}

/// Finds a directory, or brings the files of a model of the hub.
pub fn model_files(model: &Path, revision: &str) -> Result<ModelFiles> {
    let id = match Source::of(model)? {
        Source::Directory(dir) => {
            let full = dir.canonicalize().with_context(|| dir.display().to_string())?;
            let name = full.file_name().context("the directory has no name; give one with --name")?;
            return Ok(ModelFiles { name: name.to_string_lossy().into_owned(), dir, notes: Vec::new() });
        }
        Source::Hub(id) => id,
    };
    let hub = Hub::from_env()?;
    let bar = Mutex::new(ProgressBar::hidden());
    let progress = |file: &str, have: u64, total: u64| {
        let Ok(mut bar) = bar.lock() else { return };
        if bar.message() != file {
            bar.finish_and_clear();
            *bar = bar_of(file);
        }
        bar.set_length(total);
        bar.set_position(have);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let snapshot = runtime.block_on(hub.fetch(&id, revision, &progress));
    if let Ok(bar) = bar.lock() {
        bar.finish_and_clear();
    }
    let snapshot = snapshot?;
    let mut notes: Vec<String> = snapshot.note.into_iter().collect();
    if snapshot.downloaded > 0 {
        let commit = &snapshot.commit;
        notes.push(format!("{id} at {commit}: {} files into {}", snapshot.downloaded, hub.cache.display()));
    }
    Ok(ModelFiles { dir: snapshot.dir, name: id, notes })
}

fn bar_of(file: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:24} {bar:40} {bytes}/{total_bytes} {bytes_per_sec}");
    let bar = ProgressBar::new(0).with_message(file.to_owned());
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
