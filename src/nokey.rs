//! Why a request gets no key, or no pick: the one list used by metrics, logs, receipts and docs.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Why a request was left to plain load balancing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum NoKey { $($(#[$doc])* $name,)* }

        impl NoKey {
            /// Every reason, in the order of the enum.
            pub const ALL: &'static [NoKey] = &[$(NoKey::$name,)*];

            /// The label in metrics, logs and receipts.
            pub fn label(self) -> &'static str {
                match self { $(NoKey::$name => $label,)* }
            }
        }
    };
}

reasons! {
    /// The path is none of the APIs that carry a prompt, or the method is not POST.
    NotOurPath = "not_our_path",
    /// The body is larger than `limits.max_inspect_bytes`, or has far more values than its size explains.
    BodyTooLarge = "body_too_large",
    /// The jobs of this VM are over `limits.max_jobs` or `limits.max_job_bytes`.
    Busy = "busy",
    /// The body is not JSON, or JSON that the engine could not tokenize (lone surrogates, NaN).
    NotJson = "not_json",
    /// JSON that the engine answers with a 4xx.
    BadRequest = "bad_request",
    /// No model of the configuration has this name.
    UnknownModel = "unknown_model",
    /// The model is switched off in the configuration.
    ModelOff = "model_off",
    /// The conversation is not in the model's share of the roll-out.
    HeldOut = "held_out",
    /// The chat template raised an error; the engine will too.
    TemplateError = "template_error",
    /// The request uses something whose tokens cannot be known here (a server-side conversation, a renderer of
    /// the engine's own, template arguments that change how it renders).
    Unsupported = "unsupported",
    /// The tokenizer failed.
    TokenizerError = "tokenizer_error",
    /// The prompt is shorter than one block, or its key ends before the first block.
    TooShort = "too_short",
    /// The time budget ran out before the first block was known.
    TimeBudget = "time_budget",
    /// No feed has reached this worker yet.
    NoFeed = "no_feed",
    /// No replica serves this model.
    NoReplica = "no_replica",
    /// The host refused a call.
    HostError = "host_error",
    /// A state that should not occur; the log has the rest.
    Internal = "internal",
}

/// Beginnings of details of [`NoKey::Unsupported`] that README lists among what kvroute does not do: requests that
/// the engine serves and that get no key by design. Everything else that is refused is a fault.
pub const LIMITS: &[&str] = &[
    "previous_response_id",
    "chat_template: the request brings its own",
    "prompt_embeds",
    "arguments of a tool call: NaN or Infinity",
    "sglang: only chat completions and completions",
    "extra_key: SGLang",
    "lora_path: SGLang",
    "session_params: SGLang",
    "cache_salt: one for each prompt",
    "continue_final_message: the text begins with the BOS token",
    "reasoning_effort: low, with a template that reads low_effort",
    // The rarer ones.
    "tools: custom tools and namespaces",
    "messages: blocks that add or remove tools",
    "truncation to the model's length, which is not known",
    "truncation of a prompt with media",
    "the template drops media parts",
    "tools: strict is no boolean",
    "tools: defer_loading is no boolean",
    "messages: a tool_use block without an id",
    "messages: the tools of a developer message are not functions",
    "chat_template_kwargs: return_assistant_tokens_mask",
    "continue_final_message names a field",
    "previous_input_messages",
    "tools: others than functions, with harmony",
    "input: an item of type",
    "gpt-oss: with vLLM below 0.25",
    "gpt-oss: tool calls, with vLLM below 0.31",
    "tools: over responses, with vLLM below 0.27",
    "input: an assistant's message or a namespace, with vLLM below 0.25",
    "input: a custom tool call, with vLLM below 0.32",
    "tools: the template fails",
];

impl fmt::Display for NoKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// A reason with what exactly was wrong, for `explain` and debug logs. Never holds prompt text in full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoKeyReason {
    /// The class.
    pub kind: NoKey,
    /// One line: the field, what is wrong with it.
    pub detail: String,
}

impl NoKeyReason {
    /// A reason of `kind`, explained by `detail`.
    pub fn new(kind: NoKey, detail: impl Into<String>) -> Self {
        NoKeyReason { kind, detail: detail.into() }
    }
}

impl fmt::Display for NoKeyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.label(), self.detail)
    }
}
