//! The audit log of administration and logins. Each change of a setting, a storage or an account is recorded
//! in its own transaction: who made it, when, and what it was. Logins and refused logins are recorded too.

use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{StorageName, Timestamp};

use crate::rows::codec::{Columns, key};
use crate::{AuditKind, AuditRow, Catalog, CatalogError, PAGE_ROWS_MAX, StoragePatch, StorageRow};

/// Audit entries kept of each kind; the oldest are deleted.
const AUDIT_ENTRIES_MAX: i64 = 10_000;

impl Catalog {
    /// Changes a setting. `change` gets the present value and returns the new one and a sentence for the log;
    /// its error changes nothing.
    pub fn change_setting<E: From<CatalogError>>(
        &self,
        setting: &str,
        who: &str,
        now: Timestamp,
        change: impl FnOnce(Option<&str>) -> Result<(String, String), E>,
    ) -> Result<(), E> {
        self.change_settings::<E, 1>([setting], who, now, |[present]| {
            let (value, what) = change(present.as_deref())?;
            Ok(([value], what))
        })
    }

    /// Changes several settings in one transaction, recorded in one sentence: all of them or, where `change`
    /// fails, none.
    pub fn change_settings<E: From<CatalogError>, const COUNT: usize>(
        &self,
        settings: [&str; COUNT],
        who: &str,
        now: Timestamp,
        change: impl FnOnce([Option<String>; COUNT]) -> Result<([String; COUNT], String), E>,
    ) -> Result<(), E> {
        self.write(|tx| {
            let mut present = [const { None::<String> }; COUNT];
            for (setting, place) in settings.iter().zip(&mut present) {
                *place = read_setting(tx, setting)?;
            }
            let (values, what) = change(present)?;
            for (setting, value) in settings.iter().zip(&values) {
                tx.execute(
                    "INSERT INTO settings (name, value) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (*setting, value),
                )
                .map_err(CatalogError::from)?;
            }
            Ok(record_change(tx, who, &what, now)?)
        })
    }

    /// Changes how a storage is used: as a relay, its strategy for sources, and its space policy.
    pub fn change_storage(
        &self,
        name: &StorageName,
        patch: &StoragePatch,
        who: &str,
        now: Timestamp,
    ) -> Result<StorageRow, CatalogError> {
        self.write(|tx| {
            let known = crate::sites::find_storage(tx, name)?;
            let mut row = known.ok_or_else(|| CatalogError::not_found("storage", name))?;
            row.relay = patch.relay.unwrap_or(row.relay);
            row.strategy = patch.strategy.clone().unwrap_or(row.strategy);
            tx.execute_deferred(
                "UPDATE storages SET relay = ?2, strategy = ?3 WHERE id = ?1",
                (key!(row.id), row.relay, &row.strategy),
            )?;
            if let Some(policy) = patch.space_policy {
                row.space_policy = policy;
                tx.execute(
                    "INSERT INTO settings (name, value) VALUES (?1, ?2)
                     ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (&format!("space-policy/{name}"), policy.word()),
                )?;
            }
            let relay = if row.relay { "a relay" } else { "no relay" };
            let strategy = row.strategy.as_deref().unwrap_or("the service's strategy");
            let room = row.space_policy.word();
            let what = format!("storage {name}: {relay}, sources by {strategy}, beyond its space: {room}");
            record_change(tx, who, &what, now)?;
            Ok(row)
        })
    }

    /// Records a login or a refused one.
    pub fn record_login(&self, who: &str, what: &str, now: Timestamp) -> Result<(), CatalogError> {
        self.write(|tx| record_entry(tx, AuditKind::Login, who, what, now))
    }

    /// Audit entries, newest first, of one kind or of all, before the id `before` if given.
    pub fn audit(
        &self,
        kind: Option<AuditKind>,
        before: Option<u64>,
        limit: usize,
    ) -> Result<Vec<AuditRow>, CatalogError> {
        let (before, limit) =
            (before.map_or(i64::MAX, crate::rows::codec::number), limit.min(PAGE_ROWS_MAX + 1) as i64);
        let entry = |row: &Row<'_>| {
            Ok(AuditRow { id: row.number(0)?, at: row.time(1)?, who: row.get(2)?, what: row.get(3)? })
        };
        self.read(|tx| {
            let Some(kind) = kind else {
                let mut select = tx.prepare_cached(
                    "SELECT id, at, who, what FROM audit WHERE id < ?1 ORDER BY id DESC LIMIT ?2",
                )?;
                let rows = select.query_map((before, limit), entry)?;
                return Ok(rows.collect::<Result<_, _>>()?);
            };
            let mut select = tx.prepare_cached(
                "SELECT id, at, who, what FROM audit WHERE kind = ?1 AND id < ?2 ORDER BY id DESC LIMIT ?3",
            )?;
            let rows = select.query_map((kind.word(), before, limit), entry)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

fn read_setting(tx: &Transaction<'_>, setting: &str) -> Result<Option<String>, CatalogError> {
    let select = "SELECT value FROM settings WHERE name = ?1";
    Ok(tx.query_row(select, [setting], |row| row.get::<String>(0)).optional()?)
}

pub(crate) fn record_change(
    tx: &Transaction<'_>,
    who: &str,
    what: &str,
    now: Timestamp,
) -> Result<(), CatalogError> {
    record_entry(tx, AuditKind::Change, who, what, now)
}

pub(crate) fn record_entry(
    tx: &Transaction<'_>,
    kind: AuditKind,
    who: &str,
    what: &str,
    now: Timestamp,
) -> Result<(), CatalogError> {
    let kind = kind.word();
    tx.execute_deferred(
        "INSERT INTO audit (kind, at, who, what) VALUES (?1, ?2, ?3, ?4)",
        (kind, now.0, who, what),
    )?;
    tx.execute_deferred(
        "DELETE FROM audit WHERE kind = ?1 AND id <=
         (SELECT id FROM audit WHERE kind = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
        (kind, AUDIT_ENTRIES_MAX),
    )?;
    Ok(())
}
