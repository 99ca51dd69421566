//! Light probes, as agents send them beside their work: round trip of each link, and the routers on its path
//! (traceroute). Results enter the scheduler's knowledge by the same interface as in the service.
//!
//! Not here: conclusions (`network`), and circuits, which best-effort probes do not take.

use std::net::{IpAddr, Ipv4Addr};

use longhaul_model::StorageId;
use longhaul_network::advice::Family;
use longhaul_network::{
    Endpoint, Mapping, Metric, Observation, ObservationId, Origin, PathSelector, Subject,
};

use crate::random::{mix, uniform_for};
use crate::scenario::FailureKind;
use crate::world::{SimEvent, World};

/// Round trips vary by this share around their mean, by queues on the path.
const RTT_JITTER_SHARE: f64 = 0.04;
/// Routers between the borders of two sites.
const ROUTERS_PER_LINK: u8 = 3;

impl World<'_> {
    /// One round of all agents that are there.
    pub(crate) fn probe_links(&mut self) {
        let count = self.plan.layout.sites.len();
        for source in 0..count {
            for target in 0..count {
                let there = |site: usize| self.sites[site].connected && !self.is_away(site as u32);
                if source != target
                    && self.plan.layout.pair(source, target).open
                    && there(source)
                    && there(target)
                {
                    self.probe_link(source, target);
                }
            }
        }
        self.record_changes();
        self.schedule_after(self.plan.model.probe_every.0, SimEvent::Probes);
    }

    /// The routers first: a round trip that changed with them is believed at once.
    fn probe_link(&mut self, source: usize, target: usize) {
        self.count_probe(source as u32, target as u32);
        let pair = self.plan.layout.pair(source, target);
        let troubles =
            self.link_failures.iter().map(|&number| (number, &self.plan.failures[number as usize]));
        let (mut rtt, mut route) = (pair.rtt, 0);
        for (number, trouble) in troubles.filter(|(_, trouble)| trouble.affects_link(source, target)) {
            rtt *= trouble.rtt_factor;
            if trouble.kind == FailureKind::RouteChange {
                route = mix(route ^ u64::from(number) ^ 0x707e);
            }
        }
        let which = (source as u64) << 32 | target as u64;
        let noise = 1.0
            + RTT_JITTER_SHARE * (2.0 * uniform_for(self.plan.seed ^ 0x9406e, which, self.now as u64) - 1.0);
        let hops = route_hops(source, target, route);
        self.observe(source, target, "hops", Metric::Hops(hops));
        self.observe(source, target, "rtt", Metric::Rtt { us: rtt * noise * 1e6 });
    }

    fn observe(&mut self, source: usize, target: usize, kind: &str, metric: Metric) {
        let at = self.service_time();
        let place = |site: usize| Endpoint::Storage(StorageId(site as u64));
        let number = [source.to_string(), target.to_string(), at.0.to_string()];
        let observation = Observation {
            id: ObservationId::from_parts(&[kind, &number[0], &number[1], &number[2]]),
            subject: Subject::Path {
                source: place(source),
                target: place(target),
                path: PathSelector::over_family(Family::Ipv4),
            },
            at,
            origin: Origin::Probe,
            mapping: Mapping::Explicit,
            metric,
        };
        // After a leap of the clock they may be too late to count, as anywhere.
        self.scheduler_stale |= self.scheduler.observe(observation, at).is_ok();
    }
}

/// The borders of both sites, and between them routers of their pair; others after a change of the route.
fn route_hops(source: usize, target: usize, route: u64) -> Vec<Option<IpAddr>> {
    let border = |site: usize| Ipv4Addr::from(0x0a00_0000 | (site as u32 & 0xffff) << 8 | 1);
    let which = mix((source as u64) << 32 | target as u64) ^ route;
    let between = (0..ROUTERS_PER_LINK)
        .map(|hop| Ipv4Addr::from(0x0b00_0000 | (mix(which) as u32 & 0xffff) << 8 | u32::from(hop)));
    let all = [border(source)].into_iter().chain(between).chain([border(target)]);
    all.map(|address| Some(IpAddr::V4(address))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_route_has_the_same_borders_and_other_routers() {
        let (before, after) = (route_hops(1, 2, 0), route_hops(1, 2, 7));
        assert_eq!((before.first(), before.last()), (after.first(), after.last()));
        assert!(before[1..4].iter().zip(&after[1..4]).all(|(one, other)| one != other));
        assert_eq!(before, route_hops(1, 2, 0));
        assert_ne!(before[1], route_hops(2, 1, 0)[1]);
    }
}
