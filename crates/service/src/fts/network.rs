//! `/optimizer`: how many copies there are between storages. FTS decides that number for each pair once a
//! minute; here the scheduler decides each start, so that there are the present number and what came of it, a
//! minute at a time, to tell. A number that is set by hand bounds the pair for a while, in place of what is
//! configured of it.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::fts::{Moment, Refusal};
use longhaul_catalog::{JobFileQuery, JobFileRow};
use longhaul_identity::refusal;
use longhaul_jobs::Minute;
use longhaul_jobs::config_store::ByHand;
use longhaul_model::JobFileState;
use longhaul_model::job::storage_element;
use longhaul_model::units;
use serde_json::{Value, json};

use super::bans::change;
use super::request::{FtsRequest, Reply};
use super::routes;
use crate::operations::{Operations, problem};

/// Running files that are read, of each state.
const FILES_MAX: usize = 5_000;
/// A manual limit is valid for this long unless the request says otherwise.
const BY_HAND_S: u32 = 300;
/// A manual limit is valid for a day at most.
const BY_HAND_S_MAX: u32 = 86_400;
const ACTIVE_MAX: u32 = 10_000;
const STREAMS_MAX: u32 = 64;
/// Minutes in an answer, as in FTS.
const MINUTES_MAX: usize = 50;

pub fn answer(operations: &Operations, ask: &FtsRequest, words: &[&str]) -> Result<Reply, Refusal> {
    // FTS asks for nothing here; which storages are busy with what is not everybody's business.
    ask.person.needs("transfer")?;
    match (words, ask.method.as_str()) {
        ([], "GET") => Reply::json(&true),
        (["current"], "GET") => Reply::json(&current(operations, ask)?),
        (["evolution"], "GET") => Reply::json(&evolution(operations, ask)?),
        (["current"], "POST") => set_current(operations, ask),
        _ => Err(routes::refused(ask)),
    }
}

/// FTS's own number counts until its optimizer decides again, which it does every minute, and five after a
/// change at the latest.
fn set_current(operations: &Operations, ask: &FtsRequest) -> Result<Reply, Refusal> {
    ask.person.needs_all("config")?;
    let body = ask.dictionary()?;
    let storage = |name: &str| {
        let given = body
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| Refusal::bad(format!("Missing parameter: {name}")))?;
        let element = storage_element(given.trim());
        element.ok_or_else(|| Refusal::bad(format!("Field {name} is expected to be scheme://host")))
    };
    let number = |name: &str, usual: u32, most: u32| match body.get(name) {
        None | Some(Value::Null) => Ok(usual),
        Some(value) => {
            let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
            let fits = number.filter(|number| (1..=most).contains(number));
            fits.ok_or_else(|| Refusal::bad(format!("Field {name} is expected to be int, from 1 to {most}")))
        }
    };
    let now = operations.now();
    let seconds = number("seconds", BY_HAND_S, BY_HAND_S_MAX)?;
    let set = ByHand {
        source: storage("source_se")?,
        target: storage("dest_se")?,
        active: number("active", 2, ACTIVE_MAX)?,
        streams: number("nostreams", 1, STREAMS_MAX)?,
        until: now + Duration::from_secs(seconds.into()),
    };
    change(operations, ask, |objects| {
        let ByHand { source, target, active, streams, until } = set.clone();
        objects.by_hand.retain(|kept| kept.until > now && (kept.source != source || kept.target != target));
        let what = format!(
            "by hand, {source} to {target}: {active} at a time and {} each, until {until}",
            units::plural(streams.into(), "stream", "streams")
        );
        let shown = json!({
            "source_se": source, "dest_se": target, "active": active, "nostreams": streams,
            "datetime": Moment(now), "until": Moment(until),
        });
        objects.by_hand.push(set);
        Ok((Reply::json(&shown)?, what))
    })
    .inspect(|_| operations.jobs().configured())
}

/// The history of pairs, newest minute first.
fn evolution(operations: &Operations, ask: &FtsRequest) -> Result<Vec<Value>, Refusal> {
    let own = visible_community(ask);
    let (source, target) = (ask.query.get("source_se"), ask.query.get("dest_se"));
    let fits = |wanted: Option<&str>, found: &str| wanted.is_none_or(|wanted| wanted == found);
    let minutes = operations.shared.job_control.jobs.pairs().last(MINUTES_MAX, operations.now(), |pair| {
        fits(own.as_deref(), &pair.community) && fits(source, &pair.source) && fits(target, &pair.target)
    });
    Ok(minutes.into_iter().map(minute_json).collect())
}

fn minute_json(minute: Minute) -> Value {
    let minute = minute.to_wire(None);
    json!({
        "datetime": Moment(minute.at), "source_se": minute.source, "dest_se": minute.target,
        "active": minute.active, "actual_active": minute.active, "diff": minute.more,
        "throughput": minute.rate, "ema": minute.smoothed_rate, "success": minute.success_rate(),
        "filesize_avg": minute.size_mean, "filesize_stddev": minute.size_deviation,
        // Nobody kept how many waited.
        "queue_size": null,
        "rationale": minute.rationale(),
    })
}

/// The only community whose copies the caller may see; none: all.
fn visible_community(ask: &FtsRequest) -> Option<String> {
    let all = ask.person.needs_all("transfer").is_ok();
    (!all).then(|| ask.person.vo().to_owned())
}

fn current(operations: &Operations, ask: &FtsRequest) -> Result<Vec<Value>, Refusal> {
    let own = visible_community(ask);
    let running = operations.shared.kernel.catalog.list_job_files(&JobFileQuery {
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
    let now = operations.now();
    let kept = operations.shared.job_control.config_store.get()?;
    if own.is_none() {
        for set in kept.by_hand.iter().filter(|set| set.until > now) {
            pairs.entry((set.source.clone(), set.target.clone())).or_default();
        }
    }
    let rates = operations.shared.job_control.jobs.pairs();
    let rates = rates.smoothed_rates(|pair| own.as_deref().is_none_or(|own| own == pair.community));
    let shown = pairs.into_iter().map(|(pair, active)| {
        let rate = rates.get(&pair);
        let (source, target) = pair;
        // What was set is what FTS would tell as decided.
        let set = kept.by_hand(&source, &target, now);
        let (active, streams) = set.map_or((active, 1), |set| (set.active, set.streams));
        json!({
            "source_se": source, "dest_se": target, "active": active, "ema": rate, "nostreams": streams,
            "datetime": Moment(now),
        })
    });
    Ok(shown.collect())
}
