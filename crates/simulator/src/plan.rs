//! The world that a scenario describes: everything numbered, every choice of the seed made. Nothing happens
//! here; `world` runs it.

use crate::circuit_provider;
use crate::failures::{self, FailureEvent};
use crate::fluid::Route;
use crate::layout::{self, Layout};
use crate::scenario::{Circuit, CircuitLevel, Circuits, History, Model, Scenario, ScenarioError};
use crate::workload::{self, Workload};

/// Larger worlds are refused: they would not fit into memory, and are mostly typing errors.
pub const SITES_MAX: usize = 1_000;
/// Worlds with more files are refused.
pub const FILES_MAX: usize = 20_000_000;
/// Worlds with more requests are refused.
pub const REQUESTS_MAX: usize = 2_000_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub name: String,
    pub about: String,
    pub seed: u64,
    /// Seconds.
    pub until: f64,
    pub model: Model,
    pub layout: Layout,
    pub work: Workload,
    pub failures: Vec<FailureEvent>,
    pub history: Vec<(usize, usize, History)>,
    pub circuits: Circuits,
}

/// How a session goes from one site to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    Links,
    /// A circuit of the scenario: in place of links and segments.
    Circuit(usize),
    /// A capacity of its own, which was taken from the ports.
    Reserved(u32),
}

impl Plan {
    /// Makes all choices; `seed` in place of the scenario's.
    pub fn new(scenario: &Scenario, seed: Option<u64>) -> Result<Self, ScenarioError> {
        let seed = seed.unwrap_or(scenario.seed);
        if scenario.until.0 <= 0.0 {
            return Err(ScenarioError::new(
                "until",
                "the world ends before it begins",
                "give it some time: until = \"2 h\"",
            ));
        }
        check_model(&scenario.model)?;
        circuit_provider::check_circuits(&scenario.circuits)?;
        let layout = layout::build(scenario)?;
        let work = workload::build(scenario, &layout, seed)?;
        let troubles = failures::build(scenario, &layout, seed)?;
        let mut history = Vec::new();
        for (at, row) in scenario.history.iter().enumerate() {
            let place = format!("[[history]] {}", at + 1);
            for from in layout.sites_named(&row.from, &place)? {
                for to in layout.sites_named(&row.to, &place)? {
                    if from != to {
                        history.push((from, to, row.clone()));
                    }
                }
            }
        }
        Ok(Plan {
            name: scenario.name.clone(),
            about: scenario.about.trim().to_owned(),
            seed,
            until: scenario.until.0,
            model: scenario.model.clone(),
            layout,
            work,
            failures: troubles,
            history,
            circuits: scenario.circuits.clone(),
        })
    }

    /// In which pool of a storage a file lies: they are filled by turns.
    pub fn pool(&self, site: usize, file: u32) -> usize {
        let pools = &self.layout.sites[site].pools;
        pools.start + (file as usize + site) % pools.len()
    }

    /// The capacities between two pools.
    pub fn route(&self, from: usize, to: usize, via: Via) -> Route {
        let layout = &self.layout;
        let (source, target) = (&layout.pools[from], &layout.pools[to]);
        // The ports come first; limits of the sites hold on every way.
        let skip = usize::from(matches!(via, Via::Reserved(_)));
        let mut route = Route::default();
        source.read.iter().for_each(|&place| route.push(place));
        layout.sites[source.site].out_capacities.iter().skip(skip).for_each(|&place| route.push(place));
        match via {
            Via::Circuit(circuit) => route.push(layout.circuits[circuit].capacity),
            Via::Reserved(place) => route.push(place),
            Via::Links => {
                layout.pair(source.site, target.site).capacities.iter().for_each(|&place| route.push(place));
            }
        }
        layout.sites[target.site].in_capacities.iter().skip(skip).for_each(|&place| route.push(place));
        target.write.iter().for_each(|&place| route.push(place));
        route
    }

    /// Whether a pair may ever have a circuit.
    pub fn may_have_circuit(&self, from: usize, to: usize) -> bool {
        let layout = &self.layout;
        let fixed = layout.circuits.iter().any(|circuit| (circuit.from, circuit.to) == (from, to));
        let booked = layout.providers.iter().any(|provider| provider.reaches(from, to));
        fixed || booked && self.circuits.level != CircuitLevel::None
    }

    /// What one stream carries from one site to another at most: its window, or what loss allows (Mathis, and
    /// the law of CUBIC where that is kinder).
    pub fn stream_cap(&self, rtt: f64, loss: f64) -> f64 {
        let rtt = rtt.max(1e-4);
        let packet = f64::from(self.model.packet);
        let window = self.model.window.0 / rtt;
        if loss <= 0.0 {
            return window;
        }
        let reno = 1.22 / loss.sqrt();
        let cubic = 1.054 * (rtt / loss).powf(0.75);
        window.min(reno.max(cubic) * packet / rtt)
    }

    /// What a new connection loses while it finds its rate, in seconds: the round trips of doubling, less
    /// what they carry.
    pub fn ramp_up(&self, rtt: f64, rate: f64) -> f64 {
        let packets = rate * rtt / f64::from(self.model.packet) / 10.0;
        rtt * (packets.max(1.0).log2() - std::f64::consts::LOG2_E).max(0.0)
    }
}

fn check_model(model: &Model) -> Result<(), ScenarioError> {
    let wrong = |key: &str, what: &str| {
        Err(ScenarioError::new(format!("[model] {key}"), what, "leave it out for the usual value"))
    };
    if model.streams == 0 || model.streams > 1_024 {
        return wrong("streams", "between 1 and 1024 streams are possible");
    }
    if model.window.0 < 1_500.0 {
        return wrong("window", "smaller than one packet");
    }
    if !(64..=65_535).contains(&model.packet) {
        return wrong("packet", "packets carry 64 to 65535 bytes");
    }
    if model.report_every.0 < 0.05 || model.service_step.0 < 0.001 {
        return wrong("report_every", "reports come at most every 50 ms, and service_step is 1 ms at least");
    }
    if model.probe_every.0 > 0.0 && model.probe_every.0 < 1.0 {
        return wrong("probe_every", "links are probed at most once a second");
    }
    if model.files_open == 0 {
        return wrong("files_open", "no file could ever begin");
    }
    Ok(())
}

/// A circuit with its capacity's place.
#[derive(Clone, Debug)]
pub struct CircuitPlan {
    pub from: usize,
    pub to: usize,
    pub capacity: u32,
    pub begin: f64,
    pub end: f64,
}

impl CircuitPlan {
    pub(crate) fn new(circuit: &Circuit, from: usize, to: usize, place: u32) -> Self {
        CircuitPlan { from, to, capacity: place, begin: circuit.begin.0, end: circuit.end.0 }
    }
}
