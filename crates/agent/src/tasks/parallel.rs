//! Bounded pipeline: one producer, some workers, one consumer; ends early when the consumer has enough.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use longhaul_model::Fault;
use parking_lot::Mutex;

use crate::threads::guarded;

/// Jobs and results queued between the stages.
const QUEUED_MAX: usize = 256;
/// Threads of one task: more do not read a disk faster.
const THREADS_MAX: usize = 16;

/// Runs `work` on everything that `produce` yields, on `threads` threads, each with a buffer of
/// `buffer_bytes`. Passes the results to `consume` on the caller's thread as they come, and `None` after each
/// `idle` without one. When `consume` breaks, every stage ends at its next step. Returns the result of
/// `produce`; its panic is a fault. `work` must not panic (see [`guarded`]).
pub(crate) fn run<J: Send, D: Send, R: Send>(
    threads: usize,
    buffer_bytes: usize,
    idle: Duration,
    produce: impl FnOnce(&mut dyn FnMut(J) -> ControlFlow<()>) -> R + Send,
    work: impl Fn(J, &mut [u8]) -> D + Sync,
    mut consume: impl FnMut(Option<D>) -> ControlFlow<()>,
) -> Result<R, Fault> {
    let (job_sender, jobs) = sync_channel::<J>(QUEUED_MAX);
    let (done_sender, done) = sync_channel::<D>(QUEUED_MAX);
    let jobs = Arc::new(Mutex::new(jobs));
    thread::scope(|scope| {
        let producer = scope.spawn(move || {
            guarded("listing", || {
                produce(&mut |job| match job_sender.send(job) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                })
            })
        });
        for _ in 0..threads.clamp(1, THREADS_MAX) {
            let (jobs, done_sender, work) = (jobs.clone(), done_sender.clone(), &work);
            scope.spawn(move || {
                let mut buffer = vec![0; buffer_bytes];
                while let Some(job) = next(&jobs) {
                    if done_sender.send(work(job, &mut buffer)).is_err() {
                        break;
                    }
                }
            });
        }
        // Only the workers hold these now: when they end, producer and consumer see closed channels.
        drop((jobs, done_sender));
        loop {
            let more = match done.recv_timeout(idle) {
                Ok(result) => consume(Some(result)),
                Err(RecvTimeoutError::Timeout) => consume(None),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if more.is_break() {
                break;
            }
        }
        drop(done);
        match producer.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn next<J>(jobs: &Mutex<Receiver<J>>) -> Option<J> {
    jobs.lock().recv().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    #[test]
    fn everything_is_done_once() {
        let mut sum = 0;
        let produce =
            |give: &mut dyn FnMut(u64) -> ControlFlow<()>| (1..=10_000).all(|n| give(n).is_continue());
        let all = run(
            4,
            1,
            IDLE,
            produce,
            |n, _| n * 2,
            |done| {
                sum += done.unwrap_or_default();
                ControlFlow::Continue(())
            },
        );
        assert!(all.unwrap());
        assert_eq!(sum, 10_000 * 10_001);
    }

    #[test]
    fn stops_early_though_every_channel_is_full() {
        let produce =
            |give: &mut dyn FnMut(u64) -> ControlFlow<()>| (0..u64::MAX).find(|&n| give(n).is_break());
        let stopped_at = run(3, 1, IDLE, produce, |n, _| n, |_| ControlFlow::Break(())).unwrap();
        assert!(stopped_at.is_some());
    }

    #[test]
    fn a_producer_that_panics_is_a_fault() {
        let produce = |_: &mut dyn FnMut(u64) -> ControlFlow<()>| -> () { panic!("walked off a cliff") };
        let fault = run(1, 1, IDLE, produce, |n, _| n, |_| ControlFlow::Continue(())).unwrap_err();
        assert!(fault.detail.contains("cliff"), "{fault}");
    }
}
