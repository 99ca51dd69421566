//! Another circuit while there is one: made before that is broken. Transfers move onto it once its ends
//! answer, and what is under way on the one before leaves it; if it cannot be had, the one that there is
//! stays.

use longhaul_model::{CircuitOrderId, Timestamp};

use super::orders::Standing;
use super::{Lifecycle, Phase, Probe};
use crate::book::{RequestKey, Reservation, Stage as Held};
use crate::clock::Due;
use crate::event::{Action, Answer, Wish};
use crate::{Book, Note};

/// What is to follow the circuit that there is.
#[derive(Debug)]
pub(super) struct Following {
    /// Who wants it; none: whoever wanted the one that there is.
    standing: Option<Standing>,
    replaces: RequestKey,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// What it is to follow is not used yet.
    Waits,
    Requested {
        reservation: Reservation,
        step: usize,
        deadline: Due,
    },
    Granted {
        reservation: Reservation,
        probe: Probe,
    },
}

/// The circuit of before, until nothing is under way on it.
#[derive(Debug)]
pub(super) struct Before {
    reservation: Reservation,
    until: Due,
}

impl Following {
    pub(super) fn reservation(&self) -> Option<&Reservation> {
        match &self.stage {
            Stage::Waits => None,
            Stage::Requested { reservation, .. } | Stage::Granted { reservation, .. } => Some(reservation),
        }
    }

    pub(super) fn order(&self) -> Option<CircuitOrderId> {
        self.standing.as_ref().map(Standing::id)
    }

    fn wake(&self) -> Option<Timestamp> {
        match &self.stage {
            Stage::Waits => None,
            Stage::Requested { deadline, .. } => Some(deadline.when()),
            Stage::Granted { probe, .. } => Some(probe.wake()),
        }
    }
}

impl Lifecycle {
    /// Whether something may be under way on a circuit that is not used any more.
    pub fn is_leaving(&self) -> bool {
        self.before.is_some() || matches!(self.phase, Phase::Draining { .. })
    }

    pub(super) fn follows(&self, key: RequestKey) -> bool {
        let next = self.following.as_ref().and_then(Following::reservation);
        next.is_some_and(|reservation| reservation.key == key)
    }

    pub(super) fn fades(&self, key: RequestKey) -> bool {
        self.before.as_ref().is_some_and(|before| before.reservation.key == key)
    }

    pub(super) fn following_in(&self, book: &mut Book) {
        book.reservations.extend(self.before.iter().map(|before| before.reservation.clone()));
        book.reservations.extend(self.following.as_ref().and_then(Following::reservation).cloned());
    }

    pub(super) fn following_wake(&self) -> Option<Timestamp> {
        let before = self.before.as_ref().map(|before| before.until.when());
        before.into_iter().chain(self.following.as_ref().and_then(Following::wake)).min()
    }

    /// Another is wanted in place of that one.
    pub(super) fn follow(&mut self, standing: Option<Standing>, replaces: RequestKey, now: Timestamp) {
        if let Some(order) = self.following.as_ref().and_then(Following::order) {
            self.note(Note::OrderReplaced { order });
        }
        self.stop_following(now);
        self.following = Some(Following { standing, replaces, stage: Stage::Waits });
        self.look_at_following(now);
    }

    pub(super) fn look_at_following(&mut self, now: Timestamp) {
        if let Some(before) = &mut self.before
            && before.until.is_past(now)
        {
            self.left(now);
        }
        let Some(following) = &mut self.following else { return };
        if let Some(standing) = &mut following.standing
            && standing.is_over(now)
        {
            let order = standing.id();
            self.note(Note::OrderOver { order });
            return self.stop_following(now);
        }
        match &mut following.stage {
            Stage::Waits => self.begin_to_follow(now),
            Stage::Requested { deadline, .. } => {
                if deadline.is_past(now) {
                    self.note_next(Note::Unanswered { within: self.settings.request_timeout });
                    self.cannot_follow(now);
                }
            }
            Stage::Granted { reservation, probe } => {
                let again = probe.is_due(&self.settings, now);
                let (key, ends) = (reservation.key, reservation.ends.clone().filter(|_| again));
                if probe.is_over(now) {
                    self.note_next(Note::Silent { within: self.settings.probe_within });
                    self.cannot_follow(now);
                } else {
                    self.actions.extend(ends.map(|ends| Action::Probe { key, ends }));
                }
            }
        }
    }

    fn begin_to_follow(&mut self, now: Timestamp) {
        let Some(following) = &self.following else { return };
        match &self.phase {
            Phase::Established { reservation, probe: None } if reservation.key == following.replaces => {
                self.ask_to_follow(0, Due::after(now, self.settings.request_timeout), now);
            }
            // It may yet come to be used, or leaves its place to whatever comes.
            Phase::Requested { .. } | Phase::Established { probe: Some(_), .. } | Phase::Draining { .. } => {}
            Phase::Off | Phase::Resting { .. } | Phase::Established { .. } => {
                let standing = self.following.take().and_then(|following| following.standing);
                standing.into_iter().for_each(|standing| self.take_order(standing, now));
            }
        }
    }

    fn ask_to_follow(&mut self, step: usize, deadline: Due, now: Timestamp) {
        let Some(following) = &self.following else { return };
        let (mbit, lifetime) = match &following.standing {
            Some(standing) => (self.settings.step(standing.mbit(), step), Some(standing.until().since(now))),
            None => (self.step(step), self.ordered_for(now).or(self.settings.lifetime)),
        };
        let Some(mbit) = mbit else { return self.cannot_follow(now) };
        let reservation = self.reservation(mbit, now);
        let key = reservation.key;
        self.set_following(Stage::Requested { reservation, step, deadline });
        self.keep();
        self.note_next(Note::Asked { key, mbit });
        self.actions.push_back(Action::Request(Wish { key, mbit, lifetime }));
    }

    pub(super) fn following_answered(&mut self, answer: Answer, now: Timestamp) {
        let Some(following) = &self.following else { return };
        match (&following.stage, answer) {
            (Stage::Requested { reservation, .. }, Answer::Granted(grant)) => {
                let (key, reservation) = (reservation.key, reservation.clone());
                if self.expires_at_once(&grant, now) {
                    let detail = "what is granted expires at once".to_owned();
                    self.note_next(Note::Refused { mbit: reservation.mbit, detail });
                    return self.cannot_follow(now);
                }
                self.note_next(Note::Granted { key, mbit: grant.mbit, expires: grant.expires });
                let (reservation, probe) = (reservation.granted(grant, now), Probe::new(&self.settings, now));
                self.set_following(Stage::Granted { reservation, probe });
                self.keep();
            }
            (Stage::Requested { reservation, step, deadline }, Answer::Refused { less, detail }) => {
                let (next, deadline) = (step + 1, *deadline);
                self.note_next(Note::Refused { mbit: reservation.mbit, detail });
                // Nothing is held for it.
                self.set_following(Stage::Waits);
                match less {
                    true => self.ask_to_follow(next, deadline, now),
                    false => self.cannot_follow(now),
                }
            }
            (_, Answer::Lost { detail }) => {
                self.note_next(Note::Lost { detail });
                self.cannot_follow(now);
            }
            // Said twice.
            _ => {}
        }
    }

    /// Its ends answer: it is used, and the one before is left.
    pub(super) fn following_probed(&mut self, now: Timestamp) {
        if !matches!(self.phase, Phase::Established { probe: None, .. }) {
            return;
        }
        let granted = |following: &mut Following| matches!(following.stage, Stage::Granted { .. });
        let Some(Following { standing, replaces, stage: Stage::Granted { reservation, .. } }) =
            self.following.take_if(granted)
        else {
            return;
        };
        let (key, mbit, ends) = (reservation.key, reservation.mbit, reservation.ends.clone());
        let before = self.current().cloned();
        self.phase = Phase::Established { reservation, probe: None };
        self.takes_its_place(key, replaces, standing);
        self.workload.circuit_follows();
        self.note(Note::Used { mbit, plain: self.workload.plain_before() });
        let same = before.as_ref().is_some_and(|before| before.ends == ends);
        self.actions.extend(ends.map(|ends| Action::Use { key, mbit, ends }));
        let Some(before) = before else { return };
        match same {
            // Nothing has to move.
            true => self.give_back(before, now),
            false => self.fade(before, now),
        }
    }

    /// What was to follow is all that there is now, if anything was.
    pub(super) fn follow_at_once(&mut self) -> bool {
        let begun = |following: &mut Following| following.reservation().is_some();
        let Some(Following { standing, replaces, stage }) = self.following.take_if(begun) else {
            return false;
        };
        let (key, phase) = match stage {
            Stage::Waits => return false,
            Stage::Requested { reservation, step, deadline } => {
                (reservation.key, Phase::Requested { reservation, step, deadline })
            }
            Stage::Granted { reservation, probe } => {
                (reservation.key, Phase::Established { reservation, probe: Some(probe) })
            }
        };
        self.phase = phase;
        self.takes_its_place(key, replaces, standing);
        true
    }

    fn takes_its_place(&mut self, key: RequestKey, replaces: RequestKey, standing: Option<Standing>) {
        self.stands_instead_of(replaces);
        self.note(Note::Follows { key });
        if let Some(standing) = standing {
            self.stand_in(standing.begun());
        }
        self.trouble.clear();
        self.has_failed_to_renew = false;
    }

    /// Nothing begins on it any more; given back when nothing is under way on it.
    pub(super) fn fade(&mut self, reservation: Reservation, now: Timestamp) {
        self.left(now);
        let reservation = Reservation { stage: Held::Leaving, ..reservation };
        self.before = Some(Before { reservation, until: Due::after(now, self.settings.drain) });
        self.keep();
    }

    pub(super) fn left(&mut self, now: Timestamp) {
        if let Some(before) = self.before.take() {
            self.give_back(before.reservation, now);
        }
    }

    /// The circuit that there is stays.
    fn cannot_follow(&mut self, now: Timestamp) {
        self.has_failed_to_renew = true;
        if let Some(order) = self.following.as_ref().and_then(Following::order) {
            self.note(Note::OrderFailed { order });
        }
        self.give_up_following(now);
    }

    /// Nobody wants it any more.
    pub(super) fn stop_following(&mut self, now: Timestamp) {
        if self.following.as_ref().and_then(Following::reservation).is_some() {
            self.note_next(Note::Unwanted);
        }
        self.give_up_following(now);
    }

    fn give_up_following(&mut self, now: Timestamp) {
        let Some(following) = self.following.take() else { return };
        match following.reservation().cloned() {
            Some(reservation) => self.give_back(reservation, now),
            None => self.keep(),
        }
    }

    fn set_following(&mut self, stage: Stage) {
        if let Some(following) = &mut self.following {
            following.stage = stage;
        }
    }

    fn note_next(&mut self, note: Note) {
        self.note(Note::Next(Box::new(note)));
    }

    /// Whether the circuit that there is ends soon, and there is enough to do for another.
    pub(super) fn look_at_its_end(&mut self, now: Timestamp) {
        let (Some(renew), Phase::Established { reservation, probe: None }) =
            (self.settings.renew, &self.phase)
        else {
            return;
        };
        let Some(expires) = reservation.expires else { return };
        let (key, life) = (reservation.key, expires.since(reservation.since));
        let before = renew.before.min(life / 2);
        if self.following.is_some() || self.has_failed_to_renew || self.ended || now < expires - before {
            return;
        }
        let lasts = self.order.as_ref().is_some_and(|order| order.until() > expires.plus(before));
        let work = self.workload.work(true).filter(|work| *work >= renew.work && !self.planned);
        let note = match work.filter(|_| self.order.is_none()) {
            Some(work) => Note::Renews { work, expires },
            None if lasts || self.wanted => Note::RenewsForWish { expires },
            None => return,
        };
        self.note_next(note);
        self.follow(None, key, now);
    }
}
