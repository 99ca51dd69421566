//! Packet marking: sockets, fireflies, and traffic counters per mark.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_engine::{AttemptOutcome, Config, FetchBatch, Marking};
use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Mark, SciTag};
use longhaul_storage::memory::FaultyStore;
use longhaul_testkit::wait_until;
use longhaul_wire::Frame;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_recv_buffer_size_force};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::common::fake::{Wire, good_hello};
use crate::common::{Agent, Deployment, put, resent_max, store};

const CHUNK: usize = CHUNK_BYTES as usize;
/// Timeout for a firefly.
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);
/// TCP bytes beside the payload: handshakes, frame heads, record tags.
const BESIDE: u64 = 100_000;
const TAP_BUFFER_BYTES: usize = 16 << 20;

/// Listens for fireflies.
struct Collector(UdpSocket);

impl Collector {
    fn new() -> Collector {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
        Collector(socket)
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    fn next(&self) -> Firefly {
        let mut bytes = [0; 2_000];
        let len = self.0.recv(&mut bytes).expect("a firefly");
        let text = std::str::from_utf8(&bytes[..len]).unwrap();
        let (head, document) = text.split_once(" longhaul - firefly-json - ").expect("a syslog header");
        assert!(head.starts_with("<134>1 ") && head.ends_with(" dtn1"), "{head}");
        Firefly(serde_json::from_str(document).unwrap())
    }

    /// All fireflies sent so far: loopback datagrams are delivered at once.
    fn rest(&self) -> Vec<Firefly> {
        let mut all = Vec::new();
        loop {
            self.0.set_nonblocking(true).unwrap();
            let some = self.0.peek(&mut [0]).is_ok();
            self.0.set_nonblocking(false).unwrap();
            if !some {
                return all;
            }
            all.push(self.next());
        }
    }
}

struct Firefly(serde_json::Value);

impl Firefly {
    fn state(&self) -> &str {
        self.0["flow-lifecycle"]["state"].as_str().unwrap()
    }

    fn activity(&self) -> u64 {
        self.0["context"]["activity-id"].as_u64().unwrap()
    }

    fn sent(&self) -> u64 {
        self.0["usage"]["sent"].as_u64().unwrap()
    }

    fn ports(&self) -> (u64, u64) {
        let flow = &self.0["flow-id"];
        (flow["src-port"].as_u64().unwrap(), flow["dst-port"].as_u64().unwrap())
    }
}

fn mark(activity: u8, dscp: &str) -> Mark {
    Mark { scitag: Some(SciTag::new(3, activity).unwrap()), dscp: dscp.parse().ok() }
}

struct Pair {
    deployment: Deployment,
    alpha: FaultyStore,
    source: Agent,
    target: Agent,
}

impl Pair {
    fn new(source: Option<Marking>, target: Option<Marking>) -> Pair {
        Pair::with(source, target, |_| ())
    }

    /// The same with another configuration of the target.
    fn with(source: Option<Marking>, target: Option<Marking>, change: impl FnOnce(&mut Config)) -> Pair {
        let deployment = Deployment::new();
        let (alpha, beta) = (store("alpha"), store("beta"));
        let source = deployment.agent_with(1, vec![Arc::new(alpha.clone())], |config| {
            config.marking = source;
            let loop_back = "[::1]:0".parse().unwrap();
            if std::net::TcpListener::bind::<SocketAddr>(loop_back).is_ok() {
                config.listen = vec![loop_back];
            }
        });
        let target = deployment.agent_with(2, vec![Arc::new(beta)], |config| {
            config.marking = target;
            change(config);
        });
        Pair { deployment, alpha, source, target }
    }

    fn fetch(&self, number: u64, bytes: usize, mark: Mark) -> AttemptOutcome {
        let file = put(&self.alpha, number, bytes);
        let batch = self.deployment.batch(&self.source, "alpha", &self.target, "beta", vec![file]);
        self.target.engine.fetch(FetchBatch { mark, ..batch });
        let end = self.target.finished(1).remove(0);
        assert!(end.result.is_ok(), "{end:?}");
        end
    }

    fn port(&self) -> u16 {
        self.source.engine.data_addresses()[0].port()
    }

    /// The DSCPs of the sockets at both ends of the streams.
    fn classes(&self) -> Vec<u32> {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap();
        let fds = fds.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse::<i32>().ok());
        let own_process = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        let class = |fd: i32| {
            // A duplicate: the engine may close its own descriptor meanwhile.
            let fd = pidfd_getfd(&own_process, fd, PidfdGetfdFlags::empty()).ok()?;
            let socket = SockRef::from(&fd);
            let (own, peer) = (socket.local_addr().ok()?.as_socket()?, socket.peer_addr().ok()?.as_socket()?);
            let is_ours = own.port() == self.port() || peer.port() == self.port();
            let class = if own.is_ipv6() { socket.tclass_v6() } else { socket.tos_v4() };
            class.ok().filter(|_| is_ours)
        };
        let mut classes: Vec<u32> = fds.filter_map(class).collect();
        classes.sort_unstable();
        classes
    }
}

/// A captured TCP packet over IPv6.
#[derive(Debug)]
struct Packet {
    class: u8,
    label: u32,
    from: u16,
    to: u16,
    /// Follows the IPv6 header.
    len: usize,
}

impl Packet {
    fn read(bytes: &[u8]) -> Option<Packet> {
        const TCP: u8 = 6;
        let (head, rest) = bytes.split_at_checked(40)?;
        let two = |at: usize| Some(u16::from_be_bytes([*rest.get(at)?, *rest.get(at + 1)?]));
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let len = u16::from_be_bytes([head[4], head[5]]).into();
        let (class, label) = ((first >> 20) as u8, first & 0xF_FFFF);
        (head[6] == TCP).then_some(())?;
        Some(Packet { class, label, from: two(0)?, to: two(2)?, len })
    }
}

/// Captures IPv6 packets; needs the privilege to do so.
struct Tap(Socket);

impl Tap {
    fn new() -> Option<Tap> {
        const ETH_P_IPV6: u16 = 0x86DD;
        let protocol = Protocol::from(i32::from(ETH_P_IPV6.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, Some(protocol)).ok()?;
        // For all that a test sends: a packet counts with its data, of which the reader takes only the head.
        let sized = set_socket_recv_buffer_size_force(&socket, TAP_BUFFER_BYTES);
        sized.or_else(|_| set_socket_recv_buffer_size(&socket, TAP_BUFFER_BYTES)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        Some(Tap(socket))
    }

    /// The packets captured during an operation, as far as the reader keeps up.
    fn during(&self, what: impl FnOnce()) -> Vec<Packet> {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let (mut all, mut packet) = (Vec::new(), [0; 128]);
                loop {
                    // Packets that passed before its end are read first.
                    let last = done.load(Ordering::Acquire);
                    match (&self.0).read(&mut packet) {
                        Ok(len) => all.extend(Packet::read(&packet[..len])),
                        Err(_) if last => return all,
                        Err(_) => {}
                    }
                }
            });
            what();
            done.store(true, Ordering::Release);
            reader.join().unwrap()
        })
    }
}

fn marking(collector: Option<&Collector>) -> Marking {
    Marking {
        flow_label: true,
        dscp: true,
        collectors: collector.map(Collector::address).into_iter().collect(),
        host: "dtn1".into(),
        ..Marking::default()
    }
}

#[test]
fn fireflies_report_the_start_and_end_of_each_flow() {
    let (at_source, at_target) = (Collector::new(), Collector::new());
    let pair = Pair::new(Some(marking(Some(&at_source))), Some(marking(Some(&at_target))));
    let sizes = [(12, 9 * CHUNK), (13, 3 * CHUNK)];
    let mut again = 0;
    for (activity, bytes) in sizes {
        again += resent_max(&pair.fetch(activity, bytes, mark(activity as u8, "cs1")));
    }
    assert_eq!(pair.target.engine.snapshot().sessions.len(), 2, "each mark has streams of its own");
    for engine in [&pair.target.engine, &pair.source.engine] {
        let marking = || engine.snapshot().marking.unwrap();
        let counted = || marking().marks.iter().map(|row| row.bytes_in + row.bytes_out).collect::<Vec<u64>>();
        // Payload, and each byte once. The source may learn the mark after it has sent everything.
        let is_complete = || {
            let counted = counted();
            let mut pairs = counted.iter().zip(sizes.map(|(_, bytes)| bytes as u64));
            counted.len() == sizes.len()
                && pairs.all(|(counted, bytes)| (bytes..=bytes + again).contains(counted))
        };
        wait_until(is_complete, || format!("{:?}", counted()));
        assert_eq!(marking().fireflies_dropped, 0);
    }
    let port = u64::from(pair.port());
    // Both ends of a closed stream report its end.
    drop(pair);
    for collector in [&at_target, &at_source] {
        let all = collector.rest();
        for (activity, bytes) in sizes {
            let of: Vec<&Firefly> = all.iter().filter(|firefly| firefly.activity() == activity).collect();
            let starts = of.iter().filter(|firefly| firefly.state() == "start").count();
            let ends: Vec<&&Firefly> = of.iter().filter(|firefly| firefly.state() == "end").collect();
            assert!(starts >= 1 && starts == ends.len(), "{starts} beginnings, {} ends", ends.len());
            let sent: u64 = ends.iter().map(|end| end.sent()).sum();
            let least = bytes as u64;
            assert!((least..least + again + BESIDE).contains(&sent), "{sent} bytes of activity {activity}");
            for firefly in of {
                let (source, target) = firefly.ports();
                assert!(source == port && target != port, "the source is who sends the data");
                assert!(firefly.0["netlink"]["rtt"].as_f64().unwrap() > 0.0);
            }
        }
    }
}

#[test]
fn both_ends_mark_their_packets() {
    let pair = Pair::new(Some(marking(None)), Some(marking(None)));
    pair.fetch(1, CHUNK, mark(1, "af11"));
    let is_right = |classes: &[u32]| classes.len() >= 2 && classes.iter().all(|&class| class == 10 << 2);
    wait_until(|| is_right(&pair.classes()), || format!("{:?}", pair.classes()));
}

/// The marks as seen on the wire: a target marks from its first packet, a source once it has received the
/// mark, a round trip after the stream begins.
#[test]
fn packets_carry_the_flow_label_and_the_dscp() {
    let Some(tap) = Tap::new() else {
        // The same as in `longhaul_testbed::needs`.
        assert!(std::env::var("CI").is_err(), "packets cannot be read off the wire");
        return eprintln!("\n*** NOT RUN: marks on the wire: packets cannot be read off it ***\n");
    };
    // With one stream the second file comes over the one whose mark the source has learnt with the first.
    let pair = Pair::with(Some(marking(None)), Some(marking(None)), |config| {
        (config.streams_per_session, config.fixed_streams) = (1, true);
    });
    assert!(pair.source.engine.data_addresses()[0].is_ipv6(), "IPv4 has no labels");
    let wanted = mark(26, "af11");
    let port = pair.port();
    let is_marked = |packet: &&Packet| packet.class == 10 << 2;
    let is_labelled = |packet: &&Packet| SciTag::from_flow_label(packet.label) == wanted.scitag;
    let first = tap.during(|| drop(pair.fetch(1, 4 * CHUNK, wanted)));
    // What is on its way still belongs to the first.
    tap.during(|| ());
    let then = tap.during(|| drop(pair.fetch(2, 4 * CHUNK, wanted)));
    let asked: Vec<&Packet> = first.iter().chain(&then).filter(|packet| packet.to == port).collect();
    assert!(asked.iter().all(|packet| is_marked(packet) && is_labelled(packet)), "{asked:x?}");
    let streams: BTreeSet<u16> =
        first.iter().filter(|packet| packet.to == port).map(|packet| packet.from).collect();
    let of_source = then.iter().filter(|packet| packet.from == port && streams.contains(&packet.to));
    // Longer than any other packet.
    let data: Vec<&Packet> = of_source.filter(|packet| packet.len > 16_000).collect();
    assert!(!data.is_empty() && data.iter().all(is_marked), "{data:x?}");
    // An accepted connection reflects the flow label of its peer where the kernel can be configured to.
    let refuses = std::fs::read_to_string("/proc/sys/net/ipv6/flowlabel_consistency");
    let reflects = std::fs::read_to_string("/proc/sys/net/ipv6/flowlabel_reflect");
    let is = |text: std::io::Result<String>, what: &str| text.is_ok_and(|text| text.trim() == what);
    if is(reflects, "1") || is(refuses, "0") {
        assert!(data.iter().all(is_labelled), "{data:x?}");
    }
}

#[test]
fn fireflies_can_be_sent_to_the_flow_target() {
    let at_target = Collector::new();
    // The data reaches this listener only if both ends use IPv4.
    let deployment = Deployment::new();
    let (alpha, beta) = (store("alpha"), store("beta"));
    let source = deployment.agent_with(1, vec![Arc::new(alpha.clone())], |config| {
        config.marking = Some(Marking { target_port: Some(at_target.address().port()), ..marking(None) });
    });
    let target =
        deployment.agent_with(2, vec![Arc::new(beta)], |config| config.marking = Some(marking(None)));
    let pair = Pair { deployment, alpha, source, target };
    pair.fetch(1, CHUNK, mark(7, "cs0"));
    let first = at_target.next();
    assert_eq!((first.state(), first.activity()), ("start", 7));
    assert_eq!(first.ports().0, u64::from(pair.port()));
    drop(pair);
    assert!(at_target.rest().iter().any(|firefly| firefly.state() == "end"));
}

#[test]
fn disabled_marking_sends_nothing() {
    let collector = Collector::new();
    // The source is able to, and is not asked; the target is asked, and is not able to.
    let pair = Pair::new(Some(marking(Some(&collector))), None);
    pair.fetch(1, CHUNK, mark(1, "af11"));
    pair.fetch(2, CHUNK, mark(2, "cs1"));
    let snapshot = pair.target.engine.snapshot();
    assert_eq!(snapshot.sessions.len(), 1, "all work shares its streams");
    assert_eq!(snapshot.marking, None);
    assert!(pair.classes().iter().all(|&class| class == 0));
    drop(pair);
    assert_eq!(collector.rest().len(), 0);
    // An empty mark counts as none.
    let pair = Pair::new(Some(marking(Some(&collector))), Some(marking(Some(&collector))));
    pair.fetch(1, CHUNK, Mark::default());
    drop(pair);
    assert_eq!(collector.rest().len(), 0);
}

/// Without this limit a peer could trigger any number of fireflies.
#[test]
fn a_second_mark_ends_the_stream() {
    let collector = Collector::new();
    let deployment = Deployment::new();
    let source = deployment.agent_with(1, vec![Arc::new(store("alpha"))], |config| {
        config.marking = Some(marking(Some(&collector)));
    });
    let credentials = deployment.credentials(longhaul_model::AgentId(2));
    let mut wire = Wire::dial(&source.addresses()[0], &credentials);
    wire.send(&good_hello(), &[]);
    assert!(matches!(wire.receive(), Some((Frame::Welcome(_), _))));
    for activity in [1, 2] {
        wire.send(&Frame::Mark(mark(activity, "cs1")), &[]);
    }
    assert!(wire.goodbye().unwrap().detail.contains("one mark"));
    drop(source);
    let told = collector.rest();
    let told: Vec<(&str, u64)> = told.iter().map(|firefly| (firefly.state(), firefly.activity())).collect();
    assert_eq!(told, [("start", 1), ("end", 1)]);
}

/// An absent or unreachable collector costs nothing but a count.
#[test]
fn absent_collectors_are_harmless() {
    let gone = Collector::new().address();
    let nowhere = "[2001:db8::1]:10514".parse().unwrap();
    let marking = Marking { collectors: vec![gone, nowhere, gone], ..marking(None) };
    let pair = Pair::new(None, Some(marking));
    pair.fetch(1, 5 * CHUNK, mark(1, "cs1"));
    let told = pair.target.engine.snapshot().marking.unwrap();
    assert!(told.fireflies_sent + told.fireflies_dropped >= 3);
}
