//! What waits, as a load on links and ports, and what a circuit would change about it.
//!
//! Work that several sources have comes from all of them, as fast as they are. A link does what has the
//! highest priority first. So a group that waits behind others on a link is done after the sum of their bytes
//! over the rates at which they come. Each byte counts for the time until it has come, twice as much with
//! each step of priority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp};

use super::budget::CostShares;
use super::settings::{PRIORITY_MAX, PlanSettings};
use super::view::{PENDING_ROWS_MAX, PlanView, SOURCES_PER_ROW_MAX, SitePair};

/// A byte a second for a second counts so little that it is none: divisions by rates stay what they are.
const RATE_BYTES_PER_S_MIN: f64 = 1.0;
/// Weighted byte seconds in a TB hour of priority 0.
pub(crate) const TB_HOUR: f64 = 1e12 * 3600.0;

#[derive(Debug)]
struct Group {
    bytes: f64,
    level: u8,
    community: CommunityName,
    /// Of all its sources together.
    rate: f64,
}

#[derive(Debug)]
pub(crate) struct LinkLoad {
    pub pair: SitePair,
    pub plain: f64,
    /// With the circuit that is there.
    pub rate: f64,
    /// The highest priority first.
    groups: Vec<u32>,
    /// Weighted byte seconds of what is to come this way.
    cost: f64,
    pub bytes: f64,
    pub highest: u8,
}

#[derive(Clone, Copy, Debug, Default)]
struct PortLoad {
    /// Of links without a circuit that have work.
    plain: f64,
    cost: f64,
}

#[derive(Debug, Default)]
pub(crate) struct LinkLoads {
    pub links: Vec<LinkLoad>,
    groups: Vec<Group>,
    index: BTreeMap<SitePair, usize>,
    ports: BTreeMap<(SiteId, bool), PortLoad>,
}

/// What a rate in place of another does for the work of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saving {
    /// Until what counts is done.
    pub before: f64,
    pub after: f64,
    /// Weighted byte seconds.
    pub gain: f64,
    /// What counts, in bytes.
    pub bytes: f64,
    pub payers: CostShares,
}

/// What reserving a rate takes from others at a pair's ports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortLoss {
    /// Weighted byte seconds.
    pub cost: f64,
    /// The part of their rate, where it is largest.
    pub share: f64,
    /// Bytes a second.
    pub rate: f64,
}

fn weight(level: u8) -> f64 {
    f64::from(1u32 << level.min(PRIORITY_MAX))
}

impl LinkLoads {
    /// `rates`: of links, without their circuits and with them.
    pub(crate) fn build(
        view: &PlanView,
        rates: &BTreeMap<SitePair, (f64, f64)>,
        settings: &PlanSettings,
        now: Timestamp,
    ) -> LinkLoads {
        let mut load = LinkLoads::default();
        for row in view.pending.iter().take(PENDING_ROWS_MAX).filter(|row| row.bytes > 0) {
            if view.unreachable_sites.contains(&row.target) {
                continue;
            }
            let sources: BTreeSet<SiteId> = row.sources.iter().take(SOURCES_PER_ROW_MAX).copied().collect();
            let pairs = sources.into_iter().map(|source| SitePair { source, target: row.target });
            let known = pairs
                .filter(|pair| pair.source != pair.target && !view.unreachable_sites.contains(&pair.source));
            let known: Vec<(SitePair, (f64, f64))> =
                known.filter_map(|pair| rates.get(&pair).map(|&both| (pair, both))).collect();
            let rate: f64 = known.iter().map(|(_, (_, rate))| rate).sum();
            if rate < RATE_BYTES_PER_S_MIN {
                continue;
            }
            let aged = now.since(row.since).as_secs_f64() / settings.aging_step.as_secs_f64().max(1.0);
            let level = (f64::from(row.priority.clamp(1, PRIORITY_MAX)) + aged.floor()) as u8;
            let group = load.groups.len() as u32;
            load.groups.push(Group {
                bytes: row.bytes as f64,
                level: level.min(PRIORITY_MAX),
                community: row.community.clone(),
                rate,
            });
            for (pair, (plain, rate)) in known {
                let links = &mut load.links;
                let at = *load.index.entry(pair).or_insert_with(|| {
                    let link =
                        LinkLoad { pair, plain, rate, groups: Vec::new(), cost: 0.0, bytes: 0.0, highest: 0 };
                    links.push(link);
                    links.len() - 1
                });
                load.links[at].groups.push(group);
            }
        }
        load.total_costs();
        load
    }

    fn total_costs(&mut self) {
        for link in &mut self.links {
            link.groups.sort_by_key(|&group| std::cmp::Reverse(self.groups[group as usize].level));
            let mut done = 0.0;
            for row in link
                .groups
                .chunk_by(|&one, &other| self.groups[one as usize].level == self.groups[other as usize].level)
            {
                let level = self.groups[row[0] as usize].level;
                let mut bytes = 0.0;
                for &group in row {
                    let group = &self.groups[group as usize];
                    done += group.bytes / group.rate;
                    bytes += group.bytes * link.rate / group.rate;
                }
                link.highest = link.highest.max(level);
                link.bytes += bytes;
                link.cost += bytes * weight(level) * done;
            }
            // What has a circuit takes nothing from the others, and they take nothing from it.
            if link.rate == link.plain {
                for end in link.pair.ends() {
                    let port = self.ports.entry(end).or_default();
                    port.plain += link.plain;
                    port.cost += link.cost;
                }
            }
        }
    }

    pub(crate) fn link(&self, pair: SitePair) -> Option<&LinkLoad> {
        self.index.get(&pair).map(|&at| &self.links[at])
    }

    /// Of work at or above the floor; `setup` seconds pass at the former rate.
    pub(crate) fn saving(&self, link: &LinkLoad, from: f64, to: f64, setup: f64, floor: u8) -> Saving {
        let mut saving = Saving::default();
        let (mut before, mut after) = (0.0, 0.0);
        let rows = link
            .groups
            .chunk_by(|&one, &other| self.groups[one as usize].level == self.groups[other as usize].level);
        for row in rows.take_while(|row| self.groups[row[0] as usize].level >= floor) {
            let level = self.groups[row[0] as usize].level;
            let mut all = 0.0;
            for &group in row {
                let group = &self.groups[group as usize];
                let others = group.rate - link.rate;
                before += group.bytes / (others + from).max(RATE_BYTES_PER_S_MIN);
                after += group.bytes / (others + to).max(RATE_BYTES_PER_S_MIN);
                // What would come this way; a faster source is given more.
                let bytes = group.bytes * (to / (others + to).max(RATE_BYTES_PER_S_MIN)).clamp(0.0, 1.0);
                *saving.payers.entry(group.community.clone()).or_default() += bytes;
                saving.bytes += bytes;
                all += group.bytes;
            }
            let set_up = if before <= setup { before } else { setup + (1.0 - setup / before) * after };
            saving.gain += all * weight(level) * (before - set_up);
            (saving.before, saving.after) = (before, set_up);
        }
        let sum = saving.bytes.max(RATE_BYTES_PER_S_MIN);
        saving.payers.values_mut().for_each(|part| *part /= sum);
        saving
    }

    /// Seconds that all that waits on a link would take without its circuit.
    pub(crate) fn remaining_s(&self, pair: SitePair) -> f64 {
        let Some(link) = self.link(pair) else { return 0.0 };
        let groups = link.groups.iter().map(|&group| &self.groups[group as usize]);
        let each =
            groups.map(|group| group.bytes / (group.rate - link.rate + link.plain).max(RATE_BYTES_PER_S_MIN));
        each.sum()
    }

    /// `reserved` is what others have booked of each end's port.
    pub(crate) fn loss(&self, view: &PlanView, pair: SitePair, rate: f64, reserved: [f64; 2]) -> PortLoss {
        let link = self.link(pair);
        let mut loss = PortLoss::default();
        for ((site, inward), reserved) in pair.ends().into_iter().zip(reserved) {
            let free = (view.available(site, inward) - reserved).max(0.0);
            let here = self.ports.get(&(site, inward)).copied().unwrap_or_default();
            let own = link.filter(|link| link.rate == link.plain);
            let others = (here.plain - own.map_or(0.0, |link| link.plain)).max(0.0);
            let cost = (here.cost - own.map_or(0.0, |link| link.cost)).max(0.0);
            if others < RATE_BYTES_PER_S_MIN {
                continue;
            }
            let plain = link.map_or(0.0, |link| link.plain);
            let before = (free / (others + plain).max(RATE_BYTES_PER_S_MIN)).min(1.0);
            let after = ((free - rate).max(0.0) / others).min(1.0);
            let kept = (after / before.max(f64::MIN_POSITIVE)).clamp(1e-3, 1.0);
            loss.cost += cost * (1.0 / kept - 1.0);
            loss.share = loss.share.max(1.0 - kept);
            loss.rate += others * before * (1.0 - kept);
        }
        loss
    }
}

pub(crate) fn duration_from_s(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}
