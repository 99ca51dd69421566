//! What an order can ask for beyond a plain copy: nothing checked, nothing cleared away, one family of
//! addresses, and that what is on tape stays.

use longhaul_storage_remote::Family;

use super::*;

#[tokio::test]
async fn a_strict_copy_asks_for_nothing_but_the_copy() {
    let (source, target) =
        (Server::start(none).await, Server::start(at("COPY", || markers("success: Created\n"))).await);
    source.put("/source", &content(1_000));
    for (mode, overwrite) in
        [(Mode::Pull, Overwrite::Always), (Mode::Stream, Overwrite::Always), (Mode::Stream, Overwrite::Never)]
    {
        let mut order = order(&source, &target, &[mode]);
        (order.unchecked, order.overwrite, order.size) = (true, overwrite, Some(1_000));
        (order.checksum, order.checksum_mode) =
            (Some("ADLER32:00000001".parse().unwrap()), ChecksumMode::Both);
        let found = copy(&order).await;
        if overwrite == Overwrite::Never {
            // The one thing that is looked at: nothing is replaced that may not be.
            assert!(found.unwrap_err().detail.contains("overwrite is not enabled"));
            assert_eq!((target.asked("HEAD").len(), target.asked("PUT").len()), (1, 1));
            break;
        }
        let done = found.unwrap();
        assert_eq!((done.mode, done.bytes, done.source_checksum), (mode, 1_000, None));
        assert!(source.asked("HEAD").is_empty() && target.asked("HEAD").is_empty());
        assert!(target.asked("MOVE").is_empty() && target.asked("MKCOL").is_empty());
        if mode == Mode::Pull {
            assert_eq!(target.asked("COPY")[0].header("overwrite"), Some("T"));
        }
    }
    assert_eq!(target.get("/target").unwrap(), content(1_000));
    // A size that nobody named has to be asked for.
    let mut order = order(&source, &target, &[Mode::Stream]);
    (order.unchecked, order.overwrite) = (true, Overwrite::Always);
    copy(&order).await.unwrap();
    assert_eq!(source.asked("HEAD").len(), 1);
}

/// A failed copy of which nobody knows what was there before it takes nothing away.
#[tokio::test]
async fn what_was_not_looked_at_is_not_cleared_away() {
    let (source, target) =
        (Server::start(none).await, Server::start(at("COPY", || markers("failure: no space\n"))).await);
    source.put("/source", &content(1_000));
    target.put("/target", b"of somebody");
    let mut order = order(&source, &target, &[Mode::Pull]);
    (order.unchecked, order.overwrite, order.size) = (true, Overwrite::Always, Some(1_000));
    let fault = copy(&order).await.unwrap_err();
    assert!(fault.detail.contains("no space") && fault.detail.contains("may be left"), "{fault}");
    assert_eq!(target.get("/target").unwrap(), b"of somebody");
    assert!(target.asked("DELETE").is_empty());
}

#[tokio::test]
async fn what_came_of_a_failed_copy_stays_where_that_is_wanted() {
    for keeps in [false, true] {
        let (source, target) = (Server::start(none).await, Server::start(none).await);
        source.put("/source", &content(1_000));
        let mut order = order(&source, &target, &[Mode::Stream]);
        (order.keeps_partial, order.checksum_mode) = (keeps, ChecksumMode::Target);
        order.checksum = Some(adler(b"of something else"));
        let fault = copy(&order).await.unwrap_err();
        assert!(fault.detail.contains("checksum do not match"), "{fault}");
        assert_eq!(target.names().len(), usize::from(keeps), "{fault}");
        assert_eq!(fault.detail.contains("what came of it stays at http://"), keeps, "{fault}");
        assert_eq!(target.get("/target"), None, "whatever stays, it has not the file's name");
    }
}

#[tokio::test]
async fn a_temporary_file_is_deleted_although_connections_break() {
    for (broken, is_left) in [(1, false), (2, false), (3, true)] {
        let deletions = AtomicUsize::new(0);
        let rule = move |asked: &ReceivedRequest| {
            let breaks = asked.method == "DELETE" && deletions.fetch_add(1, Ordering::Relaxed) < broken;
            breaks.then(|| Reply::SayAndClose(Vec::new()))
        };
        let (source, target) = (Server::start(none).await, Server::start(rule).await);
        source.put("/source", &content(1_000));
        let mut order = order(&source, &target, &[Mode::Stream]);
        order.checksum_mode = ChecksumMode::Target;
        order.checksum = Some(adler(b"of something else"));
        let fault = copy(&order).await.unwrap_err();
        assert!(fault.detail.contains("checksum do not match"), "{fault}");
        assert_eq!(fault.detail.contains("may be left"), is_left, "{fault}");
        assert_eq!(target.names().len(), usize::from(is_left), "{fault}");
        assert_eq!(target.asked("DELETE").len(), 3.min(broken + 1), "{fault}");
    }
}

#[tokio::test]
async fn a_copy_goes_over_the_addresses_that_it_is_told_to() {
    let (source, target) = (Server::start(none).await, Server::start(none).await);
    source.put("/source", &content(1_000));
    let order = order(&source, &target, &[Mode::Stream]);
    let remote = remote();
    let over = |family| remote.over(family);
    let fault = over(Family::V6).copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
    assert!(fault.detail.contains("has no IPv6 address"), "{fault}");
    assert_eq!(fault.code, FaultCode::Unreachable);
    over(Family::V4).copy(&order, &|_| {}, &Cancel::never()).await.unwrap();
    assert_eq!(target.get("/target").unwrap(), content(1_000));
}

/// Whatever a tape system says or does not say, what may be on tape stays.
#[tokio::test]
async fn only_what_is_surely_on_disk_alone_is_replaced() {
    let told = "Destination file exists and";
    for (said, expected) in [
        (Some(("200 OK", r#"[{"path":"/target","locality":"DISK"}]"#)), None),
        (Some(("200 OK", r#"[{"path":"/target","locality":"TAPE"}]"#)), Some("is on tape (overwrite-when")),
        (Some(("200 OK", r#"[{"path":"/target","locality":"DISK_AND_TAPE"}]"#)), Some("is on tape")),
        (Some(("200 OK", r#"[{"path":"/target","locality":"LOST"}]"#)), Some("says that it is LOST")),
        (Some(("200 OK", r#"[{"path":"/other","locality":"DISK"}]"#)), Some("does not say where it lies")),
        (
            Some(("200 OK", r#"[{"path":"/target","error":"busy"}]"#)),
            Some("does not say where it lies: busy"),
        ),
        (Some(("503 Service Unavailable", "")), Some("503 Service Unavailable")),
        (None, Some("offers no Tape REST API")),
    ] {
        let here = Arc::new(std::sync::OnceLock::<String>::new());
        let itself = here.clone();
        let target = Server::start(move |asked: &ReceivedRequest| match asked.path.as_str() {
            "/.well-known/wlcg-tape-rest-api" => Some(match said {
                Some(_) => reply("200 OK", "", itself.get().unwrap()),
                None => reply("404 Not Found", "", ""),
            }),
            "/tape/archiveinfo" => said.map(|(status, body)| reply(status, "", body)),
            _ => None,
        })
        .await;
        let document = format!(r#"{{"endpoints":[{{"uri":"{}","version":"v1"}}]}}"#, target.url("/tape"));
        here.set(document).unwrap();
        let source = Server::start(none).await;
        source.put("/source", &content(1_000));
        target.put("/target", b"before");
        let mut order = order(&source, &target, &[Mode::Stream]);
        order.overwrite = Overwrite::OnlyOnDisk;
        let found = copy(&order).await;
        let Some(expected) = expected else {
            assert_eq!(found.unwrap().bytes, 1_000);
            assert_eq!(target.get("/target").unwrap(), content(1_000));
            continue;
        };
        let fault = found.unwrap_err();
        assert!(fault.detail.contains(expected), "{said:?}: {fault}");
        assert_eq!(target.get("/target").unwrap(), b"before", "{said:?}");
        // What a tape system may say the next time is asked again.
        let passing = ["503", "does not say"].iter().any(|words| expected.contains(words));
        assert_eq!(fault.retry != Retry::Never, passing, "{said:?}: {fault}");
        assert_eq!(fault.detail.contains(told), !passing, "{fault}");
    }
}
