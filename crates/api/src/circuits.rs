//! Circuits: what agents report about those of their links, what people see and request (`/api/v1/circuits`).
//!
//! An agent reports the complete state of its links from time to time, so that a lost report loses nothing.
//! People's requests go to the agent with each reply until it has confirmed them.

use longhaul_model::{AgentId, CircuitOrderId, CommunityName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Links of one agent that may have circuits.
pub const LINKS_MAX: usize = 64;
/// Notes about one link in one report.
pub const NOTES_MAX: usize = 32;
/// Ended circuits of one link in one report.
pub const ENDED_MAX: usize = 16;
/// Answers to requests about one link in one report.
pub const ORDERS_MAX: usize = 32;
/// Bytes of any text about a circuit in a report.
pub const TEXT_BYTES_MAX: usize = 2_000;
/// Bandwidths that an offer lists.
pub const RATES_MAX: usize = 16;
/// Bytes of a provider's name.
pub const PROVIDER_BYTES_MAX: usize = 200;
/// Highest bandwidth that can be requested, in Mbit/s.
pub const MBIT_MAX: u64 = 1_000_000_000;
/// Longest lifetime that can be requested, in seconds: a year.
pub const SECONDS_MAX: u64 = 366 * 86_400;

/// State of a link's circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitState {
    /// No circuit, and none requested.
    #[default]
    Off,
    /// The provider has been asked for a circuit.
    Requested,
    /// The circuit is up and in use.
    Established,
    /// Running transfers finish on the circuit; no new ones begin.
    Draining,
    /// After a failure or release, no circuit is requested until a certain time.
    Resting,
}

impl CircuitState {
    /// All states, in the order of a circuit's life.
    pub const ALL: [CircuitState; 5] = [
        CircuitState::Off,
        CircuitState::Requested,
        CircuitState::Established,
        CircuitState::Draining,
        CircuitState::Resting,
    ];

    /// The state in one word, for people.
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

/// An entry in the log of a link's circuits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitNote {
    /// Time of the event.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// What happened, with the numbers that led to it.
    pub words: String,
}

/// One circuit, from its request to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Circuit {
    /// UUID, which the provider knows too.
    pub id: String,
    /// Reason for the request.
    pub why: String,
    /// Time of the request.
    #[schema(value_type = String)]
    pub asked: Timestamp,
    /// Requested bandwidth in Mbit/s.
    pub asked_mbit: u64,
    /// Time when the provider granted it; absent before.
    #[schema(value_type = Option<String>)]
    pub granted: Option<Timestamp>,
    /// Granted bandwidth in Mbit/s, if the provider tells it.
    pub booked_mbit: Option<u64>,
    /// Time when the reservation ends, if it does.
    #[schema(value_type = Option<String>)]
    pub expires: Option<Timestamp>,
    /// Time when transfers began to use it.
    #[schema(value_type = Option<String>)]
    pub used: Option<Timestamp>,
    /// Bytes moved while all streams used the circuit.
    pub carried_bytes: u64,
    /// Seconds of transfers in which `carried_bytes` moved.
    pub carried_s: f64,
    /// Rate of the best-effort path before the circuit, in bytes per second; absent if unknown.
    pub plain_bytes_per_s: Option<f64>,
    /// Time when it ended; absent while it exists.
    #[schema(value_type = Option<String>)]
    pub ended: Option<Timestamp>,
    /// Reason for its end.
    pub end: Option<String>,
}

impl Circuit {
    /// Seconds of transfer time saved against the best-effort path; negative if the circuit was slower. None
    /// if the rate of the best-effort path is unknown.
    pub fn gain_s(&self) -> Option<f64> {
        let plain = self.plain_bytes_per_s.filter(|rate| *rate > 0.0)?;
        self.used?;
        Some(self.carried_bytes as f64 / plain - self.carried_s)
    }

    /// Mean rate while transfers used the circuit, in bytes per second.
    pub fn carried_bytes_per_s(&self) -> Option<f64> {
        (self.carried_s > 0.0).then(|| self.carried_bytes as f64 / self.carried_s)
    }
}

/// Inputs of the decision whether a link is worth a circuit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitLook {
    /// Queued bytes.
    pub pending_bytes: u64,
    /// Rate of the path in use, in bytes per second; absent if unknown.
    pub bytes_per_s: Option<f64>,
    /// Seconds that the queued bytes take at this rate.
    pub work_s: Option<f64>,
    /// A circuit is requested if there is work for more seconds than this.
    pub threshold_s: f64,
    /// The circuit is released if there is work for fewer seconds than this.
    pub leave_below_s: Option<f64>,
    /// Consecutive checks that found enough work.
    pub checks_found: u32,
    /// Consecutive checks that must find enough work before a circuit is requested.
    pub checks_wanted: u32,
    /// Bandwidth to request, or of the present circuit, in Mbit/s.
    pub mbit: u64,
    /// The decision and its numbers, in words.
    pub words: String,
}

/// Progress of a request that a person made about a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitOrderState {
    /// On its way to the agent, which has not confirmed it.
    Sent,
    /// The agent works on it.
    Taken,
    /// The circuit is in use.
    Had,
    /// The request has been carried out.
    Done,
    /// The request could not be carried out.
    Failed,
}

impl CircuitOrderState {
    /// The state in one word, for people.
    pub fn word(self) -> &'static str {
        match self {
            CircuitOrderState::Sent => "sent",
            CircuitOrderState::Taken => "taken",
            CircuitOrderState::Had => "had",
            CircuitOrderState::Done => "done",
            CircuitOrderState::Failed => "failed",
        }
    }

    /// Whether the state does not change any more.
    pub fn is_final(self) -> bool {
        matches!(self, CircuitOrderState::Done | CircuitOrderState::Failed)
    }
}

// ---- between agent and service ---------------------------------------------------------------------------

/// Present state of one link of an agent, part of its reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitLink {
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Kind of provider: `static`, `nsi`, `oscars` or `sense`.
    pub provider: String,
    /// State of the link's circuit.
    pub state: CircuitState,
    /// Time when the state ends by itself, if it does.
    #[schema(value_type = Option<String>)]
    pub until: Option<Timestamp>,
    /// The present circuit, if any.
    pub circuit: Option<Circuit>,
    /// A circuit requested to replace the present one.
    #[serde(default)]
    pub next: Option<Circuit>,
    /// Inputs of the last decision.
    pub look: CircuitLook,
    /// Latest log entries, oldest first.
    pub notes: Vec<CircuitNote>,
    /// Latest circuits that ended since the agent started, oldest first.
    pub ended: Vec<Circuit>,
    /// Answers to people's requests.
    pub orders: Vec<CircuitOrdered>,
    /// What a central plan may request for the link.
    #[serde(default)]
    pub offer: Option<CircuitOffer>,
}

/// What the provider of a link can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOffer {
    /// Name of the provider. Links with the same name share its capacity.
    pub name: String,
    /// Bandwidths in Mbit/s, in the order in which they are requested: each next one if the one before is
    /// refused.
    pub mbit: Vec<u64>,
    /// Longest lifetime of a reservation, in seconds; absent if the provider decides.
    pub lifetime_s: Option<u64>,
    /// True if the circuits are dedicated lines that share no capacity with other traffic.
    pub own_line: bool,
    /// True if a new circuit can be requested while one is in use, and takes over once it is up.
    #[serde(default)]
    pub replaces: bool,
}

/// An agent's answer to a request about a circuit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrdered {
    /// The request.
    #[schema(value_type = formats::CircuitOrderId)]
    pub id: CircuitOrderId,
    /// Progress of the request.
    pub state: CircuitOrderState,
    /// Explanation for people.
    pub words: String,
}

/// A person's request about a link, sent in replies to the reports of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrder {
    /// Id of the request.
    #[schema(value_type = formats::CircuitOrderId)]
    pub id: CircuitOrderId,
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Name of the person's credential.
    pub by: String,
    /// What is requested.
    pub what: CircuitWish,
}

/// A request for a circuit, or to release one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CircuitWish {
    /// Establish a circuit.
    Request {
        /// Bandwidth in Mbit/s.
        mbit: u64,
        /// Time until which the circuit is needed.
        #[schema(value_type = String)]
        until: Timestamp,
        /// UUID of the circuit to replace, which stays in use until the new one is up. Absent: a circuit that
        /// already exists satisfies the request.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<String>,
    },
    /// Release a circuit.
    Release {
        /// UUID of the circuit.
        circuit: String,
    },
}

// ---- people ----------------------------------------------------------------------------------------------

/// `GET /api/v1/circuits`: one entry for each link that may have a circuit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitView {
    /// The link as `SOURCE:SITE`.
    pub link: String,
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Site of the agent that requests circuits.
    pub target: String,
    /// The agent that requests circuits.
    #[schema(value_type = formats::AgentId)]
    pub agent: AgentId,
    /// Host name of that agent.
    pub host: String,
    /// Time of the agent's report.
    #[schema(value_type = String)]
    pub told: Timestamp,
    /// Whether the agent is connected now.
    pub connected: bool,
    /// Kind of provider: `static`, `nsi`, `oscars` or `sense`.
    pub provider: String,
    /// State of the link's circuit.
    pub state: CircuitState,
    /// Time when the state ends by itself, if it does.
    #[schema(value_type = Option<String>)]
    pub until: Option<Timestamp>,
    /// The present circuit, if any.
    pub circuit: Option<Circuit>,
    /// Seconds of transfer time that the circuit has saved so far; negative if it was slower.
    pub gain_s: Option<f64>,
    /// Why there is a circuit, or none, with the numbers.
    pub why: String,
}

/// `GET /api/v1/circuits/{circuit}`: everything about a circuit or a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitDetail {
    /// State of the link; absent if it can have no circuits any more.
    pub link: Option<CircuitView>,
    /// Inputs of the agent's last decision.
    pub look: Option<CircuitLook>,
    /// What the central plan says about the link, where it decides.
    pub plan: Option<CircuitPlanned>,
    /// Log of the link, oldest entry first.
    pub notes: Vec<CircuitNote>,
    /// Requests of people, latest first.
    pub orders: Vec<CircuitOrderView>,
    /// The circuit asked for by name, or all circuits of the link, latest first.
    pub circuits: Vec<CircuitRecord>,
}

/// What the central plan says about a pair of sites.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitPlanned {
    /// Source site.
    pub source: String,
    /// Target site.
    pub target: String,
    /// What the plan does about the pair.
    pub what: CircuitPlanAct,
    /// Bandwidth requested or held, in Mbit/s.
    pub mbit: Option<u64>,
    /// Queued bytes that could use the circuit.
    pub waits_bytes: u64,
    /// Estimated rate of the best-effort path, in bytes per second.
    pub plain_bytes_per_s: Option<f64>,
    /// Reason, with the numbers.
    pub why: String,
    /// The last action, with its reason.
    pub done: Option<CircuitNote>,
}

/// What the central plan does about a pair of sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitPlanAct {
    /// Request a circuit.
    Ask,
    /// Keep the present circuit.
    Keep,
    /// Release the present circuit.
    GiveBack,
    /// Do nothing.
    None,
}

impl CircuitPlanAct {
    /// The action in words, for people.
    pub fn word(self) -> &'static str {
        match self {
            CircuitPlanAct::Ask => "ask",
            CircuitPlanAct::Keep => "keep",
            CircuitPlanAct::GiveBack => "give back",
            CircuitPlanAct::None => "none",
        }
    }
}

/// `GET /api/v1/circuits/plan`: what the central plan would do now. Where agents decide, it is only
/// informative.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitPlan {
    /// The level that decides about circuits: `agent` or `service`.
    pub level: String,
    /// Time for which the plan was made.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// Time of the service's last planning, if it plans.
    #[schema(value_type = Option<String>)]
    pub planned: Option<Timestamp>,
    /// Seconds between two plans.
    pub every_s: u32,
    /// Pairs of sites that have circuits or may have them; those with an action first.
    pub links: Vec<CircuitPlanned>,
    /// Providers, with what the plan uses of each.
    pub providers: Vec<CircuitProvider>,
    /// Communities with work, with their use of circuits.
    pub budgets: Vec<CircuitBudget>,
}

/// A provider as the plan sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitProvider {
    /// Name by which the plan's settings refer to the provider.
    pub name: String,
    /// Pairs of sites that it can connect.
    pub links: u32,
    /// Circuits that the plan has requested and not released.
    pub circuits: u32,
    /// Most circuits at the same time.
    pub at_once: u32,
    /// Bandwidth of these circuits together, in Mbit/s.
    pub mbit: u64,
    /// Most bandwidth of all circuits together, in Mbit/s; absent if not limited.
    pub mbit_all: Option<u64>,
    /// Bytes that its last circuits carried beyond what the best-effort path would have; negative if fewer.
    pub gained_bytes: i64,
}

/// Bandwidth that a community with work has reserved within a day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitBudget {
    /// The community.
    #[schema(value_type = formats::CommunityName)]
    pub community: CommunityName,
    /// Reserved bandwidth times time, in Gbit/s × hours.
    pub booked_gbit_h: f64,
    /// Most that it may reserve, in Gbit/s × hours; absent if not limited.
    pub budget_gbit_h: Option<f64>,
}

/// A circuit with its link and provider.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CircuitRecord {
    /// The link as `SOURCE:SITE`.
    pub link: String,
    /// Kind of provider: `static`, `nsi`, `oscars` or `sense`.
    pub provider: String,
    /// The circuit itself.
    pub circuit: Circuit,
    /// Seconds of transfer time that the circuit saved; negative if it was slower, absent if unknown.
    pub gain_s: Option<f64>,
}

/// A person's request about a circuit, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CircuitOrderView {
    /// Id of the request.
    #[schema(value_type = formats::CircuitOrderId)]
    pub id: CircuitOrderId,
    /// Name of the person's credential.
    pub by: String,
    /// Time of the request.
    #[schema(value_type = String)]
    pub at: Timestamp,
    /// What was requested.
    pub what: CircuitWish,
    /// Progress of the request.
    pub state: CircuitOrderState,
    /// The agent's answer.
    pub words: String,
}

/// `POST /api/v1/circuits/request`: requests a circuit, whatever the workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CircuitRequest {
    /// Source storage of the link.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target: a site, or one of its storages.
    #[schema(value_type = formats::SiteOrStorage)]
    pub target: String,
    /// Bandwidth in Mbit/s.
    #[schema(value_type = formats::CircuitMbit)]
    pub mbit: u64,
    /// Lifetime from now, in seconds.
    #[schema(value_type = formats::CircuitSeconds)]
    pub seconds: u64,
    /// True: a present circuit stays in use until the new one is up, and is then released. False: a present
    /// circuit satisfies the request.
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
