//! Detours: overlay routing around a slow direct link (compare RON, Andersen et al., SOSP 2001). If a much
//! faster route leads over a relay, a file takes it, one hop at a time, as where there is no link (`routes`).
//! It stays in the target's queue meanwhile, so that the slow link is used as well; a file leased over that
//! before its hop has begun needs no hop any more.
//!
//! Bytes that pass through a relay are moved twice. So the route has to be [`DETOUR_SPEEDUP_MIN`] times as
//! fast as all direct links of the file together, by measured rates only, and net of other traffic at both
//! ends: links that share a port are not slow because of it. A link that was never measured is no reason for
//! a detour.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::job::of_jobs;
use longhaul_network::{Basis, Link};

use crate::scheduler::{Scheduler, Timer};
use crate::settings::Rules;
use crate::state::{Transfer, to_f64};
use crate::strategy::Strategy;

/// Slow links are looked for this often: files wait for minutes where it matters.
const DETOUR_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A detour has to be this many times as fast as all direct links together, since its bytes are moved twice.
const DETOUR_SPEEDUP_MIN: f64 = 3.0;
/// A relay is given at most this many seconds of the route's work in advance.
const RELAY_WORK_S_MAX: f64 = 60.0;
/// Blocks of a target that are considered, first ones first.
const DETOUR_BLOCKS_MAX: usize = 50;

/// A route over a relay, with its rate and that of the direct links in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Detour {
    pub relay: u32,
    pub rate: f64,
    pub direct: f64,
}

/// Current traffic in bytes per second: over links, out of and into each storage.
#[derive(Default)]
struct Traffic {
    links: BTreeMap<(u32, u32), f64>,
    out: BTreeMap<u32, f64>,
    into: BTreeMap<u32, f64>,
}

impl Traffic {
    fn rate_over(&self, source: u32, target: u32) -> f64 {
        self.links.get(&(source, target)).copied().unwrap_or(0.0)
    }

    /// What moves out of `source` to others than these.
    fn out_to_others(&self, source: u32, targets: [u32; 2]) -> f64 {
        let here: f64 = targets.iter().map(|&target| self.rate_over(source, target)).sum();
        (self.out.get(&source).copied().unwrap_or(0.0) - here).max(0.0)
    }

    fn in_from_others(&self, target: u32, sources: [u32; 2]) -> f64 {
        let here: f64 = sources.iter().map(|&source| self.rate_over(source, target)).sum();
        (self.into.get(&target).copied().unwrap_or(0.0) - here).max(0.0)
    }
}

impl Scheduler {
    /// Arms the detour timer, as something is leased.
    pub(crate) fn arm_detour_timer(&mut self, now: Timestamp) {
        let next = now + DETOUR_CHECK_INTERVAL;
        let wished = !self.routes.relays.is_empty() && self.settings.rules == Rules::Ours;
        // At the maximum of the clock there is no next time.
        if wished && !self.routes.detour_timer_set && next > now {
            self.routes.detour_timer_set = true;
            self.set_timer(next, Timer::Detours);
        }
    }

    pub(crate) fn find_detours(&mut self, now: Timestamp) {
        self.routes.detour_timer_set = false;
        let relays: Vec<u32> =
            self.routes.relays.iter().copied().filter(|&relay| self.can_relay(relay)).collect();
        let mut targets: Vec<u32> = self.storage_of.values().copied().collect();
        targets.retain(|&target| self.storages[target].target.lanes.iter().any(|class| class.queued > 0));
        if targets.is_empty() {
            return;
        }
        let moving = self.current_traffic(now);
        // A relay has room for some only: others begin the next time.
        let first = self.routes.detour_rounds % targets.len();
        self.routes.detour_rounds = self.routes.detour_rounds.wrapping_add(1);
        targets.rotate_left(first);
        for target in targets {
            if self.target_unusable(target, now).is_none() {
                self.detours_to_target(target, &relays, &moving, now);
            }
        }
        self.arm_detour_timer(now);
    }

    fn current_traffic(&self, now: Timestamp) -> Traffic {
        let mut moving = Traffic::default();
        for &target in self.storage_of.values() {
            for (source, _) in self.storages[target].target.links.iter().filter(|(_, link)| link.files > 0) {
                let rate = self.knowledge.rate_now(self.link_of(source, target), now);
                moving.links.insert((source, target), rate);
                *moving.out.entry(source).or_default() += rate;
                *moving.into.entry(target).or_default() += rate;
            }
        }
        moving
    }

    fn detours_to_target(&mut self, target: u32, relays: &[u32], moving: &Traffic, now: Timestamp) {
        // Copies between storages of others stay between these.
        if of_jobs(self.storages[target].id.0) {
            return;
        }
        let lanes = &self.storages[target].target.lanes;
        let blocks = lanes.iter().flat_map(|class| class.waiting.iter().map(|(_, want)| *want));
        let wants: Vec<u32> = blocks.take(DETOUR_BLOCKS_MAX).collect();
        for want in wants {
            let row = &self.wants[want];
            if row.strategy == Strategy::Best && !row.relay && !self.limits.tests(row.party, &self.parties) {
                self.detours_of_want(want, relays, moving, now);
            }
        }
    }

    fn detours_of_want(&mut self, want: u32, relays: &[u32], moving: &Traffic, now: Timestamp) {
        for at in 0.. {
            // Sources with files of the block; hops change nothing in the queues of their target.
            let Some((_, queue)) = self.wants[want].queues.get(at) else { return };
            let waiting: Vec<u32> =
                queue.iter().filter(|key| !key.awaited()).map(|key| key.transfer()).collect();
            for index in waiting {
                if self.current_relay(&self.transfers[index]).is_some() {
                    continue;
                }
                let Some(detour) = self.best_detour(&self.transfers[index], relays, moving, now) else {
                    break;
                };
                if self.bytes_pending(detour.relay) > detour.rate * RELAY_WORK_S_MAX {
                    return;
                }
                let sources: Vec<u32> =
                    self.transfers[index].sources.iter().map(|source| source.storage).collect();
                self.add_hop(index, detour.relay, &sources, now);
            }
        }
    }

    /// The fastest route over a relay, if it is worth it.
    fn best_detour(
        &self,
        transfer: &Transfer,
        relays: &[u32],
        moving: &Traffic,
        now: Timestamp,
    ) -> Option<Detour> {
        let (target, party) = (transfer.target, self.wants[transfer.want].party);
        let mut direct = 0.0;
        for source in transfer.sources.iter() {
            if self.may_link(source.storage, target, party) && self.may_serve(source.storage) {
                direct += self.measured_rate(source.storage, target, now)?;
            }
        }
        let mut best: Option<Detour> = None;
        for &relay in relays {
            if relay == target || !self.may_link(relay, target, party) {
                continue;
            }
            let Some(onward) = self.measured_rate(relay, target, now) else { continue };
            for source in transfer.sources.iter().map(|source| source.storage) {
                if source == relay || !self.may_link(source, relay, party) || !self.may_serve(source) {
                    continue;
                }
                let Some(first) = self.measured_rate(source, relay, now) else { continue };
                let first = first - moving.out_to_others(source, [relay, target]);
                let rate = first.min(onward - moving.in_from_others(target, [relay, source]));
                if rate >= DETOUR_SPEEDUP_MIN * direct && best.is_none_or(|best| rate > best.rate) {
                    best = Some(Detour { relay, rate, direct });
                }
            }
        }
        best
    }

    /// Measured rate of a link, net of failures and limits; none if it was never measured.
    fn measured_rate(&self, source: u32, target: u32, now: Timestamp) -> Option<f64> {
        let link = self.link_of(source, target);
        let estimate = self.knowledge.rate(link, now);
        let shown = matches!(estimate.basis, Basis::Measured | Basis::Reserved);
        let limit = self.link_rate_limit(source, target).map_or(f64::INFINITY, |limit| limit as f64);
        let good = 1.0 - self.knowledge.failure_share(link, now).clamp(0.0, 1.0);
        shown.then(|| estimate.bytes_per_s.min(limit) * good)
    }

    fn link_of(&self, source: u32, target: u32) -> Link {
        Link { source: self.storages[source].id, target: self.storages[target].id }
    }

    /// Bytes that wait for a storage or are on their way there.
    fn bytes_pending(&self, storage: u32) -> f64 {
        let row = &self.storages[storage].target;
        to_f64(row.lanes.iter().map(|class| class.queued_bytes).sum::<u128>() + row.leased_bytes)
    }

    /// The relay that a file goes to on its way to where it is wanted.
    pub(crate) fn current_relay(&self, transfer: &Transfer) -> Option<u32> {
        let mut others = self.files[transfer.file_row].transfers.iter();
        let hop = others.find(|&other| self.is_hop(other))?;
        Some(self.transfers[hop].target)
    }

    pub(crate) fn is_hop(&self, index: u32) -> bool {
        self.wants[self.transfers[index].want].relay
    }

    /// A file was leased to where it is wanted: hops that have not begun, and that nobody else waits for, are
    /// over.
    pub(crate) fn end_unneeded_hops(&mut self, index: u32) {
        let transfers = &self.files[self.transfers[index].file_row].transfers;
        if transfers.len() < 2 || self.routes.relays.is_empty() {
            return;
        }
        let waits = |other: &u32| self.transfers[*other].lease().is_none();
        if transfers.iter().any(|other| !self.is_hop(other) && waits(&other)) {
            return;
        }
        let hops: Vec<u32> = transfers.iter().filter(|other| self.is_hop(*other) && waits(other)).collect();
        self.end_idle_hops(hops);
    }

    /// Why a file that could come directly goes over a relay.
    pub(crate) fn describe_detour(&self, transfer: &Transfer, now: Timestamp) -> Option<String> {
        let relay = self.current_relay(transfer)?;
        let name = self.name(self.storages[relay].id);
        let rate = |rate: f64| longhaul_model::units::rate(rate);
        let moving = self.current_traffic(now);
        Some(match self.best_detour(transfer, &[relay], &moving, now) {
            Some(Detour { rate: way, direct, .. }) => {
                format!("it comes over {name}: {} that way, {} directly", rate(way), rate(direct))
            }
            None => format!("it comes over {name}"),
        })
    }
}
