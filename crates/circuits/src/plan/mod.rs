//! Which links deserve a circuit, where one place sees them all: the central level.
//!
//! A plan looks at everything that waits, at what each link carries without a circuit, and at the ports. A
//! circuit is asked for if it saves enough time for what has the priority, if that is worth more than what
//! the others at both its ports lose by the reservation, and if provider, ports and budgets have room; where
//! they have not room for all, those come first that gain most for the part of the scarcest thing that they
//! take. It is given back when little is left to do, when it gains nothing any more, or when its room is
//! worth more to another link; a better rate, and the time after its expiry, are booked before the old one is
//! given back. What a circuit gained is added up at its end.
//!
//! Each booking is carried out by a [`crate::Lifecycle`] of its own, which tells what came of it. What could
//! not be foreseen (a request that is refused, a circuit that dies) makes the link rest here as well.
//!
//! Start with [`Planner::plan`].

mod account;
mod book;
mod budget;
mod choose;
mod decision;
mod kept;
mod load;
mod review;
mod settings;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use account::Accounts;
use book::Booking;
use budget::Ledger;
use load::Load;

pub use book::{Circuit, Stand};
pub use decision::{BookingId, Decision, News, Reason, Request};
pub use kept::Kept;
pub use settings::PlanSettings;
pub use view::{Held, Pair, Port, Provider, View, Waits};

/// Reasons that are kept to be told.
const REASONS_MAX: usize = 4_096;
/// Rows of what is remembered of links; more than any mesh has.
const MEMORY_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Rest {
    until: Timestamp,
    /// Requests that failed in a row.
    failed: u32,
    /// How often its circuit gave way to another's.
    #[serde(default)]
    gave_way: u32,
}

#[derive(Clone, Debug)]
pub struct Planner {
    settings: PlanSettings,
    bookings: BTreeMap<BookingId, Booking>,
    last: u64,
    ledger: Ledger,
    accounts: Accounts,
    /// What links carried without a circuit before they had one, and how long that counts.
    plain: BTreeMap<Pair, (f64, Option<Timestamp>)>,
    rests: BTreeMap<Pair, Rest>,
    /// Plans in a row in which a circuit seemed worth asking for.
    seen: BTreeMap<Pair, u32>,
    reasons: BTreeMap<Pair, (Timestamp, Reason)>,
    planned: Option<Timestamp>,
}

impl Planner {
    pub fn new(settings: PlanSettings) -> Planner {
        Planner {
            settings,
            bookings: BTreeMap::new(),
            last: 0,
            ledger: Ledger::default(),
            accounts: Accounts::default(),
            plain: BTreeMap::new(),
            rests: BTreeMap::new(),
            seen: BTreeMap::new(),
            reasons: BTreeMap::new(),
            planned: None,
        }
    }

    /// What is to be done now, in this order.
    pub fn plan(&mut self, view: &View, now: Timestamp) -> Vec<Decision> {
        self.plan_where(view, None, now)
    }

    /// After something happened at these sites: what neither begins nor ends there stays as it is.
    pub fn plan_around(&mut self, view: &View, touched: &BTreeSet<SiteId>, now: Timestamp) -> Vec<Decision> {
        self.plan_where(view, Some(touched), now)
    }

    fn plan_where(
        &mut self,
        view: &View,
        touched: Option<&BTreeSet<SiteId>>,
        now: Timestamp,
    ) -> Vec<Decision> {
        self.forget(now);
        let rates = self.rates(view);
        let load = Load::build(view, &rates, &self.settings, now);
        self.account(view, &load, now);
        let mut decisions = Vec::new();
        self.review(view, &load, touched, &mut decisions, now);
        self.choose(view, &load, touched, &mut decisions, now);
        decisions
    }

    /// What came of a booking.
    pub fn hear(&mut self, id: BookingId, news: News, now: Timestamp) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let pair = booking.pair;
        match news {
            News::Established { mbit } => {
                let begins = booking.stand == Stand::Requested;
                if begins {
                    booking.stand = Stand::Established { since: now };
                }
                if mbit < booking.mbit {
                    self.ledger.settle(id, mbit as f64 / booking.mbit.max(1) as f64);
                }
                booking.mbit = mbit.min(booking.mbit);
                // Said again of one that is there, it says nothing of what was refused meanwhile.
                if begins && let Some(rest) = self.rests.get_mut(&pair) {
                    *rest = Rest { until: now, failed: 0, ..*rest };
                }
            }
            News::Failed => {
                // One that was taken back before it was answered says nothing about the link.
                let refused = booking.stand == Stand::Requested;
                let replaces = booking.replaces;
                self.bookings.remove(&id);
                self.ledger.settle(id, 0.0);
                // Where it was to follow one, that is used on, and what comes after that is another matter.
                let kept = replaces.and_then(|before| self.bookings.get(&before));
                let until = kept.and_then(|before| Some(before.expires(before.used_since()?)));
                if refused {
                    self.failed(pair, until, now);
                }
                self.plain_after(pair, now);
            }
            News::Ended { carried } => self.ended(id, carried, now),
        }
    }

    fn failed(&mut self, pair: Pair, most: Option<Timestamp>, now: Timestamp) {
        let failed = self.rests.get(&pair).map_or(1, |rest| rest.failed.saturating_add(1));
        let doubled = self.settings.rest.saturating_mul(1 << (failed - 1).min(16));
        let until = now.plus(doubled.min(self.settings.rest_max));
        let until = most.map_or(until, |most| until.min(most));
        self.rest(pair, until, failed);
        self.say(pair, Reason::Rests { until }, now);
    }

    fn rest(&mut self, pair: Pair, until: Timestamp, failed: u32) {
        let gave_way = self.rests.get(&pair).map_or(0, |rest| rest.gave_way);
        self.rests.insert(pair, Rest { until, failed, gave_way });
    }

    /// What one circuit gains depends on the others, so that two may be worth more than each other in turn:
    /// each time that a link's gave way it rests four times as long.
    fn gives_way(&mut self, pair: Pair, now: Timestamp) {
        let gave_way = self.rests.get(&pair).map_or(0, |rest| rest.gave_way);
        let longer = self.settings.rest_after.saturating_mul(1 << (2 * gave_way).min(16));
        let until = now.plus(longer.min(self.settings.rest_max.max(self.settings.rest_after)));
        self.rests.insert(pair, Rest { until, failed: 0, gave_way: gave_way.saturating_add(1) });
    }

    fn ended(&mut self, id: BookingId, carried: u64, now: Timestamp) {
        let Some(booking) = self.bookings.remove(&id) else { return };
        let pair = booking.pair;
        self.ledger.settle(id, booking.part_used(now));
        if let Some(since) = booking.used_since() {
            self.accounts.ended(&booking.provider, booking.gained(carried), &self.settings, now);
            // Lost soon after it came up, and not because it was not wanted: the link rests as after a
            // refusal.
            let early = now.plus(self.settings.renew_before) < booking.expires(since);
            let replaced = self.bookings.values().any(|other| other.replaces == Some(id));
            if booking.stand == (Stand::Established { since }) && early && !replaced {
                self.failed(pair, None, now);
            }
        }
        self.plain_after(pair, now);
    }

    /// What a link carried before its circuit counts for a while after it.
    fn plain_after(&mut self, pair: Pair, now: Timestamp) {
        if !self.bookings.values().any(|booking| booking.pair == pair)
            && let Some((_, until)) = self.plain.get_mut(&pair)
        {
            *until = Some(now.plus(self.settings.plain_memory));
        }
    }

    /// Why the link has no circuit, or has one, as of the last plan that looked at it.
    pub fn reason(&self, pair: Pair) -> Option<&(Timestamp, Reason)> {
        self.reasons.get(&pair)
    }

    pub fn reasons(&self) -> impl Iterator<Item = (Pair, &Reason)> {
        self.reasons.iter().map(|(pair, (_, reason))| (*pair, reason))
    }

    /// Everything that a provider may hold by our wish.
    pub fn circuits(&self) -> impl Iterator<Item = Circuit> + '_ {
        self.bookings.iter().map(|(id, booking)| booking.circuit(*id))
    }

    /// More bytes than the plain way would have carried, by the last circuits of a provider.
    pub fn gained(&self, provider: &str) -> f64 {
        self.accounts.gained(provider)
    }

    /// What a community has booked within its window, in Gbit/s times hours.
    pub fn booked(&self, community: &longhaul_model::CommunityName) -> f64 {
        self.ledger.booked(community)
    }

    /// The same of all that have booked.
    pub fn payers(&self) -> Vec<(longhaul_model::CommunityName, f64)> {
        self.ledger.all()
    }

    fn say(&mut self, pair: Pair, reason: Reason, now: Timestamp) {
        if self.reasons.len() >= REASONS_MAX && !self.reasons.contains_key(&pair) {
            let oldest = self.reasons.iter().min_by_key(|(_, (at, _))| *at).map(|(pair, _)| *pair);
            oldest.and_then(|pair| self.reasons.remove(&pair));
        }
        self.reasons.insert(pair, (now, reason));
    }

    /// What does not count any more. A clock that went back prolongs nothing.
    fn forget(&mut self, now: Timestamp) {
        self.ledger.forget(&self.settings, now);
        let memory = self.settings.plain_memory;
        self.plain.retain(|_, (_, until)| until.is_none_or(|at| now < at && at <= now.plus(memory)));
        // How often a link failed is known for as long as its longest rest.
        let longest = self.settings.rest_max.max(self.settings.rest_after);
        self.rests.retain(|_, rest| now < rest.until.plus(longest) && rest.until <= now.plus(longest));
        if self.rests.len() > MEMORY_MAX {
            self.rests.clear();
        }
    }

    /// What links carry: without a circuit, and with the one they have.
    fn rates(&mut self, view: &View) -> BTreeMap<Pair, (f64, f64)> {
        let mut rates: BTreeMap<Pair, (f64, f64)> = BTreeMap::new();
        for (&pair, &forecast) in &view.plain {
            let believed = self.plain.get(&pair).map_or(forecast, |(plain, _)| *plain);
            let plain = believed.max(view.seen.get(&pair).copied().unwrap_or(0.0));
            if plain.is_finite() && plain > 0.0 {
                rates.insert(pair, (plain, plain));
            }
        }
        for booking in self.bookings.values().filter(|booking| booking.is_used()) {
            if let Some((_, rate)) = rates.get_mut(&booking.pair) {
                *rate = booking.rate(view);
            }
        }
        rates
    }

    /// What each circuit took from others since the last plan, and whether it had something to do.
    fn account(&mut self, view: &View, load: &Load, now: Timestamp) {
        let since = self.planned.replace(now);
        let passed = since.map_or(Duration::ZERO, |since| now.since(since)).as_secs_f64();
        let reserved = self.reserved(view);
        for booking in self.bookings.values_mut().filter(|booking| booking.is_used()) {
            if load.left(booking.pair) > 0.0 {
                booking.busy_s += passed;
            }
            if booking.beside_ports {
                continue;
            }
            let own = booking.mbit as f64 * view::MBIT;
            let others =
                booking.pair.ends().map(|end| (reserved.get(&end).copied().unwrap_or(0.0) - own).max(0.0));
            booking.lost += load.loss(view, booking.pair, own, others).rate * passed;
        }
    }
}
