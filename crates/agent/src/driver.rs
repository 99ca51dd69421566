//! Drives loops of the agent: sleeps, and runs off the event loop what may wait for a disk.
//!
//! A step holds the whole context until it has ended, so that the agent does not give its state directory
//! away while something is still written there.

use std::sync::Arc;

use longhaul_model::Fault;

use crate::context::AgentContext;
use crate::door_audit;
use crate::threads::blocking;

/// Makes what the doors decided durable now and then. Runs for ever.
pub(crate) async fn run_audit(context: Arc<AgentContext>) -> Fault {
    loop {
        tokio::time::sleep(door_audit::FLUSH_INTERVAL).await;
        let context = context.clone();
        if let Err(fault) = blocking(move || context.door_audit.flush(&context.log)).await {
            tracing::warn!(%fault, "what the doors decided waits to be written");
        }
    }
}
