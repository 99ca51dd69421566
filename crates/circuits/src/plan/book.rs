//! What has been asked for and is not given back yet.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use super::Planner;
use super::decision::BookingId;
use super::view::{MBIT, Pair, View};

/// How a booking stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stand {
    Requested,
    Established {
        since: Timestamp,
    },
    /// To be given back; established since then, if it was.
    Leaving {
        since: Option<Timestamp>,
    },
}

/// A booking as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Circuit {
    pub booking: BookingId,
    pub pair: Pair,
    pub provider: String,
    pub mbit: u64,
    pub asked: Timestamp,
    pub lifetime: Duration,
    pub stand: Stand,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Booking {
    pub pair: Pair,
    pub provider: String,
    /// It takes nothing from the ports.
    pub beside_ports: bool,
    pub mbit: u64,
    pub asked: Timestamp,
    pub lifetime: Duration,
    pub stand: Stand,
    /// What the link carried without it, in bytes a second.
    pub plain: f64,
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
        matches!(self.stand, Stand::Established { .. })
    }

    pub(crate) fn used_since(&self) -> Option<Timestamp> {
        match self.stand {
            Stand::Established { since } => Some(since),
            Stand::Leaving { since } => since,
            Stand::Requested => None,
        }
    }

    /// Whether something of that port is reserved for it.
    pub(crate) fn takes(&self, end: (SiteId, bool)) -> bool {
        !self.beside_ports && self.pair.ends().contains(&end)
    }

    pub(crate) fn expires(&self, since: Timestamp) -> Timestamp {
        since.plus(self.lifetime)
    }

    /// Bytes a second that it carries if there is enough to do.
    pub(crate) fn rate(&self, view: &View) -> f64 {
        usable(view, self.pair, self.mbit)
    }

    pub(crate) fn part_used(&self, now: Timestamp) -> f64 {
        let used = self.used_since().map_or(Duration::ZERO, |since| now.since(since));
        used.as_secs_f64() / self.lifetime.as_secs_f64().max(1.0)
    }

    /// Bytes more than without it; less, if others lost more.
    pub(crate) fn gained(&self, carried: u64) -> f64 {
        carried as f64 - self.plain * self.busy_s - self.lost
    }

    pub(crate) fn circuit(&self, booking: BookingId) -> Circuit {
        Circuit {
            booking,
            pair: self.pair,
            provider: self.provider.clone(),
            mbit: self.mbit,
            asked: self.asked,
            lifetime: self.lifetime,
            stand: self.stand,
        }
    }
}

/// Of so many Mbit/s, what the storages of the pair can use.
pub(crate) fn usable(view: &View, pair: Pair, mbit: u64) -> f64 {
    let most = view.most.get(&pair).copied().filter(|most| most.is_finite() && *most > 0.0);
    (mbit as f64 * MBIT).min(most.unwrap_or(f64::INFINITY))
}

impl Planner {
    /// Of each port, bytes a second. What is being given back counts until it is gone.
    pub(crate) fn reserved(&self, view: &View) -> BTreeMap<(SiteId, bool), f64> {
        let mut reserved = BTreeMap::new();
        let own = self.bookings.values().filter(|booking| !booking.beside_ports);
        let own = own.map(|booking| (booking.pair, booking.mbit));
        let beside = |name: &str| view.providers.iter().any(|one| one.name == name && one.beside_ports);
        let held = view.held.iter().filter(|(_, held)| !beside(&held.provider));
        for (pair, mbit) in own.chain(held.map(|(pair, held)| (*pair, held.mbit))) {
            for end in pair.ends() {
                *reserved.entry(end).or_insert(0.0) += mbit as f64 * MBIT;
            }
        }
        reserved
    }

    pub(crate) fn of_provider<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Booking> {
        self.bookings.values().filter(move |booking| booking.provider == name)
    }

    /// The circuit that the link has or will have, if it has one that stays.
    pub(crate) fn has(&self, pair: Pair) -> bool {
        let stays =
            |booking: &&Booking| booking.pair == pair && !matches!(booking.stand, Stand::Leaving { .. });
        self.bookings.values().find(stays).is_some()
    }
}
