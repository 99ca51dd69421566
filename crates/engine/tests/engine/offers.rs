//! Offered streams (push): the source dials, and the target uses its streams as if it had dialled them.

use std::sync::Arc;

use longhaul_engine::{FetchBatch, FetchFile};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, Blame, FaultCode};
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::FaultyStore;
use longhaul_wire::{Frame, VERSIONS};

use crate::common::fake::Wire;
use crate::common::relay::Relay;
use crate::common::{Agent, Deployment, put, store};

const CHUNK: usize = CHUNK_BYTES as usize;

/// A source that does not listen.
fn hidden(deployment: &Deployment, number: u64, storage: FaultyStore) -> Agent {
    deployment.agent_with(number, vec![Arc::new(storage)], |config| config.listen.clear())
}

/// A batch without addresses.
fn batch(deployment: &Deployment, source: &Agent, target: &Agent, files: Vec<FetchFile>) -> FetchBatch {
    let batch = deployment.batch(source, "alpha", target, "beta", files);
    assert!(batch.addresses.is_empty());
    batch
}

fn all_arrived(target: &Agent, alpha: &FaultyStore, beta: &FaultyStore, files: &[FetchFile]) {
    for end in target.finished(files.len()) {
        assert!(end.result.is_ok(), "{:?}", end.result);
    }
    for file in files {
        assert!(alpha.contents(file.lfn.as_str()) == beta.contents(file.lfn.as_str()), "{}", file.lfn);
    }
}

/// Promises 1 and 2, whichever side dials.
#[test]
fn a_source_that_cannot_be_dialled_offers_streams() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let mut sizes = vec![0, 1, CHUNK, CHUNK + 1, 20 * CHUNK + 17, 7 * CHUNK];
    sizes.extend((0..400).map(|n| n * 97 % 70_000));
    let files: Vec<FetchFile> =
        sizes.iter().zip(1..).map(|(&len, number)| put(&alpha, number, len)).collect();
    let source = hidden(&deployment, 1, alpha.clone());
    let target = deployment.agent(2, Arc::new(beta.clone()));
    // The offer may come before or after the work.
    let (early, late) = files.split_at(files.len() / 2);
    target.engine.fetch(batch(&deployment, &source, &target, early.to_vec()));
    let offer = source.engine.offer(&target.addresses(), 3).unwrap();
    all_arrived(&target, &alpha, &beta, early);
    assert_eq!(offer.peer(), Some(target.agent));
    target.engine.fetch(batch(&deployment, &source, &target, late.to_vec()));
    all_arrived(&target, &alpha, &beta, late);
    // What the permit does not cover is refused on such streams as well.
    let file = put(&alpha, 1_000, 10);
    let mut forged = batch(&deployment, &source, &target, vec![file]);
    forged.permit = deployment.permit(&forged, AgentId(99), |_| {});
    target.engine.fetch(forged);
    let fault = target.finished(1).remove(0).result.unwrap_err();
    assert_eq!((fault.code, fault.blame), (FaultCode::PermitRefused, Blame::Credential));
}

#[test]
fn without_address_or_offer_the_source_is_unreachable() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let files = vec![put(&alpha, 1, 100), put(&alpha, 2, 3 * CHUNK)];
    let source = hidden(&deployment, 1, alpha);
    let target = deployment.agent(2, Arc::new(beta));
    // The offer of another agent does not help.
    let other = hidden(&deployment, 3, store("gamma"));
    let _offer = other.engine.offer(&target.addresses(), 1).unwrap();
    target.engine.fetch(batch(&deployment, &source, &target, files));
    for end in target.finished(2) {
        let fault = end.result.unwrap_err();
        assert_eq!((fault.code, fault.blame), (FaultCode::Unreachable, Blame::Network), "{fault}");
    }
    assert_eq!(source.engine.offer(&[], 2).err().unwrap().code, FaultCode::BadRequest);
}

/// Promise 4: the offered streams die in mid-file, twice; the source redials, and what has arrived is kept.
#[test]
fn broken_offered_streams_are_redialled() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let file = put(&alpha, 1, 60 * CHUNK);
    // What is in flight at the first stop does not suffice for the second.
    let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[5, 40]);
    let source = hidden(&deployment, 1, alpha.clone());
    let target = deployment.agent(2, hooked);
    let relay = Relay::to(&target.addresses()[0]);
    let offer = source.engine.offer(std::slice::from_ref(&relay.address), 2).unwrap();
    target.engine.fetch(batch(&deployment, &source, &target, vec![file.clone()]));
    for _ in 0..2 {
        gate.wait();
        assert!(relay.cut() > 0);
        gate.open();
    }
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok(), "{:?}", end.result);
    assert!(alpha.contents("f1") == beta.contents("f1"));
    assert!(offer.fault().is_some(), "the end of the streams is told");
    assert!(end.bytes_moved < 2 * file.size, "{} bytes moved", end.bytes_moved);
}

/// An agent from which no session fetches may offer a bounded number of streams, which stay unused.
#[test]
fn offers_of_unused_sources_are_bounded() {
    let deployment = Deployment::new();
    let target = deployment.agent(2, Arc::new(store("beta")));
    let stranger = deployment.credentials(AgentId(66));
    let mut wires = Vec::new();
    let refused = loop {
        let mut wire = Wire::dial(&target.addresses()[0], &stranger);
        wire.send(&Frame::Offer { versions: VERSIONS }, &[]);
        // An answer to this ping shows that the offer was accepted.
        wire.send(&Frame::Ping { number: 5 }, &[]);
        match wire.receive() {
            Some((Frame::Pong { number: 5 }, _)) => wires.push(wire),
            Some((Frame::Goodbye { fault: Some(fault) }, _)) => break fault,
            other => panic!("{other:?}"),
        }
        assert!(wires.len() < 1_000);
    };
    assert_eq!(refused.code, FaultCode::Busy);
    // More, if some of the first ones were given up meanwhile, since nobody answers their pings.
    assert!(wires.len() >= 32, "{}", wires.len());
    // Unrequested data ends the stream and frees its place.
    let mut wire = wires.pop().unwrap();
    wire.send(&Frame::Welcome(longhaul_wire::Welcome { version: 1, incarnation: 1 }), &[]);
    assert_eq!(wire.goodbye().unwrap().code, FaultCode::ProtocolError);
    let mut wire = Wire::dial(&target.addresses()[0], &stranger);
    wire.send(&Frame::Offer { versions: VERSIONS }, &[]);
    wire.send(&Frame::Ping { number: 6 }, &[]);
    assert!(matches!(wire.receive(), Some((Frame::Pong { number: 6 }, _))));
    // The flood keeps no other peer out.
    let alpha = store("alpha");
    let file = put(&alpha, 1, 100);
    let source = hidden(&deployment, 1, alpha);
    let _offer = source.engine.offer(&target.addresses(), 1).unwrap();
    target.engine.fetch(batch(&deployment, &source, &target, vec![file]));
    assert!(target.finished(1)[0].result.is_ok());
}
