//! Fetches work from the service by long polling.
//!
//! ```text
//! Idle ─(greeted)─► InFlight ─(work, failure)─► Pausing ─► Idle
//!                      └────(no longer greeted: abort)─────► Idle
//! ```

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{AgentSettings, AskedBack, Work, WorkRequest};
use longhaul_api::foreign::ForeignCopy;
use longhaul_model::Fault;

use crate::backoff::Backoff;
use crate::context::AgentContext;
use crate::outcomes::{self, to_fetch_batch};
use crate::service_api::is_final;
use crate::step::{AgentTime, Step};

/// How long the service may hold a request: short enough for middleboxes that drop idle connections.
const LONG_POLL_WAIT: Duration = Duration::from_secs(20);
/// Pause after an empty reply that came at once, against the protocol.
const EMPTY_REPLY_PAUSE: Duration = Duration::from_millis(100);
/// Lower bound of the report interval that the service may set.
const REPORT_INTERVAL_MIN: Duration = Duration::from_millis(50);
/// Upper bound of the report interval: with fewer reports the agent would be taken for lost.
const REPORT_INTERVAL_MAX: Duration = Duration::from_secs(60);

/// Decides when to poll, and makes received work durable before it begins.
pub(crate) struct WorkPoller {
    context: Arc<AgentContext>,
    backoff: Backoff,
    phase: Phase,
}

#[derive(Clone, Copy)]
enum Phase {
    Idle,
    InFlight { since: AgentTime },
    Pausing { until: AgentTime },
}

/// What a [`WorkPoller`] sends.
#[derive(Debug)]
pub(crate) enum PollAction {
    Request(WorkRequest),
    /// Drop the request under way; its reply is not wanted any more.
    Abort,
}

impl WorkPoller {
    pub(crate) fn new(context: Arc<AgentContext>) -> Self {
        WorkPoller { context, backoff: Backoff::default(), phase: Phase::Idle }
    }

    /// The next request, if one is due. To be called as well when the session has changed.
    pub(crate) fn step(&mut self, now: AgentTime) -> Step<PollAction> {
        let session = &self.context.session;
        match self.phase {
            // The service has forgotten us: what it was about to send it will send again after the next
            // hello.
            Phase::InFlight { .. } if !session.is_greeted() => {
                self.phase = Phase::Idle;
                session.end_work();
                Step::send(PollAction::Abort)
            }
            Phase::InFlight { .. } => Step::wait(),
            Phase::Pausing { until } if now < until => Step::wake_at(until),
            Phase::Pausing { .. } | Phase::Idle => {
                self.phase = Phase::Idle;
                if !session.begin_work() {
                    return Step::wait();
                }
                self.phase = Phase::InFlight { since: now };
                Step::send(PollAction::Request(WorkRequest {
                    versions: AGENT_PROTOCOL,
                    incarnation: self.context.incarnation,
                    received: self.context.log.received(),
                    wait_ms: LONG_POLL_WAIT.as_millis() as u32,
                }))
            }
        }
    }

    /// Applies the reply to the request under way. Returns a final fault, after which there is no point in
    /// going on. Blocks on the disk.
    pub(crate) fn on_reply(&mut self, now: AgentTime, reply: Result<Work, Fault>) -> Result<(), Fault> {
        let Phase::InFlight { since } = self.phase else { return Ok(()) };
        let applied = reply.and_then(|work| apply_work(&self.context, work));
        self.context.session.end_work();
        self.phase = match applied {
            Ok(any) => {
                self.backoff.reset();
                let is_hasty = !any && now.saturating_sub(since) < EMPTY_REPLY_PAUSE;
                if is_hasty { Phase::Pausing { until: now + EMPTY_REPLY_PAUSE } } else { Phase::Idle }
            }
            Err(fault) if is_final(&fault) => return Err(fault),
            Err(fault) => {
                tracing::debug!(fault = %fault.chain(), "polling for work failed");
                Phase::Pausing { until: now + self.backoff.next_delay((self.context.random)()) }
            }
        };
        Ok(())
    }
}

/// Makes work durable, then starts it. Returns whether there was any.
fn apply_work(context: &AgentContext, work: Work) -> Result<bool, Fault> {
    if is_empty(&work) {
        // An empty reply: its number means nothing.
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
        && news.cancel_tasks.is_empty()
        && work.fences.is_empty()
        && work.stages.is_empty()
        && work.releases.is_empty());
    context.shared_roots.fence(&work.fences);
    context.stage_orders.take(work.stages);
    context.stage_orders.release(&work.releases);
    for batch in news.batches {
        for lease in &batch.leases {
            let (source, target) = (&batch.source.storage, &batch.target_storage);
            tracing::debug!(transfer = %lease.transfer, attempt = %lease.attempt, %source, %target, "leased");
        }
        context.circuits.set_source_peer(&batch.source);
        context.engine.fetch(to_fetch_batch(batch));
    }
    if let Some(foreign) = &context.foreign {
        let is_new = |copy: &ForeignCopy| news.copies.iter().any(|held| held.attempt == copy.attempt);
        foreign.start_copies(work.copies.into_iter().filter(is_new).collect());
    }
    if !news.cancel.is_empty() {
        tracing::info!(leases = news.cancel.len(), "the service cancelled leases");
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

/// Gives recalled leases back if they have not begun. Durable first: a lease that was given back must not
/// begin after a restart. If that cannot be written, nothing is given back and the leases go on.
fn give_back(context: &AgentContext, asked: &[AskedBack]) {
    let given = outcomes::give_back_unbegun(asked, &context.log);
    match context.log.finish(&given) {
        Ok(_) if given.is_empty() => {}
        Ok(_) => {
            tracing::info!(asked = asked.len(), given = given.len(), "leases given back");
            context.engine.cancel(&given.iter().map(|outcome| outcome.attempt).collect::<Vec<_>>());
        }
        Err(fault) => tracing::warn!(fault = %fault.chain(), "cannot give leases back"),
    }
}

fn is_empty(work: &Work) -> bool {
    let Work { number: _, now: _, batches, tasks, cancel, give_back, cancel_tasks, copies, .. } = work;
    let Work { fences, stages, releases, settings, .. } = work;
    batches.is_empty()
        && tasks.is_empty()
        && cancel.is_empty()
        && give_back.is_empty()
        && cancel_tasks.is_empty()
        && copies.is_empty()
        && fences.is_empty()
        && stages.is_empty()
        && releases.is_empty()
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
