//! Copies between two doors, asked for by a third.

use std::io::{Read, Write};

use longhaul_testkit::wait_until;

use crate::house::{Changes, House, READER, Reply, WRITER};

fn pair() -> (House, House) {
    let one = House::new();
    let trusts = Some(std::fs::read_to_string(&one.ca).unwrap());
    (one, House::with(Changes { trusts, ..Changes::default() }))
}

fn pull(door: &House, path: &str, source: &str, more: &[(&str, &str)]) -> Reply {
    let token = format!("Bearer {READER}");
    let mut headers = vec![("Source", source), ("TransferHeaderAuthorization", token.as_str())];
    headers.extend(more);
    door.request("COPY", path, &headers, b"")
}

fn last_line(reply: &Reply) -> String {
    reply.text().lines().last().unwrap_or_default().to_owned()
}

fn bytes() -> Vec<u8> {
    (0..5_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn files_are_pulled_and_pushed() {
    let (source, target) = pair();
    std::fs::write(source.root.join("f"), bytes()).unwrap();
    let url = source.url("/f?copy_mode=pull");
    let more =
        [("Credential", "none"), ("X-Number-Of-Streams", "4"), ("RequireChecksumVerification", "true")];
    let pulled = pull(&target, "/in/f", &url, &more);
    assert_eq!((pulled.status, last_line(&pulled).as_str()), (202, "success: Created"), "{}", pulled.text());
    assert!(pulled.text().contains("    Stripe Bytes Transferred: 5000000\n"), "{}", pulled.text());
    assert!(pulled.text().starts_with("Perf Marker\n"));
    assert!(std::fs::read(target.root.join("in/f")).unwrap() == bytes());

    // The target of a push has to be believed as well: each trusts itself and the other trusts it.
    let token = format!("Bearer {WRITER}");
    let to = source.url("/pushed");
    let headers = [("Destination", to.as_str()), ("TransferHeaderAuthorization", token.as_str())];
    let pushed = target.request("COPY", "/in/f", &headers, b"");
    assert_eq!((pushed.status, last_line(&pushed).as_str()), (202, "success: Created"), "{}", pushed.text());
    assert!(std::fs::read(source.root.join("pushed")).unwrap() == bytes());
    let again = target.request("COPY", "/in/f", &[headers[0], headers[1], ("Overwrite", "F")], b"");
    assert!(
        last_line(&again).starts_with("failure: Remote side failed with status code 412"),
        "{}",
        again.text()
    );
}

#[test]
fn a_failed_pull_changes_nothing() {
    let (source, target) = pair();
    std::fs::write(source.root.join("f"), "new").unwrap();
    std::fs::write(target.root.join("f"), "old").unwrap();
    let nobody = House::new();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    for (url, why) in [
        (source.url("/none"), "status code 404"),
        (source.url("/"), "a directory"),
        (format!("https://localhost:{closed}/f"), "refused"),
        (nobody.url("/f"), "TLS with localhost"),
    ] {
        let reply = pull(&target, "/f", &url, &[]);
        let said = last_line(&reply);
        assert!(reply.status == 202 && said.starts_with("failure: ") && said.contains(why), "{url}: {said}");
        assert_eq!(std::fs::read(target.root.join("f")).unwrap(), b"old");
        let fresh = pull(&target, "/fresh", &url, &[]);
        assert!(last_line(&fresh).starts_with("failure: "));
        assert!(!target.root.join("fresh").exists());
    }
    assert_eq!(pull(&target, "/f", &source.url("/f"), &[("Overwrite", "F")]).status, 412);
    target.wait_until_clean();
    let wrong = [("TransferHeaderAuthorization", "Bearer wrong-0123456789012345")];
    let mut headers = vec![("Source", ""), wrong[0]];
    let url = source.url("/f");
    headers[0].1 = &url;
    let refused = target.request("COPY", "/f", &headers, b"");
    assert!(last_line(&refused).contains("status code 401"), "{}", refused.text());
    assert_eq!(last_line(&pull(&target, "/f", &url, &[])), "success: Created");
    assert_eq!(std::fs::read(target.root.join("f")).unwrap(), b"new");
}

#[test]
fn what_is_asked_wrongly_is_refused_at_once() {
    let (source, target) = pair();
    std::fs::write(source.root.join("f"), "x").unwrap();
    let url = source.url("/f");
    for (more, status) in [
        (("Destination", "https://elsewhere.example/x"), 400),
        (("Credential", "gridsite"), 400),
        (("X-Number-Of-Streams", "soup"), 400),
        (("RequireChecksumVerification", "perhaps"), 400),
        (("Overwrite", "X"), 400),
    ] {
        assert_eq!(pull(&target, "/g", &url, &[more]).status, status, "{more:?}");
    }
    for (source, status) in [
        ("file:///etc/passwd", 400),
        ("http://localhost/x", 501),
        ("gopher://localhost/x", 501),
        ("https://user:pass@localhost/x", 400),
    ] {
        assert_eq!(pull(&target, "/g", source, &[]).status, status, "{source}");
    }
    assert_eq!(target.request("COPY", "/g", &[("Source", &url), ("Authorization", "")], b"").status, 401);
    let reader = format!("Bearer {READER}");
    assert_eq!(
        target.request("COPY", "/g", &[("Source", &url), ("Authorization", &reader)], b"").status,
        403
    );
    // What gfal says where its user named no number.
    assert_eq!(last_line(&pull(&target, "/g", &url, &[("X-Number-Of-Streams", "0")])), "success: Created");
    let framed =
        pull(&target, "/g", &url, &[("TransferHeaderContent-Length", "7"), ("TransferHeaderHost", "x")]);
    assert_eq!(last_line(&framed), "success: Created");
}

#[test]
fn this_network_is_not_reached() {
    let (source, _) = pair();
    std::fs::write(source.root.join("f"), "x").unwrap();
    let trusts = Some(std::fs::read_to_string(&source.ca).unwrap());
    let careful = House::with(Changes { trusts, dials: Vec::new(), ..Changes::default() });
    let port = source.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433"] {
        let reply = pull(&careful, "/f", &format!("https://{host}:{port}/f"), &[]);
        let said = last_line(&reply);
        assert!(reply.status >= 400 || said.starts_with("failure: "), "{host}: {said}");
        assert!(!careful.root.join("f").exists(), "{host}");
    }
    let said = last_line(&pull(&careful, "/f", &source.url("/f"), &[]));
    assert!(said.contains("not at a public address"), "{said}");
}

/// What a source says, one answer for each connection in turn, the last one for ever. It ends by itself with
/// the test.
fn false_source(house: &House, answers: &[&str]) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/f", listener.local_addr().unwrap().port());
    let tls = house.server_tls();
    let answers: Vec<String> = answers.iter().map(|answer| answer.replace("SELF", &url)).collect();
    std::thread::spawn(move || {
        for number in 0.. {
            let Ok((stream, _)) = listener.accept() else { return };
            let Ok(connection) = rustls::ServerConnection::new(tls.clone()) else { return };
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                match std::io::Read::read(&mut stream, &mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => break,
                }
            }
            let answer = answers[number.min(answers.len() - 1)].clone();
            let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
            if answer.contains("X-Then: wait") {
                // Until the other side goes.
                let _ = std::io::Read::read(&mut stream, &mut [0]);
            }
            stream.conn.send_close_notify();
            let _ = std::io::Write::flush(&mut stream);
        }
    });
    url
}

const HEAD_OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDigest: adler32=062c0215\r\n\r\n";

/// Promises 1 and 2, whatever a source does.
#[test]
fn sources_that_lie_or_break_change_nothing() {
    let target = House::new();
    std::fs::write(target.root.join("f"), "old").unwrap();
    for (answers, why) in [
        (&[HEAD_OK, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO"] as &[&str], "adler32"),
        (&[HEAD_OK, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], "5 bytes first and 0 then"),
        (&[HEAD_OK, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel"], "connection lost"),
        (
            &[HEAD_OK, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\n\r\n"],
            "2 of 5 bytes",
        ),
        (
            &[HEAD_OK, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\nhello!!\r\n0\r\n\r\n"],
            "more bytes",
        ),
        (&[HEAD_OK, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nDigest: adler32=1\r\n\r\nhello"], "first and"),
        (
            &[HEAD_OK, "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello"],
            "encoded",
        ),
        (&[HEAD_OK, "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\nhello"], "206"),
        (&["HTTP/1.1 302 Found\r\nLocation: SELF\r\nContent-Length: 0\r\n\r\n"], "redirects more than"),
        (
            &["HTTP/1.1 302 Found\r\nLocation: http://localhost/\r\nContent-Length: 0\r\n\r\n"],
            "http:// is not taken",
        ),
        (&["HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n"], "redirects"),
        (
            &["HTTP/1.1 302 Found\r\nLocation: https://10.0.0.1/x\r\nContent-Length: 0\r\n\r\n"],
            "public address",
        ),
        (
            &["HTTP/1.1 404 Not Found\r\nContent-Length: 22\r\n\r\ngone\nsuccess: Created\n"],
            "status code 404",
        ),
        (&["soup\r\n\r\n"], "connection to the remote side"),
        (&[""], "connection to the remote side"),
    ] {
        let url = false_source(&target, answers);
        let reply = pull(&target, "/f", &url, &[]);
        let said = last_line(&reply);
        assert!(said.starts_with("failure: ") && said.contains(why), "{answers:?}: {said}");
        assert!(!reply.text().contains("\nsuccess"), "{}", reply.text());
        assert_eq!(std::fs::read(target.root.join("f")).unwrap(), b"old", "{answers:?}");
    }
    let bare =
        ["HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"];
    let url = false_source(&target, &bare);
    let must = pull(&target, "/f", &url, &[("RequireChecksumVerification", "true")]);
    assert!(last_line(&must).contains("no checksum"), "{}", must.text());
    let url = false_source(&target, &bare);
    assert_eq!(last_line(&pull(&target, "/f", &url, &[])), "success: Created");
    target.wait_until_clean();
}

#[test]
fn a_copy_ends_with_its_client() {
    let target = House::new();
    let half = "HTTP/1.1 200 OK\r\nX-Then: wait\r\nContent-Length: 5\r\n\r\nhe";
    let url = false_source(&target, &[HEAD_OK, half]);
    let mut wire = target.connect();
    let port = target.address.port();
    wire.send(
        format!(
            "COPY /f HTTP/1.1\r\nHost: localhost:{port}\r\nAuthorization: Bearer {WRITER}\r\nSource: \
                {url}\r\n\r\n"
        )
        .as_bytes(),
    );
    assert!(wire.line().unwrap().contains("202"));
    wait_until(|| !target.temps().is_empty(), || "the copy begins".to_owned());
    drop(wire);
    target.wait_until_clean();
    assert!(!target.root.join("f").exists());
}

/// A target that answers 100 to whoever expects it and then waits for content, of any length but none, as
/// XRootD does. Hands out the head of each request; ends by itself with the test.
fn waiting_target(house: &House) -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://localhost:{}/f", listener.local_addr().unwrap().port());
    let (tls, (sender, heads)) = (house.server_tls(), std::sync::mpsc::channel());
    std::thread::spawn(move || {
        let mut size = 0;
        while let Ok((stream, _)) = listener.accept() {
            let Ok(connection) = rustls::ServerConnection::new(tls.clone()) else { return };
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
            if head.starts_with("put") {
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
                size = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            }
            if head.contains("expect: 100-continue") {
                let _ = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                // At least one byte, however many are announced.
                let _ = stream.read_exact(&mut vec![0; size.max(1)]);
            }
            let status = if head.starts_with("put") { "201 Created\r\nContent-Length: 0" } else { "200 OK" };
            let length =
                if head.starts_with("head") { format!("\r\nContent-Length: {size}") } else { String::new() };
            let _ = stream.write_all(format!("HTTP/1.1 {status}{length}\r\n\r\n").as_bytes());
            stream.conn.send_close_notify();
            let _ = stream.flush();
            if sender.send(head).is_err() {
                return;
            }
        }
    });
    (url, heads)
}

#[test]
fn an_empty_file_is_pushed_without_an_expectation() {
    let house = House::new();
    let (url, heads) = waiting_target(&house);
    for (content, expects) in [("", false), ("x", true), ("more than one", true)] {
        std::fs::write(house.root.join("f"), content).unwrap();
        let reply = house.request("COPY", "/f", &[("Destination", &url)], b"");
        assert_eq!(last_line(&reply), "success: Created", "{content:?}: {}", reply.text());
        let put = heads.recv().unwrap();
        assert!(put.starts_with("put") && put.contains(&format!("content-length: {}\r\n", content.len())));
        assert_eq!(put.contains("expect"), expects, "{content:?}: {put}");
        assert!(heads.recv().unwrap().starts_with("head"));
    }
}
