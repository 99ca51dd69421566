//! Identities at a door: grid users by certificate, token holders by issuer.

use std::sync::Arc;

use longhaul_doors::{TokenVerifier, Users, VOMS, VerifyFuture};
use longhaul_gateways::issuers::Issuers;
use longhaul_model::Fault;
use longhaul_security::bearer::Audience;
use longhaul_security::grid::GridTrust;
use longhaul_security::{ClientIdentity, identify_client};
use parking_lot::Mutex;
use rustls::CommonState;
use tokio::sync::watch;

use super::{RELOAD_INTERVAL, stopped_within};
use crate::clock::ServiceClock;

/// Grid users of a door.
pub(super) struct DoorUsers {
    pub(super) trust: GridTrust,
    /// The deployment whose agents are accepted.
    pub(super) deployment: String,
    pub(super) clock: ServiceClock,
    /// Problems of the files that were logged last.
    pub(super) reported_problems: Mutex<Vec<String>>,
}

impl DoorUsers {
    /// Reloads changed files; unreadable ones leave the old state.
    pub(super) fn reload(&self) {
        let problems = match self.trust.reload(self.clock.now()) {
            Ok(looked) => looked.problems,
            Err(fault) => vec![fault.to_string()],
        };
        let mut told = self.reported_problems.lock();
        for problem in problems.iter().filter(|problem| !told.contains(problem)) {
            tracing::warn!("grid trust of a door: {problem}");
        }
        *told = problems;
    }
}

impl Users for DoorUsers {
    fn names(&self, connection: &CommonState) -> Result<Vec<String>, Fault> {
        let client = identify_client(connection, &self.deployment, Some(&self.trust), self.clock.now())?;
        Ok(match client {
            None => Vec::new(),
            Some(ClientIdentity::Agent(agent)) => vec![agent.to_string()],
            Some(ClientIdentity::Grid(user)) => {
                if let Some(problem) = &user.fqan_problem {
                    tracing::info!(subject = user.subject, problem, "attributes of a client do not count");
                }
                let attributes = user.fqans.iter().map(|fqan| format!("{VOMS}{fqan}"));
                std::iter::once(user.subject.clone()).chain(attributes).collect()
            }
        })
    }
}

/// Token issuers of a door.
pub(super) struct DoorIssuers {
    pub(super) issuers: Issuers,
    pub(super) clock: ServiceClock,
}

impl DoorIssuers {
    /// Refreshes the issuers' keys when they get old.
    pub(super) async fn refresh_on(self: Arc<Self>, mut stop: watch::Receiver<bool>) {
        while !stopped_within(RELOAD_INTERVAL, &mut stop).await {
            for (issuer, fault) in self.issuers.refresh(self.clock.now()).await {
                tracing::warn!(issuer, fault = %fault.chain(), "keys of a token issuer could not be fetched");
            }
        }
    }
}

impl TokenVerifier for DoorIssuers {
    fn verify<'a>(&'a self, token: &'a str) -> VerifyFuture<'a> {
        Box::pin(self.issuers.verify(token, Audience::Ours, self.clock.now()))
    }
}
