//! Limits set by administrators: files at once, and bytes per second, of a link, of all that enters or leaves
//! a storage, and of a community; bytes per second into and out of a site; and links that carry only test
//! transfers until commissioned. (Files at once of a site: [`crate::state::Site`].)
//!
//! Rate limiting by the generic cell rate algorithm (virtual scheduling, ITU-T I.371), which equals a token
//! bucket: what is leased is charged, up to [`BURST_LENGTH`] of its time in advance, so that agents always
//! have work and many small files cost no wake-up each. A file that has begun is not slowed down.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::job::of_jobs;
use longhaul_model::{ActivityName, AttemptId, CommunityName, StorageId, Timestamp, units};
use longhaul_network::{Link, OwnLimits};
use serde::{Deserialize, Serialize};

use crate::decision::Unusable;
use crate::event::SiteLimits;
use crate::limit_states::LimitStates;
use crate::scheduler::{Scheduler, Timer};
use crate::shares::{Parties, Party};
use crate::state::{ActiveLease, Phase};

/// How far leases may run ahead of a rate limit; half of it is when waiting work is tried again.
const BURST_LENGTH: Duration = Duration::from_secs(1);
/// However slow a limit is, the time charged for one file is finite.
const FILE_TIME_MAX: Duration = Duration::from_secs(30 * 86_400);
/// The agents of a site divide its limits evenly among their sessions. So a file that takes hours under the
/// limit is charged for no longer than this, and files of other links and higher priority run beside it.
const SITE_FILE_TIME_MAX: Duration = Duration::from_secs(10);
/// Revoked leases whose agents may still report that the file arrived; beyond this the oldest are taken as
/// lost.
const REVOKED_LEASES_MAX: usize = 4_096;

/// None is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limit {
    /// Files leased at once.
    pub active: Option<u32>,
    pub bytes_per_s: Option<u64>,
}

impl Limit {
    pub fn is_none(&self) -> bool {
        *self == Limit::default()
    }
}

/// A source and a target; none is any. Of several that fit a link the most specific one counts: both ends,
/// then the source, then the target.
pub type Pattern = (Option<StorageId>, Option<StorageId>);

/// All limits, in place of what was said before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub links: Vec<((StorageId, StorageId), Limit)>,
    /// Limits of what enters a storage.
    pub into: Vec<(StorageId, Limit)>,
    /// Limits of what leaves a storage.
    pub out: Vec<(StorageId, Limit)>,
    pub communities: Vec<(CommunityName, Limit)>,
    /// Files at once on each link between end points of jobs that fits; besides what its own limit says.
    pub each_link_of_jobs: Vec<(Pattern, u32)>,
    /// Links that carry the work of `testers` only.
    pub uncommissioned: Vec<(StorageId, StorageId)>,
    pub testers: Option<CommunityName>,
    /// Work that goes by circuits only; the first rule that fits counts.
    pub circuits: Vec<CircuitRule>,
}

/// Whether the work of a community, or of all, waits for circuits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CircuitRule {
    pub community: Option<CommunityName>,
    /// None: any, and work without one.
    pub activity: Option<ActivityName>,
    pub only: bool,
}

impl CircuitRule {
    fn fits(&self, party: &Party) -> bool {
        self.community.as_ref().is_none_or(|community| *community == party.community)
            && (self.activity.is_none() || self.activity == party.activity)
    }
}

/// Scope of a limit: storages by index, communities by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitScope {
    Link(u32, u32),
    Into(u32),
    Out(u32),
    Community(u32),
    IntoSite(u32),
    OutOfSite(u32),
}

/// Kind of a limit, for explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LimitKind {
    Link,
    Into,
    Out,
    Community,
    IntoSite,
    OutOfSite,
}

impl LimitKind {
    /// In the order in which limits are named as the reason.
    pub(crate) const ALL: [LimitKind; 6] = [
        LimitKind::Link,
        LimitKind::Into,
        LimitKind::Out,
        LimitKind::Community,
        LimitKind::IntoSite,
        LimitKind::OutOfSite,
    ];
}

impl LimitScope {
    pub(crate) fn kind(self) -> LimitKind {
        match self {
            LimitScope::Link(..) => LimitKind::Link,
            LimitScope::Into(_) => LimitKind::Into,
            LimitScope::Out(_) => LimitKind::Out,
            LimitScope::Community(_) => LimitKind::Community,
            LimitScope::IntoSite(_) => LimitKind::IntoSite,
            LimitScope::OutOfSite(_) => LimitKind::OutOfSite,
        }
    }

    fn is_of_site(self) -> bool {
        matches!(self, LimitScope::IntoSite(_) | LimitScope::OutOfSite(_))
    }

    fn file_time_max(self) -> Duration {
        if self.is_of_site() { SITE_FILE_TIME_MAX } else { FILE_TIME_MAX }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LimitState {
    pub(crate) limit: Limit,
    /// When all that was leased is paid for: the theoretical arrival time of the algorithm.
    pub(crate) paid_until: Timestamp,
}

impl LimitState {
    #[inline]
    fn is_blocked(&self, now: Timestamp) -> bool {
        self.limit.bytes_per_s.is_some() && self.paid_until > now + BURST_LENGTH
    }

    /// None if open; otherwise when to try again.
    fn blocked_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.is_blocked(now).then(|| self.paid_until - BURST_LENGTH / 2)
    }

    fn time_for(&self, bytes: u64, scope: LimitScope) -> Duration {
        let rate = self.limit.bytes_per_s.unwrap_or(0).max(1);
        let seconds_max = scope.file_time_max().as_secs_f64();
        Duration::from_secs_f64((bytes as f64 / rate as f64).min(seconds_max))
    }
}

/// All limits with their use.
#[derive(Default)]
pub(crate) struct LimitTable {
    by_scope: LimitStates,
    each_link_of_jobs: BTreeMap<(Option<u32>, Option<u32>), u32>,
    uncommissioned: BTreeSet<(u32, u32)>,
    testers: Option<u32>,
    circuits: Vec<CircuitRule>,
    /// Leased files by the number of their community, whether it has a limit or not.
    active: Vec<u32>,
    /// Next wake-up of work that waits for a rate.
    timer: Option<Timestamp>,
    /// Revoked leases whose agents have not reported an end.
    revoked: BTreeMap<AttemptId, RevokedLease>,
    /// Incremented with each change: leases under former limits are neither charged nor refunded here.
    version: u32,
}

/// A revoked lease whose bytes were refunded on the assumption that they will not arrive.
#[derive(Clone, Copy)]
struct RevokedLease {
    source: u32,
    target: u32,
    community: u32,
    /// Bytes that stayed charged, as they had arrived before.
    counted: u64,
}

impl LimitTable {
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    pub(crate) fn has_closed_links(&self) -> bool {
        !self.uncommissioned.is_empty()
    }

    pub(crate) fn is_closed(&self, source: u32, target: u32) -> bool {
        self.uncommissioned.contains(&(source, target))
    }

    /// Whether the work of a party is there to test links.
    pub(crate) fn tests(&self, party: u32, parties: &Parties) -> bool {
        self.testers == Some(parties.community(party))
    }

    pub(crate) fn rate(&self, of: &LimitScope) -> Option<u64> {
        self.by_scope.get(*of)?.limit.bytes_per_s
    }

    fn job_link_limit(&self, source: u32, target: u32) -> Option<u32> {
        let patterns =
            [(Some(source), Some(target)), (Some(source), None), (None, Some(target)), (None, None)];
        patterns.iter().find_map(|pattern| self.each_link_of_jobs.get(pattern)).copied()
    }
}

impl Scheduler {
    pub(crate) fn limits_changed(&mut self, limits: Limits, now: Timestamp) {
        let mut gates = BTreeMap::new();
        for ((source, target), limit) in limits.links {
            let of = LimitScope::Link(self.storage_index(source), self.storage_index(target));
            gates.insert(of, limit);
        }
        for (storage, limit) in limits.into {
            gates.insert(LimitScope::Into(self.storage_index(storage)), limit);
        }
        for (storage, limit) in limits.out {
            gates.insert(LimitScope::Out(self.storage_index(storage)), limit);
        }
        for (name, limit) in limits.communities {
            gates.insert(LimitScope::Community(self.community_number(name)), limit);
        }
        let mut index = |storage: Option<StorageId>| storage.map(|storage| self.storage_index(storage));
        let patterns = limits.each_link_of_jobs.into_iter();
        let each =
            patterns.map(|((source, target), limit)| ((index(source), index(target)), limit)).collect();
        self.limits.each_link_of_jobs = each;
        let testers = limits.testers.map(|name| self.community_number(name));
        let pairs = limits.uncommissioned.into_iter();
        let closed: BTreeSet<(u32, u32)> =
            pairs.map(|(source, target)| (self.storage_index(source), self.storage_index(target))).collect();
        // What was leased under a former rate is paid for: a new one begins now.
        let former: Vec<LimitScope> = self.limits.by_scope.iter().map(|(scope, _)| scope).collect();
        for scope in former.into_iter().filter(|scope| !scope.is_of_site()) {
            self.limits.by_scope.remove(scope);
        }
        for (scope, limit) in gates {
            self.limits.by_scope.insert(scope, LimitState { limit, paid_until: now });
        }
        self.limits.version = self.limits.version.wrapping_add(1);
        self.limits.revoked.clear();
        let commissioning = closed != self.limits.uncommissioned || testers != self.limits.testers;
        self.limits.uncommissioned = closed;
        self.limits.testers = testers;
        self.limits.circuits = limits.circuits;
        self.limited_rates_changed();
        if commissioning {
            self.requeue_after_commissioning(now);
        }
        self.wake_all();
    }

    /// Sets the rates of a site. What was leased under a former rate is paid for, as for all limits.
    pub(crate) fn site_rates_changed(&mut self, site: u32, limits: SiteLimits, now: Timestamp) {
        let rates = [
            (LimitScope::IntoSite(site), limits.in_bytes_per_s),
            (LimitScope::OutOfSite(site), limits.out_bytes_per_s),
        ];
        for (scope, bytes_per_s) in rates {
            if self.limits.rate(&scope) == bytes_per_s {
                continue;
            }
            let limit = Limit { active: None, bytes_per_s };
            match bytes_per_s {
                Some(_) => self.limits.by_scope.insert(scope, LimitState { limit, paid_until: now }),
                None => self.limits.by_scope.remove(scope),
            };
            self.limits.version = self.limits.version.wrapping_add(1);
        }
    }

    /// Says which rates are bounded by limits, so that these are not taken for the network's.
    pub(crate) fn limited_rates_changed(&mut self) {
        self.subscriptions.values_mut().for_each(|row| row.arrivals.restart());
        let mut own = OwnLimits::default();
        let id = |storage: u32| self.storages[storage].id;
        let site_id = |site: u32| self.sites[site].info.as_ref().map(|info| info.id);
        for (scope, state) in self.limits.by_scope.iter() {
            let Some(limit) = state.limit.bytes_per_s.map(|limit| limit as f64) else { continue };
            match scope {
                LimitScope::Link(source, target) => {
                    own.links.insert(Link { source: id(source), target: id(target) }, limit);
                }
                LimitScope::Into(storage) => {
                    own.into_storage.insert(id(storage), limit);
                }
                LimitScope::Out(storage) => {
                    own.out_of_storage.insert(id(storage), limit);
                }
                LimitScope::IntoSite(site) => own.into_site.extend(site_id(site).map(|id| (id, limit))),
                LimitScope::OutOfSite(site) => own.out_of_site.extend(site_id(site).map(|id| (id, limit))),
                // A community's share of a link is not the link's rate.
                LimitScope::Community(_) => {}
            }
        }
        self.knowledge.set_own_limits(own);
    }

    fn community_number(&mut self, community: CommunityName) -> u32 {
        let party = self.parties.number(&Party { community, activity: None });
        self.parties.community(party)
    }

    /// Whether the work of a party may use a link at all: only test transfers use one that is not
    /// commissioned.
    pub(crate) fn commissioned(&self, source: u32, target: u32, party: u32) -> bool {
        if !self.limits.is_closed(source, target) {
            return true;
        }
        self.limits.tests(party, &self.parties)
    }

    /// Whether the work of a party waits for a circuit on a link. What copies between storages of others goes
    /// by one if it can.
    pub(crate) fn lacks_circuit(&self, source: u32, target: u32, party: u32) -> bool {
        self.only_by_circuit(party)
            && !of_jobs(self.storages[source].id.0)
            && !self.goes_by_circuit(source, target)
    }

    pub(crate) fn only_by_circuit(&self, party: u32) -> bool {
        if self.limits.circuits.is_empty() {
            return false;
        }
        let party = self.parties.party(party);
        self.limits.circuits.iter().find(|rule| rule.fits(party)).is_some_and(|rule| rule.only)
    }

    /// Whether files of a party may go from one storage to the other at once.
    pub(crate) fn may_link(&self, source: u32, target: u32, party: u32) -> bool {
        self.is_link(source, target) && self.commissioned(source, target, party)
    }

    /// Which limit keeps a file of a party from a link now. Asked of every source of every file that could be
    /// leased, so that the usual case, rates of sites alone or no limit at all, is decided in place.
    #[inline]
    pub(crate) fn limited(&self, source: u32, target: u32, party: u32, now: Timestamp) -> Option<Unusable> {
        let is_plain = self.limits.by_scope.kinds().are_of_sites() && !self.may_have_job_limit(source);
        if is_plain && !self.is_site_rate_reached(source, target, now) {
            return None;
        }
        self.limited_by_any(source, target, party, now)
    }

    #[inline]
    fn may_have_job_limit(&self, source: u32) -> bool {
        !self.limits.each_link_of_jobs.is_empty() && of_jobs(self.storages[source].id.0)
    }

    #[inline]
    fn is_site_rate_reached(&self, source: u32, target: u32, now: Timestamp) -> bool {
        let is_blocked = |of| self.limits.by_scope.get(of).is_some_and(|state| state.is_blocked(now));
        is_blocked(LimitScope::IntoSite(self.storages[target].site))
            || is_blocked(LimitScope::OutOfSite(self.storages[source].site))
    }

    #[inline(never)]
    fn limited_by_any(&self, source: u32, target: u32, party: u32, now: Timestamp) -> Option<Unusable> {
        if let Some(limit) = self.job_limit(source, target)
            && self.active_of(&LimitScope::Link(source, target)) >= limit
        {
            return Some(Unusable::LimitActive { of: LimitKind::Link, limit });
        }
        let community = self.parties.community(party);
        for kind in self.limits.by_scope.kinds() {
            let of = self.limit_scope(kind, source, target, community);
            let Some(gate) = self.limits.by_scope.get(of) else { continue };
            if let Some(limit) = gate.limit.active
                && self.active_of(&of) >= limit
            {
                return Some(Unusable::LimitActive { of: kind, limit });
            }
            if let Some(until) = gate.blocked_until(now) {
                let bytes_per_s = gate.limit.bytes_per_s.unwrap_or(0);
                return Some(Unusable::LimitRate { of: kind, bytes_per_s, until });
            }
        }
        None
    }

    fn limit_scope(&self, kind: LimitKind, source: u32, target: u32, community: u32) -> LimitScope {
        match kind {
            LimitKind::Link => LimitScope::Link(source, target),
            LimitKind::Into => LimitScope::Into(target),
            LimitKind::Out => LimitScope::Out(source),
            LimitKind::Community => LimitScope::Community(community),
            LimitKind::IntoSite => LimitScope::IntoSite(self.storages[target].site),
            LimitKind::OutOfSite => LimitScope::OutOfSite(self.storages[source].site),
        }
    }

    fn job_limit(&self, source: u32, target: u32) -> Option<u32> {
        let is_of_jobs = self.may_have_job_limit(source) && of_jobs(self.storages[target].id.0);
        is_of_jobs.then(|| self.limits.job_link_limit(source, target))?
    }

    fn active_of(&self, of: &LimitScope) -> u32 {
        match of {
            LimitScope::Link(source, target) => {
                self.storages[*target].target.links.get(*source).map_or(0, |link| link.files)
            }
            LimitScope::Into(target) => self.storages[*target].target.leased.len() as u32,
            LimitScope::Out(source) => self.storages[*source].files_ahead,
            LimitScope::Community(community) => {
                self.limits.active.get(*community as usize).copied().unwrap_or(0)
            }
            LimitScope::IntoSite(site) => self.sites[*site].active_in,
            LimitScope::OutOfSite(site) => self.sites[*site].active_out,
        }
    }

    /// Arms a wake-up for work that waits for a rate limit.
    pub(crate) fn arm_limit_timer(&mut self, until: Timestamp, now: Timestamp) {
        if self.limits.timer.is_none_or(|timer| timer <= now || until < timer) {
            self.limits.timer = Some(until);
            self.set_timer(until, Timer::Limits);
        }
    }

    pub(crate) fn limits_freed(&mut self) {
        self.limits.timer = None;
        self.wake_all();
    }

    /// Charges a leased file to all its limits.
    pub(crate) fn count_limits(&mut self, source: u32, target: u32, party: u32, size: u64, now: Timestamp) {
        let community = self.parties.community(party);
        let active = &mut self.limits.active;
        if active.len() <= community as usize {
            active.resize(community as usize + 1, 0);
        }
        active[community as usize] += 1;
        if self.limits.by_scope.is_empty() {
            return;
        }
        self.charge_limits(source, target, community, size, now);
    }

    fn charge_limits(&mut self, source: u32, target: u32, community: u32, bytes: u64, now: Timestamp) {
        for kind in self.limits.by_scope.kinds() {
            let of = self.limit_scope(kind, source, target, community);
            if let Some(gate) = self.limits.by_scope.get_mut(of)
                && gate.limit.bytes_per_s.is_some()
            {
                gate.paid_until = gate.paid_until.max(now) + gate.time_for(bytes, of);
            }
        }
    }

    /// Remembers a lease that was revoked before its agent reported the end.
    pub(crate) fn note_revoked(&mut self, lease: &ActiveLease, target: u32) {
        if self.limits.by_scope.is_empty() || lease.limits != self.limits.version {
            return;
        }
        let (source, community) = (lease.source, self.parties.community(lease.party));
        let taken_back = RevokedLease { source, target, community, counted: lease.bytes_done };
        self.limits.revoked.insert(lease.attempt, taken_back);
        if self.limits.revoked.len() > REVOKED_LEASES_MAX {
            self.limits.revoked.pop_first();
        }
    }

    /// Charges bytes of a revoked lease that its agent reports after all.
    pub(crate) fn count_late_arrival(&mut self, attempt: AttemptId, bytes_moved: u64, now: Timestamp) {
        let Some(RevokedLease { source, target, community, counted }) = self.limits.revoked.remove(&attempt)
        else {
            return;
        };
        self.charge_limits(source, target, community, bytes_moved.saturating_sub(counted), now);
    }

    /// Ends the charge of a lease; `back` of its bytes did not arrive and are refunded.
    pub(crate) fn uncount_limits(&mut self, lease: &ActiveLease, target: u32, back: u64, now: Timestamp) {
        let (source, community) = (lease.source, self.parties.community(lease.party));
        if let Some(active) = self.limits.active.get_mut(community as usize) {
            *active -= 1;
        }
        if self.limits.by_scope.is_empty() {
            return;
        }
        for kind in self.limits.by_scope.kinds() {
            let of = self.limit_scope(kind, source, target, community);
            let Some(gate) = self.limits.by_scope.get_mut(of) else { continue };
            if gate.limit.bytes_per_s.is_some() && lease.limits == self.limits.version {
                gate.paid_until = (gate.paid_until - gate.time_for(back, of)).max(now - BURST_LENGTH);
            }
        }
        // Others wait for these than the target itself, which is woken anyway.
        if self.was_full(LimitScope::Community(community)) {
            self.wake_all();
        } else if self.was_full(LimitScope::Out(source)) {
            self.wake_around(source);
        }
    }

    /// Whether the file that just ended held the last slot of a limit.
    fn was_full(&self, of: LimitScope) -> bool {
        let limit = self.limits.by_scope.get(of).and_then(|gate| gate.limit.active);
        limit.is_some_and(|limit| self.active_of(&of) + 1 >= limit)
    }

    /// The rate that a link, or what leaves a source altogether, cannot exceed.
    pub(crate) fn link_rate_limit(&self, source: u32, target: u32) -> Option<u64> {
        let site = self.storages[target].site;
        let scopes = [LimitScope::Link(source, target), LimitScope::Into(target), LimitScope::IntoSite(site)];
        scopes.iter().filter_map(|scope| self.limits.rate(scope)).min()
    }

    pub(crate) fn source_rate_limit(&self, source: u32) -> Option<u64> {
        let scopes = [LimitScope::Out(source), LimitScope::OutOfSite(self.storages[source].site)];
        scopes.iter().filter_map(|scope| self.limits.rate(scope)).min()
    }

    fn requeue_after_commissioning(&mut self, now: Timestamp) {
        self.forget_routes();
        let waits = |transfer: &&u32| {
            matches!(self.transfers[**transfer].phase, Phase::Queued | Phase::Unlinked | Phase::InBackoff)
        };
        let waiting: Vec<u32> = self.by_id.values().filter(waits).copied().collect();
        self.requeue_all(waiting, now);
    }
}

/// What a limit, used in full, lets through: `amount` of files or bytes. Follows the name of the source.
pub(crate) fn describe_limit(of: LimitKind, amount: &str) -> String {
    match of {
        LimitKind::Link => format!("sends this storage {amount}, the limit of the link"),
        LimitKind::Into => format!("waits: this storage takes in {amount}, its limit"),
        LimitKind::Out => format!("sends {amount}, its limit"),
        LimitKind::IntoSite => format!("waits: this site takes in {amount}, its limit"),
        LimitKind::OutOfSite => format!("waits: its site sends {amount}, its limit"),
        LimitKind::Community => format!("waits: the community moves {amount}, its limit"),
    }
}

pub(crate) fn describe_active_limit(limit: u32) -> String {
    match limit {
        0 => "no file".to_owned(),
        limit => format!("{} at a time", units::plural(limit.into(), "file", "files")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_patterns_the_most_specific_counts() {
        let patterns =
            [((None, None), 9), ((None, Some(2)), 8), ((Some(1), None), 7), ((Some(1), Some(2)), 6)];
        let mut gates = LimitTable::default();
        assert_eq!(gates.job_link_limit(1, 2), None);
        for (pattern, limit) in patterns {
            gates.each_link_of_jobs.insert(pattern, limit);
            assert_eq!(gates.job_link_limit(1, 2), Some(limit));
        }
        let of = |source, target| gates.job_link_limit(source, target);
        assert_eq!([of(1, 3), of(3, 2), of(3, 3)], [Some(7), Some(8), Some(9)]);
    }
}
