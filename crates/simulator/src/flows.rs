//! Sessions between pools and the files they move: a fluid processor-sharing queue per session, exact and
//! without cost per file.
//!
//! The files that a session moves at a time share its rate equally. So it is enough to count the attained
//! service of each since the session became busy: a file is done when that reaches what it was when the file
//! joined, plus its size. A new rate changes one number, however many files there are.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use crate::fluid::{FlowDemand, MaxMinAllocator, Route};
use crate::metrics::Curve;
use crate::plan::{Plan, Via};
use crate::scenario::{Mover, Rates};
use crate::timer_heap::TimerHeap;

/// More open files than this change nothing for a session.
const FILES_OPEN_MAX: u32 = 2_000;
/// Rounding error of the attained service in bytes.
const SERVICE_ROUNDING_BYTES: f64 = 1e-2;

#[derive(Debug)]
pub struct Flow {
    pub from_pool: usize,
    pub to_pool: usize,
    pub source: usize,
    pub target: usize,
    pub route: Route,
    pub rtt: f64,
    stream_cap: f64,
    /// What all its streams carry together at most; 0 while an end is away.
    limit: f64,
    /// Come to the agent, in their order.
    pub waiting: VecDeque<u32>,
    /// Begun, and no byte has come yet.
    pub opening: u32,
    opening_bytes: f64,
    /// (service at which it is done, attempt, its generation); those gone meanwhile are still in it.
    moving: BinaryHeap<Reverse<(u64, u32, u32)>>,
    moving_count: u32,
    finish_sum: f64,
    service: f64,
    since: i64,
    rate: f64,
    active: bool,
    /// Since when it has had nothing to do.
    pub idle_since: i64,
    /// Bytes since the beginning, and the seconds in which there was something to move.
    pub moved: f64,
    pub busy_s: f64,
}

impl Flow {
    fn is_moving(&self) -> bool {
        self.moving_count > 0
    }

    /// Bytes each moving file has got since the session was idle last.
    pub fn service(&self) -> f64 {
        self.service
    }

    /// Attempts that move, with their generation; some may have left.
    pub fn moving(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.moving.iter().map(|Reverse((_, attempt, generation))| (*attempt, *generation))
    }

    pub fn has_work(&self) -> bool {
        self.moving_count > 0 || self.opening > 0
    }
}

#[derive(Debug)]
pub struct Flows {
    pub rows: Vec<Flow>,
    by_pools: BTreeMap<(usize, usize), u32>,
    /// By site.
    pub out_of: Vec<Vec<u32>>,
    pub into: Vec<Vec<u32>>,
    /// What the capacities are now.
    pub capacity: Vec<f64>,
    /// Bytes that went through each capacity, and the most at once as a part of it.
    pub through: Vec<f64>,
    pub utilization_max: f64,
    pub curve: Curve,
    timers: TimerHeap,
    active: Vec<u32>,
    spare: Vec<f64>,
    sharing: MaxMinAllocator,
    demands: Vec<FlowDemand>,
    rates: Vec<f64>,
    mover: Mover,
    exact: bool,
    streams: f64,
    files_open: u32,
    bytes_open: f64,
    pub rates_stale: bool,
    pub recomputations: u64,
}

impl Flows {
    pub fn new(plan: &Plan, rates: Rates) -> Self {
        let count = plan.layout.sites.len();
        let capacity: Vec<f64> = plan.layout.capacities.iter().map(|capacity| capacity.rate).collect();
        Flows {
            rows: Vec::new(),
            by_pools: BTreeMap::new(),
            out_of: vec![Vec::new(); count],
            into: vec![Vec::new(); count],
            through: vec![0.0; capacity.len()],
            spare: capacity.clone(),
            capacity,
            utilization_max: 0.0,
            curve: Curve::default(),
            timers: TimerHeap::default(),
            active: Vec::new(),
            sharing: MaxMinAllocator::default(),
            demands: Vec::new(),
            rates: Vec::new(),
            mover: plan.model.mover,
            exact: rates == Rates::Exact,
            streams: f64::from(plan.model.streams),
            files_open: plan.model.files_open,
            bytes_open: plan.model.bytes_open.0,
            rates_stale: false,
            recomputations: 0,
        }
    }

    pub fn flow_between(&mut self, plan: &Plan, from_pool: usize, to_pool: usize) -> u32 {
        if let Some(&flow) = self.by_pools.get(&(from_pool, to_pool)) {
            return flow;
        }
        let (source, target) = (plan.layout.pools[from_pool].site, plan.layout.pools[to_pool].site);
        let pair = plan.layout.pair(source, target);
        let number = self.rows.len() as u32;
        self.rows.push(Flow {
            from_pool,
            to_pool,
            source,
            target,
            route: plan.route(from_pool, to_pool, Via::Links),
            rtt: pair.rtt,
            stream_cap: plan.stream_cap(pair.rtt, pair.loss),
            limit: f64::INFINITY,
            waiting: VecDeque::new(),
            opening: 0,
            opening_bytes: 0.0,
            moving: BinaryHeap::new(),
            moving_count: 0,
            finish_sum: 0.0,
            service: 0.0,
            since: 0,
            rate: 0.0,
            active: false,
            idle_since: i64::MIN,
            moved: 0.0,
            busy_s: 0.0,
        });
        self.by_pools.insert((from_pool, to_pool), number);
        self.out_of[source].push(number);
        self.into[target].push(number);
        number
    }

    /// Another way and round trip; `factor` is the part of its rate that is left to it.
    pub fn set_route(&mut self, number: u32, route: Route, rtt: f64, stream_cap: f64, factor: f64, now: i64) {
        self.advance(number, now);
        let flow = &mut self.rows[number as usize];
        (flow.route, flow.rtt, flow.stream_cap) = (route, rtt, stream_cap);
        let limit = if factor < 1.0 { factor * self.rate_alone(number) } else { f64::INFINITY };
        let flow = &mut self.rows[number as usize];
        if flow.limit != limit {
            flow.limit = limit;
            self.rates_stale = true;
        }
        self.rates_stale |= self.rows[number as usize].active;
    }

    /// What one file could get with nobody else around.
    pub fn rate_alone(&self, number: u32) -> f64 {
        let flow = &self.rows[number as usize];
        let narrow = flow.route.capacities().iter().map(|&index| self.capacity[index as usize]);
        narrow.fold(self.streams * flow.stream_cap, f64::min)
    }

    /// Whether an agent opens one more file: it keeps enough bytes open to never run dry, and some files
    /// anyway.
    pub fn may_open(&self, number: u32) -> bool {
        let flow = &self.rows[number as usize];
        let open = flow.moving_count + flow.opening;
        match self.mover {
            Mover::File => true,
            Mover::Session => {
                let moving = flow.finish_sum - f64::from(flow.moving_count) * flow.service;
                open < self.files_open
                    || open < FILES_OPEN_MAX && moving + flow.opening_bytes < self.bytes_open
            }
        }
    }

    pub fn start_opening(&mut self, number: u32, size: f64) {
        let flow = &mut self.rows[number as usize];
        flow.opening += 1;
        flow.opening_bytes += size;
    }

    /// No longer opening: it moves now, or has failed.
    pub fn end_opening(&mut self, number: u32, size: f64) {
        let flow = &mut self.rows[number as usize];
        flow.opening -= 1;
        flow.opening_bytes = if flow.opening == 0 { 0.0 } else { flow.opening_bytes - size };
    }

    /// A file begins to move; returns the service it begins and ends at.
    pub fn add_file(
        &mut self,
        number: u32,
        attempt: u32,
        generation: u32,
        bytes: f64,
        now: i64,
    ) -> (f64, f64) {
        self.advance(number, now);
        let flow = &mut self.rows[number as usize];
        if !flow.is_moving() {
            (flow.service, flow.finish_sum) = (0.0, 0.0);
            flow.moving.clear();
        }
        let (begin, end) = (flow.service, flow.service + bytes.max(1.0));
        flow.moving.push(Reverse((end.to_bits(), attempt, generation)));
        flow.moving_count += 1;
        flow.finish_sum += end;
        if !flow.active {
            flow.active = true;
            self.active.push(number);
            if !self.exact {
                self.grant_spare(number);
            }
        }
        if self.mover == Mover::File || self.rows[number as usize].moving_count == 1 && self.exact {
            self.rates_stale = true;
        }
        self.schedule_completion(number, now);
        (begin, end)
    }

    /// Until the next calculation, a new session gets what nobody has.
    fn grant_spare(&mut self, number: u32) {
        let wish = self.flow_demand(number);
        let spare = wish.route.capacities().iter().map(|&index| self.spare[index as usize]);
        let rate = spare.fold(wish.cap, f64::min).max(0.0);
        for &index in wish.route.capacities() {
            self.spare[index as usize] -= rate;
        }
        self.rows[number as usize].rate = rate;
        self.rates_stale = true;
    }

    /// A moving file leaves, done or not.
    pub fn remove_file(&mut self, number: u32, end: f64, now: i64) {
        self.advance(number, now);
        let flow = &mut self.rows[number as usize];
        flow.moving_count -= 1;
        flow.finish_sum -= end;
        if !flow.is_moving() {
            flow.idle_since = now;
            self.rates_stale = true;
        }
        self.rates_stale |= self.mover == Mover::File;
        self.schedule_completion(number, now);
    }

    /// Counts what has moved since the last time.
    pub fn advance(&mut self, number: u32, now: i64) {
        let flow = &mut self.rows[number as usize];
        let since = std::mem::replace(&mut flow.since, now);
        let seconds = (now - since) as f64 / 1e6;
        if flow.moving_count == 0 || seconds <= 0.0 {
            return;
        }
        flow.busy_s += seconds;
        if flow.rate <= 0.0 {
            return;
        }
        let bytes = flow.rate * seconds;
        flow.moved += bytes;
        flow.service += bytes / f64::from(flow.moving_count);
        for &index in flow.route.capacities() {
            self.through[index as usize] += bytes;
        }
        self.curve.add(since, now, bytes);
    }

    /// Sessions from one site to another.
    pub fn flows_of_pair(&self, source: usize, target: usize) -> Vec<u32> {
        let into = &self.into[target];
        into.iter().copied().filter(|&flow| self.rows[flow as usize].source == source).collect()
    }

    /// When the next file is done somewhere.
    pub fn next_completion(&self) -> Option<(i64, u32)> {
        self.timers.peek()
    }

    /// A file of the session that is done, if one is; `gone` tells of those that left before.
    pub fn pop_done(&mut self, number: u32, now: i64, gone: impl Fn(u32, u32) -> bool) -> Option<u32> {
        self.advance(number, now);
        let flow = &mut self.rows[number as usize];
        while let Some(&Reverse((end, attempt, generation))) = flow.moving.peek() {
            if gone(attempt, generation) {
                flow.moving.pop();
                continue;
            }
            let end = f64::from_bits(end);
            // What a rate does within a microsecond is rounding as well.
            let near = SERVICE_ROUNDING_BYTES + flow.rate * 1e-6 / f64::from(flow.moving_count.max(1));
            if flow.service + near >= end {
                flow.moving.pop();
                return Some(attempt);
            }
            break;
        }
        self.schedule_completion(number, now);
        None
    }

    fn schedule_completion(&mut self, number: u32, now: i64) {
        let flow = &self.rows[number as usize];
        let first = flow.moving.peek().filter(|_| flow.is_moving() && flow.rate > 0.0);
        match first {
            None => self.timers.remove(number),
            Some(&Reverse((end, ..))) => {
                let left = (f64::from_bits(end) - flow.service).max(0.0) * f64::from(flow.moving_count);
                let micros = (left / flow.rate * 1e6).ceil().min(1e17);
                self.timers.set(number, now + micros as i64);
            }
        }
    }

    fn flow_demand(&self, number: u32) -> FlowDemand {
        let flow = &self.rows[number as usize];
        let files = match self.mover {
            Mover::Session => 1.0,
            Mover::File => f64::from(flow.moving_count.max(1)),
        };
        let weight = self.streams * files;
        FlowDemand { weight, cap: (weight * flow.stream_cap).min(flow.limit), route: flow.route }
    }

    /// New rates for all.
    pub fn recompute_rates(&mut self, now: i64) {
        self.recomputations += 1;
        self.rates_stale = false;
        let rows = &mut self.rows;
        let mut idle = Vec::new();
        self.active.retain(|&number| {
            let flow = &mut rows[number as usize];
            flow.active = flow.is_moving();
            if !flow.active {
                flow.rate = 0.0;
                idle.push(number);
            }
            flow.active
        });
        idle.into_iter().for_each(|number| self.timers.remove(number));
        self.demands.clear();
        for at in 0..self.active.len() {
            let wish = self.flow_demand(self.active[at]);
            self.demands.push(wish);
        }
        self.sharing.allocate(&self.capacity, &self.demands, &mut self.rates);
        self.spare.copy_from_slice(&self.capacity);
        for at in 0..self.active.len() {
            let (number, rate) = (self.active[at], self.rates[at]);
            for &index in self.demands[at].route.capacities() {
                self.spare[index as usize] -= rate;
            }
            let before = self.rows[number as usize].rate;
            if (rate - before).abs() > 1e-9 * before {
                self.advance(number, now);
                self.rows[number as usize].rate = rate;
                self.schedule_completion(number, now);
            }
        }
        let over =
            self.spare.iter().zip(&self.capacity).map(|(spare, capacity)| 1.0 - spare / capacity.max(1.0));
        self.utilization_max = over.fold(self.utilization_max, f64::max);
    }
}
