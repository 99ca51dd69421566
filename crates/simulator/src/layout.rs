//! Sites, links and shared network segments as numbered capacities.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::circuit_provider::{self, ProviderPlan};
use crate::plan::{CircuitPlan, SITES_MAX};
use crate::scenario::{Link, Scenario, ScenarioError, Site, Tape, Topology};

/// Round trip in seconds within a region without a `[[distance]]`.
const RTT_S_WITHIN_REGION: f64 = 0.02;
/// Round trip in seconds between regions without a `[[distance]]`.
const RTT_S_BETWEEN_REGIONS: f64 = 0.1;
/// Largest share of a segment or port that foreign traffic takes: some capacity always remains.
const BACKGROUND_SHARE_MAX: f64 = 0.95;

#[derive(Clone, Debug)]
pub struct Layout {
    pub sites: Vec<SitePlan>,
    pub pools: Vec<Pool>,
    pub capacities: Vec<Capacity>,
    pub circuits: Vec<CircuitPlan>,
    pub providers: Vec<ProviderPlan>,
    /// All pairs of sites, source first.
    pairs: Vec<Pair>,
}

#[derive(Clone, Debug)]
pub struct SitePlan {
    pub name: String,
    /// As written, without a number.
    group: String,
    pub region: String,
    pub pools: Range<usize>,
    pub pool_active: u32,
    pub active_in: Option<u32>,
    pub active_out: Option<u32>,
    pub limit_in: Option<f64>,
    pub limit_out: Option<f64>,
    pub out_capacities: Vec<u32>,
    pub in_capacities: Vec<u32>,
    /// Sum of its ports: how large a site it is.
    pub size: f64,
    pub tape: Option<Tape>,
    pub relay: bool,
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub site: usize,
    pub read: Option<u32>,
    pub write: Option<u32>,
}

#[derive(Clone, Debug)]
pub struct Capacity {
    pub name: String,
    pub rate: f64,
    /// Mean part that others take.
    pub background: f64,
}

#[derive(Clone, Debug, Default)]
pub struct Pair {
    pub open: bool,
    pub rtt: f64,
    pub loss: f64,
    pub failures: f64,
    pub capacities: Vec<u32>,
}

impl Layout {
    pub fn pair(&self, from: usize, to: usize) -> &Pair {
        &self.pairs[from * self.sites.len() + to]
    }

    fn pair_mut(&mut self, from: usize, to: usize) -> &mut Pair {
        let count = self.sites.len();
        &mut self.pairs[from * count + to]
    }

    pub(crate) fn add(&mut self, name: String, rate: f64, background: f64) -> u32 {
        self.capacities.push(Capacity { name, rate, background: background.min(BACKGROUND_SHARE_MAX) });
        (self.capacities.len() - 1) as u32
    }

    /// The sites that names mean: a site, all of a counted one, `t2-*`, or `*`.
    pub fn sites_named(&self, names: &[String], place: &str) -> Result<Vec<usize>, ScenarioError> {
        let mut found = BTreeSet::new();
        for name in names {
            let before = found.len();
            let fits = |site: &SitePlan| {
                name_matches(name, &site.name, &site.group) || region_matches(name, &site.region)
            };
            found.extend((0..self.sites.len()).filter(|&at| fits(&self.sites[at])));
            if found.len() == before && !self.sites.iter().any(fits) {
                let known: Vec<&str> = self.sites.iter().take(8).map(|site| site.name.as_str()).collect();
                return Err(ScenarioError::new(
                    place,
                    format!("there is no site \"{name}\""),
                    format!("add a [[site]] of this name, or use one of: {}", known.join(", ")),
                ));
            }
        }
        if found.is_empty() {
            return Err(ScenarioError::new(place, "names no site", "name some, or \"*\" for all"));
        }
        Ok(found.into_iter().collect())
    }
}

/// Whether a name as written means a thing, alone or as one of several alike.
pub fn name_matches(written: &str, name: &str, group: &str) -> bool {
    written == name
        || written == group
        || written.strip_suffix('*').is_some_and(|start| name.starts_with(start) || group.starts_with(start))
}

fn region_matches(written: &str, region: &str) -> bool {
    written.strip_prefix("region:").is_some_and(|name| name == region)
}

pub fn build(scenario: &Scenario) -> Result<Layout, ScenarioError> {
    let mut layout = Layout {
        sites: Vec::new(),
        pools: Vec::new(),
        capacities: Vec::new(),
        circuits: Vec::new(),
        providers: Vec::new(),
        pairs: Vec::new(),
    };
    for (at, site) in scenario.site.iter().enumerate() {
        add_site(&mut layout, site, &format!("[[site]] {} ({})", at + 1, site.name))?;
    }
    if layout.sites.len() < 2 {
        return Err(ScenarioError::new("[[site]]", "data needs two sites to move between", "add sites"));
    }
    if layout.sites.len() > SITES_MAX {
        let what = format!("{} sites, the limit is {SITES_MAX}", layout.sites.len());
        return Err(ScenarioError::new("[[site]]", what, "use fewer"));
    }
    let mut seen = BTreeSet::new();
    for site in &layout.sites {
        if !seen.insert(&site.name) {
            let what = format!("two sites are called \"{}\"", site.name);
            return Err(ScenarioError::new("[[site]]", what, "rename one"));
        }
    }
    add_pairs(&mut layout, scenario)?;
    add_links(&mut layout, scenario)?;
    add_segments(&mut layout, scenario)?;
    add_circuits(&mut layout, scenario)?;
    circuit_provider::add_providers(&mut layout, scenario)?;
    check_routes(&layout)?;
    Ok(layout)
}

fn add_site(layout: &mut Layout, site: &Site, place: &str) -> Result<(), ScenarioError> {
    let name_fits = |name: &str| {
        !name.is_empty()
            && name.len() <= 40
            && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
    };
    if !name_fits(&site.name) || site.name.starts_with('-') || site.name.ends_with('-') {
        return Err(ScenarioError::new(
            place,
            "the name is no site name",
            "use a-z, 0-9 and -, at most 40 of them",
        ));
    }
    let (Some(inward), Some(outward)) = (site.inward.or(site.port), site.outward.or(site.port)) else {
        return Err(ScenarioError::new(place, "it has no capacity", "give `port`, or `in` and `out`"));
    };
    let pools_fit = (1..=1_000).contains(&site.pools);
    if !pools_fit || site.count == Some(0) || site.pool_active == Some(0) {
        return Err(ScenarioError::new(
            place,
            "a number of things is 0 or absurd",
            "count, pools and pool_active are 1 or more",
        ));
    }
    if site.tape.as_ref().is_some_and(|tape| tape.drives == 0) {
        return Err(ScenarioError::new(place, "tapes without a drive", "give tape.drives, 1 or more"));
    }
    for number in 1..=site.count.unwrap_or(1) {
        let name = site.count.map_or(site.name.clone(), |_| format!("{}-{number}", site.name));
        if layout.sites.len() > SITES_MAX {
            return Err(ScenarioError::new(place, format!("more than {SITES_MAX} sites"), "use fewer"));
        }
        let at = layout.sites.len();
        let background = site.background.0;
        let mut out_ways = vec![layout.add(format!("{name} out"), outward.0, background)];
        let mut in_ways = vec![layout.add(format!("{name} in"), inward.0, background)];
        if let Some(limit) = site.limit_out {
            out_ways.push(layout.add(format!("{name} limit out"), limit.0, 0.0));
        }
        if let Some(limit) = site.limit_in {
            in_ways.push(layout.add(format!("{name} limit in"), limit.0, 0.0));
        }
        let first = layout.pools.len();
        for pool in 1..=site.pools {
            let which = if site.pools > 1 { format!("{name} pool {pool}") } else { name.clone() };
            let read = site.read.map(|rate| layout.add(format!("{which} read"), rate.0, 0.0));
            let tape =
                site.tape.as_ref().map(|tape| tape.rate.0 * f64::from(tape.drives) / f64::from(site.pools));
            let write = site.write.map(|rate| rate.0).into_iter().chain(tape).reduce(f64::min);
            let write = write.map(|rate| layout.add(format!("{which} write"), rate, 0.0));
            layout.pools.push(Pool { site: at, read, write });
        }
        layout.sites.push(SitePlan {
            name,
            group: site.name.clone(),
            region: site.region.clone(),
            pools: first..layout.pools.len(),
            pool_active: site.pool_active.unwrap_or(u32::MAX),
            active_in: site.active_in,
            active_out: site.active_out,
            limit_in: site.limit_in.map(|rate| rate.0),
            limit_out: site.limit_out.map(|rate| rate.0),
            out_capacities: out_ways,
            in_capacities: in_ways,
            size: inward.0 + outward.0,
            tape: site.tape.clone(),
            relay: site.relay,
        });
    }
    Ok(())
}

/// Which site is whose parent, as written; a parent stands for all its children of a counted site.
fn parents(layout: &Layout, scenario: &Scenario) -> Result<Vec<Option<usize>>, ScenarioError> {
    let mut parents = vec![None; layout.sites.len()];
    let written: BTreeMap<&str, &Site> =
        scenario.site.iter().map(|site| (site.name.as_str(), site)).collect();
    for (at, site) in layout.sites.iter().enumerate() {
        let Some(parent) = written.get(site.group.as_str()).and_then(|site| site.parent.as_ref()) else {
            continue;
        };
        let place = format!("[[site]] {}: parent", site.name);
        let found = layout.sites_named(std::slice::from_ref(parent), &place)?;
        // Several parents alike have their children by turns.
        let turn = at - layout.sites.iter().position(|other| other.group == site.group).unwrap_or(at);
        parents[at] = Some(found[turn % found.len()]);
    }
    for start in 0..parents.len() {
        let mut at = start;
        for _ in 0..parents.len() {
            match parents[at] {
                Some(parent) => at = parent,
                None => break,
            }
            if at == start {
                let what = format!("site \"{}\" is its own ancestor", layout.sites[start].name);
                return Err(ScenarioError::new(
                    "[[site]] parent",
                    what,
                    "break the cycle: leave out one `parent`",
                ));
            }
        }
    }
    Ok(parents)
}

fn add_pairs(layout: &mut Layout, scenario: &Scenario) -> Result<(), ScenarioError> {
    let count = layout.sites.len();
    let parents = parents(layout, scenario)?;
    let regions: BTreeSet<&str> = layout.sites.iter().map(|site| site.region.as_str()).collect();
    for (at, row) in scenario.distance.iter().enumerate() {
        for region in [&row.from, &row.to] {
            if !regions.contains(region.as_str()) {
                return Err(ScenarioError::new(
                    format!("[[distance]] {}", at + 1),
                    format!("no site is in region \"{region}\""),
                    "correct it, or leave the row out",
                ));
            }
        }
    }
    let mut pairs = Vec::with_capacity(count * count);
    for from in 0..count {
        for to in 0..count {
            let open = from != to
                && match scenario.links.topology {
                    Topology::Mesh => true,
                    Topology::Hierarchy => {
                        parents[from] == Some(to)
                            || parents[to] == Some(from)
                            || parents[from].is_none() && parents[to].is_none()
                    }
                    Topology::Listed => false,
                };
            let (one, other) = (&layout.sites[from].region, &layout.sites[to].region);
            let row = scenario
                .distance
                .iter()
                .find(|row| (&row.from, &row.to) == (one, other) || (&row.from, &row.to) == (other, one));
            let usual = if one == other { RTT_S_WITHIN_REGION } else { RTT_S_BETWEEN_REGIONS };
            pairs.push(Pair {
                open,
                rtt: row.map_or(scenario.links.rtt.map_or(usual, |rtt| rtt.0), |row| row.rtt.0),
                loss: row.map_or(scenario.links.loss.0, |row| row.loss.0),
                failures: scenario.links.failures.0,
                capacities: Vec::new(),
            });
        }
    }
    layout.pairs = pairs;
    Ok(())
}

fn add_links(layout: &mut Layout, scenario: &Scenario) -> Result<(), ScenarioError> {
    for (at, link) in scenario.link.iter().enumerate() {
        let place = format!("[[link]] {}", at + 1);
        let from = layout.sites_named(std::slice::from_ref(&link.from), &place)?;
        let to = layout.sites_named(std::slice::from_ref(&link.to), &place)?;
        let mut any = false;
        for &from in &from {
            for &to in &to {
                if from != to {
                    any = true;
                    add_link(layout, link, from, to);
                    if link.both {
                        add_link(layout, link, to, from);
                    }
                }
            }
        }
        if !any {
            return Err(ScenarioError::new(place, "leads from a site to itself", "correct `from` or `to`"));
        }
    }
    Ok(())
}

fn add_link(layout: &mut Layout, link: &Link, from: usize, to: usize) {
    let capacity = link.capacity.map(|rate| {
        let name = format!("{} → {}", layout.sites[from].name, layout.sites[to].name);
        layout.add(name, rate.0, 0.0)
    });
    let pair = layout.pair_mut(from, to);
    pair.open = true;
    pair.rtt = link.rtt.map_or(pair.rtt, |rtt| rtt.0);
    pair.loss = link.loss.map_or(pair.loss, |loss| loss.0);
    pair.failures = link.failures.map_or(pair.failures, |share| share.0);
    pair.capacities.extend(capacity);
}

fn add_segments(layout: &mut Layout, scenario: &Scenario) -> Result<(), ScenarioError> {
    for segment in &scenario.segment {
        let place = format!("[[segment]] {}", segment.name);
        let from = layout.sites_named(&segment.from, &place)?;
        let to = layout.sites_named(&segment.to, &place)?;
        let mut both = vec![(from.clone(), to.clone(), segment.name.clone())];
        if segment.both {
            both.push((to, from, format!("{} back", segment.name)));
        }
        for (from, to, name) in both {
            let capacity = layout.add(name, segment.capacity.0, segment.background.0);
            for &from in &from {
                for &to in to.iter().filter(|&&to| to != from) {
                    layout.pair_mut(from, to).capacities.push(capacity);
                }
            }
        }
    }
    Ok(())
}

fn add_circuits(layout: &mut Layout, scenario: &Scenario) -> Result<(), ScenarioError> {
    for (at, circuit) in scenario.circuit.iter().enumerate() {
        let place = format!("[[circuit]] {}", at + 1);
        let from = layout.sites_named(std::slice::from_ref(&circuit.from), &place)?[0];
        let to = layout.sites_named(std::slice::from_ref(&circuit.to), &place)?[0];
        if from == to || circuit.end.0 <= circuit.begin.0 {
            return Err(ScenarioError::new(
                place,
                "it leads nowhere, or ends before it begins",
                "correct its ends",
            ));
        }
        let name = format!("circuit {} → {}", layout.sites[from].name, layout.sites[to].name);
        let capacity = layout.add(name, circuit.capacity.0, 0.0);
        layout.circuits.push(CircuitPlan::new(circuit, from, to, capacity));
    }
    Ok(())
}

/// No islands, and no route with more capacities than a flow can count.
fn check_routes(layout: &Layout) -> Result<(), ScenarioError> {
    let count = layout.sites.len();
    for from in 0..count {
        let linked = (0..count).any(|to| layout.pair(from, to).open || layout.pair(to, from).open);
        if !linked {
            let what =
                format!("site \"{}\" is an island: no link leads to or from it", layout.sites[from].name);
            return Err(ScenarioError::new("[[link]]", what, "add a link, or use another topology"));
        }
        for to in 0..count {
            let capacities = layout.pair(from, to).capacities.len();
            let ends = layout.sites[from].out_capacities.len() + layout.sites[to].in_capacities.len() + 2;
            if capacities + ends > crate::fluid::ROUTE_CAPACITIES_MAX {
                let (from, to) = (&layout.sites[from].name, &layout.sites[to].name);
                let what = format!("the way from {from} to {to} crosses {capacities} links and segments");
                return Err(ScenarioError::new(
                    "[[segment]]",
                    what,
                    "at most 4 are possible, 2 where sites have limits",
                ));
            }
        }
    }
    Ok(())
}
