//! Asks the service for work, always: a request waits there until there is some.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{AgentSettings, AskedBack, Work, WorkRequest};
use longhaul_api::foreign::ForeignCopy;
use longhaul_model::{Fault, FaultCode};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::context::AgentContext;
use crate::outcomes::{self, to_fetch_batch};
use crate::service_api::is_final;
use crate::threads::blocking;

/// How long the service may keep a request without work: short enough for middle boxes that drop idle
/// connections.
const LONG_POLL_WAIT: Duration = Duration::from_secs(20);
/// A service that answers empty-handed at once, against the protocol, is not asked more often than this.
const EMPTY_REPLY_PAUSE: Duration = Duration::from_millis(100);
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Runs until there is no point in going on.
pub(crate) async fn run(context: Arc<AgentContext>) -> Fault {
    let mut backoff = Backoff::default();
    let mut greeted = context.greeted.subscribe();
    loop {
        if greeted.wait_for(|&greeted| greeted).await.is_err() {
            return Fault::new(FaultCode::Internal, "the report loop is gone");
        }
        let asked = Instant::now();
        match poll(&context, &mut greeted).await {
            Ok(any) => {
                backoff.reset();
                if !any && asked.elapsed() < EMPTY_REPLY_PAUSE {
                    sleep(EMPTY_REPLY_PAUSE).await;
                }
            }
            Err(fault) if is_final(&fault) => return fault,
            Err(fault) => {
                tracing::debug!(%fault, "no work could be had");
                sleep(backoff.next_delay()).await;
            }
        }
    }
}

/// One request; whether it brought anything.
async fn poll(context: &Arc<AgentContext>, greeted: &mut watch::Receiver<bool>) -> Result<bool, Fault> {
    let _gate = context.gate.lock().await;
    if !*greeted.borrow() {
        return Ok(false);
    }
    let request = WorkRequest {
        versions: AGENT_PROTOCOL,
        incarnation: context.incarnation,
        received: context.log.received(),
        wait_ms: LONG_POLL_WAIT.as_millis() as u32,
    };
    let work = tokio::select! {
        biased;
        // The service forgot us: what it was about to say it will say again after the next greeting.
        _ = greeted.wait_for(|greeted| !greeted) => return Ok(true),
        work = context.service.work(request) => work?,
    };
    let context = context.clone();
    // Once begun this must not be torn apart by the end of the loop: what is durable is also given to the
    // engine.
    blocking(move || apply_work(&context, work)).await
}

/// Makes work durable, then lets it begin.
fn apply_work(context: &AgentContext, work: Work) -> Result<bool, Fault> {
    if is_empty(&work) {
        // The end of a wait; its number means nothing.
        return Ok(false);
    }
    let news = context.log.receive(&work)?;
    if let Some(settings) = work.settings {
        context.log.set_settings(&settings)?;
        apply_settings(context, &settings);
    }
    let any = !(news.batches.is_empty()
        && news.copies.is_empty()
        && news.tasks.is_empty()
        && news.cancel.is_empty()
        && work.give_back.is_empty()
        && news.cancel_tasks.is_empty());
    for batch in news.batches {
        for lease in &batch.leases {
            tracing::debug!(transfer = %lease.transfer, attempt = %lease.attempt, source = %batch.source.storage, target = %batch.target_storage, "leased");
        }
        context.circuits.set_source_peer(&batch.source);
        context.engine.fetch(to_fetch_batch(batch));
    }
    if let Some(foreign) = &context.foreign {
        let is_new = |copy: &ForeignCopy| news.copies.iter().any(|held| held.attempt == copy.attempt);
        foreign.start_copies(work.copies.into_iter().filter(is_new).collect());
    }
    if !news.cancel.is_empty() {
        tracing::info!(leases = news.cancel.len(), "the service took leases back");
        context.engine.cancel(&news.cancel);
        if let Some(foreign) = &context.foreign {
            foreign.cancel(&news.cancel);
        }
    }
    give_back(context, &work.give_back);
    context.tasks.add(news.tasks);
    context.tasks.cancel(&news.cancel_tasks);
    Ok(any)
}

/// Durable first: what was given back is not begun again after a restart. If that cannot be written nothing
/// is given back, and the leases go on.
fn give_back(context: &AgentContext, asked: &[AskedBack]) {
    let given = outcomes::give_back(asked, &context.log);
    match context.log.finish(&given) {
        Ok(_) if given.is_empty() => {}
        Ok(_) => {
            tracing::info!(asked = asked.len(), given = given.len(), "leases given back");
            context.engine.cancel(&given.iter().map(|outcome| outcome.attempt).collect::<Vec<_>>());
        }
        Err(fault) => tracing::warn!(%fault, "cannot give leases back"),
    }
}

fn is_empty(work: &Work) -> bool {
    let Work { number: _, now: _, batches, tasks, cancel, give_back, cancel_tasks, copies, settings } = work;
    batches.is_empty()
        && tasks.is_empty()
        && cancel.is_empty()
        && give_back.is_empty()
        && cancel_tasks.is_empty()
        && copies.is_empty()
        && settings.is_none()
}

fn apply_settings(context: &AgentContext, settings: &AgentSettings) {
    let every = Duration::from_millis(settings.report_every_ms.into());
    context.report_interval.send_replace(every.clamp(REPORT_INTERVAL_MIN, REPORT_INTERVAL_MAX));
    context.engine.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
    if let Some(foreign) = &context.foreign {
        foreign.set_limits(settings.in_bytes_per_s, settings.out_bytes_per_s);
    }
}
