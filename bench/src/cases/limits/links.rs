//! How soon links with leases move, as the API tells it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use longhaul_api::routes;
use longhaul_testbed::http::Api;
use serde_json::Value;

use super::CASE;
use crate::measure::Row;

const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Within which a link with leases moves.
const SILENCE_S_MAX: f64 = 5.0;

/// Source and target.
type Link = (String, String);

/// One link, since its first lease.
struct LinkRecord {
    leased_at: Instant,
    first_bytes_after: Option<Duration>,
    /// Since when it has leases and does not move.
    silent_since: Option<Instant>,
    silence_max: Duration,
}

impl LinkRecord {
    fn new(leased_at: Instant) -> LinkRecord {
        LinkRecord { leased_at, first_bytes_after: None, silent_since: None, silence_max: Duration::ZERO }
    }

    fn observe(&mut self, has_leases: bool, moves: bool, now: Instant) {
        if moves {
            self.first_bytes_after.get_or_insert(now.duration_since(self.leased_at));
        }
        if let Some(since) = self.silent_since {
            self.silence_max = self.silence_max.max(now.duration_since(since));
        }
        self.silent_since = (has_leases && !moves).then(|| self.silent_since.unwrap_or(now));
    }

    /// Seconds until its first bytes, or until now if there were none.
    fn first_bytes_s(&self) -> f64 {
        self.first_bytes_after.unwrap_or_else(|| self.leased_at.elapsed()).as_secs_f64()
    }
}

/// All links that had leases. A second's bytes are told when it is over, and polls take their time: so times
/// are too long by one second and a half at most.
#[derive(Default)]
pub(super) struct LinkWatch {
    records: BTreeMap<Link, LinkRecord>,
}

impl LinkWatch {
    /// Polls until the sender of `stop` is gone.
    pub(super) fn run(api: &Api, stop: &Receiver<()>) -> LinkWatch {
        let mut watch = LinkWatch::default();
        while stop.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            watch.observe(&leased_links(api), &moving_links(api), Instant::now());
        }
        watch
    }

    fn observe(&mut self, leased: &BTreeSet<Link>, moving: &BTreeSet<Link>, now: Instant) {
        for link in leased {
            self.records.entry(link.clone()).or_insert_with(|| LinkRecord::new(now));
        }
        for (link, record) in &mut self.records {
            record.observe(leased.contains(link), moving.contains(link), now);
        }
    }

    pub(super) fn rows(&self) -> [Row; 2] {
        for ((source, target), record) in &self.records {
            let (first, silence) = (record.first_bytes_s(), record.silence_max.as_secs_f64());
            eprintln!("  {source} to {target}: first bytes after {first:.1} s, silent for {silence:.1} s");
        }
        let slowest = |value: fn(&LinkRecord) -> f64| self.records.values().map(value).fold(0.0, f64::max);
        let row = |figure, seconds| Row {
            yardstick: format!("{} links", self.records.len()),
            ..Row::at_most(CASE, figure, seconds, SILENCE_S_MAX, "≤ 5")
        };
        [
            row("first lease of a link to its first bytes, slowest s", slowest(LinkRecord::first_bytes_s)),
            row(
                "silence of a link with leases, longest s",
                slowest(|record| record.silence_max.as_secs_f64()),
            ),
        ]
    }
}

/// Links with leases for files that have bytes.
fn leased_links(api: &Api) -> BTreeSet<Link> {
    let leased = api.all(&routes::TRANSFER_LIST, &[], &[("state", "leased")]);
    let with_bytes = leased.iter().filter(|item| item["size"].as_u64().is_some_and(|size| size > 0));
    with_bytes.filter_map(link_of).collect()
}

/// Links over which bytes came in the last whole second.
fn moving_links(api: &Api) -> BTreeSet<Link> {
    let history = api.get(&routes::RATE_HISTORY, &[], &[("seconds", "1")]);
    let moves = |item: &&Value| {
        let mut rates = item["bytes_per_s"].as_array().into_iter().flatten().filter_map(Value::as_f64);
        rates.any(|rate| rate > 0.0)
    };
    history["links"].as_array().into_iter().flatten().filter(moves).filter_map(link_of).collect()
}

fn link_of(item: &Value) -> Option<Link> {
    Some((item["source"].as_str()?.to_owned(), item["target"].as_str()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_while_there_are_leases() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let link = |source: &str| (source.to_owned(), "beta".to_owned());
        let (none, both) = (BTreeSet::new(), BTreeSet::from([link("alpha"), link("gamma")]));
        let one = BTreeSet::from([link("alpha")]);
        let mut watch = LinkWatch::default();
        watch.observe(&none, &both, at(0));
        assert!(watch.records.is_empty(), "a link counts from its first lease");
        watch.observe(&both, &none, at(1));
        watch.observe(&both, &one, at(3));
        // What had a lease and has none is not silent.
        watch.observe(&one, &one, at(4));
        watch.observe(&both, &none, at(9));
        watch.observe(&both, &both, at(12));
        let seconds = |source: &str| {
            let record = &watch.records[&link(source)];
            (record.first_bytes_after.map(|time| time.as_secs()), record.silence_max.as_secs())
        };
        assert_eq!(seconds("alpha"), (Some(2), 3));
        assert_eq!(seconds("gamma"), (Some(11), 3));
    }
}
