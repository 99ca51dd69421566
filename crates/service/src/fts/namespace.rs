//! Looking into storages and tidying them up, for people who browse two of them side by side: `/dm`. Whoever
//! asks acts there by what they came with, or have delegated; the service has no rights of its own.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use longhaul_api::fts::Refusal;
use longhaul_identity::refusal;
use longhaul_jobs::{self as jobs, Credential};
use longhaul_model::{Fault, FaultCode};
use longhaul_storage_remote::{End, Entry, Remote, Stat};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::delegation;
use super::request::{FtsRequest, Reply};
use super::routes;
use crate::operations::{Operations, problem};

/// A person waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// What the names of kinds and rights are in POSIX: a directory and a file that their owner may change.
/// Storages tell no more.
const DIRECTORY_MODE: u32 = 0o040_755;
const FILE_MODE: u32 = 0o100_644;

/// A question to a storage, by somebody who may ask.
pub struct Question {
    remote: Arc<Remote>,
    what: What,
    end: End,
}

enum What {
    List,
    Stat,
    MakeDirectory,
    Remove { directory: bool },
    Rename { to: String },
}

/// Checks who asks and what; the storage is asked by [`Question::ask`], which does not block.
pub fn question(operations: &Operations, ask: &FtsRequest, verb: &str) -> Result<Question, Refusal> {
    ask.person.needs("transfer")?;
    let text = |value: Option<&str>, name: &str| {
        let value = value.map(str::trim).filter(|value| !value.is_empty());
        value.map(str::to_owned).ok_or_else(|| Refusal::bad(format!("Missing {name} parameter")))
    };
    let of_query = |name: &str| text(ask.query.get(name), name);
    let of_body = |name: &str| text(ask.dictionary()?.get(name).and_then(Value::as_str), name);
    let (what, url) = match (verb, &ask.method) {
        ("list", &Method::GET) => (What::List, of_query("surl")?),
        ("stat", &Method::GET) => (What::Stat, of_query("surl")?),
        ("mkdir", &Method::POST) => (What::MakeDirectory, of_body("surl")?),
        ("unlink", &Method::POST) => (What::Remove { directory: false }, of_body("surl")?),
        ("rmdir", &Method::POST) => (What::Remove { directory: true }, of_body("surl")?),
        ("rename", &Method::POST) => (What::Rename { to: of_body("new")? }, of_body("old")?),
        _ => return Err(routes::refused(ask)),
    };
    let remote = operations.shared.remote.clone();
    let remote = remote.ok_or_else(|| Refusal::new(503, "Nothing here can reach storages"))?;
    let end = jobs::End { url, credential: credential(operations, ask)? };
    Ok(Question { remote, what, end: jobs::remote_end(&end) })
}

fn credential(operations: &Operations, ask: &FtsRequest) -> Result<Credential, Refusal> {
    let person = &ask.person;
    if let Some(token) = &person.token {
        let bearer = || Credential::Bearer(Zeroizing::new(token.text.clone()));
        return Ok(if token.for_storages { bearer() } else { Credential::None });
    }
    delegation::needs_credential(operations, person, 0)?;
    let delegated = jobs::delegated(&operations.shared.job_control, &person.delegation_id);
    delegated.map_err(|error| refusal(problem(error)))
}

impl Question {
    pub async fn execute(self) -> Result<Reply, Refusal> {
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, self.answer()).await;
        let late = |_| Fault::new(FaultCode::Stalled, "the storage did not answer in time");
        answered
            .map_err(late)
            .and_then(|answer| answer)
            .map_err(|fault| posix_refusal(&fault))
            .and_then(|value| Reply::json(&value))
    }

    async fn answer(&self) -> Result<Value, Fault> {
        let (remote, end) = (&self.remote, &self.end);
        match &self.what {
            What::List => {
                let members = remote.list(&directory(end)).await?;
                Ok(Value::Object(members.iter().map(listed).collect::<Map<_, _>>()))
            }
            What::Stat => Ok(stat_json(&self.found(end).await?)),
            What::MakeDirectory => remote.mkdir(end).await.map(|()| Value::Null),
            What::Remove { directory: false } => {
                if self.found(end).await?.is_collection {
                    return Err(Fault::new(FaultCode::BadRequest, "Is a directory"));
                }
                self.remove(end).await
            }
            What::Remove { directory: true } => {
                let end = directory(end);
                // Servers delete collections with all that is in them; nobody meant that by `rmdir`.
                if !remote.list(&end).await?.is_empty() {
                    return Err(Fault::new(FaultCode::Conflict, "Directory not empty"));
                }
                self.remove(&end).await
            }
            What::Rename { to } => remote.rename(end, to, false).await.map(|()| Value::Null),
        }
    }

    async fn found(&self, end: &End) -> Result<Stat, Fault> {
        let missing = || Fault::new(FaultCode::SourceMissing, "No such file or directory");
        self.remote.member(end).await?.ok_or_else(missing)
    }

    async fn remove(&self, end: &End) -> Result<Value, Fault> {
        match self.remote.remove(end).await? {
            true => Ok(Value::Null),
            false => Err(Fault::new(FaultCode::SourceMissing, "No such file or directory")),
        }
    }
}

fn directory(end: &End) -> End {
    End { url: format!("{}/", end.url.trim_end_matches('/')), ..end.clone() }
}

fn listed(entry: &Entry) -> (String, Value) {
    let slash = if entry.stat.is_collection { "/" } else { "" };
    let stat = &entry.stat;
    let value = json!({ "size": stat.size, "mode": mode(stat), "mtime": stat.modified_s().unwrap_or(0) });
    (format!("{}{slash}", entry.name), value)
}

fn stat_json(stat: &Stat) -> Value {
    let time = stat.modified_s().unwrap_or(0);
    json!({
        "size": stat.size, "mode": mode(stat), "nlink": 1, "atime": time, "mtime": time, "ctime": time,
    })
}

fn mode(stat: &Stat) -> u32 {
    if stat.is_collection { DIRECTORY_MODE } else { FILE_MODE }
}

/// A storage's refusal as FTS tells it: by the number of the error in POSIX.
fn posix_refusal(fault: &Fault) -> Refusal {
    let (status, number) = match fault.code {
        FaultCode::NotAllowed | FaultCode::NotAuthenticated | FaultCode::PermitRefused => (403, 13),
        FaultCode::SourceMissing | FaultCode::NotFound => (404, 2),
        FaultCode::NameClash | FaultCode::AlreadyExists => (500, 17),
        FaultCode::Conflict => (500, 39),
        FaultCode::Busy | FaultCode::TargetFull => (503, 11),
        FaultCode::Unreachable | FaultCode::ConnectionLost | FaultCode::Stalled => (503, 110),
        FaultCode::BadRequest | FaultCode::BadName => (400, 93),
        _ => (500, 5),
    };
    Refusal::new(status, format!("[{number}] {}", fault.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_numbers_of_posix() {
        let of = |code: FaultCode| posix_refusal(&Fault::new(code, "why"));
        assert_eq!(
            (of(FaultCode::NotAllowed).status, of(FaultCode::NotAllowed).message.as_str()),
            (403, "[13] why")
        );
        assert_eq!(of(FaultCode::SourceMissing).status, 404);
        assert_eq!(of(FaultCode::Unreachable).status, 503);
        assert_eq!(of(FaultCode::BadRequest).status, 400);
        assert_eq!(of(FaultCode::Corrupted).status, 500);
    }
}
