//! Publishes the history of storage pairs to brokers once a minute, in the form of FTS's optimizer messages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::fts::{Message, PairMinute};
use longhaul_model::Timestamp;
use longhaul_model::job::storage_element;
use tokio::sync::watch;

use super::sayer;
use super::spool::Spool;
use crate::context::ServiceContext;

/// A minute is published at most this long after its end.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Idle pairs with waiting files that are published per minute.
const IDLE_MAX: usize = 5_000;

/// Files that wait on a pair, and how often these were tried before.
type Waiting = BTreeMap<(String, String), (u64, u64)>;

/// Publishes until told to stop.
pub async fn publish_minutes(
    shared: Arc<ServiceContext>,
    spool: Arc<Spool>,
    mut stop: watch::Receiver<bool>,
) {
    let mut told = shared.kernel.now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let (at_work, to) = (shared.clone(), spool.clone());
        match tokio::task::spawn_blocking(move || append_minutes(&at_work, &to, told)).await {
            Ok(Ok(last)) => told = last,
            // The next minute is published all the same.
            Ok(Err(error)) => tracing::warn!(%error, "the history of storage pairs is not published"),
            Err(error) => tracing::error!(%error, "the history of storage pairs is not published"),
        }
    }
}

/// Appends the minutes that ended after `told` to the spool; returns the end of the last one.
fn append_minutes(shared: &ServiceContext, spool: &Spool, told: Timestamp) -> std::io::Result<Timestamp> {
    let now = shared.kernel.now();
    let minutes = shared.job_control.jobs.pairs().after(told, now);
    let Some(last) = minutes.last().map(|minute| minute.at) else { return Ok(told) };
    let waiting = match waiting(shared) {
        Ok(waiting) => Some(waiting),
        Err(error) => {
            tracing::info!(%error, "cannot count the files that wait on each pair");
            None
        }
    };
    let says = sayer(&shared.config, &shared.public_url);
    let mut messages: Vec<Message> = Vec::new();
    let mut idle = waiting.clone().unwrap_or_default();
    for minute in minutes {
        let pair = (minute.pair.source.clone(), minute.pair.target.clone());
        idle.remove(&pair);
        // What waits now is of the newest minute; of those before it nobody knows.
        let of_it = waiting.as_ref().filter(|_| minute.at == last);
        let counted = of_it.map(|waiting| waiting.get(&pair).copied().unwrap_or_default());
        messages.push(minute.to_wire(counted).message(&says));
    }
    messages.extend(idle.into_iter().take(IDLE_MAX).map(|((source, target), counted)| {
        PairMinute { at: last, source, target, waiting: Some(counted), ..PairMinute::default() }
            .message(&says)
    }));
    spool.append(messages, now)?;
    Ok(last)
}

fn waiting(shared: &ServiceContext) -> Result<Waiting, longhaul_catalog::CatalogError> {
    let ends = shared.kernel.catalog.job_endpoints()?;
    let names: BTreeMap<u64, String> =
        ends.iter().filter_map(|end| Some((end.id, storage_element(&end.url)?))).collect();
    let mut waiting = Waiting::new();
    for pair in shared.kernel.catalog.count_waiting_pairs()? {
        let (Some(source), Some(target)) = (names.get(&pair.source), names.get(&pair.target)) else {
            continue;
        };
        let counted = waiting.entry((source.clone(), target.clone())).or_default();
        counted.0 += pair.files;
        counted.1 += pair.retries;
    }
    Ok(waiting)
}
