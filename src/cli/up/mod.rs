//! `kvroute up`: the whole gateway, Envoy and bridge, in one command.

mod engine;
mod replicas;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::ask::{given_secret, needed_secret};
use super::hub::{ModelFiles, model_files};
use super::table::show;
use crate::bridge::facts::Facts;
use crate::check::{self, Level, Source};
use crate::gateway::supervise::Stream;
use crate::gateway::{self, Bootstrap, Gateway, free_address};
use crate::pack::build::{BuildOptions, SourceOptions};
use engine::{Known, Told};
use replicas::{Given, Patterns, Replicas};

const EXAMPLES: &str = r#"Examples:
  kvroute up --model Qwen/Qwen3-0.6B --replica http://10.0.0.1:8000 --replica http://10.0.0.2:8000
  kvroute up --model MODEL_DIR --replica http://vllm:8000 --kv tcp://{host}:5557 --replay tcp://{host}:5558 \
    --listen 0.0.0.0:80 -- --enable-auto-tool-choice --tool-call-parser hermes
  kvroute up --model MODEL_DIR --replica http://10.0.0.1:8000 --print-config > envoy.yaml

Exit codes: 0 ended by a signal, 1 Envoy or the bridge ended by itself, or could not be started."#;

/// Room for prompts of 16 MiB, and for bodies that come without a length.
const BUFFER_LIMIT: u32 = 16 << 20;

/// Runs the whole gateway: the model packed into the filter, Envoy with a complete configuration, and the bridge.
///
/// What the arguments leave out the engines are asked for: the model's names, block size, version and length, and
/// where they publish their KV events (vLLM 0.32; with others say --kv). Logs come in one stream, on standard error.
/// SIGINT and SIGTERM let the answers under way end, then stop both.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The model's directory, or its name on the Hugging Face hub
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,
    /// Branch, tag or commit of a model on the hub
    #[arg(long, default_value = "main")]
    revision: String,
    /// A replica: http://HOST:PORT[,kv=tcp://IP:PORT][,replay=…][,topic=T][,ranks=N][,name=NAME]; once for each. The
    /// host is looked up once, at the start, and each of its addresses is a replica
    #[arg(long = "replica", value_name = "URL", required = true, value_parser = Given::parse)]
    replicas: Vec<Given>,
    /// Where the replicas publish KV events, tcp://{host}:5557 say; {host} is each one's address
    #[arg(long, value_name = "PATTERN")]
    kv: Option<String>,
    /// Where their events can be asked for again, tcp://{host}:5558 say
    #[arg(long, value_name = "PATTERN")]
    replay: Option<String>,
    /// The name under which the replicas serve the model [default: what they say]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Tokens per block of the engines [default: what they say]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    block_size: Option<u32>,
    /// What changes prompts and is no flag of the engine, as in the filter's models[].engine: '{"transformers": "5.21"}'
    #[arg(long, value_name = "JSON")]
    engine: Option<String>,
    /// Where clients connect
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:10000")]
    listen: SocketAddr,
    /// Envoy's own admin interface
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9901")]
    admin: SocketAddr,
    /// Where the bridge posts, and `kvroute state` and `explain` ask
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:10100")]
    ingest: SocketAddr,
    /// Where the bridge serves snapshots and metrics
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7070")]
    bridge: SocketAddr,
    /// Worker threads of Envoy, each with an index of its own [default: one for each processor, at most 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    concurrency: Option<u32>,
    /// File with the secret that filter and bridge share [default: one is made, in the cache]
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The secret itself
    #[arg(long, env = "KVROUTE_SECRET", hide_env_values = true, value_name = "TEXT")]
    secret: Option<String>,
    /// Path of the replicas' health check
    #[arg(long, value_name = "PATH", default_value = "/health")]
    health_path: String,
    /// How long answers under way may take at the end, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain_s: u64,
    /// Where the bridge keeps the caches over a restart
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// The filter [default: KVROUTE_WASM, else kvroute.wasm beside this program, else what cargo has built]
    #[arg(long, value_name = "FILE")]
    wasm: Option<PathBuf>,
    /// Envoy [default: ENVOY_BIN, else envoy of the PATH, else .kvroute/envoy]
    #[arg(long = "envoy", value_name = "FILE")]
    envoy_binary: Option<PathBuf>,
    /// Where packed filters are kept [default: $XDG_CACHE_HOME/kvroute, else ~/.cache/kvroute]
    #[arg(long, value_name = "DIR", env = "KVROUTE_CACHE")]
    cache: Option<PathBuf>,
    /// Accept a base model without a chat template: chat requests get no key
    #[arg(long)]
    allow_no_template: bool,
    /// Print Envoy's configuration and the bridge's command instead of running them
    #[arg(long)]
    print_config: bool,
    /// Flags that the engines are started with: those that change prompts are taken over
    #[arg(last = true, value_name = "ENGINE FLAGS")]
    engine_flags: Vec<String>,
}

/// Everything that is run.
struct Plan {
    bootstrap: Bootstrap,
    concurrency: u32,
    bridge: Vec<String>,
    secret_file: Option<PathBuf>,
}

/// Runs it.
pub fn run(mut args: Args) -> Result<ExitCode> {
    let stream = Stream::default();
    // Only to be looked at: whatever is there may be running.
    let envoy = (!args.print_config).then(|| find_envoy(args.envoy_binary.as_deref())).transpose()?;
    if !args.print_config {
        args.choose_ports()?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let plan = args.plan(&runtime, stream)?;
    let config = plan.bootstrap.to_json(Path::new(""));
    judge(&config, stream)?;
    let Some(envoy) = envoy else {
        show(&plan.text(&config)?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let gateway = Gateway {
        envoy,
        config,
        concurrency: plan.concurrency,
        secret: plan.bootstrap.secret.clone(),
        replicas: plan.bootstrap.replicas.len(),
        drain: Duration::from_secs(args.drain_s),
        ready: plan.ready(),
        bridge: plan.bridge,
    };
    // On this thread, which lasts: see `Part::start`.
    runtime.block_on(gateway.run(stream))?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Finds a port where 0 was said, and that the others are free: Envoys would share one without a word.
    fn choose_ports(&mut self) -> Result<()> {
        for (flag, at) in [
            ("--listen", &mut self.listen),
            ("--admin", &mut self.admin),
            ("--ingest", &mut self.ingest),
            ("--bridge", &mut self.bridge),
        ] {
            if at.port() == 0 {
                at.set_port(free_address()?.port());
            }
            TcpListener::bind(*at).with_context(|| format!("{flag} {at}: give another address"))?;
        }
        Ok(())
    }

    fn plan(&self, runtime: &tokio::runtime::Runtime, stream: Stream) -> Result<Plan> {
        let flags = engine::flags(self.engine.as_deref(), &self.engine_flags)?;
        let cache = cache_dir(self.cache.as_deref())?;
        let ModelFiles { dir, name: pack_name, notes } = model_files(&self.model, &self.revision).context("--model")?;
        notes.iter().for_each(|note| stream.say("up", note));
        let filter = gateway::find_filter(self.wasm.as_deref())?;
        let options = BuildOptions {
            name: Some(pack_name.clone()),
            source: SourceOptions {
                allow_no_template: self.allow_no_template,
                hf_overrides: overrides(flags.get("hf_overrides"))?,
                tokenizer: flags.get("tokenizer").and_then(Value::as_str).map(PathBuf::from),
                ..SourceOptions::default()
            },
        };
        let say = || {
            stream.say(
                "up",
                &format!("packing {}, and comparing its ids with the tokenizers crate", self.model.display()),
            )
        };
        let packed = gateway::packed_filter(&cache, &filter, &dir, &options, say)?;

        let replicas = runtime.block_on(Replicas::resolve(&self.replicas))?;
        let answers = runtime.block_on(ask(&replicas));
        let told = Told {
            name: self.served_model_name.clone(),
            default_name: pack_name.clone(),
            block_size: self.block_size,
            flags,
        };
        let Known { name, mut model, notes } = engine::known(&told, &answers)?;
        notes.iter().for_each(|note| stream.say("up", note));
        if pack_name != name {
            model["pack"] = pack_name.into();
        }
        let (secret, secret_file) = self.secret(&cache)?;
        let patterns = Patterns { kv: self.kv.clone(), replay: self.replay.clone() };
        let processors = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(4));
        let bootstrap = Bootstrap {
            wasm: packed,
            ingest_wasm: Some(filter.canonicalize()?),
            public: vec![self.listen],
            ingest: self.ingest,
            admin: self.admin,
            replicas: replicas.addresses(),
            bridge: Some(self.bridge),
            secret,
            secret_env: Some("KVROUTE_SECRET".into()),
            // A receipt is for whoever has the secret.
            router: json!({"models": [model], "receipts": {"explain": true}}),
            health_path: Some(self.health_path.clone()),
            buffer_limit: Some(BUFFER_LIMIT),
            ..Bootstrap::default()
        };
        let mut bridge = vec!["bridge".to_owned(), "--envoy".into(), format!("http://{}", self.ingest)];
        bridge.extend(["--listen".to_owned(), self.bridge.to_string()]);
        if let Some(file) = &self.checkpoint {
            bridge.extend(["--checkpoint".to_owned(), file.display().to_string()]);
        }
        for spec in replicas.specs(&name, &patterns)? {
            bridge.extend(["--replica".to_owned(), spec]);
        }
        Ok(Plan { bootstrap, concurrency: self.concurrency.unwrap_or(processors.min(4)), bridge, secret_file })
    }

    /// The secret, and the file that has it.
    fn secret(&self, cache: &Path) -> Result<(String, Option<PathBuf>)> {
        if let Some(secret) = given_secret(self.secret_file.as_deref(), self.secret.as_deref())? {
            return Ok((secret, self.secret_file.clone()));
        }
        let path = cache.join("secret");
        if !path.exists() {
            make_secret(&path)?;
        }
        Ok((needed_secret(Some(&path), None)?, Some(path)))
    }
}

impl Plan {
    fn ready(&self) -> String {
        let (public, ingest) = (self.bootstrap.public[0], self.bootstrap.ingest);
        let model = &self.bootstrap.router["models"][0];
        let names: Vec<String> = self.bootstrap.replicas.iter().map(SocketAddr::to_string).collect();
        let (secret, value) = match &self.secret_file {
            Some(file) => (format!(" --secret-file {}", file.display()), format!("$(cat {})", file.display())),
            None => (String::new(), "$KVROUTE_SECRET".to_owned()),
        };
        format!(
            "ready: http://{public} serves {} from {}\n\
             why a request went where it went: add -H 'x-kvroute-explain: 1' -H \"x-kvroute-secret: {value}\" to it\n\
             look: kvroute state --gateway http://{ingest}{secret} --all-workers\n\
             check: kvroute doctor --admin http://{}{secret}",
            model["name"].as_str().unwrap_or_default(),
            names.join(", "),
            self.bootstrap.admin,
        )
    }

    /// The configuration as a file of one's own, and how it is run.
    fn text(&self, config: &Value) -> Result<String> {
        let bridge: Vec<String> = self.bridge.iter().map(|word| quoted(word)).collect();
        let secret = match &self.secret_file {
            Some(file) => format!("$(cat {})", quoted(&file.display().to_string())),
            None => "…".to_owned(),
        };
        Ok(format!(
            "# Written by kvroute up --print-config; envoy/envoy.yaml has the same with comments.\n\
             # export KVROUTE_SECRET={secret}\n\
             # envoy -c envoy.yaml --concurrency {}\n\
             # kvroute {}\n{}",
            self.concurrency,
            bridge.join(" "),
            serde_norway::to_string(config)?
        ))
    }
}

/// As a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,[]{}@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What `kvroute check-config` says of it: an error ends it, a warning is told.
fn judge(config: &Value, stream: Stream) -> Result<()> {
    let report = check::check(config.to_string().as_bytes(), &Source::default(), None);
    for finding in &report.findings {
        let mend = finding.mend.as_ref().map(|mend| format!("; {mend}")).unwrap_or_default();
        match finding.level {
            Level::Error => bail!("{}{mend}", finding.what),
            Level::Warning => stream.say("up", &format!("warning: {}{mend}", finding.what)),
            Level::Note => {}
        }
    }
    Ok(())
}

async fn ask(replicas: &Replicas) -> Vec<(String, Result<Facts, String>)> {
    let client = reqwest::Client::builder().no_proxy().connect_timeout(Duration::from_secs(2)).build();
    let asked = replicas.addresses().into_iter().map(|at| {
        let client = client.as_ref();
        async move {
            let url = format!("http://{at}");
            let facts = match client {
                Ok(client) => Facts::ask(client, &url).await,
                Err(error) => Err(error.to_string()),
            };
            (url, facts)
        }
    });
    futures::future::join_all(asked).await
}

/// An Envoy that can run the filter.
fn find_envoy(given: Option<&Path>) -> Result<PathBuf> {
    let binary = match given {
        Some(path) => path.to_owned(),
        None => gateway::envoy_binary()?,
    };
    let version = gateway::envoy_version(&binary)?;
    let number = crate::request::Version::parse(&version);
    ensure!(
        number.is_none_or(|v| v >= crate::request::Version(1, 35, 0)),
        "{} is Envoy {version}, which does not know allow_on_headers_stop_iteration and would hang every request: take 1.35 or newer",
        binary.display()
    );
    Ok(binary)
}

/// `--hf-overrides`, which may be an object or its text.
fn overrides(value: Option<&Value>) -> Result<Option<serde_json::Map<String, Value>>> {
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(serde_json::from_str(text).context("--hf-overrides: no JSON object")?)),
        Some(value) => Ok(Some(serde_json::from_value(value.clone()).context("hf_overrides: no JSON object")?)),
    }
}

/// Where kvroute keeps what it has made.
pub fn cache_dir(given: Option<&Path>) -> Result<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let found = given.map(Path::to_owned).or_else(|| Some(of("XDG_CACHE_HOME")?.join("kvroute")));
    let found = found.or_else(|| Some(of("HOME")?.join(".cache/kvroute")));
    let dir = found.context("--cache: say where packed filters are kept (neither XDG_CACHE_HOME nor HOME is set)")?;
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    Ok(dir)
}

/// Writes a secret that nobody else can read.
fn make_secret(path: &Path) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let at = || path.display().to_string();
    let secret: String = (0..32).map(|_| format!("{:02x}", rand::random::<u8>())).collect();
    let temporary = path.with_extension(std::process::id().to_string());
    let file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    writeln!(file.with_context(at)?, "{secret}").with_context(at)?;
    // Another process may have been first: its secret stays.
    let made = std::fs::hard_link(&temporary, path);
    std::fs::remove_file(&temporary).with_context(at)?;
    match made {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error).with_context(at),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("name=r0,http=http://1.1.1.1:1"), "name=r0,http=http://1.1.1.1:1");
        assert_eq!([quoted("it's"), quoted("")], [r"'it'\''s'".to_owned(), "''".to_owned()]);
    }

    #[test]
    fn the_secret_is_made_once_and_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = std::env::temp_dir().join(format!("kvroute-secret-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("secret");
        make_secret(&path).unwrap();
        let first = std::fs::read_to_string(&path).unwrap();
        make_secret(&path).unwrap();
        assert_eq!((first.trim().len(), std::fs::read_to_string(&path).unwrap()), (64, first.clone()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
