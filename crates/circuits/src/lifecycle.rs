//! The machine of one link. The rows named are those of the ANSE paper's table, as numbered in `tests/table`.

mod following;
mod orders;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::book::{Book, RequestKey, Reservation, Rest, Stage, Why};
use crate::clock::Due;
use crate::event::{Action, Answer, Event, Grant, Held, Wish};
use crate::trouble::Trouble;
use crate::workload::Workload;
use crate::{Look, Note, Settings};

/// Reservations of one link that are given back at the same time. A provider that makes up more is not
/// followed.
const LEAVING_MAX: usize = 256;
/// The ends of a new circuit are probed so many times within their time.
const PROBES: u32 = 10;
/// Names of circuits in whose place there is another. Who has heard of none of these has heard nothing for
/// days.
const INSTEAD_OF_MAX: usize = 32;

/// What a link has, for whoever looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Off,
    Requested {
        since: Timestamp,
    },
    /// `used` once its ends have answered.
    Established {
        since: Timestamp,
        used: bool,
    },
    /// Nothing begins on it any more.
    Draining,
    Resting(Rest),
}

#[derive(Debug)]
enum Phase {
    Off,
    Requested { reservation: Reservation, step: usize, deadline: Due },
    Established { reservation: Reservation, probe: Option<Probe> },
    Draining { reservation: Reservation, since: Timestamp, until: Due, then: Option<Why> },
    Resting { rest: Rest, until: Due },
}

/// Of a circuit whose ends have not answered yet.
#[derive(Debug)]
struct Probe {
    deadline: Due,
    again: Due,
}

impl Probe {
    fn new(settings: &Settings, now: Timestamp) -> Probe {
        Probe { deadline: Due::after(now, settings.probe_within), again: Due::after(now, Duration::ZERO) }
    }

    fn is_over(&mut self, now: Timestamp) -> bool {
        self.deadline.is_past(now)
    }

    /// Whether the ends are to be asked now.
    fn is_due(&mut self, settings: &Settings, now: Timestamp) -> bool {
        let due = self.again.is_past(now);
        if due {
            self.again = Due::after(now, settings.probe_within / PROBES);
        }
        due
    }

    fn wake(&self) -> Timestamp {
        self.deadline.when().min(self.again.when())
    }
}

#[derive(Debug)]
pub struct Lifecycle {
    link: String,
    seed: u64,
    settings: Settings,
    phase: Phase,
    following: Option<following::Following>,
    before: Option<following::Before>,
    /// For the circuit that there is none is to be had that would follow it.
    has_failed_to_renew: bool,
    leaving: BTreeMap<RequestKey, (Reservation, Due)>,
    /// In whose place stands what is asked for or used, oldest first: whoever names one of these means what
    /// there is.
    instead_of: Vec<RequestKey>,
    actions: VecDeque<Action>,
    requests: u64,
    workload: Workload,
    wanted: bool,
    /// Another place decides about work.
    planned: bool,
    /// The owner ends: nothing is asked for any more.
    ended: bool,
    users: usize,
    trouble: Trouble,
    /// What a person wants, and the latest that was heard of.
    order: Option<orders::Standing>,
    last_order: CircuitOrderId,
    /// What a run before could not have.
    untold_order: Option<CircuitOrderId>,
    check: Due,
    consistency: Due,
}

impl Lifecycle {
    /// `link` distinguishes this link's requests from all others of the deployment, `seed` those of this run
    /// from those of earlier ones.
    pub fn new(link: impl Into<String>, settings: Settings, seed: u64, now: Timestamp) -> Lifecycle {
        Lifecycle {
            link: link.into(),
            seed,
            check: Due::after(now, settings.check_every),
            consistency: Due::after(now, settings.consistency_every),
            settings,
            phase: Phase::Off,
            following: None,
            before: None,
            has_failed_to_renew: false,
            leaving: BTreeMap::new(),
            instead_of: Vec::new(),
            actions: VecDeque::new(),
            requests: 0,
            workload: Workload::default(),
            wanted: false,
            planned: false,
            ended: false,
            users: 0,
            trouble: Trouble::default(),
            order: None,
            last_order: CircuitOrderId(0),
            untold_order: None,
        }
    }

    /// After a restart: what was established and lasts is used on, everything else that a provider may hold
    /// is given back (rows 10 to 12).
    pub fn restore(
        link: impl Into<String>,
        settings: Settings,
        seed: u64,
        book: Book,
        now: Timestamp,
    ) -> Lifecycle {
        let mut this = Lifecycle::new(link, settings, seed, now);
        if let Some(rest) = book.rest {
            this.phase = Phase::Resting { rest, until: Due::at(rest.until, rest.window()) };
            this.last_order = rest.order.unwrap_or(this.last_order);
            this.untold_order = rest.order;
        }
        let leave_before = this.settings.leave_before;
        let usable = |reservation: &&Reservation| {
            let lasts = reservation.expires.is_none_or(|at| at > now.plus(leave_before));
            reservation.stage == Stage::Established && reservation.ends.is_some() && lasts
        };
        // Of one that was to follow another, and that one, the later.
        let newest = book.reservations.iter().filter(usable).max_by_key(|one| one.since).map(|one| one.key);
        let mut left = Vec::new();
        for reservation in book.reservations {
            if Some(reservation.key) == newest && matches!(this.phase, Phase::Off) {
                this.instead_of.clone_from(&book.instead_of);
                let Reservation { key, mbit, since, expires, .. } = reservation;
                this.note(Note::Restored { key, mbit, since, expires });
                this.establish(reservation, now);
            } else {
                left.push(reservation);
            }
        }
        for reservation in left {
            if reservation.stage == Stage::Established && this.current().is_some() {
                this.stands_instead_of(reservation.key);
            }
            this.note(Note::LeftOver { key: reservation.key });
            this.give_back(reservation, now);
        }
        this
    }

    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Off => State::Off,
            Phase::Requested { reservation, .. } => State::Requested { since: reservation.since },
            Phase::Established { reservation, probe, .. } => {
                State::Established { since: reservation.since, used: probe.is_none() }
            }
            Phase::Draining { .. } => State::Draining,
            Phase::Resting { rest, .. } => State::Resting(*rest),
        }
    }

    /// Why it is as it is.
    pub fn look(&self) -> Look {
        let mbit = self.current().map_or(self.settings.mbit, |reservation| reservation.mbit);
        let until = match &self.phase {
            Phase::Off => None,
            Phase::Requested { deadline, .. } => Some(deadline.when()),
            Phase::Established { reservation, .. } => reservation.expires,
            Phase::Draining { until, .. } => Some(until.when()),
            Phase::Resting { until, .. } => Some(until.when()),
        };
        let ordered = self.order.as_ref().map(|order| order.by().to_owned());
        let (state, planned) = (self.state(), self.planned);
        let next_mbit = self.following.as_ref().and_then(|next| Some(next.reservation()?.mbit));
        let look = Look { state, until, mbit, next_mbit, ordered, planned, ..Look::default() };
        self.workload.look(&self.settings, look)
    }

    /// All that must be known after a restart.
    pub fn book(&self) -> Book {
        let mut reservations: Vec<_> =
            self.leaving.values().map(|(reservation, _)| reservation.clone()).collect();
        reservations.extend(self.current().cloned());
        let rest = match &self.phase {
            Phase::Resting { rest, .. } => Some(*rest),
            // What is killed while streams leave must not ask for the same again.
            Phase::Draining { since, then: Some(why), .. } => Some(self.rest_from(*why, *since)),
            _ => None,
        };
        let instead_of = match self.current() {
            Some(_) => self.instead_of.clone(),
            None => Vec::new(),
        };
        let mut book = Book { reservations, rest, instead_of };
        self.following_in(&mut book);
        book
    }

    /// The next thing to do. To be carried out before the one after it.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due, at the latest.
    pub fn next_wake(&self) -> Timestamp {
        let phase = match &self.phase {
            Phase::Off => None,
            Phase::Requested { deadline, .. } => Some(deadline.when()),
            Phase::Established { reservation, probe, .. } => {
                let probes = probe.iter().map(Probe::wake);
                let ends = reservation.expires.map(|at| at - self.settings.leave_before);
                probes.chain(ends).min()
            }
            Phase::Draining { until, .. } | Phase::Resting { until, .. } => Some(until.when()),
        };
        let again = self.leaving.values().map(|(_, again)| again.when());
        again
            .chain(phase)
            .chain(self.following_wake())
            .fold(self.check.when().min(self.consistency.when()), Timestamp::min)
    }

    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let failing = self.failing_order();
        match event {
            Event::Tick => {}
            Event::Work { pending_bytes, bytes_per_s } => self.workload.waits(pending_bytes, bytes_per_s),
            Event::Moved { on_circuit, bytes, during } => {
                self.workload.moved(on_circuit, bytes, during, &self.settings, now);
            }
            Event::Wanted(wanted) => self.want(wanted, now),
            Event::Orders(orders) => self.ordered(orders, now),
            Event::Planned(planned) => self.planned = planned,
            Event::Ended => self.owner_ends(now),
            Event::Answer { key, answer } => self.answered(key, answer, now),
            Event::Gone(key) => self.gone(key, now),
            Event::Probed { key, good } => self.probed(key, good, now),
            Event::Transfer { on_circuit, good } => self.trouble.add(now, on_circuit, good),
            Event::Users(users) => self.users = users,
            Event::Left => self.left(now),
            Event::Listed { asked, held } => self.listed(asked, &held, now),
        }
        self.tick(now);
        // The book of a circuit that leaves names what cannot be had then.
        if matches!(self.phase, Phase::Draining { then: Some(_), .. }) && self.failing_order() != failing {
            self.keep();
        }
    }

    fn tick(&mut self, now: Timestamp) {
        self.look_at_order(now);
        self.look_at_phase(now);
        self.look_at_following(now);
        for (reservation, again) in self.leaving.values_mut() {
            if again.is_past(now) {
                *again = Due::after(now, self.settings.consistency_every);
                self.actions.push_back(Action::TearDown(reservation.key));
            }
        }
        if self.consistency.is_past(now) {
            self.consistency = Due::after(now, self.settings.consistency_every);
            self.actions.push_back(Action::List);
        }
        if self.check.is_past(now) {
            self.check = Due::after(now, self.settings.check_every);
            self.check_work(now);
        }
    }

    fn look_at_phase(&mut self, now: Timestamp) {
        match &mut self.phase {
            Phase::Off => {}
            Phase::Requested { deadline, .. } => {
                if deadline.is_past(now) {
                    // Row 5.
                    self.note(Note::Unanswered { within: self.settings.request_timeout });
                    self.end(Some(Why::Request), now);
                }
            }
            Phase::Established { .. } => self.look_at_circuit(now),
            Phase::Draining { until, then, .. } => {
                if self.users == 0 || until.is_past(now) {
                    let then = *then;
                    self.end(then, now);
                }
            }
            Phase::Resting { rest, until } => {
                if until.is_past(now) {
                    // Row 9.
                    self.phase = Phase::Off;
                    self.keep();
                    self.ask_if_wanted(now);
                } else if until.when() < rest.until {
                    // The clock has gone back: a restart is not to begin the rest anew.
                    (rest.since, rest.until) = (now, until.when());
                    self.keep();
                }
            }
        }
    }

    fn look_at_circuit(&mut self, now: Timestamp) {
        let Phase::Established { reservation, probe, .. } = &mut self.phase else { return };
        if reservation.expires.is_some_and(|at| now >= at - self.settings.leave_before) {
            // Row 7.
            self.note(Note::Expires);
            return self.drain(None, now);
        }
        if let Some(probe) = probe {
            if probe.is_over(now) {
                // Row 14.
                self.note(Note::Silent { within: self.settings.probe_within });
                self.end(Some(Why::Transfer), now);
            } else if probe.is_due(&self.settings, now) {
                let (key, ends) = (reservation.key, reservation.ends.clone());
                self.actions.extend(ends.map(|ends| Action::Probe { key, ends }));
            }
        } else if let Some(note) = self.trouble.judge(now, &self.settings) {
            // Row 8.
            self.note(note);
            self.drain(Some(Why::Transfer), now);
        } else if let Some(note) = self.settings.slower.and_then(|slower| self.workload.slower(&slower)) {
            self.note(note);
            self.drain(Some(Why::Transfer), now);
        } else {
            self.look_at_its_end(now);
        }
    }

    /// Row 1, and when little work is left.
    fn check_work(&mut self, now: Timestamp) {
        let worth = self.workload.worth(&self.settings);
        match (&self.phase, worth) {
            (Phase::Off | Phase::Resting { .. }, _) if self.order.is_some() => self.pursue(now),
            (Phase::Off, Some(work)) if !self.ended && !self.planned => {
                self.note(Note::Worth { work, threshold: self.settings.work });
                self.ask(0, Due::after(now, self.settings.request_timeout), now);
            }
            (Phase::Off, _) => self.ask_if_wanted(now),
            (Phase::Established { reservation, probe: None }, _) if !self.is_ordered() => {
                let Some(leave) = self.settings.leave else { return };
                if let Some(work) = self.workload.little(&leave, reservation.since, now) {
                    self.stop_following(now);
                    self.note(Note::Idle { work, threshold: leave.work });
                    self.drain(None, now);
                }
            }
            _ => {}
        }
    }

    /// Somebody wants the circuit that there is, or one that is to follow it, whatever waits.
    fn is_ordered(&self) -> bool {
        self.wanted
            || self.order.is_some()
            || self.following.as_ref().and_then(following::Following::order).is_some()
    }

    /// All is given back, however much waits.
    fn owner_ends(&mut self, now: Timestamp) {
        (self.ended, self.wanted, self.order) = (true, false, None);
        self.stop_following(now);
        self.left(now);
        match &self.phase {
            Phase::Requested { .. } => {
                self.note(Note::Unwanted);
                self.end(None, now);
            }
            Phase::Established { .. } => {
                self.note(Note::Unwanted);
                self.drain(None, now);
            }
            Phase::Off | Phase::Draining { .. } | Phase::Resting { .. } => {}
        }
    }

    fn want(&mut self, wanted: bool, now: Timestamp) {
        let wanted = wanted && !self.ended;
        let before = std::mem::replace(&mut self.wanted, wanted);
        match (&self.phase, wanted) {
            (Phase::Off, true) => self.ask_if_wanted(now),
            (Phase::Requested { .. }, false) if before => {
                self.note(Note::Unwanted);
                self.end(None, now);
            }
            (Phase::Established { .. }, false) if before => {
                self.stop_following(now);
                self.note(Note::Unwanted);
                self.drain(None, now);
            }
            _ => {}
        }
    }

    fn ask_if_wanted(&mut self, now: Timestamp) {
        if self.wanted {
            self.note(Note::Wanted);
            self.ask(0, Due::after(now, self.settings.request_timeout), now);
        }
    }

    /// Asks for the given part of the bandwidth.
    fn ask(&mut self, step: usize, deadline: Due, now: Timestamp) {
        let Some(mbit) = self.step(step) else { return self.rest(Why::Request, now) };
        match self.current().map(|reservation| reservation.key) {
            Some(refused) => self.stands_instead_of(refused),
            None => self.instead_of.clear(),
        }
        let reservation = self.reservation(mbit, now);
        let key = reservation.key;
        self.phase = Phase::Requested { reservation, step, deadline };
        self.keep();
        self.note(Note::Asked { key, mbit });
        let lifetime = self.ordered_for(now).or(self.settings.lifetime);
        self.actions.push_back(Action::Request(Wish { key, mbit, lifetime }));
    }

    /// With a new name.
    fn reservation(&mut self, mbit: u64, now: Timestamp) -> Reservation {
        self.requests += 1;
        let key = RequestKey::of(&self.link, self.seed, now, self.requests);
        Reservation { key, stage: Stage::Requested, since: now, mbit, expires: None, ends: None }
    }

    fn answered(&mut self, key: RequestKey, answer: Answer, now: Timestamp) {
        if self.follows(key) {
            return self.following_answered(answer, now);
        }
        if self.fades(key) {
            // Given back anyway.
            return if matches!(answer, Answer::Lost { .. }) {
                self.left(now)
            };
        }
        let ours = self.current().is_some_and(|reservation| reservation.key == key);
        match (&self.phase, answer) {
            (Phase::Requested { .. }, Answer::Granted(grant)) if ours => self.granted(grant, now),
            (Phase::Requested { reservation, step, deadline }, Answer::Refused { less, detail }) if ours => {
                let (next, deadline) = (step + 1, *deadline);
                self.note(Note::Refused { mbit: reservation.mbit, detail });
                match self.step(next) {
                    Some(_) if less => self.ask(next, deadline, now),
                    // Row 4.
                    _ => self.rest(Why::Request, now),
                }
            }
            (Phase::Requested { .. }, Answer::Lost { detail }) if ours => {
                self.note(Note::Lost { detail });
                self.end(Some(Why::Request), now);
            }
            (Phase::Established { .. }, Answer::Lost { detail }) if ours => {
                self.note(Note::Lost { detail });
                self.stop_using();
                self.end(Some(Why::Transfer), now);
            }
            (Phase::Draining { then, .. }, Answer::Lost { .. }) if ours => {
                let then = *then;
                self.end(then, now);
            }
            // Row 13.
            (_, Answer::Granted(grant)) if !ours => {
                self.note(Note::Late { key });
                self.orphan(key, grant.mbit, now);
            }
            // Said twice, or of something that is given back anyway.
            _ => {}
        }
    }

    /// Row 3.
    fn granted(&mut self, grant: Grant, now: Timestamp) {
        let Phase::Requested { reservation, .. } = &self.phase else { return };
        let reservation = reservation.clone();
        if self.expires_at_once(&grant, now) {
            let detail = "what is granted expires at once".to_owned();
            self.note(Note::Refused { mbit: reservation.mbit, detail });
            return self.end(Some(Why::Request), now);
        }
        self.note(Note::Granted { key: reservation.key, mbit: grant.mbit, expires: grant.expires });
        self.establish(reservation.granted(grant, now), now);
        self.keep();
    }

    fn expires_at_once(&self, grant: &Grant, now: Timestamp) -> bool {
        grant.expires.is_some_and(|at| at <= now.plus(self.settings.leave_before))
    }

    fn establish(&mut self, reservation: Reservation, now: Timestamp) {
        let probe = Probe::new(&self.settings, now);
        self.trouble.clear();
        self.has_failed_to_renew = false;
        self.phase = Phase::Established { reservation, probe: Some(probe) };
    }

    /// Row 6.
    fn probed(&mut self, key: RequestKey, good: bool, now: Timestamp) {
        if good && self.follows(key) {
            return self.following_probed(now);
        }
        let Phase::Established { reservation, probe, .. } = &mut self.phase else { return };
        if reservation.key != key || !good || probe.take().is_none() {
            return;
        }
        let (mbit, ends) = (reservation.mbit, reservation.ends.clone());
        self.workload.circuit_begins(&self.settings, now);
        self.note(Note::Used { mbit, plain: self.workload.plain_before() });
        self.actions.extend(ends.map(|ends| Action::Use { key, mbit, ends }));
    }

    /// Nothing begins on the circuit any more; given back when nobody uses it.
    fn drain(&mut self, then: Option<Why>, now: Timestamp) {
        self.stop_using();
        let Phase::Established { reservation, .. } = std::mem::replace(&mut self.phase, Phase::Off) else {
            return;
        };
        if self.follow_at_once() {
            return self.fade(reservation, now);
        }
        let reservation = Reservation { stage: Stage::Leaving, ..reservation };
        let until = Due::after(now, self.settings.drain);
        self.phase = Phase::Draining { reservation, since: now, until, then };
        match self.users {
            0 => self.end(then, now),
            _ => self.keep(),
        }
    }

    fn stop_using(&mut self) {
        if let Phase::Established { reservation, probe: None, .. } = &self.phase {
            self.actions.push_back(Action::StopUsing(reservation.key));
        }
    }

    /// Gives back what there is. The use has stopped.
    fn end(&mut self, then: Option<Why>, now: Timestamp) {
        let reservation = self.current().cloned();
        match then {
            _ if self.follow_at_once() => {}
            Some(why) => self.set_rest(why, now),
            None => self.phase = Phase::Off,
        }
        if let Some(reservation) = reservation {
            self.give_back(reservation, now);
        }
        self.note_rest();
    }

    /// Nothing is to be given back.
    fn rest(&mut self, why: Why, now: Timestamp) {
        self.set_rest(why, now);
        self.keep();
        self.note_rest();
    }

    fn set_rest(&mut self, why: Why, now: Timestamp) {
        let rest = self.rest_from(why, now);
        self.phase = Phase::Resting { rest, until: Due::at(rest.until, rest.window()) };
        self.order_failed();
    }

    fn rest_from(&self, why: Why, since: Timestamp) -> Rest {
        let window = match why {
            Why::Request | Why::Released => self.settings.request_window,
            Why::Transfer => self.settings.transfer_window,
        };
        Rest { why, since, until: since.plus(window), order: self.failing_order() }
    }

    /// Said once it is written down.
    fn note_rest(&mut self) {
        if let Phase::Resting { rest, .. } = self.phase {
            self.note(Note::Rests { until: rest.until });
        }
    }

    fn give_back(&mut self, reservation: Reservation, now: Timestamp) {
        let key = reservation.key;
        let reservation = Reservation { stage: Stage::Leaving, ..reservation };
        self.leaving.insert(key, (reservation, Due::after(now, self.settings.consistency_every)));
        self.keep();
        self.actions.push_back(Action::TearDown(key));
    }

    /// What nobody here wants.
    fn orphan(&mut self, key: RequestKey, mbit: u64, now: Timestamp) {
        if self.leaving.contains_key(&key) {
            self.actions.push_back(Action::TearDown(key));
        } else if self.leaving.len() < LEAVING_MAX {
            let stage = Stage::Leaving;
            self.give_back(Reservation { key, stage, since: now, mbit, expires: None, ends: None }, now);
        }
    }

    fn gone(&mut self, key: RequestKey, now: Timestamp) {
        if self.leaving.remove(&key).is_some() {
            self.note(Note::Gone { key });
            self.keep();
        } else if self.follows(key) || self.current().is_some_and(|reservation| reservation.key == key) {
            let detail = "the provider does not know it any more".to_owned();
            self.answered(key, Answer::Lost { detail }, now);
        }
    }

    fn listed(&mut self, asked: Timestamp, held: &[Held], now: Timestamp) {
        for one in held {
            let known = self.current().is_some_and(|reservation| reservation.key == one.key)
                || self.follows(one.key)
                || self.fades(one.key);
            // Those that are given back are seen to anyway.
            if !known && !self.leaving.contains_key(&one.key) {
                self.note(Note::Orphan { key: one.key });
                self.orphan(one.key, 0, now);
            }
        }
        // A request may have crossed with the list; a circuit that was there before the provider was asked
        // has not.
        let Phase::Established { reservation, .. } = &self.phase else { return };
        let (key, since) = (reservation.key, reservation.since);
        // What began in the future, for a clock that has gone back, was there as well.
        if (since < asked || since > now) && !held.iter().any(|one| one.key == key && one.up) {
            let detail = "the provider does not list it any more".to_owned();
            self.answered(key, Answer::Lost { detail }, now);
        }
    }

    /// What is asked for or had. Not what is given back.
    fn current(&self) -> Option<&Reservation> {
        match &self.phase {
            Phase::Requested { reservation, .. }
            | Phase::Established { reservation, .. }
            | Phase::Draining { reservation, .. } => Some(reservation),
            Phase::Off | Phase::Resting { .. } => None,
        }
    }

    /// What there is now was wanted where that one is, or was.
    fn stands_instead_of(&mut self, key: RequestKey) {
        if self.instead_of.len() >= INSTEAD_OF_MAX {
            self.instead_of.remove(0);
        }
        self.instead_of.push(key);
    }

    /// What one means that names this: it, or what stands in its place.
    fn named(&self, key: RequestKey) -> Option<RequestKey> {
        let current = self.current()?.key;
        (current == key || self.instead_of.contains(&key)).then_some(current)
    }

    fn keep(&mut self) {
        let book = self.book();
        self.actions.push_back(Action::Keep(book));
    }

    fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }
}
