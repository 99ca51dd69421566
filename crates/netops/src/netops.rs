//! The state of this crate, and what it asks of others.

use std::sync::Arc;

use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::{PendingWork, SitePair};
use longhaul_control::{Control, Kernel};

use crate::circuits::Circuits;
use crate::measured::{ArchiveConfig, Measured};
use crate::plan::{CircuitsConfig, Plan};

/// Copies of jobs between two sites whose storages circuits reach.
pub struct JobBacklog {
    pub pair: SitePair,
    /// The rate that is expected without a circuit.
    pub bytes_per_s: f64,
    /// The work, by party and priority.
    pub pending: Vec<PendingWork>,
}

/// Tells the plan of circuits what jobs want moved.
pub trait BacklogSource: Send + Sync {
    fn by_pair(&self) -> Result<Vec<JobBacklog>, CatalogError>;
}

/// The settings that concern measurements and circuits.
#[derive(Clone, Debug)]
pub struct NetOpsSettings {
    pub circuits: CircuitsConfig,
    /// Seconds between two probes by one agent; 0: none.
    pub probe_interval_s: u32,
}

pub struct NetOps {
    pub kernel: Arc<Kernel>,
    pub control: Arc<Control>,
    pub settings: NetOpsSettings,
    pub measured: Measured,
    pub circuits: Circuits,
    pub plan: Plan,
    pub(crate) backlog: Arc<dyn BacklogSource>,
}

impl NetOps {
    pub fn open(
        kernel: Arc<Kernel>,
        control: Arc<Control>,
        settings: NetOpsSettings,
        archives: &[ArchiveConfig],
        backlog: Arc<dyn BacklogSource>,
    ) -> Result<NetOps, CatalogError> {
        Ok(NetOps {
            measured: Measured::new(archives),
            circuits: Circuits::load(&kernel.catalog)?,
            plan: Plan::load(&settings.circuits, &kernel.catalog)?,
            kernel,
            control,
            settings,
            backlog,
        })
    }
}
