//! How many files a link has at once: a fixed number is kept, and what `best` finds while files move is near
//! the best of the fixed ones. In full: `cargo xtask bench concurrency`.

use std::collections::BTreeMap;

use longhaul_simulator::quantity::Span;
use longhaul_simulator::{Plan, Policy, Scenario, Snapshot, simulate_observed};

const FOUND_S: f64 = 300.0;

/// Each target has one link: bytes that came to it from the fifth minute on, and the files at once that were
/// seen then, least and most; leased ones for a fixed number.
type LinkObservations = BTreeMap<u64, (f64, u32, u32)>;

fn run(policy: &str) -> LinkObservations {
    let text = include_str!("../../../../scenarios/twenty-links.toml");
    let mut plan = Plan::new(&Scenario::parse(text).unwrap(), None).unwrap();
    plan.until = 600.0;
    let policy = Policy::parse(policy).unwrap();
    let mut before = Vec::new();
    let mut seen = LinkObservations::new();
    simulate_observed(&plan, &policy, Span(10.0), &mut |glimpse: &Snapshot<'_>| {
        if let Some(most) = policy.concurrency {
            assert!(glimpse.scheduler.links(glimpse.now).iter().all(|link| link.leased_files <= most));
        }
        if glimpse.seconds < FOUND_S {
            return;
        }
        if before.is_empty() {
            before = glimpse.bytes_through.to_vec();
        }
        for link in glimpse.scheduler.links(glimpse.now) {
            let port = plan.layout.sites[link.target.0 as usize].in_capacities[0] as usize;
            let number = if policy.concurrency.is_some() { link.leased_files } else { link.concurrency };
            let row = seen.entry(link.target.0).or_insert((0.0, number, number));
            *row = (glimpse.bytes_through[port] - before[port], row.1.min(number), row.2.max(number));
        }
    });
    seen
}

#[test]
fn a_fixed_number_is_kept() {
    let seen = run("best/at-once-3");
    assert_eq!(seen.len(), 20);
    // Between one file and the next there are fewer for a moment.
    assert!(seen.values().all(|(_, _, most)| *most == 3), "{seen:?}");
    for wrong in ["best/at-once-0", "best/at-once-257", "best/at-once-", "best/at-once-x"] {
        assert!(Policy::parse(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn what_is_found_is_near_the_best_fixed_number_and_stays() {
    let (ours, many, more) = (run("best"), run("best/at-once-64"), run("best/at-once-96"));
    assert_eq!((ours.len(), many.len(), more.len()), (20, 20, 20));
    let mut near = 0;
    for (target, (bytes, least, most)) in &ours {
        let best = many[target].0.max(more[target].0);
        near += u32::from(*bytes >= 0.9 * best);
        assert!(most - least <= 2, "target {target}: from {least} to {most} files");
    }
    assert!(near == 20, "{near} of 20: {ours:?}");
}
