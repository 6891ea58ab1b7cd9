//! What changes from one engine version to the next, between the HTTP body and the template.
//!
//! A profile is data: one flag for each change, set by the version. In which version a change came was read in the
//! sources of every minor release from 0.22 to 0.33; [`PROVEN`] are the versions whose whole output was compared
//! besides. The others give a warning.

use super::flags::EngineFlags;

/// Versions of vLLM whose prompts were compared with recorded ones; those below 0.30 over chat and completions only,
/// since they have no endpoint that tells the ids of the other APIs.
pub const PROVEN: [Version; 7] = [
    Version(0, 22, 1),
    Version(0, 24, 0),
    Version(0, 26, 0),
    Version(0, 28, 0),
    Version(0, 30, 0),
    Version(0, 32, 0),
    Version(0, 33, 0),
];

/// An engine's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Reads `0.32.0`, `v0.32`, `0.32.0+cpu`, `0.33.0rc1`.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).and_then(|end| part.get(..end)).unwrap_or(part);
            digits.parse().ok()
        });
        Some(Version(parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0)))
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// Tool call arguments that are no JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadArguments {
    /// Become an empty object.
    Empty,
    /// Text that is not JSON is a 400; other JSON values stay what they are.
    RefuseText,
}

/// System messages between the turns of `/v1/messages`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineSystem {
    /// A 400.
    Refused,
    /// All go to the front.
    Merged,
    /// They go to the front where the template of `--chat-template` fails on them; without that flag always.
    ProbesFlag,
    /// They go to the front where one of the model's templates fails on them.
    ProbesTemplates,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Unknown keys of a tool and its function stay, after the known ones (vLLM below 0.27).
    pub keeps_tool_extras: bool,
    /// `strict` is a known key of a function: it has its place, and goes when null (vLLM from 0.24).
    pub knows_strict: bool,
    /// Unknown keys of a content part stay in the openai format (vLLM from 0.26).
    pub keeps_part_extras: bool,
    /// What becomes of tool call arguments that are no object (changed in vLLM 0.29).
    pub bad_arguments: BadArguments,
    /// The arguments `null` become an empty object (vLLM from 0.23).
    pub empties_null_arguments: bool,
    /// Developer messages become system messages where the template does not know the role (vLLM from 0.23).
    pub converts_developer: bool,
    /// The client's billing line is taken from system messages over chat (vLLM from 0.32).
    pub strips_billing: bool,
    /// `kv_transfer_params.prompt_token_ids` replaces the prompt (vLLM from 0.27).
    pub reuses_prompt_ids: bool,
    /// But not with echo or media, and what is no list of ids is a 400 (vLLM from 0.32).
    pub checks_prompt_ids: bool,
    /// Most characters of a cache salt: 1024 in vLLM 0.29, 128 from 0.30 on.
    pub longest_salt: usize,
    /// A few characters may not be in a cache salt (vLLM from 0.30).
    pub checks_salt: bool,
    /// `chat_template_kwargs.tokenize` is a 400 (vLLM from 0.33).
    pub refuses_tokenize_kwarg: bool,
    /// The content format is detected through the parameters of macros (vLLM from 0.30).
    pub format_through_macros: bool,
    /// Over messages, system blocks that leave no text give an empty system message (vLLM below 0.23).
    pub keeps_empty_system: bool,
    /// Over messages, what becomes of system messages between the turns.
    pub inline_system: InlineSystem,
    /// Over messages, `output_config.effort` is the effort (vLLM from 0.23).
    pub takes_output_effort: bool,
    /// Over messages, `thinking: disabled` becomes an effort (vLLM from 0.31).
    pub maps_disabled_thinking: bool,
    /// Truncation to the model's length leaves room for all requested tokens, and so does the length of a prompt
    /// (vLLM below 0.32).
    pub leaves_room_for_output: bool,
    /// Over responses, an assistant's message may be given as in chat, and names have namespaces (vLLM from 0.25).
    pub responses_messages: bool,
    /// Over responses, tools are printed as over chat (vLLM from 0.27).
    pub responses_tools: bool,
    /// Over responses, there are calls of custom tools (vLLM from 0.32).
    pub responses_custom_calls: bool,
    /// gpt-oss: how system and developer messages and instructions are rendered (changed in vLLM 0.23) and which
    /// thoughts are dropped (0.25) is what was recorded.
    pub harmony_conversations: bool,
    /// gpt-oss: the headers of tool calls are those that were recorded (vLLM from 0.31).
    pub harmony_calls: bool,
}

/// What the version of transformers beside the engine does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transformers {
    /// An assistant's reasoning reaches the template under all its names (from 5.21).
    pub aliases_reasoning: bool,
    /// What is null in a message is left out (from 5.24).
    pub drops_null_fields: bool,
}

impl Transformers {
    /// Of the configured version, with a warning where it was not proven.
    pub fn of(flags: &EngineFlags) -> Result<(Transformers, Option<String>), String> {
        let version = match flags.transformers.as_deref() {
            Some(text) => read("transformers", text)?,
            None => Version(5, 0, 0),
        };
        let proven = version >= Version(5, 0, 0) && version < Version(5, 21, 0);
        let warning = (!proven).then(|| format!("transformers {version} was not compared with recorded prompts"));
        let from = |minor: u32| version >= Version(5, minor, 0);
        Ok((Transformers { aliases_reasoning: from(21), drops_null_fields: from(24) }, warning))
    }
}

/// A version in a field of the configuration.
pub fn read(field: &str, text: &str) -> Result<Version, String> {
    Version::parse(text).ok_or_else(|| format!("{field}: \"{text}\" is no version like \"0.32.0\""))
}

impl Profile {
    /// The profile of the configured version of vLLM, and a warning where it was not proven.
    pub fn of(flags: &EngineFlags) -> Result<(Profile, Vec<String>), String> {
        let version = read("version", &flags.version)?;
        let mut warnings = Vec::new();
        if version < Version(0, 22, 0) {
            return Err(format!("version: vllm {version} renders otherwise than 0.22 to 0.33, which kvroute follows"));
        }
        if !PROVEN.contains(&version) {
            let list: Vec<String> = PROVEN.iter().map(Version::to_string).collect();
            let list = list.join(", ");
            warnings.push(format!("vllm {version} was not compared with recorded prompts (proven: {list})"));
        }
        let from = |minor: u32| version >= Version(0, minor, 0);
        let profile = Profile {
            keeps_tool_extras: !from(27),
            knows_strict: from(24),
            keeps_part_extras: from(26),
            bad_arguments: if from(29) { BadArguments::Empty } else { BadArguments::RefuseText },
            empties_null_arguments: from(23),
            converts_developer: from(23),
            strips_billing: from(32),
            reuses_prompt_ids: from(27),
            checks_prompt_ids: from(32),
            longest_salt: if from(30) {
                128
            } else if from(29) {
                1024
            } else {
                usize::MAX
            },
            checks_salt: from(30),
            refuses_tokenize_kwarg: from(33),
            format_through_macros: from(30),
            keeps_empty_system: !from(23),
            inline_system: if from(31) {
                InlineSystem::ProbesTemplates
            } else if from(24) {
                InlineSystem::ProbesFlag
            } else if from(23) {
                InlineSystem::Merged
            } else {
                InlineSystem::Refused
            },
            takes_output_effort: from(23),
            maps_disabled_thinking: from(31),
            leaves_room_for_output: !from(32),
            responses_messages: from(25),
            responses_tools: from(27),
            responses_custom_calls: from(32),
            harmony_conversations: from(25),
            harmony_calls: from(31),
        };
        Ok((profile, warnings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        assert_eq!(Version::parse("0.32.0"), Some(Version(0, 32, 0)));
        assert_eq!(Version::parse("v0.22.1+cpu"), Some(Version(0, 22, 1)));
        assert_eq!(Version::parse("0.33.0rc1"), Some(Version(0, 33, 0)));
        assert_eq!(Version::parse("0.5"), Some(Version(0, 5, 0)));
        assert_eq!(Version::parse("latest"), None);
        assert!(Version(0, 22, 1) < Version(0, 32, 0));
    }

    #[test]
    fn unproven_versions_warn() {
        let of = |version: &str| Profile::of(&EngineFlags { version: version.to_owned(), ..EngineFlags::default() });
        assert!(of("0.32.0").unwrap().1.is_empty());
        assert!(of("0.33.0").unwrap().1.is_empty());
        assert!(of("0.22.1").unwrap().1.is_empty());
        assert!(of("0.28.1").unwrap().1[0].contains("0.28.1"));
        assert!(of("x").is_err());
        assert!(of("0.21.0").unwrap_err().contains("0.21.0"));
    }

    #[test]
    fn newer_releases_of_transformers_warn() {
        let of = |transformers: &str| {
            Transformers::of(&EngineFlags { transformers: Some(transformers.to_owned()), ..EngineFlags::default() })
        };
        assert!(of("5.20.2").unwrap().1.is_none());
        let (transformers, warning) = of("5.21.1").unwrap();
        assert!(transformers.aliases_reasoning && !transformers.drops_null_fields);
        assert!(warning.unwrap().contains("5.21.1"));
        assert!(of("five").is_err());
    }
}
