//! Production drivers of the agent's loops: wait for time and inputs, carry out what the loops send.
//!
//! Steps that may block on a disk run off the event loop. Such a step holds the whole context until it ends,
//! so that the state directory is not released while something is still written there.

use std::sync::Arc;

use longhaul_model::Fault;
use parking_lot::Mutex;

use crate::certificate_renewal::CertificateRenewal;
use crate::clock::MonotonicClock;
use crate::context::AgentContext;
use crate::report::Reporter;
use crate::step::{PeriodicLoop, Step};
use crate::threads::blocking;
use crate::work::{PollAction, WorkPoller};

/// Drives a loop that never blocks. Never ends.
pub(crate) async fn run_periodic(clock: MonotonicClock, mut periodic: impl PeriodicLoop) -> Fault {
    loop {
        let due = periodic.step(clock.now());
        clock.sleep_until(due).await;
    }
}

/// Drives a loop that writes to the state directory. Ends only with a panic in a step.
pub(crate) async fn run_periodic_blocking(context: Arc<AgentContext>, periodic: impl PeriodicLoop) -> Fault {
    let periodic = Arc::new(Mutex::new(periodic));
    let clock = context.monotonic;
    loop {
        let (held, stepped, now) = (context.clone(), periodic.clone(), clock.now());
        let due = blocking(move || {
            let due = stepped.lock().step(now);
            drop(held);
            Ok(due)
        });
        match due.await {
            Ok(due) => clock.sleep_until(due).await,
            Err(fault) => return fault,
        }
    }
}

/// Drives a [`Reporter`]. Ends with a final fault.
pub(crate) async fn run_reports(context: Arc<AgentContext>) -> Fault {
    let (clock, mut session) = (context.monotonic, context.session.subscribe());
    let mut interval = context.report_interval.subscribe();
    let reporter = Arc::new(Mutex::new(Reporter::new(context.clone())));
    loop {
        session.mark_unchanged();
        interval.mark_unchanged();
        let Step { send, wake_at } = reporter.lock().step(clock.now());
        let Some(report) = send else {
            tokio::select! {
                () = context.log.fact_added() => {}
                () = context.storage_health.changed.notified() => {}
                _ = interval.changed() => {}
                _ = session.changed() => {}
                () = clock.sleep_until(wake_at) => {}
            }
            continue;
        };
        let reply = context.service.report(report).await;
        let now = clock.now();
        let answer = move |reporter: &mut Reporter, reply| reporter.on_reply(now, reply);
        if let Err(fault) = hand_back(&context, &reporter, reply, answer).await {
            return fault;
        }
    }
}

/// Drives a [`WorkPoller`]. Ends with a final fault.
pub(crate) async fn run_work(context: Arc<AgentContext>) -> Fault {
    let (clock, mut session) = (context.monotonic, context.session.subscribe());
    let poller = Arc::new(Mutex::new(WorkPoller::new(context.clone())));
    loop {
        session.mark_unchanged();
        let Step { send, wake_at } = poller.lock().step(clock.now());
        let Some(PollAction::Request(request)) = send else {
            tokio::select! {
                _ = session.changed() => {}
                () = clock.sleep_until(wake_at) => {}
            }
            continue;
        };
        let mut call = context.service.work(request);
        let reply = loop {
            tokio::select! {
                biased;
                _ = session.changed() => {
                    if let Some(PollAction::Abort) = poller.lock().step(clock.now()).send {
                        break None;
                    }
                }
                reply = &mut call => break Some(reply),
            }
        };
        drop(call);
        let Some(reply) = reply else { continue };
        let now = clock.now();
        let answer = move |poller: &mut WorkPoller, reply| poller.on_reply(now, reply);
        if let Err(fault) = hand_back(&context, &poller, reply, answer).await {
            return fault;
        }
    }
}

/// Drives a [`CertificateRenewal`]. Ends with a final fault.
pub(crate) async fn run_renewal(context: Arc<AgentContext>) -> Fault {
    let clock = context.monotonic;
    let renewal = Arc::new(Mutex::new(CertificateRenewal::new(context.clone())));
    loop {
        let Step { send, wake_at } = renewal.lock().step(clock.now());
        let Some(request) = send else {
            clock.sleep_until(wake_at).await;
            continue;
        };
        let reply = context.service.renew(request).await;
        let answer = |renewal: &mut CertificateRenewal, reply| renewal.on_reply(reply);
        if let Err(fault) = hand_back(&context, &renewal, reply, answer).await {
            return fault;
        }
    }
}

/// Passes a reply to its loop, off the event loop, and completes even if the agent shuts down meanwhile: work
/// that is durable is also given to the engine. A panic is final: the agent ends, and its next start
/// recovers.
async fn hand_back<L: Send + 'static, R: Send + 'static>(
    context: &Arc<AgentContext>,
    state: &Arc<Mutex<L>>,
    reply: Result<R, Fault>,
    answer: impl FnOnce(&mut L, Result<R, Fault>) -> Result<(), Fault> + Send + 'static,
) -> Result<(), Fault> {
    let (held, answered) = (context.clone(), state.clone());
    let applied = blocking(move || {
        let result = answer(&mut answered.lock(), reply);
        drop(held);
        result
    });
    applied.await
}
