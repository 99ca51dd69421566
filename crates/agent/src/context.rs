//! What the agent's loops work with: its identity, its durable log, its engine, and the state of its parts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::{Incarnation, StorageOffer};
use tokio::sync::watch;

use crate::circuits::Circuits;
use crate::clock::ServiceClock;
use crate::control::Control;
use crate::decided::Decided;
use crate::foreign::Foreign;
use crate::ledger::Ledger;
use crate::measure::Measures;
use crate::mover::MoverHandle;
use crate::spaces::Spaces;
use crate::state_dir::{Identity, StateDir};
use crate::stop::Stop;
use crate::tape::Tapes;
use crate::tasks::Tasks;

/// What the loops share.
pub(crate) struct AgentContext {
    pub state: StateDir,
    pub identity: Mutex<Identity>,
    pub incarnation: Incarnation,
    pub host: String,
    pub data_addresses: Vec<String>,
    pub offers: Vec<StorageOffer>,
    pub clock: ServiceClock,
    pub ledger: Arc<Ledger>,
    pub engine: MoverHandle,
    pub spaces: Arc<Spaces>,
    pub tasks: Arc<Tasks>,
    pub control: Arc<dyn Control>,
    /// Whether the service knows this incarnation and what it holds.
    pub greeted: watch::Sender<bool>,
    /// Held from a request for work until what came is safe, and while the service is told what is held: so
    /// that no lease arrives in between and is missing from that list.
    pub gate: tokio::sync::Mutex<()>,
    pub report_every: watch::Sender<Duration>,
    pub measures: Arc<Measures>,
    pub circuits: Arc<Circuits>,
    pub tapes: Arc<Tapes>,
    /// None where the site wants none.
    pub foreign: Option<Arc<Foreign>>,
    /// At the agent's doors.
    pub decided: Arc<Decided>,
    pub stop: Stop,
}
