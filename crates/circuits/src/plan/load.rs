//! Fluid model of pending work: what each link and port has to carry, and what a circuit would change (total
//! weighted completion time).
//!
//! Work with several sources is shared among them in proportion to their rates. A link serves the highest
//! priority first, so a group completes after the bytes before it over their rates. Each byte costs the time
//! until it has come, twice as much with each step of priority.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{CommunityName, SiteId, Timestamp};

use super::budget::CostShares;
use super::settings::{PRIORITY_MAX, PlanSettings};
use super::view::{PENDING_ROWS_MAX, PlanView, SOURCES_PER_ROW_MAX, SitePair};

/// Minimum rate in divisions: negligible, and keeps them finite.
const RATE_BYTES_PER_S_MIN: f64 = 1.0;
/// Weighted byte-seconds in one TB·h of priority 0.
pub(crate) const TB_HOUR: f64 = 1e12 * 3600.0;

/// Work of one row, shared by all links that can serve it.
#[derive(Debug)]
struct Group {
    bytes: f64,
    level: u8,
    community: CommunityName,
    /// Rate of all its sources together.
    rate: f64,
}

/// Pending work of one link.
#[derive(Debug)]
pub(crate) struct LinkLoad {
    pub pair: SitePair,
    pub plain: f64,
    /// Rate with the present circuit.
    pub rate: f64,
    /// Groups, highest priority first.
    groups: Vec<u32>,
    /// Cost of what comes over this link, in weighted byte-seconds.
    cost: f64,
    pub bytes: f64,
    pub highest: u8,
}

/// Best-effort load of one port.
#[derive(Clone, Copy, Debug, Default)]
struct PortLoad {
    /// Rate of links with work and without a circuit.
    plain: f64,
    cost: f64,
}

/// Pending work of all links and ports.
#[derive(Debug, Default)]
pub(crate) struct LinkLoads {
    pub links: Vec<LinkLoad>,
    groups: Vec<Group>,
    index: BTreeMap<SitePair, usize>,
    ports: BTreeMap<(SiteId, bool), PortLoad>,
}

/// What another rate changes for the work of a link.
#[derive(Clone, Debug, Default)]
pub(crate) struct Saving {
    /// Seconds until the work that counts is done, at the former rate.
    pub before: f64,
    pub after: f64,
    /// Gain in weighted byte-seconds.
    pub gain: f64,
    /// Bytes that count.
    pub bytes: f64,
    pub payers: CostShares,
}

/// What a reservation takes from others at a pair's ports.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortLoss {
    /// Cost in weighted byte-seconds.
    pub cost: f64,
    /// Largest share of their rate that they lose.
    pub share: f64,
    /// Rate that they lose, in bytes per second.
    pub rate: f64,
}

fn weight(level: u8) -> f64 {
    f64::from(1u32 << level.min(PRIORITY_MAX))
}

impl LinkLoads {
    /// `rates` of links without their circuits and with them.
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
            // A link on a circuit neither takes from the others nor loses to them.
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

    /// Saving for work at or above the floor; `setup` seconds pass at the former rate.
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
                // Bytes that would come this way; a faster source gets more.
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

    /// Seconds to finish the pending work of a link without its circuit.
    pub(crate) fn remaining_s(&self, pair: SitePair) -> f64 {
        let Some(link) = self.link(pair) else { return 0.0 };
        let groups = link.groups.iter().map(|&group| &self.groups[group as usize]);
        let each =
            groups.map(|group| group.bytes / (group.rate - link.rate + link.plain).max(RATE_BYTES_PER_S_MIN));
        each.sum()
    }

    /// Loss of others by a reservation; `reserved` is what others have booked at each port.
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
