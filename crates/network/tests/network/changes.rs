//! Changes of the network are noticed soon, located, and not invented.

use longhaul_model::SiteId;
use longhaul_network::{CauseLocation, Change, ChangeScope, Knowledge, Locality, Metric, Shift};
use longhaul_testkit::Dice;

use crate::world::{at, link, probe, sites, transfer};

const FILE: u64 = 1_000_000_000;

/// One round of transfers over all of `links`, one after the other, each at its rate with noise.
fn round(knowledge: &mut Knowledge, links: &[(u64, u64, f64)], noise: &mut Dice, mut now: f64) -> f64 {
    for &(source, target, rate) in links {
        let seconds = FILE as f64 / rate * (0.2 * noise.normal()).exp();
        now = transfer(knowledge, link(source, target), FILE, seconds, now) + 1.0;
    }
    now
}

fn rates(knowledge: &Knowledge) -> Vec<Change> {
    knowledge.changes().filter(|change| matches!(change.shift, Shift::Rate { .. })).copied().collect()
}

/// As the paper on the site in London tells: from one far site the rate drops to a fifth for days, while from
/// others it stays.
#[test]
fn one_degraded_path_is_detected_among_good_ones() {
    let mut knowledge = sites(5);
    let mut noise = Dice(4);
    let mut links = [(1, 5, 100e6), (2, 5, 200e6), (3, 5, 150e6), (1, 4, 120e6)];
    let mut now = 0.0;
    for _ in 0..300 {
        now = round(&mut knowledge, &links, &mut noise, now);
    }
    assert_eq!(rates(&knowledge), [], "nothing happened yet");
    let changed = now;
    links[0].2 = 20e6;
    let rounds = (1..=20).find(|_| {
        now = round(&mut knowledge, &links, &mut noise, now);
        !rates(&knowledge).is_empty()
    });
    assert!(rounds.is_some(), "not noticed within 20 transfers");
    now = round(&mut knowledge, &links, &mut noise, now);
    let change = rates(&knowledge)[0];
    println!("{}: {}", change.noticed, change.describe("taiwan", "london"));
    assert_eq!(change.affected, ChangeScope::Link(link(1, 5)));
    assert_eq!(change.location, CauseLocation::Link);
    assert!(change.from >= at(changed));
    let Shift::Rate { before, after } = change.shift else { panic!() };
    assert!((before / 100e6).ln().abs() < 0.3 && (after / 20e6).ln().abs() < 0.5, "{before} {after}");
    let (bad, good) = (knowledge.rate(link(1, 5), at(now)), knowledge.rate(link(2, 5), at(now)));
    assert!(bad.bytes_per_s < 40e6 && good.bytes_per_s > 120e6, "the choice of a source can follow");
    let words = change.describe("taiwan", "london");
    assert!(words.starts_with("rate from taiwan to london fell "), "{words}");
    assert!(words.ends_with("; other links of both are as they were"), "{words}");
}

#[test]
fn a_slow_source_is_distinguished_from_a_slow_target() {
    for (slow, location) in [(0, CauseLocation::Source), (1, CauseLocation::Target)] {
        let mut knowledge = sites(6);
        let mut noise = Dice(9);
        let mut links: Vec<(u64, u64, f64)> = Vec::new();
        for source in 1..=3 {
            links.extend((4..=6).map(|target| (source, target, 100e6)));
        }
        let mut now = 0.0;
        for _ in 0..60 {
            now = round(&mut knowledge, &links, &mut noise, now);
        }
        for (source, target, rate) in &mut links {
            if [*source, *target][slow] == [1, 4][slow] {
                *rate = 20e6;
            }
        }
        for _ in 0..12 {
            now = round(&mut knowledge, &links, &mut noise, now);
        }
        let all = rates(&knowledge);
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all.iter().all(|change| change.location == location), "{all:?}");
    }
}

fn hops(last: &[u8]) -> Metric {
    Metric::Hops(last.iter().map(|&last| Some(std::net::Ipv4Addr::new(192, 0, 2, last).into())).collect())
}

fn test_of(bytes_per_s: f64) -> Metric {
    Metric::Throughput { bytes_per_s, seconds: 25.0, streams: 1 }
}

#[test]
fn an_outlier_and_a_route_change_confirm_a_shift() {
    for route_first in [true, false] {
        let mut knowledge = sites(2);
        for hour in 0..24 {
            probe(&mut knowledge, 1, 2, test_of(1e9), f64::from(hour) * 21_600.0);
            probe(&mut knowledge, 1, 2, hops(&[1, 2, 3]), f64::from(hour) * 21_600.0 + 1.0);
        }
        let now = 24.0 * 21_600.0;
        if route_first {
            probe(&mut knowledge, 1, 2, hops(&[1, 9, 3]), now - 600.0);
        }
        assert_eq!(rates(&knowledge), []);
        probe(&mut knowledge, 1, 2, test_of(2e8), now);
        if !route_first {
            assert_eq!(rates(&knowledge), [], "one odd test alone may be chance");
            probe(&mut knowledge, 1, 2, hops(&[1, 9, 3]), now + 600.0);
        }
        let all = rates(&knowledge);
        assert_eq!(all.len(), 1, "route first: {route_first}");
        assert!(all[0].rerouted.is_some());
        assert_eq!(
            all[0].affected,
            ChangeScope::Path {
                source: Locality::Site(SiteId(1)),
                target: Locality::Site(SiteId(2)),
                path: Default::default()
            }
        );
        let rate = knowledge.rate(link(1, 2), at(now + 600.0)).bytes_per_s;
        assert!(rate < 4e8, "the estimate of the links follows: {rate}");
    }
}

#[test]
fn one_outlier_is_no_change_but_two_are() {
    let mut knowledge = sites(2);
    for number in 0..10 {
        probe(&mut knowledge, 1, 2, test_of(1e9), f64::from(number) * 21_600.0);
    }
    probe(&mut knowledge, 1, 2, test_of(1e8), 10.0 * 21_600.0);
    probe(&mut knowledge, 1, 2, test_of(1e9), 11.0 * 21_600.0);
    assert_eq!(rates(&knowledge), []);
    probe(&mut knowledge, 1, 2, test_of(1e8), 12.0 * 21_600.0);
    probe(&mut knowledge, 1, 2, test_of(1.2e8), 13.0 * 21_600.0);
    assert_eq!(rates(&knowledge).len(), 1);
}

#[test]
fn a_longer_route_shifts_the_round_trip() {
    let mut knowledge = sites(2);
    for minute in 0..200 {
        probe(
            &mut knowledge,
            1,
            2,
            Metric::Rtt { us: 30_000.0 + f64::from(minute % 7) * 100.0 },
            f64::from(minute) * 60.0,
        );
    }
    probe(&mut knowledge, 1, 2, hops(&[1, 2, 3]), 12_000.0);
    probe(&mut knowledge, 1, 2, Metric::Rtt { us: 90_000.0 }, 12_060.0);
    probe(&mut knowledge, 1, 2, Metric::Rtt { us: 30_000.0 }, 12_120.0);
    assert_eq!(knowledge.changes().count(), 0, "one late packet");
    probe(&mut knowledge, 1, 2, hops(&[1, 7, 8, 3]), 12_180.0);
    probe(&mut knowledge, 1, 2, Metric::Rtt { us: 90_000.0 }, 12_240.0);
    let change = *knowledge.changes().next().expect("a change");
    assert!(matches!(change.shift, Shift::RoundTrip { before_us, after_us } if after_us > 2.0 * before_us));
    assert!(change.rerouted.is_some());
    println!("{}", change.describe("alpha", "beta"));
}

#[test]
fn a_common_router_is_located() {
    let mut knowledge = sites(8);
    let paths: [(u64, u64, &[u8]); 4] =
        [(1, 2, &[10, 50, 20]), (3, 4, &[30, 50, 40]), (5, 6, &[60, 51, 70]), (7, 8, &[80, 52, 90])];
    for number in 0..6 {
        for (source, target, path) in paths {
            let now = f64::from(number) * 3_600.0;
            probe(&mut knowledge, source, target, test_of(1e9), now);
            probe(&mut knowledge, source, target, hops(path), now);
        }
    }
    for number in 6..9 {
        for (source, target, _) in paths {
            let rate = if source < 5 { 1e8 } else { 1e9 };
            probe(&mut knowledge, source, target, test_of(rate), f64::from(number) * 3_600.0);
        }
    }
    let all = rates(&knowledge);
    assert_eq!(all.len(), 2);
    let router = std::net::Ipv4Addr::new(192, 0, 2, 50).into();
    assert!(all.iter().all(|change| change.location == CauseLocation::Hop(router)), "{all:?}");
}

#[test]
fn loss_and_flapping_are_reported_with_numbers() {
    let mut knowledge = sites(3);
    for minute in 0..60 {
        probe(&mut knowledge, 1, 2, Metric::Loss { sent: 6_000, lost: 0 }, f64::from(minute) * 60.0);
    }
    probe(&mut knowledge, 1, 2, Metric::Loss { sent: 6_000, lost: 60 }, 3_600.0);
    probe(&mut knowledge, 1, 2, Metric::Loss { sent: 6_000, lost: 60 }, 3_660.0);
    let words: Vec<String> = knowledge.changes().map(|change| change.describe("a", "b")).collect();
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(words[0].starts_with("loss from a to b went from 0.0e0 to 1.0e-2"), "{words:?}");

    // While we load it, it goes away; when we stop, it comes back.
    let mut now = 4_000.0;
    for _ in 0..4 {
        for up in [true, true, true] {
            probe(&mut knowledge, 3, 2, Metric::Reach { up }, now);
            now += 60.0;
        }
        for _ in 0..20 {
            knowledge.attempt_began(link(3, 2), at(now));
        }
        for up in [false, false, false] {
            probe(&mut knowledge, 3, 2, Metric::Reach { up }, now);
            now += 60.0;
        }
        for _ in 0..20 {
            knowledge.attempt_ended(link(3, 2), 0, longhaul_network::AttemptEnd::Void, at(now));
        }
    }
    let last = knowledge.changes().last().expect("a change");
    assert!(
        matches!(last.shift, Shift::Flapping { with_load: Some(with_load), .. } if with_load > 0.8),
        "{last:?}"
    );
    assert!(last.describe("c", "b").contains("mostly while we load it"));
}

/// Many links, a month, load that comes and goes, transfers one after the other or many at once.
#[test]
fn a_stable_month_raises_no_alarm() {
    let mut false_alarms = 0;
    let links = 8;
    for number in 0..links {
        let mut knowledge = sites(2);
        let mut noise = Dice(100 + number);
        let (single, wander) =
            ([0.1, 0.3, 0.5, 0.2][number as usize % 4], [0.05, 0.1, 0.15, 0.15][number as usize % 4]);
        let mut now = 0.0;
        let mut block = 0.0;
        let mut block_end = 0.0;
        while now < 30.0 * 86_400.0 {
            if now >= block_end {
                block = wander * noise.normal() + 0.15 * (now / 86_400.0 * std::f64::consts::TAU).sin();
                block_end = now + 300.0;
            }
            let rate = 100e6 * f64::exp(block + single * noise.normal());
            now = transfer(&mut knowledge, link(1, 2), FILE, FILE as f64 / rate, now);
            now += if noise.uniform() < 0.002 { 7_200.0 } else { 5.0 * noise.uniform() };
        }
        let all = rates(&knowledge);
        println!("link {number}: {} changes", all.len());
        false_alarms += all.len();
    }
    assert!(false_alarms as u64 <= links, "{false_alarms} false alarms on {links} links in a month");
}
