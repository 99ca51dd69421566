//! What a provider can do wrong in the middle of something, whatever it speaks: refusals that come late, two
//! reservations of one request, give-backs that are none, holds that are over, restarts, licences.

use std::time::Duration;

use longhaul_circuits::{Answer, Event};
use serde_json::json;

use crate::bench::Bench;
use crate::{HOUR, Kind, REMOTE, STEPS, asks, begins, bench, bench_with, mischief};

/// The operations by which each protocol gives something back.
fn ends(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Static => &[],
        Kind::NsiCalled | Kind::NsiPolling => &["terminate"],
        Kind::Oscars => &["conn_release"],
        Kind::Sense => &["cancel", "delete"],
    }
}

/// The operation that makes a hold last.
fn commits(kind: Kind) -> &'static str {
    match kind {
        Kind::Oscars => "conn_commit",
        _ => "reserveCommit",
    }
}

#[test]
fn a_late_refusal_is_cleaned_up() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        bench.simulator().order(mischief(begins(kind), json!({ "refuse": "00705" })));
        let key = bench.request(400);
        let (less, detail) = bench.refused(key);
        // OSCARS does not say what it could not build.
        assert_eq!(less, kind != Kind::Oscars, "{kind:?}: {detail}");
        bench.assert_nothing_is_left();
        let next = bench.request(200);
        bench.granted(next);
        bench.tear_down(next);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn a_false_release_is_retried() {
    for &kind in REMOTE {
        for operation in ends(kind) {
            let mut bench = bench(kind);
            let key = bench.request(400);
            bench.granted(key);
            bench.simulator().order(mischief(operation, json!("lie")));
            bench.tear_down(key);
            for held in bench.list() {
                // As its owner does with what it does not know.
                bench.tear_down(held.key);
            }
            bench.assert_nothing_is_left();
            assert!(bench.simulator().count_of(operation) > 1, "{kind:?}: {operation} is asked for again");
        }
    }
    // The same of a hold that was not committed yet.
    let mut bench = bench(Kind::Oscars);
    let rules = json!([{ "on": "conn_commit", "do": { "status": 503 }, "times": 99 }, { "on": "clear",
        "do": "lie" }]);
    bench.simulator().order(json!({ "mischief": rules }));
    let key = bench.request(400);
    while bench.simulator().booked().is_empty() {
        bench.step();
        let now = bench.now();
        bench.provider.news(now);
    }
    bench.tear_down(key);
    bench.assert_nothing_is_left();
    assert!(bench.simulator().count_of("clear") > 1);
}

/// SENSE cannot: an instance has the name that was given before.
#[test]
fn a_duplicate_reservation_is_released() {
    for &kind in REMOTE.iter().filter(|&&kind| kind != Kind::Sense) {
        let mut bench = bench(kind);
        bench.simulator().order(mischief(asks(kind), json!("twice")));
        let key = bench.request(400);
        bench.granted(key);
        assert_eq!(bench.simulator().booked().len(), 2, "{kind:?}");
        // In the next list of NSI; a hold of OSCARS that nobody commits lapses.
        let held = bench.list();
        assert!(held.iter().all(|held| held.key == key), "{held:?}");
        bench.live(if kind == Kind::Oscars { HOUR / 3 } else { HOUR / 30 });
        bench.go_on_until("the end of the twin", |simulator| simulator.booked().len() < 2);
        assert_eq!(bench.simulator().booked().len(), 1, "{kind:?}: only the twin is gone");
        let held = bench.list();
        assert!(held.len() == 1 && held[0].key == key && held[0].up, "{held:?}");
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

/// Commitments that never arrive, until the provider has given it away.
#[test]
fn a_hold_not_committed_in_time_is_lost() {
    for &kind in REMOTE.iter().filter(|&&kind| kind != Kind::Sense) {
        let mut bench = bench(kind);
        let rule = json!({ "on": commits(kind), "do": { "status": 503 }, "times": 999 });
        bench.simulator().order(json!({ "mischief": [rule] }));
        let key = bench.request(400);
        let (less, detail) = bench.refused(key);
        assert!(!less, "{kind:?}: {detail}");
        bench.assert_nothing_is_left();
        bench.simulator().order(json!({ "mischief": [] }));
        let key = bench.request(400);
        bench.granted(key);
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

/// A budget that is used up is no fault: less is asked for.
#[test]
fn an_exhausted_licence_is_a_refusal_of_the_rate() {
    let mut bench = bench(Kind::Sense);
    let words = "the licence of this profile allows 200 Mbps";
    bench.simulator().order(mischief("intent", json!({ "refuse": words })));
    let key = bench.request(400);
    let (less, detail) = bench.refused(key);
    assert!(less && detail.contains("403") && detail.contains(words), "{detail}");
    assert_eq!(bench.simulator().count("sense intent"), 1, "it is not insisted on");
    let smaller = bench.request(200);
    assert_eq!(bench.granted(smaller).mbit, 200);
    bench.tear_down(smaller);
    bench.assert_nothing_is_left();
}

/// What is sent to a provider whose clock is ahead begins by that clock: it refuses what is past there.
#[test]
fn no_request_starts_in_the_providers_past() {
    for &kind in REMOTE {
        for ahead in ["600", "86400"] {
            let mut bench = bench_with(kind, &["--think", "1", "--ahead", ahead], "lasts_s = 7200\n");
            let key = bench.request(400);
            bench.granted(key);
            bench.tear_down(key);
            bench.assert_nothing_is_left();
        }
    }
}

/// Nothing is in the way of a second try, whatever the first came to.
#[test]
fn a_provider_restart_during_a_request_leaves_nothing_behind() {
    for &kind in REMOTE {
        for steps in STEPS {
            let place = tempfile::tempdir().unwrap();
            let state = place.path().join("state.json");
            let mut bench = bench_with(kind, &["--think", "1", "--state", state.to_str().unwrap()], "");
            let key = bench.request(400);
            take(&mut bench, steps);
            bench.restart_provider();
            let answer = bench.answer(key);
            let is_had = matches!(answer, Answer::Granted(_));
            assert!(is_had || matches!(answer, Answer::Refused { .. }), "{kind:?} {steps}: {answer:?}");
            let held = bench.list();
            assert_eq!(held.iter().filter(|held| held.up).count(), usize::from(is_had), "{kind:?} {steps}");
            if is_had {
                bench.tear_down(key);
            }
            bench.assert_nothing_is_left();
            bench.live(HOUR / 6);
            bench.assert_nothing_is_left();
        }
    }
}

/// The same in the middle of a give-back.
#[test]
fn a_provider_restart_during_a_release_leaves_nothing_behind() {
    for &kind in REMOTE {
        for steps in [0, 1, 2, 4] {
            let place = tempfile::tempdir().unwrap();
            let state = place.path().join("state.json");
            let mut bench = bench_with(kind, &["--think", "1", "--state", state.to_str().unwrap()], "");
            let key = bench.request(400);
            bench.granted(key);
            let now = bench.now();
            bench.provider.tear_down(key, now);
            take(&mut bench, steps);
            bench.restart_provider();
            bench.assert_nothing_is_left();
            bench.live(HOUR / 30);
            assert!(bench.list().iter().all(|held| !held.up), "{kind:?}: after {steps} steps");
        }
    }
}

fn take(bench: &mut Bench, steps: usize) {
    for _ in 0..steps {
        bench.poll_news();
        bench.step();
    }
}

/// The one that is always there, and is told to misbehave by its own file.
#[test]
fn a_static_circuit_is_late_silent_and_over_when_configured() {
    let mut bench = bench_with(Kind::Static, &[], "setup_s = 90\nlasts_s = 600\n");
    let asked = bench.now();
    let key = bench.request(400);
    bench.live(Duration::from_secs(80));
    assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })), "it takes its time");
    let grant = bench.granted(key);
    assert!(bench.now().since(asked) >= Duration::from_secs(90));
    let lasts = grant.expires.expect("it is said to last").since(asked);
    assert!((690..700).contains(&lasts.as_secs()), "{lasts:?}");
    bench.tear_down(key);
    // One that is cancelled while it is set up never comes.
    let key = bench.request(400);
    bench.tear_down(key);
    bench.live(HOUR / 10);
    assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })));
    let mut silent = bench_with(Kind::Static, &[], "silent = true\n");
    let key = silent.request(400);
    silent.live(HOUR / 6);
    assert!(!silent.has_news(|event| matches!(event, Event::Answer { .. })));
    silent.tear_down(key);
}
