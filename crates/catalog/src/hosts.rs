//! The mapping of measurement hosts, foreign end points and networks to sites: the table behind
//! `network::mapping`.

use crate::sql::{Optional, Row};
use longhaul_model::{SiteId, SiteName, Timestamp};
use longhaul_network::mapping::{Entry, HostOrNetwork, Mapping};

use crate::rows::codec::{Columns, key};
use crate::sites::find_site;
use crate::{Catalog, CatalogError, HostRow, HostsUpdate};

/// Rows of the table: ten times the hosts of the largest grid.
pub const HOSTS_MAX: usize = 100_000;

/// The columns that [`host_row`] reads.
const SELECT_HOST: &str = "SELECT h.host, s.name, h.role, h.family, h.mapping, h.created
    FROM site_hosts h JOIN sites s ON s.id = h.site";

impl Catalog {
    /// Writes all of these, or none. An import leaves explicit entries alone: only people change them.
    /// Entries of unknown sites are skipped, and the sites returned.
    pub fn set_hosts(&self, entries: &[Entry], now: Timestamp) -> Result<HostsUpdate, CatalogError> {
        self.write(|tx| {
            let mut done = HostsUpdate::default();
            let mut sites = std::collections::BTreeMap::<&SiteName, Option<SiteId>>::new();
            // An unchanged entry keeps its time, so that a repeated import changes nothing.
            let mut upsert = tx.prepare_cached(
                "INSERT INTO site_hosts (host, site, role, family, mapping, created) VALUES (?1, ?2, ?3, ?4, \
                    ?5, ?6)
                 ON CONFLICT (host) DO UPDATE SET site = excluded.site, role = excluded.role, family = \
                 excluded.family,
                 mapping = excluded.mapping, created = excluded.created
                 WHERE (site_hosts.mapping <> 'explicit' OR excluded.mapping = 'explicit')
                 AND (site_hosts.site, coalesce(site_hosts.role, ''), coalesce(site_hosts.family, ''), \
                 site_hosts.mapping)
                 <> (excluded.site, coalesce(excluded.role, ''), coalesce(excluded.family, ''), \
                 excluded.mapping)",
            )?;
            let mut stored = tx.prepare_cached("SELECT mapping FROM site_hosts WHERE host = ?1")?;
            for entry in entries {
                let site = match sites.get(&entry.site) {
                    Some(site) => *site,
                    None => {
                        let site = find_site(tx, &entry.site)?.map(|row| row.id);
                        sites.insert(&entry.site, site);
                        site
                    }
                };
                let Some(site) = site else {
                    done.unknown_sites.insert(entry.site.clone());
                    continue;
                };
                let place = entry.what.to_string();
                let changed = upsert.execute((
                    &place,
                    key!(site),
                    entry.role.map(|role| role.word()),
                    entry.family.map(|family| family.word()),
                    entry.mapping.word(),
                    now.0,
                ))?;
                if changed == 1 {
                    done.set += 1;
                    continue;
                }
                let stored: Option<Mapping> = stored.query_row([&place], |row| row.parsed(0)).optional()?;
                if stored == Some(Mapping::Explicit) && entry.mapping != Mapping::Explicit {
                    done.kept_explicit += 1;
                } else {
                    done.unchanged += 1;
                }
            }
            let count: i64 = tx.query_row("SELECT count(*) FROM site_hosts", (), |row| row.get(0))?;
            if count > HOSTS_MAX as i64 {
                return Err(CatalogError::conflict(format!(
                    "the table would have {count} entries, the limit is {HOSTS_MAX}"
                )));
            }
            Ok(done)
        })
    }

    /// The whole table, by host.
    pub fn hosts(&self) -> Result<Vec<HostRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{SELECT_HOST} ORDER BY h.host"))?;
            let rows = select.query_map((), host_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// At most `limit` rows of the table, those after `after`.
    pub fn hosts_page(&self, after: Option<&str>, limit: usize) -> Result<Vec<HostRow>, CatalogError> {
        self.read(|tx| {
            let mut select =
                tx.prepare_cached(&format!("{SELECT_HOST} WHERE h.host > ?1 ORDER BY h.host LIMIT ?2"))?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = select.query_map((after.unwrap_or_default(), limit), host_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Removes an entry; returns whether there was one.
    pub fn remove_host(&self, place: &HostOrNetwork) -> Result<bool, CatalogError> {
        self.write(|tx| Ok(tx.execute("DELETE FROM site_hosts WHERE host = ?1", [place.to_string()])? > 0))
    }
}

fn host_row(row: &Row<'_>) -> crate::sql::Result<HostRow> {
    let word = |at: usize| -> crate::sql::Result<bool> { Ok(!row.is_null(at)?) };
    let place: HostText = row.parsed(0)?;
    Ok(HostRow {
        entry: Entry {
            what: place.0,
            site: row.parsed(1)?,
            role: if word(2)? { Some(row.parsed(2)?) } else { None },
            family: if word(3)? { Some(row.parsed(3)?) } else { None },
            mapping: row.parsed(4)?,
        },
        created: row.time(5)?,
    })
}

struct HostText(HostOrNetwork);

impl std::str::FromStr for HostText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        HostOrNetwork::parse(text).map(HostText)
    }
}
