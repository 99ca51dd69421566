//! Looks at peers, one after the other.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::{ProbeAsked, ProbeResult, ProbedWay, Reach};
use longhaul_doctor::probe::{self, Way};
use longhaul_model::{Fault, FaultCode};
use tokio::sync::oneshot;

use super::Measurements;
use crate::clock::ServiceClock;

/// A peer that takes longer to answer a connection is as good as silent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs for ever.
pub(crate) async fn run(measures: Arc<Measurements>, clock: ServiceClock) -> Fault {
    loop {
        let peer = measures.next_probe().await;
        let (agent, addresses) = (peer.agent, peer.addresses.clone());
        match probe_peer(peer).await {
            Ok(found) => {
                tracing::debug!(%agent, ?addresses, ?found, "looked at a peer");
                let (ways, fault) = match found {
                    Ok(ways) => (ways.into_iter().map(to_wire).collect(), None),
                    Err(why) => (Vec::new(), Some(why)),
                };
                let at = clock.now();
                measures.add_probe(ProbeResult { agent, at, ways, fault });
            }
            Err(fault) => tracing::warn!(%fault, "a peer could not be looked at"),
        }
    }
}

/// On a thread of its own, which an agent that stops need not wait for: it holds nothing of ours.
async fn probe_peer(peer: ProbeAsked) -> Result<Result<Vec<Way>, String>, Fault> {
    let broken = |why: String| Fault::new(FaultCode::Internal, why);
    let (found, wait) = oneshot::channel();
    let body = move || drop(found.send(probe::look(&peer.addresses, CONNECT_TIMEOUT)));
    std::thread::Builder::new()
        .name("probe".into())
        .spawn(body)
        .map_err(|error| broken(error.to_string()))?;
    wait.await.map_err(|_| broken("the look ended without a result".into()))
}

fn to_wire(way: Way) -> ProbedWay {
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
