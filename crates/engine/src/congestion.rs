//! By which law streams to each peer are sent, as far as we decide it: [`longhaul_wire::congestion`] for each
//! address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use longhaul_wire::PathReport;
use longhaul_wire::congestion::CongestionControlSelector;

use crate::sync::lock;

/// Addresses that are remembered. With more, all begin anew.
const PEERS_MAX: usize = 4_096;

#[derive(Default)]
pub(crate) struct CongestionControls(Mutex<BTreeMap<IpAddr, CongestionControlSelector>>);

impl CongestionControls {
    /// Takes what one stream to the peer saw; says whether such streams are to go by rate and round trip.
    pub(crate) fn look(
        &self,
        peer: IpAddr,
        seen: &PathReport,
        round_trip_min: Duration,
        by_rate: bool,
        now: Duration,
    ) -> bool {
        let mut peers = lock(&self.0);
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.clear();
        }
        let congestion = peers.entry(peer).or_default();
        congestion.observe(seen, round_trip_min, by_rate, now);
        congestion.prefers_rate_based()
    }

    pub(crate) fn refused(&self, peer: IpAddr, now: Duration) {
        lock(&self.0).entry(peer).or_default().rate_based_refused(now);
    }
}
