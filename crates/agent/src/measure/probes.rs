//! Probes peers on request, one after the other.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::{ProbeAsked, ProbeResult, ProbedWay, Reach};
use longhaul_doctor::probe::{self, PathProbe};
use longhaul_model::{Fault, FaultCode};
use tokio::sync::oneshot;

use super::Measurements;
use crate::clock::ServiceClock;
use crate::step::Step;

/// Time to answer a connection; a slower peer counts as silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Result of a probe: the paths to the peer's addresses, or why there are none. The outer fault is ours.
pub(crate) type ProbeFound = Result<Result<Vec<PathProbe>, String>, Fault>;

/// Probes the peers that the service names, one after the other.
pub(crate) struct Prober {
    measurements: Arc<Measurements>,
    clock: ServiceClock,
    probing: Option<ProbeAsked>,
}

impl Prober {
    pub(crate) fn new(measurements: Arc<Measurements>, clock: ServiceClock) -> Self {
        Prober { measurements, clock, probing: None }
    }

    /// The next peer to probe, if none is being probed.
    pub(crate) fn step(&mut self) -> Step<ProbeAsked> {
        if self.probing.is_some() {
            return Step::wait();
        }
        let Some(peer) = self.measurements.take_probe() else { return Step::wait() };
        self.probing = Some(peer.clone());
        Step::send(peer)
    }

    pub(crate) fn on_found(&mut self, found: ProbeFound) {
        let Some(ProbeAsked { agent, addresses }) = self.probing.take() else { return };
        match found {
            Ok(found) => {
                tracing::debug!(%agent, ?addresses, ?found, "probed a peer");
                let (ways, fault) = match found {
                    Ok(ways) => (ways.into_iter().map(to_wire).collect(), None),
                    Err(why) => (Vec::new(), Some(why)),
                };
                self.measurements.add_probe(ProbeResult { agent, at: self.clock.now(), ways, fault });
            }
            Err(fault) => tracing::warn!(fault = %fault.chain(), "a peer could not be probed"),
        }
    }
}

/// Drives a [`Prober`] with real probes. Never ends.
pub(crate) async fn run(measurements: Arc<Measurements>, clock: ServiceClock) -> Fault {
    let mut prober = Prober::new(measurements.clone(), clock);
    loop {
        match prober.step().send {
            Some(peer) => prober.on_found(probe_peer(peer).await),
            None => measurements.probe_requested().await,
        }
    }
}

/// Probes in a thread of its own, which a stopping agent need not wait for: it holds nothing of ours.
async fn probe_peer(peer: ProbeAsked) -> ProbeFound {
    let broken = |why: String| Fault::new(FaultCode::Internal, why);
    let (found, wait) = oneshot::channel();
    let body = move || drop(found.send(probe::probe_peer(&peer.addresses, CONNECT_TIMEOUT)));
    std::thread::Builder::new()
        .name("probe".into())
        .spawn(body)
        .map_err(|error| broken(error.to_string()).with_source(error))?;
    wait.await.map_err(|_| broken("the look ended without a result".into()))
}

fn to_wire(way: PathProbe) -> ProbedWay {
    ProbedWay {
        address: way.address,
        reach: match way.reach {
            probe::Reach::Answers => Reach::Answers,
            probe::Reach::Refused => Reach::Refused,
            probe::Reach::Silent => Reach::Silent,
            probe::Reach::NoRoute => Reach::NoRoute,
        },
        rtts_us: way.rtts_us,
        mtu: way.mtu,
        black_hole: way.black_hole,
        hops: way.hops,
        unknown: way.unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{AgentId, Timestamp};

    #[test]
    fn one_peer_is_probed_at_a_time_and_each_has_a_result() {
        let measurements = Arc::new(Measurements::new(true));
        let clock = ServiceClock::new(Arc::new(|| Timestamp::from_seconds(7)), 0);
        let mut prober = Prober::new(measurements.clone(), clock);
        assert_eq!(prober.step(), Step::wait());
        let peer = |agent| ProbeAsked { agent: AgentId(agent), addresses: vec!["h:1".into()] };
        measurements.request_probes(vec![peer(1), peer(2), peer(3)]);
        assert_eq!(prober.step(), Step::send(peer(1)));
        assert_eq!(prober.step(), Step::wait(), "one at a time");
        prober.on_found(Ok(Err("no such host".into())));
        assert_eq!(prober.step(), Step::send(peer(2)));
        prober.on_found(Err(Fault::new(FaultCode::Internal, "no thread")));
        assert_eq!(prober.step(), Step::send(peer(3)));
        prober.on_found(Ok(Ok(Vec::new())));
        let found = measurements.take().probes;
        let found: Vec<_> = found.iter().map(|one| (one.agent.0, one.at, one.fault.as_deref())).collect();
        let at = Timestamp::from_seconds(7);
        assert_eq!(found, [(1, at, Some("no such host")), (3, at, None)], "ours says nothing of the peer");
    }
}
