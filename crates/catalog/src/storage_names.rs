//! Storage names that an administrator allows to a site, before a storage of the name is there. What follows
//! from it is in `name_owners`.

use longhaul_model::{SiteName, StorageName, Timestamp};

use crate::audit::record_change;
use crate::name_owners::NameOwners;
use crate::rows::codec::{Columns, key};
use crate::sites::{ensure_not_former, find_storage, insert_site, require_site};
use crate::sql::{Optional, Transaction};
use crate::{Catalog, CatalogError, SiteRow};

/// Names that are allowed to one site.
pub const ALLOWED_NAMES_MAX: u64 = 1_000;

impl Catalog {
    /// Everything that decides whose a storage name is.
    pub fn name_owners(&self) -> Result<NameOwners, CatalogError> {
        self.read(NameOwners::load)
    }

    /// Allows the site to have a storage of that name; nobody else may then. Returns whether that is new.
    /// Refused with `Conflict` if another site has such a storage, or the name is allowed to it.
    pub fn allow_storage_name(
        &self,
        name: &StorageName,
        site: &SiteName,
        who: &str,
        now: Timestamp,
    ) -> Result<bool, CatalogError> {
        self.write(|tx| allow(tx, name, &require_site(tx, site)?, who, now))
    }

    /// Takes the name back from the site to which it is allowed, and returns that site. Refused with
    /// `Conflict` while there is a storage of that name.
    pub fn disallow_storage_name(
        &self,
        name: &StorageName,
        who: &str,
        now: Timestamp,
    ) -> Result<SiteName, CatalogError> {
        self.write(|tx| {
            if let Some(storage) = find_storage(tx, name)? {
                let detail = format!("site {} has a storage {name}", storage.site_name);
                return Err(CatalogError::conflict(detail));
            }
            let site = find_allowance(tx, name)?.ok_or_else(|| {
                CatalogError::not_found("site to which an administrator allowed the storage name", name)
            })?;
            tx.execute("DELETE FROM storage_names WHERE name = ?1", [name.as_str()])?;
            let what = format!("storage name {name} no longer allowed to site {site}");
            record_change(tx, who, &what, now)?;
            Ok(site)
        })
    }

    /// As [`Catalog::add_site`], and allows the site storages of these names: all of it or nothing.
    pub fn add_site_with_storages(
        &self,
        name: &SiteName,
        storages: &[StorageName],
        who: &str,
        now: Timestamp,
    ) -> Result<(SiteRow, bool), CatalogError> {
        self.write(|tx| {
            let (site, is_new) = insert_site(tx, name, now)?;
            for storage in storages {
                allow(tx, storage, &site, who, now)?;
            }
            Ok((site, is_new))
        })
    }
}

fn allow(
    tx: &Transaction<'_>,
    name: &StorageName,
    site: &SiteRow,
    who: &str,
    now: Timestamp,
) -> Result<bool, CatalogError> {
    if let Some(storage) = find_storage(tx, name)?.filter(|storage| storage.site != site.id) {
        return Err(CatalogError::conflict(format!("site {} has a storage {name}", storage.site_name)));
    }
    match find_allowance(tx, name)? {
        Some(owner) if owner == site.name => return Ok(false),
        Some(owner) => {
            return Err(CatalogError::conflict(format!("storage name {name} is allowed to site {owner}")));
        }
        None => ensure_not_former(tx, name)?,
    }
    let mut count = tx.prepare_cached("SELECT COUNT(*) FROM storage_names WHERE site = ?1")?;
    let count: u64 = count.query_row([key!(site.id)], |row| row.number(0))?;
    if count >= ALLOWED_NAMES_MAX {
        let detail = format!("site {} has {count} allowed storage names already, no more fit", site.name);
        return Err(CatalogError::conflict(detail));
    }
    tx.execute(
        "INSERT INTO storage_names (name, site, allowed) VALUES (?1, ?2, ?3)",
        (name.as_str(), key!(site.id), now.0),
    )?;
    record_change(tx, who, &format!("storage name {name} allowed to site {}", site.name), now)?;
    Ok(true)
}

/// The site to which an administrator allowed the name.
fn find_allowance(tx: &Transaction<'_>, name: &StorageName) -> Result<Option<SiteName>, CatalogError> {
    let mut select = tx.prepare_cached(
        "SELECT s.name FROM storage_names n JOIN sites s ON s.id = n.site WHERE n.name = ?1",
    )?;
    Ok(select.query_row([name.as_str()], |row| row.parsed(0)).optional()?)
}
