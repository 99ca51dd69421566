//! Central planner: selects the links that deserve a circuit where one service sees them all (admission with
//! a greedy knapsack by gain density).
//!
//! A plan looks at all pending work, at the best-effort rate of each link, and at the ports. A circuit is
//! requested if it saves enough time for work of sufficient priority, if the gain exceeds what others at both
//! its ports lose by the reservation, and if provider, ports and budgets have room; where they lack room for
//! all, those with the highest gain per share of the scarcest resource come first. A circuit is released when
//! little work is left, when it gains nothing any more, or when its room is worth more to another link
//! (preemption); a better rate, and a renewal, are booked before the old circuit is released. Its actual gain
//! is accounted at its end.
//!
//! Each booking is carried out by a [`crate::Lifecycle`], which reports the outcome. After failures that
//! could not be foreseen (a refused request, a circuit that dies) the link backs off exponentially.
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

/// Reasons kept for explanations.
const REASONS_MAX: usize = 4_096;
/// Back-offs kept; more than any mesh has.
const BACKOFFS_MAX: usize = 100_000;

/// Exponential back-off of one link.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct LinkBackoff {
    until: Timestamp,
    /// Consecutive failed requests.
    failed: u32,
    /// How often its circuit was preempted.
    #[serde(rename = "gave_way", default)]
    preemptions: u32,
}

/// The central planner; its state survives restarts by [`PlannerSnapshot`].
#[derive(Clone, Debug)]
pub struct Planner {
    settings: PlanSettings,
    bookings: BTreeMap<BookingId, Booking>,
    last: u64,
    ledger: BudgetLedger,
    accounts: ProviderGains,
    /// Best-effort rates from before links had a circuit, and how long they count.
    best_effort: BTreeMap<SitePair, (f64, Option<Timestamp>)>,
    backoffs: BTreeMap<SitePair, LinkBackoff>,
    /// Consecutive plans in which a circuit seemed worthwhile (hysteresis).
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

    /// Plans all links; decisions are to be carried out in order.
    pub fn plan(&mut self, view: &PlanView, now: Timestamp) -> Vec<Decision> {
        self.plan_for(view, None, now)
    }

    /// Plans after an event at these sites; what neither begins nor ends there stays.
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

    /// Applies the outcome of a booking.
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
                // A repetition for an existing circuit says nothing about later refusals.
                if begins && let Some(rest) = self.backoffs.get_mut(&pair) {
                    *rest = LinkBackoff { until: now, failed: 0, ..*rest };
                }
            }
            BookingEvent::Failed => {
                // A booking released before it was answered says nothing about the link.
                let refused = booking.state == BookingState::Requested;
                let replaces = booking.replaces;
                self.bookings.remove(&id);
                self.ledger.settle(id, 0.0);
                // If it was a replacement, the old circuit is used on until it expires.
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

    /// The gain of a circuit depends on the others, so two may preempt each other in turn: the back-off of a
    /// link quadruples with each preemption.
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
            // Lost early while still wanted: backs off as after a refusal.
            let early = now.plus(self.settings.renew_before) < booking.expires(since);
            let replaced = self.bookings.values().any(|other| other.replaces == Some(id));
            if booking.state == (BookingState::Established { since }) && early && !replaced {
                self.back_off_failed(pair, None, now);
            }
        }
        self.expire_best_effort_rate(pair, now);
    }

    /// The best-effort rate from before a circuit counts for a while after it.
    fn expire_best_effort_rate(&mut self, pair: SitePair, now: Timestamp) {
        if !self.bookings.values().any(|booking| booking.pair == pair)
            && let Some((_, until)) = self.best_effort.get_mut(&pair)
        {
            *until = Some(now.plus(self.settings.best_effort_memory));
        }
    }

    /// Why the link has a circuit or none, as of the last plan that looked at it.
    pub fn reason(&self, pair: SitePair) -> Option<&(Timestamp, Reason)> {
        self.reasons.get(&pair)
    }

    pub fn reasons(&self) -> impl Iterator<Item = (SitePair, &Reason)> {
        self.reasons.iter().map(|(pair, (_, reason))| (*pair, reason))
    }

    /// All circuits that a provider may hold for us.
    pub fn circuits(&self) -> impl Iterator<Item = Circuit> + '_ {
        self.bookings.iter().map(|(id, booking)| booking.circuit(*id))
    }

    /// Bytes gained over the best-effort path by the last circuits of a provider.
    pub fn gained(&self, provider: &str) -> f64 {
        self.accounts.gained(provider)
    }

    /// Gbit/s × hours that a community booked within its window.
    pub fn booked_gbit_hours(&self, community: &longhaul_model::CommunityName) -> f64 {
        self.ledger.booked_gbit_hours(community)
    }

    /// Gbit/s × hours booked, by community.
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

    /// Drops what has expired. A clock step back prolongs nothing.
    fn expire(&mut self, now: Timestamp) {
        self.ledger.expire(&self.settings, now);
        let memory = self.settings.best_effort_memory;
        self.best_effort.retain(|_, (_, until)| until.is_none_or(|at| now < at && at <= now.plus(memory)));
        // Failures are remembered for as long as the longest back-off.
        let longest = self.settings.cooldown_max.max(self.settings.cooldown_after_release);
        self.backoffs.retain(|_, rest| now < rest.until.plus(longest) && rest.until <= now.plus(longest));
        if self.backoffs.len() > BACKOFFS_MAX {
            self.backoffs.clear();
        }
    }

    /// Rates of links without a circuit, and with the one they have.
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

    /// Accounts what each circuit took from others since the last plan, and whether it had work.
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
