//! Status of the circuits for the service, and the orders of people that come back.

use std::time::Duration;

use longhaul_api::circuits::{
    Circuit, CircuitLink, CircuitLook, CircuitNote, CircuitOffer, CircuitOrder, CircuitOrderState,
    CircuitOrdered, CircuitState, CircuitWish, PROVIDER_BYTES_MAX, RATES_MAX, TEXT_BYTES_MAX,
};
use longhaul_circuits::{CircuitRecord, Event, Explanation, Order, OrderKind, OrderState, State};

use super::{Circuits, Link};
use crate::step::AgentTime;

/// Interval of the status while nothing but its figures changes.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// The last status sent.
pub(super) struct LastStatus {
    at: AgentTime,
    changes: u64,
}

impl Circuits {
    /// The status for a report; empty if there is nothing new.
    pub(crate) fn link_statuses(&self, now: AgentTime, greeting: bool) -> Vec<CircuitLink> {
        let changes = self.links.iter().map(|link| link.record.lock().revision()).sum();
        let mut told = self.last_status.lock();
        let fresh = |told: &LastStatus| {
            !greeting && told.changes == changes && now.saturating_sub(told.at) < STATUS_INTERVAL
        };
        if self.links.is_empty() || told.as_ref().is_some_and(fresh) {
            return Vec::new();
        }
        *told = Some(LastStatus { at: now, changes });
        self.links.iter().filter_map(Link::status).collect()
    }

    /// Sets whether the service plans circuits for queued work.
    pub(crate) fn set_planned(&self, planned: bool) {
        for link in &self.links {
            let mut state = link.state.lock();
            let keeper = link.keeper.lock();
            let Some(keeper) = keeper.as_ref().filter(|_| state.is_planned_by_service != planned) else {
                continue;
            };
            state.is_planned_by_service = planned;
            keeper.send_event(Event::SetPlannedCentrally(planned));
        }
    }

    /// Sets all present orders: one that is left out is withdrawn.
    pub(crate) fn set_orders(&self, all: &[CircuitOrder]) {
        for link in &self.links {
            let of_link = all.iter().filter(|order| order.source == link.config.from);
            let orders: Vec<Order> = of_link.filter_map(order_from_wire).collect();
            let mut state = link.state.lock();
            if state.orders == orders {
                continue;
            }
            let keeper = link.keeper.lock();
            let Some(keeper) = keeper.as_ref() else { continue };
            state.orders.clone_from(&orders);
            keeper.send_event(Event::Orders(orders));
        }
    }
}

impl Link {
    fn status(&self) -> Option<CircuitLink> {
        let look = self.keeper.lock().as_ref()?.explanation();
        let record = self.record.lock();
        Some(CircuitLink {
            source: self.config.from.clone(),
            provider: self.circuit.provider.kind().to_owned(),
            state: state_to_wire(look.state),
            until: look.until,
            circuit: record.current().map(circuit_to_wire),
            next: record.next().map(circuit_to_wire),
            look: figures_to_wire(&look),
            notes: record
                .notes()
                .map(|(at, words)| CircuitNote { at: *at, words: truncated(words) })
                .collect(),
            ended: record.ended().map(circuit_to_wire).collect(),
            orders: record.orders().map(|(id, state)| order_state_to_wire(id, state)).collect(),
            offer: Some(self.offer()),
        })
    }
}

impl Link {
    fn offer(&self) -> CircuitOffer {
        let (provider, settings) = (&self.circuit.provider, &self.circuit.settings);
        let name = provider.name();
        CircuitOffer {
            name: name[..name.floor_char_boundary(PROVIDER_BYTES_MAX)].to_owned(),
            mbit: settings.rates().take(RATES_MAX).collect(),
            lifetime_s: settings.lifetime.map(|lifetime| lifetime.as_secs()),
            own_line: provider.is_own_line(),
            replaces: true,
        }
    }
}

fn state_to_wire(state: State) -> CircuitState {
    match state {
        State::Off => CircuitState::Off,
        State::Requested { .. } => CircuitState::Requested,
        State::Established { .. } => CircuitState::Established,
        State::Draining => CircuitState::Draining,
        State::Cooldown(_) => CircuitState::Resting,
    }
}

fn figures_to_wire(look: &Explanation) -> CircuitLook {
    CircuitLook {
        pending_bytes: look.pending_bytes,
        bytes_per_s: look.bytes_per_s,
        work_s: look.time_to_finish.map(|work| work.as_secs_f64()),
        threshold_s: look.threshold.as_secs_f64(),
        leave_below_s: look.release_below.map(|below| below.as_secs_f64()),
        checks_found: look.checks.0,
        checks_wanted: look.checks.1,
        mbit: look.mbit,
        words: truncated(&look.to_string()),
    }
}

fn circuit_to_wire(entry: &CircuitRecord) -> Circuit {
    Circuit {
        id: entry.key.to_string(),
        why: truncated(&entry.reason),
        asked: entry.requested_at,
        asked_mbit: entry.requested_mbit,
        granted: entry.granted_at,
        booked_mbit: entry.mbit,
        expires: entry.expires,
        used: entry.used_since,
        carried_bytes: entry.carried_bytes,
        carried_s: entry.carried_for.as_secs_f64(),
        plain_bytes_per_s: entry.best_effort,
        ended: entry.ended.as_ref().map(|(at, _)| *at),
        end: entry.ended.as_ref().map(|(_, why)| truncated(why)),
    }
}

fn order_state_to_wire(id: longhaul_model::CircuitOrderId, state: &OrderState) -> CircuitOrdered {
    let (state, words) = match state {
        OrderState::Accepted => (CircuitOrderState::Taken, ""),
        OrderState::Satisfied => (CircuitOrderState::Had, ""),
        OrderState::Done(words) => (CircuitOrderState::Done, words.as_str()),
        OrderState::Failed(words) => (CircuitOrderState::Failed, words.as_str()),
    };
    CircuitOrdered { id, state, words: truncated(words) }
}

/// Converts an order; none if it makes no sense here (the service has checked it).
fn order_from_wire(order: &CircuitOrder) -> Option<Order> {
    let what = match &order.what {
        CircuitWish::Request { mbit, until, replaces } => {
            // An unknown circuit name replaces none.
            let replaces = replaces.as_ref().and_then(|circuit| circuit.parse().ok());
            OrderKind::Circuit { mbit: *mbit, until: *until, replaces }
        }
        CircuitWish::Release { circuit } => OrderKind::Release(circuit.parse().ok()?),
    };
    Some(Order { id: order.id, by: truncated(&order.by), kind: what })
}

/// Limits texts of providers to what the service accepts.
fn truncated(words: &str) -> String {
    words[..words.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}
