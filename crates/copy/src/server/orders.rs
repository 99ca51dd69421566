//! Third-party copies: a client orders this server to fetch from another one, and may disconnect.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, DataSecurity, Fault, FaultCode};
use parking_lot::{Condvar, Mutex};

use crate::progress::{FileOutcome, Outcome, Progress};
use crate::protocol::{FetchOrder, ITEMS_PER_MESSAGE_MAX, OrderState, PAGE_BYTES_MAX};
use crate::pull::Pull;
use crate::remote::escaped_len;
use crate::rename_on_commit::refuse_work_directory;
use crate::state::CopyKey;
use crate::stop::Stop;
use crate::url::ServerUrl;

/// Orders that are running, or have ended unseen.
const ORDERS_MAX: usize = 32;
/// Unread file outcomes kept per order. A connected client polls several times a second.
const OUTCOMES_RETAINED_MAX: usize = 20_000;
/// Bytes of an outcome in a message besides its texts.
const OUTCOME_OVERHEAD_BYTES: usize = 250;
/// Longest time a poll is held back while an order runs: its counters change all the time.
const POLL_HOLD_MAX: Duration = Duration::from_millis(250);

pub(super) struct Orders {
    data_security: DataSecurity,
    all: Mutex<HashMap<u64, Arc<RunningOrder>>>,
}

struct RunningOrder {
    /// The client that ordered it; none for a detached order.
    owner: Mutex<Option<AgentId>>,
    progress: Progress,
    stop: Stop,
    status: Mutex<OrderStatus>,
    outcomes: Mutex<OutcomeLog>,
    changed: Condvar,
}

/// File outcomes, numbered in order of arrival.
#[derive(Default)]
struct OutcomeLog {
    /// Number of the first retained outcome.
    first: u64,
    outcomes: VecDeque<FileOutcome>,
}

impl OutcomeLog {
    fn push(&mut self, outcome: FileOutcome) {
        if self.outcomes.len() >= OUTCOMES_RETAINED_MAX {
            self.outcomes.pop_front();
            self.first += 1;
        }
        self.outcomes.push_back(outcome);
    }

    /// Drops the outcomes that the client has and returns as many of the following as fit in a message.
    fn after(&mut self, known: u64) -> (u64, Vec<FileOutcome>) {
        while self.first < known && self.outcomes.pop_front().is_some() {
            self.first += 1;
        }
        let mut bytes = 0;
        let fits = |outcome: &&FileOutcome| {
            let detail = match &outcome.outcome {
                Outcome::Failed(fault) => escaped_len(&fault.detail),
                Outcome::LeftOut(why) => escaped_len(why),
                _ => 0,
            };
            bytes +=
                OUTCOME_OVERHEAD_BYTES + escaped_len(&outcome.source) + escaped_len(&outcome.target) + detail;
            bytes <= PAGE_BYTES_MAX / 2
        };
        (self.first, self.outcomes.iter().take(ITEMS_PER_MESSAGE_MAX).take_while(fits).cloned().collect())
    }
}

#[derive(Default)]
struct OrderStatus {
    over: bool,
    fault: Option<Fault>,
    version: u64,
}

impl Orders {
    pub(super) fn new(data_security: DataSecurity) -> Orders {
        Orders { data_security, all: Mutex::default() }
    }

    /// Starts an order. Repeating a running order returns its state.
    pub(super) fn begin(&self, peer: AgentId, root: &Path, order: FetchOrder) -> Result<OrderState, Fault> {
        let (url, source) = ServerUrl::parse(&order.source)?;
        refuse_work_directory(order.target.as_str())?;
        let hosts = url.hosts();
        let key = CopyKey::from_parts(hosts.into_iter().chain([source.path.as_str(), order.target.as_str()]));
        let number = key.agent().0;
        let mut all = self.all.lock();
        all.retain(|_, running| !running.status.lock().over || running.owner.lock().is_none());
        if let Some(running) = all.get(&number).filter(|running| !running.status.lock().over) {
            if !order.detach {
                *running.owner.lock() = Some(peer);
            }
            return Ok(running.state(number, 0));
        }
        if all.len() >= ORDERS_MAX {
            return Err(Fault::new(FaultCode::Busy, format!("{ORDERS_MAX} orders exist already")));
        }
        let running = Arc::new(RunningOrder {
            owner: Mutex::new((!order.detach).then_some(peer)),
            progress: Progress::default(),
            stop: Stop::default(),
            status: Mutex::default(),
            outcomes: Mutex::default(),
            changed: Condvar::new(),
        });
        all.insert(number, running.clone());
        drop(all);
        tracing::info!(
            client = %peer,
            source = url.shown(),
            detached = order.detach,
            "third-party copy ordered"
        );
        let target = root.join(order.target.as_str());
        let slash = if order.target_contents { "/" } else { "" };
        let target = std::path::PathBuf::from(format!("{}{slash}", target.to_string_lossy()));
        let data_security = self.data_security;
        let me = running.clone();
        let work = move || {
            let pull = Pull {
                replicas: &[],
                blake3: None,
                circuit: None,
                url: &url,
                sources: &[source],
                target: &target,
                options: &order.options,
                data_security,
                names: None,
            };
            let copied =
                pull.run(&me.progress, &me.stop, &mut |outcome| me.outcomes.lock().push(outcome.clone()));
            me.ended(copied.err());
        };
        std::thread::Builder::new().name("copy-order".to_owned()).spawn(work).map_err(|error| {
            Fault::new(FaultCode::Internal, format!("cannot start a thread: {error}")).with_source(error)
        })?;
        Ok(running.state(number, 0))
    }

    fn get(&self, order: u64) -> Result<Arc<RunningOrder>, Fault> {
        let known = self.all.lock().get(&order).cloned();
        known.ok_or_else(|| Fault::new(FaultCode::NotFound, "there is no such order"))
    }

    pub(super) fn poll(&self, order: u64, seen: u64, told: u64, wait_ms: u64) -> Result<OrderState, Fault> {
        let running = self.get(order)?;
        let mut end = running.status.lock();
        if !end.over && seen >= end.version {
            let most = Duration::from_millis(wait_ms).min(POLL_HOLD_MAX);
            running.changed.wait_for(&mut end, most);
        }
        end.version += 1;
        drop(end);
        Ok(running.state(order, told))
    }

    pub(super) fn cancel(&self, order: u64) -> Result<(), Fault> {
        self.get(order)?.stop.stop();
        Ok(())
    }

    /// Stops the orders of a client that disconnected, unless they are detached.
    pub(super) fn gone(&self, peer: AgentId) {
        for running in self.all.lock().values() {
            if *running.owner.lock() == Some(peer) {
                running.stop.stop();
            }
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.all.lock().values().any(|running| !running.status.lock().over)
    }

    /// Stops all orders and waits for their ends.
    pub(super) fn stop(&self) {
        let all: Vec<Arc<RunningOrder>> = self.all.lock().values().cloned().collect();
        all.iter().for_each(|running| running.stop.stop());
        for running in all {
            let mut end = running.status.lock();
            while !end.over {
                running.changed.wait(&mut end);
            }
        }
    }
}

impl RunningOrder {
    fn ended(&self, fault: Option<Fault>) {
        match &fault {
            Some(fault) => tracing::info!(fault = %fault.chain(), "third-party copy failed"),
            None => tracing::info!("third-party copy complete"),
        }
        let mut end = self.status.lock();
        end.over = true;
        end.fault = fault;
        end.version += 1;
        drop(end);
        self.changed.notify_all();
    }

    /// The state for a client that has the first `told` outcomes.
    fn state(&self, order: u64, told: u64) -> OrderState {
        let end = self.status.lock();
        // Read after the status: an order that is over adds no more outcomes.
        let (told_from, told) = self.outcomes.lock().after(told);
        OrderState {
            order,
            version: end.version,
            totals: self.progress.totals(),
            over: end.over,
            fault: end.fault.clone(),
            failed: self.progress.failed(),
            told_from,
            told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(number: u64) -> FileOutcome {
        FileOutcome {
            source: format!("s{number}"),
            target: "x".repeat(200),
            size: number,
            outcome: Outcome::LeftOut("no file".into()),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn every_outcome_is_sent_once_and_unread_ones_are_bounded() {
        let mut told = OutcomeLog::default();
        (0..1_000).for_each(|number| told.push(outcome(number)));
        let mut known = 0;
        let mut seen = Vec::new();
        loop {
            let (from, some) = told.after(known);
            assert_eq!(told.after(known), (from, some.clone()), "a lost reply is repeated");
            assert_eq!(from, known);
            if some.is_empty() {
                break;
            }
            known = from + some.len() as u64;
            seen.extend(some.into_iter().map(|one| one.size));
        }
        assert_eq!(seen, (0..1_000).collect::<Vec<u64>>());
        (0..OUTCOMES_RETAINED_MAX as u64 + 5).for_each(|number| told.push(outcome(number)));
        assert_eq!(told.after(known).0, 1_005, "the oldest were dropped");
        assert!(told.outcomes.len() <= OUTCOMES_RETAINED_MAX);
    }
}
