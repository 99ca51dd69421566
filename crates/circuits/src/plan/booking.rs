//! What has been asked for and is not given back yet.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Planner;
use super::decision::BookingId;
use super::view::{MBIT_BYTES_PER_S, PlanView, SitePair};

/// How a booking stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BookingState {
    Requested,
    Established {
        since: Timestamp,
    },
    /// To be given back; established since then, if it was.
    #[serde(rename = "Leaving")]
    Releasing {
        since: Option<Timestamp>,
    },
}

/// A booking as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Circuit {
    pub booking: BookingId,
    pub pair: SitePair,
    pub provider: String,
    pub mbit: u64,
    pub requested_at: Timestamp,
    pub lifetime: Duration,
    pub state: BookingState,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Booking {
    pub pair: SitePair,
    pub provider: String,
    /// It takes nothing from the ports.
    #[serde(rename = "beside_ports")]
    pub bypasses_ports: bool,
    pub mbit: u64,
    #[serde(rename = "asked")]
    pub requested_at: Timestamp,
    pub lifetime: Duration,
    #[serde(rename = "stand")]
    pub state: BookingState,
    /// What the link carried without it, in bytes a second.
    #[serde(rename = "plain")]
    pub best_effort: f64,
    pub replaces: Option<BookingId>,
    /// Plans in a row in which it had too little to do, gained nothing, or had the wrong rate.
    pub idle: u32,
    pub useless: u32,
    pub misfit: u32,
    /// Seconds in which it had something to do, and bytes that others lost by it.
    pub busy_s: f64,
    pub lost: f64,
}

impl Booking {
    pub(crate) fn is_used(&self) -> bool {
        matches!(self.state, BookingState::Established { .. })
    }

    pub(crate) fn used_since(&self) -> Option<Timestamp> {
        match self.state {
            BookingState::Established { since } => Some(since),
            BookingState::Releasing { since } => since,
            BookingState::Requested => None,
        }
    }

    /// Whether something of that port is reserved for it.
    pub(crate) fn reserves_port(&self, end: (SiteId, bool)) -> bool {
        !self.bypasses_ports && self.pair.ends().contains(&end)
    }

    pub(crate) fn expires(&self, since: Timestamp) -> Timestamp {
        since.plus(self.lifetime)
    }

    /// Bytes a second that it carries if there is enough to do.
    pub(crate) fn rate(&self, view: &PlanView) -> f64 {
        usable_rate(view, self.pair, self.mbit)
    }

    pub(crate) fn share_used(&self, now: Timestamp) -> f64 {
        let used = self.used_since().map_or(Duration::ZERO, |since| now.since(since));
        used.as_secs_f64() / self.lifetime.as_secs_f64().max(1.0)
    }

    /// Bytes more than without it; less, if others lost more.
    pub(crate) fn gained(&self, carried: u64) -> f64 {
        carried as f64 - self.best_effort * self.busy_s - self.lost
    }

    pub(crate) fn circuit(&self, booking: BookingId) -> Circuit {
        Circuit {
            booking,
            pair: self.pair,
            provider: self.provider.clone(),
            mbit: self.mbit,
            requested_at: self.requested_at,
            lifetime: self.lifetime,
            state: self.state,
        }
    }
}

/// Of so many Mbit/s, what the storages of the pair can use.
pub(crate) fn usable_rate(view: &PlanView, pair: SitePair, mbit: u64) -> f64 {
    let most = view.storage_rate_max.get(&pair).copied().filter(|most| most.is_finite() && *most > 0.0);
    (mbit as f64 * MBIT_BYTES_PER_S).min(most.unwrap_or(f64::INFINITY))
}

impl Planner {
    /// Of each port, bytes a second. What is being given back counts until it is gone.
    pub(crate) fn reserved_by_port(&self, view: &PlanView) -> BTreeMap<(SiteId, bool), f64> {
        let mut reserved = BTreeMap::new();
        let own = self.bookings.values().filter(|booking| !booking.bypasses_ports);
        let own = own.map(|booking| (booking.pair, booking.mbit));
        let beside = |name: &str| view.providers.iter().any(|one| one.name == name && one.bypasses_ports);
        let held = view.foreign_circuits.iter().filter(|(_, held)| !beside(&held.provider));
        for (pair, mbit) in own.chain(held.map(|(pair, held)| (*pair, held.mbit))) {
            for end in pair.ends() {
                *reserved.entry(end).or_insert(0.0) += mbit as f64 * MBIT_BYTES_PER_S;
            }
        }
        reserved
    }

    pub(crate) fn provider_bookings<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Booking> {
        self.bookings.values().filter(move |booking| booking.provider == name)
    }

    /// The circuit that the link has or will have, if it has one that stays.
    pub(crate) fn has_circuit(&self, pair: SitePair) -> bool {
        let stays = |booking: &&Booking| {
            booking.pair == pair && !matches!(booking.state, BookingState::Releasing { .. })
        };
        self.bookings.values().find(stays).is_some()
    }
}
