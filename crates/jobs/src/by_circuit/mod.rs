//! Copies of jobs by the circuits between the sites of their ends, though the storages there know nothing of
//! circuits: just before a copy begins, the hosts in both URLs are replaced by those that the storages have
//! on their sites' circuits.
//!
//! A copy that fails there is made again on the plain way at once, as part of the same attempt; a circuit
//! that failed copies which then went well is not used for others. Not here: when there is a circuit
//! (`circuits`, `plan`, `agent`).

mod backlog;
pub(crate) mod hosts;
mod usage;

use longhaul_api::agent::CircuitCopies;
use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::SitePair;
use longhaul_model::{AgentId, CircuitUse, Fault, StorageName};
use longhaul_netops::circuits::{self, LinkKey};
use longhaul_netops::plan::pair_of;
use longhaul_storage_remote::on_host;

use crate::agent_streams;
use crate::job_control::JobControl;
use crate::mover::{CopyOrder, ForeignMover, Moved, Stop};

pub use backlog::CircuitBacklog;
use hosts::{host_config, site_id};
pub(crate) use usage::CircuitUsage;

/// A copy by a circuit, instead of the plain one.
struct CircuitRoute {
    key: LinkKey,
    circuit: String,
    order: CopyOrder,
}

/// Copies by a circuit if there is one, else as the mover itself does.
pub(crate) async fn copy(
    job_control: &JobControl,
    mover: &dyn ForeignMover,
    order: CopyOrder,
    progress: &(dyn Fn(u64) + Send + Sync),
    stop: Stop,
) -> Result<Moved, Fault> {
    let Some(route) = circuit_route(job_control, &order) else {
        return agent_streams::copy(job_control, mover, order, progress, stop).await;
    };
    let used = &job_control.jobs.circuit_usage;
    used.begin(&route.key, &route.circuit, job_control.kernel.now());
    let tried = mover.copy(route.order, progress, stop.clone()).await;
    let bytes = tried.as_ref().map_or(0, |moved| moved.bytes);
    let during = used.end(&route.circuit, job_control.kernel.now());
    circuits::add_carried(&job_control.netops, &route.key, &route.circuit, bytes, during);
    let fault = match tried {
        Ok(moved) => {
            used.record_result(&route.circuit, true);
            return Ok(Moved { mode: format!("{} by circuit", moved.mode), ..moved });
        }
        Err(fault) if *stop.borrow() => return Err(fault),
        Err(fault) => fault,
    };
    tracing::info!(circuit = route.circuit, %fault, "a copy of a job failed on the circuit; trying the plain \
        path");
    // The file may have arrived although the copy failed.
    let again = CopyOrder { may_be_there: true, ..order };
    let done = agent_streams::copy(job_control, mover, again, progress, stop).await;
    if done.is_ok() {
        used.record_result(&route.circuit, false);
    }
    done
}

/// The copy by a circuit that may be used now between the sites of both ends.
fn circuit_route(job_control: &JobControl, order: &CopyOrder) -> Option<CircuitRoute> {
    if order.circuits == CircuitUse::Never {
        return None;
    }
    let hosts = &job_control.netops.settings.circuits.hosts;
    let (source, target) = (host_config(hosts, &order.source.url)?, host_config(hosts, &order.target.url)?);
    let directory = job_control.kernel.directory();
    let wanted = SitePair { source: site_id(&directory, source)?, target: site_id(&directory, target)? };
    let now = job_control.kernel.now();
    let (key, circuit) = job_control.netops.circuits.in_use().into_iter().find(|(key, circuit)| {
        pair_of(&job_control.netops, &directory, key) == Some(wanted)
            && job_control.control.agents.is_connected(key.0, now)
            && !job_control.jobs.circuit_usage.is_given_up(circuit)
    })?;
    let mut moved = order.clone();
    moved.source.url = on_host(&order.source.url, &source.on_circuit)?;
    moved.target.url = on_host(&order.target.url, &target.on_circuit)?;
    Some(CircuitRoute { key, circuit, order: moved })
}

/// The copies that use circuits of this agent, so that it releases none of them meanwhile.
pub fn circuit_copies(job_control: &JobControl, agent: AgentId) -> Vec<CircuitCopies> {
    let copies = job_control.jobs.circuit_usage.under_way(agent);
    copies.into_iter().map(|(source, copies)| CircuitCopies { source, copies }).collect()
}

/// The backlog of jobs for an agent that may request circuits: source storage of the link, bytes, and the
/// expected bytes per second.
pub fn link_backlogs(
    job_control: &JobControl,
    agent: AgentId,
) -> Result<Vec<(StorageName, u64, f64)>, CatalogError> {
    let all = job_control.backlog.backlogs()?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let directory = job_control.kernel.directory();
    let links = job_control.netops.circuits.links().into_iter().filter(|(key, _)| key.0 == agent);
    let links: Vec<(StorageName, Option<SitePair>)> =
        links.map(|(key, _)| (key.1.clone(), pair_of(&job_control.netops, &directory, &key))).collect();
    let told = all.into_iter().filter_map(|row| {
        // Where several links join two sites, it is the first one's.
        let (source, _) = links.iter().find(|(_, pair)| *pair == Some(row.pair))?;
        Some((source.clone(), row.bytes, row.bytes_per_s))
    });
    Ok(told.collect())
}
