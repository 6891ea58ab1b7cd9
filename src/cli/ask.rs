//! Asks the admin instance of a running gateway.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::look::{Choice, EXPLAIN_PATH, SECRET_HEADER, STATE_PATH, WorkerState};

/// The secret that was given, the file first; `None`: nothing was, or a blank. A file with nothing in it is a mistake.
pub fn given_secret(file: Option<&Path>, text: Option<&str>) -> Result<Option<String>> {
    let Some(file) = file else {
        return Ok(text.map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned));
    };
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    ensure!(!text.trim().is_empty(), "{}: the secret is empty", file.display());
    Ok(Some(text.trim().to_owned()))
}

/// The same, for a command that cannot do without.
pub fn needed_secret(file: Option<&Path>, text: Option<&str>) -> Result<String> {
    given_secret(file, text)?.context("no secret: give --secret-file, or set KVROUTE_SECRET")
}

/// The secret, for a command that otherwise takes it from Envoy's configuration.
#[derive(Debug, Args)]
pub struct KnownSecret {
    /// File with the secret, where Envoy's configuration has it not
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The secret itself
    #[arg(long, env = "KVROUTE_SECRET", hide_env_values = true, value_name = "TEXT")]
    secret: Option<String>,
}

impl KnownSecret {
    /// See [`given_secret`].
    pub fn read(&self) -> Result<Option<String>> {
        given_secret(self.secret_file.as_deref(), self.secret.as_deref())
    }
}

/// A header that a request is to have: `NAME: VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// In lower case.
    pub name: reqwest::header::HeaderName,
    /// Its value.
    pub value: reqwest::header::HeaderValue,
}

impl Header {
    /// Reads it, as curl takes it.
    pub fn parse(text: &str) -> Result<Header, String> {
        let (name, value) = text.split_once(':').ok_or_else(|| format!("{text:?}: write 'NAME: VALUE'"))?;
        let parsed = name.trim().parse().map_err(|_| format!("{name:?} is no name of a header"))?;
        let value = value.trim().parse().map_err(|_| format!("{name}: a value that no header can have"))?;
        // These say how the question itself comes, and who asks.
        if ["host", "content-length", "content-type", "transfer-encoding", "connection", SECRET_HEADER]
            .contains(&name.trim().to_ascii_lowercase().as_str())
        {
            return Err(format!("{}: it decides nothing", name.trim()));
        }
        Ok(Header { name: parsed, value })
    }
}

/// Where the gateway is, and who may ask.
#[derive(Debug, Args)]
pub struct GatewayArgs {
    /// The gateway's listener for the feed, http://127.0.0.1:10100 say.
    #[arg(long, value_name = "URL")]
    pub gateway: Option<String>,
    /// File with the secret that router, admin and bridge share.
    #[arg(long, value_name = "FILE", requires = "gateway")]
    secret_file: Option<PathBuf>,
    /// The secret itself, for where it comes by the environment.
    #[arg(long, env = "KVROUTE_SECRET", hide_env_values = true, value_name = "TEXT")]
    secret: Option<String>,
    /// Ask until every worker of Envoy has answered. Without it one answers: the one that gets the connection.
    #[arg(long, requires = "gateway")]
    pub all_workers: bool,
    /// How long to go on asking, in seconds.
    #[arg(long, default_value_t = 10, value_name = "SECONDS", requires = "gateway")]
    timeout: u64,
}

/// An answer that says which worker it comes from.
pub trait Answer: DeserializeOwned {
    /// The worker's slot.
    fn slot(&self) -> Option<u32>;
    /// The slots that could have answered.
    fn live_slots(&self) -> &[u32];
}

impl Answer for WorkerState {
    fn slot(&self) -> Option<u32> {
        self.slot
    }
    fn live_slots(&self) -> &[u32] {
        &self.live_slots
    }
}

impl Answer for Choice {
    fn slot(&self) -> Option<u32> {
        self.slot
    }
    fn live_slots(&self) -> &[u32] {
        &self.live_slots
    }
}

impl GatewayArgs {
    /// The state of one worker, or of all.
    pub fn state(&self) -> Result<Vec<WorkerState>> {
        self.ask(STATE_PATH, &[], None)
    }

    /// What one worker, or all, would do with `body` on `path`, if it came with these headers.
    pub fn explain(&self, path: &str, headers: &[Header], body: &[u8]) -> Result<Vec<Choice>> {
        self.ask(&explain_query(path, None), headers, Some(body))
    }

    /// Asks one question after another, of whichever worker has the connection.
    pub fn asker(&self) -> Result<Asker> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(self.timeout.max(1))).build()?;
        Ok(Asker { runtime, client, url: self.url("")?, secret: self.secret()? })
    }

    fn url(&self, path: &str) -> Result<String> {
        let gateway = self.gateway.as_deref().context("--gateway is missing: the URL of the feed's listener")?;
        Ok(format!("{}{path}", gateway.trim_end_matches('/')))
    }

    fn secret(&self) -> Result<String> {
        needed_secret(self.secret_file.as_deref(), self.secret.as_deref())
    }

    fn ask<T: Answer>(&self, path: &str, headers: &[Header], body: Option<&[u8]>) -> Result<Vec<T>> {
        let (url, secret) = (self.url(path)?, self.secret()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.collect(&url, &secret, headers, body))
    }

    async fn collect<T: Answer>(
        &self,
        url: &str,
        secret: &str,
        headers: &[Header],
        body: Option<&[u8]>,
    ) -> Result<Vec<T>> {
        let patience = Duration::from_secs(self.timeout.max(1));
        let headers = headers.iter().map(|header| (header.name.clone(), header.value.clone())).collect();
        // A connection belongs to one worker, so each request takes a new one.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().timeout(patience);
        let client = client.default_headers(headers).build()?;
        let deadline = Instant::now() + patience;
        let mut answers: BTreeMap<Option<u32>, T> = BTreeMap::new();
        loop {
            let answer: T = once(&client, url, secret, body).await?;
            let live = answer.live_slots().to_vec();
            // An answer with a slot is worth more than one of a worker that has none yet.
            answers.insert(answer.slot(), answer);
            let missing: Vec<u32> = live.into_iter().filter(|slot| !answers.contains_key(&Some(*slot))).collect();
            if !self.all_workers || missing.is_empty() {
                return Ok(answers.into_values().collect());
            }
            if Instant::now() >= deadline {
                bail!("no answer from slots {missing:?} within {} s; is a worker stuck? (--timeout)", self.timeout);
            }
        }
    }
}

/// See [`GatewayArgs::asker`].
pub struct Asker {
    runtime: tokio::runtime::Runtime,
    client: reqwest::Client,
    url: String,
    secret: String,
}

impl Asker {
    /// What a worker makes of `body` on `path` at a time (`None`: now).
    pub fn explain(&self, path: &str, unix_seconds: Option<u64>, body: &[u8]) -> Result<Choice> {
        let url = format!("{}{}", self.url, explain_query(path, unix_seconds));
        self.runtime.block_on(once(&self.client, &url, &self.secret, Some(body)))
    }
}

/// The path goes into a query: what would end it is percent-encoded.
fn explain_query(path: &str, unix_seconds: Option<u64>) -> String {
    let path: String = path.bytes().map(encoded).collect();
    let now = unix_seconds.map(|now| format!("&now={now}")).unwrap_or_default();
    format!("{EXPLAIN_PATH}?path={path}{now}")
}

async fn once<T: Answer>(client: &reqwest::Client, url: &str, secret: &str, body: Option<&[u8]>) -> Result<T> {
    let request = match body {
        Some(body) => client.post(url).header("content-type", "application/json").body(body.to_vec()),
        None => client.get(url),
    };
    let response = request.header(SECRET_HEADER, secret).send().await.with_context(|| format!("cannot ask {url}"))?;
    let status = response.status();
    let text = response.text().await.with_context(|| format!("{url}: no whole answer"))?;
    match status.as_u16() {
        200 => serde_json::from_str(&text).with_context(|| format!("{url}: an answer that this kvroute cannot read")),
        401 => bail!("{url}: 401, the secret is not the gateway's"),
        // In its own answers the filter says what is wrong.
        400 | 503 if text.starts_with("{\"error\"") => bail!("{url}: {status} {}", text.trim()),
        _ => bail!("{url}: {status}, no admin instance there: --gateway is the listener that the bridge posts to"),
    }
}

fn encoded(byte: u8) -> String {
    match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_comes_first_and_a_blank_is_no_secret() {
        let file = std::env::temp_dir().join(format!("kvroute-given-secret-{}", std::process::id()));
        std::fs::write(&file, " of the file\n").unwrap();
        assert_eq!(given_secret(Some(&file), Some("text")).unwrap().as_deref(), Some("of the file"));
        assert_eq!(given_secret(None, Some(" text\n")).unwrap().as_deref(), Some("text"));
        assert_eq!(given_secret(None, Some(" \n")).unwrap(), None);
        assert_eq!(given_secret(None, None).unwrap(), None);
        let none = needed_secret(None, Some("")).unwrap_err().to_string();
        assert!(none.contains("--secret-file"), "{none}");
        std::fs::write(&file, "\n").unwrap();
        let empty = given_secret(Some(&file), Some("text")).unwrap_err().to_string();
        assert!(empty.ends_with("the secret is empty"), "{empty}");
        std::fs::remove_file(&file).unwrap();
        assert!(given_secret(Some(&file), None).is_err());
    }
}
