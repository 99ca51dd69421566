//! The Tape REST API over real HTTPS: who may ask what, in which form, and what of files on tape is seen and
//! not read. The tape behind the door is a list in memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_doors::{Report, ReportedFile, RequestedFile, StageState, Tape, TapeEnd};
use longhaul_model::{Fault, FaultCode, Locality, Timestamp};
use serde_json::{Value, json};

use crate::house::{Changes, House, PLAIN, READER, Reply, STAGER, WRITER};

#[derive(Default)]
struct FakeTape {
    at: BTreeMap<String, Locality>,
    requests: BTreeMap<String, Report>,
    wanted: Vec<RequestedFile>,
    /// What was done, in words.
    done: Vec<String>,
    full: bool,
}

#[derive(Default)]
struct TapeOfTest(Mutex<FakeTape>);

impl TapeOfTest {
    fn shelf(&self) -> std::sync::MutexGuard<'_, FakeTape> {
        self.0.lock().unwrap()
    }

    fn record_call(&self, what: &str, request: &str, paths: &[String]) -> Result<(), Fault> {
        self.shelf().done.push(format!("{what} {request} {}", paths.join(" ")).trim_end().to_owned());
        Ok(())
    }
}

impl Tape for TapeOfTest {
    fn stage(&self, files: Vec<RequestedFile>) -> Result<String, Fault> {
        let mut shelf = self.shelf();
        if shelf.full {
            return Err(Fault::new(FaultCode::Busy, "7 requests are asked for already"));
        }
        let id = format!("r{}", shelf.requests.len() + 1);
        let file = |wanted: &RequestedFile| ReportedFile {
            path: wanted.path.clone(),
            state: StageState::Submitted,
            pinned: false,
            started: None,
            finished: None,
            error: None,
        };
        let created = Timestamp::from_seconds(1_760_000_000);
        let report = Report { created, started: None, files: files.iter().map(file).collect() };
        shelf.requests.insert(id.clone(), report);
        shelf.wanted.extend(files);
        Ok(id)
    }

    fn report(&self, request: &str) -> Option<Report> {
        self.shelf().requests.get(request).cloned()
    }

    fn cancel(&self, request: &str, paths: &[String]) -> Result<(), Fault> {
        self.record_call("cancel", request, paths)
    }

    fn release(&self, request: &str, paths: &[String]) -> Result<(), Fault> {
        self.record_call("release", request, paths)
    }

    fn end(&self, request: &str) -> Result<(), Fault> {
        self.shelf().requests.remove(request);
        self.record_call("end", request, &[])
    }

    fn locate(&self, paths: &[String]) -> Vec<Locality> {
        let shelf = self.shelf();
        paths.iter().map(|path| shelf.at.get(path).copied().unwrap_or(Locality::None)).collect()
    }

    fn arriving(&self, path: &str) -> Result<(), Fault> {
        if self.shelf().full {
            return Err(Fault::new(FaultCode::Busy, "7 files wait for their way to tape"));
        }
        self.record_call("arriving", path, &[])
    }

    fn arrived(&self, path: &str) {
        self.record_call("arrived", path, &[]).unwrap();
    }
}

fn house() -> (House, Arc<TapeOfTest>) {
    let tape = Arc::new(TapeOfTest::default());
    let end = TapeEnd { tape: tape.clone(), site: "SITE_A".into() };
    (House::with(Changes { tape: Some(end), ..Changes::default() }), tape)
}

fn request(house: &House, token: &str, method: &str, path: &str, body: &Value) -> Reply {
    let authorization = if token.is_empty() { String::new() } else { format!("Bearer {token}") };
    let body = if body.is_null() { String::new() } else { body.to_string() };
    house.request(method, path, &[("Authorization", &authorization)], body.as_bytes())
}

fn said(reply: &Reply) -> Value {
    assert_eq!(reply.header("content-type"), Some("application/json"), "{}", reply.text());
    serde_json::from_slice(&reply.body).unwrap()
}

/// The problem's text; its form is that of RFC 9457.
fn problem(reply: &Reply) -> String {
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{}", reply.text());
    let problem: Value = serde_json::from_slice(&reply.body).unwrap();
    assert_eq!(problem["status"], json!(reply.status));
    problem["detail"].as_str().unwrap().to_owned()
}

#[test]
fn files_are_asked_for_looked_after_and_let_go() {
    let (house, tape) = house();
    // Where the API is, is said to everybody.
    let found = said(&request(&house, "", "GET", "/.well-known/wlcg-tape-rest-api", &Value::Null));
    assert_eq!(found["sitename"], "SITE_A");
    let base = house.url("/api/v1/tape");
    assert_eq!(
        (&found["endpoints"][0]["uri"], &found["endpoints"][0]["version"]),
        (&json!(base), &json!("v1"))
    );

    let files = json!({ "files": [
        { "path": "/run7/a.dat", "diskLifetime": "PT48H",
            "targetedMetadata": { "SITE_A": { "activity": "x" }, "B": 1 } },
        { "path": "/run7//b.dat" }, { "path": "/run7/b.dat", "diskLifetime": "PT1M" }] });
    let made = request(&house, STAGER, "POST", "/api/v1/tape/stage", &files);
    assert_eq!((made.status, said(&made)), (201, json!({ "requestId": "r1" })));
    assert_eq!(made.header("location"), Some(format!("{base}/stage/r1").as_str()));
    let wanted = |path: &str, seconds: u64, metadata: Option<&str>| RequestedFile {
        path: path.into(),
        lifetime: Some(Duration::from_secs(seconds)),
        metadata: metadata.map(str::to_owned),
    };
    let expected =
        [wanted("run7/a.dat", 172_800, Some("{\"activity\":\"x\"}")), wanted("run7/b.dat", 60, None)];
    assert_eq!(tape.shelf().wanted, expected);

    let told = said(&request(&house, STAGER, "GET", "/api/v1/tape/stage/r1", &Value::Null));
    assert_eq!((&told["id"], &told["createdAt"]), (&json!("r1"), &json!(1_760_000_000)));
    assert_eq!(told["files"][1], json!({ "path": "/run7/b.dat", "state": "SUBMITTED", "onDisk": false }));

    let paths = |paths: &[&str]| json!({ "paths": paths });
    let cancel =
        request(&house, STAGER, "POST", "/api/v1/tape/stage/r1/cancel", &paths(&["/run7/a.dat", "/run7/zz"]));
    assert_eq!(cancel.status, 400);
    assert_eq!(problem(&cancel), "/run7/zz is no file of this request; nothing was cancelled");
    assert_eq!(
        request(&house, STAGER, "POST", "/api/v1/tape/stage/r1/cancel", &paths(&["/run7/a.dat"])).status,
        200
    );
    // What is none of its is passed over.
    let release = paths(&["/run7/b.dat", "/run7/zz"]);
    assert_eq!(request(&house, STAGER, "POST", "/api/v1/tape/release/r1", &release).status, 200);
    assert_eq!(request(&house, STAGER, "DELETE", "/api/v1/tape/stage/r1", &Value::Null).status, 200);
    assert_eq!(tape.shelf().done, ["cancel r1 run7/a.dat", "release r1 run7/b.dat run7/zz", "end r1"]);
    for (method, path, body) in [
        ("GET", "/api/v1/tape/stage/r1", Value::Null),
        ("DELETE", "/api/v1/tape/stage/r1", Value::Null),
        ("POST", "/api/v1/tape/stage/r1/cancel", paths(&["/run7/a.dat"])),
        ("POST", "/api/v1/tape/release/r1", paths(&["/run7/a.dat"])),
        ("GET", "/api/v1/tape/other", Value::Null),
    ] {
        let reply = request(&house, STAGER, method, path, &body);
        assert_eq!(reply.status, 404, "{method} {path}");
        problem(&reply);
    }
    assert_eq!(request(&house, STAGER, "PUT", "/api/v1/tape/stage", &json!({})).status, 405);
    tape.shelf().full = true;
    let full = request(&house, STAGER, "POST", "/api/v1/tape/stage", &files);
    assert_eq!((full.status, full.header("retry-after")), (429, Some("300")));
    assert_eq!(problem(&full), "7 requests are asked for already");
}

#[test]
fn who_may_not_stage_reaches_no_tape() {
    let (house, tape) = house();
    let files = |path: &str| json!({ "files": [{ "path": path }] });
    let stage = |token: &str, path: &str| request(&house, token, "POST", "/api/v1/tape/stage", &files(path));
    assert_eq!(stage("", "/run7/a").status, 401);
    assert_eq!(stage("nobody-0123456789abcdef", "/run7/a").status, 401);
    let refused = stage(READER, "/run7/a");
    assert_eq!(refused.status, 403);
    assert!(problem(&refused).contains("not allowed to bring files from tape here"), "{}", refused.text());
    assert_eq!(stage(STAGER, "/run8/a").status, 403);
    let mixed = json!({ "files": [{ "path": "/run7/a" }, { "path": "/run8/a" }] });
    assert_eq!(request(&house, STAGER, "POST", "/api/v1/tape/stage", &mixed).status, 403);
    assert!(tape.shelf().requests.is_empty());
    // Who may write may stage; another's request is seen by who may stage its files.
    assert_eq!(stage(WRITER, "/run8/a").status, 201);
    for (method, path, body) in [
        ("GET", "/api/v1/tape/stage/r1", Value::Null),
        ("DELETE", "/api/v1/tape/stage/r1", Value::Null),
        ("POST", "/api/v1/tape/stage/r1/cancel", json!({ "paths": ["/run8/a"] })),
        ("POST", "/api/v1/tape/release/r1", json!({ "paths": ["/run8/a"] })),
    ] {
        assert_eq!(request(&house, STAGER, method, path, &body).status, 403, "{method} {path}");
    }
    assert!(tape.shelf().done.is_empty());

    // Of each file, where it is; what may not be asked is said of that file.
    tape.shelf().at =
        [("run7/a", Locality::DiskAndTape), ("run8/b", Locality::Disk), ("run7/c", Locality::Unavailable)]
            .map(|(path, at)| (path.to_owned(), at))
            .into();
    let paths = json!({ "paths": ["/run7/a", "/run8/b", "/run7/c", "/run7/zz", "run7/a", "/run7//a"] });
    let told = said(&request(&house, STAGER, "POST", "/api/v1/tape/archiveinfo", &paths));
    assert_eq!(told[0], json!({ "path": "/run7/a", "locality": "DISK_AND_TAPE" }));
    assert!(told[1]["error"].as_str().unwrap().contains("not allowed to ask where files are"), "{told}");
    assert_eq!(told[2], json!({ "path": "/run7/c", "locality": "UNAVAILABLE" }));
    assert_eq!(told[3], json!({ "path": "/run7/zz", "error": "file does not exist" }));
    assert!(told[4]["error"].as_str().unwrap().contains("does not begin with /"));
    assert_eq!(told[5], json!({ "path": "/run7//a", "locality": "DISK_AND_TAPE" }));
    let other = json!({ "paths": ["/run8/b"] });
    assert_eq!(request(&house, READER, "POST", "/api/v1/tape/archiveinfo", &other).status, 200);
    assert_eq!(request(&house, STAGER, "POST", "/api/v1/tape/archiveinfo", &other).status, 403);
    assert_eq!(request(&house, "", "POST", "/api/v1/tape/archiveinfo", &other).status, 401);
}

#[test]
fn what_is_malformed_or_too_large_is_refused() {
    let (house, tape) = house();
    for (body, status) in [
        ("{".to_owned(), 400),
        (json!({ "files": [] }).to_string(), 400),
        (json!({ "files": [{ "path": "/a/../b" }] }).to_string(), 400),
        (json!({ "files": vec![json!({ "path": "/a" }); 10_001] }).to_string(), 413),
        ("x".repeat((4 << 20) + 1), 413),
    ] {
        let reply = house.request("POST", "/api/v1/tape/stage", PLAIN, body.as_bytes());
        assert_eq!(reply.status, status, "{}", reply.text());
        problem(&reply);
    }
    assert!(tape.shelf().requests.is_empty());
}

#[test]
fn a_file_on_tape_is_told_as_such_and_what_comes_is_known_before_it_is_there() {
    let (house, tape) = house();
    tape.shelf().at.insert("run7/taped".into(), Locality::Tape);
    let get = house.request("GET", "/run7/taped", PLAIN, b"");
    assert_eq!(get.status, 409);
    assert!(get.text().contains("on tape only") && get.text().contains("bring_online"), "{}", get.text());
    assert_eq!(house.request("GET", "/run7/missing", PLAIN, b"").status, 404);
    assert_eq!(house.request("HEAD", "/run7/taped", PLAIN, b"").status, 404, "a question asks no tape");
    let copy = house.request("COPY", "/run7/taped", &[("Destination", "https://localhost:1/x")], b"");
    assert_eq!(copy.status, 409);

    assert_eq!(house.request("PUT", "/run7/new", PLAIN, b"new").status, 201);
    let moved = house.request("MOVE", "/run7/new", &[("Destination", &house.url("/run7/moved"))], b"");
    assert_eq!(moved.status, 201);
    let expected = ["arriving run7/new", "arrived run7/new", "arriving run7/moved", "arrived run7/moved"];
    assert_eq!(tape.shelf().done, expected);
    tape.shelf().full = true;
    let full = house.request("PUT", "/run7/other", PLAIN, b"x");
    assert_eq!((full.status, house.root.join("run7/other").exists()), (503, false));

    // A door whose storage is not on tape has files of those names.
    let plain = House::new();
    assert_eq!(plain.request("GET", "/.well-known/wlcg-tape-rest-api", PLAIN, b"").status, 404);
    assert_eq!(plain.request("PUT", "/api/v1/tape/stage", PLAIN, b"a file").status, 201);
    assert_eq!(plain.request("GET", "/api/v1/tape/stage", PLAIN, b"").text(), "a file");
}
