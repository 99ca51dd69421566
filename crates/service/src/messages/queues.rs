//! What pairs of storages did, told to brokers once a minute as FTS tells of decisions of its optimizer.

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

/// A minute is told so long after its end at the latest.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Pairs that have something waiting and did nothing, told in one minute.
const IDLE_MAX: usize = 5_000;

/// Files that wait on a pair, and how often these were tried before.
type Waiting = BTreeMap<(String, String), (u64, u64)>;

/// Until told to stop.
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
            // The next minute is told all the same.
            Ok(Err(error)) => tracing::warn!(%error, "what pairs of storages did is not told"),
            Err(error) => tracing::error!(%error, "what pairs of storages did is not told"),
        }
    }
}

/// What has ended since then; says until when it told.
fn append_minutes(shared: &ServiceContext, spool: &Spool, told: Timestamp) -> std::io::Result<Timestamp> {
    let now = shared.kernel.now();
    let minutes = shared.job_control.jobs.pairs().after(told, now);
    let Some(last) = minutes.last().map(|minute| minute.at) else { return Ok(told) };
    let waiting = match waiting(shared) {
        Ok(waiting) => Some(waiting),
        Err(error) => {
            tracing::info!(%error, "the files that wait on each pair are not counted");
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
