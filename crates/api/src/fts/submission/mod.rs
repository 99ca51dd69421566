//! A submission: parsed, checked and completed with the defaults of FTS. Start with [`Submission::parse`].

mod fields;
mod files;
mod parameters;
mod schema;
#[cfg(test)]
mod tests;

use longhaul_model::Timestamp;
use longhaul_model::job::{JobFileState, JobKind};
use serde_json::{Map, Value};

use super::{Refusal, UrlNames};
use fields::Fields;

pub use parameters::Parameters;
pub use schema::schema;

/// FTS's own strategies; `auto` is `queue`.
const STRATEGIES: [&str; 10] = [
    "auto",
    "orderly",
    "queue",
    "success",
    "throughput",
    "file-throughput",
    "pending-data",
    "waiting-time",
    "waiting-time-with-error",
    "duration",
];

/// Files of one job.
const FILES_MAX: usize = 20_000;

/// What the deployment decides about submissions.
#[derive(Clone, Debug)]
pub struct Rules {
    pub now: Timestamp,
    /// Longest metadata of a job or file, as JSON.
    pub metadata_bytes: usize,
    /// `certificate` or `oauth2`; put into the job's metadata.
    pub auth_method: &'static str,
    /// What becomes of URLs whose scheme is not served.
    pub names: UrlNames,
}

/// How the job gets its id.
#[derive(Clone, Debug, PartialEq)]
pub enum WantedId {
    Any,
    /// From this name, so that the client knows it beforehand.
    Named(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub kind: JobKind,
    pub id: WantedId,
    pub priority: u8,
    pub expires: Option<Timestamp>,
    pub parameters: Parameters,
    pub files: Vec<SubmittedFile>,
}

/// One source and one target of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedFile {
    pub index: u32,
    pub source: String,
    pub source_se: String,
    pub target: String,
    pub target_se: String,
    /// As declared.
    pub size: Option<u64>,
    /// `ALG:value`, or `ALG` where the value has to come from the storages.
    pub checksum: String,
    pub activity: String,
    pub state: JobFileState,
    pub metadata: Value,
    pub staging_metadata: Value,
    pub archive_metadata: Value,
    pub scitag: Option<u32>,
    pub selection_strategy: String,
    pub source_token: Option<String>,
    pub target_token: Option<String>,
}

impl Submission {
    pub fn parse(body: &Value, rules: &Rules) -> Result<Submission, Refusal> {
        let body = body.as_object().ok_or_else(|| Refusal::bad("Expecting a dictionary"))?;
        if body.get("delete").is_some_and(is_something) {
            return Err(Refusal::new(405, "Deletion jobs are no longer supported by FTS"));
        }
        let entries = match body.get("files") {
            None | Some(Value::Null) => return Err(Refusal::bad("No transfers operations specified")),
            Some(Value::Array(entries)) => entries,
            Some(_) => return Err(Refusal::malformed("files is expected to be a list")),
        };
        let empty = Map::new();
        let given = match body.get("params") {
            None | Some(Value::Null) => &empty,
            Some(Value::Object(given)) => given,
            Some(_) => return Err(Refusal::malformed("params is expected to be a dictionary")),
        };
        let given = Fields::new("params", given);
        let parameters = Parameters::parse(&given, entries, rules)?;
        let mut files = files::parse(entries, rules)?;
        let kind = kind(&given, &files)?;
        parameters.check(kind, &files)?;
        begin(kind, parameters.is_staging(), &mut files);
        Ok(Submission {
            kind,
            id: wanted_id(&given)?,
            priority: given.integer("priority")?.unwrap_or(3).clamp(1, 5) as u8,
            expires: parameters::expiry(&given, rules.now)?,
            parameters,
            files,
        })
    }
}

/// What Python calls true of a list or dictionary.
fn is_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(items) => !items.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => true,
    }
}

fn wanted_id(given: &Fields<'_>) -> Result<WantedId, Refusal> {
    match given.text("id_generator")?.unwrap_or("standard") {
        "deterministic" => match given.text("sid")?.filter(|sid| !sid.is_empty()) {
            Some(sid) => Ok(WantedId::Named(sid.to_owned())),
            None => Err(Refusal::bad("Need sid for deterministic job id generation")),
        },
        "standard" => Ok(WantedId::Any),
        _ => Err(Refusal::malformed("id_generator is expected to be standard or deterministic")),
    }
}

fn kind(given: &Fields<'_>, files: &[SubmittedFile]) -> Result<JobKind, Refusal> {
    let wanted = match (given.flag("multihop")?, given.flag("reuse")?) {
        (true, _) => JobKind::Hops,
        (false, true) => JobKind::Reuse,
        (false, false) => JobKind::Regular,
    };
    let replicas = files.windows(2).any(|pair| pair[0].index == pair[1].index);
    if !replicas {
        return Ok(wanted);
    }
    if wanted != JobKind::Regular {
        return Err(Refusal::bad(
            "Can not request multiple replica job together with multihop or session reuse at the same time",
        ));
    }
    let one =
        files.first().zip(files.last()).is_some_and(|(a, b)| a.index == b.index && a.target == b.target);
    if !one {
        return Err(Refusal::bad("Multiple replica jobs must only have one unique file"));
    }
    let strategy = &files[0].selection_strategy;
    if !STRATEGIES.contains(&strategy.as_str()) {
        let shown = longhaul_model::units::printable(&strategy.chars().take(40).collect::<String>());
        return Err(Refusal::bad(format!("{shown} algorithm is not supported by Scheduler")));
    }
    Ok(JobKind::Replicas)
}

/// The states in which files begin; of replicas and hops the first has its turn.
fn begin(kind: JobKind, staging: bool, files: &mut [SubmittedFile]) {
    let first = if staging { JobFileState::Staging } else { JobFileState::Submitted };
    let one_by_one = matches!(kind, JobKind::Replicas | JobKind::Hops);
    for (place, file) in files.iter_mut().enumerate() {
        file.state = if one_by_one && place > 0 { JobFileState::NotUsed } else { first };
    }
}
