//! Local accounts. Only password hashes reach this crate.

use crate::audit::{record_change, record_entry};
use crate::sql::{Optional, Row, Transaction};
use longhaul_model::{FaultCode, SiteName, Timestamp};

use crate::rows::codec::Columns;
use crate::{AccountPatch, AccountRow, AuditKind, Catalog, CatalogError, NewAccount, PAGE_ROWS_MAX};

/// Local accounts: ten times the people who share a deployment. More people log in through an issuer.
pub const ACCOUNTS_MAX: i64 = 10_000;

/// The columns that [`account_row`] reads.
const SELECT_ACCOUNT: &str = "SELECT name, password, role, community, disabled, created, password_since, \
    last_login, sites FROM accounts";

/// The condition that `sites`, names separated by blanks, has the one of the parameter, which stands between
/// blanks.
const MANAGES_SITE: &str = "replace(' ' || sites || ' ', ?1, ' ') <> ' ' || sites || ' '";

impl Catalog {
    pub fn add_account(
        &self,
        account: &NewAccount,
        who: &str,
        now: Timestamp,
    ) -> Result<AccountRow, CatalogError> {
        self.write(|tx| {
            if find(tx, &account.name)?.is_some() {
                let detail = format!("the account {} exists already", account.name);
                return Err(CatalogError::refused(FaultCode::AlreadyExists, detail));
            }
            let count: i64 = tx.query_row("SELECT count(*) FROM accounts", (), |row| row.get(0))?;
            if count >= ACCOUNTS_MAX {
                return Err(CatalogError::conflict(format!(
                    "there are {count} accounts, which is the limit"
                )));
            }
            tx.execute(
                "INSERT INTO accounts (name, password, role, community, created, password_since, sites)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)",
                (
                    &account.name,
                    &account.password,
                    &account.role,
                    account.community.as_ref().map(|name| name.as_str()),
                    now.0,
                    &account.sites,
                ),
            )?;
            let row = require_account(tx, &account.name)?;
            record_change(tx, who, &format!("account {} made: {}", row.name, description(&row)), now)?;
            Ok(row)
        })
    }

    pub fn account(&self, name: &str) -> Result<Option<AccountRow>, CatalogError> {
        self.read(|tx| find(tx, name))
    }

    /// Accounts by name, those after `after`.
    pub fn accounts(&self, after: Option<&str>, limit: usize) -> Result<Vec<AccountRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_ACCOUNT} WHERE name > ?1 ORDER BY name LIMIT ?2"))?;
            let limit = limit.min(PAGE_ROWS_MAX + 1) as i64;
            let rows = select.query_map((after.unwrap_or_default(), limit), account_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Names of the accounts that manage the site, alone or with others.
    pub fn managers_of_site(&self, site: &SiteName) -> Result<Vec<String>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("SELECT name FROM accounts WHERE {MANAGES_SITE} ORDER BY name"))?;
            let rows = select.query_map([between_blanks(site)], |row| row.get(0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    pub fn change_account(
        &self,
        name: &str,
        patch: &AccountPatch,
        who: &str,
        now: Timestamp,
    ) -> Result<AccountRow, CatalogError> {
        self.write(|tx| {
            let before = require_account(tx, name)?;
            let mut row = before.clone();
            if let Some(password) = &patch.password {
                (row.password, row.password_since) = (password.clone(), now);
            }
            row.role = patch.role.clone().unwrap_or(row.role);
            row.community = patch.community.clone().unwrap_or(row.community);
            row.sites = patch.sites.clone().unwrap_or(row.sites);
            row.disabled = patch.disabled.unwrap_or(row.disabled);
            tx.execute(
                "UPDATE accounts SET password = ?2, role = ?3, community = ?4, disabled = ?5, password_since \
                    = ?6, sites = ?7
                 WHERE name = ?1",
                (
                    name,
                    &row.password,
                    &row.role,
                    row.community.as_ref().map(|name| name.as_str()),
                    row.disabled,
                    row.password_since.0,
                    &row.sites,
                ),
            )?;
            let password = if patch.password.is_some() { ", with a new password" } else { "" };
            record_change(tx, who, &format!("account {name} changed: {}{password}", description(&row)), now)?;
            Ok(row)
        })
    }

    /// Removes an account; returns whether there was one.
    pub fn remove_account(&self, name: &str, who: &str, now: Timestamp) -> Result<bool, CatalogError> {
        self.write(|tx| {
            let removed = tx.execute("DELETE FROM accounts WHERE name = ?1", [name])? > 0;
            if removed {
                record_change(tx, who, &format!("account {name} removed"), now)?;
            }
            Ok(removed)
        })
    }

    /// Records a login with the password of this account as it was read; `rehashed` replaces its hash.
    /// Returns the account as it is now, or none, with no login, if its password changed meanwhile or it is
    /// disabled.
    pub fn account_login(
        &self,
        read: &AccountRow,
        rehashed: Option<&str>,
        what: &str,
        now: Timestamp,
    ) -> Result<Option<AccountRow>, CatalogError> {
        self.write(|tx| {
            let row = find(tx, &read.name)?.filter(|row| row.password == read.password && !row.disabled);
            let Some(row) = row else { return Ok(None) };
            let password = rehashed.unwrap_or(&row.password);
            tx.execute(
                "UPDATE accounts SET password = ?2, last_login = ?3 WHERE name = ?1",
                (&row.name, password, now.0),
            )?;
            record_entry(tx, AuditKind::Login, &row.name, what, now)?;
            Ok(Some(row))
        })
    }
}

/// Takes the site from all its managers: from accounts, and from tokens of the API.
pub(crate) fn withdraw_managers(tx: &Transaction<'_>, site: &SiteName) -> Result<(), CatalogError> {
    for table in ["accounts", "api_tokens"] {
        let update = format!(
            "UPDATE {table} SET sites = nullif(trim(replace(' ' || sites || ' ', ?1, ' ')), '')
             WHERE {MANAGES_SITE}"
        );
        tx.execute(&update, [between_blanks(site)])?;
    }
    Ok(())
}

fn between_blanks(site: &SiteName) -> String {
    format!(" {site} ")
}

fn find(tx: &Transaction<'_>, name: &str) -> Result<Option<AccountRow>, CatalogError> {
    let mut select = tx.prepare_cached(&format!("{SELECT_ACCOUNT} WHERE name = ?1"))?;
    Ok(select.query_row([name], account_row).optional()?)
}

fn require_account(tx: &Transaction<'_>, name: &str) -> Result<AccountRow, CatalogError> {
    find(tx, name)?.ok_or_else(|| CatalogError::not_found("account", name))
}

fn description(row: &AccountRow) -> String {
    let community = row.community.as_ref().map(|name| format!(" of {name}")).unwrap_or_default();
    let sites =
        row.sites.as_ref().map(|names| format!(" of {}", names.replace(' ', ", "))).unwrap_or_default();
    let disabled = if row.disabled { ", disabled" } else { "" };
    format!("{}{sites}{community}{disabled}", row.role)
}

fn account_row(row: &Row<'_>) -> crate::sql::Result<AccountRow> {
    Ok(AccountRow {
        name: row.get(0)?,
        password: row.get(1)?,
        role: row.get(2)?,
        community: if row.is_null(3)? { None } else { Some(row.parsed(3)?) },
        disabled: row.get(4)?,
        created: row.time(5)?,
        password_since: row.time(6)?,
        last_login: row.maybe_time(7)?,
        sites: row.get(8)?,
    })
}
