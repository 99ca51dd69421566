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

mod booking;
mod budget;
mod decision;
mod load;
mod provider_gains;
mod review;
mod selection;
mod settings;
mod snapshot;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};
use serde::{Deserialize, Serialize};

use booking::Booking;
use budget::BudgetLedger;
use load::LinkLoads;
use provider_gains::ProviderGains;

pub use booking::{BookingState, Circuit};
pub use decision::{BookingEvent, BookingId, BookingRequest, Decision, Reason};
pub use settings::PlanSettings;
pub use snapshot::PlannerSnapshot;
pub use view::{ForeignCircuit, PendingWork, PlanView, Port, Provider, SitePair};

/// Reasons that are kept to be told.
const REASONS_MAX: usize = 4_096;
/// Rows of what is remembered of links; more than any mesh has.
const BACKOFFS_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct LinkBackoff {
    until: Timestamp,
    /// Requests that failed in a row.
    failed: u32,
    /// How often its circuit gave way to another's.
    #[serde(rename = "gave_way", default)]
    preemptions: u32,
}

#[derive(Clone, Debug)]
pub struct Planner {
    settings: PlanSettings,
    bookings: BTreeMap<BookingId, Booking>,
    last: u64,
    ledger: BudgetLedger,
    accounts: ProviderGains,
    /// What links carried without a circuit before they had one, and how long that counts.
    best_effort: BTreeMap<SitePair, (f64, Option<Timestamp>)>,
    backoffs: BTreeMap<SitePair, LinkBackoff>,
    /// Plans in a row in which a circuit seemed worth asking for.
    confirmations: BTreeMap<SitePair, u32>,
    reasons: BTreeMap<SitePair, (Timestamp, Reason)>,
    last_planned_at: Option<Timestamp>,
}

impl Planner {
    pub fn new(settings: PlanSettings) -> Planner {
        Planner {
            settings,
            bookings: BTreeMap::new(),
            last: 0,
            ledger: BudgetLedger::default(),
            accounts: ProviderGains::default(),
            best_effort: BTreeMap::new(),
            backoffs: BTreeMap::new(),
            confirmations: BTreeMap::new(),
            reasons: BTreeMap::new(),
            last_planned_at: None,
        }
    }

    /// What is to be done now, in this order.
    pub fn plan(&mut self, view: &PlanView, now: Timestamp) -> Vec<Decision> {
        self.plan_for(view, None, now)
    }

    /// After something happened at these sites: what neither begins nor ends there stays as it is.
    pub fn plan_around(
        &mut self,
        view: &PlanView,
        touched: &BTreeSet<SiteId>,
        now: Timestamp,
    ) -> Vec<Decision> {
        self.plan_for(view, Some(touched), now)
    }

    fn plan_for(
        &mut self,
        view: &PlanView,
        touched: Option<&BTreeSet<SiteId>>,
        now: Timestamp,
    ) -> Vec<Decision> {
        self.expire(now);
        let rates = self.link_rates(view);
        let load = LinkLoads::build(view, &rates, &self.settings, now);
        self.account_interval(view, &load, now);
        let mut decisions = Vec::new();
        self.review(view, &load, touched, &mut decisions, now);
        self.select_circuits(view, &load, touched, &mut decisions, now);
        decisions
    }

    /// What came of a booking.
    pub fn apply_event(&mut self, id: BookingId, news: BookingEvent, now: Timestamp) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let pair = booking.pair;
        match news {
            BookingEvent::Established { mbit } => {
                let begins = booking.state == BookingState::Requested;
                if begins {
                    booking.state = BookingState::Established { since: now };
                }
                if mbit < booking.mbit {
                    self.ledger.settle(id, mbit as f64 / booking.mbit.max(1) as f64);
                }
                booking.mbit = mbit.min(booking.mbit);
                // Said again of one that is there, it says nothing of what was refused meanwhile.
                if begins && let Some(rest) = self.backoffs.get_mut(&pair) {
                    *rest = LinkBackoff { until: now, failed: 0, ..*rest };
                }
            }
            BookingEvent::Failed => {
                // One that was taken back before it was answered says nothing about the link.
                let refused = booking.state == BookingState::Requested;
                let replaces = booking.replaces;
                self.bookings.remove(&id);
                self.ledger.settle(id, 0.0);
                // Where it was to follow one, that is used on, and what comes after that is another matter.
                let kept = replaces.and_then(|before| self.bookings.get(&before));
                let until = kept.and_then(|before| Some(before.expires(before.used_since()?)));
                if refused {
                    self.back_off_failed(pair, until, now);
                }
                self.expire_best_effort_rate(pair, now);
            }
            BookingEvent::Ended { carried } => self.settle_ended(id, carried, now),
        }
    }

    fn back_off_failed(&mut self, pair: SitePair, most: Option<Timestamp>, now: Timestamp) {
        let failed = self.backoffs.get(&pair).map_or(1, |rest| rest.failed.saturating_add(1));
        let doubled = self.settings.cooldown.saturating_mul(1 << (failed - 1).min(16));
        let until = now.plus(doubled.min(self.settings.cooldown_max));
        let until = most.map_or(until, |most| until.min(most));
        self.back_off_until(pair, until, failed);
        self.record_reason(pair, Reason::CoolingDown { until }, now);
    }

    fn back_off_until(&mut self, pair: SitePair, until: Timestamp, failed: u32) {
        let gave_way = self.backoffs.get(&pair).map_or(0, |rest| rest.preemptions);
        self.backoffs.insert(pair, LinkBackoff { until, failed, preemptions: gave_way });
    }

    /// What one circuit gains depends on the others, so that two may be worth more than each other in turn:
    /// each time that a link's gave way it rests four times as long.
    fn back_off_preempted(&mut self, pair: SitePair, now: Timestamp) {
        let gave_way = self.backoffs.get(&pair).map_or(0, |rest| rest.preemptions);
        let longer = self.settings.cooldown_after_release.saturating_mul(1 << (2 * gave_way).min(16));
        let until =
            now.plus(longer.min(self.settings.cooldown_max.max(self.settings.cooldown_after_release)));
        self.backoffs.insert(pair, LinkBackoff { until, failed: 0, preemptions: gave_way.saturating_add(1) });
    }

    fn settle_ended(&mut self, id: BookingId, carried: u64, now: Timestamp) {
        let Some(booking) = self.bookings.remove(&id) else { return };
        let pair = booking.pair;
        self.ledger.settle(id, booking.share_used(now));
        if let Some(since) = booking.used_since() {
            self.accounts.record_end(&booking.provider, booking.gained(carried), &self.settings, now);
            // Lost soon after it came up, and not because it was not wanted: the link rests as after a
            // refusal.
            let early = now.plus(self.settings.renew_before) < booking.expires(since);
            let replaced = self.bookings.values().any(|other| other.replaces == Some(id));
            if booking.state == (BookingState::Established { since }) && early && !replaced {
                self.back_off_failed(pair, None, now);
            }
        }
        self.expire_best_effort_rate(pair, now);
    }

    /// What a link carried before its circuit counts for a while after it.
    fn expire_best_effort_rate(&mut self, pair: SitePair, now: Timestamp) {
        if !self.bookings.values().any(|booking| booking.pair == pair)
            && let Some((_, until)) = self.best_effort.get_mut(&pair)
        {
            *until = Some(now.plus(self.settings.best_effort_memory));
        }
    }

    /// Why the link has no circuit, or has one, as of the last plan that looked at it.
    pub fn reason(&self, pair: SitePair) -> Option<&(Timestamp, Reason)> {
        self.reasons.get(&pair)
    }

    pub fn reasons(&self) -> impl Iterator<Item = (SitePair, &Reason)> {
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
    pub fn booked_gbit_hours(&self, community: &longhaul_model::CommunityName) -> f64 {
        self.ledger.booked_gbit_hours(community)
    }

    /// The same of all that have booked.
    pub fn booked_by_community(&self) -> Vec<(longhaul_model::CommunityName, f64)> {
        self.ledger.booked_by_community()
    }

    fn record_reason(&mut self, pair: SitePair, reason: Reason, now: Timestamp) {
        if self.reasons.len() >= REASONS_MAX && !self.reasons.contains_key(&pair) {
            let oldest = self.reasons.iter().min_by_key(|(_, (at, _))| *at).map(|(pair, _)| *pair);
            oldest.and_then(|pair| self.reasons.remove(&pair));
        }
        self.reasons.insert(pair, (now, reason));
    }

    /// What does not count any more. A clock that went back prolongs nothing.
    fn expire(&mut self, now: Timestamp) {
        self.ledger.expire(&self.settings, now);
        let memory = self.settings.best_effort_memory;
        self.best_effort.retain(|_, (_, until)| until.is_none_or(|at| now < at && at <= now.plus(memory)));
        // How often a link failed is known for as long as its longest rest.
        let longest = self.settings.cooldown_max.max(self.settings.cooldown_after_release);
        self.backoffs.retain(|_, rest| now < rest.until.plus(longest) && rest.until <= now.plus(longest));
        if self.backoffs.len() > BACKOFFS_MAX {
            self.backoffs.clear();
        }
    }

    /// What links carry: without a circuit, and with the one they have.
    fn link_rates(&mut self, view: &PlanView) -> BTreeMap<SitePair, (f64, f64)> {
        let mut rates: BTreeMap<SitePair, (f64, f64)> = BTreeMap::new();
        for (&pair, &forecast) in &view.best_effort {
            let believed = self.best_effort.get(&pair).map_or(forecast, |(plain, _)| *plain);
            let plain = believed.max(view.observed.get(&pair).copied().unwrap_or(0.0));
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
    fn account_interval(&mut self, view: &PlanView, load: &LinkLoads, now: Timestamp) {
        let since = self.last_planned_at.replace(now);
        let passed = since.map_or(Duration::ZERO, |since| now.since(since)).as_secs_f64();
        let reserved = self.reserved_by_port(view);
        for booking in self.bookings.values_mut().filter(|booking| booking.is_used()) {
            if load.remaining_s(booking.pair) > 0.0 {
                booking.busy_s += passed;
            }
            if booking.bypasses_ports {
                continue;
            }
            let own = booking.mbit as f64 * view::MBIT_BYTES_PER_S;
            let others =
                booking.pair.ends().map(|end| (reserved.get(&end).copied().unwrap_or(0.0) - own).max(0.0));
            booking.lost += load.loss(view, booking.pair, own, others).rate * passed;
        }
    }
}
