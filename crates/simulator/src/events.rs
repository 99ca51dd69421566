//! Events of the world: failures begin and end, circuits come and go, foreign traffic rises and falls.

use longhaul_model::{AgentId, AttemptId, Fault, FaultCode};
use longhaul_scheduler::Event;

use crate::plan::{Plan, Via};
use crate::scenario::FailureKind;
use crate::world::{Phase, SimEvent, World, micros};

/// Foreign traffic changes this often.
const BACKGROUND_INTERVAL_S: f64 = 300.0;
/// Spread of foreign traffic around its mean.
const BACKGROUND_SPREAD: f64 = 0.3;
/// Share of the last value that stays: a first-order autoregressive process.
const BACKGROUND_AUTOCORRELATION: f64 = 0.8;
/// Largest share of a capacity that foreign traffic takes.
const BACKGROUND_SHARE_MAX: f64 = 0.95;
/// The service considers an agent disconnected after this.
const AGENT_TIMEOUT_S: f64 = 15.0;
/// A connection whose peer vanished silently is given up after this.
const CONNECTION_STALL_S: f64 = 10.0;

impl World<'_> {
    pub(crate) fn schedule_events(&mut self) {
        let plan: &Plan = self.plan;
        for (number, trouble) in (0u32..).zip(&plan.failures) {
            self.schedule_at(micros(trouble.begin), SimEvent::FailureBegins { trouble: number });
            if trouble.end < plan.until {
                self.schedule_at(micros(trouble.end), SimEvent::FailureEnds { trouble: number });
            }
        }
        for (number, circuit) in (0u32..).zip(&plan.layout.circuits) {
            self.schedule_at(micros(circuit.begin), SimEvent::Circuit { circuit: number, up: true });
            self.schedule_at(micros(circuit.end), SimEvent::Circuit { circuit: number, up: false });
        }
        if plan.layout.capacities.iter().any(|capacity| capacity.background > 0.0) {
            self.schedule_at(0, SimEvent::BackgroundTraffic);
        }
        if plan.model.probe_every.0 > 0.0 {
            self.schedule_after(plan.model.probe_every.0, SimEvent::Probes);
        }
    }

    /// Updates foreign traffic: an AR(1) process around each mean, with a daily cycle.
    pub(crate) fn update_background(&mut self) {
        let day = self.now as f64 / 86_400e6;
        let rhythm = 1.0 - 0.3 * (std::f64::consts::TAU * day).cos();
        for (index, capacity) in self.plan.layout.capacities.iter().enumerate() {
            if capacity.background > 0.0 {
                let noise = BACKGROUND_SPREAD
                    * (1.0 - BACKGROUND_AUTOCORRELATION * BACKGROUND_AUTOCORRELATION).sqrt()
                    * self.random.normal();
                let before = self.background[index];
                self.background[index] = if self.now == 0 {
                    BACKGROUND_SPREAD * noise
                } else {
                    BACKGROUND_AUTOCORRELATION * before + noise
                };
                let taken = capacity.background * rhythm * (1.0 + self.background[index]);
                self.unused_share[index] = 1.0 - taken.clamp(0.0, BACKGROUND_SHARE_MAX);
                self.update_capacity(index);
            }
        }
        self.flows.rates_stale = true;
        self.record_capacities();
        self.schedule_after(BACKGROUND_INTERVAL_S, SimEvent::BackgroundTraffic);
    }

    /// What a capacity has for everybody: what is reserved is not there for others.
    pub(crate) fn update_capacity(&mut self, index: usize) {
        let rate =
            self.plan.layout.capacities[index].rate * self.unused_share[index] * self.storage_factor[index];
        self.flows.capacity[index] = (rate - self.reserved[index]).max(0.0);
        self.flows.rates_stale = true;
    }

    /// What is left of capacities, for the bound: the ports of a site carry nothing while it is away, or each
    /// attempt fails there.
    fn record_capacities(&mut self) {
        let mut capacity = self.flows.capacity.clone();
        // What a circuit has of a port is used as well.
        capacity.iter_mut().zip(&self.reserved).for_each(|(rate, reserved)| *rate += reserved);
        for (site, now) in self.plan.layout.sites.iter().zip(&self.sites) {
            let fails = |&number: &u32| {
                let trouble = &self.plan.failures[number as usize];
                trouble.kind == FailureKind::SiteError && trouble.share >= 1.0
            };
            if now.down > 0 || now.failures.iter().any(fails) {
                site.in_capacities
                    .iter()
                    .chain(&site.out_capacities)
                    .for_each(|&index| capacity[index as usize] = 0.0);
            }
        }
        self.metrics.record_capacities(self.now, capacity);
    }

    pub(crate) fn on_failure_begin(&mut self, number: u32) {
        self.reset_link_counts(number);
        let trouble = &self.plan.failures[number as usize];
        match trouble.kind {
            FailureKind::ClockJump => self.clock_jump += trouble.jump,
            FailureKind::LinkDegraded | FailureKind::RouteChange => {
                self.link_failures.insert(number);
                self.update_routes_of_failure(number);
            }
            FailureKind::SlowStorage => self.scale_storage(number, true),
            kind => {
                for &site in &trouble.at {
                    self.sites[site].failures.insert(number);
                    match kind {
                        FailureKind::SiteDown | FailureKind::AgentRestart => {
                            self.take_down(site as u32, number)
                        }
                        FailureKind::SiteError => self.fail_attempts(site as u32, number),
                        _ => {}
                    }
                }
            }
        }
    }

    pub(crate) fn on_failure_end(&mut self, number: u32) {
        self.reset_link_counts(number);
        let trouble = &self.plan.failures[number as usize];
        match trouble.kind {
            FailureKind::ClockJump => {}
            FailureKind::LinkDegraded | FailureKind::RouteChange => {
                self.link_failures.remove(&number);
                self.update_routes_of_failure(number);
            }
            FailureKind::SlowStorage => self.scale_storage(number, false),
            kind => {
                for &site in &trouble.at {
                    self.sites[site].failures.remove(&number);
                    match kind {
                        FailureKind::SiteDown | FailureKind::AgentRestart => self.bring_back(site as u32),
                        FailureKind::SiteError => self.record_capacities(),
                        _ => {}
                    }
                }
            }
        }
    }

    fn take_down(&mut self, site: u32, number: u32) {
        let trouble = &self.plan.failures[number as usize];
        let row = &mut self.sites[site as usize];
        row.down += 1;
        row.back = row.back.max(micros(trouble.end));
        self.schedule_after(AGENT_TIMEOUT_S, SimEvent::AgentTimeout { site, trouble: number });
        // What others fetch from here breaks off; what it fetches itself goes on where it was, when it is
        // back.
        let (code, later) = match trouble.kind {
            FailureKind::AgentRestart => (FaultCode::ConnectionLost, 0.0),
            _ => (FaultCode::Stalled, CONNECTION_STALL_S),
        };
        for index in self.started_attempts(|attempt| attempt.source == site) {
            self.interrupt(index, Fault::new(code, "the peer is gone"), later);
        }
        self.update_routes_at(site);
        self.record_capacities();
    }

    fn bring_back(&mut self, site: u32) {
        let row = &mut self.sites[site as usize];
        row.down -= 1;
        if row.down > 0 {
            return;
        }
        self.update_routes_at(site);
        self.record_capacities();
        if !self.sites[site as usize].connected {
            self.sites[site as usize].connected = true;
            self.announce_agent(site);
            let held =
                self.attempts.iter().filter(|attempt| attempt.target == site && attempt.phase != Phase::Free);
            let attempts: Vec<AttemptId> = held.map(|attempt| attempt.id).collect();
            self.handle(Event::HeldLeases { agent: AgentId(u64::from(site) + 1), attempts });
            self.replan_circuits_at(site);
        }
        for at in 0..self.flows.into[site as usize].len() {
            let flow = self.flows.into[site as usize][at];
            self.start_waiting(flow);
        }
    }

    pub(crate) fn on_agent_timeout(&mut self, site: u32, trouble: u32) {
        let still = self.sites[site as usize].failures.contains(&trouble);
        if still && self.sites[site as usize].connected {
            self.sites[site as usize].connected = false;
            self.announce_agent(site);
            self.replan_circuits_at(site);
        }
    }

    fn fail_attempts(&mut self, site: u32, number: u32) {
        let code = self.plan.failures[number as usize].code;
        for index in self.started_attempts(|attempt| attempt.source == site || attempt.target == site) {
            self.interrupt(index, Fault::new(code, "by the scenario"), 0.0);
        }
        self.record_capacities();
    }

    fn started_attempts(&self, which: impl Fn(&crate::world::Attempt) -> bool) -> Vec<u32> {
        let begun = |phase| matches!(phase, Phase::Opening | Phase::Moving | Phase::Recalling);
        let rows = (0u32..).zip(&self.attempts);
        rows.filter(|(_, attempt)| begun(attempt.phase) && which(attempt)).map(|(index, _)| index).collect()
    }

    fn scale_storage(&mut self, number: u32, begins: bool) {
        let trouble = &self.plan.failures[number as usize];
        let factor = trouble.factor.max(1e-3);
        let factor = if begins { factor } else { 1.0 / factor };
        for &site in &trouble.at {
            let layout = &self.plan.layout;
            let pools = &layout.pools[layout.sites[site].pools.clone()];
            let mut indexes: Vec<u32> =
                pools.iter().flat_map(|pool| pool.read.into_iter().chain(pool.write)).collect();
            if indexes.is_empty() {
                indexes = layout.sites[site]
                    .out_capacities
                    .iter()
                    .chain(&layout.sites[site].in_capacities)
                    .copied()
                    .collect();
            }
            for index in indexes {
                self.storage_factor[index as usize] *= factor;
                self.update_capacity(index as usize);
            }
        }
        self.flows.rates_stale = true;
        self.record_capacities();
    }

    pub(crate) fn set_circuit(&mut self, number: u32, up: bool) {
        if up {
            self.circuits_up.insert(number);
        } else {
            self.circuits_up.remove(&number);
        }
        let circuit = &self.plan.layout.circuits[number as usize];
        self.update_routes_where(|source, target| source == circuit.from && target == circuit.to);
    }

    fn update_routes_of_failure(&mut self, number: u32) {
        let trouble = &self.plan.failures[number as usize];
        self.update_routes_where(|source, target| trouble.affects_link(source, target));
    }

    fn update_routes_at(&mut self, site: u32) {
        self.update_routes_where(|source, target| source == site as usize || target == site as usize);
    }

    pub(crate) fn update_routes_where(&mut self, which: impl Fn(usize, usize) -> bool) {
        for flow in 0..self.flows.rows.len() {
            if which(self.flows.rows[flow].source, self.flows.rows[flow].target) {
                self.update_route(flow as u32);
            }
        }
    }

    /// Updates the route and the rate limit of a session to the present state.
    pub(crate) fn update_route(&mut self, flow: u32) {
        let row = &self.flows.rows[flow as usize];
        let (source, target) = (row.source, row.target);
        let pair = self.plan.layout.pair(source, target);
        let circuits = &self.plan.layout.circuits;
        let fixed = self.circuits_up.iter().map(|&number| number as usize);
        let mut fixed =
            fixed.filter(|&number| (circuits[number].from, circuits[number].to) == (source, target));
        let via = match (self.circuit_providers.active_capacity(source, target), fixed.next()) {
            (Some(index), _) => Via::Reserved(index),
            (None, Some(circuit)) => Via::Circuit(circuit),
            (None, None) => Via::Links,
        };
        let (mut factor, mut rtt) = (1.0, pair.rtt);
        for &number in &self.link_failures {
            let trouble = &self.plan.failures[number as usize];
            if trouble.affects_link(source, target) && via == Via::Links {
                factor *= trouble.factor;
                rtt *= trouble.rtt_factor;
            }
        }
        if self.is_away(source as u32) || self.is_away(target as u32) {
            factor = 0.0;
        }
        let route = self.plan.route(row.from_pool, row.to_pool, via);
        let loss = if via == Via::Links { pair.loss } else { 0.0 };
        let cap = self.plan.stream_cap(rtt, loss);
        self.flows.set_route(flow, route, rtt, cap, factor, self.now);
    }
}
