//! The three things an agent says to its service, as an interface, so that tests can script the other side.
//! [`HttpControl`](crate::http_service_api::HttpControl) is the real one. Each call answers or fails in bounded time, and
//! may be repeated if it failed.

use std::pin::Pin;

use longhaul_api::agent::{RenewReply, RenewRequest, Report, ReportReply, Work, WorkRequest};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::Credentials;

pub(crate) type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send + 'a>>;

pub(crate) trait ServiceApi: Send + Sync {
    fn report(&self, report: Report) -> Reply<'_, ReportReply>;
    fn work(&self, request: WorkRequest) -> Reply<'_, Work>;
    fn renew(&self, request: RenewRequest) -> Reply<'_, RenewReply>;
    /// New connections use these.
    fn use_credentials(&self, credentials: &Credentials) -> Result<(), Fault>;
}

/// Whether an answer means that this agent must end: somebody else has its identity, or the service is of
/// another deployment. Anything else may pass.
pub(crate) fn is_final(fault: &Fault) -> bool {
    matches!(fault.code, FaultCode::StaleIncarnation | FaultCode::ForeignDeployment)
}
