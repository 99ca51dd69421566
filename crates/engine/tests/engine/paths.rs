//! Several addresses of a source: raced (Happy Eyeballs), used in parallel (multi-path), and abandoned when
//! they die.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_engine::{AttemptOutcome, FetchBatch, FetchFile, Path, PathProfile, SessionSnapshot};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Blame, CircuitUse, FaultCode};
use longhaul_storage::hooked::{HookedStorage, WriteGate};
use longhaul_storage::memory::FaultyStore;
use longhaul_wire::{Frame, VERSIONS, Welcome};

use crate::common::fake::{Wire, good_hello};
use crate::common::relay::Relay;
use crate::common::{Agent, Deployment, IN_FLIGHT_MAX, put, resent_max, store};

const CHUNK: usize = CHUNK_BYTES as usize;

/// A transfer over relays that pauses at each of these writes until the test releases it.
struct Paused {
    /// First in drop order: when a test fails, the engines can only stop if their writers continue.
    gate: WriteGate,
    source: Agent,
    target: Agent,
    alpha: FaultyStore,
    beta: FaultyStore,
    relays: Vec<Relay>,
}

fn paused(deployment: &Deployment, relays: usize, streams: usize, stops: &[u64]) -> Paused {
    let (alpha, beta) = (store("alpha"), store("beta"));
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), stops);
    let source = deployment.agent(1, Arc::new(alpha.clone()));
    let target = deployment.agent_with(2, vec![hooked], |config| {
        config.streams_per_session = streams;
        config.fixed_streams = true;
    });
    let relays = (0..relays).map(|_| Relay::to(&source.addresses()[0])).collect();
    Paused { gate, source, target, alpha, beta, relays }
}

impl Paused {
    fn batch(&self, deployment: &Deployment, file: &FetchFile, spread: bool) -> FetchBatch {
        let mut batch = deployment.batch(&self.source, "alpha", &self.target, "beta", vec![file.clone()]);
        batch.addresses = self.relays.iter().map(|relay| relay.address.clone()).collect();
        batch.spread = spread;
        batch
    }

    fn fetch(&self, deployment: &Deployment, file: &FetchFile, spread: bool) {
        self.target.engine.fetch(self.batch(deployment, file, spread));
    }

    fn arrived(&self, file: &FetchFile) -> AttemptOutcome {
        let end = self.target.finished(1).remove(0);
        assert!(end.result.is_ok(), "{:?}", end.result);
        assert!(self.alpha.contents(file.lfn.as_str()) == self.beta.contents(file.lfn.as_str()));
        end
    }
}

#[test]
fn streams_spread_over_all_reachable_addresses() {
    const STREAMS: usize = 6;
    let deployment = Deployment::new();
    let paused = paused(&deployment, 3, STREAMS, &[]);
    paused.relays[1].fall_silent();
    // What limits is the network, as on a path that is worth spreading over. Where it does not, one path may
    // take all work.
    paused.relays.iter().for_each(Relay::slow_down);
    let file = put(&paused.alpha, 1, 60 * CHUNK);
    let uses = |session: &SessionSnapshot, place: usize| {
        session.addresses.iter().any(|address| address.to_string() == paused.relays[place].address)
    };
    // All of them are up before one takes work: the address of a late one would carry less.
    let all_up = |session: &SessionSnapshot| session.path.streams == STREAMS;
    paused.target.fetch_when(paused.batch(&deployment, &file, true), |now| {
        now.sessions.first().is_some_and(|session| all_up(session) && uses(session, 0) && uses(session, 2))
    });
    let sessions = paused.target.engine.snapshot().sessions;
    assert!(!uses(&sessions[0], 1), "{sessions:?}");
    assert_eq!(sessions[0].source, paused.source.agent);
    assert!(sessions[0].path.streams >= 2 && sessions[0].path.round_trip > Duration::ZERO, "{sessions:?}");
    paused.arrived(&file);
    for place in [0, 2] {
        assert!(paused.relays[place].bytes() > 5 * CHUNK as u64, "{}", paused.relays[place].bytes());
    }
}

/// Promise 4: nothing is lost, and no more than what was in flight is sent again.
#[test]
fn a_silent_path_is_abandoned_in_mid_file() {
    for spread in [true, false] {
        let deployment = Deployment::new();
        let paused = paused(&deployment, 2, 4, &[10]);
        let file = put(&paused.alpha, 1, 80 * CHUNK);
        paused.fetch(&deployment, &file, spread);
        paused.gate.wait();
        // The path that all streams use, otherwise any.
        let used = usize::from(paused.relays[0].bytes() < paused.relays[1].bytes());
        paused.relays[used].fall_silent();
        paused.gate.open();
        let end = paused.arrived(&file);
        assert!(end.bytes_resent <= 24 * CHUNK as u64, "{} bytes twice", end.bytes_resent);
        assert!(paused.relays[1 - used].bytes() > 10 * CHUNK as u64, "spread: {spread}");
    }
}

/// A port that accepts and stays silent, and one that is closed, cost a short delay each.
#[test]
fn unreachable_addresses_are_skipped() {
    let deployment = Deployment::new();
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let paused = paused(&deployment, 1, 2, &[]);
    let file = put(&paused.alpha, 1, 3 * CHUNK);
    let mut batch = deployment.batch(&paused.source, "alpha", &paused.target, "beta", vec![file.clone()]);
    batch.addresses.insert(0, closed.to_string());
    batch.addresses.insert(0, mute.local_addr().unwrap().to_string());
    paused.target.engine.fetch(batch);
    paused.arrived(&file);
}

/// A path profile is applied; a setting that the system does not know is logged and harmless.
#[test]
fn a_path_profile_is_applied() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    for (number, congestion) in [(1, "reno"), (2, "no-such-thing")] {
        let profile = PathProfile {
            congestion: Some(congestion.into()),
            pacing_bytes_per_s: Some(400 << 20),
            receive_buffer: Some(1 << 20),
            send_buffer: Some(1 << 20),
            records_per_key: Some(100),
        };
        let with = |config: &mut longhaul_engine::Config| config.path = profile.clone();
        let source = deployment.agent_with(10 * number, vec![Arc::new(alpha.clone())], with);
        let target = deployment.agent_with(10 * number + 1, vec![Arc::new(beta.clone())], with);
        let file = put(&alpha, number, 8 * CHUNK);
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", vec![file]));
        assert!(target.finished(1)[0].result.is_ok());
    }
}

/// In mid-file a path is added and the used one removed; then the configuration is reverted. What was
/// requested on the old path still arrives over it, and nothing is sent twice.
#[test]
fn files_move_to_other_paths_and_return() {
    let deployment = Deployment::new();
    let paused = paused(&deployment, 2, 3, &[10, 60]);
    let file = put(&paused.alpha, 1, 150 * CHUNK);
    let mut batch = deployment.batch(&paused.source, "alpha", &paused.target, "beta", vec![file.clone()]);
    batch.addresses = vec![paused.relays[0].address.clone()];
    paused.target.engine.fetch(batch);
    paused.gate.wait();
    assert_eq!(paused.relays[1].bytes(), 0);
    let other = Path { local: Some("127.0.0.2".parse().unwrap()), ..Path::new(&paused.relays[1].address) };
    let engine = &paused.target.engine;
    engine.set_paths(paused.source.agent, vec![other]).unwrap();
    paused.gate.open();
    paused.gate.wait();
    let before = paused.relays[1].bytes();
    assert!(before > 10 * CHUNK as u64, "{before}");
    assert_eq!(paused.relays[1].peers(), ["127.0.0.2".parse::<std::net::IpAddr>().unwrap()]);
    engine.set_paths(paused.source.agent, Vec::new()).unwrap();
    let first = paused.relays[0].bytes();
    paused.gate.open();
    let end = paused.arrived(&file);
    assert!(end.bytes_resent <= resent_max(&end), "{end:?}");
    assert!(paused.relays[0].bytes() > first + 10 * CHUNK as u64);
    let unusable = Path { weight: 0, ..Path::new("127.0.0.1:1") };
    assert!(engine.set_paths(paused.source.agent, vec![unusable]).is_err());
}

/// The circuit uses `prefer`, `never` and `only`: without a configured path, work of `only` cannot reach its
/// source, and a spare path does not count.
#[test]
fn circuit_uses_prefer_never_and_only_are_honoured() {
    let deployment = Deployment::new();
    let paused = paused(&deployment, 2, 2, &[]);
    let engine = &paused.target.engine;
    let fetch = |number: u64, circuits: CircuitUse| {
        let file = put(&paused.alpha, number, 20 * CHUNK);
        let batch = deployment.batch(&paused.source, "alpha", &paused.target, "beta", vec![file.clone()]);
        let addresses = vec![paused.relays[0].address.clone()];
        engine.fetch(longhaul_engine::FetchBatch { circuits, addresses, ..batch });
        file
    };
    let moved = |circuits: CircuitUse, number: u64| {
        let before = [0, 1].map(|place: usize| paused.relays[place].bytes());
        let file = fetch(number, circuits);
        paused.arrived(&file);
        [0, 1].map(|place: usize| paused.relays[place].bytes() - before[place] > 15 * CHUNK as u64)
    };
    fetch(1, CircuitUse::Only);
    let end = paused.target.finished(1).remove(0);
    assert_eq!(end.result.unwrap_err().code, FaultCode::Unreachable);
    let set = Path::new(&paused.relays[1].address);
    let spare = Path { spare: true, ..Path::new(&paused.relays[0].address) };
    engine.set_paths(paused.source.agent, vec![set, spare.clone()]).unwrap();
    assert_eq!(moved(CircuitUse::Prefer, 2), [false, true]);
    assert_eq!(moved(CircuitUse::Never, 3), [true, false]);
    assert_eq!(moved(CircuitUse::Only, 4), [false, true]);
    let sessions = engine.snapshot().sessions;
    for (circuits, place) in [(CircuitUse::Prefer, 1), (CircuitUse::Never, 0), (CircuitUse::Only, 1)] {
        let session = sessions.iter().find(|session| session.circuits == circuits).unwrap();
        let there: Vec<String> = session.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(there, [paused.relays[place as usize].address.clone()], "{circuits}");
    }
    engine.set_paths(paused.source.agent, vec![spare]).unwrap();
    fetch(5, CircuitUse::Only);
    let fault = paused.target.finished(1).remove(0).result.unwrap_err();
    assert_eq!(fault.blame, Blame::Network, "{fault}");
}

/// A file moves to a path that then falls silent: it continues over the spare path without being told.
#[test]
fn a_spare_path_takes_over_from_a_silent_one() {
    let deployment = Deployment::new();
    let paused = paused(&deployment, 2, 3, &[10, 60]);
    let file = put(&paused.alpha, 1, 150 * CHUNK);
    let mut batch = deployment.batch(&paused.source, "alpha", &paused.target, "beta", vec![file.clone()]);
    batch.addresses = vec![paused.relays[0].address.clone()];
    paused.target.engine.fetch(batch);
    paused.gate.wait();
    let first = Path::new(&paused.relays[1].address);
    let spare = Path { spare: true, ..Path::new(&paused.relays[0].address) };
    paused.target.engine.set_paths(paused.source.agent, vec![spare, first]).unwrap();
    paused.gate.open();
    paused.gate.wait();
    assert!(paused.relays[1].bytes() > 10 * CHUNK as u64, "{}", paused.relays[1].bytes());
    let before = paused.relays[0].bytes();
    paused.relays[1].fall_silent();
    paused.gate.open();
    let end = paused.arrived(&file);
    assert!(end.bytes_resent <= 24 * CHUNK as u64, "{} bytes twice", end.bytes_resent);
    assert!(paused.relays[0].bytes() > before + 10 * CHUNK as u64);
}

/// The path accepts connections and nothing else (as with a broken path MTU): streams on their way to it stay
/// on the spare path.
#[test]
fn a_spare_path_takes_over_from_one_that_never_worked() {
    let deployment = Deployment::new();
    let paused = paused(&deployment, 1, 3, &[10]);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = put(&paused.alpha, 1, 80 * CHUNK);
    let mut batch = deployment.batch(&paused.source, "alpha", &paused.target, "beta", vec![file.clone()]);
    batch.addresses = vec![paused.relays[0].address.clone()];
    paused.target.engine.fetch(batch);
    paused.gate.wait();
    let first = Path::new(mute.local_addr().unwrap().to_string());
    let spare = Path { spare: true, ..Path::new(&paused.relays[0].address) };
    paused.target.engine.set_paths(paused.source.agent, vec![first, spare]).unwrap();
    paused.gate.open();
    let end = paused.arrived(&file);
    // The first two seconds are spent on the path that does not answer.
    assert!(end.bytes_resent <= resent_max(&end).saturating_sub(IN_FLIGHT_MAX), "{end:?}");
}

/// The source dials, and all its streams fall silent: it dials new ones, even if a middlebox still
/// acknowledges its data.
#[test]
fn silent_offered_streams_are_replaced() {
    for die in [Relay::fall_silent, Relay::swallow] {
        let deployment = Deployment::new();
        let paused = paused(&deployment, 0, 2, &[10]);
        let relays = [Relay::to(&paused.target.addresses()[0]), Relay::to(&paused.target.addresses()[0])];
        let addresses: Vec<String> = relays.iter().map(|relay| relay.address.clone()).collect();
        let _offer = paused.source.engine.offer(&addresses, 2).unwrap();
        let file = put(&paused.alpha, 1, 60 * CHUNK);
        paused.fetch(&deployment, &file, false);
        paused.gate.wait();
        die(&relays[0]);
        paused.gate.open();
        paused.arrived(&file);
        assert!(relays[1].bytes() > CHUNK as u64);
    }
}

/// The streams on a circuit share its booked rate, and the source is told; a path without a booking has no
/// limit.
#[test]
fn a_source_is_told_the_booked_rate_of_its_path() {
    const BOOKED: u64 = 10_000_000;
    let deployment = Deployment::new();
    let target = deployment.agent_with(2, vec![Arc::new(store("beta"))], |config| {
        config.streams_per_session = 2;
        config.fixed_streams = true;
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let source = deployment.agent(1, Arc::new(store("alpha")));
    let file = put(&store("alpha"), 1, 30 * CHUNK);
    let batch = deployment.batch(&source, "alpha", &target, "beta", vec![file]);
    let path = Path { reserved_bytes_per_s: Some(BOOKED), ..Path::new(address) };
    target.engine.set_paths(source.agent, vec![path]).unwrap();
    target.engine.fetch(batch);
    let credentials = deployment.credentials(source.agent);
    // The first stream may be alone for a while. Each stream stays, and answers pings, until the other was
    // told, since a stream left alone has the whole rate.
    let told_streams = AtomicUsize::new(0);
    let told = |mut wire: Wire| {
        let mut told = None;
        while told_streams.load(Ordering::SeqCst) < 2
            && let Some((frame, _)) = wire.receive()
        {
            match frame {
                Frame::Hello(_) => {
                    let welcome = Welcome { version: VERSIONS.newest, incarnation: 7 };
                    wire.send(&Frame::Welcome(welcome), &[]);
                }
                Frame::Ping { number } => wire.send(&Frame::Pong { number }, &[]),
                Frame::Pace { bytes_per_s } if bytes_per_s < BOOKED => {
                    let is_first = told.replace(bytes_per_s).is_none();
                    told_streams.fetch_add(usize::from(is_first), Ordering::SeqCst);
                }
                _ => {}
            }
        }
        // The other one waits no longer for a stream that has ended.
        told_streams.store(2, Ordering::SeqCst);
        (told, wire)
    };
    let told: Vec<(_, Wire)> = std::thread::scope(|scope| {
        let streams: Vec<_> = (0..2).map(|_| Wire::accept(&listener, &credentials)).collect();
        let streams: Vec<_> = streams.into_iter().map(|wire| scope.spawn(|| told(wire))).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    let told: Vec<Option<u64>> = told.into_iter().map(|(told, _)| told).collect();
    assert_eq!(told, [Some(BOOKED / 2); 2]);
}

/// A source accepts any pacing rate.
#[test]
fn a_source_accepts_any_pacing_rate() {
    let deployment = Deployment::new();
    let source = deployment.agent(1, Arc::new(store("alpha")));
    let mut wire = Wire::dial(&source.addresses()[0], &deployment.credentials(longhaul_model::AgentId(2)));
    wire.send(&good_hello(), &[]);
    assert!(matches!(wire.receive(), Some((Frame::Welcome(_), _))));
    for bytes_per_s in [0, 1, 1_000_000, u64::MAX] {
        wire.send(&Frame::Pace { bytes_per_s }, &[]);
    }
    wire.send(&Frame::Ping { number: 5 }, &[]);
    assert_eq!(wire.receive().map(|(frame, _)| frame), Some(Frame::Pong { number: 5 }));
}
