//! Circuit providers of a world: their capacity, the reservations they granted, and what those take from
//! ports. They grant whatever there is room for.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use longhaul_circuits::RequestKey;

use crate::layout::Layout;
use crate::plan::Plan;
use crate::scenario::{Circuits, Scenario, ScenarioError};

/// Circuits of a provider: each may become a capacity.
const CIRCUITS_PER_PROVIDER_MAX: u32 = 1_000;
/// Rates that a provider may offer.
const RATES_PER_PROVIDER_MAX: usize = 16;
/// One Mbit/s in bytes per second.
pub(crate) const MBIT_BYTES_PER_S: f64 = 125_000.0;

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
    pub capacities: Range<u32>,
}

impl ProviderPlan {
    pub fn reaches(&self, from: usize, to: usize) -> bool {
        from != to && self.sites.contains(&from) && self.sites.contains(&to)
    }
}

pub(crate) fn add_providers(layout: &mut Layout, scenario: &Scenario) -> Result<(), ScenarioError> {
    for provider in &scenario.provider {
        let place = format!("[[provider]] {}", provider.name);
        let wrong = |what: &str, next: &str| Err(ScenarioError::new(place.clone(), what, next));
        let printable = provider.name.chars().all(|c| c.is_ascii_graphic());
        if provider.name.is_empty() || provider.name.len() > 40 || !printable {
            return wrong("the name is no name", "use 1 to 40 letters, digits and signs");
        }
        if layout.providers.iter().any(|other| other.name == provider.name) {
            return wrong("two providers have this name", "rename one");
        }
        if provider.rates.is_empty() || provider.rates.len() > RATES_PER_PROVIDER_MAX {
            return wrong("it has no rates, or too many", "give rates, 1 to 16 of them");
        }
        if !(1..=CIRCUITS_PER_PROVIDER_MAX).contains(&provider.at_once) {
            return wrong("no circuit could ever be had, or too many", "give at_once, 1 to 1000");
        }
        if provider.port_share.0 <= 0.0 || provider.requests_per_hour == 0 {
            return wrong("nothing could ever be reserved", "give port_share and requests_per_hour above 0");
        }
        if provider.lifetime.0 < 600.0 || provider.setup.0 > provider.lifetime.0 {
            return wrong("circuits end before they begin", "give a lifetime of 10 min or more, above setup");
        }
        let mut mbit: Vec<u64> =
            provider.rates.iter().map(|rate| (rate.0 / MBIT_BYTES_PER_S) as u64).collect();
        mbit.sort_unstable();
        if mbit[0] == 0 {
            return wrong("a rate below 1 Mbit/s", "give larger rates");
        }
        let largest = *mbit.last().unwrap_or(&0) as f64 * MBIT_BYTES_PER_S;
        let first = layout.capacities.len() as u32;
        for number in 1..=provider.at_once {
            layout.add(format!("{} circuit {number}", provider.name), largest, 0.0);
        }
        let sites = layout.sites_named(&provider.sites, &place)?.into_iter().collect();
        layout.providers.push(ProviderPlan {
            name: provider.name.clone(),
            sites,
            mbit,
            mbit_all: provider.capacity.map(|rate| (rate.0 / MBIT_BYTES_PER_S) as u64),
            port_share: provider.port_share.0,
            setup: provider.setup.0,
            lifetime: provider.lifetime.0,
            requests_per_hour: provider.requests_per_hour,
            capacities: first..first + provider.at_once,
        });
    }
    Ok(())
}

pub(crate) fn check_circuits(circuits: &Circuits) -> Result<(), ScenarioError> {
    let wrong =
        |key: &str, what: &str, next: &str| Err(ScenarioError::new(format!("[circuits] {key}"), what, next));
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

/// A granted reservation.
#[derive(Clone, Copy, Debug)]
struct Reservation {
    provider: usize,
    pair: (usize, usize),
    mbit: u64,
    capacity: u32,
    /// Microseconds.
    until: i64,
}

/// All reservations of a world, and which of them carry traffic.
#[derive(Debug, Default)]
pub(crate) struct CircuitProviders {
    reservations: BTreeMap<RequestKey, Reservation>,
    free: Vec<BTreeSet<u32>>,
    active: BTreeMap<(usize, usize), u32>,
}

/// Why a provider refuses.
pub(crate) struct Refusal {
    /// Less could be had, perhaps.
    pub less: bool,
    pub detail: &'static str,
}

impl CircuitProviders {
    pub(crate) fn new(plan: &Plan) -> Self {
        let free = plan.layout.providers.iter().map(|provider| provider.capacities.clone().collect());
        CircuitProviders { free: free.collect(), ..CircuitProviders::default() }
    }

    /// The capacity that carries a pair, if a circuit does.
    pub(crate) fn active_capacity(&self, from: usize, to: usize) -> Option<u32> {
        self.active.get(&(from, to)).copied()
    }

    /// All pairs that use one, with its place.
    pub(crate) fn active_capacities(&self) -> impl Iterator<Item = ((usize, usize), u32)> + '_ {
        self.active.iter().map(|(pair, place)| (*pair, *place))
    }

    /// Reserved rate of a port, in bytes per second.
    fn reserved_at(&self, site: usize, inward: bool) -> f64 {
        let ends = |held: &&Reservation| if inward { held.pair.1 == site } else { held.pair.0 == site };
        self.reservations.values().filter(ends).map(|held| held.mbit as f64 * MBIT_BYTES_PER_S).sum()
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
        let rate = mbit as f64 * MBIT_BYTES_PER_S;
        let used: u64 =
            self.reservations.values().filter(|held| held.provider == provider).map(|held| held.mbit).sum();
        if row.mbit_all.is_some_and(|all| used + mbit > all) {
            return Err(Refusal { less: true, detail: "not so much is left" });
        }
        for (site, inward) in [(pair.0, false), (pair.1, true)] {
            let of = plan.port(site, inward) * row.port_share;
            if self.reserved_at(site, inward) + rate > of * (1.0 + 1e-9) {
                return Err(Refusal { less: true, detail: "not so much of a port is left" });
            }
        }
        let Some(place) = self.free[provider].pop_first() else {
            return Err(Refusal { less: false, detail: "as many circuits as are possible are there" });
        };
        self.reservations.insert(key, Reservation { provider, pair, mbit, capacity: place, until });
        Ok(place)
    }

    /// Gives back; the pair and the capacity's place, if there was anything.
    pub(crate) fn release(&mut self, key: RequestKey) -> Option<((usize, usize), u32)> {
        let held = self.reservations.remove(&key)?;
        self.free[held.provider].insert(held.capacity);
        self.active.retain(|_, place| *place != held.capacity);
        Some((held.pair, held.capacity))
    }

    pub(crate) fn set_active(&mut self, key: RequestKey, used: bool) {
        let Some(held) = self.reservations.get(&key) else { return };
        if used {
            self.active.insert(held.pair, held.capacity);
        } else if self.active.get(&held.pair) == Some(&held.capacity) {
            self.active.remove(&held.pair);
        }
    }

    pub(crate) fn is_reserved(&self, key: RequestKey) -> bool {
        self.reservations.contains_key(&key)
    }

    pub(crate) fn until(&self, key: RequestKey) -> Option<i64> {
        self.reservations.get(&key).map(|held| held.until)
    }

    pub(crate) fn expired(&self, now: i64) -> Vec<RequestKey> {
        self.reservations.iter().filter(|(_, held)| held.until <= now).map(|(key, _)| *key).collect()
    }

    /// Mbit/s that are reserved in all.
    pub(crate) fn mbit(&self) -> u64 {
        self.reservations.values().map(|held| held.mbit).sum()
    }

    /// Bytes a second that are reserved of both ports of a pair.
    pub(crate) fn reserved(&self, pair: (usize, usize)) -> [f64; 2] {
        [self.reserved_at(pair.0, false), self.reserved_at(pair.1, true)]
    }
}

impl Plan {
    /// A site's port, in bytes a second.
    pub(crate) fn port(&self, site: usize, inward: bool) -> f64 {
        let row = &self.layout.sites[site];
        let ways = if inward { &row.in_capacities } else { &row.out_capacities };
        ways.first().map_or(0.0, |&place| self.layout.capacities[place as usize].rate)
    }
}
