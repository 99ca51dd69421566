//! What came of a link's circuits, put together from the notes: the one there is, those that ended and why,
//! and what became of each wish of a person. Bounded; pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::{Note, RequestKey};

/// The last ones are kept.
pub const NOTES_MAX: usize = 20;
const ENDED_MAX: usize = 8;
const ORDERS_MAX: usize = 16;

/// One circuit, from the request on.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitRecord {
    pub key: RequestKey,
    /// What it was asked for.
    pub reason: String,
    /// When, and how much; of one that a run before had asked for, what is left in the book.
    pub requested_at: Timestamp,
    pub requested_mbit: u64,
    pub granted_at: Option<Timestamp>,
    pub mbit: Option<u64>,
    pub expires: Option<Timestamp>,
    pub used_since: Option<Timestamp>,
    /// What moved while all streams were on it, and in how much time, since this run began.
    pub carried_bytes: u64,
    pub carried_for: Duration,
    /// What the plain way carried before, in bytes per second.
    pub best_effort: Option<f64>,
    /// And why.
    pub ended: Option<(Timestamp, String)>,
}

/// What became of what a person wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderState {
    /// It is seen to.
    Accepted,
    /// The circuit is used.
    Satisfied,
    /// Done, or its time is over.
    Done(String),
    Failed(String),
}

#[derive(Debug, Default)]
pub struct CircuitHistory {
    current: Option<CircuitRecord>,
    /// One that is to follow it.
    next: Option<CircuitRecord>,
    ended: VecDeque<CircuitRecord>,
    notes: VecDeque<(Timestamp, String)>,
    orders: BTreeMap<CircuitOrderId, OrderState>,
    /// Why the next request is made; and that for one which is to follow, with who wants it.
    next_reason: String,
    replacement_reason: String,
    replacement_order: Option<CircuitOrderId>,
    /// The last thing that did not go well.
    last_failure: String,
    revision: u64,
}

impl CircuitHistory {
    pub fn current(&self) -> Option<&CircuitRecord> {
        self.current.as_ref()
    }

    /// What is asked for while there is one, to be used in its place.
    pub fn next(&self) -> Option<&CircuitRecord> {
        self.next.as_ref()
    }

    /// Oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &CircuitRecord> {
        self.ended.iter()
    }

    /// Oldest first.
    pub fn notes(&self) -> impl Iterator<Item = &(Timestamp, String)> {
        self.notes.iter()
    }

    pub fn orders(&self) -> impl Iterator<Item = (CircuitOrderId, &OrderState)> {
        self.orders.iter().map(|(order, state)| (*order, state))
    }

    /// Counts what was noted: as long as it stays, there is nothing new but what is carried.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// So much moved on the circuit; on the last one, if what is under way is still leaving that.
    pub fn add_carried(&mut self, bytes: u64, during: Duration) {
        if let Some(entry) = self.current.as_mut().or(self.ended.back_mut()) {
            entry.carried_bytes = entry.carried_bytes.saturating_add(bytes);
            entry.carried_for = entry.carried_for.saturating_add(during);
        }
    }

    pub fn note(&mut self, note: &Note, now: Timestamp) {
        let words = note.to_string();
        self.revision += 1;
        self.apply_to_circuit(note, &words, now);
        self.apply_to_orders(note, &words);
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back((now, words));
    }

    fn apply_to_circuit(&mut self, note: &Note, words: &str, now: Timestamp) {
        match note {
            Note::WorthRequesting { .. } | Note::Wanted | Note::OrderAccepted { .. } => {
                self.next_reason = words.to_owned()
            }
            Note::Requested { key, mbit } => {
                self.end_current("another is asked for", now);
                self.current =
                    Some(CircuitRecord { reason: self.next_reason.clone(), ..new_record(*key, *mbit, now) });
            }
            Note::Restored { key, mbit, since, expires } => {
                let (granted, mbit) = (Some(*since), *mbit);
                self.current = Some(CircuitRecord {
                    granted_at: granted,
                    mbit: Some(mbit),
                    expires: *expires,
                    ..new_record(*key, mbit, *since)
                });
            }
            Note::Granted { .. } => mark_granted(&mut self.current, note, now),
            Note::Replacement(note) => self.apply_to_replacement(note, now),
            Note::ReplacementInUse { .. } => {
                self.end_current(words, now);
                self.current = self.next.take();
                self.replacement_order = None;
            }
            Note::InUse { best_effort: plain, .. } => {
                if let Some(entry) = &mut self.current {
                    (entry.used_since, entry.best_effort) = (Some(now), *plain);
                }
            }
            Note::Refused { .. }
            | Note::Unanswered { .. }
            | Note::EndpointsSilent { .. }
            | Note::TransfersFailing { .. }
            | Note::SlowerThanBestEffort { .. }
            | Note::Lost { .. } => {
                self.last_failure = words.to_owned();
                self.end_current(words, now);
            }
            Note::Expires | Note::Idle { .. } | Note::NoLongerWanted | Note::Released { .. } => {
                self.end_current(words, now)
            }
            Note::GrantedTooLate { .. }
            | Note::Orphan { .. }
            | Note::CoolingDown { .. }
            | Note::Leftover { .. }
            | Note::TornDown { .. }
            | Note::OrderSatisfied { .. }
            | Note::OrderFailed { .. }
            | Note::OrderFailedBefore { .. }
            | Note::OrderExpired { .. }
            | Note::OrderWithdrawn { .. }
            | Note::OrderReplaced { .. }
            | Note::RenewingForWork { .. }
            | Note::RenewingForDemand { .. }
            | Note::NothingToRelease { .. } => {}
        }
    }

    fn apply_to_replacement(&mut self, note: &Note, now: Timestamp) {
        match note {
            Note::RenewingForWork { .. } | Note::RenewingForDemand { .. } => {
                self.replacement_reason = note.to_string()
            }
            Note::OrderAccepted { order, .. } => {
                (self.replacement_reason, self.replacement_order) = (note.to_string(), Some(*order));
                self.set_order(*order, OrderState::Accepted);
            }
            Note::Requested { key, mbit } => {
                self.next = Some(CircuitRecord {
                    reason: self.replacement_reason.clone(),
                    ..new_record(*key, *mbit, now)
                });
            }
            Note::Granted { .. } => mark_granted(&mut self.next, note, now),
            Note::Refused { .. }
            | Note::Unanswered { .. }
            | Note::EndpointsSilent { .. }
            | Note::Lost { .. } => {
                self.last_failure = note.to_string();
                self.end_replacement(&note.to_string(), now);
            }
            _ => self.end_replacement(&note.to_string(), now),
        }
    }

    fn apply_to_orders(&mut self, note: &Note, words: &str) {
        match note {
            Note::OrderAccepted { order, .. } => {
                self.replacement_order.take_if(|follows| follows == order);
                self.set_order(*order, OrderState::Accepted);
            }
            // The link has one at a time, and one that follows is not it yet.
            Note::InUse { .. } => {
                let waits = |order: CircuitOrderId, state: &OrderState| {
                    *state == OrderState::Accepted && Some(order) != self.replacement_order
                };
                let waiting = self.orders.iter_mut().filter(|(order, state)| waits(**order, state));
                waiting.for_each(|(_, state)| *state = OrderState::Satisfied);
            }
            Note::OrderSatisfied { order, .. } if self.is_used() => {
                self.set_order(*order, OrderState::Satisfied)
            }
            Note::OrderFailed { order } => {
                self.set_order(*order, OrderState::Failed(self.last_failure.clone()))
            }
            Note::OrderExpired { order }
            | Note::OrderWithdrawn { order }
            | Note::OrderReplaced { order }
            | Note::Released { order, .. } => self.set_order(*order, OrderState::Done(words.to_owned())),
            Note::NothingToRelease { order, .. } | Note::OrderFailedBefore { order } => {
                self.set_order(*order, OrderState::Failed(words.to_owned()));
            }
            _ => {}
        }
    }

    fn is_used(&self) -> bool {
        self.current.as_ref().is_some_and(|entry| entry.used_since.is_some())
    }

    fn set_order(&mut self, order: CircuitOrderId, state: OrderState) {
        self.orders.insert(order, state);
        while self.orders.len() > ORDERS_MAX {
            self.orders.pop_first();
        }
    }

    fn end_current(&mut self, why: &str, now: Timestamp) {
        let ended = self.current.take();
        self.archive(ended, why, now);
    }

    fn end_replacement(&mut self, why: &str, now: Timestamp) {
        let ended = self.next.take();
        self.archive(ended, why, now);
    }

    fn archive(&mut self, entry: Option<CircuitRecord>, why: &str, now: Timestamp) {
        let Some(mut entry) = entry else { return };
        entry.ended = Some((now, why.to_owned()));
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(entry);
    }
}

fn mark_granted(of: &mut Option<CircuitRecord>, note: &Note, now: Timestamp) {
    if let (Some(entry), Note::Granted { key, mbit, expires }) = (of, note)
        && entry.key == *key
    {
        (entry.granted_at, entry.mbit, entry.expires) = (Some(now), Some(*mbit), *expires);
    }
}

fn new_record(key: RequestKey, mbit: u64, asked: Timestamp) -> CircuitRecord {
    CircuitRecord {
        key,
        reason: String::new(),
        requested_at: asked,
        requested_mbit: mbit,
        granted_at: None,
        mbit: None,
        expires: None,
        used_since: None,
        carried_bytes: 0,
        carried_for: Duration::ZERO,
        best_effort: None,
        ended: None,
    }
}
