//! Looks at a way over the emulated network: round trip, packet size, black holes and silence are those that
//! were set.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use longhaul_doctor::facts::Traffic;
use longhaul_doctor::probe::{PathProbe, Reach, probe_peer};
use longhaul_testbed::needs;
use longhaul_testbed::wan::{Change, Lab, PathConfig, Side};

const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Two sites with jumbo frames, and a port at the right one over both families.
struct Two {
    lab: Lab,
    listeners: Vec<TcpListener>,
}

impl Two {
    fn start() -> Option<Two> {
        if let Err(why) = Lab::available() {
            needs::not_run("looks over the emulated network", &why);
            return None;
        }
        let lab = Lab::start(&[PathConfig::new(20.0).mtu(9_000)]).unwrap();
        let addresses: [IpAddr; 2] =
            [lab.address(Side::Right, 0).into(), lab.address_v6(Side::Right, 0).into()];
        let listen = |address| lab.inside(Side::Right, || TcpListener::bind(SocketAddr::new(address, 0)));
        let listeners = addresses.map(|address| listen(address).unwrap().unwrap()).into();
        Some(Two { lab, listeners })
    }

    /// From the left, IPv4 first.
    fn probe(&self) -> Vec<PathProbe> {
        let addresses: Vec<String> =
            self.listeners.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
        let ways = self.lab.inside(Side::Left, || probe_peer(&addresses, PROBE_TIMEOUT)).unwrap().unwrap();
        assert_eq!(ways.len(), 2, "both families, side by side");
        ways
    }
}

#[test]
fn a_look_finds_the_way_as_it_is() {
    let Some(two) = Two::start() else { return };
    for way in two.probe() {
        assert_eq!(way.reach, Reach::Answers, "{way:?}");
        assert!(way.rtt_us().unwrap() >= 20_000, "{way:?}");
        assert_eq!((way.mtu, way.black_hole), (Some(9_000), false), "{way:?}");
        assert_eq!(way.hops, [Some(way.address.ip())], "there is no router: {way:?}");
    }
    two.lab.set(0, Change::RttMs(60.0)).unwrap();
    for way in two.probe() {
        assert!(way.rtt_us().unwrap() >= 60_000, "{way:?}");
    }
    two.lab.set(0, Change::RttMs(4.0)).unwrap();
    // Connections begin as ever: their packets are small.
    two.lab.set(0, Change::BlackHole(Some(1_460))).unwrap();
    for way in two.probe() {
        assert_eq!(way.reach, Reach::Answers, "{way:?}");
        assert_eq!((way.mtu, way.black_hole), (Some(1_450), true), "{way:?}");
    }
    two.lab.set(0, Change::BlackHole(None)).unwrap();
    assert!(two.probe().iter().all(|way| way.mtu == Some(9_000) && !way.black_hole));
    two.lab.set(0, Change::Cut).unwrap();
    assert!(two.probe().iter().all(|way| way.reach == Reach::Silent));
    two.lab.set(0, Change::Restore).unwrap();
    assert!(two.probe().iter().all(|way| way.reach == Reach::Answers));
}

#[test]
fn what_passes_an_interface_of_a_namespace_is_counted() {
    let Some(two) = Two::start() else { return };
    let names =
        two.lab.inside(Side::Left, || std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap().unwrap();
    let device =
        names.lines().filter_map(|line| Some(line.split_once(':')?.0.trim())).find(|name| *name != "lo");
    let device = device.expect("a path has a device");
    let count = || two.lab.inside(Side::Left, || Traffic::read(Path::new("/"), device)).unwrap().unwrap();
    let before = count();
    two.probe();
    let after = count();
    // Each look sends the beginning of a greeting with two large segments, over both families.
    assert!(after.sent_bytes > before.sent_bytes + 2 * 16_000, "{before:?} {after:?}");
    assert!(after.received_bytes > before.received_bytes, "{before:?} {after:?}");
    assert!(
        Traffic::read(Path::new("/"), device).is_none_or(|here| here != after),
        "it is of that namespace"
    );
}
