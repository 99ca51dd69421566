//! State that the agent's loops share: identity, outbox log, engine and the handles of its parts.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{Incarnation, StorageOffer};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::circuits::Circuits;
use crate::clock::{MonotonicClock, ServiceClock};
use crate::door_audit::DoorAudit;
use crate::foreign::ForeignMover;
use crate::measure::Measurements;
use crate::mover::MoverHandle;
use crate::outbox_log::OutboxLog;
use crate::root_marks::RootMarks;
use crate::service_api::ServiceApi;
use crate::service_session::ServiceSession;
use crate::shared_roots::SharedRoots;
use crate::state_dir::{Identity, StateDir};
use crate::stop::StopFlag;
use crate::storage_health::StorageHealth;
use crate::tape::{StageOrders, Tapes};
use crate::tasks::Tasks;

/// Source of random numbers; seeded in simulations.
pub(crate) type RandomSource = Box<dyn Fn() -> u64 + Send + Sync>;

/// Shared by all loops of one agent.
pub(crate) struct AgentContext {
    pub state: StateDir,
    pub identity: Mutex<Identity>,
    pub incarnation: Incarnation,
    pub host: String,
    pub data_addresses: Vec<String>,
    pub offers: Vec<StorageOffer>,
    pub roots: Arc<RootMarks>,
    /// Those of the roots to which other agents write as well.
    pub shared_roots: SharedRoots,
    pub clock: ServiceClock,
    /// The clock by which loops are stepped.
    pub monotonic: MonotonicClock,
    pub log: Arc<OutboxLog>,
    pub engine: MoverHandle,
    pub storage_health: Arc<StorageHealth>,
    pub tasks: Arc<Tasks>,
    pub service: Arc<dyn ServiceApi>,
    pub session: ServiceSession,
    /// Jitter of retries.
    pub random: RandomSource,
    pub report_interval: watch::Sender<Duration>,
    pub measurements: Arc<Measurements>,
    pub circuits: Arc<Circuits>,
    pub tapes: Arc<Tapes>,
    /// What the service wants from tape.
    pub stage_orders: StageOrders,
    /// Copies between foreign storages; none unless the site enables them.
    pub foreign: Option<Arc<ForeignMover>>,
    /// Decisions at the agent's doors, until they are reported.
    pub door_audit: Arc<DoorAudit>,
    pub stop: StopFlag,
}
