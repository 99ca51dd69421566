//! Shares and links as they are kept, and as the scheduler is told of them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_api::formats::WEIGHT_MAX;
use longhaul_catalog::{Catalog, CatalogError, DatabaseFailure};
use longhaul_model::mark::MarkTable;
use longhaul_model::{ActivityName, CommunityName, Fault, FaultCode, StorageId, Timestamp};
use longhaul_scheduler::{CommunityShare, Event, Shares};
use serde::{Deserialize, Serialize};

use crate::executor::LinkPolicy;
use crate::{commissioning, limits};

/// Names of the settings.
pub const SHARES: &str = "shares";
pub const LINKS: &str = "links";

/// Communities and activities that are named, all together.
const NAMED_MAX: usize = 10_000;
/// Links that are listed.
pub const LINKS_MAX: usize = 100_000;

/// What a share is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Whose {
    OtherCommunities,
    Community(CommunityName),
    OtherActivities(CommunityName),
    Activity(CommunityName, ActivityName),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptShares {
    pub communities: BTreeMap<CommunityName, KeptCommunity>,
    /// Weight of each community that is not named.
    pub others: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeptCommunity {
    pub weight: f64,
    pub activities: BTreeMap<ActivityName, f64>,
    /// Weight of each activity that is not named, and of work without one.
    pub others: f64,
}

impl Default for KeptShares {
    fn default() -> Self {
        KeptShares { communities: BTreeMap::new(), others: 1.0 }
    }
}

impl Default for KeptCommunity {
    fn default() -> Self {
        KeptCommunity { weight: 1.0, activities: BTreeMap::new(), others: 1.0 }
    }
}

impl KeptShares {
    /// What cannot be read is an older form's or damage: then all are equal, as without any.
    pub fn read(text: Option<&str>) -> KeptShares {
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }

    /// Sets weights, or takes them away: all of them or, where one is out of range or nobody would be
    /// entitled to anything, none.
    ///
    /// # Errors
    /// `bad-request` with what is wrong.
    pub fn set_all(&mut self, weights: &[(Whose, Option<f64>)]) -> Result<(), Fault> {
        let mut changed = self.clone();
        for (whose, weight) in weights {
            changed.set_unchecked(whose, *weight)?;
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// [`KeptShares::set_all`] of one weight.
    ///
    /// # Errors
    /// As there.
    pub fn set(&mut self, whose: &Whose, weight: Option<f64>) -> Result<(), Fault> {
        self.set_all(&[(whose.clone(), weight)])
    }

    fn set_unchecked(&mut self, whose: &Whose, weight: Option<f64>) -> Result<(), Fault> {
        if let Some(weight) = weight
            && !(0.0..=WEIGHT_MAX).contains(&weight)
        {
            return Err(bad(format!("a weight is 0 to {WEIGHT_MAX}, not {weight}")));
        }
        match whose {
            Whose::OtherCommunities => self.others = weight.unwrap_or(1.0),
            Whose::Community(name) => match weight {
                Some(weight) => self.communities.entry(name.clone()).or_default().weight = weight,
                None => drop(self.communities.remove(name)),
            },
            Whose::OtherActivities(name) => {
                self.communities.entry(name.clone()).or_default().others = weight.unwrap_or(1.0);
            }
            Whose::Activity(name, activity) => {
                let activities = &mut self.communities.entry(name.clone()).or_default().activities;
                match weight {
                    Some(weight) => drop(activities.insert(activity.clone(), weight)),
                    None => drop(activities.remove(activity)),
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Fault> {
        let named: usize = self.communities.values().map(|row| 1 + row.activities.len()).sum();
        if named > NAMED_MAX {
            return Err(bad(format!(
                "{named} communities and activities are named, the limit is {NAMED_MAX}"
            )));
        }
        if self.sum() == 0.0 {
            return Err(bad(
                "the weights of all communities would sum to zero: give at least one a weight above 0".into(),
            ));
        }
        for (name, row) in &self.communities {
            if row.sum() == 0.0 {
                return Err(bad(format!(
                    "the weights of all activities of {name} would sum to zero: give at least one a weight \
                        above 0"
                )));
            }
        }
        Ok(())
    }

    /// Sum of the weights of the named communities and of one that is not named.
    pub fn sum(&self) -> f64 {
        self.communities.values().map(|row| row.weight).sum::<f64>() + self.others
    }

    pub fn event(&self) -> Event {
        let share = |row: &KeptCommunity| CommunityShare {
            weight: row.weight,
            activities: row.activities.clone(),
            default_activity: row.others,
        };
        let named = self.communities.iter().map(|(name, row)| (name.clone(), share(row)));
        // What somebody has set goes before what is usual.
        let communities = commissioning::shares().into_iter().chain(named).collect();
        Event::Shares(Shares { communities, default: self.others })
    }
}

impl KeptCommunity {
    pub fn sum(&self) -> f64 {
        self.activities.values().sum::<f64>() + self.others
    }
}

/// None: from every storage to every other.
pub type KeptLinks = Option<BTreeSet<(StorageId, StorageId)>>;

/// What cannot be read opens nothing that somebody closed.
pub fn read_links(text: Option<&str>) -> Result<KeptLinks, CatalogError> {
    let Some(text) = text else { return Ok(None) };
    let pairs: Option<Vec<(u64, u64)>> = serde_json::from_str(text).map_err(|error| {
        CatalogError::Corrupt(DatabaseFailure::new(format!("the list of links: {error}"), error))
    })?;
    let ids = |(source, target)| (StorageId(source), StorageId(target));
    Ok(pairs.map(|pairs| pairs.into_iter().map(ids).collect()))
}

pub fn write_links(links: &KeptLinks) -> String {
    let pairs: Option<Vec<(u64, u64)>> =
        links.as_ref().map(|links| links.iter().map(|(source, target)| (source.0, target.0)).collect());
    serde_json::to_string(&pairs).unwrap_or_default()
}

pub fn links_event(links: &KeptLinks) -> Event {
    Event::Links(links.as_ref().map(|links| links.iter().copied().collect()))
}

/// What the scheduler has to know before anything else, after a start.
pub fn events(
    catalog: &Catalog,
    marks: &MarkTable,
    policy: &dyn LinkPolicy,
    now: Timestamp,
) -> Result<Vec<Event>, CatalogError> {
    let links = read_links(catalog.setting(LINKS)?.as_deref())?;
    let shares = KeptShares::read(catalog.setting(SHARES)?.as_deref());
    let limits = limits::event(catalog, marks, policy, now)?;
    Ok(vec![links_event(&links), shares.event(), limits::link_shares_event(policy)?, limits])
}

fn bad(detail: String) -> Fault {
    Fault::new(FaultCode::BadRequest, detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    fn community(name: &str) -> Whose {
        Whose::Community(name.parse().unwrap())
    }

    #[test]
    fn what_would_entitle_nobody_is_refused_in_one_sentence() {
        let mut shares = KeptShares::default();
        shares.set(&community("atlas"), Some(0.0)).unwrap();
        let fault = shares.clone().set(&Whose::OtherCommunities, Some(0.0)).unwrap_err();
        assert!(fault.detail.contains("all communities would sum to zero"), "{fault}");
        let fault = shares.set(&Whose::OtherActivities("atlas".parse().unwrap()), Some(0.0)).unwrap_err();
        assert!(fault.detail.contains("activities of atlas would sum to zero"), "{fault}");
        for wrong in [-1.0, f64::NAN, f64::INFINITY, WEIGHT_MAX * 2.0] {
            let fault = KeptShares::default().set(&community("atlas"), Some(wrong)).unwrap_err();
            assert!(fault.detail.contains("0 to 1000000"), "{fault}");
        }
    }

    #[test]
    fn several_weights_are_set_together_or_not_at_all() {
        let mut shares = KeptShares::default();
        let all = [(community("atlas"), Some(2.0)), (community("cms"), Some(3.0))];
        for wrong in [(community("higgs"), Some(-1.0)), (Whose::OtherCommunities, Some(f64::NAN))] {
            let with_a_wrong_one = [all.as_slice(), &[wrong]].concat();
            assert!(shares.set_all(&with_a_wrong_one).is_err());
            assert_eq!(shares, KeptShares::default());
        }
        shares.set_all(&all).unwrap();
        assert_eq!(shares.communities.len(), 2);
    }

    #[test]
    fn links_read_as_they_are_written_and_damage_opens_nothing() {
        for links in [None, Some(BTreeSet::new()), Some(BTreeSet::from([(StorageId(1), StorageId(2))]))] {
            assert_eq!(read_links(Some(&write_links(&links))).unwrap(), links);
        }
        assert_eq!(read_links(None).unwrap(), None);
        assert!(read_links(Some("[[1]]")).is_err() && read_links(Some("")).is_err());
    }

    proptest! {
        /// Whatever is set in whatever order, somebody stays entitled, and what is kept reads back.
        #[test]
        fn shares_stay_sound(steps in proptest::collection::vec((0..4u8, 0..3u8, any::<Option<f64>>()),
            0..30)) {
            let mut shares = KeptShares::default();
            for (kind, which, weight) in steps {
                let name: CommunityName = format!("c{which}").parse().unwrap();
                let whose = match kind {
                    0 => Whose::OtherCommunities,
                    1 => Whose::Community(name),
                    2 => Whose::OtherActivities(name),
                    _ => Whose::Activity(name, "a".parse().unwrap()),
                };
                let mut changed = shares.clone();
                if changed.set(&whose, weight).is_ok() {
                    shares = changed;
                }
            }
            prop_assert!(shares.sum() > 0.0 && shares.communities.values().all(|row| row.sum() > 0.0));
            let text = serde_json::to_string(&shares).unwrap();
            prop_assert!(KeptShares::read(Some(&text)).communities.len() == shares.communities.len());
        }
    }
}
