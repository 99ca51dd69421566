//! `/optimizer`: how many copies there are between storages. FTS decides that number for each pair once a minute; here the
//! scheduler decides each start, so that there are the present number and what came of it, a minute at a time, to tell.

use std::collections::BTreeMap;

use longhaul_api::fts::{Moment, Refusal};
use longhaul_catalog::{JobFileQuery, JobFileRow};
use longhaul_model::JobFileState;
use longhaul_model::job::storage_element;
use serde_json::{Value, json};

use super::ask::{Ask, Reply};
use super::door::no_route;
use super::kept::refusal;
use crate::jobs::Minute;
use crate::operations::{Operations, problem};

/// Running files that are looked at, of each state.
const FILES_MAX: usize = 5_000;
/// As many as FTS tells.
const MINUTES_TOLD: usize = 50;

pub fn answer(operations: &Operations, ask: &Ask, words: &[&str]) -> Result<Reply, Refusal> {
    // FTS asks for nothing here; which storages are busy with what is not everybody's business.
    ask.person.needs("transfer")?;
    match (words, ask.method.as_str()) {
        ([], "GET") => Reply::json(&true),
        (["current"], "GET") => Reply::json(&current(operations, ask)?),
        (["evolution"], "GET") => Reply::json(&evolution(operations, ask)?),
        (["current"], "POST") => {
            ask.person.needs_all("config")?;
            let text = "The number of copies of a pair is decided anew at each start: set its limits with /config/links";
            Err(Refusal::new(501, text))
        }
        _ => Err(no_route(ask)),
    }
}

/// Of the newest minutes, the newest first.
fn evolution(operations: &Operations, ask: &Ask) -> Result<Vec<Value>, Refusal> {
    let own = own(ask);
    let (source, target) = (ask.query.get("source_se"), ask.query.get("dest_se"));
    let fits = |wanted: Option<&str>, found: &str| wanted.is_none_or(|wanted| wanted == found);
    let minutes = operations.shared.jobs.pairs().last(MINUTES_TOLD, operations.now(), |pair| {
        fits(own.as_deref(), &pair.community) && fits(source, &pair.source) && fits(target, &pair.target)
    });
    Ok(minutes.into_iter().map(told).collect())
}

fn told(minute: Minute) -> Value {
    let Minute { at, pair, active, more, done, failed, rate, .. } = minute;
    let ended = done + failed;
    let success = if ended > 0 { 100.0 * f64::from(done) / f64::from(ended) } else { 100.0 };
    json!({
        "datetime": Moment(at), "source_se": pair.source, "dest_se": pair.target,
        "active": active, "actual_active": active, "diff": more,
        "throughput": rate, "ema": minute.smoothed_rate, "success": success,
        "filesize_avg": minute.size_mean, "filesize_stddev": minute.size_deviation,
        // Nobody kept how many waited.
        "queue_size": null,
        "rationale": format!("{active} at once, {done} done, {failed} failed; each start is decided by itself"),
    })
}

/// Whose copies may be told: none is everybody's.
fn own(ask: &Ask) -> Option<String> {
    let all = ask.person.needs_all("transfer").is_ok();
    (!all).then(|| ask.person.vo().to_owned())
}

fn current(operations: &Operations, ask: &Ask) -> Result<Vec<Value>, Refusal> {
    let own = own(ask);
    let running = operations.shared.catalog.list_job_files(&JobFileQuery {
        vo: own.clone(),
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
    let rates = operations.shared.jobs.pairs();
    let rates = rates.smoothed_rates(|pair| own.as_deref().is_none_or(|own| own == pair.community));
    let shown = pairs.into_iter().map(|(pair, active)| {
        let rate = rates.get(&pair);
        let (source, target) = pair;
        json!({ "source_se": source, "dest_se": target, "active": active, "ema": rate, "nostreams": 1, "datetime": now })
    });
    Ok(shown.collect())
}
