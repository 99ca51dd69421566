//! What storages do that should not: each answer that lies, ends early, never ends or leads elsewhere, and
//! what becomes of a copy and of the target then.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod confirmation;
mod credentials;
mod leaving;
mod listings;
mod server;
mod space;
mod terms;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longhaul_model::{Blame, Fault, FaultCode, Retry};
use longhaul_storage_remote::{
    Cancel, Checksum, ChecksumMode, CopyDone, CopyOrder, Credential, End, Mode, Overwrite, Remote,
    RemoteConfig, Times, Trust, cancellation,
};
use longhaul_testkit::{CertificateAuthority, server_tls, until_met};
use server::{ReceivedRequest, Reply, Server, markers, reply, with_body};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

const LARGE: usize = 5 << 20;
/// The head of an answer that goes on.
const CHUNKED_HEAD: &str = "HTTP/1.1 202 Accepted\r\nTransfer-Encoding: chunked\r\n\r\n";

fn config() -> RemoteConfig {
    let ample = Duration::from_secs(30);
    let times = Times {
        answer: ample,
        checksum: ample,
        stall: ample,
        progress: ample,
        may_send: ample,
        ..Times::default()
    };
    RemoteConfig {
        trust: Trust::Pem(CertificateAuthority::new("nobody's").ca_pem),
        allow: vec!["127.0.0.1".parse().unwrap()],
        times,
        ..RemoteConfig::default()
    }
}

fn remote() -> Remote {
    Remote::new(config()).unwrap()
}

/// One that soon gives up what stands still; only where that is what is expected, for a busy machine stands
/// still, too.
fn impatient_remote() -> Remote {
    let mut config = config();
    (config.times.stall, config.times.progress) =
        (Duration::from_millis(1_600), Duration::from_millis(1_600));
    Remote::new(config).unwrap()
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn adler(content: &[u8]) -> Checksum {
    let mut hasher = longhaul_model::Hasher::new([longhaul_model::Algorithm::Adler32]);
    hasher.update(content);
    Checksum::from_digest(hasher.finish().iter().next().unwrap())
}

fn none(_: &ReceivedRequest) -> Option<Reply> {
    None
}

fn order(source: &Server, target: &Server, modes: &[Mode]) -> CopyOrder {
    let mut order = CopyOrder::new(
        "1-1",
        End::new(source.url("/source"), Credential::None),
        End::new(target.url("/target"), Credential::None),
    );
    order.modes = modes.to_vec();
    order
}

async fn copy(order: &CopyOrder) -> Result<CopyDone, Fault> {
    remote().copy(order, &|_| {}, &Cancel::never()).await
}

/// A good source and this target; the source's file goes by one way.
async fn fails_at_target(
    size: usize,
    mode: Mode,
    rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
) -> (Fault, Server) {
    fails_at_target_with(&remote(), size, mode, rule).await
}

async fn fails_at_target_with(
    remote: &Remote,
    size: usize,
    mode: Mode,
    rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
) -> (Fault, Server) {
    let (source, target) = (Server::start(none).await, Server::start(rule).await);
    source.put("/source", &content(size));
    let order = order(&source, &target, &[mode]);
    let fault = remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
    assert_eq!(target.get("/target"), None, "{fault}");
    (fault, target)
}

async fn fails_at_source(
    size: usize,
    rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
) -> Fault {
    fails_at_source_with(&remote(), size, rule).await
}

async fn fails_at_source_with(
    remote: &Remote,
    size: usize,
    rule: impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static,
) -> Fault {
    let (source, target) = (Server::start(rule).await, Server::start(none).await);
    source.put("/source", &content(size));
    let order = order(&source, &target, &[Mode::Stream]);
    let fault = remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
    assert_eq!(target.names(), Vec::<String>::new(), "{fault}");
    fault
}

/// Some storages that speak S3 tell for ever how an object came in; its bytes are plain.
#[tokio::test]
async fn what_came_in_pieces_is_read_and_what_is_packed_is_not() {
    let size = 1_000;
    let coded = |coding: &'static str| {
        let headers = format!("Content-Encoding: {coding}\r\n");
        at("GET", move || Reply::SayAndClose(with_body("200 OK", &headers, &content(size))))
    };
    for coding in ["aws-chunked", "AWS-Chunked", "identity"] {
        let (source, target) = (Server::start(coded(coding)).await, Server::start(none).await);
        source.put("/source", &content(size));
        let copied = copy(&order(&source, &target, &[Mode::Stream])).await;
        assert!(copied.is_ok(), "{coding}: {copied:?}");
        assert_eq!(target.get("/target"), Some(content(size)), "{coding}");
    }
    for coding in ["aws-chunked, gzip", "br"] {
        let packed = fails_at_source(size, coded(coding)).await;
        assert!(packed.detail.contains("content encoding"), "{coding}: {packed}");
    }
}

fn at(
    method: &'static str,
    reply: impl Fn() -> Reply + Send + Sync,
) -> impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync {
    move |asked| (asked.method == method).then(&reply)
}

#[tokio::test]
async fn sources_that_lie_or_stop_cost_a_try_and_no_more() {
    for size in [1_000, LARGE] {
        let empty = fails_at_source(size, at("GET", || reply("200 OK", "", ""))).await;
        assert!(empty.detail.starts_with("SOURCE [22] GET "), "{empty}");
        assert_eq!(empty.code, FaultCode::SourceChanged);
        let longer = with_body("200 OK", "", &content(size + 1));
        let long = fails_at_source(size, at("GET", move || Reply::SayAndClose(longer.clone()))).await;
        assert!(long.detail.contains("bytes where"), "{long}");
        let packed =
            fails_at_source(size, at("GET", move || reply("200 OK", "Content-Encoding: gzip\r\n", ""))).await;
        assert!(packed.detail.contains("content encoding"), "{packed}");
        let gone = fails_at_source(size, at("GET", || reply("404 Not Found", "", "gone\u{1b}[2J"))).await;
        assert!(gone.detail.starts_with("SOURCE [2] GET ") && !gone.detail.contains('\u{1b}'), "{gone}");
        let mut half = with_body("200 OK", "", &content(size));
        half.truncate(half.len() - size / 2);
        // Nothing more comes, and it never tells that ranges were possible.
        let silent = move |asked: &ReceivedRequest| match asked.method.as_str() {
            "GET" => Some(Reply::SayAndWait(half.clone())),
            "HEAD" => Some(Reply::Say(format!(
                "HTTP/1.1 200 OK\r\nAccept-Ranges: none\r\nContent-Length: {size}\r\n\r\n"
            ))),
            _ => None,
        };
        let stalled = fails_at_source_with(&impatient_remote(), size, silent).await;
        assert!(stalled.detail.starts_with("SOURCE [110] "), "{stalled}");
        assert_eq!((stalled.code, stalled.retry), (FaultCode::Stalled, Retry::Now));
    }
    let nonsense =
        fails_at_source(10, at("GET", || Reply::SayAndClose(b"SSH-2.0-OpenSSH\r\n".to_vec()))).await;
    assert!(nonsense.detail.starts_with("SOURCE [104] "), "{nonsense}");
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(20_000));
    let endless = fails_at_source(10, at("HEAD", move || Reply::Say(endless.clone()))).await;
    assert!(endless.detail.starts_with("SOURCE ["), "{endless}");
}

/// What a copy of 1,000 bytes becomes where the source, asked what it has, does this so many times instead of
/// answering; and how often it was asked.
async fn answers_first(instead: fn() -> Reply, times: usize) -> (Result<CopyDone, Fault>, usize) {
    let failed = Arc::new(AtomicUsize::new(0));
    let fails = move || failed.fetch_add(1, Ordering::Relaxed) < times;
    let source = Server::start(move |seen| (seen.method == "HEAD" && fails()).then(instead)).await;
    let target = Server::start(none).await;
    source.put("/source", &content(1_000));
    let mut order = order(&source, &target, &[Mode::Stream]);
    order.size = None;
    (copy(&order).await, source.asked("HEAD").len())
}

#[tokio::test]
async fn a_question_that_a_server_failed_to_answer_is_asked_again_but_not_for_ever() {
    let fails = || reply("500 Internal Server Error", "", "");
    let breaks_off = || Reply::SayAndClose(Vec::new());
    let refuses = || reply("502 Bad Gateway", "", "");
    for (instead, times) in [(fails as fn() -> Reply, 1), (refuses, 2), (breaks_off, 1), (breaks_off, 2)] {
        let (found, asked) = answers_first(instead, times).await;
        assert!(found.is_ok(), "{times}: {found:?}");
        assert!(asked > times, "{asked}");
    }
    for (instead, why) in [(fails as fn() -> Reply, "500"), (breaks_off, "[104]")] {
        let (found, asked) = answers_first(instead, usize::MAX).await;
        let fault = found.unwrap_err();
        assert!(fault.detail.starts_with("SOURCE [") && fault.detail.contains(why), "{fault}");
        assert_eq!(asked, 3);
    }
    // What was refused is refused.
    let (found, asked) = answers_first(|| reply("403 Forbidden", "", ""), usize::MAX).await;
    assert!(found.is_err() && asked == 1, "{asked} {found:?}");
}

/// A server that says nothing at all is not asked again: each time is waited out.
#[tokio::test]
async fn a_question_without_an_answer_is_asked_once() {
    let source = Server::start(at("HEAD", || Reply::SayAndWait(Vec::new()))).await;
    let target = Server::start(none).await;
    let mut config = config();
    config.times.answer = Duration::from_millis(300);
    let remote = Remote::new(config).unwrap();
    let order = order(&source, &target, &[Mode::Stream]);
    let fault = remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
    assert!(fault.detail.starts_with("SOURCE [110] HEAD "), "{fault}");
    until_met("the end of the connection", || source.closed() == 1).await;
    assert_eq!(source.asked("HEAD").len(), 1);
}

#[tokio::test]
async fn a_read_that_breaks_goes_on_where_it_broke() {
    let breaks = Arc::new(AtomicUsize::new(0));
    let seen = breaks.clone();
    let whole = content(LARGE);
    let half = {
        let mut bytes = with_body("200 OK", "", &whole);
        bytes.truncate(LARGE / 2);
        bytes
    };
    let source = Server::start(move |asked: &ReceivedRequest| {
        let first = asked.method == "GET" && asked.header("range").is_none();
        first.then(|| {
            seen.fetch_add(1, Ordering::Relaxed);
            Reply::SayAndClose(half.clone())
        })
    })
    .await;
    let target = Server::start(none).await;
    source.put("/source", &whole);
    let mut order = order(&source, &target, &[Mode::Stream]);
    (order.checksum, order.checksum_mode) = (Some(adler(&whole)), ChecksumMode::Both);
    let done = copy(&order).await.unwrap();
    assert!(target.get("/target").unwrap() == whole);
    assert!(
        done.verified.source_with_user && done.verified.target_with_user && done.verified.target_with_source
    );
    assert_eq!(breaks.load(Ordering::Relaxed), 1);
    let resumed = source
        .asked("GET")
        .into_iter()
        .find(|asked| asked.path == "/source" && asked.header("range").is_some())
        .unwrap();
    assert_eq!(resumed.header("if-match"), Some(format!("\"{LARGE}\"").as_str()));

    // Not if it is another file meanwhile, or another part than was asked for.
    for status in ["412 Precondition Failed", "200 OK", "206 Partial Content"] {
        let half = {
            let mut bytes = with_body("200 OK", "", &whole);
            bytes.truncate(LARGE / 2);
            bytes
        };
        let changed = fails_at_source(LARGE, move |asked: &ReceivedRequest| {
            match (asked.method.as_str(), asked.header("range")) {
                ("GET", None) => Some(Reply::SayAndClose(half.clone())),
                ("GET", Some(_)) => Some(reply(status, "", "other")),
                _ => None,
            }
        })
        .await;
        assert!(changed.detail.starts_with("SOURCE ["), "{changed}");
    }
}

#[tokio::test]
async fn targets_that_lie_are_not_believed() {
    for size in [1_000, LARGE] {
        let (lost, _) = fails_at_target(size, Mode::Stream, at("PUT", || reply("201 Created", "", ""))).await;
        assert!(
            lost.detail.contains("said that it has the file, and has not") || lost.detail.contains("broke"),
            "{lost}"
        );
        let (full, target) = fails_at_target(
            size,
            Mode::Stream,
            at("PUT", || reply("507 Insufficient Storage", "Content-Type: text/plain\r\n", "no room")),
        )
        .await;
        assert!(
            full.detail.starts_with("DESTINATION [28] PUT ") && full.detail.ends_with("no room"),
            "{full}"
        );
        assert_eq!((full.code, full.blame, full.retry), (FaultCode::TargetFull, Blame::Target, Retry::Later));
        // The refusal came before the bytes.
        assert!(size < LARGE || target.asked("PUT").iter().all(|asked| asked.body.is_empty()));
    }
    let cut = |asked: &ReceivedRequest| {
        (asked.method == "HEAD" && asked.path.contains(".longhaul-"))
            .then(|| Reply::Say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".into()))
    };
    let (cut, target) = fails_at_target(1_000, Mode::Stream, cut).await;
    assert_eq!(cut.detail, "DESTINATION [22] Source and destination file size mismatch (1000 != 0)");
    assert_eq!(target.names(), Vec::<String>::new(), "what came is taken away");

    let (source, target) = (
        Server::start(none).await,
        Server::start(|asked: &ReceivedRequest| {
            let told = asked.method == "HEAD" && asked.header("want-digest").is_some();
            told.then(|| {
                Reply::Say("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nDigest: adler32=1\r\n\r\n".into())
            })
        })
        .await,
    );
    source.put("/source", &content(1_000));
    let mut order = order(&source, &target, &[Mode::Stream]);
    (order.checksum, order.checksum_mode) = (Some("adler32".parse().unwrap()), ChecksumMode::Both);
    let wrong = copy(&order).await.unwrap_err();
    assert!(
        wrong.detail.starts_with("DESTINATION [5] Source and destination ADLER32 checksum do not match ("),
        "{wrong}"
    );
    assert_eq!(target.names(), Vec::<String>::new());
}

/// Third-party copies whose answer is this; the target has what it says it has.
async fn third_party(text: &str) -> (Fault, Server) {
    let text = text.to_owned();
    fails_at_target(1_000, Mode::Pull, at("COPY", move || markers(&text))).await
}

#[tokio::test]
async fn a_third_party_copy_is_judged_by_its_last_line() {
    let marker = "Perf Marker\nStripe Index: 0\nStripe Bytes Transferred: 1000\nTotal Stripe Count: 1\nEnd\n";
    for text in ["", marker, "Perf Marker\n", "<html>success</html>", &"x".repeat(100_000)] {
        let (fault, _) = third_party(text).await;
        assert!(
            fault.detail.starts_with("TRANSFER [104] COPY ") && fault.detail.contains("without saying"),
            "{fault}"
        );
    }
    let (fault, _) = third_party(&format!("{marker}success: Created")).await;
    assert!(fault.detail.contains("said that it has the file, and has not"), "{fault}");
    assert_eq!(fault.retry, Retry::Now);
    let (fault, _) = third_party(
        "failure: Remote side failed with status code 404; error message: \"https://a/x?authz=SECRET\"\n",
    )
    .await;
    assert!(fault.detail.starts_with("TRANSFER [2] ") && !fault.detail.contains("SECRET"), "{fault}");
    let (fault, _) = third_party("aborted: no\u{1b}[2J\n").await;
    assert!(fault.detail.starts_with("TRANSFER [70] ") && !fault.detail.contains('\u{1b}'), "{fault}");
    for (status, begins) in [
        ("403 Forbidden", "TRANSFER [13] "),
        ("501 Not Implemented", "TRANSFER [95] "),
        ("302 Found", "TRANSFER [70] "),
    ] {
        let (fault, _) = fails_at_target(10, Mode::Pull, at("COPY", move || reply(status, "", ""))).await;
        assert!(fault.detail.starts_with(begins), "{fault}");
    }
}

#[tokio::test]
async fn a_third_party_copy_that_stands_still_is_ended() {
    let silent = std::sync::Mutex::new(Some(Reply::SayAndWait(CHUNKED_HEAD.into())));
    let rule = move |asked: &ReceivedRequest| {
        (asked.method == "COPY").then(|| silent.lock().unwrap().take()).flatten()
    };
    let (fault, target) = fails_at_target_with(&impatient_remote(), 1_000, Mode::Pull, rule).await;
    assert!(fault.detail.starts_with("TRANSFER [110] "), "{fault}");
    // Our closing told it.
    until_met("the end of the connection", || target.closed() == 1).await;
}

#[tokio::test]
async fn nothing_is_deleted_under_the_own_name_after_a_time_out() {
    // Without MOVE there is no name but the file's own. What is begun does not end.
    let rule = |asked: &ReceivedRequest| match asked.method.as_str() {
        "MOVE" => Some(reply("405 Method Not Allowed", "", "")),
        "COPY" => Some(Reply::SayAndWait(CHUNKED_HEAD.into())),
        "PUT" => Some(Reply::SayAndWait(Vec::new())),
        _ => None,
    };
    for mode in [Mode::Pull, Mode::Stream] {
        let (fault, target) = fails_at_target_with(&impatient_remote(), 1_000, mode, rule).await;
        assert!(fault.detail.contains("[110]") && fault.detail.ends_with("/target may be left)"), "{fault}");
        assert!(target.asked("DELETE").is_empty());
    }
    // An answer that is one leaves no doubt: then what is there is ours, and goes; unless it is whole, or was
    // there before.
    for (before, after, stays) in
        [(None, 0, false), (None, 1_000, true), (Some(7), 7, true), (Some(7), 0, false)]
    {
        let here = Arc::new(std::sync::OnceLock::<Server>::new());
        let itself = here.clone();
        let (source, target) = (
            Server::start(none).await,
            Server::start(move |asked: &ReceivedRequest| match asked.method.as_str() {
                "MOVE" => Some(reply("405 Method Not Allowed", "", "")),
                "COPY" => {
                    itself.get().unwrap().put("/target", &content(after));
                    Some(markers("failure: no space\n"))
                }
                _ => None,
            })
            .await,
        );
        assert!(here.set(target.clone()).is_ok());
        source.put("/source", &content(1_000));
        let mut order = order(&source, &target, &[Mode::Pull]);
        order.overwrite = Overwrite::Always;
        if let Some(before) = before {
            target.put("/target", &content(before));
        }
        let fault = copy(&order).await.unwrap_err();
        assert!(fault.detail.contains("no space"), "{fault}");
        assert_eq!(target.get("/target").is_some(), stays, "{before:?} {after}");
    }
}

/// The last look is the second at the file's own name.
fn breaks_off_the_last_look() -> impl Fn(&ReceivedRequest) -> Option<Reply> + Send + Sync + 'static {
    let looks = AtomicUsize::new(0);
    move |asked| {
        let is_look = asked.method == "HEAD" && asked.path == "/target";
        (is_look && looks.fetch_add(1, Ordering::Relaxed) > 0).then(|| Reply::SayAndClose(Vec::new()))
    }
}

#[tokio::test]
async fn a_copy_that_was_renamed_is_done_unless_it_is_seen_not_to_be_there() {
    let (source, target) = (Server::start(none).await, Server::start(breaks_off_the_last_look()).await);
    source.put("/source", &content(1_000));
    let done = copy(&order(&source, &target, &[Mode::Stream])).await.unwrap();
    assert_eq!((done.bytes, target.get("/target")), (1_000, Some(content(1_000))));
    assert!(target.asked("HEAD").iter().filter(|asked| asked.path == "/target").count() > 1);

    let lies = |asked: &ReceivedRequest| {
        let is_rename = asked.method == "MOVE" && asked.path.ends_with("-stream");
        is_rename.then(|| reply("201 Created", "", ""))
    };
    let (fault, _) = fails_at_target(1_000, Mode::Stream, lies).await;
    assert!(fault.detail.ends_with("renamed to its name, and not there"), "{fault}");
}

#[tokio::test]
async fn a_cancelled_copy_is_closed_at_once() {
    let (source, target) = (
        Server::start(none).await,
        Server::start(at("COPY", || {
            Reply::SayAndWait(b"HTTP/1.1 201 Created\r\n\r\nPerf Marker\n".to_vec())
        }))
        .await,
    );
    source.put("/source", &content(1_000));
    let order = order(&source, &target, &[Mode::Pull]);
    let (canceller, cancel) = cancellation();
    let mut config = config();
    config.times.stall = Duration::from_secs(600);
    let remote = Remote::new(config).unwrap();
    let copying = tokio::spawn(async move { remote.copy(&order, &|_| {}, &cancel).await });
    until_met("the request", || !target.asked("COPY").is_empty()).await;
    canceller.cancel();
    let fault = copying.await.unwrap().unwrap_err();
    assert_eq!(fault.detail, "TRANSFER [125] Transfer canceled");
    until_met("the end of the connection", || target.closed() == 1).await;
}

/// Storages that copy for each other, and never end with an empty file.
#[tokio::test]
async fn an_empty_file_is_not_left_to_third_parties() {
    let source = Server::start(none).await;
    let forever = || Reply::SayAndWait(b"HTTP/1.1 201 Created\r\n\r\nPerf Marker\n".to_vec());
    let target = Server::start(at("COPY", forever)).await;
    source.put("/source", b"");
    let done = copy(&order(&source, &target, &[Mode::Pull, Mode::Push, Mode::Stream])).await.unwrap();
    assert_eq!((done.mode, done.bytes), (Mode::Stream, 0));
    assert_eq!(target.get("/target"), Some(Vec::new()));
    assert!(target.asked("COPY").is_empty() && source.asked("COPY").is_empty());
}

#[tokio::test]
async fn an_order_has_its_time() {
    let target = Server::start(none).await;
    let source = Server::start(at("GET", || Reply::SayAndWait(Vec::new()))).await;
    source.put("/source", &content(1_000));
    let mut order = order(&source, &target, &[Mode::Stream]);
    order.timeout = Some(Duration::from_millis(100));
    let fault = copy(&order).await.unwrap_err();
    assert!(fault.detail.starts_with("TRANSFER [110] Operation timed out"), "{fault}");
}

#[tokio::test]
async fn redirects_are_followed_by_our_rules() {
    let circle = fails_at_source(10, |asked: &ReceivedRequest| {
        (asked.method == "GET").then(|| reply("307 Temporary Redirect", "Location: /source\r\n", ""))
    })
    .await;
    assert!(circle.detail.contains("redirected more than"), "{circle}");
    for location in
        ["file:///etc/passwd", "gopher://127.0.0.1/", "http://169.254.169.254/meta", "http://10.0.0.1/"]
    {
        let elsewhere = fails_at_source(10, move |asked: &ReceivedRequest| {
            (asked.method == "GET").then(|| reply("302 Found", &format!("Location: {location}\r\n"), ""))
        })
        .await;
        assert!(elsewhere.detail.starts_with("SOURCE ["), "{elsewhere}");
        assert!(
            elsewhere.detail.contains("not allowed here") || elsewhere.detail.contains("scheme"),
            "{elsewhere}"
        );
    }
    // A PUT that is redirected sends its bytes once, to the one that takes them.
    let pool = Server::start(none).await;
    let (source, to) = (Server::start(none).await, pool.url("/target"));
    let door = Server::start(move |asked: &ReceivedRequest| match asked.method.as_str() {
        "PUT" => Some(reply("307 Temporary Redirect", &format!("Location: {to}\r\n"), "")),
        "MOVE" => Some(reply("405 Method Not Allowed", "", "")),
        "HEAD" if asked.header("x").is_some() => None,
        _ => None,
    })
    .await;
    for size in [1_000, LARGE] {
        source.put("/source", &content(size));
        // The door knows the file only when the pool has it: here never, and that is seen.
        let fault = copy(&order(&source, &door, &[Mode::Stream])).await.unwrap_err();
        assert!(fault.detail.contains("has not"), "{fault}");
        assert!(pool.get("/target").unwrap() == content(size));
        assert!(size < LARGE || door.asked("PUT").last().unwrap().body.is_empty());
    }
}

/// A server of the authority.
fn acceptor(authority: &CertificateAuthority) -> TlsAcceptor {
    TlsAcceptor::from(server_tls(&authority.issue("storage", &["127.0.0.1"])))
}

#[tokio::test]
async fn credentials_stay_with_whom_they_are_for() {
    let authority = CertificateAuthority::new("storages");
    let acceptor = || acceptor(&authority);
    let pool = Server::start_with(Some(acceptor()), |asked: &ReceivedRequest| {
        (asked.method == "COPY").then(|| markers("failure: no\n"))
    })
    .await;
    let plain = Server::start(none).await;
    let (to, down) = (pool.url(""), plain.url(""));
    let door = Server::start_with(Some(acceptor()), move |asked: &ReceivedRequest| {
        let to = if asked.path.contains("down") { &down } else { &to };
        matches!(asked.method.as_str(), "GET" | "COPY")
            .then(|| reply("307 Temporary Redirect", &format!("Location: {to}{}\r\n", asked.path), ""))
    })
    .await;
    let config = RemoteConfig { trust: Trust::Pem(authority.ca_pem.clone()), ..config() };
    let bearer = |text: &str| Credential::Bearer(Zeroizing::new(text.to_owned()));
    pool.put("/source", &content(1_000));
    for (trusted, path, mode) in [
        (false, "/source", Mode::Stream),
        (true, "/source", Mode::Stream),
        (false, "/down", Mode::Stream),
        (false, "/source", Mode::Push),
        (true, "/source", Mode::Push),
    ] {
        door.put(path, &content(1_000));
        let target = Server::start_with(Some(acceptor()), none).await;
        let redirect_hosts = if trusted { vec!["127.0.0.1".to_owned()] } else { Vec::new() };
        let remote = Remote::new(RemoteConfig { redirect_hosts, ..config.clone() }).unwrap();
        let mut order = order(&door, &target, &[mode]);
        order.source.url = door.url(path);
        (order.source.credential, order.target.credential) = (bearer("SOURCE-TOKEN"), bearer("TARGET-TOKEN"));
        let ended = remote.copy(&order, &|_| {}, &Cancel::never()).await;
        if path == "/down" {
            let fault = ended.unwrap_err();
            assert!(fault.detail.contains("from https to http none is followed"), "{fault}");
            assert!(plain.asked("GET").is_empty());
            continue;
        }
        let method = if mode == Mode::Stream { "GET" } else { "COPY" };
        let (first, last) = (door.asked(method).pop().unwrap(), pool.asked(method).pop().unwrap());
        assert_eq!(first.header("authorization"), Some("Bearer SOURCE-TOKEN"));
        assert_eq!(last.header("authorization"), trusted.then_some("Bearer SOURCE-TOKEN"), "{mode}");
        if mode == Mode::Stream {
            assert_eq!(ended.unwrap().bytes, 1_000);
            assert_eq!(target.asked("PUT")[0].header("authorization"), Some("Bearer TARGET-TOKEN"));
        } else {
            assert_eq!(first.header("transferheaderauthorization"), Some("Bearer TARGET-TOKEN"));
            assert!(first.head.contains("\r\nTransferHeaderAuthorization: Bearer "), "{}", first.head);
            assert!(first.head.contains("\r\nCredential: none\r\n"), "{}", first.head);
            assert_eq!(last.header("transferheaderauthorization"), trusted.then_some("Bearer TARGET-TOKEN"));
        }
    }
}

/// A server whose kernel took a connection of which it knows nothing.
#[tokio::test]
async fn a_connection_that_is_lost_at_the_server_costs_a_wait_and_no_more() {
    let authority = CertificateAuthority::new("storages");
    let (source, target) =
        (Server::start_with(Some(acceptor(&authority)), none).await, Server::start(none).await);
    source.put("/source", &content(1_000));
    let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, behind) = (gate.local_addr().unwrap(), source.port);
    let lost = tokio::spawn(async move {
        let lost = gate.accept().await.unwrap();
        loop {
            let (mut here, _) = gate.accept().await.unwrap();
            let mut there = TcpStream::connect(("127.0.0.1", behind)).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut here, &mut there).await });
            let _open = &lost;
        }
    });
    let times = Times { connect: Duration::from_secs(8), ..Times::default() };
    let remote =
        Remote::new(RemoteConfig { trust: Trust::Pem(authority.ca_pem.clone()), times, ..config() }).unwrap();
    let mut order = order(&source, &target, &[Mode::Stream]);
    order.source.url = format!("https://{at}/source");
    remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap();
    assert_eq!(target.get("/target").unwrap(), content(1_000));
    lost.abort();
}

#[tokio::test]
async fn addresses_of_our_own_network_are_refused() {
    let server = Server::start(none).await;
    let remote = Remote::new(RemoteConfig { allow: Vec::new(), ..config() }).unwrap();
    for host in ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "127.1"] {
        let end = End::new(format!("http://{host}:{}/x", server.port), Credential::None);
        let fault = remote.stat(&end, None).await.unwrap_err();
        assert!(matches!(fault.code, FaultCode::NotAllowed | FaultCode::Unreachable), "{host}: {fault}");
    }
    assert!(server.asked("HEAD").is_empty());
}

#[tokio::test]
async fn listings_that_are_bombs_are_refused() {
    let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\">]><D:multistatus xmlns:D='DAV:'>&a;</D:multistatus>";
    for body in [bomb.to_owned(), "<a>".repeat(1_000), "no xml".into(), String::new()] {
        let server =
            Server::start(move |_: &ReceivedRequest| Some(reply("207 Multi-Status", "", &body))).await;
        let ended = remote().list(&End::new(server.url("/x/"), Credential::None)).await;
        match ended {
            Err(fault) => assert_eq!(fault.code, FaultCode::ProtocolError, "{fault}"),
            Ok(entries) => assert!(entries.is_empty()),
        }
    }
    // Members elsewhere are none of this collection.
    let one = |path: &str| format!("<D:response><D:href>{path}</D:href></D:response>");
    let body = ["/x/", "/x/good", "/etc/passwd", "/x/../y", "/x/a/b", "/x/..", "http://elsewhere/x/other"]
        .map(one)
        .concat();
    let body = format!("<D:multistatus xmlns:D='DAV:'>{body}</D:multistatus>");
    let server = Server::start(move |_: &ReceivedRequest| Some(reply("207 Multi-Status", "", &body))).await;
    let listed = remote().list(&End::new(server.url("/x/"), Credential::None)).await.unwrap();
    let names: Vec<_> = listed.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["good", "other"]);
}

#[tokio::test]
async fn orders_that_make_no_sense_are_refused() {
    let server = Server::start(none).await;
    let good = order(&server, &server, Mode::ALL);
    let refused = async |change: fn(&mut CopyOrder)| {
        let mut order = good.clone();
        change(&mut order);
        let fault = copy(&order).await.unwrap_err();
        assert_eq!(
            (fault.code, fault.blame, fault.retry),
            (FaultCode::BadRequest, Blame::Request, Retry::Never),
            "{fault}"
        );
        fault.detail
    };
    assert!(refused(|order| order.target.url = order.source.url.clone()).await.contains("the same file"));
    assert!(refused(|order| order.source.url = "root://a//b".into()).await.starts_with("SOURCE [22] "));
    assert!(
        refused(|order| order.target.url = "srm://a//b".into())
            .await
            .contains("https, davs, http, dav, s3s and s3 are accepted")
    );
    assert!(refused(|order| order.tag = "../x".into()).await.contains("tag"));
    assert!(refused(|order| order.target.url.push('/')).await.contains("collection"));
    server.put("/source", b"x");
    assert!(refused(|order| order.modes.clear()).await.contains("no way"));
}

#[tokio::test]
async fn storages_that_copy_are_told_for_whom() {
    for scitag in [Some(204), None] {
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = seen.clone();
        let target = Server::start(move |asked| {
            note.lock().unwrap().push((asked.method.clone(), asked.header("SciTag").map(str::to_owned)));
            None
        })
        .await;
        let source = Server::start(none).await;
        source.put("/source", &content(1_000));
        let order = CopyOrder { scitag, ..order(&source, &target, &[Mode::Pull]) };
        // Whether that server can fetch is not what is asked here.
        let _ = copy(&order).await;
        let copies: Vec<_> = std::mem::take(&mut *seen.lock().unwrap())
            .into_iter()
            .filter(|(method, _)| method == "COPY")
            .map(|(_, header)| header)
            .collect();
        assert!(!copies.is_empty());
        assert!(copies.iter().all(|header| *header == scitag.map(|tag| tag.to_string())), "{copies:?}");
    }
}

/// A server that speaks TLS asks for a macaroon where a certificate is the credential, once for each copy
/// where they are given and once a minute where they are not.
#[tokio::test]
async fn certificates_are_handed_on_as_macaroons() {
    let authority = CertificateAuthority::new("storages");
    let acceptor = || acceptor(&authority);
    let (chain_pem, key_pem) = authority.issue("us", &[]);
    let us =
        Credential::Certificate { chain_pem: Zeroizing::new(chain_pem), key_pem: Zeroizing::new(key_pem) };
    for (given, mode) in [(true, Mode::Pull), (true, Mode::Push), (false, Mode::Pull)] {
        let rule = move |asked: &ReceivedRequest| match asked.method.as_str() {
            "POST" if given => Some(reply("200 OK", "", r#"{"macaroon":"MDAx","expires_in":60}"#)),
            "POST" => Some(reply("405 Method Not Allowed", "", "")),
            "COPY" => Some(markers("failure: the other side does not answer\n")),
            _ => None,
        };
        let source = Server::start_with(Some(acceptor()), rule).await;
        let target = Server::start_with(Some(acceptor()), rule).await;
        source.put("/source", &content(1_000));
        let mut order = order(&source, &target, &[mode]);
        (order.source.credential, order.target.credential) = (us.clone(), us.clone());
        let remote =
            Remote::new(RemoteConfig { trust: Trust::Pem(authority.ca_pem.clone()), ..config() }).unwrap();
        for tag in ["a", "b"] {
            order.tag = tag.to_owned();
            remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
        }
        let (active, passive) = if mode == Mode::Pull { (&target, &source) } else { (&source, &target) };
        assert!(active.asked("POST").is_empty(), "who copies is told, not asked");
        let (asked, copies) = (passive.asked("POST"), active.asked("COPY"));
        assert_eq!((asked.len(), copies.len()), (if given { 2 } else { 1 }, 2));
        let shown = copies[0].header("transferheaderauthorization");
        assert_eq!(shown, given.then_some("Bearer MDAx"));
        assert_eq!(asked[0].header("content-type"), Some("application/macaroon-request"));
        let wish = String::from_utf8(asked[0].body.clone()).unwrap();
        assert!(wish.contains(if mode == Mode::Pull { "DOWNLOAD" } else { "UPLOAD" }), "{wish}");
    }
}
