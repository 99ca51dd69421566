//! Agents that are to be let in no more.

use longhaul_api::Problem;
use longhaul_api::formats::REASON_CHARS_MAX;
use longhaul_api::native::{AgentRefusal, AgentRefused};
use longhaul_control::commit_loop::{CommitWork, RefuseAgent};
use longhaul_model::AgentId;
use longhaul_model::units::printable;

use super::{Operations, bad_request, not_found, problem, unprocessable};

impl Operations {
    /// Tells what the refusal of an agent means; refuses it if it is no dry run.
    pub fn agent_refuse(&self, agent: AgentId, request: &AgentRefusal) -> Result<AgentRefused, Problem> {
        let reason = printable(request.reason.trim());
        if request.reason.chars().count() > REASON_CHARS_MAX {
            return Err(bad_request(format!("a reason has at most {REASON_CHARS_MAX} characters")));
        }
        if reason.is_empty() {
            return Err(unprocessable("the reason says nothing: whoever meets the refusal reads it"));
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
