//! What is peculiar to NSI: confirmations that come late, twice, in another order or never, error classes,
//! holds, notifications, and who may say what.

use std::time::Duration;

use longhaul_circuits::{Answer, Event};
use serde_json::{Value, json};

use crate::{HOUR, Kind, bench, bench_with, mischief};

const BOTH: &[Kind] = &[Kind::NsiCalled, Kind::NsiPolling];

#[test]
fn confirmations_may_come_late_early_or_out_of_order() {
    let calls = [
        "reserveConfirmed",
        "reserveCommitConfirmed",
        "provisionConfirmed",
        "dataPlaneStateChange",
        "terminateConfirmed",
    ];
    let deeds = ["drop", "repeat", "swap", "before_answer"].map(|deed| json!(deed));
    for deed in deeds.into_iter().chain([json!({ "delay": 40.0 }), json!({ "delay": 400.0 })]) {
        for call in calls {
            let mut bench = bench(Kind::NsiCalled);
            bench.simulator().order(json!({ "mischief": [{ "on": call, "do": deed, "times": 3 }] }));
            let key = bench.request(400);
            assert_eq!(bench.granted(key).mbit, 400, "{call} {deed}");
            bench.live(HOUR / 4);
            bench.tear_down(key);
            bench.live(HOUR / 4);
            bench.assert_nothing_is_left();
            assert!(
                !bench.has_news(|event| matches!(event, Event::Answer { .. })),
                "{call} {deed}: said once"
            );
        }
    }
}

#[test]
fn missing_confirmations_are_recovered_by_query() {
    let mut bench = bench(Kind::NsiCalled);
    let calls = [
        "reserveConfirmed",
        "reserveCommitConfirmed",
        "provisionConfirmed",
        "dataPlaneStateChange",
        "terminateConfirmed",
    ];
    let rules: Vec<Value> =
        calls.iter().map(|call| json!({ "on": call, "do": "drop", "times": 99 })).collect();
    bench.simulator().order(json!({ "mischief": rules }));
    let key = bench.request(400);
    bench.granted(key);
    bench.tear_down(key);
    bench.assert_nothing_is_left();
}

/// With a simulator that thinks for no time, everything is known from callbacks.
#[test]
fn no_queries_are_repeated_without_faults() {
    let mut bench = bench_with(Kind::NsiCalled, &["--think", "0"], "");
    let key = bench.request(400);
    bench.granted(key);
    bench.tear_down(key);
    for what in ["reserve", "reserveCommit", "provision", "terminate"] {
        assert_eq!(bench.simulator().count(what), 1, "{what}");
    }
}

#[test]
fn each_class_of_error_has_its_outcome() {
    // Refused at once or later, with whether less may do; a fault of the provider's own is tried again.
    let cases = [
        ("00705", Some(true)),
        ("00704", Some(true)),
        ("00600", Some(true)),
        ("00302", Some(false)),
        ("00101", Some(false)),
        ("00701", Some(false)),
        ("00500", None),
        ("00502", None),
        ("00800", None),
    ];
    for &kind in BOTH {
        for (error, less) in cases {
            let mut bench = bench(kind);
            bench.simulator().order(mischief("reserve", json!({ "fault": error })));
            let key = bench.request(400);
            match (bench.answer(key), less) {
                (Answer::Granted(_), None) => bench.tear_down(key),
                (Answer::Refused { less, detail }, Some(expected)) => {
                    assert_eq!(less, expected, "{error}");
                    assert!(detail.contains(error), "{detail}");
                }
                (other, _) => panic!("{error}: {other:?}"),
            }
            bench.assert_nothing_is_left();
        }
        let mut bench = bench(kind);
        bench
            .simulator()
            .order(json!({ "mischief": [{ "on": "reserve", "do": { "fault": "00500" }, "times": 9 }] }));
        let key = bench.request(400);
        assert!(!bench.refused(key).0);
        assert_eq!(bench.simulator().count("reserve"), 3);
    }
}

#[test]
fn a_late_failure_is_cleaned_up() {
    for &kind in BOTH {
        for (on, error) in [("reserve", "00705"), ("reserveCommit", "00500"), ("provision", "00500")] {
            let mut bench = bench(kind);
            bench
                .simulator()
                .order(json!({ "mischief": [{ "on": on, "do": { "refuse": error }, "times": 9 }] }));
            let key = bench.request(400);
            if (kind, on) == (Kind::NsiPolling, "provision") {
                // Nobody says so to one who only asks: its owner gives up in the end.
                bench.live(HOUR / 6);
                bench.tear_down(key);
            } else if (kind, on) == (Kind::NsiPolling, "reserveCommit") {
                // A failed commit looks like a committed one, until provisioning is refused.
                bench.refused(key);
            } else {
                assert_eq!(bench.refused(key).0, on == "reserve");
            }
            bench.assert_nothing_is_left();
        }
    }
}

#[test]
fn an_expired_hold_is_reserved_again() {
    for &kind in BOTH {
        let mut bench = bench(kind);
        // The confirmation is late, and so is the next look.
        bench
            .simulator()
            .order(json!({ "mischief": [{ "on": "reserveCommit", "do": { "fault": "00500" } }] }));
        let key = bench.request(400);
        assert_eq!(bench.granted(key).mbit, 400);
        assert_eq!(bench.simulator().count("reserve"), 2);
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
    // It is told, though what a query says stays the same.
    let mut called = bench_with(Kind::NsiCalled, &["--think", "1"], "hold_s = 300\n");
    called
        .simulator()
        .order(json!({ "mischief": [{ "on": "reserveCommit", "do": { "status": 503 }, "times": 12 }] }));
    let key = called.request(400);
    assert_eq!(called.granted(key).mbit, 400);
    assert_eq!(
        (called.simulator().count("call reserveTimeout"), called.simulator().count("reserve")),
        (1, 2)
    );
    called.tear_down(key);
    called.assert_nothing_is_left();
    // While we were asleep the provider gave it away, and does not say so.
    let mut bench = bench(Kind::NsiPolling);
    let key = bench.request(400);
    while bench.simulator().booked().is_empty() {
        bench.step();
        if bench.simulator().count("reserve") > 0 {
            bench.pass(Duration::from_secs(200));
        } else {
            let now = bench.now();
            bench.provider.news(now);
        }
    }
    bench.pass(Duration::from_secs(200));
    assert_eq!(bench.granted(key).mbit, 400);
    assert_eq!(bench.simulator().count("reserve"), 2);
    bench.tear_down(key);
    bench.assert_nothing_is_left();
}

#[test]
fn unauthenticated_notifications_only_trigger_queries() {
    let mut bench = bench(Kind::NsiCalled);
    let key = bench.request(400);
    bench.granted(key);
    let state = bench.simulator().state();
    let to = state["connections"][0]["reply_to"].as_str().unwrap().to_owned();
    let id = bench.simulator().booked().remove(0);
    let queries = bench.simulator().count("querySummarySync");
    // A confirmation of nothing that was asked, about what we know and about what nobody knows.
    for id in [id.as_str(), "EX-0000000000"] {
        bench.simulator().order(json!({ "unknown": { "to": to, "id": id } }));
        bench.live(HOUR / 60);
    }
    bench.go_on_until("a query", |simulator| simulator.count("querySummarySync") > queries);
    bench.live(HOUR / 60);
    assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. } | Event::TornDown(_))));
    let held = bench.list();
    assert!(held.len() == 1 && held[0].up, "{held:?}");
    // The data plane is gone, and nothing else is.
    bench.simulator().order(json!({ "active": [id, false] }));
    assert!(!bench.lost(key).is_empty());
    bench.tear_down(key);
    bench.assert_nothing_is_left();
}

/// What a message came to that got lost behind the provider, asking tells; its time is the owner's.
#[test]
fn an_undelivered_message_is_resent() {
    for &kind in BOTH {
        for on in ["reserveCommit", "provision", "terminate"] {
            let mut bench = bench(kind);
            bench.simulator().order(mischief(on, json!("undelivered")));
            let key = bench.request(400);
            assert_eq!(bench.granted(key).mbit, 400, "{on}");
            bench.tear_down(key);
            bench.assert_nothing_is_left();
            let told = usize::from(kind == Kind::NsiCalled);
            assert_eq!(bench.simulator().count("call messageDeliveryTimeout"), told, "{on}");
            assert_eq!(bench.simulator().count(on), 2, "{on}");
        }
        let mut bench = bench(kind);
        bench.simulator().order(mischief("reserve", json!("undelivered")));
        let key = bench.request(400);
        bench.live(HOUR / 6);
        assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })), "its owner's time decides");
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn a_failed_teardown_is_retried() {
    for &kind in BOTH {
        let mut bench = bench(kind);
        let key = bench.request(400);
        bench.granted(key);
        let rule = json!({ "on": "terminate", "do": { "refuse": "00501" }, "times": 3 });
        bench.simulator().order(json!({ "mischief": [rule] }));
        bench.tear_down(key);
        bench.assert_nothing_is_left();
        assert_eq!(bench.simulator().count("terminate"), 4);
        let told = if kind == Kind::NsiCalled { 3 } else { 0 };
        assert_eq!(bench.simulator().count("call errorEvent"), told);
    }
}

/// An error of the data plane is a reason to ask: one that has passed costs nothing.
#[test]
fn a_lasting_data_plane_error_ends_the_use() {
    for is_active in [true, false] {
        let mut bench = bench(Kind::NsiCalled);
        // That of its activation may come after the grant: the query that it causes would find the error.
        bench.simulator().order(mischief("dataPlaneStateChange", json!("drop")));
        let key = bench.request(400);
        bench.granted(key);
        let id = bench.simulator().booked().remove(0);
        let queries = bench.simulator().count("querySummarySync");
        bench.simulator().order(json!({ "broken": [id, is_active] }));
        match is_active {
            true => {
                bench.go_on_until("a query", |simulator| simulator.count("querySummarySync") > queries);
                bench.live(HOUR / 60);
                assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })));
            }
            false => assert_eq!(bench.lost(key), "dataplaneError"),
        }
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}
