//! Max-min fair allocation of capacities to flows, weighted, with a cap for each flow: progressive filling
//! (Bertsekas and Gallager, *Data Networks*, 6.5.2).
//!
//! All flows grow together, each by its weight, until one reaches its cap or a capacity is used up; those
//! freeze, the others go on. Each flow freezes once, so the cost is that of the flows' routes and two sorts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Capacities on the route of a flow.
pub const ROUTE_CAPACITIES_MAX: usize = 8;

/// The capacities on the way of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Route {
    capacities: [u32; ROUTE_CAPACITIES_MAX],
    count: u8,
}

impl Route {
    /// More than [`ROUTE_MAX`] are left out; `plan` refuses such worlds before.
    pub fn push(&mut self, index: u32) {
        if usize::from(self.count) < ROUTE_CAPACITIES_MAX && !self.capacities().contains(&index) {
            self.capacities[usize::from(self.count)] = index;
            self.count += 1;
        }
    }

    pub fn capacities(&self) -> &[u32] {
        &self.capacities[..usize::from(self.count)]
    }
}

/// Demand of a flow: its weight, cap and route.
#[derive(Clone, Copy, Debug)]
pub struct FlowDemand {
    pub weight: f64,
    pub cap: f64,
    pub route: Route,
}

/// Keeps its tables between calculations.
#[derive(Debug, Default)]
pub struct MaxMinAllocator {
    left: Vec<f64>,
    weight: Vec<f64>,
    first: Vec<u32>,
    flows_at: Vec<u32>,
    by_cap: Vec<(f64, u32)>,
    bottlenecks: BinaryHeap<Reverse<(FillLevel, u32)>>,
    done: Vec<bool>,
}

/// A number that can be ordered; none is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct FillLevel(f64);

impl Eq for FillLevel {}

impl PartialOrd for FillLevel {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FillLevel {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl MaxMinAllocator {
    /// Fills `rates`, one for each wish.
    pub fn allocate(&mut self, capacity: &[f64], wishes: &[FlowDemand], rates: &mut Vec<f64>) {
        rates.clear();
        rates.resize(wishes.len(), 0.0);
        self.prepare(capacity, wishes);
        let mut caps = 0;
        loop {
            while caps < self.by_cap.len() && self.done[self.by_cap[caps].1 as usize] {
                caps += 1;
            }
            let cap_level = self.by_cap.get(caps).map(|(level, _)| *level);
            let narrow = self.next_bottleneck();
            match (narrow, cap_level) {
                (None, None) => return,
                (Some((level, index)), cap) if cap.is_none_or(|cap| level <= cap) => {
                    self.bottlenecks.pop();
                    let range = self.first[index as usize] as usize..self.first[index as usize + 1] as usize;
                    for at in range {
                        let flow = self.flows_at[at];
                        if !self.done[flow as usize] {
                            self.freeze(flow, level, wishes, rates);
                        }
                    }
                }
                (_, Some(level)) => {
                    let flow = self.by_cap[caps].1;
                    self.freeze(flow, level, wishes, rates);
                }
                (Some(_), None) => unreachable!("every flow has a cap"),
            }
        }
    }

    fn prepare(&mut self, capacity: &[f64], wishes: &[FlowDemand]) {
        let count = capacity.len();
        self.left.resize(count, 0.0);
        self.weight.clear();
        self.weight.resize(count, 0.0);
        self.first.clear();
        self.first.resize(count + 1, 0);
        self.by_cap.clear();
        self.done.clear();
        self.done.resize(wishes.len(), false);
        for (at, wish) in wishes.iter().enumerate() {
            for &index in wish.route.capacities() {
                self.weight[index as usize] += wish.weight;
                self.first[index as usize + 1] += 1;
            }
            self.by_cap.push((wish.cap.max(0.0) / wish.weight, at as u32));
        }
        self.by_cap.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        self.bottlenecks.clear();
        for (index, &rate) in capacity.iter().enumerate() {
            if self.first[index + 1] > 0 {
                self.left[index] = rate.max(0.0);
                self.bottlenecks
                    .push(Reverse((FillLevel(self.left[index] / self.weight[index]), index as u32)));
            }
            self.first[index + 1] += self.first[index];
        }
        self.flows_at.clear();
        self.flows_at.resize(self.first[count] as usize, 0);
        // Filled from behind, so that `first` is right at the end.
        for (at, wish) in wishes.iter().enumerate() {
            for &index in wish.route.capacities() {
                self.first[index as usize + 1] -= 1;
                self.flows_at[self.first[index as usize + 1] as usize] = at as u32;
            }
        }
        for index in 0..count {
            self.first[index] = self.first[index + 1];
        }
        self.first[count] = self.flows_at.len() as u32;
    }

    /// The next bottleneck: the capacity that is used up first if all flows go on growing. Levels only
    /// rise, so
    /// a stored one is a lower bound.
    fn next_bottleneck(&mut self) -> Option<(f64, u32)> {
        while let Some(&Reverse((FillLevel(level), index))) = self.bottlenecks.peek() {
            let weight = self.weight[index as usize];
            if weight <= 1e-9 {
                self.bottlenecks.pop();
                continue;
            }
            let now = (self.left[index as usize] / weight).max(level);
            if now <= level * (1.0 + 1e-12) {
                return Some((now, index));
            }
            self.bottlenecks.pop();
            self.bottlenecks.push(Reverse((FillLevel(now), index)));
        }
        None
    }

    fn freeze(&mut self, flow: u32, level: f64, wishes: &[FlowDemand], rates: &mut [f64]) {
        let wish = &wishes[flow as usize];
        let rate = (level * wish.weight).min(wish.cap.max(0.0));
        rates[flow as usize] = rate;
        self.done[flow as usize] = true;
        for &index in wish.route.capacities() {
            let left = &mut self.left[index as usize];
            *left = (*left - rate).max(0.0);
            self.weight[index as usize] -= wish.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(weight: f64, cap: f64, places: &[u32]) -> FlowDemand {
        let mut route = Route::default();
        places.iter().for_each(|&index| route.push(index));
        FlowDemand { weight, cap, route }
    }

    fn share(capacity: &[f64], wishes: &[FlowDemand]) -> Vec<f64> {
        let mut rates = Vec::new();
        MaxMinAllocator::default().allocate(capacity, wishes, &mut rates);
        rates
    }

    #[test]
    fn a_shared_port_is_shared_and_what_one_cannot_use_others_get() {
        let wishes = [wish(1.0, 1e9, &[0, 1]), wish(1.0, 1e9, &[0, 2]), wish(1.0, 1e9, &[0])];
        assert_eq!(share(&[90.0, 10.0, 1e9], &wishes), [10.0, 40.0, 40.0]);
        let weighted = [wish(1.0, 1e9, &[0]), wish(2.0, 1e9, &[0]), wish(1.0, 5.0, &[0])];
        let rates = share(&[65.0], &weighted);
        assert!((rates[0] - 20.0).abs() < 1e-9 && (rates[1] - 40.0).abs() < 1e-9 && rates[2] == 5.0);
    }

    #[test]
    fn nothing_is_shared_where_there_is_nothing() {
        assert!(share(&[10.0], &[]).is_empty());
        assert_eq!(share(&[0.0], &[wish(1.0, 5.0, &[0])]), [0.0]);
        assert_eq!(share(&[10.0], &[wish(1.0, 0.0, &[0])]), [0.0]);
        assert_eq!(share(&[10.0], &[wish(1.0, 3.0, &[])]), [3.0]);
    }

    proptest! {
        /// No capacity is exceeded; and every flow is at its cap, or crosses a full capacity where nobody
        /// gets more for its weight: that is what max-min fair means.
        #[test]
        fn is_max_min_fair(
            capacity in prop::collection::vec(0.0f64..100.0, 1..8),
            flows in prop::collection::vec(
                (0.5f64..8.0, 0.0f64..60.0, prop::collection::vec(0u32..8, 1..5)), 0..30),
        ) {
            let count = capacity.len() as u32;
            let wishes: Vec<FlowDemand> = flows
                .iter()
                .map(|(weight, cap, places)| {
                    let places: Vec<u32> = places.iter().map(|index| index % count).collect();
                    wish(*weight, *cap, &places)
                })
                .collect();
            let rates = share(&capacity, &wishes);
            let mut used = vec![0.0; capacity.len()];
            let mut most = vec![0.0f64; capacity.len()];
            for (wish, rate) in wishes.iter().zip(&rates) {
                prop_assert!(*rate <= wish.cap && *rate >= 0.0);
                for &index in wish.route.capacities() {
                    used[index as usize] += rate;
                    most[index as usize] = most[index as usize].max(rate / wish.weight);
                }
            }
            for (used, capacity) in used.iter().zip(&capacity) {
                prop_assert!(*used <= capacity + 1e-6);
            }
            for (wish, rate) in wishes.iter().zip(&rates) {
                let held = wish.route.capacities().iter().any(|&index| {
                    used[index as usize] >= capacity[index as usize] - 1e-6
                        && rate / wish.weight >= most[index as usize] - 1e-6
                });
                prop_assert!(held || *rate >= wish.cap - 1e-6);
            }
        }
    }
}
