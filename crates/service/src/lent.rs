//! What users lend us to act for them: proxies, tokens, and those that last. In the catalog all of it is
//! sealed.

use longhaul_catalog::{CatalogError, DelegationRow};
use longhaul_security::{SecurityError, Vault};
use zeroize::Zeroizing;

use crate::shared::Shared;

/// Tokens of files of jobs.
const TOKEN: &str = "token of a job";

impl Shared {
    /// What does not open, since its key was lost, is as good as not lent: its owner may lend it again.
    pub fn delegation(&self, id: &str) -> Result<Option<DelegationRow>, CatalogError> {
        let Some(mut row) = self.catalog.delegation(id)? else { return Ok(None) };
        row.request = opened(&self.vault, id, "request", row.request);
        row.proxy = opened(&self.vault, id, "proxy", row.proxy);
        Ok(Some(row))
    }

    pub fn put_delegation(&self, row: DelegationRow) -> Result<(), CatalogError> {
        let id = row.id.clone();
        let request = sealed(&self.vault, &id, "request", row.request)?;
        let proxy = sealed(&self.vault, &id, "proxy", row.proxy)?;
        self.catalog.put_delegation(&DelegationRow { request, proxy, ..row })
    }

    /// A token, to be kept with a job.
    pub fn seal_token(&self, token: &str) -> Result<String, CatalogError> {
        self.vault.seal_text(TOKEN, token).map_err(damaged)
    }

    pub fn unseal_token(&self, sealed: &str) -> Result<Zeroizing<String>, CatalogError> {
        self.vault.unseal_text(TOKEN, sealed).map_err(damaged)
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
            tracing::warn!(delegation = id, %error, "what a user lent cannot be used");
            None
        }
    }
}

fn damaged(error: SecurityError) -> CatalogError {
    CatalogError::Corrupt(error.to_string())
}
