//! Renews the agent's certificate when half of its lifetime is over.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{RenewReply, RenewRequest};
use longhaul_model::Fault;
use longhaul_security::{needs_renewal, new_signing_request};

use crate::context::AgentContext;
use crate::service_api::is_final;
use crate::state_dir::Identity;
use crate::step::{AgentTime, Step, Ticker};

/// Often enough beside half of 30 days, during which a failed renewal can be tried again.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(600);

/// Asks for a new certificate in time, with a new key each time.
pub(crate) struct CertificateRenewal {
    context: Arc<AgentContext>,
    ticker: Ticker,
    /// The identity with its new key, while its certificate is being asked for.
    requested: Option<Identity>,
}

impl CertificateRenewal {
    pub(crate) fn new(context: Arc<AgentContext>) -> Self {
        CertificateRenewal { context, ticker: Ticker::immediate(RENEWAL_CHECK_INTERVAL), requested: None }
    }

    /// The request for a certificate, if it is time for one.
    pub(crate) fn step(&mut self, now: AgentTime) -> Step<RenewRequest> {
        if self.requested.is_some() {
            return Step::wait();
        }
        if self.ticker.tick(now).is_some() {
            match self.request() {
                Ok(Some(request)) => return Step::send(request),
                Ok(None) => {}
                Err(fault) => warn(&fault),
            }
        }
        Step { send: None, wake_at: self.ticker.due() }
    }

    fn request(&mut self) -> Result<Option<RenewRequest>, Fault> {
        let mut identity = self.context.identity.lock().clone();
        if !needs_renewal(&identity.certificate, self.context.clock.now())? {
            return Ok(None);
        }
        let (signing_request, key) = new_signing_request()?;
        identity.key = key;
        self.requested = Some(identity);
        Ok(Some(RenewRequest { signing_request }))
    }

    /// The service's answer. Returns a fault after which there is no point in going on. May wait for a disk.
    pub(crate) fn on_reply(&mut self, reply: Result<RenewReply, Fault>) -> Result<(), Fault> {
        let Some(identity) = self.requested.take() else { return Ok(()) };
        match reply.and_then(|reply| self.take_over(identity, reply)) {
            Ok(()) => tracing::info!("the certificate was renewed"),
            Err(fault) if is_final(&fault) => return Err(fault),
            Err(fault) => warn(&fault),
        }
        Ok(())
    }

    /// The old credentials stay in use until it is certain that the new ones can be used.
    fn take_over(&self, mut identity: Identity, reply: RenewReply) -> Result<(), Fault> {
        identity.certificate = reply.certificate;
        identity.ca = reply.ca;
        let credentials = identity.credentials();
        self.context.engine.renew(&credentials)?;
        self.context.service.use_credentials(&credentials)?;
        self.context.state.save_identity(&identity)?;
        *self.context.identity.lock() = identity;
        Ok(())
    }
}

fn warn(fault: &Fault) {
    tracing::warn!(fault = %fault.chain(), "the certificate could not be renewed; trying again");
}
