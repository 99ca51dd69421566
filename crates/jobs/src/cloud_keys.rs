//! Keys of S3 storages, as users and VOs set them by the FTS3 API: sealed at rest, chosen for each job.

use std::collections::BTreeMap;

use longhaul_catalog::JobRow;
use longhaul_security::Vault;
use longhaul_storage_remote::{RemoteUrl, S3Keys, bucket_of};
use serde::{Deserialize, Serialize};

/// Before the host, in the name of a storage. FTS knows others, which nobody speaks here.
pub const KIND: &str = "S3:";
/// Storages without regions take it; FTS has none.
const DEFAULT_REGION: &str = "us-east-1";

/// A storage, and who has keys there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cloud {
    pub service_api_url: Option<String>,
    /// By DN, or by VO.
    pub users: BTreeMap<String, Keys>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Keys {
    pub is_vo: bool,
    pub access_key: String,
    pub sealed_secret: String,
}

pub fn host_of(name: &str) -> Option<String> {
    let host = name.strip_prefix(KIND)?.to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    (!host.is_empty() && host.chars().all(plain)).then_some(host)
}

/// Keys cannot change places.
pub fn purpose(name: &str, who: &str) -> String {
    format!("keys of {who} at {name}")
}

/// By which a job opens a URL: its user's keys before those of its VO, a longer host before a shorter.
pub fn keys(
    clouds: &BTreeMap<String, Cloud>,
    vault: &Vault,
    job: &JobRow,
    url: &RemoteUrl,
    path_style: bool,
) -> Option<S3Keys> {
    let (name, who, keys) = choose(clouds, &job.user, &job.vo, url, path_style)?;
    match vault.unseal_text(&purpose(name, who), &keys.sealed_secret) {
        Ok(secret) => Some(S3Keys {
            access_key: keys.access_key.clone(),
            secret,
            session_token: None,
            region: DEFAULT_REGION.to_owned(),
        }),
        Err(error) => {
            tracing::warn!(storage = name, who, %error, "keys of a cloud storage cannot be used");
            None
        }
    }
}

fn choose<'a>(
    clouds: &'a BTreeMap<String, Cloud>,
    user: &str,
    vo: &str,
    url: &RemoteUrl,
    path_style: bool,
) -> Option<(&'a str, &'a str, &'a Keys)> {
    let all = clouds.iter().filter_map(|(name, cloud)| {
        let host = host_of(name)?;
        bucket_of(url, &host, path_style)?;
        let own = cloud.users.get_key_value(user).filter(|(_, keys)| !keys.is_vo);
        let of_vo = || cloud.users.get_key_value(vo).filter(|(_, keys)| keys.is_vo);
        let (who, keys) = own.or_else(of_vo)?;
        Some((host.len(), name.as_str(), who.as_str(), keys))
    });
    all.max_by_key(|(host, _, _, keys)| (!keys.is_vo, *host)).map(|(_, name, who, keys)| (name, who, keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_keys_come_before_those_of_the_vo() {
        let keys = |is_vo, name: &str| Keys { is_vo, access_key: name.into(), sealed_secret: String::new() };
        let cloud = |users: &[(&str, bool)]| Cloud {
            users: users.iter().map(|&(who, is_vo)| (who.to_owned(), keys(is_vo, who))).collect(),
            ..Cloud::default()
        };
        let mut clouds = BTreeMap::new();
        clouds.insert("S3:s3.example".into(), cloud(&[("atlas", true), ("/CN=me", false)]));
        clouds.insert("S3:far.s3.example".into(), cloud(&[("atlas", true)]));
        clouds.insert("DROPBOX".into(), cloud(&[("atlas", true)]));
        let chosen = |user: &str, vo: &str, url: &str| {
            let url = RemoteUrl::parse(url).unwrap();
            choose(&clouds, user, vo, &url, false).map(|(name, who, _)| format!("{name} {who}"))
        };
        assert_eq!(chosen("/CN=me", "atlas", "s3s://s3.example/b/k").unwrap(), "S3:s3.example /CN=me");
        assert_eq!(chosen("/CN=you", "atlas", "s3s://b.s3.example/k").unwrap(), "S3:s3.example atlas");
        assert_eq!(
            chosen("/CN=you", "atlas", "s3s://far.s3.example/b/k").unwrap(),
            "S3:far.s3.example atlas"
        );
        assert_eq!(chosen("atlas", "cms", "s3s://s3.example/b/k"), None, "a VO's name is no user's");
        assert_eq!(chosen("/CN=me", "atlas", "s3s://other.example/b/k"), None);
    }

    #[test]
    fn names_are_of_storages_that_speak_s3() {
        assert_eq!(host_of("S3:S3.Example").as_deref(), Some("s3.example"));
        assert!(
            ["S3:", "DROPBOX", "S3:a/b", "S3:a b", "GCLOUD:x"].iter().all(|name| host_of(name).is_none())
        );
    }
}
