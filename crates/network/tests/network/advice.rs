//! Where a link is held up, and what would help, in words that follow from what was measured.

use longhaul_model::{SiteId, StorageId};
use longhaul_network::advice::Family;
use longhaul_network::{
    Bottleneck, Endpoint, Knowledge, Mapping, Metric, Observation, ObservationId, Origin, PathSelector,
    SenderLimit, Subject,
};

use crate::world::{at, link, probe, sites, transfer};

fn tcp(limit: SenderLimit, window_bytes: u64) -> Metric {
    Metric::Tcp {
        bytes_sent: 1_000_000_000,
        bytes_resent: 0,
        rtt_us: 100_000.0,
        mss_bytes: 1_448,
        window_bytes,
        limit: Some(limit),
    }
}

fn measured(rate: f64) -> Knowledge {
    let mut knowledge = sites(4);
    for step in 0..60 {
        transfer(&mut knowledge, link(1, 2), rate as u64, 1.0, f64::from(step));
    }
    knowledge
}

#[test]
fn sender_limits_identify_the_bottleneck() {
    for (limit, window, bottleneck) in [
        (SenderLimit::Application, 0, Bottleneck::SourceRead),
        (SenderLimit::SendBuffer, 0, Bottleneck::SendBuffer),
        (SenderLimit::Congestion, 0, Bottleneck::Network),
        (SenderLimit::ReceiveWindow, 4_000_000, Bottleneck::RemoteWindow),
        (SenderLimit::ReceiveWindow, 400_000_000, Bottleneck::TargetWrite),
    ] {
        let mut knowledge = measured(40e6);
        probe(&mut knowledge, 1, 2, tcp(limit, window), 60.0);
        assert_eq!(knowledge.bottleneck(link(1, 2), at(61.0)), bottleneck, "{limit:?} {window}");
        assert!(
            knowledge.explain(link(1, 2), at(61.0)).iter().any(|line| line.contains(bottleneck.describe()))
        );
    }
    let mut knowledge = measured(40e6);
    probe(&mut knowledge, 1, 2, tcp(SenderLimit::ReceiveWindow, 2_000_000), 60.0);
    let advice = knowledge.advise(link(1, 2), at(61.0));
    // 2 MB a round trip of 100 ms: 20 MB/s a stream.
    assert!(
        advice.iter().any(|line| line.contains("or use 2 streams") || line.contains("or use 3 streams")),
        "{advice:?}"
    );
}

fn uplink(knowledge: &mut Knowledge, site: u64, into: f64, out: f64) {
    let seen =
        Metric::Uplink { into_bytes_per_s: into, out_bytes_per_s: out, capacity_bytes_per_s: Some(1.25e9) };
    let observation = Observation {
        id: ObservationId(site + 900),
        at: at(60.0),
        subject: Subject::Uplink { site: SiteId(site) },
        metric: seen,
        origin: Origin::Provider,
        mapping: Mapping::Explicit,
    };
    knowledge.observe(&observation, at(60.0)).unwrap();
}

#[test]
fn a_full_uplink_is_distinguished_from_an_idle_one() {
    let mut knowledge = measured(40e6);
    uplink(&mut knowledge, 1, 1.2e9, 0.1e9);
    assert_eq!(knowledge.bottleneck(link(1, 2), at(61.0)), Bottleneck::Unknown, "only its way in is full");
    uplink(&mut knowledge, 2, 1.2e9, 0.0);
    assert_eq!(knowledge.bottleneck(link(1, 2), at(61.0)), Bottleneck::TargetUplink);
    assert_eq!(knowledge.bottleneck(link(1, 2), at(10_000.0)), Bottleneck::Unknown, "that was long ago");
}

#[test]
fn faster_tests_point_at_the_storages() {
    let mut knowledge = measured(40e6);
    let test = Metric::Throughput { bytes_per_s: 1e9, seconds: 25.0, streams: 4 };
    probe(&mut knowledge, 1, 2, test, 60.0);
    assert_eq!(knowledge.bottleneck(link(1, 2), at(61.0)), Bottleneck::Storage);
    // The target takes much more from another source: so it is this source.
    for step in 0..60 {
        transfer(&mut knowledge, link(3, 2), 900_000_000, 1.0, 70.0 + f64::from(step));
    }
    assert_eq!(knowledge.bottleneck(link(1, 2), at(131.0)), Bottleneck::SourceRead);
}

#[test]
fn advice_covers_loss_mtu_and_address_families() {
    let mut knowledge = measured(100e6);
    probe(&mut knowledge, 1, 2, Metric::Rtt { us: 150_000.0 }, 60.0);
    probe(&mut knowledge, 1, 2, Metric::Loss { sent: 1_000_000, lost: 100 }, 60.0);
    probe(&mut knowledge, 1, 2, Metric::Mtu { bytes: 1_400, black_hole: true }, 60.0);
    for (number, (family, rate)) in [(Family::Ipv4, 900e6), (Family::Ipv6, 90e6)].into_iter().enumerate() {
        let observation = Observation {
            id: ObservationId(number as u64 + 77),
            at: at(60.0),
            subject: Subject::Path {
                source: Endpoint::Storage(StorageId(1)),
                target: Endpoint::Storage(StorageId(2)),
                path: PathSelector::over_family(family),
            },
            metric: Metric::Throughput { bytes_per_s: rate, seconds: 20.0, streams: 1 },
            origin: Origin::Probe,
            mapping: Mapping::Explicit,
        };
        knowledge.observe(&observation, at(60.0)).unwrap();
    }
    let advice = knowledge.advise(link(1, 2), at(61.0)).join("\n");
    println!("{advice}\n{}", knowledge.explain(link(1, 2), at(61.0)).join("\n"));
    assert!(advice.contains("with a loss of 1.0e-4 use"), "{advice}");
    assert!(advice.contains("packets of more than 1400 bytes vanish"), "{advice}");
    assert!(advice.contains("prefer IPv4: tests of it give 900 MB/s, of IPv6 90.0 MB/s"), "{advice}");
    let (four, six) = (PathSelector::over_family(Family::Ipv4), PathSelector::over_family(Family::Ipv6));
    let rate = |way| knowledge.rate_over_path(link(1, 2), way, at(61.0)).bytes_per_s;
    assert!(rate(four) > 4.0 * rate(six));
}
