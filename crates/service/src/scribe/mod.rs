//! The scribe: one thread through which decisions and reports become durable, many in one transaction, and
//! only then leave the process. Being one thread, it also keeps them in order: a lease is in its agent's
//! outbox before a hello of that agent can release it.

mod facts;
mod orders;
mod reports;
mod tasks;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use longhaul_api::agent::{Hello, Incarnation};
use longhaul_catalog::{CatalogError, ReplicaChange, ReportItem};
use longhaul_model::{AgentId, Fault, FaultCode, FileId, StorageId, TaskId};
use longhaul_scheduler::{DemandId, Event};
use tokio::sync::oneshot;

use crate::brain::{Input, Order};
use crate::shared::{Shared, announce_demands, guard};

pub use facts::items;

/// Jobs taken up at once.
const JOBS_AT_ONCE: usize = 256;
/// While the catalog cannot be written, it is tried again this often.
const PROBE_EVERY: Duration = Duration::from_secs(1);

pub enum Job {
    Orders(Vec<Order>),
    Report(Box<ReportJob>),
    /// Has what nobody waits for any more removed from relays.
    ClearRelays,
    /// A new task of a storage, for its agent if that is there.
    Task(TaskId),
    /// Answered when all that came before is done with.
    Fence(Sender<()>),
    Stop,
}

/// What one agent reports, except what may be lost. Its sender limits how many wait.
pub struct ReportJob {
    pub agent: AgentId,
    pub incarnation: Incarnation,
    pub hello: Option<Hello>,
    pub items: Vec<ReportItem>,
    /// Number up to which everything is durable, or why nothing of it is.
    pub reply: oneshot::Sender<Result<u64, CatalogError>>,
}

pub struct Scribe {
    shared: Arc<Shared>,
    /// Of tasks under way: where the page after the one delivered begins.
    next_pages: RefCell<BTreeMap<TaskId, Option<FileId>>>,
}

impl Scribe {
    pub fn new(shared: Arc<Shared>) -> Self {
        Scribe { shared, next_pages: RefCell::default() }
    }

    pub fn run(self, jobs: &Receiver<Job>) {
        loop {
            let first = match jobs.recv_timeout(PROBE_EVERY) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    self.probe();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            for job in std::iter::once(first).chain(jobs.try_iter().take(JOBS_AT_ONCE)) {
                match job {
                    Job::Orders(orders) => self.orders(orders),
                    Job::Report(report) => self.report(*report),
                    Job::ClearRelays => self.clear_relays(),
                    Job::Task(task) => self.deliver_task(task),
                    // Whoever asked may have given up.
                    Job::Fence(reached) => drop(reached.send(())),
                    Job::Stop => return,
                }
            }
            self.probe();
        }
    }

    /// After a failed write: tries a small one, and lets the brain go on when it succeeds.
    fn probe(&self) {
        if self.shared.trouble().is_none() {
            return;
        }
        if self.shared.catalog.set_setting("probe", &self.shared.now().to_string()).is_ok() {
            tracing::info!("the catalog can be written again");
            *guard(&self.shared.trouble) = None;
            self.shared.tell(Input::Recovered);
        }
    }

    /// Remembers that the catalog cannot be written, so that nothing is decided and readiness says why. None
    /// if it is only that one request cannot be done.
    fn note_trouble(&self, error: &CatalogError) -> Option<Fault> {
        if matches!(error, CatalogError::Refused(_)) {
            tracing::warn!(%error, "the catalog refused");
            return None;
        }
        tracing::error!(%error, "the catalog cannot be written");
        let fault = Fault::new(FaultCode::StateDirectory, error.to_string());
        *guard(&self.shared.trouble) = Some(fault.clone());
        Some(fault)
    }

    /// Replicas came or went, and with them what is wanted.
    fn tell_replicas(&self, change: ReplicaChange) {
        let events = replica_events(&change);
        if !events.is_empty() {
            self.shared.tell(Input::Events(events));
        }
        let gone: Vec<DemandId> = change
            .demands_gone
            .into_iter()
            .map(|(subscription, block)| DemandId { subscription, block })
            .collect();
        if !gone.is_empty() || !change.demands.is_empty() {
            announce_demands(&self.shared, &change.demands);
            self.shared.tell(Input::Demands { now: change.demands, gone });
        }
    }

    fn storage_name(&self, id: StorageId) -> Option<longhaul_model::StorageName> {
        self.shared.directory().name(id)
    }
}

pub fn replica_events(change: &ReplicaChange) -> Vec<Event> {
    let mut events = Vec::new();
    events.extend(change.lost.iter().map(|&(file, _, storage)| Event::ReplicaLost { file, storage }));
    events.extend(change.found.iter().map(|&(file, _, storage)| Event::ReplicaAdded { file, storage }));
    events.extend(change.complete.iter().map(|&(block, storage)| Event::BlockComplete { block, storage }));
    events
}
