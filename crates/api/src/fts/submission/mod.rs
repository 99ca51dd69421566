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

/// Strategies of FTS; `auto` is `queue`.
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

/// Most files of one job.
const FILES_MAX: usize = 20_000;

/// Settings of the deployment about submissions.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Time of the submission.
    pub now: Timestamp,
    /// Longest metadata of a job or file, in bytes of JSON.
    pub metadata_bytes: usize,
    /// `certificate` or `oauth2`; put into the job's metadata.
    pub auth_method: &'static str,
    /// Maps URLs whose scheme is not served.
    pub names: UrlNames,
}

/// How the job gets its id.
#[derive(Clone, Debug, PartialEq)]
pub enum WantedId {
    /// The service draws a random one.
    Any,
    /// Derived from this name, so that the client knows it beforehand.
    Named(String),
}

/// A job as submitted, checked and completed with defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// Kind of the job.
    pub kind: JobKind,
    /// How the job gets its id.
    pub id: WantedId,
    /// Priority, 1 (least) to 5; default 3.
    pub priority: u8,
    /// Time when the job is given up if it has not begun.
    pub expires: Option<Timestamp>,
    /// Parameters of the job.
    pub parameters: Parameters,
    /// Pairs of source and target, 1 to 20,000.
    pub files: Vec<SubmittedFile>,
}

/// One source and one target of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedFile {
    /// Position in the job; replicas of one file share it.
    pub index: u32,
    /// Source URL.
    pub source: String,
    /// Source storage element.
    pub source_se: String,
    /// Target URL.
    pub target: String,
    /// Target storage element.
    pub target_se: String,
    /// Size in bytes, if declared.
    pub size: Option<u64>,
    /// Checksum as `ALG:value`, or `ALG` if the value has to come from the storages.
    pub checksum: String,
    /// Activity; `default` if none was given.
    pub activity: String,
    /// State in which the file begins.
    pub state: JobFileState,
    /// Metadata of the file.
    pub metadata: Value,
    /// Metadata for staging from tape.
    pub staging_metadata: Value,
    /// Metadata for archiving to tape.
    pub archive_metadata: Value,
    /// Flow label of SciTags, 65 to 65,535.
    pub scitag: Option<u32>,
    /// How one of several sources is chosen; `auto` by default.
    pub selection_strategy: String,
    /// Bearer token for the source.
    pub source_token: Option<String>,
    /// Bearer token for the target.
    pub target_token: Option<String>,
}

impl Submission {
    /// Checks a submission and completes it with the defaults of FTS.
    ///
    /// # Errors
    /// The submission is malformed, too large, or contradicts itself; the texts are those of FTS.
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

/// Truth of a list or dictionary in Python.
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

/// Sets the states in which files begin; of replicas and hops only the first may start.
fn begin(kind: JobKind, staging: bool, files: &mut [SubmittedFile]) {
    let first = if staging { JobFileState::Staging } else { JobFileState::Submitted };
    let one_by_one = matches!(kind, JobKind::Replicas | JobKind::Hops);
    for (place, file) in files.iter_mut().enumerate() {
        file.state = if one_by_one && place > 0 { JobFileState::NotUsed } else { first };
    }
}
