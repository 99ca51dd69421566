//! Bounded history of a link's circuits, built from its notes: the present one, ended ones with reasons, and
//! the state of each order. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};

use crate::{Note, RequestKey};

/// Notes kept.
pub const NOTES_MAX: usize = 20;
/// Ended circuits kept.
const ENDED_MAX: usize = 8;
/// Orders kept.
const ORDERS_MAX: usize = 16;

/// Record of one circuit, from its request on.
#[derive(Clone, Debug, PartialEq)]
pub struct CircuitRecord {
    pub key: RequestKey,
    /// Why it was requested.
    pub reason: String,
    /// Time of the request; for a circuit of an earlier run, as far as the ledger has it.
    pub requested_at: Timestamp,
    pub requested_mbit: u64,
    pub granted_at: Option<Timestamp>,
    pub mbit: Option<u64>,
    pub expires: Option<Timestamp>,
    pub used_since: Option<Timestamp>,
    /// Bytes moved while all streams were on it, since this run began.
    pub carried_bytes: u64,
    /// Time in which these bytes moved.
    pub carried_for: Duration,
    /// Rate of the best-effort path before, in bytes per second.
    pub best_effort: Option<f64>,
    /// Time and reason of its end.
    pub ended: Option<(Timestamp, String)>,
}

/// State of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderState {
    /// Accepted.
    Accepted,
    /// The circuit is in use.
    Satisfied,
    /// Done, or its time is over.
    Done(String),
    Failed(String),
}

/// History of one link's circuits.
#[derive(Debug, Default)]
pub struct CircuitHistory {
    current: Option<CircuitRecord>,
    /// The replacement, if one is requested.
    next: Option<CircuitRecord>,
    ended: VecDeque<CircuitRecord>,
    notes: VecDeque<(Timestamp, String)>,
    orders: BTreeMap<CircuitOrderId, OrderState>,
    /// Reason of the next request.
    next_reason: String,
    /// Reason of the next replacement.
    replacement_reason: String,
    /// Order of the replacement.
    replacement_order: Option<CircuitOrderId>,
    /// The last failure, which explains a failed order.
    last_failure: String,
    revision: u64,
}

impl CircuitHistory {
    pub fn current(&self) -> Option<&CircuitRecord> {
        self.current.as_ref()
    }

    /// The requested replacement of the present circuit.
    pub fn next(&self) -> Option<&CircuitRecord> {
        self.next.as_ref()
    }

    /// Ended circuits, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &CircuitRecord> {
        self.ended.iter()
    }

    /// Notes, oldest first.
    pub fn notes(&self) -> impl Iterator<Item = &(Timestamp, String)> {
        self.notes.iter()
    }

    pub fn orders(&self) -> impl Iterator<Item = (CircuitOrderId, &OrderState)> {
        self.orders.iter().map(|(order, state)| (*order, state))
    }

    /// Revision of the history: while it stays, only the carried bytes have changed.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Adds bytes moved on the circuit, or on the last one while it drains.
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
                self.end_current("another is requested", now);
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
            // The link has one circuit at a time, and a replacement does not count yet.
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
