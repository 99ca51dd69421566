//! Limits and commissioning of links as they are kept, and as the scheduler is told of them.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_api::formats::BytesPerSecond;
use longhaul_catalog::{Catalog, CatalogError, DatabaseFailure};
use longhaul_model::mark::MarkTable;
use longhaul_model::{ActivityName, CircuitUse, CommunityName, Fault, FaultCode, StorageId, Timestamp};
use longhaul_scheduler::{CircuitRule, Event, Limit, Limits};
use serde::{Deserialize, Serialize};

use crate::commissioning;
use crate::executor::LinkPolicy;

/// Names of the settings.
pub const LIMITS: &str = "limits";
pub const UNCOMMISSIONED: &str = "uncommissioned";

/// Limits that are set, all together.
const LIMITS_MAX: usize = 10_000;

pub type Pair = (StorageId, StorageId);

/// What a limit is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    Link(StorageId, StorageId),
    Into(StorageId),
    Out(StorageId),
    Community(CommunityName),
}

/// In the order of what they are of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeptLimits(pub BTreeMap<Of, Limit>);

impl KeptLimits {
    /// What cannot be read lifts nothing that somebody limited.
    pub fn read(text: Option<&str>) -> Result<KeptLimits, CatalogError> {
        let Some(text) = text else { return Ok(KeptLimits::default()) };
        let list: Vec<(Of, Limit)> = serde_json::from_str(text).map_err(|error| {
            CatalogError::Corrupt(DatabaseFailure::new(format!("the list of limits: {error}"), error))
        })?;
        Ok(KeptLimits(list.into_iter().collect()))
    }

    pub fn write(&self) -> String {
        serde_json::to_string(&self.0.iter().collect::<Vec<_>>()).unwrap_or_default()
    }

    /// These, and what holds where nothing was set.
    pub fn all(&self) -> BTreeMap<Of, Limit> {
        let usual = commissioning::limit().map(|(community, limit)| (Of::Community(community), limit));
        // What somebody has set goes before what is usual.
        usual.into_iter().chain(self.0.clone()).collect()
    }

    /// Sets a limit, or lifts it.
    pub fn set(&mut self, of: Of, limit: Limit) -> Result<(), Fault> {
        limit.bytes_per_s.map_or(Ok(()), check_rate)?;
        if limit.is_none() {
            self.0.remove(&of);
            return Ok(());
        }
        self.0.insert(of, limit);
        if self.0.len() > LIMITS_MAX {
            let detail = format!("more than {LIMITS_MAX} limits are set");
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        Ok(())
    }
}

/// Checks the rate of a limit, in bytes per second.
///
/// # Errors
/// Nothing can be that slow or that fast.
pub fn check_rate(bytes_per_s: u64) -> Result<(), Fault> {
    if BytesPerSecond::RANGE.contains(&bytes_per_s) {
        return Ok(());
    }
    let detail = match bytes_per_s {
        0 => "a rate is at least 1 byte per second: to let nothing begin, allow 0 files at once".to_owned(),
        _ => format!("a rate is at most {} bytes per second", BytesPerSecond::RANGE.end()),
    };
    Err(Fault::new(FaultCode::BadRequest, detail))
}

/// Links that carry test transfers only. What cannot be read opens none of them.
pub fn read_uncommissioned(text: Option<&str>) -> Result<BTreeSet<Pair>, CatalogError> {
    let Some(text) = text else { return Ok(BTreeSet::new()) };
    serde_json::from_str(text).map_err(|error| {
        let text = format!("the list of links that are not commissioned: {error}");
        CatalogError::Corrupt(DatabaseFailure::new(text, error))
    })
}

/// All of it, as the scheduler hears it.
pub fn event(
    catalog: &Catalog,
    marks: &MarkTable,
    policy: &dyn LinkPolicy,
    now: Timestamp,
) -> Result<Event, CatalogError> {
    let mut limits = Limits::default();
    for (of, limit) in KeptLimits::read(catalog.setting(LIMITS)?.as_deref())?.all() {
        match of {
            Of::Link(source, target) => limits.links.push(((source, target), limit)),
            Of::Into(storage) => limits.into.push((storage, limit)),
            Of::Out(storage) => limits.out.push((storage, limit)),
            Of::Community(name) => limits.communities.push((name, limit)),
        }
    }
    policy.limit(now, &mut limits)?;
    let uncommissioned = read_uncommissioned(catalog.setting(UNCOMMISSIONED)?.as_deref())?;
    limits.uncommissioned = uncommissioned.into_iter().collect();
    limits.testers = commissioning::community();
    limits.circuits = marks.circuits().map(circuit_rule).collect();
    Ok(Event::Limits(limits))
}

/// The weights of communities on links that have some of their own.
pub fn link_shares_event(policy: &dyn LinkPolicy) -> Result<Event, CatalogError> {
    Ok(Event::LinkShares(policy.link_shares()?))
}

fn circuit_rule(
    (community, activity, circuits): (Option<&CommunityName>, Option<&ActivityName>, CircuitUse),
) -> CircuitRule {
    let only = circuits == CircuitUse::Only;
    CircuitRule { community: community.cloned(), activity: activity.cloned(), only }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_transfers_are_limited_unless_another_limit_is_set() {
        let tests = || Of::Community("commissioning".parse().unwrap());
        let mut kept = KeptLimits::default();
        assert_eq!(kept.all()[&tests()].active, Some(64));
        kept.set(tests(), Limit { active: None, bytes_per_s: Some(5_000_000) }).unwrap();
        assert_eq!(kept.all()[&tests()], Limit { active: None, bytes_per_s: Some(5_000_000) });
        kept.set(tests(), Limit::default()).unwrap();
        assert_eq!(kept.all()[&tests()].active, Some(64));
    }

    #[test]
    fn limits_read_as_they_are_written_and_damage_lifts_none() {
        let mut kept = KeptLimits::default();
        let limit = Limit { active: Some(3), bytes_per_s: Some(250_000_000) };
        let all = [
            Of::Link(StorageId(1), StorageId(2)),
            Of::Into(StorageId(1)),
            Of::Out(StorageId(1)),
            Of::Community("atlas".parse().unwrap()),
        ];
        for of in all.clone() {
            kept.set(of, limit).unwrap();
        }
        assert_eq!(KeptLimits::read(Some(&kept.write())).unwrap(), kept);
        for of in all {
            kept.set(of, Limit::default()).unwrap();
        }
        assert_eq!(kept, KeptLimits::default());
        assert!(kept.set(Of::Into(StorageId(1)), Limit { active: None, bytes_per_s: Some(0) }).is_err());
        for damage in ["", "{}", "[[1]]"] {
            assert!(KeptLimits::read(Some(damage)).is_err(), "{damage}");
            assert!(read_uncommissioned(Some(damage)).is_err(), "{damage}");
        }
    }
}
