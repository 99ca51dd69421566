//! `/config/cloud_storage`: keys of storages that speak S3, as FTS's clients set them: of one user, or of a
//! VO. Secrets are sealed in the catalog, and never told again.

use std::collections::BTreeMap;

use http::StatusCode;
use longhaul_api::fts::Refusal;
use longhaul_catalog::{CatalogError, JobRow};
use longhaul_identity::refusal;
use longhaul_model::units::printable;
use longhaul_storage_remote::{RemoteUrl, S3Keys, bucket_of};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ask::{Ask, Reply};
use super::bans::change;
use super::config_store::Objects;
use super::routes;
use crate::operations::{Operations, problem};
use crate::shared::Shared;

/// Before the host, in the name of a storage. FTS knows others, which nobody speaks here.
const KIND: &str = "S3:";
const TEXT_BYTES_MAX: usize = 1_024;
/// Users and VOs of one storage.
const USERS_MAX: usize = 10_000;
/// Storages without regions take it; FTS has none.
const REGION: &str = "us-east-1";

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

pub fn answer(operations: &Operations, ask: &Ask, words: &[&str], kept: &Objects) -> Result<Reply, Refusal> {
    match (words, ask.method.as_str()) {
        ([], "GET") => {
            let all = kept.clouds.iter().map(|(name, cloud)| view(name, cloud));
            Reply::json(&all.collect::<Vec<_>>())
        }
        ([], "POST") => add(operations, ask),
        ([name], "GET") => Reply::json(&view(name, kept.clouds.get(*name).ok_or_else(|| missing(name))?)),
        ([name], "POST") => add_user(operations, ask, name),
        ([name], "DELETE") => change(operations, ask, |objects| {
            objects.clouds.remove(*name).ok_or_else(|| missing(name))?;
            Ok((Reply::nothing(), format!("cloud storage {name} removed, with its keys")))
        }),
        ([name, who], "DELETE") => change(operations, ask, |objects| {
            let cloud = objects.clouds.get_mut(*name).ok_or_else(|| missing(name))?;
            cloud
                .users
                .remove(*who)
                .ok_or_else(|| Refusal::missing(format!("{} has no keys", printable(who))))?;
            Ok((Reply::nothing(), format!("cloud storage {name}: keys of {who} removed")))
        }),
        _ => Err(routes::refused(ask)),
    }
}

fn missing(name: &str) -> Refusal {
    Refusal::missing(format!("Cloud storage {} does not exist", printable(name)))
}

fn view(name: &str, cloud: &Cloud) -> Value {
    let user = |(who, keys): (&String, &Keys)| {
        let kind = if keys.is_vo { "vo_name" } else { "user_dn" };
        json!({ kind: who, "access_key": keys.access_key })
    };
    json!({
        "storage_name": name, "service_api_url": cloud.service_api_url,
        "users": cloud.users.iter().map(user).collect::<Vec<_>>(),
    })
}

/// A text of the body; none if it is absent, null or empty.
fn text<'a>(body: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, Refusal> {
    let wrong = || Refusal::bad(format!("{name} is no text of at most {TEXT_BYTES_MAX} bytes in one line"));
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text.len() <= TEXT_BYTES_MAX && !text.contains(char::is_control) => {
            Ok(Some(text))
        }
        Some(_) => Err(wrong()),
    }
}

fn either<'a>(body: &'a Map<String, Value>, names: [&str; 2]) -> Result<&'a str, Refusal> {
    let found = match text(body, names[0])? {
        Some(found) => Some(found),
        None => text(body, names[1])?,
    };
    found.ok_or_else(|| Refusal::bad(format!("Missing {}", names[0])))
}

fn host_of(name: &str) -> Option<String> {
    let host = name.strip_prefix(KIND)?.to_ascii_lowercase();
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
    (!host.is_empty() && host.chars().all(plain)).then_some(host)
}

fn add(operations: &Operations, ask: &Ask) -> Result<Reply, Refusal> {
    let body = ask.dictionary()?;
    let name = text(&body, "storage_name")?.ok_or_else(|| Refusal::bad("Missing storage_name"))?;
    if host_of(name).is_none() {
        let text = format!("{} is no storage with keys: {KIND}HOST is expected", printable(name));
        return Err(Refusal::bad(text));
    }
    let service_api_url = text(&body, "service_api_url")?.map(str::to_owned);
    change(operations, ask, |objects| {
        objects.clouds.entry(name.to_owned()).or_default().service_api_url = service_api_url;
        let reply = Reply::json(&json!({ "storage_name": name }))?;
        Ok((reply.with_status(StatusCode::CREATED), format!("cloud storage {name}")))
    })
}

fn add_user(operations: &Operations, ask: &Ask, name: &str) -> Result<Reply, Refusal> {
    let body = ask.dictionary()?;
    let (who, is_vo) = match (text(&body, "user_dn")?, text(&body, "vo_name")?) {
        (Some(dn), None) => (dn, false),
        (None, Some(vo)) => (vo, true),
        _ => return Err(Refusal::bad("One of user_dn and vo_name is expected")),
    };
    let access_key = either(&body, ["access_key", "access_token"])?.to_owned();
    let secret = either(&body, ["secret_key", "access_token_secret"])?;
    let sealed = operations.shared.kernel.vault.seal_text(&purpose(name, who), secret);
    let sealed_secret = sealed.map_err(|error| refusal(problem(CatalogError::Corrupt(error.to_string()))))?;
    change(operations, ask, |objects| {
        let cloud = objects.clouds.get_mut(name).ok_or_else(|| missing(name))?;
        cloud.users.insert(who.to_owned(), Keys { is_vo, access_key, sealed_secret });
        if cloud.users.len() > USERS_MAX {
            return Err(Refusal::bad(format!("more than {USERS_MAX} have keys there: remove some first")));
        }
        let reply = Reply::json(&view(name, cloud))?;
        Ok((reply.with_status(StatusCode::CREATED), format!("cloud storage {name}: keys of {who}")))
    })
}

/// Keys cannot change places.
fn purpose(name: &str, who: &str) -> String {
    format!("keys of {who} at {name}")
}

/// By which a job opens a URL: its user's keys before those of its VO, a longer host before a shorter.
pub fn keys(shared: &Shared, job: &JobRow, url: &RemoteUrl, path_style: bool) -> Option<S3Keys> {
    let objects = shared.fts.get().ok()?;
    let (name, who, keys) = choose(&objects, &job.user, &job.vo, url, path_style)?;
    match shared.kernel.vault.unseal_text(&purpose(name, who), &keys.sealed_secret) {
        Ok(secret) => Some(S3Keys {
            access_key: keys.access_key.clone(),
            secret,
            session_token: None,
            region: REGION.to_owned(),
        }),
        Err(error) => {
            tracing::warn!(storage = name, who, %error, "keys of a cloud storage cannot be used");
            None
        }
    }
}

fn choose<'a>(
    objects: &'a Objects,
    user: &str,
    vo: &str,
    url: &RemoteUrl,
    path_style: bool,
) -> Option<(&'a str, &'a str, &'a Keys)> {
    let all = objects.clouds.iter().filter_map(|(name, cloud)| {
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
        let mut objects = Objects::default();
        objects.clouds.insert("S3:s3.example".into(), cloud(&[("atlas", true), ("/CN=me", false)]));
        objects.clouds.insert("S3:far.s3.example".into(), cloud(&[("atlas", true)]));
        objects.clouds.insert("DROPBOX".into(), cloud(&[("atlas", true)]));
        let chosen = |user: &str, vo: &str, url: &str| {
            let url = RemoteUrl::parse(url).unwrap();
            choose(&objects, user, vo, &url, false).map(|(name, who, _)| format!("{name} {who}"))
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
