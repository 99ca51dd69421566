//! The agent's calls to its service, as a trait, so that tests can play the service.
//!
//! [`HttpServiceApi`](crate::http_service_api::HttpServiceApi) is the real one. Each call ends in bounded
//! time and may be repeated if it failed.

use std::pin::Pin;

use longhaul_api::agent::{RenewReply, RenewRequest, Report, ReportReply, Work, WorkRequest};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::Credentials;

pub(crate) type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

pub(crate) trait ServiceApi: Send + Sync {
    fn report(&self, report: Report) -> Reply<'_, ReportReply>;
    fn work(&self, request: WorkRequest) -> Reply<'_, Work>;
    fn renew(&self, request: RenewRequest) -> Reply<'_, RenewReply>;
    /// Uses these credentials for new connections.
    fn use_credentials(&self, credentials: &Credentials) -> Result<(), Fault>;
}

/// Whether a fault is final for this agent: another incarnation has its identity, or the service belongs to
/// another deployment. All other faults may pass.
pub(crate) fn is_final(fault: &Fault) -> bool {
    matches!(fault.code, FaultCode::StaleIncarnation | FaultCode::ForeignDeployment)
}
