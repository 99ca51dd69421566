//! Reports of agents, applied exactly once: the transaction that applies an item also stores its sequence
//! number. Whose a fact may be is stated in [`admission`]; what is not admitted is acknowledged, and changes
//! nothing.

pub(crate) mod admission;
mod tasks;

use std::collections::BTreeMap;

use crate::sql::Transaction;
use longhaul_model::limits::MOVED_PER_FILE_BYTE_MAX;
use longhaul_model::{
    AgentId, Blame, BlockId, DatasetId, Fault, FaultCode, FileId, Retry, SiteId, StorageId, Timestamp,
    TransferState, Verification,
};

use crate::accusations::forget;
use crate::accused_replicas::accuse;
use crate::attempts::{delete_live, find_leased, return_to_waiting};
use crate::block_replica::Presence;
use crate::consequences;
use crate::datasets::find_file;
use crate::history::{AttemptEnd, record_end};
use crate::ledger::Ledger;
use crate::relays::on_relay_arrival;
use crate::repairs::count_repair;
use crate::rows::codec::{key, number};
use crate::rows::live::LiveTransfer;
use crate::sites::{acknowledged, find_storage};
use crate::{
    Admission, Catalog, CatalogError, Claim, FileRow, NewDecision, OutcomeResult, Phase, ReportItem,
    ReportResult, ReportedFact, ReportedOutcome, Subject, TransferUpdate, VerificationState, admit,
};

impl Catalog {
    /// Applies the items beyond the agent's stored sequence number in one transaction, which also stores the
    /// new number: `last_sequence`, or that of the last item if greater.
    pub fn apply_report(
        &self,
        agent: AgentId,
        items: &[ReportItem],
        last_sequence: u64,
        now: Timestamp,
    ) -> Result<ReportResult, CatalogError> {
        self.write(|tx| {
            let mut report = ReportApplier {
                tx,
                agent,
                site: admission::site_of(tx, agent)?,
                now,
                ledger: Ledger::new(tx, now),
                arrivals: BTreeMap::new(),
                failures: BTreeMap::new(),
                applied: ReportResult { acknowledged: acknowledged(tx, agent)?, ..ReportResult::default() },
            };
            for item in items {
                report.apply_item(item)?;
            }
            report.finish(last_sequence)
        })
    }
}

/// Applies one report.
struct ReportApplier<'t> {
    tx: &'t Transaction<'t>,
    agent: AgentId,
    site: SiteId,
    now: Timestamp,
    ledger: Ledger<'t>,
    arrivals: BTreeMap<(DatasetId, BlockId, StorageId, StorageId), ArrivalCounts>,
    failures: BTreeMap<Blame, i64>,
    applied: ReportResult,
}

#[derive(Clone, Copy, Default)]
struct ArrivalCounts {
    files: i64,
    bytes: i64,
    failed: i64,
}

impl ReportApplier<'_> {
    fn apply_item(&mut self, item: &ReportItem) -> Result<(), CatalogError> {
        let known = self.applied.acknowledged;
        if item.sequence <= known {
            if let ReportedFact::Outcome(outcome) = &item.fact {
                self.applied.outcomes.push(OutcomeResult { attempt: outcome.attempt, applied: None });
            }
            return Ok(());
        }
        if item.sequence > known + 1 {
            tracing::warn!(agent = %self.agent, from = known + 1, to = item.sequence, "an agent's items \
                were lost");
        }
        self.applied.acknowledged = item.sequence;
        match &item.fact {
            ReportedFact::Outcome(outcome) => {
                let applied = self.apply_outcome(outcome)?;
                self.applied.outcomes.push(OutcomeResult { attempt: outcome.attempt, applied });
                Ok(())
            }
            ReportedFact::Scanned { task, found, left_out } => self.scanned(*task, found, left_out),
            ReportedFact::Checked { task, files } => self.checked(*task, files),
            ReportedFact::DoorDecisions(decisions) => self.door_decisions(decisions),
            ReportedFact::TaskDone { task, fault } => self.task_done(*task, fault.as_ref()),
        }
    }

    /// What becomes of a claim of this agent. Counts those about things of other sites.
    fn admission(&mut self, claim: Claim, subject: Option<Subject>) -> Admission {
        let admission = admit(claim, (self.agent, self.site), subject);
        if admission == Admission::Foreign {
            let count = self.applied.foreign.entry(claim).or_default();
            *count = count.saturating_add(1);
        }
        admission
    }

    fn door_decisions(&mut self, decisions: &[NewDecision]) -> Result<(), CatalogError> {
        let mut admitted = Vec::with_capacity(decisions.len());
        for decision in decisions {
            let Some((_, storage)) = &decision.at_door else { continue };
            let subject = find_storage(self.tx, storage)?;
            let subject = subject.map(|row| Subject { agent: row.agent, site: row.site, phase: Phase::Open });
            if self.admission(Claim::DoorDecision, subject) == Admission::Full {
                admitted.push(decision.clone());
            }
        }
        crate::decisions::record_door_decisions(self.tx, &admitted)
    }

    fn apply_outcome(&mut self, outcome: &ReportedOutcome) -> Result<Option<TransferUpdate>, CatalogError> {
        let live = find_leased(self.tx, outcome.attempt)?;
        let phase = |live: &LiveTransfer| {
            if live.epoch == outcome.epoch { Phase::Open } else { Phase::Ended }
        };
        // The site plays no part: a lease has one holder.
        let subject =
            live.as_ref().map(|live| Subject { agent: live.agent, site: self.site, phase: phase(live) });
        let admitted = self.admission(Claim::Outcome, subject) == Admission::Full;
        let Some(live) = live.filter(|_| admitted) else { return Ok(None) };
        let presence = self.ledger.presence(live.block, live.target, live.file)?;
        let fault = outcome.fault.clone().or_else(|| contradiction(&live, outcome, presence));
        let fault = fault.map(|fault| self.blame_source(&live, fault)).transpose()?;
        let outcome = &as_shown(&live, outcome);
        let (state, not_before) = match &fault {
            None => (self.succeeded(&live, outcome).map(|()| TransferState::Done)?, self.now),
            Some(fault) => (TransferState::Waiting, self.failed(&live, outcome, fault)?),
        };
        Ok(Some(TransferUpdate {
            transfer: live.id,
            file: live.file,
            block: live.block,
            dataset: live.dataset,
            source: live.source,
            target: live.target,
            size: live.size,
            subscription: live.subscription,
            state,
            attempts: live.attempts,
            verification: fault.is_none().then_some(outcome.verification),
            bytes_moved: outcome.bytes_moved,
            bytes_resent: outcome.bytes_resent,
            fault,
            not_before,
        }))
    }

    /// A fault that a target's agent ascribes to the source, which is another's: unless the replica is
    /// suspect by now, the source is only left alone for a while.
    fn blame_source(&mut self, live: &LiveTransfer, fault: Fault) -> Result<Fault, CatalogError> {
        if !proves_replica_bad(&fault) {
            return Ok(fault);
        }
        let file = FileRow {
            id: live.file,
            block: live.block,
            dataset: live.dataset,
            lfn: self.find_lfn(live.file)?,
            size: live.size,
            digests: live.digests.clone(),
        };
        let accuser = (self.site, &fault);
        let suspect = accuse(&mut self.ledger, &file, live.source, accuser, &mut self.applied.replicas)?;
        self.applied.accused = true;
        Ok(if suspect { fault } else { fault.retrying(Retry::Later) })
    }

    fn succeeded(&mut self, live: &LiveTransfer, outcome: &ReportedOutcome) -> Result<(), CatalogError> {
        let ending = AttemptEnd {
            state: Some(TransferState::Done),
            fault: None,
            outcome: Some(outcome),
            at: self.now,
        };
        record_end(self.tx, live, &ending)?;
        delete_live(self.tx, live.id)?;
        let good = Presence::Good(match is_claim(outcome) {
            true => VerificationState::Registered,
            false => VerificationState::Verified(outcome.verification),
        });
        let was = self.ledger.set_presence(live.block, live.target, live.file, live.size, good, None)?;
        if matches!(was, Presence::Suspect(_)) {
            forget(self.tx, live.file, live.target)?;
            if !outcome.already_there {
                count_repair(self.tx, (live.file, live.dataset), live.target, self.now)?;
            }
        }
        if live.hop && was == Presence::Absent {
            on_relay_arrival(self.tx, live, self.now)?;
        }
        let moved = if outcome.already_there { 0 } else { live.size as i64 };
        self.count(live, ArrivalCounts { files: 1, bytes: moved, failed: 0 });
        Ok(())
    }

    fn failed(
        &mut self,
        live: &LiveTransfer,
        outcome: &ReportedOutcome,
        fault: &Fault,
    ) -> Result<Timestamp, CatalogError> {
        record_end(
            self.tx,
            live,
            &AttemptEnd { state: None, fault: Some(fault), outcome: Some(outcome), at: self.now },
        )?;
        let not_before = return_to_waiting(self.tx, live, fault, self.now)?;
        // A lease that was given back was never tried.
        if fault.code != FaultCode::GivenBack {
            self.count(live, ArrivalCounts { files: 0, bytes: 0, failed: 1 });
            *self.failures.entry(fault.blame).or_default() += 1;
        }
        Ok(not_before)
    }

    fn find_lfn(&self, file: FileId) -> Result<longhaul_model::Lfn, CatalogError> {
        use crate::rows::codec::Columns;
        let mut select = self.tx.prepare_cached("SELECT lfn FROM files WHERE id = ?1")?;
        Ok(select.query_row([key!(file)], |row| row.parsed(0))?)
    }

    fn count(&mut self, live: &LiveTransfer, what: ArrivalCounts) {
        for block in [live.block, BlockId(0)] {
            let sum = self.arrivals.entry((live.dataset, block, live.target, live.source)).or_default();
            sum.files += what.files;
            sum.bytes += what.bytes;
            sum.failed += what.failed;
        }
    }

    fn finish(mut self, last_sequence: u64) -> Result<ReportResult, CatalogError> {
        self.write_counters()?;
        consequences::flush(&mut self.ledger)?;
        let mut applied = self.applied;
        applied.acknowledged = applied.acknowledged.max(last_sequence);
        self.tx
            .prepare_cached("UPDATE agents SET acknowledged = ?2 WHERE id = ?1")?
            .execute_deferred((key!(self.agent), number(applied.acknowledged)))?;
        let effects = self.ledger.effects;
        applied.complete =
            effects.complete.iter().map(|(&(_, storage), &totals)| (totals, storage)).collect();
        applied.subscriptions_complete = effects.subscriptions_complete.iter().copied().collect();
        applied.blocks = effects.blocks.values().copied().collect();
        applied.replicas.absorb(effects);
        Ok(applied)
    }

    fn write_counters(&mut self) -> Result<(), CatalogError> {
        let mut arrivals = self.tx.prepare_cached(
            "INSERT INTO arrivals AS a (dataset, block, target, source, files, bytes, attempts_failed)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (dataset, block, target, source) DO UPDATE SET files = a.files + excluded.files,
             bytes = a.bytes + excluded.bytes, attempts_failed = a.attempts_failed + \
             excluded.attempts_failed",
        )?;
        let mut links = self.tx.prepare_cached(
            "INSERT INTO links AS l (source, target, files, bytes, attempts_failed) VALUES (?1, ?2, ?3, ?4, \
                ?5)
             ON CONFLICT (source, target) DO UPDATE SET files = l.files + excluded.files,
             bytes = l.bytes + excluded.bytes, attempts_failed = l.attempts_failed + \
             excluded.attempts_failed",
        )?;
        for (&(dataset, block, target, source), sum) in &self.arrivals {
            let row =
                (key!(dataset), key!(block), key!(target), key!(source), sum.files, sum.bytes, sum.failed);
            arrivals.execute_deferred(row)?;
            if block.0 == 0 {
                links.execute_deferred((key!(source), key!(target), sum.files, sum.bytes, sum.failed))?;
            }
        }
        let mut failures = self.tx.prepare_cached(
            "INSERT INTO failures AS f (blame, attempts) VALUES (?1, ?2)
             ON CONFLICT (blame) DO UPDATE SET attempts = f.attempts + excluded.attempts",
        )?;
        for (blame, attempts) in &self.failures {
            failures.execute_deferred((blame.word(), attempts))?;
        }
        Ok(())
    }

    fn file(&self, lfn: &longhaul_model::Lfn) -> Result<Option<FileRow>, CatalogError> {
        find_file(self.tx, lfn)
    }
}

/// Digests are compared a second time, after the engine: a report that contradicts the catalog, or shows
/// nothing that could be compared, creates no replica (promise 2).
///
/// A claim that was shown by nothing is not enough where the replica was found damaged.
fn contradiction(live: &LiveTransfer, outcome: &ReportedOutcome, presence: Presence) -> Option<Fault> {
    if let Some((ours, theirs)) = live.digests.contradiction(&outcome.digests) {
        let detail = format!("reported as done with {theirs}, registered with {ours}");
        return Some(Fault::new(FaultCode::WrongDigest, detail).blaming(Blame::Ourselves));
    }
    let is_suspect = matches!(presence, Presence::Suspect(_));
    if live.digests.is_empty()
        || live.digests.comparable(&outcome.digests)
        || (is_claim(outcome) && !is_suspect)
    {
        return None;
    }
    let detail = format!("reported as done without any digest of those registered: {}", live.digests);
    Some(Fault::new(FaultCode::WrongDigest, detail).blaming(Blame::Target).retrying(Retry::Later))
}

/// Whether a site says of its own storage that the file is there already, without having read it: a hook of
/// the site knows it elsewhere. Nothing was shown, so the replica is claimed, which is no good copy.
fn is_claim(outcome: &ReportedOutcome) -> bool {
    outcome.already_there && outcome.digests.is_empty()
}

/// The outcome as far as it was shown. Of a file without a digest in the catalog only the checksums of the
/// source's chunks were compared, whatever the agent says. Bytes beyond what one attempt can move would count
/// against the limits of the source, which may be another site's.
fn as_shown(live: &LiveTransfer, outcome: &ReportedOutcome) -> ReportedOutcome {
    let moved_max = live.size.saturating_mul(MOVED_PER_FILE_BYTE_MAX);
    let bytes_moved = outcome.bytes_moved.min(moved_max);
    ReportedOutcome {
        verification: if live.digests.is_empty() { Verification::Wire } else { outcome.verification },
        bytes_moved,
        bytes_resent: outcome.bytes_resent.min(bytes_moved),
        ..outcome.clone()
    }
}

/// Whether the fault says of the replica at the source that it is bad.
fn proves_replica_bad(fault: &Fault) -> bool {
    fault.blame == Blame::Source
        && fault.retry == Retry::Never
        && matches!(
            fault.code,
            FaultCode::SourceMissing
                | FaultCode::SourceChanged
                | FaultCode::SourceTruncated
                | FaultCode::WrongDigest
        )
}
