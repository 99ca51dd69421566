//! Renews the agent's certificate when two thirds of its life are over.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::RenewRequest;
use longhaul_model::Fault;
use longhaul_security::{needs_renewal, new_signing_request};
use tokio::time::sleep;

use crate::context::AgentContext;
use crate::service_api::is_final;
use crate::threads::blocking;
use crate::threads::locked;

/// Often enough beside a third of 90 days, during which a failed renewal can be tried again.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Runs until there is no point in going on.
pub(crate) async fn run(context: Arc<AgentContext>) -> Fault {
    loop {
        match renew_if_due(&context).await {
            Ok(false) => {}
            Ok(true) => tracing::info!("the certificate was renewed"),
            Err(fault) if is_final(&fault) => return fault,
            Err(fault) => tracing::warn!(%fault, "the certificate could not be renewed; trying again"),
        }
        sleep(RENEWAL_CHECK_INTERVAL).await;
    }
}

/// With a new key each time. The old credentials stay in use until the new ones are on the disk.
pub(crate) async fn renew_if_due(context: &Arc<AgentContext>) -> Result<bool, Fault> {
    let mut identity = locked(&context.identity).clone();
    if !needs_renewal(&identity.certificate, context.clock.now())? {
        return Ok(false);
    }
    let (signing_request, key) = new_signing_request()?;
    let reply = context.service.renew(RenewRequest { signing_request }).await?;
    identity.certificate = reply.certificate;
    identity.ca = reply.ca;
    identity.key = key;
    let credentials = identity.credentials();
    // What cannot be used is found out before it replaces what can.
    context.engine.renew(&credentials)?;
    context.service.use_credentials(&credentials)?;
    let keep = context.clone();
    blocking(move || {
        keep.state.save_identity(&identity)?;
        *locked(&keep.identity) = identity;
        Ok(true)
    })
    .await
}
