//! Asks the admin instance of a running gateway.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::de::DeserializeOwned;

use crate::look::{Choice, EXPLAIN_PATH, SECRET_HEADER, STATE_PATH, WorkerState};

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
    /// What was said, the file first; `None`: nothing, or a blank.
    pub fn read(&self) -> Result<Option<String>> {
        let secret = match &self.secret_file {
            Some(file) => Some(std::fs::read_to_string(file).with_context(|| file.display().to_string())?),
            None => self.secret.clone(),
        };
        Ok(secret.map(|secret| secret.trim().to_owned()).filter(|secret| !secret.is_empty()))
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
        self.ask(STATE_PATH, None)
    }

    /// What one worker, or all, would do with `body` on `path`.
    pub fn explain(&self, path: &str, body: &[u8]) -> Result<Vec<Choice>> {
        self.ask(&explain_query(path, None), Some(body))
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
        let secret = match (&self.secret_file, &self.secret) {
            (Some(file), _) => std::fs::read_to_string(file).with_context(|| file.display().to_string())?,
            (None, Some(secret)) => secret.clone(),
            (None, None) => bail!("no secret: give --secret-file, or set KVROUTE_SECRET"),
        };
        Ok(secret.trim().to_owned())
    }

    fn ask<T: Answer>(&self, path: &str, body: Option<&[u8]>) -> Result<Vec<T>> {
        let (url, secret) = (self.url(path)?, self.secret()?);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.collect(&url, &secret, body))
    }

    async fn collect<T: Answer>(&self, url: &str, secret: &str, body: Option<&[u8]>) -> Result<Vec<T>> {
        let patience = Duration::from_secs(self.timeout.max(1));
        // A connection belongs to one worker, so each request takes a new one.
        let client = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().timeout(patience).build()?;
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
