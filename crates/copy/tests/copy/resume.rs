//! Interrupted copies resume where they stopped, and leave nothing behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_copy::{CopyRequest, Options, Progress, Server, Stop};
use longhaul_model::FaultCode;
use longhaul_testkit::{content, wait_until};

use crate::common::{Ground, Ran, at, limited, order, place, resent_max, run_order, serve_options, tree};

const BYTES: usize = 24 << 20;

/// Slow enough to be stopped in the middle, even by a thread that has to wait for its turn.
fn slow() -> Options {
    limited(3 << 20)
}

/// Runs until some bytes have arrived, then stops it.
fn broken_off(order: &CopyRequest) -> u64 {
    let (progress, stop) = (Arc::new(Progress::default()), Stop::default());
    let (watched, stopping) = (progress.clone(), stop.clone());
    let watcher = std::thread::spawn(move || {
        wait_until(|| watched.totals().bytes_running >= 4 << 20, || "nothing moves".into());
        stopping.stop();
    });
    let ran = run_order(order, &progress, &stop);
    watcher.join().unwrap();
    assert_eq!(ran.result.unwrap_err().code, FaultCode::Interrupted);
    ran.totals.bytes_running
}

/// Bytes of an earlier run count as done, but not as moved.
fn assert_resumed(ran: &Ran, there: u64) {
    let totals = &ran.totals;
    assert_eq!(totals.bytes_done, BYTES as u64);
    assert!(
        totals.bytes_resumed > 0 && totals.bytes_resumed + (4 << 20) >= there,
        "{there} were there: {totals:?}"
    );
    assert_eq!(totals.bytes_resumed + totals.bytes_moved - totals.bytes_resent, BYTES as u64, "{totals:?}");
}

/// Promise 4: the same command resumes.
#[test]
fn a_pull_goes_on_where_it_was_stopped() {
    let ground = Ground::new();
    ground.write("far/large", &content(1, BYTES));
    let server = ground.serve("far", false);
    let target = ground.make("near");
    let to = || place(&format!("{}/", target.display()));
    let there = broken_off(&order(vec![at(&server, "large")], to(), slow()));
    assert!(there >= 4 << 20);
    assert!(!target.join("large").exists(), "whole or absent");
    let before = server.bytes().0;
    let whole = order(vec![at(&server, "large")], to(), Options::default());
    let begun = Instant::now();
    let ran = run_order(&whole, &Arc::default(), &Stop::default()).good();
    assert_resumed(&ran, there);
    let sent = server.bytes().0 - before;
    let most = BYTES as u64 - there + (2 << 20) + resent_max(begun.elapsed(), Duration::from_secs(1));
    assert!(sent <= most, "{sent} sent again, {there} was there");
    assert_eq!(tree(&target), tree(&ground.path("far")));
}

/// Promise 4, for a writable server, and what a disconnected client leaves behind.
#[test]
fn a_push_goes_on_where_it_was_stopped() {
    let ground = Ground::new();
    ground.write("near/large", &content(2, BYTES));
    let server = ground.serve("far", true);
    let from = || vec![place(ground.path("near/large").to_str().unwrap())];
    let there = broken_off(&order(from(), at(&server, ""), slow()));
    assert!(!ground.path("far/large").exists(), "whole or absent");
    let before = server.bytes().1;
    let begun = Instant::now();
    let ran =
        run_order(&order(from(), at(&server, ""), Options::default()), &Arc::default(), &Stop::default())
            .good();
    assert_eq!(ran.totals.files_done, 1);
    assert_resumed(&ran, there);
    let received = server.bytes().1 - before;
    let most = BYTES as u64 - there + (4 << 20) + resent_max(begun.elapsed(), Duration::from_secs(1));
    assert!(received <= most, "{received} again, {there} was there");
    assert_eq!(std::fs::read(ground.path("far/large")).unwrap(), content(2, BYTES));
    wait_until(|| server.clients() == 0, || "the server still waits for a client that has gone".into());
    assert_eq!(server.receiving(), 0);
    server.stop();
    assert!(!ground.path("far/.longhaul").exists());
}

/// Two runs of the same copy at once would damage each other's progress.
#[test]
fn the_same_copy_does_not_run_twice() {
    let ground = Ground::new();
    ground.write("far/large", &content(3, BYTES));
    let server = ground.serve("far", false);
    let target = ground.make("near");
    let slowly = order(vec![at(&server, "large")], place(target.to_str().unwrap()), limited(1 << 20));
    let (progress, stop) = (Arc::new(Progress::default()), Stop::default());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run_order(&slowly, &progress, &stop));
        wait_until(|| progress.totals().bytes_running > 0, || "nothing moves".into());
        let second = run_order(&slowly, &Arc::default(), &Stop::default());
        assert_eq!(second.result.unwrap_err().code, FaultCode::Busy);
        stop.stop();
        assert!(first.join().unwrap().result.is_err());
    });
}

#[test]
fn once_means_until_the_first_client_has_gone() {
    let ground = Ground::new();
    ground.write("far/f", b"x");
    let mut options = serve_options(&ground.path("far"), false);
    options.once = true;
    let server = Server::start(&options).unwrap();
    let one = order(vec![at(&server, "f")], place(ground.path("g").to_str().unwrap()), Options::default());
    run_order(&one, &Arc::default(), &Stop::default()).good();
    server.wait(&Stop::default());
}
