//! Name rules: how a storage turns an LFN into the path of its replica and back.
//!
//! One ordered list of rules: by prefix, which read both ways, and by pattern, which read one way each.
//! Patterns mean what they mean in PhEDEx's trivial file catalogue: of a protocol's rules the first that fits
//! wins, no rule that fits is an error, and a rule may build on another protocol's (`chain`). A mapping that
//! does not come back to the same LFN is refused when it is used, so that LFN and PFN can never drift apart.
//!
//! Not here: where rules are written down (`agent`, `gateways::storage_xml`). Start with [`NameRules`];
//! `apply` holds how a name goes through the rules, `pattern` what one pattern does, `check` what is refused
//! before any of them is used.

mod apply;
mod check;
mod pattern;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::units::printable;
use crate::{Fault, FaultCode, Lfn, NameError, Pfn, StorageName};

pub use apply::{NameQuery, Mapped, NAME_BYTES_MAX};
pub use check::{RULES_MAX, WORD_BYTES_MAX};
pub use pattern::{PATTERN_BYTES_MAX, Pattern};

/// Rules of one storage. `version` grows with each change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRules {
    pub version: u32,
    pub rules: Vec<NameRule>,
    /// Which names are those of its replicas. Rules from before there was a choice have prefixes only.
    #[serde(default, skip_serializing_if = "OwnNames::is_usual")]
    pub own: OwnNames,
}

/// How the names of a storage's own replicas are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnNames {
    /// The protocol whose names lie beneath `base`; rules by prefix belong to it too.
    pub protocol: String,
    /// What such a name begins with where the storage's root is.
    pub base: String,
    /// Whether rules for custodial copies are meant. One answer for a storage: a copy stays where it is
    /// whatever becomes of its custody, and would not be found by a name that changes with it.
    pub custodial: bool,
}

impl Default for OwnNames {
    fn default() -> Self {
        OwnNames { protocol: "direct".into(), base: String::new(), custodial: false }
    }
}

impl OwnNames {
    fn is_usual(&self) -> bool {
        *self == OwnNames::default()
    }

    fn asked(&self) -> NameQuery<'_> {
        NameQuery { protocol: &self.protocol, target: None, custodial: self.custodial }
    }

    /// What lies beneath the storage's root of a name.
    fn beneath<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(self.base.as_str())?.strip_prefix('/').map(|path| path.trim_start_matches('/'))
    }
}

/// One rule of either kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AnyRule", into = "AnyRule")]
pub enum NameRule {
    Prefix(PrefixRule),
    Pattern(PatternRule),
}

/// Replaces the leading components `lfn` by `pfn`; either may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixRule {
    pub lfn: String,
    pub pfn: String,
}

/// Replaces what `path_match` finds by `result`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternRule {
    pub direction: Direction,
    pub protocol: String,
    /// Only for these sites at the other end.
    pub target_match: Option<Pattern>,
    /// Only for custodial copies, or only for others.
    pub custodial: Option<bool>,
    /// The protocol whose rules the name goes through before this one (from LFN to PFN), or after it.
    pub chain: Option<String>,
    pub path_match: Pattern,
    /// With `$1` to `$9` for what groups of `path_match` found.
    pub result: String,
    pub space_token: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    LfnToPfn,
    PfnToLfn,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Direction::LfnToPfn => "lfn-to-pfn",
            Direction::PfnToLfn => "pfn-to-lfn",
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    #[error("no name rule of {storage} fits {shown}")]
    NoRule { storage: StorageName, shown: String },
    #[error("name rules of {storage} map {lfn} to {pfn}, which maps back to {back}")]
    NoRoundTrip { storage: StorageName, lfn: String, pfn: String, back: String },
    #[error("name rules of {storage} take {pfn} for {lfn}, whose place is {place}")]
    Elsewhere { storage: StorageName, lfn: String, pfn: String, place: String },
    #[error("name rules of {storage} map {lfn} to {shown}, which does not lie beneath {base}")]
    Outside { storage: StorageName, lfn: String, shown: String, base: String },
    #[error("rule {place} ({what}): {why}")]
    BadRule { place: usize, what: String, why: String },
    #[error("{0}")]
    BadRules(String),
    #[error("a name goes through more rules than any should: {0}")]
    TooMuch(String),
    #[error(transparent)]
    Name(#[from] NameError),
}

impl From<RuleError> for Fault {
    fn from(error: RuleError) -> Fault {
        Fault::new(FaultCode::BadName, error.to_string()).with_source(error)
    }
}

impl Default for NameRules {
    /// LFN and path are spelled alike.
    fn default() -> Self {
        NameRules::prefix("", "")
    }
}

impl NameRules {
    pub fn new(version: u32, rules: Vec<NameRule>) -> Self {
        NameRules { version, rules, own: OwnNames::default() }
    }

    pub fn prefix(lfn: &str, pfn: &str) -> Self {
        NameRules::new(1, vec![NameRule::Prefix(PrefixRule { lfn: lfn.into(), pfn: pfn.into() })])
    }

    pub fn to_pfn(&self, storage: &StorageName, lfn: &Lfn) -> Result<Pfn, RuleError> {
        let none = || RuleError::NoRule { storage: storage.clone(), shown: lfn.shown() };
        let name = self.lfn_to_pfn(lfn, &self.own.asked())?.ok_or_else(none)?.name;
        let outside = || RuleError::Outside {
            storage: storage.clone(),
            lfn: lfn.shown(),
            shown: printable(&name),
            base: if self.own.base.is_empty() { "/".into() } else { printable(&self.own.base) },
        };
        let pfn = Pfn::new(storage.clone(), self.own.beneath(&name).ok_or_else(outside)?)?;
        match self.back(pfn.path())? {
            Some(back) if back == *lfn => Ok(pfn),
            back => Err(RuleError::NoRoundTrip {
                storage: storage.clone(),
                lfn: lfn.shown(),
                pfn: pfn.to_string(),
                back: back.map_or_else(|| "nothing".into(), |back| back.shown()),
            }),
        }
    }

    pub fn to_lfn(&self, pfn: &Pfn) -> Result<Lfn, RuleError> {
        let none = || RuleError::NoRule { storage: pfn.storage.clone(), shown: pfn.to_string() };
        let lfn = self.back(pfn.path())?.ok_or_else(none)?;
        let place = self.to_pfn(&pfn.storage, &lfn)?;
        if place != *pfn {
            return Err(RuleError::Elsewhere {
                storage: pfn.storage.clone(),
                lfn: lfn.shown(),
                pfn: pfn.to_string(),
                place: place.to_string(),
            });
        }
        Ok(lfn)
    }

    fn back(&self, path: &str) -> Result<Option<Lfn>, RuleError> {
        self.pfn_to_lfn(&format!("{}/{path}", self.own.base), &self.own.asked())
    }
}

/// A rule as it is written: which kind it is, is seen by its fields.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct AnyRule {
    #[serde(skip_serializing_if = "Option::is_none")]
    lfn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pfn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    direction: Option<Direction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_match: Option<Pattern>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custodial: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_match: Option<Pattern>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    space_token: Option<String>,
}

impl TryFrom<AnyRule> for NameRule {
    type Error = String;
    fn try_from(any: AnyRule) -> Result<Self, String> {
        let missing = |what: &str| {
            format!(
                "a name rule has either lfn and pfn, or direction, protocol, path_match and result: {what} \
                    is missing"
            )
        };
        let by_pattern = any.direction.is_some() || any.protocol.is_some() || any.path_match.is_some();
        let of_patterns = any.result.is_some()
            || any.target_match.is_some()
            || any.custodial.is_some()
            || any.chain.is_some()
            || any.space_token.is_some();
        if !by_pattern && !of_patterns {
            let lfn = any.lfn.ok_or_else(|| missing("lfn"))?;
            return Ok(NameRule::Prefix(PrefixRule { lfn, pfn: any.pfn.ok_or_else(|| missing("pfn"))? }));
        }
        if any.lfn.is_some() || any.pfn.is_some() {
            return Err("a name rule is by prefix (lfn and pfn) or by pattern, not both".into());
        }
        Ok(NameRule::Pattern(PatternRule {
            direction: any.direction.ok_or_else(|| missing("direction"))?,
            protocol: any.protocol.ok_or_else(|| missing("protocol"))?,
            target_match: any.target_match,
            custodial: any.custodial,
            chain: any.chain,
            path_match: any.path_match.ok_or_else(|| missing("path_match"))?,
            result: any.result.ok_or_else(|| missing("result"))?,
            space_token: any.space_token,
        }))
    }
}

impl From<NameRule> for AnyRule {
    fn from(rule: NameRule) -> Self {
        match rule {
            NameRule::Prefix(PrefixRule { lfn, pfn }) => {
                AnyRule { lfn: Some(lfn), pfn: Some(pfn), ..AnyRule::default() }
            }
            NameRule::Pattern(rule) => AnyRule {
                direction: Some(rule.direction),
                protocol: Some(rule.protocol),
                target_match: rule.target_match,
                custodial: rule.custodial,
                chain: rule.chain,
                path_match: Some(rule.path_match),
                result: Some(rule.result),
                space_token: rule.space_token,
                ..AnyRule::default()
            },
        }
    }
}
