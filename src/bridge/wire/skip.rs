//! Why something that an engine said could not be used.

macro_rules! skips {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// Why an event, or a part of it, was left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Skip { $($(#[$doc])* $name,)* }

        impl Skip {
            /// Every reason, in the order of the enum.
            pub const ALL: &'static [Skip] = &[$(Skip::$name,)*];

            /// The label in metrics, logs and states.
            pub fn label(self) -> &'static str {
                match self { $(Skip::$name => $label,)* }
            }
        }
    };
}

skips! {
    /// The payload is not MessagePack, or ends early.
    NotMsgpack = "not_msgpack",
    /// The payload is MessagePack, but no batch of events.
    NotABatch = "not_a_batch",
    /// An event of a type that this build does not know.
    UnknownType = "unknown_type",
    /// A field that is needed is missing.
    MissingField = "missing_field",
    /// A field holds a value of a type or size that it cannot have.
    BadField = "bad_field",
    /// Stored without tokens, and the block is not known from before.
    NoTokens = "no_tokens",
    /// Tokens, hashes and block size do not fit each other.
    Length = "length_mismatch",
    /// The block size is not the one that the replica is configured with.
    BlockSize = "block_size_mismatch",
    /// A LoRA adapter is named by a number only.
    LoraWithoutName = "lora_without_name",
    /// A block whose content tokens alone do not tell (image, audio, prompt embeddings).
    Unkeyed = "unkeyed_content",
    /// A block whose parent was never announced: it waits.
    Orphan = "orphan",
    /// A waiting block was given up, its place was needed.
    OrphanDropped = "orphan_dropped",
    /// A removal of a block that was not known to be held.
    UnknownRemoved = "unknown_removed",
    /// More blocks than the bound for one replica.
    OverBound = "over_bound",
    /// An event of an attention group beyond the supported number.
    TooManyGroups = "too_many_groups",
}

/// How often each reason occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SkipCounts([u64; Skip::ALL.len()]);

impl SkipCounts {
    /// Counts `n` more of `reason`.
    pub fn add(&mut self, reason: Skip, n: u64) {
        self.0[reason as usize] += n;
    }

    /// How often `reason` occurred.
    pub fn get(&self, reason: Skip) -> u64 {
        self.0[reason as usize]
    }

    /// Reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (Skip, u64)> + '_ {
        Skip::ALL.iter().map(|s| (*s, self.get(*s))).filter(|(_, n)| *n > 0)
    }
}
