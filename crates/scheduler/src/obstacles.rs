//! Which files of a subscription cannot come now, and why. They have no forecast; the others do.
//!
//! A limit in use, a full window and the backoff of a file are signs of work. A closed link, a site that is
//! not open, a storage that nobody reaches and a file without a copy are not: nothing comes until somebody
//! acts, or what is away returns.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_model::{Fault, Timestamp};

use crate::decision::Unusable;
use crate::dispatch::TargetUnusable;
use crate::explain::{describe_files, describe_unusable};
use crate::scheduler::Scheduler;
use crate::state::{ActiveLease, Phase, Subscription, Transfer, Want};

/// What keeps a file from its target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    /// The target takes nothing.
    Target,
    /// None of these sources can be read, for a reason other than work.
    Sources(Vec<u32>),
    /// No route leads from these sources.
    NoRoute(Vec<u32>),
    /// This source has a link for test transfers only.
    Uncommissioned(u32),
    /// No storage has a usable replica.
    Sourceless,
    /// It failed for good.
    Failed,
}

/// The transfers of a subscription by what will become of them.
#[derive(Default)]
pub(crate) struct DeliveryStatus {
    /// In the scheduler's memory, of all phases.
    pub known: u64,
    pub in_backoff: u64,
    /// Come over a relay.
    pub relayed: u64,
    /// Leased, and their sources.
    pub leased: u64,
    pub leased_sources: BTreeSet<u32>,
    /// Transfers that could use each source.
    pub sources: BTreeMap<u32, u64>,
    /// Sources that cannot be used now, though another of the file can.
    pub blocked_sources: BTreeSet<u32>,
    pub bytes_arrived: u128,
    pub has_parked_files: bool,
    pub fault: Option<Fault>,
    /// First lease after which nothing came or succeeded.
    pub attempts_since: Option<Timestamp>,
    pub stuck_files: u64,
    pub stuck_bytes: u128,
    obstacles: BTreeMap<Obstacle, u64>,
}

impl DeliveryStatus {
    fn add_stuck(&mut self, obstacle: Obstacle, files: u64, bytes: u128) {
        let count = self.obstacles.entry(obstacle).or_default();
        *count = count.saturating_add(files);
        self.stuck_files = self.stuck_files.saturating_add(files);
        self.stuck_bytes = self.stuck_bytes.saturating_add(bytes);
    }
}

/// How many transfers of a want can move, and what keeps the first that cannot.
#[derive(Default)]
struct WantObstacles {
    movable: u64,
    first: Option<Obstacle>,
}

/// What keeps files from coming from each source to one target, found once for each.
struct SourceObstacles {
    target: u32,
    party: u32,
    now: Timestamp,
    by_source: BTreeMap<u32, Option<Unusable>>,
}

impl SourceObstacles {
    fn new(target: u32, party: u32, now: Timestamp) -> Self {
        SourceObstacles { target, party, now, by_source: BTreeMap::new() }
    }

    fn find(&mut self, scheduler: &Scheduler, source: u32) -> Option<Unusable> {
        let SourceObstacles { target, party, now, .. } = *self;
        *self.by_source.entry(source).or_insert_with(|| scheduler.source_obstacle(source, target, party, now))
    }
}

impl Scheduler {
    /// Over the transfers in memory only: their number is bounded by the horizon.
    pub(crate) fn delivery_status(&self, row: &Subscription, now: Timestamp) -> DeliveryStatus {
        let mut status = DeliveryStatus::default();
        let bar = self.target_unusable(row.target, now).filter(TargetUnusable::lasts);
        for &want in &row.wants {
            self.add_want_status(&mut status, &self.wants[want], bar, now);
        }
        status
    }

    fn add_want_status(
        &self,
        status: &mut DeliveryStatus,
        want: &Want,
        bar: Option<TargetUnusable>,
        now: Timestamp,
    ) {
        status.has_parked_files |= want.has_parked_files;
        status.bytes_arrived += want.bytes_arrived;
        status.fault = status.fault.take().or_else(|| want.last_failure.clone());
        let in_backoff_before = status.in_backoff;
        let mut stuck = WantObstacles::default();
        let mut sources = SourceObstacles::new(want.target, want.party, now);
        for &index in &want.transfers {
            let transfer = &self.transfers[index];
            status.known += 1;
            self.count_phase(status, transfer, &mut sources);
            match self.obstacle(transfer, bar, &mut sources) {
                Some(obstacle) => {
                    let rest = transfer.size - transfer.lease().map_or(0, |lease| lease.bytes_done);
                    status.add_stuck(obstacle.clone(), 1, u128::from(rest));
                    stuck.first.get_or_insert(obstacle);
                }
                None => stuck.movable += 1,
            }
        }
        // Work that waits for its turn is not silent.
        let retries = want.last_attempt_failed && status.in_backoff > in_backoff_before;
        let since = want.attempts_since.filter(|_| want.leased > 0 || retries);
        status.attempts_since = match (status.attempts_since, since) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        self.add_files_not_in_memory(status, want, bar, &stuck);
    }

    fn count_phase(&self, status: &mut DeliveryStatus, transfer: &Transfer, sources: &mut SourceObstacles) {
        match transfer.phase {
            Phase::Leased(lease) => {
                status.leased += 1;
                status.leased_sources.insert(lease.source);
            }
            Phase::Queued | Phase::InBackoff => {
                status.in_backoff += u64::from(transfer.phase == Phase::InBackoff);
                for source in transfer.sources.iter() {
                    *status.sources.entry(source.storage).or_default() += 1;
                    if sources.find(self, source.storage).is_some() {
                        status.blocked_sources.insert(source.storage);
                    }
                }
            }
            Phase::Unlinked => status.relayed += u64::from(self.current_relay(transfer).is_some()),
            Phase::Parked | Phase::New => {}
        }
    }

    /// Files that failed, those that were left out for want of a source, and those not read from the catalog
    /// yet: they are like those that were.
    fn add_files_not_in_memory(
        &self,
        status: &mut DeliveryStatus,
        want: &Want,
        bar: Option<TargetUnusable>,
        stuck: &WantObstacles,
    ) {
        let known = want.transfers.len() as u64;
        let failed = (want.failed.len() as u64).min(want.files_left.saturating_sub(known));
        let unread = want.files_left.saturating_sub(known).saturating_sub(failed);
        let known_bytes = want.transfers.iter().map(|&index| u128::from(self.transfers[index].size));
        let rest = want.bytes_left.saturating_sub(known_bytes.sum());
        let part = |files: u64| rest.saturating_mul(u128::from(files)) / u128::from((failed + unread).max(1));
        if failed > 0 {
            status.add_stuck(Obstacle::Failed, failed, part(failed));
        }
        if unread == 0 {
            return;
        }
        let obstacle = match &stuck.first {
            _ if bar.is_some() => Some(Obstacle::Target),
            first if want.exhausted && want.has_parked_files => {
                Some(first.clone().unwrap_or(Obstacle::Sourceless))
            }
            Some(first) if stuck.movable == 0 => Some(first.clone()),
            _ => None,
        };
        if let Some(obstacle) = obstacle {
            status.add_stuck(obstacle, unread, part(unread));
        }
    }

    /// What keeps a transfer from its target, if work alone does not.
    fn obstacle(
        &self,
        transfer: &Transfer,
        bar: Option<TargetUnusable>,
        sources: &mut SourceObstacles,
    ) -> Option<Obstacle> {
        let now = sources.now;
        match transfer.phase {
            Phase::New => None,
            Phase::Leased(lease) => self.lease_obstacle(&lease, bar, sources),
            Phase::Parked => Some(Obstacle::Sourceless),
            _ if bar.is_some() => Some(Obstacle::Target),
            Phase::Unlinked => self.route_obstacle(transfer, now),
            Phase::Queued | Phase::InBackoff => {
                let mut of_file = transfer.sources.iter().map(|source| source.storage);
                let blocked = of_file.all(|source| sources.find(self, source).is_some());
                (blocked && !self.comes_by_detour(transfer, now))
                    .then(|| Obstacle::Sources(source_indexes(transfer)))
            }
        }
    }

    /// A lease goes on while its site drains or is paused, but not where an end is away.
    fn lease_obstacle(
        &self,
        lease: &ActiveLease,
        bar: Option<TargetUnusable>,
        sources: &mut SourceObstacles,
    ) -> Option<Obstacle> {
        if matches!(bar, Some(TargetUnusable::NotConnected | TargetUnusable::NoRoom { .. })) {
            return Some(Obstacle::Target);
        }
        let why = sources.find(self, lease.source);
        matches!(why, Some(Unusable::NotConnected | Unusable::Unreachable { .. }))
            .then(|| Obstacle::Sources(vec![lease.source]))
    }

    /// A file without a link comes if it is on its way to a relay.
    fn route_obstacle(&self, transfer: &Transfer, now: Timestamp) -> Option<Obstacle> {
        if self.comes_by_detour(transfer, now) {
            return None;
        }
        let party = self.wants[transfer.want].party;
        let sources = source_indexes(transfer);
        let test_link = |source: &&u32| {
            self.is_link(**source, transfer.target) && !self.commissioned(**source, transfer.target, party)
        };
        if let Some(&source) = sources.iter().find(test_link) {
            return Some(Obstacle::Uncommissioned(source));
        }
        Some(Obstacle::NoRoute(sources))
    }

    /// Whether a hop of the same file can move.
    fn comes_by_detour(&self, transfer: &Transfer, now: Timestamp) -> bool {
        let others = self.files[transfer.file_row].transfers.iter();
        others.filter(|&other| self.is_hop(other)).any(|other| {
            let hop = &self.transfers[other];
            let party = self.wants[hop.want].party;
            let bar = self.target_unusable(hop.target, now).filter(TargetUnusable::lasts);
            let mut sources = SourceObstacles::new(hop.target, party, now);
            match hop.phase {
                Phase::New => true,
                Phase::Leased(lease) => self.lease_obstacle(&lease, bar, &mut sources).is_none(),
                Phase::Queued | Phase::InBackoff => {
                    bar.is_none()
                        && hop.sources.iter().any(|source| sources.find(self, source.storage).is_none())
                }
                // Another hop brings it there, or nothing does; that one is among these as well.
                Phase::Parked | Phase::Unlinked => false,
            }
        })
    }

    /// Why nothing comes from a source, if work alone does not explain it.
    fn source_obstacle(&self, source: u32, target: u32, party: u32, now: Timestamp) -> Option<Unusable> {
        // A probe of what nobody reaches is due now and then; until one succeeds it is unreachable.
        let row = &self.storages[source];
        let link = self.storages[target].target.links.get(source);
        let opened = link.and_then(|link| link.reach_breaker.open_until());
        let unreachable = row.reach_breaker.open_until().or(opened);
        let why = self.unusable(source, target, party, now);
        why.filter(Unusable::lasts).or_else(|| unreachable.map(|until| Unusable::Unreachable { until }))
    }

    /// Why its files cannot come, most files first, each reason with their number.
    pub(crate) fn describe_obstacles(
        &self,
        row: &Subscription,
        status: &DeliveryStatus,
        now: Timestamp,
    ) -> Vec<String> {
        let steady = self.clock.steady_time(now);
        let mut rows: Vec<(&Obstacle, u64)> =
            status.obstacles.iter().map(|(obstacle, files)| (obstacle, *files)).collect();
        rows.sort_by_key(|(_, files)| u64::MAX - files);
        rows.into_iter()
            .map(|(obstacle, files)| self.describe_obstacle(row, obstacle, files, status, (now, steady)))
            .collect()
    }

    fn describe_obstacle(
        &self,
        row: &Subscription,
        obstacle: &Obstacle,
        files: u64,
        status: &DeliveryStatus,
        (now, steady): (Timestamp, Timestamp),
    ) -> String {
        let count = describe_files(files);
        let last =
            || status.fault.as_ref().map_or_else(String::new, |fault| format!("; the last failure: {fault}"));
        let storage = |source: &u32| self.name(self.storages[*source].id);
        let target = storage(&row.target);
        match obstacle {
            Obstacle::Target => {
                let bar = self.target_unusable(row.target, steady);
                let why = bar.map_or_else(
                    || format!("{target} takes no files now"),
                    |bar| self.describe_target_unusable(row.target, bar, now),
                );
                format!("{count} cannot come now: {why}")
            }
            Obstacle::Sources(sources) => {
                let party = row.wants.first().map_or(0, |&want| self.wants[want].party);
                let reasons = sources.iter().filter_map(|&source| {
                    let why = self.source_obstacle(source, row.target, party, steady)?;
                    Some(format!("{} {}", storage(&source), describe_unusable(self.to_caller_times(why))))
                });
                let reasons: Vec<String> = reasons.collect();
                format!("{count} cannot come now: {}", reasons.join("; "))
            }
            Obstacle::NoRoute(sources) => {
                let sources: Vec<String> = sources.iter().map(storage).collect();
                format!("{count} cannot come: no route leads from {} to {target}", sources.join(" or "))
            }
            Obstacle::Uncommissioned(source) => format!(
                "{count} do not come over the link from {}, which is not commissioned: only test transfers \
                    may use it",
                storage(source)
            ),
            Obstacle::Sourceless => format!(
                "{count} without a usable replica anywhere: copies on tape, in virtual storages and in doubt \
                    are not read, and virtual storages take no ordinary data{}",
                last()
            ),
            Obstacle::Failed => {
                let last = status.fault.as_ref().map_or_else(String::new, |fault| format!(": {fault}"));
                format!("{count} failed for good and must be asked for again{last}")
            }
        }
    }
}

impl TargetUnusable {
    /// Whether it is more than work under way.
    fn lasts(&self) -> bool {
        !matches!(self, TargetUnusable::AttemptsInFull { limit } if *limit > 0)
    }
}

impl Unusable {
    /// Whether it is more than work under way.
    fn lasts(&self) -> bool {
        match self {
            Unusable::WindowFull { .. } | Unusable::InBackoff { .. } => false,
            Unusable::ActiveOut { limit } | Unusable::LimitActive { limit, .. } => *limit == 0,
            Unusable::LimitRate { bytes_per_s, .. } => *bytes_per_s == 0,
            Unusable::NotConnected
            | Unusable::SiteDraining
            | Unusable::SitePaused
            | Unusable::Unreachable { .. }
            | Unusable::NoLink
            | Unusable::NotCommissioned
            | Unusable::NoCircuit
            | Unusable::Unknown => true,
        }
    }
}

/// In their order, so that files with the same sources count together.
fn source_indexes(transfer: &Transfer) -> Vec<u32> {
    let mut sources: Vec<u32> = transfer.sources.iter().map(|source| source.storage).collect();
    sources.sort_unstable();
    sources
}
