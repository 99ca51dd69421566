//! Bookings: circuits requested and not released yet.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Planner;
use super::decision::BookingId;
use super::view::{MBIT_BYTES_PER_S, PlanView, SitePair};

/// State of a booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BookingState {
    Requested,
    Established {
        since: Timestamp,
    },
    /// To be released; `since` if it was established.
    #[serde(rename = "Leaving")]
    Releasing {
        since: Option<Timestamp>,
    },
}

/// Public view of a booking.
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

/// One requested or established circuit, with its accounting.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Booking {
    pub pair: SitePair,
    pub provider: String,
    /// It takes no bandwidth from the ports.
    #[serde(rename = "beside_ports")]
    pub bypasses_ports: bool,
    pub mbit: u64,
    #[serde(rename = "asked")]
    pub requested_at: Timestamp,
    pub lifetime: Duration,
    #[serde(rename = "stand")]
    pub state: BookingState,
    /// Best-effort rate of the link, in bytes per second.
    #[serde(rename = "plain")]
    pub best_effort: f64,
    pub replaces: Option<BookingId>,
    /// Consecutive plans in which it had too little work.
    pub idle: u32,
    /// Consecutive plans in which it gained nothing.
    pub useless: u32,
    /// Consecutive plans in which another rate was better.
    pub misfit: u32,
    /// Seconds in which it had work.
    pub busy_s: f64,
    /// Bytes that others lost by it.
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

    /// Whether it reserves bandwidth of that port.
    pub(crate) fn reserves_port(&self, end: (SiteId, bool)) -> bool {
        !self.bypasses_ports && self.pair.ends().contains(&end)
    }

    pub(crate) fn expires(&self, since: Timestamp) -> Timestamp {
        since.plus(self.lifetime)
    }

    /// Bytes per second that it carries with enough work.
    pub(crate) fn rate(&self, view: &PlanView) -> f64 {
        usable_rate(view, self.pair, self.mbit)
    }

    pub(crate) fn share_used(&self, now: Timestamp) -> f64 {
        let used = self.used_since().map_or(Duration::ZERO, |since| now.since(since));
        used.as_secs_f64() / self.lifetime.as_secs_f64().max(1.0)
    }

    /// Bytes gained over the best-effort path, less what others lost.
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

/// Share of the rate that the storages of the pair can use, in bytes per second.
pub(crate) fn usable_rate(view: &PlanView, pair: SitePair, mbit: u64) -> f64 {
    let most = view.storage_rate_max.get(&pair).copied().filter(|most| most.is_finite() && *most > 0.0);
    (mbit as f64 * MBIT_BYTES_PER_S).min(most.unwrap_or(f64::INFINITY))
}

impl Planner {
    /// Reserved bytes per second of each port; a circuit being released counts until it is gone.
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

    /// Whether the link has, or will have, a circuit that is not being released.
    pub(crate) fn has_circuit(&self, pair: SitePair) -> bool {
        let stays = |booking: &&Booking| {
            booking.pair == pair && !matches!(booking.state, BookingState::Releasing { .. })
        };
        self.bookings.values().find(stays).is_some()
    }
}
