//! The objects of FTS's configuration as this service keeps them: one setting of the catalog each, with a
//! record of every change, and a copy in memory for the questions of each request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use longhaul_api::fts::{
    ActivityShares, Ban, BanStatus, GlobalSettings, Grant, LinkSettings, Refusal, ShareSetting,
    StorageSettings,
};
use longhaul_catalog::{Catalog, CatalogError};
use longhaul_control::executor::LinkPolicy;
use longhaul_control::steering::{KeptShares, SHARES};
use longhaul_identity::{AccessRules, catalog_problem, refusal};
use longhaul_model::Timestamp;
use longhaul_scheduler::{Limits, LinkShares};
use longhaul_security::grid::{denies_subject, same_subject};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::cloud_keys::Cloud;

/// Name of the setting.
const SETTING: &str = "fts";
/// Objects of each kind.
const OBJECTS_MAX: usize = 20_000;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Objects {
    pub banned_storages: Vec<Ban>,
    pub banned_people: Vec<Ban>,
    pub grants: BTreeSet<Grant>,
    pub links: BTreeMap<String, LinkSettings>,
    /// What was set by hand for pairs of storages, for a while.
    pub by_hand: Vec<ByHand>,
    pub shares: Vec<ShareSetting>,
    pub storages: BTreeMap<String, StorageSettings>,
    pub activities: BTreeMap<String, ActivityShares>,
    pub globals: BTreeMap<String, GlobalSettings>,
    /// Hosts that take no new work.
    pub draining: BTreeSet<String>,
    /// Storages to which users and VOs have keys, by FTS's names.
    pub clouds: BTreeMap<String, Cloud>,
}

impl Objects {
    /// The ban that concerns a storage for a VO, the most severe one.
    pub fn ban_of(&self, storage: &str, vo: &str) -> Option<&Ban> {
        let mut bans =
            self.banned_storages.iter().filter(|ban| ban.who == storage && (ban.vo == "*" || ban.vo == vo));
        let first = bans.next()?;
        Some(bans.fold(first, |worst, ban| if ban.status == BanStatus::WaitAndSubmit { worst } else { ban }))
    }

    pub fn is_banned(&self, dn: &str) -> bool {
        self.banned_people.iter().any(|ban| denies_subject(&ban.who, dn))
    }

    fn check(&self) -> Result<(), Refusal> {
        let counts = [
            self.banned_storages.len(),
            self.banned_people.len(),
            self.grants.len(),
            self.links.len(),
            self.by_hand.len(),
            self.shares.len(),
            self.storages.len(),
            self.activities.len(),
            self.globals.len(),
            self.draining.len(),
            self.clouds.len(),
        ];
        if counts.iter().any(|count| *count > OBJECTS_MAX) {
            return Err(Refusal::bad(format!(
                "more than {OBJECTS_MAX} objects of one kind: remove some first"
            )));
        }
        Ok(())
    }
}

/// So many files at a time from one storage to another, in place of what is configured of them, until then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByHand {
    pub source: String,
    pub target: String,
    pub active: u32,
    pub streams: u32,
    pub until: Timestamp,
}

/// The stored objects with a write-through cache: read at the first question, then held in memory.
pub struct ConfigStore {
    catalog: Catalog,
    cache: RwLock<Option<Arc<Objects>>>,
}

/// Either the catalog's trouble or what is wrong with the change.
struct ChangeError(Refusal);

impl From<CatalogError> for ChangeError {
    fn from(error: CatalogError) -> ChangeError {
        ChangeError(refusal(catalog_problem(error)))
    }
}

impl ConfigStore {
    pub fn new(catalog: Catalog) -> ConfigStore {
        ConfigStore { catalog, cache: RwLock::default() }
    }

    pub fn get(&self) -> Result<Arc<Objects>, Refusal> {
        let present = self.cache.read().clone();
        if let Some(objects) = present {
            return Ok(objects);
        }
        let mut place = self.cache.write();
        if let Some(objects) = &*place {
            return Ok(objects.clone());
        }
        let objects = Arc::new(read(
            self.catalog.setting(SETTING).map_err(|error| ChangeError::from(error).0)?.as_deref(),
        )?);
        *place = Some(objects.clone());
        Ok(objects)
    }

    /// Changes the objects; `change` says in a sentence what it did. Durable, and recorded, when this
    /// returns.
    pub fn change<T>(
        &self,
        who: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Objects) -> Result<(T, String), Refusal>,
    ) -> Result<T, Refusal> {
        // Held over the transaction, so that what is in memory is what was written last.
        let mut place = self.cache.write();
        let mut made = None;
        let done = self.catalog.change_setting::<ChangeError>(SETTING, who, now, |present| {
            let mut objects = read(present).map_err(ChangeError)?;
            let (result, what) = change(&mut objects).map_err(ChangeError)?;
            objects.check().map_err(ChangeError)?;
            let text = serde_json::to_string(&objects).unwrap_or_default();
            made = Some((objects, result));
            tracing::info!(by = who, "{what}");
            Ok((text, format!("fts: {what}")))
        });
        done.map_err(|wrong| wrong.0)?;
        let (objects, result) = made.ok_or_else(|| Refusal::new(500, "the change was not made"))?;
        *place = Some(Arc::new(objects));
        Ok(result)
    }

    /// [`ConfigStore::change`] of the objects and the scheduler's shares, in one transaction: where either is
    /// refused, both are as they were. Returns the shares, for the scheduler.
    pub fn change_with_shares<T>(
        &self,
        who: &str,
        now: Timestamp,
        change: impl FnOnce(&mut Objects, &mut KeptShares) -> Result<(T, String), Refusal>,
    ) -> Result<(T, KeptShares), Refusal> {
        let mut place = self.cache.write();
        let mut made = None;
        let settings = [SETTING, SHARES];
        let done = self.catalog.change_settings::<ChangeError, 2>(settings, who, now, |[objects, shares]| {
            let mut objects = read(objects.as_deref()).map_err(ChangeError)?;
            let mut shares = KeptShares::read(shares.as_deref());
            let (result, what) = change(&mut objects, &mut shares).map_err(ChangeError)?;
            objects.check().map_err(ChangeError)?;
            let texts = [
                serde_json::to_string(&objects).unwrap_or_default(),
                serde_json::to_string(&shares).unwrap_or_default(),
            ];
            made = Some((objects, (result, shares)));
            tracing::info!(by = who, "{what}");
            Ok((texts, format!("fts: {what}")))
        });
        done.map_err(|wrong| wrong.0)?;
        let (objects, result) = made.ok_or_else(|| Refusal::new(500, "the change was not made"))?;
        *place = Some(Arc::new(objects));
        Ok(result)
    }
}

impl LinkPolicy for ConfigStore {
    fn limit(&self, now: Timestamp, limits: &mut Limits) -> Result<(), CatalogError> {
        let objects = objects(&self.catalog)?;
        if objects.limit_something() {
            objects.limit(&self.catalog.job_endpoints()?, now, limits);
        }
        Ok(())
    }

    fn link_shares(&self) -> Result<Vec<LinkShares>, CatalogError> {
        let objects = objects(&self.catalog)?;
        if objects.shares.is_empty() {
            return Ok(Vec::new());
        }
        Ok(objects.link_shares(&self.catalog.job_endpoints()?))
    }
}

impl AccessRules for ConfigStore {
    fn is_banned(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.get()?.is_banned(name))
    }

    fn granted(&self, name: &str) -> Result<Vec<String>, Refusal> {
        let objects = self.get()?;
        let grants = objects.grants.iter().filter(|grant| same_subject(&grant.dn, name));
        Ok(grants.map(|grant| grant.operation.clone()).collect())
    }
}

/// Bans that cannot be read must not let in whom they kept out.
fn read(text: Option<&str>) -> Result<Objects, Refusal> {
    let Some(text) = text else { return Ok(Objects::default()) };
    serde_json::from_str(text)
        .map_err(|error| Refusal::new(500, format!("the kept configuration of FTS cannot be read: {error}")))
}

/// For who has a catalog and nothing else; the others have them in memory, see [`ConfigStore`].
fn objects(catalog: &Catalog) -> Result<Objects, CatalogError> {
    read(catalog.setting(SETTING)?.as_deref())
        .map_err(|refusal| CatalogError::Corrupt(refusal.message.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ban(vo: &str, status: BanStatus) -> Ban {
        Ban { who: "https://a".into(), message: None, since: 0, admin_dn: "x".into(), vo: vo.into(), status }
    }

    #[test]
    fn the_most_severe_ban_counts_and_only_for_its_community() {
        let banned_storages = vec![ban("atlas", BanStatus::WaitAndSubmit), ban("*", BanStatus::Wait)];
        let mut objects = Objects { banned_storages, ..Objects::default() };
        assert_eq!(objects.ban_of("https://a", "atlas").unwrap().status, BanStatus::Wait);
        objects.banned_storages.pop();
        assert!(
            objects.ban_of("https://a", "cms").is_none() && objects.ban_of("https://b", "atlas").is_none()
        );
    }

    #[test]
    fn a_ban_of_before_holds_for_names_that_are_written_anew() {
        let host = Ban { who: "/DC=org/CN=host/a".into(), ..ban("*", BanStatus::Cancel) };
        let objects = Objects { banned_people: vec![host], ..Objects::default() };
        assert!(objects.is_banned("/DC=org/CN=host\\/a") && objects.is_banned("/DC=org/CN=host/a"));
        assert!(!objects.is_banned("/DC=org/CN=host/CN=a") && !objects.is_banned("/DC=org/CN=host"));
    }

    #[test]
    fn objects_read_as_they_are_written_and_damage_lets_nobody_in() {
        let mut objects = Objects::default();
        objects.banned_people.push(ban("*", BanStatus::Cancel));
        let text = serde_json::to_string(&objects).unwrap();
        assert_eq!(read(Some(&text)).unwrap(), objects);
        assert_eq!(read(Some("{")).unwrap_err().status, 500);
    }
}
