//! States and modes that several crates share, with their transitions.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $name {
            /// All variants, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
            /// The words of all variants, in the same order.
            pub const WORDS: &'static [&'static str] = &[$($word),*];
            /// The variant's word in the API, in stored rows and on the command line.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.pad(self.word()) }
        }
        impl std::str::FromStr for $name {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(format!("{text:?} is not one of: {}",
                        [$($word),*].join(", "))),
                }
            }
        }
    };
}
pub(crate) use words;

/// State of a subscription.
///
/// ```text
/// active ⇄ suspended      either ─► cancelled (terminal)
/// ```
/// Complete is not a state: a growing dataset makes a complete subscription incomplete again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubscriptionState {
    /// Missing files are transferred.
    Active,
    /// Transfers are held back until it is resumed.
    Suspended,
    /// Ended; its replicas stay.
    Cancelled,
}

words!(SubscriptionState { Active = "active", Suspended = "suspended", Cancelled = "cancelled" });

impl SubscriptionState {
    /// Whether a subscription in this state may go to state `next`.
    pub fn may_become(self, next: SubscriptionState) -> bool {
        self != SubscriptionState::Cancelled && self != next
    }
}

/// State of a transfer.
///
/// ```text
/// waiting ─► leased ─► done          leased ─► waiting (retry)       any but done ─► failed, cancelled
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferState {
    /// In the queue: waits for a slot, a source, or the time of its retry.
    Waiting,
    /// An agent holds a lease for it.
    Leased,
    /// The replica is verified and durable.
    Done,
    /// Failed for good: no retry will follow.
    Failed,
    /// No longer wanted.
    Cancelled,
}

words!(TransferState {
    Waiting = "waiting",
    Leased = "leased",
    Done = "done",
    Failed = "failed",
    Cancelled = "cancelled",
});

impl TransferState {
    /// Whether the state is final.
    pub fn is_terminal(self) -> bool {
        matches!(self, TransferState::Done | TransferState::Failed | TransferState::Cancelled)
    }

    /// Whether a transfer in this state may go to state `next`.
    pub fn may_become(self, next: TransferState) -> bool {
        use TransferState::*;
        matches!(
            (self, next),
            (Waiting, Leased | Failed | Cancelled) | (Leased, Waiting | Done | Failed | Cancelled)
        )
    }
}

/// How the bytes at a target were verified. Ordered: a later variant proves more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// Chunk checksums between the source's memory and the target's memory only.
    Wire,
    /// The bytes handed to the target's storage, hashed in memory, equal the catalog's digest; in a copy
    /// without a catalog, the digest of what the source read.
    EndToEnd,
    /// As end-to-end, and read back from the storage.
    Readback,
}

/// The party that moved the bytes of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Executor {
    /// The engines of the agents.
    Engines,
    /// The target's server pulled the file from the source's (HTTP-TPC).
    TargetServer,
    /// The source's server pushed the file to the target's, or copied it within itself.
    SourceServer,
    /// A command of the site.
    Command,
}

words!(Executor {
    Engines = "engines",
    TargetServer = "target-server",
    SourceServer = "source-server",
    Command = "command",
});

impl Executor {
    /// What happened to the bytes, for people.
    pub fn sentence(self) -> &'static str {
        match self {
            Executor::Engines => "moved by the agents",
            Executor::TargetServer => "pulled by the target's server; no byte passed an agent",
            Executor::SourceServer => "pushed by the source's server; no byte passed an agent",
            Executor::Command => "moved by the site's command",
        }
    }
}

/// Where the digests of a file that a scan found come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DigestOrigin {
    /// From the bytes, which were read.
    #[default]
    Computed,
    /// From the storage's server, which may have kept them since the file was written: a claim, as in a
    /// manifest.
    Told,
}

words!(DigestOrigin { Computed = "computed", Told = "told" });

/// What holds the files of a storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageKind {
    /// A directory of an agent's host.
    #[default]
    Posix,
    /// A directory of an agent's host, in front of a tape system.
    Tape,
    /// A collection of a WebDAV server.
    Webdav,
    /// A bucket of a storage that speaks S3.
    S3,
    /// Nothing, for tests: what is read is generated, what is written is checked and dropped.
    Virtual,
}

words!(StorageKind { Posix = "posix", Tape = "tape", Webdav = "webdav", S3 = "s3", Virtual = "virtual" });

/// What a pool of a storage is for, as its site's administrator says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolState {
    /// New files go there.
    #[default]
    Open,
    /// Its files are read and deleted, and no file goes there.
    ReadOnly,
    /// No new file goes there, and its files go to other pools.
    Draining,
}

words!(PoolState { Open = "open", ReadOnly = "read-only", Draining = "draining" });

/// Protection of data between agents after the handshake, which is always TLS 1.3 with certificates of both
/// ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataSecurity {
    /// Encrypted.
    #[default]
    Tls,
    /// In clear text with a MAC if both ends allow it; otherwise encrypted. Nobody can change it, anybody on
    /// the path can read it.
    Authenticated,
}

/// How data competes with other traffic on the same network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficClass {
    /// Best effort: takes its share, as every TCP connection does.
    #[default]
    Bulk,
    /// Less than best effort: takes only what no other traffic uses.
    Scavenger,
}

/// Whether work uses the circuits of its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitUse {
    /// Stays on the routed network path.
    Never,
    /// Uses a circuit while there is one.
    #[default]
    Prefer,
    /// Waits until there is a circuit.
    Only,
}

words!(CircuitUse { Never = "never", Prefer = "prefer", Only = "only" });
words!(TrafficClass { Bulk = "bulk", Scavenger = "scavenger" });
words!(Verification { Wire = "wire", EndToEnd = "end-to-end", Readback = "readback" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_states_stay() {
        for &state in TransferState::ALL {
            for &next in TransferState::ALL {
                assert!(!(state.is_terminal() && state.may_become(next)), "{state} to {next}");
            }
        }
        assert!(!SubscriptionState::Cancelled.may_become(SubscriptionState::Active));
    }

    #[test]
    fn words_parse_back() {
        for &state in TransferState::ALL {
            assert_eq!(state.word().parse::<TransferState>().unwrap(), state);
        }
        assert!("finished".parse::<TransferState>().unwrap_err().contains("waiting"));
    }
}
