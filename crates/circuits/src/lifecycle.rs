//! State machine of one link's circuit. The rows named in comments are those of the ANSE paper's table, as
//! numbered in `tests/table`.

mod orders;
mod replacement;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::deadline::Deadline;
use crate::event::{Action, Answer, CircuitRequest, Event, Grant, ProviderReservation};
use crate::ledger::{Cooldown, CooldownReason, RequestKey, Reservation, ReservationLedger, ReservationStage};
use crate::transfer_outcomes::TransferOutcomes;
use crate::workload::Workload;
use crate::{Explanation, Note, Settings};

/// Reservations of one link being torn down at the same time; a provider that invents more is not followed.
const RELEASING_MAX: usize = 256;
/// Probes of a new circuit's endpoints within their timeout.
const PROBES_PER_TIMEOUT: u32 = 10;
/// Superseded keys remembered. Who knows none of these has heard nothing for days.
const SUPERSEDED_KEYS_MAX: usize = 32;

/// Public state of a link's circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Off,
    Requested {
        since: Timestamp,
    },
    /// `used` once its endpoints have answered.
    Established {
        since: Timestamp,
        used: bool,
    },
    /// Nothing starts on it any more.
    Draining,
    Cooldown(Cooldown),
}

#[derive(Debug)]
enum Phase {
    Off,
    Requested { reservation: Reservation, step: usize, deadline: Deadline },
    Established { reservation: Reservation, probe: Option<Probe> },
    Draining { reservation: Reservation, since: Timestamp, until: Deadline, then: Option<CooldownReason> },
    Cooldown { rest: Cooldown, until: Deadline },
}

/// Probing of a circuit whose endpoints have not answered yet.
#[derive(Debug)]
struct Probe {
    deadline: Deadline,
    again: Deadline,
}

impl Probe {
    fn new(settings: &Settings, now: Timestamp) -> Probe {
        Probe {
            deadline: Deadline::after(now, settings.probe_timeout),
            again: Deadline::after(now, Duration::ZERO),
        }
    }

    fn is_over(&mut self, now: Timestamp) -> bool {
        self.deadline.is_past(now)
    }

    /// Whether the endpoints are to be probed now.
    fn is_due(&mut self, settings: &Settings, now: Timestamp) -> bool {
        let due = self.again.is_past(now);
        if due {
            self.again = Deadline::after(now, settings.probe_timeout / PROBES_PER_TIMEOUT);
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
    replacement: Option<replacement::Replacement>,
    predecessor: Option<replacement::Predecessor>,
    /// The present circuit could not be renewed; not tried again.
    renewal_failed: bool,
    releasing: BTreeMap<RequestKey, (Reservation, Deadline)>,
    /// Keys of superseded circuits, oldest first: whoever names one of these means the present one.
    superseded_keys: Vec<RequestKey>,
    actions: VecDeque<Action>,
    requests: u64,
    workload: Workload,
    wanted: bool,
    /// A central planner decides about work.
    planned_centrally: bool,
    /// The owner ended: nothing is requested any more.
    owner_ended: bool,
    users: usize,
    transfer_outcomes: TransferOutcomes,
    /// The order of a person, if any.
    order: Option<orders::StandingOrder>,
    last_order: CircuitOrderId,
    /// Order that failed in an earlier run and may not have been reported.
    unreported_order: Option<CircuitOrderId>,
    check: Deadline,
    reconciliation: Deadline,
}

impl Lifecycle {
    /// `link` distinguishes this link's requests from all others of the deployment, `seed` those of this run
    /// from those of earlier ones.
    pub fn new(link: impl Into<String>, settings: Settings, seed: u64, now: Timestamp) -> Lifecycle {
        Lifecycle {
            link: link.into(),
            seed,
            check: Deadline::after(now, settings.check_interval),
            reconciliation: Deadline::after(now, settings.reconciliation_interval),
            settings,
            phase: Phase::Off,
            replacement: None,
            predecessor: None,
            renewal_failed: false,
            releasing: BTreeMap::new(),
            superseded_keys: Vec::new(),
            actions: VecDeque::new(),
            requests: 0,
            workload: Workload::default(),
            wanted: false,
            planned_centrally: false,
            owner_ended: false,
            users: 0,
            transfer_outcomes: TransferOutcomes::default(),
            order: None,
            last_order: CircuitOrderId(0),
            unreported_order: None,
        }
    }

    /// Restores after a restart: an established circuit that lasts is used on, everything else that a
    /// provider may hold is torn down (rows 10 to 12).
    pub fn restore(
        link: impl Into<String>,
        settings: Settings,
        seed: u64,
        book: ReservationLedger,
        now: Timestamp,
    ) -> Lifecycle {
        let mut this = Lifecycle::new(link, settings, seed, now);
        if let Some(rest) = book.cooldown {
            this.phase = Phase::Cooldown { rest, until: Deadline::restored(rest.until, rest.window()) };
            this.last_order = rest.order.unwrap_or(this.last_order);
            this.unreported_order = rest.order;
        }
        let leave_before = this.settings.expiry_margin;
        let usable = |reservation: &&Reservation| {
            let lasts = reservation.expires.is_none_or(|at| at > now.plus(leave_before));
            reservation.stage == ReservationStage::Established && reservation.ends.is_some() && lasts
        };
        // Of a circuit and its replacement, the later one.
        let newest = book.reservations.iter().filter(usable).max_by_key(|one| one.since).map(|one| one.key);
        let mut left = Vec::new();
        for reservation in book.reservations {
            if Some(reservation.key) == newest && matches!(this.phase, Phase::Off) {
                this.superseded_keys.clone_from(&book.superseded_keys);
                let Reservation { key, mbit, since, expires, .. } = reservation;
                this.note(Note::Restored { key, mbit, since, expires });
                this.establish(reservation, now);
            } else {
                left.push(reservation);
            }
        }
        for reservation in left {
            if reservation.stage == ReservationStage::Established && this.current().is_some() {
                this.mark_superseded(reservation.key);
            }
            this.note(Note::Leftover { key: reservation.key });
            this.tear_down(reservation, now);
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
            Phase::Cooldown { rest, .. } => State::Cooldown(*rest),
        }
    }

    /// Explains the present state.
    pub fn explain(&self) -> Explanation {
        let mbit = self.current().map_or(self.settings.mbit, |reservation| reservation.mbit);
        let until = match &self.phase {
            Phase::Off => None,
            Phase::Requested { deadline, .. } => Some(deadline.when()),
            Phase::Established { reservation, .. } => reservation.expires,
            Phase::Draining { until, .. } => Some(until.when()),
            Phase::Cooldown { until, .. } => Some(until.when()),
        };
        let ordered = self.order.as_ref().map(|order| order.by().to_owned());
        let (state, planned) = (self.state(), self.planned_centrally);
        let next_mbit = self.replacement.as_ref().and_then(|next| Some(next.reservation()?.mbit));
        let look = Explanation {
            state,
            until,
            mbit,
            next_mbit,
            ordered_by: ordered,
            planned_centrally: planned,
            ..Explanation::default()
        };
        self.workload.explain(&self.settings, look)
    }

    /// Durable state, for a restart.
    pub fn ledger(&self) -> ReservationLedger {
        let mut reservations: Vec<_> =
            self.releasing.values().map(|(reservation, _)| reservation.clone()).collect();
        reservations.extend(self.current().cloned());
        let rest = match &self.phase {
            Phase::Cooldown { rest, .. } => Some(*rest),
            // A process killed while the circuit drains must not request the same again.
            Phase::Draining { since, then: Some(why), .. } => Some(self.cooldown_from(*why, *since)),
            _ => None,
        };
        let instead_of = match self.current() {
            Some(_) => self.superseded_keys.clone(),
            None => Vec::new(),
        };
        let mut book = ReservationLedger { reservations, cooldown: rest, superseded_keys: instead_of };
        self.add_to_ledger(&mut book);
        book
    }

    /// The next action, to be carried out before the one after it.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Time by which [`Event::Tick`] is due.
    pub fn next_wake(&self) -> Timestamp {
        let phase = match &self.phase {
            Phase::Off => None,
            Phase::Requested { deadline, .. } => Some(deadline.when()),
            Phase::Established { reservation, probe, .. } => {
                let probes = probe.iter().map(Probe::wake);
                let ends = reservation.expires.map(|at| at - self.settings.expiry_margin);
                probes.chain(ends).min()
            }
            Phase::Draining { until, .. } | Phase::Cooldown { until, .. } => Some(until.when()),
        };
        let again = self.releasing.values().map(|(_, again)| again.when());
        again
            .chain(phase)
            .chain(self.replacement_wake())
            .fold(self.check.when().min(self.reconciliation.when()), Timestamp::min)
    }

    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let failing = self.order_in_backoff();
        match event {
            Event::Tick => {}
            Event::Work { pending_bytes, bytes_per_s } => {
                self.workload.set_pending(pending_bytes, bytes_per_s)
            }
            Event::Moved { on_circuit, bytes, during } => {
                self.workload.record_moved(on_circuit, bytes, during, &self.settings, now);
            }
            Event::SetWanted(wanted) => self.set_wanted(wanted, now),
            Event::Orders(orders) => self.set_orders(orders, now),
            Event::SetPlannedCentrally(planned) => self.planned_centrally = planned,
            Event::OwnerEnded => self.end_owner(now),
            Event::Answer { key, answer } => self.handle_answer(key, answer, now),
            Event::TornDown(key) => self.handle_torn_down(key, now),
            Event::Probed { key, good } => self.handle_probe(key, good, now),
            Event::Transfer { on_circuit, good } => self.transfer_outcomes.add(now, on_circuit, good),
            Event::Users(users) => self.users = users,
            Event::PredecessorDrained => self.release_predecessor(now),
            Event::Listed { asked, held } => self.reconcile(asked, &held, now),
        }
        self.tick(now);
        // The ledger of a draining circuit names the order that fails with it.
        if matches!(self.phase, Phase::Draining { then: Some(_), .. }) && self.order_in_backoff() != failing {
            self.persist();
        }
    }

    fn tick(&mut self, now: Timestamp) {
        self.expire_order(now);
        self.tick_phase(now);
        self.tick_replacement(now);
        for (reservation, again) in self.releasing.values_mut() {
            if again.is_past(now) {
                *again = Deadline::after(now, self.settings.reconciliation_interval);
                self.actions.push_back(Action::TearDown(reservation.key));
            }
        }
        if self.reconciliation.is_past(now) {
            self.reconciliation = Deadline::after(now, self.settings.reconciliation_interval);
            self.actions.push_back(Action::List);
        }
        if self.check.is_past(now) {
            self.check = Deadline::after(now, self.settings.check_interval);
            self.check_work(now);
        }
    }

    fn tick_phase(&mut self, now: Timestamp) {
        match &mut self.phase {
            Phase::Off => {}
            Phase::Requested { deadline, .. } => {
                if deadline.is_past(now) {
                    // Row 5.
                    self.note(Note::Unanswered { within: self.settings.request_timeout });
                    self.release_current(Some(CooldownReason::Request), now);
                }
            }
            Phase::Established { .. } => self.check_circuit(now),
            Phase::Draining { until, then, .. } => {
                if self.users == 0 || until.is_past(now) {
                    let then = *then;
                    self.release_current(then, now);
                }
            }
            Phase::Cooldown { rest, until } => {
                if until.is_past(now) {
                    // Row 9.
                    self.phase = Phase::Off;
                    self.persist();
                    self.request_if_wanted(now);
                } else if until.when() < rest.until {
                    // The clock stepped back: a restart must not begin the cool-down anew.
                    (rest.since, rest.until) = (now, until.when());
                    self.persist();
                }
            }
        }
    }

    fn check_circuit(&mut self, now: Timestamp) {
        let Phase::Established { reservation, probe, .. } = &mut self.phase else { return };
        if reservation.expires.is_some_and(|at| now >= at - self.settings.expiry_margin) {
            // Row 7.
            self.note(Note::Expires);
            return self.start_draining(None, now);
        }
        if let Some(probe) = probe {
            if probe.is_over(now) {
                // Row 14.
                self.note(Note::EndpointsSilent { within: self.settings.probe_timeout });
                self.release_current(Some(CooldownReason::Transfer), now);
            } else if probe.is_due(&self.settings, now) {
                let (key, ends) = (reservation.key, reservation.ends.clone());
                self.actions.extend(ends.map(|ends| Action::Probe { key, ends }));
            }
        } else if let Some(note) = self.transfer_outcomes.check_failures(now, &self.settings) {
            // Row 8.
            self.note(note);
            self.start_draining(Some(CooldownReason::Transfer), now);
        } else if let Some(note) =
            self.settings.slowness.and_then(|slower| self.workload.check_slowness(&slower))
        {
            self.note(note);
            self.start_draining(Some(CooldownReason::Transfer), now);
        } else {
            self.renew_if_expiring(now);
        }
    }

    /// Row 1; and releases the circuit when little work is left.
    fn check_work(&mut self, now: Timestamp) {
        let worth = self.workload.worth_requesting(&self.settings);
        match (&self.phase, worth) {
            (Phase::Off | Phase::Cooldown { .. }, _) if self.order.is_some() => self.retry_order(now),
            (Phase::Off, Some(work)) if !self.owner_ended && !self.planned_centrally => {
                self.note(Note::WorthRequesting { work, threshold: self.settings.work_threshold });
                self.request(0, Deadline::after(now, self.settings.request_timeout), now);
            }
            (Phase::Off, _) => self.request_if_wanted(now),
            (Phase::Established { reservation, probe: None }, _) if !self.is_ordered() => {
                let Some(leave) = self.settings.release else { return };
                if let Some(work) = self.workload.worth_releasing(&leave, reservation.since, now) {
                    self.cancel_replacement(now);
                    self.note(Note::Idle { work, threshold: leave.work_below });
                    self.start_draining(None, now);
                }
            }
            _ => {}
        }
    }

    /// Whether somebody wants the circuit or its replacement, regardless of the work.
    fn is_ordered(&self) -> bool {
        self.wanted
            || self.order.is_some()
            || self.replacement.as_ref().and_then(replacement::Replacement::order).is_some()
    }

    /// Releases everything, regardless of the work.
    fn end_owner(&mut self, now: Timestamp) {
        (self.owner_ended, self.wanted, self.order) = (true, false, None);
        self.cancel_replacement(now);
        self.release_predecessor(now);
        match &self.phase {
            Phase::Requested { .. } => {
                self.note(Note::NoLongerWanted);
                self.release_current(None, now);
            }
            Phase::Established { .. } => {
                self.note(Note::NoLongerWanted);
                self.start_draining(None, now);
            }
            Phase::Off | Phase::Draining { .. } | Phase::Cooldown { .. } => {}
        }
    }

    fn set_wanted(&mut self, wanted: bool, now: Timestamp) {
        let wanted = wanted && !self.owner_ended;
        let before = std::mem::replace(&mut self.wanted, wanted);
        match (&self.phase, wanted) {
            (Phase::Off, true) => self.request_if_wanted(now),
            (Phase::Requested { .. }, false) if before => {
                self.note(Note::NoLongerWanted);
                self.release_current(None, now);
            }
            (Phase::Established { .. }, false) if before => {
                self.cancel_replacement(now);
                self.note(Note::NoLongerWanted);
                self.start_draining(None, now);
            }
            _ => {}
        }
    }

    fn request_if_wanted(&mut self, now: Timestamp) {
        if self.wanted {
            self.note(Note::Wanted);
            self.request(0, Deadline::after(now, self.settings.request_timeout), now);
        }
    }

    /// Requests the given step of the rate.
    fn request(&mut self, step: usize, deadline: Deadline, now: Timestamp) {
        let Some(mbit) = self.requested_mbit(step) else {
            return self.start_cooldown(CooldownReason::Request, now);
        };
        match self.current().map(|reservation| reservation.key) {
            Some(refused) => self.mark_superseded(refused),
            None => self.superseded_keys.clear(),
        }
        let reservation = self.new_reservation(mbit, now);
        let key = reservation.key;
        self.phase = Phase::Requested { reservation, step, deadline };
        self.persist();
        self.note(Note::Requested { key, mbit });
        let lifetime = self.order_lifetime(now).or(self.settings.lifetime);
        self.actions.push_back(Action::Request(CircuitRequest { key, mbit, lifetime }));
    }

    /// A new reservation with a fresh key.
    fn new_reservation(&mut self, mbit: u64, now: Timestamp) -> Reservation {
        self.requests += 1;
        let key = RequestKey::derive(&self.link, self.seed, now, self.requests);
        Reservation { key, stage: ReservationStage::Requested, since: now, mbit, expires: None, ends: None }
    }

    fn handle_answer(&mut self, key: RequestKey, answer: Answer, now: Timestamp) {
        if self.is_replacement(key) {
            return self.handle_replacement_answer(answer, now);
        }
        if self.is_releasing(key) {
            // It is being released anyway.
            return if matches!(answer, Answer::Lost { .. }) {
                self.release_predecessor(now)
            };
        }
        let ours = self.current().is_some_and(|reservation| reservation.key == key);
        match (&self.phase, answer) {
            (Phase::Requested { .. }, Answer::Granted(grant)) if ours => self.handle_grant(grant, now),
            (Phase::Requested { reservation, step, deadline }, Answer::Refused { less, detail }) if ours => {
                let (next, deadline) = (step + 1, *deadline);
                self.note(Note::Refused { mbit: reservation.mbit, detail });
                match self.requested_mbit(next) {
                    Some(_) if less => self.request(next, deadline, now),
                    // Row 4.
                    _ => self.start_cooldown(CooldownReason::Request, now),
                }
            }
            (Phase::Requested { .. }, Answer::Lost { detail }) if ours => {
                self.note(Note::Lost { detail });
                self.release_current(Some(CooldownReason::Request), now);
            }
            (Phase::Established { .. }, Answer::Lost { detail }) if ours => {
                self.note(Note::Lost { detail });
                self.stop_using();
                self.release_current(Some(CooldownReason::Transfer), now);
            }
            (Phase::Draining { then, .. }, Answer::Lost { .. }) if ours => {
                let then = *then;
                self.release_current(then, now);
            }
            // Row 13.
            (_, Answer::Granted(grant)) if !ours => {
                self.note(Note::GrantedTooLate { key });
                self.tear_down_orphan(key, grant.mbit, now);
            }
            // A repetition, or about a reservation that is being released.
            _ => {}
        }
    }

    /// Row 3.
    fn handle_grant(&mut self, grant: Grant, now: Timestamp) {
        let Phase::Requested { reservation, .. } = &self.phase else { return };
        let reservation = reservation.clone();
        if self.expires_at_once(&grant, now) {
            let detail = "what is granted expires at once".to_owned();
            self.note(Note::Refused { mbit: reservation.mbit, detail });
            return self.release_current(Some(CooldownReason::Request), now);
        }
        self.note(Note::Granted { key: reservation.key, mbit: grant.mbit, expires: grant.expires });
        self.establish(reservation.granted(grant, now), now);
        self.persist();
    }

    fn expires_at_once(&self, grant: &Grant, now: Timestamp) -> bool {
        grant.expires.is_some_and(|at| at <= now.plus(self.settings.expiry_margin))
    }

    fn establish(&mut self, reservation: Reservation, now: Timestamp) {
        let probe = Probe::new(&self.settings, now);
        self.transfer_outcomes.clear();
        self.renewal_failed = false;
        self.phase = Phase::Established { reservation, probe: Some(probe) };
    }

    /// Row 6.
    fn handle_probe(&mut self, key: RequestKey, good: bool, now: Timestamp) {
        if good && self.is_replacement(key) {
            return self.switch_to_replacement(now);
        }
        let Phase::Established { reservation, probe, .. } = &mut self.phase else { return };
        if reservation.key != key || !good || probe.take().is_none() {
            return;
        }
        let (mbit, ends) = (reservation.mbit, reservation.ends.clone());
        self.workload.start_circuit(&self.settings, now);
        self.note(Note::InUse { mbit, best_effort: self.workload.best_effort_before() });
        self.actions.extend(ends.map(|ends| Action::Use { key, mbit, ends }));
    }

    /// Stops new use of the circuit; released when nobody uses it.
    fn start_draining(&mut self, then: Option<CooldownReason>, now: Timestamp) {
        self.stop_using();
        let Phase::Established { reservation, .. } = std::mem::replace(&mut self.phase, Phase::Off) else {
            return;
        };
        if self.promote_replacement() {
            return self.release_after_drain(reservation, now);
        }
        let reservation = Reservation { stage: ReservationStage::Releasing, ..reservation };
        let until = Deadline::after(now, self.settings.drain_timeout);
        self.phase = Phase::Draining { reservation, since: now, until, then };
        match self.users {
            0 => self.release_current(then, now),
            _ => self.persist(),
        }
    }

    fn stop_using(&mut self) {
        if let Phase::Established { reservation, probe: None, .. } = &self.phase {
            self.actions.push_back(Action::StopUsing(reservation.key));
        }
    }

    /// Tears down the present reservation. Its use has stopped.
    fn release_current(&mut self, then: Option<CooldownReason>, now: Timestamp) {
        let reservation = self.current().cloned();
        match then {
            _ if self.promote_replacement() => {}
            Some(why) => self.enter_cooldown(why, now),
            None => self.phase = Phase::Off,
        }
        if let Some(reservation) = reservation {
            self.tear_down(reservation, now);
        }
        self.note_cooldown();
    }

    /// Cools down with nothing to release.
    fn start_cooldown(&mut self, why: CooldownReason, now: Timestamp) {
        self.enter_cooldown(why, now);
        self.persist();
        self.note_cooldown();
    }

    fn enter_cooldown(&mut self, why: CooldownReason, now: Timestamp) {
        let rest = self.cooldown_from(why, now);
        self.phase = Phase::Cooldown { rest, until: Deadline::restored(rest.until, rest.window()) };
        self.fail_order();
    }

    fn cooldown_from(&self, why: CooldownReason, since: Timestamp) -> Cooldown {
        let window = match why {
            CooldownReason::Request | CooldownReason::Released => self.settings.request_cooldown,
            CooldownReason::Transfer => self.settings.transfer_cooldown,
        };
        Cooldown { reason: why, since, until: since.plus(window), order: self.order_in_backoff() }
    }

    /// Noted once it is persisted.
    fn note_cooldown(&mut self) {
        if let Phase::Cooldown { rest, .. } = self.phase {
            self.note(Note::CoolingDown { until: rest.until });
        }
    }

    fn tear_down(&mut self, reservation: Reservation, now: Timestamp) {
        let key = reservation.key;
        let reservation = Reservation { stage: ReservationStage::Releasing, ..reservation };
        self.releasing
            .insert(key, (reservation, Deadline::after(now, self.settings.reconciliation_interval)));
        self.persist();
        self.actions.push_back(Action::TearDown(key));
    }

    /// Tears down a reservation that nobody here wants.
    fn tear_down_orphan(&mut self, key: RequestKey, mbit: u64, now: Timestamp) {
        if self.releasing.contains_key(&key) {
            self.actions.push_back(Action::TearDown(key));
        } else if self.releasing.len() < RELEASING_MAX {
            let stage = ReservationStage::Releasing;
            self.tear_down(Reservation { key, stage, since: now, mbit, expires: None, ends: None }, now);
        }
    }

    fn handle_torn_down(&mut self, key: RequestKey, now: Timestamp) {
        if self.releasing.remove(&key).is_some() {
            self.note(Note::TornDown { key });
            self.persist();
        } else if self.is_replacement(key) || self.current().is_some_and(|reservation| reservation.key == key)
        {
            let detail = "the provider does not know it any more".to_owned();
            self.handle_answer(key, Answer::Lost { detail }, now);
        }
    }

    fn reconcile(&mut self, asked: Timestamp, held: &[ProviderReservation], now: Timestamp) {
        for one in held {
            let known = self.current().is_some_and(|reservation| reservation.key == one.key)
                || self.is_replacement(one.key)
                || self.is_releasing(one.key);
            // Those being torn down are seen to anyway.
            if !known && !self.releasing.contains_key(&one.key) {
                self.note(Note::Orphan { key: one.key });
                self.tear_down_orphan(one.key, 0, now);
            }
        }
        // A request may have crossed with the list; a circuit that existed before the query has not.
        let Phase::Established { reservation, .. } = &self.phase else { return };
        let (key, since) = (reservation.key, reservation.since);
        // A start in the future, after a clock step, was before the query as well.
        if (since < asked || since > now) && !held.iter().any(|one| one.key == key && one.up) {
            let detail = "the provider does not list it any more".to_owned();
            self.handle_answer(key, Answer::Lost { detail }, now);
        }
    }

    /// The reservation that is requested or established, but not one being released.
    fn current(&self) -> Option<&Reservation> {
        match &self.phase {
            Phase::Requested { reservation, .. }
            | Phase::Established { reservation, .. }
            | Phase::Draining { reservation, .. } => Some(reservation),
            Phase::Off | Phase::Cooldown { .. } => None,
        }
    }

    /// Records that the present circuit supersedes this one.
    fn mark_superseded(&mut self, key: RequestKey) {
        if self.superseded_keys.len() >= SUPERSEDED_KEYS_MAX {
            self.superseded_keys.remove(0);
        }
        self.superseded_keys.push(key);
    }

    /// Resolves a key to the present circuit that has or superseded it.
    fn resolve_key(&self, key: RequestKey) -> Option<RequestKey> {
        let current = self.current()?.key;
        (current == key || self.superseded_keys.contains(&key)).then_some(current)
    }

    fn persist(&mut self) {
        let book = self.ledger();
        self.actions.push_back(Action::Persist(book));
    }

    fn note(&mut self, note: Note) {
        self.actions.push_back(Action::Note(note));
    }
}
