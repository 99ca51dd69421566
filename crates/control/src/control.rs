//! What the loops and the facades of the control plane share beyond the kernel: agents and what runs.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::native::ChangeKind;
use longhaul_catalog::{Claim, CopyTerms, NameOwner};
use longhaul_model::mark::MarkTable;
use longhaul_model::{AgentId, StorageName};
use longhaul_security::Authority;

use crate::agents::Agents;
use crate::deadlines::Deadlines;
use crate::executor::AgentStreams;
use crate::foreign_claims::ForeignClaims;
use crate::kernel::Kernel;
use crate::live::Live;
use crate::lost_files::LostFiles;
use crate::mover_grants::CurrentMoverGrants;
use crate::pool_reports::PoolReports;
use crate::recorded::Recording;
use crate::staging::Staging;
use crate::turned_away::TurnedAway;

pub struct Control {
    pub kernel: Arc<Kernel>,
    /// Signs permits and certificates.
    pub authority: Authority,
    pub agents: Agents,
    pub live: Live,
    pub deadlines: Deadlines,
    pub foreign_claims: ForeignClaims,
    pub lost_files: LostFiles,
    pub marks: MarkTable,
    pub mover_grants: CurrentMoverGrants,
    /// What agents say of the pools of their storages.
    pub pool_reports: PoolReports,
    pub recording: Arc<Recording>,
    /// What subscriptions want from tape.
    pub staging: Staging,
    pub turned_away: TurnedAway,
    pub(crate) streams: Arc<dyn AgentStreams>,
    /// How often agents report.
    pub(crate) report_interval_ms: u32,
    /// How long an agent of a shared storage may be silent before another one fences it.
    pub(crate) fence_after: Duration,
    /// Copies verified longer ago do not count as good ones. None: their age does not matter.
    verified_within_us: Option<u64>,
}

impl Control {
    pub fn new(
        kernel: Arc<Kernel>,
        authority: Authority,
        agents: Agents,
        marks: MarkTable,
        staging: Staging,
        streams: Arc<dyn AgentStreams>,
        report_interval_ms: u32,
        fence_after: Duration,
        verified_within_us: Option<u64>,
    ) -> Control {
        Control {
            kernel,
            authority,
            agents,
            live: Live::default(),
            deadlines: Deadlines::default(),
            foreign_claims: ForeignClaims::default(),
            lost_files: LostFiles::default(),
            marks,
            mover_grants: CurrentMoverGrants::default(),
            pool_reports: PoolReports::default(),
            recording: Arc::default(),
            staging,
            turned_away: TurnedAway::default(),
            streams,
            report_interval_ms,
            fence_after,
            verified_within_us,
        }
    }

    /// Counts claims of an agent about things of other sites. They have changed nothing.
    pub fn note_foreign(&self, agent: AgentId, claim: Claim, times: u64) {
        let Some(info) = self.agents.agent(agent) else { return };
        let now = self.kernel.now();
        tracing::warn!(%agent, site = %info.site_name, host = %info.host, claim = claim.word(), times,
            "refused what an agent says about another site's things");
        self.kernel.metrics.count(
            "longhaul_foreign_claims_total",
            "What agents said about things of other sites, by agent and kind. It changed nothing.",
            vec![
                ("site", info.site_name.to_string()),
                ("agent", agent.to_string()),
                ("claim", claim.word().to_owned()),
            ],
            times,
        );
        if self.foreign_claims.record(agent, (&info.site_name, &info.host), claim, times, now) {
            self.kernel.changes.touch(ChangeKind::Problem, "", now);
        }
    }

    /// The storages that were left out of the agent's last hello and would be left out again, each with the
    /// owner of its name.
    pub fn unconfirmed_storages(&self, agent: AgentId) -> Vec<(StorageName, Option<NameOwner>)> {
        let names = self.agents.unconfirmed(agent);
        if names.is_empty() {
            return Vec::new();
        }
        let Some(info) = self.agents.agent(agent) else { return Vec::new() };
        let (directory, now) = (self.kernel.directory(), self.kernel.now());
        let is_served_by_other = |name: &StorageName| {
            let row = directory.storage(name.as_str());
            row.is_some_and(|row| self.agents.other_holder(agent, row.id, row.agent, now).is_some())
        };
        let is_left_out = |name: &StorageName| {
            !directory.name_owners.may_serve(info.site, name) || is_served_by_other(name)
        };
        let with_owner = names.into_iter().filter(is_left_out).map(|name| {
            let owner = directory.name_owners.find_owner(&name);
            (name, owner)
        });
        with_owner.collect()
    }

    /// What decides now whether a copy counts as a good one: which agents are connected, and how long ago it
    /// may have been verified.
    pub fn copy_terms(&self) -> CopyTerms {
        let now = self.kernel.now();
        let reachable = self.agents.reachable_storages(now);
        let storages = self.kernel.directory();
        let unreachable = storages.storages.keys().copied().filter(|storage| !reachable.contains(storage));
        CopyTerms { now, verified_within_us: self.verified_within_us, unreachable: unreachable.collect() }
    }
}
