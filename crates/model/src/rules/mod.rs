//! Name rules: how a storage turns an LFN into the path of its replica and back.
//!
//! An ordered list of rules: prefix rules, which work both ways, and pattern rules, which work one way each.
//! Patterns mean what they mean in PhEDEx's trivial file catalogue (TFC): of a protocol's rules the first
//! match wins, no match is an error, and a rule may build on another protocol's rules (`chain`). A mapping
//! that does not lead back to the same LFN is refused when it is used, so that LFN and PFN can never drift
//! apart.
//!
//! Not here: where rules are configured (`agent`, `gateways::storage_xml`). Start with [`NameRules`]; `apply`
//! runs a name through the rules, `pattern` implements one pattern, `check` validates rules before use.

mod apply;
mod check;
mod pattern;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::units::printable;
use crate::{Fault, FaultCode, Lfn, NameError, Pfn, StorageName};

pub use apply::{Mapped, NAME_BYTES_MAX, NameQuery};
pub use check::{RULES_MAX, WORD_BYTES_MAX};
pub use pattern::{PATTERN_BYTES_MAX, Pattern};

/// The rules of one storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRules {
    /// Grows with each change.
    pub version: u32,
    /// The rules, in order of precedence.
    pub rules: Vec<NameRule>,
    /// How its own replicas are named. Stored rules without this field have prefix rules only.
    #[serde(default, skip_serializing_if = "OwnNames::is_usual")]
    pub own: OwnNames,
}

/// The names of a storage's own replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnNames {
    /// The protocol whose names lie beneath `base`; prefix rules belong to it too.
    pub protocol: String,
    /// What a name of that protocol begins with at the storage's root.
    pub base: String,
    /// Whether rules for custodial copies apply. One answer for the whole storage: a copy stays where it is
    /// when its custody changes, and would not be found under a name that changes with it.
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

    /// The part of a name beneath the storage's root.
    fn beneath<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(self.base.as_str())?.strip_prefix('/').map(|path| path.trim_start_matches('/'))
    }
}

/// A rule of either kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AnyRule", into = "AnyRule")]
pub enum NameRule {
    /// Maps by leading components, in both directions.
    Prefix(PrefixRule),
    /// Maps by regular expression, in one direction.
    Pattern(PatternRule),
}

/// Replaces the leading components `lfn` by `pfn`; either may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixRule {
    /// Leading components of the LFN.
    pub lfn: String,
    /// Leading components of the path in the storage.
    pub pfn: String,
}

/// Replaces what `path_match` matches by `result`; the fields are those of PhEDEx's TFC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternRule {
    /// Direction of the mapping.
    pub direction: Direction,
    /// Protocol whose names the rule makes or reads.
    pub protocol: String,
    /// Only for sites at the other end that match; none: all.
    pub target_match: Option<Pattern>,
    /// Only for custodial copies (true) or only for others (false); none: both.
    pub custodial: Option<bool>,
    /// The protocol whose rules the name goes through before this one (from LFN to PFN), or after it.
    pub chain: Option<String>,
    /// Regular expression that the name has to match.
    pub path_match: Pattern,
    /// Replacement, with `$1` to `$9` for the groups of `path_match`.
    pub result: String,
    /// Space of the storage that the file goes to, as SRM and some storages name it.
    pub space_token: Option<String>,
}

/// Direction of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From a logical name to the storage's name.
    LfnToPfn,
    /// From the storage's name to a logical name.
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

/// Why names cannot be mapped, or rules cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// No rule matches the name.
    #[error("no name rule of {storage} fits {shown}")]
    NoRule {
        /// Storage whose rules were tried.
        storage: StorageName,
        /// The name, escaped.
        shown: String,
    },
    /// The mapping does not lead back to the same LFN.
    #[error("name rules of {storage} map {lfn} to {pfn}, which maps back to {back}")]
    NoRoundTrip {
        /// Storage whose rules were tried.
        storage: StorageName,
        /// The LFN, escaped.
        lfn: String,
        /// The PFN that it maps to, escaped.
        pfn: String,
        /// The LFN that the PFN maps to, escaped.
        back: String,
    },
    /// The file lies where the rules would not put it.
    #[error("name rules of {storage} take {pfn} for {lfn}, whose place is {place}")]
    Elsewhere {
        /// Storage whose rules were tried.
        storage: StorageName,
        /// The LFN that the PFN maps to, escaped.
        lfn: String,
        /// The PFN found, escaped.
        pfn: String,
        /// The PFN where the rules put that LFN, escaped.
        place: String,
    },
    /// The mapped name lies outside of the storage's root.
    #[error("name rules of {storage} map {lfn} to {shown}, which does not lie beneath {base}")]
    Outside {
        /// Storage whose rules were tried.
        storage: StorageName,
        /// The LFN, escaped.
        lfn: String,
        /// The mapped name, escaped.
        shown: String,
        /// Where names of the storage's own protocol begin.
        base: String,
    },
    /// One rule is invalid.
    #[error("rule {place} ({what}): {why}")]
    BadRule {
        /// Number of the rule, from 1.
        place: usize,
        /// Direction and protocol of the rule, or its field.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// The rules as a whole are invalid.
    #[error("{0}")]
    BadRules(String),
    /// The name takes more steps than the limit: the rules were not checked.
    #[error("a name goes through more rules than any should: {0}")]
    TooMuch(String),
    /// The mapped name is not a valid name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl From<RuleError> for Fault {
    fn from(error: RuleError) -> Fault {
        Fault::new(FaultCode::BadName, error.to_string()).with_source(error)
    }
}

impl Default for NameRules {
    /// The path equals the LFN.
    fn default() -> Self {
        NameRules::prefix("", "")
    }
}

impl NameRules {
    /// Rules whose replicas lie directly beneath the storage's root.
    pub fn new(version: u32, rules: Vec<NameRule>) -> Self {
        NameRules { version, rules, own: OwnNames::default() }
    }

    /// A single prefix rule.
    pub fn prefix(lfn: &str, pfn: &str) -> Self {
        NameRules::new(1, vec![NameRule::Prefix(PrefixRule { lfn: lfn.into(), pfn: pfn.into() })])
    }

    /// The path of a file's replica in the storage.
    ///
    /// # Errors
    /// No rule matches, or the path is invalid, lies outside of the root, or does not lead back to the LFN.
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

    /// The file whose replica lies at this path.
    ///
    /// # Errors
    /// No rule matches, the name is invalid, or the rules would put that file elsewhere.
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
