//! Samples the queue and the throughput of each link for the circuit keepers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_circuits::Event;
use longhaul_engine::SessionSnapshot;
use longhaul_model::CircuitUse;

use super::{Circuits, Link, LinkState, QUEUE_ANSWER_CHECKS_MAX};
use crate::command::CircuitCommands;
use crate::mover::MoverHandle;
use crate::outbox_log::OutboxLog;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// Interval of the samples: much shorter than any check of a circuit.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Reports queue and throughput of each link to its keeper every second. Driven only if there are links.
pub(crate) struct LinkSampler {
    circuits: Arc<Circuits>,
    engine: MoverHandle,
    log: Arc<OutboxLog>,
    ticker: Ticker,
}

impl LinkSampler {
    pub(crate) fn new(circuits: Arc<Circuits>, engine: MoverHandle, log: Arc<OutboxLog>) -> Self {
        LinkSampler { circuits, engine, log, ticker: Ticker::immediate(SAMPLE_INTERVAL) }
    }
}

impl PeriodicLoop for LinkSampler {
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if let Some(during) = self.ticker.tick(now) {
            let sessions = self.engine.snapshot().sessions;
            for link in &self.circuits.links {
                sample_link(link, &self.engine, &self.log, &sessions, (now, during));
            }
        }
        self.ticker.due()
    }
}

fn sample_link(
    link: &Link,
    engine: &MoverHandle,
    log: &OutboxLog,
    sessions: &[SessionSnapshot],
    (now, during): (AgentTime, Duration),
) {
    let held = log.bytes_from(&link.config.from);
    let fresh = link
        .circuit
        .settings
        .check_interval
        .saturating_mul(QUEUE_ANSWER_CHECKS_MAX)
        .max(SAMPLE_INTERVAL * QUEUE_ANSWER_CHECKS_MAX);
    let mut state = link.state.lock();
    let ended: Vec<_> = state.ended_transfers.drain(..).collect();
    let ahead = state.ahead.filter(|ahead| now.saturating_sub(ahead.at) <= fresh);
    let moved = state.peer.as_ref().filter(|_| held > 0).and_then(|peer| {
        // Sessions that never use circuits say nothing of what a circuit would carry.
        let goes = |session: &&SessionSnapshot| session.circuits != CircuitUse::Never;
        let own = sessions.iter().filter(|session| session.source == peer.agent).filter(goes);
        bytes_on_path(own, state.circuit, during)
    });
    let (commands_run, brought) = command_traffic(engine, &mut state);
    drop(state);
    let streamed = moved.and_then(|(on_circuit, bytes)| on_circuit.then_some(bytes));
    if streamed.is_some() || brought > 0 || commands_run {
        link.record.lock().add_carried(streamed.unwrap_or_default().saturating_add(brought), during);
    }
    let keeper = link.keeper.lock();
    let Some(keeper) = keeper.as_ref() else { return };
    for (on_circuit, good) in ended {
        keeper.send_event(Event::Transfer { on_circuit, good });
    }
    if let Some((on_circuit, bytes)) = moved {
        keeper.send_event(Event::Moved { on_circuit, bytes, during });
    }
    // Without the service, only what is leased is known.
    let pending_bytes = ahead.map_or(held, |ahead| ahead.bytes.max(held));
    keeper.send_event(Event::Work { pending_bytes, bytes_per_s: ahead.and_then(|ahead| ahead.bytes_per_s) });
}

/// Whether site commands use the circuit, and what they have fetched since the last sample: it is counted
/// when a command ends, so it gives no rate.
fn command_traffic(engine: &MoverHandle, state: &mut LinkState) -> (bool, u64) {
    let Some(agent) = state.peer.as_ref().map(|peer| peer.agent) else { return (false, 0) };
    let CircuitCommands { running, bytes } = engine.commands_on_circuit(agent);
    let before = state.counted_commands.replace((agent, bytes)).filter(|before| before.0 == agent);
    (running > 0, bytes.saturating_sub(before.map_or(0, |before| before.1)))
}

/// Bytes in that time, and whether on the circuit; none while streams migrate from one path to the other.
fn bytes_on_path<'a>(
    sessions: impl Iterator<Item = &'a SessionSnapshot>,
    circuit: Option<SocketAddr>,
    during: Duration,
) -> Option<(bool, u64)> {
    let (mut rate, mut on_circuit, mut beside) = (0.0, false, false);
    for session in sessions {
        rate += session.path.rate;
        let here = session.addresses.iter().filter(|address| Some(**address) == circuit).count();
        on_circuit |= here > 0;
        beside |= here < session.addresses.len();
    }
    (rate > 0.0 && on_circuit != beside).then_some((on_circuit, (rate * during.as_secs_f64()) as u64))
}

#[cfg(test)]
mod tests {
    use longhaul_model::AgentId;

    use super::*;

    #[test]
    fn bytes_count_for_the_path_that_all_streams_use() {
        let (plain, circuit): (SocketAddr, SocketAddr) =
            ("10.0.0.2:1".parse().unwrap(), "10.1.0.2:1".parse().unwrap());
        let session = |addresses: &[SocketAddr], rate| {
            let mut session = SessionSnapshot {
                source: AgentId(1),
                multi_source: false,
                class: Default::default(),
                circuits: Default::default(),
                started: Duration::ZERO,
                addresses: addresses.to_vec(),
                path: Default::default(),
            };
            session.path.rate = rate;
            session
        };
        let seen = |addresses: &[SocketAddr], rate, used| {
            bytes_on_path([session(addresses, rate)].iter(), used, Duration::from_secs(2))
        };
        assert_eq!(seen(&[plain], 100.0, None), Some((false, 200)));
        assert_eq!(seen(&[plain], 100.0, Some(circuit)), Some((false, 200)));
        assert_eq!(seen(&[circuit], 100.0, Some(circuit)), Some((true, 200)));
        assert_eq!(seen(&[plain, circuit], 100.0, Some(circuit)), None);
        assert_eq!(seen(&[plain], 0.0, None), None);
        assert_eq!(seen(&[], 5.0, None), None, "the peer dialled, over whatever way it chose");
    }
}
