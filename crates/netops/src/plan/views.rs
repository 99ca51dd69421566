//! What the plan says, for people: what it would do now, and why a link has a circuit or none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_api::circuits::{
    CircuitBudget, CircuitNote, CircuitPlan, CircuitPlanAct, CircuitPlanned, CircuitProvider,
};
use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::{BookingState, Circuit, Decision, PlanSettings, Planner, SitePair};
use longhaul_control::Directory;
use longhaul_model::{CommunityName, SiteId, Timestamp};

use super::snapshot::{self, PlanInput};
use super::{PairDecision, own_links, silent_for_long};
use crate::NetOps;
use crate::circuits::LinkKey;

/// Pairs that are shown; a plan looks closely at fewer.
const LINKS_MAX: usize = 1_000;
/// The reason for a pair on which the plan had nothing to decide.
const NOTHING_WAITS: &str = "nothing waits that could come this way";

pub(super) fn pair(directory: &Directory, pair: SitePair) -> String {
    format!("{} → {}", site(directory, pair.source), site(directory, pair.target))
}

fn site(directory: &Directory, id: SiteId) -> String {
    directory.sites.get(&id).map_or_else(|| format!("site {id}"), |row| row.name.to_string())
}

/// What is done, and why.
pub(super) fn decision(directory: &Directory, decision: &Decision) -> (SitePair, String) {
    let name = |id: SiteId| site(directory, id);
    match decision {
        Decision::Request(request) => {
            (request.pair, format!("{} Mbit/s asked for: {}", request.mbit, request.reason.describe(&name)))
        }
        Decision::Release { pair, reason: why, .. } => {
            (*pair, format!("given back: {}", why.describe(&name)))
        }
    }
}

/// A plan of which nothing is done, and what there was before it.
struct Dry {
    planner: Planner,
    decisions: Vec<Decision>,
    before: Vec<Circuit>,
    booked: BTreeMap<CommunityName, f64>,
    decided: BTreeMap<SitePair, PairDecision>,
    planned: Option<Timestamp>,
}

/// What would be done now; nothing is.
pub fn plan(netops: &NetOps) -> Result<CircuitPlan, CatalogError> {
    let config = &netops.settings.circuits;
    let input = snapshot::plan_input(netops, config, &own_links(netops), silent_for_long(netops))?;
    let communities: BTreeSet<&CommunityName> = input.view.pending.iter().map(|row| &row.community).collect();
    let dry = dry(netops, &input, &communities);
    let directory = netops.kernel.directory();
    let waits = input.waits();
    let pairs: BTreeSet<SitePair> =
        input.ways.keys().copied().chain(dry.before.iter().map(|circuit| circuit.pair)).collect();
    let mut links: Vec<CircuitPlanned> =
        pairs.into_iter().map(|pair| dry.link(&directory, &input, &waits, pair)).collect();
    let rank = |link: &CircuitPlanned| match link.what {
        CircuitPlanAct::Ask => 0,
        CircuitPlanAct::GiveBack => 1,
        CircuitPlanAct::Keep => 2,
        CircuitPlanAct::None => 3,
    };
    links.sort_by_key(|link| (rank(link), std::cmp::Reverse(link.waits_bytes)));
    links.truncate(LINKS_MAX);
    let budget = |community: &CommunityName| {
        let own = config.budgets.iter().find(|row| row.community == *community).map(|row| row.gbit_h);
        own.or(config.budget_gbit_h).map(f64::from)
    };
    let budgets = communities.into_iter().map(|community| CircuitBudget {
        community: community.clone(),
        booked_gbit_h: dry.booked.get(community).copied().unwrap_or(0.0),
        budget_gbit_h: budget(community),
    });
    let told = CircuitPlan {
        level: config.level.word().to_owned(),
        at: input.taken,
        planned: dry.planned,
        every_s: config.every_s,
        links,
        budgets: budgets.collect(),
        providers: dry.providers(&input),
    };
    *netops.plan.told.lock() = Some(told.clone());
    Ok(told)
}

/// The same, no older than a plan may be: looking through all that is wanted costs too much for each look at
/// a page.
pub fn recent_plan(netops: &NetOps) -> Result<CircuitPlan, CatalogError> {
    let every = Duration::from_secs(netops.settings.circuits.every_s.into());
    let told = netops.plan.told.lock().clone();
    let now = netops.kernel.now();
    match told.filter(|told| told.at <= now && now.since(told.at) < every) {
        Some(told) => Ok(told),
        None => plan(netops),
    }
}

/// What the plan last said of a link, where the service decides.
pub fn last_decision(netops: &NetOps, key: &LinkKey) -> Option<CircuitPlanned> {
    let directory = netops.kernel.directory();
    let pair = snapshot::pair_of(netops, &directory, key)?;
    let state = netops.plan.state.lock();
    let state = state.as_ref()?;
    let circuit = state.planner.circuits().find(|circuit| circuit.pair == pair);
    let decided = state.decided.get(&pair);
    Some(CircuitPlanned {
        source: site(&directory, pair.source),
        target: site(&directory, pair.target),
        what: act(circuit.as_ref()),
        mbit: circuit.as_ref().map(|circuit| circuit.mbit),
        waits_bytes: 0,
        plain_bytes_per_s: None,
        why: match (state.planned, reason(&directory, &state.planner, pair)) {
            (_, Some(reason)) => reason,
            (None, None) => "nothing was planned since the service was started".to_owned(),
            (Some(_), None) => NOTHING_WAITS.to_owned(),
        },
        done: decided.map(note),
    })
}

/// What each community with a booking has booked within a day, in Gbit/s times hours.
pub fn booked(netops: &NetOps) -> Vec<(CommunityName, f64)> {
    let state = netops.plan.state.lock();
    state.as_ref().map(|state| state.planner.booked_by_community()).unwrap_or_default()
}

fn note(decided: &PairDecision) -> CircuitNote {
    CircuitNote { at: decided.at, words: decided.words.clone() }
}

fn act(circuit: Option<&Circuit>) -> CircuitPlanAct {
    match circuit.map(|circuit| circuit.state) {
        None => CircuitPlanAct::None,
        Some(BookingState::Releasing { .. }) => CircuitPlanAct::GiveBack,
        Some(BookingState::Requested | BookingState::Established { .. }) => CircuitPlanAct::Keep,
    }
}

fn reason(directory: &Directory, planner: &Planner, pair: SitePair) -> Option<String> {
    planner.reason(pair).map(|(_, reason)| reason.describe(&|id| site(directory, id)))
}

/// Where the service decides, its own planner, as it is; otherwise one that needs to see nothing twice.
fn dry(netops: &NetOps, input: &PlanInput, communities: &BTreeSet<&CommunityName>) -> Dry {
    let now = netops.kernel.now();
    let state = netops.plan.state.lock();
    let settings = PlanSettings { plans_in_a_row: 1, ..netops.settings.circuits.settings() };
    let mut dry = Dry {
        planner: state.as_ref().map_or_else(|| Planner::new(settings), |state| state.planner.clone()),
        decisions: Vec::new(),
        before: Vec::new(),
        booked: BTreeMap::new(),
        decided: state.as_ref().map(|state| state.decided.clone()).unwrap_or_default(),
        planned: state.as_ref().and_then(|state| state.planned),
    };
    drop(state);
    dry.before = dry.planner.circuits().collect();
    let booked =
        |community: &&CommunityName| ((*community).clone(), dry.planner.booked_gbit_hours(community));
    dry.booked = communities.iter().map(booked).collect();
    dry.decisions = dry.planner.plan(&input.view, now);
    dry
}

impl Dry {
    /// The circuit of a link; that which is to follow one comes after it.
    fn before(&self, pair: SitePair) -> Option<&Circuit> {
        self.before.iter().find(|circuit| circuit.pair == pair)
    }

    fn link(
        &self,
        directory: &Directory,
        input: &PlanInput,
        waits: &BTreeMap<SitePair, u64>,
        pair: SitePair,
    ) -> CircuitPlanned {
        let done = self.decisions.iter().find_map(|one| match one {
            Decision::Request(request) if request.pair == pair => Some((CircuitPlanAct::Ask, request.mbit)),
            Decision::Release { pair: of, .. } if *of == pair => {
                Some((CircuitPlanAct::GiveBack, self.before(pair).map_or(0, |circuit| circuit.mbit)))
            }
            _ => None,
        });
        let circuit = self.before(pair);
        let (what, mbit) = match done {
            Some((what, mbit)) => (what, Some(mbit)),
            None => (act(circuit), circuit.map(|circuit| circuit.mbit)),
        };
        let [forecast, seen] =
            [&input.view.best_effort, &input.view.observed].map(|rates| rates.get(&pair).copied());
        let why = reason(directory, &self.planner, pair);
        CircuitPlanned {
            source: site(directory, pair.source),
            target: site(directory, pair.target),
            what,
            mbit,
            waits_bytes: waits.get(&pair).copied().unwrap_or(0),
            plain_bytes_per_s: forecast.into_iter().chain(seen).reduce(f64::max),
            why: why.unwrap_or_else(|| NOTHING_WAITS.to_owned()),
            done: self.decided.get(&pair).map(note),
        }
    }

    fn providers(&self, input: &PlanInput) -> Vec<CircuitProvider> {
        let shown = input.view.providers.iter().map(|provider| {
            let own = self.before.iter().filter(|circuit| circuit.provider == provider.name);
            let (circuits, mbit) = own.fold((0, 0), |(count, sum), circuit| (count + 1, sum + circuit.mbit));
            let links = provider.pairs.as_ref().map_or(0, BTreeMap::len);
            CircuitProvider {
                name: provider.name.clone(),
                links: u32::try_from(links).unwrap_or(u32::MAX),
                circuits,
                at_once: provider.circuits_max,
                mbit,
                mbit_all: provider.mbit_total_max,
                gained_bytes: self.planner.gained(&provider.name) as i64,
            }
        });
        shown.collect()
    }
}
