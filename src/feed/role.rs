//! What a replica is for, where prefill and decode are apart.

use serde::{Deserialize, Serialize};

/// The label of pods and services that says it.
pub const ROLE_LABEL: &str = "llm-d.ai/role";

/// What a replica is for. On the wire by its number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Role {
    /// It prefills and decodes.
    #[default]
    Both = 0,
    /// It prefills for others: no request is sent there by Envoy.
    Prefill = 1,
    /// It decodes, and prefills what is not worth sending elsewhere.
    Decode = 2,
}

impl Role {
    /// All of them, in the order of their numbers.
    pub const ALL: [Role; 3] = [Role::Both, Role::Prefill, Role::Decode];

    /// The name in configuration, state and receipts.
    pub fn label(self) -> &'static str {
        match self {
            Role::Both => "both",
            Role::Prefill => "prefill",
            Role::Decode => "decode",
        }
    }

    /// The role of a value of [`ROLE_LABEL`], of the older names and those of stages that do not matter here as well.
    pub fn from_label(label: &str) -> Option<Role> {
        Some(match label {
            "both" | "prefill-decode" | "encode-prefill-decode" => Role::Both,
            "prefill" | "encode-prefill" => Role::Prefill,
            "decode" | "encode-decode" => Role::Decode,
            _ => return None,
        })
    }

    /// The role of a number on the wire.
    pub fn from_u8(v: u8) -> Option<Role> {
        Role::ALL.into_iter().find(|role| *role as u8 == v)
    }
}
