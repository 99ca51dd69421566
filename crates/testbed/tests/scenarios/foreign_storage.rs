//! Copies among storages that have never heard of us: XRootD as Debian has it, with third-party copies, and
//! nginx as a plain WebDAV server. Every way of copying, with certificates and tokens, and what is left after
//! each kind of failure.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use longhaul_model::{Algorithm, Blame, Fault, FaultCode, Retry};
use longhaul_storage_remote::{
    Cancel, ChecksumMode, CopyDone, CopyOrder, Credential, End, Mode, Overwrite, Remote, RemoteConfig, Times,
    Trust, Verified, cancellation,
};
use longhaul_testbed::foreign::{ForeignAuthority, Nginx, NginxRules, Xrootd, names};
use longhaul_testbed::{Random, needs, tree};
use longhaul_testkit::wait_until;
use zeroize::Zeroizing;

/// Attempts of one copy, or of whatever else is asked, while XRootD breaks connections off.
pub const TRIES_MAX: u32 = 4;

fn may_run() -> bool {
    let programs = [("xrootd", "-v"), ("nginx", "-v"), ("openssl", "version")];
    needs::programs("copies among storages of others", &programs)
}

fn remote(authorities: &[&ForeignAuthority]) -> Arc<Remote> {
    let pem = authorities.iter().map(|authority| authority.ca_pem()).collect::<Vec<_>>().join("\n");
    let allow = vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()];
    let soon = Duration::from_secs(20);
    let times = Times { connect: soon, answer: soon, checksum: soon, stall: soon, ..Times::default() };
    Arc::new(
        Remote::new(RemoteConfig { trust: Trust::Pem(pem), allow, times, ..RemoteConfig::default() })
            .unwrap(),
    )
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn order(tag: &str, source: String, target: String, modes: &[Mode]) -> CopyOrder {
    let mut order =
        CopyOrder::new(tag, End::new(source, Credential::None), End::new(target, Credential::None));
    order.modes = modes.to_vec();
    order.checksum = Some("ADLER32".parse().unwrap());
    order.checksum_mode = ChecksumMode::Both;
    order
}

async fn copy(remote: &Remote, order: &CopyOrder) -> Result<CopyDone, Fault> {
    remote.copy(order, &|_| {}, &Cancel::never()).await
}

/// XRootD 5.5 can break a connection off, or crash, where one of its connections ends while another begins
/// (its issues 2226 and 2913): on a busy machine in one copy of a hundred. In the midst of a handshake too;
/// and sometimes it says so itself.
fn is_broken_off(fault: &Fault) -> bool {
    use FaultCode::{ConnectionLost, NotAuthenticated, Stalled, Unreachable};
    matches!(fault.code, ConnectionLost | Unreachable | Stalled | NotAuthenticated)
        || fault.detail.contains(": 500 ")
}

/// What is answered in the end: what XRootD breaks off is asked again. The number of the try is for a name
/// and a tag of its own, since what was broken off may have been done.
pub async fn asked_in_the_end<T, const N: usize>(
    mut servers: [&mut Xrootd; N],
    ask: impl AsyncFn(u32) -> Result<T, Fault>,
) -> T {
    for tries in 1..=TRIES_MAX {
        let fault = match ask(tries).await {
            Err(fault) if is_broken_off(&fault) => fault,
            ended => return ended.unwrap(),
        };
        println!("try {tries}: {fault}\n{}", servers.each_ref().map(|server| server.log()).join("\n"));
        for server in &mut servers {
            server.start_again();
        }
    }
    panic!("{TRIES_MAX} times");
}

/// One copy to its end. What XRootD breaks off is tried again under a tag of its own, as the scheduler does.
///
/// Whatever failed has replaced nothing at its target (the second of the servers), and beside the names that
/// were there lies at most the file that the fault names.
async fn copy_in_the_end(
    remote: &Remote,
    order: &CopyOrder,
    progress: &(dyn Fn(u64) + Send + Sync),
    mut servers: [&mut Xrootd; 2],
    is_retried: fn(&Fault) -> bool,
) -> Result<CopyDone, Fault> {
    let path = order.target.url.rsplit_once("/data/").unwrap().1.replace("%20", " ");
    let file = servers[1].data().join(path);
    let folder = file.parent().unwrap();
    let (old, names_before) = (fs::read(&file).ok(), names(folder));
    for tries in 1..=TRIES_MAX {
        let mut order = order.clone();
        order.tag = format!("{}-{tries}", order.tag);
        let fault = match remote.copy(&order, progress, &Cancel::never()).await {
            Err(fault) if is_retried(&fault) => fault,
            ended => return ended,
        };
        println!("try {tries}: {fault}\n{}\n{}", servers[0].log(), servers[1].log());
        assert_ne!(fault.retry, Retry::Never);
        // Killed, a server writes no more while its files are examined.
        for server in &mut servers {
            server.start_again();
        }
        assert!(fs::read(&file).ok() == old, "{fault}");
        for left in names(folder).iter().filter(|name| !names_before.contains(name)) {
            let told = fault.detail.replace("%20", " ");
            assert!(told.contains(&format!("/{left} may be left")), "{left}: {fault}");
            fs::remove_file(folder.join(left)).unwrap();
        }
    }
    panic!("{TRIES_MAX} times");
}

/// A copy that works, whatever XRootD does on the way.
async fn done_in_the_end(
    remote: &Remote,
    order: &CopyOrder,
    progress: &(dyn Fn(u64) + Send + Sync),
    servers: [&mut Xrootd; 2],
) -> CopyDone {
    copy_in_the_end(remote, order, progress, servers, |_| true).await.unwrap()
}

/// The fault of a copy that cannot work, which is none of XRootD's own.
async fn fault_in_the_end(remote: &Remote, order: &CopyOrder, servers: [&mut Xrootd; 2]) -> Fault {
    copy_in_the_end(remote, order, &|_| {}, servers, is_broken_off).await.unwrap_err()
}

fn content(seed: u64, size: u64) -> Vec<u8> {
    tree::content(&mut Random::new(seed), size)
}

const COMPARED: Verified =
    Verified { source_with_user: false, target_with_user: false, target_with_source: true };

#[test]
fn xrootd_copies_by_itself_and_through_us() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (mut one, mut other) = (Xrootd::start(&authority), Xrootd::start(&authority));
    let remote = remote(&[&authority]);
    let bytes = content(1, 3_000_000);
    let large = content(2, 70 << 20);
    one.put("small", &bytes);
    one.put("empty", b"");
    one.put("large", &large);
    run(async {
        for (mode, name) in [(Mode::Pull, "pulled"), (Mode::Push, "pushed"), (Mode::Stream, "streamed")] {
            for (file, bytes) in [("small", &bytes), ("empty", &Vec::new()), ("large", &large)] {
                let target = other.url(&format!("{name}/below/{file}"));
                let mut order = order("1-1", one.url(file), target, &[mode]);
                order.streams = 4;
                let seen = AtomicU64::new(0);
                let seen_most = |moved| _ = seen.fetch_max(moved, Ordering::Relaxed);
                let done = done_in_the_end(&remote, &order, &seen_most, [&mut one, &mut other]).await;
                assert_eq!((done.mode, done.bytes, done.verified), (mode, bytes.len() as u64, COMPARED));
                assert!(done.source_checksum.is_some() && done.source_checksum == done.target_checksum);
                assert!(seen.into_inner() <= bytes.len() as u64);
                let here = other.data().join(name).join("below");
                assert!(fs::read(here.join(file)).unwrap() == **bytes, "{mode} {file}");
            }
            assert_eq!(names(&other.data().join(name).join("below")), ["empty", "large", "small"], "{mode}");
        }
        // Any algorithm that both know; and names as users have them.
        one.put("with space+ü", &bytes);
        let mut order = order("1-2", one.url("with space+ü"), other.url("with%20space"), &[Mode::Pull]);
        order.checksum = Some("MD5".parse().unwrap());
        let done = done_in_the_end(&remote, &order, &|_| {}, [&mut one, &mut other]).await;
        assert_eq!((done.mode, done.verified), (Mode::Pull, COMPARED));
        assert_eq!(done.target_checksum.unwrap().algorithm, Algorithm::Md5);
        assert!(fs::read(other.data().join("with space")).unwrap() == bytes);
        // What else can be asked of a storage.
        let (at, data) = (other.url(""), other.data());
        let end = |name: &str| End::new(format!("{at}{name}"), Credential::None);
        let listed = asked_in_the_end([&mut other], async |_| remote.list(&end("pulled/below/")).await).await;
        let mut found: Vec<_> = listed.iter().map(|entry| (entry.name.as_str(), entry.stat.size)).collect();
        found.sort_unstable();
        assert_eq!(found, [("empty", 0), ("large", 70 << 20), ("small", 3_000_000)]);
        asked_in_the_end([&mut other], async |tries| {
            let (old, folder) = (format!("small{tries}"), format!("made/one{tries}"));
            fs::write(data.join(&old), &bytes).unwrap();
            remote.mkdir(&end(&folder)).await?;
            assert!(data.join(&folder).is_dir());
            let file = end(&format!("{folder}/small"));
            remote.rename(&end(&old), &file.url, false).await?;
            assert_eq!(remote.stat(&file, None).await?.unwrap().size, 3_000_000);
            assert!(remote.remove(&file).await?);
            assert!(!remote.remove(&file).await?);
            assert_eq!(remote.stat(&file, None).await?, None);
            Ok(())
        })
        .await;
    });
}

/// Both know us by our certificate, which neither can show to the other.
#[test]
fn storages_that_know_us_by_certificate_copy_by_macaroons() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let start = || Xrootd::for_certificates(&authority, "/CN=robot");
    let (mut one, mut other) = (start(), start());
    let (chain_pem, key_pem) = authority.issue("robot");
    let robot =
        Credential::Certificate { chain_pem: Zeroizing::new(chain_pem), key_pem: Zeroizing::new(key_pem) };
    let remote = remote(&[&authority]);
    let bytes = content(5, 3_000_000);
    one.put("small", &bytes);
    run(async {
        for (mode, name) in [(Mode::Pull, "pulled"), (Mode::Push, "pushed")] {
            let mut order = order("5-1", one.url("small"), other.url(&format!("{name}/small")), &[mode]);
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            assert!(fault.detail.contains("403"), "without a certificate: {fault}");
            (order.source.credential, order.target.credential) = (robot.clone(), robot.clone());
            let done = done_in_the_end(&remote, &order, &|_| {}, [&mut one, &mut other]).await;
            assert_eq!((done.mode, done.verified), (mode, COMPARED));
            assert!(fs::read(other.data().join(name).join("small")).unwrap() == bytes);
        }
    });
}

#[test]
fn what_fails_at_xrootd_leaves_what_was_there() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let (mut one, mut other) = (Xrootd::start(&authority), Xrootd::start(&authority));
    let remote = remote(&[&authority]);
    let (bytes, old) = (content(3, 200_000), content(4, 100_000));
    one.put("file", &bytes);
    other.put("there", &old);
    run(async {
        for mode in Mode::ALL {
            let mut order = order("2-1", one.url("missing"), other.url("there"), &[*mode]);
            order.overwrite = Overwrite::Always;
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            assert!(fault.detail.starts_with("SOURCE [2] "), "{fault}");
            assert_eq!((fault.code, fault.blame), (FaultCode::SourceMissing, Blame::Source));
            order.source.url = one.url("file");
            order.checksum = Some("ADLER32:12345678".parse().unwrap());
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            let text = "SOURCE [5] Source and user-defined ADLER32 checksum do not match (";
            assert!(fault.detail.starts_with(text), "{fault}");
            // Found only after the bytes have come.
            order.checksum_mode = ChecksumMode::Target;
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            let text =
                "DESTINATION [5] User-defined and destination ADLER32 checksum do not match (12345678 != ";
            assert!(fault.detail.starts_with(text), "{fault}");
            (order.overwrite, order.checksum_mode) = (Overwrite::Never, ChecksumMode::None);
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            assert_eq!(fault.detail, "DESTINATION [17] Destination file exists and overwrite is not enabled");
            (order.overwrite, order.size) = (Overwrite::Always, Some(5));
            let fault = fault_in_the_end(&remote, &order, [&mut one, &mut other]).await;
            assert!(fault.detail.contains("size mismatch (5 != 200000)"), "{fault}");
            assert!(fs::read(other.data().join("there")).unwrap() == old, "{mode}");
            assert_eq!(names(&other.data()), ["there"], "{mode}");
        }
        // And what is replaced is replaced as a whole.
        for mode in Mode::ALL {
            other.put("there", &old);
            let mut order = order("2-2", one.url("file"), other.url("there"), &[*mode]);
            order.overwrite = Overwrite::Always;
            done_in_the_end(&remote, &order, &|_| {}, [&mut one, &mut other]).await;
            assert!(fs::read(other.data().join("there")).unwrap() == bytes, "{mode}");
            assert_eq!(names(&other.data()), ["there"], "{mode}");
        }
    });
}

#[test]
fn another_way_is_found_where_one_fails() {
    if !may_run() {
        return;
    }
    let (authority, stranger) = (ForeignAuthority::new("storages"), ForeignAuthority::new("strangers"));
    let (mut one, mut other) = (Xrootd::start(&authority), Xrootd::start(&stranger));
    let (plain, second) =
        (Nginx::start(&authority, NginxRules::default()), Nginx::start(&authority, NginxRules::default()));
    let remote = remote(&[&authority, &stranger]);
    let bytes = content(5, 2_500_000);
    one.put("file", &bytes);
    plain.put("file", &bytes);
    run(async {
        // Neither believes the other; both believe us.
        let mut between = order("3-1", one.url("file"), other.url("file"), Mode::ALL);
        let done = copy_in_the_end(&remote, &between, &|_| {}, [&mut one, &mut other], is_broken_off).await;
        let done = done.unwrap();
        assert_eq!((done.mode, done.failed_before.len()), (Mode::Stream, 2), "{done:?}");
        assert!(fs::read(other.data().join("file")).unwrap() == bytes);
        // Without the last way the causes of all are told.
        between.modes = vec![Mode::Pull, Mode::Push];
        between.target.url = other.url("file2");
        // What XRootD says of a stranger counts as a connection that broke, too.
        let is_early = |fault: &Fault| is_broken_off(fault) && !fault.detail.contains("(before: pull: ");
        let ended = copy_in_the_end(&remote, &between, &|_| {}, [&mut one, &mut other], is_early).await;
        let fault = ended.unwrap_err();
        assert!(
            fault.detail.starts_with("TRANSFER [") && fault.detail.contains("(before: pull: "),
            "{fault}"
        );
        assert_eq!(names(&other.data()), ["file"]);
        // A plain server copies nothing: the one that can does, else we.
        let (at, data) = (one.url(""), one.data());
        for (source, target, root, modes, expected) in [
            // What the plain source does not tell is computed on the way, through us.
            (plain.url("file"), at.clone(), data, Mode::ALL, Mode::Stream),
            // A push that XRootD broke off would be streamed.
            (one.url("file"), plain.url(""), plain.data(), &[Mode::Pull, Mode::Push][..], Mode::Push),
            (plain.url("file"), second.url(""), second.data(), Mode::ALL, Mode::Stream),
        ] {
            let (done, there) = asked_in_the_end([&mut one], async |tries| {
                let name = format!("below{tries}/it");
                let order = order(&format!("3-2-{tries}"), source.clone(), format!("{target}{name}"), modes);
                Ok((copy(&remote, &order).await?, root.join(name)))
            })
            .await;
            assert_eq!(done.verified, COMPARED);
            assert!(fs::read(&there).unwrap() == bytes, "{}", there.display());
            println!("{} by {}: {:?}", there.display(), done.mode, done.failed_before);
            assert_eq!(done.mode, expected);
            assert_eq!(names(there.parent().unwrap()).iter().filter(|name| name.starts_with('.')).count(), 0);
        }
        // Unless we may not: then it is read for its checksum, and pulled.
        let done = asked_in_the_end([&mut one], async |tries| {
            let target = format!("{at}pulled{tries}");
            let order = order(&format!("3-3-{tries}"), plain.url("file"), target, &[Mode::Pull]);
            copy(&remote, &order).await
        });
        let done = done.await;
        assert_eq!((done.mode, done.verified), (Mode::Pull, COMPARED));
    });
}

/// A copy from or to XRootD that works in the end, each try at a name of its own: by which way, and that
/// name.
async fn done_at_new_name(remote: &Remote, order: &CopyOrder, xrootd: &mut Xrootd) -> (Mode, String) {
    let done = asked_in_the_end([xrootd], async |tries| {
        let mut order = order.clone();
        order.tag = format!("{}-{tries}", order.tag);
        order.target.url = format!("{}{tries}", order.target.url);
        let name = order.target.url.rsplit_once('/').unwrap().1.to_owned();
        Ok((copy(remote, &order).await?.mode, name))
    });
    done.await
}

#[test]
fn credentials_reach_the_other_side_and_no_one_else() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let token = "eyJhbGciOi.the-only-one";
    let locked = Nginx::start(&authority, NginxRules { token: Some(token), ..NginxRules::default() });
    let certified = Nginx::start(&authority, NginxRules { certificate: true, ..NginxRules::default() });
    let mut xrootd = Xrootd::start(&authority);
    let remote = remote(&[&authority]);
    let bytes = content(6, 1_500_000);
    locked.put("file", &bytes);
    certified.put("file", &bytes);
    xrootd.put("file", &bytes);
    let bearer = |token: &str| Credential::Bearer(Zeroizing::new(token.to_owned()));
    let (at, data) = (xrootd.url(""), xrootd.data());
    run(async {
        let mut order = order("4-1", locked.url("file"), format!("{at}pulled"), &[Mode::Pull]);
        order.checksum_mode = ChecksumMode::None;
        let refused = copy(&remote, &order).await.unwrap_err();
        assert!(refused.detail.starts_with("SOURCE [13] "), "{refused}");
        order.source.credential = bearer(token);
        let (mode, name) = done_at_new_name(&remote, &order, &mut xrootd).await;
        assert_eq!(mode, Mode::Pull);
        assert!(fs::read(data.join(name)).unwrap() == bytes);
        // The other way round.
        let mut push = order.clone();
        (push.source, push.target) =
            (End::new(format!("{at}file"), Credential::None), End::new(locked.url("pushed"), bearer(token)));
        push.modes = vec![Mode::Push];
        let (mode, name) = done_at_new_name(&remote, &push, &mut xrootd).await;
        assert_eq!(mode, Mode::Push);
        assert!(fs::read(locked.data().join(name)).unwrap() == bytes);
        // Never in clear text, and never in a text.
        push.target.url = push.target.url.replace("https://", "http://");
        let fault = copy(&remote, &push).await.unwrap_err();
        assert!(fault.detail.contains("TLS only") && !fault.detail.contains(token), "{fault}");
        assert!(!format!("{push:?}").contains(token));
        // A certificate opens what asks for one; the other side cannot show it, so the bytes go through us.
        let mut order = order.clone();
        order.source.url = certified.url("file");
        order.target.url = format!("{at}certified");
        order.source.credential = Credential::None;
        order.modes = Mode::ALL.to_vec();
        assert!(copy(&remote, &order).await.is_err());
        let (chain, key) = authority.issue("somebody");
        order.source.credential =
            Credential::Certificate { chain_pem: Zeroizing::new(chain), key_pem: Zeroizing::new(key) };
        let (mode, name) = done_at_new_name(&remote, &order, &mut xrootd).await;
        assert_eq!(mode, Mode::Stream);
        assert!(fs::read(data.join(name)).unwrap() == bytes);
    });
}

#[test]
fn a_cancelled_pull_ends_and_leaves_nothing() {
    if !may_run() {
        return;
    }
    let authority = ForeignAuthority::new("storages");
    let slow = Nginx::start(&authority, NginxRules { bytes_per_s: Some(50_000), ..NginxRules::default() });
    let mut xrootd = Xrootd::start(&authority);
    let (at, data) = (xrootd.url(""), xrootd.data());
    slow.put("file", &content(7, 20_000_000));
    for mode in [Mode::Pull, Mode::Stream] {
        let remote = remote(&[&authority]);
        let fault = run(asked_in_the_end([&mut xrootd], async |tries| {
            // What a try before has left.
            for left in names(&data) {
                fs::remove_file(data.join(left)).unwrap();
            }
            let (tag, target) = (format!("5-{tries}"), format!("{at}file{tries}"));
            let mut order = order(&tag, slow.url("file"), target, &[mode]);
            order.checksum_mode = ChecksumMode::None;
            let (canceller, cancel) = cancellation();
            let remote = remote.clone();
            let copying = tokio::spawn(async move { remote.copy(&order, &|_| {}, &cancel).await });
            // Begun: its temporary file is there.
            let is_begun = || !names(&data).is_empty() || copying.is_finished();
            wait_until(is_begun, || "a file never came".into());
            canceller.cancel();
            match copying.await.unwrap() {
                Err(fault) if fault.code == FaultCode::Cancelled => Ok(fault),
                ended => Err(ended.unwrap_err()),
            }
        }));
        assert_eq!(fault.detail.split(" (").next().unwrap(), "TRANSFER [125] Transfer canceled", "{mode}");
        wait_until(|| names(&data).is_empty(), || "the file stays".into());
    }
}
