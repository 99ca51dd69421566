//! Tokens, idempotency keys (draft-ietf-httpapi-idempotency-key-header) and settings.

use std::time::Duration;

use crate::sql::{Optional, Row};
use longhaul_model::{SiteId, Timestamp};

use crate::rows::codec::{Columns, key};
use crate::sites::{ensure_not_removed, site_by_id};
use crate::{ApiTokenRow, Catalog, CatalogError, JoinRefusal, NewApiToken, SiteRow};

/// The columns that [`token_row`] reads.
const SELECT_TOKEN: &str =
    "SELECT hash, name, role, expires, created, scopes, community, sites FROM api_tokens";

/// How long the reply to an idempotency key is kept. A repeated request after that counts as a new one.
const IDEMPOTENT_REPLY_TTL: Duration = Duration::from_secs(24 * 3_600);

impl Catalog {
    pub fn add_join_token(
        &self,
        hash: [u8; 32],
        site: SiteId,
        expires: Timestamp,
        now: Timestamp,
    ) -> Result<(), CatalogError> {
        self.write(|tx| {
            ensure_not_removed(tx, site)?;
            tx.execute(
                "INSERT INTO join_tokens (hash, site, expires, created) VALUES (?1, ?2, ?3, ?4)",
                (hash, key!(site), expires.0, now.0),
            )?;
            Ok(())
        })
    }

    /// Redeems the token, which works once; returns its site.
    pub fn redeem_join_token(
        &self,
        hash: [u8; 32],
        now: Timestamp,
    ) -> Result<Result<SiteRow, JoinRefusal>, CatalogError> {
        self.write(|tx| {
            let mut select =
                tx.prepare_cached("SELECT site, expires, used FROM join_tokens WHERE hash = ?1")?;
            let found = select
                .query_row([hash], |row| Ok((row.id::<SiteId>(0)?, row.time(1)?, row.maybe_time(2)?)))
                .optional()?;
            let (site, expires, used) = match found {
                None => return Ok(Err(JoinRefusal::Unknown)),
                Some(found) => found,
            };
            if let Some(at) = used {
                return Ok(Err(JoinRefusal::Used(at)));
            }
            if now >= expires {
                return Ok(Err(JoinRefusal::Expired(expires)));
            }
            tx.execute("UPDATE join_tokens SET used = ?2 WHERE hash = ?1", (hash, now.0))?;
            Ok(Ok(site_by_id(tx, site)?))
        })
    }

    pub fn add_api_token(&self, token: &NewApiToken, now: Timestamp) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.execute(
                "INSERT INTO api_tokens (hash, name, role, expires, created, scopes, community, sites)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                (
                    token.hash,
                    &token.name,
                    &token.role,
                    token.expires.map(|at| at.0),
                    now.0,
                    &token.scopes,
                    token.community.as_ref().map(|name| name.as_str()),
                    &token.sites,
                ),
            )?;
            Ok(())
        })
    }

    /// Finds a token, expired or not: the caller knows the time.
    pub fn api_token(&self, hash: [u8; 32]) -> Result<Option<ApiTokenRow>, CatalogError> {
        self.api_token_cache().get(hash, |hash| {
            self.read(|tx| {
                let mut select = tx.prepare_cached(&format!("{SELECT_TOKEN} WHERE hash = ?1"))?;
                Ok(select.query_row([hash], token_row).optional()?)
            })
        })
    }

    pub fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_TOKEN} ORDER BY name, hash"))?;
            let rows = select.query_map((), token_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Removes a token; returns whether there was one of that name.
    pub fn remove_api_token(&self, name: &str) -> Result<bool, CatalogError> {
        self.api_token_cache().invalidate_after(|| {
            self.write(|tx| Ok(tx.execute("DELETE FROM api_tokens WHERE name = ?1", [name])? > 0))
        })
    }

    /// The reply that an earlier request with this key got.
    pub fn idempotent(&self, key: &str) -> Result<Option<String>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached("SELECT reply FROM idempotency WHERE key = ?1")?;
            Ok(select.query_row([key], |row| row.get(0)).optional()?)
        })
    }

    /// Records the first reply under this key; deletes those older than a day.
    pub fn remember_idempotent(&self, key: &str, reply: &str, now: Timestamp) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.execute("DELETE FROM idempotency WHERE at < ?1", [(now - IDEMPOTENT_REPLY_TTL).0])?;
            tx.execute(
                "INSERT INTO idempotency (key, reply, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                (key, reply, now.0),
            )?;
            Ok(())
        })
    }

    pub fn setting(&self, name: &str) -> Result<Option<String>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached("SELECT value FROM settings WHERE name = ?1")?;
            Ok(select.query_row([name], |row| row.get(0)).optional()?)
        })
    }

    pub fn set_setting(&self, name: &str, value: &str) -> Result<(), CatalogError> {
        self.write(|tx| {
            tx.execute(
                "INSERT INTO settings (name, value) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                (name, value),
            )?;
            Ok(())
        })
    }

    /// The highest generated id in use, for `IdMaker::after`.
    pub fn last_id(&self) -> Result<u64, CatalogError> {
        // Each reads the end of an index.
        const IDS: [&str; 9] = [
            "SELECT max(id) FROM agents",
            "SELECT max(id) FROM subscriptions",
            "SELECT max(id) FROM tasks",
            "SELECT max(id) FROM live",
            "SELECT max(attempt) FROM live",
            "SELECT max(attempt) FROM choices",
            "SELECT max(transfer) FROM history",
            "SELECT max(attempt) FROM job_attempts",
            "SELECT max(id) FROM circuit_orders",
        ];
        self.read(|tx| {
            let mut last = 0;
            for statement in IDS {
                let found = tx.prepare_cached(statement)?.query_row((), |row| row.maybe_number(0))?;
                last = last.max(found.unwrap_or(0));
            }
            Ok(last)
        })
    }
}

fn token_row(row: &Row<'_>) -> crate::sql::Result<ApiTokenRow> {
    Ok(ApiTokenRow {
        hash: row.get(0)?,
        name: row.get(1)?,
        role: row.get(2)?,
        expires: row.maybe_time(3)?,
        created: row.time(4)?,
        scopes: row.get(5)?,
        community: if row.is_null(6)? { None } else { Some(row.parsed(6)?) },
        sites: row.get(7)?,
    })
}
