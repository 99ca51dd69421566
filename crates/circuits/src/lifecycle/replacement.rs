//! Make-before-break replacement of a circuit (RFC 3209, section 2.5). Transfers move onto the replacement
//! once its endpoints answer, and its predecessor drains; if the replacement cannot be had, the present
//! circuit stays.

use longhaul_model::{CircuitOrderId, Timestamp};

use super::orders::StandingOrder;
use super::{Lifecycle, Phase, Probe};
use crate::deadline::Deadline;
use crate::event::{Action, Answer, CircuitRequest};
use crate::ledger::{RequestKey, Reservation, ReservationStage};
use crate::{Note, ReservationLedger};

/// A replacement for the present circuit.
#[derive(Debug)]
pub(super) struct Replacement {
    /// The order for it; none if whoever wanted the present circuit wants this one.
    standing: Option<StandingOrder>,
    replaces: RequestKey,
    stage: ReplacementStage,
}

#[derive(Debug)]
enum ReplacementStage {
    /// Its predecessor is not in use yet.
    Pending,
    Requested {
        reservation: Reservation,
        step: usize,
        deadline: Deadline,
    },
    Granted {
        reservation: Reservation,
        probe: Probe,
    },
}

/// The superseded circuit while it drains.
#[derive(Debug)]
pub(super) struct Predecessor {
    reservation: Reservation,
    until: Deadline,
}

impl Replacement {
    pub(super) fn reservation(&self) -> Option<&Reservation> {
        match &self.stage {
            ReplacementStage::Pending => None,
            ReplacementStage::Requested { reservation, .. }
            | ReplacementStage::Granted { reservation, .. } => Some(reservation),
        }
    }

    pub(super) fn order(&self) -> Option<CircuitOrderId> {
        self.standing.as_ref().map(StandingOrder::id)
    }

    fn wake(&self) -> Option<Timestamp> {
        match &self.stage {
            ReplacementStage::Pending => None,
            ReplacementStage::Requested { deadline, .. } => Some(deadline.when()),
            ReplacementStage::Granted { probe, .. } => Some(probe.wake()),
        }
    }
}

impl Lifecycle {
    /// Whether transfers may be under way on a circuit that takes no new ones.
    pub fn is_draining(&self) -> bool {
        self.predecessor.is_some() || matches!(self.phase, Phase::Draining { .. })
    }

    pub(super) fn is_replacement(&self, key: RequestKey) -> bool {
        let next = self.replacement.as_ref().and_then(Replacement::reservation);
        next.is_some_and(|reservation| reservation.key == key)
    }

    pub(super) fn is_releasing(&self, key: RequestKey) -> bool {
        self.predecessor.as_ref().is_some_and(|before| before.reservation.key == key)
    }

    pub(super) fn add_to_ledger(&self, book: &mut ReservationLedger) {
        book.reservations.extend(self.predecessor.iter().map(|before| before.reservation.clone()));
        book.reservations.extend(self.replacement.as_ref().and_then(Replacement::reservation).cloned());
    }

    pub(super) fn replacement_wake(&self) -> Option<Timestamp> {
        let before = self.predecessor.as_ref().map(|before| before.until.when());
        before.into_iter().chain(self.replacement.as_ref().and_then(Replacement::wake)).min()
    }

    /// Plans a replacement for the circuit `replaces`.
    pub(super) fn plan_replacement(
        &mut self,
        standing: Option<StandingOrder>,
        replaces: RequestKey,
        now: Timestamp,
    ) {
        if let Some(order) = self.replacement.as_ref().and_then(Replacement::order) {
            self.note(Note::OrderReplaced { order });
        }
        self.cancel_replacement(now);
        self.replacement = Some(Replacement { standing, replaces, stage: ReplacementStage::Pending });
        self.tick_replacement(now);
    }

    pub(super) fn tick_replacement(&mut self, now: Timestamp) {
        if let Some(before) = &mut self.predecessor
            && before.until.is_past(now)
        {
            self.release_predecessor(now);
        }
        let Some(following) = &mut self.replacement else { return };
        if let Some(standing) = &mut following.standing
            && standing.is_over(now)
        {
            let order = standing.id();
            self.note(Note::OrderExpired { order });
            return self.cancel_replacement(now);
        }
        match &mut following.stage {
            ReplacementStage::Pending => self.begin_replacement(now),
            ReplacementStage::Requested { deadline, .. } => {
                if deadline.is_past(now) {
                    self.note_replacement(Note::Unanswered { within: self.settings.request_timeout });
                    self.fail_replacement(now);
                }
            }
            ReplacementStage::Granted { reservation, probe } => {
                let again = probe.is_due(&self.settings, now);
                let (key, ends) = (reservation.key, reservation.ends.clone().filter(|_| again));
                if probe.is_over(now) {
                    self.note_replacement(Note::EndpointsSilent { within: self.settings.probe_timeout });
                    self.fail_replacement(now);
                } else {
                    self.actions.extend(ends.map(|ends| Action::Probe { key, ends }));
                }
            }
        }
    }

    fn begin_replacement(&mut self, now: Timestamp) {
        let Some(following) = &self.replacement else { return };
        match &self.phase {
            Phase::Established { reservation, probe: None } if reservation.key == following.replaces => {
                self.request_replacement(0, Deadline::after(now, self.settings.request_timeout), now);
            }
            // It may still come into use, or make way for what follows.
            Phase::Requested { .. } | Phase::Established { probe: Some(_), .. } | Phase::Draining { .. } => {}
            Phase::Off | Phase::Cooldown { .. } | Phase::Established { .. } => {
                let standing = self.replacement.take().and_then(|following| following.standing);
                standing.into_iter().for_each(|standing| self.accept_order(standing, now));
            }
        }
    }

    fn request_replacement(&mut self, step: usize, deadline: Deadline, now: Timestamp) {
        let Some(following) = &self.replacement else { return };
        let (mbit, lifetime) = match &following.standing {
            Some(standing) => (self.settings.step(standing.mbit(), step), Some(standing.until().since(now))),
            None => (self.requested_mbit(step), self.order_lifetime(now).or(self.settings.lifetime)),
        };
        let Some(mbit) = mbit else { return self.fail_replacement(now) };
        let reservation = self.new_reservation(mbit, now);
        let key = reservation.key;
        self.set_replacement_stage(ReplacementStage::Requested { reservation, step, deadline });
        self.persist();
        self.note_replacement(Note::Requested { key, mbit });
        self.actions.push_back(Action::Request(CircuitRequest { key, mbit, lifetime }));
    }

    pub(super) fn handle_replacement_answer(&mut self, answer: Answer, now: Timestamp) {
        let Some(following) = &self.replacement else { return };
        match (&following.stage, answer) {
            (ReplacementStage::Requested { reservation, .. }, Answer::Granted(grant)) => {
                let (key, reservation) = (reservation.key, reservation.clone());
                if self.expires_at_once(&grant, now) {
                    let detail = "what is granted expires at once".to_owned();
                    self.note_replacement(Note::Refused { mbit: reservation.mbit, detail });
                    return self.fail_replacement(now);
                }
                self.note_replacement(Note::Granted { key, mbit: grant.mbit, expires: grant.expires });
                let (reservation, probe) = (reservation.granted(grant, now), Probe::new(&self.settings, now));
                self.set_replacement_stage(ReplacementStage::Granted { reservation, probe });
                self.persist();
            }
            (
                ReplacementStage::Requested { reservation, step, deadline },
                Answer::Refused { less, detail },
            ) => {
                let (next, deadline) = (step + 1, *deadline);
                self.note_replacement(Note::Refused { mbit: reservation.mbit, detail });
                // Nothing is held for it.
                self.set_replacement_stage(ReplacementStage::Pending);
                match less {
                    true => self.request_replacement(next, deadline, now),
                    false => self.fail_replacement(now),
                }
            }
            (_, Answer::Lost { detail }) => {
                self.note_replacement(Note::Lost { detail });
                self.fail_replacement(now);
            }
            // A repetition.
            _ => {}
        }
    }

    /// Its endpoints answer: switches to it, and drains the predecessor.
    pub(super) fn switch_to_replacement(&mut self, now: Timestamp) {
        if !matches!(self.phase, Phase::Established { probe: None, .. }) {
            return;
        }
        let granted =
            |following: &mut Replacement| matches!(following.stage, ReplacementStage::Granted { .. });
        let Some(Replacement { standing, replaces, stage: ReplacementStage::Granted { reservation, .. } }) =
            self.replacement.take_if(granted)
        else {
            return;
        };
        let (key, mbit, ends) = (reservation.key, reservation.mbit, reservation.ends.clone());
        let before = self.current().cloned();
        self.phase = Phase::Established { reservation, probe: None };
        self.supersede(key, replaces, standing);
        self.workload.reset_circuit_rate();
        self.note(Note::InUse { mbit, best_effort: self.workload.best_effort_before() });
        let same = before.as_ref().is_some_and(|before| before.ends == ends);
        self.actions.extend(ends.map(|ends| Action::Use { key, mbit, ends }));
        let Some(before) = before else { return };
        match same {
            // Nothing has to move.
            true => self.tear_down(before, now),
            false => self.release_after_drain(before, now),
        }
    }

    /// Promotes a requested replacement to the present circuit. Returns false if there is none.
    pub(super) fn promote_replacement(&mut self) -> bool {
        let begun = |following: &mut Replacement| following.reservation().is_some();
        let Some(Replacement { standing, replaces, stage }) = self.replacement.take_if(begun) else {
            return false;
        };
        let (key, phase) = match stage {
            ReplacementStage::Pending => return false,
            ReplacementStage::Requested { reservation, step, deadline } => {
                (reservation.key, Phase::Requested { reservation, step, deadline })
            }
            ReplacementStage::Granted { reservation, probe } => {
                (reservation.key, Phase::Established { reservation, probe: Some(probe) })
            }
        };
        self.phase = phase;
        self.supersede(key, replaces, standing);
        true
    }

    fn supersede(&mut self, key: RequestKey, replaces: RequestKey, standing: Option<StandingOrder>) {
        self.mark_superseded(replaces);
        self.note(Note::ReplacementInUse { key });
        if let Some(standing) = standing {
            self.replace_order(standing.into_requested());
        }
        self.transfer_outcomes.clear();
        self.renewal_failed = false;
    }

    /// Releases a circuit once nothing is under way on it; it takes no new transfers.
    pub(super) fn release_after_drain(&mut self, reservation: Reservation, now: Timestamp) {
        self.release_predecessor(now);
        let reservation = Reservation { stage: ReservationStage::Releasing, ..reservation };
        self.predecessor =
            Some(Predecessor { reservation, until: Deadline::after(now, self.settings.drain_timeout) });
        self.persist();
    }

    pub(super) fn release_predecessor(&mut self, now: Timestamp) {
        if let Some(before) = self.predecessor.take() {
            self.tear_down(before.reservation, now);
        }
    }

    /// Gives up the replacement; the present circuit stays.
    fn fail_replacement(&mut self, now: Timestamp) {
        self.renewal_failed = true;
        if let Some(order) = self.replacement.as_ref().and_then(Replacement::order) {
            self.note(Note::OrderFailed { order });
        }
        self.drop_replacement(now);
    }

    /// Cancels the replacement, since nobody wants it any more.
    pub(super) fn cancel_replacement(&mut self, now: Timestamp) {
        if self.replacement.as_ref().and_then(Replacement::reservation).is_some() {
            self.note_replacement(Note::NoLongerWanted);
        }
        self.drop_replacement(now);
    }

    fn drop_replacement(&mut self, now: Timestamp) {
        let Some(following) = self.replacement.take() else { return };
        match following.reservation().cloned() {
            Some(reservation) => self.tear_down(reservation, now),
            None => self.persist(),
        }
    }

    fn set_replacement_stage(&mut self, stage: ReplacementStage) {
        if let Some(following) = &mut self.replacement {
            following.stage = stage;
        }
    }

    fn note_replacement(&mut self, note: Note) {
        self.note(Note::Replacement(Box::new(note)));
    }

    /// Requests a replacement if the circuit expires soon and enough work is left.
    pub(super) fn renew_if_expiring(&mut self, now: Timestamp) {
        let (Some(renew), Phase::Established { reservation, probe: None }) =
            (self.settings.renewal, &self.phase)
        else {
            return;
        };
        let Some(expires) = reservation.expires else { return };
        let (key, life) = (reservation.key, expires.since(reservation.since));
        let before = renew.before.min(life / 2);
        if self.replacement.is_some() || self.renewal_failed || self.owner_ended || now < expires - before {
            return;
        }
        let lasts = self.order.as_ref().is_some_and(|order| order.until() > expires.plus(before));
        let work = self
            .workload
            .time_to_finish(true)
            .filter(|work| *work >= renew.work_min && !self.planned_centrally);
        let note = match work.filter(|_| self.order.is_none()) {
            Some(work) => Note::RenewingForWork { work, expires },
            None if lasts || self.wanted => Note::RenewingForDemand { expires },
            None => return,
        };
        self.note_replacement(note);
        self.plan_replacement(None, key, now);
    }
}
