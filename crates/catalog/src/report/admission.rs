//! To whom a fact must belong, and in which state of the thing that it is about it may come. One row of
//! [`RULES`] for each kind of claim that agents make; [`admit`] judges a claim by it.
//!
//! An agent's certificate is the key of one site. What it says is admitted about things of its own, while
//! they are open; anything else changes nothing. Honest agents come late: they repeat facts after a restart,
//! and finish what was cancelled or given to another agent of their site meanwhile. That is no attack, so it
//! is told apart from claims about the things of other sites, which no honest agent makes.

use longhaul_model::{AgentId, FaultCode, SiteId};

use crate::rows::codec::{Columns, key};
use crate::sql::{Optional, Transaction};
use crate::{CatalogError, TaskKind, TaskRow};

/// What an agent claims, by kind. The words are label values of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Claim {
    /// An attempt ended.
    Outcome,
    /// A scan found files.
    Scanned,
    /// Files were verified or deleted.
    Checked,
    /// A task ended.
    TaskDone,
    /// A door allowed or refused access.
    DoorDecision,
    /// A lease is held since before the hello.
    HeldLease,
    /// An attempt makes progress.
    Progress,
    /// A storage has room.
    Space,
    /// A peer was probed.
    Probe,
    /// A transfer showed the path from a peer.
    Path,
    /// An uplink of the agent carries traffic.
    Uplink,
    /// A link to the agent has circuits.
    Circuit,
}

/// To whom the thing must belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The agent that holds the lease. No other agent ever knows the attempt.
    Leaseholder,
    /// The agent that serves the storage. It may have taken it over from another of its site.
    StorageAgent,
    /// Any agent of the site.
    Site,
    /// The agent that claims it: the certificate names the thing, and nobody else's can be named.
    Speaker,
    /// The far end of a link whose near end is the agent: any other site.
    OtherSite,
}

/// The state of the thing when the claim is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Open,
    /// Ended by the service; its agent may have done part of it before it learned that.
    Cancelled,
    /// Ended by its agent's word.
    Ended,
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Full,
    /// Counts as far as it takes trust away from what the agent itself holds: files that are gone or bad.
    LossesOnly,
    /// Harmless and without effect: honest agents send this, too.
    Late,
    /// About something of another site. Without effect, and counted.
    Foreign,
}

/// A thing that a claim is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    pub agent: AgentId,
    pub site: SiteId,
    pub phase: Phase,
}

pub struct Rule {
    pub claim: Claim,
    pub owner: Owner,
    /// What becomes of the owner's claim about a thing that was cancelled. One that has ended admits nothing.
    pub cancelled: Admission,
}

pub const RULES: &[Rule] = &[
    rule(Claim::Outcome, Owner::Leaseholder, Admission::Late),
    rule(Claim::Scanned, Owner::StorageAgent, Admission::Late),
    rule(Claim::Checked, Owner::StorageAgent, Admission::LossesOnly),
    rule(Claim::TaskDone, Owner::StorageAgent, Admission::Late),
    rule(Claim::DoorDecision, Owner::Site, Admission::Late),
    rule(Claim::HeldLease, Owner::Leaseholder, Admission::Late),
    rule(Claim::Progress, Owner::Leaseholder, Admission::Late),
    rule(Claim::Space, Owner::StorageAgent, Admission::Late),
    rule(Claim::Probe, Owner::OtherSite, Admission::Late),
    rule(Claim::Path, Owner::OtherSite, Admission::Late),
    rule(Claim::Uplink, Owner::Speaker, Admission::Full),
    rule(Claim::Circuit, Owner::Speaker, Admission::Full),
];

const fn rule(claim: Claim, owner: Owner, cancelled: Admission) -> Rule {
    Rule { claim, owner, cancelled }
}

impl Claim {
    pub fn word(self) -> &'static str {
        match self {
            Claim::Outcome => "outcome",
            Claim::Scanned => "scanned",
            Claim::Checked => "checked",
            Claim::TaskDone => "task-done",
            Claim::DoorDecision => "door-decision",
            Claim::HeldLease => "held-lease",
            Claim::Progress => "progress",
            Claim::Space => "space",
            Claim::Probe => "probe",
            Claim::Path => "path",
            Claim::Uplink => "uplink",
            Claim::Circuit => "circuit",
        }
    }
}

/// Judges a claim of an agent of a site. No subject: the thing is unknown, deleted, or long over.
pub fn admit(claim: Claim, (agent, site): (AgentId, SiteId), subject: Option<Subject>) -> Admission {
    let Some(rule) = RULES.iter().find(|rule| rule.claim == claim) else { return Admission::Late };
    if rule.owner == Owner::Speaker {
        return Admission::Full;
    }
    let Some(subject) = subject else { return Admission::Late };
    let not_owned = match rule.owner {
        Owner::Leaseholder if subject.agent != agent => Some(Admission::Foreign),
        Owner::StorageAgent | Owner::Site if subject.site != site => Some(Admission::Foreign),
        Owner::StorageAgent if subject.agent != agent => Some(Admission::Late),
        Owner::OtherSite if subject.site == site => Some(Admission::Late),
        _ => None,
    };
    not_owned.unwrap_or(match subject.phase {
        Phase::Open => Admission::Full,
        Phase::Cancelled => rule.cancelled,
        Phase::Ended => Admission::Late,
    })
}

pub(super) fn site_of(tx: &Transaction<'_>, agent: AgentId) -> Result<SiteId, CatalogError> {
    let mut select = tx.prepare_cached("SELECT site FROM agents WHERE id = ?1")?;
    let site = select.query_row([key!(agent)], |row| row.id(0)).optional()?;
    site.ok_or_else(|| CatalogError::not_found("agent", agent))
}

/// A task belongs to the agent that serves its storage now.
pub(super) fn task_subject(tx: &Transaction<'_>, task: &TaskRow) -> Result<Option<Subject>, CatalogError> {
    let phase = match (&task.fault, task.done) {
        (_, false) => Phase::Open,
        // Agents end no task so by themselves.
        (Some(fault), true) if fault.code == FaultCode::Cancelled => Phase::Cancelled,
        (_, true) => Phase::Ended,
    };
    let mut select =
        tx.prepare_cached("SELECT agent, site FROM storages WHERE id = ?1 AND removed IS NULL")?;
    let subject = select
        .query_row([key!(task.storage)], |row| Ok(Subject { agent: row.id(0)?, site: row.id(1)?, phase }));
    Ok(subject.optional()?)
}

/// Whether a claim about a task of this kind can be made at all.
pub(super) fn fits(claim: Claim, kind: &TaskKind) -> bool {
    matches!(kind, TaskKind::Scan { .. }) == (claim == Claim::Scanned) || claim == Claim::TaskDone
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: (AgentId, SiteId) = (AgentId(1), SiteId(1));
    const TWIN: (AgentId, SiteId) = (AgentId(2), SiteId(1));
    const STRANGER: (AgentId, SiteId) = (AgentId(3), SiteId(2));

    /// Open, cancelled, ended.
    fn judged(claim: Claim, speaker: (AgentId, SiteId)) -> [Admission; 3] {
        [Phase::Open, Phase::Cancelled, Phase::Ended]
            .map(|phase| admit(claim, speaker, Some(Subject { agent: OWNER.0, site: OWNER.1, phase })))
    }

    #[test]
    fn each_claim_counts_for_its_owner_only_and_while_it_is_open() {
        use Admission::{Foreign, Full, Late, LossesOnly};
        let table = [
            (Claim::Outcome, [Full, Late, Late], [Foreign; 3], [Foreign; 3]),
            (Claim::Scanned, [Full, Late, Late], [Late; 3], [Foreign; 3]),
            (Claim::Checked, [Full, LossesOnly, Late], [Late; 3], [Foreign; 3]),
            (Claim::TaskDone, [Full, Late, Late], [Late; 3], [Foreign; 3]),
            (Claim::DoorDecision, [Full, Late, Late], [Full, Late, Late], [Foreign; 3]),
            (Claim::HeldLease, [Full, Late, Late], [Foreign; 3], [Foreign; 3]),
            (Claim::Progress, [Full, Late, Late], [Foreign; 3], [Foreign; 3]),
            (Claim::Space, [Full, Late, Late], [Late; 3], [Foreign; 3]),
            (Claim::Probe, [Late; 3], [Late; 3], [Full, Late, Late]),
            (Claim::Path, [Late; 3], [Late; 3], [Full, Late, Late]),
            (Claim::Uplink, [Full; 3], [Full; 3], [Full; 3]),
            (Claim::Circuit, [Full; 3], [Full; 3], [Full; 3]),
        ];
        assert_eq!(table.len(), RULES.len(), "a row for each rule");
        for (claim, own, twin, stranger) in table {
            assert_eq!(judged(claim, OWNER), own, "{claim:?} of the owner");
            assert_eq!(judged(claim, TWIN), twin, "{claim:?} of another agent of the site");
            assert_eq!(judged(claim, STRANGER), stranger, "{claim:?} of another site");
            let gone = if own == [Full; 3] { Full } else { Late };
            assert_eq!(admit(claim, OWNER, None), gone, "{claim:?} about a thing that is gone");
        }
    }
}
