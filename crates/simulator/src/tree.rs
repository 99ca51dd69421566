//! Cheapest Steiner tree from the first replicas of a file to all sites that want it: each of them, and each
//! relay, may pass it on. Its price is the least cost of a group of files in the proof of the bound
//! (`bound`).
//!
//! For few targets it is exact (Dreyfus and Wagner, 1971): the cheapest tree to a set of targets from a site
//! is the path to some site, and there the cheapest trees to two parts of the set. For more than
//! [`EXACT_TARGETS_MAX`] targets, with too many subsets, a lower bound takes its place.

use crate::bound::Group;

/// Targets of a group up to which every subset is searched.
pub const EXACT_TARGETS_MAX: usize = 5;

/// An edge of the graph of sites: the capacities on it.
pub struct SiteGraph {
    pub count: usize,
    pub edges: Vec<Option<Vec<u32>>>,
    pub relays: Vec<usize>,
}

/// Prices by source and target.
pub struct PriceTable {
    edges: Vec<f64>,
    /// Through relays as well, and the first site on the way.
    paths: Vec<f64>,
    next: Vec<u32>,
}

impl SiteGraph {
    fn price(&self, prices: &[f64], from: usize, to: usize) -> f64 {
        match &self.edges[from * self.count + to] {
            None => f64::INFINITY,
            Some(capacities) => capacities.iter().map(|&capacity| prices[capacity as usize]).sum(),
        }
    }

    /// Prices of all edges, and of the cheapest paths through relays.
    pub fn price_table(&self, prices: &[f64]) -> PriceTable {
        let count = self.count;
        let edges: Vec<f64> =
            (0..count * count).map(|at| self.price(prices, at / count, at % count)).collect();
        let mut paths = edges.clone();
        let mut next: Vec<u32> = (0..count * count).map(|at| (at % count) as u32).collect();
        for &middle in &self.relays {
            for from in 0..count {
                for to in 0..count {
                    let around = paths[from * count + middle] + paths[middle * count + to];
                    if from != to && around < paths[from * count + to] {
                        paths[from * count + to] = around;
                        next[from * count + to] = next[from * count + middle];
                    }
                }
            }
        }
        PriceTable { edges, paths, next }
    }

    /// The capacities of the cheapest path.
    pub fn walk_path(&self, table: &PriceTable, from: usize, to: usize, take: &mut dyn FnMut(u32)) {
        let mut at = from;
        for _ in 0..self.count {
            if at == to {
                return;
            }
            let next = table.next[at * self.count + to] as usize;
            if let Some(capacities) = &self.edges[at * self.count + next] {
                capacities.iter().for_each(|&capacity| take(capacity));
            }
            at = next;
        }
    }

    /// What [`tree`] looks at for a group.
    pub fn search_cost(&self, group: &Group) -> usize {
        let targets = group.targets.len();
        if targets > EXACT_TARGETS_MAX {
            return targets * (group.sources.len() + targets);
        }
        let sites = self.relays.len() + targets + 1;
        sites * (3usize.pow(targets as u32) + sites * (1 << targets))
    }
}

/// The least price of a byte for all targets of a group, and the paths by which. Where nobody can bring it,
/// it costs nothing to leave it out.
pub fn cheapest_tree(
    group: &Group,
    table: &PriceTable,
    edges: &SiteGraph,
    chosen: &mut Vec<(usize, usize)>,
) -> f64 {
    let targets = reachable_targets(group, table, edges.count);
    if targets.len() > EXACT_TARGETS_MAX {
        return lower_bound(&group.sources, &targets, table, edges, chosen);
    }
    SteinerTrees::new(&group.sources, targets, table, edges).solve(chosen)
}

/// Targets that something can come to, from first replicas and from each other.
fn reachable_targets(group: &Group, table: &PriceTable, count: usize) -> Vec<usize> {
    let mut from: Vec<usize> = group.sources.iter().map(|&site| site as usize).collect();
    let mut others: Vec<usize> = group.targets.iter().map(|&site| site as usize).collect();
    let mut within = Vec::new();
    loop {
        let comes = |to: &usize| from.iter().any(|from| table.paths[from * count + to].is_finite());
        let (more, rest): (Vec<usize>, Vec<usize>) = others.into_iter().partition(comes);
        if more.is_empty() {
            return within;
        }
        within.extend(&more);
        from = more;
        others = rest;
    }
}

/// Cheapest trees to sets of targets. A set is a number whose bits are the targets.
struct SteinerTrees<'a> {
    table: &'a PriceTable,
    count: usize,
    sources: &'a [u32],
    targets: Vec<usize>,
    /// Where a tree may part: targets and relays; the last place is all first replicas together.
    nodes: Vec<usize>,
    /// By set and place: the price from there, and the place where the tree parts.
    from: Vec<(f64, usize)>,
    /// By set and place: the price if it parts there, and one of its parts.
    split_at: Vec<(f64, usize)>,
}

impl<'a> SteinerTrees<'a> {
    fn new(sources: &'a [u32], targets: Vec<usize>, table: &'a PriceTable, edges: &SiteGraph) -> Self {
        let mut nodes = targets.clone();
        nodes.extend(edges.relays.iter().filter(|relay| !targets.contains(relay)));
        let size = (nodes.len() + 1) << targets.len();
        let none = (f64::INFINITY, 0);
        let (least, parted) = (vec![none; size], vec![none; size]);
        SteinerTrees { table, count: edges.count, sources, targets, nodes, from: least, split_at: parted }
    }

    /// The path between two places: its price, and its first site.
    fn path(&self, from: usize, to: usize) -> (f64, usize) {
        let site = self.nodes[to];
        match self.nodes.get(from) {
            Some(&from) if from == site => (0.0, from),
            Some(&from) => (self.table.paths[from * self.count + site], from),
            None => {
                let paths = self
                    .sources
                    .iter()
                    .map(|&from| (self.table.paths[from as usize * self.count + site], from as usize));
                paths.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((f64::INFINITY, 0))
            }
        }
    }

    fn solve(mut self, chosen: &mut Vec<(usize, usize)>) -> f64 {
        let full = (1 << self.targets.len()) - 1;
        if full == 0 {
            return 0.0;
        }
        let width = self.nodes.len() + 1;
        for set in 1..=full {
            for node in 0..width {
                self.split_at[set * width + node] = self.best_split(set, node);
            }
            for node in 0..width {
                self.from[set * width + node] = self.best_path(set, node);
            }
        }
        self.collect_paths(full, width - 1, chosen);
        self.from[full * width + width - 1].0
    }

    /// A set of one is there when its target is reached.
    fn best_split(&self, set: usize, node: usize) -> (f64, usize) {
        let width = self.nodes.len() + 1;
        if set.is_power_of_two() {
            let there = node == set.trailing_zeros() as usize;
            return (if there { 0.0 } else { f64::INFINITY }, 0);
        }
        let mut best = (f64::INFINITY, 0);
        let mut part = (set - 1) & set;
        while part > 0 {
            let price = self.from[part * width + node].0 + self.from[(set ^ part) * width + node].0;
            if price < best.0 {
                best = (price, part);
            }
            part = (part - 1) & set;
        }
        best
    }

    /// From a place to where the tree parts.
    fn best_path(&self, set: usize, node: usize) -> (f64, usize) {
        let width = self.nodes.len() + 1;
        let mut best = (self.split_at[set * width + node].0, node);
        for to in (0..self.nodes.len()).filter(|&to| to != node) {
            let parted = self.split_at[set * width + to].0;
            // Most places are dearer than the best so far without the way there.
            if parted < best.0 {
                let price = self.path(node, to).0 + parted;
                best = if price < best.0 { (price, to) } else { best };
            }
        }
        best
    }

    fn collect_paths(&self, set: usize, node: usize, chosen: &mut Vec<(usize, usize)>) {
        let width = self.nodes.len() + 1;
        let (price, to) = self.from[set * width + node];
        if !price.is_finite() {
            return;
        }
        if to != node {
            chosen.push((self.path(node, to).1, self.nodes[to]));
        }
        if !set.is_power_of_two() {
            let part = self.split_at[set * width + to].1;
            self.collect_paths(part, to, chosen);
            self.collect_paths(set ^ part, to, chosen);
        }
    }
}

/// At least the cheapest edge into each of the targets, and of those one at least from a first replica: the
/// second where the cheapest ones are all among themselves.
fn lower_bound(
    sources: &[u32],
    targets: &[usize],
    table: &PriceTable,
    edges: &SiteGraph,
    chosen: &mut Vec<(usize, usize)>,
) -> f64 {
    let count = edges.count;
    let mut sum = 0.0;
    let mut rooted = false;
    // What it costs more to root the tree at the target where that is cheapest.
    let mut root: Option<(f64, usize, usize, usize)> = None;
    for &to in targets {
        let cheapest = |all: &mut dyn Iterator<Item = usize>, prices: &[f64]| {
            let rows = all.filter(|&from| from != to).map(|from| (prices[from * count + to], from));
            rows.min_by(|one, other| one.0.total_cmp(&other.0))
        };
        let first = cheapest(&mut sources.iter().map(|&from| from as usize), &table.paths);
        let other = cheapest(&mut targets.iter().chain(&edges.relays).copied(), &table.edges);
        let best = match (first, other) {
            (Some(first), Some(other)) if other.0 < first.0 => other,
            (Some(first), _) => {
                rooted = true;
                first
            }
            (None, Some(other)) => other,
            (None, None) => continue,
        };
        if let Some((price, from)) = first
            && root.is_none_or(|(more, ..)| price - best.0 < more)
        {
            root = Some((price - best.0, from, to, chosen.len()));
        }
        sum += best.0;
        chosen.push((best.1, to));
    }
    if !rooted
        && let Some((more, from, to, node)) = root
        && more.is_finite()
    {
        sum += more;
        chosen[node] = (from, to);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sites 0 to 5: 0 has the file, 1 and 2 are relays, 3 and 4 are reached over 1, 5 over 2. What enters
    /// the relay 1 costs 1, what enters 2 costs 2, all else nothing.
    fn edges() -> SiteGraph {
        let mut capacities = vec![None; 36];
        for (from, to, capacity) in
            [(0, 1, 1), (0, 2, 2), (2, 1, 1), (1, 2, 2), (1, 3, 0), (1, 4, 0), (2, 5, 0)]
        {
            capacities[from * 6 + to] = Some(vec![capacity]);
        }
        SiteGraph { count: 6, edges: capacities, relays: vec![1, 2] }
    }

    fn least(sources: &[u32], targets: &[u32]) -> (f64, Vec<(usize, usize)>) {
        let group = Group { bytes: 1.0, sources: sources.to_vec(), targets: targets.to_vec(), price: 0.0 };
        let (edges, mut chosen) = (edges(), Vec::new());
        let price = cheapest_tree(&group, &edges.price_table(&[0.0, 1.0, 2.0]), &edges, &mut chosen);
        chosen.sort_unstable();
        (price, chosen)
    }

    #[test]
    fn what_passes_a_relay_is_paid_for_once_by_all_behind_it() {
        assert_eq!(least(&[0], &[3]).0, 1.0);
        assert_eq!(least(&[0], &[3, 4]), (1.0, vec![(0, 1), (1, 3), (1, 4)]));
        assert_eq!(least(&[0], &[3, 4, 5]).0, 3.0, "both relays are on the way to one of them");
        assert_eq!(least(&[0], &[1, 3]).0, 1.0, "a relay that wants it is no dearer");
        assert_eq!(least(&[0, 2], &[3, 5]).0, 1.0, "several first replicas begin a tree each");
        assert_eq!(least(&[3], &[4, 0]), (0.0, vec![]), "nothing leads there");
    }

    #[test]
    fn the_sum_for_many_targets_is_never_above_the_cheapest_tree() {
        let (edges, prices) = (edges(), [0.0, 1.0, 2.0]);
        let table = edges.price_table(&prices);
        let sum = lower_bound(&[0], &[3, 4, 5], &table, &edges, &mut Vec::new());
        assert!(sum <= least(&[0], &[3, 4, 5]).0, "{sum}");
    }
}
