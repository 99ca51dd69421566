//! Short shipped scenarios under `best`, FTS3's nine strategies, and the nine by its own rules: what is
//! published of them (`docs/benchmarks/strategies.md`) stays so.

use std::path::PathBuf;

use longhaul_simulator::criteria::{BOUND_SHARE_MIN, Comparison, RATIO_MAX, RATIO_WITH_CHOICE_MAX, compare};
use longhaul_simulator::{Plan, Scenario};

fn world(name: &str) -> Comparison {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../../scenarios/{name}.toml"));
    let text = std::fs::read_to_string(path).unwrap();
    compare(&Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap())
}

/// `ratio` to the best of all others, at most; `bound` / makespan, at least.
fn assert_at_least(name: &str, ratio: f64, bound: f64) -> Comparison {
    let world = world(name);
    let measured = (world.ratio().unwrap(), world.bound_share().unwrap());
    assert!(measured.0 <= ratio, "{name}: {:.3} of the best of all others, {ratio} is asked", measured.0);
    assert!(measured.1 >= bound, "{name}: the bound is {:.3} of the makespan, {bound} is asked", measured.1);
    world
}

#[test]
fn where_there_is_a_choice_best_makes_the_better_one() {
    for name in ["shared-port", "ocean", "detour", "full-port"] {
        let world = assert_at_least(name, RATIO_WITH_CHOICE_MAX, BOUND_SHARE_MIN);
        assert!(world.has_choice && world.known_at_start, "{name}");
        assert!(world.has_headroom(), "{name}: the nine are near the bound: {:?}", world.nine);
        assert!(
            world.criteria().iter().all(longhaul_simulator::criteria::Criterion::is_met),
            "{name}: {:?}",
            world.criteria()
        );
    }
}

#[test]
fn where_there_is_none_best_is_as_good_as_any() {
    let world = assert_at_least("challenge-2004", RATIO_MAX, BOUND_SHARE_MIN);
    assert!(!world.has_choice && world.known_at_start);
    // The climb to several files at once; FTS3's rules begin with more.
    let world = assert_at_least("transient", 1.02, BOUND_SHARE_MIN);
    assert!(!world.has_choice);
}

/// Both sources are busy under all strategies that count what waits: nothing is left to win, and nothing is
/// lost.
#[test]
fn two_replicas_are_both_used() {
    let world = assert_at_least("two-replicas", RATIO_MAX, BOUND_SHARE_MIN);
    assert!(world.has_choice && !world.has_headroom());
}

/// Capacity that comes and goes: the bound takes prices that do not change with time.
#[test]
fn sources_that_come_and_go_are_used_while_they_are_there() {
    assert_at_least("flapping", 0.3, 0.84);
}

/// A source whose permits were refused for a while is believed to be slow for long after; the nine do no
/// better.
#[test]
fn bad_replicas_and_wrong_memories_cost_the_others_more() {
    let world = assert_at_least("troubles", 0.6, 0.3);
    let report = world.report.unwrap();
    assert!(report.attempts_failed > 100, "there were troubles: {}", report.attempts_failed);
    assert_eq!((report.unfinished, report.summary.failed), (0, 0));
}
