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
use crate::control::is_final;
use crate::threads::blocking;

/// Facts that come within this go together: thousands of small files end each second.
const GATHER: Duration = Duration::from_millis(5);
/// The kept offset of the clock is renewed when it is off by more than this.
const OFFSET_KEPT_WITHIN_US: u64 = 1_000_000;

/// Runs until there is no point in going on.
pub(crate) async fn run(shared: Arc<AgentContext>) -> Fault {
    let mut backoff = Backoff::default();
    let mut last = Instant::now();
    loop {
        if *shared.greeted.borrow() {
            wait_for_reason(&shared, last).await;
        }
        last = Instant::now();
        match report(&shared).await {
            Ok(()) => {
                if backoff.is_waiting() {
                    tracing::info!("the service answers again");
                }
                backoff.succeeded();
            }
            Err(fault) if is_final(&fault) => return fault,
            Err(fault) => {
                if backoff.is_waiting() {
                    tracing::debug!(%fault, "the report did not arrive");
                } else {
                    tracing::warn!(%fault, facts = shared.ledger.facts_pending(), "the service cannot be \
                        told; what is held goes on");
                }
                sleep(backoff.failed()).await;
            }
        }
    }
}

async fn wait_for_reason(shared: &AgentContext, last: Instant) {
    let mut every = shared.report_every.subscribe();
    let due = last + *every.borrow_and_update();
    if shared.ledger.facts_pending() == 0 {
        tokio::select! {
            () = shared.ledger.fact_added() => {}
            () = shared.spaces.changed.notified() => return,
            _ = every.changed() => return,
            () = sleep_until(due) => return,
        }
    }
    if shared.ledger.facts_pending() < BATCH_ITEMS_MAX {
        sleep(GATHER).await;
    }
}

async fn report(shared: &AgentContext) -> Result<(), Fault> {
    let greeting = !*shared.greeted.borrow();
    let _gate = if greeting { Some(shared.gate.lock().await) } else { None };
    let found = shared.measures.take();
    let ask_ahead = !greeting && shared.circuits.asks();
    let circuits = shared.circuits.tell(greeting);
    let (sent, began) = (shared.clock.local(), Instant::now());
    let report = Report {
        versions: AGENT_PROTOCOL,
        incarnation: shared.incarnation,
        now: sent,
        hello: greeting.then(|| hello(shared)),
        entries: shared.ledger.entries(),
        progress: progress(shared),
        spaces: shared.spaces.latest(),
        probes: found.probes.into(),
        uplinks: found.uplinks.into(),
        paths: found.paths.into(),
        circuits,
        ask_ahead,
    };
    let reply = shared.control.report(report).await?;
    if let Some(foreign) = &shared.foreign {
        foreign.heard(began);
        if reply.say_hello {
            foreign.end_all("the service was restarted");
        }
    }
    if reply.version < AGENT_PROTOCOL.lowest || reply.version > AGENT_PROTOCOL.highest {
        let detail = format!(
            "the service wants version {}, this agent speaks {} to {}",
            reply.version, AGENT_PROTOCOL.lowest, AGENT_PROTOCOL.highest
        );
        return Err(Fault::new(FaultCode::VersionMismatch, detail));
    }
    shared.ledger.service_speaks(reply.version);
    shared.clock.learn(sent, reply.now, shared.clock.local());
    let (ledger, offset_us) = (shared.ledger.clone(), shared.clock.offset_us());
    let restarted = reply.say_hello;
    shared.measures.ask(reply.probe);
    if ask_ahead {
        shared.circuits.learn(&reply.ahead);
    }
    shared.circuits.copied(&reply.circuit_copies);
    if !restarted {
        shared.circuits.planned(reply.circuits_planned);
        reply.circuit_peers.iter().for_each(|peer| shared.circuits.served_by(peer));
        shared.circuits.ordered(&reply.circuits);
    }
    blocking(move || {
        if restarted {
            ledger.service_restarted();
        }
        if ledger.clock_offset().abs_diff(offset_us) > OFFSET_KEPT_WITHIN_US {
            tracing::info!(offset_us, "this host's clock differs from the service's; the service's counts");
            ledger.set_clock_offset(offset_us)?;
        }
        ledger.acknowledge(reply.acknowledged)
    })
    .await?;
    if greeting && reply.say_hello {
        return Err(Fault::new(FaultCode::ProtocolError, "the service asks who we are though we said it"));
    }
    shared.greeted.send_replace(!reply.say_hello);
    Ok(())
}

fn hello(shared: &AgentContext) -> Hello {
    Hello {
        host: shared.host.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        data_addresses: shared.data_addresses.clone(),
        storages: shared.offers.clone(),
        held: shared.ledger.claimed(),
        mover: shared.foreign.as_ref().map(|foreign| foreign.offer()),
    }
}

fn progress(shared: &AgentContext) -> Vec<Progress> {
    // Copies first: those that are not named are taken for lost.
    let copies = shared.foreign.iter().flat_map(|foreign| foreign.progress());
    let running = shared.engine.snapshot().running.into_iter();
    let running = running.map(|(attempt, bytes_done)| Progress { attempt, bytes_done });
    copies.chain(running).take(BATCH_ITEMS_MAX).collect()
}
