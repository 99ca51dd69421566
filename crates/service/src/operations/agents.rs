//! What agents ask: join, report, work, renew.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{
    JoinReply, JoinRequest, LinkAhead, RenewReply, RenewRequest, Report, ReportReply, SourcePeer,
    StorageSpace, Work, WorkRequest,
};
use longhaul_api::circuits::{CircuitOrder, CircuitWish};
use longhaul_api::native::ChangeKind;
use longhaul_api::{AGENT_PROTOCOL, Problem, VersionRange};
use longhaul_catalog::{Admission, Claim, JoinRefusal, Phase, SpaceRow, Subject, admit};
use longhaul_control::agents::Standing;
use longhaul_control::brain::Input;
use longhaul_control::commit_loop::{CommitWork, PendingReport, items};
use longhaul_control::report_bounds::bound_report;
use longhaul_jobs::{agent_streams, by_circuit};
use longhaul_model::limits::{AGENT_ADDRESSES_MAX, AGENT_STORAGES_MAX, HOST_BYTES_MAX};
use longhaul_model::{AgentId, Fault, FaultCode, SiteName, StorageId, StorageName, Timestamp};
use longhaul_netops::measured::probe_state;
use longhaul_netops::plan::Level;
use longhaul_scheduler::Event;
use longhaul_security::hash_secret;
use tokio::sync::{oneshot, watch};

use super::{Operations, bad_request, busy, problem};

/// A change of free space by this part of the whole is told to the catalog; the rest is noise.
const SPACE_STEP: u64 = 200;

/// The agent whose certificate came with a request.
#[derive(Clone, Debug)]
pub struct AgentPeer {
    pub agent: AgentId,
    pub site: SiteName,
}

impl Operations {
    pub fn agent_join(&self, request: &JoinRequest) -> Result<JoinReply, Problem> {
        agree(request.versions)?;
        let host = host(&request.host)?;
        let (now, valid_from) = (self.now(), self.shared.kernel.wall_time());
        // First whether the signing request is of use at all: a bad one must not use the token up.
        let authority = &self.shared.control.authority;
        let agent: AgentId = self.shared.kernel.new_id();
        let nowhere = SiteName::parse("nowhere").map_err(|error| bad_request(error.to_string()))?;
        authority.issue_agent(&request.signing_request, agent, &nowhere, valid_from).map_err(|error| {
            Problem::from(
                Fault::new(FaultCode::BadRequest, format!("the signing request: {error}")).with_source(error),
            )
        })?;
        let redeemed = self
            .shared
            .kernel
            .catalog
            .redeem_join_token(hash_secret(&request.secret), now)
            .map_err(problem)?;
        let site = redeemed.map_err(|refusal| {
            let code = match refusal {
                JoinRefusal::Unknown => FaultCode::NotAuthenticated,
                JoinRefusal::Used(_) => FaultCode::JoinTokenUsed,
                JoinRefusal::Expired(_) => FaultCode::JoinTokenExpired,
            };
            Problem::from(Fault::new(code, refusal.to_string()).with_source(refusal))
        })?;
        let issued = authority
            .issue_agent(&request.signing_request, agent, &site.name, valid_from)
            .map_err(Fault::from)?;
        self.shared.kernel.catalog.add_agent(agent, site.id, host, issued.expires, now).map_err(problem)?;
        if let Some(row) = self.shared.kernel.catalog.agent(agent).map_err(problem)? {
            self.shared.control.agents.add(row);
        }
        tracing::info!(%agent, site = %site.name, %host, "an agent joined");
        self.shared.kernel.changes.touch(ChangeKind::Site, &site.name, now);
        Ok(JoinReply {
            agent,
            site: site.name,
            deployment: authority.deployment().to_owned(),
            certificate: issued.certificate_pem,
            ca: authority.ca_pem().to_owned(),
            permit_key: authority.permit_key_pem(),
        })
    }

    pub fn agent_renew(&self, peer: &AgentPeer, request: &RenewRequest) -> Result<RenewReply, Problem> {
        let authority = &self.shared.control.authority;
        let valid_from = self.shared.kernel.wall_time();
        let issued = authority
            .issue_agent(&request.signing_request, peer.agent, &peer.site, valid_from)
            .map_err(Fault::from)?;
        self.shared.kernel.catalog.set_agent_certificate(peer.agent, issued.expires).map_err(problem)?;
        self.shared.control.agents.certificate_renewed(peer.agent, issued.expires);
        tracing::info!(agent = %peer.agent, expires = %issued.expires, "certificate renewed");
        Ok(RenewReply { certificate: issued.certificate_pem, ca: authority.ca_pem().to_owned() })
    }

    /// Takes in a report: what must not be lost is durable when this returns.
    pub async fn agent_report(
        self: &Arc<Self>,
        peer: &AgentPeer,
        mut report: Report,
    ) -> Result<ReportReply, Problem> {
        let version = agree(report.versions)?;
        check_order(&report)?;
        let now = self.now();
        let agents = &self.shared.control.agents;
        let standing = agents.contact(peer.agent, report.incarnation, now)?;
        bound_report(&mut report, now);
        let offset_us = report.now.as_micros().saturating_sub(now.as_micros());
        agents.learn_clock(peer.agent, offset_us / 1_000);
        let says_hello = report.hello.is_some();
        let say_hello = standing == Standing::AwaitingHello && !says_hello;
        let acknowledged = if say_hello {
            // What came before the hello is asked for again: until then nobody knows whose word this is.
            let agent = peer.agent;
            self.run(move |operations| operations.shared.kernel.catalog.acknowledged(agent).map_err(problem))
                .await?
        } else {
            if let Some(hello) = &report.hello {
                check_hello(hello)?;
            }
            if !agent_streams::apply_report(&self.shared.job_control, peer.agent, &report).await {
                return Err(busy("the ends of copies cannot be written down yet"));
            }
            self.durable(peer, &report).await?
        };
        if report.ending && !say_hello {
            tracing::info!(agent = %peer.agent, site = %peer.site, "the agent stops");
            agents.note_ending(peer.agent, now);
            self.shared.kernel.changes.touch(ChangeKind::Site, &peer.site, now);
        }
        let (mut probe, mut ahead) = (Vec::new(), Vec::new());
        let ask_ahead = report.ask_ahead;
        if !say_hello {
            self.measured(peer, &mut report).await?;
            self.circuits_told(peer, &mut report).await?;
            self.passing(peer, report).await?;
            probe = probe_state::next_probe(&self.shared.netops, peer.agent);
        }
        if ask_ahead && !say_hello {
            let agent = peer.agent;
            ahead = self.run(move |operations| Ok(operations.ahead_of(agent))).await?;
        }
        let now = self.now();
        let circuits =
            if say_hello { Vec::new() } else { self.shared.netops.circuits.orders(peer.agent, now) };
        let circuits_planned = self.config().circuits.level == Level::Service;
        let circuit_copies = by_circuit::circuit_copies(&self.shared.job_control, peer.agent);
        let circuit_peers = self.circuit_peers(&circuits);
        // To a hello, all that it left out: what is confirmed meanwhile is missing in the next reply.
        let unconfirmed = match says_hello {
            true => agents.unconfirmed(peer.agent),
            false => self.unconfirmed_storages(peer.agent),
        };
        let is_present = standing == Standing::Present && !says_hello;
        let offer_again = is_present && agents.is_displaced(peer.agent);
        Ok(ReportReply {
            version,
            acknowledged,
            now,
            say_hello,
            probe,
            ahead,
            circuits,
            circuits_planned,
            circuit_copies,
            circuit_peers,
            refused: agents.refused_peers(now),
            unconfirmed,
            offer_again,
        })
    }

    /// The storages of the agent's last hello whose names are still not its site's.
    fn unconfirmed_storages(&self, agent: AgentId) -> Vec<StorageName> {
        let unconfirmed = self.shared.control.unconfirmed_storages(agent).into_iter();
        unconfirmed.map(|(name, _)| name).collect()
    }

    /// The agents that serve the sources of requested circuits.
    fn circuit_peers(&self, orders: &[CircuitOrder]) -> Vec<SourcePeer> {
        let directory = self.shared.kernel.directory();
        let wanted = orders.iter().filter(|order| matches!(order.what, CircuitWish::Request { .. }));
        let sources: BTreeSet<&StorageName> = wanted.map(|order| &order.source).collect();
        let peer = |name: &&StorageName| {
            let storage = directory.storage(name.as_str())?;
            self.shared.control.agents.source_peer(storage.id, name)
        };
        sources.iter().filter_map(peer).collect()
    }

    /// The backlog of links to an agent's storages; empty if the scheduler is too busy to answer.
    fn ahead_of(&self, agent: AgentId) -> Vec<LinkAhead> {
        let directory = self.shared.kernel.directory();
        let own = |id: &StorageId| self.shared.control.agents.of_storage(*id) == Some(agent);
        let targets: Vec<StorageId> = directory.storages.keys().copied().filter(own).collect();
        let first = targets.first().and_then(|&id| directory.name(id));
        let found = self.query_scheduler(move |scheduler, now| {
            let of = |target: StorageId| {
                scheduler.link_backlogs(target, now).into_iter().map(move |link| (target, link))
            };
            targets.into_iter().flat_map(of).collect::<Vec<_>>()
        });
        let shown = found.unwrap_or_default().into_iter().filter_map(|(target, link)| {
            Some(LinkAhead {
                source: directory.name(link.source)?,
                target: directory.name(target)?,
                bytes: link.bytes,
                bytes_per_s: link.plain_expected,
            })
        });
        // What jobs bring to other storages of the site counts as if it came to one of the agent's.
        let of_jobs = by_circuit::link_backlogs(&self.shared.job_control, agent).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot read the backlog of jobs for an agent");
            Vec::new()
        });
        let of_jobs = of_jobs.into_iter().filter_map(|(source, bytes, bytes_per_s)| {
            Some(LinkAhead { source, target: first.clone()?, bytes, bytes_per_s })
        });
        shown.chain(of_jobs).collect()
    }

    /// Hands the part of a report that must be applied exactly once to the commit loop, and waits until it is
    /// durable.
    async fn durable(self: &Arc<Self>, peer: &AgentPeer, report: &Report) -> Result<u64, Problem> {
        let nothing = report.entries.is_empty() && report.fences.is_empty() && report.staged.is_empty();
        if report.hello.is_none() && nothing {
            let agent = peer.agent;
            return self
                .run(move |operations| operations.shared.kernel.catalog.acknowledged(agent).map_err(problem))
                .await;
        }
        let _slot = self.reports.clone().acquire_owned().await.map_err(|_| busy("the service stops"))?;
        let (reply, applied) = oneshot::channel();
        let job = PendingReport {
            agent: peer.agent,
            incarnation: report.incarnation,
            hello: report.hello.clone(),
            items: items(report.entries.clone(), &peer.site, self.now()),
            fences: report.fences.clone(),
            staged: report.staged.clone(),
            reply,
        };
        self.shared
            .kernel
            .writer
            .send(CommitWork::Report(Box::new(job)))
            .map_err(|_| busy("the service stops"))?;
        applied.await.map_err(|_| busy("the service stops"))?.map_err(problem)
    }

    /// What the agent looked at and counted.
    async fn measured(self: &Arc<Self>, peer: &AgentPeer, report: &mut Report) -> Result<(), Problem> {
        let found = probe_state::AgentMeasurements {
            probes: std::mem::take(&mut report.probes),
            uplinks: std::mem::take(&mut report.uplinks),
            paths: std::mem::take(&mut report.paths),
        };
        if found.is_empty() {
            return Ok(());
        }
        let agent = peer.agent;
        self.run(move |operations| {
            probe_state::take(&operations.shared.netops, agent, &found);
            Ok(())
        })
        .await
    }

    /// The agent's links with circuits. With a hello, none are told where there are none.
    async fn circuits_told(self: &Arc<Self>, peer: &AgentPeer, report: &mut Report) -> Result<(), Problem> {
        let told = std::mem::take(&mut report.circuits);
        if told.is_empty() && report.hello.is_none() {
            return Ok(());
        }
        let agent = peer.agent;
        self.run(move |operations| {
            longhaul_netops::circuits::take_report(&operations.shared.netops, agent, told).map_err(problem)
        })
        .await
    }

    /// The part that may be lost: progress and space.
    async fn passing(self: &Arc<Self>, peer: &AgentPeer, report: Report) -> Result<(), Problem> {
        if report.progress.is_empty() && report.spaces.is_empty() {
            return Ok(());
        }
        let agent = peer.agent;
        self.run(move |operations| {
            let now = operations.now();
            let mut events = Vec::with_capacity(report.progress.len());
            let mut foreign = 0;
            let handed = &operations.shared.job_control.jobs.stream_ledger;
            for progress in &report.progress {
                handed.record_progress(
                    agent,
                    progress.attempt,
                    progress.bytes_done,
                    tokio::time::Instant::now(),
                );
                let live = &operations.shared.control.live;
                let change = match live.progress(agent, progress.attempt, progress.bytes_done, now) {
                    Ok(change) => change,
                    Err(admission) => {
                        foreign += u64::from(admission == Admission::Foreign);
                        continue;
                    }
                };
                if change.began {
                    events.push(Event::Started { attempt: progress.attempt });
                }
                events.push(Event::Progress { attempt: progress.attempt, bytes_done: change.bytes_done });
                operations.shared.kernel.changes.touch(ChangeKind::Subscription, change.subscription, now);
            }
            if foreign > 0 {
                operations.shared.control.note_foreign(agent, Claim::Progress, foreign);
            }
            if !events.is_empty() {
                operations.shared.kernel.changes.touch(ChangeKind::Status, "", now);
                operations.shared.kernel.notify_scheduler(Input::Events(events));
            }
            operations.learn_spaces(agent, &report.spaces)
        })
        .await
    }

    fn learn_spaces(&self, agent: AgentId, spaces: &[StorageSpace]) -> Result<(), Problem> {
        let directory = self.shared.kernel.directory();
        let control = &self.shared.control;
        let Some(speaker) = control.agents.agent(agent) else { return Ok(()) };
        let (mut news, mut foreign) = (Vec::new(), 0);
        let unconfirmed = control.agents.unconfirmed(agent);
        for space in spaces {
            // Its hello offered it in vain: no claim about a storage of another site.
            if unconfirmed.contains(&space.storage) {
                continue;
            }
            let Some(row) = directory.storage(space.storage.as_str()) else { continue };
            let serving = control.agents.of_storage(row.id).unwrap_or(row.agent);
            let subject = Subject { agent: serving, site: row.site, phase: Phase::Open };
            match admit(Claim::Space, (agent, speaker.site), Some(subject)) {
                Admission::Full => {}
                admission => {
                    foreign += u64::from(admission == Admission::Foreign);
                    continue;
                }
            }
            control.pool_reports.note(row.id, &space.pools);
            let moved = row.free_bytes.abs_diff(space.free_bytes) > space.total_bytes / SPACE_STEP;
            if row.trouble == space.trouble && row.total_bytes == space.total_bytes && !moved {
                continue;
            }
            if row.trouble != space.trouble {
                let trouble = space.trouble.as_ref().map(ToString::to_string);
                tracing::warn!(storage = %row.name, ?trouble, "storage");
            }
            news.push(SpaceRow {
                storage: row.id,
                total_bytes: space.total_bytes,
                free_bytes: space.free_bytes,
                trouble: space.trouble.clone(),
            });
        }
        if foreign > 0 {
            control.note_foreign(agent, Claim::Space, foreign);
        }
        if news.is_empty() {
            return Ok(());
        }
        self.shared.kernel.catalog.record_spaces(&news).map_err(problem)?;
        self.shared.kernel.refresh_directory().map_err(problem)
    }

    /// Waits for work. Empty-handed after `wait_ms`, or when the service stops.
    pub async fn agent_work(
        &self,
        peer: &AgentPeer,
        request: &WorkRequest,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Arc<Work>, Problem> {
        let deadline = tokio::time::Instant::now() + self.poll_wait(request);
        let over = async {
            tokio::select! {
                _ = tokio::time::sleep_until(deadline) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        };
        self.agent_work_until(peer, request, over).await
    }

    /// How long a poll may wait.
    pub(crate) fn poll_wait(&self, request: &WorkRequest) -> Duration {
        Duration::from_millis(u64::from(request.wait_ms.min(self.shared.config.limits.poll_ms)))
    }

    /// Waits for work until `over` is done.
    pub(crate) async fn agent_work_until(
        &self,
        peer: &AgentPeer,
        request: &WorkRequest,
        over: impl Future<Output = ()>,
    ) -> Result<Arc<Work>, Problem> {
        let version = agree(request.versions)?;
        let poll = self.shared.control.agents.open_poll(peer.agent)?;
        let mut over = std::pin::pin!(over);
        loop {
            // Armed before the look, so that nothing put in between is missed.
            let mut woken = std::pin::pin!(poll.wake.notified());
            woken.as_mut().enable();
            if let Some(work) = self.next_work(peer, request, version)? {
                return Ok(work);
            }
            let is_over = tokio::select! {
                biased;
                _ = woken => false,
                () = &mut over => true,
            };
            if is_over {
                return Ok(Arc::new(nothing(request.received, self.now())));
            }
        }
    }

    /// Work that is there now, for an agent that said hello.
    fn next_work(
        &self,
        peer: &AgentPeer,
        request: &WorkRequest,
        version: u16,
    ) -> Result<Option<Arc<Work>>, Problem> {
        let (agents, now) = (&self.shared.control.agents, self.now());
        let standing = agents.contact(peer.agent, request.incarnation, now)?;
        if standing != Standing::Present {
            return Ok(None);
        }
        Ok(agents.next_work(peer.agent, request.received, version, now))
    }
}

/// A parcel without anything in it; its number is one that the agent has.
fn nothing(received: u64, now: Timestamp) -> Work {
    Work { number: received, now, ..Work::default() }
}

fn agree(versions: VersionRange) -> Result<u16, Problem> {
    AGENT_PROTOCOL.agree(versions).ok_or_else(|| {
        let detail = format!(
            "the agent speaks versions {} to {} of the protocol, this service {} to {}",
            versions.lowest, versions.highest, AGENT_PROTOCOL.lowest, AGENT_PROTOCOL.highest
        );
        let older = if versions.highest < AGENT_PROTOCOL.lowest { "the agent" } else { "the service" };
        Problem::from(Fault::new(FaultCode::VersionMismatch, detail)).with_remedy(format!("upgrade {older}"))
    })
}

fn host(host: &str) -> Result<&str, Problem> {
    let plain = host.chars().all(|c| c.is_ascii_graphic());
    if host.is_empty() || host.len() > HOST_BYTES_MAX || !plain {
        return Err(
            Fault::new(FaultCode::BadRequest, "the host name is empty, too long or not printable").into()
        );
    }
    Ok(host)
}

fn check_hello(hello: &longhaul_api::agent::Hello) -> Result<(), Problem> {
    host(&hello.host)?;
    let bad = |detail: String| Err(Fault::new(FaultCode::BadRequest, detail).into());
    if hello.data_addresses.len() > AGENT_ADDRESSES_MAX
        || hello.data_addresses.iter().any(|text| host(text).is_err())
    {
        return bad(format!("at most {AGENT_ADDRESSES_MAX} data addresses, each host:port"));
    }
    if hello.storages.len() > AGENT_STORAGES_MAX {
        return bad(format!("at most {AGENT_STORAGES_MAX} storages an agent"));
    }
    for offer in &hello.storages {
        offer.rules.check().map_err(|error| {
            Problem::from(
                Fault::new(FaultCode::BadName, format!("name rules of {}: {error}", offer.name))
                    .with_source(error),
            )
        })?;
    }
    Ok(())
}

/// Entries come in their order, so that "everything up to" means something.
fn check_order(report: &Report) -> Result<(), Problem> {
    let ordered = report.entries.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
    if ordered && report.entries.first().is_none_or(|first| first.sequence > 0) {
        return Ok(());
    }
    Err(Fault::new(FaultCode::BadRequest, "the entries of the report are not in the order of their numbers")
        .into())
}
