//! Copies whose bytes would go through the service's host, where a site has an agent for that: the storages
//! are asked first to copy between themselves, from here; what is left to be streamed is streamed by the
//! agent, with the credentials of this one copy.
//!
//! The service waits for the agent's word as for that of its own mover, so that the attempt, its retries and
//! its end are the job loop's as ever. An agent that cannot reach the storages makes room for another, and at
//! last for the service itself, within the attempt.
//!
//! Not here: how a copy is made (`storage-remote`, at both), what agents do about it (`agent::foreign`).
//! Start with [`copy`]; `choice` says which agent, `ledger` which copies they have.

mod choice;
mod ledger;
mod wire;

use std::time::Duration;

use longhaul_api::agent::{Fact, Report};
use longhaul_catalog::SiteState;
use longhaul_model::{AgentId, AttemptId, Blame, Fault, FaultCode, Retry, SiteId};
use longhaul_storage_remote as remote;
use tokio::time::Instant;

use crate::by_circuit::hosts;
use crate::derived_limits::CopyModes;
use crate::ids;
use crate::job_control::JobControl;
use crate::mover::{CopyOrder, DirectCopy, ForeignMover, Moved, Stop};
use crate::work::Work;

use choice::{Candidate, Near};
pub use ledger::StreamLedger;
use ledger::{Assignment, StreamResult, is_lost};

/// Interval of the checks whether an agent still reports its copy, and how far it is.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// A report waits this long for the ends in it to become durable; after that the agent sends it again.
const DURABLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Copies as the mover does, but lets an agent stream what would go through this process.
pub(crate) async fn copy(
    job_control: &JobControl,
    mover: &dyn ForeignMover,
    order: CopyOrder,
    progress: &(dyn Fn(u64) + Send + Sync),
    stop: Stop,
) -> Result<Moved, Fault> {
    if !order.modes.stream || job_control.control.agents.movers(job_control.kernel.now()).is_empty() {
        return mover.copy(order, progress, stop).await;
    }
    let wanted = match mover.copy_directly(order.clone(), progress, stop.clone()).await? {
        DirectCopy::Moved(moved) => return Ok(moved),
        DirectCopy::ToStream(wanted) => wanted,
    };
    let mut tried: Vec<AgentId> = Vec::new();
    let mut before: Vec<String> = Vec::new();
    let why_ours = loop {
        let candidates = candidates(job_control, &order, &tried);
        let taken = match job_control.jobs.stream_ledger.assign(
            order.attempt,
            order.epoch,
            candidates,
            Instant::now(),
        ) {
            Ok(taken) => taken,
            Err(error) => break error.to_string(),
        };
        let Some(copy) = wire::to_wire(&order, order.epoch, &wanted).await else {
            job_control.jobs.stream_ledger.settle(order.attempt);
            break "keys of S3 stay with the service".to_owned();
        };
        let (name, agent) = (taken.candidate.name(), taken.candidate.agent);
        record_executor(job_control, order.attempt, &taken.choice).await?;
        job_control.control.agents.put_copy(agent, copy);
        job_control.jobs.stream_ledger.mark_sent(order.attempt, Instant::now());
        let end = await_end(job_control, order.attempt, taken, progress, stop.clone()).await;
        job_control.control.agents.drop_copy(agent, order.attempt);
        match end {
            Ok(_) => {
                return match confirm(mover, &wanted).await {
                    Ok(bytes) => Ok(Moved { bytes, mode: format!("stream by {name}") }),
                    Err(fault) => {
                        tracing::warn!(attempt = %order.attempt, agent = %agent, fault = %fault.chain(),
                            "a copy that an agent reported complete is not what the target holds");
                        job_control.jobs.stream_ledger.distrust(agent, Instant::now());
                        Err(untrue(fault, &name))
                    }
                };
            }
            Err(fault) if fault.code == FaultCode::NameClash && order.may_be_there => break fault.detail,
            Err(fault) if is_local_to_agent(&fault) && !*stop.borrow() => {
                tracing::info!(attempt = %order.attempt, agent = %agent, %fault, "an agent cannot stream a \
                    copy; trying the next");
                before.push(format!("{name}: {}", fault.detail));
                tried.push(agent);
                job_control.jobs.stream_ledger.settle(order.attempt);
            }
            Err(mut fault) => {
                fault.detail = format!("{} (streamed by {name})", fault.detail);
                return Err(fault);
            }
        }
    };
    job_control.jobs.stream_ledger.settle(order.attempt);
    let why = [before, vec![why_ours]].concat();
    let why: Vec<String> = why.into_iter().filter(|text| !text.is_empty()).collect();
    record_executor(job_control, order.attempt, &format!("the service itself: {}", why.join("; "))).await?;
    let ways = CopyModes { pull: false, push: false, stream: true };
    let streamed = mover.copy(CopyOrder { modes: ways, ..order }, progress, stop).await;
    streamed.map_err(|mut fault| {
        if !why.is_empty() {
            fault.detail = format!("{} (before: {})", fault.detail, why.join("; "));
        }
        fault
    })
}

/// What an agent says of a copy is compared with what the target holds. Returns its size in bytes.
async fn confirm(mover: &dyn ForeignMover, order: &remote::CopyOrder) -> Result<u64, Fault> {
    let Some(remote) = mover.remote() else {
        return Err(Fault::new(FaultCode::Internal, "nothing here could look at the target"));
    };
    remote.confirm_target(order).await
}

/// The attempt fails for the agent's word, and is tried again: by somebody else.
fn untrue(fault: Fault, name: &str) -> Fault {
    let detail = format!("{name} reported a complete file, but: {}", fault.detail);
    Fault::new(FaultCode::MoverFailed, detail).with_source(fault)
}

/// Writes who moves the file into the attempt's explanation, before the copy is sent.
async fn record_executor(job_control: &JobControl, attempt: AttemptId, by: &str) -> Result<(), Fault> {
    let noted = job_control.jobs.request(|reply| Work::Carried(attempt, by.to_owned(), reply)).await;
    if noted.is_err() {
        job_control.jobs.stream_ledger.settle(attempt);
    }
    noted
}

/// Waits for the agent's result, or takes the copy back if the agent is silent or its site is paused.
async fn await_end(
    job_control: &JobControl,
    attempt: AttemptId,
    taken: Assignment,
    progress: &(dyn Fn(u64) + Send + Sync),
    mut stop: Stop,
) -> StreamResult {
    let Assignment { candidate, mut end, .. } = taken;
    let agent = candidate.agent;
    let take_back = |fault: Fault| {
        job_control.control.agents.cancel(agent, [attempt]);
        Err(fault)
    };
    loop {
        tokio::select! {
            biased;
            ended = &mut end => {
                let forgotten = |_| Err(Fault::new(FaultCode::Internal, "the copy was forgotten"));
                return ended.unwrap_or_else(forgotten);
            }
            // The sender is dropped only when the service stops.
            _ = stop.wait_for(|stop| *stop) => {
                return take_back(Fault::new(FaultCode::Cancelled, longhaul_model::job::TRANSFER_CANCELED));
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
        let Some((bytes, silent)) = job_control.jobs.stream_ledger.progress(attempt, Instant::now()) else {
            continue;
        };
        progress(bytes);
        if is_lost(silent) {
            let seconds = silent.as_secs();
            let text = format!("{} has said nothing of it for {seconds} s", candidate.name());
            return take_back(Fault::new(FaultCode::Interrupted, text));
        }
        if site_state(job_control, &candidate) == Some(SiteState::Paused) {
            let text = format!("the site of {} was paused", candidate.name());
            return take_back(Fault::new(FaultCode::GivenBack, text));
        }
    }
}

fn site_state(job_control: &JobControl, candidate: &Candidate) -> Option<SiteState> {
    let directory = job_control.kernel.directory();
    directory.sites.values().find(|row| row.name == candidate.site).map(|row| row.state)
}

/// Whether a fault comes from the agent's location or its site's policy: another agent may succeed.
fn is_local_to_agent(fault: &Fault) -> bool {
    match fault.code {
        // An address that its policy refuses. What a storage refuses is the credential's.
        FaultCode::NotAllowed => fault.blame == Blame::Request,
        FaultCode::Unreachable => true,
        // A server that it does not believe, by its authorities.
        FaultCode::NotAuthenticated => fault.retry == Retry::Later,
        _ => false,
    }
}

fn candidates(job_control: &JobControl, order: &CopyOrder, tried: &[AgentId]) -> Vec<Candidate> {
    let directory = job_control.kernel.directory();
    let (grants, community) =
        (&job_control.control.mover_grants, ids::party_of(&order.community, "").community);
    let (source, target) = (site_at(job_control, &order.source.url), site_at(job_control, &order.target.url));
    let movers = job_control.control.agents.movers(job_control.kernel.now());
    let movers = movers.into_iter().filter(|(known, _)| !tried.contains(&known.id));
    movers
        .map(|(known, offer)| {
            let (row, site_name) = (directory.sites.get(&known.site), known.site_name);
            let limits = row.map(|row| row.limits).unwrap_or_default();
            Candidate {
                agent: known.id,
                near: match Some(known.site) {
                    site if site == target => Near::Target,
                    site if site == source => Near::Source,
                    _ => Near::Neither,
                },
                site: site_name.clone(),
                host: known.host,
                busy: 0,
                files: offer.files,
                site_busy: 0,
                // What is streamed comes in and goes out.
                site_files: limits.active_in.into_iter().chain(limits.active_out).min(),
                unwilling: match row.map(|row| row.state) {
                    _ if !grants.allows(&site_name, &community) => {
                        Some("no administrator has allowed its site to stream for this community")
                    }
                    Some(SiteState::Paused) => Some("its site is paused"),
                    Some(SiteState::Draining) => Some("its site drains"),
                    Some(SiteState::Open) | None => None,
                },
            }
        })
        .collect()
}

/// The site of the host in a URL, as configured for circuits. What agents say of their own hosts and
/// addresses does not count: a copy brings its user's credentials to whoever is near.
fn site_at(job_control: &JobControl, url: &str) -> Option<SiteId> {
    hosts::site_of(&job_control.kernel.directory(), &job_control.netops.settings.circuits.hosts, url)
}

/// Applies the ends of copies in a report. False if they are not durable in time: the agent sends it again.
pub async fn apply_report(job_control: &JobControl, agent: AgentId, report: &Report) -> bool {
    let handed = &job_control.jobs.stream_ledger;
    let mut ended = Vec::new();
    for entry in &report.entries {
        let Fact::Outcome(outcome) = &entry.fact else { continue };
        let result = outcome.fault.clone().map_or(Ok(outcome.bytes_moved), Err);
        if handed.record_end(agent, outcome.attempt, outcome.epoch, result) {
            ended.push(outcome.attempt);
        }
    }
    ended.is_empty() || handed.wait_settled(&ended, DURABLE_TIMEOUT).await
}
