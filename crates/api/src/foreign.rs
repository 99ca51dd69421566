//! Copies between foreign storages that an agent streams in place of the service, whose own network they
//! would load. They contain the credentials for both ends, so nothing of them is ever shown, logged or
//! stored.

use std::fmt;
use std::time::Duration;

use longhaul_model::{AttemptId, Epoch};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::formats;
use zeroize::Zeroizing;

/// An agent ends its copies when no report of it has been answered for this long.
pub const GIVEN_UP_BY_AGENT: Duration = Duration::from_secs(45);
/// The service takes back an agent's copies after this much silence: later than [`GIVEN_UP_BY_AGENT`], so
/// that two never write the same file.
pub const TAKEN_BACK_BY_SERVICE: Duration = Duration::from_secs(75);

/// An agent's offer to copy between foreign storages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoverOffer {
    /// Most copies at the same time.
    pub files: u32,
}

/// A text that gives access to a storage. It is wiped from memory when dropped, and never shown.
#[derive(Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<Zeroizing<String>>) -> Secret {
        Secret(text.into())
    }

    /// The secret text itself.
    pub fn get(&self) -> &Zeroizing<String> {
        &self.0
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Secret::new)
    }
}

/// One end of a copy, with what gives access to it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForeignEnd {
    /// URL of the file; secret, since its query may give access by itself.
    pub url: Secret,
    /// Credential to present.
    pub credential: ForeignCredential,
}

/// Credential for a foreign storage.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ForeignCredential {
    /// None: the storage is public, or the URL gives access by itself.
    None,
    /// A bearer token.
    Bearer {
        /// The token.
        token: Secret,
    },
    /// A client certificate, possibly a proxy.
    Certificate {
        /// PEM certificate, followed by its chain.
        chain: Secret,
        /// PEM private key.
        key: Secret,
    },
}

/// Ends at which the checksum is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CompareWith {
    /// At neither end.
    None,
    /// At the source.
    Source,
    /// At the target.
    Target,
    /// At both ends.
    Both,
}

/// When a file that exists at the target is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Replace {
    /// Never: the copy fails.
    Never,
    /// In any case.
    Always,
    /// Only if the existing file is on disk and not on tape.
    OnlyOnDisk,
}

/// IP version to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AddressFamily {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
}

/// A file to stream from one foreign storage to another.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForeignCopy {
    /// The attempt that this copy is.
    #[schema(value_type = formats::AttemptId)]
    pub attempt: AttemptId,
    /// Fencing token: outcomes with an older epoch are ignored.
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    /// Where to read.
    pub source: ForeignEnd,
    /// Where to write.
    pub target: ForeignEnd,
    /// Expected size in bytes, if known.
    #[serde(default)]
    pub size: Option<u64>,
    /// Expected checksum as `ALGORITHM:value`, or the algorithm alone.
    #[serde(default)]
    pub checksum: Option<String>,
    /// Ends at which the checksum is compared.
    pub compare: CompareWith,
    /// When a file that exists at the target is replaced.
    pub replace: Replace,
    /// Skip all checks that the copy can do without.
    #[serde(default)]
    pub unchecked: bool,
    /// Keep what a failed copy has written.
    #[serde(default)]
    pub keeps_partial: bool,
    /// Time limit of the whole copy in milliseconds; absent: it depends on the size.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// TCP streams to use.
    pub streams: u16,
    /// IP version to use; absent: either.
    #[serde(default)]
    pub family: Option<AddressFamily>,
    /// Flow label of SciTags to mark the packets with.
    #[serde(default)]
    pub scitag: Option<u32>,
}

crate::hides_secrets!(Secret, ForeignEnd, ForeignCredential);

impl fmt::Debug for ForeignCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignCopy({} of epoch {})", self.attempt, self.epoch.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Work;

    #[test]
    fn credentials_go_along_and_are_never_shown() {
        let end = |name: &str| ForeignEnd {
            url: Secret::new(format!("https://{name}.example/f?authz=canary")),
            credential: ForeignCredential::Bearer { token: Secret::new("canary".to_owned()) },
        };
        let copy = ForeignCopy {
            attempt: AttemptId(7),
            epoch: Epoch(3),
            source: end("a"),
            target: end("b"),
            size: None,
            checksum: None,
            compare: CompareWith::Both,
            replace: Replace::Never,
            unchecked: false,
            keeps_partial: false,
            timeout_ms: None,
            streams: 1,
            family: None,
            scitag: None,
        };
        let work = Work { copies: vec![copy.clone()], ..Work::default() };
        let shown = format!("{work:?} {copy:?} {:?} {:?}", copy.source, copy.source.credential);
        assert!(!shown.contains("canary"), "{shown}");
        let sent = serde_json::to_string(&work).unwrap();
        let back: Work = serde_json::from_str(&sent).unwrap();
        assert_eq!(back.copies, [copy]);
    }

    /// Agents of the version before know nothing of copies: they neither send nor miss them.
    #[test]
    fn those_of_before_are_understood() {
        let work: Work = serde_json::from_str(r#"{"number":1,"now":"1970-01-01T00:00:00Z"}"#).unwrap();
        assert!(work.copies.is_empty());
        assert!(!serde_json::to_string(&work).unwrap().contains("copies"));
    }
}
