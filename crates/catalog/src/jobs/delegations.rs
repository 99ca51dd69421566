//! Delegated credentials of users.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::Timestamp;

use crate::rows::codec::Columns;
use crate::{Catalog, CatalogError, DelegationRow};

impl Catalog {
    pub fn delegation(&self, id: &str) -> Result<Option<DelegationRow>, CatalogError> {
        self.delegation_cache().get(id.to_owned(), |id| {
            self.read(|tx| {
                let mut select = tx.prepare_cached(
                    "SELECT id, user, request, proxy, expires, details, changed FROM delegations WHERE id = \
                        ?1",
                )?;
                Ok(select.query_row([id], delegation_row).optional()?)
            })
        })
    }

    fn change_delegations<T>(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        self.delegation_cache().invalidate_after(|| self.write(change))
    }

    /// Stores a delegation, replacing any of the same id.
    pub fn put_delegation(&self, row: &DelegationRow) -> Result<(), CatalogError> {
        self.change_delegations(|tx| {
            tx.execute(
                "INSERT INTO delegations (id, user, request, proxy, expires, details, changed)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (id) DO UPDATE SET user = excluded.user,
                 request = excluded.request, proxy = excluded.proxy, expires = excluded.expires,
                 details = excluded.details, changed = excluded.changed",
                (
                    &row.id,
                    &row.user,
                    &row.request,
                    &row.proxy,
                    row.expires.map(|at| at.0),
                    &row.details,
                    row.changed.0,
                ),
            )?;
            Ok(())
        })
    }

    /// Deletes a delegation; returns whether there was one.
    pub fn delete_delegation(&self, id: &str) -> Result<bool, CatalogError> {
        self.change_delegations(|tx| Ok(tx.execute("DELETE FROM delegations WHERE id = ?1", [id])? > 0))
    }

    /// Deletes delegations that expired; returns how many.
    pub fn forget_delegations(&self, expired_before: Timestamp) -> Result<usize, CatalogError> {
        self.change_delegations(|tx| {
            Ok(tx
                .execute("DELETE FROM delegations WHERE expires < ?1 AND changed < ?1", [expired_before.0])?)
        })
    }
}

fn delegation_row(row: &Row<'_>) -> crate::sql::Result<DelegationRow> {
    Ok(DelegationRow {
        id: row.get(0)?,
        user: row.get(1)?,
        request: row.get(2)?,
        proxy: row.get(3)?,
        expires: row.maybe_time(4)?,
        details: row.get(5)?,
        changed: row.time(6)?,
    })
}
