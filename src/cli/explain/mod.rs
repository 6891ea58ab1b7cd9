//! `kvroute explain`: why a request goes where it goes.

mod text;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use super::ask::{GatewayArgs, Header};
use super::models::{Chosen, Models, now};
use super::table::{Paint, show};
use crate::explain::{Explanation, explain};
use crate::nokey::{NoKey, NoKeyReason};
use crate::request::{Api, Body, EngineFlags, salt};

const EXAMPLES: &str = r#"Examples:
  kvroute explain --pack qwen3.pack request.json
  echo '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}' |
    kvroute explain --pack qwen3.pack
  kvroute explain --pack qwen3.pack --path /v1/completions --json body.json | jq .token_ids
  kvroute explain --pack models.wasm --config router.json --header 'x-tenant: a' request.json
  kvroute explain --gateway http://127.0.0.1:10100 --secret-file secret --all-workers body.json
  kvroute explain --gateway http://127.0.0.1:10100 --secret-file secret --brief body.json"#;

/// Shows what a request comes to: prompt, token ids, block hashes, or why it has no key.
///
/// With --pack it is worked out here. With --gateway a running gateway works it out in its own filter, and adds
/// what each replica holds of the prompt, its load, its cost, and the pick. Nothing is sent to a replica or booked;
/// the worker that answers tokenizes the whole prompt at a stretch, some tens of milliseconds for 100,000 tokens.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The request's body; "-" is standard input.
    #[arg(default_value = "-", value_name = "BODY")]
    body: PathBuf,
    /// The request's path, which names the API [default: /v1/completions for a body with a prompt and no messages, else
    /// /v1/chat/completions]
    #[arg(long)]
    path: Option<String>,
    /// A header that the request comes with, 'x-tenant: a' say, for where tenant_salt.header makes a salt of one; once
    /// for each
    #[arg(long = "header", value_name = "NAME: VALUE", value_parser = Header::parse)]
    headers: Vec<Header>,
    /// A pack, or a filter with packs.
    #[arg(long, value_name = "FILE", required_unless_present = "gateway")]
    pack: Option<PathBuf>,
    /// The router's plugin configuration: models, block sizes, engine flags, seed. The options below stand in for it.
    #[arg(long, value_name = "FILE", requires = "pack", conflicts_with_all = ["model", "block_size", "engine", "hash_seed"])]
    config: Option<PathBuf>,
    /// The pack to take where the file has several, and the model's name in the block hashes.
    #[arg(long, value_name = "NAME", requires = "pack")]
    model: Option<String>,
    /// Tokens per block.
    #[arg(long, default_value_t = 16, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..=4096))]
    block_size: u32,
    /// Flags of the engine as in the plugin configuration, '{"reasoning_parser": "qwen3"}' say.
    #[arg(long, value_name = "JSON", requires = "pack")]
    engine: Option<String>,
    /// The deployment's seed.
    #[arg(long, default_value = "", value_name = "TEXT")]
    hash_seed: String,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Every block in the table, however many there are.
    #[arg(long)]
    all_blocks: bool,
    /// Neither the prompt nor the table of blocks.
    #[arg(long, conflicts_with_all = ["all_blocks", "json"])]
    brief: bool,
    /// JSON: one object; with --gateway a list with one object per worker.
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub fn run(args: ExplainArgs) -> Result<ExitCode> {
    let body = read_body(&args.body)?;
    let style = text::Style { all_blocks: args.all_blocks, brief: args.brief, paint: Paint::new() };
    let here = args.pack.as_deref().map(|pack| explain_here(&args, pack, &body)).transpose()?;
    if args.gateway.gateway.is_none() {
        if let Some(here) = here {
            match args.json {
                true => show(&format!("{}\n", serde_json::to_string(&here)?))?,
                false => show(&text::explanation(&here, style))?,
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    let workers = args.gateway.explain(args.path(&body), &args.headers, &body)?;
    if args.json {
        show(&format!("{}\n", serde_json::to_string(&workers)?))?;
    } else {
        let shown = workers.first().map(|first| first.explanation.clone()).unwrap_or_default();
        let choices: Vec<String> = workers.iter().map(|worker| text::choice(worker, &shown, style.paint)).collect();
        let (above, below) = (text::explanation(&shown, style), text::legend(&workers));
        show(&format!("{above}\n{}{below}", choices.join("\n")))?;
    }
    match here.filter(|here| workers.iter().any(|worker| !worker.explanation.agrees(here))) {
        Some(_) => bail!("the gateway comes to another key than --pack: its pack, configuration or clock differs"),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn read_body(path: &Path) -> Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path).with_context(|| path.display().to_string());
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body).context("standard input")?;
    Ok(body)
}

impl ExplainArgs {
    /// The path, or that of the API that such a body belongs to.
    fn path(&self, body: &[u8]) -> &str {
        let has = |name| {
            let fields = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body);
            fields.is_ok_and(|fields| fields.contains_key(name))
        };
        match &self.path {
            Some(path) => path,
            None if has("prompt") && !has("messages") => "/v1/completions",
            None => "/v1/chat/completions",
        }
    }
}

fn explain_here(args: &ExplainArgs, pack: &Path, body: &[u8]) -> Result<Explanation> {
    let models = Models::read(pack, args.config.as_deref())?;
    ensure!(
        args.headers.is_empty() || args.config.is_some(),
        "--header: which header is the salt of a tenant stands in the router's configuration: give --config"
    );
    let tenant = args.headers.iter().find(|header| models.tenant_header() == Some(header.name.as_str()));
    let tenant = tenant.map(|header| header.value.as_bytes()).filter(|salt| !salt.is_empty());
    let parsed = (|| {
        let path = args.path(body);
        let api = Api::of_check(path, &models.paths())
            .ok_or_else(|| NoKeyReason::new(NoKey::NotOurPath, format!("no API has the path {path:?}")))?;
        let sent = Body::parse(body)?;
        Ok((api, tenant.map_or(Ok(sent), |tenant| Body::parse(&salt::of_tenant(body, tenant)?))?))
    })();
    let (api, body) = match parsed {
        Ok(parsed) => parsed,
        Err(reason) => return Ok(Explanation::without_key(reason)),
    };
    let chosen = match models.configured(body.model()) {
        Some(Ok(chosen)) => chosen,
        Some(Err(reason)) => return Ok(Explanation::without_key(reason)),
        None => {
            let flags = match &args.engine {
                Some(json) => serde_json::from_str(json).context("--engine")?,
                None => EngineFlags::default(),
            };
            // Without a configuration any name in the request will do where there is one pack.
            let name = args.model.as_deref().or(body.model());
            let pack = models.pack_of(name)?.name().to_owned();
            let name = args.model.clone().unwrap_or_else(|| pack.clone());
            Chosen { name, lora: None, pack, flags, block_size: args.block_size, hash_seed: args.hash_seed.clone() }
        }
    };
    let ready = models.ready(chosen)?;
    ready.renderer.warnings().iter().for_each(|warning| eprintln!("kvroute: {}: {warning}", ready.chosen.pack));
    Ok(explain(&ready.model(), api, &body, now()))
}
