//! The scheduler loop, called the brain: one thread that owns the scheduler, takes all events in, and hands
//! out its decisions.
//!
//! It never waits for a disk or a socket. Questions to the catalog go to the query loop, decisions to the
//! commit loop, at most one batch at a time: decisions gather while the commit loop writes, and one
//! transaction makes many durable (group commit). Leases of other executors go to their [`Executor`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::time::Duration;

use longhaul_catalog::{DemandRow, LiveTransferRow, MissingFile};
use longhaul_identity::Clock;
use longhaul_model::job::of_jobs;
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{
    AgentId, AttemptId, BlockId, DigestSet, Fault, FileId, Lfn, StorageId, StorageName, SubscriptionId,
    Timestamp, TransferId, TransferState, Verification,
};
use longhaul_network::Link;
use longhaul_scheduler::{
    AdoptedLease, AdoptedTransfer, CancelWhy, Decision, Demand, DemandId, Event, Lease, Party, Scheduler,
    WantedFile,
};

use crate::choice;
use crate::choice::About;
use crate::commit_loop::CommitWork;
use crate::event_loop::{EventLoop, InputQueue, LoopStep, drive};
use crate::executor::Executor;
use crate::kernel::WriterHandle;
use crate::query_loop::ExpandQuery;
use crate::recorded::Recorded;
use crate::turns::LoopTurn;

/// Bound of the input queue: senders wait when it is full (backpressure).
pub const INPUTS_MAX: usize = 10_000;
/// Inputs handled in one step, before decisions are made: bounds their delay.
const INPUTS_PER_STEP_MAX: usize = 1_000;
/// The longest sleep without an event.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Files remembered as failed for good, which are not expanded again; beyond it the first are tried again.
const FAILED_MAX: usize = 100_000;

pub enum Input {
    Events(Vec<Event>),
    /// Changed demands in their present state, and demands that are gone.
    Demands {
        now: Vec<DemandRow>,
        gone: Vec<DemandId>,
    },
    /// A transfer that was live before the restart, with the storages that hold its file.
    Adopt(Box<LiveTransferRow>, Vec<StorageId>),
    /// An answer of the query loop; none if the catalog could not be asked.
    Expanded {
        demand: DemandId,
        target: StorageId,
        files: Option<Vec<MissingFile>>,
        exhausted: bool,
    },
    /// An answer for a queue of jobs: files, and whether there are no more.
    ExpandedJobs {
        demand: DemandId,
        files: Option<(Vec<WantedFile>, bool)>,
    },
    /// The commit loop has written a batch of decisions, or could not.
    Written {
        events: Vec<Event>,
        trouble: Option<Fault>,
    },
    /// Reports have been applied.
    Applied {
        events: Vec<Event>,
        done: Vec<(StorageId, BlockId, FileId)>,
        complete: Vec<(BlockId, StorageId)>,
    },
    /// The catalog can be written again.
    Recovered,
    /// Tries a file again that failed for good.
    Forgive {
        target: StorageId,
        block: BlockId,
        file: FileId,
    },
    Ask(Inquiry),
    Stop,
}

/// A question to the scheduler, or a change of what it knows of the network; runs on the loop's thread.
pub type Inquiry = Box<dyn FnOnce(&mut Recorded, Timestamp) + Send>;

/// A decision that is to be made durable, and then sent to an agent.
#[derive(Debug)]
pub enum Order {
    Lease(Box<Grant>),
    Cancel {
        transfer: TransferId,
        attempt: AttemptId,
        agent: AgentId,
        why: CancelWhy,
    },
    /// Recalls a lease that has not begun; `why` is shown to people.
    GiveBack {
        attempt: AttemptId,
        agent: AgentId,
        why: String,
    },
    Drop {
        transfer: TransferId,
    },
    Fail {
        transfer: TransferId,
        fault: Fault,
    },
}

/// A lease with everything that its agent needs to know.
#[derive(Debug)]
pub struct Grant {
    pub lease: Lease,
    pub lfn: Lfn,
    pub digests: DigestSet,
    pub verification: Verification,
    pub subscription: SubscriptionId,
    /// The community and activity whose share is charged.
    pub party: Party,
    /// Reasons of the choice, JSON of `api::native::Choice`.
    pub choice: String,
}

/// Facts of a file that its lease carries and the scheduler does not need.
struct FileDetails {
    lfn: Lfn,
    digests: DigestSet,
}

/// What is wanted of one block at one target.
#[derive(Default)]
struct BlockDemands {
    /// The subscriptions that want the block there.
    demands: BTreeMap<SubscriptionId, DemandRow>,
    /// Files handed to the scheduler; bounded by its horizon.
    files: BTreeMap<FileId, FileDetails>,
}

pub struct Brain {
    inputs: InputQueue<Input>,
    scheduler: Recorded,
    writer: WriterHandle,
    queries: Sender<ExpandQuery>,
    executor: Box<dyn Executor>,
    /// Community and activity that each queue of jobs is charged to, as text.
    charged: BTreeMap<BlockId, String>,
    wanted: BTreeMap<(BlockId, StorageId), BlockDemands>,
    failed: BTreeSet<(StorageId, FileId)>,
    /// Whether a batch is with the commit loop.
    writing: bool,
    /// The leases in that batch.
    in_flight: Vec<(AgentId, AttemptId)>,
    /// Whether the catalog cannot be written: then nothing is decided.
    trouble: bool,
}

impl Brain {
    pub fn new(
        inputs: InputQueue<Input>,
        scheduler: Recorded,
        writer: WriterHandle,
        queries: Sender<ExpandQuery>,
        executor: Box<dyn Executor>,
    ) -> Self {
        Brain {
            inputs,
            scheduler,
            writer,
            queries,
            executor,
            charged: BTreeMap::new(),
            wanted: BTreeMap::new(),
            failed: BTreeSet::new(),
            writing: false,
            in_flight: Vec::new(),
            trouble: false,
        }
    }

    /// Runs until told to stop; gives the scheduler back, whose knowledge outlives the process.
    pub fn run(mut self, clock: &Clock, turn: &LoopTurn) -> Scheduler {
        drive(&mut self, clock, turn);
        self.end()
    }

    /// Gives the scheduler back. A recording is complete on disk.
    pub fn end(self) -> Scheduler {
        self.scheduler.end()
    }

    /// Returns whether to stop.
    fn handle_input(&mut self, input: Input, now: Timestamp) -> bool {
        match input {
            Input::Events(events) => self.handle_events(events, now),
            Input::Demands { now: rows, gone } => {
                gone.into_iter().for_each(|id| self.demand_gone(id, now));
                rows.into_iter().for_each(|row| self.demand(row, now));
            }
            Input::Adopt(row, sources) => self.adopt(*row, sources, now),
            Input::Expanded { demand, target, files: Some(files), exhausted } => {
                self.expanded(demand, target, files, exhausted, now)
            }
            Input::Expanded { demand, files: None, .. } => {
                self.scheduler.handle(Event::ExpandFailed { demand }, now)
            }
            Input::ExpandedJobs { demand, files } => {
                let event = match files {
                    Some((files, exhausted)) => Event::Files { demand, files, exhausted },
                    None => Event::ExpandFailed { demand },
                };
                self.scheduler.handle(event, now);
            }
            Input::Written { events, trouble } => {
                self.writing = false;
                self.in_flight.clear();
                self.trouble = trouble.is_some();
                self.handle_events(events, now);
            }
            Input::Applied { events, done, complete } => {
                self.handle_events(events, now);
                self.forget(&done);
                complete.into_iter().for_each(|(block, target)| self.complete(block, target, now));
            }
            Input::Recovered => self.trouble = false,
            Input::Forgive { target, block, file } => {
                self.failed.remove(&(target, file));
                let rows: Vec<DemandRow> = self
                    .wanted
                    .get(&(block, target))
                    .map(|wanted| wanted.demands.values().cloned().collect())
                    .unwrap_or_default();
                // A repeated demand is expanded again.
                rows.into_iter().for_each(|row| self.demand(row, now));
            }
            Input::Ask(question) => question(&mut self.scheduler, now),
            Input::Stop => return true,
        }
        false
    }

    fn handle_events(&mut self, events: Vec<Event>, now: Timestamp) {
        for mut event in events {
            if let Event::HeldLeases { agent, attempts } = &mut event {
                // A lease that the commit loop is about to write was decided before the agent said what it
                // holds, and will be delivered after: it is not lost.
                let coming = self.in_flight.iter().filter(|(to, _)| to == agent);
                attempts.extend(coming.map(|&(_, attempt)| attempt));
            }
            self.note_charged(&event);
            self.scheduler.handle(event, now);
        }
    }

    fn note_charged(&mut self, event: &Event) {
        match event {
            Event::Demand(demand) if of_jobs(demand.id.block.0) => {
                self.charged.insert(demand.id.block, party_in_words(&demand.party));
            }
            Event::DemandGone { id } if of_jobs(id.block.0) => drop(self.charged.remove(&id.block)),
            _ => {}
        }
    }

    fn demand(&mut self, row: DemandRow, now: Timestamp) {
        let id = DemandId { subscription: row.subscription, block: row.block };
        let event = Event::Demand(Demand {
            id,
            target: row.target,
            priority: row.priority,
            party: party(&row),
            deadline: row.terms.deadline,
            // Checked when it was set.
            strategy: row.terms.strategy.as_ref().and_then(|name| name.parse().ok()),
            created: row.created,
            files_left: row.files_missing,
            bytes_left: row.bytes_missing,
        });
        self.wanted.entry((row.block, row.target)).or_default().demands.insert(row.subscription, row);
        self.scheduler.handle(event, now);
    }

    fn demand_gone(&mut self, id: DemandId, now: Timestamp) {
        let of_block = (id.block, StorageId(0))..=(id.block, StorageId(u64::MAX));
        let mut unwanted = Vec::new();
        for (&key, wanted) in self.wanted.range_mut(of_block) {
            if wanted.demands.remove(&id.subscription).is_some() && wanted.demands.is_empty() {
                unwanted.push(key);
            }
        }
        unwanted.iter().for_each(|key| drop(self.wanted.remove(key)));
        self.scheduler.handle(Event::DemandGone { id }, now);
    }

    /// A block is complete at a target: its demands there are satisfied.
    fn complete(&mut self, block: BlockId, target: StorageId, now: Timestamp) {
        self.scheduler.handle(Event::BlockComplete { block, storage: target }, now);
        let Some(wanted) = self.wanted.remove(&(block, target)) else { return };
        for &subscription in wanted.demands.keys() {
            self.scheduler.handle(Event::DemandGone { id: DemandId { subscription, block } }, now);
        }
    }

    fn forget(&mut self, done: &[(StorageId, BlockId, FileId)]) {
        for (target, block, file) in done {
            if let Some(wanted) = self.wanted.get_mut(&(*block, *target)) {
                wanted.files.remove(file);
                // An entry of a relay holds only transfers that were live before a restart.
                if wanted.files.is_empty() && wanted.demands.is_empty() {
                    self.wanted.remove(&(*block, *target));
                }
            }
        }
    }

    fn adopt(&mut self, row: LiveTransferRow, sources: Vec<StorageId>, now: Timestamp) {
        let leased = row.state == TransferState::Leased;
        let known = FileDetails { lfn: row.lfn, digests: row.digests };
        self.wanted.entry((row.block, row.target)).or_default().files.insert(row.file, known);
        let adopted = AdoptedTransfer {
            transfer: row.transfer,
            file: row.file,
            block: row.block,
            target: row.target,
            size: row.size,
            sources,
            attempts: row.attempts.saturating_sub(u32::from(leased)),
            epoch: row.epoch,
            not_before: (!leased).then_some(row.not_before),
            lease: leased.then_some(AdoptedLease {
                attempt: row.attempt,
                source: row.source,
                agent: row.agent,
            }),
        };
        self.scheduler.handle(Event::Adopt(adopted), now);
    }

    fn expanded(
        &mut self,
        demand: DemandId,
        target: StorageId,
        files: Vec<MissingFile>,
        exhausted: bool,
        now: Timestamp,
    ) {
        let mut found = Vec::with_capacity(files.len());
        // A demand that went away meanwhile is unknown to the scheduler too: nothing is kept for it.
        if let Some(wanted) = self.wanted.get_mut(&(demand.block, target)) {
            for file in files {
                if self.failed.contains(&(target, file.file)) {
                    continue;
                }
                wanted.files.insert(file.file, FileDetails { lfn: file.lfn, digests: file.digests });
                found.push(WantedFile { file: file.file, size: file.size, sources: file.sources });
            }
        }
        self.scheduler.handle(Event::Files { demand, files: found, exhausted }, now);
    }

    /// Polls the scheduler's decisions and dispatches them, unless the commit loop is still writing.
    fn decide(&mut self, now: Timestamp) {
        if self.writing || self.trouble {
            return;
        }
        let mut orders = Vec::new();
        while orders.len() < BATCH_ITEMS_MAX
            && let Some(decision) = self.scheduler.poll_decision(now)
        {
            match decision {
                Decision::Expand { demand, block, target, after, limit } => {
                    // The query loop outlives this one.
                    let _ = self.queries.send(ExpandQuery { demand, block, target, after, limit });
                }
                Decision::Lease(lease) if of_jobs(lease.block.0) => self.hand_over(lease, now),
                Decision::Lease(lease) => orders.extend(self.grant(lease, now)),
                Decision::Cancel { attempt, agent, why, .. } if agent == self.executor.agent() => {
                    self.executor.take_back(attempt, why);
                }
                // The catalog has marked it with the outcome, and nothing of jobs has replicas.
                Decision::Suspect { .. } => {}
                // The executor of jobs has decided this already.
                Decision::Fail { file, .. } if of_jobs(file.0) => {}
                Decision::Cancel { transfer, attempt, agent, why } => {
                    orders.push(Order::Cancel { transfer, attempt, agent, why });
                }
                // The executor of jobs begins at once: it has nothing to give back.
                Decision::Recall(asked) if asked.agent == self.executor.agent() => {}
                Decision::Recall(asked) => orders.push(Order::GiveBack {
                    attempt: asked.attempt,
                    agent: asked.agent,
                    why: self.scheduler.explain_recall(&asked),
                }),
                Decision::Drop { transfer } => orders.push(Order::Drop { transfer }),
                Decision::Fail { transfer, file, target, fault } => {
                    if self.failed.len() >= FAILED_MAX {
                        self.failed.pop_first();
                    }
                    self.failed.insert((target, file));
                    orders.push(Order::Fail { transfer, fault });
                }
            }
        }
        if !orders.is_empty() {
            self.writing = true;
            self.in_flight.extend(orders.iter().filter_map(|order| match order {
                Order::Lease(grant) => Some((grant.lease.agent, grant.lease.attempt)),
                _ => None,
            }));
            let _ = self.writer.send(CommitWork::Orders(orders));
        }
    }

    /// Hands a lease to another executor, which makes it durable and carries it out.
    fn hand_over(&mut self, lease: Lease, now: Timestamp) {
        let knowledge = self.scheduler.knowledge();
        let rate_by = |source| knowledge.rate(Link { source, target: lease.target }, now).basis.describe();
        let charged_to = self.charged.get(&lease.block).cloned().unwrap_or_default();
        let about = About { way: Vec::new(), charged_to };
        let choice = choice::to_json(self.scheduler.explain(&lease.choice), about, rate_by);
        self.executor.take(lease, choice);
    }

    fn grant(&mut self, lease: Lease, now: Timestamp) -> Option<Order> {
        let Some((known, wanted)) = self.purpose(&lease) else {
            // The demand went away between two events: the scheduler is about to hear of it.
            self.scheduler.handle(Event::LeaseReleased { attempt: lease.attempt }, now);
            return None;
        };
        let first = wanted
            .iter()
            .min_by_key(|row| (std::cmp::Reverse(row.priority), row.created, row.subscription))?;
        let strictest = wanted.iter().map(|row| row.verification).max()?;
        let knowledge = self.scheduler.knowledge();
        let rate_by = |source| knowledge.rate(Link { source, target: lease.target }, now).basis.describe();
        let party = party(first);
        let about = About { way: self.relay_route(&lease, first.target), charged_to: party_in_words(&party) };
        Some(Order::Lease(Box::new(Grant {
            lfn: known.lfn.clone(),
            digests: known.digests.clone(),
            verification: strictest,
            subscription: first.subscription,
            party,
            choice: choice::to_json(self.scheduler.explain(&lease.choice), about, rate_by),
            lease,
        })))
    }

    /// The file of a lease, and who wants it: at its target, or beyond it if that is a relay.
    fn purpose(&self, lease: &Lease) -> Option<(&FileDetails, Vec<&DemandRow>)> {
        let here = self.wanted.get(&(lease.block, lease.target));
        if let Some(wanted) = here.filter(|wanted| !wanted.demands.is_empty()) {
            return Some((wanted.files.get(&lease.file)?, wanted.demands.values().collect()));
        }
        let of_block = (lease.block, StorageId(0))..=(lease.block, StorageId(u64::MAX));
        let all = || self.wanted.range(of_block.clone()).map(|(_, wanted)| wanted);
        let known = all().find_map(|wanted| wanted.files.get(&lease.file))?;
        // The targets known to lack the file, else (after a restart) all that want the block.
        let lack_it = all().filter(|wanted| wanted.files.contains_key(&lease.file));
        let mut wanted: Vec<&DemandRow> = lack_it.flat_map(|wanted| wanted.demands.values()).collect();
        if wanted.is_empty() {
            wanted = all().flat_map(|wanted| wanted.demands.values()).collect();
        }
        (!wanted.is_empty()).then_some((known, wanted))
    }

    /// The storages after the source, up to where it is wanted; none if that is the target.
    fn relay_route(&self, lease: &Lease, wanted_at: StorageId) -> Vec<StorageName> {
        if wanted_at == lease.target {
            return Vec::new();
        }
        let beyond = self.scheduler.route(lease.target, wanted_at).unwrap_or_else(|| vec![wanted_at]);
        let storages = std::iter::once(lease.target).chain(beyond);
        storages.filter_map(|storage| self.scheduler.storage_name(storage).cloned()).collect()
    }
}

impl EventLoop for Brain {
    type Input = Input;
    const BATCH_MAX: usize = INPUTS_PER_STEP_MAX;
    const WAIT_MAX: Duration = SLEEP_MAX;

    fn inputs(&mut self) -> &mut InputQueue<Input> {
        &mut self.inputs
    }

    fn step(&mut self, now: Timestamp) -> LoopStep {
        while let Some(input) = self.inputs.pop() {
            if self.handle_input(input, now) {
                return LoopStep::Stop;
            }
        }
        self.decide(now);
        self.scheduler.rest();
        // While nothing may be decided, the scheduler's wish to be asked at once would keep a core busy.
        let waits = self.writing || self.trouble;
        LoopStep::Wait { until: self.scheduler.next_wakeup().filter(|_| !waits) }
    }
}

/// The community and activity that a demand is charged to.
fn party(row: &DemandRow) -> Party {
    let community = row.terms.community.clone().unwrap_or_else(|| row.community.clone());
    Party { community, activity: row.terms.activity.clone() }
}

fn party_in_words(party: &Party) -> String {
    match &party.activity {
        Some(activity) => format!("{}, {activity}", party.community),
        None => party.community.to_string(),
    }
}
