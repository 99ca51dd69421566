//! Joining a deployment: exchanges a join token for an identity, once per state directory.

use std::path::Path;

use longhaul_api::AGENT_PROTOCOL;
use longhaul_api::agent::{JoinReply, JoinRequest};
use longhaul_model::{AgentId, Fault, FaultCode, SiteName};
use longhaul_security::{JoinToken, PermitVerifier, new_signing_request};

use crate::agent::host_name;
use crate::http_service_api;
use crate::state_dir::{Identity, StateDir};
use crate::threads::blocking;

/// The identity that an agent was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedAgent {
    pub agent: AgentId,
    pub site: SiteName,
    pub deployment: String,
}

/// Joins the deployment at `url` (by default the token's) and stores the identity in `state_dir`. The service
/// is authenticated by the CA fingerprint in the token; the private key is generated here and never leaves.
pub async fn join(url: Option<&str>, token: &JoinToken, state_dir: &Path) -> Result<JoinedAgent, Fault> {
    let (token, url, directory) = (token.clone(), url.map(str::to_owned), state_dir.to_path_buf());
    let ca_fingerprint = token.ca_fingerprint.clone();
    let (pending, request) =
        blocking(move || begin_join(url.as_deref(), &token, &directory, host_name())).await?;
    let reply = http_service_api::join(&pending.url, &ca_fingerprint, request).await?;
    blocking(move || pending.finish(reply)).await
}

/// A join whose request is under way. Holds the state directory.
pub struct PendingJoin {
    url: String,
    state: StateDir,
    key: String,
}

/// Makes the request by which the agent on `host` joins.
pub fn begin_join(
    url: Option<&str>,
    token: &JoinToken,
    state_dir: &Path,
    host: String,
) -> Result<(PendingJoin, JoinRequest), Fault> {
    let state = open_unjoined(state_dir)?;
    let url = url.unwrap_or(&token.url).to_owned();
    let (signing_request, key) = new_signing_request()?;
    let request =
        JoinRequest { versions: AGENT_PROTOCOL, secret: token.secret.clone(), signing_request, host };
    Ok((PendingJoin { url, state, key }, request))
}

impl PendingJoin {
    /// Checks the identity that the service gave, and stores it durably.
    pub fn finish(self, reply: JoinReply) -> Result<JoinedAgent, Fault> {
        let identity = Identity {
            service_url: self.url,
            deployment: reply.deployment,
            site: reply.site,
            agent: reply.agent,
            certificate: reply.certificate,
            key: self.key,
            ca: reply.ca,
            permit_key: reply.permit_key,
        };
        identity.credentials().identity()?;
        PermitVerifier::new(&identity.permit_key)?;
        self.state.save_identity(&identity)?;
        Ok(JoinedAgent { agent: identity.agent, site: identity.site, deployment: identity.deployment })
    }
}

/// Opens the state directory first: a token must not be spent on one that is not writable or has an identity
/// already.
fn open_unjoined(directory: &Path) -> Result<StateDir, Fault> {
    let state = StateDir::open(directory)?;
    match state.identity()? {
        None => Ok(state),
        Some(identity) => {
            let detail = format!(
                "{} is agent {} of site {} already; give another state directory for another agent",
                directory.display(),
                identity.agent,
                identity.site
            );
            Err(Fault::new(FaultCode::AlreadyExists, detail))
        }
    }
}
