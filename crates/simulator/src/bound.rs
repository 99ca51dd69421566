//! Lower bound of the makespan by linear-programming duality (Bertsimas, Tsitsiklis, *Introduction to Linear
//! Optimization*, ch. 4), with a certificate that proves it.
//!
//! Give each capacity a price y ≥ 0. Whatever moves a file of b bytes over a route pays b times the prices on
//! it, so all that must be moved costs at least C(y) = Σ b × (price of the cheapest route). Up to the time T
//! a capacity c(t) can be paid for at most ∫ c dt. Hence Σ y ∫₀ᵀ c dt ≥ C(y) for the makespan T of every
//! schedule, for any y; the smallest such T is the bound. Where capacities were less for a while (failures,
//! foreign traffic), what remained is what counts.
//!
//! A file that several sites want goes along a tree from its first replicas, since each of them may pass it
//! on, relays too: its cheapest route is the cheapest such Steiner tree (`tree`).
//!
//! Good prices are found by multiplicative weights (Plotkin, Shmoys, Tardos 1995; Arora, Hazan, Kale 2012):
//! route everything by the prices, raise the price of what is used most, repeat; the best prices are kept.
//! How they were found does not matter to the proof.
//!
//! The [`Certificate`] holds all that the proof needs, so that `proof` can write it down for other programs.

use std::collections::BTreeMap;

use crate::plan::Plan;
use crate::scenario::Mover;
use crate::tape_bound::{self, DriveBound, SessionBound};
use crate::tree::{SiteGraph, cheapest_tree};

/// Rounds of the search. More gains little: the bound rises by less than 1 % from half of them.
const SEARCH_ROUNDS_MAX: usize = 400;
/// Work (groups × sites) beyond which fewer rounds are made.
const SEARCH_WORK_MAX: usize = 40_000_000;
/// Capacities with a price, those that weigh most: a proof that nobody can read is none.
const PRICES_MAX: usize = 10_000;

/// The proof: anybody can add it up again.
#[derive(Clone, Debug, Default)]
pub struct Certificate {
    /// Seconds.
    pub bound: f64,
    pub sites: Vec<BoundSite>,
    /// Those with a price.
    pub capacities: Vec<PricedCapacity>,
    pub crossings: Vec<Crossing>,
    /// What must be moved, with its cheapest price per byte.
    pub groups: Vec<Group>,
    /// Bounds of their own.
    pub last: Option<LastRequest>,
    pub recall: Option<DriveBound>,
    pub session: Option<SessionBound>,
}

/// A site: its number is its place.
#[derive(Clone, Debug)]
pub struct BoundSite {
    pub name: String,
    /// Passes on what it does not want itself.
    pub relay: bool,
}

/// The capacities with a price between two sites, as places in the list. Where there is no crossing, nothing
/// moves directly.
#[derive(Clone, Debug)]
pub struct Crossing {
    pub from: u32,
    pub to: u32,
    pub capacities: Vec<u32>,
}

/// A request, and how fast the port of its target could take what it lacks.
#[derive(Clone, Copy, Debug)]
pub struct LastRequest {
    pub requested_s: f64,
    pub bytes: f64,
    pub rate: f64,
}

impl LastRequest {
    pub fn bound(&self) -> f64 {
        self.requested_s + self.bytes / self.rate
    }
}

impl Certificate {
    /// Takes these prices, and says what bound follows from them.
    fn apply_prices(&mut self, prices: &[f64], edges: &SiteGraph) -> f64 {
        let table = edges.price_table(prices);
        for (row, price) in self.capacities.iter_mut().zip(prices) {
            row.price = *price;
        }
        for group in &mut self.groups {
            group.price = cheapest_tree(group, &table, edges, &mut Vec::new());
        }
        let cost = self.groups.iter().map(|group| group.bytes * group.price).sum();
        self.bound = paid_at(&self.capacities, cost);
        self.bound
    }

    /// What needs no price.
    fn unpriced_bound(&self) -> f64 {
        let last = self.last.map_or(0.0, |last| last.bound());
        let recall = self.recall.map_or(0.0, |recall| recall.bound());
        last.max(recall).max(self.session.map_or(0.0, |session| session.bound()))
    }

    /// Leaves out the capacities without a price, and writes down what crosses the others.
    fn name_crossings(&mut self, edges: &SiteGraph) {
        let mut kept = 0;
        let numbers: Vec<Option<u32>> = self
            .capacities
            .iter()
            .map(|row| {
                let priced = row.price > 0.0;
                kept += u32::from(priced);
                priced.then(|| kept - 1)
            })
            .collect();
        self.capacities.retain(|row| row.price > 0.0);
        for (at, capacities) in edges.edges.iter().enumerate() {
            let Some(capacities) = capacities else { continue };
            let capacities = capacities.iter().filter_map(|&capacity| numbers[capacity as usize]).collect();
            let (from, to) = ((at / edges.count) as u32, (at % edges.count) as u32);
            self.crossings.push(Crossing { from, to, capacities });
        }
    }
}

#[derive(Clone, Debug)]
pub struct PricedCapacity {
    pub name: String,
    pub price: f64,
    /// (from when on, bytes a second), the first from 0.
    pub rate: Vec<(f64, f64)>,
}

impl PricedCapacity {
    /// Bytes a second from the beginning to `end`.
    fn mean(&self, end: f64) -> f64 {
        let ends = self.rate.iter().skip(1).map(|(at, _)| *at).chain([f64::INFINITY]);
        let bytes: f64 =
            self.rate.iter().zip(ends).map(|((at, rate), until)| rate * (until.min(end) - at).max(0.0)).sum();
        bytes / end.max(f64::MIN_POSITIVE)
    }
}

/// Files with the same first replicas, wanted at the same sites.
#[derive(Clone, Debug)]
pub struct Group {
    pub bytes: f64,
    pub sources: Vec<u32>,
    pub targets: Vec<u32>,
    /// Price of one byte for all its targets together.
    pub price: f64,
}

/// The certificate for a world; `history` is what capacities were from when on (microseconds).
pub fn certify(plan: &Plan, history: &[(i64, Vec<f64>)]) -> Certificate {
    let groups = group_demand(plan);
    let (edges, sessions) = build_graph(plan, &groups);
    let capacities = priced_capacities(plan, history, &sessions);
    let rates: Vec<f64> =
        capacities.iter().map(|row| row.rate.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)).collect();
    let sites = plan.layout.sites.iter();
    let mut certificate = Certificate {
        sites: sites.map(|site| BoundSite { name: site.name.clone(), relay: site.relay }).collect(),
        groups,
        capacities,
        last: last_request(plan),
        recall: tape_bound::drive_bound(plan),
        session: tape_bound::session_bound(plan),
        ..Certificate::default()
    };
    let prices = keep_heaviest(search_prices(&certificate.groups, &edges, &rates), &rates, PRICES_MAX);
    let first = certificate.apply_prices(&prices, &edges);
    // What was less for a while is dearer than it seemed: once more by what there was in the mean until then.
    let means: Vec<f64> = certificate.capacities.iter().map(|row| row.mean(first)).collect();
    let less = means.iter().zip(&rates).any(|(mean, rate)| *mean < 0.99 * rate);
    if less {
        let again = keep_heaviest(search_prices(&certificate.groups, &edges, &means), &means, PRICES_MAX);
        if certificate.apply_prices(&again, &edges) < first {
            certificate.apply_prices(&prices, &edges);
        }
    }
    certificate.bound = certificate.bound.max(certificate.unpriced_bound());
    certificate.name_crossings(&edges);
    certificate
}

/// No more prices than `most`: any are as good for the proof, if they are what is priced with.
fn keep_heaviest(mut prices: Vec<f64>, rates: &[f64], most: usize) -> Vec<f64> {
    let mut weights: Vec<(f64, usize)> =
        prices.iter().zip(rates).map(|(price, rate)| price * rate).zip(0..).collect();
    weights.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
    weights.iter().skip(most).for_each(|&(_, index)| prices[index] = 0.0);
    prices
}

/// When the prices times the capacities since the beginning have come to `cost`.
pub fn paid_at(capacities: &[PricedCapacity], cost: f64) -> f64 {
    let mut changes: Vec<f64> =
        capacities.iter().flat_map(|row| row.rate.iter().map(|(at, _)| *at)).collect();
    changes.sort_unstable_by(f64::total_cmp);
    changes.dedup();
    let mut positions = vec![0usize; capacities.len()];
    let (mut paid, mut since, mut speed) = (0.0, 0.0, 0.0);
    for &at in &changes {
        if paid + speed * (at - since) >= cost {
            break;
        }
        paid += speed * (at - since);
        since = at;
        speed = 0.0;
        for (row, index) in capacities.iter().zip(&mut positions) {
            while row.rate.get(*index + 1).is_some_and(|(next, _)| *next <= at) {
                *index += 1;
            }
            speed += row.price * row.rate.get(*index).map_or(0.0, |(_, rate)| *rate);
        }
    }
    if speed > 0.0 { since + (cost - paid).max(0.0) / speed } else { since }
}

/// What must be moved, alike together.
fn group_demand(plan: &Plan) -> Vec<Group> {
    let mut wanted: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for request in &plan.work.requests {
        for block in plan.work.datasets[request.dataset as usize].blocks.clone() {
            if !plan.work.blocks[block as usize].at.contains(&request.target) {
                wanted.entry(block).or_default().push(request.target);
            }
        }
    }
    let mut alike: BTreeMap<(Vec<u32>, Vec<u32>), f64> = BTreeMap::new();
    for (block, mut targets) in wanted {
        targets.sort_unstable();
        targets.dedup();
        let row = &plan.work.blocks[block as usize];
        let bytes: u64 = row.files.clone().map(|file| plan.work.sizes[file as usize]).sum();
        let mut sources = row.at.clone();
        sources.sort_unstable();
        *alike.entry((sources, targets)).or_default() += bytes as f64;
    }
    let rows = alike.into_iter();
    rows.map(|((sources, targets), bytes)| Group { bytes, sources, targets, price: 0.0 }).collect()
}

/// The capacities on each edge that could matter. Where a session carries no more than its streams, that is a
/// capacity too, whose numbers follow those of the plan; they are returned with their names and rates.
fn build_graph(plan: &Plan, groups: &[Group]) -> (SiteGraph, Vec<(String, f64)>) {
    let layout = &plan.layout;
    let count = layout.sites.len();
    let relays: Vec<usize> = (0..count).filter(|&site| layout.sites[site].relay).collect();
    let mut used = vec![false; count * count];
    let mut mark = |from: usize, to: usize| used[from * count + to] = from != to;
    for group in groups {
        for &to in &group.targets {
            for &from in group.sources.iter().chain(&group.targets) {
                mark(from as usize, to as usize);
            }
            for &middle in &relays {
                mark(middle, to as usize);
            }
        }
        for &from in group.sources.iter().chain(&group.targets) {
            for &middle in &relays {
                mark(from as usize, middle);
            }
        }
    }
    for &from in &relays {
        for &to in &relays {
            mark(from, to);
        }
    }
    let mut sessions = Vec::new();
    let pooled = combine_pools(plan, &mut sessions);
    let mut capacities = Vec::with_capacity(count * count);
    for from in 0..count {
        for to in 0..count {
            let pair = layout.pair(from, to);
            if !used[from * count + to] || !pair.open {
                capacities.push(None);
                continue;
            }
            let (source, target) = (&layout.sites[from], &layout.sites[to]);
            let mut capacity: Vec<u32> =
                source.out_capacities.iter().chain(&target.in_capacities).copied().collect();
            let circuit = plan.may_have_circuit(from, to);
            // A circuit replaces links and segments for a time: none of these binds then.
            if !circuit {
                capacity.extend(&pair.capacities);
            }
            // Several pools together are one capacity: the sum of theirs.
            capacity.extend(pooled[from].0.iter().chain(&pooled[to].1));
            let alone = source.pools.len() * target.pools.len();
            let rate = |capacity: &u32| match layout.capacities.get(*capacity as usize) {
                Some(capacity) => capacity.rate,
                None => sessions[*capacity as usize - layout.capacities.len()].1,
            };
            let narrow = capacity.iter().map(rate).fold(f64::INFINITY, f64::min);
            let cap = f64::from(plan.model.streams) * plan.stream_cap(pair.rtt, pair.loss) * alone as f64;
            if plan.model.mover == Mover::Session && cap < narrow && !circuit {
                capacity.push((layout.capacities.len() + sessions.len()) as u32);
                sessions.push((format!("session {} → {}", source.name, target.name), cap));
            }
            capacities.push(Some(capacity));
        }
    }
    (SiteGraph { count, edges: capacities, relays }, sessions)
}

/// What the pools of each site read and write, as places of capacities.
fn combine_pools(plan: &Plan, more: &mut Vec<(String, f64)>) -> Vec<(Option<u32>, Option<u32>)> {
    let layout = &plan.layout;
    let mut of_site = |site: &crate::layout::SitePlan, write: bool| {
        let pools = &layout.pools[site.pools.clone()];
        let positions: Option<Vec<u32>> =
            pools.iter().map(|pool| if write { pool.write } else { pool.read }).collect();
        match positions.as_deref() {
            None | Some([]) => None,
            Some([index]) => Some(*index),
            Some(positions) => {
                let sum = positions.iter().map(|&index| layout.capacities[index as usize].rate).sum();
                let what = if write { "writes" } else { "reads" };
                more.push((format!("{} {what}, all pools", site.name), sum));
                Some((layout.capacities.len() + more.len() - 1) as u32)
            }
        }
    };
    layout.sites.iter().map(|site| (of_site(site, false), of_site(site, true))).collect()
}

fn priced_capacities(
    plan: &Plan,
    history: &[(i64, Vec<f64>)],
    sessions: &[(String, f64)],
) -> Vec<PricedCapacity> {
    let mut rows: Vec<PricedCapacity> = plan
        .layout
        .capacities
        .iter()
        .enumerate()
        .map(|(index, capacity)| {
            let mut rate: Vec<(f64, f64)> = Vec::new();
            for (at, rates) in history {
                let now = rates[index];
                let at = *at as f64 / 1e6;
                match rate.last_mut() {
                    Some((_, before)) if *before == now => {}
                    Some((since, before)) if *since == at => *before = now,
                    _ => rate.push((at, now)),
                }
            }
            PricedCapacity { name: capacity.name.clone(), price: 0.0, rate }
        })
        .collect();
    rows.extend(sessions.iter().map(|(name, cap)| PricedCapacity {
        name: name.clone(),
        price: 0.0,
        rate: vec![(0.0, *cap)],
    }));
    rows
}

/// Prices that make the bound high.
fn search_prices(groups: &[Group], edges: &SiteGraph, rates: &[f64]) -> Vec<f64> {
    let size: usize = groups.iter().map(|group| edges.search_cost(group)).sum();
    let size = size + edges.count * edges.count * (1 + edges.relays.len());
    let rounds = SEARCH_ROUNDS_MAX.min(SEARCH_WORK_MAX / size.max(1)).max(20);
    let mut best = (0.0, vec![0.0; rates.len()]);
    // What was routed over each so far, as seconds of its capacity.
    let mut load = vec![0.0f64; rates.len()];
    let mut prices: Vec<f64> = rates.iter().map(|rate| 1.0 / rate.max(1.0)).collect();
    let mut chosen = Vec::new();
    for round in 1..=rounds {
        let table = edges.price_table(&prices);
        let mut cost = 0.0;
        let mut now = vec![0.0f64; rates.len()];
        for group in groups {
            chosen.clear();
            cost += group.bytes * cheapest_tree(group, &table, edges, &mut chosen);
            for &(from, to) in &chosen {
                edges.walk_path(&table, from, to, &mut |capacity| now[capacity as usize] += group.bytes);
            }
        }
        let speed: f64 = prices.iter().zip(rates).map(|(price, rate)| price * rate).sum();
        let value = cost / speed.max(f64::MIN_POSITIVE);
        if value.is_finite() && value > best.0 {
            best = (value, prices.clone());
        }
        for ((load, now), rate) in load.iter_mut().zip(&now).zip(rates) {
            *load += now / rate.max(1.0);
        }
        // The busiest in the mean of all rounds are the dearest; the longer the search, the more so.
        let most = load.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let sharpness = 4.0 + 60.0 * round as f64 / rounds as f64;
        for ((price, load), rate) in prices.iter_mut().zip(&load).zip(rates) {
            let weight = (sharpness * (load / most - 1.0)).exp();
            *price = if weight < 1e-9 { 0.0 } else { weight / rate.max(1.0) };
        }
    }
    best.1
}

/// No file comes before it was asked for, and as fast as its fastest way carries it.
fn last_request(plan: &Plan) -> Option<LastRequest> {
    let layout = &plan.layout;
    let rows = plan.work.requests.iter().map(|request| {
        let to = &layout.sites[request.target as usize];
        let port = to
            .in_capacities
            .iter()
            .map(|&capacity| layout.capacities[capacity as usize].rate)
            .fold(f64::INFINITY, f64::min);
        let bytes = plan.work.datasets[request.dataset as usize].bytes;
        let there: u64 = plan.work.datasets[request.dataset as usize]
            .blocks
            .clone()
            .filter(|&block| plan.work.blocks[block as usize].at.contains(&request.target))
            .flat_map(|block| plan.work.blocks[block as usize].files.clone())
            .map(|file| plan.work.sizes[file as usize])
            .sum();
        LastRequest { requested_s: request.at, bytes: (bytes - there) as f64, rate: port }
    });
    rows.max_by(|one, other| one.bound().total_cmp(&other.bound()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prices_that_weigh_most_are_kept() {
        let kept = keep_heaviest(vec![1.0, 0.5, 0.0, 3.0], &[1.0, 10.0, 7.0, 1.0], 2);
        assert_eq!(kept, [0.0, 0.5, 0.0, 3.0]);
        assert_eq!(keep_heaviest(vec![1.0, 2.0], &[1.0, 1.0], 10), [1.0, 2.0]);
    }
}
