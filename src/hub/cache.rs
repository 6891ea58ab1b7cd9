//! The cache of one model, laid out as `huggingface_hub` does it:
//!
//! ```text
//! models--ORG--NAME/refs/main                 the commit of a branch or tag
//!                   blobs/ETAG                the bytes of a file; ETAG.incomplete while they come
//!                   snapshots/COMMIT/FILE     a link to its blob
//!                   .no_exist/COMMIT/FILE     empty: this commit has no such file
//! .locks/models--ORG--NAME/ETAG.lock          held while a blob is written
//! ```

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{FILES, is_commit};

/// See the module.
#[derive(Clone, Debug)]
pub struct RepoCache {
    dir: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    /// The cache of a model; nothing is made yet.
    pub fn new(cache: &Path, id: &str) -> RepoCache {
        let name = format!("models--{}", id.replace('/', "--"));
        RepoCache { dir: cache.join(&name), locks: cache.join(".locks").join(&name) }
    }

    /// The directory of a commit.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.dir.join("snapshots").join(commit)
    }

    /// The commit that a revision was when it was last asked for.
    pub fn commit_of(&self, revision: &str) -> Option<String> {
        let found = match fs::read_to_string(self.dir.join("refs").join(revision)) {
            Ok(text) => text.trim().to_owned(),
            Err(_) => revision.to_owned(),
        };
        Some(found).filter(|commit| is_commit(commit) && self.snapshot(commit).is_dir())
    }

    /// Notes which commit a revision is.
    pub fn write_ref(&self, revision: &str, commit: &str) -> Result<()> {
        write(&self.dir.join("refs").join(revision), commit.as_bytes())
    }

    /// Whether a commit's file is there, whole.
    pub fn has(&self, commit: &str, file: &str) -> bool {
        self.snapshot(commit).join(file).is_file()
    }

    /// Notes that a commit does not have a file.
    pub fn note_absent(&self, commit: &str, file: &str) -> Result<()> {
        write(&self.absent(commit, file), b"")
    }

    fn absent(&self, commit: &str, file: &str) -> PathBuf {
        self.dir.join(".no_exist").join(commit).join(file)
    }

    /// Whether every file of a commit is there, or known not to exist.
    pub fn is_complete(&self, commit: &str) -> bool {
        FILES.iter().all(|file| self.has(commit, file) || self.absent(commit, file).is_file())
    }

    /// Keeps others from writing a blob while the result lives.
    pub fn lock(&self, etag: &str) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let at = || path.display().to_string();
        fs::create_dir_all(&self.locks).with_context(at)?;
        let file = File::create(&path).with_context(at)?;
        file.lock().with_context(at)?;
        Ok(file)
    }

    /// Where a blob belongs, and where it grows.
    pub fn blob(&self, etag: &str) -> Result<(PathBuf, PathBuf)> {
        let dir = self.dir.join("blobs");
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok((dir.join(etag), dir.join(format!("{etag}.incomplete"))))
    }

    /// Puts a blob into a commit under a name.
    pub fn link(&self, commit: &str, file: &str, etag: &str) -> Result<()> {
        let path = self.snapshot(commit).join(file);
        let at = || path.display().to_string();
        fs::create_dir_all(self.snapshot(commit)).with_context(at)?;
        // A link whose blob is gone.
        let _ = fs::remove_file(&path);
        match std::os::unix::fs::symlink(Path::new("../../blobs").join(etag), &path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            // File systems without links get a copy.
            Err(_) => fs::copy(self.blob(etag)?.0, &path).map(drop).with_context(at),
        }
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let at = || path.display().to_string();
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(at)?;
    fs::write(path, bytes).with_context(at)
}
