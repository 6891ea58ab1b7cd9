//! What changes from one engine version to the next, between the HTTP body and the template.
//!
//! A profile is data: one flag for each change, set by the version. The changes are known from the engines'
//! sources; [`PROVEN`] are the versions whose whole output was compared. A change falls somewhere between two
//! proven versions, so other versions follow the nearest proven one below and give a warning.

use super::flags::EngineFlags;

/// Versions of vLLM whose prompts were compared with recorded ones.
pub const PROVEN: [Version; 2] = [Version(0, 32, 0), Version(0, 33, 0)];

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

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Unknown keys of a tool and its function stay, after the known ones (vLLM below 0.28).
    pub keeps_tool_extras: bool,
    /// What becomes of tool call arguments that are no object.
    pub bad_arguments: BadArguments,
    /// Developer messages become system messages where the template does not know the role (vLLM from 0.28).
    pub converts_developer: bool,
    /// The client's billing line is taken from system messages over chat (vLLM from 0.32).
    pub strips_billing: bool,
    /// `kv_transfer_params.prompt_token_ids` replaces the prompt (vLLM from 0.32).
    pub reuses_prompt_ids: bool,
    /// A cache salt has at most 128 characters and none of a few (vLLM from 0.32).
    pub checks_salt: bool,
    /// `chat_template_kwargs.tokenize` is a 400 (vLLM from 0.33).
    pub refuses_tokenize_kwarg: bool,
    /// Over messages, system blocks that leave no text give an empty system message (vLLM below 0.32).
    pub keeps_empty_system: bool,
    /// Over messages, there may be system messages between the turns (vLLM from 0.32).
    pub takes_inline_system: bool,
    /// Over messages, `thinking: disabled` becomes an effort (vLLM from 0.32).
    pub maps_disabled_thinking: bool,
    /// Truncation to the model's length leaves room for all requested tokens, not for one (vLLM below 0.32).
    pub truncates_for_output: bool,
}

impl Profile {
    /// The profile of the configured engine, and a warning where its version was not proven.
    pub fn of(flags: &EngineFlags) -> Result<(Profile, Option<String>), String> {
        match flags.engine.as_str() {
            "vllm" => {}
            "sglang" => {
                return Err("engine: \"sglang\": its rendering is not built, and vLLM's would give wrong keys; \
                            set enabled to false for this model"
                    .to_owned());
            }
            other => return Err(format!("engine: \"{other}\" is not \"vllm\"")),
        }
        let version = Version::parse(&flags.version)
            .ok_or_else(|| format!("version: \"{}\" is no version like \"0.32.0\"", flags.version))?;
        let warning = (!PROVEN.contains(&version)).then(|| {
            let list: Vec<String> = PROVEN.iter().map(Version::to_string).collect();
            format!("{} {version} was not compared with recorded prompts (proven: {})", flags.engine, list.join(", "))
        });
        let from = |minor: u32| version >= Version(0, minor, 0);
        let profile = Profile {
            keeps_tool_extras: !from(28),
            bad_arguments: if from(32) { BadArguments::Empty } else { BadArguments::RefuseText },
            converts_developer: from(28),
            strips_billing: from(32),
            reuses_prompt_ids: from(32),
            checks_salt: from(32),
            refuses_tokenize_kwarg: from(33),
            keeps_empty_system: !from(32),
            takes_inline_system: from(32),
            maps_disabled_thinking: from(32),
            truncates_for_output: !from(32),
        };
        Ok((profile, warning))
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
        assert!(of("0.32.0").unwrap().1.is_none());
        assert!(of("0.33.0").unwrap().1.is_none());
        assert!(of("0.22.1").unwrap().1.unwrap().contains("0.22.1"));
        assert!(of("0.30.0").unwrap().1.unwrap().contains("0.30.0"));
        assert!(of("x").is_err());
    }

    #[test]
    fn engines_whose_rendering_is_not_built_are_refused() {
        let of = |engine: &str| Profile::of(&EngineFlags { engine: engine.to_owned(), ..EngineFlags::default() });
        assert!(of("vllm").is_ok());
        assert!(of("sglang").unwrap_err().contains("sglang"));
        assert!(of("other").unwrap_err().contains("other"));
    }
}
