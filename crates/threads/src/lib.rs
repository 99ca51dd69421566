//! Core threads: those without which a process is of no use (crash-only software, G. Candea and A. Fox,
//! HotOS 2003).
//!
//! A core thread that panics, or returns before it may, ends the process: the reason is the last line of the
//! log, and the exit code says to a supervisor that the process is to be started again. All state that
//! matters is durable, so a start is the one way of recovery, and it is tried at every start. A process that
//! goes on without one of its loops would answer, and lose what it accepts.
//!
//! [`spawn_core`] is the only way to start a thread in the rooms of the service, the agent and the engine;
//! `cargo xtask tidy` refuses others, apart from those that it lists. Not here: tasks of a runtime, whose
//! owner calls [`end_process`].

use std::any::Any;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Exit code of a process whose core thread ended: an internal software error (`EX_SOFTWARE` of BSD's
/// `sysexits.h`). systemd restarts after it with `Restart=on-failure` and `Restart=always` alike.
pub const CORE_ENDED_EXIT_CODE: i32 = 70;

/// Starts a core thread. It may return when `may_return` is true; a panic ends the process at any time.
pub fn spawn_core<T: Send + 'static>(
    name: &str,
    may_return: impl Fn() -> bool + Send + 'static,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || match run_core(may_return, body) {
        Ok(result) => result,
        Err(why) => end_process(&thread, &why),
    })
}

/// Starts a core thread that works on a state of its own and hands over what `end` makes of it. A panic
/// leaves the state as it is: dropping it would end other loops, which wait for it, before the reason is
/// told.
pub fn spawn_core_loop<S: Send + 'static, T: Send + 'static>(
    name: &str,
    may_return: impl Fn() -> bool + Send + 'static,
    mut state: S,
    work: impl FnOnce(&mut S) + Send + 'static,
    end: impl FnOnce(S) -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let thread = name.to_owned();
    Builder::new().name(name.to_owned()).spawn(move || {
        if let Err(why) = run_core(may_return, || work(&mut state)) {
            // The state is still there.
            end_process(&thread, &why);
        }
        match run_core(|| true, || end(state)) {
            Ok(result) => result,
            Err(why) => end_process(&thread, &why),
        }
    })
}

/// Starts a thread whose work is over at some time: it may return whenever it likes, and a panic ends the
/// process.
pub fn spawn_worker<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    spawn_core(name, || true, body)
}

/// Ends the process since a part of its core has ended. The first that comes tells its reason; others wait
/// for the end. The last line on standard error is that reason, whatever is logged in the same moment.
pub fn end_process(part: &str, why: &str) -> ! {
    static ENDING: AtomicBool = AtomicBool::new(false);
    while ENDING.swap(true, Ordering::AcqRel) {
        std::thread::park();
    }
    tracing::error!(
        part,
        why,
        "a part of the core ended; this process ends, to be started again: this is a defect of Longhaul"
    );
    // Held until the end. If nobody reads the line, the process ends all the same.
    let mut last = std::io::stderr().lock();
    let _ = writeln!(last, "longhaul ends: {part}: {why}");
    std::process::exit(CORE_ENDED_EXIT_CODE)
}

/// The text of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

fn run_core<T>(may_return: impl Fn() -> bool, body: impl FnOnce() -> T) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) if may_return() => Ok(result),
        Ok(_) => Err("it returned before it was asked to".to_owned()),
        Err(panic) => Err(format!("it panicked: {}", panic_text(panic.as_ref()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_return_that_was_asked_for_is_no_failure() {
        assert_eq!(run_core(|| true, || 7), Ok(7));
        assert_eq!(run_core(|| false, || 7), Err("it returned before it was asked to".to_owned()));
        let panicked = run_core(|| true, || -> u8 { panic!("at {}", 7) });
        assert_eq!(panicked, Err("it panicked: at 7".to_owned()));
        let panicked = run_core(|| true, || -> u8 { std::panic::panic_any(7) });
        assert_eq!(panicked, Err("it panicked: no text".to_owned()));
    }

    #[test]
    fn a_thread_that_was_asked_to_end_hands_over_its_result() {
        assert_eq!(spawn_core("loop", || true, || 7).unwrap().join().unwrap(), 7);
        let counted = spawn_core_loop("loop", || true, 6, |count| *count += 1, |count| count * 2);
        assert_eq!(counted.unwrap().join().unwrap(), 14);
        assert_eq!(spawn_worker("work", || "done").unwrap().join().unwrap(), "done");
    }
}
