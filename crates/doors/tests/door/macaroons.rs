//! What a door gives to those who come with a certificate or a token of its file, for others to show.

use longhaul_security::{ForeignServerTrust, foreign_client_tls_with_certificate};
use serde_json::Value;

use crate::house::{Changes, House, READER, Reply, WRITER};

const SMOKE: &str = r#"{"caveats":["activity:DOWNLOAD,UPLOAD,DELETE,LIST"],"validity":"PT30M"}"#;

fn asked(house: &House, who: Option<&str>, headers: &[(&str, &str)], path: &str, wish: &str) -> Reply {
    let mut headers = [headers, &[("Content-Type", "application/macaroon-request")]].concat();
    if !headers.iter().any(|(name, _)| *name == "Authorization") {
        headers.push(("Authorization", ""));
    }
    let Some(name) = who else { return house.request("POST", path, &headers, wish.as_bytes()) };
    let pem = std::fs::read_to_string(house.file(&format!("{name}.pem"))).unwrap();
    let at = pem.find("-----BEGIN PRIVATE").unwrap();
    let ca = std::fs::read_to_string(&house.ca).unwrap();
    let tls =
        foreign_client_tls_with_certificate(ForeignServerTrust::Authorities(&ca), &pem[..at], &pem[at..])
            .unwrap();
    house.ask_over(house.connect_by(tls), "POST", path, &headers, wish.as_bytes())
}

fn given(house: &House, path: &str, wish: &str) -> String {
    let reply = asked(house, Some("alice"), &[], path, wish);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let answer: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(answer["uri"]["target"], house.url(path));
    answer["macaroon"].as_str().unwrap().to_owned()
}

fn with(house: &House, macaroon: &str, method: &str, path: &str, body: &[u8]) -> u16 {
    house.request(method, path, &[("Authorization", &format!("bearer {macaroon}"))], body).status
}

/// What the public smoke test of third-party copies asks of every storage (http-tpc-utils).
#[test]
fn a_macaroon_does_what_its_giver_may() {
    let house = House::new();
    let macaroon = given(&house, "/d/f", SMOKE);
    for (method, status) in [("PUT", 201), ("GET", 200), ("HEAD", 200), ("PUT", 204), ("DELETE", 204)] {
        let body: &[u8] = if method == "PUT" { b"content" } else { b"" };
        assert_eq!(with(&house, &macaroon, method, "/d/f", body), status, "{method}");
    }
    for (method, path) in [("GET", "/d/ff"), ("GET", "/d/"), ("PUT", "/e"), ("DELETE", "/d")] {
        assert_eq!(with(&house, &macaroon, method, path, b""), 403, "{method} {path}");
    }
}

#[test]
fn it_goes_no_further_than_was_asked_for() {
    let house = House::new();
    std::fs::write(house.root.join("f"), "content").unwrap();
    let reads = given(&house, "/f", r#"{"caveats":["activity:DOWNLOAD,LIST"]}"#);
    assert_eq!(with(&house, &reads, "GET", "/f", b""), 200);
    assert_eq!(with(&house, &reads, "PUT", "/f", b"x"), 403);
    assert_eq!(with(&house, &reads, "DELETE", "/f", b""), 403);
    // New files only, and none that is there.
    let adds = given(&house, "/", r#"{"caveats":["activity:UPLOAD"]}"#);
    assert_eq!(with(&house, &adds, "PUT", "/g", b"x"), 201);
    assert_eq!(with(&house, &adds, "PUT", "/g", b"y"), 403);
    assert_eq!(with(&house, &adds, "GET", "/g", b""), 403);
    let elsewhere = given(&house, "/f", r#"{"caveats":["activity:DOWNLOAD","ip:192.0.2.1"]}"#);
    assert_eq!(with(&house, &elsewhere, "GET", "/f", b""), 401);
    let over = given(&house, "/f", r#"{"caveats":["activity:DOWNLOAD","before:2020-01-01T00:00:00Z"]}"#);
    assert_eq!(with(&house, &over, "GET", "/f", b""), 401);
    assert_eq!(with(&House::new(), &reads, "GET", "/f", b""), 401, "of another door");
    assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"content");
}

#[test]
fn it_is_given_to_nobody_else() {
    let house = House::new();
    let bearer = |token: &str| format!("Bearer {token}");
    assert_eq!(asked(&house, None, &[], "/f", SMOKE).status, 401);
    let unknown = bearer("nobody-0123456789abcdef");
    assert_eq!(asked(&house, None, &[("Authorization", &unknown)], "/f", SMOKE).status, 401);
    assert_eq!(asked(&house, Some("mallory"), &[], "/f", SMOKE).status, 403, "known, and allowed nothing");
    let macaroon = given(&house, "/f", SMOKE);
    assert_eq!(asked(&house, None, &[("Authorization", &bearer(&macaroon))], "/f", SMOKE).status, 403);
    for bad in ["", "[]", r#"{"caveats":["name:root"]}"#, r#"{"validity":"soon"}"#] {
        assert_eq!(asked(&house, Some("alice"), &[], "/f", bad).status, 400, "{bad}");
    }
    let large = format!("{{\"validity\":\"{}\"}}", "x".repeat(20_000));
    assert_eq!(asked(&house, Some("alice"), &[], "/f", &large).status, 413);
    assert_eq!(house.request("POST", "/f", &[("Content-Type", "text/plain")], b"x").status, 405);
}

/// A token of the file opens all of its path for as long as its line stands there. What was given for it
/// opens one file, and ends with it.
#[test]
fn it_is_given_for_a_token_of_the_file() {
    let house = House::new();
    std::fs::write(house.root.join("f"), "content").unwrap();
    let for_token = |token: &str, wish: &str| {
        let reply = asked(&house, None, &[("Authorization", &format!("Bearer {token}"))], "/f", wish);
        let answer: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
        (reply.status, answer["macaroon"].as_str().unwrap_or_default().to_owned())
    };
    let (status, reads) = for_token(READER, SMOKE);
    assert_eq!(status, 200);
    assert_eq!(with(&house, &reads, "GET", "/f", b""), 200);
    assert_eq!(with(&house, &reads, "GET", "/g", b""), 403);
    assert_eq!(with(&house, &reads, "PUT", "/f", b"x"), 403, "its giver may only read");
    let (_, writes) = for_token(WRITER, r#"{"caveats":["activity:UPLOAD,DELETE"]}"#);
    assert_eq!(with(&house, &writes, "PUT", "/f", b"newer"), 204);
    assert_eq!(with(&house, &writes, "GET", "/f", b""), 403, "not asked for");
    assert_eq!(for_token(&writes, SMOKE).0, 403, "a macaroon obtains none, which would last longer");
    assert_eq!(for_token(READER, r#"{"caveats":["activity:UPLOAD"]}"#).0, 403, "nothing is left of it");

    house.revoke(READER);
    assert_eq!(with(&house, &reads, "GET", "/f", b""), 403, "its giver may nothing any more");
    assert_eq!(with(&house, &writes, "PUT", "/f", b"again"), 204, "another's");
}

/// As FTS has doors copy for users with certificates.
#[test]
fn another_door_shows_it() {
    let one = House::new();
    let trusts = Some(std::fs::read_to_string(&one.ca).unwrap());
    let other = House::with(Changes { trusts, ..Changes::default() });
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(one.root.join("f"), &bytes).unwrap();
    let copy = |path: &str, header: &str, at: &str, macaroon: &str| {
        let shown = format!("Bearer {macaroon}");
        let headers = [(header, at), ("TransferHeaderAuthorization", shown.as_str())];
        let reply = other.request("COPY", path, &headers, b"");
        reply.text().lines().last().unwrap_or_default().to_owned()
    };
    let (from, to) = (one.url("/f"), one.url("/in/g"));
    let reads = given(&one, "/f", r#"{"caveats":["activity:DOWNLOAD,LIST"],"validity":"PT10M"}"#);
    assert_eq!(copy("/f", "Source", &from, &reads), "success: Created");
    let writes =
        given(&one, "/in/g", r#"{"caveats":["activity:MANAGE,UPLOAD,DELETE,LIST"],"validity":"PT10M"}"#);
    assert_eq!(copy("/f", "Destination", &to, &writes), "success: Created");
    assert_eq!(copy("/f", "Destination", &to, &writes), "success: Created", "replaced");
    assert!(std::fs::read(one.root.join("in/g")).unwrap() == bytes);
    for (header, at, macaroon) in [("Source", &from, &writes), ("Destination", &to, &reads)] {
        let said = copy("/h", header, at, macaroon);
        assert!(said.contains("403") || header == "Destination", "{said}");
    }
    let refused = copy("/f", "Destination", &to, &reads);
    assert!(refused.contains("status code 403"), "{refused}");
    let reader = format!("Bearer {READER}");
    assert_eq!(other.request("GET", "/f", &[("Authorization", &reader)], b"").status, 200);
}
