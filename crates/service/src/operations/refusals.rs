//! Agents that are to be let in no more.

use longhaul_api::Problem;
use longhaul_api::native::{AgentRefusal, AgentRefused};
use longhaul_control::commit_loop::{CommitWork, RefuseAgent};
use longhaul_model::AgentId;
use longhaul_model::units::printable;

use super::{Operations, bad_request, not_found, problem};

const REASON_BYTES_MAX: usize = 500;

impl Operations {
    /// Tells what the refusal of an agent means; refuses it if it is no dry run.
    pub fn agent_refuse(&self, agent: AgentId, request: &AgentRefusal) -> Result<AgentRefused, Problem> {
        let reason = printable(request.reason.trim());
        if reason.is_empty() || reason.len() > REASON_BYTES_MAX {
            return Err(bad_request(format!("a reason has 1 to {REASON_BYTES_MAX} bytes")));
        }
        let catalog = &self.shared.kernel.catalog;
        let row = catalog.agent(agent).map_err(problem)?;
        let row = row.ok_or_else(|| not_found("agent", agent, "longhaul site show SITE"))?;
        let concerns = catalog.agent_concerns(agent).map_err(problem)?;
        if !request.dry_run {
            self.commit(|reply| CommitWork::RefuseAgent(RefuseAgent { agent, reason, reply }))?;
        }
        Ok(AgentRefused {
            agent,
            site: row.site_name,
            refused: self.shared.control.agents.check_admitted(agent).is_err(),
            certificate_expires: row.certificate_expires,
            storages: concerns.storages,
            files: concerns.files,
            bytes: concerns.bytes,
            leases_in: concerns.leases_in,
            leases_out: concerns.leases_out,
            tasks: concerns.tasks,
            subscriptions: concerns.subscriptions,
        })
    }
}
