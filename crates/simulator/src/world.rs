//! The running world: a discrete-event simulation, its state and its event loop. Events at agents are handled
//! in `agents`, at the service in `service`, of the world in `events`.
//!
//! The loop calls `handle` and `poll_decision` as the service does, and nothing here chooses a source, an
//! order, or a concurrency: agents begin what they are given in the order in which it arrives.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::time::Duration;

use longhaul_model::{AttemptId, Fault, Timestamp};
use longhaul_network::{AttemptEnd, Knowledge, Link};
use longhaul_scheduler::{DemandId, Scheduler};

use crate::Policy;
use crate::catalog::ReplicaCatalog;
use crate::circuit_provider::CircuitProviders;
use crate::circuits::Circuits;
use crate::flows::Flows;
use crate::knowledge_report::KnowledgeReport;
use crate::metrics::RunMetrics;
use crate::plan::Plan;
use crate::random::Random;
use crate::scenario::Rates;

/// The world begins here: 15 January 2027, 8 in the morning.
pub const START: Timestamp = Timestamp(1_800_000_000_000_000);

pub(crate) fn micros(seconds: f64) -> i64 {
    (seconds * 1e6).round() as i64
}

/// One lease: in transit, at its agent, moving, or reported.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub generation: u32,
    pub phase: Phase,
    pub id: AttemptId,
    pub epoch: longhaul_model::Epoch,
    pub file: u32,
    pub block: u32,
    pub size: u64,
    pub source: u32,
    pub target: u32,
    pub flow: u32,
    pub leased: i64,
    /// What the scheduler expected it to take: seconds.
    pub expected: f64,
    pub tries: u32,
    /// Service of its session where it began and ends.
    pub begin: f64,
    pub end: f64,
    /// It ends so, once it has moved as much as is to move.
    pub fault: Option<Fault>,
    /// Bytes it moves if nothing more happens to it, and those that it has moved at its end.
    pub to_move: u64,
    pub moved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The slot is free.
    Free,
    InTransit,
    Waiting,
    /// On tape, being recalled.
    Recalling,
    Opening,
    Moving,
    /// Over; the service does not know yet.
    Reported,
}

#[derive(Clone, Debug)]
pub(crate) enum SimEvent {
    /// A lease comes to its agent.
    Lease {
        attempt: u32,
        generation: u32,
    },
    /// An agent is asked to give a lease back.
    LeaseRecall {
        attempt: u32,
        generation: u32,
    },
    /// The first byte could come now.
    Ready {
        attempt: u32,
        generation: u32,
    },
    /// A tape drive is done with a file.
    Recalled {
        site: u32,
        attempt: u32,
        generation: u32,
    },
    /// The service hears that an attempt has begun, or of its end.
    Began {
        attempt: u32,
        generation: u32,
    },
    Ended {
        attempt: u32,
        generation: u32,
    },
    /// An agent reports how far it is.
    Report {
        site: u32,
    },
    Progress {
        rows: Vec<(u32, u32, u64)>,
    },
    /// The answer to a question for files.
    Files {
        demand: DemandId,
        target: u32,
        after: Option<u32>,
        limit: u32,
    },
    FailureBegins {
        trouble: u32,
    },
    FailureEnds {
        trouble: u32,
    },
    /// The service times out an agent.
    AgentTimeout {
        site: u32,
        trouble: u32,
    },
    Circuit {
        circuit: u32,
        up: bool,
    },
    BackgroundTraffic,
    /// Agents probe the paths to each other.
    Probes,
    /// What waits is looked at, for circuits.
    ReviewCircuits,
    /// A provider answers a request.
    CircuitGranted {
        number: u32,
        key: longhaul_circuits::RequestKey,
    },
}

/// What is wanted of a block at a target, by whom.
#[derive(Debug, Default)]
pub(crate) struct Want {
    pub requests: Vec<u32>,
    pub files: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SimSite {
    /// Troubles that hit it now.
    pub failures: BTreeSet<u32>,
    pub down: u32,
    /// When its agent is back, if it is away.
    pub back: i64,
    pub connected: bool,
    pub reporting: bool,
    pub drives_busy: u32,
    pub to_recall: VecDeque<(u32, u32)>,
}

pub struct World<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) scheduler: Scheduler,
    /// Microseconds since the beginning.
    pub(crate) now: i64,
    pub(crate) clock_jump: i64,
    pub(crate) flows: Flows,
    pub(crate) catalog: ReplicaCatalog,
    pub(crate) sites: Vec<SimSite>,
    /// Troubles of links that hold now.
    pub(crate) link_failures: BTreeSet<u32>,
    pub(crate) circuits_up: BTreeSet<u32>,
    pub(crate) attempts: Vec<Attempt>,
    free: Vec<u32>,
    pub(crate) by_id: BTreeMap<AttemptId, u32>,
    /// Started attempts of each pool.
    pub(crate) pool_busy: Vec<u32>,
    /// Sessions that wait for each pool.
    pub(crate) pool_waiting: Vec<BTreeSet<u32>>,
    pub(crate) wants: BTreeMap<(u32, u32), Want>,
    /// Blocks that each request still waits for.
    pub(crate) request_left: Vec<u32>,
    pub(crate) next_request: usize,
    pub(crate) files_left: u64,
    /// Recalled from tape already.
    pub(crate) on_disk: BTreeSet<(u32, u32)>,
    pub(crate) random: Random,
    pub(crate) background: Vec<f64>,
    pub(crate) storage_factor: Vec<f64>,
    /// What others leave of each capacity, and what circuits have taken of it.
    pub(crate) unused_share: Vec<f64>,
    pub(crate) reserved: Vec<f64>,
    pub(crate) circuit_providers: CircuitProviders,
    pub(crate) circuits: Circuits,
    queue: BinaryHeap<Reverse<(i64, u64, Unordered)>>,
    sequence: u64,
    last_calculation: i64,
    rates: Rates,
    pub(crate) scheduler_stale: bool,
    pub(crate) metrics: RunMetrics,
    pub(crate) knowledge: KnowledgeReport,
}

/// An event without an order of its own: its position in the queue is by time and sequence number.
struct Unordered(SimEvent);

impl PartialEq for Unordered {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl Eq for Unordered {}
impl PartialOrd for Unordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Unordered {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl<'a> World<'a> {
    /// `rates`: in place of those of the scenario.
    pub fn new(plan: &'a Plan, policy: &Policy, rates: Option<Rates>) -> Self {
        let sites = plan.layout.sites.len();
        let rates = rates.unwrap_or(plan.model.rates);
        let mut world = World {
            plan,
            scheduler: Scheduler::new(policy.settings.clone(), knowledge(plan), 0),
            now: 0,
            clock_jump: 0,
            flows: Flows::new(plan, rates),
            catalog: ReplicaCatalog::new(plan),
            sites: (0..sites).map(|_| SimSite { connected: true, ..SimSite::default() }).collect(),
            link_failures: BTreeSet::new(),
            circuits_up: BTreeSet::new(),
            attempts: Vec::new(),
            free: Vec::new(),
            by_id: BTreeMap::new(),
            pool_busy: vec![0; plan.layout.pools.len()],
            pool_waiting: vec![BTreeSet::new(); plan.layout.pools.len()],
            wants: BTreeMap::new(),
            request_left: vec![0; plan.work.requests.len()],
            next_request: 0,
            files_left: 0,
            on_disk: BTreeSet::new(),
            random: Random::stream(plan.seed, "weather"),
            background: vec![0.0; plan.layout.capacities.len()],
            storage_factor: vec![1.0; plan.layout.capacities.len()],
            unused_share: vec![1.0; plan.layout.capacities.len()],
            reserved: vec![0.0; plan.layout.capacities.len()],
            circuit_providers: CircuitProviders::new(plan),
            circuits: Circuits::default(),
            queue: BinaryHeap::new(),
            sequence: 0,
            last_calculation: i64::MIN,
            rates,
            scheduler_stale: true,
            metrics: RunMetrics::new(plan),
            knowledge: KnowledgeReport::default(),
        };
        world.announce_sites();
        world.announce_limits(policy.concurrency);
        world.announce_shares();
        world.schedule_events();
        world.start_circuits();
        world
    }

    pub(crate) fn schedule_at(&mut self, time: i64, happening: SimEvent) {
        self.sequence += 1;
        self.queue.push(Reverse((time, self.sequence, Unordered(happening))));
    }

    pub(crate) fn schedule_after(&mut self, seconds: f64, happening: SimEvent) {
        self.schedule_at(self.now + micros(seconds).max(0), happening);
    }

    /// The service's time.
    pub(crate) fn service_time(&self) -> Timestamp {
        Timestamp(START.0 + self.now + self.clock_jump)
    }

    pub(crate) fn handle(&mut self, event: longhaul_scheduler::Event) {
        self.scheduler_stale = true;
        self.scheduler.handle(event, self.service_time());
    }

    pub(crate) fn new_attempt(&mut self, attempt: Attempt) -> u32 {
        match self.free.pop() {
            Some(index) => {
                let generation = self.attempts[index as usize].generation;
                self.attempts[index as usize] = Attempt { generation, ..attempt };
                index
            }
            None => {
                self.attempts.push(attempt);
                (self.attempts.len() - 1) as u32
            }
        }
    }

    /// The attempt is over, and nobody has more to say of it.
    pub(crate) fn free_attempt(&mut self, index: u32) {
        let attempt = &mut self.attempts[index as usize];
        self.by_id.remove(&attempt.id);
        attempt.phase = Phase::Free;
        attempt.generation = attempt.generation.wrapping_add(1);
        attempt.fault = None;
        self.free.push(index);
    }

    pub(crate) fn is_current(&self, index: u32, generation: u32) -> bool {
        self.attempts[index as usize].generation == generation
    }

    /// Until all that is wanted is there, or the world ends.
    pub fn run(&mut self) {
        self.run_until(self.plan.until);
        self.metrics.finish(self.now);
    }

    /// Up to a time, in seconds, with all that flowed until then.
    pub fn run_until(&mut self, until: f64) {
        let end = micros(until.min(self.plan.until));
        while self.step(end) {}
        for flow in 0..self.flows.rows.len() as u32 {
            self.flows.advance(flow, self.now);
        }
    }

    pub fn is_over(&self) -> bool {
        self.is_done() || self.now >= micros(self.plan.until)
    }

    fn is_done(&self) -> bool {
        self.files_left == 0 && self.next_request == self.plan.work.requests.len()
    }

    /// The bound of this world as it was.
    pub fn certificate(&self) -> crate::bound::Certificate {
        crate::bound::certify(self.plan, &self.metrics.history)
    }

    fn step(&mut self, end: i64) -> bool {
        if self.is_done() {
            return false;
        }
        let next = self.next_time();
        if next > end {
            self.now = end;
            return false;
        }
        self.now = self.now.max(next);
        self.submit_due_requests();
        while self.queue.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
            if let Some(Reverse((_, _, Unordered(happening)))) = self.queue.pop() {
                self.handle_event(happening);
            }
        }
        while let Some((at, flow)) = self.flows.next_completion()
            && at <= self.now
        {
            self.on_file_done(flow);
        }
        if self.scheduler_stale || self.scheduler_wakeup().is_some_and(|at| at <= self.now) {
            self.poll_scheduler();
        }
        if self.flows.rates_stale && self.calculation_time() <= self.now {
            self.flows.recompute_rates(self.now);
            self.last_calculation = self.now;
        }
        true
    }

    fn next_time(&self) -> i64 {
        let mut next = self.queue.peek().map_or(i64::MAX, |Reverse((at, ..))| *at);
        if let Some((at, _)) = self.flows.next_completion() {
            next = next.min(at);
        }
        if let Some(request) = self.plan.work.requests.get(self.next_request) {
            next = next.min(micros(request.at));
        }
        if self.flows.rates_stale {
            next = next.min(self.calculation_time());
        }
        if let Some(at) = self.next_service_step() {
            next = next.min(at);
        }
        next
    }

    fn calculation_time(&self) -> i64 {
        match self.rates {
            Rates::Exact => self.now,
            Rates::Second => self.last_calculation.saturating_add(1_000_000).max(self.now),
        }
    }

    /// When the scheduler wants to be asked, in the world's time.
    fn scheduler_wakeup(&self) -> Option<i64> {
        let at = self.scheduler.next_wakeup()?;
        Some(at.0.saturating_sub(START.0).saturating_sub(self.clock_jump))
    }

    /// When it is asked: at a step of the service that is still to come.
    fn next_service_step(&self) -> Option<i64> {
        let at = self.scheduler_wakeup()?;
        Some(if at <= self.now { self.now + self.service_step() } else { self.round_up_to_step(at) })
    }

    pub(crate) fn service_step(&self) -> i64 {
        micros(self.plan.model.service_step.0).max(1)
    }

    /// The service takes in what came since its last step.
    pub(crate) fn round_up_to_step(&self, at: i64) -> i64 {
        let step = self.service_step();
        at.saturating_add(step - 1) / step * step
    }

    fn handle_event(&mut self, happening: SimEvent) {
        match happening {
            SimEvent::Lease { attempt, generation } => self.on_lease_delivered(attempt, generation),
            SimEvent::LeaseRecall { attempt, generation } => self.on_recall(attempt, generation),
            SimEvent::Ready { attempt, generation } => self.on_ready(attempt, generation),
            SimEvent::Recalled { site, attempt, generation } => self.on_recalled(site, attempt, generation),
            SimEvent::Began { attempt, generation } => self.on_started(attempt, generation),
            SimEvent::Ended { attempt, generation } => self.on_ended(attempt, generation),
            SimEvent::Report { site } => self.send_report(site),
            SimEvent::Progress { rows } => self.on_progress(&rows),
            SimEvent::Files { demand, target, after, limit } => {
                self.answer_expansion(demand, target, after, limit)
            }
            SimEvent::FailureBegins { trouble } => self.on_failure_begin(trouble),
            SimEvent::FailureEnds { trouble } => self.on_failure_end(trouble),
            SimEvent::AgentTimeout { site, trouble } => self.on_agent_timeout(site, trouble),
            SimEvent::Circuit { circuit, up } => self.set_circuit(circuit, up),
            SimEvent::BackgroundTraffic => self.update_background(),
            SimEvent::Probes => self.probe_links(),
            SimEvent::ReviewCircuits => self.review_circuits(),
            SimEvent::CircuitGranted { number: line, key } => self.on_granted(line, key),
        }
    }
}

/// What the scheduler knows at the beginning.
fn knowledge(plan: &Plan) -> Knowledge {
    let mut knowledge = Knowledge::default();
    for (from, to, history) in &plan.history {
        let link = Link {
            source: longhaul_model::StorageId(*from as u64),
            target: longhaul_model::StorageId(*to as u64),
        };
        // Files of two seconds, one after the other, up to the beginning; failures spread evenly among them.
        let each = Duration::from_secs(2);
        let begin = START - each * history.transfers;
        let mut failed = 0.0;
        for number in 0..history.transfers {
            let at = begin + each * number;
            knowledge.attempt_began(link, at);
            failed += history.failures.0;
            let (bytes, end) = if failed >= 1.0 {
                failed -= 1.0;
                (0, AttemptEnd::Failed(longhaul_model::Blame::Network))
            } else {
                ((history.rate.0 * 2.0) as u64, AttemptEnd::Arrived)
            };
            knowledge.attempt_ended(link, bytes, end, at + each);
        }
    }
    knowledge
}
