//! A real process whose core thread ends. The test starts itself again, with a variable that says how the
//! thread is to end.

// clippy.toml allows these in tests, which does not reach the helpers of an integration test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::process::Command;

use longhaul_threads::{CORE_ENDED_EXIT_CODE, spawn_core, spawn_core_loop, spawn_worker};

const VARIABLE: &str = "LONGHAUL_TEST_ENDING";

/// Runs in the process that is to end.
fn end(how: &str) {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let thread = match how {
        "panics" => spawn_core("commit-loop", || true, || panic!("attempt to add with overflow")),
        "returns" => spawn_core("query-loop", || false, || ()),
        "worker-panics" => spawn_worker("recorder", || panic!("no such run")),
        // The other loop ends as soon as the sender is dropped.
        "panics-with-others" => {
            let (sender, receiver) = std::sync::mpsc::channel::<()>();
            let waits = move || assert!(receiver.recv().is_err());
            let other = spawn_core("query-loop", || false, waits).unwrap();
            let work = |_: &mut _| panic!("index out of bounds");
            let thread = spawn_core_loop("brain", || false, sender, work, drop);
            other.join().unwrap();
            thread
        }
        _ => spawn_core("brain", || true, || ()),
    };
    thread.unwrap().join().unwrap();
}

fn ended(how: &str) -> (Option<i32>, String) {
    let me = std::env::current_exe().unwrap();
    let arguments = ["--exact", "a_core_thread_that_ends_ends_its_process", "--nocapture"];
    let output = Command::new(me).args(arguments).env(VARIABLE, how).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), log.lines().last().unwrap_or_default().to_owned())
}

#[test]
fn a_core_thread_that_ends_ends_its_process() {
    if let Ok(how) = std::env::var(VARIABLE) {
        return end(&how);
    }
    for (how, part, why) in [
        ("panics", "commit-loop", "it panicked: attempt to add with overflow"),
        ("returns", "query-loop", "it returned before it was asked to"),
        ("panics-with-others", "brain", "it panicked: index out of bounds"),
        ("worker-panics", "recorder", "it panicked: no such run"),
    ] {
        let (code, last) = ended(how);
        assert_eq!(code, Some(CORE_ENDED_EXIT_CODE), "{last}");
        assert!(last.contains(part) && last.contains(why), "{last}");
    }
    assert_eq!(ended("as asked").0, Some(0));
}
