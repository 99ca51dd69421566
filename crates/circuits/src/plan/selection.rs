//! Selection of links for new circuits: greedy by gain density, the heuristic of Dantzig (1957) for the
//! knapsack problem, with preemption.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{SiteId, Timestamp};

use super::booking::{Booking, BookingState, usable_rate};
use super::decision::{BookingId, BookingRequest, Decision, Reason};
use super::load::{LinkLoad, LinkLoads, PortLoss, Saving, TB_HOUR, duration_from_s};
use super::view::{MBIT_BYTES_PER_S, PlanView, Provider, SitePair};
use super::{LinkBackoff, Planner};

/// Links evaluated, those with the highest potential gain first.
const CANDIDATES_MAX: usize = 256;
/// Circuits requested per plan.
const REQUESTS_PER_PLAN_MAX: usize = 32;
/// Links that may preempt others.
const PREEMPTORS_MAX: usize = 16;
/// Circuits that may be preempted.
const PREEMPTION_VICTIMS_MAX: usize = 16;
/// Providers evaluated.
const PROVIDERS_MAX: usize = 16;
/// A smaller circuit is chosen if it gains this share of the best one's gain.
const NET_GAIN_SHARE_MIN: f64 = 0.9;
/// Lifetime as a multiple of the expected time: forecasts err.
const LIFETIME_MARGIN_FACTOR: f64 = 1.3;
/// Lifetimes are multiples of this.
const LIFETIME_STEP_S: f64 = 300.0;

/// A candidate circuit.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub pair: SitePair,
    pub provider: usize,
    pub mbit: u64,
    pub lifetime: Duration,
    pub saving: Saving,
    pub loss: PortLoss,
    /// Net gain per share of the scarcest resource that it takes.
    pub density: f64,
}

impl Offer {
    pub(super) fn net(&self) -> f64 {
        self.saving.gain - self.loss.cost
    }

    fn gbit_hours(&self) -> f64 {
        gbit_hours(self.mbit, self.lifetime)
    }

    fn reason(&self) -> Reason {
        Reason::Gains {
            bytes: self.saving.bytes as u64,
            before: duration_from_s(self.saving.before),
            after: duration_from_s(self.saving.after),
            mbit: self.mbit,
            others_lose: self.loss.share,
        }
    }
}

pub(super) fn gbit_hours(mbit: u64, lifetime: Duration) -> f64 {
    mbit as f64 / 1000.0 * lifetime.as_secs_f64() / 3600.0
}

impl Planner {
    pub(super) fn select_circuits(
        &mut self,
        view: &PlanView,
        load: &LinkLoads,
        touched: Option<&BTreeSet<SiteId>>,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        let candidates = self.candidates(view, load, touched, now);
        let within = |pair: &SitePair| touched.is_none_or(|touched| pair.touches(touched));
        let looked: BTreeSet<SitePair> = candidates.iter().map(|link| link.pair).collect();
        self.confirmations.retain(|pair, _| looked.contains(pair) || !within(pair));
        let mut offers: BTreeMap<SitePair, Result<Offer, Reason>> = BTreeMap::new();
        for link in &candidates {
            let offer = self.best_offer(view, load, link, now);
            let worth = !matches!(&offer, Err(reason) if !reason.is_capacity_limit());
            let seen = if worth {
                self.confirmations.get(&link.pair).map_or(1, |seen| seen.saturating_add(1))
            } else {
                0
            };
            self.confirmations.insert(link.pair, seen);
            offers.insert(link.pair, offer);
        }
        for _ in 0..REQUESTS_PER_PLAN_MAX {
            let sure = |pair: &SitePair| {
                self.confirmations.get(pair).is_some_and(|seen| *seen >= self.settings.plans_in_a_row)
            };
            let found = offers.values().flatten().filter(|offer| sure(&offer.pair));
            let best = found
                .max_by(|one, other| one.density.total_cmp(&other.density).then(other.pair.cmp(&one.pair)));
            let Some(best) = best.cloned() else { break };
            let why = best.reason();
            let request = self.record_booking(view, &best, None, why, load, now);
            decisions.push(Decision::Request(request));
            offers.remove(&best.pair);
            // The capacity taken is not available to others.
            let near: Vec<SitePair> = offers.keys().copied().collect();
            for link in candidates.iter().filter(|link| near.contains(&link.pair)) {
                let offer = self.best_offer(view, load, link, now);
                offers.insert(link.pair, offer);
            }
        }
        self.preempt(view, load, touched, &candidates, &offers, decisions, now);
        for (pair, offer) in offers {
            let reason = match offer {
                Ok(_) => Reason::AwaitingConfirmation {
                    seen: self.confirmations.get(&pair).copied().unwrap_or(0),
                    of: self.settings.plans_in_a_row,
                },
                Err(reason) => reason,
            };
            self.record_reason(pair, reason, now);
        }
    }

    /// Links without a circuit whose work counts, those with the highest potential gain first.
    fn candidates<'a>(
        &mut self,
        view: &PlanView,
        load: &'a LinkLoads,
        touched: Option<&BTreeSet<SiteId>>,
        now: Timestamp,
    ) -> Vec<&'a LinkLoad> {
        let mut found: Vec<(f64, &LinkLoad)> = Vec::new();
        for link in &load.links {
            let within = touched.is_none_or(|touched| link.pair.touches(touched));
            if !within || self.has_circuit(link.pair) {
                continue;
            }
            let fastest = view.providers.iter().filter(|provider| provider.reaches(link.pair));
            let fastest = fastest.flat_map(|provider| provider.rates(link.pair)).max();
            let reason = match fastest {
                _ if view.foreign_circuits.contains_key(&link.pair) => Reason::HeldElsewhere,
                None => Reason::NoProvider,
                Some(_) if link.highest < self.settings.priority_floor => {
                    Reason::BelowPriorityFloor { highest: link.highest, floor: self.settings.priority_floor }
                }
                Some(mbit) if usable_rate(view, link.pair, mbit) <= link.plain => {
                    Reason::BestEffortSuffices { plain: link.plain, mbit }
                }
                Some(mbit) => {
                    let to = usable_rate(view, link.pair, mbit);
                    let gain = load.saving(link, link.plain, to, 0.0, self.settings.priority_floor).gain;
                    match self.backoffs.get(&link.pair) {
                        Some(LinkBackoff { until, .. }) if *until > now => {
                            Reason::CoolingDown { until: *until }
                        }
                        _ => {
                            found.push((gain, link));
                            continue;
                        }
                    }
                }
            };
            self.record_reason(link.pair, reason, now);
        }
        found.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.pair.cmp(&other.1.pair)));
        found.truncate(CANDIDATES_MAX);
        found.into_iter().map(|(_, link)| link).collect()
    }

    /// The best circuit available for a link, or why there is none.
    pub(super) fn best_offer(
        &self,
        view: &PlanView,
        load: &LinkLoads,
        link: &LinkLoad,
        now: Timestamp,
    ) -> Result<Offer, Reason> {
        let mut good: Vec<Offer> = Vec::new();
        let mut why = Reason::NoProvider;
        for (at, provider) in view.providers.iter().enumerate().take(PROVIDERS_MAX) {
            if !provider.reaches(link.pair) {
                continue;
            }
            for mbit in provider.rates(link.pair) {
                let offer = self.evaluate(view, load, link, (at, mbit), None, true);
                // The loss of others is irrelevant where there is no room.
                let lacks = || self.check_capacity(view, provider, &offer, now).map_or(Ok(()), Err);
                let judged = self
                    .check_saving(&offer)
                    .and_then(|()| lacks())
                    .and_then(|()| self.check_net_gain(&offer));
                match judged {
                    Ok(()) => good.push(offer),
                    // Of several reasons, the one closest to success is reported.
                    Err(reason) if why.rank() <= reason.rank() => why = reason,
                    Err(_) => {}
                }
            }
        }
        let most = good.iter().map(Offer::net).fold(0.0, f64::max);
        let enough = good.into_iter().filter(|offer| offer.net() >= most * NET_GAIN_SHARE_MIN);
        enough.min_by_key(|offer| (offer.mbit, offer.provider)).ok_or(why)
    }

    /// Gain for the link and loss of others by a circuit. `without` is a booking assumed gone.
    pub(super) fn evaluate(
        &self,
        view: &PlanView,
        load: &LinkLoads,
        link: &LinkLoad,
        (at, mbit): (usize, u64),
        without: Option<&Booking>,
        new: bool,
    ) -> Offer {
        let provider = &view.providers[at];
        let pair = link.pair;
        let to = usable_rate(view, pair, mbit);
        let setup = if new { provider.setup.as_secs_f64() } else { 0.0 };
        let saving = load.saving(link, link.plain, to, setup, self.settings.priority_floor);
        let all = self.reserved_by_port(view);
        let reserved = pair.ends().map(|end| {
            let gone = without.filter(|booking| booking.reserves_port(end));
            let gone = gone.map_or(0.0, |booking| booking.mbit as f64 * MBIT_BYTES_PER_S);
            (all.get(&end).copied().unwrap_or(0.0) - gone).max(0.0)
        });
        let loss = match provider.bypasses_ports {
            true => PortLoss::default(),
            false => load.loss(view, pair, mbit as f64 * MBIT_BYTES_PER_S, reserved),
        };
        let lasts = (saving.after * LIFETIME_MARGIN_FACTOR / LIFETIME_STEP_S).ceil() * LIFETIME_STEP_S;
        let lifetime = duration_from_s(lasts).max(self.settings.age_min).min(provider.lifetime);
        let mut offer = Offer { pair, provider: at, mbit, lifetime, saving, loss, density: 0.0 };
        offer.density = offer.net() / scarcity(view, provider, pair, mbit);
        offer
    }

    fn check_saving(&self, offer: &Offer) -> Result<(), Reason> {
        let saved = offer.saving.before - offer.saving.after;
        let needed =
            self.settings.gain_min.as_secs_f64().max(offer.saving.before * self.settings.gain_share_min);
        if saved > needed {
            return Ok(());
        }
        let (saved, needed) = (duration_from_s(saved), duration_from_s(needed));
        Err(Reason::SavesTooLittle { saved, needed, mbit: offer.mbit })
    }

    fn check_net_gain(&self, offer: &Offer) -> Result<(), Reason> {
        if offer.net() > 0.0 {
            return Ok(());
        }
        let (gain, loss) = (offer.saving.gain / TB_HOUR, offer.loss.cost / TB_HOUR);
        Err(Reason::CostsOthers { gain, loss, mbit: offer.mbit })
    }

    /// The lacking resource, if any.
    pub(super) fn check_capacity(
        &self,
        view: &PlanView,
        provider: &Provider,
        offer: &Offer,
        now: Timestamp,
    ) -> Option<Reason> {
        if let Some((until, gained)) = self.accounts.suspension(&provider.name, now) {
            return Some(Reason::ProviderSuspended { provider: provider.name.clone(), gained, until });
        }
        let needed = offer.gbit_hours();
        if let Some((community, left, needed)) =
            self.ledger.over_budget(&offer.saving.payers, needed, &self.settings)
        {
            return Some(Reason::Budget { community, left, needed });
        }
        self.check_room(view, provider, offer.pair, offer.mbit, None)
    }

    /// The limit of provider or ports that it would exceed, beside all bookings except `without`.
    fn check_room(
        &self,
        view: &PlanView,
        provider: &Provider,
        pair: SitePair,
        mbit: u64,
        without: Option<&Booking>,
    ) -> Option<Reason> {
        let name = provider.name.clone();
        let gone =
            without.filter(|booking| booking.provider == name).map_or((0, 0), |booking| (1, booking.mbit));
        let (circuits, used) = self
            .provider_bookings(&name)
            .fold((0, 0), |(count, sum), booking| (count + 1, sum + booking.mbit));
        let held = view.foreign_circuits.values().filter(|held| held.provider == name);
        let (circuits, used) =
            held.fold((circuits - gone.0, used - gone.1), |(count, sum), held| (count + 1, sum + held.mbit));
        let full = provider.mbit_total_max.is_some_and(|all| used.saturating_add(mbit) > all);
        if circuits >= provider.circuits_max || full {
            return Some(Reason::ProviderFull { provider: name, circuits });
        }
        if self.ledger.requests_in_last_hour(&name) >= provider.requests_per_hour {
            return Some(Reason::ProviderRateLimited {
                provider: name,
                per_hour: provider.requests_per_hour,
            });
        }
        if provider.bypasses_ports {
            return None;
        }
        let all = self.reserved_by_port(view);
        pair.ends().into_iter().find_map(|(site, inward)| {
            let of = reservable(view, provider, site, inward);
            let gone = without.filter(|booking| booking.reserves_port((site, inward)));
            let gone = gone.map_or(0.0, |booking| booking.mbit as f64 * MBIT_BYTES_PER_S);
            let reserved = all.get(&(site, inward)).copied().unwrap_or(0.0) - gone;
            (reserved + mbit as f64 * MBIT_BYTES_PER_S > of).then_some(Reason::PortFull {
                site,
                inward,
                reserved,
                of,
            })
        })
    }

    /// Preempts one circuit that gains far less than the best candidate without room.
    fn preempt(
        &mut self,
        view: &PlanView,
        load: &LinkLoads,
        touched: Option<&BTreeSet<SiteId>>,
        candidates: &[&LinkLoad],
        offers: &BTreeMap<SitePair, Result<Offer, Reason>>,
        decisions: &mut Vec<Decision>,
        now: Timestamp,
    ) {
        // One at a time: the room that one makes may fit others.
        if self.bookings.values().any(|booking| matches!(booking.state, BookingState::Releasing { .. })) {
            return;
        }
        let old =
            |booking: &Booking| booking.used_since().is_some_and(|at| now.since(at) >= self.settings.age_min);
        let within = |booking: &Booking| touched.is_none_or(|touched| booking.pair.touches(touched));
        let found = self.bookings.iter().filter(|(_, booking)| old(booking) && within(booking));
        let mut held: Vec<(f64, BookingId)> =
            found.map(|(id, booking)| (self.remaining_density(view, load, booking), *id)).collect();
        held.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        held.truncate(PREEMPTION_VICTIMS_MAX);
        let lacks = |pair: &SitePair| {
            matches!(offers.get(pair), Some(Err(Reason::PortFull { .. } | Reason::ProviderFull { .. })))
                && self.confirmations.get(pair).is_some_and(|seen| *seen >= self.settings.plans_in_a_row)
        };
        let wanted = candidates.iter().filter(|link| lacks(&link.pair)).take(PREEMPTORS_MAX);
        let best = wanted
            .flat_map(|link| held.iter().map(move |one| (*link, one)))
            .filter_map(|(link, (kept, id))| {
                let offer = self.best_after_preemption(view, load, link, &self.bookings[id])?;
                let times = offer.density / kept.max(f64::MIN_POSITIVE);
                (times >= self.settings.preemption_factor).then_some((
                    offer.density - kept,
                    link.pair,
                    *id,
                    times,
                ))
            })
            .max_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        let Some((_, to, id, times)) = best else { return };
        let pair = self.bookings[&id].pair;
        self.release_booking(id, Reason::Preempted { to, times }, decisions, now);
        self.back_off_preempted(pair, now);
    }

    /// The best circuit available if a given booking were gone.
    fn best_after_preemption(
        &self,
        view: &PlanView,
        load: &LinkLoads,
        link: &LinkLoad,
        gone: &Booking,
    ) -> Option<Offer> {
        let providers = view.providers.iter().enumerate().take(PROVIDERS_MAX);
        let reach = providers.filter(|(_, provider)| provider.reaches(link.pair));
        let all = reach.flat_map(|(at, provider)| provider.rates(link.pair).map(move |mbit| (at, mbit)));
        let fits = all.filter(|(at, mbit)| {
            self.check_room(view, &view.providers[*at], link.pair, *mbit, Some(gone)).is_none()
        });
        let offers = fits.map(|one| self.evaluate(view, load, link, one, Some(gone), true));
        let good =
            offers.filter(|offer| self.check_saving(offer).is_ok() && self.check_net_gain(offer).is_ok());
        good.max_by(|one, other| one.density.total_cmp(&other.density))
    }

    /// Remaining gain density of an existing circuit.
    fn remaining_density(&self, view: &PlanView, load: &LinkLoads, booking: &Booking) -> f64 {
        let at = view.providers.iter().position(|provider| provider.name == booking.provider);
        match (load.link(booking.pair), at) {
            (Some(link), Some(at)) => {
                self.evaluate(view, load, link, (at, booking.mbit), Some(booking), false).density.max(0.0)
            }
            _ => 0.0,
        }
    }

    /// Records the booking of a circuit to be requested.
    pub(super) fn record_booking(
        &mut self,
        view: &PlanView,
        offer: &Offer,
        replaces: Option<BookingId>,
        why: Reason,
        load: &LinkLoads,
        now: Timestamp,
    ) -> BookingRequest {
        self.last += 1;
        let booking = BookingId(self.last);
        let beside_ports = view.providers[offer.provider].bypasses_ports;
        let provider = view.providers[offer.provider].name.clone();
        self.ledger.count_request(&provider, now);
        self.ledger.book(booking, &offer.saving.payers, offer.gbit_hours(), now);
        let plain = load.link(offer.pair).map_or(0.0, |link| link.plain);
        self.best_effort.insert(offer.pair, (plain, None));
        self.record_reason(offer.pair, why.clone(), now);
        self.confirmations.remove(&offer.pair);
        let (pair, mbit, lifetime) = (offer.pair, offer.mbit, offer.lifetime);
        self.bookings.insert(
            booking,
            Booking {
                pair,
                provider: provider.clone(),
                bypasses_ports: beside_ports,
                mbit,
                requested_at: now,
                lifetime,
                state: BookingState::Requested,
                best_effort: plain,
                replaces,
                idle: 0,
                useless: 0,
                misfit: 0,
                busy_s: 0.0,
                lost: 0.0,
            },
        );
        BookingRequest { booking, pair, provider, mbit, lifetime, replaces, reason: why }
    }
}

/// Reservable bytes per second of a port.
fn reservable(view: &PlanView, provider: &Provider, site: SiteId, inward: bool) -> f64 {
    let share = if provider.port_share.is_finite() { provider.port_share.clamp(0.0, 1.0) } else { 0.0 };
    view.ports.get(&site).map_or(0.0, |port| port.rate(inward)) * share
}

/// Largest share that a circuit takes of any resource (dominant share).
fn scarcity(view: &PlanView, provider: &Provider, pair: SitePair, mbit: u64) -> f64 {
    let rate = mbit as f64 * MBIT_BYTES_PER_S;
    let ports = pair.ends().map(|(site, inward)| rate / reservable(view, provider, site, inward).max(1.0));
    let all = provider.mbit_total_max.map_or(0.0, |all| mbit as f64 / all.max(1) as f64);
    let one = 1.0 / f64::from(provider.circuits_max.max(1));
    let ports = ports.into_iter().filter(|_| !provider.bypasses_ports);
    ports.fold(one.max(all), f64::max)
}

impl Reason {
    /// A circuit would be worthwhile, but capacity or budget is lacking.
    fn is_capacity_limit(&self) -> bool {
        self.rank() >= 3
    }

    fn rank(&self) -> u8 {
        match self {
            Reason::NoProvider => 0,
            Reason::SavesTooLittle { .. } => 1,
            Reason::CostsOthers { .. } => 2,
            Reason::ProviderSuspended { .. } | Reason::Budget { .. } => 3,
            _ => 4,
        }
    }
}
