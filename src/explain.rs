//! What a request comes to: its prompt, token ids and block hashes, or the reason why it has no key.
//!
//! The request path does the same step by step and stops as soon as it knows enough; here all of it is done at
//! once and kept, for people to look at. `kvroute explain` runs it natively, the admin instance of the filter in
//! the wasm: the same bytes must come to the same [`Explanation`]. The cost is that of tokenizing the whole prompt
//! in one go, so whoever calls it bounds the size of the body first.

use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::blocks::{Chain, TokenId, namespace};
use crate::nokey::{NoKey, NoKeyReason};
use crate::request::{Api, Body, Prepared, PromptInput, Renderer, Truncate, TruncateSide};
use crate::tokenizer::Tokenizer;

/// One model, ready to be asked about.
pub struct Model<'a> {
    /// The name under which its replicas are known: it goes into the block hashes.
    pub name: &'a str,
    /// The LoRA adapter that the request names.
    pub lora: Option<&'a str>,
    /// Its template and engine rules.
    pub renderer: &'a Renderer,
    /// Its tokenizer.
    pub tokenizer: Rc<dyn Tokenizer>,
    /// How many ids the tokenizer's `add_special_tokens` puts in front of a text.
    pub specials_in_front: usize,
    /// Tokens per block of its replicas.
    pub block_size: u32,
    /// The deployment's seed.
    pub hash_seed: &'a str,
}

/// Why there is no key, as JSON has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// The label that metrics and logs use, see [`NoKey`].
    pub reason: String,
    /// What exactly was wrong.
    pub detail: String,
}

impl From<NoKeyReason> for Reason {
    fn from(reason: NoKeyReason) -> Self {
        Reason { reason: reason.kind.label().to_owned(), detail: reason.detail }
    }
}

/// What a request comes to. Fields are filled up to the step that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Explanation {
    /// The API of the path.
    pub api: Option<Api>,
    /// The model's name in the block hashes; the request may have used an alias.
    pub model: Option<String>,
    /// The LoRA adapter, by its name.
    pub lora: Option<String>,
    /// The text that is tokenized; null where the client sent ids.
    pub prompt: Option<String>,
    /// Whether the tokenizer's own special tokens go around the text.
    pub add_special_tokens: bool,
    /// Whether the request has a `cache_salt` (it is not shown: it may be a secret).
    pub cache_salt: bool,
    /// True where the prompt goes on with something that has no key (an image, say).
    pub open_ended: bool,
    /// True where the engine cuts the ids of the prompt to a limit.
    pub truncated: bool,
    /// The ids, as the engine gets them.
    pub token_ids: Vec<TokenId>,
    /// Tokens per block.
    pub block_size: u32,
    /// The key: one hash per full block, in hex.
    pub block_hashes: Vec<String>,
    /// Where in `prompt` each of these blocks ends, in bytes; empty where the tokenizer cannot say.
    pub block_ends: Vec<usize>,
    /// Why there is no key; null where there is one.
    pub no_key: Option<Reason>,
}

impl Explanation {
    /// A request that got no further than `reason`.
    pub fn without_key(reason: NoKeyReason) -> Self {
        Explanation { no_key: Some(reason.into()), ..Explanation::default() }
    }

    /// Whether it comes to the same as `other`, however the two say why there is no key.
    pub fn agrees(&self, other: &Explanation) -> bool {
        let label = |e: &Explanation| e.no_key.as_ref().map(|reason| reason.reason.clone());
        let rest = |e: &Explanation| Explanation { no_key: None, ..e.clone() };
        label(self) == label(other) && rest(self) == rest(other)
    }
}

/// Follows one request body of `api` through rendering, tokenizing and hashing.
pub fn explain(model: &Model<'_>, api: Api, body: &Body, now_unix_seconds: u64) -> Explanation {
    let mut out = Explanation {
        api: Some(api),
        model: Some(model.name.to_owned()),
        lora: model.lora.map(str::to_owned),
        block_size: model.block_size,
        ..Explanation::default()
    };
    if let Err(reason) = fill(model, api, body, now_unix_seconds, &mut out) {
        out.no_key = Some(reason.into());
    }
    out
}

fn fill(model: &Model<'_>, api: Api, body: &Body, now: u64, out: &mut Explanation) -> Result<(), NoKeyReason> {
    let prepared = model.renderer.prepare(api, body, now)?;
    out.add_special_tokens = prepared.add_special_tokens;
    out.cache_salt = prepared.cache_salt.is_some();
    out.open_ended = prepared.open_ended;
    let Tokens { mut ids, mut ends } = tokenize(model, &prepared)?;
    out.prompt = match prepared.input {
        PromptInput::Text(text) => Some(text),
        PromptInput::Pieces(pieces) => Some(pieces.concat()),
        PromptInput::Ids(_) => None,
    };
    if let Some(cut) = prepared.truncate {
        let added = if prepared.add_special_tokens { model.specials_in_front } else { 0 };
        out.truncated = ids.len() > cut.tokens;
        truncate(&mut ids, cut, added);
        truncate(&mut ends, cut, added);
    }
    // The last token of an open end may be another one in the whole prompt, and no block may hold it.
    let keyed = ids.len().saturating_sub(usize::from(prepared.open_ended));
    let root = namespace(model.hash_seed, model.name, model.lora, prepared.cache_salt.as_deref());
    let mut hashes = Vec::new();
    Chain::new(root, model.block_size).extend(ids.get(..keyed).unwrap_or_default(), &mut hashes);
    out.block_hashes = hashes.iter().map(|hash| format!("{:016x}", hash.0)).collect();
    let size = model.block_size.max(1) as usize;
    out.block_ends = ends.iter().skip(size - 1).step_by(size).take(hashes.len()).copied().collect();
    out.token_ids = ids;
    if hashes.is_empty() {
        let detail = format!("{keyed} tokens with a key do not fill one block of {size}");
        return Err(NoKeyReason::new(NoKey::TooShort, detail));
    }
    Ok(())
}

/// Ids, and where in the text each of them ends (empty where that is not known).
struct Tokens {
    ids: Vec<TokenId>,
    ends: Vec<usize>,
}

fn tokenize(model: &Model<'_>, prepared: &Prepared) -> Result<Tokens, NoKeyReason> {
    let pieces = match &prepared.input {
        PromptInput::Ids(ids) => return Ok(Tokens { ids: ids.clone(), ends: Vec::new() }),
        PromptInput::Text(text) => std::slice::from_ref(text),
        PromptInput::Pieces(pieces) => pieces,
    };
    let (mut all, mut before) = (Tokens { ids: Vec::new(), ends: Vec::new() }, 0);
    for text in pieces {
        let ids = model.tokenizer.clone().encode(text, prepared.add_special_tokens);
        let ids = ids.map_err(|error| NoKeyReason::new(NoKey::TokenizerError, error.0))?;
        let ends = model.tokenizer.clone().ends(text, prepared.add_special_tokens).unwrap_or_default();
        all.ids.extend(ids);
        all.ends.extend(ends.into_iter().map(|end| end + before));
        before += text.len();
    }
    if all.ends.len() != all.ids.len() {
        all.ends.clear();
    }
    Ok(all)
}

/// The engine's cut. `in_front` ids were added by the tokenizer and survive where no side was given.
pub(crate) fn truncate<T>(list: &mut Vec<T>, cut: Truncate, in_front: usize) {
    let excess = list.len().saturating_sub(cut.tokens);
    if excess == 0 {
        return;
    }
    match cut.side {
        TruncateSide::Right => list.truncate(cut.tokens),
        TruncateSide::Left => drop(list.drain(..excess)),
        TruncateSide::Default => {
            let from = in_front.min(cut.tokens);
            drop(list.drain(from..from.saturating_add(excess)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::Pack;
    use crate::pack::build::{BuildOptions, build};
    use crate::request::{ApiPaths, EngineFlags};
    use crate::tokenizer::testing::{golden, tokenizer_dir};

    fn cut(tokens: usize, side: TruncateSide, in_front: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = vec![1, 10, 11, 12, 13];
        truncate(&mut ids, Truncate { tokens, side }, in_front);
        ids
    }

    #[test]
    fn truncation_keeps_what_the_engine_keeps() {
        assert_eq!(cut(9, TruncateSide::Left, 1), [1, 10, 11, 12, 13]);
        assert_eq!(cut(3, TruncateSide::Right, 1), [1, 10, 11]);
        assert_eq!(cut(3, TruncateSide::Left, 1), [11, 12, 13]);
        assert_eq!(cut(3, TruncateSide::Default, 1), [1, 12, 13]);
        assert_eq!(cut(3, TruncateSide::Default, 0), [11, 12, 13]);
        assert_eq!(cut(0, TruncateSide::Default, 1), [0u32; 0]);
    }

    #[test]
    fn golden_requests_come_to_the_engines_prompt_and_ids() {
        let Some(dir) = tokenizer_dir("qwen3") else { return };
        let pack = Pack::parse(build(&dir, &BuildOptions::default()).unwrap()).unwrap().remove(0);
        let renderer = Renderer::new(pack.template_source().clone(), &EngineFlags::default()).unwrap();
        let tokenizer = pack.tokenizer().unwrap();
        let specials_in_front = pack.meta().specials.prefix.len();
        let model = Model {
            name: "m",
            lora: None,
            renderer: &renderer,
            tokenizer,
            specials_in_front,
            block_size: 16,
            hash_seed: "s",
        };
        let mut exact = 0;
        let cases = golden("qwen3");
        for case in &cases {
            let api = Api::from_path(case["endpoint"].as_str().unwrap(), &ApiPaths::default()).unwrap();
            if !matches!(api, Api::ChatCompletions | Api::Completions) || case["status"] != 200 {
                continue;
            }
            let body = Body::parse(case["body"].as_str().unwrap().as_bytes()).unwrap();
            let got = explain(&model, api, &body, 0);
            let lists: Vec<Vec<TokenId>> = match case.get("token_ids") {
                Some(ids) => vec![serde_json::from_value(ids.clone()).unwrap()],
                None => serde_json::from_value(case["token_ids_list"].clone()).unwrap(),
            };
            assert!(lists.contains(&got.token_ids), "{}: {:?}", case["name"], got.no_key);
            if let Some(prompt) = case["prompt"].as_str() {
                assert_eq!(got.prompt.as_deref(), Some(prompt), "{}", case["name"]);
            }
            let salt: Option<String> = serde_json::from_str::<serde_json::Value>(case["body"].as_str().unwrap())
                .unwrap()["cache_salt"]
                .as_str()
                .map(str::to_owned);
            let mut hashes = Vec::new();
            Chain::new(namespace("s", "m", None, salt.as_deref()), 16).extend(&got.token_ids, &mut hashes);
            let hashes: Vec<String> = hashes.iter().map(|hash| format!("{:016x}", hash.0)).collect();
            assert_eq!((got.no_key.is_none(), &got.block_hashes), (!hashes.is_empty(), &hashes), "{}", case["name"]);
            if let Some(prompt) = &got.prompt {
                let known = model.tokenizer.clone().ends(prompt, got.add_special_tokens).is_some();
                assert_eq!(got.block_ends.len(), if known { hashes.len() } else { 0 }, "{}", case["name"]);
                assert!(got.block_ends.is_sorted() && got.block_ends.iter().all(|end| *end <= prompt.len()));
            }
            exact += 1;
        }
        assert!(exact > 60 || cases.is_empty(), "only {exact} cases");
    }
}
