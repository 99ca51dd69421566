//! The audit sink hears every decision of a door, and no secret with it.

use std::sync::{Arc, Mutex};

use longhaul_doors::AuditSink;
use longhaul_security::{Decision, ForeignServerTrust, foreign_client_tls_with_certificate};

use crate::house::{Changes, House, PLAIN, READER, WRITER};

#[derive(Default)]
struct Heard(Mutex<Vec<Decision>>);

impl AuditSink for Heard {
    fn record(&self, decision: Decision) {
        self.0.lock().unwrap().push(decision);
    }
}

impl Heard {
    fn take(&self) -> Vec<Decision> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

fn house() -> (House, Arc<Heard>) {
    let heard = Arc::new(Heard::default());
    let house = House::with(Changes { audit: Some(heard.clone()), ..Changes::default() });
    (house, heard)
}

fn words(decision: &Decision) -> (bool, &str, &str, &str, &str) {
    let Decision { allowed, who, credential, operation, object, .. } = decision;
    (*allowed, who, credential, operation, object)
}

#[test]
fn refusals_and_changes_are_told_and_reading_is_not() {
    let (house, heard) = house();
    let reader = format!("Bearer {READER}");
    assert_eq!(house.request("PUT", "/a%20b", PLAIN, b"x").status, 201);
    assert_eq!(house.request("GET", "/a%20b", PLAIN, b"").status, 200);
    assert_eq!(house.request("PROPFIND", "/", &[("Depth", "1")], b"").status, 207);
    let put = house.request("PUT", "/c?token=canary", &[("Authorization", &reader)], b"x");
    assert_eq!(put.status, 403);
    assert_eq!(house.request("GET", "/a%20b", &[("Authorization", "")], b"").status, 401);
    assert_eq!(
        house.request("DELETE", "/a%20b", &[("Authorization", "Bearer canary-0123456789")], b"").status,
        401
    );
    assert_eq!(house.request("GET", "/none", PLAIN, b"").status, 404, "no decision");
    let list = heard.take();
    assert_eq!(
        list.iter().map(words).collect::<Vec<_>>(),
        [
            (true, "a token", "token", "door PUT", "/a%20b"),
            (false, "a token", "token", "door PUT", "/c"),
            (false, "nobody", "none", "door GET", "/a%20b"),
            (false, "nobody", "a token that does not count", "door DELETE", "/a%20b"),
        ]
    );
    assert_eq!(list[0].why, "rules of the door");
    assert!(list[1].why.contains("not allowed to write here"), "{:?}", list[1]);
    assert!(
        list.iter().all(|one| one.origin == "127.0.0.1" && one.storage.as_ref().unwrap().as_str() == "disk")
    );
    let all = format!("{list:?}");
    for secret in [WRITER, READER, "canary"] {
        assert!(!all.contains(secret), "{all}");
    }
}

#[test]
fn who_comes_with_a_certificate_is_named() {
    let (house, heard) = house();
    let ca = std::fs::read_to_string(&house.ca).unwrap();
    for (name, status) in [("alice", 201), ("mallory", 403)] {
        let pem = std::fs::read_to_string(house.file(&format!("{name}.pem"))).unwrap();
        let tls =
            foreign_client_tls_with_certificate(ForeignServerTrust::Authorities(&ca), &pem, &pem).unwrap();
        let wire = house.connect_by(tls);
        assert_eq!(house.ask_over(wire, "MKCOL", "/d", &[("Authorization", "")], b"").status, status);
    }
    let list = heard.take();
    assert_eq!(
        list.iter().map(words).collect::<Vec<_>>(),
        [
            (true, "/CN=alice", "certificate", "door MKCOL", "/d"),
            (false, "/CN=mallory", "certificate", "door MKCOL", "/d"),
        ]
    );
    assert!(list[1].why.contains("an administrator of this door can allow it"), "{:?}", list[1]);
}
