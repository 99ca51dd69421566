//! States that several rooms speak of, with their transitions.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),* $(,)? }) => {
        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$variant),*];
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

/// ```text
/// active ⇄ suspended      either ─► cancelled (terminal)
/// ```
/// Completeness is no state: a growing dataset makes a complete subscription incomplete again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SubscriptionState {
    Active,
    Suspended,
    Cancelled,
}

words!(SubscriptionState { Active = "active", Suspended = "suspended", Cancelled = "cancelled" });

impl SubscriptionState {
    pub fn may_become(self, next: SubscriptionState) -> bool {
        self != SubscriptionState::Cancelled && self != next
    }
}

/// ```text
/// waiting ─► leased ─► done          leased ─► waiting (retry)       any but done ─► failed, cancelled
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferState {
    /// In the queue: for a slot, a source, or the time of the next try.
    Waiting,
    /// An agent holds the right to run it.
    Leased,
    Done,
    Failed,
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
    pub fn is_terminal(self) -> bool {
        matches!(self, TransferState::Done | TransferState::Failed | TransferState::Cancelled)
    }

    pub fn may_become(self, next: TransferState) -> bool {
        use TransferState::*;
        matches!(
            (self, next),
            (Waiting, Leased | Failed | Cancelled) | (Leased, Waiting | Done | Failed | Cancelled)
        )
    }
}

/// How bytes at a target were compared. Ordered: a later one proves more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verification {
    /// Chunk checksums between source's memory and target's memory only.
    Wire,
    /// What was handed to the target's storage, hashed in memory, equals the catalog's digest; in a copy
    /// without a catalog, the source's digest of what it read.
    EndToEnd,
    /// As above, and read again from the storage.
    Readback,
}

/// How data is protected between agents after the handshake, which is always one of TLS 1.3 with certificates
/// of both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataSecurity {
    /// Encrypted.
    #[default]
    Tls,
    /// In clear text with a MAC, where the other end says so too; else encrypted. Nobody can change it,
    /// anybody on the way can read it.
    Authenticated,
}

/// How data counts beside other traffic on the same network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrafficClass {
    /// Takes its share, as every TCP connection does.
    #[default]
    Bulk,
    /// Takes only what nobody else wants.
    Scavenger,
}

/// Whether work goes by the circuits of its links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitUse {
    /// It stays on the plain way.
    Never,
    /// Where there is one.
    #[default]
    Prefer,
    /// It waits until there is one.
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
