//! What is on its way when its token is taken out of the door's file: uploads, downloads, third-party copies.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};

use longhaul_testkit::wait_until;

use crate::house::{House, PLAIN, WRITER, Wire};

fn begin(house: &House, method: &str, path: &str, headers: &[(&str, &str)]) -> Wire {
    let port = house.address.port();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {WRITER}\r\n");
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    let mut wire = house.connect();
    wire.send(head.as_bytes());
    wire
}

fn wait_until_begun(house: &House) {
    wait_until(|| !house.temps().is_empty(), || "it does not begin".into());
}

#[test]
fn an_upload_of_a_revoked_token_leaves_nothing() {
    let house = House::new();
    let mut wire = begin(&house, "PUT", "/f", &[("Content-Length", "10")]);
    wire.send(b"first");
    wait_until_begun(&house);
    house.revoke(WRITER);
    wire.send(b"later");
    let reply = wire.reply(false);
    assert_eq!(reply.status, 401, "{}", reply.text());
    assert!(reply.text().contains("revoked"), "{}", reply.text());
    house.wait_until_clean();
    assert!(!house.root.join("f").exists());
}

#[test]
fn a_download_of_a_revoked_token_ends_in_the_middle() {
    // More than all buffers on the way take.
    const BYTES: u64 = 64 << 20;
    for range in [PLAIN, &[("Range", "bytes=1-")], &[("Range", "bytes=0-9,20-")]] {
        let house = House::new();
        std::fs::File::create(house.root.join("f")).unwrap().set_len(BYTES).unwrap();
        let mut wire = begin(&house, "GET", "/f", range);
        let status = wire.line().unwrap();
        assert!(status.starts_with("HTTP/1.1 20"), "{status}");
        house.revoke(WRITER);
        let rest = wire.count_rest();
        assert!(rest < BYTES, "{range:?}: all {rest} bytes came");
    }
}

/// A source that sends half a file, and the rest when it is told to.
fn halting_source(house: &House) -> (String, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/f", listener.local_addr().unwrap().port());
    let (tls, (go, may_go)) = (house.server_tls(), channel());
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let Ok(connection) = rustls::ServerConnection::new(tls.clone()) else { return };
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let is_head = head.starts_with(b"HEAD");
            let body = if is_head { "" } else { "he" };
            let answer =
                format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDigest: adler32=062c0215\r\n\r\n{body}");
            let _ = stream.write_all(answer.as_bytes()).and_then(|()| stream.flush());
            if !is_head && may_go.recv().is_ok() {
                let _ = stream.write_all(b"llo");
            }
            stream.conn.send_close_notify();
            let _ = stream.flush();
        }
    });
    (url, go)
}

#[test]
fn a_third_party_copy_of_a_revoked_token_leaves_nothing() {
    let house = House::new();
    let (url, go) = halting_source(&house);
    let mut wire = begin(&house, "COPY", "/f", &[("Source", &url)]);
    wait_until_begun(&house);
    house.revoke(WRITER);
    go.send(()).unwrap();
    let reply = wire.reply(false);
    let last = reply.text().lines().last().unwrap_or_default().to_owned();
    assert!(last.starts_with("failure") && last.contains("revoked"), "{}", reply.text());
    house.wait_until_clean();
    assert!(!house.root.join("f").exists());
}

/// A token that others still have is theirs, and what goes on by another credential goes on.
#[test]
fn what_goes_on_by_another_token_goes_on() {
    let house = House::new();
    let mut wire = begin(&house, "PUT", "/f", &[("Content-Length", "10")]);
    wire.send(b"first");
    wait_until_begun(&house);
    house.revoke(crate::house::READER);
    wire.send(b"later");
    assert_eq!(wire.reply(false).status, 201);
    assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"firstlater");
}
