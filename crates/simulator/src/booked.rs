//! Providers of circuits in a world: what they have, to whom they have given it, and what that takes from
//! ports. They grant whatever there is room for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_circuits::RequestKey;

use crate::layout::Layout;
use crate::plan::Plan;
use crate::scenario::{Circuits, Mistake, Scenario};

/// Circuits of a provider: each may become a capacity.
const AT_ONCE_MAX: u32 = 1_000;
const RATES_MAX: usize = 16;
/// Bytes a second of one Mbit/s.
pub(crate) const MBIT: f64 = 125_000.0;

#[derive(Clone, Debug)]
pub struct ProviderPlan {
    pub name: String,
    pub sites: BTreeSet<usize>,
    pub mbit: Vec<u64>,
    pub mbit_all: Option<u64>,
    pub port_share: f64,
    /// Seconds.
    pub setup: f64,
    pub lifetime: f64,
    pub requests_per_hour: u32,
    /// Places of capacities, one for each circuit at once.
    pub places: Range<u32>,
}

impl ProviderPlan {
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        from != to && self.sites.contains(&from) && self.sites.contains(&to)
    }
}

pub(crate) fn add_providers(layout: &mut Layout, scenario: &Scenario) -> Result<(), Mistake> {
    for provider in &scenario.provider {
        let place = format!("[[provider]] {}", provider.name);
        let wrong = |what: &str, next: &str| Err(Mistake::new(place.clone(), what, next));
        let printable = provider.name.chars().all(|c| c.is_ascii_graphic());
        if provider.name.is_empty() || provider.name.len() > 40 || !printable {
            return wrong("the name is no name", "use 1 to 40 letters, digits and signs");
        }
        if layout.providers.iter().any(|other| other.name == provider.name) {
            return wrong("two providers have this name", "rename one");
        }
        if provider.rates.is_empty() || provider.rates.len() > RATES_MAX {
            return wrong("it has no rates, or too many", "give rates, 1 to 16 of them");
        }
        if !(1..=AT_ONCE_MAX).contains(&provider.at_once) {
            return wrong("no circuit could ever be had, or too many", "give at_once, 1 to 1000");
        }
        if provider.port_share.0 <= 0.0 || provider.requests_per_hour == 0 {
            return wrong("nothing could ever be reserved", "give port_share and requests_per_hour above 0");
        }
        if provider.lifetime.0 < 600.0 || provider.setup.0 > provider.lifetime.0 {
            return wrong("circuits end before they begin", "give a lifetime of 10 min or more, above setup");
        }
        let mut mbit: Vec<u64> = provider.rates.iter().map(|rate| (rate.0 / MBIT) as u64).collect();
        mbit.sort_unstable();
        if mbit[0] == 0 {
            return wrong("a rate below 1 Mbit/s", "give larger rates");
        }
        let largest = *mbit.last().unwrap_or(&0) as f64 * MBIT;
        let first = layout.capacities.len() as u32;
        for number in 1..=provider.at_once {
            layout.add(format!("{} circuit {number}", provider.name), largest, 0.0);
        }
        let sites = layout.sites_named(&provider.sites, &place)?.into_iter().collect();
        layout.providers.push(ProviderPlan {
            name: provider.name.clone(),
            sites,
            mbit,
            mbit_all: provider.capacity.map(|rate| (rate.0 / MBIT) as u64),
            port_share: provider.port_share.0,
            setup: provider.setup.0,
            lifetime: provider.lifetime.0,
            requests_per_hour: provider.requests_per_hour,
            places: first..first + provider.at_once,
        });
    }
    Ok(())
}

pub(crate) fn check(circuits: &Circuits) -> Result<(), Mistake> {
    let wrong =
        |key: &str, what: &str, next: &str| Err(Mistake::new(format!("[circuits] {key}"), what, next));
    if !(10.0..=3_600.0).contains(&circuits.every.0) {
        return wrong("every", "work is looked at too often or hardly ever", "give 10 s to 1 h");
    }
    if !(1.0..=100.0).contains(&circuits.forecast_error) {
        return wrong("forecast_error", "no such error", "give a factor from 1 to 100");
    }
    if !(1..=9).contains(&circuits.floor) {
        return wrong("floor", "no such priority", "give 1 to 9");
    }
    if circuits.age_step.0 < 60.0 {
        return wrong("age_step", "all work would count as the most urgent", "give 1 min or more");
    }
    if circuits.budget.is_some_and(|budget| !(budget.is_finite() && budget >= 0.0)) {
        return wrong("budget", "no such budget", "give Gbit/s times hours, 0 or more");
    }
    Ok(())
}

/// What a provider has given away.
#[derive(Clone, Copy, Debug)]
struct Held {
    provider: usize,
    pair: (usize, usize),
    mbit: u64,
    place: u32,
    /// Microseconds.
    until: i64,
}

/// All reservations of a world, and which of them carry something.
#[derive(Debug, Default)]
pub(crate) struct Booked {
    held: BTreeMap<RequestKey, Held>,
    free: Vec<BTreeSet<u32>>,
    up: BTreeMap<(usize, usize), u32>,
}

/// Why a provider refuses.
pub(crate) struct Refusal {
    /// Less could be had, perhaps.
    pub less: bool,
    pub detail: &'static str,
}

impl Booked {
    pub(crate) fn new(plan: &Plan) -> Self {
        let free = plan.layout.providers.iter().map(|provider| provider.places.clone().collect());
        Booked { free: free.collect(), ..Booked::default() }
    }

    /// The capacity that carries a pair, if a circuit does.
    pub(crate) fn way(&self, from: usize, to: usize) -> Option<u32> {
        self.up.get(&(from, to)).copied()
    }

    /// All pairs that use one, with its place.
    pub(crate) fn ways(&self) -> impl Iterator<Item = ((usize, usize), u32)> + '_ {
        self.up.iter().map(|(pair, place)| (*pair, *place))
    }

    /// Of a port, in bytes a second.
    fn taken(&self, site: usize, inward: bool) -> f64 {
        let ends = |held: &&Held| if inward { held.pair.1 == site } else { held.pair.0 == site };
        self.held.values().filter(ends).map(|held| held.mbit as f64 * MBIT).sum()
    }

    /// Reserves, or says why not. Returns the capacity's place.
    pub(crate) fn reserve(
        &mut self,
        plan: &Plan,
        provider: usize,
        key: RequestKey,
        pair: (usize, usize),
        mbit: u64,
        until: i64,
    ) -> Result<u32, Refusal> {
        let row = &plan.layout.providers[provider];
        let rate = mbit as f64 * MBIT;
        let used: u64 =
            self.held.values().filter(|held| held.provider == provider).map(|held| held.mbit).sum();
        if row.mbit_all.is_some_and(|all| used + mbit > all) {
            return Err(Refusal { less: true, detail: "not so much is left" });
        }
        for (site, inward) in [(pair.0, false), (pair.1, true)] {
            let of = plan.port(site, inward) * row.port_share;
            if self.taken(site, inward) + rate > of * (1.0 + 1e-9) {
                return Err(Refusal { less: true, detail: "not so much of a port is left" });
            }
        }
        let Some(place) = self.free[provider].pop_first() else {
            return Err(Refusal { less: false, detail: "as many circuits as are possible are there" });
        };
        self.held.insert(key, Held { provider, pair, mbit, place, until });
        Ok(place)
    }

    /// Gives back; the pair and the capacity's place, if there was anything.
    pub(crate) fn give_back(&mut self, key: RequestKey) -> Option<((usize, usize), u32)> {
        let held = self.held.remove(&key)?;
        self.free[held.provider].insert(held.place);
        self.up.retain(|_, place| *place != held.place);
        Some((held.pair, held.place))
    }

    pub(crate) fn use_for(&mut self, key: RequestKey, used: bool) {
        let Some(held) = self.held.get(&key) else { return };
        if used {
            self.up.insert(held.pair, held.place);
        } else if self.up.get(&held.pair) == Some(&held.place) {
            self.up.remove(&held.pair);
        }
    }

    pub(crate) fn holds(&self, key: RequestKey) -> bool {
        self.held.contains_key(&key)
    }

    pub(crate) fn until(&self, key: RequestKey) -> Option<i64> {
        self.held.get(&key).map(|held| held.until)
    }

    pub(crate) fn expired(&self, now: i64) -> Vec<RequestKey> {
        self.held.iter().filter(|(_, held)| held.until <= now).map(|(key, _)| *key).collect()
    }

    /// Mbit/s that are reserved in all.
    pub(crate) fn mbit(&self) -> u64 {
        self.held.values().map(|held| held.mbit).sum()
    }

    /// Bytes a second that are reserved of both ports of a pair.
    pub(crate) fn reserved(&self, pair: (usize, usize)) -> [f64; 2] {
        [self.taken(pair.0, false), self.taken(pair.1, true)]
    }
}

impl Plan {
    /// A site's port, in bytes a second.
    pub(crate) fn port(&self, site: usize, inward: bool) -> f64 {
        let row = &self.layout.sites[site];
        let ways = if inward { &row.in_ways } else { &row.out_ways };
        ways.first().map_or(0.0, |&place| self.layout.capacities[place as usize].rate)
    }
}
