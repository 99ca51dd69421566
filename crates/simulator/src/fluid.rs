//! Who gets what: max-min fair shares of capacities, by weight, with a cap for each flow.
//!
//! Progressive filling: all flows grow together, each by its weight, until one reaches its cap or a capacity
//! is used up; those stop, the others go on. Each flow stops once, so the cost is that of the flows' routes
//! and two sorts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Capacities that a flow uses, at most.
pub const ROUTE_MAX: usize = 8;

/// The capacities on the way of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Route {
    places: [u32; ROUTE_MAX],
    count: u8,
}

impl Route {
    /// More than [`ROUTE_MAX`] are left out; `plan` refuses such worlds before.
    pub fn push(&mut self, place: u32) {
        if usize::from(self.count) < ROUTE_MAX && !self.places().contains(&place) {
            self.places[usize::from(self.count)] = place;
            self.count += 1;
        }
    }

    pub fn places(&self) -> &[u32] {
        &self.places[..usize::from(self.count)]
    }
}

/// What a flow may take.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    pub weight: f64,
    pub cap: f64,
    pub route: Route,
}

/// Keeps its tables between calculations.
#[derive(Debug, Default)]
pub struct Sharing {
    left: Vec<f64>,
    weight: Vec<f64>,
    first: Vec<u32>,
    flows_at: Vec<u32>,
    by_cap: Vec<(f64, u32)>,
    narrow: BinaryHeap<Reverse<(Level, u32)>>,
    done: Vec<bool>,
}

/// A number that can be ordered; none is NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level(f64);

impl Eq for Level {}

impl PartialOrd for Level {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Level {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl Sharing {
    /// Fills `rates`, one for each wish.
    pub fn share(&mut self, capacity: &[f64], wishes: &[Wish], rates: &mut Vec<f64>) {
        rates.clear();
        rates.resize(wishes.len(), 0.0);
        self.prepare(capacity, wishes);
        let mut caps = 0;
        loop {
            while caps < self.by_cap.len() && self.done[self.by_cap[caps].1 as usize] {
                caps += 1;
            }
            let cap_level = self.by_cap.get(caps).map(|(level, _)| *level);
            let narrow = self.narrowest();
            match (narrow, cap_level) {
                (None, None) => return,
                (Some((level, place)), cap) if cap.is_none_or(|cap| level <= cap) => {
                    self.narrow.pop();
                    let range = self.first[place as usize] as usize..self.first[place as usize + 1] as usize;
                    for at in range {
                        let flow = self.flows_at[at];
                        if !self.done[flow as usize] {
                            self.stop(flow, level, wishes, rates);
                        }
                    }
                }
                (_, Some(level)) => {
                    let flow = self.by_cap[caps].1;
                    self.stop(flow, level, wishes, rates);
                }
                (Some(_), None) => unreachable!("every flow has a cap"),
            }
        }
    }

    fn prepare(&mut self, capacity: &[f64], wishes: &[Wish]) {
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
            for &place in wish.route.places() {
                self.weight[place as usize] += wish.weight;
                self.first[place as usize + 1] += 1;
            }
            self.by_cap.push((wish.cap.max(0.0) / wish.weight, at as u32));
        }
        self.by_cap.sort_unstable_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        self.narrow.clear();
        for (place, &rate) in capacity.iter().enumerate() {
            if self.first[place + 1] > 0 {
                self.left[place] = rate.max(0.0);
                self.narrow.push(Reverse((Level(self.left[place] / self.weight[place]), place as u32)));
            }
            self.first[place + 1] += self.first[place];
        }
        self.flows_at.clear();
        self.flows_at.resize(self.first[count] as usize, 0);
        // Filled from behind, so that `first` is right at the end.
        for (at, wish) in wishes.iter().enumerate() {
            for &place in wish.route.places() {
                self.first[place as usize + 1] -= 1;
                self.flows_at[self.first[place as usize + 1] as usize] = at as u32;
            }
        }
        for place in 0..count {
            self.first[place] = self.first[place + 1];
        }
        self.first[count] = self.flows_at.len() as u32;
    }

    /// The capacity that is used up first if all go on growing. Levels only rise, so an old one is a lower
    /// limit.
    fn narrowest(&mut self) -> Option<(f64, u32)> {
        while let Some(&Reverse((Level(level), place))) = self.narrow.peek() {
            let weight = self.weight[place as usize];
            if weight <= 1e-9 {
                self.narrow.pop();
                continue;
            }
            let now = (self.left[place as usize] / weight).max(level);
            if now <= level * (1.0 + 1e-12) {
                return Some((now, place));
            }
            self.narrow.pop();
            self.narrow.push(Reverse((Level(now), place)));
        }
        None
    }

    fn stop(&mut self, flow: u32, level: f64, wishes: &[Wish], rates: &mut [f64]) {
        let wish = &wishes[flow as usize];
        let rate = (level * wish.weight).min(wish.cap.max(0.0));
        rates[flow as usize] = rate;
        self.done[flow as usize] = true;
        for &place in wish.route.places() {
            let left = &mut self.left[place as usize];
            *left = (*left - rate).max(0.0);
            self.weight[place as usize] -= wish.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wish(weight: f64, cap: f64, places: &[u32]) -> Wish {
        let mut route = Route::default();
        places.iter().for_each(|&place| route.push(place));
        Wish { weight, cap, route }
    }

    fn share(capacity: &[f64], wishes: &[Wish]) -> Vec<f64> {
        let mut rates = Vec::new();
        Sharing::default().share(capacity, wishes, &mut rates);
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
            let wishes: Vec<Wish> = flows
                .iter()
                .map(|(weight, cap, places)| {
                    let places: Vec<u32> = places.iter().map(|place| place % count).collect();
                    wish(*weight, *cap, &places)
                })
                .collect();
            let rates = share(&capacity, &wishes);
            let mut used = vec![0.0; capacity.len()];
            let mut most = vec![0.0f64; capacity.len()];
            for (wish, rate) in wishes.iter().zip(&rates) {
                prop_assert!(*rate <= wish.cap && *rate >= 0.0);
                for &place in wish.route.places() {
                    used[place as usize] += rate;
                    most[place as usize] = most[place as usize].max(rate / wish.weight);
                }
            }
            for (used, capacity) in used.iter().zip(&capacity) {
                prop_assert!(*used <= capacity + 1e-6);
            }
            for (wish, rate) in wishes.iter().zip(&rates) {
                let held = wish.route.places().iter().any(|&place| {
                    used[place as usize] >= capacity[place as usize] - 1e-6
                        && rate / wish.weight >= most[place as usize] - 1e-6
                });
                prop_assert!(held || *rate >= wish.cap - 1e-6);
            }
        }
    }
}
