//! Which site measurement hosts, foreign end points and networks belong to: the table behind `network::mapping`.

use longhaul_model::{SiteId, SiteName, Timestamp};
use longhaul_network::mapping::{Entry, Origin, Place};
use rusqlite::{OptionalExtension, Row};

use crate::codec::{Columns, key};
use crate::sites::find_site;
use crate::{Catalog, CatalogError, PlaceRow, PlacesSet};

/// Lines of the table: every host of the largest grid, tenfold.
pub const PLACES_MAX: usize = 100_000;

const PLACE: &str = "SELECT p.place, s.name, p.role, p.family, p.origin, p.created
    FROM site_places p JOIN sites s ON s.id = p.site";

impl Catalog {
    /// Writes all of these, or none. What somebody here said is changed only by somebody here: an import leaves it.
    /// Sites that do not exist are told, and their entries left out.
    pub fn set_places(&self, entries: &[Entry], now: Timestamp) -> Result<PlacesSet, CatalogError> {
        self.write(|tx| {
            let mut done = PlacesSet::default();
            let mut sites = std::collections::BTreeMap::<&SiteName, Option<SiteId>>::new();
            // An entry that is as it was keeps its time, so that an import repeated changes nothing.
            let mut upsert = tx.prepare_cached(
                "INSERT INTO site_places (place, site, role, family, origin, created) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
                 ON CONFLICT (place) DO UPDATE SET site = excluded.site, role = excluded.role, family = excluded.family,
                 origin = excluded.origin, created = excluded.created
                 WHERE (site_places.origin <> 'explicit' OR excluded.origin = 'explicit')
                 AND (site_places.site, ifnull(site_places.role, ''), ifnull(site_places.family, ''), site_places.origin)
                 <> (excluded.site, ifnull(excluded.role, ''), ifnull(excluded.family, ''), excluded.origin)",
            )?;
            let mut origin = tx.prepare_cached("SELECT origin FROM site_places WHERE place = ?1")?;
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
                let place = entry.place.to_string();
                let changed = upsert.execute((
                    &place,
                    key!(site),
                    entry.role.map(|role| role.word()),
                    entry.family.map(|family| family.word()),
                    entry.origin.word(),
                    now.0,
                ))?;
                if changed == 1 {
                    done.set += 1;
                    continue;
                }
                let stored: Option<Origin> = origin.query_row([&place], |row| row.parsed(0)).optional()?;
                if stored == Some(Origin::Explicit) && entry.origin != Origin::Explicit {
                    done.kept_explicit += 1;
                } else {
                    done.unchanged += 1;
                }
            }
            let count: i64 = tx.query_row("SELECT count(*) FROM site_places", [], |row| row.get(0))?;
            if count > PLACES_MAX as i64 {
                return Err(CatalogError::conflict(format!("the table would have {count} lines, at most {PLACES_MAX} fit")));
            }
            Ok(done)
        })
    }

    /// The whole table, by place.
    pub fn places(&self) -> Result<Vec<PlaceRow>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached(&format!("{PLACE} ORDER BY p.place"))?;
            let rows = select.query_map([], place_row)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    /// Says whether it was there.
    pub fn remove_place(&self, place: &Place) -> Result<bool, CatalogError> {
        self.write(|tx| Ok(tx.execute("DELETE FROM site_places WHERE place = ?1", [place.to_string()])? > 0))
    }
}

fn place_row(row: &Row<'_>) -> rusqlite::Result<PlaceRow> {
    let word =
        |at: usize| -> rusqlite::Result<bool> { Ok(row.get_ref(at)? != rusqlite::types::ValueRef::Null) };
    let place: PlaceText = row.parsed(0)?;
    Ok(PlaceRow {
        entry: Entry {
            place: place.0,
            site: row.parsed(1)?,
            role: if word(2)? { Some(row.parsed(2)?) } else { None },
            family: if word(3)? { Some(row.parsed(3)?) } else { None },
            origin: row.parsed(4)?,
        },
        created: row.time(5)?,
    })
}

struct PlaceText(Place);

impl std::str::FromStr for PlaceText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Place::parse(text).map(PlaceText)
    }
}
