//! The few files of a model that decide token ids, from the Hugging Face hub or from its cache on this machine.
//!
//! `Qwen/Qwen3-0.6B` becomes a directory `models--Qwen--Qwen3-0.6B/snapshots/COMMIT` of the hub's own cache, which
//! Python's `huggingface_hub` and the engines share: what they have downloaded is used, what is downloaded here they
//! find. Weights are never touched.
//!
//! | step | module |
//! |---|---|
//! | environment: `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_HUB_OFFLINE` | this one |
//! | the cache: refs, blobs, snapshots, what is known not to exist | [`cache`] |
//! | requests, redirects, refusals with their mend | [`remote`] |

pub mod cache;
pub mod remote;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use cache::RepoCache;
use remote::{Failure, Remote};

/// The files that [`crate::pack::build`] reads, where a model has them.
pub const FILES: [&str; 6] = [
    "config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "special_tokens_map.json",
];

/// The hub as the environment has it.
#[derive(Clone, Debug)]
pub struct Hub {
    /// Where it is.
    pub endpoint: String,
    /// Its cache on this machine.
    pub cache: PathBuf,
    /// Who asks.
    pub token: Option<String>,
    /// Nothing may be asked.
    pub offline: bool,
}

/// A model's files at one commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The directory with them.
    pub dir: PathBuf,
    /// The commit.
    pub commit: String,
    /// Files that were downloaded now.
    pub downloaded: usize,
    /// Why what the cache has was taken as it is.
    pub note: Option<String>,
}

/// Told of bytes: the file, how many there are and how many there will be.
pub type Progress<'a> = &'a (dyn Fn(&str, u64, u64) + Sync);

impl Hub {
    /// Reads the environment as `huggingface_hub` does.
    pub fn from_env() -> Result<Hub> {
        Hub::of(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(var: &dyn Fn(&str) -> Option<String>) -> Result<Hub> {
        let home = var("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(PathBuf::from(var("XDG_CACHE_HOME")?).join("huggingface")));
        let home = home.or_else(|| Some(PathBuf::from(var("HOME")?).join(".cache/huggingface")));
        let cache = var("HF_HUB_CACHE").or_else(|| var("HUGGINGFACE_HUB_CACHE")).map(PathBuf::from);
        let cache = cache.or_else(|| Some(home.as_ref()?.join("hub")));
        let on = |name: &str| {
            var(name).is_some_and(|v| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE"))
        };
        let file = var("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = var("HF_TOKEN").or_else(|| var("HUGGING_FACE_HUB_TOKEN"));
        let token = token.or_else(|| std::fs::read_to_string(file?).ok());
        Ok(Hub {
            endpoint: var("HF_ENDPOINT").unwrap_or("https://huggingface.co".into()).trim_end_matches('/').to_owned(),
            cache: cache.context("no place for the hub's cache: set HF_HOME")?,
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
            offline: on("HF_HUB_OFFLINE") || on("TRANSFORMERS_OFFLINE"),
        })
    }

    /// The files of a model at a revision: a branch, a tag or a commit.
    pub async fn fetch(&self, id: &str, revision: &str, progress: Progress<'_>) -> Result<Snapshot> {
        ensure!(is_id(id), "{id:?} is no model of the hub: write ORG/NAME");
        ensure!(is_revision(revision), "--revision {revision:?}: no branch, tag or commit has such a name");
        let cache = RepoCache::new(&self.cache, id);
        if self.offline {
            return cached(&cache, revision, "HF_HUB_OFFLINE is set").with_context(|| {
                format!(
                    "{id} at {revision} is not in {}, and HF_HUB_OFFLINE is set: unset it, or give the model's directory",
                    self.cache.display()
                )
            });
        }
        // What a commit has never changes.
        if is_commit(revision) && cache.is_complete(revision) {
            return Ok(Snapshot { dir: cache.snapshot(revision), commit: revision.into(), downloaded: 0, note: None });
        }
        let remote = Remote::new(&self.endpoint, self.token.clone())?;
        match remote.listing(id, revision).await {
            Ok(listing) => {
                refuse_mistral(id, &listing.files)?;
                if revision != listing.commit {
                    cache.write_ref(revision, &listing.commit)?;
                }
                let mut downloaded = 0;
                for file in FILES {
                    if cache.has(&listing.commit, file) {
                        continue;
                    }
                    if !listing.files.iter().any(|name| name == file) {
                        cache.note_absent(&listing.commit, file)?;
                        continue;
                    }
                    remote.download(id, &listing.commit, file, &cache, progress).await?;
                    downloaded += 1;
                }
                let dir = cache.snapshot(&listing.commit);
                ensure!(dir.is_dir(), "{id}: none of the files that decide token ids is in it: {}", FILES.join(", "));
                Ok(Snapshot { dir, commit: listing.commit, downloaded, note: None })
            }
            Err(Failure::Unreachable(why)) => {
                let because = format!("{} cannot be reached ({why})", self.endpoint);
                cached(&cache, revision, &because).with_context(|| {
                    format!(
                        "{because}, and {id} at {revision} is not in {}: give the model's directory, set HF_ENDPOINT to a mirror, or bring the cache from a machine that has it",
                        self.cache.display()
                    )
                })
            }
            Err(Failure::Refused(why)) => bail!("{why}"),
        }
    }
}

/// What the cache has of a revision, which may not be the newest.
fn cached(cache: &RepoCache, revision: &str, because: &str) -> Result<Snapshot> {
    let commit = cache.commit_of(revision).context("the cache has no such revision")?;
    let needed = ["tokenizer.json", "tokenizer_config.json"];
    let missing = needed.iter().find(|file| !cache.has(&commit, file));
    ensure!(missing.is_none(), "the cache has no {} of it", missing.copied().unwrap_or_default());
    let note = format!("{because}: taking {commit} from the cache");
    Ok(Snapshot { dir: cache.snapshot(&commit), commit, downloaded: 0, note: Some(note) })
}

/// What [`crate::pack::build`] refuses by the files beside the tokenizer, which are not downloaded.
fn refuse_mistral(id: &str, files: &[String]) -> Result<()> {
    match crate::pack::build::mistral_file(files) {
        None => Ok(()),
        Some(own) => bail!(
            "{id}: engines use Mistral's own tokenizer and renderer here ({own} with consolidated*.safetensors), which kvroute does not have; start the engine with --tokenizer-mode hf and pack a directory without these files"
        ),
    }
}

/// Whether a text can be the name of a model on the hub, rather than a path.
pub fn is_id(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let named = |part: &&str| {
        !part.is_empty()
            && part.chars().all(plain)
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("..")
            && !part.contains("--")
    };
    parts.len() <= 2 && text.len() <= 96 && parts.iter().all(named)
}

fn is_revision(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+@".contains(c);
    let parts = || text.split('/');
    !text.is_empty() && text.len() <= 255 && text.chars().all(plain) && parts().all(|p| !matches!(p, "" | "." | ".."))
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Where a model's files are: a directory that exists, or the name of a model on the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory.
    Directory(PathBuf),
    /// A model of the hub.
    Hub(String),
}

impl Source {
    /// What a text means; a directory wins.
    pub fn of(text: &Path) -> Result<Source> {
        if text.is_dir() {
            return Ok(Source::Directory(text.to_owned()));
        }
        match text.to_str().filter(|text| is_id(text)) {
            Some(id) => Ok(Source::Hub(id.to_owned())),
            None => bail!("{}: not a directory, and no model of the hub has such a name", text.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_is_read_as_python_does() {
        let of = |vars: &[(&str, &str)]| {
            let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            Hub::of(&var).unwrap()
        };
        let plain = of(&[("HOME", "/h")]);
        assert_eq!((plain.endpoint.as_str(), plain.offline, plain.token), ("https://huggingface.co", false, None));
        assert_eq!(plain.cache, Path::new("/h/.cache/huggingface/hub"));
        let all = of(&[
            ("HF_HOME", "/hf"),
            ("HOME", "/h"),
            ("HF_ENDPOINT", "http://mirror/"),
            ("HF_TOKEN", " t\n"),
            ("HF_HUB_OFFLINE", "true"),
        ]);
        assert_eq!((all.endpoint.as_str(), all.token.as_deref(), all.offline), ("http://mirror", Some("t"), true));
        assert_eq!(all.cache, Path::new("/hf/hub"));
        assert_eq!(of(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]).cache, Path::new("/c"));
        assert_eq!(of(&[("XDG_CACHE_HOME", "/x")]).cache, Path::new("/x/huggingface/hub"));
        assert!(Hub::of(&|_| None).is_err());
    }

    #[test]
    fn names_and_revisions_are_told_from_paths() {
        for id in ["Qwen/Qwen3-0.6B", "gpt2", "a/b_c.d"] {
            assert!(is_id(id), "{id}");
        }
        for other in ["./model", "/model", "a/b/c", "../x", "a/..", "", "a/", "a b/c", "-a/b", "a/b--c"] {
            assert!(!is_id(other), "{other}");
        }
        for revision in ["main", "refs/pr/1", "v1.0", &"a".repeat(40)] {
            assert!(is_revision(revision), "{revision}");
        }
        for other in ["", "../x", "a//b", "/a", "a?b"] {
            assert!(!is_revision(other), "{other}");
        }
        assert!(Source::of(Path::new("./not/there")).is_err());
        assert_eq!(Source::of(Path::new("src")).unwrap(), Source::Directory("src".into()));
    }
}
