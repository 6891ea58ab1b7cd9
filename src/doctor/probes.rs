//! Requests of its own: are the filter's token ids the engine's, and does a second turn find what the first has left?

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::engines::Engines;
use super::feed::Feed;
use super::proxy::Proxy;
use super::{Level, Report, Target};
use crate::bridge::facts::{Facts, plain};
use crate::conform::cases::Case;
use crate::conform::engine::{Engine, Kind, Truth};
use crate::conform::{Difference, Verdict, judge};
use crate::look::{Choice, EXPLAIN_PATH, SECRET_HEADER, WAKE_PATH};

const CHAT: &str = "/v1/chat/completions";
/// Conversations of each model: one alone finds its replica by chance too often.
const CONVERSATIONS: usize = 3;
/// How long the admin instance may take.
const EXPLAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// A day, for templates that print the date.
const DAY: u64 = 86_400;

/// Lets every worker see a request: it takes part from its first POST on. A new connection goes to any of them.
pub async fn wake(client: &reqwest::Client, proxy: &Proxy) {
    let Some(url) = &proxy.url else { return };
    for _ in 0..(proxy.workers * 8).min(64) {
        let request = client.post(format!("{url}{WAKE_PATH}")).header("connection", "close");
        if request.timeout(Duration::from_secs(5)).send().await.is_err() {
            return;
        }
    }
}

/// Makes the probes of each model.
pub async fn look(
    client: &reqwest::Client,
    target: &Target,
    proxy: &Proxy,
    engines: &Engines,
    feed: &Feed,
    report: &mut Report,
) {
    let models = proxy.config.iter().flat_map(|config| &config.models);
    for model in models.filter(|model| model.enabled) {
        let serving: Vec<(&String, &Facts)> =
            engines.iter().filter(|(_, facts)| facts.served(&model.name).is_some()).collect();
        if serving.is_empty() {
            continue;
        }
        if let (Some(ingest), Some(secret)) = (&proxy.ingest, &proxy.secret) {
            let asker = Explain { client, url: format!("{ingest}{EXPLAIN_PATH}"), secret };
            ids(&asker, &model.name, &serving, report).await;
        }
        if let Some(url) = &proxy.url {
            let talk =
                Talk { client, target, proxy, url, feed, steered: !model.shadow && model.rollout_percent >= 100.0 };
            if !talk.steered {
                let what = match model.shadow {
                    true => "it is in shadow mode".to_owned(),
                    false => format!("{} % of its conversations are routed", model.rollout_percent),
                };
                let why = "second turns go by load alone, or some do: whether they find what the first ones left is not judged";
                let mend = "set models[].shadow to false and rollout_percent to 100 once you trust it";
                report.add(Level::Note, "not_all_steered", &model.name, [&what, why, mend]);
            }
            talk.look(&model.name, model.block_size, &serving, report).await;
        }
    }
}

/// Asks the admin instance what it makes of a request.
struct Explain<'a> {
    client: &'a reqwest::Client,
    url: String,
    secret: &'a str,
}

impl Explain<'_> {
    /// `None`: no such instance, or another secret, which others say.
    async fn of(&self, path: &str, now: Option<u64>, body: &str) -> Option<Choice> {
        let now = now.map(|now| format!("&now={now}")).unwrap_or_default();
        let request = self.client.post(format!("{}?path={path}{now}", self.url)).header(SECRET_HEADER, self.secret);
        let request = request.header("content-type", "application/json").header("connection", "close");
        let answer = request.timeout(EXPLAIN_TIMEOUT).body(body.to_owned()).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// Requests whose ids are compared: one turn, and two, as far as templates take a system message.
fn bodies(model: &str) -> Vec<String> {
    let question = message("user", "Grüße! What is 7 × 6? Answer in one word, please.");
    let system = message("system", "You are a careful assistant.\nBe brief.");
    let turns = [question.clone(), message("assistant", "42"), message("user", "And 7 + 6?")];
    let body = |messages: Vec<Value>| json!({"model": model, "messages": messages, "max_tokens": 1}).to_string();
    vec![body(vec![system, question.clone()]), body(turns.to_vec()), body(vec![question])]
}

/// Compares prompts with each engine's.
async fn ids(asker: &Explain<'_>, model: &str, serving: &[(&String, &Facts)], report: &mut Report) {
    let bodies = bodies(model);
    date(asker, model, &bodies[1], report).await;
    let mut compared = 0;
    for (address, facts) in serving {
        let Ok(engine) = Engine::new(&format!("http://{address}")) else { continue };
        for body in &bodies {
            let case = Case { endpoint: CHAT.into(), body: body.clone(), status: 200, ..Case::default() };
            let Some(ours) = asker.of(CHAT, None, body).await else { return };
            let harmony =
                ours.explanation.prompt.as_deref().is_some_and(|p| p.starts_with("<|start|>system<|message|>"));
            let kind = match facts.engine {
                Some("sglang") => Kind::Sglang,
                _ if harmony => Kind::Harmony,
                _ => Kind::Vllm,
            };
            let Ok(Truth::Known(case, _)) = engine.truth(&case, kind).await else { continue };
            let ours = match case.endpoint == CHAT {
                true => ours,
                // The engine has only another endpoint, which renders a little differently.
                false => match asker.of(&case.endpoint, None, body).await {
                    Some(ours) => ours,
                    None => return,
                },
            };
            match judge(&case, &ours.explanation) {
                Verdict::Differs(difference) => {
                    differs(address, model, &difference, report);
                    break;
                }
                Verdict::Refused(reason) => {
                    let what = format!("the filter has no key for a plain chat: {}, {}", reason.reason, reason.detail);
                    let why = "requests for this model go by load alone";
                    let mend = "kvroute explain shows where it ends; pack the model again, and give models[].engine the engine's flags";
                    report.add(Level::Error, "no_key_for_chat", address, [&what, why, mend]);
                    break;
                }
                Verdict::Identical => compared += 1,
                Verdict::Limit(_) | Verdict::EngineRefused { .. } => {}
            }
        }
    }
    report.checked.push(format!("{model}: {compared} prompts have the engines' own token ids"));
    if compared == 0 && !report.findings.iter().any(|f| matches!(f.id, "ids_differ" | "no_key_for_chat")) {
        let why = "whether the filter's tokens are the engine's is not known";
        let mend = "let the engines be reached from here; vLLM has /tokenize, kvroute conform takes recorded cases";
        report.add(Level::Warning, "ids_unknown", model, ["no engine told its token ids", why, mend]);
    }
}

fn differs(address: &str, model: &str, difference: &Difference, report: &mut Report) {
    let what = match (&difference.text, &difference.tokens) {
        (Some(text), _) => format!(
            "{model}: prompts differ at line {}, column {}: the engine has {:?}, the filter {:?}",
            text.line,
            text.column,
            short(&text.expected),
            short(&text.got)
        ),
        (None, Some(ids)) => format!(
            "{model}: token ids differ from number {}: the engine has {:?}, the filter {:?}",
            ids.index, ids.expected, ids.got
        ),
        (None, None) => format!("{model}: token ids differ"),
    };
    let why = "blocks behind that place have other hashes: what is cached of them is never found";
    let mend = format!(
        "give models[].engine the flags that the engine was started with (--chat-template, --default-chat-template-kwargs, --tool-call-parser, …), or pack the files that it serves; kvroute conform --engine http://{address} shows the place"
    );
    report.add(Level::Error, "ids_differ", address, [&what, why, &mend]);
}

fn short(text: &str) -> String {
    text.chars().take(24).collect()
}

/// Whether the template prints the date, or worse the time.
async fn date(asker: &Explain<'_>, model: &str, body: &str, report: &mut Report) {
    let noon = 1_767_960_000;
    let mut prompts = Vec::new();
    for now in [noon, noon + 61, noon + DAY] {
        match asker.of(CHAT, Some(now), body).await.and_then(|choice| choice.explanation.prompt) {
            Some(prompt) => prompts.push(prompt),
            None => return,
        }
    }
    if prompts[0] != prompts[1] {
        let what = "the chat template prints the time";
        let why = "every minute all prompts are new: hardly anything cached is found";
        let mend = "start the engines with a --chat-template without it, and give the filter the same";
        report.add(Level::Error, "template_time", model, [what, why, mend]);
    } else if prompts[0] != prompts[2] {
        let why =
            "at the engines' midnight all prompts are new, and where the filter's day is another nothing is found";
        let mend = "set models[].engine.utc_offset_minutes to the engines' offset from UTC (0 where they run in UTC, as containers do)";
        report.add(Level::Note, "template_date", model, ["the chat template prints the date", why, mend]);
    }
}

/// Conversations of two turns, through the gateway.
struct Talk<'a> {
    client: &'a reqwest::Client,
    target: &'a Target,
    proxy: &'a Proxy,
    url: &'a str,
    feed: &'a Feed,
    /// Every conversation is to be routed.
    steered: bool,
}

/// What an answer says.
struct Answer {
    text: String,
    prompt_tokens: u64,
    /// `None`: it does not say.
    cached: Option<u64>,
}

impl Talk<'_> {
    async fn look(&self, model: &str, block_size: u32, serving: &[(&String, &Facts)], report: &mut Report) {
        let consequence = report.findings.iter().any(|finding| finding.level == Level::Error);
        let (mut hits, mut told, before) = (0, true, self.hits(serving).await);
        let (mut found, mut prompt_tokens) = (true, 0);
        for _ in 0..CONVERSATIONS {
            let mut messages = vec![message("user", &words(block_size))];
            let first = match self.send(model, &messages).await {
                Ok(first) => first,
                Err(finding) => {
                    let [what, why, mend] = &finding;
                    report.add(Level::Error, "request_fails", model, [what, why, mend]);
                    return;
                }
            };
            messages.extend([message("assistant", &first.text), message("user", "And in other words?")]);
            // What has not come once is not waited for again.
            found = found && self.arrives(model, block_size, &messages).await;
            match self.send(model, &messages).await {
                Ok(second) => {
                    prompt_tokens += second.prompt_tokens;
                    told &= second.cached.is_some();
                    hits += usize::from(second.cached.unwrap_or(0) >= u64::from(block_size));
                }
                Err([what, why, mend]) => {
                    report.add(Level::Error, "request_fails", model, [&what, &why, &mend]);
                    return;
                }
            }
        }
        report.checked.push(format!("{model}: {CONVERSATIONS} conversations of two turns"));
        if !found && !consequence {
            let what = format!("{model}: what a first turn left never came under the filter's hashes");
            let why = "the engines' events and the filter speak of different blocks: nothing cached is found";
            let mend = "compare model name, block size and hash_seed of filter and bridge; kvroute conform tells whether the tokens are the same";
            report.add(Level::Error, "events_do_not_match", model, [&what, why, mend]);
        }
        if !told {
            let what = format!("{model}: answers do not say how many prompt tokens were cached");
            let why = "what is believed of a cache is not checked against what its engine found, nor blocks from before a gap confirmed";
            let mend = match serving.iter().any(|(_, facts)| facts.engine == Some("sglang")) {
                true => "start the engines with --enable-cache-report",
                false => "start the engines with --enable-prompt-tokens-details",
            };
            report.add(Level::Warning, "no_cached_tokens", model, [&what, why, mend]);
            // The engines' own counters, where others use them too: half is enough.
            let by_metrics = self.hits(serving).await.saturating_sub(before);
            hits = if by_metrics * 2 >= prompt_tokens { CONVERSATIONS } else { hits };
        }
        if hits < CONVERSATIONS && self.steered {
            let what =
                format!("{model}: {} of {CONVERSATIONS} second turns found nothing cached", CONVERSATIONS - hits);
            let why = "this is what the gateway is there for";
            let mend = match consequence {
                true => "mend the errors above first",
                false => {
                    "kvroute explain --gateway shows what is believed and picked; if the pick is right Envoy does not follow it (stateful_session, override_host, health)"
                }
            };
            report.add(Level::Error, "second_turn_misses", model, [&what, why, mend]);
        }
    }

    /// Prompt tokens that the engines found cached so far.
    async fn hits(&self, serving: &[(&String, &Facts)]) -> u64 {
        let mut sum = 0;
        for (address, _) in serving {
            let facts = Facts::ask(self.client, &format!("http://{address}")).await;
            sum += facts.ok().and_then(|facts| facts.reading).map_or(0, |reading| reading.hits);
        }
        sum
    }

    async fn send(&self, model: &str, messages: &[Value]) -> Result<Answer, [String; 3]> {
        let body = json!({"model": model, "messages": messages, "max_tokens": 8, "temperature": 0}).to_string();
        let request = self.client.post(format!("{}{CHAT}", self.url)).header("content-type", "application/json");
        let failed =
            |what: String, mend: &str| [what, "clients of this model see the same".to_owned(), mend.to_owned()];
        let answer = match request.timeout(self.target.timeout).body(body).send().await {
            Ok(answer) => answer,
            Err(error) if error.is_timeout() => {
                let what = format!("a chat request got no answer within {} s", self.target.timeout.as_secs());
                return Err(failed(
                    what,
                    "set allow_on_headers_stop_iteration: true in the filter's plugin configuration, and see that the engines answer when asked themselves",
                ));
            }
            Err(error) => {
                let what = format!("a chat request failed: {}", plain(&error));
                return Err(failed(what, "Envoy's log and its /clusters tell more"));
            }
        };
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap_or_default();
        if status != 200 {
            let what = format!("a chat request was answered {status}: {}", text.chars().take(160).collect::<String>());
            let mend = match status {
                401 | 403 => "the engines ask for a key that doctor has not: start it with --no-requests",
                413 => "lower limits.buffer_limit_bytes to what Envoy holds (per_connection_buffer_limit_bytes)",
                503 => "Envoy has no healthy replica, or the filter's VM is down: Envoy's log tells",
                _ => "ask an engine the same, past the gateway",
            };
            return Err(failed(what, mend));
        }
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let usage = &value["usage"];
        Ok(Answer {
            text: value["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned(),
            prompt_tokens: usage["prompt_tokens"].as_u64().unwrap_or(0),
            cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
        })
    }

    /// Waits until every worker knows, by events, which replica has the conversation. True also where that cannot be
    /// known.
    async fn arrives(&self, model: &str, block_size: u32, messages: &[Value]) -> bool {
        let (Some(ingest), Some(secret)) = (&self.proxy.ingest, &self.proxy.secret) else { return true };
        let exact = |worker: &crate::look::WorkerState| worker.replicas.iter().any(|replica| replica.trust == "exact");
        if !self.feed.workers.iter().any(exact) {
            return true;
        }
        let asker = Explain { client: self.client, url: format!("{ingest}{EXPLAIN_PATH}"), secret };
        let body = json!({"model": model, "messages": messages}).to_string();
        let (deadline, mut known) = (Instant::now() + self.target.patience, BTreeMap::new());
        while Instant::now() < deadline {
            let Some(choice) = asker.of(CHAT, None, &body).await else { return true };
            let confirmed = choice.candidates.iter().any(|candidate| {
                candidate.matched_blocks * u64::from(block_size)
                    > candidate.predicted_tokens + candidate.unconfirmed_tokens + u64::from(block_size)
            });
            known.insert(choice.slot, confirmed);
            if choice.live_slots.iter().all(|slot| known.get(&Some(*slot)) == Some(&true)) {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

/// A text that nobody has sent before, of some blocks.
fn words(block_size: u32) -> String {
    let word = || format!("{:x} ", rand::random::<u32>() & 0xfff);
    (0..(block_size * 4).clamp(64, 2048)).map(|_| word()).collect()
}
