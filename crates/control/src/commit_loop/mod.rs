//! The commit loop: one thread through which decisions and reports become durable, many in one transaction
//! (group commit), and only then leave the process. Being one thread, it also keeps them in order: a lease is
//! in its agent's outbox before a hello of that agent can release it.

mod dealer;
mod facts;
mod fencing;
mod orders;
mod refusal;
mod removal;
mod reports;
mod staging;
mod tasks;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use longhaul_api::agent::{FenceReport, Hello, Incarnation, StageReport};
use longhaul_catalog::{CatalogError, ReplicaChange, ReportItem};
use longhaul_model::{
    AgentId, ErrorChain, Fault, FaultCode, FileId, SiteName, StorageId, StorageName, TaskId, Timestamp,
};
use longhaul_scheduler::{DemandId, Event};
use tokio::sync::oneshot;

use crate::brain::{Input, Order};
use crate::control::Control;
use crate::event_loop::{EventLoop, InputQueue, LoopStep};
use crate::kernel::Kernel;

pub use facts::{items, reason_word};

/// Items of work handled in one step, before a probe is due.
const WORK_BATCH_MAX: usize = 256;
/// While the catalog cannot be written, it is tried again this often.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Work for the commit loop.
pub enum CommitWork {
    Orders(Vec<Order>),
    Report(Box<PendingReport>),
    /// Removes from relays what is no longer needed there, has tapes asked for nothing that nobody wants any
    /// more, and orders verifications that are due.
    ClearRelays,
    /// Delivers a new task to its storage's agent, if that is connected.
    Task(TaskId),
    /// Has silent agents of shared storages fenced.
    FenceSilentAgents,
    /// Has files brought from tape.
    StageFiles,
    /// Refuses an agent, and ends its leases.
    RefuseAgent(RefuseAgent),
    /// Removes a storage with all it had.
    RemoveStorage(RemoveStorage),
    /// Removes an agent that is gone for good.
    RemoveAgent(RemoveAgent),
    /// Removes a site with its agents and storages.
    RemoveSite(RemoveSite),
    /// Answered when all work queued before it is done.
    Fence(Sender<()>),
    Stop,
}

/// An agent to be refused. In the loop, so that no lease and no report of it is under way meanwhile.
pub struct RefuseAgent {
    pub agent: AgentId,
    pub reason: String,
    /// Whether the refusal is durable.
    pub reply: Sender<Result<(), CatalogError>>,
}

/// A storage to be removed. In the loop, so that no lease and no report about it is under way meanwhile.
pub struct RemoveStorage {
    pub storage: StorageName,
    /// Even if it has the last good replica of a file.
    pub force: bool,
    /// Whoever wants it, for the audit.
    pub who: String,
    pub reply: Sender<Result<(), CatalogError>>,
}

/// An agent to be removed.
pub struct RemoveAgent {
    pub agent: AgentId,
    /// Whoever wants it, for the audit.
    pub who: String,
    pub reply: Sender<Result<(), CatalogError>>,
}

/// A site to be removed.
pub struct RemoveSite {
    pub site: SiteName,
    /// Even if it has the last good replica of a file.
    pub force: bool,
    /// Whoever wants it, for the audit.
    pub who: String,
    pub reply: Sender<Result<(), CatalogError>>,
}

/// What one agent reports, except what may be lost. Its sender limits how many wait.
pub struct PendingReport {
    pub agent: AgentId,
    pub incarnation: Incarnation,
    pub hello: Option<Hello>,
    pub items: Vec<ReportItem>,
    /// What became of orders to fence others.
    pub fences: Vec<FenceReport>,
    /// What became of orders to bring files from tape.
    pub staged: Vec<StageReport>,
    /// Number up to which everything is durable, or why nothing of it is.
    pub reply: oneshot::Sender<Result<u64, CatalogError>>,
}

pub struct CommitLoop {
    inputs: InputQueue<CommitWork>,
    kernel: Arc<Kernel>,
    control: Arc<Control>,
    /// For each task under way, where the page after the delivered one begins.
    next_pages: RefCell<BTreeMap<TaskId, Option<FileId>>>,
}

impl CommitLoop {
    pub fn new(inputs: InputQueue<CommitWork>, control: Arc<Control>) -> Self {
        CommitLoop { inputs, kernel: control.kernel.clone(), control, next_pages: RefCell::default() }
    }

    /// Returns whether to stop.
    fn handle(&self, work: CommitWork) -> bool {
        match work {
            CommitWork::Orders(orders) => self.orders(orders),
            CommitWork::Report(report) => self.report(*report),
            CommitWork::ClearRelays => {
                self.clear_relays();
                self.drop_unwanted_stages();
                self.order_verifications();
            }
            CommitWork::Task(task) => self.deliver_task(task),
            CommitWork::FenceSilentAgents => self.fence_silent_agents(),
            CommitWork::StageFiles => self.stage_files(),
            CommitWork::RefuseAgent(order) => self.refuse_agent(order),
            CommitWork::RemoveStorage(order) => self.remove_storage(order),
            CommitWork::RemoveAgent(order) => self.remove_agent(order),
            CommitWork::RemoveSite(order) => self.remove_site(order),
            // The asker may have given up.
            CommitWork::Fence(reached) => drop(reached.send(())),
            CommitWork::Stop => return true,
        }
        false
    }

    /// After a failed write: tries a small one, and lets the scheduler loop go on when it succeeds.
    fn probe(&self) {
        if self.kernel.trouble().is_none() {
            return;
        }
        if self.kernel.catalog.set_setting("probe", &self.kernel.now().to_string()).is_ok() {
            tracing::info!("the catalog can be written again");
            self.kernel.set_trouble(None);
            self.kernel.notify_scheduler(Input::Recovered);
        }
    }

    /// Remembers that the catalog cannot be written, so that nothing is decided and readiness says why. None
    /// if it is only that one request cannot be done.
    fn note_trouble(&self, error: &CatalogError) -> Option<Fault> {
        if matches!(error, CatalogError::Refused(_)) {
            tracing::warn!(%error, "the catalog refused");
            return None;
        }
        tracing::error!(error = %ErrorChain::new(error), "the catalog cannot be written");
        let fault = Fault::new(FaultCode::StateDirectory, error.to_string());
        self.kernel.set_trouble(Some(fault.clone()));
        Some(fault)
    }

    /// Answers whoever ordered a work, and remembers what it tells of the catalog.
    fn reply(&self, to: &Sender<Result<(), CatalogError>>, done: Result<(), CatalogError>) {
        if let Err(error) = &done {
            self.note_trouble(error);
        }
        // Whoever ordered it may have given up.
        let _ = to.send(done);
    }

    /// Tells the scheduler about changed replicas, and about demands that changed with them.
    fn notify_replicas(&self, change: ReplicaChange) {
        let events = replica_events(&change);
        if !events.is_empty() {
            self.kernel.notify_scheduler(Input::Events(events));
        }
        let gone: Vec<DemandId> = change
            .demands_gone
            .into_iter()
            .map(|(subscription, block)| DemandId { subscription, block })
            .collect();
        if !gone.is_empty() || !change.demands.is_empty() {
            self.kernel.announce_demands(&change.demands);
            self.kernel.notify_scheduler(Input::Demands { now: change.demands, gone });
        }
    }

    fn storage_name(&self, id: StorageId) -> Option<StorageName> {
        self.kernel.directory().name(id)
    }
}

impl EventLoop for CommitLoop {
    type Input = CommitWork;
    const BATCH_MAX: usize = WORK_BATCH_MAX;
    const WAIT_MAX: Duration = PROBE_INTERVAL;

    fn inputs(&mut self) -> &mut InputQueue<CommitWork> {
        &mut self.inputs
    }

    fn step(&mut self, now: Timestamp) -> LoopStep {
        while let Some(work) = self.inputs.pop() {
            if self.handle(work) {
                return LoopStep::Stop;
            }
        }
        self.probe();
        LoopStep::Wait { until: self.kernel.trouble().map(|_| now.plus(PROBE_INTERVAL)) }
    }
}

pub fn replica_events(change: &ReplicaChange) -> Vec<Event> {
    let mut events = Vec::new();
    events.extend(change.lost.iter().map(|&(file, _, storage)| Event::ReplicaLost { file, storage }));
    events.extend(change.found.iter().map(|&(file, _, storage)| Event::ReplicaAdded { file, storage }));
    events.extend(change.complete.iter().map(|&(block, storage)| Event::BlockComplete { block, storage }));
    events
}
