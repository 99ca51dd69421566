//! What nobody honest sends.

use std::time::Duration;

use longhaul_doors::Limits;
use longhaul_testkit::wait_until;

use crate::house::{Changes, House, WRITER, Wire};

const PLAIN: &[(&str, &str)] = &[];

fn head(method: &str, path: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer {WRITER}\r\n")
}

/// Promise 9.
#[test]
fn nothing_outside_is_reached() {
    let house = House::new();
    std::fs::write(house.file("secret"), "secret").unwrap();
    std::os::unix::fs::symlink(house.file("secret"), house.root.join("link")).unwrap();
    std::os::unix::fs::symlink(house.file(""), house.root.join("up")).unwrap();
    std::fs::write(house.root.join("f"), "x").unwrap();
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/a/../../secret",
        "/.%2e/secret",
        "//../secret",
        "/f/../../secret",
        "/%00",
        "/a%5c..%5csecret",
        "/link",
        "/up/secret",
        "/.longhaul/temps",
        "/.longhaul",
        "/./f",
    ] {
        for method in ["GET", "PUT", "DELETE", "PROPFIND", "MKCOL"] {
            let reply = house.request(method, path, &[("Depth", "0")], b"");
            assert!((400..500).contains(&reply.status), "{method} {path}: {}", reply.status);
            assert!(
                !reply.text().contains("secret\n") && !reply.text().contains("root:"),
                "{}",
                reply.text()
            );
        }
        let from = house.request("MOVE", "/f", &[("Destination", path)], b"").status;
        assert!((400..500).contains(&from), "MOVE to {path}: {from}");
        let copied = house.request("COPY", "/f", &[("Destination", path)], b"").status;
        assert!((400..500).contains(&copied), "COPY to {path}: {copied}");
    }
    assert_eq!(std::fs::read(house.file("secret")).unwrap(), b"secret");
    assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"x");
    let listed = house.request("PROPFIND", "/", &[("Depth", "1")], b"").text();
    assert!(!listed.contains("link") && !listed.contains("/up") && !listed.contains("longhaul"), "{listed}");
}

#[test]
fn requests_that_can_be_read_in_two_ways_are_refused() {
    let house = House::new();
    for smuggled in [
        "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: +3\r\n\r\nabc",
        "Content-Length: 3, 4\r\n\r\nabc",
        "Transfer-Encoding: gzip, identity\r\n\r\nabc",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n",
        "X: a\r\n folded\r\nContent-Length: 3\r\n\r\nabc",
        "Host: other\r\nContent-Length: 3\r\n\r\nabc",
        "Overwrite: T\r\nAuthorization: Bearer x\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        let mut wire = house.connect();
        wire.send(format!("{}{smuggled}", head("PUT", "/smuggled")).as_bytes());
        let status = wire.reply(false).status;
        assert!(matches!(status, 0 | 400..500), "{smuggled:?}: {status}");
        assert!(!house.root.join("smuggled").exists(), "{smuggled:?}");
    }
    // Two framings: chunks count, and nothing after them is taken for a request.
    for both in [
        "Content-Length: 60\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 60",
    ] {
        let mut wire = house.connect();
        let inner = head("PUT", "/smuggled");
        wire.send(
            format!("{}{both}\r\n\r\n0\r\n\r\n{inner}Content-Length: 0\r\n\r\n", head("PUT", "/x"))
                .as_bytes(),
        );
        let first = wire.reply(false);
        assert!(first.status >= 400 || first.header("connection") == Some("close"), "{first:?}");
        assert_eq!(wire.reply(false).status, 0);
        assert!(!house.root.join("smuggled").exists());
    }
    house.wait_until_clean();
}

#[test]
fn heads_and_documents_have_bounds() {
    let house = House::new();
    let mut wire = house.connect();
    wire.send(format!("{}X: {}\r\n\r\n", head("GET", "/"), "x".repeat(300_000)).as_bytes());
    assert!(matches!(wire.reply(false).status, 0 | 431));
    let mut wire = house.connect();
    let many: String = (0..200).map(|n| format!("X{n}: y\r\n")).collect();
    wire.send(format!("{}{many}\r\n", head("GET", "/")).as_bytes());
    assert!(matches!(wire.reply(false).status, 0 | 431));
    assert_eq!(house.request("GET", &format!("/{}", "x".repeat(5_000)), PLAIN, b"").status, 414);
    let bomb = "<!DOCTYPE a [<!ENTITY b 'bbbbbbbbbb'><!ENTITY c '&b;&b;&b;&b;'>]><propfind \
        xmlns='DAV:'>&c;</propfind>";
    let deep = "<a>".repeat(20_000);
    let large = " ".repeat(100_000);
    for (document, status) in [(bomb, 400), (&deep, 400), (&large, 413), ("<propfind/>", 400)] {
        let reply = house.request("PROPFIND", "/", &[("Depth", "0")], document.as_bytes());
        assert_eq!(reply.status, status, "{}", &document[..document.len().min(40)]);
    }
    assert_eq!(house.request("GET", "/", PLAIN, b"").status, 200, "and the door goes on");
}

/// Promise 1.
#[test]
fn an_interrupted_upload_leaves_nothing() {
    let house = House::new();
    std::fs::write(house.root.join("f"), "old").unwrap();
    for framing in ["Content-Length: 3000000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n2DC6C0\r\n"] {
        let mut wire = house.connect();
        wire.send(format!("{}{framing}", head("PUT", "/f")).as_bytes());
        wire.send(&vec![7; 2_000_000]);
        wait_until(|| !house.temps().is_empty(), || "nothing of it has arrived".to_owned());
        assert_eq!(house.temps().len(), 1, "it is on its way");
        drop(wire);
        house.wait_until_clean();
        assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"old");
    }
}

#[test]
fn what_a_killed_door_left_is_removed_at_the_next_start() {
    let house = House::new();
    let mark = longhaul_model::hex::encode(b"testdoor");
    let temps = house.root.join(".longhaul/temps");
    std::fs::write(temps.join(format!("{mark}0000000100000001")), "half").unwrap();
    std::fs::write(temps.join("00000000000000010000000100000001"), "another's").unwrap();
    let again = house.reopened();
    assert_eq!(again.temps(), ["00000000000000010000000100000001"]);
}

/// The connection that had this answer: a busy machine may be too slow for a door with short times, which
/// then closes, or has not yet got the turn of the one before back.
fn until_answered(house: &House, request: &str, status: u16) -> Wire {
    let mut answered = None;
    let ask = || {
        let mut wire = house.connect();
        wire.send(request.as_bytes());
        let found = wire.reply(false).status;
        assert!([status, 0, 503].contains(&found), "{request}: {found}");
        answered = (found == status).then_some(wire);
        answered.is_some()
    };
    wait_until(ask, || format!("{request}: it is never answered by {status}"));
    answered.unwrap()
}

#[test]
fn the_slow_are_not_waited_for() {
    let limits = Limits {
        stall: Duration::from_millis(300),
        head: Duration::from_millis(300),
        transfers: 1,
        turn: Duration::from_millis(50),
        ..Limits::default()
    };
    let house = House::with(Changes { limits, ..Changes::default() });
    until_answered(&house, &format!("{}Content-Length: 10\r\n\r\nabc", head("PUT", "/f")), 408);
    house.wait_until_clean();
    let mut wire = house.connect();
    wire.send(b"GET /f HTTP/1.1\r\nHost");
    assert_eq!(wire.reply(false).status, 0, "the head does not come");
    let mut idle = until_answered(&house, &format!("{}\r\n", head("OPTIONS", "/")), 200);
    assert!(idle.is_closed(), "a connection without requests");
    let silent = std::net::TcpStream::connect(house.address).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(std::io::Read::read(&mut &silent, &mut [0]).unwrap(), 0, "the handshake does not come");
    // A reader that takes nothing gives its turn back.
    let sparse = std::fs::File::create(house.root.join("large")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    let status = || house.request("GET", "/large", &[("Range", "bytes=0-0")], b"").status;
    // All stay open, and a next one begins where the turn was back before anybody looked.
    let mut readers = Vec::new();
    let takes_turn = || {
        let mut reader = house.connect();
        reader.send(format!("{}\r\n", head("GET", "/large")).as_bytes());
        readers.push(reader);
        (0..5).any(|_| status() == 503)
    };
    wait_until(takes_turn, || "the turn is never taken".to_owned());
    wait_until(|| status() == 206, || "the turn is not given back".to_owned());
}

#[test]
fn connections_have_bounds() {
    let limits = Limits { connections_of_address: 2, ..Limits::default() };
    let house = House::with(Changes { limits, ..Changes::default() });
    let mut kept: Vec<_> = (0..2)
        .map(|_| {
            let mut wire = house.connect();
            wire.send(format!("{}\r\n", head("OPTIONS", "/")).as_bytes());
            assert_eq!(wire.reply(false).status, 200);
            wire
        })
        .collect();
    let mut third = house.connect();
    third.send(format!("{}\r\n", head("OPTIONS", "/")).as_bytes());
    assert_eq!(third.reply(false).status, 0);
    kept.clear();
    let is_admitted = || house.request("OPTIONS", "/", PLAIN, b"").status == 200;
    wait_until(is_admitted, || "seats are not given back".to_owned());
}
