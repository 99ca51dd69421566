//! What runs where, what shall run at once, and names to choose from.

use longhaul_api::fts::Refusal;
use longhaul_catalog::JobName;
use longhaul_identity::refusal;
use longhaul_model::JobFileState;
use serde_json::{Value, json};

use super::request::{FtsRequest, Reply};
use super::views::own_host;
use crate::operations::{Operations, problem};

const FORCED_MAX: usize = 1_000;
const NAMES_MAX: usize = 10;

/// All copies of jobs belong to one service: it is the only host.
pub fn hosts(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    ask.person.needs("config")?;
    let counts =
        operations.shared.kernel.catalog.count_job_files().map_err(|error| refusal(problem(error)))?;
    let of = |wanted: fn(JobFileState) -> bool| -> u64 {
        counts.iter().filter(|(state, _)| wanted(*state)).map(|(_, count)| count).sum()
    };
    let staging = of(|state| state == JobFileState::Started);
    Reply::json(
        &json!({ own_host(operations): { "active": of(JobFileState::is_running), "staging": staging } }),
    )
}

pub fn force_start(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    ask.person.needs_all("admin")?;
    let body = ask.value()?;
    let ids: Option<Vec<u64>> = body.as_array().and_then(|list| list.iter().map(Value::as_u64).collect());
    let ids = ids.filter(|ids| ids.len() <= FORCED_MAX);
    let ids =
        ids.ok_or_else(|| Refusal::bad(format!("A list of at most {FORCED_MAX} file ids is expected")))?;
    let states =
        operations.shared.kernel.catalog.job_file_states(&ids).map_err(|error| refusal(problem(error)))?;
    let mut refused = Vec::new();
    let mut forced = Vec::new();
    for (id, state) in ids.into_iter().zip(states) {
        match state {
            None => refused.push(json!({ "file_id": id, "error": "File does not exist" })),
            Some(JobFileState::Submitted) => forced.push(id),
            Some(_) => refused.push(json!({ "file_id": id, "error": "File is not in SUBMITTED state" })),
        }
    }
    operations.shared.job_control.force_job_files(forced)?;
    Reply::json(&refused)
}

pub fn autocomplete(operations: &Operations, ask: &FtsRequest, what: &str) -> Result<Reply, Refusal> {
    ask.person.needs_all("config")?;
    let prefix = ask.query.get("term").unwrap_or_default();
    let names = |what| {
        operations
            .shared
            .kernel
            .catalog
            .job_names(what, prefix, NAMES_MAX)
            .map_err(|error| refusal(problem(error)))
    };
    let found = match what {
        "dn" => names(JobName::User)?,
        "vo" => names(JobName::Vo)?,
        "source" => names(JobName::Source)?,
        "destination" => names(JobName::Target)?,
        "storage" => {
            let mut both = names(JobName::Source)?;
            both.extend(names(JobName::Target)?);
            both.sort();
            both.dedup();
            both.truncate(NAMES_MAX);
            both
        }
        _ => return Err(Refusal::missing("The requested URL was not found on the server.")),
    };
    Reply::json(&found)
}
