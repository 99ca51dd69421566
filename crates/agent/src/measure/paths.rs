//! Passive path measurement: loss and round-trip times of running transfers.
//!
//! The kernels at both ends count packets, retransmissions and round trips of each stream, and the engine's
//! sessions sum them up; here are the differences since the last sample. Paths over a circuit are left out:
//! they say nothing about the shared path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::probe::{PathLimit, PathSample};
use longhaul_engine::{BottleneckCause, SessionSnapshot};
use longhaul_model::{AgentId, Timestamp, TrafficClass};

use super::Measurements;
use crate::circuits::Circuits;
use crate::clock::ServiceClock;
use crate::mover::MoverHandle;
use crate::step::{AgentTime, PeriodicLoop, Ticker};

/// Sampling interval, that of uplinks. Idle sessions live longer.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum packets of a sample: fewer say nothing about loss.
const SAMPLE_PACKETS_MIN: u64 = 100;

/// Samples the engine's sessions periodically, without those on a circuit.
pub(crate) struct PathMeasurement {
    engine: MoverHandle,
    circuits: Arc<Circuits>,
    measurements: Arc<Measurements>,
    clock: ServiceClock,
    sampler: PathSampler,
    ticker: Ticker,
}

impl PathMeasurement {
    pub(crate) fn new(
        engine: MoverHandle,
        circuits: Arc<Circuits>,
        measurements: Arc<Measurements>,
        clock: ServiceClock,
    ) -> Self {
        let (sampler, ticker) = (PathSampler::default(), Ticker::new(SAMPLE_INTERVAL));
        PathMeasurement { engine, circuits, measurements, clock, sampler, ticker }
    }
}

impl PeriodicLoop for PathMeasurement {
    fn step(&mut self, now: AgentTime) -> Option<AgentTime> {
        if let Some(during) = self.ticker.tick(now) {
            let sessions = self.engine.snapshot().sessions;
            let on_circuit = |address: &SocketAddr| self.circuits.is_circuit_address(address);
            let plain = sessions.iter().filter(|session| !session.addresses.iter().any(on_circuit));
            for sample in self.sampler.sample(plain, during.as_secs_f64(), self.clock.now()) {
                self.measurements.add_path_sample(sample);
            }
        }
        self.ticker.due()
    }
}

/// Counters of the sessions at the last sample.
#[derive(Default)]
struct PathSampler {
    before: BTreeMap<(AgentId, Duration), PathCounters>,
}

#[derive(Clone, Copy, Default)]
struct PathCounters {
    bytes: u64,
    packets: u64,
    resent: u64,
}

impl PathCounters {
    fn from_session(session: &SessionSnapshot) -> PathCounters {
        let path = &session.path;
        PathCounters { bytes: path.acked_bytes, packets: path.segments, resent: path.retransmits }
    }

    fn since(self, before: PathCounters) -> PathCounters {
        PathCounters {
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            resent: self.resent.saturating_sub(before.resent),
        }
    }
}

impl PathSampler {
    /// One sample for each source with enough packets. Of several sessions with one source, the busiest one
    /// determines the limiting factor.
    fn sample<'a>(
        &mut self,
        sessions: impl Iterator<Item = &'a SessionSnapshot>,
        seconds: f64,
        at: Timestamp,
    ) -> Vec<PathSample> {
        let mut seen = BTreeMap::new();
        let mut samples: BTreeMap<AgentId, (PathSample, u64)> = BTreeMap::new();
        for session in sessions.filter(|session| !session.multi_source) {
            let key = (session.source, session.started);
            let all = PathCounters::from_session(session);
            seen.insert(key, all);
            let new = all.since(self.before.get(&key).copied().unwrap_or_default());
            let Some(sample) = path_sample(session, new, seconds, at) else { continue };
            match samples.get_mut(&session.source) {
                None => drop(samples.insert(session.source, (sample, new.packets))),
                Some((known, most)) => merge_sample(known, most, sample),
            }
        }
        self.before = seen;
        samples.into_values().map(|(sample, _)| sample).collect()
    }
}

fn path_sample(
    session: &SessionSnapshot,
    new: PathCounters,
    seconds: f64,
    at: Timestamp,
) -> Option<PathSample> {
    let rtt_us = u32::try_from(session.path.round_trip_min.as_micros()).ok().filter(|us| *us > 0)?;
    (new.packets >= SAMPLE_PACKETS_MIN && seconds > 0.0).then(|| PathSample {
        source: session.source,
        at,
        seconds,
        ipv6: session.addresses.first().map(SocketAddr::is_ipv6),
        streams: u32::try_from(session.path.streams).unwrap_or(u32::MAX),
        bytes: new.bytes,
        packets: new.packets,
        // A packet lost in one interval may be sent again in the next.
        resent: new.resent.min(new.packets),
        rtt_us,
        limit: path_limit(session),
    })
}

/// What limits a session; none for the scavenger class, which holds itself back.
fn path_limit(session: &SessionSnapshot) -> Option<PathLimit> {
    match session.path.cause.filter(|_| session.class != TrafficClass::Scavenger)? {
        BottleneckCause::Network => Some(PathLimit::Congestion),
        BottleneckCause::SourceIdle => Some(PathLimit::Application),
        BottleneckCause::SendBuffer => Some(PathLimit::SendBuffer),
        BottleneckCause::ReceiveWindow => Some(PathLimit::ReceiveWindow),
        // Our own disk or a configured limit.
        BottleneckCause::TargetBackpressure => None,
    }
}

/// Merges a sample into another of the same source; `most` is the packet count of the session that determines
/// the limit.
fn merge_sample(known: &mut PathSample, most: &mut u64, other: PathSample) {
    known.streams = known.streams.saturating_add(other.streams);
    known.bytes = known.bytes.saturating_add(other.bytes);
    known.packets = known.packets.saturating_add(other.packets);
    known.resent = known.resent.saturating_add(other.resent);
    known.rtt_us = known.rtt_us.min(other.rtt_us);
    if other.packets > *most {
        (*most, known.limit, known.ipv6) = (other.packets, other.limit, other.ipv6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_engine::PathSnapshot;

    fn session(source: u64, begun_s: u64, segments: u64, cause: Option<BottleneckCause>) -> SessionSnapshot {
        let path = PathSnapshot {
            streams: 2,
            round_trip_min: Duration::from_millis(20 + begun_s),
            acked_bytes: segments * 1_448,
            segments,
            retransmits: segments / 100,
            cause,
            ..PathSnapshot::default()
        };
        SessionSnapshot {
            source: AgentId(source),
            multi_source: false,
            class: TrafficClass::default(),
            circuits: Default::default(),
            started: Duration::from_secs(begun_s),
            addresses: vec!["192.0.2.1:7470".parse().unwrap()],
            path,
        }
    }

    #[test]
    fn a_sample_is_the_difference_to_the_last_one() {
        let mut watch = PathSampler::default();
        let mut look = |sessions: &[SessionSnapshot]| watch.sample(sessions.iter(), 30.0, Timestamp::ZERO);
        let first = look(&[session(1, 0, 1_000, Some(BottleneckCause::ReceiveWindow))]);
        assert_eq!((first[0].packets, first[0].resent, first[0].rtt_us), (1_000, 10, 20_000));
        assert_eq!((first[0].limit, first[0].ipv6), (Some(PathLimit::ReceiveWindow), Some(false)));
        assert_eq!(look(&[session(1, 0, 1_050, None)]), [], "too few packets");
        let next = look(&[session(1, 0, 3_050, None)]);
        assert_eq!((next[0].packets, next[0].bytes), (2_000, 2_000 * 1_448), "from the last look on");
        // A new session with the same source starts from zero.
        let anew = look(&[session(1, 5, 500, None)]);
        assert_eq!((anew[0].packets, anew[0].rtt_us), (500, 25_000));
    }

    #[test]
    fn sessions_are_sampled_every_30_s() {
        let engine: MoverHandle = Arc::new(Box::new(crate::tests::fake_engine::FakeEngine::silent()));
        let clock = ServiceClock::new(Arc::new(|| Timestamp::ZERO), 0);
        let measurements = Arc::new(Measurements::new(true));
        let mut paths = PathMeasurement::new(engine, Arc::default(), measurements, clock);
        let s = Duration::from_secs;
        assert_eq!(crate::step::tests::drive(&mut paths, s(5), s(100)), [5, 35, 65, 95].map(s));
    }

    #[test]
    fn sessions_with_one_source_are_one_sample() {
        let scavenger = SessionSnapshot {
            class: TrafficClass::Scavenger,
            ..session(1, 2, 50_000, Some(BottleneckCause::ReceiveWindow))
        };
        let mixed =
            SessionSnapshot { multi_source: true, ..session(2, 0, 5_000, Some(BottleneckCause::Network)) };
        let all = [session(1, 0, 1_000, Some(BottleneckCause::Network)), scavenger, mixed];
        let told = PathSampler::default().sample(all.iter(), 30.0, Timestamp::ZERO);
        assert_eq!(told.len(), 1, "of several sources at once nobody knows which way lost what");
        assert_eq!((told[0].packets, told[0].streams, told[0].rtt_us), (51_000, 4, 20_000));
        assert_eq!(told[0].limit, None, "one that gives way says nothing of limits");
        let silent = session(3, 0, 1_000, None);
        let unmeasured = SessionSnapshot {
            path: PathSnapshot { round_trip_min: Duration::ZERO, ..silent.path },
            ..silent
        };
        assert_eq!(PathSampler::default().sample([unmeasured].iter(), 30.0, Timestamp::ZERO), []);
    }
}
