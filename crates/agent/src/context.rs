//! What the agent's loops work with: its identity, its durable log, its engine, and the state of its parts.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::{Incarnation, StorageOffer};
use tokio::sync::watch;

use crate::circuits::Circuits;
use crate::clock::{MonotonicClock, ServiceClock};
use crate::door_audit::DoorAudit;
use crate::foreign::ForeignMover;
use crate::measure::Measurements;
use crate::mover::MoverHandle;
use crate::outbox_log::OutboxLog;
use crate::service_api::ServiceApi;
use crate::service_session::ServiceSession;
use crate::state_dir::{Identity, StateDir};
use crate::stop::StopFlag;
use crate::storage_health::StorageHealth;
use crate::tape::Tapes;
use crate::tasks::Tasks;

/// Where random numbers come from.
pub(crate) type RandomSource = Box<dyn Fn() -> u64 + Send + Sync>;

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
    pub session: ServiceSession,
    /// For the jitter of retries.
    pub random: RandomSource,
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
