//! Tells the service what happened: facts at once, progress and spaces at intervals.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{Hello, Progress, Report};
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{Fault, FaultCode};
use tokio::time::{Instant, sleep, sleep_until};

use crate::backoff::Backoff;
use crate::context::AgentContext;
use crate::service_api::is_final;
use crate::threads::blocking;

/// Facts that come within this go together: thousands of small files end each second.
const FACT_BATCH_WINDOW: Duration = Duration::from_millis(5);
/// The kept offset of the clock is renewed when it is off by more than this.
const CLOCK_OFFSET_DRIFT_US_MAX: u64 = 1_000_000;

/// Runs until there is no point in going on.
pub(crate) async fn run(context: Arc<AgentContext>) -> Fault {
    let mut backoff = Backoff::default();
    let mut last = Instant::now();
    loop {
        if *context.greeted.borrow() {
            wait_for_reason(&context, last).await;
        }
        last = Instant::now();
        match report(&context).await {
            Ok(()) => {
                if backoff.is_failing() {
                    tracing::info!("the service answers again");
                }
                backoff.reset();
            }
            Err(fault) if is_final(&fault) => return fault,
            Err(fault) => {
                if backoff.is_failing() {
                    tracing::debug!(%fault, "the report did not arrive");
                } else {
                    tracing::warn!(%fault, facts = context.log.facts_pending(), "the service cannot be \
                        told; what is held goes on");
                }
                sleep(backoff.next_delay()).await;
            }
        }
    }
}

async fn wait_for_reason(context: &AgentContext, last: Instant) {
    let mut every = context.report_interval.subscribe();
    let due = last + *every.borrow_and_update();
    if context.log.facts_pending() == 0 {
        tokio::select! {
            () = context.log.fact_added() => {}
            () = context.storage_health.changed.notified() => return,
            _ = every.changed() => return,
            () = sleep_until(due) => return,
        }
    }
    if context.log.facts_pending() < BATCH_ITEMS_MAX {
        sleep(FACT_BATCH_WINDOW).await;
    }
}

async fn report(context: &AgentContext) -> Result<(), Fault> {
    let greeting = !*context.greeted.borrow();
    let _gate = if greeting { Some(context.gate.lock().await) } else { None };
    let found = context.measurements.take();
    let ask_ahead = !greeting && context.circuits.take_queue_query(context.monotonic.now());
    let circuits = context.circuits.link_statuses(context.monotonic.now(), greeting);
    let (sent, began) = (context.clock.local(), context.monotonic.now());
    let report = Report {
        versions: AGENT_PROTOCOL,
        incarnation: context.incarnation,
        now: sent,
        hello: greeting.then(|| hello(context)),
        entries: context.log.entries(),
        progress: progress(context),
        spaces: context.storage_health.latest(),
        probes: found.probes.into(),
        uplinks: found.uplinks.into(),
        paths: found.paths.into(),
        circuits,
        ask_ahead,
    };
    let reply = context.service.report(report).await?;
    if let Some(foreign) = &context.foreign {
        foreign.note_answer(began);
        if reply.say_hello {
            foreign.cancel_all("the service was restarted");
        }
    }
    if reply.version < AGENT_PROTOCOL.lowest || reply.version > AGENT_PROTOCOL.highest {
        let detail = format!(
            "the service wants version {}, this agent speaks {} to {}",
            reply.version, AGENT_PROTOCOL.lowest, AGENT_PROTOCOL.highest
        );
        return Err(Fault::new(FaultCode::VersionMismatch, detail));
    }
    context.log.set_service_version(reply.version);
    context.clock.learn(sent, reply.now, context.clock.local());
    let (log, offset_us) = (context.log.clone(), context.clock.offset_us());
    let restarted = reply.say_hello;
    context.measurements.request_probes(reply.probe);
    if ask_ahead {
        context.circuits.set_queue_ahead(context.monotonic.now(), &reply.ahead);
    }
    context.circuits.set_copies(&reply.circuit_copies);
    if !restarted {
        context.circuits.set_planned(reply.circuits_planned);
        reply.circuit_peers.iter().for_each(|peer| context.circuits.set_source_peer(peer));
        context.circuits.set_orders(&reply.circuits);
    }
    blocking(move || {
        if restarted {
            log.service_restarted();
        }
        if log.clock_offset().abs_diff(offset_us) > CLOCK_OFFSET_DRIFT_US_MAX {
            tracing::info!(offset_us, "this host's clock differs from the service's; the service's counts");
            log.set_clock_offset(offset_us)?;
        }
        log.acknowledge(reply.acknowledged)
    })
    .await?;
    if greeting && reply.say_hello {
        return Err(Fault::new(FaultCode::ProtocolError, "the service asks who we are though we said it"));
    }
    context.greeted.send_replace(!reply.say_hello);
    Ok(())
}

fn hello(context: &AgentContext) -> Hello {
    Hello {
        host: context.host.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        data_addresses: context.data_addresses.clone(),
        storages: context.offers.clone(),
        held: context.log.claimed_attempts(),
        mover: context.foreign.as_ref().map(|foreign| foreign.offer()),
    }
}

fn progress(context: &AgentContext) -> Vec<Progress> {
    // Copies first: those that are not named are taken for lost.
    let copies = context.foreign.iter().flat_map(|foreign| foreign.progress());
    let running = context.engine.snapshot().running.into_iter();
    let running = running.map(|(attempt, bytes_done)| Progress { attempt, bytes_done });
    copies.chain(running).take(BATCH_ITEMS_MAX).collect()
}
