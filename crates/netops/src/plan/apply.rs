//! What the plan decided, as orders to agents, and what became of them. The same way as what people request
//! and release.

use std::time::Duration;

use longhaul_api::circuits::{Circuit, CircuitOrderState, CircuitState, CircuitWish};
use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::{BookingEvent, BookingRequest};
use longhaul_model::{AgentId, CircuitOrderId, StorageName, Timestamp};
use serde::{Deserialize, Serialize};

use super::PLAN_REQUESTER;
use crate::NetOps;
use crate::circuits::{LinkKey, RecordedOrder, ReportedLink};

/// What an agent tells a moment after an order ended may be from before it heard of that.
const ORDER_REPORT_DELAY_MAX: Duration = Duration::from_secs(3);
/// Set-ups are not always as long as they were.
const SETUP_MARGIN: Duration = Duration::from_secs(120);
/// An agent that tells nothing for so long after the time of a circuit was over has none.
const AGENT_SILENCE_MAX: Duration = Duration::from_secs(3600);

/// A booking of the plan, and the order that stands for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PlannedOrder {
    agent: AgentId,
    source: StorageName,
    order: CircuitOrderId,
    mbit: u64,
    until: Timestamp,
    /// The circuit that it is to be used in place of.
    #[serde(default)]
    replaces: Option<String>,
    /// For people.
    why: String,
    /// Its circuit, once an agent has named one.
    circuit: Option<String>,
    /// It was used.
    used: bool,
    /// Not wanted any more, since then.
    closed: Option<Timestamp>,
    /// The catalog has the order. Found out anew by each process.
    #[serde(skip)]
    is_written: bool,
}

/// What stands for a booking, before anybody heard of it.
pub(super) struct OrderWish {
    pub order: CircuitOrderId,
    pub replaces: Option<String>,
    pub setup: Duration,
    /// For people.
    pub why: String,
}

impl PlannedOrder {
    pub fn new(key: LinkKey, request: &BookingRequest, wish: OrderWish, now: Timestamp) -> PlannedOrder {
        let OrderWish { order, replaces, setup, why } = wish;
        PlannedOrder {
            agent: key.0,
            source: key.1,
            order,
            mbit: request.mbit,
            until: now.plus(request.lifetime).plus(setup).plus(SETUP_MARGIN),
            replaces,
            why,
            circuit: None,
            used: false,
            closed: None,
            is_written: false,
        }
    }

    /// The booking of an order that is known from the catalog alone.
    pub fn found(
        netops: &NetOps,
        key: LinkKey,
        order: &RecordedOrder,
        mbit: u64,
        until: Timestamp,
    ) -> PlannedOrder {
        let link = netops.circuits.link(&key);
        let mut found = PlannedOrder {
            agent: key.0,
            source: key.1,
            order: order.id,
            mbit,
            until,
            replaces: None,
            why: String::new(),
            circuit: None,
            used: false,
            closed: None,
            is_written: true,
        };
        if matches!(order.state, CircuitOrderState::Taken | CircuitOrderState::Had) {
            found.learn(link.as_ref());
        }
        found
    }

    pub fn key(&self) -> LinkKey {
        (self.agent, self.source.clone())
    }

    /// Its circuit, once it has one.
    pub fn circuit(&self) -> Option<&str> {
        self.circuit.as_deref()
    }

    pub fn close(&mut self, now: Timestamp) {
        self.closed.get_or_insert(now);
    }

    /// What became of it since the last time. An order that the catalog does not have, since the process
    /// ended before it was written, gets a new name: agents take orders in the order of their names.
    pub fn poll_event(
        &mut self,
        netops: &NetOps,
        booking: u64,
        now: Timestamp,
    ) -> Result<Option<BookingEvent>, CatalogError> {
        let key = self.key();
        let link = netops.circuits.link(&key);
        let order = netops.kernel.catalog.circuit_order(self.order)?;
        self.is_written = order.is_some();
        let state = match order {
            Some(row) => Some(RecordedOrder::from_row(&row)?.state),
            None if self.closed.is_some() => Some(CircuitOrderState::Done),
            None => {
                self.order = netops.kernel.new_id();
                None
            }
        };
        if now >= self.until {
            self.close(now);
        }
        if matches!(state, Some(CircuitOrderState::Taken | CircuitOrderState::Had)) {
            self.learn(link.as_ref());
        }
        let is_over = state.is_some_and(CircuitOrderState::is_final);
        // What there was serves for them now.
        let taken_over = netops.circuits.is_requested_beside(&key, booking);
        if is_over && (taken_over || !self.is_held(link.as_ref(), now)) {
            return Ok(Some(self.end(netops, link.as_ref())?));
        }
        if is_over {
            self.close(now);
        }
        let had = state == Some(CircuitOrderState::Had);
        let circuit = self.circuit_of(link.as_ref()).filter(|circuit| had && circuit.used.is_some());
        Ok(circuit.and_then(|circuit| circuit.booked_mbit).map(|mbit| {
            self.used = true;
            BookingEvent::Established { mbit }
        }))
    }

    fn learn(&mut self, link: Option<&ReportedLink>) {
        let Some(link) = link.map(|known| &known.link) else { return };
        // One that is to follow is told beside the one that there is.
        let next = link.next.as_ref().filter(|_| self.replaces.is_some());
        let live =
            next.or(link.circuit.as_ref()).filter(|circuit| Some(&circuit.id) != self.replaces.as_ref());
        if let Some(circuit) = live.filter(|circuit| circuit.ended.is_none()) {
            self.circuit = Some(circuit.id.clone());
        }
    }

    fn circuit_of<'a>(&self, link: Option<&'a ReportedLink>) -> Option<&'a Circuit> {
        let id = self.circuit.as_ref()?;
        link?.link.circuit.as_ref().filter(|circuit| circuit.id == *id)
    }

    /// Whether its agent may still have something of it.
    fn is_held(&self, link: Option<&ReportedLink>, now: Timestamp) -> bool {
        let Some(known) = link else { return false };
        let idle = matches!(known.link.state, CircuitState::Off | CircuitState::Resting);
        let fresh = self.closed.is_none_or(|closed| known.told >= closed.plus(ORDER_REPORT_DELAY_MAX));
        let lost = now.since(known.told) > AGENT_SILENCE_MAX && now >= self.until.plus(AGENT_SILENCE_MAX);
        // A circuit that somebody asked for afterwards is not ours.
        let other = known.link.circuit.as_ref().is_some_and(|circuit| !self.is_ours(circuit));
        !(lost || fresh && (idle || other))
    }

    fn is_ours(&self, circuit: &Circuit) -> bool {
        match &self.circuit {
            Some(id) => *id == circuit.id,
            None => {
                let older = Some(&circuit.id) == self.replaces.as_ref();
                !older && self.closed.is_none_or(|closed| circuit.asked <= closed)
            }
        }
    }

    fn end(&self, netops: &NetOps, link: Option<&ReportedLink>) -> Result<BookingEvent, CatalogError> {
        let Some(id) = self.circuit.as_ref().filter(|_| self.used) else { return Ok(BookingEvent::Failed) };
        let kept = link.and_then(|known| known.recorded(id)).map(|kept| kept.circuit.carried_bytes);
        let carried = match kept {
            Some(bytes) => bytes,
            None => match netops.kernel.catalog.circuit(id)? {
                Some(row) => crate::circuits::RecordedCircuit::from_row(&row)?.circuit.carried_bytes,
                None => 0,
            },
        };
        Ok(BookingEvent::Ended { carried })
    }

    /// Tells its agent what is wanted, unless it was told. What must not be forgotten was written down
    /// before.
    pub fn send(&mut self, netops: &NetOps, booking: u64, now: Timestamp) -> Result<(), CatalogError> {
        match self.closed {
            None if !self.is_written => {
                let replaces = self.replaces.clone();
                let what = CircuitWish::Request { mbit: self.mbit, until: self.until, replaces };
                let words = format!("{} Mbit/s requested until {}: {}", self.mbit, self.until, self.why);
                self.order(netops, what, self.order, Some(booking), &words, now)?;
                self.is_written = true;
                Ok(())
            }
            None => Ok(()),
            Some(closed) => self.give_back(netops, booking, closed, now),
        }
    }

    fn give_back(
        &self,
        netops: &NetOps,
        booking: u64,
        closed: Timestamp,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        let key = self.key();
        if self.replaces.is_some() && !self.used {
            // What it was to follow may stay.
            return netops.circuits.withdraw(
                &netops.kernel.catalog,
                &key,
                self.order,
                "it is not wanted any more",
            );
        }
        if netops.circuits.is_requested_beside(&key, booking) {
            return Ok(());
        }
        let known = netops.circuits.link(&key);
        let live = known
            .as_ref()
            .filter(|known| matches!(known.link.state, CircuitState::Requested | CircuitState::Established));
        let live = live.and_then(|known| known.link.circuit.as_ref());
        // One that was asked for under an order of ours, though the agent that was killed meanwhile does not
        // know that.
        let ours = live.filter(|circuit| circuit.asked <= closed && self.is_ours(circuit) && self.is_written);
        let what = match ours {
            Some(circuit) if netops.circuits.is_releasing(&key, &circuit.id) => return Ok(()),
            Some(circuit) if self.circuit.is_some() => CircuitWish::Release { circuit: circuit.id.clone() },
            _ if netops.circuits.is_planned(&key, booking) => CircuitWish::Release { circuit: String::new() },
            _ => return Ok(()),
        };
        self.order(netops, what, netops.kernel.new_id(), None, "given back", now)
    }

    fn order(
        &self,
        netops: &NetOps,
        what: CircuitWish,
        id: CircuitOrderId,
        booking: Option<u64>,
        words: &str,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        let key = self.key();
        // The agent hears that nothing is requested any more.
        let withdrawn = matches!(&what, CircuitWish::Release { circuit } if circuit.is_empty());
        let state = if withdrawn { CircuitOrderState::Done } else { CircuitOrderState::Sent };
        let (by, words) = (PLAN_REQUESTER.to_owned(), format!("circuit {}: {words}", name(netops, &key)));
        let order = RecordedOrder { id, by, at: now, what, state, words: String::new(), booking };
        tracing::info!(by = PLAN_REQUESTER, "{words}");
        netops.circuits.place_order(&netops.kernel.catalog, &key, order, &words)
    }
}

/// A link as people write it.
pub(super) fn name(netops: &NetOps, (agent, source): &LinkKey) -> String {
    match netops.control.agents.agent(*agent) {
        Some(known) => format!("{source}:{}", known.site_name),
        None => format!("{source}:{agent}"),
    }
}
