//! Review of existing circuits: kept, released, renewed or resized.

use std::collections::BTreeSet;

use longhaul_model::{SiteId, Timestamp};

use super::Planner;
use super::booking::BookingState;
use super::decision::{BookingId, Decision, Reason};
use super::load::{LinkLoads, TB_HOUR, duration_from_s};
use super::selection::Offer;
use super::view::PlanView;

impl Planner {
    pub(super) fn review(
        &mut self,
        view: &PlanView,
        load: &LinkLoads,
        touched: Option<&BTreeSet<SiteId>>,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        let ids: Vec<BookingId> = self.bookings.keys().copied().collect();
        for id in ids {
            let booking = &self.bookings[&id];
            if matches!(booking.state, BookingState::Releasing { .. })
                || touched.is_some_and(|touched| !booking.pair.touches(touched))
            {
                continue;
            }
            let pair = booking.pair;
            let away =
                [pair.source, pair.target].into_iter().find(|site| view.unreachable_sites.contains(site));
            if let Some(site) = away {
                self.release_booking(id, Reason::SiteUnreachable { site }, decisions, now);
            } else if let BookingState::Established { since } = booking.state {
                if let Some(old) = booking.replaces.filter(|old| self.bookings.contains_key(old)) {
                    // Make before break.
                    self.release_booking(old, Reason::Replaced { by: id }, decisions, now);
                }
                self.review_booking(view, load, id, since, decisions, now);
            }
        }
    }

    fn review_booking(
        &mut self,
        view: &PlanView,
        load: &LinkLoads,
        id: BookingId,
        since: Timestamp,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        let booking = &self.bookings[&id];
        let pair = booking.pair;
        let replaced = self.bookings.values().any(|other| other.replaces == Some(id));
        let left = duration_from_s(load.remaining_s(pair));
        let provider = view.providers.iter().position(|provider| provider.name == booking.provider);
        let (Some(at), false) = (provider, replaced) else { return };
        let offer = load
            .link(pair)
            .map(|link| self.evaluate(view, load, link, (at, booking.mbit), Some(booking), false));
        let useless = offer.as_ref().is_none_or(|offer| offer.net() <= 0.0);
        let fitting = self.better_fitting_rate(view, load, id, at);
        let misfit = fitting.is_some();
        let (leave, checks, hold) =
            (self.settings.release_below, self.settings.plans_in_a_row, self.settings.age_min);
        let expires = booking.expires(since);
        // A short booking is not renewed from its beginning.
        let renew_before = self.settings.renew_before.min(booking.lifetime / 2);
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let count = |so_far: u32, holds: bool| if holds { so_far.saturating_add(1) } else { 0 };
        booking.idle = count(booking.idle, left < leave);
        booking.useless = count(booking.useless, useless);
        booking.misfit = count(booking.misfit, misfit);
        let (idle, useless, misfit) =
            (booking.idle >= checks, booking.useless >= checks, booking.misfit >= checks);
        let mbit = booking.mbit;
        if now.since(since) >= hold && (idle || useless) {
            let why = match offer {
                Some(offer) if !idle => {
                    Reason::NoGain { gain: offer.saving.gain / TB_HOUR, loss: offer.loss.cost / TB_HOUR }
                }
                _ => Reason::Idle { left, threshold: leave },
            };
            self.release_booking(id, why, decisions, now);
            self.back_off_until(pair, now.plus(self.settings.cooldown_after_release), 0);
        } else if now.plus(renew_before) >= expires && left >= leave {
            let Some(offer) = offer.filter(|offer| offer.net() > 0.0) else { return };
            let why = Reason::Renewed { bytes: offer.saving.bytes as u64, left: expires.since(now) };
            self.replace(view, load, &offer, id, why, decisions, now);
        } else if let (true, true, Some(offer)) = (misfit, now.since(since) >= hold, fitting) {
            let why = Reason::Resized { from_mbit: mbit, to_mbit: offer.mbit };
            self.replace(view, load, &offer, id, why, decisions, now);
        }
    }

    /// Another rate of the same provider that fits far better: a larger one, or a smaller one with about the
    /// same gain.
    fn better_fitting_rate(
        &self,
        view: &PlanView,
        load: &LinkLoads,
        id: BookingId,
        at: usize,
    ) -> Option<Offer> {
        let booking = &self.bookings[&id];
        let link = load.link(booking.pair)?;
        let provider = &view.providers[at];
        if provider.one_circuit_per_pair {
            return None;
        }
        let rates = provider.rates(booking.pair);
        let offers: Vec<Offer> =
            rates.map(|mbit| self.evaluate(view, load, link, (at, mbit), Some(booking), false)).collect();
        let most = offers.iter().map(Offer::net).fold(0.0, f64::max);
        let best = offers.into_iter().filter(|offer| offer.net() > 0.0 && offer.net() >= most * 0.9);
        let best = best.min_by_key(|offer| offer.mbit)?;
        let factor = best.mbit as f64 / booking.mbit.max(1) as f64;
        (factor >= self.settings.resize_factor || factor <= 1.0 / self.settings.resize_factor).then_some(best)
    }

    /// Requests a replacement, if there is room for both.
    fn replace(
        &mut self,
        view: &PlanView,
        load: &LinkLoads,
        offer: &Offer,
        old: BookingId,
        why: Reason,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        let resting = self.backoffs.get(&offer.pair).is_some_and(|rest| rest.until > now);
        let provider = &view.providers[offer.provider];
        if resting
            || provider.one_circuit_per_pair
            || self.check_capacity(view, provider, offer, now).is_some()
        {
            return;
        }
        let request = self.record_booking(view, offer, Some(old), why, load, now);
        decisions.push(Decision::Request(request));
    }

    /// Releases a booking; it counts until that is confirmed.
    pub(super) fn release_booking(
        &mut self,
        id: BookingId,
        why: Reason,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        if matches!(booking.state, BookingState::Releasing { .. }) {
            return;
        }
        let pair = booking.pair;
        booking.state = BookingState::Releasing { since: booking.used_since() };
        self.record_reason(pair, why.clone(), now);
        decisions.push(Decision::Release { booking: id, pair, reason: why });
    }
}
