//! Circuits of the agents' links: what an agent tells of them, what people see (`/api/v1/circuits`), and what
//! they want.
//!
//! An agent tells the whole state of its links now and then, so that nothing is lost with a report; what
//! people want is told to it with each reply, until it said what became of it.

use longhaul_model::{AgentId, CircuitOrderId, CommunityName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Links of one agent that may have circuits.
pub const LINKS_MAX: usize = 64;
/// Notes about one link in one report, at most.
pub const NOTES_MAX: usize = 32;
pub const ENDED_MAX: usize = 16;
pub const ORDERS_MAX: usize = 32;
pub const TEXT_BYTES_MAX: usize = 2_000;
pub const RATES_MAX: usize = 16;
pub const PROVIDER_BYTES_MAX: usize = 200;
/// What can be asked for.
pub const MBIT_MAX: u64 = 1_000_000_000;
/// How long a circuit can be requested for: a year.
pub const SECONDS_MAX: u64 = 366 * 86_400;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitState {
    #[default]
    Off,
    Requested,
    Established,
    /// Nothing begins on it any more.
    Draining,
    /// None is asked for until a time.
    Resting,
}

impl CircuitState {
    pub const ALL: [CircuitState; 5] = [
        CircuitState::Off,
        CircuitState::Requested,
        CircuitState::Established,
        CircuitState::Draining,
        CircuitState::Resting,
    ];

    pub fn word(self) -> &'static str {
        match self {
            CircuitState::Off => "off",
            CircuitState::Requested => "requested",
            CircuitState::Established => "established",
            CircuitState::Draining => "draining",
            CircuitState::Resting => "resting",
        }
    }
}

/// Something that was done or found, when, and with which numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitNote {
    #[schema(value_type = String)]
    pub at: Timestamp,
    pub words: String,
}

/// One circuit, from the request on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Circuit {
    /// Its name, a UUID, which the provider has too.
    pub id: String,
    /// What it was asked for.
    pub why: String,
    #[schema(value_type = String)]
    pub asked: Timestamp,
    pub asked_mbit: u64,
    #[schema(value_type = Option<String>)]
    pub granted: Option<Timestamp>,
    pub booked_mbit: Option<u64>,
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// When transfers began to go by it.
    #[schema(value_type = Option<String>)]
    pub used: Option<Timestamp>,
    /// What moved while all streams were on it, and in how many seconds of transfers.
    pub carried_bytes: u64,
    pub carried_s: f64,
    /// What the plain way carried before.
    pub plain_bytes_per_s: Option<f64>,
    #[schema(value_type = Option<String>)]
    pub ended: Option<Timestamp>,
    /// Why it ended.
    pub end: Option<String>,
}

impl Circuit {
    /// Seconds that transfers were shorter than they would have been on the plain way; less than 0 if they
    /// were longer. None where nobody knows what the plain way carries.
    pub fn gain_s(&self) -> Option<f64> {
        let plain = self.plain_bytes_per_s.filter(|rate| *rate > 0.0)?;
        self.used?;
        Some(self.carried_bytes as f64 / plain - self.carried_s)
    }

    /// Bytes per second while transfers went by it.
    pub fn carried_bytes_per_s(&self) -> Option<f64> {
        (self.carried_s > 0.0).then(|| self.carried_bytes as f64 / self.carried_s)
    }
}

/// What decides about a circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitLook {
    /// What waits.
    pub pending_bytes: u64,
    /// What the way in use carries, if that is known.
    pub bytes_per_s: Option<f64>,
    /// How long what waits takes at this rate.
    pub work_s: Option<f64>,
    /// A circuit is asked for above this,
    pub threshold_s: f64,
    /// and given back below this.
    pub leave_below_s: Option<f64>,
    /// Checks in a row that found enough, and how many are wanted.
    pub checks_found: u32,
    pub checks_wanted: u32,
    /// What is asked for, or is had.
    pub mbit: u64,
    /// All this in words.
    pub words: String,
}

/// What became of what a person wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitOrderState {
    /// The agent was not told yet, or has not said so.
    Sent,
    /// It is seen to.
    Taken,
    /// The circuit is used.
    Had,
    Done,
    Failed,
}

impl CircuitOrderState {
    pub fn word(self) -> &'static str {
        match self {
            CircuitOrderState::Sent => "sent",
            CircuitOrderState::Taken => "taken",
            CircuitOrderState::Had => "had",
            CircuitOrderState::Done => "done",
            CircuitOrderState::Failed => "failed",
        }
    }

    pub fn is_final(self) -> bool {
        matches!(self, CircuitOrderState::Done | CircuitOrderState::Failed)
    }
}

// ---- between agent and service ---------------------------------------------------------------------------

/// One link of an agent, in its report: the present state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitLink {
    #[schema(value_type = String)]
    pub source: StorageName,
    /// `static`, `nsi`, `oscars` or `sense`.
    pub provider: String,
    pub state: CircuitState,
    /// When the state ends by itself, if it does.
    #[schema(value_type = Option<String>)]
    pub until: Option<Timestamp>,
    pub circuit: Option<Circuit>,
    /// Asked for while there is one, to be used in its place.
    #[serde(default)]
    pub next: Option<Circuit>,
    pub look: CircuitLook,
    /// The last ones, oldest first.
    pub notes: Vec<CircuitNote>,
    /// Those that ended since the agent started, the last ones, oldest first.
    pub ended: Vec<Circuit>,
    pub orders: Vec<CircuitOrdered>,
    /// What a plan may ask for there.
    #[serde(default)]
    pub offer: Option<CircuitOffer>,
}

/// What can be asked of the provider of a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOffer {
    /// The provider of the circuits: links with the same name share its capacity.
    pub name: String,
    /// What is asked for first, and then if there is not so much.
    pub mbit: Vec<u64>,
    /// How long one is asked for at the most; none: the provider says.
    pub lifetime_s: Option<u64>,
    /// The circuits are lines of their own, and take nothing from anybody.
    pub own_line: bool,
    /// One can be asked for while there is one, and is used in its place once it is up.
    #[serde(default)]
    pub replaces: bool,
}

/// What an agent did with an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrdered {
    #[schema(value_type = String)]
    pub id: CircuitOrderId,
    pub state: CircuitOrderState,
    pub words: String,
}

/// What a person wants of a link, in the replies to the reports of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrder {
    #[schema(value_type = String)]
    pub id: CircuitOrderId,
    #[schema(value_type = String)]
    pub source: StorageName,
    /// Name of the credential.
    pub by: String,
    pub what: CircuitWish,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CircuitWish {
    Request {
        mbit: u64,
        #[schema(value_type = String)]
        until: Timestamp,
        /// The name of the circuit that it is to be used in place of; that one stays until then. None:
        /// whatever is there serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    Release {
        /// The circuit's name.
        circuit: String,
    },
}

// ---- people ----------------------------------------------------------------------------------------------

/// `GET /api/v1/circuits`: one for each link that may have a circuit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitView {
    /// `SOURCE:SITE`
    pub link: String,
    #[schema(value_type = String)]
    pub source: StorageName,
    /// The site of the agent that asks for circuits.
    pub target: String,
    #[schema(value_type = String)]
    pub agent: AgentId,
    pub host: String,
    /// When the agent told this.
    #[schema(value_type = String)]
    pub told: Timestamp,
    pub connected: bool,
    pub provider: String,
    pub state: CircuitState,
    #[schema(value_type = Option<String>)]
    pub until: Option<Timestamp>,
    pub circuit: Option<Circuit>,
    /// Seconds that transfers were shorter by the circuit, up to now.
    pub gain_s: Option<f64>,
    /// Why there is a circuit, or none, with the numbers.
    pub why: String,
}

/// `GET /api/v1/circuits/{circuit}`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitDetail {
    /// None if the link has no circuits any more.
    pub link: Option<CircuitView>,
    pub look: Option<CircuitLook>,
    /// What the service's plan says of it, where that decides.
    pub plan: Option<CircuitPlanned>,
    /// What was done and found, oldest first.
    pub notes: Vec<CircuitNote>,
    /// What people wanted, latest first.
    pub orders: Vec<CircuitOrderView>,
    /// The one that was asked for by its name, or all of the link, latest first.
    pub circuits: Vec<CircuitRecord>,
}

/// What the plan says of one pair of sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitPlanned {
    /// Sites.
    pub source: String,
    pub target: String,
    pub what: CircuitPlanAct,
    /// What is asked for, or had.
    pub mbit: Option<u64>,
    /// What could come this way.
    pub waits_bytes: u64,
    /// What the plain way is believed to carry.
    pub plain_bytes_per_s: Option<f64>,
    /// Why, with the numbers.
    pub why: String,
    /// What was done last, and why.
    pub done: Option<CircuitNote>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitPlanAct {
    Ask,
    Keep,
    GiveBack,
    None,
}

impl CircuitPlanAct {
    pub fn word(self) -> &'static str {
        match self {
            CircuitPlanAct::Ask => "ask",
            CircuitPlanAct::Keep => "keep",
            CircuitPlanAct::GiveBack => "give back",
            CircuitPlanAct::None => "none",
        }
    }
}

/// `GET /api/v1/circuits/plan`: what a plan would do now. Where agents decide, nothing is done about it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitPlan {
    /// The level that decides: `agent` or `service`.
    pub level: String,
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// When the service planned last, if it does.
    #[schema(value_type = Option<String>)]
    pub planned: Option<Timestamp>,
    pub every_s: u32,
    /// Pairs of sites that have circuits or may have them, those first about which something is done.
    pub links: Vec<CircuitPlanned>,
    pub providers: Vec<CircuitProvider>,
    pub budgets: Vec<CircuitBudget>,
}

/// A provider as the plan sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitProvider {
    pub name: String,
    /// Pairs of sites.
    pub links: u32,
    /// What the plan asked for and has not given back.
    pub circuits: u32,
    pub at_once: u32,
    pub mbit: u64,
    pub mbit_all: Option<u64>,
    /// More bytes than the plain way would have carried, by its last circuits.
    pub gained_bytes: i64,
}

/// What a community with work has booked within a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitBudget {
    #[schema(value_type = String)]
    pub community: CommunityName,
    pub booked_gbit_h: f64,
    pub budget_gbit_h: Option<f64>,
}

/// One circuit, and whose it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitRecord {
    pub link: String,
    pub provider: String,
    pub circuit: Circuit,
    pub gain_s: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrderView {
    #[schema(value_type = String)]
    pub id: CircuitOrderId,
    pub by: String,
    #[schema(value_type = String)]
    pub at: Timestamp,
    pub what: CircuitWish,
    pub state: CircuitOrderState,
    /// What the agent said of it.
    pub words: String,
}

/// `POST /api/v1/circuits/request`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CircuitRequest {
    #[schema(value_type = String)]
    pub source: StorageName,
    /// A site, or one of its storages.
    pub target: String,
    pub mbit: u64,
    /// For how long from now.
    pub seconds: u64,
    /// If there is a circuit, it is used until this one is up, and then given back. Otherwise what is there
    /// serves.
    #[serde(default)]
    pub replace: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gain_is_the_time_that_the_plain_way_would_have_taken_longer() {
        let at = Timestamp::from_seconds(1_800_000_000);
        let mut circuit = Circuit {
            id: String::new(),
            why: String::new(),
            asked: at,
            asked_mbit: 100,
            granted: Some(at),
            booked_mbit: Some(100),
            expires: None,
            used: Some(at),
            carried_bytes: 1_000,
            carried_s: 10.0,
            plain_bytes_per_s: Some(20.0),
            ended: None,
            end: None,
        };
        assert_eq!((circuit.gain_s(), circuit.carried_bytes_per_s()), (Some(40.0), Some(100.0)));
        circuit.plain_bytes_per_s = Some(200.0);
        assert_eq!(circuit.gain_s(), Some(-5.0));
        for nothing in [None, Some(0.0)] {
            circuit.plain_bytes_per_s = nothing;
            assert_eq!(circuit.gain_s(), None);
        }
    }
}
