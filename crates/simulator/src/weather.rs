//! What befalls the world: troubles begin and end, circuits come and go, the traffic of others rises and
//! falls.

use longhaul_model::{AgentId, AttemptId, Fault, FaultCode};
use longhaul_scheduler::Event;

use crate::plan::{Plan, Via};
use crate::scenario::FailureKind;
use crate::world::{Happening, Phase, World, micros};

/// The traffic of others is another after this.
const WEATHER_S: f64 = 300.0;
/// Its spread around the mean, and how much of the last value stays.
const SPREAD: f64 = 0.3;
const INERTIA: f64 = 0.8;
const BACKGROUND_MAX: f64 = 0.95;
/// The service misses an agent after this.
const MISSED_S: f64 = 15.0;
/// A connection whose peer is gone without a word is given up after this.
const STALL_S: f64 = 10.0;

impl World<'_> {
    pub(crate) fn plan_weather(&mut self) {
        let plan: &Plan = self.plan;
        for (number, trouble) in (0u32..).zip(&plan.troubles) {
            self.at(micros(trouble.begin), Happening::TroubleBegins { trouble: number });
            if trouble.end < plan.until {
                self.at(micros(trouble.end), Happening::TroubleEnds { trouble: number });
            }
        }
        for (number, circuit) in (0u32..).zip(&plan.layout.circuits) {
            self.at(micros(circuit.begin), Happening::Circuit { circuit: number, up: true });
            self.at(micros(circuit.end), Happening::Circuit { circuit: number, up: false });
        }
        if plan.layout.capacities.iter().any(|capacity| capacity.background > 0.0) {
            self.at(0, Happening::Weather);
        }
        if plan.model.probe_every.0 > 0.0 {
            self.after(plan.model.probe_every.0, Happening::Probes);
        }
    }

    /// A first-order process around each mean, with a day's rhythm.
    pub(crate) fn weather(&mut self) {
        let day = self.now as f64 / 86_400e6;
        let rhythm = 1.0 - 0.3 * (std::f64::consts::TAU * day).cos();
        for (place, capacity) in self.plan.layout.capacities.iter().enumerate() {
            if capacity.background > 0.0 {
                let noise = SPREAD * (1.0 - INERTIA * INERTIA).sqrt() * self.random.normal();
                let before = self.background[place];
                self.background[place] =
                    if self.now == 0 { SPREAD * noise } else { INERTIA * before + noise };
                let taken = capacity.background * rhythm * (1.0 + self.background[place]);
                self.left[place] = 1.0 - taken.clamp(0.0, BACKGROUND_MAX);
                self.fill(place);
            }
        }
        self.flows.stale = true;
        self.note_capacities();
        self.after(WEATHER_S, Happening::Weather);
    }

    /// What a capacity has for everybody: what is reserved is not there for others.
    pub(crate) fn fill(&mut self, place: usize) {
        let rate = self.plan.layout.capacities[place].rate * self.left[place] * self.slow[place];
        self.flows.capacity[place] = (rate - self.reserved[place]).max(0.0);
        self.flows.stale = true;
    }

    /// What is left of capacities, for the bound: the ports of a site carry nothing while it is away, or each
    /// attempt fails there.
    fn note_capacities(&mut self) {
        let mut capacity = self.flows.capacity.clone();
        // What a circuit has of a port is used as well.
        capacity.iter_mut().zip(&self.reserved).for_each(|(rate, reserved)| *rate += reserved);
        for (site, now) in self.plan.layout.sites.iter().zip(&self.sites) {
            let fails = |&number: &u32| {
                let trouble = &self.plan.troubles[number as usize];
                trouble.kind == FailureKind::SiteError && trouble.share >= 1.0
            };
            if now.down > 0 || now.troubles.iter().any(fails) {
                site.in_ways.iter().chain(&site.out_ways).for_each(|&place| capacity[place as usize] = 0.0);
            }
        }
        self.measure.capacities(self.now, capacity);
    }

    pub(crate) fn trouble_begins(&mut self, number: u32) {
        self.count_anew(number);
        let trouble = &self.plan.troubles[number as usize];
        match trouble.kind {
            FailureKind::ClockJump => self.clock_jump += trouble.jump,
            FailureKind::LinkDegraded | FailureKind::RouteChange => {
                self.link_troubles.insert(number);
                self.settle_links(number);
            }
            FailureKind::SlowStorage => self.slow(number, true),
            kind => {
                for &site in &trouble.at {
                    self.sites[site].troubles.insert(number);
                    match kind {
                        FailureKind::SiteDown | FailureKind::AgentRestart => {
                            self.goes_down(site as u32, number)
                        }
                        FailureKind::SiteError => self.errs(site as u32, number),
                        _ => {}
                    }
                }
            }
        }
    }

    pub(crate) fn trouble_ends(&mut self, number: u32) {
        self.count_anew(number);
        let trouble = &self.plan.troubles[number as usize];
        match trouble.kind {
            FailureKind::ClockJump => {}
            FailureKind::LinkDegraded | FailureKind::RouteChange => {
                self.link_troubles.remove(&number);
                self.settle_links(number);
            }
            FailureKind::SlowStorage => self.slow(number, false),
            kind => {
                for &site in &trouble.at {
                    self.sites[site].troubles.remove(&number);
                    match kind {
                        FailureKind::SiteDown | FailureKind::AgentRestart => self.comes_back(site as u32),
                        FailureKind::SiteError => self.note_capacities(),
                        _ => {}
                    }
                }
            }
        }
    }

    fn goes_down(&mut self, site: u32, number: u32) {
        let trouble = &self.plan.troubles[number as usize];
        let row = &mut self.sites[site as usize];
        row.down += 1;
        row.back = row.back.max(micros(trouble.end));
        self.after(MISSED_S, Happening::Missed { site, trouble: number });
        // What others fetch from here breaks off; what it fetches itself goes on where it was, when it is
        // back.
        let (code, later) = match trouble.kind {
            FailureKind::AgentRestart => (FaultCode::ConnectionLost, 0.0),
            _ => (FaultCode::Stalled, STALL_S),
        };
        for place in self.begun(|attempt| attempt.source == site) {
            self.strike(place, Fault::new(code, "the peer is gone"), later);
        }
        self.settle_around(site);
        self.note_capacities();
    }

    fn comes_back(&mut self, site: u32) {
        let row = &mut self.sites[site as usize];
        row.down -= 1;
        if row.down > 0 {
            return;
        }
        self.settle_around(site);
        self.note_capacities();
        if !self.sites[site as usize].connected {
            self.sites[site as usize].connected = true;
            self.tell_agent(site);
            let held =
                self.attempts.iter().filter(|attempt| attempt.target == site && attempt.phase != Phase::Free);
            let attempts: Vec<AttemptId> = held.map(|attempt| attempt.id).collect();
            self.handle(Event::HeldLeases { agent: AgentId(u64::from(site) + 1), attempts });
            self.plan_circuits_around(site);
        }
        for at in 0..self.flows.into[site as usize].len() {
            let flow = self.flows.into[site as usize][at];
            self.begin_next(flow);
        }
    }

    pub(crate) fn missed(&mut self, site: u32, trouble: u32) {
        let still = self.sites[site as usize].troubles.contains(&trouble);
        if still && self.sites[site as usize].connected {
            self.sites[site as usize].connected = false;
            self.tell_agent(site);
            self.plan_circuits_around(site);
        }
    }

    fn errs(&mut self, site: u32, number: u32) {
        let code = self.plan.troubles[number as usize].code;
        for place in self.begun(|attempt| attempt.source == site || attempt.target == site) {
            self.strike(place, Fault::new(code, "by the scenario"), 0.0);
        }
        self.note_capacities();
    }

    fn begun(&self, which: impl Fn(&crate::world::Attempt) -> bool) -> Vec<u32> {
        let begun = |phase| matches!(phase, Phase::Opening | Phase::Moving | Phase::Recalled);
        let rows = (0u32..).zip(&self.attempts);
        rows.filter(|(_, attempt)| begun(attempt.phase) && which(attempt)).map(|(place, _)| place).collect()
    }

    fn slow(&mut self, number: u32, begins: bool) {
        let trouble = &self.plan.troubles[number as usize];
        let factor = trouble.factor.max(1e-3);
        let factor = if begins { factor } else { 1.0 / factor };
        for &site in &trouble.at {
            let layout = &self.plan.layout;
            let pools = &layout.pools[layout.sites[site].pools.clone()];
            let mut places: Vec<u32> =
                pools.iter().flat_map(|pool| pool.read.into_iter().chain(pool.write)).collect();
            if places.is_empty() {
                places =
                    layout.sites[site].out_ways.iter().chain(&layout.sites[site].in_ways).copied().collect();
            }
            for place in places {
                self.slow[place as usize] *= factor;
                self.fill(place as usize);
            }
        }
        self.flows.stale = true;
        self.note_capacities();
    }

    pub(crate) fn circuit(&mut self, number: u32, up: bool) {
        if up {
            self.circuits_up.insert(number);
        } else {
            self.circuits_up.remove(&number);
        }
        let circuit = &self.plan.layout.circuits[number as usize];
        self.settle_where(|source, target| source == circuit.from && target == circuit.to);
    }

    fn settle_links(&mut self, number: u32) {
        let trouble = &self.plan.troubles[number as usize];
        self.settle_where(|source, target| trouble.hits(source, target));
    }

    fn settle_around(&mut self, site: u32) {
        self.settle_where(|source, target| source == site as usize || target == site as usize);
    }

    pub(crate) fn settle_where(&mut self, which: impl Fn(usize, usize) -> bool) {
        for flow in 0..self.flows.rows.len() {
            if which(self.flows.rows[flow].source, self.flows.rows[flow].target) {
                self.settle(flow as u32);
            }
        }
    }

    /// Gives a session the way and the rate that it has as things are now.
    pub(crate) fn settle(&mut self, flow: u32) {
        let row = &self.flows.rows[flow as usize];
        let (source, target) = (row.source, row.target);
        let pair = self.plan.layout.pair(source, target);
        let circuits = &self.plan.layout.circuits;
        let fixed = self.circuits_up.iter().map(|&number| number as usize);
        let mut fixed =
            fixed.filter(|&number| (circuits[number].from, circuits[number].to) == (source, target));
        let via = match (self.booked.way(source, target), fixed.next()) {
            (Some(place), _) => Via::Reserved(place),
            (None, Some(circuit)) => Via::Circuit(circuit),
            (None, None) => Via::Links,
        };
        let (mut factor, mut rtt) = (1.0, pair.rtt);
        for &number in &self.link_troubles {
            let trouble = &self.plan.troubles[number as usize];
            if trouble.hits(source, target) && via == Via::Links {
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
        self.flows.change(flow, route, rtt, cap, factor, self.now);
    }
}
