//! State of the scheduler: sites, storages, links, wants, transfers. Rows are addressed by their index
//! (`u32`) in a slab, ids only at the interface. Sums of bytes have 128 bits, since sizes come from outside.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::time::Duration;

use longhaul_model::{
    AgentId, AttemptId, BlockId, Fault, FileId, StorageId, StorageName, SubscriptionId, Timestamp, TransferId,
};

use crate::arrival_history::ArrivalHistory;
use crate::breaker::Breaker;
use crate::cached_min_set::CachedMinSet;
use crate::concurrency::ConcurrencyTuner;
use crate::event::{SiteInfo, SiteState};
use crate::exclusive_target::ExclusiveTarget;
use crate::lanes::Lanes;
use crate::links::LinkMap;
use crate::queue_key::QueueKey;
use crate::recent_rate::{ArrivalMark, RecentRate};
use crate::slab::{RowMarker, SmallSet};
use crate::source_latency::SourceLatency;
use crate::sources::SourceList;
use crate::strategy::Strategy;
use crate::waiters::SlotWaiters;

pub(crate) struct Site {
    /// None until the service has told of it: nothing moves at a site without limits.
    pub info: Option<SiteInfo>,
    pub active_in: u32,
    pub active_out: u32,
    /// Targets that wait for a slot out, and whose turn it is while others wait.
    pub slot_waiters: SlotWaiters,
    pub next_waiter: Option<u32>,
    pub storages: BTreeSet<u32>,
}

impl Site {
    pub(crate) fn new() -> Self {
        Site {
            info: None,
            active_in: 0,
            active_out: 0,
            slot_waiters: SlotWaiters::default(),
            next_waiter: None,
            storages: BTreeSet::new(),
        }
    }

    pub(crate) fn state(&self) -> SiteState {
        self.info.as_ref().map_or(SiteState::Paused, |info| info.state)
    }

    pub(crate) fn limit(&self, inward: bool) -> u32 {
        let Some(info) = &self.info else { return 0 };
        (if inward { info.limits.active_in } else { info.limits.active_out }).unwrap_or(u32::MAX)
    }

    pub(crate) fn has_slot(&self, inward: bool) -> bool {
        let active = if inward { self.active_in } else { self.active_out };
        active < self.limit(inward)
    }
}

/// What is read of every source that might be used comes first.
#[repr(C, align(64))]
pub(crate) struct Storage {
    pub here: RowMarker,
    /// None until the service has told of it.
    pub name: Option<StorageName>,
    pub id: StorageId,
    pub site: u32,
    pub writable: bool,
    /// Files of others may pass through it.
    pub relay: bool,
    pub connected: bool,

    /// As a source: given to it and not yet arrived, over all its links.
    pub bytes_ahead: u128,
    pub files_ahead: u32,
    /// Bytes that have come from it since the start.
    pub bytes_sent: f64,
    /// Opens when nobody reaches it.
    pub reach_breaker: Breaker,
    pub total: CachedRate,

    pub target: Target,

    pub agent: Option<AgentId>,
    pub trouble: Option<Fault>,
}

impl Storage {
    pub(crate) fn new(id: StorageId, site: u32) -> Self {
        Storage {
            here: RowMarker::Yes,
            id,
            name: None,
            site,
            writable: false,
            relay: false,
            trouble: None,
            agent: None,
            connected: false,
            bytes_ahead: 0,
            files_ahead: 0,
            bytes_sent: 0.0,
            reach_breaker: Breaker::default(),
            total: CachedRate::default(),
            target: Target::default(),
        }
    }
}

/// A rate read from `network` is cached for this long.
const RATE_CACHE_TTL: Duration = Duration::from_millis(100);

/// A rate read from `network` a short while ago: thousands of choices within a moment need the same.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CachedRate {
    pub rate: f64,
    /// Upper bound for a link by its measurements; infinite before the first.
    pub rate_max: f64,
    pub failure_share: f64,
    pub at: Option<Timestamp>,
}

impl CachedRate {
    pub(crate) fn is_fresh(&self, now: Timestamp) -> bool {
        self.at.is_some_and(|at| now.since(at) < RATE_CACHE_TTL)
    }
}

/// A storage as a target.
#[derive(Default)]
pub(crate) struct Target {
    pub lanes: Lanes,
    /// Places of leased transfers.
    pub leased: BTreeSet<u32>,
    pub leased_bytes: u128,
    pub started: u32,
    /// By place of the source.
    pub links: LinkMap,
    /// Sources from which files come by a circuit.
    pub circuit_sources: BTreeSet<u32>,
    /// Opens when it is full or read-only.
    pub room_breaker: Breaker,
    pub in_backoff: u32,
    pub parked: u32,
    /// Bytes that have arrived since the start.
    pub bytes_arrived: f64,
    /// Reports and ends of files that brought bytes.
    pub arrivals: u64,
    /// Bytes that its sources have sent to anybody while they had work for it.
    pub sources_bytes_sent: f64,
    /// Tunes how much is leased at once over all links.
    pub concurrency: ConcurrencyTuner,
    /// Whether its first block has it to itself.
    pub exclusive: ExclusiveTarget,
    /// Leases issued since the start.
    pub leases_issued: u64,
    /// The silence check is armed.
    pub silence_timer_set: bool,
    /// There was room, and nothing in memory could be leased.
    pub starved: bool,
    /// Files of further subscriptions are to be loaded, as nothing in memory could be leased.
    pub samples_subscriptions: bool,
    /// When full links with more work waiting were noted last.
    pub full_links_noted_at: Option<Timestamp>,
    pub is_ready: bool,
}

/// What one priority of an activity has at a target.
#[derive(Default)]
pub(crate) struct Class {
    /// By place of the source, ordered by it: the wants that have something in their queue for it.
    pub sources: Vec<(u32, CachedMinSet<(Rank, u32)>)>,
    /// The wants that have something in any queue.
    pub waiting: CachedMinSet<(Rank, u32)>,
    pub queued: u32,
    pub queued_bytes: u128,
    /// Transfers in memory that will be leased by themselves: queued, resting, leased.
    pub live: u32,
    /// Wants that have more files than transfers.
    pub open: CachedMinSet<(Rank, u32)>,
    /// What all its wants lack.
    pub bytes_left: u128,
}

/// Due time, age, then block by block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub due: Timestamp,
    pub created: Timestamp,
    pub subscription: SubscriptionId,
    pub block: BlockId,
}

/// A link. What each decision reads of every link comes first, in two cache lines.
#[derive(Clone, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct LinkState {
    /// Leased and not ended.
    pub bytes: u128,
    pub files: u32,
    /// Leased files that have received bytes.
    pub moving: u32,
    /// Time of the last arrival, or of new work after a pause.
    pub last_arrival: Timestamp,
    pub rate: CachedRate,
    /// Opens when this target does not reach this source.
    pub reach_breaker: Breaker,
    /// How many of its files at once pay: see [`LinkState::concurrency_limit`].
    pub concurrency: ConcurrencyTuner,
    pub source_latency: SourceLatency,
    /// Bytes that have come since the start.
    pub bytes_arrived: f64,
    /// What its source had sent when that was last added to the target's sum.
    pub source_bytes_sent: f64,
    /// What a single file gets, bytes per second; 0 before the first.
    pub file_rate: f64,
    pub recent_rate: RecentRate,
    /// Reports and ends of files with which something has come.
    pub arrivals: u64,
    /// When an arrival last reset the backoff of other files.
    pub backoff_reset_at: Option<Timestamp>,
    /// What waits for this source only, by party.
    pub waiting: BTreeMap<u32, WaitingWork>,
    /// A file failed since the last arrival of one.
    pub failed_since_arrival: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct WaitingWork {
    pub files: u32,
    pub bytes: u64,
}

/// The nearest number; where it has 64 bits, as nearly all have, without the arithmetic of 128.
pub(crate) fn to_f64(number: u128) -> f64 {
    u64::try_from(number).map_or_else(|_| large_to_f64(number), |number| number as f64)
}

/// Apart, or the compiler finds that both ways give the same, and takes this one for all.
#[cold]
#[inline(never)]
fn large_to_f64(number: u128) -> f64 {
    number as f64
}

/// As `as u128`; where 64 bits are enough, without the arithmetic of 128.
pub(crate) fn to_u128(number: f64) -> u128 {
    if number < u64::MAX as f64 { u128::from(number as u64) } else { large_to_u128(number) }
}

#[cold]
#[inline(never)]
fn large_to_u128(number: f64) -> u128 {
    number as u128
}

/// A gap between arrivals shorter than this is the normal rhythm of reports.
const REPORT_GAP_MAX: Duration = Duration::from_millis(1_500);

impl LinkState {
    pub(crate) fn mark(&self, now: Timestamp) -> ArrivalMark {
        ArrivalMark { at: now, bytes: self.bytes_arrived, arrivals: self.arrivals }
    }

    /// How many of its files are leased at once.
    pub(crate) fn concurrency_limit(&self, least: u32) -> u32 {
        self.source_latency.limit(self.concurrency.files(least))
    }

    /// Why so many, in words; follows the number.
    pub(crate) fn explain_concurrency(&self, least: u32) -> String {
        self.source_latency
            .explain(self.concurrency.files(least))
            .unwrap_or_else(|| self.concurrency.in_words())
    }

    /// The measured rate, bounded by the current silence: at a rate above all leased bytes over that time,
    /// bytes would have arrived.
    pub(crate) fn plausible_rate(&self, now: Timestamp) -> f64 {
        let silence = now.since(self.last_arrival);
        let expected = self.rate.rate_max;
        if silence < REPORT_GAP_MAX {
            expected
        } else {
            expected.min(to_f64(self.bytes) / silence.as_secs_f64())
        }
    }
}

/// A block wanted at a target, by one demand or several. What each decision reads comes first, in two cache
/// lines.
#[repr(C, align(64))]
pub(crate) struct Want {
    pub here: RowMarker,
    /// By place of the source; each transfer is in the queue of each source it may use now.
    pub queues: Vec<(u32, CachedMinSet<QueueKey>)>,
    pub bytes_left: u128,
    /// Bytes that running attempts have received.
    pub bytes_arrived: u128,
    pub lane: usize,
    pub target: u32,
    pub party: u32,
    pub queued_bytes: u128,
    pub queued: u32,
    /// Transfers that will be leased by themselves: queued, resting, leased.
    pub live: u32,
    pub strategy: Strategy,
    pub rank: Rank,

    pub block: BlockId,
    pub files_left: u64,
    /// Nobody asked for it: files pass through.
    pub relay: bool,
    pub exhausted: bool,
    /// Some files were not taken into memory, since their sources cannot be used.
    pub has_parked_files: bool,
    pub sweep_set: bool,
    /// To be asked for again from its beginning as soon as the question under way is answered.
    pub rewind: bool,
    pub transfers: BTreeSet<u32>,
    pub demands: DemandSet,
    /// Up to here files have been turned into transfers.
    pub cursor: Option<FileId>,
    /// Answers without any file, though there are more: the next question is for twice as many.
    pub empty_answers: u32,
    /// The question that has not been answered: by whose name, for how many.
    pub expanding: Option<(SubscriptionId, u32)>,
    /// Sweeps that brought nothing.
    pub sweeps: u32,
    /// Files that failed for good and were not asked for again.
    pub failed: BTreeSet<FileId>,
    pub last_failure: Option<Fault>,
    /// Leased transfers.
    pub leased: u32,
    /// The last attempt that ended did not bring its file.
    pub last_attempt_failed: bool,
    /// The first lease since it had none under way and none had failed.
    pub attempts_since: Option<Timestamp>,
    /// Positions given so far.
    pub positions: u64,
    /// Number of this want among those of its block: shifts where in the block it begins.
    pub shift: u32,
    /// Targets to which files of this block go from here, since no link leads there from where they are.
    pub onward_targets: BTreeSet<u32>,
}

impl Want {
    /// A want without a demand of its own: for what passes through.
    pub(crate) fn relay(
        block: BlockId,
        target: u32,
        lane: usize,
        party: u32,
        strategy: Strategy,
        rank: Rank,
    ) -> Self {
        Want {
            here: RowMarker::Yes,
            block,
            target,
            relay: true,
            demands: DemandSet::default(),
            lane,
            party,
            strategy,
            rank,
            files_left: 0,
            bytes_left: 0,
            bytes_arrived: 0,
            cursor: None,
            exhausted: true,
            expanding: None,
            has_parked_files: false,
            sweeps: 0,
            sweep_set: false,
            rewind: false,
            onward_targets: BTreeSet::new(),
            transfers: BTreeSet::new(),
            queues: Vec::new(),
            queued: 0,
            queued_bytes: 0,
            live: 0,
            failed: BTreeSet::new(),
            empty_answers: 0,
            last_failure: None,
            leased: 0,
            last_attempt_failed: false,
            attempts_since: None,
            positions: 0,
            shift: 0,
        }
    }

    /// The next transfer from a source.
    pub(crate) fn head(&self, source: u32) -> Option<QueueKey> {
        let at = self.queues.binary_search_by_key(&source, |(source, _)| *source).ok()?;
        self.queues[at].1.first().copied()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DemandTerms {
    pub party: u32,
    pub level: usize,
    pub created: Timestamp,
    pub deadline: Option<Timestamp>,
    pub strategy: Option<Strategy>,
}

/// The demands for a block at a target, sorted: nearly always one, for which a map would take half a
/// kilobyte.
#[derive(Default)]
pub(crate) struct DemandSet(Vec<(SubscriptionId, DemandTerms)>);

impl DemandSet {
    pub(crate) fn with_demand(id: SubscriptionId, wish: DemandTerms) -> Self {
        DemandSet(vec![(id, wish)])
    }

    fn position(&self, id: SubscriptionId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&id, |(id, _)| *id)
    }

    pub(crate) fn insert(&mut self, id: SubscriptionId, wish: DemandTerms) {
        match self.position(id) {
            Ok(at) => self.0[at].1 = wish,
            Err(at) => self.0.insert(at, (id, wish)),
        }
    }

    pub(crate) fn remove(&mut self, id: SubscriptionId) {
        if let Ok(at) = self.position(id) {
            self.0.remove(at);
        }
    }

    pub(crate) fn get(&self, id: SubscriptionId) -> Option<&DemandTerms> {
        self.position(id).ok().map(|at| &self.0[at].1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (SubscriptionId, &DemandTerms)> {
        self.0.iter().map(|(id, wish)| (*id, wish))
    }
}

/// What one subscription still lacks.
pub(crate) struct Subscription {
    pub target: u32,
    pub wants: BTreeSet<u32>,
    pub files_left: u64,
    pub bytes_left: u128,
    /// Its size when its wants were ranked last.
    pub bytes_ranked: u128,
    /// Its deadline is in danger.
    pub expedited: bool,
    pub arrivals: ArrivalHistory,
}

/// The transfers of one file, at most one per target.
pub(crate) struct FileRow {
    pub file: FileId,
    pub transfers: SmallSet,
}

/// What is read of every one that might be leased comes first.
#[repr(C, align(64))]
pub(crate) struct Transfer {
    pub here: RowMarker,
    pub size: u64,
    pub position: u64,
    pub want: u32,
    pub target: u32,
    /// Place of the row of its file.
    pub file_row: u32,
    /// Leases of the same file at other targets.
    pub awaited: u32,
    pub tries: u32,
    /// Bit per source: in whose queues it is.
    pub queues: u8,
    pub sources: SourceList,
    pub phase: Phase,
    pub id: TransferId,
    pub file: FileId,
    pub epoch: u64,
    /// Could be leased since, and how many leases its target had got by then.
    pub since: Timestamp,
    pub leases_issued_before: u64,
    /// The whole transfer waits until then.
    pub backoff_until: Timestamp,
    pub timer_at: Option<Timestamp>,
    pub fault: Option<Box<Fault>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Phase {
    /// Not yet counted anywhere.
    New,
    Queued,
    InBackoff,
    Parked,
    /// None of its replicas has a link to the target: one shall be brought nearer.
    Unlinked,
    Leased(ActiveLease),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ActiveLease {
    pub attempt: AttemptId,
    pub agent: AgentId,
    pub source: u32,
    /// Party whose limits it counts against.
    pub party: u32,
    /// Under which limits it was leased: see [`crate::limits::LimitTable::version`].
    pub limits: u32,
    /// The lane (counted from 1) whose turn it had at the target; none: its own. See [`crate::link_shares`].
    pub charged_lane: Option<NonZeroU32>,
    pub started: bool,
    /// None: by whom was here before a restart.
    pub leased: Option<Timestamp>,
    /// The lease, and then the start.
    pub began: Timestamp,
    pub bytes_done: u64,
}

impl Transfer {
    /// The one source that a queued transfer waits for under a strategy other than `best`.
    pub(crate) fn assigned(&self) -> Option<u32> {
        self.sources.get(self.queues.trailing_zeros() as usize).map(|source| source.storage)
    }

    pub(crate) fn lease(&self) -> Option<ActiveLease> {
        match self.phase {
            Phase::Leased(lease) => Some(lease),
            _ => None,
        }
    }
}
