//! Delegated user credentials, encrypted at rest: proxies, tokens of jobs, refresh tokens.

use std::sync::Arc;

use longhaul_catalog::{Catalog, CatalogError, DatabaseFailure, DelegationRow};
use longhaul_security::{SecurityError, Vault};
use zeroize::Zeroizing;

/// The purpose under which tokens of files of jobs are sealed.
const JOB_TOKEN: &str = "token of a job";

/// Seals credentials on their way into the catalog and opens them on their way out.
pub struct DelegatedCredentials {
    catalog: Catalog,
    vault: Arc<Vault>,
}

impl DelegatedCredentials {
    pub fn new(catalog: Catalog, vault: Arc<Vault>) -> DelegatedCredentials {
        DelegatedCredentials { catalog, vault }
    }

    /// A credential that cannot be unsealed, because the key was lost, counts as absent: its owner may
    /// delegate again.
    pub fn get(&self, id: &str) -> Result<Option<DelegationRow>, CatalogError> {
        let Some(mut row) = self.catalog.delegation(id)? else { return Ok(None) };
        row.request = opened(&self.vault, id, "request", row.request);
        row.proxy = opened(&self.vault, id, "proxy", row.proxy);
        Ok(Some(row))
    }

    pub fn put(&self, row: DelegationRow) -> Result<(), CatalogError> {
        let id = row.id.clone();
        let request = sealed(&self.vault, &id, "request", row.request)?;
        let proxy = sealed(&self.vault, &id, "proxy", row.proxy)?;
        self.catalog.put_delegation(&DelegationRow { request, proxy, ..row })
    }

    /// A token in the form in which it is stored with a job.
    pub fn seal_token(&self, token: &str) -> Result<String, CatalogError> {
        self.vault.seal_text(JOB_TOKEN, token).map_err(damaged)
    }

    pub fn unseal_token(&self, sealed: &str) -> Result<Zeroizing<String>, CatalogError> {
        self.vault.unseal_text(JOB_TOKEN, sealed).map_err(damaged)
    }
}

/// Rows cannot change places, nor what is in them.
fn purpose(id: &str, what: &str) -> String {
    format!("{what} of {id}")
}

fn sealed(
    vault: &Vault,
    id: &str,
    what: &str,
    secret: Option<Vec<u8>>,
) -> Result<Option<Vec<u8>>, CatalogError> {
    let secret = secret.map(Zeroizing::new);
    secret.map(|secret| vault.seal(&purpose(id, what), &secret)).transpose().map_err(damaged)
}

fn opened(vault: &Vault, id: &str, what: &str, sealed: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match vault.unseal(&purpose(id, what), &sealed?) {
        Ok(secret) => Some(secret.to_vec()),
        Err(error) => {
            tracing::warn!(delegation = id, %error, "a delegated credential cannot be unsealed");
            None
        }
    }
}

fn damaged(error: SecurityError) -> CatalogError {
    CatalogError::Corrupt(DatabaseFailure::new(error.to_string(), error))
}
