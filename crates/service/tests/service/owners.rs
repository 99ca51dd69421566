//! Owners of jobs whose right goes away while their files wait: no attempt begins in their name, each file
//! ends with the reason, and what they are allowed again is new jobs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_api::native::{Page, TokenCreate, TokenCreated};
use longhaul_api::routes;
use longhaul_api::steering::DecisionEntry;
use longhaul_catalog::{NewJob, NewJobFile, SubmitResult};
use longhaul_identity::{FtsPerson, Reach};
use longhaul_model::{JobFileState, JobId, JobKind, Timestamp};
use serde_json::{Value, json};

use crate::isolation::Play as People;
use crate::jobs::Storage;
use crate::mapping::Command;
use crate::world::{World, until};

const REASON: &str = "TRANSFER [1] the owner of the job may no longer transfer: ";

fn person(name: &str, community: &str, transfer: Reach) -> FtsPerson {
    FtsPerson {
        name: name.into(),
        community: community.parse().unwrap(),
        transfer,
        config: Reach::None,
        datamanagement: Reach::None,
        admin: Reach::None,
    }
}

/// A service that begins nothing until it is told to, and two storages.
struct Play {
    world: World,
    source: Arc<Storage>,
    from: String,
    to: String,
    files: u32,
}

impl Play {
    async fn new(people: Vec<FtsPerson>) -> Play {
        let world = World::with(|config| {
            config.jobs.allow_networks = vec!["127.0.0.0/8".into()];
            config.fts.people = people;
        })
        .await;
        let ((source, from), (_, to)) = (Storage::start().await, Storage::start().await);
        Play { world, source, from, to, files: 0 }
    }

    async fn token(&self, name: &str) -> String {
        let create = TokenCreate { name: name.into(), role: "viewer".into(), ..TokenCreate::default() };
        let made: TokenCreated =
            self.world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
        made.token
    }

    async fn request(&self, token: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.world.request(token, method, path, &body.to_string()).await
    }

    /// As the administrator.
    async fn steer(&self, method: &str, path: &str, body: Value) {
        let (status, answer) = self.request(&self.world.admin_token, method, path, &body).await;
        assert!((200..300).contains(&status), "{path}: {status} {answer}");
    }

    async fn drain(&self, drain: bool) {
        let host = self.world.address().ip().to_string();
        self.steer("POST", "/config/drain", json!({ "hostname": host, "drain": drain })).await;
    }

    /// A job of two files.
    async fn submit(&mut self, token: &str) -> String {
        let file = |at: u32| {
            let path = format!("/f{at}");
            self.source.put(&path, b"content");
            let (source, target) = (format!("{}{path}", self.from), format!("{}{path}", self.to));
            json!({ "sources": [source], "destinations": [target] })
        };
        let body = json!({ "files": [file(self.files), file(self.files + 1)], "params": { "retry": 3 } });
        self.files += 2;
        let (status, answer) = self.request(token, "POST", "/jobs", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer["job_id"].as_str().unwrap().to_owned()
    }

    async fn files(&self, job: &str) -> Vec<Value> {
        let path = format!("/jobs/{job}/files");
        let (_, files) = self.request(&self.world.admin_token, "GET", &path, &Value::Null).await;
        files.as_array().unwrap().clone()
    }

    async fn ended(&self, job: &str, state: &str) -> Vec<Value> {
        let files = until("the end of a job", async || {
            let files = self.files(job).await;
            let ended = files.iter().all(|file| file["finish_time"].is_string());
            if ended { Ok(files) } else { Err(format!("{files:?}")) }
        })
        .await;
        assert!(files.iter().all(|file| file["file_state"] == state), "{files:?}");
        files
    }

    /// No file of it was begun, each says that, and the log of decisions has each once.
    async fn refused(&self, job: &str, who: &str, why: &str) {
        for file in self.ended(job, "FAILED").await {
            let reason = file["reason"].as_str().unwrap();
            assert!(reason.starts_with(&format!("{REASON}{why}")), "{reason}");
            assert_eq!(file["retry"], 0, "another try is of no use: {file}");
            let object = format!("/jobs/{job}/files/{}", file["file_id"]);
            let list: Page<DecisionEntry> = self
                .world
                .admin()
                .request(&routes::DECISION_LIST)
                .query("of", "refused")
                .query("who", who)
                .send()
                .await
                .unwrap();
            let entry = list.items.iter().find(|one| one.object == object).expect("it is in the log");
            let told = (entry.operation.as_str(), entry.credential.as_str(), entry.times);
            assert_eq!(told, ("attempt_begin", "API token", 1), "{entry:?}");
            assert!(entry.why.starts_with(why), "{entry:?}");
        }
    }

    async fn goes(&mut self, token: &str) {
        let job = self.submit(token).await;
        self.ended(&job, "FINISHED").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_revoked_ends_what_waits_in_its_name() {
    let people = ["alice", "bob"].map(|name| person(name, "atlas", Reach::Community));
    let mut play = Play::new(people.to_vec()).await;
    let (alice, bob) = (play.token("alice").await, play.token("bob").await);
    play.goes(&alice).await;
    play.drain(true).await;
    let (hers, his) = (play.submit(&alice).await, play.submit(&bob).await);
    let revoke = play.world.admin().request(&routes::TOKEN_REVOKE).parameter("alice");
    revoke.send::<Value>().await.unwrap();
    play.drain(false).await;
    play.refused(&hers, "alice", "the API token alice was revoked").await;
    play.ended(&his, "FINISHED").await;
    let again = play.token("alice").await;
    play.goes(&again).await;
    play.world.stop().await;
}

/// A token that ended by itself was good when the job came: nobody has taken anything away.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_expires_ends_nothing() {
    let mut play = Play::new(vec![person("alice", "atlas", Reach::Community)]).await;
    let create = TokenCreate {
        name: "alice".into(),
        role: "viewer".into(),
        seconds: Some(3_600),
        ..TokenCreate::default()
    };
    let made: TokenCreated =
        play.world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    play.drain(true).await;
    let job = play.submit(&made.token).await;
    play.world.shift_s.store(7_200, Ordering::SeqCst);
    let (status, _) = play.request(&made.token, "GET", "/jobs", &Value::Null).await;
    assert_eq!(status, 401, "it has expired");
    play.drain(false).await;
    play.ended(&job, "FINISHED").await;
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whom_the_configuration_forgets_or_moves_has_no_more_files_copied() {
    let alice = person("alice", "atlas", Reach::Community);
    let mut play = Play::new(vec![alice.clone()]).await;
    let token = play.token("alice").await;
    for (people, communities, why) in [
        (vec![], vec![], "alice is no longer of the community atlas"),
        (vec![person("alice", "cms", Reach::Community)], vec![], "alice is no longer of the community atlas"),
        (vec![person("alice", "atlas", Reach::None)], vec![], "alice has no right to transfer any more"),
        (vec![alice.clone()], vec!["cms".parse().unwrap()], "the community atlas is no longer served"),
    ] {
        play.drain(true).await;
        let job = play.submit(&token).await;
        play.world.stop().await;
        play.world.config.fts.people = people;
        play.world.config.fts.communities = communities;
        play.world.start().await;
        play.drain(false).await;
        play.refused(&job, "alice", why).await;
        play.world.stop().await;
        play.world.config.fts.people = vec![alice.clone()];
        play.world.config.fts.communities = vec![];
        play.world.start().await;
        play.goes(&token).await;
    }
    play.world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_was_given_and_taken_back_is_asked_for_at_each_attempt() {
    let mut play = Play::new(vec![person("alice", "atlas", Reach::None)]).await;
    let token = play.token("alice").await;
    let grant = json!({ "dn": "alice", "operation": "transfer" });
    play.steer("POST", "/config/authorize", grant.clone()).await;
    play.goes(&token).await;
    play.drain(true).await;
    let job = play.submit(&token).await;
    play.steer("DELETE", "/config/authorize?dn=alice&operation=transfer", Value::Null).await;
    play.drain(false).await;
    play.refused(&job, "alice", "alice has no right to transfer any more").await;
    play.steer("POST", "/config/authorize", grant).await;
    play.goes(&token).await;

    // Also where it is taken between two attempts of one file.
    play.drain(true).await;
    let job = play.submit(&token).await;
    play.source.refuses(2);
    play.drain(false).await;
    until("a second attempt of each", async || {
        let files = play.files(&job).await;
        files.iter().all(|file| file["retry"] == 1).then_some(()).ok_or_else(|| format!("{files:?}"))
    })
    .await;
    play.steer("DELETE", "/config/authorize?dn=alice&operation=transfer", Value::Null).await;
    play.world.shift_s.store(600, Ordering::SeqCst);
    for file in play.ended(&job, "FAILED").await {
        assert!(file["reason"].as_str().unwrap().starts_with(REASON), "{file}");
    }
    play.world.stop().await;
}

/// Groups of a token were true when it was shown; the map of people is asked anew, and so is who is believed.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_say_is_kept_and_what_is_said_here_is_asked_anew() {
    let command = Command::new("echo testvo");
    let mut play = command.play(60).await;
    let host = play.world.address().ip().to_string();
    let drain = |drain: bool| json!({ "hostname": host, "drain": drain }).to_string();
    assert_eq!(play.request("admin", "POST", "/config/drain", &drain(true)).await.0, 200);
    // As the service keeps jobs of people who come with certificates: one whom the command maps, one whose
    // proxy says it.
    let mapped = of_certificate(&play, 1, &[]).await;
    let with_attributes = of_certificate(&play, 2, &["testvo"]).await;
    let (grouped, _) = play.job_of("issuer").await;
    command.becomes("echo othervo");
    play.world.shift_s.fetch_add(101, Ordering::SeqCst);
    assert_eq!(play.request("admin", "POST", "/config/drain", &drain(false)).await.0, 200);
    let why = comes_to(&play, &mapped, "FAILED").await;
    assert!(why.starts_with(REASON) && why.contains("is no longer of the community testvo"), "{why}");
    comes_to(&play, &grouped, "ACTIVE").await;
    comes_to(&play, &with_attributes, "ACTIVE").await;
    play.world.stop().await;
    play.world.config.fts.issuers.clear();
    play.world.start().await;
    let why = comes_to(&play, &grouped, "FAILED").await;
    assert!(why.starts_with(REASON) && why.contains("is no longer trusted"), "{why}");
    play.world.stop().await;
}

async fn of_certificate(play: &People, number: u128, communities: &[&str]) -> String {
    let (id, dn) = (JobId(number << 8), crate::people::dn("dora"));
    let owner = json!({ "name": dn, "known_by": { "certificate": communities } });
    let file = NewJobFile {
        index: 0,
        source: format!("{}/from/certificate{number}", play.storage()),
        target: format!("{}/to/certificate{number}", play.storage()),
        size: None,
        checksum: None,
        activity: "default".into(),
        state: JobFileState::Submitted,
        details: "{}".into(),
    };
    let job = NewJob {
        id,
        kind: JobKind::Regular,
        vo: "testvo".into(),
        user: dn,
        credential: "none".into(),
        priority: 3,
        strategy: "best".into(),
        submitted: Timestamp(1),
        expires: None,
        details: json!({ "owner": owner }).to_string(),
        refuse_duplicates: false,
        files: vec![file],
    };
    let answers = play.world.service().operations().jobs().submit(vec![job]).await.unwrap();
    assert_eq!(answers, [SubmitResult::Created]);
    id.to_string()
}

/// The reason of the job's file once it is in that state.
async fn comes_to(play: &People, job: &str, state: &str) -> String {
    until(state, async || {
        let (_, files) = play.request("admin", "GET", &format!("/jobs/{job}/files"), "").await;
        let files: Value = serde_json::from_str(&files).unwrap();
        let reason = || files[0]["reason"].as_str().unwrap_or_default().to_owned();
        if files[0]["file_state"] == state { Ok(reason()) } else { Err(files.to_string()) }
    })
    .await
}
