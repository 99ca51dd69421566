//! Access control, and hostile or broken peers: they can only end their own streams.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_engine::{FetchBatch, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, Blame, FaultCode, Lfn};
use longhaul_security::Permit;
use longhaul_storage::memory::FaultyStore;
use longhaul_wire::{
    BatchId, ChunkHead, FileNumber, Frame, Manifest, ManifestFile, PackEntry, PackHead, RequestId,
    SourceIdentity, VersionRange,
};

use crate::common::fake::{self, Wire, good_hello, hello};
use crate::common::{Agent, Deployment, assert_moved, content, wish};

const CHUNK: usize = CHUNK_BYTES as usize;

struct Two {
    deployment: Deployment,
    source: Agent,
    target: Agent,
    beta: FaultyStore,
    files: Vec<FetchFile>,
}

fn two() -> Two {
    let deployment = Deployment::new();
    let alpha = FaultyStore::new("alpha".parse().unwrap());
    let beta = FaultyStore::new("beta".parse().unwrap());
    let files = [100, 3 * CHUNK]
        .iter()
        .zip(1..)
        .map(|(&len, number)| {
            let lfn = format!("f{number}");
            alpha.put(&lfn, &content(number, len));
            wish(number, &lfn, &content(number, len))
        })
        .collect();
    let source = deployment.agent(1, Arc::new(alpha));
    let target = deployment.agent(2, Arc::new(beta.clone()));
    Two { deployment, source, target, beta, files }
}

impl Two {
    fn batch(&self) -> FetchBatch {
        self.deployment.batch(&self.source, "alpha", &self.target, "beta", self.files.clone())
    }

    fn refused_with(&self, batch: FetchBatch, code: FaultCode) -> Blame {
        self.target.engine.fetch(batch);
        let ends = self.target.finished(self.files.len());
        for end in &ends {
            assert_eq!(end.result.as_ref().unwrap_err().code, code, "{:?}", end.result);
            assert_eq!(end.bytes_moved, 0);
        }
        assert_eq!(self.source.engine.snapshot().bytes_out, 0);
        ends[0].result.as_ref().unwrap_err().blame
    }

    /// The source serves other peers as before.
    fn still_serves(&self) {
        self.target.engine.fetch(self.batch());
        assert!(self.target.finished(2).iter().all(|end| end.result.is_ok()));
        assert_eq!(self.beta.names().len(), 2);
    }
}

/// Promise 9: nothing is read without a permit for exactly that.
#[test]
fn every_part_of_a_permit_is_checked() {
    let two = two();
    let changes: [fn(&mut Permit); 5] = [
        |permit| permit.target_agent = AgentId(99),
        |permit| permit.source_agent = AgentId(99),
        |permit| permit.source_storage = "other".parse().unwrap(),
        |permit| permit.list_digest = [0; 32],
        |permit| permit.expires = crate::common::now() - Duration::from_secs(1),
    ];
    for change in changes {
        let mut batch = two.batch();
        batch.permit = two.deployment.permit(&batch, two.target.agent, change);
        two.refused_with(batch, FaultCode::PermitRefused);
    }
    let other = Deployment::new();
    let mut batch = two.batch();
    batch.permit = other.permit(&batch, two.target.agent, |_| {});
    assert_eq!(two.refused_with(batch, FaultCode::PermitRefused), Blame::Credential);
    let mut batch = two.batch();
    batch.files[0].lfn = "f2".parse::<Lfn>().unwrap();
    two.refused_with(batch, FaultCode::PermitRefused);
    two.still_serves();
}

#[test]
fn an_agent_of_another_deployment_is_refused() {
    let two = two();
    let foreign = Deployment::new();
    let store = FaultyStore::new("beta".parse().unwrap());
    let target = foreign.agent(2, Arc::new(store.clone()));
    let batch = foreign.batch(&two.source, "alpha", &target, "beta", two.files.clone());
    target.engine.fetch(batch);
    for end in target.finished(2) {
        let fault = end.result.unwrap_err();
        assert_eq!((fault.code, fault.blame), (FaultCode::ForeignDeployment, Blame::Credential), "{fault}");
    }
    assert!(store.names().is_empty());
    two.still_serves();
}

/// An agent other than the one in the lease: no file is accepted from it.
#[test]
fn an_unexpected_agent_at_the_address_is_refused() {
    let two = two();
    let mut batch = two.batch();
    batch.source_agent = AgentId(55);
    two.refused_with(batch, FaultCode::Unreachable);
    two.still_serves();
}

#[test]
fn garbage_ends_only_its_own_connection() {
    let two = two();
    let address = &two.source.addresses()[0];
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0; 4096],
        &[0xff; 70_000],
        &[22, 3, 1, 0xff, 0xff],
        b"\x16\x03\x01\x00\x05hello",
    ] {
        let mut socket = TcpStream::connect(address).unwrap();
        let _ = socket.write_all(garbage);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut rest = Vec::new();
        // It closes the connection, with an alert at most.
        let _ = socket.read_to_end(&mut rest);
        assert!(rest.len() < 100, "{rest:?}");
    }
    two.still_serves();
}

#[test]
fn many_idle_connections_do_not_block_others() {
    let two = two();
    let idle: Vec<TcpStream> =
        (0..200).map(|_| TcpStream::connect(&two.source.addresses()[0]).unwrap()).collect();
    two.still_serves();
    drop(idle);
}

/// A connection that sends nothing is closed after the handshake timeout.
#[test]
fn a_silent_connection_times_out() {
    let two = two();
    let mut socket = TcpStream::connect(&two.source.addresses()[0]).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).expect("the source hangs up");
    let mut half = TcpStream::connect(&two.source.addresses()[0]).unwrap();
    half.write_all(&[22, 3, 1, 1, 0, 1]).unwrap();
    half.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    half.read_to_end(&mut rest).expect("the source hangs up");
    two.still_serves();
}

#[test]
fn protocol_violations_end_the_stream_with_a_reason() {
    let two = two();
    let address = &two.source.addresses()[0];
    let credentials = two.deployment.credentials(AgentId(3));
    let say = |frames: &[Vec<u8>]| {
        let mut wire = Wire::dial(address, &credentials);
        frames.iter().for_each(|frame| wire.send_raw(frame));
        wire.goodbye().expect("a reason").code
    };
    let welcomed = || good_hello().encode(0);
    let mut oversized = Frame::Ping { number: 1 }.encode(0);
    oversized[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(say(&[welcomed(), oversized.clone()]), FaultCode::ProtocolError);
    assert_eq!(say(&[oversized]), FaultCode::ProtocolError, "before the hello, too");
    assert_eq!(say(&[Frame::Ping { number: 1 }.encode(0)]), FaultCode::ProtocolError, "no hello");
    assert_eq!(say(&[welcomed(), welcomed()]), FaultCode::ProtocolError, "a second hello");
    assert_eq!(say(&[vec![7; 5_000]]), FaultCode::ProtocolError);
    let strange = VersionRange { oldest: 900, newest: 901 };
    assert_eq!(say(&[hello(strange, 1, 1).encode(0)]), FaultCode::VersionMismatch);
    let data = Frame::Data(ChunkHead {
        request: RequestId(0),
        file: FileNumber(0),
        offset: 0,
        crc32c: 0,
        identity: SourceIdentity { size: 0, mtime_ns: 0, inode: 0 },
    });
    assert_eq!(say(&[welcomed(), data.encode(0)]), FaultCode::ProtocolError, "a receiver sends no data");
    two.still_serves();
}

/// The join key admits to a session: another stream of the same agent without it is refused.
#[test]
fn joining_a_session_requires_its_key() {
    let two = two();
    let address = &two.source.addresses()[0];
    let credentials = two.deployment.credentials(AgentId(3));
    let mut first = Wire::dial(address, &credentials);
    first.send(&hello(longhaul_wire::VERSIONS, 9, 1), &[]);
    assert!(matches!(first.receive(), Some((Frame::Welcome(_), _))));
    let mut second = Wire::dial(address, &credentials);
    second.send(&hello(longhaul_wire::VERSIONS, 9, 2), &[]);
    assert_eq!(second.goodbye().unwrap().code, FaultCode::NotAuthenticated);
    let mut third = Wire::dial(address, &credentials);
    third.send(&hello(longhaul_wire::VERSIONS, 9, 1), &[]);
    assert!(matches!(third.receive(), Some((Frame::Welcome(_), _))));
}

/// Promise 9: an agent of the deployment without an accepted permit gets faults for every request.
#[test]
fn requests_beyond_the_permit_are_refused() {
    let two = two();
    let mut wire = Wire::dial(&two.source.addresses()[0], &two.deployment.credentials(AgentId(3)));
    wire.send(&good_hello(), &[]);
    assert!(matches!(wire.receive(), Some((Frame::Welcome(_), _))));
    let mut answer = |frame: &Frame| {
        wire.send(frame, &[]);
        wire.receive().expect("an answer").0
    };
    let request = RequestId(0);
    let fault = |frame: Frame| match frame {
        Frame::FileFault { fault, .. } => fault.code,
        Frame::PackData(PackHead { entries, .. }) => match &entries[0] {
            PackEntry::Fault { fault, .. } => fault.code,
            entry => panic!("{entry:?}"),
        },
        Frame::ManifestAnswer { fault, .. } => fault.expect("a refusal").code,
        frame => panic!("{frame:?}"),
    };
    let chunk = Frame::Request { request, file: FileNumber(5), offset: 0, len: 10 };
    assert_eq!(fault(answer(&chunk)), FaultCode::PermitRefused);
    let pack = Frame::RequestPack { request, files: vec![FileNumber(5), FileNumber(6)] };
    assert_eq!(fault(answer(&pack)), FaultCode::PermitRefused);
    let mut stolen = two.batch();
    let manifest = |batch: &FetchBatch| {
        let listed = |file: &FetchFile| ManifestFile {
            attempt: file.attempt,
            transfer: file.transfer,
            lfn: file.lfn.clone(),
            size: file.size,
        };
        Frame::Manifest(Manifest {
            batch: BatchId(0),
            first: FileNumber(0),
            permit: Some(batch.permit.clone()),
            storage: batch.source_storage.clone(),
            last_part: true,
            files: batch.files.iter().map(listed).collect(),
        })
    };
    assert_eq!(fault(answer(&manifest(&stolen))), FaultCode::PermitRefused, "it is another agent's permit");
    let first = Frame::RequestPack { request, files: vec![FileNumber(0)] };
    assert_eq!(fault(answer(&first)), FaultCode::PermitRefused);
    // With a permit of its own it gets these files, and no byte beyond.
    stolen.permit = two.deployment.permit(&stolen, AgentId(3), |_| {});
    assert_eq!(answer(&manifest(&stolen)), Frame::ManifestAnswer { batch: BatchId(0), fault: None });
    let beyond = Frame::Request { request, file: FileNumber(1), offset: 3 * CHUNK as u64, len: 1 };
    assert_eq!(fault(answer(&beyond)), FaultCode::ProtocolError);
    let unlisted = Frame::RequestPack { request, files: vec![FileNumber(2)] };
    assert_eq!(fault(answer(&unlisted)), FaultCode::PermitRefused);
    let not_small = Frame::RequestPack { request, files: vec![FileNumber(1)] };
    assert_eq!(fault(answer(&not_small)), FaultCode::ProtocolError);
    assert!(matches!(answer(&first), Frame::PackData(head) if matches!(head.entries[0],
            PackEntry::Whole { size: 100, .. })));
}

/// The answers of a hand-driven source to requests for one file of three chunks.
fn answers(frame: &Frame, bytes: &[u8], spoil: bool) -> Vec<(Frame, Vec<u8>)> {
    let Frame::Request { request, file, offset, len } = *frame else { return Vec::new() };
    let identity = SourceIdentity { size: bytes.len() as u64, mtime_ns: 1, inode: 1 };
    (offset..offset + len)
        .step_by(CHUNK)
        .map(|at| {
            let part = bytes[at as usize..((at as usize) + CHUNK).min(bytes.len())].to_vec();
            let crc32c = crc32c::crc32c(&part) ^ u32::from(spoil && at == 0);
            (Frame::Data(ChunkHead { request, file, offset: at, crc32c, identity }), part)
        })
        .collect()
}

fn serve_by_hand(wire: &mut Wire, bytes: &[u8], mut spoil: impl FnMut(&Frame) -> bool) {
    while let Some((frame, _)) = wire.receive() {
        match &frame {
            Frame::Manifest(manifest) if manifest.last_part => {
                wire.send(&Frame::ManifestAnswer { batch: manifest.batch, fault: None }, &[]);
            }
            Frame::Ping { number } => wire.send(&Frame::Pong { number: *number }, &[]),
            _ => {
                let spoil = spoil(&frame);
                for (frame, payload) in answers(&frame, bytes, spoil) {
                    wire.send(&frame, &payload);
                }
            }
        }
    }
}

fn batch_by_hand(two: &Two, address: String, bytes: &[u8]) -> FetchBatch {
    let mut batch = two.batch();
    batch.source_agent = AgentId(9);
    batch.addresses = vec![address];
    batch.files = vec![wish(50, "by-hand", bytes)];
    batch
}

/// Promise 2: a chunk with a wrong checksum is requested again, and counted.
#[test]
fn damaged_chunks_are_requested_again() {
    let two = two();
    let bytes = content(50, 3 * CHUNK);
    let (served, spoiled) = (bytes.clone(), Arc::new(AtomicUsize::new(0)));
    let address = fake::source(&two.deployment, 9, move |wire, _| {
        let spoiled = spoiled.clone();
        serve_by_hand(wire, &served, |frame| {
            matches!(frame, Frame::Request { offset: 0, .. }) && spoiled.fetch_add(1, Ordering::SeqCst) < 2
        });
    });
    two.target.engine.fetch(batch_by_hand(&two, address, &bytes));
    let end = &two.target.finished(1)[0];
    assert!(end.result.is_ok(), "{:?}", end.result);
    assert_moved(end, 5 * CHUNK);
    assert_eq!(end.bytes_resent, end.bytes_moved - 3 * CHUNK as u64);
    assert!(two.beta.contents("by-hand").unwrap() == bytes);
}

#[test]
fn repeated_damage_ends_in_a_fault() {
    let two = two();
    let bytes = content(50, 2 * CHUNK);
    let served = bytes.clone();
    let address = fake::source(&two.deployment, 9, move |wire, _| serve_by_hand(wire, &served, |_| true));
    two.target.engine.fetch(batch_by_hand(&two, address, &bytes));
    let fault = two.target.finished(1)[0].result.clone().unwrap_err();
    assert_eq!((fault.code, fault.blame), (FaultCode::Corrupted, Blame::Network));
    assert_eq!(two.beta.names().len(), 0);
}

/// A broken stream is replaced, and what was in flight on it is sent again; a source that is gone is a fault.
#[test]
fn broken_streams_are_replaced() {
    let two = two();
    let bytes = content(50, 20 * CHUNK);
    let served = bytes.clone();
    let address = fake::source(&two.deployment, 9, move |wire, number| {
        let mut answered = 0;
        while let Some((frame, _)) = wire.receive() {
            if let Frame::Manifest(manifest) = &frame {
                wire.send(&Frame::ManifestAnswer { batch: manifest.batch, fault: None }, &[]);
            }
            for (frame, payload) in answers(&frame, &served, false) {
                answered += 1;
                if number < 4 && answered > 2 {
                    // In the middle of a payload.
                    let bytes = frame.encode(payload.len() as u32);
                    wire.send_raw(&bytes);
                    wire.send_raw(&payload[..payload.len() / 2]);
                    return;
                }
                wire.send(&frame, &payload);
            }
        }
    });
    two.target.engine.fetch(batch_by_hand(&two, address, &bytes));
    let end = &two.target.finished(1)[0];
    assert!(end.result.is_ok(), "{:?}", end.result);
    assert!(end.bytes_resent <= 4 * CHUNK as u64, "{}", end.bytes_resent);
    assert_eq!(end.bytes_moved, 20 * CHUNK as u64 + end.bytes_resent);
}

/// A peer that stays alive at the TCP level, welcomes streams, and then sends nothing.
#[test]
fn a_silent_source_is_a_network_fault() {
    let two = two();
    let bytes = content(50, 3 * CHUNK);
    let address = fake::source(&two.deployment, 9, |wire, _| while wire.receive().is_some() {});
    two.target.engine.fetch(batch_by_hand(&two, address, &bytes));
    assert_eq!(two.target.started().0, 50);
    let fault = two.target.finished(1)[0].result.clone().unwrap_err();
    assert_eq!((fault.code, fault.blame), (FaultCode::Stalled, Blame::Network), "{fault}");
    two.still_serves();
}

/// Promise 7: the memory budget bounds the streams, and a peer beyond it receives the reason.
#[test]
fn streams_beyond_the_memory_budget_are_refused() {
    let two = two();
    let credentials = two.deployment.credentials(AgentId(3));
    let mut held = Vec::new();
    let refused = (0..200u8).find_map(|number| {
        let mut wire = Wire::dial(&two.source.addresses()[0], &credentials);
        wire.send(&hello(longhaul_wire::VERSIONS, number, 1), &[]);
        match wire.receive() {
            Some((Frame::Welcome(_), _)) => {
                held.push(wire);
                None
            }
            Some((Frame::Goodbye { fault }, _)) => fault,
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(refused.expect("a bound").code, FaultCode::Busy);
    // More, if some of the first ones were given up meanwhile, since nobody answers their pings.
    assert!(held.len() >= 32, "{}", held.len());
    drop(held);
    two.still_serves();
}
