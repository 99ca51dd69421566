//! Queries about the present state: expected completion, what delays it, what is in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use longhaul_model::{Fault, StorageId, SubscriptionId, Timestamp, TransferId, units};
use longhaul_network::{Basis, Estimate, Link};

use crate::explain::{describe_bytes, describe_unusable};
use crate::query::{Counts, LeaseStatus, LinkBacklog, LinkStatus, MissingBytes, Outlook, TransferStatus};
use crate::scheduler::Scheduler;
use crate::settings::REASONS_MAX;
use crate::state::{Class, Phase, Subscription};

/// Minimum spread of a target's rate: the future is not the past.
const RATE_SPREAD_MIN: f64 = 0.1;
/// The 90 % quantile of the standard normal distribution.
pub(crate) const NORMAL_QUANTILE_90: f64 = 1.2816;
/// Rate for files without bytes while nothing is known about the pace of files.
const FILES_PER_S_DEFAULT: f64 = 500.0;

/// How the transfers of a subscription stand.
#[derive(Default)]
struct SubscriptionProgress {
    queued: u64,
    in_backoff: u64,
    unlinked: u64,
    /// Kept from their links, since these are not commissioned, and a source of such a link.
    uncommissioned: u64,
    uncommissioned_source: Option<String>,
    parked: u64,
    failed: u64,
    fault: Option<Fault>,
    /// Queued transfers that could use each source.
    sources: BTreeMap<u32, u64>,
    bytes_arrived: u128,
    has_parked_files: bool,
}

impl Scheduler {
    /// When the rest of a subscription will be there, or why nobody can say.
    pub fn outlook(&self, subscription: SubscriptionId, now: Timestamp) -> Outlook {
        let Some(row) = self.subscriptions.get(&subscription) else {
            return Outlook {
                why_none: Some("nothing of it is wanted now".to_owned()),
                ..Outlook::default()
            };
        };
        if row.files_left == 0 {
            return Outlook { why_none: Some("nothing is missing".to_owned()), ..Outlook::default() };
        }
        let progress = self.progress_of(row);
        let mut outlook = Outlook { expedited: row.expedited, ..Outlook::default() };
        let barred = self.target_unusable(row.target, self.clock.steady_time(now));
        let blocked = self.blocked_sources(row, &progress, now);
        let all_blocked = !progress.sources.is_empty() && blocked.len() == progress.sources.len();
        // A limit in use and a window that is full are signs of work, not of standstill.
        let moving = !self.storages[row.target].target.leased.is_empty();
        let bar = barred.map(|barred| self.describe_target_unusable(row.target, barred, now));
        outlook.why_none = match &bar {
            Some(bar) if !moving => Some(bar.clone()),
            _ if progress.parked > 0 => Some(describe_sourceless(progress.parked, progress.fault.as_ref())),
            _ if all_blocked && !moving => Some(format!("no source can be used now: {}", blocked.join("; "))),
            _ if progress.failed >= row.files_left => Some(describe_failed(progress.failed, None)),
            _ => None,
        };
        outlook.held_up_by.extend(bar);
        outlook.held_up_by.extend(blocked);
        self.add_delays(row, subscription, &progress, &mut outlook.held_up_by);
        outlook.held_up_by.retain(|reason| Some(reason) != outlook.why_none.as_ref());
        outlook.held_up_by.truncate(REASONS_MAX);
        if outlook.why_none.is_none() {
            let (median, ninety, basis) = self.finish_time(row, subscription, &progress, now);
            outlook.rests_on = Some(basis.describe());
            outlook.median = Some(median);
            outlook.ninety = Some(ninety);
        }
        outlook
    }

    /// Over the transfers in memory only: their number is bounded by the horizon.
    fn progress_of(&self, row: &Subscription) -> SubscriptionProgress {
        let mut progress = SubscriptionProgress::default();
        for &want in &row.wants {
            let want = &self.wants[want];
            progress.failed += want.failed.len() as u64;
            progress.has_parked_files |= want.has_parked_files;
            progress.bytes_arrived += want.bytes_arrived;
            progress.fault = progress.fault.or_else(|| want.last_failure.clone());
            for &index in &want.transfers {
                let transfer = &self.transfers[index];
                match transfer.phase {
                    Phase::Queued => {
                        progress.queued += 1;
                        for source in transfer.sources.iter() {
                            *progress.sources.entry(source.storage).or_default() += 1;
                        }
                    }
                    Phase::InBackoff => progress.in_backoff += 1,
                    Phase::Unlinked => match self.uncommissioned_source(transfer) {
                        Some(source) => {
                            progress.uncommissioned += 1;
                            progress.uncommissioned_source = Some(source);
                        }
                        None => progress.unlinked += 1,
                    },
                    Phase::Parked => progress.parked += 1,
                    Phase::Leased(_) | Phase::New => {}
                }
            }
        }
        progress
    }

    fn blocked_sources(
        &self,
        row: &Subscription,
        progress: &SubscriptionProgress,
        now: Timestamp,
    ) -> Vec<String> {
        use crate::decision::Unusable::{ActiveOut, WindowFull};
        let Some(party) = row.wants.first().map(|&want| self.wants[want].party) else { return Vec::new() };
        let now = self.clock.steady_time(now);
        let mut reasons = Vec::new();
        for (&source, &files) in &progress.sources {
            let why = match self.unusable(source, row.target, party, now) {
                None | Some(WindowFull { .. } | ActiveOut { .. }) => continue,
                Some(why) => self.to_caller_times(why),
            };
            let name = self.name(self.storages[source].id);
            let files = describe_files(files);
            reasons.push(format!("{name} {} ({files} could come from there)", describe_unusable(why)));
        }
        reasons
    }

    fn add_delays(
        &self,
        row: &Subscription,
        id: SubscriptionId,
        progress: &SubscriptionProgress,
        reasons: &mut Vec<String>,
    ) {
        let fault = progress.fault.as_ref();
        if progress.parked > 0 {
            reasons.push(describe_sourceless(progress.parked, fault));
        }
        if progress.failed > 0 {
            reasons.push(describe_failed(progress.failed, fault));
        }
        if progress.unlinked > 0 {
            let files = describe_files(progress.unlinked);
            reasons
                .push(format!("{files} come over other storages: their sources have no link to the target"));
        }
        if let Some(source) = &progress.uncommissioned_source {
            let files = describe_files(progress.uncommissioned);
            reasons.push(format!(
                "{files} do not come over the link from {source}, which is not commissioned: only test \
                    transfers may use it"
            ));
        }
        if progress.in_backoff > 0 {
            let files = describe_files(progress.in_backoff);
            let last = fault.map_or_else(String::new, |fault| format!("; the last failure: {fault}"));
            reasons.push(format!("{files} wait for the next try{last}"));
        }
        let ahead = self.bytes_before(row, id);
        if ahead > 0 {
            let target = self.name(self.storages[row.target].id);
            reasons.push(format!(
                "{} of older or more urgent subscriptions go first to {target}",
                describe_bytes(ahead)
            ));
        }
        if progress.has_parked_files {
            reasons
                .push("some of its sources cannot be used, and many files wait for them already".to_owned());
        }
        for &source in progress.sources.keys() {
            let storage = &self.storages[source];
            let site = &self.sites[storage.site];
            if !site.has_slot(false) {
                let (name, limit) = (self.name(storage.id), site.limit(false));
                reasons.push(format!("{name} has {limit} of {limit} attempts out running, its site's limit"));
            }
        }
    }

    /// What goes to the same target before this subscription.
    fn bytes_before(&self, row: &Subscription, id: SubscriptionId) -> u128 {
        let wishes = row.wants.iter().filter_map(|&want| {
            let want = &self.wants[want];
            Some((want.lane, *want.demands.get(id)?))
        });
        let lanes = &self.storages[row.target].target.lanes;
        let Some((lane, wish)) = wishes.min_by_key(|(lane, _)| lanes.level(*lane)) else { return 0 };
        let higher = lanes.same_or_higher(lane).filter(|(other, _)| *other != lane);
        let higher: u128 = higher.map(|(_, class)| class.bytes_left).sum();
        let others = self.subscriptions.iter().filter(|(other, other_row)| {
            **other != id
                && other_row.target == row.target
                && self.goes_before(other_row, **other, lane, (self.due(&wish, row), id))
        });
        higher + others.map(|(_, row)| row.bytes_left).sum::<u128>()
    }

    /// Whether another subscription of the same lane is due earlier. Its first want stands for all.
    fn goes_before(
        &self,
        row: &Subscription,
        id: SubscriptionId,
        lane: usize,
        than: (Timestamp, SubscriptionId),
    ) -> bool {
        row.wants.first().is_some_and(|&want| {
            let want = &self.wants[want];
            let due = |wish| (self.due(wish, row), id);
            want.lane == lane && want.demands.get(id).is_some_and(|wish| due(wish) < than)
        })
    }

    fn finish_time(
        &self,
        row: &Subscription,
        id: SubscriptionId,
        progress: &SubscriptionProgress,
        now: Timestamp,
    ) -> (Timestamp, Timestamp, Basis) {
        let estimate = self.target_rate(row.target, progress);
        let site = self.sites[self.storages[row.target].site].info.as_ref();
        let limit =
            site.and_then(|info| info.limits.in_bytes_per_s).map_or(f64::MAX, |limit| limit.max(1) as f64);
        let rate = estimate.bytes_per_s.clamp(1.0, limit.max(1.0));
        let bytes = row.bytes_left.saturating_sub(progress.bytes_arrived) + self.bytes_before(row, id);
        let rate = self.entitled_rate(row, rate, bytes);
        let pace =
            self.knowledge.intake_rate(self.storages[row.target].id).files_per_s.max(FILES_PER_S_DEFAULT);
        let seconds = (bytes as f64 / rate).max(row.files_left as f64 / pace);
        // The longer it takes, the more the ups and downs even out; what remains is that the rate itself
        // changes.
        let spread = estimate.spread / (1.0 + seconds / 60.0).sqrt() + RATE_SPREAD_MIN;
        let at = |seconds: f64| now + Duration::from_secs_f64(seconds.clamp(0.0, 3e9));
        (at(seconds), at(seconds * (NORMAL_QUANTILE_90 * spread).exp()), estimate.basis)
    }

    /// The rate at which `bytes` of an activity's turn will come, beside those of others: its share while
    /// they want something too; but when all that the target lacks is there, this is as well.
    fn entitled_rate(&self, row: &Subscription, rate: f64, bytes: u128) -> f64 {
        let Some(&want) = row.wants.first() else { return rate };
        let lanes = &self.storages[row.target].target.lanes;
        let part = lanes.entitled_fraction(self.wants[want].lane, &self.parties);
        let all: u128 = lanes.iter().map(|class| class.bytes_left).sum();
        let of_all = bytes as f64 / (all.max(1) as f64);
        rate * part.max(of_all).clamp(1e-6, 1.0)
    }

    /// What a target will take in: as measured, else as its best usable source is expected to give.
    fn target_rate(&self, target: u32, progress: &SubscriptionProgress) -> Estimate {
        let now = self.clock.now();
        let id = self.storages[target].id;
        if let Some(total) = self.knowledge.end_rate(id, true, now) {
            return total;
        }
        let rates = progress
            .sources
            .keys()
            .map(|&source| self.knowledge.rate(Link { source: self.storages[source].id, target: id }, now));
        let best = rates.max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
        best.unwrap_or_else(|| self.knowledge.rate(Link { source: StorageId(u64::MAX), target: id }, now))
    }

    // ---- lists and counts ----------------------------------------------------------------------------

    /// Every link over which something was leased since the start.
    pub fn links(&self, now: Timestamp) -> Vec<LinkStatus> {
        let now = self.clock.steady_time(now);
        let mut links = Vec::new();
        for &target in self.storage_of.values() {
            for (source, state) in self.storages[target].target.links.iter() {
                let link = Link { source: self.storages[source].id, target: self.storages[target].id };
                links.push(LinkStatus {
                    source: link.source,
                    target: link.target,
                    leased_files: state.files,
                    leased_bytes: u64::try_from(state.bytes).unwrap_or(u64::MAX),
                    concurrency: state.concurrency_limit(self.settings.lease_files_always),
                    concurrency_reason: state.explain_concurrency(self.settings.lease_files_always),
                    rate_now: self.knowledge.rate_now(link, now),
                    rate_expected: self.knowledge.rate(link, now).bytes_per_s,
                    failure_share: self.knowledge.failure_share(link, now),
                });
            }
        }
        links.sort_unstable_by_key(|link| (link.source, link.target));
        links
    }

    /// What waits for each source of a target. Which file comes from where is decided late: all that the
    /// target lacks is divided as what is leased now.
    pub fn link_backlogs(&self, target: StorageId, now: Timestamp) -> Vec<LinkBacklog> {
        let now = self.clock.steady_time(now);
        let Some(&index) = self.storage_of.get(&target) else { return Vec::new() };
        let row = &self.storages[index].target;
        let lacks: u128 = row.lanes.iter().map(|class| class.bytes_left).sum();
        let leased: u128 = row.links.values().map(|link| link.bytes).sum();
        let used = row.links.iter().filter(|(_, link)| link.bytes > 0);
        let ahead = used.map(|(source, link)| {
            let source = self.storages[source].id;
            LinkBacklog {
                source,
                bytes: u64::try_from(lacks.saturating_mul(link.bytes) / leased.max(1)).unwrap_or(u64::MAX),
                plain_expected: self.knowledge.best_effort_rate(Link { source, target }, now).bytes_per_s,
            }
        });
        let mut ahead: Vec<LinkBacklog> = ahead.collect();
        ahead.extend(self.circuit_backlogs(index));
        ahead
    }

    /// What waits for a circuit of a link, where nothing of it goes the plain way.
    fn circuit_backlogs(&self, target: u32) -> impl Iterator<Item = LinkBacklog> {
        let lanes = self.storages[target].target.lanes.classes_by_party();
        let mut waits: BTreeMap<StorageId, u64> = BTreeMap::new();
        for (_, class) in lanes.filter(|(party, _)| self.only_by_circuit(*party)) {
            let bytes = u64::try_from(class.bytes_left).unwrap_or(u64::MAX);
            let sources = class.sources.iter().map(|(source, _)| *source);
            for source in sources.filter(|source| !self.goes_by_circuit(*source, target)) {
                let sum = waits.entry(self.storages[source].id).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        waits.into_iter().map(|(source, bytes)| LinkBacklog { source, bytes, plain_expected: 1.0 })
    }

    /// What a target lacks, by whose it is and how urgent: what is leased, what waits, and what nobody has
    /// asked for yet.
    pub fn missing_bytes(&self, target: StorageId) -> Vec<MissingBytes> {
        let Some(&index) = self.storage_of.get(&target) else { return Vec::new() };
        let lanes = &self.storages[index].target.lanes;
        let lacking = lanes.iter().enumerate().filter(|(_, class)| class.bytes_left > 0);
        let row = |(lane, class): (usize, &Class)| MissingBytes {
            party: self.parties.party(lanes.party(lane)).clone(),
            priority: u8::try_from(lanes.level(lane) + 1).unwrap_or(u8::MAX),
            bytes: u64::try_from(class.bytes_left).unwrap_or(u64::MAX),
        };
        lacking.map(row).collect()
    }

    pub fn counts(&self) -> Counts {
        let all = self.storage_of.values().map(|&index| self.counts_at(index));
        all.fold(Counts::default(), |sum, one| Counts {
            queued: sum.queued + one.queued,
            in_backoff: sum.in_backoff + one.in_backoff,
            parked: sum.parked + one.parked,
            leased: sum.leased + one.leased,
            started: sum.started + one.started,
            queued_bytes: sum.queued_bytes.saturating_add(one.queued_bytes),
            leased_bytes: sum.leased_bytes.saturating_add(one.leased_bytes),
        })
    }

    pub fn counts_of(&self, target: StorageId) -> Counts {
        self.storage_of.get(&target).map(|&index| self.counts_at(index)).unwrap_or_default()
    }

    fn counts_at(&self, index: u32) -> Counts {
        let row = &self.storages[index].target;
        let bytes: u128 = row.lanes.iter().map(|class| class.queued_bytes).sum();
        Counts {
            queued: row.lanes.iter().map(|class| u64::from(class.queued)).sum(),
            in_backoff: u64::from(row.in_backoff),
            parked: u64::from(row.parked),
            leased: row.leased.len() as u64,
            started: u64::from(row.started),
            queued_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            leased_bytes: u64::try_from(row.leased_bytes).unwrap_or(u64::MAX),
        }
    }

    /// Transfers in memory in the order of their ids, after `after`; of one subscription if given.
    pub fn transfers(
        &self,
        subscription: Option<SubscriptionId>,
        after: Option<TransferId>,
        limit: usize,
    ) -> Vec<TransferStatus> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let Some(subscription) = subscription else {
            let rows = self.by_id.range((from, Bound::Unbounded)).take(limit);
            return rows.map(|(_, &index)| self.transfer_now(index)).collect();
        };
        let Some(row) = self.subscriptions.get(&subscription) else { return Vec::new() };
        let indexes = row.wants.iter().flat_map(|&want| self.wants[want].transfers.iter().copied());
        let mut ids: Vec<(TransferId, u32)> = indexes
            .map(|index| (self.transfers[index].id, index))
            .filter(|(id, _)| after.is_none_or(|after| *id > after))
            .collect();
        ids.sort_unstable();
        ids.into_iter().take(limit).map(|(_, index)| self.transfer_now(index)).collect()
    }

    pub fn transfer(&self, transfer: TransferId) -> Option<TransferStatus> {
        self.by_id.get(&transfer).map(|&index| self.transfer_now(index))
    }

    fn transfer_now(&self, index: u32) -> TransferStatus {
        let transfer = &self.transfers[index];
        TransferStatus {
            transfer: transfer.id,
            file: transfer.file,
            target: self.storages[transfer.target].id,
            size: transfer.size,
            attempts: transfer.tries,
            leased: transfer.lease().map(|lease| LeaseStatus {
                attempt: lease.attempt,
                source: self.storages[lease.source].id,
                started: lease.started,
                bytes_done: lease.bytes_done,
            }),
        }
    }
}

fn describe_files(files: u64) -> String {
    if files == 1 { "1 file".to_owned() } else { format!("{} files", units::count(files)) }
}

fn describe_sourceless(files: u64, fault: Option<&Fault>) -> String {
    let last = fault.map_or_else(String::new, |fault| format!("; the last failure: {fault}"));
    format!("{} without a usable replica anywhere{last}", describe_files(files))
}

fn describe_failed(files: u64, fault: Option<&Fault>) -> String {
    let last = fault.map_or_else(String::new, |fault| format!(": {fault}"));
    format!("{} failed for good and must be asked for again{last}", describe_files(files))
}
