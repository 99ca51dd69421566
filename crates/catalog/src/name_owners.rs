//! The owners of storage names. An agent may offer any name; it becomes a storage only if it belongs to the
//! agent's site.
//!
//! A name belongs to the site that has a storage of it; else to the site to which an administrator allowed
//! it; else to the site after which it is named, the longest name first: `a-b-disk` is of site `a-b`, if
//! there is one, and not of `a`. Others belong to nobody.

use std::collections::BTreeMap;

use longhaul_model::{SiteId, SiteName, StorageName};

use crate::CatalogError;
use crate::rows::codec::Columns;
use crate::sql::{Row, Transaction};

const SELECT_STORAGES: &str = "SELECT t.name, s.id, s.name FROM storages t JOIN sites s ON s.id = t.site
    WHERE t.removed IS NULL";
const SELECT_ALLOWANCES: &str =
    "SELECT n.name, s.id, s.name FROM storage_names n JOIN sites s ON s.id = n.site";
const SELECT_SITES: &str = "SELECT name, id FROM sites WHERE removed IS NULL";

/// A site that has so many storages gets no more: whoever holds the key of one of its agents can offer others
/// without end, under names that begin with the site's. Those that are there stay.
pub const SITE_STORAGES_MAX: usize = 1_000;

/// Why a storage name belongs to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameBasis {
    /// The site has a storage of that name.
    Storage,
    /// An administrator allowed it.
    Allowance,
    /// It follows from the site's name.
    SiteName,
}

/// The site to which a storage name belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameOwner {
    pub site: SiteId,
    pub site_name: SiteName,
    pub basis: NameBasis,
}

/// Everything that decides whose a storage name is, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameOwners {
    storages: BTreeMap<StorageName, (SiteId, SiteName)>,
    allowances: BTreeMap<StorageName, (SiteId, SiteName)>,
    sites: BTreeMap<SiteName, SiteId>,
    /// How many storages each site has.
    storage_counts: BTreeMap<SiteId, usize>,
}

impl NameOwners {
    pub(crate) fn load(tx: &Transaction<'_>) -> Result<NameOwners, CatalogError> {
        let mut storages = tx.prepare_cached(SELECT_STORAGES)?;
        let mut allowances = tx.prepare_cached(SELECT_ALLOWANCES)?;
        let mut sites = tx.prepare_cached(SELECT_SITES)?;
        let mut owners = NameOwners {
            storages: storages.query_map((), name_and_site)?.collect::<Result<_, _>>()?,
            allowances: allowances.query_map((), name_and_site)?.collect::<Result<_, _>>()?,
            sites: sites.query_map((), site_and_id)?.collect::<Result<_, _>>()?,
            storage_counts: BTreeMap::new(),
        };
        for (site, _) in owners.storages.values() {
            *owners.storage_counts.entry(*site).or_default() += 1;
        }
        Ok(owners)
    }

    /// The site to which the name belongs; none: to nobody.
    pub fn find_owner(&self, name: &StorageName) -> Option<NameOwner> {
        let recorded = [(&self.storages, NameBasis::Storage), (&self.allowances, NameBasis::Allowance)];
        for (names, basis) in recorded {
            if let Some((site, site_name)) = names.get(name) {
                return Some(NameOwner { site: *site, site_name: site_name.clone(), basis });
            }
        }
        name.eponyms().find_map(|site_name| {
            let site = *self.sites.get(&site_name)?;
            Some(NameOwner { site, site_name, basis: NameBasis::SiteName })
        })
    }

    /// Whether a storage that an agent of the site offers under that name is served: the name is the site's,
    /// and it has such a storage, or room for one more.
    pub fn may_serve(&self, site: SiteId, name: &StorageName) -> bool {
        let has_room = || self.storage_counts.get(&site).is_none_or(|count| *count < SITE_STORAGES_MAX);
        let owner = self.find_owner(name).filter(|owner| owner.site == site);
        owner.is_some_and(|owner| owner.basis == NameBasis::Storage || has_room())
    }

    /// The names that an administrator allowed to the site, in order.
    pub fn allowed_names(&self, site: SiteId) -> impl Iterator<Item = &StorageName> {
        self.allowances.iter().filter(move |(_, (owner, _))| *owner == site).map(|(name, _)| name)
    }
}

fn name_and_site(row: &Row<'_>) -> crate::sql::Result<(StorageName, (SiteId, SiteName))> {
    Ok((row.parsed(0)?, (row.id(1)?, row.parsed(2)?)))
}

fn site_and_id(row: &Row<'_>) -> crate::sql::Result<(SiteName, SiteId)> {
    Ok((row.parsed(0)?, row.id(1)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn owners(sites: &[&str]) -> NameOwners {
        let number = |(place, name): (usize, &&str)| (name.parse().unwrap(), SiteId(place as u64));
        NameOwners { sites: sites.iter().enumerate().map(number).collect(), ..NameOwners::default() }
    }

    fn owner(owners: &NameOwners, name: &str) -> Option<(u64, NameBasis)> {
        let owner = owners.find_owner(&name.parse().unwrap())?;
        Some((owner.site.0, owner.basis))
    }

    #[test]
    fn a_storage_comes_before_an_allowance_and_that_before_the_longest_site_name() {
        let mut owners = owners(&["a", "a-b", "c"]);
        for (name, site) in [("a", 0), ("a-disk", 0), ("a-b", 1), ("a-b-disk", 1), ("a-b_1", 1), ("a-bb", 0)]
        {
            assert_eq!(owner(&owners, name), Some((site, NameBasis::SiteName)), "{name}");
        }
        assert_eq!(owner(&owners, "vault"), None);
        let disk: StorageName = "a-b-disk".parse().unwrap();
        owners.allowances.insert(disk.clone(), (SiteId(2), "c".parse().unwrap()));
        assert_eq!(owner(&owners, "a-b-disk"), Some((2, NameBasis::Allowance)), "nobody else has it");
        assert_eq!(owners.allowed_names(SiteId(2)).collect::<Vec<_>>(), [&disk]);
        assert!(owners.allowed_names(SiteId(1)).next().is_none());
        owners.storages.insert(disk, (SiteId(0), "a".parse().unwrap()));
        assert_eq!(owner(&owners, "a-b-disk"), Some((0, NameBasis::Storage)), "whatever it is called");
    }

    #[test]
    fn a_site_with_many_storages_keeps_them_and_gets_no_more() {
        let mut owners = owners(&["a", "b"]);
        let disk: StorageName = "disk".parse().unwrap();
        owners.storages.insert(disk.clone(), (SiteId(0), "a".parse().unwrap()));
        owners.allowances.insert("vault".parse().unwrap(), (SiteId(0), "a".parse().unwrap()));
        for (count, has_room) in [(SITE_STORAGES_MAX - 1, true), (SITE_STORAGES_MAX, false)] {
            owners.storage_counts.insert(SiteId(0), count);
            assert!(owners.may_serve(SiteId(0), &disk) && !owners.may_serve(SiteId(1), &disk));
            for name in ["a", "a-new", "vault"] {
                let name: StorageName = name.parse().unwrap();
                assert_eq!(owners.may_serve(SiteId(0), &name), has_room, "{name}");
                assert!(!owners.may_serve(SiteId(1), &name), "{name}");
            }
            assert!(owners.may_serve(SiteId(1), &"b-new".parse().unwrap()), "others have room");
        }
    }

    proptest! {
        /// Whoever owns a name without a record has the longest of the site names that fit.
        #[test]
        fn the_longest_site_name_wins(
            name in "[a-b][a-b.-]{0,7}", sites in proptest::collection::vec("[a-b][a-b.-]{0,7}", 0..12)
        ) {
            let sites: Vec<&str> = sites.iter().map(String::as_str).collect();
            let name: StorageName = name.parse().unwrap();
            let fits = |site: &&&str| name.named_after(&site.parse().unwrap());
            let longest = sites.iter().filter(fits).map(|site| site.len()).max();
            let found = owners(&sites).find_owner(&name);
            prop_assert_eq!(found.map(|owner| owner.site_name.as_str().len()), longest);
        }
    }
}
