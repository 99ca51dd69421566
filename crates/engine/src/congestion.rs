//! Congestion control selection ([`longhaul_wire::congestion`]) per peer address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use longhaul_wire::PathReport;
use longhaul_wire::congestion::CongestionControlSelector;
use parking_lot::Mutex;

/// Addresses remembered. Beyond this, all of them are forgotten.
const PEERS_MAX: usize = 4_096;

/// The congestion control selectors of all peers.
#[derive(Default)]
pub(crate) struct CongestionControls(Mutex<BTreeMap<IpAddr, CongestionControlSelector>>);

impl CongestionControls {
    /// Adds what one stream to the peer reported. Returns whether its streams should use BBR.
    pub(crate) fn observe(
        &self,
        peer: IpAddr,
        seen: &PathReport,
        round_trip_min: Duration,
        by_rate: bool,
        now: Duration,
    ) -> bool {
        let mut peers = self.0.lock();
        if peers.len() >= PEERS_MAX && !peers.contains_key(&peer) {
            peers.clear();
        }
        let congestion = peers.entry(peer).or_default();
        congestion.observe(seen, round_trip_min, by_rate, now);
        congestion.prefers_rate_based()
    }

    pub(crate) fn refused(&self, peer: IpAddr, now: Duration) {
        self.0.lock().entry(peer).or_default().rate_based_refused(now);
    }
}
