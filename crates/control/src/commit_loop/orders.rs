//! Decisions: durable first, then into the outboxes.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::agent::{AskedBack, Lease, LeaseBatch};
use longhaul_catalog::{CatalogError, LeaseRefusal, LeaseResult, NewAttempt};
use longhaul_model::mark::Treatment;
use longhaul_model::{AgentId, AttemptId, Fault, FaultCode, Retry, StorageId, Timestamp, TransferId};
use longhaul_network::Link;
use longhaul_scheduler::{CancelWhy, Event, Outcome};
use longhaul_security::{Permit, list_digest};

use super::CommitLoop;
use super::dealer::Dealer;
use crate::brain::{Grant, Input, Order};
use crate::live::Running;
use longhaul_api::native::ChangeKind;

/// A permit outlives the time in which its attempts must begin by this: a large file may be resumed a day
/// later.
const PERMIT_BEYOND: Duration = Duration::from_secs(24 * 3_600);

/// A lease that may leave the process.
struct DurableLease {
    grant: Grant,
    /// The target's replica is damaged.
    replaces_damaged: bool,
}

impl CommitLoop {
    /// A batch of decisions, in their order; leases that follow each other share a transaction.
    pub(super) fn orders(&self, orders: Vec<Order>) {
        let mut events = Vec::new();
        let mut trouble = None;
        let mut grants: Vec<Grant> = Vec::new();
        for order in orders {
            if let Order::Lease(grant) = order {
                grants.push(*grant);
                continue;
            }
            self.begin(std::mem::take(&mut grants), &mut events, &mut trouble);
            if let Err(error) = self.other(order) {
                trouble = self.note_trouble(&error).or(trouble);
            }
        }
        self.begin(grants, &mut events, &mut trouble);
        self.kernel.notify_scheduler(Input::Written { events, trouble });
    }

    fn begin(&self, mut grants: Vec<Grant>, events: &mut Vec<Event>, trouble: &mut Option<Fault>) {
        let now = self.kernel.now();
        let mut dealer = Dealer::new(&self.control, now);
        // An agent that no longer serves the target, since another took over between decision and here, gets
        // nothing.
        grants.retain_mut(|grant| {
            let agent = dealer.target_agent(&grant.lease);
            match agent {
                Some(agent) => grant.lease.agent = agent,
                None => events.push(Event::LeaseReleased { attempt: grant.lease.attempt }),
            }
            agent.is_some()
        });
        if grants.is_empty() {
            return;
        }
        let attempts: Vec<NewAttempt> = grants.iter().map(new_attempt).collect();
        let begun = self.kernel.catalog.begin_attempts(&attempts, now);
        self.observe_commit("begin", now);
        let answers = match begun {
            Ok(answers) => answers,
            Err(error) => {
                *trouble = self.note_trouble(&error).or(trouble.take());
                events
                    .extend(grants.iter().map(|grant| Event::LeaseReleased { attempt: grant.lease.attempt }));
                return;
            }
        };
        let mut batches: BTreeMap<(AgentId, StorageId, StorageId, Treatment), Vec<DurableLease>> =
            BTreeMap::new();
        for (grant, begun) in grants.into_iter().zip(answers) {
            match begun {
                LeaseResult::Leased | LeaseResult::LeasedToReplace => {
                    let lease = &grant.lease;
                    // Streams bear one mark: what is marked otherwise is a batch of its own.
                    let treatment =
                        self.control.marks.treatment(&grant.party.community, grant.party.activity.as_ref());
                    let key = (lease.agent, lease.source, lease.target, treatment);
                    let replaces_damaged = begun == LeaseResult::LeasedToReplace;
                    batches.entry(key).or_default().push(DurableLease { grant, replaces_damaged });
                }
                LeaseResult::Refused(refusal) => {
                    tracing::debug!(transfer = %grant.lease.transfer, attempt = %grant.lease.attempt,
                        %refusal, "not leased");
                    events.extend(refused(&grant, refusal));
                }
            }
        }
        for ((agent, source, target, treatment), leases) in batches {
            let bytes = leases.iter().map(|one| one.grant.lease.size);
            let source_agent = dealer.source_agent(source, bytes);
            let agents = (source_agent, agent);
            self.deliver(agents, (source, target), treatment, leases, now, events);
        }
    }

    /// Puts durable leases of one link into their agent's outbox.
    fn deliver(
        &self,
        (source_agent, agent): (Option<AgentId>, AgentId),
        (source, target): (StorageId, StorageId),
        treatment: Treatment,
        leases: Vec<DurableLease>,
        now: Timestamp,
        events: &mut Vec<Event>,
    ) {
        let directory = self.kernel.directory();
        let names = directory.name(source).zip(directory.name(target));
        let peer = names
            .as_ref()
            .zip(source_agent)
            .and_then(|((source_name, _), agent)| self.control.agents.peer(agent, source_name));
        let (Some((source_name, target_name)), Some(peer)) = (names, peer) else {
            // The source's agent went away since the decision.
            let attempts: Vec<AttemptId> = leases.iter().map(|one| one.grant.lease.attempt).collect();
            let fault = Fault::new(FaultCode::Unreachable, "no agent serves the source now");
            if let Err(error) = self.kernel.catalog.revoke_leases(&attempts, &fault, now) {
                self.note_trouble(&error);
            }
            events.extend(attempts.into_iter().map(|attempt| Event::LeaseReleased { attempt }));
            return;
        };
        let grants = || leases.iter().map(|one| &one.grant);
        let start_by = grants().map(|grant| grant.lease.start_by).min().unwrap_or(now);
        let permit = self.control.authority.sign_permit(&Permit {
            deployment: self.control.authority.deployment().to_owned(),
            target_agent: agent,
            source_agent: peer.agent,
            source_storage: source_name.clone(),
            list_digest: list_digest(
                grants().map(|grant| (grant.lease.attempt, &grant.lfn, grant.lease.size)),
            ),
            expires: start_by + PERMIT_BEYOND,
        });
        self.kernel.metrics.count(
            "longhaul_leases_total",
            "Leases given to agents.",
            vec![("source", source_name.to_string()), ("target", target_name.to_string())],
            leases.len() as u64,
        );
        let leases = leases.iter().map(|one| self.lease(one, peer.agent, treatment)).collect();
        let Treatment { mark, class, circuits } = treatment;
        let batch = LeaseBatch {
            source: peer,
            target_storage: target_name,
            permit,
            start_by,
            leases,
            class,
            mark,
            circuits,
        };
        self.control.agents.put_leases(agent, vec![batch]);
    }

    fn lease(&self, durable: &DurableLease, source_agent: AgentId, treatment: Treatment) -> Lease {
        let grant = &durable.grant;
        let lease = &grant.lease;
        let running = Running {
            transfer: lease.transfer,
            link: Link { source: lease.source, target: lease.target },
            agent: lease.agent,
            source_agent: Some(source_agent),
            subscription: grant.subscription,
            lfn: grant.lfn.clone(),
            size: lease.size,
            bytes_done: Some(0),
            started: false,
            mark: treatment.mark,
        };
        self.control.live.leased(lease.attempt, running);
        self.kernel.changes.touch(ChangeKind::Transfer, lease.transfer, lease.chosen);
        tracing::debug!(transfer = %lease.transfer, attempt = %lease.attempt, agent = %lease.agent,
            lfn = %grant.lfn.shown(), "leased");
        Lease {
            attempt: lease.attempt,
            transfer: lease.transfer,
            epoch: lease.epoch,
            lfn: grant.lfn.clone(),
            size: lease.size,
            digests: grant.digests.clone(),
            verification: grant.verification,
            priority: lease.priority,
            replaces_damaged: durable.replaces_damaged,
        }
    }

    fn other(&self, order: Order) -> Result<(), CatalogError> {
        let (catalog, now) = (&self.kernel.catalog, self.kernel.now());
        // The scheduler knows one agent of each storage, and the lease may be with another.
        let holder = |attempt, known| self.control.live.agent_of(attempt).unwrap_or(known);
        match order {
            Order::Lease(_) => {}
            Order::Cancel { transfer, attempt, agent, why: CancelWhy::Unwanted } => {
                catalog.cancel_transfers(
                    &[transfer],
                    &cancelled("no subscription wants it any more"),
                    now,
                )?;
                self.taken_back(transfer, attempt, holder(attempt, agent), now);
            }
            Order::Cancel { transfer, attempt, agent, why: CancelWhy::SitePaused } => {
                catalog.revoke_leases(&[attempt], &cancelled("the site was paused"), now)?;
                self.taken_back(transfer, attempt, holder(attempt, agent), now);
            }
            Order::GiveBack { attempt, agent, why } => {
                let agent = holder(attempt, agent);
                tracing::info!(%attempt, %agent, %why, "a lease is asked back");
                self.control.agents.ask_back(agent, AskedBack { attempt, why });
            }
            Order::Drop { transfer } => {
                catalog.cancel_transfers(
                    &[transfer],
                    &cancelled("no subscription wants it any more"),
                    now,
                )?;
                self.control.live.settled(transfer);
            }
            Order::Fail { transfer, fault } => {
                tracing::warn!(%transfer, fault = %fault.chain(), "a transfer has failed for good");
                catalog.cancel_transfers(&[transfer], &fault, now)?;
                self.kernel.changes.touch(ChangeKind::Transfer, transfer, now);
            }
        }
        Ok(())
    }

    pub(super) fn taken_back(
        &self,
        transfer: TransferId,
        attempt: AttemptId,
        agent: AgentId,
        now: Timestamp,
    ) {
        self.control.live.ended(attempt, false, 0, now);
        self.control.live.settled(transfer);
        self.control.agents.cancel(agent, [attempt]);
        self.kernel.changes.touch(ChangeKind::Transfer, transfer, now);
    }
}

fn cancelled(why: &str) -> Fault {
    Fault::new(FaultCode::Cancelled, why)
}

fn new_attempt(grant: &Grant) -> NewAttempt {
    let lease = &grant.lease;
    NewAttempt {
        transfer: lease.transfer,
        attempt: lease.attempt,
        epoch: lease.epoch,
        file: lease.file,
        source: lease.source,
        target: lease.target,
        agent: lease.agent,
        subscription: grant.subscription,
        start_by: lease.start_by,
        choice: grant.choice.clone(),
    }
}

/// Events for a lease that the catalog refused, because the state moved on since the decision. The scheduler
/// gets the outcome of an attempt that never left, so that it neither waits nor retries at once for ever.
fn refused(grant: &Grant, refusal: LeaseRefusal) -> Vec<Event> {
    let lease = &grant.lease;
    let outcome = |fault: Option<Fault>| {
        Event::Outcome(Outcome { attempt: lease.attempt, epoch: lease.epoch, fault, bytes_moved: 0 })
    };
    let again = |retry| {
        outcome(Some(
            Fault::new(FaultCode::Conflict, refusal.to_string()).with_source(refusal).retrying(retry),
        ))
    };
    match refusal {
        LeaseRefusal::AlreadyThere => vec![outcome(None)],
        LeaseRefusal::SourceGone => vec![
            Event::ReplicaLost { file: lease.file, storage: lease.source },
            Event::LeaseReleased { attempt: lease.attempt },
        ],
        LeaseRefusal::NotWanted | LeaseRefusal::StaleEpoch => vec![again(Retry::Now)],
        LeaseRefusal::Live | LeaseRefusal::Clearing | LeaseRefusal::Worn => vec![again(Retry::Later)],
        LeaseRefusal::NoSuchFile => vec![again(Retry::Never)],
    }
}
