//! Reachability of site pairs, and utilisation of the uplinks of a link's sites.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp, units};

use super::{Knowledge, Link, PathKey};
use crate::topology::Locality;

/// Unreachable pairs are probed again and again: an older result is stale.
const UNREACHABLE_TTL: Duration = Duration::from_secs(600);
/// Expected share of failures between unreachable sites: some peers do come back.
pub(super) const UNREACHABLE_FAILURE_SHARE: f64 = 0.9;
/// An uplink this full is the bottleneck.
pub(super) const UPLINK_FULL_SHARE: f64 = 0.9;
/// Our transfers are most of an uplink's traffic from this share on.
const UPLINK_MOSTLY_OURS_SHARE: f64 = 0.7;
/// Our transfers are hardly any of an uplink's traffic below this share.
const UPLINK_HARDLY_OURS_SHARE: f64 = 0.3;

/// Pairs without a reachable path, by the last result. Usually empty, so that lookups cost nothing.
pub(crate) type UnreachablePairs = BTreeMap<(Locality, Locality), Timestamp>;

impl Knowledge {
    /// Records whether a path answers. A pair is unreachable if none of its paths is known to answer.
    pub(super) fn record_reachability(&mut self, key: PathKey, up: bool, at: Timestamp) {
        let pair = (key.source, key.target);
        // A path that was not probed lately is the address of a host that is gone.
        let mut paths = self.paths_between(key.source, key.target);
        let any = up || paths.any(|path| path.answered_within(at, UNREACHABLE_TTL));
        drop(paths);
        if any {
            self.unreachable_pairs.remove(&pair);
        } else {
            self.unreachable_pairs.insert(pair, at);
        }
    }

    pub(super) fn is_unreachable(&self, link: Link, now: Timestamp) -> bool {
        if self.unreachable_pairs.is_empty() {
            return false;
        }
        self.unreachable_pairs
            .get(&self.localities_of(link))
            .is_some_and(|&at| now.since(at) < UNREACHABLE_TTL)
    }

    /// Utilisation of an uplink; none without a capacity or a recent counter.
    pub(super) fn uplink_utilization(&self, home: Locality, into: bool, now: Timestamp) -> Option<f64> {
        let Locality::Site(site) = home else { return None };
        self.uplinks.get(&site)?.utilization(into, now)
    }

    /// Utilisation of the uplinks of both sites and our part of it, one sentence each.
    pub(super) fn describe_uplinks(&self, link: Link, now: Timestamp) -> Vec<String> {
        let (source, target) = self.localities_of(link);
        let ends = [(source, false, "source"), (target, true, "target")];
        ends.into_iter().filter_map(|(home, into, end)| self.describe_uplink(home, into, end, now)).collect()
    }

    fn describe_uplink(&self, home: Locality, into: bool, end: &str, now: Timestamp) -> Option<String> {
        let Locality::Site(site) = home else { return None };
        let uplink = self.uplinks.get(&site)?;
        let used = uplink.utilization(into, now)?;
        let all = if into { uplink.into_bytes_per_s } else { uplink.out_bytes_per_s };
        let ours = self.own_rate(site, into, now).min(all);
        let verb = if into { "takes" } else { "sends" };
        let share = used * 100.0;
        let capacity = units::rate(uplink.capacity_bytes_per_s?);
        let mut text = format!(
            "the uplink of the {end}'s site {verb} {} of {capacity} ({share:.0} %)",
            units::rate(all)
        );
        if used < UPLINK_FULL_SHARE {
            text.push_str(": it is not full, the bottleneck is elsewhere");
            return Some(text);
        }
        let part = ours / all.max(1.0);
        let whose = if part >= UPLINK_MOSTLY_OURS_SHARE {
            "mostly with transfers of ours"
        } else if part < UPLINK_HARDLY_OURS_SHARE {
            "with traffic of others"
        } else {
            "with transfers of ours and traffic of others"
        };
        text.push_str(&format!(": it is full, {whose} ({} of it are ours)", units::rate(ours)));
        Some(text)
    }

    /// Rate of our transfers into or out of a site; transfers within the site are left out.
    fn own_rate(&self, site: SiteId, into: bool, now: Timestamp) -> f64 {
        let crosses = |link: &Link| {
            let (source, target) = self.localities_of(*link);
            source != target && (if into { target } else { source }) == Locality::Site(site)
        };
        self.links.keys().copied().filter(crosses).map(|link| self.rate_now(link, now)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::Family;
    use crate::observation::tests::{at, between, world};
    use crate::observation::{Metric, Observation, PathSelector, Subject};
    use longhaul_model::StorageId;

    fn link(source: u64, target: u64) -> Link {
        Link { source: StorageId(source), target: StorageId(target) }
    }

    fn over(family: Family, observation: Observation) -> Observation {
        let Subject::Path { source, target, .. } = observation.subject else { unreachable!() };
        Observation {
            subject: Subject::Path { source, target, path: PathSelector::over_family(family) },
            ..observation
        }
    }

    #[test]
    fn a_pair_is_unreachable_only_if_no_family_answers_and_only_for_a_while() {
        let mut knowledge = world();
        let mut see = |number, family, up, seconds| {
            let seen = over(family, between(1, 2, number, seconds, Metric::Reach { up }));
            knowledge.observe(&seen, at(seconds)).unwrap();
            (
                knowledge.failure_share(link(1, 2), at(seconds)),
                knowledge.failure_share(link(2, 1), at(seconds)),
            )
        };
        assert_eq!(see(1, Family::Ipv4, true, 0), (0.0, 0.0));
        assert_eq!(see(2, Family::Ipv6, false, 1), (0.0, 0.0), "the other family answers");
        assert_eq!(see(3, Family::Ipv4, false, 2), (UNREACHABLE_FAILURE_SHARE, 0.0), "one direction only");
        assert_eq!(see(4, Family::Ipv6, true, 3), (0.0, 0.0), "it is over");
        assert_eq!(see(5, Family::Ipv6, false, 4), (UNREACHABLE_FAILURE_SHARE, 0.0));
        assert_eq!(knowledge.failure_share(link(1, 2), at(5_000)), 0.0, "nobody looked since");
    }

    #[test]
    fn a_full_uplink_is_explained_with_the_owner_of_its_traffic() {
        let mut knowledge = world();
        let mut count = |number, out_bytes_per_s| {
            let seen =
                Metric::Uplink { into_bytes_per_s: 0.0, out_bytes_per_s, capacity_bytes_per_s: Some(1.25e9) };
            let of = Subject::Uplink { site: SiteId(1) };
            let observation = Observation { subject: of, ..between(1, 2, number, number as i64, seen) };
            knowledge.observe(&observation, at(number as i64)).unwrap();
            let lines = knowledge.explain(link(1, 2), at(number as i64));
            lines.into_iter().find(|line| line.starts_with("the uplink")).unwrap()
        };
        let full = count(1, 1.2e9);
        assert!(full.contains("(96 %)") && full.contains("full, with traffic of others"), "{full}");
        let free = count(2, 0.6e9);
        assert!(free.contains("(48 %)") && free.contains("not full"), "{free}");
    }
}
