//! Files that come from tape and go there, submitted and watched by FTS's API, with a tape system that is another program's
//! idea of the WLCG Tape REST API: each is asked for, waited for, copied and let go, whatever happens in between.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::tape_system::TapeStorage;
use crate::world::World;
use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_service::{FtsPerson, Reach, TapeConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Play {
    world: World,
    token: String,
    source: TapeStorage,
    target: TapeStorage,
}

impl Play {
    async fn new() -> Play {
        let world = World::with(|config| {
            config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
            config.jobs.tape =
                TapeConfig { bulk_wait_s: 1, poll_first_s: 5, poll_last_s: 20, ..TapeConfig::default() };
            config.fts.people = vec![FtsPerson {
                name: "alice".into(),
                community: "atlas".parse().unwrap(),
                transfer: Reach::Community,
                config: Reach::None,
                datamanagement: Reach::None,
                admin: Reach::None,
            }];
        })
        .await;
        let create = TokenCreate { name: "alice".into(), role: "viewer".into(), seconds: None };
        let made: TokenCreated =
            world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        let (source, target) = (TapeStorage::start().await, TapeStorage::start().await);
        Play { world, token: made.token, source, target }
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.world.http_address(),
            self.token,
            body.len()
        );
        let mut stream = TcpStream::connect(self.world.http_address()).await.unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Files under these names of the source, to the same names of the target.
    fn files(&self, names: &[&str]) -> Value {
        let one = |name: &&str| {
            json!({ "sources": [format!("{}{name}", self.source.url)],
                    "destinations": [format!("{}{name}", self.target.url)],
                    "staging_metadata": { "SITE_A": { "activity": "reprocessing" } } })
        };
        names.iter().map(one).collect()
    }

    async fn submit(&self, files: Value, params: Value) -> String {
        let job = json!({ "files": files, "params": params }).to_string();
        let (status, answer) = self.ask("POST", "/jobs", &job).await;
        assert_eq!(status, 200, "{answer}");
        answer["job_id"].as_str().unwrap().to_owned()
    }

    /// The job, and its files in the order of their ids.
    async fn job(&self, id: &str) -> (Value, Vec<Value>) {
        let (status, job) = self.ask("GET", &format!("/jobs/{id}"), "").await;
        assert_eq!(status, 200, "{job}");
        let (_, files) = self.ask("GET", &format!("/jobs/{id}/files"), "").await;
        (job, files.as_array().unwrap().clone())
    }

    /// Time passes fast meanwhile.
    async fn until(
        &self,
        what: &str,
        id: &str,
        met: impl Fn(&Value, &[Value]) -> bool,
    ) -> (Value, Vec<Value>) {
        for _ in 0..1_500 {
            let (job, files) = self.job(id).await;
            if met(&job, &files) {
                return (job, files);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.pass(1);
        }
        panic!("{what} did not come about: {:?}", self.job(id).await);
    }

    fn pass(&self, seconds: i64) {
        self.world.shift_s.fetch_add(seconds, Ordering::SeqCst);
    }

    async fn at_tapes(&self, what: &str, met: impl Fn(&Play) -> bool) {
        for _ in 0..1_500 {
            if met(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            self.pass(1);
        }
        panic!("{what} did not come about");
    }

    async fn ended(&self, id: &str) -> (Value, Vec<Value>) {
        self.until("the end of a job", id, |job, _| {
            ["FINISHED", "FAILED", "FINISHEDDIRTY", "CANCELED"].contains(&state(job))
        })
        .await
    }

    async fn started(&self, id: &str) -> (Value, Vec<Value>) {
        self.until("a request", id, |_, files| files.iter().all(|file| of(file) == "STARTED")).await
    }
}

fn state(job: &Value) -> &str {
    job["job_state"].as_str().unwrap()
}

fn of(file: &Value) -> &str {
    file["file_state"].as_str().unwrap()
}

fn reason(file: &Value) -> &str {
    file["reason"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_on_disk_before_they_are_copied() {
    let mut play = Play::new().await;
    for name in ["/t/one", "/t/two", "/t/broken"] {
        play.source.put(name);
    }
    {
        let mut tapes = play.source.tapes();
        tapes.files.get_mut("/t/broken").unwrap().broken = Some("no such volume".into());
        (tapes.held, tapes.busy) = (true, 1);
    }
    let params = json!({ "bring_online": 6_000, "copy_pin_lifetime": 3_600 });
    let id = play.submit(play.files(&["/t/one", "/t/two", "/t/broken", "/t/missing"]), params).await;
    let (job, files) = play.job(&id).await;
    assert_eq!((state(&job), of(&files[0])), ("STAGING", "STAGING"));
    assert_eq!((&job["bring_online"], &files[0]["staging_start"]), (&json!(6_000), &Value::Null));

    // At the tape system: one request for all of them, after it was busy once.
    let (job, files) = play.started(&id).await;
    assert_eq!(state(&job), "STAGING");
    assert!(files[0]["staging_start"].is_string() && files[0]["staging_finished"].is_null());
    assert_eq!(files[0]["bringonline_token"], json!("request-1"));
    {
        let mut tapes = play.source.tapes();
        assert_eq!(tapes.staged.len(), 1);
        let first = &tapes.staged[0]["files"][0];
        assert_eq!(first["diskLifetime"], json!("PT3600S"));
        assert_eq!(first["targetedMetadata"]["SITE_A"]["activity"], json!("reprocessing"));
        tapes.held = false;
    }
    let (job, files) = play.ended(&id).await;
    assert_eq!(state(&job), "FINISHEDDIRTY");
    assert_eq!([0, 1, 2, 3].map(|at| of(&files[at])), ["FINISHED", "FINISHED", "FAILED", "FAILED"]);
    assert_eq!(reason(&files[2]), "STAGING [5] no such volume");
    assert_eq!(reason(&files[3]), "STAGING [2] file does not exist");
    assert!(files[0]["staging_finished"].is_string());
    assert_eq!(&play.target.tapes().files["/t/one"].bytes[..], b"content of /t/one");

    // What was copied is let go, and nothing is left at the tape system.
    play.at_tapes("the end of the request", |play| !play.source.tapes().ended.is_empty()).await;
    {
        let tapes = play.source.tapes();
        let mut released = tapes.released.clone();
        released.sort();
        assert_eq!((released, tapes.storms), (vec!["/t/one".to_owned(), "/t/two".to_owned()], 0));
    }

    // Where source and target are one, it is brought to stay, for as long as was asked.
    play.source.put("/t/stay");
    let here = format!("{}/t/stay", play.source.url);
    let files = json!([{ "sources": [here], "destinations": [here] }]);
    let id = play.submit(files, json!({ "bring_online": 6_000 })).await;
    let (job, _) = play.ended(&id).await;
    assert_eq!((state(&job), play.source.tapes().files["/t/stay"].on_disk), ("FINISHED", true));
    assert_eq!(play.source.tapes().staged[1]["files"][0]["diskLifetime"], json!("PT604800S"));
    play.world.assert_sound().await;
    assert!(!play.source.tapes().released.contains(&"/t/stay".to_owned()));
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_outlive_the_service_and_may_be_forgotten() {
    let mut play = Play::new().await;
    play.source.put("/r/one");
    play.source.tapes().held = true;
    let params = json!({ "bring_online": 60_000 });
    let id = play.submit(play.files(&["/r/one"]), params.clone()).await;
    play.started(&id).await;
    play.world.crash().await;
    play.source.tapes().held = false;
    let (job, _) = play.ended(&id).await;
    assert_eq!((state(&job), play.source.tapes().staged.len()), ("FINISHED", 1));
    play.at_tapes("the end of the request", |play| play.source.tapes().ended == ["request-1"]).await;

    // Before the tape system has taken it; more at once than it takes.
    for name in ["/r/2", "/r/3", "/r/4"] {
        play.source.put(name);
    }
    {
        let mut tapes = play.source.tapes();
        (tapes.busy, tapes.most) = (u32::MAX, Some(2));
    }
    let id = play.submit(play.files(&["/r/2", "/r/3", "/r/4"]), params.clone()).await;
    play.at_tapes("a refusal", |play| play.source.tapes().busy < u32::MAX).await;
    play.world.crash().await;
    play.source.tapes().busy = 0;
    assert_eq!(state(&play.ended(&id).await.0), "FINISHED");
    let bulks: Vec<usize> =
        play.source.tapes().staged[1..].iter().map(|body| body["files"].as_array().unwrap().len()).collect();
    assert!(bulks.iter().all(|files| *files <= 2) && bulks.iter().sum::<usize>() == 3, "{bulks:?}");

    // A tape system that has lost its requests is asked again.
    play.source.put("/r/again");
    play.source.tapes().held = true;
    let id = play.submit(play.files(&["/r/again"]), params).await;
    play.started(&id).await;
    let before = play.source.tapes().staged.len();
    {
        let mut tapes = play.source.tapes();
        tapes.forget_requests();
        tapes.held = false;
    }
    assert_eq!(state(&play.ended(&id).await.0), "FINISHED");
    assert_eq!(play.source.tapes().staged.len(), before + 1);
    assert_eq!(play.source.tapes().storms, 0);
    play.world.assert_sound().await;
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_cancelled_or_late_is_not_waited_for() {
    let mut play = Play::new().await;
    for name in ["/c/one", "/c/two", "/c/late"] {
        play.source.put(name);
    }
    play.source.tapes().held = true;
    let id = play.submit(play.files(&["/c/one", "/c/two"]), json!({ "bring_online": 60_000 })).await;
    let (_, files) = play.started(&id).await;
    // One file of two, then the whole.
    let (status, _) = play.ask("DELETE", &format!("/jobs/{id}/files/{}", files[0]["file_id"]), "").await;
    assert_eq!(status, 200);
    play.at_tapes("a cancellation", |play| play.source.tapes().cancelled == ["/c/one"]).await;
    assert!(play.source.tapes().ended.is_empty());
    assert_eq!(play.ask("DELETE", &format!("/jobs/{id}"), "").await.0, 200);
    let (job, files) = play.job(&id).await;
    assert_eq!((state(&job), of(&files[1])), ("CANCELED", "CANCELED"));
    play.at_tapes("the end of the request", |play| play.source.tapes().ended == ["request-1"]).await;

    let id = play.submit(play.files(&["/c/late"]), json!({ "bring_online": 300 })).await;
    play.started(&id).await;
    play.pass(301);
    let (job, files) = play.ended(&id).await;
    assert_eq!(
        (state(&job), reason(&files[0])),
        ("FAILED", "STAGING [110] bring-online timeout has been exceeded")
    );
    play.at_tapes("the end of the request", |play| play.source.tapes().ended.len() == 2).await;
    assert!(play.source.tapes().released.is_empty());
    assert_eq!(play.source.tapes().storms, 0);
    play.world.assert_sound().await;
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_watched_until_it_is_on_tape() {
    let mut play = Play::new().await;
    for name in ["/a/good", "/a/never", "/a/lost"] {
        play.source.put(name);
        play.source.tapes().files.get_mut(name).unwrap().on_disk = true;
    }
    {
        let mut tapes = play.target.tapes();
        (tapes.never, tapes.lost) = (vec!["never".into()], vec!["lost".into()]);
    }
    let params = json!({ "archive_timeout": 900 });
    let id = play.submit(play.files(&["/a/good", "/a/never", "/a/lost"]), params.clone()).await;
    let (job, files) = play
        .until("archiving", &id, |_, files| of(&files[1]) == "ARCHIVING" && of(&files[2]) == "FAILED")
        .await;
    assert!(["ARCHIVING", "ACTIVE"].contains(&state(&job)), "{job}");
    assert!(files[1]["archive_start_time"].is_string() && files[1]["archive_finish_time"].is_null());
    assert_eq!(reason(&files[2]), "ARCHIVING [5] the storage says that the file is LOST");
    play.world.crash().await;
    let (_, files) = play.until("a file on tape", &id, |_, files| of(&files[0]) == "FINISHED").await;
    assert!(files[0]["archive_finish_time"].is_string());
    assert!(play.target.tapes().files["/a/good"].on_tape);
    play.pass(900);
    let (job, files) = play.ended(&id).await;
    assert_eq!(state(&job), "FINISHEDDIRTY");
    assert_eq!(reason(&files[1]), "ARCHIVING [110] archive timeout has been exceeded");

    // A copy that did not reach its tape is not made again from another source.
    play.source.put("/a/other");
    let sources = ["/a/good", "/a/other"].map(|name| format!("{}{name}", play.source.url));
    let files = json!([{ "sources": sources, "destinations": [format!("{}/a/lost-too", play.target.url)],
        "selection_strategy": "orderly" }]);
    let id = play.submit(files, params).await;
    let (job, files) = play.ended(&id).await;
    assert_eq!(state(&job), "FAILED", "{files:?}");
    assert_eq!(reason(&job), "Archive monitoring failed in a multiple replica job");
    assert_eq!(of(&files[1]), "NOT_USED");
    assert_eq!(play.source.tapes().storms, 0);
    play.world.assert_sound().await;
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_without_tape_says_so() {
    let mut play = Play::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await.unwrap() });
    let files =
        json!([{ "sources": [format!("{plain}/f")], "destinations": [format!("{}/f", play.target.url)] }]);
    let id = play.submit(files, json!({ "bring_online": 60_000 })).await;
    let (job, files) = play.ended(&id).await;
    assert_eq!(state(&job), "FAILED");
    assert!(reason(&files[0]).starts_with("STAGING [95] "), "{}", reason(&files[0]));
    assert!(reason(&files[0]).ends_with("this storage offers no Tape REST API"), "{}", reason(&files[0]));
    play.world.stop().await;
}
