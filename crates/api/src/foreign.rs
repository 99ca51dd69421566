//! Copies between storages of others that an agent makes in place of the service, because their bytes would
//! have to go through it. They come with what opens both ends, so that nothing of them is ever shown, logged
//! or kept.

use std::fmt;
use std::time::Duration;

use longhaul_model::{AttemptId, Epoch};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use zeroize::Zeroizing;

/// An agent that reports less often than this has given up what it streams.
///
/// Its copies end by themselves when no report of it was answered for [`GIVEN_UP_BY_AGENT`]; only later does
/// the service take them back, so that two never write the same file.
pub const GIVEN_UP_BY_AGENT: Duration = Duration::from_secs(45);
pub const TAKEN_BACK_BY_SERVICE: Duration = Duration::from_secs(75);

/// An agent may be given copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MoverOffer {
    /// At once.
    pub files: u32,
}

/// What opens a storage. Wiped when it goes, and nothing that is shown has it.
#[derive(Clone, PartialEq, Eq, ToSchema)]
#[schema(value_type = String)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub fn new(text: impl Into<Zeroizing<String>>) -> Secret {
        Secret(text.into())
    }

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

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForeignEnd {
    /// What follows `?` in it may open the storage by itself.
    pub url: Secret,
    pub credential: ForeignCredential,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ForeignCredential {
    None,
    Bearer {
        token: Secret,
    },
    /// PEM both; a proxy with its chain.
    Certificate {
        chain: Secret,
        key: Secret,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CompareWith {
    None,
    Source,
    Target,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Replace {
    Never,
    Always,
    OnlyOnDisk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum AddressFamily {
    V4,
    V6,
}

/// One file, to be streamed from one end to the other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForeignCopy {
    #[schema(value_type = String)]
    pub attempt: AttemptId,
    #[schema(value_type = u64)]
    pub epoch: Epoch,
    pub source: ForeignEnd,
    pub target: ForeignEnd,
    #[serde(default)]
    pub size: Option<u64>,
    /// `ALGORITHM:value`, or the algorithm alone.
    #[serde(default)]
    pub checksum: Option<String>,
    pub compare: CompareWith,
    pub replace: Replace,
    /// Nothing is looked at or compared that the copy could do without.
    #[serde(default)]
    pub unchecked: bool,
    /// What has come of a copy that failed stays.
    #[serde(default)]
    pub keeps_partial: bool,
    /// For the whole copy; none: by its size.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    pub streams: u16,
    #[serde(default)]
    pub family: Option<AddressFamily>,
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
