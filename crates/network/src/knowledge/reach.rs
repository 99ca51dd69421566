//! Pairs of sites between which no address answers, and how full the uplinks of a link's sites are.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp, units};

use super::{Knowledge, Link, PathKey};
use crate::places::Home;

/// What did not answer is looked at again and again: older, nobody looks any more.
const SILENT_RECENT: Duration = Duration::from_secs(600);
/// The share of attempts that may be expected to fail where nothing answers: some peers do come back.
pub(super) const SILENT_FAILURE_SHARE: f64 = 0.9;
/// An uplink this full is the bottleneck.
pub(super) const UPLINK_FULL: f64 = 0.9;
/// Ours are most of what passes an uplink from this part on, and hardly any of it below the other.
const MOSTLY_OURS: f64 = 0.7;
const HARDLY_OURS: f64 = 0.3;

/// Pairs of which no way is up, by when that was last seen. Empty as a rule, so that asking costs nothing.
pub(crate) type Silent = BTreeMap<(Home, Home), Timestamp>;

impl Knowledge {
    /// One of the ways between two homes answers or not. Silent is a pair of which no way is known to answer.
    pub(super) fn heard(&mut self, key: PathKey, up: bool, at: Timestamp) {
        let pair = (key.source, key.target);
        // One that nobody looked at since is the address of a host that is gone.
        let mut ways = self.paths_between(key.source, key.target);
        let any = up || ways.any(|path| path.answers(at, SILENT_RECENT));
        drop(ways);
        if any {
            self.silent.remove(&pair);
        } else {
            self.silent.insert(pair, at);
        }
    }

    pub(super) fn is_silent(&self, link: Link, now: Timestamp) -> bool {
        if self.silent.is_empty() {
            return false;
        }
        self.silent.get(&self.homes_of(link)).is_some_and(|&at| now.since(at) < SILENT_RECENT)
    }

    /// Share of an uplink in use; none without a capacity or a recent count.
    pub(super) fn uplink_used(&self, home: Home, into: bool, now: Timestamp) -> Option<f64> {
        let Home::Site(site) = home else { return None };
        self.uplinks.get(&site)?.used(into, now)
    }

    /// How full the uplinks of both sites are, and whether with our transfers; a sentence each.
    pub(super) fn uplinks_in_words(&self, link: Link, now: Timestamp) -> Vec<String> {
        let (source, target) = self.homes_of(link);
        let ends = [(source, false, "source"), (target, true, "target")];
        ends.into_iter().filter_map(|(home, into, end)| self.uplink_in_words(home, into, end, now)).collect()
    }

    fn uplink_in_words(&self, home: Home, into: bool, end: &str, now: Timestamp) -> Option<String> {
        let Home::Site(site) = home else { return None };
        let uplink = self.uplinks.get(&site)?;
        let used = uplink.used(into, now)?;
        let all = if into { uplink.into_bytes_per_s } else { uplink.out_bytes_per_s };
        let ours = self.own_rate(site, into, now).min(all);
        let verb = if into { "takes" } else { "sends" };
        let share = used * 100.0;
        let capacity = units::rate(uplink.capacity_bytes_per_s?);
        let mut text = format!(
            "the uplink of the {end}'s site {verb} {} of {capacity} ({share:.0} %)",
            units::rate(all)
        );
        if used < UPLINK_FULL {
            text.push_str(": it is not full, the bottleneck is elsewhere");
            return Some(text);
        }
        let part = ours / all.max(1.0);
        let whose = if part >= MOSTLY_OURS {
            "mostly with transfers of ours"
        } else if part < HARDLY_OURS {
            "with traffic of others"
        } else {
            "with transfers of ours and traffic of others"
        };
        text.push_str(&format!(": it is full, {whose} ({} of it are ours)", units::rate(ours)));
        Some(text)
    }

    /// What our transfers move into or out of a site now, other transfers within it left out.
    fn own_rate(&self, site: SiteId, into: bool, now: Timestamp) -> f64 {
        let crosses = |link: &Link| {
            let (source, target) = self.homes_of(*link);
            source != target && (if into { target } else { source }) == Home::Site(site)
        };
        self.links.keys().copied().filter(crosses).map(|link| self.rate_now(link, now)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::Family;
    use crate::observation::tests::{at, between, world};
    use crate::observation::{Observation, Seen, Subject, Way};
    use longhaul_model::StorageId;

    fn link(source: u64, target: u64) -> Link {
        Link { source: StorageId(source), target: StorageId(target) }
    }

    fn over(family: Family, observation: Observation) -> Observation {
        let Subject::Path { source, target, .. } = observation.of else { unreachable!() };
        Observation { of: Subject::Path { source, target, way: Way::of(family) }, ..observation }
    }

    #[test]
    fn a_pair_is_silent_only_if_no_family_answers_and_not_for_ever() {
        let mut knowledge = world();
        let mut see = |number, family, up, seconds| {
            let seen = over(family, between(1, 2, number, seconds, Seen::Reach { up }));
            knowledge.observe(&seen, at(seconds)).unwrap();
            (
                knowledge.failure_share(link(1, 2), at(seconds)),
                knowledge.failure_share(link(2, 1), at(seconds)),
            )
        };
        assert_eq!(see(1, Family::Ipv4, true, 0), (0.0, 0.0));
        assert_eq!(see(2, Family::Ipv6, false, 1), (0.0, 0.0), "the other family answers");
        assert_eq!(see(3, Family::Ipv4, false, 2), (SILENT_FAILURE_SHARE, 0.0), "one direction only");
        assert_eq!(see(4, Family::Ipv6, true, 3), (0.0, 0.0), "it is over");
        assert_eq!(see(5, Family::Ipv6, false, 4), (SILENT_FAILURE_SHARE, 0.0));
        assert_eq!(knowledge.failure_share(link(1, 2), at(5_000)), 0.0, "nobody looked since");
    }

    #[test]
    fn a_full_uplink_is_told_with_whose_traffic_it_is() {
        let mut knowledge = world();
        let mut count = |number, out_bytes_per_s| {
            let seen =
                Seen::Uplink { into_bytes_per_s: 0.0, out_bytes_per_s, capacity_bytes_per_s: Some(1.25e9) };
            let of = Subject::Uplink { site: SiteId(1) };
            let observation = Observation { of, ..between(1, 2, number, number as i64, seen) };
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
