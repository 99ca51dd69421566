//! Limits of ours: what administrators allow our transfers on links, at storages and at sites. A rate that
//! such a limit explains says nothing of the network: it is not learned, and its fall or rise is no change of
//! the network.

use std::collections::BTreeMap;

use longhaul_model::{SiteId, StorageId, Timestamp};

use super::link::StorageEndState;
use super::{Knowledge, Link};

/// A limit holds transfers up from this share of it: pacing is not exact, and reports are late.
const LIMIT_BINDS_SHARE: f64 = 0.7;

/// Bytes per second; what is not named has no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnLimits {
    pub out_of_site: BTreeMap<SiteId, f64>,
    pub into_site: BTreeMap<SiteId, f64>,
    pub out_of_storage: BTreeMap<StorageId, f64>,
    pub into_storage: BTreeMap<StorageId, f64>,
    pub links: BTreeMap<Link, f64>,
}

impl OwnLimits {
    fn is_empty(&self) -> bool {
        *self == OwnLimits::default()
    }
}

/// Where a limit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitPosition {
    Source,
    Target,
    Link,
}

impl Knowledge {
    /// Sets all limits, in place of those before. What was measured under another limit says nothing of the
    /// rates to come.
    pub fn set_own_limits(&mut self, limits: OwnLimits) {
        if limits == self.own_limits {
            return;
        }
        let before = std::mem::replace(&mut self.own_limits, limits);
        let links: Vec<Link> = self.links.keys().copied().collect();
        for link in links {
            let now = self.limits_on(link, &self.own_limits);
            if now != self.limits_on(link, &before)
                && let Some(state) = self.links.get_mut(&link)
            {
                state.forget_window();
            }
        }
    }

    /// Limits on a link, on its ends and on their sites.
    fn limits_on(&self, link: Link, limits: &OwnLimits) -> [Option<f64>; 5] {
        let site = |storage| self.topology.storages.get(&storage);
        [
            limits.links.get(&link).copied(),
            limits.out_of_storage.get(&link.source).copied(),
            limits.into_storage.get(&link.target).copied(),
            site(link.source).and_then(|site| limits.out_of_site.get(site)).copied(),
            site(link.target).and_then(|site| limits.into_site.get(site)).copied(),
        ]
    }

    /// The limit that explains what a link gives, if one does; `rates` are those of the link, of all that
    /// leaves its source and of all that enters its target.
    pub(super) fn explained_by_limit(
        &self,
        link: Link,
        [own, out, into]: [f64; 3],
        now: Timestamp,
    ) -> Option<LimitPosition> {
        if self.own_limits.is_empty() {
            return None;
        }
        let [of_link, of_source, of_target, of_source_site, of_target_site] =
            self.limits_on(link, &self.own_limits);
        let binds = |limit: Option<f64>, rate: &dyn Fn() -> f64| {
            limit.is_some_and(|limit| rate() >= LIMIT_BINDS_SHARE * limit)
        };
        let out_of_site = || out + self.rate_of_other_storages(link.source, &self.sources, now);
        let into_site = || into + self.rate_of_other_storages(link.target, &self.targets, now);
        if binds(of_link, &|| own) {
            Some(LimitPosition::Link)
        } else if binds(of_source, &|| out) || binds(of_source_site, &out_of_site) {
            Some(LimitPosition::Source)
        } else if binds(of_target, &|| into) || binds(of_target_site, &into_site) {
            Some(LimitPosition::Target)
        } else {
            None
        }
    }

    /// The limit that holds a link up now.
    pub(super) fn binding_limit(&self, link: Link, now: Timestamp) -> Option<LimitPosition> {
        let total = |ends: &BTreeMap<StorageId, StorageEndState>, storage| {
            ends.get(&storage).map_or(0.0, |end| current_rate(end, now))
        };
        let rates =
            [self.rate_now(link, now), total(&self.sources, link.source), total(&self.targets, link.target)];
        self.explained_by_limit(link, rates, now)
    }

    fn rate_of_other_storages(
        &self,
        storage: StorageId,
        ends: &BTreeMap<StorageId, StorageEndState>,
        now: Timestamp,
    ) -> f64 {
        let Some(site) = self.topology.storages.get(&storage) else { return 0.0 };
        let all = self.topology.storages.iter();
        let others = all.filter(|(other, at)| *at == site && **other != storage);
        others.filter_map(|(other, _)| ends.get(other)).map(|end| current_rate(end, now)).sum()
    }
}

fn current_rate(end: &StorageEndState, now: Timestamp) -> f64 {
    let is_current = end.meter.active() > 0 && end.total.weight_at(now) > 1e-3;
    if is_current { end.total.mean().exp() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knowledge::{AttemptEnd, Bottleneck};
    use crate::observation::tests::world;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    fn link(source: u64, target: u64) -> Link {
        Link { source: StorageId(source), target: StorageId(target) }
    }

    /// One-second files in sequence over each of `links` at once.
    fn run(knowledge: &mut Knowledge, links: &[(Link, u64)], from: i64, seconds: i64) -> i64 {
        for second in from..from + seconds {
            links.iter().for_each(|(link, _)| knowledge.attempt_began(*link, at(second)));
            for (link, rate) in links {
                knowledge.attempt_ended(*link, *rate, AttemptEnd::Arrived, at(second + 1));
            }
        }
        from + seconds
    }

    fn limits(site: u64, limit: f64) -> OwnLimits {
        OwnLimits { into_site: BTreeMap::from([(SiteId(site), limit)]), ..OwnLimits::default() }
    }

    fn sites() -> Knowledge {
        let mut knowledge = world();
        (1..=4).for_each(|number| knowledge.set_storage_site(StorageId(number), SiteId(number)));
        knowledge
    }

    #[test]
    fn our_own_limit_is_no_change_of_the_network() {
        let mut knowledge = sites();
        let one = link(1, 2);
        let mut now = run(&mut knowledge, &[(one, 100_000_000)], 0, 900);
        let learned = knowledge.pairs.clone();
        for limit in [2e6, 10e6] {
            knowledge.set_own_limits(limits(2, limit));
            now = run(&mut knowledge, &[(one, limit as u64)], now, 900);
            assert_eq!(knowledge.changes().count(), 0);
            assert_eq!(knowledge.ongoing_degradations(at(now)), []);
            knowledge.attempt_began(one, at(now));
            assert_eq!(knowledge.bottleneck(one, at(now)), Bottleneck::TargetLimit);
            knowledge.attempt_ended(one, 0, AttemptEnd::Void, at(now));
        }
        assert_eq!(format!("{learned:?}"), format!("{:?}", knowledge.pairs), "nothing is learned meanwhile");
        knowledge.set_own_limits(OwnLimits::default());
        let rate = knowledge.rate(one, at(now)).bytes_per_s;
        assert!((50e6..150e6).contains(&rate), "{rate}: as before the limit");
        now = run(&mut knowledge, &[(one, 100_000_000)], now, 900);
        assert_eq!(knowledge.changes().count(), 0, "the end of a limit is no change either");
        run(&mut knowledge, &[(one, 10_000_000)], now, 300);
        assert_eq!(knowledge.changes().count(), 1, "without a limit it is one");
    }

    #[test]
    fn a_link_that_another_starves_under_a_limit_is_not_degraded() {
        let mut knowledge = sites();
        let (one, other) = (link(1, 2), link(3, 2));
        let now = run(&mut knowledge, &[(one, 50_000_000), (other, 50_000_000)], 0, 900);
        knowledge.set_own_limits(limits(2, 2e6));
        let now = run(&mut knowledge, &[(one, 1_900_000), (other, 50_000)], now, 900);
        assert_eq!(knowledge.changes().count(), 0, "{:?}", knowledge.changes().collect::<Vec<_>>());
        knowledge.attempt_began(other, at(now));
        assert_eq!(knowledge.bottleneck(other, at(now)), Bottleneck::TargetLimit);
    }

    #[test]
    fn a_limit_that_is_not_reached_explains_nothing() {
        let mut knowledge = sites();
        let one = link(1, 2);
        knowledge.set_own_limits(limits(2, 1e9));
        let now = run(&mut knowledge, &[(one, 100_000_000)], 0, 900);
        run(&mut knowledge, &[(one, 10_000_000)], now, 300);
        assert_eq!(knowledge.changes().count(), 1);
    }
}
