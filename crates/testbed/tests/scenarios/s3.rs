//! Copies from and to a storage that speaks S3, which checks every signature by others' code: whole files and
//! files of many parts, by whichever way works, what is left after each kind of failure, and uploads that a
//! killed process has left.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_model::{Blame, Fault, FaultCode, Retry};
use longhaul_security::write_private;
use longhaul_storage_remote::{
    Cancel, ChecksumMode, CopyDone, CopyOrder, Credential, End, Mode, Overwrite, Remote, RemoteConfig,
    S3Config, S3Keys, Trust, Verified, cancellation,
};
use longhaul_testbed::foreign::{
    ForeignAuthority, Nginx, NginxRules, S3Program, S3Request, S3Server, Xrootd,
};
use longhaul_testbed::{Deployment, Random, SERVICE, ServiceOptions, needs, tree};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use crate::foreign_storage::asked_in_the_end;

/// The least that S3 takes.
const PART: u64 = 5 << 20;
/// Three parts, the last of them shorter.
const LARGE: u64 = 2 * PART + 700_001;
const WITHIN: Duration = Duration::from_secs(90);
const COMPARED: Verified =
    Verified { source_with_user: false, target_with_user: false, target_with_source: true };

/// The server, or that there is none.
pub(crate) fn program() -> Option<S3Program> {
    let programs = [("nginx", "-v"), ("openssl", "version"), ("rclone", "version")];
    if !needs::programs("copies with a storage that speaks S3", &programs) {
        return None;
    }
    let program = S3Program::find();
    if program.is_none() {
        needs::not_run(
            "copies with a storage that speaks S3",
            "there is neither versitygw nor a Python with moto",
        );
    }
    program
}

fn remote(authority: &ForeignAuthority, records: Option<&Path>) -> Arc<Remote> {
    let s3 = S3Config { part_bytes: PART, memory_bytes: 4 * PART, records: records.map(Path::to_owned) };
    let allow = vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()];
    let trust = Trust::Pem(authority.ca_pem().to_owned());
    Arc::new(Remote::new(RemoteConfig { trust, allow, s3, ..RemoteConfig::default() }).unwrap())
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn keys(server: &S3Server) -> S3Keys {
    S3Keys {
        access_key: server.access_key.clone(),
        secret: Zeroizing::new(server.secret.clone()),
        session_token: None,
        region: "us-east-1".to_owned(),
    }
}

fn bucket(server: &S3Server, name: &str) -> End {
    End::new(server.url(name), Credential::S3(keys(server)))
}

fn plain(url: String) -> End {
    End::new(url, Credential::None)
}

fn order(tag: &str, source: End, target: End) -> CopyOrder {
    let mut order = CopyOrder::new(tag, source, target);
    order.checksum = Some("ADLER32".parse().unwrap());
    order.checksum_mode = ChecksumMode::Both;
    order
}

async fn copy(remote: &Remote, order: &CopyOrder) -> Result<CopyDone, Fault> {
    remote.copy(order, &|_| {}, &Cancel::never()).await
}

fn content(seed: u64, size: u64) -> Vec<u8> {
    tree::content(&mut Random::new(seed), size)
}

#[test]
fn files_go_into_buckets_and_out_of_them() {
    let Some(program) = program() else { return };
    let authority = ForeignAuthority::new("storages");
    let s3 = S3Server::start(&authority, &program);
    let nginx = Nginx::start(&authority, NginxRules::default());
    let remote = remote(&authority, None);
    let (small, large) = (content(1, 300_000), content(2, LARGE));
    for (name, bytes) in [("small", &small), ("empty", &Vec::new()), ("large", &large)] {
        nginx.put(name, bytes);
        run(async {
            // In, from one bucket to the next, and out again: what comes back is what went.
            let (first, second) = (format!("open/in/{name}"), format!("open/out/{name}"));
            let seen = AtomicU64::new(0);
            let mut into = order("1-1", plain(nginx.url(name)), bucket(&s3, &first));
            into.streams = 3;
            let heard = |moved| _ = seen.fetch_max(moved, Ordering::Relaxed);
            let done = remote.copy(&into, &heard, &Cancel::never()).await.unwrap();
            assert_eq!((done.mode, done.bytes, done.verified), (Mode::Stream, bytes.len() as u64, COMPARED));
            assert_eq!(seen.into_inner(), bytes.len() as u64);
            let between = order("1-2", bucket(&s3, &first), bucket(&s3, &second));
            assert_eq!(copy(&remote, &between).await.unwrap().verified, COMPARED);
            let out = order("1-3", bucket(&s3, &second), plain(nginx.url(&format!("back/{name}"))));
            assert_eq!(copy(&remote, &out).await.unwrap().verified, COMPARED);
            assert!(fs::read(nginx.data().join("back").join(name)).unwrap() == *bytes, "{name}");
        });
    }
    // Others see the same, and that nothing was read back to be compared.
    assert!(s3.get("open/in/large") == large);
    assert_eq!(s3.listed("open").1, 0, "uploads that were begun and not ended");
    assert_eq!(s3.asked(S3Request::Get, "open/in/large", &[]), 1 + 1, "once by us, once by others");
    assert_eq!(s3.asked(S3Request::Part, "open/in/large", &[]), 3);
    run(async {
        let end = bucket(&s3, "open/out/small");
        let stat = remote.stat(&end, Some(longhaul_model::Algorithm::Md5)).await.unwrap().unwrap();
        assert_eq!(stat.size, 300_000);
        assert!(stat.checksum.is_some(), "an ETag of a whole object is its MD5");
        assert!(remote.remove(&end).await.unwrap());
        assert_eq!(remote.stat(&end, None).await.unwrap(), None);
        assert!(remote.list(&end).await.unwrap_err().detail.contains("speaks S3"));
    });
}

#[test]
fn what_fails_leaves_what_was_there_and_says_why() {
    let Some(program) = program() else { return };
    let authority = ForeignAuthority::new("storages");
    let s3 = S3Server::start(&authority, &program);
    let nginx = Nginx::start(&authority, NginxRules::default());
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(4_000_000), ..NginxRules::default() });
    let remote = remote(&authority, None);
    let old = content(3, 100_000);
    for (name, size) in [("small", 300_000), ("large", LARGE)] {
        let bytes = content(4, size);
        nginx.put(name, &bytes);
        slow.put(name, &bytes);
    }
    s3.put("open/there", &old);
    run(async {
        for name in ["small", "large"] {
            let mut order = order("2-1", plain(nginx.url(name)), bucket(&s3, "open/there"));
            let fault = copy(&remote, &order).await.unwrap_err();
            assert_eq!(fault.detail, "DESTINATION [17] Destination file exists and overwrite is not enabled");
            order.overwrite = Overwrite::Always;
            order.checksum = Some("ADLER32:12345678".parse().unwrap());
            let fault = copy(&remote, &order).await.unwrap_err();
            assert!(fault.detail.starts_with("SOURCE [5] Source and user-defined ADLER32"), "{fault}");
            order.checksum_mode = ChecksumMode::Target;
            let fault = copy(&remote, &order).await.unwrap_err();
            assert!(fault.detail.starts_with("DESTINATION [5] User-defined and destination"), "{fault}");
            order.target = bucket(&s3, "closed/x");
            let fault = copy(&remote, &order).await.unwrap_err();
            assert!(fault.detail.starts_with("DESTINATION [13] "), "{fault}");
            assert_eq!((fault.code, fault.retry), (FaultCode::NotAllowed, Retry::Never));
        }
        let mut order = order("2-2", bucket(&s3, "open/missing"), plain(nginx.url("x")));
        let fault = copy(&remote, &order).await.unwrap_err();
        assert!(fault.detail.starts_with("SOURCE [2] HEAD s3s://localhost:"), "{fault}");
        assert_eq!((fault.code, fault.blame), (FaultCode::SourceMissing, Blame::Source));
        // The wrong secret: told in words, and never shown.
        let wrong = S3Keys { secret: Zeroizing::new("canary".to_owned()), ..keys(&s3) };
        order.source = plain(nginx.url("small"));
        order.target = End::new(s3.url("open/x"), Credential::S3(wrong));
        let fault = copy(&remote, &order).await.unwrap_err();
        assert!(fault.detail.contains("the keys are wrong") && !fault.detail.contains("canary"), "{fault}");
        assert!(!format!("{order:?}").contains("canary"));
        order.target.credential = Credential::None;
        let fault = copy(&remote, &order).await.unwrap_err();
        assert!(fault.detail.contains("there are no keys for this bucket"), "{fault}");

        // Ended while parts are on their way: they are taken back.
        let target = bucket(&s3, "open/cancelled");
        let cancelled = self::order("2-3", plain(slow.url("large")), target);
        let (canceller, cancel) = cancellation();
        let cancels = |moved| {
            if moved >= PART {
                canceller.cancel();
            }
        };
        let fault = remote.copy(&cancelled, &cancels, &cancel).await.unwrap_err();
        assert_eq!(fault.detail, "TRANSFER [125] Transfer canceled");
    });
    assert_eq!(s3.listed("open"), (vec!["there".to_owned()], 0));
    assert!(s3.get("open/there") == old);
    assert!(s3.asked(S3Request::Abort, "open/cancelled", &[]) == 1);
}

#[test]
fn what_a_killed_process_has_sent_is_not_sent_again() {
    let Some(program) = program() else { return };
    let authority = ForeignAuthority::new("storages");
    let s3 = S3Server::start(&authority, &program);
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(3_000_000), ..NginxRules::default() });
    let quick = Nginx::start(&authority, NginxRules::default());
    let records = tempfile::tempdir().unwrap();
    let mut bytes = content(5, LARGE);
    slow.put("file", &bytes);
    quick.put("file", &bytes);
    let stop = |target: &str| {
        run(async {
            let remote = remote(&authority, Some(records.path()));
            let order = order("3-1", plain(slow.url("file")), bucket(&s3, target));
            let (arrived, first) = tokio::sync::oneshot::channel();
            let arrived = std::sync::Mutex::new(Some(arrived));
            let heard = |moved| {
                if moved >= PART
                    && let Some(arrived) = arrived.lock().unwrap().take()
                {
                    arrived.send(()).unwrap();
                }
            };
            let never = Cancel::never();
            tokio::select! {
                done = remote.copy(&order, &heard, &never) => panic!("it was to be in the midst of it: \
                    {done:?}"),
                first = first => first.unwrap(),
            }
        });
    };
    stop("open/goes-on");
    let asked = || {
        let sent = s3.asked(S3Request::Part, "open/goes-on", &["partNumber=1"]);
        (sent, s3.asked(S3Request::Begin, "open/goes-on", &[]))
    };
    assert_eq!(asked(), (1, 1));
    assert_eq!(s3.listed("open"), (vec![], 1), "nobody sees it yet");
    let next = |target: &str| {
        run(async {
            let remote = remote(&authority, Some(records.path()));
            let order = order("3-2", plain(quick.url("file")), bucket(&s3, target));
            copy(&remote, &order).await.unwrap()
        })
    };
    assert_eq!(next("open/goes-on").verified, COMPARED);
    assert_eq!(asked(), (1, 1), "the first part was there, and the upload went on");
    assert!(s3.get("open/goes-on") == bytes);
    // A source that is another one by now: what was sent of it is not taken for it.
    stop("open/changed");
    bytes[17] ^= 1;
    quick.put("file", &bytes);
    next("open/changed");
    assert!(s3.get("open/changed") == bytes);
    assert_eq!(s3.listed("open").1, 0);
    assert_eq!(fs::read_dir(records.path()).unwrap().count(), 0, "no record is left");
}

#[test]
fn others_copy_by_signed_urls() {
    let Some(program) = program() else { return };
    if !needs::program("xrootd", &["-v"]) {
        return needs::not_run("third-party copies with S3", "there is no xrootd");
    }
    let authority = ForeignAuthority::new("storages");
    let s3 = S3Server::start(&authority, &program);
    let mut xrootd = Xrootd::start(&authority);
    let (at, data) = (xrootd.url(""), xrootd.data());
    let remote = remote(&authority, None);
    let bytes = content(6, LARGE);
    xrootd.put("file", &bytes);
    s3.put("open/file", &bytes);
    let pushed = run(async {
        // Nothing is to be compared at the source, so XRootD fetches it by itself. (Were another way allowed,
        // it would be taken where XRootD breaks this one off.)
        let done = asked_in_the_end([&mut xrootd], async |tries| {
            let target = plain(format!("{at}pulled{tries}"));
            let mut pull = order(&format!("4-1-{tries}"), bucket(&s3, "open/file"), target);
            (pull.checksum_mode, pull.modes) = (ChecksumMode::None, vec![Mode::Pull]);
            let done = copy(&remote, &pull).await?;
            assert!(fs::read(data.join(format!("pulled{tries}"))).unwrap() == bytes);
            Ok(done)
        });
        assert_eq!(done.await.mode, Mode::Pull);
        let source = || plain(format!("{at}file"));
        let pushed = asked_in_the_end([&mut xrootd], async |tries| {
            let name = format!("open/pushed{tries}");
            let mut push = order(&format!("4-2-{tries}"), source(), bucket(&s3, &name));
            (push.checksum_mode, push.modes) = (ChecksumMode::None, vec![Mode::Push]);
            copy(&remote, &push).await.map(|done| (done.mode, name))
        });
        let (mode, pushed) = pushed.await;
        assert_eq!(mode, Mode::Push);
        // What is to be compared at the bucket comes through us: it is confirmed on its way.
        let done = asked_in_the_end([&mut xrootd], async |tries| {
            let target = bucket(&s3, &format!("open/streamed{tries}"));
            copy(&remote, &order(&format!("4-2-both-{tries}"), source(), target)).await
        });
        let done = done.await;
        assert_eq!((done.mode, done.verified), (Mode::Stream, COMPARED));
        // Names as users have them.
        let named = order("4-3", bucket(&s3, "open/file"), bucket(&s3, "open/below/ +ü=%25~*(1)"));
        assert_eq!(copy(&remote, &named).await.unwrap().verified, COMPARED);
        pushed
    });
    assert!(s3.get("open/below/ +ü=%~*(1)") == bytes);
    assert!(s3.get(&pushed) == bytes);
    let signed = ["X-Amz-Algorithm=", "X-Amz-Signature="];
    assert!(s3.asked(S3Request::Get, "open/file", &signed) >= 1);
    assert!(s3.asked(S3Request::Put, &pushed, &signed) >= 1);
}

#[test]
fn jobs_of_fts_use_buckets() {
    let Some(program) = program() else { return };
    let authority = ForeignAuthority::new("storages");
    let s3 = S3Server::start(&authority, &program);
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(8_000_000), ..NginxRules::default() });
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    write_private(&secret, s3.secret.as_bytes()).unwrap();
    let settings = format!(
        "[service.jobs]\nallow_networks = [\"127.0.0.0/8\", \"::1/128\"]\nauthorities = \
            [{:?}]\nretry_delay_s = 1\n\
         [[service.jobs.s3]]\nhost = \"localhost\"\nbucket = \"open\"\naccess_key = {:?}\nsecret_file = \
         {secret:?}\n\
         communities = [\"*\"]\n",
        authority.ca_file(),
        s3.access_key
    );
    let mut deployment = Deployment::with(ServiceOptions { settings, ..ServiceOptions::default() });
    let (small, large) = (content(7, 70_000), content(8, 40 << 20));
    slow.put("small", &small);
    slow.put("large", &large);
    // As FTS's clients write it; one file is in a bucket that nobody has keys for.
    let file = folder.path().join("jobs.json");
    let pair = |source: String, target: String| json!({ "sources": [source], "destinations": [target] });
    let files =
        [pair(slow.url("small"), s3.url("open/small")), pair(slow.url("small"), s3.url("other/small"))];
    let params = json!({ "s3alternate": true, "verify_checksum": "both" });
    fs::write(&file, json!({ "files": files, "params": params }).to_string()).unwrap();
    let made = deployment.json(&["submit", "--file", file.to_str().unwrap()]);
    let id = made["items"][0]["id"].as_str().unwrap();
    let waited = deployment.longhaul(&["job", "wait", id, "--within", "60"]);
    assert!(waited.stdout.contains("finisheddirty; 1 of 2 files arrived"), "{waited}");
    assert!(waited.stdout.contains(": no keys are configured that open"), "{waited}");
    assert!(s3.get("open/small") == small);

    // The service is killed in the midst of a file, and goes on with its parts.
    let made = deployment.json(&["submit", &slow.url("large"), &s3.url("open/large"), "--verify", "both"]);
    let id = made["id"].as_str().unwrap();
    let parts = || s3.asked(S3Request::Part, "open/large", &["partNumber=1"]);
    let begun = || s3.asked(S3Request::Begin, "open/large", &[]);
    deployment.until("the first part has arrived", WITHIN, || (parts() == 1).then_some(()));
    deployment.kill(SERVICE);
    deployment.start(SERVICE);
    deployment.until_ready();
    let waited = deployment.longhaul(&["job", "wait", id, "--within", "90"]).ok();
    assert!(waited.stdout.contains("finished; 1 of 1 file arrived"), "{waited}");
    assert_eq!((parts(), begun()), (1, 1), "it was not sent again");
    assert!(s3.get("open/large") == large);
    assert_eq!(s3.listed("open").1, 0);

    // Keys of the community, as FTS's clients set them.
    let api = deployment.api();
    let vo = api.send("GET", &format!("/jobs/{id}"), &[], &[]).unwrap().json()["vo_name"].clone();
    let post = |path: &str, body: Value| {
        let json = [("content-type", "application/json")];
        api.send("POST", path, &json, body.to_string().as_bytes()).unwrap().expect(201).text()
    };
    post("/config/cloud_storage", json!({ "storage_name": "S3:localhost" }));
    let keys = json!({ "vo_name": vo, "access_key": s3.access_key, "secret_key": s3.secret });
    let shown = post("/config/cloud_storage/S3:localhost", keys);
    assert!(shown.contains(&s3.access_key) && !shown.contains(&s3.secret), "{shown}");
    let made = deployment.json(&["submit", &slow.url("small"), &s3.url("open2/small"), "--verify", "both"]);
    deployment.longhaul(&["job", "wait", made["id"].as_str().unwrap(), "--within", "60"]).ok();
    assert!(s3.get("open2/small") == small);
    let log = deployment.log(SERVICE);
    assert!(log.lines_with(&[&s3.secret]).is_empty(), "the secret is in no log");
    deployment.assert_alive();
}
