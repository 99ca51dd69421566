//! From local directories to a server, and from one server to another, over real sockets.

use std::sync::Arc;

use longhaul_copy::{Options, Outcome, Progress, Stop};
use longhaul_model::{FaultCode, Verification};
use longhaul_testkit::content;

use crate::common::{Ground, at, order, place, recursive, run, run_order, tree};

fn some_tree(ground: &Ground) {
    for number in 0..300 {
        let name = format!("near/run7/d{}/f{number}", number % 7);
        ground.write(&name, &content(number, (number * 311 % 70_000) as usize));
    }
    ground.write("near/run7/large", &content(1, 5_500_000));
    ground.write("near/run7/none", b"");
    ground.make("near/run7/empty/inside");
}

fn local(ground: &Ground, name: &str) -> longhaul_copy::Endpoint {
    place(&format!(
        "{}{}",
        ground.path(name.trim_end_matches('/')).display(),
        if name.ends_with('/') { "/" } else { "" }
    ))
}

#[test]
fn a_tree_is_put_there_whole() {
    let ground = Ground::new();
    some_tree(&ground);
    let server = ground.serve("far", true);
    let ran = run(vec![local(&ground, "near/run7")], at(&server, "in/"), recursive()).good();
    let mut there = tree(&ground.path("far/in/run7"));
    there.retain(|name, _| !name.starts_with(".longhaul"));
    assert_eq!(there, tree(&ground.path("near/run7")));
    assert_eq!((ran.totals.files_done, ran.totals.verified_end_to_end), (302, 302));
    let again = run(vec![local(&ground, "near/run7")], at(&server, "in/"), recursive()).good();
    assert_eq!((again.totals.files_done, again.totals.files_skipped), (0, 302));
    // One file, under another name, replaces an older one.
    ground.write("near/other", b"new");
    run(vec![local(&ground, "near/other")], at(&server, "in/run7/none"), Options::default())
        .told
        .iter()
        .for_each(|told| assert!(matches!(told.outcome, Outcome::Failed(_)), "{told:?}"));
    let update = Options { update: true, verification: Verification::Readback, ..Options::default() };
    let ran = run(vec![local(&ground, "near/other")], at(&server, "in/run7/none"), update).good();
    assert_eq!(ran.totals.verified_readback, 1);
    assert_eq!(std::fs::read(ground.path("far/in/run7/none")).unwrap(), b"new");
    server.stop();
    assert!(!ground.path("far/.longhaul").exists(), "a server that has nothing half done leaves nothing");
}

/// Promise 9: nothing outside the export is reachable.
#[test]
fn a_read_only_server_takes_nothing_and_shows_nothing_outside() {
    let ground = Ground::new();
    ground.write("near/f", b"x");
    ground.write("secret", b"not for you");
    std::os::unix::fs::symlink(ground.path("secret"), ground.make("far").join("link")).unwrap();
    std::os::unix::fs::symlink(ground.directory.path(), ground.path("far/up")).unwrap();
    let server = ground.serve("far", false);
    let ran = run(vec![local(&ground, "near/f")], at(&server, "f"), Options::default());
    assert_eq!(ran.result.unwrap_err().code, FaultCode::NotAllowed);
    assert!(!ground.path("far/f").exists() && !ground.path("far/.longhaul").exists());
    let to = || local(&ground, "near/out");
    for path in ["link", "up/secret", "up"] {
        let ran = run(vec![at(&server, path)], to(), recursive());
        assert!(ran.result.is_err() || ran.totals.files_done == 0, "{path}: {:?}", ran.totals);
    }
    let ran = run(vec![at(&server, "")], to(), recursive());
    assert_eq!(ran.totals.files_done, 0, "{:?}", ran.told);
    assert_eq!(ran.totals.left_out, 2);
    assert!(longhaul_copy::Endpoint::parse(&format!("{}../secret", *server.url().reveal(""))).is_err());
}

/// Promise 9, at a writable server.
#[test]
fn nothing_is_written_outside() {
    let ground = Ground::new();
    ground.write("near/f", b"x");
    let outside = ground.make("outside");
    std::os::unix::fs::symlink(&outside, ground.make("far").join("out")).unwrap();
    let server = ground.serve("far", true);
    let source = || vec![local(&ground, "near/f")];
    for path in ["out/f", "out/new/", ".longhaul/f", ".LONGHAUL/x"] {
        let ran = run(source(), at(&server, path), Options::default());
        assert!(ran.result.is_err() || ran.totals.files_failed > 0, "{path}");
    }
    let other = ground.serve("near", false);
    for path in ["out/f", "out/new/", ".longhaul/f"] {
        let ran = run(vec![at(&other, "f")], at(&server, path), Options::default());
        assert!(ran.result.is_err() || ran.totals.files_failed > 0, "{path}");
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn one_server_fetches_from_another() {
    let ground = Ground::new();
    some_tree(&ground);
    let (source, target) = (ground.serve("near", false), ground.serve("far", true));
    let ran = run(vec![at(&source, "run7/")], at(&target, "here"), recursive()).good();
    assert_eq!(tree(&ground.path("far/here")), tree(&ground.path("near/run7")));
    assert_eq!((ran.totals.files_done, ran.totals.verified_end_to_end), (302, 302));
    // Each file is reported once, as if it had passed through this client.
    let told: std::collections::BTreeSet<&str> = ran.told.iter().map(|told| told.target.as_str()).collect();
    assert_eq!((told.len(), ran.told.len()), (302, 302));
    assert!(ran.told.iter().all(|told| matches!(told.outcome, Outcome::Done { .. })), "{:?}", ran.told);
    assert!(told.contains("d3/f3") || told.contains("here/d3/f3"), "{:?}", ran.told[0]);
    let (sent, received) = source.bytes();
    assert!(sent > 5_500_000 && received == 0, "{sent} {received}");
    // A file with an obstacle at the target fails alone, and its reason is reported.
    ground.write("far/again/d3/f3", b"in the way");
    let ran = run(vec![at(&source, "run7/")], at(&target, "again"), recursive());
    assert_eq!((ran.totals.files_done, ran.totals.files_failed, ran.failed.len()), (301, 1, 1));
    let failed: Vec<_> = ran.told.iter().filter(|told| matches!(told.outcome, Outcome::Failed(_))).collect();
    assert!(failed.len() == 1 && failed[0].target.ends_with("d3/f3"), "{failed:?}");
    // The client disconnects.
    let mut detached = order(vec![at(&source, "run7/")], at(&target, "there/"), recursive());
    detached.detach = true;
    let ran = run_order(&detached, &Arc::new(Progress::default()), &Stop::default());
    assert!(ran.result.is_ok(), "{:?}", ran.result);
    // A repeated order waits for the end of the first.
    detached.detach = false;
    run_order(&detached, &Arc::new(Progress::default()), &Stop::default()).good();
    assert_eq!(tree(&ground.path("far/there")), tree(&ground.path("near/run7")));
}

#[test]
fn a_server_talks_to_those_only_that_it_allows() {
    let ground = Ground::new();
    ground.write("far/f", b"x");
    let mut options = crate::common::serve_options(&ground.path("far"), false);
    options.allow = vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
    let server = longhaul_copy::Server::start(&options).unwrap();
    let ran = run(vec![at(&server, "f")], local(&ground, "g"), Options::default());
    let fault = ran.result.unwrap_err();
    assert_eq!(fault.code, FaultCode::NotAllowed, "{fault}");
    assert!(fault.detail.contains("certain addresses") && !ground.path("g").exists(), "{fault}");
    // The control stream, and perhaps the data streams that are dialled with it.
    assert!((1..=3).contains(&server.refused()) && server.clients() == 0, "{}", server.refused());
    options.allow.push("127.0.0.0/8".parse().unwrap());
    let server = longhaul_copy::Server::start(&options).unwrap();
    run(vec![at(&server, "f")], local(&ground, "g"), Options::default()).good();
    assert_eq!(server.refused(), 0);
}

#[test]
fn wrong_urls_are_told_in_words() {
    let ground = Ground::new();
    let server = ground.serve("far", false);
    let url = server.url().reveal("").to_string();
    let stranger = longhaul_copy::url::ServerUrl {
        secret: longhaul_security::SharedSecret::new(),
        addresses: server.url().addresses.clone(),
    };
    let to = || local(&ground, "x");
    let fault = run(vec![place(&stranger.reveal(""))], to(), recursive()).result.unwrap_err();
    assert_eq!(fault.code, FaultCode::ForeignDeployment, "{fault}");
    server.stop();
    let fault = run(vec![place(&url)], to(), recursive()).result.unwrap_err();
    assert_eq!(fault.code, FaultCode::Unreachable, "{fault}");
    assert!(!fault.detail.contains(&url[5..48]), "{fault}");
}
