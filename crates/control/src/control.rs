//! What the loops and the facades of the control plane share beyond the kernel: agents and what runs.

use std::sync::Arc;

use longhaul_model::mark::MarkTable;
use longhaul_security::Authority;

use crate::agents::Agents;
use crate::deadlines::Deadlines;
use crate::executor::AgentStreams;
use crate::kernel::Kernel;
use crate::live::Live;
use crate::mover_grants::CurrentMoverGrants;
use crate::recorded::Recording;

pub struct Control {
    pub kernel: Arc<Kernel>,
    /// Signs permits and certificates.
    pub authority: Authority,
    pub agents: Agents,
    pub live: Live,
    pub deadlines: Deadlines,
    pub marks: MarkTable,
    pub mover_grants: CurrentMoverGrants,
    pub recording: Arc<Recording>,
    pub(crate) streams: Arc<dyn AgentStreams>,
    /// How often agents report.
    pub(crate) report_interval_ms: u32,
}

impl Control {
    pub fn new(
        kernel: Arc<Kernel>,
        authority: Authority,
        agents: Agents,
        marks: MarkTable,
        streams: Arc<dyn AgentStreams>,
        report_interval_ms: u32,
    ) -> Control {
        Control {
            kernel,
            authority,
            agents,
            live: Live::default(),
            deadlines: Deadlines::default(),
            marks,
            mover_grants: CurrentMoverGrants::default(),
            recording: Arc::default(),
            streams,
            report_interval_ms,
        }
    }
}
