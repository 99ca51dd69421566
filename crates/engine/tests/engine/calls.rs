//! Remote procedure calls: over streams of their own, concurrent, bounded, and independent of data streams.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_engine::{Channel, Responder};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{AgentId, FaultCode};
use longhaul_storage::memory::FaultyStore;
use longhaul_wire::limits::{CALL_BYTES_MAX, CALLS_OPEN_MAX};
use longhaul_wire::{Answer, Call, Frame, VERSIONS};

use crate::common::fake::Wire;
use crate::common::{Agent, Deployment, content, store, wish};

const WITHIN: Duration = Duration::from_secs(30);

/// Answers with the reversed text; "wait" blocks until it is released, "panic" panics.
struct Reverse {
    asked: Mutex<Sender<Vec<u8>>>,
    go_on: Mutex<Receiver<()>>,
    gone: Mutex<Sender<AgentId>>,
    waiting: AtomicUsize,
}

/// The test's end of a responder.
struct Control {
    asked: Receiver<Vec<u8>>,
    go_on: Sender<()>,
    gone: Receiver<AgentId>,
    responder: Arc<Reverse>,
}

fn responder() -> Control {
    let ((asked, was_asked), (go_on, may_go_on), (gone, is_gone)) = (channel(), channel(), channel());
    let responder = Arc::new(Reverse {
        asked: Mutex::new(asked),
        go_on: Mutex::new(may_go_on),
        gone: Mutex::new(gone),
        waiting: AtomicUsize::new(0),
    });
    Control { asked: was_asked, go_on, gone: is_gone, responder }
}

impl Responder for Reverse {
    fn answer(&self, peer: AgentId, mut request: Vec<u8>) -> Vec<u8> {
        self.asked.lock().unwrap().send(request.clone()).unwrap();
        if request == b"who am I" {
            return peer.0.to_string().into_bytes();
        }
        if request == b"too much" {
            return vec![0; CALL_BYTES_MAX + 1];
        }
        if request.starts_with(b"wait") {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let _ = self.go_on.lock().unwrap().recv();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        assert!(request != b"panic", "as asked");
        request.reverse();
        request
    }

    fn gone(&self, peer: AgentId) {
        self.gone.lock().unwrap().send(peer).unwrap();
    }
}

fn answering(deployment: &Deployment, control: &Control, storage: FaultyStore) -> Agent {
    let responder: Arc<dyn Responder> = control.responder.clone();
    deployment.agent_with(1, vec![Arc::new(storage)], |config| config.responder = Some(responder))
}

fn open(from: &Agent, to: &Agent) -> Channel {
    from.engine.channel(&to.addresses(), WITHIN).unwrap()
}

#[test]
fn a_call_is_answered_and_the_end_of_a_peer_is_reported() {
    let deployment = Deployment::new();
    let control = responder();
    let server = answering(&deployment, &control, store("alpha"));
    let client = deployment.agent(2, Arc::new(store("beta")));
    let (one, two) = (open(&client, &server), open(&client, &server));
    assert_eq!(one.peer(), server.agent);
    assert_eq!(one.call(b"who am I").unwrap(), b"2");
    assert_eq!(two.call(b"").unwrap(), b"");
    let long = content(1, CALL_BYTES_MAX);
    let reversed: Vec<u8> = long.iter().rev().copied().collect();
    assert!(two.call(&long).unwrap() == reversed);
    // A call that cannot be sent or answered fails alone.
    assert_eq!(two.call(&[0; CALL_BYTES_MAX + 1]).unwrap_err().code, FaultCode::TooLarge);
    assert_eq!(two.call(b"too much").unwrap_err().code, FaultCode::TooLarge);
    assert_eq!(two.call(b"panic").unwrap_err().code, FaultCode::Internal);
    drop(one);
    assert_eq!(two.call(b"abc").unwrap(), b"cba");
    assert!(control.gone.try_recv().is_err(), "one stream is still open");
    drop(two);
    assert_eq!(control.gone.recv_timeout(WITHIN).unwrap(), client.agent);
    // The peer may come back.
    assert_eq!(open(&client, &server).call(b"again").unwrap(), b"niaga");
    assert_eq!(control.gone.recv_timeout(WITHIN).unwrap(), client.agent);
}

#[test]
fn an_agent_without_a_responder_refuses_calls() {
    let deployment = Deployment::new();
    let server = deployment.agent(1, Arc::new(store("alpha")));
    let client = deployment.agent(2, Arc::new(store("beta")));
    // The stream is established, and its first call may be in flight before the peer refuses calls.
    let asked = client.engine.channel(&server.addresses(), WITHIN).and_then(|channel| channel.call(b"?"));
    assert_eq!(asked.unwrap_err().code, FaultCode::NotFound);
    let foreign = Deployment::new().agent(3, Arc::new(store("gamma")));
    let fault = foreign.engine.channel(&server.addresses(), WITHIN).unwrap_err();
    assert_eq!(fault.code, FaultCode::ForeignDeployment, "{fault}");
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let fault = client.engine.channel(&[unused.to_string()], WITHIN).unwrap_err();
    assert_eq!(fault.code, FaultCode::Unreachable);
    // Nobody answers there: the call ends at its timeout.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let fault = client.engine.channel(&[address], Duration::from_millis(100)).unwrap_err();
    assert_eq!(fault.code, FaultCode::Unreachable);
}

/// More calls than may be open at once, from many threads: each gets its own answer.
#[test]
fn concurrent_calls_get_their_own_answers() {
    let deployment = Deployment::new();
    let control = responder();
    let server = answering(&deployment, &control, store("alpha"));
    let client = deployment.agent(2, Arc::new(store("beta")));
    let channel = open(&client, &server);
    std::thread::scope(|scope| {
        for thread in 0..3 * CALLS_OPEN_MAX {
            let channel = &channel;
            scope.spawn(move || {
                for round in 0..20 {
                    let asked = content((thread * 100 + round) as u64, thread * 300 + round);
                    let reversed: Vec<u8> = asked.iter().rev().copied().collect();
                    assert!(channel.call(&asked).unwrap() == reversed);
                }
            });
        }
    });
}

/// Waiting calls do not delay data, and end when the peer does.
#[test]
fn a_slow_answer_does_not_delay_data() {
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let control = responder();
    let server = answering(&deployment, &control, alpha.clone());
    let client = deployment.agent(2, Arc::new(beta));
    let channel = Arc::new(open(&client, &server));
    let calls: Vec<_> = (0..3)
        .map(|_| {
            let channel = channel.clone();
            std::thread::spawn(move || channel.call(b"wait"))
        })
        .collect();
    (0..3).for_each(|_| drop(control.asked.recv_timeout(WITHIN).unwrap()));
    let bytes = content(1, 5 * CHUNK_BYTES as usize);
    alpha.put("f", &bytes);
    client.engine.fetch(deployment.batch(&server, "alpha", &client, "beta", vec![wish(1, "f", &bytes)]));
    assert!(client.finished(1)[0].result.is_ok());
    assert_eq!(channel.call(b"fast").unwrap(), b"tsaf", "there are more answering threads");
    control.go_on.send(()).unwrap();
    let mut calls = calls.into_iter();
    // One of the three is answered; the others learn that the peer has stopped.
    let first = control.responder.clone();
    while first.waiting.load(Ordering::SeqCst) == 3 {
        std::thread::yield_now();
    }
    server.engine.stop();
    let ends: Vec<_> = calls.by_ref().map(|call| call.join().unwrap()).collect();
    assert!(ends.iter().filter(|end| end.is_err()).count() >= 2, "{ends:?}");
    assert!(!channel.is_up() && channel.call(b"more").is_err());
}

/// A peer that sends calls without reading: its stream is closed at the limit, and others are served.
#[test]
fn a_flood_of_calls_ends_its_stream() {
    let deployment = Deployment::new();
    let control = responder();
    let server = answering(&deployment, &control, store("alpha"));
    let client = deployment.agent(2, Arc::new(store("beta")));
    let mut flood = Wire::dial(&server.addresses()[0], &deployment.credentials(AgentId(66)));
    flood.send(&Frame::OpenCalls { versions: VERSIONS }, &[]);
    assert!(matches!(flood.receive(), Some((Frame::Welcome(_), _))));
    for number in 0..=CALLS_OPEN_MAX as u32 {
        flood.send(&Frame::Call(Call { number, body: b"wait".to_vec() }), &[]);
    }
    assert_eq!(flood.goodbye().unwrap().code, FaultCode::ProtocolError);
    // Running calls are answered; the rest of the flood is dropped.
    (0..CALLS_OPEN_MAX).for_each(|_| control.go_on.send(()).unwrap());
    assert_eq!(open(&client, &server).call(b"who am I").unwrap(), b"2");
    // The two may run in either order.
    let gone = || control.gone.recv_timeout(WITHIN).unwrap();
    assert!(gone() == AgentId(66) || gone() == AgentId(66));
    // The last call was not part of the flood.
    assert!(control.asked.try_iter().count() <= CALLS_OPEN_MAX + 1);
}

/// Frames of other roles, and unexpected answers, end the stream that brought them.
#[test]
fn unexpected_frames_end_the_stream() {
    let deployment = Deployment::new();
    let control = responder();
    let server = answering(&deployment, &control, store("alpha"));
    let answer = Frame::Answer(Answer { number: 0, body: Ok(vec![1]) });
    let forget = Frame::Forget { batch: longhaul_wire::BatchId(1) };
    for (opens, frame) in [(true, &answer), (true, &forget), (false, &answer)] {
        let mut wire = Wire::dial(&server.addresses()[0], &deployment.credentials(AgentId(66)));
        if opens {
            wire.send(&Frame::OpenCalls { versions: VERSIONS }, &[]);
        }
        wire.send(frame, &[]);
        assert_eq!(wire.goodbye().unwrap().code, FaultCode::ProtocolError);
    }
    let client = deployment.agent(2, Arc::new(store("beta")));
    assert_eq!(open(&client, &server).call(b"abc").unwrap(), b"cba");
}
