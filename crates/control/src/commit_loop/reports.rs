//! Reports: applied exactly once, then acknowledged, then told to the scheduler. And the hello that begins a
//! session.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_api::agent::{Hello, StorageOffer};
use longhaul_api::native::ChangeKind;
use longhaul_catalog::{
    CatalogError, Claim, LiveTransferRow, ReportItem, ReportResult, ReportedFact, ReportedOutcome,
    StorageOfferRow, StorageRow, TransferUpdate,
};
use longhaul_model::limits::BATCH_ITEMS_MAX;
use longhaul_model::{
    AgentId, AttemptId, Blame, Fault, FaultCode, StorageId, StorageName, Timestamp, TransferState,
};
use longhaul_scheduler::{Event, Outcome};

use super::{CommitLoop, PendingReport};
use crate::agents::ServedStorages;
use crate::brain::Input;
use crate::kernel::Directory;

impl CommitLoop {
    pub(super) fn report(&self, job: PendingReport) {
        let answer = self.take_in(job.agent, &job);
        if let Err(error) = &answer {
            self.note_trouble(error);
        }
        // An agent that hung up asks again, and is told that it is done.
        let _ = job.reply.send(answer);
    }

    fn take_in(&self, agent: AgentId, job: &PendingReport) -> Result<u64, CatalogError> {
        // It may have been refused while this waited.
        self.control.agents.check_admitted(agent).map_err(CatalogError::Refused)?;
        let mut begins = false;
        if let Some(hello) = &job.hello {
            let before = self.kernel.directory();
            let greeted = self.greet(agent, job, hello);
            self.note_turned_away(agent, hello, &greeted);
            begins = greeted?;
            let taken_over = |row: &&StorageRow| {
                row.agent == agent && before.storages.get(&row.id).is_some_and(|before| before.agent != agent)
            };
            let now = self.kernel.directory();
            let taken_over: Vec<&StorageRow> = now.storages.values().filter(taken_over).collect();
            let alone = taken_over.iter().filter(|row| !was_shared(&before, row)).map(|row| row.id);
            let (alone, taken_over): (Vec<StorageId>, Vec<StorageId>) =
                (alone.collect(), taken_over.iter().map(|row| row.id).collect());
            if !taken_over.is_empty() {
                self.replace(agent, &alone)?;
                if !begins {
                    self.send_open_tasks(agent, &taken_over)?;
                }
            }
        }
        for fence in &job.fences {
            self.take_over(agent, fence)?;
        }
        self.take_staged(agent, &job.staged);
        let mut acknowledged = None;
        for items in job.items.chunks(BATCH_ITEMS_MAX) {
            acknowledged = Some(self.apply(agent, items, items.last().map_or(0, |item| item.sequence))?);
        }
        if let Some(hello) = &job.hello {
            // Whichever hello it is: it repeats what is to come from tape.
            self.repeat_stage_orders(agent, &self.control.agents.storages_of(agent));
            if begins {
                self.begin_session(agent, hello)?;
            }
        }
        match acknowledged {
            Some(acknowledged) => Ok(acknowledged),
            None => self.kernel.catalog.acknowledged(agent),
        }
    }

    /// Records who the agent is this time. Returns whether it is the first word of a session.
    fn greet(&self, agent: AgentId, job: &PendingReport, hello: &Hello) -> Result<bool, CatalogError> {
        let now = self.kernel.now();
        let CheckedOffers { served_by_others, joined } = self.check_holders(agent, job, hello, now)?;
        let incarnation =
            longhaul_catalog::Incarnation { number: job.incarnation.number, nonce: job.incarnation.nonce };
        let offers: Vec<StorageOfferRow> = hello
            .storages
            .iter()
            .filter(|offer| !served_by_others.contains(&offer.name) && !joined.contains_key(&offer.name))
            .map(|offer| StorageOfferRow {
                name: offer.name.clone(),
                kind: offer.kind,
                rules: offer.rules.clone(),
                writable: offer.writable,
                case_insensitive: offer.case_insensitive,
                shared_root: offer.root_mark.clone().filter(|_| offer.shared),
            })
            .collect();
        let catalog = &self.kernel.catalog;
        let greeted = catalog.agent_hello(
            agent,
            incarnation,
            &hello.host,
            &hello.version,
            &hello.data_addresses,
            &offers,
            now,
        )?;
        self.control.agents.offers_mover(agent, hello.mover);
        self.note_unconfirmed(agent, [greeted.unconfirmed, served_by_others].concat(), now);
        let row = catalog.agent(agent)?;
        self.kernel.refresh_directory()?;
        let site = row.as_ref().map(|row| row.site_name.clone());
        let shared = greeted.storages.iter().filter(|storage| storage.shared_root.is_some());
        let served = ServedStorages {
            led: greeted.storages.iter().map(|storage| storage.id).collect(),
            shared: shared.map(|storage| storage.id).collect(),
            joined: joined.into_values().collect(),
        };
        let mut dropped = self.control.agents.served_by(agent);
        dropped.retain(|storage| !served.led.contains(storage) && !served.joined.contains(storage));
        let begins = row.is_some_and(|row| self.control.agents.hello(row, served, now));
        if !dropped.is_empty() {
            // The agent stays connected, so that no transition says this.
            let events = self.control.agents.connection_events(agent, dropped, now);
            self.kernel.notify_scheduler(Input::Events(events));
        }
        if let Some(site) = site {
            self.kernel.changes.touch(ChangeKind::Site, site, now);
        }
        Ok(begins)
    }

    /// Storages that are left out of a hello, most since their names are not the site's, are a problem until
    /// an administrator has helped, or the agent offers them no more.
    fn note_unconfirmed(&self, agent: AgentId, names: Vec<StorageName>, now: Timestamp) {
        let (storages, first) = (names.len(), names.first().cloned());
        if !self.control.agents.note_unconfirmed(agent, names) {
            return;
        }
        if let Some(first) = first {
            tracing::warn!(%agent, storages, %first, "left out of a hello: the problems say why");
        }
        self.kernel.changes.touch(ChangeKind::Problem, "", now);
    }

    /// Whoever is not let in is told of, for its storages are served by nobody, or by another than it thinks.
    fn note_turned_away(&self, agent: AgentId, hello: &Hello, greeted: &Result<bool, CatalogError>) {
        let now = self.kernel.now();
        let is_changed = match greeted {
            Ok(_) => self.control.turned_away.clear(agent),
            Err(CatalogError::Refused(fault)) => {
                self.control.turned_away.record(agent, &hello.host, fault, now)
            }
            // The catalog's own trouble is told as such.
            Err(_) => false,
        };
        if is_changed {
            self.kernel.changes.touch(ChangeKind::Problem, "", now);
        }
    }

    /// No storage is taken from an agent that serves it: what the other one offers under that name may be
    /// another directory, and its first verification would find every file missing. Those of other sites are
    /// left out anyway. One root may be shared by all that say so and show the same mark. Others that another
    /// agent of the site serves are left out, too, if this one's session has begun: a refusal would stop an
    /// agent that works, only because an administrator has confirmed a name, a root came back, or another
    /// agent took over a storage.
    fn check_holders(
        &self,
        agent: AgentId,
        job: &PendingReport,
        hello: &Hello,
        now: Timestamp,
    ) -> Result<CheckedOffers, CatalogError> {
        let directory = self.kernel.directory();
        let site = self.control.agents.agent(agent).map(|info| info.site);
        let is_present = self.control.agents.is_present(agent, job.incarnation);
        let mut checked = CheckedOffers::default();
        for offer in &hello.storages {
            let Some(row) = directory.storage(offer.name.as_str()).filter(|row| Some(row.site) == site)
            else {
                continue;
            };
            let why_not = join_fault(row, offer);
            let agents = &self.control.agents;
            if why_not.is_none() && row.agent != agent && !agents.has_given_up(row.agent, row.id) {
                checked.joined.insert(offer.name.clone(), row.id);
                continue;
            }
            let Some(holder) = agents.other_holder(agent, row.id, row.agent, now) else { continue };
            let why = why_not.unwrap_or("it serves it alone");
            if is_present {
                checked.served_by_others.push(offer.name.clone());
                continue;
            }
            let detail = format!(
                "storage {} is served by agent {} on {}, which is connected, and {why}: stop that agent, or \
                    take the storage out of its configuration and restart it; or give the storage of agent \
                    {agent} another name",
                offer.name, holder.id, holder.host
            );
            return Err(CatalogError::Refused(Fault::new(FaultCode::Conflict, detail)));
        }
        Ok(checked)
    }

    /// From now on the service knows what the agent holds: all its other leases wait again.
    fn begin_session(&self, agent: AgentId, hello: &Hello) -> Result<(), CatalogError> {
        let now = self.kernel.now();
        let mut held: BTreeSet<AttemptId> = hello.held.iter().copied().collect();
        held.extend(self.control.agents.undelivered(agent));
        let held: Vec<AttemptId> = held.into_iter().collect();
        let released = self.kernel.catalog.release_leases_except(agent, &held, now)?;
        for row in &released {
            tracing::info!(transfer = %row.transfer, attempt = %row.attempt, %agent, "released: its agent \
                does not hold it");
            self.control.live.ended(row.attempt, false, 0, now);
        }
        let storages = self.control.agents.storages_of(agent);
        let mut known: BTreeSet<AttemptId> = self.control.live.running_of(agent).into_iter().collect();
        known.extend(self.control.streams.reconcile(agent, &held.iter().copied().collect()));
        let of_others = self.control.live.held_by_others(agent, &held);
        if of_others > 0 {
            self.control.note_foreign(agent, Claim::HeldLease, of_others);
        }
        let (held, unknown): (Vec<AttemptId>, Vec<AttemptId>) =
            held.into_iter().partition(|attempt| known.contains(attempt));
        if !unknown.is_empty() {
            tracing::info!(%agent, leases = unknown.len(), "taken back: nobody wants them any more");
            self.control.agents.cancel(agent, unknown);
        }
        self.control.agents.open_session(agent);
        self.control.divide_site_rates(self.control.agents.agent(agent).map(|info| info.site), now);
        // In one batch, so that nothing is decided in between: first that the agent is there, then what it
        // holds.
        let mut events = self.control.agents.transition_events(now);
        // The scheduler knows one agent of each storage, and takes its word for all of them.
        let spoken_for = self.control.agents.storages_known_as(agent);
        let attempts = [held, self.control.live.held_beside(agent, &spoken_for)].concat();
        events.push(Event::HeldLeases { agent, attempts });
        events.extend(released.iter().map(|row| Event::LeaseReleased { attempt: row.attempt }));
        self.kernel.notify_scheduler(Input::Events(events));
        self.send_open_tasks(agent, &storages)?;
        tracing::info!(%agent, host = %hello.host, version = %hello.version, released = released.len(),
            "said hello");
        Ok(())
    }

    fn send_open_tasks(&self, agent: AgentId, storages: &[StorageId]) -> Result<(), CatalogError> {
        for &storage in storages {
            for task in self.kernel.catalog.tasks_for(storage)? {
                self.send_task(agent, &task)?;
            }
        }
        Ok(())
    }

    pub(super) fn observe_commit(&self, what: &str, began: Timestamp) {
        let seconds = self.kernel.now().since(began).as_secs_f64();
        let labels = vec![("what", what.to_owned())];
        self.kernel.metrics.observe(
            "longhaul_commit_seconds",
            "Time of a transaction of the commit loop.",
            labels,
            seconds,
        );
    }

    /// Another agent serves a storage now: what the former one was to do there is done by the new one. A late
    /// word of the former changes nothing, since its epochs are over. The scheduler draws the same conclusion
    /// when it hears of the new agent.
    fn replace(&self, agent: AgentId, storages: &[StorageId]) -> Result<(), CatalogError> {
        if storages.is_empty() {
            return Ok(());
        }
        let fault = Fault::new(FaultCode::Interrupted, format!("agent {agent} serves the storage now"));
        let is_meant = |row: &LiveTransferRow| row.agent != agent && storages.contains(&row.target);
        self.revoke(is_meant, &fault, self.kernel.now()).map(drop)
    }

    /// Revokes the leases that are meant, and has their agents drop them.
    pub(super) fn revoke(
        &self,
        is_meant: impl Fn(&LiveTransferRow) -> bool,
        fault: &Fault,
        now: Timestamp,
    ) -> Result<Vec<LiveTransferRow>, CatalogError> {
        let mut live = self.kernel.catalog.live_transfers()?;
        live.retain(|row| row.state == TransferState::Leased && is_meant(row));
        let attempts: Vec<AttemptId> = live.iter().map(|row| row.attempt).collect();
        self.kernel.catalog.revoke_leases(&attempts, fault, now)?;
        for row in &live {
            self.control.live.ended(row.attempt, false, 0, now);
            self.control.agents.cancel(row.agent, [row.attempt]);
        }
        Ok(live)
    }

    /// A target cannot know that the source's agent is gone and blames the path. We know.
    fn blame_absent_source(&self, outcome: &mut ReportedOutcome, now: Timestamp) {
        let Some(fault) = &mut outcome.fault else { return };
        let Some((source, agent)) = self.control.live.source_of(outcome.attempt) else { return };
        let directory = self.kernel.directory();
        let Some(row) = directory.storages.get(&source) else { return };
        if !self.control.agents.is_connected(agent.unwrap_or(row.agent), now)
            && let Some(known) = absent_source_fault(&row.name, fault)
        {
            *fault = known;
        }
    }

    fn apply(&self, agent: AgentId, items: &[ReportItem], last_sequence: u64) -> Result<u64, CatalogError> {
        let now = self.kernel.now();
        // The last page of a task is its end; an agent that ends an earlier one gets the next instead.
        // Only its own agent turns a page, and only once: a repeated report is done already.
        let mut next_pages = Vec::new();
        let mut kept = Vec::with_capacity(items.len());
        let ends_task = |item: &ReportItem| matches!(item.fact, ReportedFact::TaskDone { .. });
        let unconfirmed = self.control.agents.unconfirmed(agent);
        let known =
            if items.iter().any(ends_task) { self.kernel.catalog.acknowledged(agent)? } else { u64::MAX };
        for item in items {
            match item.fact {
                ReportedFact::TaskDone { task, fault: None }
                    if item.sequence > known && self.turns_page(agent, task)? =>
                {
                    next_pages.push(task)
                }
                _ => {
                    let mut item = item.clone();
                    match &mut item.fact {
                        ReportedFact::Outcome(outcome) => self.blame_absent_source(outcome, now),
                        ReportedFact::DoorDecisions(decisions) => decisions.retain(|decision| {
                            let door = decision.at_door.as_ref();
                            door.is_none_or(|(_, storage)| !unconfirmed.contains(storage))
                        }),
                        _ => {}
                    }
                    kept.push(item);
                }
            }
        }
        let applied = self.kernel.catalog.apply_report(agent, &kept, last_sequence, now);
        self.observe_commit("report", now);
        let applied = applied?;
        let acknowledged = applied.acknowledged;
        for (&claim, &times) in &applied.foreign {
            self.control.note_foreign(agent, claim, times);
        }
        for item in &kept {
            if let ReportedFact::DoorDecisions(decisions) = &item.fact {
                longhaul_identity::count_decisions(decisions, &*self.kernel.metrics);
                let site = decisions.iter().find_map(|one| one.at_door.as_ref()).map(|(site, _)| site);
                if let Some(site) = site {
                    self.kernel.changes.touch(ChangeKind::Site, site, now);
                }
            }
        }
        let outcomes = kept.iter().filter_map(|item| match &item.fact {
            ReportedFact::Outcome(outcome) => Some(outcome),
            _ => None,
        });
        let accused = applied.accused;
        self.tell_applied(outcomes, applied, now);
        if accused {
            self.order_verifications();
        }
        for task in next_pages {
            self.turn_page(task)?;
        }
        Ok(acknowledged)
    }

    fn tell_applied<'a>(
        &self,
        reported: impl Iterator<Item = &'a ReportedOutcome>,
        applied: ReportResult,
        now: Timestamp,
    ) {
        let mut events = Vec::new();
        let mut done = Vec::new();
        for outcome in &applied.outcomes {
            if outcome.applied.is_none() {
                tracing::info!(attempt = %outcome.attempt, "outcome of a lease that is no longer live: \
                    nothing changed");
            }
        }
        let live: std::collections::BTreeMap<AttemptId, &TransferUpdate> = applied
            .outcomes
            .iter()
            .filter_map(|outcome| Some((outcome.attempt, outcome.applied.as_ref()?)))
            .collect();
        for reported in reported {
            let Some(&transfer) = live.get(&reported.attempt) else { continue };
            let then = self.stage_after(reported, transfer);
            self.count(reported, transfer, then.is_some(), now);
            if transfer.state == TransferState::Done {
                done.push((transfer.target, transfer.block, transfer.file));
            }
            events.push(Event::Outcome(Outcome {
                attempt: reported.attempt,
                epoch: reported.epoch,
                fault: transfer.fault.clone(),
                bytes_moved: transfer.bytes_moved,
            }));
            events.extend(then);
        }
        let complete = applied.complete.iter().map(|(totals, storage)| (totals.block, *storage)).collect();
        self.kernel.notify_scheduler(Input::Applied { events, done, complete });
        for subscription in applied.subscriptions_complete {
            tracing::info!(%subscription, "complete");
            self.kernel.changes.touch(ChangeKind::Subscription, subscription, now);
        }
        self.notify_replicas(applied.replicas);
        for task in applied.tasks {
            if task.done {
                self.forget_task(task.id);
            }
            self.kernel.changes.touch(ChangeKind::Task, task.id, now);
            self.kernel.changes.touch(ChangeKind::Dataset, &task.dataset_name, now);
        }
    }

    /// Rates, metrics, problems and the log line of one outcome. One that has its file staged is no problem.
    fn count(&self, reported: &ReportedOutcome, transfer: &TransferUpdate, stages: bool, now: Timestamp) {
        let succeeded = transfer.state == TransferState::Done;
        let moved = if reported.already_there { 0 } else { transfer.size };
        let running = self.control.live.ended(reported.attempt, succeeded, moved, now);
        let name = |id| self.storage_name(id).map(|name| name.to_string()).unwrap_or_default();
        let (source, target) = (name(transfer.source), name(transfer.target));
        let lfn = running.as_ref().map(|running| running.lfn.shown()).unwrap_or_default();
        let given_back = transfer.fault.as_ref().is_some_and(|fault| fault.code == FaultCode::GivenBack);
        let result = match (succeeded, given_back) {
            (true, _) => "done",
            (_, true) => "given-back",
            _ => "failed",
        };
        let fault = transfer.fault.as_ref().filter(|_| !given_back);
        let blame = fault.map(|fault| fault.blame.to_string()).unwrap_or_else(|| "none".into());
        let link = || vec![("source", source.clone()), ("target", target.clone())];
        let mut labels = link();
        labels.extend([("result", result.to_owned()), ("blame", blame)]);
        self.kernel.metrics.count(
            "longhaul_attempts_total",
            "Attempts that ended, by link, result and blame.",
            labels,
            1,
        );
        self.kernel.metrics.count(
            "longhaul_moved_bytes_total",
            "Payload that crossed the wire.",
            link(),
            transfer.bytes_moved,
        );
        self.kernel.metrics.count(
            "longhaul_resent_bytes_total",
            "Payload that had to be sent again.",
            link(),
            transfer.bytes_resent,
        );
        if let Some(mark) = running.map(|running| running.mark).filter(|mark| !mark.is_none()) {
            let number = |part: Option<u16>| part.map(|part| part.to_string()).unwrap_or_default();
            let mut labels = link();
            labels.push(("experiment", number(mark.scitag.map(|scitag| scitag.experiment()))));
            labels.push(("activity", number(mark.scitag.map(|scitag| scitag.activity().into()))));
            labels.push(("dscp", mark.dscp.map(|dscp| dscp.to_string()).unwrap_or_default()));
            self.kernel.metrics.count(
                "longhaul_marked_bytes_total",
                "Payload that crossed the wire, by the mark that its packets were to bear.",
                labels,
                transfer.bytes_moved,
            );
        }
        if stages {
            tracing::debug!(transfer = %transfer.transfer, attempt = %reported.attempt, %source, %target,
                "a file has left the disk, and is staged");
        } else if given_back {
            // No fault of anybody, and no problem.
            tracing::debug!(transfer = %transfer.transfer, attempt = %reported.attempt, %source, %target,
                "given back");
        } else if let Some(fault) = &transfer.fault {
            tracing::warn!(transfer = %transfer.transfer, attempt = %reported.attempt, %source, %target,
                %lfn, code = %fault.code, fault = %fault.chain(), "attempt failed");
            let blamed = match fault.blame {
                Blame::Source => Some(transfer.source),
                Blame::Target => Some(transfer.target),
                _ => None,
            };
            let storage = blamed.and_then(|id| self.storage_name(id));
            self.control.live.failed(transfer.transfer, fault, storage, lfn, now);
            self.kernel.changes.touch(ChangeKind::Problem, "", now);
        } else {
            self.kernel.metrics.count(
                "longhaul_verified_bytes_total",
                "Bytes of files recorded as verified replicas.",
                link(),
                transfer.size,
            );
            tracing::info!(transfer = %transfer.transfer, attempt = %reported.attempt, %source, %target,
                %lfn, bytes = transfer.size, verification = ?transfer.verification, "done");
            if let (Some(started), Some(committed)) = (reported.times.started, reported.times.committed) {
                let seconds = committed.since(started).as_secs_f64();
                self.kernel.metrics.observe(
                    "longhaul_attempt_seconds",
                    "From begin to commit of successful attempts.",
                    Vec::new(),
                    seconds,
                );
            }
            self.control.live.settled(transfer.transfer);
        }
        self.kernel.changes.touch(ChangeKind::Transfer, transfer.transfer, now);
        self.kernel.changes.touch(ChangeKind::Subscription, transfer.subscription, now);
        self.kernel.changes.touch(ChangeKind::Status, "", now);
    }
}

/// What became of a hello's offers under names that storages of the site have.
#[derive(Default)]
struct CheckedOffers {
    /// Served by another agent, and left out.
    served_by_others: Vec<StorageName>,
    /// Served by another agent, and by this one as well.
    joined: BTreeMap<StorageName, StorageId>,
}

/// Why an agent cannot serve a storage beside the one that does; none if it can.
fn join_fault(row: &StorageRow, offer: &StorageOffer) -> Option<&'static str> {
    let Some(mark) = row.shared_root.as_ref().filter(|_| offer.shared) else {
        return Some("one of the two does not share it (shared = true)");
    };
    if offer.root_mark.as_ref() != Some(mark) {
        return Some("the roots of the two have different marks: they are not the same file system");
    }
    if (&row.rules, row.writable, row.case_insensitive)
        != (&offer.rules, offer.writable, offer.case_insensitive)
    {
        return Some("the two do not agree on its name rules, or on whether it is writable");
    }
    None
}

/// Whether the agents that the storage had before go on beside the one that leads it now.
fn was_shared(before: &Directory, row: &StorageRow) -> bool {
    let before = before.storages.get(&row.id).and_then(|before| before.shared_root.as_ref());
    before.is_some() && before == row.shared_root.as_ref()
}

/// What a failed connection to a source means whose agent is not in contact; none if it failed otherwise.
fn absent_source_fault(source: &StorageName, fault: &Fault) -> Option<Fault> {
    let lost = matches!(fault.code, FaultCode::Unreachable | FaultCode::ConnectionLost | FaultCode::Stalled);
    if !lost || fault.blame != Blame::Network {
        return None;
    }
    let detail = format!("the agent of {source} does not run: {}", fault.detail);
    Some(Fault::new(FaultCode::Unreachable, detail).blaming(Blame::Source).retrying(fault.retry))
}

#[cfg(test)]
mod tests {
    use longhaul_model::Retry;

    use super::*;

    #[test]
    fn an_absent_source_is_blamed_for_connections_and_for_nothing_else() {
        let alpha = "alpha".parse().unwrap();
        for code in [FaultCode::Unreachable, FaultCode::ConnectionLost, FaultCode::Stalled] {
            let fault = absent_source_fault(&alpha, &Fault::new(code, "192.0.2.1:5000")).unwrap();
            assert_eq!((fault.code, fault.blame), (FaultCode::Unreachable, Blame::Source));
            assert_eq!(fault.retry, Retry::Now, "it is tried again as before");
            assert!(fault.detail.contains("alpha") && fault.detail.contains("192.0.2.1"), "{fault}");
        }
        for code in [FaultCode::TargetFull, FaultCode::Corrupted, FaultCode::WrongDigest] {
            assert_eq!(absent_source_fault(&alpha, &Fault::new(code, "")), None);
        }
        let known = Fault::new(FaultCode::Unreachable, "refused").blaming(Blame::Source);
        assert_eq!(absent_source_fault(&alpha, &known), None, "that is said already");
    }
}
