//! `/optimizer`: how many copies there are between storages. FTS decides that number for each pair once a minute; here the
//! scheduler decides each start, so that the present number is what there is to tell.

use std::collections::BTreeMap;

use longhaul_api::fts::{Moment, Refusal};
use longhaul_catalog::{JobFileQuery, JobFileRow};
use longhaul_model::JobFileState;
use longhaul_model::job::storage_element;
use serde_json::{Value, json};

use super::ask::{Ask, Reply};
use super::door::no_route;
use super::kept::refusal;
use crate::operations::{Operations, problem};

/// Running files that are looked at, of each state.
const FILES_MAX: usize = 5_000;

pub fn answer(operations: &Operations, ask: &Ask, words: &[&str]) -> Result<Reply, Refusal> {
    // FTS asks for nothing here; which storages are busy with what is not everybody's business.
    ask.person.needs("transfer")?;
    match (words, ask.method.as_str()) {
        ([], "GET") => Reply::json(&true),
        (["current"], "GET") => Reply::json(&current(operations, ask)?),
        // No decision about a pair is kept, so there is no history of them.
        (["evolution"], "GET") => Reply::json(&json!([])),
        (["current"], "POST") => {
            ask.person.needs_all("config")?;
            let text = "The number of copies of a pair is decided anew at each start: set its limits with /config/links";
            Err(Refusal::new(501, text))
        }
        _ => Err(no_route(ask)),
    }
}

fn current(operations: &Operations, ask: &Ask) -> Result<Vec<Value>, Refusal> {
    let all = ask.person.needs_all("transfer").is_ok();
    let running = operations.shared.catalog.list_job_files(&JobFileQuery {
        vo: (!all).then(|| ask.person.vo().to_owned()),
        states: vec![JobFileState::Ready, JobFileState::Active],
        unfinished_only: true,
        limit: FILES_MAX,
        ..JobFileQuery::default()
    });
    let running = running.map_err(|error| refusal(problem(error)))?;
    let mut pairs: BTreeMap<(String, String), u32> = BTreeMap::new();
    let pair = |row: &JobFileRow| Some((storage_element(&row.source)?, storage_element(&row.target)?));
    for pair in running.iter().filter_map(pair) {
        *pairs.entry(pair).or_default() += 1;
    }
    let now = Moment(operations.now());
    let shown = pairs.into_iter().map(|((source, target), active)| {
        json!({ "source_se": source, "dest_se": target, "active": active, "ema": null, "nostreams": 1, "datetime": now })
    });
    Ok(shown.collect())
}
