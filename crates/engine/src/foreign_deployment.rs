//! Credentials in a deployment besides the engine's own, for sources that belong to another.

use std::sync::Arc;

use longhaul_model::{DataSecurity, Fault};
use longhaul_security::Credentials;
use rustls::ClientConfig;

use crate::context::TlsSettings;

/// Lets an engine dial the agents of another deployment. Nobody of that deployment is served.
#[derive(Clone)]
pub struct ForeignDeployment(Arc<Inner>);

struct Inner {
    deployment: Arc<str>,
    client: Arc<ClientConfig>,
}

impl ForeignDeployment {
    pub(crate) fn new(
        deployment: &str,
        credentials: &Credentials,
        security: DataSecurity,
    ) -> Result<ForeignDeployment, Fault> {
        let client = TlsSettings::new(credentials, security)?.client;
        Ok(ForeignDeployment(Arc::new(Inner { deployment: deployment.into(), client })))
    }

    pub(crate) fn deployment(&self) -> &Arc<str> {
        &self.0.deployment
    }

    pub(crate) fn client(&self) -> &Arc<ClientConfig> {
        &self.0.client
    }
}

impl std::fmt::Debug for ForeignDeployment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({})", self.0.deployment)
    }
}
