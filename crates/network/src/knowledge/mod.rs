//! Everything believed about links, and the questions asked of it.
//!
//! Here: what the beliefs are and how own transfers feed them. Elsewhere: what others saw (`observe`), what a
//! link is expected to give before it was measured (`prior`), what is kept over a restart (`stored`).

mod changes;
mod circuits;
mod forecast;
mod link;
mod observe;
mod prior;
mod reach;
mod report;
mod sites;
mod standing;
mod stored;
#[cfg(test)]
mod tests;
mod types;
mod whatif;

use std::collections::BTreeMap;
use std::net::IpAddr;

use longhaul_model::{Blame, SiteId, StorageId, Timestamp};
use serde::{Deserialize, Serialize};

pub use forecast::{Ahead, Forecast, Work};
pub use link::Pace;
pub(crate) use link::{EndState, LinkState};
pub(crate) use observe::{PathKey, Uplink};
pub use report::{Bottleneck, LinkReport, PathReport};
pub use types::{Basis, Brief, End, Estimate, Link};
pub use whatif::{FILE_BYTES, MORE_MAX, QUESTIONS_MAX, Questions, WhatIf};

use crate::calibrate::Calibration;
use crate::change::Changes;
use crate::curve::Curve;
use crate::gather::Whole;
use crate::meter::Sample;
use crate::path::PathState;
use crate::places::{Home, Places, RegionId};
use circuits::Circuits;
use observe::Recent;
use prior::{Effect, HomeState};
use stored::Stored;

/// Links remembered: all pairs of 300 storages. Beyond it the longest unused go.
pub const LINKS_MAX: usize = 90_000;
/// Seconds of a link's own observation that weigh as much as what its ends suggest.
const PRIOR_WEIGHT: f64 = 1.0;
/// Spread of the logarithm without own observation: a factor of 2 either way within a deployment, 4 without.
const PRIOR_VARIANCE: f64 = 0.3;
const ASSUMED_VARIANCE: f64 = 1.2;
/// The 10 % point of a normal distribution.
const TENTH: f64 = 1.2816;
/// An end that gives this part of its usual total is busy; …
const BUSY_SHARE: f64 = 0.7;
/// … with others, if it gives this many times what the link gives: …
const OTHERS_FACTOR: f64 = 1.3;
/// … what one of its links gets less meanwhile counts so much: it is believed only when it lasts.
const TURNS_WEIGHT: f64 = 0.1;
/// A rate measured longer ago is not "now".
const RECENT_S: f64 = 15.0;

/// All of it. Serialises without what is under way: after a restart attempts begin anew.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Knowledge {
    places: Places,
    /// Of the way that each goes now.
    links: BTreeMap<Link, LinkState>,
    circuits: Circuits,
    sources: BTreeMap<StorageId, EndState>,
    targets: BTreeMap<StorageId, EndState>,
    pairs: BTreeMap<(Home, Home), Effect>,
    homes: BTreeMap<Home, HomeState>,
    regions: BTreeMap<(RegionId, RegionId), Effect>,
    all: Effect,
    /// How the rate grows with the number of files where nothing is known of the link itself.
    typical: Curve,
    paths: BTreeMap<PathKey, PathState>,
    uplinks: BTreeMap<SiteId, Uplink>,
    recent: Recent,
    changes: Changes,
    calibration: Calibration,
    /// Addresses of routers by their digest.
    hops: BTreeMap<u32, IpAddr>,
    /// Not kept over a restart: probes tell it again.
    silent: reach::Silent,
}

impl Knowledge {
    /// Where a storage is. May be told again at any time.
    pub fn place_storage(&mut self, storage: StorageId, site: SiteId) {
        self.know_site(site);
        self.places.storages.insert(storage, site);
    }

    /// That there is a site.
    pub fn know_site(&mut self, site: SiteId) {
        self.places.sites.entry(site).or_default();
    }

    /// That there is a site, and in which region.
    pub fn place_site(&mut self, site: SiteId, region: RegionId) {
        self.places.sites.insert(site, region);
    }

    /// An attempt over the link got its lease.
    pub fn began(&mut self, link: Link, now: Timestamp) {
        if self.links.len() >= LINKS_MAX && !self.links.contains_key(&link) {
            self.forget_oldest();
        }
        let ends =
            [self.sources.entry(link.source).or_default(), self.targets.entry(link.target).or_default()];
        let state = self.links.entry(link).or_default();
        let first = u32::from(state.meter.active() == 0);
        state.ends.count([ends[0].moved, ends[1].moved], first == 0);
        state.meter.began(now);
        for end in ends {
            end.meter.began(now);
            end.links += first;
        }
    }

    /// Bytes that its ends moved since ever.
    fn moved(&self, link: Link) -> [u64; 2] {
        [self.sources.get(&link.source), self.targets.get(&link.target)]
            .map(|end| end.map_or(0, |end| end.moved))
    }

    /// Bytes of a running attempt arrived.
    pub fn arrived(&mut self, link: Link, bytes: u64, now: Timestamp) {
        self.credit(link, bytes, 0, now);
    }

    /// An attempt ended, with `bytes` that [`Knowledge::arrived`] was not told of.
    pub fn ended(&mut self, link: Link, bytes: u64, end: End, now: Timestamp) {
        if bytes > 0 || end == End::Arrived {
            self.credit(link, bytes, u32::from(end == End::Arrived), now);
        } else if matches!(end, End::Failed(_)) {
            self.forget_silence(link, now);
        }
        let mut last = false;
        if let Some(state) = self.links.get_mut(&link) {
            last = state.meter.active() == 1;
            state.meter.ended(now);
            match end {
                End::Arrived => state.trouble.count(None, now),
                End::Failed(blame) => state.trouble.count(Some(blame), now),
                End::Void => {}
            }
        }
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        for end in ends.into_iter().flatten() {
            end.meter.ended(now);
            end.links = end.links.saturating_sub(u32::from(last));
        }
    }

    fn credit(&mut self, link: Link, bytes: u64, files: u32, now: Timestamp) {
        let Some(state) = self.links.get_mut(&link) else { return };
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        let moved = ends.map(|end| {
            let Some(end) = end else { return 0 };
            end.moved = end.moved.wrapping_add(bytes);
            if let Some(sample) = end.meter.arrived(bytes, files, now) {
                end.total.observe(sample.bytes_per_s, sample.weight, now);
                end.pace.follow(sample);
            }
            end.moved
        });
        state.ends.count(moved, state.meter.active() > 0);
        let sample = state.meter.arrived(bytes, files, now);
        let ends = if sample.is_some() { state.ends.close() } else { [0.0; 2] };
        state.ends.arrived();
        if let Some(sample) = sample {
            self.measured(link, sample, ends, now);
        }
    }

    /// Nothing came any more, and then an attempt failed: that is counted as a failure. As a rate it would be
    /// one of nothing at all, after which the link would not be tried again.
    fn forget_silence(&mut self, link: Link, now: Timestamp) {
        let moved = self.moved(link);
        if let Some(state) = self.links.get_mut(&link) {
            state.ends.count(moved, state.meter.active() > 0);
            state.ends.forget_silence();
            state.meter.forget_silence(now);
        }
        let ends = [self.sources.get_mut(&link.source), self.targets.get_mut(&link.target)];
        ends.into_iter().flatten().for_each(|end| end.meter.forget_silence(now));
    }

    /// A window of the link ended, in which its ends moved so many bytes.
    fn measured(&mut self, link: Link, mut sample: Sample, ends: [f64; 2], now: Timestamp) {
        let rate = sample.bytes_per_s;
        let telling = self.telling(link, rate, ends.map(|bytes| bytes / sample.seconds), now);
        sample.weight *= telling;
        let on_circuit = self.circuits.has(link);
        let expected = match on_circuit {
            true => self.believed(link, now).mean,
            false => self.learn(link, rate.max(1.0).ln(), sample.weight, now),
        };
        if sample.telling && telling == 1.0 && !on_circuit {
            self.typical.observe(sample.files, rate.max(1.0) / expected.exp(), sample.seconds, now);
        }
        let Some(state) = self.links.get_mut(&link) else { return };
        state.rate_last = rate as f32;
        let alarm = state.believe(&sample, telling == 1.0, now);
        let whole = state.gather(&sample, ends);
        let alarm = alarm.or(whole.and_then(|whole| {
            let share = self.share(link, &whole);
            self.links.get_mut(&link)?.judge(&whole, share, now)
        }));
        if let Some(alarm) = alarm {
            self.link_changed(link, rate, alarm, now);
        }
    }

    /// What the link had to get at least of an end that others kept busy meanwhile, however they share it: by
    /// links or by files. None if its ends had room.
    fn share(&self, link: Link, whole: &Whole) -> Option<f64> {
        let own = f64::from(self.links.get(&link)?.meter.active());
        let states = [self.sources.get(&link.source), self.targets.get(&link.target)];
        let shares = states.into_iter().zip(whole.ends_per_s).filter_map(|(end, total)| {
            let end = end?;
            let part = (own / f64::from(end.meter.active().max(1))).min(1.0 / f64::from(end.links.max(1)));
            let busy =
                total > OTHERS_FACTOR * whole.bytes_per_s && total >= BUSY_SHARE * end.total.mean().exp();
            (busy && part < 1.0).then_some(total * part)
        });
        shares.reduce(f64::min)
    }

    /// How much a measurement tells about the link itself. Less than expected, while one of its ends was kept
    /// busy by other links as well as ever, only tells that the end took its turns.
    fn telling(&self, link: Link, rate: f64, ends: [f64; 2], now: Timestamp) -> f64 {
        let states = [self.sources.get(&link.source), self.targets.get(&link.target)];
        let elsewhere = states.into_iter().zip(ends).any(|(end, total)| {
            let usual = end.map_or(0.0, |end| end.total.mean().exp());
            total > OTHERS_FACTOR * rate && total >= BUSY_SHARE * usual
        });
        if elsewhere && rate < self.rate(link, now).bytes_per_s { TURNS_WEIGHT } else { 1.0 }
    }

    /// What the link will give.
    pub fn rate(&self, link: Link, now: Timestamp) -> Estimate {
        self.believed(link, now).estimate()
    }

    /// What [`Knowledge::rate`], [`Knowledge::failure_share`] and [`Knowledge::rate_now`] say, as far as a
    /// choice of a source goes by it: asked for so often that one look at the link is to be enough.
    pub fn in_brief(&self, link: Link, now: Timestamp) -> Brief {
        let state = self.links.get(&link);
        let believed = self.believed_of(state, link, now);
        Brief {
            bytes_per_s: believed.mean.exp(),
            basis: believed.basis,
            failure_share: self.failure_share_of(state, link, now),
            rate_now: rate_now_of(state, now),
        }
    }

    /// What all links out of (`into` false) or into a storage give together; none if never measured.
    pub fn total(&self, storage: StorageId, into: bool, now: Timestamp) -> Option<Estimate> {
        let ends = if into { &self.targets } else { &self.sources };
        let total = ends.get(&storage)?.total;
        let prior = prior::Prior { mean: total.mean(), variance: PRIOR_VARIANCE, basis: Basis::Measured };
        (total.weight_at(now) > 1e-3).then(|| prior.with(&total, now).estimate())
    }

    /// What a target took lately.
    pub fn pace(&self, target: StorageId) -> Pace {
        self.targets.get(&target).map(|state| state.pace).unwrap_or_default()
    }

    /// Share of recent attempts over the link that failed by the fault of its source or of the network, on
    /// the careful side while there were few; where probes found that nothing answers, what is to be
    /// expected.
    pub fn failure_share(&self, link: Link, now: Timestamp) -> f64 {
        self.failure_share_of(self.links.get(&link), link, now)
    }

    fn failure_share_of(&self, state: Option<&LinkState>, link: Link, now: Timestamp) -> f64 {
        let failed = state.map_or(0.0, |state| state.trouble.share(now));
        if self.is_silent(link, now) { failed.max(reach::SILENT_FAILURE_SHARE) } else { failed }
    }

    /// By whose fault attempts are to fail, those included that say nothing of the link, such as a full
    /// target; in the order of [`Blame::ALL`].
    pub fn failure_shares(&self, link: Link, now: Timestamp) -> [f64; Blame::ALL.len()] {
        let mut shares =
            self.links.get(&link).map_or([0.0; Blame::ALL.len()], |state| state.trouble.shares(now));
        if self.is_silent(link, now)
            && let Some(share) = shares.get_mut(Blame::Network as usize)
        {
            *share = share.max(reach::SILENT_FAILURE_SHARE);
        }
        shares
    }

    /// Goodput of a link that has work, as last measured.
    pub fn rate_now(&self, link: Link, now: Timestamp) -> f64 {
        rate_now_of(self.links.get(&link), now)
    }

    pub fn links(&self) -> impl Iterator<Item = Link> + '_ {
        self.links.keys().copied()
    }

    /// An eighth at once, so that the sweep is rare.
    fn forget_oldest(&mut self) {
        let mut idle: Vec<(Timestamp, Link)> = self
            .links
            .iter()
            .filter(|(_, state)| state.meter.active() == 0)
            .map(|(&link, state)| (state.belief.last(), link))
            .collect();
        idle.sort_unstable();
        for (_, link) in idle.into_iter().take(LINKS_MAX / 8) {
            self.links.remove(&link);
        }
    }
}

fn rate_now_of(state: Option<&LinkState>, now: Timestamp) -> f64 {
    match state {
        Some(state) if state.meter.active() > 0 && state.belief.age(now).as_secs_f64() < RECENT_S => {
            f64::from(state.rate_last)
        }
        _ => 0.0,
    }
}
