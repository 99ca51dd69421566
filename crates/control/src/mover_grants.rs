//! Which sites' agents may stream copies between foreign storages, and for which communities. A copy carries
//! its user's credentials, so an administrator decides: an agent's offer alone gives it none.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_catalog::{Catalog, CatalogError, DatabaseFailure};
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

/// Name of the setting.
pub const MOVER_GRANTS: &str = "mover_grants";
/// Sites and communities, all together.
const GRANTS_MAX: usize = 10_000;

/// For whom a site's agents may stream.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grantee {
    Community(CommunityName),
    AllCommunities,
}

/// The grants of all sites; a site that is not listed has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoverGrants(BTreeMap<SiteName, BTreeSet<Grantee>>);

impl MoverGrants {
    /// Reads the setting's value; absent, nobody has a grant.
    ///
    /// # Errors
    /// The value is damaged.
    pub fn read(text: Option<&str>) -> Result<MoverGrants, CatalogError> {
        let Some(text) = text else { return Ok(MoverGrants::default()) };
        serde_json::from_str(text).map_err(|error| {
            let text = format!("the list of movers: {error}");
            CatalogError::Corrupt(DatabaseFailure::new(text, error))
        })
    }

    /// The setting's value.
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Adds or removes a grant.
    ///
    /// # Errors
    /// `bad-request`, if there would be too many.
    pub fn set(&mut self, site: &SiteName, grantee: Grantee, allowed: bool) -> Result<(), Fault> {
        let count: usize = self.0.values().map(BTreeSet::len).sum();
        let grants = self.0.entry(site.clone()).or_default();
        match allowed {
            true if count >= GRANTS_MAX => {
                let detail = format!("{GRANTS_MAX} sites and communities are allowed, which is the limit");
                return Err(Fault::new(FaultCode::BadRequest, detail));
            }
            true => drop(grants.insert(grantee)),
            false => drop(grants.remove(&grantee)),
        }
        self.0.retain(|_, grants| !grants.is_empty());
        Ok(())
    }

    /// Removes all grants of a site; returns whether there were any.
    pub fn withdraw(&mut self, site: &SiteName) -> bool {
        self.0.remove(site).is_some()
    }

    /// Whether the agents of a site may stream for a community.
    pub fn allows(&self, site: &SiteName, community: &CommunityName) -> bool {
        let fits = |grantee: &Grantee| match grantee {
            Grantee::AllCommunities => true,
            Grantee::Community(name) => name == community,
        };
        self.0.get(site).is_some_and(|grants| grants.iter().any(fits))
    }

    /// All grants, by site.
    pub fn iter(&self) -> impl Iterator<Item = (&SiteName, &BTreeSet<Grantee>)> {
        self.0.iter()
    }
}

/// The grants in force: those of the catalog, in memory.
#[derive(Default)]
pub struct CurrentMoverGrants(RwLock<MoverGrants>);

impl CurrentMoverGrants {
    /// Reads them from the catalog.
    ///
    /// # Errors
    /// The catalog cannot be read, or the setting is damaged.
    pub fn load(&self, catalog: &Catalog) -> Result<(), CatalogError> {
        let grants = MoverGrants::read(catalog.setting(MOVER_GRANTS)?.as_deref())?;
        *self.0.write() = grants;
        Ok(())
    }

    /// Replaces them, after the catalog has them.
    pub fn replace(&self, grants: MoverGrants) {
        *self.0.write() = grants;
    }

    /// See [`MoverGrants::allows`].
    pub fn allows(&self, site: &SiteName, community: &CommunityName) -> bool {
        self.0.read().allows(site, community)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
        text.parse().unwrap()
    }

    #[test]
    fn nobody_may_stream_unless_an_administrator_allows_it() {
        let mut grants = MoverGrants::default();
        let (beta, gamma): (SiteName, SiteName) = (name("beta"), name("gamma"));
        let (atlas, cms): (CommunityName, CommunityName) = (name("atlas"), name("cms"));
        assert!(!grants.allows(&beta, &atlas));
        grants.set(&beta, Grantee::Community(atlas.clone()), true).unwrap();
        assert!(grants.allows(&beta, &atlas));
        assert!(!grants.allows(&beta, &cms), "another community");
        assert!(!grants.allows(&gamma, &atlas), "another site");
        grants.set(&gamma, Grantee::AllCommunities, true).unwrap();
        assert!(grants.allows(&gamma, &cms));
        assert_eq!(MoverGrants::read(Some(&grants.write())).unwrap(), grants);
        grants.set(&beta, Grantee::Community(atlas.clone()), false).unwrap();
        assert!(!grants.allows(&beta, &atlas));
        assert_eq!(grants.iter().count(), 1, "a site without grants is not kept");
    }

    #[test]
    fn a_damaged_list_allows_nobody() {
        assert!(MoverGrants::read(Some("{")).is_err());
        assert_eq!(MoverGrants::read(None).unwrap(), MoverGrants::default());
    }
}
