//! What the agent's loops work with: its identity, its durable log, its engine, and the state of its parts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::{Incarnation, StorageOffer};
use tokio::sync::watch;

use crate::circuits::Circuits;
use crate::clock::ServiceClock;
use crate::door_audit::DoorAudit;
use crate::driver::MonotonicClock;
use crate::foreign::ForeignMover;
use crate::measure::Measurements;
use crate::mover::MoverHandle;
use crate::outbox_log::OutboxLog;
use crate::service_api::ServiceApi;
use crate::state_dir::{Identity, StateDir};
use crate::stop::StopFlag;
use crate::storage_health::StorageHealth;
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
    /// The clock that loops are stepped by.
    pub monotonic: MonotonicClock,
    pub log: Arc<OutboxLog>,
    pub engine: MoverHandle,
    pub storage_health: Arc<StorageHealth>,
    pub tasks: Arc<Tasks>,
    pub service: Arc<dyn ServiceApi>,
    /// Whether the service knows this incarnation and what it holds.
    pub greeted: watch::Sender<bool>,
    /// Held from a request for work until what came is safe, and while the service is told what is held: so
    /// that no lease arrives in between and is missing from that list.
    pub gate: tokio::sync::Mutex<()>,
    pub report_interval: watch::Sender<Duration>,
    pub measurements: Arc<Measurements>,
    pub circuits: Arc<Circuits>,
    pub tapes: Arc<Tapes>,
    /// None where the site wants none.
    pub foreign: Option<Arc<ForeignMover>>,
    /// At the agent's doors.
    pub door_audit: Arc<DoorAudit>,
    pub stop: StopFlag,
}
