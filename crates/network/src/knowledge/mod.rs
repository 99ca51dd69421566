//! State of the network: estimates of all links, paths and ends, and the questions asked of it.
//!
//! Here: what the state is, and how our own transfers update it. Elsewhere: observations of others
//! (`observe`), priors (`prior`), persistence (`snapshot`).

mod changes;
mod circuits;
mod degradations;
mod estimate;
mod forecast;
mod link;
mod observe;
mod own_limits;
mod prior;
mod reachability;
mod report;
mod site_pairs;
mod snapshot;
#[cfg(test)]
mod tests;
mod what_if;

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_model::{Blame, SiteId, StorageId, Timestamp};
use serde::{Deserialize, Serialize};

pub use estimate::{AttemptEnd, Basis, Estimate, Link, RateSummary};
pub use forecast::{Backlog, Forecast, Work};
pub use link::IntakeRate;
pub(crate) use link::{LinkState, StorageEndState};
pub(crate) use observe::{PathKey, Uplink};
pub use own_limits::OwnLimits;
pub use report::{Bottleneck, LinkReport, PathReport};
pub use what_if::{WHAT_IF_FILE_BYTES, WHAT_IF_QUERIES_MAX, WhatIfAnswer, WhatIfQuery};

use crate::calibration::Calibration;
use crate::change::ChangeLog;
use crate::concurrency_curve::ConcurrencyCurve;
use crate::goodput_meter::Sample;
use crate::path_state::PathState;
use crate::topology::{Locality, RegionId, Topology};
use crate::window_aggregator::AggregatedWindow;
use circuits::CircuitStates;
use observe::RecentIds;
use prior::{EffectEwma, LocalityEffects};
use snapshot::KnowledgeSnapshot;

/// Links remembered: all pairs of 300 storages. Beyond it, the least recently used are evicted.
pub const LINKS_MAX: usize = 90_000;
/// Seconds of observation that the prior of a link weighs.
const PRIOR_WEIGHT: f64 = 1.0;
/// Variance of log(rate) of the prior within a deployment: a factor of 2 either way.
const PRIOR_VARIANCE: f64 = 0.3;
/// Variance of log(rate) when nothing was ever measured: a factor of 4 either way.
const ASSUMED_VARIANCE: f64 = 1.2;
/// 90 % quantile of the standard normal distribution.
const NORMAL_QUANTILE_90: f64 = 1.2816;
/// An end is busy from this share of its usual total.
const END_BUSY_SHARE: f64 = 0.7;
/// Its other links keep an end busy if it yields this many times the link's rate.
const OTHER_LINKS_FACTOR: f64 = 1.3;
/// Weight of a low rate measured meanwhile: believed only if it persists.
const SHARED_END_WEIGHT: f64 = 0.1;
/// A rate measured longer ago than this is not current.
const RATE_NOW_AGE_S_MAX: f64 = 15.0;

/// The network state. Serialises without attempts under way: after a restart they begin anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "KnowledgeSnapshot", into = "KnowledgeSnapshot")]
pub struct Knowledge {
    topology: Topology,
    /// Each on the path it uses now.
    links: BTreeMap<Link, LinkState>,
    circuits: CircuitStates,
    sources: BTreeMap<StorageId, StorageEndState>,
    targets: BTreeMap<StorageId, StorageEndState>,
    pairs: BTreeMap<(Locality, Locality), EffectEwma>,
    localities: BTreeMap<Locality, LocalityEffects>,
    regions: BTreeMap<(RegionId, RegionId), EffectEwma>,
    all: EffectEwma,
    /// Concurrency curve of a typical link, for links without their own.
    typical_curve: ConcurrencyCurve,
    paths: BTreeMap<PathKey, PathState>,
    uplinks: BTreeMap<SiteId, Uplink>,
    recent_ids: RecentIds,
    changes: ChangeLog,
    calibration: Calibration,
    /// Router addresses by digest.
    router_addresses: BTreeMap<u32, IpAddr>,
    /// Not persisted: the scheduler sets them again.
    own_limits: OwnLimits,
    /// Not persisted: probes report it again.
    unreachable_pairs: reachability::UnreachablePairs,
}

impl Knowledge {
    /// Sets the site of a storage; may be repeated.
    pub fn set_storage_site(&mut self, storage: StorageId, site: SiteId) {
        self.add_site(site);
        self.topology.storages.insert(storage, site);
    }

    /// Adds a site.
    pub fn add_site(&mut self, site: SiteId) {
        self.topology.sites.entry(site).or_default();
    }

    /// Adds a site with its region.
    pub fn set_site_region(&mut self, site: SiteId, region: RegionId) {
        self.topology.sites.insert(site, region);
    }

    /// Records that an attempt over the link got its lease.
    pub fn attempt_began(&mut self, link: Link, now: Timestamp) {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&link) {
            self.evict_unused_links();
        }
        let ends =
            [self.sources.entry(link.source).or_default(), self.targets.entry(link.target).or_default()];
        let state = self.links.entry(link).or_default();
        let first = u32::from(state.meter.active() == 0);
        state.endpoint_counters.count([ends[0].moved, ends[1].moved], first == 0);
        state.meter.attempt_began(now);
        for end in ends {
            end.meter.attempt_began(now);
            end.links += first;
        }
    }

    /// Bytes that the ends of a link moved since the start.
    fn end_bytes_moved(&self, link: Link) -> [u64; 2] {
        [self.sources.get(&link.source), self.targets.get(&link.target)]
            .map(|end| end.map_or(0, |end| end.moved))
    }

    /// Records bytes of a running attempt.
    pub fn bytes_arrived(&mut self, link: Link, bytes: u64, now: Timestamp) {
        self.record_bytes(link, bytes, 0, now);
    }

    /// Records the end of an attempt, with `bytes` not reported by [`Knowledge::bytes_arrived`] yet.
    pub fn attempt_ended(&mut self, link: Link, bytes: u64, end: AttemptEnd, now: Timestamp) {
        if bytes > 0 || end == AttemptEnd::Arrived {
            self.record_bytes(link, bytes, u32::from(end == AttemptEnd::Arrived), now);
        } else if matches!(end, AttemptEnd::Failed(_)) {
            self.discard_silence(link, now);
        }
        let mut last = false;
        if let Some(state) = self.links.get_mut(&link) {
            last = state.meter.active() == 1;
            state.meter.attempt_ended(now);
            match end {
                AttemptEnd::Arrived => state.failures.count(None, now),
                AttemptEnd::Failed(blame) => state.failures.count(Some(blame), now),
                AttemptEnd::Void => {}
            }
        }
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        for end in ends.into_iter().flatten() {
            end.meter.attempt_ended(now);
            end.links = end.links.saturating_sub(u32::from(last));
        }
    }

    fn record_bytes(&mut self, link: Link, bytes: u64, files: u32, now: Timestamp) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        let moved = ends.map(|end| {
            let Some(end) = end else { return 0 };
            end.moved = end.moved.wrapping_add(bytes);
            if let Some(sample) = end.meter.record_arrival(bytes, files, now) {
                end.total.observe(sample.bytes_per_s, sample.weight, now);
                end.intake.observe(sample);
            }
            end.moved
        });
        state.endpoint_counters.count(moved, state.meter.active() > 0);
        let sample = state.meter.record_arrival(bytes, files, now);
        let ends = if sample.is_some() { state.endpoint_counters.close() } else { [0.0; 2] };
        state.endpoint_counters.mark_arrival();
        if let Some(sample) = sample {
            self.window_measured(link, sample, ends, now);
        }
    }

    /// Drops the silence before a failure: it counts as a failure, not as a rate of zero, after which the
    /// link would not be tried again.
    fn discard_silence(&mut self, link: Link, now: Timestamp) {
        let moved = self.end_bytes_moved(link);
        if let Some(state) = self.links.get_mut(&link) {
            state.endpoint_counters.count(moved, state.meter.active() > 0);
            state.endpoint_counters.discard_silence();
            state.meter.discard_silence(now);
        }
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        ends.into_iter().flatten().for_each(|end| end.meter.discard_silence(now));
    }

    /// Observes a window of the link, in which its ends moved so many bytes.
    fn window_measured(&mut self, link: Link, mut sample: Sample, ends: [f64; 2], now: Timestamp) {
        let rate = sample.bytes_per_s;
        let telling = self.informativeness(link, rate, ends.map(|bytes| bytes / sample.seconds), now);
        sample.weight *= telling;
        let on_circuit = self.circuits.contains(link);
        let per_s = ends.map(|bytes| bytes / sample.seconds);
        if self.explained_by_limit(link, [rate, per_s[0], per_s[1]], now).is_some()
            && let Some(state) = self.links.get_mut(&link)
        {
            state.rate_last = rate as f32;
            return state.observe_limited_window(&sample, now);
        }
        let expected = match on_circuit {
            true => self.posterior(link, now).mean,
            false => self.learn(link, rate.max(1.0).ln(), sample.weight, now),
        };
        if sample.informative && telling == 1.0 && !on_circuit {
            self.typical_curve.observe(sample.files, rate.max(1.0) / expected.exp(), sample.seconds, now);
        }
        let Some(state) = self.links.get_mut(&link) else { return };
        state.rate_last = rate as f32;
        let alarm = state.observe_window(&sample, telling == 1.0, now);
        let whole = state.aggregate(&sample, ends);
        let alarm = alarm.or(whole.and_then(|whole| {
            let share = self.fair_share(link, &whole);
            self.links.get_mut(&link)?.detect_change(&whole, share, now)
        }));
        if let Some(alarm) = alarm {
            self.link_changed(link, rate, alarm, now);
        }
    }

    /// Fair share of the link in an end that others kept busy, by links or by files, whichever is less. None
    /// if its ends had room.
    fn fair_share(&self, link: Link, whole: &AggregatedWindow) -> Option<f64> {
        let own = f64::from(self.links.get(&link)?.meter.active());
        let states = [self.sources.get(&link.source), self.targets.get(&link.target)];
        let shares = states.into_iter().zip(whole.ends_per_s).filter_map(|(end, total)| {
            let end = end?;
            let part = (own / f64::from(end.meter.active().max(1))).min(1.0 / f64::from(end.links.max(1)));
            let busy = total > OTHER_LINKS_FACTOR * whole.bytes_per_s
                && total >= END_BUSY_SHARE * end.total.mean().exp();
            (busy && part < 1.0).then_some(total * part)
        });
        shares.reduce(f64::min)
    }

    /// Weight of a measurement. A low rate while an end was fully used by other links only shows that the end
    /// took turns.
    fn informativeness(&self, link: Link, rate: f64, ends: [f64; 2], now: Timestamp) -> f64 {
        let states = [self.sources.get(&link.source), self.targets.get(&link.target)];
        let elsewhere = states.into_iter().zip(ends).any(|(end, total)| {
            let usual = end.map_or(0.0, |end| end.total.mean().exp());
            total > OTHER_LINKS_FACTOR * rate && total >= END_BUSY_SHARE * usual
        });
        if elsewhere && rate < self.rate(link, now).bytes_per_s { SHARED_END_WEIGHT } else { 1.0 }
    }

    /// Estimated rate of the link.
    pub fn rate(&self, link: Link, now: Timestamp) -> Estimate {
        self.posterior(link, now).estimate()
    }

    /// Rate, basis, failure share and current goodput in one lookup, since the selection of sources asks so
    /// often.
    pub fn rate_summary(&self, link: Link, now: Timestamp) -> RateSummary {
        let state = self.links.get(&link);
        let believed = self.posterior_of(state, link, now);
        RateSummary {
            bytes_per_s: believed.mean.exp(),
            basis: believed.basis,
            failure_share: self.failure_share_of(state, link, now),
            rate_now: rate_now_of(state, now),
        }
    }

    /// Total rate of all links out of (`into` false) or into a storage; none if never measured.
    pub fn end_rate(&self, storage: StorageId, into: bool, now: Timestamp) -> Option<Estimate> {
        let ends = if into { &self.targets } else { &self.sources };
        let total = ends.get(&storage)?.total;
        let prior = prior::Prior { mean: total.mean(), variance: PRIOR_VARIANCE, basis: Basis::Measured };
        (total.weight_at(now) > 1e-3).then(|| prior.updated_by(&total, now).estimate())
    }

    /// Recent intake of a target.
    pub fn intake_rate(&self, target: StorageId) -> IntakeRate {
        self.targets.get(&target).map(|state| state.intake).unwrap_or_default()
    }

    /// Share of recent attempts over the link that failed by its source or the network, smoothed while they
    /// are few; at least the expected share where probes get no answer.
    pub fn failure_share(&self, link: Link, now: Timestamp) -> f64 {
        self.failure_share_of(self.links.get(&link), link, now)
    }

    fn failure_share_of(&self, state: Option<&LinkState>, link: Link, now: Timestamp) -> f64 {
        let failed = state.map_or(0.0, |state| state.failures.link_share(now));
        if self.is_unreachable(link, now) {
            failed.max(reachability::UNREACHABLE_FAILURE_SHARE)
        } else {
            failed
        }
    }

    /// Expected shares of failures by blame, in the order of [`Blame::ALL`]; includes those that say nothing
    /// of the link, such as a full target.
    pub fn failure_shares(&self, link: Link, now: Timestamp) -> [f64; Blame::ALL.len()] {
        let mut shares = self
            .links
            .get(&link)
            .map_or([0.0; Blame::ALL.len()], |state| state.failures.shares_by_blame(now));
        if self.is_unreachable(link, now)
            && let Some(share) = shares.get_mut(Blame::Network as usize)
        {
            *share = share.max(reachability::UNREACHABLE_FAILURE_SHARE);
        }
        shares
    }

    /// Last measured goodput of a link with work.
    pub fn rate_now(&self, link: Link, now: Timestamp) -> f64 {
        rate_now_of(self.links.get(&link), now)
    }

    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.links.keys().copied()
    }

    /// Evicts an eighth at once, so that the sweep is rare.
    fn evict_unused_links(&mut self) {
        let mut idle: Vec<(Timestamp, Link)> = self
            .links
            .iter()
            .filter(|(_, state)| state.meter.active() == 0)
            .map(|(&link, state)| (state.fast.last(), link))
            .collect();
        idle.sort_unstable();
        for (_, link) in idle.into_iter().take(LINKS_MAX / 8) {
            self.links.remove(&link);
        }
    }
}

fn rate_now_of(state: Option<&LinkState>, now: Timestamp) -> f64 {
    match state {
        Some(state) if state.meter.active() > 0 && state.fast.age(now).as_secs_f64() < RATE_NOW_AGE_S_MAX => {
            f64::from(state.rate_last)
        }
        _ => 0.0,
    }
}
