//! Looks at peers, one after the other.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::{ProbeAsked, ProbeResult, ProbedWay, Reach};
use longhaul_doctor::probe::{self, Way};
use longhaul_model::{Fault, FaultCode};
use tokio::sync::oneshot;

use super::Measures;
use crate::clock::ServiceClock;

/// A peer that takes longer to answer a connection is as good as silent.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs for ever.
pub(crate) async fn run(measures: Arc<Measures>, clock: ServiceClock) -> Fault {
    loop {
        let peer = measures.next().await;
        let (agent, addresses) = (peer.agent, peer.addresses.clone());
        match look(peer).await {
            Ok(found) => {
                tracing::debug!(%agent, ?addresses, ?found, "looked at a peer");
                let (ways, fault) = match found {
                    Ok(ways) => (ways.into_iter().map(way).collect(), None),
                    Err(why) => (Vec::new(), Some(why)),
                };
                let at = clock.now();
                measures.found(ProbeResult { agent, at, ways, fault });
            }
            Err(fault) => tracing::warn!(%fault, "a peer could not be looked at"),
        }
    }
}

/// On a thread of its own, which an agent that stops need not wait for: it holds nothing of ours.
async fn look(peer: ProbeAsked) -> Result<Result<Vec<Way>, String>, Fault> {
    let broken = |why: String| Fault::new(FaultCode::Internal, why);
    let (found, wait) = oneshot::channel();
    let body = move || drop(found.send(probe::look(&peer.addresses, PATIENCE)));
    std::thread::Builder::new()
        .name("probe".into())
        .spawn(body)
        .map_err(|error| broken(error.to_string()))?;
    wait.await.map_err(|_| broken("the look ended without a result".into()))
}

fn way(way: Way) -> ProbedWay {
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
