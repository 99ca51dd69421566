//! Limits of the scheduler, and options of copies, derived from the objects of FTS's configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::fts::{LinkSettings, ShareSetting};
use longhaul_catalog::JobEndpointRow;
use longhaul_model::job::storage_element;
use longhaul_model::{CommunityName, Timestamp};
use longhaul_scheduler::{Limit, Limits, LinkShares};
use serde_json::Value;

use crate::config_store::{ByHand, Objects};
use crate::ids;

/// The wildcard of FTS's configuration: any storage, VO or end point.
const ANY: &str = "*";
/// In FTS's shares, all VOs together that have no share of their own on the pair.
const PUBLIC: &str = "public";
/// Throughputs are given in MiB/s.
const MIB: f64 = 1_048_576.0;
/// Base of a copy's timeout, to which the time for its size (`sec_per_mb`) is added.
const TIMEOUT_S_BASE: Duration = Duration::from_secs(600);

/// Longest wait that can be configured: a year.
const HOURS_MAX: u64 = 366 * 24;

/// Concurrent files to and from a host, as its storages are configured; none: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCopies {
    pub inbound: Option<u32>,
    pub outbound: Option<u32>,
}

/// The modes of copy that both storages support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyModes {
    pub pull: bool,
    pub push: bool,
    pub stream: bool,
}

impl Default for CopyModes {
    fn default() -> Self {
        CopyModes { pull: true, push: true, stream: true }
    }
}

impl Objects {
    /// What was set for a pair of storages, the most specific of it.
    pub fn link(&self, source: &str, target: &str) -> Option<&LinkSettings> {
        [(source, target), (source, ANY), (ANY, target), (ANY, ANY)].into_iter().find_map(|(from, to)| {
            self.links.values().find(|link| link.source == from && link.destination == to)
        })
    }

    /// What was set by hand for a pair and still counts.
    pub fn by_hand(&self, source: &str, target: &str, now: Timestamp) -> Option<&ByHand> {
        let of_pair = |one: &&ByHand| one.source == source && one.target == target && one.until > now;
        self.by_hand.iter().find(of_pair)
    }

    /// When the next of those ends that count now.
    pub fn next_by_hand(&self, now: Timestamp) -> Option<Timestamp> {
        self.by_hand.iter().map(|one| one.until).filter(|until| *until > now).min()
    }

    /// Connections of a copy whose job does not say.
    pub fn streams(&self, source: &str, target: &str, now: Timestamp) -> u32 {
        let by_hand = self.by_hand(source, target, now).map(|one| one.streams);
        by_hand.or_else(|| self.link(source, target).map(|link| link.nostreams)).unwrap_or(0)
    }

    /// What a storage has set, or else all storages have.
    fn of_storage(&self, storage: &str, key: &str) -> Option<&Value> {
        let info = |name: &str| self.storages.get(name)?.se_info.as_ref()?.get(key);
        info(storage).or_else(|| info(ANY))
    }

    fn limit_of(&self, storage: &str, active: &str, throughput: &str) -> Limit {
        let active = self.of_storage(storage, active).and_then(Value::as_u64);
        let rate = self.of_storage(storage, throughput).and_then(Value::as_f64).filter(|rate| *rate > 0.0);
        Limit {
            active: active
                .filter(|active| *active > 0)
                .map(|active| u32::try_from(active).unwrap_or(u32::MAX)),
            bytes_per_s: rate.map(|rate| (rate * MIB).max(1.0) as u64),
        }
    }

    pub fn inbound_limit(&self, storage: &str) -> Limit {
        self.limit_of(storage, "inbound_max_active", "inbound_max_throughput")
    }

    pub fn outbound_limit(&self, storage: &str) -> Limit {
        self.limit_of(storage, "outbound_max_active", "outbound_max_throughput")
    }

    /// What a VO has set, or else all have.
    fn of_vo(&self, vo: &str, key: &str) -> Option<u64> {
        let value = |name: &str| self.globals.get(name)?.values.get(key)?.as_u64();
        value(vo).or_else(|| value(ANY))
    }

    /// How often a file is tried again whose job does not say.
    pub fn retries(&self, vo: &str) -> Option<u32> {
        self.of_vo(vo, "retry").map(|retries| u32::try_from(retries).unwrap_or(u32::MAX))
    }

    /// How long a job may wait that does not say.
    pub fn longest_wait(&self, vo: &str) -> Option<Duration> {
        let hours = self.of_vo(vo, "max_time_queue").filter(|hours| *hours > 0)?;
        Some(Duration::from_secs(hours.min(HOURS_MAX) * 3_600))
    }

    /// How long a copy may take whose job does not say.
    pub fn timeout(&self, vo: &str, size: Option<u64>) -> Option<Duration> {
        let set = |key: &str| self.of_vo(vo, key).filter(|value| *value > 0);
        let longest = HOURS_MAX * 3_600;
        if let Some(seconds) = set("global_timeout") {
            return Some(Duration::from_secs(seconds.min(longest)));
        }
        let of_size = (set("sec_per_mb")? as f64 * size? as f64 / MIB).ceil();
        Some(TIMEOUT_S_BASE + Duration::from_secs_f64(of_size.min(longest as f64)))
    }

    pub fn copy_modes(&self, vo: &str, source: &str, target: &str) -> CopyModes {
        let support = |storage: &str| self.of_storage(storage, "tpc_support").and_then(Value::as_str);
        let can =
            |storage: &str, way: &str| support(storage).is_none_or(|said| said == "FULL" || said == way);
        let no_streaming = |name: &str| self.globals.get(name)?.values.get("no_streaming")?.as_bool();
        CopyModes {
            pull: can(target, "PULL"),
            push: can(source, "PUSH"),
            stream: !no_streaming(vo).or_else(|| no_streaming(ANY)).unwrap_or(false),
        }
    }

    /// Whether something of it is a limit.
    pub fn limit_something(&self) -> bool {
        !self.links.is_empty() || !self.storages.is_empty() || !self.by_hand.is_empty()
    }

    /// Adds the limits of links and storages; a storage is all its end points.
    pub fn limit(&self, ends: &[JobEndpointRow], now: Timestamp, limits: &mut Limits) {
        let element = |end: &JobEndpointRow| storage_element(&end.url);
        for end in ends {
            let Some(storage) = element(end) else { continue };
            let (come, leave) = (self.inbound_limit(&storage), self.outbound_limit(&storage));
            limits.into.extend((!come.is_none()).then(|| (ids::target(end.id), come)));
            limits.out.extend((!leave.is_none()).then(|| (ids::source(end.id), leave)));
        }
        let links = self.links.values().map(|link| (&link.source, &link.destination, link.max_active));
        // Behind the others, for what is said last of a pair counts.
        let by_hand = self.by_hand.iter().filter(|one| one.until > now);
        let all = links.chain(by_hand.map(|one| (&one.source, &one.target, one.active)));
        for (source, target, active) in all {
            for source in ends_of(ends, source) {
                let targets = ends_of(ends, target).into_iter();
                limits.each_link_of_jobs.extend(
                    targets.map(|target| ((source.map(ids::source), target.map(ids::target)), active)),
                );
            }
        }
    }

    /// The weights of VOs on pairs of storages, for each pair of end points. Those of all pairs are the
    /// weights of all.
    pub fn link_shares(&self, ends: &[JobEndpointRow]) -> Vec<LinkShares> {
        let mut pairs: BTreeMap<(&str, &str), Vec<&ShareSetting>> = BTreeMap::new();
        for share in &self.shares {
            pairs.entry((&share.source, &share.destination)).or_default().push(share);
        }
        pairs.remove(&(ANY, ANY));
        let mut all = Vec::new();
        for ((source, target), shares) in pairs {
            let named = shares.iter().filter(|share| share.vo != PUBLIC);
            let communities = named.map(|share| (ids::party_of(&share.vo, "").community, share.share));
            let communities: BTreeMap<CommunityName, f64> = communities.collect();
            let others = shares.iter().find(|share| share.vo == PUBLIC).map_or(0.0, |share| share.share);
            for source in ends_of(ends, source) {
                for target in ends_of(ends, target) {
                    let links = (source.map(ids::source), target.map(ids::target));
                    all.push(LinkShares { links, communities: communities.clone(), others });
                }
            }
        }
        all
    }

    /// A storage that may have more files at once than is usual for a host raises what its host may have.
    pub fn host_copies(&self, storages: &[String]) -> HostCopies {
        let most =
            |limit: &dyn Fn(&str) -> Limit| storages.iter().filter_map(|storage| limit(storage).active).max();
        HostCopies {
            inbound: most(&|storage| self.inbound_limit(storage)),
            outbound: most(&|storage| self.outbound_limit(storage)),
        }
    }
}

/// The end points of one side of a pair; none is any.
fn ends_of(ends: &[JobEndpointRow], side: &str) -> Vec<Option<u64>> {
    if side == ANY {
        return vec![None];
    }
    let is_it = |end: &&JobEndpointRow| storage_element(&end.url).as_deref() == Some(side);
    ends.iter().filter(is_it).map(|end| Some(end.id)).collect()
}

#[cfg(test)]
mod tests {
    use longhaul_api::fts::{GlobalSettings, StorageSettings};
    use serde_json::json;

    use super::*;

    fn link(name: &str, source: &str, target: &str, most: u32) -> LinkSettings {
        let body = json!({
            "symbolicname": name, "source": source, "destination": target, "max_active": most,
        });
        LinkSettings::parse(body.as_object().unwrap()).unwrap()
    }

    fn objects() -> Objects {
        let mut objects = Objects::default();
        for link in [
            link("any", "*", "*", 20),
            link("from", "https://a", "*", 10),
            link("to", "*", "https://b", 5),
            link("pair", "https://a", "https://b", 3),
        ] {
            objects.links.insert(link.symbolicname.clone(), link);
        }
        let body = json!({
            "https://a": {"se_info": {
                "outbound_max_active": 70, "outbound_max_throughput": 1.5, "tpc_support": "NONE",
            }},
            "*": {"se_info": {"inbound_max_active": 7, "tpc_support": "PULL"}},
        });
        for (name, settings) in StorageSettings::parse(body.as_object().unwrap()).unwrap() {
            objects.storages.insert(name, settings);
        }
        objects
    }

    #[test]
    fn the_most_specific_link_counts() {
        let objects = objects();
        let most = |source, target| objects.link(source, target).unwrap().max_active;
        assert_eq!(most("https://a", "https://b"), 3);
        assert_eq!(most("https://a", "https://c"), 10);
        assert_eq!(most("https://c", "https://b"), 5);
        assert_eq!(most("https://c", "https://d"), 20);
        assert!(Objects::default().link("https://a", "https://b").is_none());
    }

    #[test]
    fn a_storage_is_all_its_end_points() {
        let ends = [(1, "https://a"), (2, "https://a:8443"), (3, "https://b")];
        let ends = ends.map(|(id, url)| JobEndpointRow { id, url: url.into() });
        let mut limits = Limits::default();
        objects().limit(&ends, Timestamp(1), &mut limits);
        let out = Limit { active: Some(70), bytes_per_s: Some(1_572_864) };
        assert_eq!(limits.out, [(ids::source(1), out), (ids::source(2), out)]);
        let seven = Limit { active: Some(7), bytes_per_s: None };
        assert_eq!(limits.into, [1, 2, 3].map(|end| (ids::target(end), seven)));
        let mut each = limits.each_link_of_jobs;
        each.sort();
        let target = Some(ids::target(3));
        let wanted = [
            ((None, None), 20),
            ((None, target), 5),
            ((Some(ids::source(1)), None), 10),
            ((Some(ids::source(1)), target), 3),
            ((Some(ids::source(2)), None), 10),
            ((Some(ids::source(2)), target), 3),
        ];
        assert_eq!(each, wanted);
        // By hand for a while, in place of that; the later one counts.
        let mut objects_then = objects();
        let until = Timestamp(10);
        let by_hand = |active| ByHand {
            source: "https://a".into(),
            target: "https://b".into(),
            active,
            streams: 4,
            until,
        };
        objects_then.by_hand = vec![by_hand(9)];
        for (now, last) in [(Timestamp(9), 9), (until, 3)] {
            let mut limits = Limits::default();
            objects_then.limit(&ends, now, &mut limits);
            let of_pair: Vec<u32> = limits
                .each_link_of_jobs
                .iter()
                .filter(|((source, target), _)| source.is_some() && target.is_some())
                .map(|(_, active)| *active)
                .collect();
            assert_eq!(of_pair.last(), Some(&last), "{of_pair:?}");
            let streams = objects_then.streams("https://a", "https://b", now);
            assert_eq!(streams == 4, now < until);
            assert_eq!(objects_then.next_by_hand(now), (now < until).then_some(until));
        }
        let hosts = objects().host_copies(&["https://a".into(), "https://b".into()]);
        assert_eq!(hosts, HostCopies { inbound: Some(7), outbound: Some(70) });
    }

    #[test]
    fn weights_of_a_pair_are_those_of_its_end_points() {
        let ends = [(1, "https://a"), (2, "https://a:8443"), (3, "https://b")];
        let ends = ends.map(|(id, url)| JobEndpointRow { id, url: url.into() });
        let share = |source: &str, destination: &str, vo: &str, share: f64| ShareSetting {
            source: source.into(),
            destination: destination.into(),
            vo: vo.into(),
            share,
        };
        let mut objects = Objects::default();
        assert_eq!(objects.link_shares(&ends), []);
        objects.shares = vec![
            share("*", "*", "atlas", 9.0),
            share("https://a", "https://b", "atlas", 3.0),
            share("https://a", "https://b", "cms", 1.0),
            share("*", "https://b", "lhcb", 2.0),
            share("*", "https://b", "public", 5.0),
            share("https://c", "https://b", "atlas", 3.0),
        ];
        let of = |links, named: &[(&str, f64)], others| LinkShares {
            links,
            communities: named.iter().map(|(name, share)| (name.parse().unwrap(), *share)).collect(),
            others,
        };
        let (both, target) = ([("atlas", 3.0), ("cms", 1.0)], Some(ids::target(3)));
        let wanted = [
            of((None, target), &[("lhcb", 2.0)], 5.0),
            of((Some(ids::source(1)), target), &both, 0.0),
            of((Some(ids::source(2)), target), &both, 0.0),
        ];
        assert_eq!(objects.link_shares(&ends), wanted);
    }

    #[test]
    fn a_vo_has_its_own_or_what_all_have() {
        let mut objects = objects();
        let mut set = |body: Value| {
            let (vo, values) = GlobalSettings::parse(body.as_object().unwrap()).unwrap();
            objects.globals.entry(vo).or_default().values.extend(values);
        };
        set(json!({"retry": 4, "sec_per_mb": 3, "no_streaming": true}));
        set(json!({"vo_name": "atlas", "retry": 0, "global_timeout": 50, "no_streaming": false}));
        set(json!({"max_time_queue": 2}));
        assert_eq!((objects.retries("cms"), objects.retries("atlas")), (Some(4), Some(0)));
        assert_eq!(objects.longest_wait("cms"), Some(Duration::from_secs(7_200)));
        assert_eq!((Objects::default().retries("cms"), Objects::default().longest_wait("cms")), (None, None));
        assert_eq!(objects.timeout("atlas", Some(1)), Some(Duration::from_secs(50)));
        assert_eq!(objects.timeout("cms", Some(10 << 20)), Some(Duration::from_secs(630)));
        assert_eq!(objects.timeout("cms", None), None);
        let ways = |vo, source, target| {
            let ways = objects.copy_modes(vo, source, target);
            [ways.pull, ways.push, ways.stream]
        };
        assert_eq!(ways("cms", "https://a", "https://b"), [true, false, false]);
        assert_eq!(ways("atlas", "https://b", "https://a"), [false, false, true]);
        assert_eq!(Objects::default().copy_modes("cms", "https://a", "https://b"), CopyModes::default());
    }
}
