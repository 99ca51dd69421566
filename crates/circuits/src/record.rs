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
pub struct Entry {
    pub key: RequestKey,
    /// What it was asked for.
    pub why: String,
    /// When, and how much; of one that a run before had asked for, what is left in the book.
    pub asked: Timestamp,
    pub asked_mbit: u64,
    pub granted: Option<Timestamp>,
    pub mbit: Option<u64>,
    pub expires: Option<Timestamp>,
    pub used: Option<Timestamp>,
    /// What moved while all streams were on it, and in how much time, since this run began.
    pub carried_bytes: u64,
    pub carried: Duration,
    /// What the plain way carried before, in bytes per second.
    pub plain: Option<f64>,
    /// And why.
    pub ended: Option<(Timestamp, String)>,
}

/// What became of what a person wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderState {
    /// It is seen to.
    Taken,
    /// The circuit is used.
    Had,
    /// Done, or its time is over.
    Done(String),
    Failed(String),
}

#[derive(Debug, Default)]
pub struct Record {
    current: Option<Entry>,
    /// One that is to follow it.
    next: Option<Entry>,
    ended: VecDeque<Entry>,
    notes: VecDeque<(Timestamp, String)>,
    orders: BTreeMap<CircuitOrderId, OrderState>,
    /// Why the next request is made; and that for one which is to follow, with who wants it.
    why: String,
    why_next: String,
    follows: Option<CircuitOrderId>,
    /// The last thing that did not go well.
    trouble: String,
    changes: u64,
}

impl Record {
    pub fn current(&self) -> Option<&Entry> {
        self.current.as_ref()
    }

    /// What is asked for while there is one, to be used in its place.
    pub fn next(&self) -> Option<&Entry> {
        self.next.as_ref()
    }

    /// Oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Entry> {
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
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// So much moved on the circuit; on the last one, if what is under way is still leaving that.
    pub fn carried(&mut self, bytes: u64, during: Duration) {
        if let Some(entry) = self.current.as_mut().or(self.ended.back_mut()) {
            entry.carried_bytes = entry.carried_bytes.saturating_add(bytes);
            entry.carried = entry.carried.saturating_add(during);
        }
    }

    pub fn note(&mut self, note: &Note, now: Timestamp) {
        let words = note.to_string();
        self.changes += 1;
        self.of_circuit(note, &words, now);
        self.of_order(note, &words);
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back((now, words));
    }

    fn of_circuit(&mut self, note: &Note, words: &str, now: Timestamp) {
        match note {
            Note::Worth { .. } | Note::Wanted | Note::Ordered { .. } => self.why = words.to_owned(),
            Note::Asked { key, mbit } => {
                self.end("another is asked for", now);
                self.current = Some(Entry { why: self.why.clone(), ..entry(*key, *mbit, now) });
            }
            Note::Restored { key, mbit, since, expires } => {
                let (granted, mbit) = (Some(*since), *mbit);
                self.current =
                    Some(Entry { granted, mbit: Some(mbit), expires: *expires, ..entry(*key, mbit, *since) });
            }
            Note::Granted { .. } => granted(&mut self.current, note, now),
            Note::Next(note) => self.of_next(note, now),
            Note::Follows { .. } => {
                self.end(words, now);
                self.current = self.next.take();
                self.follows = None;
            }
            Note::Used { plain, .. } => {
                if let Some(entry) = &mut self.current {
                    (entry.used, entry.plain) = (Some(now), *plain);
                }
            }
            Note::Refused { .. }
            | Note::Unanswered { .. }
            | Note::Silent { .. }
            | Note::Failing { .. }
            | Note::Slower { .. }
            | Note::Lost { .. } => {
                self.trouble = words.to_owned();
                self.end(words, now);
            }
            Note::Expires | Note::Idle { .. } | Note::Unwanted | Note::Released { .. } => {
                self.end(words, now)
            }
            Note::Late { .. }
            | Note::Orphan { .. }
            | Note::Rests { .. }
            | Note::LeftOver { .. }
            | Note::Gone { .. }
            | Note::OrderedHad { .. }
            | Note::OrderFailed { .. }
            | Note::OrderFailedBefore { .. }
            | Note::OrderOver { .. }
            | Note::OrderWithdrawn { .. }
            | Note::OrderReplaced { .. }
            | Note::Renews { .. }
            | Note::RenewsForWish { .. }
            | Note::ReleasedNothing { .. } => {}
        }
    }

    fn of_next(&mut self, note: &Note, now: Timestamp) {
        match note {
            Note::Renews { .. } | Note::RenewsForWish { .. } => self.why_next = note.to_string(),
            Note::Ordered { order, .. } => {
                (self.why_next, self.follows) = (note.to_string(), Some(*order));
                self.set(*order, OrderState::Taken);
            }
            Note::Asked { key, mbit } => {
                self.next = Some(Entry { why: self.why_next.clone(), ..entry(*key, *mbit, now) });
            }
            Note::Granted { .. } => granted(&mut self.next, note, now),
            Note::Refused { .. } | Note::Unanswered { .. } | Note::Silent { .. } | Note::Lost { .. } => {
                self.trouble = note.to_string();
                self.end_next(&note.to_string(), now);
            }
            _ => self.end_next(&note.to_string(), now),
        }
    }

    fn of_order(&mut self, note: &Note, words: &str) {
        match note {
            Note::Ordered { order, .. } => {
                self.follows.take_if(|follows| follows == order);
                self.set(*order, OrderState::Taken);
            }
            // The link has one at a time, and one that follows is not it yet.
            Note::Used { .. } => {
                let waits = |order: CircuitOrderId, state: &OrderState| {
                    *state == OrderState::Taken && Some(order) != self.follows
                };
                let waiting = self.orders.iter_mut().filter(|(order, state)| waits(**order, state));
                waiting.for_each(|(_, state)| *state = OrderState::Had);
            }
            Note::OrderedHad { order, .. } if self.is_used() => self.set(*order, OrderState::Had),
            Note::OrderFailed { order } => self.set(*order, OrderState::Failed(self.trouble.clone())),
            Note::OrderOver { order }
            | Note::OrderWithdrawn { order }
            | Note::OrderReplaced { order }
            | Note::Released { order, .. } => self.set(*order, OrderState::Done(words.to_owned())),
            Note::ReleasedNothing { order, .. } | Note::OrderFailedBefore { order } => {
                self.set(*order, OrderState::Failed(words.to_owned()));
            }
            _ => {}
        }
    }

    fn is_used(&self) -> bool {
        self.current.as_ref().is_some_and(|entry| entry.used.is_some())
    }

    fn set(&mut self, order: CircuitOrderId, state: OrderState) {
        self.orders.insert(order, state);
        while self.orders.len() > ORDERS_MAX {
            self.orders.pop_first();
        }
    }

    fn end(&mut self, why: &str, now: Timestamp) {
        let ended = self.current.take();
        self.put_away(ended, why, now);
    }

    fn end_next(&mut self, why: &str, now: Timestamp) {
        let ended = self.next.take();
        self.put_away(ended, why, now);
    }

    fn put_away(&mut self, entry: Option<Entry>, why: &str, now: Timestamp) {
        let Some(mut entry) = entry else { return };
        entry.ended = Some((now, why.to_owned()));
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(entry);
    }
}

fn granted(of: &mut Option<Entry>, note: &Note, now: Timestamp) {
    if let (Some(entry), Note::Granted { key, mbit, expires }) = (of, note)
        && entry.key == *key
    {
        (entry.granted, entry.mbit, entry.expires) = (Some(now), Some(*mbit), *expires);
    }
}

fn entry(key: RequestKey, mbit: u64, asked: Timestamp) -> Entry {
    Entry {
        key,
        why: String::new(),
        asked,
        asked_mbit: mbit,
        granted: None,
        mbit: None,
        expires: None,
        used: None,
        carried_bytes: 0,
        carried: Duration::ZERO,
        plain: None,
        ended: None,
    }
}
