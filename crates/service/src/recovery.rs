//! Recovery after a start: the scheduler is told of names, demands, and the transfers that were live.

use longhaul_catalog::LiveTransferRow;
use longhaul_control::brain::Input;
use longhaul_control::live::Running;
use longhaul_control::steering;
use longhaul_model::{Fault, StorageId, TransferState};
use longhaul_netops::plan;
use longhaul_network::Link;

use crate::context::ServiceContext;

/// Tells the scheduler loop what the catalog holds: names, demands, and the transfers that were live.
pub(crate) fn recover_live_state(shared: &ServiceContext) -> Result<(), Fault> {
    shared.kernel.refresh_directory()?;
    shared.control.mover_grants.load(&shared.kernel.catalog)?;
    shared.kernel.notify_scheduler(Input::Events(steering::events(
        &shared.kernel.catalog,
        &shared.control.marks,
        &*shared.job_control.config_store,
        shared.kernel.now(),
    )?));
    let demands = shared.kernel.catalog.demands()?;
    let live = shared.kernel.catalog.live_transfers()?;
    tracing::info!(demands = demands.len(), transfers = live.len(), "taking up");
    shared.kernel.notify_scheduler(Input::Demands { now: demands, gone: Vec::new() });
    for row in live {
        let sources = match shared.kernel.catalog.replicas_of_file(&row.lfn)? {
            Some((_, replicas)) => {
                let good =
                    replicas.into_iter().filter(|replica| replica.suspect.is_none() && !replica.deleting);
                good.map(|replica| replica.storage).collect()
            }
            None => Vec::new(),
        };
        adopt(shared, row, sources);
    }
    plan::take_up(&shared.netops)?;
    Ok(())
}

fn adopt(shared: &ServiceContext, row: LiveTransferRow, sources: Vec<StorageId>) {
    if row.state == TransferState::Leased {
        let running = Running {
            transfer: row.transfer,
            link: Link { source: row.source, target: row.target },
            agent: row.agent,
            source_agent: None,
            subscription: row.subscription,
            lfn: row.lfn.clone(),
            size: row.size,
            bytes_done: None,
            started: false,
            // It was leased by an earlier start.
            mark: longhaul_model::Mark::default(),
        };
        shared.control.live.leased(row.attempt, running);
    }
    if let Some(fault) = &row.fault {
        shared.control.live.failed(
            row.transfer,
            fault,
            shared.kernel.directory().name(row.source),
            row.lfn.shown(),
            row.changed,
        );
    }
    shared.kernel.notify_scheduler(Input::Adopt(Box::new(row), sources));
}
