//! Network measurements: probes of peers that the service requests, path samples from running transfers, and
//! counters of the site's uplinks. Results wait here for the next report; what is lost on the way is measured
//! anew.
//!
//! Not here: how to probe (`doctor::probe`), whom to probe and what it means (`service`).

pub(crate) mod paths;
pub(crate) mod probes;
pub(crate) mod uplinks;

use std::collections::VecDeque;

use longhaul_api::probe::{
    PATHS_MAX, PROBES_MAX, PathSample, ProbeAsked, ProbeResult, UPLINKS_MAX, UplinkSample,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Peers that wait to be probed; the service requests one every few seconds.
const PROBE_QUEUE_MAX: usize = 16;

pub(crate) struct Measurements {
    /// Whether the administrator allows probes.
    probing: bool,
    state: Mutex<MeasurementState>,
    probe_requested: Notify,
}

#[derive(Default)]
struct MeasurementState {
    probe_queue: VecDeque<ProbeAsked>,
    unreported: MeasurementBatch,
}

/// Measurements for the next report.
#[derive(Default)]
pub(crate) struct MeasurementBatch {
    pub probes: VecDeque<ProbeResult>,
    pub uplinks: VecDeque<UplinkSample>,
    pub paths: VecDeque<PathSample>,
}

impl Measurements {
    pub(crate) fn new(probing: bool) -> Self {
        Measurements { probing, state: Mutex::default(), probe_requested: Notify::new() }
    }

    /// Queues probes that the service requests. A queued peer is queued once; when full, the oldest goes.
    pub(crate) fn request_probes(&self, peers: Vec<ProbeAsked>) {
        if !self.probing {
            return;
        }
        let mut state = self.state.lock();
        for peer in peers {
            state.probe_queue.retain(|waiting| waiting.agent != peer.agent);
            push_bounded(&mut state.probe_queue, peer, PROBE_QUEUE_MAX);
        }
        self.probe_requested.notify_one();
    }

    /// Takes everything for a report.
    pub(crate) fn take(&self) -> MeasurementBatch {
        std::mem::take(&mut self.state.lock().unreported)
    }

    fn add_probe(&self, result: ProbeResult) {
        push_bounded(&mut self.state.lock().unreported.probes, result, PROBES_MAX);
    }

    /// Adds a sample, in place of an older one of the same interface.
    fn add_uplink_sample(&self, sample: UplinkSample) {
        let uplinks = &mut self.state.lock().unreported.uplinks;
        uplinks.retain(|known| known.interface != sample.interface);
        push_bounded(uplinks, sample, UPLINKS_MAX);
    }

    fn add_path_sample(&self, sample: PathSample) {
        push_bounded(&mut self.state.lock().unreported.paths, sample, PATHS_MAX);
    }

    fn take_probe(&self) -> Option<ProbeAsked> {
        self.state.lock().probe_queue.pop_front()
    }

    /// Completes when probes were requested since it completed last.
    async fn probe_requested(&self) {
        self.probe_requested.notified().await;
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::AgentId;

    #[test]
    fn queued_probes_are_bounded_and_unique() {
        let measures = Measurements::new(true);
        let peer = |number| ProbeAsked { agent: AgentId(number), addresses: vec![format!("h{number}:1")] };
        measures.request_probes((0..PROBE_QUEUE_MAX as u64 + 4).map(peer).collect());
        measures.request_probes(vec![peer(9)]);
        let state_len = measures.state.lock().probe_queue.len();
        assert_eq!(state_len, PROBE_QUEUE_MAX);
        assert_eq!(measures.take_probe(), Some(peer(4)), "the oldest went");
        let rest: Vec<u64> = measures.state.lock().probe_queue.iter().map(|peer| peer.agent.0).collect();
        assert_eq!(rest.iter().filter(|&&agent| agent == 9).count(), 1);
        assert_eq!(rest.last(), Some(&9));
    }
}
