//! A small world of links with known rates, for tests of what is believed of them. The same on every run.

use longhaul_model::{SiteId, StorageId, Timestamp};
use longhaul_network::{
    AttemptEnd, Endpoint, Knowledge, Link, Mapping, Metric, Observation, ObservationId, Origin, PathSelector,
    RegionId, Subject,
};

pub fn at(seconds: f64) -> Timestamp {
    Timestamp(1_800_000_000_000_000 + (seconds * 1e6) as i64)
}

pub fn link(source: u64, target: u64) -> Link {
    Link { source: StorageId(source), target: StorageId(target) }
}

/// Sites 1 to `sites`, each with a storage of the same number.
pub fn sites(sites: u64) -> Knowledge {
    let mut knowledge = Knowledge::default();
    for site in 1..=sites {
        knowledge.set_site_region(SiteId(site), RegionId(0));
        knowledge.set_storage_site(StorageId(site), SiteId(site));
    }
    knowledge
}

/// Moves one file over the link, and gives the time when it was there.
pub fn transfer(knowledge: &mut Knowledge, link: Link, bytes: u64, seconds: f64, now: f64) -> f64 {
    knowledge.attempt_began(link, at(now));
    knowledge.attempt_ended(link, bytes, AttemptEnd::Arrived, at(now + seconds));
    now + seconds
}

/// A probe of the path between two sites.
pub fn probe(knowledge: &mut Knowledge, source: u64, target: u64, seen: Metric, now: f64) {
    let number = (now * 1e3) as i64;
    let observation = Observation {
        id: ObservationId::from_parts(&[&format!("{source} {target} {number} {seen:?}")]),
        at: at(now),
        subject: Subject::Path {
            source: Endpoint::Site(SiteId(source)),
            target: Endpoint::Site(SiteId(target)),
            path: PathSelector::default(),
        },
        metric: seen,
        origin: Origin::Probe,
        mapping: Mapping::Explicit,
    };
    knowledge.observe(&observation, at(now)).unwrap();
}
