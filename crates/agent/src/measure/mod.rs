//! What the agent measures: the ways to peers, when the service asks for it, those from sources, as its
//! transfers show them, and the uplinks of its site. Results wait here for the next report; what does not
//! arrive is measured anew.
//!
//! Not here: how a way is looked at (`doctor::probe`), whom to look at and what it means (`service`).

pub(crate) mod paths;
pub(crate) mod probes;
pub(crate) mod uplinks;

use std::collections::VecDeque;
use std::sync::Mutex;

use longhaul_api::probe::{
    PATHS_MAX, PROBES_MAX, PathSample, ProbeAsked, ProbeResult, UPLINKS_MAX, UplinkSample,
};
use tokio::sync::Notify;

use crate::threads::locked;

/// Peers that wait to be looked at; the service asks for one every few seconds.
const ASKED_MAX: usize = 16;

pub(crate) struct Measures {
    /// Whether the administrator lets peers be looked at.
    probing: bool,
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Default)]
struct State {
    asked: VecDeque<ProbeAsked>,
    found: Found,
}

/// What waits to be told.
#[derive(Default)]
pub(crate) struct Found {
    pub probes: VecDeque<ProbeResult>,
    pub uplinks: VecDeque<UplinkSample>,
    pub paths: VecDeque<PathSample>,
}

impl Measures {
    pub(crate) fn new(probing: bool) -> Self {
        Measures { probing, state: Mutex::default(), asked: Notify::new() }
    }

    /// The service wants these looked at. A peer that waits already waits once; the oldest wish goes.
    pub(crate) fn ask(&self, peers: Vec<ProbeAsked>) {
        if !self.probing {
            return;
        }
        let mut state = locked(&self.state);
        for peer in peers {
            state.asked.retain(|waiting| waiting.agent != peer.agent);
            push(&mut state.asked, peer, ASKED_MAX);
        }
        self.asked.notify_one();
    }

    /// For a report.
    pub(crate) fn take(&self) -> Found {
        std::mem::take(&mut locked(&self.state).found)
    }

    fn found(&self, result: ProbeResult) {
        push(&mut locked(&self.state).found.probes, result, PROBES_MAX);
    }

    /// Of an interface only the last counts.
    fn counted(&self, sample: UplinkSample) {
        let uplinks = &mut locked(&self.state).found.uplinks;
        uplinks.retain(|known| known.interface != sample.interface);
        push(uplinks, sample, UPLINKS_MAX);
    }

    fn travelled(&self, sample: PathSample) {
        push(&mut locked(&self.state).found.paths, sample, PATHS_MAX);
    }

    async fn next(&self) -> ProbeAsked {
        loop {
            let asked = self.asked.notified();
            if let Some(peer) = locked(&self.state).asked.pop_front() {
                return peer;
            }
            asked.await;
        }
    }
}

fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) {
    if queue.len() >= most {
        queue.pop_front();
    }
    queue.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::AgentId;

    #[tokio::test]
    async fn wishes_are_bounded_and_wait_once() {
        let measures = Measures::new(true);
        let peer = |number| ProbeAsked { agent: AgentId(number), addresses: vec![format!("h{number}:1")] };
        measures.ask((0..ASKED_MAX as u64 + 4).map(peer).collect());
        measures.ask(vec![peer(9)]);
        let state_len = locked(&measures.state).asked.len();
        assert_eq!(state_len, ASKED_MAX);
        assert_eq!(measures.next().await, peer(4), "the oldest went");
        let rest: Vec<u64> = locked(&measures.state).asked.iter().map(|peer| peer.agent.0).collect();
        assert_eq!(rest.iter().filter(|&&agent| agent == 9).count(), 1);
        assert_eq!(rest.last(), Some(&9));
    }
}
