//! Queries about the present state: expected completion, what delays it, what is in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use longhaul_model::{StorageId, SubscriptionId, Timestamp, TransferId, units};
use longhaul_network::{Estimate, Link};

use crate::decision::Unusable;
use crate::dispatch::TargetUnusable;
use crate::explain::{describe_attempts, describe_bytes, describe_files, describe_unusable};
use crate::limits::LimitScope;
use crate::obstacles::DeliveryStatus;
use crate::query::{
    Counts, LeaseStatus, LinkBacklog, LinkStatus, MissingBytes, Outlook, StuckFiles, TransferStatus,
};
use crate::scheduler::Scheduler;
use crate::settings::REASONS_MAX;
use crate::state::{Class, Subscription};

/// Minimum spread of a rate: the future is not the past. This and the next constant, with those of
/// `arrival_history`, keep nine in ten promises of 200 random deployments of each kind of trouble
/// (`cargo xtask soak forecasts`): 93 to 95 % under limits and with a bad file, 88 % where a source dies.
const RATE_SPREAD_MIN: f64 = 0.015;
/// What is left of the spread of a link's rate in the rate of a whole subscription.
const MEAN_SPREAD_SHARE: f64 = 0.5;
/// The 90 % quantile of the standard normal distribution.
pub(crate) const NORMAL_QUANTILE_90: f64 = 1.2816;
/// Rate for files without bytes while nothing is known about the pace of files.
const FILES_PER_S_DEFAULT: f64 = 500.0;

/// Silence no longer than this is the normal rhythm of reports and of the ends of files.
const SILENCE_S_USUAL: f64 = 5.0;
/// After a longer silence nobody can say when it ends.
const SILENCE_S_MAX: f64 = 600.0;
/// How much longer a silence lasts is distributed as its length so far (Pareto, with an exponent of one): in
/// half of the cases it is over after as much time again, in nine of ten after this many times as much.
const SILENCE_FACTOR_90: f64 = 9.0;
/// A limit of this share of what would come without it is told.
const BINDING_LIMIT_SHARE_MIN: f64 = 1.2;

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
        let steady = self.clock.steady_time(now);
        let status = self.delivery_status(row, steady);
        let obstacles = self.describe_obstacles(row, &status, now);
        let silence = silence_s(row, &status, steady);
        let mut outlook = Outlook { expedited: row.expedited, ..Outlook::default() };
        outlook.why_none = self.why_no_forecast(row, &status, &obstacles, silence);
        if outlook.why_none.is_none() {
            if status.stuck_files > 0 {
                let why = obstacles.join("; ");
                outlook.stuck = Some(StuckFiles { files: status.stuck_files, why });
            }
            let work = self.remaining_work(row, subscription, &status, steady);
            let (median, ninety) = work.finish(silence, now);
            outlook.rests_on = Some(work.estimate.basis.describe());
            (outlook.median, outlook.ninety) = (Some(median), Some(ninety));
            outlook.held_up_by.extend(self.describe_silence(&status, silence));
            outlook.held_up_by.extend(work.binding_limit);
            outlook.held_up_by.extend(obstacles);
        }
        self.add_delays(row, subscription, &status, steady, &mut outlook.held_up_by);
        outlook.held_up_by.retain(|reason| Some(reason) != outlook.why_none.as_ref());
        outlook.held_up_by.truncate(REASONS_MAX);
        outlook
    }

    fn why_no_forecast(
        &self,
        row: &Subscription,
        status: &DeliveryStatus,
        obstacles: &[String],
        silence: f64,
    ) -> Option<String> {
        let target = &self.storages[row.target].target;
        if status.stuck_files >= row.files_left && !obstacles.is_empty() {
            return Some(obstacles.join("; "));
        }
        if status.known == 0 && target.leased.is_empty() {
            return Some("its files have not been looked up yet".to_owned());
        }
        if silence > SILENCE_S_MAX {
            return self.describe_silence(status, silence);
        }
        None
    }

    fn describe_silence(&self, status: &DeliveryStatus, silence: f64) -> Option<String> {
        if silence <= SILENCE_S_USUAL {
            return None;
        }
        let sources: Vec<String> =
            status.leased_sources.iter().map(|&source| self.name(self.storages[source].id)).collect();
        let length = units::duration(Duration::from_secs_f64(silence));
        Some(match sources.as_slice() {
            [] => format!("nothing has come for {length}: its attempts fail"),
            sources => format!(
                "nothing has come for {length}, though {} from {} {} under way",
                describe_files(status.leased),
                sources.join(" and "),
                if status.leased == 1 { "is" } else { "are" }
            ),
        })
    }

    fn add_delays(
        &self,
        row: &Subscription,
        id: SubscriptionId,
        status: &DeliveryStatus,
        now: Timestamp,
        reasons: &mut Vec<String>,
    ) {
        let fault = status.fault.as_ref();
        if let Some(full @ TargetUnusable::AttemptsInFull { .. }) = self.target_unusable(row.target, now) {
            reasons.push(self.describe_target_unusable(row.target, full, self.clock.caller_time(now)));
        }
        if status.relayed > 0 {
            let come = units::plural(status.relayed, "file comes", "files come");
            reasons.push(format!("{come} over other storages: no source has a link to the target"));
        }
        if status.in_backoff > 0 {
            let wait = units::plural(status.in_backoff, "file waits", "files wait");
            let last = fault.map_or_else(String::new, |fault| format!("; the last failure: {fault}"));
            reasons.push(format!("{wait} for the next try{last}"));
        }
        let ahead = self.bytes_before(row, id);
        if ahead > 0 {
            let target = self.name(self.storages[row.target].id);
            reasons.push(format!(
                "{} of older or more urgent subscriptions go first to {target}",
                describe_bytes(ahead)
            ));
        }
        self.add_source_delays(row, status, now, reasons);
    }

    /// Limits in use at its sources, and sources that cannot be used while others can.
    fn add_source_delays(
        &self,
        row: &Subscription,
        status: &DeliveryStatus,
        now: Timestamp,
        reasons: &mut Vec<String>,
    ) {
        let Some(party) = row.wants.first().map(|&want| self.wants[want].party) else { return };
        for (&source, &files) in &status.sources {
            let storage = &self.storages[source];
            let (name, files) = (self.name(storage.id), describe_files(files));
            match self.unusable(source, row.target, party, now) {
                Some(Unusable::ActiveOut { limit }) if limit > 0 => {
                    let attempts = describe_attempts(limit);
                    reasons.push(format!("{name} has {limit} of {attempts} out running, its site's limit"));
                }
                None | Some(Unusable::WindowFull { .. }) => {}
                Some(why) if status.stuck_files == 0 || !status.blocked_sources.contains(&source) => {
                    let why = describe_unusable(self.to_caller_times(why));
                    reasons.push(format!("{name} {why} ({files} could come from there)"));
                }
                Some(_) => {}
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

    /// What is to come, and at what rate.
    fn remaining_work(
        &self,
        row: &Subscription,
        id: SubscriptionId,
        status: &DeliveryStatus,
        now: Timestamp,
    ) -> RemainingWork {
        let estimate = self.target_rate(row.target, status);
        let limit = self.rate_limit(row, status);
        let rate = limit.as_ref().map_or(estimate.bytes_per_s, |limit| limit.rate.min(estimate.bytes_per_s));
        let gone = status.bytes_arrived + status.stuck_bytes;
        let bytes = row.bytes_left.saturating_sub(gone);
        let ahead = self.bytes_before(row, id);
        let rate = self.entitled_rate(row, rate.max(1.0), bytes + ahead);
        let pace =
            self.knowledge.intake_rate(self.storages[row.target].id).files_per_s.max(FILES_PER_S_DEFAULT);
        let files = row.files_left.saturating_sub(status.stuck_files);
        let expected = ((bytes + ahead) as f64 / rate).max(files as f64 / pace);
        // What came lately says more of the subscription, as long as it was not the turn of others.
        let own_part = (1.0 - ahead as f64 / (bytes as f64).max(1.0)).max(0.0);
        let own = row.arrivals.rate(now).map(|(rate, trust)| (bytes as f64 / rate, trust * own_part));
        let (seconds, differs, trust) = match own {
            Some((own, trust)) if own > 0.0 && expected > 0.0 => {
                let log_ratio = (own / expected).ln();
                (expected * (trust * log_ratio).exp(), log_ratio.abs(), trust)
            }
            _ => (expected, 0.0, 0.0),
        };
        // The longer it takes, the more the ups and downs even out; what remains is that the rate itself
        // changes.
        let evened = MEAN_SPREAD_SHARE * estimate.spread / (1.0 + seconds / 60.0).sqrt();
        // Independent of each other, they add as variances do.
        let spread = (1.0 - trust) * evened.hypot(differs) + RATE_SPREAD_MIN;
        let binding = limit
            .filter(|limit| estimate.bytes_per_s * BINDING_LIMIT_SHARE_MIN >= limit.rate)
            .map(|limit| limit.words);
        RemainingWork { seconds, spread, estimate, binding_limit: binding }
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

    /// What a target will take in: as measured, but no more than its usable sources may be expected to give.
    fn target_rate(&self, target: u32, status: &DeliveryStatus) -> Estimate {
        let now = self.clock.now();
        let id = self.storages[target].id;
        let usable = status.sources.keys().filter(|source| !status.blocked_sources.contains(source));
        let sources: BTreeSet<u32> = usable.chain(&status.leased_sources).copied().collect();
        let rates = sources
            .iter()
            .map(|&source| self.knowledge.rate(Link { source: self.storages[source].id, target: id }, now));
        let rates: Vec<Estimate> = rates.collect();
        if let Some(total) = self.knowledge.end_rate(id, true, now) {
            let possible: f64 = rates.iter().map(|rate| rate.high).sum();
            let most = if rates.is_empty() { f64::MAX } else { possible };
            return Estimate { bytes_per_s: total.bytes_per_s.min(most), ..total };
        }
        let best = rates.into_iter().max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
        best.unwrap_or_else(|| self.knowledge.rate(Link { source: StorageId(u64::MAX), target: id }, now))
    }

    /// The least of the limits that administrators set on what can come, and which it is.
    fn rate_limit(&self, row: &Subscription, status: &DeliveryStatus) -> Option<RateLimit> {
        let target = self.name(self.storages[row.target].id);
        let site_limit = |storage: u32, inward: bool| {
            let site = self.storages[storage].site;
            let (scope, direction) = match inward {
                true => (LimitScope::IntoSite(site), "takes in"),
                false => (LimitScope::OutOfSite(site), "gives out"),
            };
            let limit = self.limits.rate(&scope)?.max(1) as f64;
            let name = &self.sites[site].info.as_ref()?.name;
            let words = format!("site {name} {direction} {} at most, its limit", units::rate(limit));
            Some(RateLimit { rate: limit, words })
        };
        let into = self.limits.rate(&LimitScope::Into(row.target)).map(|limit| RateLimit {
            rate: limit.max(1) as f64,
            words: format!("{target} takes in {} at most, its limit", units::rate(limit as f64)),
        });
        let community = row.wants.first().and_then(|&want| {
            let community = self.parties.community(self.wants[want].party);
            let limit = self.limits.rate(&LimitScope::Community(community))?;
            let name = &self.parties.party(self.wants[want].party).community;
            let words = format!("{name} moves {} at most, its limit", units::rate(limit as f64));
            Some(RateLimit { rate: limit.max(1) as f64, words })
        });
        let sources: BTreeSet<u32> = status.sources.keys().chain(&status.leased_sources).copied().collect();
        let of_sources: Option<Vec<RateLimit>> = sources
            .iter()
            .map(|&source| {
                let name = self.name(self.storages[source].id);
                let own = [LimitScope::Out(source), LimitScope::Link(source, row.target)];
                let own = own.iter().filter_map(|scope| self.limits.rate(scope)).min();
                let own = own.map(|limit| RateLimit {
                    rate: limit.max(1) as f64,
                    words: format!("{name} sends {} at most, its limit", units::rate(limit as f64)),
                });
                RateLimit::least([own, site_limit(source, false)])
            })
            .collect();
        // Each of its sources is limited: together they give the sum.
        let of_sources = of_sources.filter(|limits| !limits.is_empty()).map(|limits| RateLimit {
            rate: limits.iter().map(|limit| limit.rate).sum(),
            words: limits
                .into_iter()
                .map(|limit| limit.words)
                .collect::<BTreeSet<String>>()
                .into_iter()
                .collect::<Vec<_>>()
                .join("; "),
        });
        RateLimit::least([site_limit(row.target, true), into, community, of_sources])
    }

    /// Counts bytes of a want for the subscriptions that it serves.
    pub(crate) fn record_arrival(&mut self, want: u32, bytes: u64, now: Timestamp) {
        for (subscription, _) in self.wants[want].demands.iter() {
            if let Some(row) = self.subscriptions.get_mut(&subscription) {
                row.arrivals.record(bytes, now);
            }
        }
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

/// A limit of administrators in bytes per second, and a sentence that names it.
struct RateLimit {
    rate: f64,
    words: String,
}

impl RateLimit {
    fn least(limits: impl IntoIterator<Item = Option<RateLimit>>) -> Option<RateLimit> {
        limits.into_iter().flatten().min_by(|one, other| one.rate.total_cmp(&other.rate))
    }
}

/// What of a subscription is to come, as long as something comes.
struct RemainingWork {
    seconds: f64,
    /// Standard deviation of the logarithm of the seconds.
    spread: f64,
    estimate: Estimate,
    binding_limit: Option<String>,
}

impl RemainingWork {
    /// The median, and the time by which it is there in nine of ten cases, after `silence` seconds without
    /// an arrival.
    fn finish(&self, silence: f64, now: Timestamp) -> (Timestamp, Timestamp) {
        let late = (silence - SILENCE_S_USUAL).max(0.0);
        let at = |seconds: f64| now + Duration::from_secs_f64(seconds.clamp(0.0, 3e9));
        let ninety = self.seconds * (NORMAL_QUANTILE_90 * self.spread).exp() + SILENCE_FACTOR_90 * late;
        (at(self.seconds + late), at(ninety))
    }
}

/// Seconds without an arrival while attempts ran or failed.
fn silence_s(row: &Subscription, status: &DeliveryStatus, now: Timestamp) -> f64 {
    let since = status.attempts_since.map(|since| since.max(row.arrivals.last().unwrap_or(since)));
    since.map_or(0.0, |since| now.since(since).as_secs_f64())
}
