//! Preconnect and early requests: over long paths, messages are sent without waiting for answers that cost a
//! round trip.

use std::net::TcpListener;
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, FaultCode};
use longhaul_wire::{Answer, Frame, VERSIONS, Welcome};

use crate::common::fake::Wire;
use crate::common::{Deployment, put, store};

const SOURCE: u64 = 1;

/// A peer that delays its welcome until the first request arrives.
#[test]
fn requests_are_sent_before_the_welcome() {
    let deployment = Deployment::new();
    let target = deployment.agent_with(2, vec![std::sync::Arc::new(store("beta"))], |config| {
        config.streams_per_session = 1;
        config.fixed_streams = true;
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = put(&store("alpha"), 1, 3 * CHUNK_BYTES as usize);
    let source = deployment.agent(SOURCE, std::sync::Arc::new(store("alpha")));
    let mut batch = deployment.batch(&source, "alpha", &target, "beta", vec![file]);
    batch.addresses = vec![listener.local_addr().unwrap().to_string()];
    target.engine.fetch(batch);
    let mut wire = Wire::accept(&listener, &deployment.credentials(AgentId(SOURCE)));
    let next = |wire: &mut Wire| wire.receive().map(|(frame, _)| frame);
    assert!(matches!(next(&mut wire), Some(Frame::Hello(_))));
    assert!(matches!(next(&mut wire), Some(Frame::Manifest(_))));
    assert!(matches!(next(&mut wire), Some(Frame::Request { .. })));
    // A version that was never offered is still refused, whatever has been requested.
    wire.send(&Frame::Welcome(Welcome { version: 999, incarnation: 7 }), &[]);
    assert_eq!(wire.goodbye().unwrap().code, FaultCode::VersionMismatch);
    let end = target.finished(1).remove(0);
    assert_eq!(end.result.unwrap_err().code, FaultCode::VersionMismatch);
}

#[test]
fn calls_are_sent_before_the_welcome() {
    let deployment = Deployment::new();
    let asks = deployment.agent(2, std::sync::Arc::new(store("beta")));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = vec![listener.local_addr().unwrap().to_string()];
    std::thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let channel = asks.engine.channel(&addresses, Duration::from_secs(30)).unwrap();
            channel.call(b"what is there?")
        });
        let mut wire = Wire::accept(&listener, &deployment.credentials(AgentId(SOURCE)));
        assert!(matches!(wire.receive(), Some((Frame::OpenCalls { .. }, _))));
        let Some((Frame::Call(call), _)) = wire.receive() else { panic!("no call before the welcome") };
        wire.send(&Frame::Welcome(Welcome { version: VERSIONS.newest, incarnation: 0 }), &[]);
        wire.send(&Frame::Answer(Answer { number: call.number, body: Ok(b"nothing".to_vec()) }), &[]);
        assert_eq!(answered.join().unwrap().unwrap(), b"nothing");
    });
}

/// The only address in the batch is closed: the file comes over the preconnected streams.
#[test]
fn preconnected_streams_are_used() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let source = deployment.agent(SOURCE, std::sync::Arc::new(alpha.clone()));
    let target = deployment.agent(2, std::sync::Arc::new(beta.clone()));
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let file = put(&alpha, 1, 5 * CHUNK_BYTES as usize);
    target.engine.preconnect(&source.addresses());
    let mut batch = deployment.batch(&source, "alpha", &target, "beta", vec![file.clone()]);
    batch.addresses = vec![closed.to_string()];
    target.engine.fetch(batch);
    let end = target.finished(1).remove(0);
    assert!(end.result.is_ok(), "{:?}", end.result);
    assert!(alpha.contents(file.lfn.as_str()) == beta.contents(file.lfn.as_str()));
}
