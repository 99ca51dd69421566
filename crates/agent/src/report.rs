//! Reports to the service (a transactional outbox's relay): facts at once, progress and spaces at intervals.
//!
//! ```text
//! Idle ─(facts)─► Batching ─┐
//!   ├──(interval, trouble)──┼─► InFlight ─(answer)─► Idle
//!   └──(not greeted)────────┘      └────(failure)──► BackingOff ─► Idle
//! ```

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{Hello, Progress, Report, ReportReply, StorageOffer, StorageSpace};
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{Fault, FaultCode, Timestamp};
use tokio::sync::watch;

use crate::backoff::Backoff;
use crate::context::AgentContext;
use crate::service_api::is_final;
use crate::step::{AgentTime, Step};
use crate::unconfirmed_storages::UnconfirmedStorages;

/// Facts within this window go into one report: thousands of small files end each second.
const FACT_BATCH_WINDOW: Duration = Duration::from_millis(5);
/// The stored clock offset is updated when it is off by more than this.
const CLOCK_OFFSET_DRIFT_US_MAX: u64 = 1_000_000;

/// Decides when to report, builds the reports, and applies the replies.
pub(crate) struct Reporter {
    context: Arc<AgentContext>,
    interval: watch::Receiver<Duration>,
    backoff: Backoff,
    phase: Phase,
    /// When the last report was built.
    reported_at: AgentTime,
    /// Count of health changes that the last report includes.
    health_changes: u64,
    unconfirmed: UnconfirmedStorages,
}

#[derive(Clone, Copy)]
enum Phase {
    Idle,
    /// Waits for facts of the same moment.
    Batching {
        until: AgentTime,
    },
    InFlight(InFlight),
    BackingOff {
        until: AgentTime,
    },
}

/// The last report of an agent that stops. Facts are left for the next start: nobody waits here for the disk.
pub(crate) fn final_report(context: &AgentContext) -> Report {
    Report {
        versions: AGENT_PROTOCOL,
        incarnation: context.incarnation,
        now: context.clock.local(),
        hello: None,
        entries: Vec::new(),
        progress: Vec::new(),
        spaces: Vec::new(),
        probes: Vec::new(),
        uplinks: Vec::new(),
        paths: Vec::new(),
        circuits: Vec::new(),
        fences: Vec::new(),
        staged: Vec::new(),
        ask_ahead: false,
        ending: true,
    }
}

/// What the reply to a report refers to.
#[derive(Clone, Copy)]
struct InFlight {
    hello: bool,
    ask_ahead: bool,
    /// This host's wall clock when it was built.
    sent: Timestamp,
}

impl Reporter {
    pub(crate) fn new(context: Arc<AgentContext>) -> Self {
        let mut interval = context.report_interval.subscribe();
        interval.mark_unchanged();
        Reporter {
            context,
            interval,
            backoff: Backoff::default(),
            phase: Phase::Idle,
            reported_at: AgentTime::ZERO,
            health_changes: 0,
            unconfirmed: UnconfirmedStorages::default(),
        }
    }

    /// The next report, if one is due. To be called as well when facts were added, or when a storage's
    /// health, the interval or the session has changed.
    pub(crate) fn step(&mut self, now: AgentTime) -> Step<Report> {
        loop {
            match self.phase {
                Phase::InFlight(_) => return Step::wait(),
                Phase::BackingOff { until } | Phase::Batching { until } if now < until => {
                    return Step::wake_at(until);
                }
                Phase::BackingOff { .. } => self.set_idle(),
                Phase::Batching { .. } => return self.send(now),
                Phase::Idle if !self.context.session.is_greeted() => return self.send(now),
                Phase::Idle => match self.context.log.facts_pending() {
                    0 => {
                        let due = self.reported_at + *self.interval.borrow();
                        let has_news = self.interval.has_changed().unwrap_or(false)
                            || self.context.storage_health.changes() != self.health_changes;
                        if !has_news && now < due {
                            return Step::wake_at(due);
                        }
                        return self.send(now);
                    }
                    facts if facts < BATCH_ITEMS_MAX => {
                        self.phase = Phase::Batching { until: now + FACT_BATCH_WINDOW };
                    }
                    _ => return self.send(now),
                },
            }
        }
    }

    /// Applies the reply to the last report. Returns a final fault, after which there is no point in going
    /// on. Blocks on the disk.
    pub(crate) fn on_reply(
        &mut self,
        now: AgentTime,
        reply: Result<ReportReply, Fault>,
    ) -> Result<(), Fault> {
        let Phase::InFlight(report) = self.phase else { return Ok(()) };
        let applied = reply.and_then(|reply| self.apply(now, report, reply));
        if report.hello {
            self.context.session.end_hello();
        }
        match &applied {
            Ok(()) => self.context.stage_orders.confirm(),
            Err(_) => self.context.stage_orders.abandon(),
        }
        match applied {
            Ok(()) => {
                if self.context.session.is_greeted() {
                    self.context.storage_health.note_told(self.health_changes);
                }
                if self.backoff.is_failing() {
                    tracing::info!("the service answers again");
                }
                self.backoff.reset();
                self.set_idle();
            }
            Err(fault) if is_final(&fault) => return Err(fault),
            Err(fault) => {
                if self.backoff.is_failing() {
                    tracing::debug!(fault = %fault.chain(), "the report did not arrive");
                } else {
                    let facts = self.context.log.facts_pending();
                    tracing::warn!(fault = %fault.chain(), facts,
                        "the service cannot be reached; what is leased goes on");
                }
                let delay = self.backoff.next_delay((self.context.random)());
                self.phase = Phase::BackingOff { until: now + delay };
            }
        }
        Ok(())
    }

    fn set_idle(&mut self) {
        self.interval.mark_unchanged();
        self.phase = Phase::Idle;
    }

    fn send(&mut self, now: AgentTime) -> Step<Report> {
        let context = &*self.context;
        let hello = !context.session.is_greeted();
        if hello && !context.session.begin_hello() {
            return Step::wait();
        }
        if hello {
            // Before it is heard: what the service repeats may come before its reply.
            context.stage_orders.note_hello(now);
        }
        self.reported_at = now;
        self.health_changes = context.storage_health.changes();
        let measured = context.measurements.take();
        let ask_ahead = !hello && context.circuits.take_queue_query(now);
        let sent = context.clock.local();
        let report = Report {
            versions: AGENT_PROTOCOL,
            incarnation: context.incarnation,
            now: sent,
            hello: hello.then(|| self.hello()),
            entries: context.log.entries(),
            progress: self.progress(),
            spaces: self.spaces(),
            probes: measured.probes.into(),
            uplinks: measured.uplinks.into(),
            paths: measured.paths.into(),
            circuits: context.circuits.link_statuses(now, hello),
            fences: context.shared_roots.take_reports(),
            staged: context.stage_orders.take_reports(),
            ask_ahead,
            ending: false,
        };
        self.phase = Phase::InFlight(InFlight { hello, ask_ahead, sent });
        Step::send(report)
    }

    fn apply(&mut self, now: AgentTime, report: InFlight, reply: ReportReply) -> Result<(), Fault> {
        let context = &*self.context;
        if let Some(foreign) = &context.foreign {
            foreign.note_answer(self.reported_at);
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
        context.clock.learn(report.sent, reply.now, context.clock.local());
        context.measurements.request_probes(reply.probe);
        if report.ask_ahead {
            context.circuits.set_queue_ahead(now, &reply.ahead);
        }
        context.engine.refuse_peers(reply.refused.into_iter().collect());
        context.circuits.set_copies(&reply.circuit_copies);
        if !reply.say_hello {
            context.circuits.set_planned(reply.circuits_planned);
            reply.circuit_peers.iter().for_each(|peer| context.circuits.set_source_peer(peer));
            context.circuits.set_orders(&reply.circuits);
        } else {
            context.log.service_restarted();
        }
        let offset_us = context.clock.offset_us();
        if context.log.clock_offset().abs_diff(offset_us) > CLOCK_OFFSET_DRIFT_US_MAX {
            tracing::info!(offset_us, "this host's clock differs from the service's; the service's counts");
            context.log.set_clock_offset(offset_us)?;
        }
        context.log.acknowledge(reply.acknowledged)?;
        if report.hello && reply.say_hello {
            let detail = "the service asks who we are though we said it";
            return Err(Fault::new(FaultCode::ProtocolError, detail));
        }
        if report.hello {
            self.unconfirmed.note_hello(reply.unconfirmed);
            context.session.accept_hello();
        } else if reply.say_hello
            || reply.offer_again
            || self.unconfirmed.is_any_confirmed(&reply.unconfirmed)
        {
            context.session.request_hello();
        }
        Ok(())
    }

    fn hello(&self) -> Hello {
        let context = &*self.context;
        Hello {
            host: context.host.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            data_addresses: context.data_addresses.clone(),
            storages: self.offers(),
            held: context.log.claimed_attempts(),
            mover: context.foreign.as_ref().map(|foreign| foreign.offer()),
        }
    }

    /// Storages whose roots are the ones that they had.
    fn offers(&self) -> Vec<StorageOffer> {
        let (offers, roots) = (&self.context.offers, &self.context.roots);
        let there = offers.iter().filter(|offer| roots.is_in_service(&offer.name)).cloned();
        there.map(|offer| StorageOffer { root_mark: roots.number(&offer.name), ..offer }).collect()
    }

    /// A root that is not the storage's is trouble, however much room there is.
    fn spaces(&self) -> Vec<StorageSpace> {
        let mut spaces = self.context.storage_health.latest();
        spaces.retain(|space| !self.unconfirmed.contains(&space.storage));
        for space in &mut spaces {
            space.trouble = self.context.roots.fault(&space.storage).or(space.trouble.take());
        }
        spaces
    }

    fn progress(&self) -> Vec<Progress> {
        // Copies first: the service takes unnamed ones for lost.
        let copies = self.context.foreign.iter().flat_map(|foreign| foreign.progress());
        let running = self.context.engine.snapshot().running.into_iter();
        let running = running.map(|(attempt, bytes_done)| Progress { attempt, bytes_done });
        copies.chain(running).take(BATCH_ITEMS_MAX).collect()
    }
}
