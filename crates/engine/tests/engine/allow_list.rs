//! Access control: by address before the handshake, and by certificate name after it; refusals are reported
//! to the peer and counted.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use longhaul_engine::Snapshot;
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, FaultCode};
use longhaul_security::Access;
use longhaul_storage::hooked::HookedStorage;
use longhaul_storage::memory::FaultyStore;
use longhaul_testkit::wait_until;

use crate::common::{Agent, Deployment, content, store, wish};

const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

fn source(deployment: &Deployment, access: Access) -> (Agent, FaultyStore) {
    let storage = store("alpha");
    let source = deployment.agent_with(1, vec![Arc::new(storage.clone())], |config| config.access = access);
    (source, storage)
}

/// Counters change on other threads.
fn until(agent: &Agent, good: impl Fn(&Snapshot) -> bool) {
    wait_until(|| good(&agent.engine.snapshot()), || format!("{:?}", agent.engine.snapshot()));
}

#[test]
fn a_refused_address_gets_one_alert() {
    let deployment = Deployment::new();
    let access = Access { addresses: vec!["192.0.2.0/24".parse().unwrap()], ..Access::default() };
    let (source, _) = source(&deployment, access);
    let mut socket = TcpStream::connect(source.engine.data_addresses()[0]).unwrap();
    socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    // The data it sends first is not read.
    socket.write_all(&[22, 3, 1, 0, 5, 1, 0, 0, 1, 0]).unwrap();
    let mut heard = Vec::new();
    socket.read_to_end(&mut heard).unwrap();
    assert_eq!(heard, [21, 3, 3, 0, 2, 2, 49], "access_denied, and the end");
    until(&source, |now| now.refused_addresses == 1);
    // An agent of this crate reports it as a fault.
    let caller = deployment.agent(2, Arc::new(store("beta")));
    let address = source.engine.data_addresses()[0].to_string();
    let fault = caller.engine.channel(&[address], WAIT_TIMEOUT).unwrap_err();
    assert_eq!(fault.code, FaultCode::NotAllowed, "{fault}");
    assert!(fault.detail.contains("certain addresses"), "{fault}");
    assert_eq!(source.engine.snapshot().refused_subjects, 0);
}

#[test]
fn many_refused_connections_do_not_block_others() {
    let deployment = Deployment::new();
    let access = Access { addresses: vec!["127.0.0.1".parse().unwrap()], ..Access::default() };
    let (source, storage) = source(&deployment, access);
    let bytes = content(3, 100_000);
    storage.put("f", &bytes);
    let address = source.engine.data_addresses()[0];
    // 127.0.0.2 is another address of this host.
    let crowd: Vec<_> = (0..200)
        .map(|_| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
            socket.connect(&address.into()).unwrap();
            socket
        })
        .collect();
    let target = deployment.agent(2, Arc::new(store("beta")));
    let wanted = vec![wish(1, "f", &bytes)];
    target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", wanted));
    assert!(target.finished(1).remove(0).result.is_ok());
    until(&source, |now| now.refused_addresses == 200);
    drop(crowd);
}

#[test]
fn a_refused_subject_gets_the_reason_after_the_handshake() {
    let deployment = Deployment::new();
    let only = format!("longhaul://test/agent/site/{}", AgentId(3));
    let access = Access { subjects: vec![only.parse().unwrap()], ..Access::default() };
    let (source, storage) = source(&deployment, access);
    let bytes = content(4, 50_000);
    storage.put("f", &bytes);
    let stranger = deployment.agent(2, Arc::new(store("beta")));
    let address = source.engine.data_addresses()[0].to_string();
    let asked = stranger.engine.channel(&[address], WAIT_TIMEOUT).and_then(|channel| channel.call(b"?"));
    let fault = asked.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotAllowed, "{fault}");
    assert!(fault.detail.contains(&format!("agent/site/{}", AgentId(2))), "{fault}");
    until(&source, |now| now.refused_subjects >= 1 && now.refused_addresses == 0);
    let friend = deployment.agent(3, Arc::new(store("gamma")));
    let wanted = vec![wish(1, "f", &bytes)];
    friend.engine.fetch(deployment.batch(&source, "alpha", &friend, "gamma", wanted));
    assert!(friend.finished(1).remove(0).result.is_ok());
}

/// A stolen key: its streams end in the middle of a file, and no new ones begin, whoever dials.
#[test]
fn a_refused_peer_loses_its_streams_in_the_middle_of_a_file() {
    for by_source in [true, false] {
        let deployment = Deployment::new();
        let (source, storage) = source(&deployment, Access::default());
        // More than the target's buffers and sockets hold: it cannot have arrived when the refusal comes.
        let bytes = content(5, 80 * CHUNK_BYTES as usize);
        storage.put("f", &bytes);
        let beta = store("beta");
        // The first write waits until the refusal has arrived.
        let (hooked, gate) = HookedStorage::gated(Arc::new(beta.clone()), &[1]);
        let target = deployment.agent(2, hooked);
        let wanted = vec![wish(1, "f", &bytes)];
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", wanted));
        gate.wait();
        let (refusing, refused) = if by_source { (&source, &target) } else { (&target, &source) };
        refusing.engine.refuse_peers(BTreeSet::from([refused.agent]));
        gate.open();
        let fault = target.finished(1).remove(0).result.unwrap_err();
        assert!(fault.detail.contains("refused"), "{fault}");
        assert_eq!(beta.names(), Vec::<String>::new());
        // A friend is not concerned, and the refused one is let in again only if the list says so.
        let bytes = content(6, 8 * CHUNK_BYTES as usize);
        storage.put("g", &bytes);
        let friend = deployment.agent(3, Arc::new(store("gamma")));
        let wanted = vec![wish(2, "g", &bytes)];
        friend.engine.fetch(deployment.batch(&source, "alpha", &friend, "gamma", wanted));
        assert!(friend.finished(1).remove(0).result.is_ok());
        let wanted = vec![wish(3, "g", &bytes)];
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", wanted));
        assert!(target.finished(1).remove(0).result.is_err(), "by source: {by_source}");
        refusing.engine.refuse_peers(BTreeSet::new());
        let wanted = vec![wish(4, "g", &bytes)];
        target.engine.fetch(deployment.batch(&source, "alpha", &target, "beta", wanted));
        assert!(target.finished(1).remove(0).result.is_ok());
    }
}
