//! Properties of the estimates.

use super::*;
use crate::ewma::RATE_BYTES_PER_S_ASSUMED;
use proptest::prelude::*;

fn at(ms: i64) -> Timestamp {
    Timestamp(1_800_000_000_000_000 + ms * 1_000)
}

fn link(source: u64, target: u64) -> Link {
    Link { source: StorageId(source), target: StorageId(target) }
}

/// Moves `files` of 10 MB over `link` at `rate` in sequence.
fn run(knowledge: &mut Knowledge, link: Link, files: i64, rate: f64, from: i64) -> i64 {
    let each = (10e6 / rate * 1e3) as i64;
    for file in 0..files {
        knowledge.attempt_began(link, at(from + file * each));
        knowledge.attempt_ended(link, 10_000_000, AttemptEnd::Arrived, at(from + (file + 1) * each));
    }
    from + files * each
}

#[test]
fn an_unmeasured_link_states_the_basis_of_its_estimate() {
    let mut knowledge = Knowledge::default();
    let unknown = knowledge.rate(link(1, 2), at(0));
    assert_eq!(unknown.basis, Basis::Assumed);
    assert!((unknown.bytes_per_s / RATE_BYTES_PER_S_ASSUMED - 1.0).abs() < 1e-9);
    run(&mut knowledge, link(1, 2), 100, 10e6, 0);
    assert_eq!(knowledge.rate(link(1, 2), at(100_000)).basis, Basis::Measured);
    let neighbour = knowledge.rate(link(1, 3), at(100_000));
    assert_eq!(neighbour.basis, Basis::Endpoints);
    assert!(neighbour.bytes_per_s < 15e6, "what leaves the same source is alike: {neighbour:?}");
    assert_eq!(knowledge.rate(link(7, 8), at(100_000)).basis, Basis::AllLinks);
    assert!(neighbour.low < neighbour.bytes_per_s && neighbour.bytes_per_s < neighbour.high);
}

/// A source disappears during its transfers and comes back: it failed for a while, and is as fast as before.
#[test]
fn silence_before_failures_does_not_lower_the_rate() {
    let mut knowledge = Knowledge::default();
    let end = run(&mut knowledge, link(1, 2), 100, 100e6, 0);
    for round in 0..3 {
        let from = end + round * 15_000;
        (0..5).for_each(|_| knowledge.attempt_began(link(1, 2), at(from)));
        for attempt in 0..5 {
            knowledge.attempt_ended(
                link(1, 2),
                0,
                AttemptEnd::Failed(Blame::Network),
                at(from + 12_000 + attempt),
            );
        }
    }
    let after = end + 60_000;
    run(&mut knowledge, link(1, 2), 2, 100e6, after);
    let rate = knowledge.rate(link(1, 2), at(after + 1_000)).bytes_per_s;
    assert!((80e6..120e6).contains(&rate), "{rate}");
    let total = knowledge.end_rate(StorageId(1), false, at(after + 1_000)).unwrap().bytes_per_s;
    assert!((80e6..120e6).contains(&total), "{total}");
    assert!(knowledge.failure_share(link(1, 2), at(after + 1_000)) > 0.1);
}

#[test]
fn totals_add_up_over_links() {
    let mut knowledge = Knowledge::default();
    for step in 0..50 {
        for target in [2, 3] {
            knowledge.attempt_began(link(1, target), at(step * 100));
        }
        for target in [2, 3] {
            knowledge.attempt_ended(link(1, target), 5_000_000, AttemptEnd::Arrived, at(step * 100 + 100));
        }
    }
    let total = knowledge.end_rate(StorageId(1), false, at(5_000)).unwrap().bytes_per_s;
    assert!((total / 100e6 - 1.0).abs() < 0.1, "{total}");
    let one = knowledge.rate(link(1, 2), at(5_000)).bytes_per_s;
    assert!((one / 50e6 - 1.0).abs() < 0.2, "{one}");
}

#[test]
fn a_link_waiting_for_a_busy_end_is_not_slow() {
    let mut knowledge = Knowledge::default();
    let end = run(&mut knowledge, link(1, 9), 30, 100e6, 0);
    // Source 2 has work for the same target for 3 s, and is served a little.
    let mut at_ms = end;
    knowledge.attempt_began(link(2, 9), at(at_ms));
    for _ in 0..10 {
        at_ms = run(&mut knowledge, link(1, 9), 3, 100e6, at_ms);
        knowledge.bytes_arrived(link(2, 9), 1_000_000, at(at_ms));
    }
    let rate = knowledge.rate(link(2, 9), at(at_ms)).bytes_per_s;
    assert!(rate > 25e6, "{rate}: taken at its word it would be 3 MB/s");
}

#[test]
fn failures_decay() {
    let mut knowledge = Knowledge::default();
    for step in 0..20 {
        knowledge.attempt_began(link(1, 2), at(step));
        knowledge.attempt_ended(link(1, 2), 0, AttemptEnd::Failed(longhaul_model::Blame::Network), at(step));
    }
    assert!(knowledge.failure_share(link(1, 2), at(20)) > 0.8);
    assert!(knowledge.failure_share(link(1, 2), at(6_000_000)) < 0.1);
    assert_eq!(knowledge.failure_share(link(2, 1), at(0)), 0.0);
}

#[test]
fn survives_a_restart() {
    let mut knowledge = Knowledge::default();
    run(&mut knowledge, link(1, 2), 100, 10e6, 0);
    let text = serde_json::to_string(&knowledge).unwrap();
    let again: Knowledge = serde_json::from_str(&text).unwrap();
    let (was, is) = (knowledge.rate(link(1, 2), at(100_000)), again.rate(link(1, 2), at(100_000)));
    assert!((is.bytes_per_s / was.bytes_per_s - 1.0).abs() < 1e-6, "{was:?} {is:?}");
    assert_eq!(is.basis, Basis::Measured);
}

/// Memory of a link that had work for days, with both address families probed.
#[test]
fn a_link_takes_less_than_two_kilobytes() {
    use crate::advice::Family;
    use crate::observation::tests::{between, world};
    use crate::observation::{Metric, PathSelector, Subject};
    let mut knowledge = world();
    for minute in 0..5 * 24 * 60 {
        run(&mut knowledge, link(1, 2), 5, 10e6, minute * 60_000);
    }
    for (number, family) in [Family::Ipv4, Family::Ipv6].into_iter().enumerate() {
        let hops = (0..16).map(|hop| Some(std::net::Ipv4Addr::new(192, 0, 2, hop).into())).collect();
        let mut seen = between(1, 2, number as u64, 0, Metric::Hops(hops));
        if let Subject::Path { path, .. } = &mut seen.subject {
            *path = PathSelector::over_family(family);
        }
        knowledge.observe(&seen, at(0)).unwrap();
    }
    let state = &knowledge.links[&link(1, 2)];
    let own = size_of::<Link>() + state.bytes();
    let pair = size_of::<((Locality, Locality), EffectEwma)>();
    let paths: usize = knowledge.paths.values().map(|path| size_of::<PathKey>() + path.bytes()).sum();
    println!("{own} bytes of its own, {pair} of the pair, {paths} of the paths");
    assert_eq!(knowledge.paths.len(), 2);
    assert!(own + pair + paths < 2_048, "{own} + {pair} + {paths} bytes");
}

#[test]
fn the_number_of_links_is_bounded() {
    let mut knowledge = Knowledge::default();
    for source in 0..LINKS_MAX as u64 + 10 {
        knowledge.attempt_began(link(source, 0), at(source as i64));
        knowledge.attempt_ended(link(source, 0), 1, AttemptEnd::Arrived, at(source as i64));
    }
    assert!(knowledge.links().count() <= LINKS_MAX);
}

proptest! {
    #[test]
    fn any_history_gives_valid_estimates(steps in proptest::collection::vec((0u64..4, 0u64..4, any::<u64>(),
        any::<i64>(), 0u8..4), 0..200)) {
        let mut knowledge = Knowledge::default();
        for (source, target, bytes, time, what) in steps {
            let (link, now) = (link(source, target), Timestamp(time));
            match what {
                0 => knowledge.attempt_began(link, now),
                1 => knowledge.bytes_arrived(link, bytes, now),
                2 => knowledge.attempt_ended(link, bytes, AttemptEnd::Arrived, now),
                _ => knowledge.attempt_ended(link, bytes,
                    AttemptEnd::Failed(longhaul_model::Blame::Network), now),
            }
            let estimate = knowledge.rate(link, now);
            prop_assert!(estimate.bytes_per_s.is_finite() && estimate.bytes_per_s > 0.0);
            prop_assert!(estimate.low <= estimate.bytes_per_s && estimate.bytes_per_s <= estimate.high);
            let share = knowledge.failure_share(link, now);
            prop_assert!((0.0..=1.0).contains(&share));
        }
    }
}
