//! Login sessions: what a restart of the service must not forget of them. Who they stand for is read from
//! their API token or account, so that a session never has more rights than these.

use longhaul_model::Timestamp;

use crate::rows::codec::Columns;
use crate::{Catalog, CatalogError, LoginSessionRow};

impl Catalog {
    pub fn add_login_session(&self, session: &LoginSessionRow) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.execute(
                "INSERT INTO login_sessions (hash, token, account, holder, created, expires)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (
                    session.hash,
                    session.token,
                    &session.account,
                    &session.holder,
                    session.created.0,
                    session.expires.0,
                ),
            )?;
            Ok(())
        })
    }

    /// The sessions that have not ended, those that last longest first.
    pub fn login_sessions(&self, now: Timestamp) -> Result<Vec<LoginSessionRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(
                "SELECT hash, token, account, holder, created, expires FROM login_sessions
                 WHERE expires > ?1 ORDER BY expires DESC, hash",
            )?;
            let rows = select.query_map([now.0], |row| {
                Ok(LoginSessionRow {
                    hash: row.get(0)?,
                    token: row.get(1)?,
                    account: row.get(2)?,
                    holder: row.get(3)?,
                    created: row.time(4)?,
                    expires: row.time(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Removes these sessions, and those that have ended.
    pub fn remove_login_sessions(&self, hashes: &[[u8; 32]], now: Timestamp) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.execute("DELETE FROM login_sessions WHERE expires <= ?1", [now.0])?;
            for hash in hashes {
                tx.execute("DELETE FROM login_sessions WHERE hash = ?1", [*hash])?;
            }
            Ok(())
        })
    }
}
