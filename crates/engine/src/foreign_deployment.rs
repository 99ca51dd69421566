//! Credentials in another deployment, for sources that belong to it.

use std::sync::Arc;

use longhaul_model::{DataSecurity, Fault};
use longhaul_security::Credentials;
use rustls::ClientConfig;

use crate::context::TlsSettings;

/// Enables an engine to dial the agents of another deployment. Agents of that deployment are not served.
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
        write!(f, "ForeignDeployment({})", self.0.deployment)
    }
}
