//! The hub over HTTP: what a revision has, and a file's bytes, whole or from where they broke off.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::StreamExt;
use reqwest::header::{ACCEPT_ENCODING, HeaderMap, RANGE};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, redirect};
use ring::digest::{SHA256, digest};
use serde::Deserialize;

use super::Progress;
use super::cache::RepoCache;
use crate::bridge::facts::plain;

/// Tries of one file; each goes on where the last one ended.
const TRIES: u32 = 5;
/// A file of tokenizers has up to 35 MB; more than this is none.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The hub.
#[derive(Clone, Debug)]
pub struct Remote {
    endpoint: String,
    token: Option<String>,
    /// Stays on the hub, whose answers say what a file is before they send elsewhere for its bytes.
    asks: Client,
    /// Follows to wherever the bytes are; the token does not.
    loads: Client,
}

/// What a revision is.
#[derive(Clone, Debug)]
pub struct Listing {
    /// Its commit.
    pub commit: String,
    /// Paths of all files.
    pub files: Vec<String>,
}

/// Why the hub did not tell.
#[derive(Clone, Debug)]
pub enum Failure {
    /// Nobody answers: what the cache has may do.
    Unreachable(String),
    /// It says no, and why.
    Refused(String),
}

/// What the hub says of a file.
struct Metadata {
    etag: String,
    size: Option<u64>,
}

impl Remote {
    /// Nothing is asked yet.
    pub fn new(endpoint: &str, token: Option<String>) -> Result<Remote> {
        let builder = || {
            Client::builder()
                .user_agent(concat!("kvroute/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(Duration::from_secs(10))
                .read_timeout(Duration::from_secs(30))
        };
        let same_host = redirect::Policy::custom(|attempt| {
            let hosts = |url: &reqwest::Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
            let stays = attempt.previous().first().is_some_and(|first| hosts(first) == hosts(attempt.url()));
            if stays && attempt.previous().len() < 10 { attempt.follow() } else { attempt.stop() }
        });
        Ok(Remote {
            endpoint: endpoint.to_owned(),
            token,
            asks: builder().redirect(same_host).build()?,
            loads: builder().build()?,
        })
    }

    fn request(&self, client: &Client, method: Method, path: &str) -> RequestBuilder {
        let request = client.request(method, format!("{}{path}", self.endpoint)).header(ACCEPT_ENCODING, "identity");
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// What a revision is, and which files it has.
    pub async fn listing(&self, id: &str, revision: &str) -> Result<Listing, Failure> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            #[serde(default)]
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let path = format!("/api/models/{id}/revision/{}", escaped(revision));
        let answer = self.request(&self.asks, Method::GET, &path).send().await;
        let answer = answer.map_err(|error| Failure::Unreachable(plain(&error)))?;
        if answer.status().is_server_error() {
            return Err(Failure::Unreachable(answer.status().to_string()));
        }
        if !answer.status().is_success() {
            return Err(Failure::Refused(self.refusal(id, revision, &answer)));
        }
        let info: Info = answer.json().await.map_err(|error| {
            let what = format!("{}{path}: no answer of the hub ({}): check HF_ENDPOINT", self.endpoint, plain(&error));
            Failure::Refused(what)
        })?;
        if !super::is_commit(&info.sha) {
            return Err(Failure::Refused(format!("{}{path}: {:?} is no commit", self.endpoint, info.sha)));
        }
        Ok(Listing { commit: info.sha, files: info.siblings.into_iter().map(|file| file.rfilename).collect() })
    }

    /// What is wrong, and what to do about it.
    fn refusal(&self, id: &str, revision: &str, answer: &Response) -> String {
        let header = |name: &str| text(answer.headers(), name).unwrap_or_default();
        let (code, status) = (header("x-error-code"), answer.status());
        let page = format!("{}/{id}", self.endpoint);
        let with_token = self.token.is_some();
        match (status.as_u16(), code) {
            (_, "GatedRepo") if with_token => format!(
                "{id} is gated, and the account of HF_TOKEN has no access: accept its terms at {page} with that account, and give the token the right to read gated models"
            ),
            (_, "GatedRepo") => {
                format!("{id} is gated: accept its terms at {page}, then set HF_TOKEN to a token of that account")
            }
            (404, "RevisionNotFound") => {
                format!("{id} has no revision {revision}: {page}/tree/main lists branches and tags (--revision)")
            }
            (401, _) if with_token => {
                format!("there is no model {id}, or HF_TOKEN may not read it: check the name at {page}, and the token")
            }
            (401 | 404, _) => {
                format!("there is no model {id} at {}: check the name; if it is private set HF_TOKEN", self.endpoint)
            }
            (403, _) => format!("{id}: 403, HF_TOKEN may not read it: {}", header("x-error-message")),
            (429, _) => format!("{page}: 429, too many requests: wait, or set HF_TOKEN"),
            _ => format!("{page}: {status} {}", header("x-error-message")),
        }
    }

    /// Brings a file of a commit into the cache.
    pub async fn download(
        &self,
        id: &str,
        commit: &str,
        file: &str,
        cache: &RepoCache,
        progress: Progress<'_>,
    ) -> Result<()> {
        let path = format!("/{id}/resolve/{commit}/{file}");
        let metadata = self.metadata(id, commit, &path).await?;
        let (blob, incomplete) = cache.blob(&metadata.etag)?;
        let lock = cache.lock(&metadata.etag)?;
        let mut tries = 1;
        while !blob.is_file() {
            match self.load(&path, &incomplete, file, &metadata, progress).await {
                Ok(()) => {
                    check(&incomplete, &metadata)?;
                    fs::rename(&incomplete, &blob).with_context(|| blob.display().to_string())?;
                }
                Err(error) if tries == TRIES => {
                    return Err(error).with_context(|| {
                        format!("{id}: {file}: given up after {TRIES} tries; another run goes on where this one ended")
                    });
                }
                Err(_) => tries += 1,
            }
        }
        cache.link(commit, file, &metadata.etag)?;
        drop(lock);
        Ok(())
    }

    async fn metadata(&self, id: &str, commit: &str, path: &str) -> Result<Metadata> {
        let answer = self.request(&self.asks, Method::HEAD, path).send().await;
        let answer = answer.map_err(|error| anyhow::anyhow!("{}{path}: {}", self.endpoint, plain(&error)))?;
        let status = answer.status();
        ensure!(status.is_success() || status.is_redirection(), "{}", self.refusal(id, commit, &answer));
        let headers = answer.headers();
        let etag = text(headers, "x-linked-etag").or_else(|| text(headers, "etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let plain = |etag: &String| {
            !etag.is_empty()
                && etag.len() <= 128
                && etag.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        let etag = etag.filter(plain).with_context(|| {
            format!("{}{path}: no ETag that names the file, as the hub gives it: check HF_ENDPOINT", self.endpoint)
        })?;
        let size =
            text(headers, "x-linked-size").or_else(|| text(headers, "content-length").filter(|_| status.is_success()));
        Ok(Metadata { etag, size: size.and_then(|size| size.parse().ok()) })
    }

    /// Adds what is missing to a file.
    async fn load(
        &self,
        path: &str,
        incomplete: &Path,
        name: &str,
        metadata: &Metadata,
        progress: Progress<'_>,
    ) -> Result<()> {
        let at = || incomplete.display().to_string();
        let mut have = fs::metadata(incomplete).map_or(0, |meta| meta.len());
        match metadata.size {
            Some(size) if have == size => return Ok(()),
            // More than there is: it belongs to something else.
            Some(size) if have > size => {
                fs::remove_file(incomplete).with_context(at)?;
                have = 0;
            }
            _ => {}
        }
        let mut request = self.request(&self.loads, Method::GET, path);
        if have > 0 {
            request = request.header(RANGE, format!("bytes={have}-"));
        }
        let answer = request.send().await.map_err(|error| anyhow::anyhow!("{}", plain(&error)))?;
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {}
            StatusCode::OK => have = 0,
            StatusCode::RANGE_NOT_SATISFIABLE => {
                fs::remove_file(incomplete).with_context(at)?;
                bail!("the rest of the file cannot be had");
            }
            status => bail!("{}{path}: {status}", self.endpoint),
        }
        let mut options = OpenOptions::new();
        let mut out: File =
            options.create(true).write(true).append(have > 0).truncate(have == 0).open(incomplete).with_context(at)?;
        let total = metadata.size.or_else(|| Some(have + answer.content_length()?)).unwrap_or(0);
        let mut body = answer.bytes_stream();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| anyhow::anyhow!("{}", plain(&error)))?;
            have += chunk.len() as u64;
            ensure!(have <= MAX_FILE_BYTES, "{name}: more than {MAX_FILE_BYTES} bytes: this is no file of a tokenizer");
            out.write_all(&chunk).with_context(at)?;
            progress(name, have, total);
        }
        if let Some(size) = metadata.size {
            ensure!(have == size, "{have} of {size} bytes came");
        }
        Ok(())
    }
}

/// A large file's ETag is its SHA-256.
fn check(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.etag.len() != 64 {
        return Ok(());
    }
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    let sum: String = digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    if !sum.eq_ignore_ascii_case(&metadata.etag) {
        fs::remove_file(path).with_context(|| path.display().to_string())?;
        bail!("the hub says that its SHA-256 is {}, what came has {sum}: try again", metadata.etag);
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A revision is one segment of the path.
fn escaped(revision: &str) -> String {
    revision.replace('+', "%2B").replace('@', "%40").replace('/', "%2F")
}
