//! Files that come from tape and go there, submitted and watched by FTS's API, with a tape system that is
//! another program's idea of the WLCG Tape REST API: each is asked for, waited for, copied and let go,
//! whatever happens in between.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::tape_system::TapeStorage;
use crate::world::{World, until};
use longhaul_api::native::{TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_catalog::{NewJob, NewJobFile, SubmitResult};
use longhaul_identity::{FtsPerson, Reach};
use longhaul_model::{JobFileState, JobId, JobKind, Timestamp};
use longhaul_service::TapeConfig;
use serde_json::{Value, json};

/// That were submitted without the API.
static JOBS: AtomicU32 = AtomicU32::new(1);

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
        let create = TokenCreate { name: "alice".into(), role: "viewer".into(), ..TokenCreate::default() };
        let made: TokenCreated =
            world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        let (source, target) = (TapeStorage::start().await, TapeStorage::start().await);
        Play { world, token: made.token, source, target }
    }

    async fn request(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        self.world.request(&self.token, method, path, body).await
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
        let (status, answer) = self.request("POST", "/jobs", &job).await;
        assert_eq!(status, 200, "{answer}");
        answer["job_id"].as_str().unwrap().to_owned()
    }

    /// As the API would take it, of pairs of URLs; it takes some parameters for https alone, of which there
    /// is none here.
    async fn submit_pairs(&self, kind: JobKind, details: Value, pairs: &[(&str, &str)]) -> String {
        let jobs = self.world.service().operations().jobs();
        let id = JobId(u128::from(JOBS.fetch_add(1, Ordering::Relaxed)) << 8);
        let file = |(at, (source, target)): (usize, &(&str, &str))| NewJobFile {
            index: if kind == JobKind::Replicas { 0 } else { at as u32 },
            source: (*source).to_owned(),
            target: (*target).to_owned(),
            size: None,
            checksum: None,
            activity: "default".into(),
            state: match (kind, at) {
                (JobKind::Regular, _) | (_, 0) => JobFileState::Submitted,
                _ => JobFileState::NotUsed,
            },
            details: json!({ "file_metadata": { "name": at } }).to_string(),
        };
        let job = NewJob {
            id,
            kind,
            vo: "atlas".into(),
            user: "alice".into(),
            credential: "none".into(),
            priority: 3,
            strategy: "orderly".into(),
            submitted: Timestamp(1),
            expires: None,
            details: details.to_string(),
            refuse_duplicates: false,
            files: pairs.iter().enumerate().map(file).collect(),
        };
        assert_eq!(jobs.submit(vec![job]).await.unwrap(), [SubmitResult::Created]);
        id.to_string()
    }

    /// The job, and its files in the order of their ids.
    async fn job(&self, id: &str) -> (Value, Vec<Value>) {
        let (status, job) = self.request("GET", &format!("/jobs/{id}"), "").await;
        assert_eq!(status, 200, "{job}");
        let (_, files) = self.request("GET", &format!("/jobs/{id}/files"), "").await;
        (job, files.as_array().unwrap().clone())
    }

    /// Time passes fast meanwhile.
    async fn until(
        &self,
        what: &str,
        id: &str,
        met: impl Fn(&Value, &[Value]) -> bool,
    ) -> (Value, Vec<Value>) {
        until(what, async || {
            let (job, files) = self.job(id).await;
            if met(&job, &files) {
                return Ok((job, files));
            }
            self.pass(1);
            Err(format!("{job} {files:?}"))
        })
        .await
    }

    fn pass(&self, seconds: i64) {
        self.world.shift_s.fetch_add(seconds, Ordering::SeqCst);
    }

    async fn at_tapes(&self, what: &str, met: impl Fn(&Play) -> bool) {
        until(what, async || {
            if met(self) {
                return Ok(());
            }
            self.pass(1);
            Err(String::new())
        })
        .await;
    }

    async fn ended(&self, id: &str) -> (Value, Vec<Value>) {
        self.until("the end of a job", id, |job, _| {
            ["FINISHED", "FAILED", "FINISHEDDIRTY", "CANCELED"].contains(&state(job))
        })
        .await
    }

    /// Its first file is at the tape system.
    async fn started_one(&self, id: &str) -> (Value, Vec<Value>) {
        self.until("a request", id, |_, files| file_state(&files[0]) == "STARTED").await
    }

    async fn started(&self, id: &str) -> (Value, Vec<Value>) {
        self.until("a request", id, |_, files| files.iter().all(|file| file_state(file) == "STARTED")).await
    }
}

fn state(job: &Value) -> &str {
    job["job_state"].as_str().unwrap()
}

fn file_state(file: &Value) -> &str {
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
    assert_eq!((state(&job), file_state(&files[0])), ("STAGING", "STAGING"));
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
    assert_eq!([0, 1, 2, 3].map(|at| file_state(&files[at])), ["FINISHED", "FINISHED", "FAILED", "FAILED"]);
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
    let (status, _) = play.request("DELETE", &format!("/jobs/{id}/files/{}", files[0]["file_id"]), "").await;
    assert_eq!(status, 200);
    play.at_tapes("a cancellation", |play| play.source.tapes().cancelled == ["/c/one"]).await;
    assert!(play.source.tapes().ended.is_empty());
    assert_eq!(play.request("DELETE", &format!("/jobs/{id}"), "").await.0, 200);
    let (job, files) = play.job(&id).await;
    assert_eq!((state(&job), file_state(&files[1])), ("CANCELED", "CANCELED"));
    play.at_tapes("the end of the request", |play| play.source.tapes().ended == ["request-1"]).await;

    let id = play.submit(play.files(&["/c/late"]), json!({ "bring_online": 9_000 })).await;
    play.started(&id).await;
    play.pass(9_001);
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
    let params = json!({ "archive_timeout": 9_000 });
    let id = play.submit(play.files(&["/a/good", "/a/never", "/a/lost"]), params.clone()).await;
    let (job, files) = play
        .until("archiving", &id, |_, files| {
            file_state(&files[1]) == "ARCHIVING" && file_state(&files[2]) == "FAILED"
        })
        .await;
    assert!(["ARCHIVING", "ACTIVE"].contains(&state(&job)), "{job}");
    assert!(files[1]["archive_start_time"].is_string() && files[1]["archive_finish_time"].is_null());
    assert_eq!(reason(&files[2]), "ARCHIVING [5] the storage says that the file is LOST");
    play.world.crash().await;
    let (_, files) = play.until("a file on tape", &id, |_, files| file_state(&files[0]) == "FINISHED").await;
    assert!(files[0]["archive_finish_time"].is_string());
    assert!(play.target.tapes().files["/a/good"].on_tape);
    play.pass(9_000);
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
    assert_eq!(file_state(&files[1]), "NOT_USED");
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

/// A job that says nothing of tape, with replicas of which one is there: it is not read, and brought only if
/// no other is left.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_disk_source_dies_and_tape_is_asked() {
    let mut play = Play::new().await;
    let disk = TapeStorage::start().await;
    play.source.put("/l/f");
    let url = |of: &TapeStorage, name: &str| format!("{}{name}", of.url);
    let (tape, target) = (url(&play.source, "/l/f"), url(&play.target, "/l/f"));

    // Another one is whole: whichever is chosen first, nothing is brought.
    disk.put("/l/f");
    disk.tapes().files.get_mut("/l/f").unwrap().on_disk = true;
    let good = url(&disk, "/l/f");
    let id = play.submit_pairs(JobKind::Replicas, json!({}), &[(&tape, &target), (&good, &target)]).await;
    let (job, files) = play.ended(&id).await;
    assert_eq!(
        (state(&job), file_state(&files[0]), file_state(&files[1])),
        ("FINISHED", "NOT_USED", "FINISHED"),
        "{files:?}"
    );
    assert!(play.source.tapes().staged.is_empty());
    play.target.tapes().files.clear();

    // The others are lost.
    let (gone, lost) = (url(&disk, "/l/gone"), url(&disk, "/l/lost"));
    let pairs = [(tape.as_str(), target.as_str()), (&gone, &target), (&lost, &target)];
    play.source.tapes().held = true;
    let id = play.submit_pairs(JobKind::Replicas, json!({}), &pairs).await;
    let (job, files) = play.started_one(&id).await;
    assert_eq!((file_state(&files[1]), file_state(&files[2])), ("FAILED", "FAILED"), "{files:?}");
    let why = reason(&files[0]);
    assert!(
        why.starts_with("STAGING [61] no replica on disk is left (the last one failed: SOURCE [2] "),
        "{why}"
    );
    assert!(why.ends_with("; this one is brought from tape"), "{why}");
    assert!(["STAGING", "ACTIVE"].contains(&state(&job)), "{job}");
    play.source.tapes().held = false;
    let (job, files) = play.ended(&id).await;
    assert_eq!((state(&job), file_state(&files[0])), ("FINISHED", "FINISHED"), "{files:?}");
    assert_eq!(&play.target.tapes().files["/l/f"].bytes[..], b"content of /l/f");
    {
        let tapes = play.source.tapes();
        assert_eq!((tapes.staged.len(), tapes.storms), (1, 0));
    }
    play.at_tapes("the release", |play| play.source.tapes().released == ["/l/f"]).await;
    play.world.assert_sound().await;
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_tape_is_not_replaced_and_is_told() {
    let mut play = Play::new().await;
    for name in ["/o/taped", "/o/disk", "/o/plain"] {
        play.source.put(name);
        play.source.tapes().files.get_mut(name).unwrap().on_disk = true;
        play.target.put(name);
        play.target.tapes().files.get_mut(name).unwrap().bytes = "old".into();
    }
    {
        let mut tapes = play.target.tapes();
        tapes.never = vec!["disk".into()];
        let disk = tapes.files.get_mut("/o/disk").unwrap();
        (disk.on_disk, disk.on_tape) = (true, false);
        tapes.files.get_mut("/o/plain").unwrap().on_disk = true;
    }
    let url = |of: &TapeStorage, name: &str| format!("{}{name}", of.url);
    let details = json!({ "overwrite_flag": "D", "archive_timeout": 9_000, "dst_file_report": true });
    let names = ["/o/taped", "/o/disk"].map(|name| (url(&play.source, name), url(&play.target, name)));
    let pairs = names.each_ref().map(|(source, target)| (source.as_str(), target.as_str()));
    let id = play.submit_pairs(JobKind::Regular, details, &pairs).await;
    let (_, files) = play
        .until("one on tape, one replaced", &id, |_, files| {
            file_state(&files[0]) == "FAILED" && file_state(&files[1]) == "ARCHIVING"
        })
        .await;
    let on_tape = "Destination file exists and is on tape (overwrite-when-only-on-disk requested)";
    assert_eq!(reason(&files[0]), format!("DESTINATION [17] {on_tape}"));
    let told = json!({ "file_size": 3, "checksum_type": "ADLER32", "checksum_value": "",
                       "file_on_tape": true, "file_on_disk": false });
    assert_eq!(files[0]["file_metadata"], json!({ "name": 0, "dst_file": told }));
    assert_eq!(files[1]["file_metadata"], json!({ "name": 1 }));
    let content = |name: &str| play.target.tapes().files[name].bytes.clone();
    assert_eq!(
        (&content("/o/taped")[..], &content("/o/disk")[..]),
        (&b"old"[..], &b"content of /o/disk"[..])
    );
    play.target.tapes().never.clear();
    assert_eq!(state(&play.ended(&id).await.0), "FINISHEDDIRTY");

    // Nothing may be replaced, and what stands there is told with its checksum, which is read as it is on
    // disk.
    let details = json!({ "archive_timeout": 9_000, "dst_file_report": true });
    let (source, target) = (url(&play.source, "/o/plain"), url(&play.target, "/o/plain"));
    let id = play.submit_pairs(JobKind::Regular, details, &[(&source, &target)]).await;
    let (_, files) = play.ended(&id).await;
    assert_eq!(reason(&files[0]), "DESTINATION [17] Destination file exists and overwrite is not enabled");
    let told = &files[0]["file_metadata"]["dst_file"];
    assert_eq!((&told["file_on_tape"], &told["file_on_disk"]), (&json!(true), &json!(true)));
    assert_eq!(told["checksum_value"], json!("028c0140"), "of old");

    // By way of another storage: between the hops anything is replaced, at their end what is on disk only.
    let between = TapeStorage::start().await;
    between.put("/o/between");
    between.tapes().never = vec!["between".into()];
    let between_url = url(&between, "/o/between");
    let pairs = [(source.as_str(), between_url.as_str()), (between_url.as_str(), target.as_str())];
    let details = json!({ "overwrite_flag": "Q", "archive_timeout": 9_000 });
    let id = play.submit_pairs(JobKind::Hops, details, &pairs).await;
    let (job, files) = play.ended(&id).await;
    assert_eq!((state(&job), file_state(&files[0]), file_state(&files[1])), ("FAILED", "FINISHED", "FAILED"));
    assert_eq!(reason(&files[1]), format!("DESTINATION [17] {on_tape}"));
    assert_eq!(&between.tapes().files["/o/between"].bytes[..], b"content of /o/plain");
    assert_eq!(&content("/o/plain")[..], b"old");
    play.world.assert_sound().await;
    play.world.stop().await;
}

/// What an administrator allows a community at a storage: requests beyond it wait, of others they do not.
#[tokio::test(flavor = "multi_thread")]
async fn a_community_has_so_many_requests_at_a_storage() {
    let mut play = Play::new().await;
    for name in ["/s/one", "/s/two"] {
        play.source.put(name);
    }
    play.source.tapes().held = true;
    let limit = json!({ "http://127.0.0.1": { "operations": { "atlas": { "staging": 1 } } } }).to_string();
    let (status, answer) = play.world.request(&play.world.admin_token, "POST", "/config/se", &limit).await;
    assert_eq!((status, &answer[1]["atlas"]["staging"]), (200, &json!(1)), "{answer}");
    let params = json!({ "bring_online": 60_000 });
    let first = play.submit(play.files(&["/s/one"]), params.clone()).await;
    play.started(&first).await;
    let second = play.submit(play.files(&["/s/two"]), params).await;
    let before = play.source.tapes().polls;
    // The first is looked after meanwhile, so the second has had its chances.
    play.until("some looks", &second, |_, files| {
        assert_eq!(file_state(&files[0]), "STAGING", "one request is all that is allowed");
        play.source.tapes().polls >= before + 3
    })
    .await;
    assert_eq!(play.source.tapes().staged.len(), 1);
    play.source.tapes().held = false;
    for job in [&first, &second] {
        assert_eq!(state(&play.ended(job).await.0), "FINISHED");
    }
    assert_eq!(play.source.tapes().staged.len(), 2);
    play.world.stop().await;
}
