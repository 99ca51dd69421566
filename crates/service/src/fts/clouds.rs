//! `/config/cloud_storage`: keys of storages that speak S3, as FTS's clients set them: of one user, or of a
//! VO. Secrets are sealed in the catalog, and never told again.

use http::StatusCode;
use longhaul_api::fts::Refusal;
use longhaul_catalog::{CatalogError, DatabaseFailure};
use longhaul_identity::refusal;
use longhaul_jobs::cloud_keys::{Cloud, KIND, Keys, host_of, purpose};
use longhaul_jobs::config_store::Objects;
use longhaul_model::units::printable;
use serde_json::{Map, Value, json};

use super::bans::change;
use super::request::{FtsRequest, Reply};
use super::routes;
use crate::operations::{Operations, problem};

const TEXT_BYTES_MAX: usize = 1_024;
/// Users and VOs of one storage.
const USERS_MAX: usize = 10_000;

pub fn answer(
    operations: &Operations,
    ask: &FtsRequest,
    words: &[&str],
    kept: &Objects,
) -> Result<Reply, Refusal> {
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

fn add(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
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

fn add_user(operations: &Operations, ask: &FtsRequest, name: &str) -> Result<Reply, Refusal> {
    let body = ask.dictionary()?;
    let (who, is_vo) = match (text(&body, "user_dn")?, text(&body, "vo_name")?) {
        (Some(dn), None) => (dn, false),
        (None, Some(vo)) => (vo, true),
        _ => return Err(Refusal::bad("One of user_dn and vo_name is expected")),
    };
    let access_key = either(&body, ["access_key", "access_token"])?.to_owned();
    let secret = either(&body, ["secret_key", "access_token_secret"])?;
    let sealed = operations.shared.kernel.vault.seal_text(&purpose(name, who), secret);
    let sealed_secret = sealed.map_err(|error| {
        refusal(problem(CatalogError::Corrupt(DatabaseFailure::new(error.to_string(), error))))
    })?;
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
