//! What is true of every provider of circuits, whatever it speaks, tried against the simulated one.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod bench;
mod circuit_threads;
mod faults;
mod nsi;
mod tls;

use std::sync::OnceLock;
use std::time::Duration;

use bench::{Bench, Simulator};
use longhaul_circuits::{Answer, Event};
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Static,
    NsiCalled,
    NsiPolling,
    Oscars,
    Sense,
}

const REMOTE: &[Kind] = &[Kind::NsiCalled, Kind::NsiPolling, Kind::Oscars, Kind::Sense];
const ALL: &[Kind] = &[Kind::Static, Kind::NsiCalled, Kind::NsiPolling, Kind::Oscars, Kind::Sense];
/// After so many steps something happens.
const STEPS: [usize; 8] = [0, 1, 2, 3, 4, 6, 8, 11];
const HOUR: Duration = Duration::from_secs(3600);

const COMMON: &str = "source = \"10.77.1.2\"\ntarget = \"10.77.1.1\"\nmbit = 1000\n";

fn config(kind: Kind, simulator: Option<&Simulator>, more: &str) -> String {
    let service = simulator.map(|simulator| simulator.service.to_string()).unwrap_or_default();
    let own = match kind {
        Kind::Static => "provider = \"static\"\n".to_owned(),
        Kind::NsiCalled | Kind::NsiPolling => {
            let listen = if kind == Kind::NsiCalled { "listen = \"127.0.0.1:0\"\n" } else { "" };
            format!(
                "provider = \"nsi\"\ndiscovery = \"http://{service}/NSI/discovery.xml\"\n{listen}\
                 requester_nsa = \"urn:ogf:network:placement.example:2026:nsa:requester\"\n\
                 source_stp = \"urn:ogf:network:example.net:2026:topology:alpha?vlan=1781-1785\"\n\
                 target_stp = \"urn:ogf:network:example.net:2026:topology:beta?vlan=1781-1785\"\n"
            )
        }
        Kind::Oscars => format!(
            "provider = \"oscars\"\nurl = \"http://{service}/oscars\"\nusername \
                = \"longhaul\"\npassword_file = {secret:?}\n\
             source_port = \"alph-cr6:2/1/1\"\ntarget_port = \"beta-cr6:2/1/1\"\nvlans = \"1781-1785\"\n",
            secret = secret(),
        ),
        Kind::Sense => format!(
            "provider = \"sense\"\nurl = \"http://{service}/StackV-web/restapi\"\nclient_id \
                = \"c\"\nclient_secret_file = {secret:?}\n\
             username = \"longhaul\"\npassword_file = {secret:?}\nvlans = \"1781-1785\"\n\
             source_uri = \"urn:ogf:network:alpha.example:2026\"\ntarget_uri \
             = \"urn:ogf:network:beta.example:2026\"\n",
            secret = secret(),
        ),
    };
    format!("{own}{COMMON}{more}")
}

/// A file with the password that the simulated providers know.
fn secret() -> &'static str {
    static FILE: OnceLock<tempfile::NamedTempFile> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "secret\n").unwrap();
        file
    });
    file.path().to_str().unwrap()
}

fn bench_with(kind: Kind, arguments: &[&str], more: &str) -> Bench {
    println!("{kind:?} {arguments:?} {more:?}");
    let simulator = (kind != Kind::Static).then(|| Simulator::start(arguments));
    let config = config(kind, simulator.as_ref(), more);
    Bench::new(&config, simulator)
}

fn bench(kind: Kind) -> Bench {
    bench_with(kind, &["--think", "1"], "")
}

fn mischief(on: &str, deed: Value) -> Value {
    json!({ "mischief": [{ "on": on, "do": deed }] })
}

/// The operation by which each protocol asks for something.
fn asks(kind: Kind) -> &'static str {
    match kind {
        Kind::Static => "",
        Kind::NsiCalled | Kind::NsiPolling => "reserve",
        Kind::Oscars => "hold",
        Kind::Sense => "intent",
    }
}

/// The operation that takes its time.
fn begins(kind: Kind) -> &'static str {
    match kind {
        Kind::Oscars => "conn_commit",
        Kind::Sense => "sense_provision",
        _ => asks(kind),
    }
}

#[test]
fn a_circuit_is_granted_and_released() {
    for &kind in ALL {
        let mut bench = bench(kind);
        for _ in 0..2 {
            let key = bench.request(400);
            let grant = bench.granted(key);
            assert_eq!((grant.mbit, grant.ends.source.as_str()), (400, "10.77.1.2"));
            // OSCARS knows nothing that lasts for ever.
            assert_eq!(grant.expires.is_some(), kind == Kind::Oscars);
            if kind != Kind::Static {
                assert_eq!(bench.simulator().booked().len(), 1);
                let held = bench.list();
                assert!(held.len() == 1 && held[0].key == key && held[0].up, "{held:?}");
            }
            bench.tear_down(key);
            bench.assert_nothing_is_left();
        }
        assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })), "nothing is said twice");
    }
}

/// Made before the one that there is is broken.
#[test]
fn a_second_circuit_is_granted_beside_the_first() {
    for &kind in ALL {
        let mut bench = bench(kind);
        let first = bench.request(400);
        bench.granted(first);
        let second = bench.request(300);
        assert_eq!(bench.granted(second).mbit, 300);
        let up = |bench: &mut Bench| {
            let mut held: Vec<_> =
                bench.list().into_iter().filter(|held| held.up).map(|held| held.key).collect();
            held.sort();
            held
        };
        if kind != Kind::Static {
            let mut both = vec![first, second];
            both.sort();
            assert_eq!((bench.simulator().booked().len(), up(&mut bench)), (2, both));
        }
        bench.tear_down(first);
        if kind != Kind::Static {
            assert_eq!(up(&mut bench), [second], "the other one stays");
        }
        bench.tear_down(second);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn a_request_beyond_capacity_is_refused() {
    for &kind in ALL {
        let mut bench = bench(kind);
        let key = bench.request(20_000);
        let (less, detail) = bench.refused(key);
        assert!(less, "{detail}");
        bench.assert_nothing_is_left();
        let key = bench.request(900);
        assert_eq!(bench.granted(key).mbit, 900);
    }
}

/// If two want more than a port has, one gets it; the other hears that there may be less, and gets it
/// afterwards. Neither touches what the other has.
#[test]
fn two_requests_for_one_port_are_served_in_turn() {
    for &kind in REMOTE {
        let mut first = bench(kind);
        let text = config(kind, first.simulator.as_deref(), "");
        let mut second = Bench::beside(&first, &text);
        let had = first.request(6_000);
        first.granted(had);
        let wanted = second.request(6_000);
        let (less, detail) = second.refused(wanted);
        assert!(less, "{detail}");
        let smaller = second.request(3_000);
        assert_eq!(second.granted(smaller).mbit, 3_000);
        // Whoever lists sees only what is their own, however often they look.
        for _ in 0..3 {
            for (bench, key) in [(&mut first, had), (&mut second, smaller)] {
                let held = bench.list();
                assert!(held.len() == 1 && held[0].key == key && held[0].up, "{held:?}");
                bench.live(HOUR / 60);
            }
        }
        assert_eq!(first.simulator().booked().len(), 2);
        second.tear_down(smaller);
        first.tear_down(had);
        let again = second.request(6_000);
        assert_eq!(second.granted(again).mbit, 6_000);
        let (less, detail) = {
            let key = first.request(6_000);
            first.refused(key)
        };
        assert!(less, "{detail}");
        second.tear_down(again);
        first.assert_nothing_is_left();
    }
}

#[test]
fn a_lower_grant_is_accepted() {
    // SENSE does not say what it gives.
    for &kind in REMOTE.iter().filter(|&&kind| kind != Kind::Sense) {
        let mut bench = bench(kind);
        bench.simulator().order(mischief(asks(kind), json!({ "less": 300 })));
        let key = bench.request(900);
        assert_eq!(bench.granted(key).mbit, 300);
        bench.simulator().order(mischief(asks(kind), json!({ "less": 0 })));
        let key = bench.request(900);
        assert!(bench.refused(key).0, "nothing is less than enough");
    }
}

#[test]
fn a_request_is_cancelled_at_any_time() {
    for &kind in REMOTE {
        for steps in STEPS {
            let mut bench = bench(kind);
            let key = bench.request(400);
            for _ in 0..steps {
                bench.step();
                let now = bench.now();
                bench.provider.news(now);
            }
            bench.tear_down(key);
            bench.assert_nothing_is_left();
            bench.live(HOUR / 10);
            bench.assert_nothing_is_left();
            assert!(
                !bench.has_news(|event| matches!(event, Event::Answer { answer: Answer::Granted(_), .. }))
            );
        }
    }
}

#[test]
fn a_restart_at_any_time_leaves_nothing_behind() {
    for &kind in REMOTE {
        for steps in STEPS {
            let mut bench = bench(kind);
            let key = bench.request(400);
            for _ in 0..steps {
                bench.step();
                let now = bench.now();
                bench.provider.news(now);
            }
            bench.restart();
            // As its book says after a restart; what the list shows later is torn down as it is in life.
            bench.tear_down(key);
            bench.live(HOUR / 30);
            for held in bench.list() {
                bench.tear_down(held.key);
            }
            bench.assert_nothing_is_left();
        }
    }
}

/// Nothing was heard of the end of it, and it is used on.
#[test]
fn a_granted_circuit_survives_our_restart() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        let key = bench.request(400);
        bench.granted(key);
        for _ in 0..2 {
            bench.restart();
            let held = bench.list();
            assert!(held.len() == 1 && held[0].key == key && held[0].up, "{kind:?}: {held:?}");
            bench.live(HOUR / 20);
        }
        assert_eq!(bench.simulator().booked().len(), 1, "nobody gives it back by himself");
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn an_unresponsive_provider_times_out() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        bench.simulator().order(mischief(begins(kind), json!("silence")));
        let key = bench.request(400);
        bench.live(HOUR / 6);
        assert!(!bench.has_news(|event| matches!(event, Event::Answer { .. })));
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn a_circuit_outlives_a_restart_of_its_provider() {
    for &kind in REMOTE {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state.json");
        let mut bench = bench_with(kind, &["--think", "1", "--state", state.to_str().unwrap()], "");
        let key = bench.request(400);
        bench.granted(key);
        bench.restart_provider();
        let held = bench.list();
        assert!(held.len() == 1 && held[0].key == key && held[0].up, "{held:?}");
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

#[test]
fn a_forgotten_reservation_is_reported_lost() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        let key = bench.request(400);
        bench.granted(key);
        let id = bench.simulator().booked().remove(0);
        bench.simulator().order(json!({ "forget": id }));
        assert!(bench.list().iter().all(|held| !held.up));
        bench.tear_down(key);
    }
}

#[test]
fn a_circuit_expires_on_time() {
    for &kind in REMOTE {
        // Its clock is ahead: what counts is ours.
        for ahead in ["0", "3600", "-3600"] {
            let mut bench = bench_with(kind, &["--think", "1", "--ahead", ahead], "lasts_s = 7200\n");
            let asked = bench.now();
            let key = bench.request(400);
            let expires = bench.granted(key).expires.expect("it was asked for a time");
            let error = expires.since(asked.plus(2 * HOUR)).max(asked.plus(2 * HOUR).since(expires));
            assert!(error < HOUR / 6, "{ahead}: {error:?}");
            bench.live(2 * HOUR);
            // An instance of SENSE lasts until it is cancelled.
            assert!(kind == Kind::Sense || bench.list().iter().all(|held| !held.up));
            bench.tear_down(key);
            bench.assert_nothing_is_left();
        }
    }
}

#[test]
fn an_early_end_is_detected() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        let key = bench.request(400);
        bench.granted(key);
        let id = bench.simulator().booked().remove(0);
        bench.simulator().order(json!({ "end": id }));
        match kind {
            Kind::NsiCalled => assert!(!bench.lost(key).is_empty()),
            _ => assert!(bench.list().iter().all(|held| !held.up)),
        }
        bench.tear_down(key);
        bench.assert_nothing_is_left();
    }
}

/// A request ends by a grant after another try or by a refusal, and nothing is left of it.
fn survives(kind: Kind, deed: &Value, times: usize, more: &str) {
    let mut bench = bench_with(kind, &["--think", "1"], more);
    let rule = json!({ "on": asks(kind), "do": deed, "times": times });
    bench.simulator().order(json!({ "mischief": [rule] }));
    let key = bench.request(400);
    // Where it was done, whatever the answer, it is found.
    let is_done = deed != "lose" && deed.get("status").is_none();
    match bench.answer(key) {
        Answer::Granted(_) if times == 1 || is_done => bench.tear_down(key),
        Answer::Refused { detail, .. } if times > 1 => println!("{deed}: {detail}"),
        other => panic!("{deed} {times} times: {other:?}"),
    }
    bench.simulator().order(json!({ "mischief": [] }));
    bench.assert_nothing_is_left();
}

/// Faults, pages for people, nonsense.
#[test]
fn malformed_replies_are_survived() {
    for &kind in REMOTE {
        let forms = ["garbage", "huge", "entities", "deep", "cut"].map(|form| json!({ "answer": form }));
        let deeds = [json!("lose"), json!("lose_answer"), json!({ "status": 500 }), json!({ "status": 503 })];
        for deed in deeds.into_iter().chain(forms) {
            let is_often =
                [json!("lose"), json!({ "status": 500 }), json!({ "answer": "garbage" })].contains(&deed);
            for times in if is_often { vec![1, 50] } else { vec![1] } {
                survives(kind, &deed, times, "");
            }
        }
    }
}

/// All kinds at once, for each waits out the whole time of an answer.
#[test]
fn a_missing_reply_is_survived() {
    std::thread::scope(|scope| {
        for &kind in REMOTE {
            scope.spawn(move || survives(kind, &json!({ "hang": 60.0 }), 1, "answer_s = 4.0\n"));
        }
    });
}

#[test]
fn an_absent_provider_fails_requests() {
    for &kind in REMOTE {
        let mut bench = bench(kind);
        let address = bench.simulator().service;
        bench.simulator = None;
        // A socket that is bound and does not listen refuses connections, and keeps the port from others.
        let held_port = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held_port.set_reuse_address(true).unwrap();
        held_port.bind(&address.into()).unwrap();
        let key = bench.request(400);
        let (less, detail) = bench.refused(key);
        assert!(!less && detail.contains("cannot be reached"), "{detail}");
    }
}
