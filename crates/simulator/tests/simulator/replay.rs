//! Recordings from outside: whatever is in them, there is an answer, and it does not depend on how they were
//! read.

use std::collections::BTreeMap;

use longhaul_model::{AgentId, StorageId, SubscriptionId, Timestamp};
use longhaul_scheduler::record::{FORMAT_VERSION, Head, Line, LineKind, encode};
use longhaul_scheduler::{Event, LinkShares, Scheduler, Settings};
use longhaul_simulator::replay::{Replay, ReplayError, ReplayOptions, ReplayReport};
use proptest::prelude::*;
use serde_json::json;

const BEGIN: i64 = 1_800_000_000_000_000;

fn replay(bytes: &[u8], at_once: usize) -> Result<ReplayReport, String> {
    let replayed = || -> Result<ReplayReport, ReplayError> {
        let mut replay = Replay::new(ReplayOptions::default())?;
        bytes.chunks(at_once).try_for_each(|part| replay.feed(part))?;
        replay.end()
    };
    replayed().map_err(|error| error.to_string())
}

fn put(bytes: &mut Vec<u8>, number: u64, kind: LineKind, body: &str) {
    Line { number, kind, now: Timestamp(BEGIN + number as i64 * 10_000), body }.write(bytes);
}

/// Two storages, one file; and what the scheduler says to it.
fn events() -> Vec<Event> {
    let site = json!({ "Site": { "id": 1, "name": "alpha", "state": "Open", "reason": null,
        "limits": { "active_in": null, "active_out": null, "in_bytes_per_s": null,
            "out_bytes_per_s": null } } });
    let storage = |id: u64, name: &str| {
        json!({ "Storage": { "id": id, "name": name, "site": 1,
        "writable": true, "relay": false, "trouble": null } })
    };
    let agent = |id: u64| json!({ "Agent": { "storage": id, "agent": AgentId(id), "connected": true } });
    let all = [site, storage(1, "alpha"), storage(2, "beta"), agent(1), agent(2)];
    let all = all.into_iter().map(|event| serde_json::from_value(event).unwrap());
    all.chain(wish(1, "cms", &[1, 2])).collect()
}

/// A block that a community wants to have at the second storage, and its files.
fn wish(number: u64, community: &str, files: &[u64]) -> [Event; 2] {
    let id = json!({ "subscription": SubscriptionId(number), "block": number });
    let demand = json!({ "Demand": { "id": id, "target": 2, "priority": 3,
        "party": { "community": community, "activity": null }, "created": "2027-01-15T08:00:00.000Z",
        "deadline": null, "strategy": null, "files_left": files.len(), "bytes_left": 100 * files.len() } });
    let file = |file: &u64| json!({ "file": file, "size": 100, "sources": [1] });
    let files: Vec<_> = files.iter().map(file).collect();
    let files = json!({ "Files": { "demand": id, "exhausted": true, "files": files } });
    [demand, files].map(|event| serde_json::from_value(event).unwrap())
}

/// What is decided is asked after each batch of events.
fn recording<'a>(batches: impl IntoIterator<Item = &'a [Event]>) -> Vec<u8> {
    let settings = Settings::default();
    let head = Head { format: FORMAT_VERSION, version: "0".into(), settings, last_id: 0, knowledge: None };
    let (mut bytes, mut number) = (Vec::new(), 1);
    put(&mut bytes, 0, LineKind::Head, &encode(&head).unwrap());
    let mut scheduler = Scheduler::new(head.settings, Default::default(), 0);
    for events in batches {
        for event in events {
            put(&mut bytes, number, LineKind::Event, &encode(event).unwrap());
            scheduler.handle(event.clone(), Timestamp(BEGIN + number as i64 * 10_000));
            number += 1;
        }
        loop {
            let decision = scheduler.poll_decision(Timestamp(BEGIN + number as i64 * 10_000));
            put(&mut bytes, number, LineKind::Poll, &encode(&decision).unwrap());
            number += 1;
            if decision.is_none() {
                break;
            }
        }
    }
    bytes
}

#[test]
fn what_was_recorded_is_decided_again_and_a_changed_decision_is_told() {
    let bytes = recording(events().chunks(1));
    let same = replay(&bytes, bytes.len()).unwrap();
    assert!(same.is_same(), "{same:?}");
    assert_eq!((same.leases, same.inputs.events), (2, 7), "{same:?}");

    // The same lines, except that one decision names another source.
    let mut forged = Vec::new();
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let line = Line::read(line).unwrap();
        let body = line.body.replacen("\"source\":1", "\"source\":7", 1);
        put(&mut forged, line.number, line.kind, if line.kind == LineKind::Poll { &body } else { line.body });
    }
    let other = replay(&forged, forged.len()).unwrap();
    let difference = other.difference.unwrap();
    assert_eq!(difference.fields, ["Lease.source: 7 then, 1 now"]);
    assert!(difference.recorded.contains("for beta from storage 7"), "{difference:?}");
    assert!(difference.replayed.contains("for beta from alpha"), "{difference:?}");
}

/// Both want the link when the first file goes, so what is decided again has the weights in it.
#[test]
fn what_went_by_the_weights_of_a_link_is_decided_again() {
    let shares = LinkShares {
        links: (Some(StorageId(1)), Some(StorageId(2))),
        communities: BTreeMap::from([("cms".parse().unwrap(), 1.0), ("atlas".parse().unwrap(), 3.0)]),
        others: 0.0,
    };
    let mut all = events();
    let agent = all.remove(4);
    all.push(Event::LinkShares(vec![shares]));
    all.extend(wish(2, "atlas", &[3, 4]));
    // Until it is there nothing can go.
    all.push(agent);
    let bytes = recording(all.chunks(1));
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains(r#""link_weight":{"weight":3.0,"all":4.0}"#), "{text}");
    let same = replay(&bytes, bytes.len()).unwrap();
    assert!(same.is_same() && same.leases == 4, "{same:?}");
    // Without the weights others go first.
    let mut forgotten = Vec::new();
    for line in bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let line = Line::read(line).unwrap();
        let body = if line.body.contains("LinkShares") { r#"{"LinkShares":[]}"# } else { line.body };
        put(&mut forgotten, line.number, line.kind, body);
    }
    assert!(!replay(&forgotten, forgotten.len()).unwrap().is_same());
}

#[test]
fn what_cannot_be_is_refused() {
    let head = |change: fn(&mut Head)| {
        let settings = Settings::default();
        let mut head =
            Head { format: FORMAT_VERSION, version: "0".into(), settings, last_id: 0, knowledge: None };
        change(&mut head);
        let mut bytes = Vec::new();
        put(&mut bytes, 0, LineKind::Head, &encode(&head).unwrap());
        replay(&bytes, 100).unwrap_err()
    };
    assert_eq!(head(|head| head.format = 9), "line 0: its format is 9; this program understands 1");
    assert_eq!(head(|head| head.settings.relief = 0), "line 0: its settings say relief = 0");
    assert!(head(|head| head.knowledge = Some("{".into())).starts_with("line 0: its knowledge: "));
    let mut bytes = Vec::new();
    put(&mut bytes, 0, LineKind::Poll, "null");
    assert_eq!(replay(&bytes, 1).unwrap_err(), "line 0: a recording begins with its head");
    assert!(replay(b"[]\n", 1).unwrap_err().contains("no line of a recording"));
}

proptest! {
    #[test]
    fn damage_ends_in_a_word_or_a_shorter_recording(place in any::<proptest::sample::Index>(),
        to in any::<u8>(), cut in any::<bool>(), at_once in 1..200_usize) {
        let whole = recording(events().chunks(1));
        let before = replay(&whole, whole.len()).unwrap();
        let place = place.index(whole.len());
        let mut bytes = whole.clone();
        if cut { bytes.truncate(place) } else { bytes[place] = to }
        let found = replay(&bytes, at_once);
        prop_assert_eq!(&found, &replay(&bytes, bytes.len().max(1)));
        if let Ok(found) = found {
            prop_assert!(found.is_same() && found.lines <= before.lines);
            prop_assert!(cut || bytes == whole || found.torn > 0);
        }
    }
}
