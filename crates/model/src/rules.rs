//! Name rules: how a storage turns an LFN into the path of its replica and back.
//!
//! Ordered prefix rules; the first whose prefix fits wins, no rule that fits is an error. A mapping that does
//! not come back to the same LFN is refused when it is used, so that LFN and PFN can never drift apart.

use serde::{Deserialize, Serialize};

use crate::units::printable;
use crate::{Lfn, NameError, Pfn, StorageName};

/// Rules of one storage. `version` grows with each change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRules {
    pub version: u32,
    pub rules: Vec<PrefixRule>,
}

/// Replaces the leading components `lfn` by `pfn`; either may be empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrefixRule {
    pub lfn: String,
    pub pfn: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("no name rule of {storage} fits {shown}")]
    NoRule { storage: StorageName, shown: String },
    #[error("name rules of {storage} map {lfn} to {pfn}, which maps back to {back}")]
    NoRoundTrip { storage: StorageName, lfn: String, pfn: String, back: String },
    #[error(transparent)]
    Name(#[from] NameError),
}

impl Default for NameRules {
    /// LFN and path are spelled alike.
    fn default() -> Self {
        NameRules::prefix("", "")
    }
}

impl NameRules {
    pub fn prefix(lfn: &str, pfn: &str) -> Self {
        NameRules { version: 1, rules: vec![PrefixRule { lfn: lfn.into(), pfn: pfn.into() }] }
    }

    /// Checks every rule's prefixes as names.
    pub fn check(&self) -> Result<(), NameError> {
        for rule in &self.rules {
            for prefix in [&rule.lfn, &rule.pfn] {
                if !prefix.is_empty() {
                    Lfn::parse(prefix)?;
                }
            }
        }
        Ok(())
    }

    pub fn to_pfn(&self, storage: &StorageName, lfn: &Lfn) -> Result<Pfn, RuleError> {
        let path = self
            .rules
            .iter()
            .find_map(|rule| replace(lfn.as_str(), &rule.lfn, &rule.pfn))
            .ok_or_else(|| RuleError::NoRule { storage: storage.clone(), shown: lfn.shown() })?;
        let pfn = Pfn::new(storage.clone(), &path)?;
        match self.back(pfn.path()) {
            Some(back) if back == lfn.as_str() => Ok(pfn),
            back => Err(RuleError::NoRoundTrip {
                storage: storage.clone(),
                lfn: lfn.shown(),
                pfn: pfn.to_string(),
                back: back.map_or_else(|| "nothing".into(), |back| printable(&back)),
            }),
        }
    }

    pub fn to_lfn(&self, pfn: &Pfn) -> Result<Lfn, RuleError> {
        let text = self
            .back(pfn.path())
            .ok_or_else(|| RuleError::NoRule { storage: pfn.storage.clone(), shown: pfn.to_string() })?;
        let lfn = Lfn::parse(&text)?;
        self.to_pfn(&pfn.storage, &lfn)?;
        Ok(lfn)
    }

    fn back(&self, path: &str) -> Option<String> {
        self.rules.iter().find_map(|rule| replace(path, &rule.pfn, &rule.lfn))
    }
}

/// `path` with the leading components `from` replaced by `to`; none if it does not begin with them.
fn replace(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = if from.is_empty() { path } else { path.strip_prefix(from)?.strip_prefix('/')? };
    Some(if to.is_empty() { rest.to_owned() } else { format!("{to}/{rest}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lfn(text: &str) -> Lfn {
        text.parse().unwrap()
    }

    #[test]
    fn maps_prefixes_on_component_boundaries() {
        let storage: StorageName = "beta".parse().unwrap();
        let rules = NameRules {
            version: 1,
            rules: vec![
                PrefixRule { lfn: "store/raw".into(), pfn: "tape/raw".into() },
                PrefixRule { lfn: "".into(), pfn: "disk".into() },
            ],
        };
        assert_eq!(rules.to_pfn(&storage, &lfn("store/raw/f")).unwrap().path(), "tape/raw/f");
        assert_eq!(rules.to_pfn(&storage, &lfn("store/rawer/f")).unwrap().path(), "disk/store/rawer/f");
        let back = Pfn::new(storage.clone(), "tape/raw/f").unwrap();
        assert_eq!(rules.to_lfn(&back).unwrap(), lfn("store/raw/f"));
        assert!(rules.to_lfn(&Pfn::new(storage, "elsewhere/f").unwrap()).is_err());
    }

    #[test]
    fn refuses_rules_that_do_not_come_back() {
        let storage: StorageName = "beta".parse().unwrap();
        let rules = NameRules {
            version: 1,
            rules: vec![
                PrefixRule { lfn: "a".into(), pfn: "x".into() },
                PrefixRule { lfn: "b".into(), pfn: "x".into() },
            ],
        };
        assert!(rules.to_pfn(&storage, &lfn("a/f")).is_ok());
        assert!(matches!(rules.to_pfn(&storage, &lfn("b/f")), Err(RuleError::NoRoundTrip { .. })));
        assert!(NameRules::prefix("", "../out").check().is_err());
    }

    proptest! {
        #[test]
        fn what_maps_comes_back(path in "[ab]{1,2}(/[ab]{1,2}){0,3}", from in "(a|b|a/b)?", to in "(a|b|b/a)?") {
            let storage: StorageName = "s".parse().unwrap();
            let rules = NameRules::prefix(&from, &to);
            let lfn = lfn(&path);
            if let Ok(pfn) = rules.to_pfn(&storage, &lfn) {
                prop_assert_eq!(rules.to_lfn(&pfn).unwrap(), lfn);
            }
        }
    }
}
