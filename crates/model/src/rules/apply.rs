//! Applies the rules to a name. Per protocol the first rule that matches wins:
//!
//! ```text
//! LFN ─► rules of `chain`, if it names one ─► path_match, result ─► PFN
//! PFN ─► path_match, result ─► rules of `chain`, if it names one ─► LFN
//! ```
//!
//! Towards a PFN, a rule whose chain has no answer does not match, and the next one is tried; on the way back
//! the rule is chosen first, so there is no answer at all. As in PhEDEx, an LFN gets a leading `/` here.

use super::pattern::replace;
use super::{Direction, NameRule, NameRules, PatternRule, PrefixRule, RuleError};
use crate::Lfn;

/// Length of a name at any step, in bytes: any LFN with a URL before it.
pub const NAME_BYTES_MAX: usize = 4_096;
/// Depth of a chain of protocols.
pub(super) const CHAINED_MAX: usize = 8;
/// Patterns tried on one name.
const STEPS_MAX: usize = 1_024;

/// Which names of a file are wanted.
#[derive(Clone, Copy, Debug)]
pub struct NameQuery<'a> {
    /// Protocol of the names.
    pub protocol: &'a str,
    /// The site at the other end; none: any, and every `target_match` counts as met.
    pub target: Option<&'a str>,
    /// Whether the copy is custodial.
    pub custodial: bool,
}

/// A mapped name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The storage's name of the file.
    pub name: String,
    /// Space of the storage that the file goes to; none: the default one.
    pub space_token: Option<String>,
}

impl NameRules {
    /// The name of a file in a protocol; none if no rule matches.
    ///
    /// # Errors
    /// A rule that is used is invalid, or the name takes too many steps.
    pub fn lfn_to_pfn(&self, lfn: &Lfn, asked: &NameQuery<'_>) -> Result<Option<Mapped>, RuleError> {
        let mut walk = Walk { rules: self, asked, direction: Direction::LfnToPfn, steps: 0 };
        walk.through(asked.protocol, &format!("/{lfn}", lfn = lfn.as_str()), 0)
    }

    /// The file of a protocol's name; none if no rule matches.
    ///
    /// # Errors
    /// A rule that is used is invalid, the name takes too many steps, or the result is not a valid LFN.
    pub fn pfn_to_lfn(&self, name: &str, asked: &NameQuery<'_>) -> Result<Option<Lfn>, RuleError> {
        let mut walk = Walk { rules: self, asked, direction: Direction::PfnToLfn, steps: 0 };
        let found = walk.through(asked.protocol, name, 0)?;
        Ok(found.map(|found| Lfn::parse(found.name.trim_start_matches('/'))).transpose()?)
    }

    /// Protocols that have rules in this direction, in the order of their first rules.
    pub fn protocols(&self, direction: Direction) -> Vec<&str> {
        let mut protocols = Vec::new();
        for rule in &self.rules {
            let protocol = match rule {
                NameRule::Prefix(_) => self.own.protocol.as_str(),
                NameRule::Pattern(rule) if rule.direction == direction => rule.protocol.as_str(),
                NameRule::Pattern(_) => continue,
            };
            if !protocols.contains(&protocol) {
                protocols.push(protocol);
            }
        }
        protocols
    }
}

struct Walk<'a> {
    rules: &'a NameRules,
    asked: &'a NameQuery<'a>,
    direction: Direction,
    steps: usize,
}

impl Walk<'_> {
    fn through(&mut self, protocol: &str, name: &str, depth: usize) -> Result<Option<Mapped>, RuleError> {
        if depth > CHAINED_MAX {
            return Err(RuleError::TooMuch(format!("protocols chain deeper than {CHAINED_MAX}")));
        }
        let rules = self.rules;
        for (place, rule) in rules.rules.iter().enumerate() {
            let found = match rule {
                NameRule::Prefix(rule) if protocol == rules.own.protocol => {
                    let name = rule.apply(self.direction, name, &rules.own.base);
                    name.map(|name| Mapped { name, space_token: None })
                }
                NameRule::Pattern(rule) if protocol == rule.protocol && self.direction == rule.direction => {
                    let bad = |why: String| rule.bad(place, why);
                    match rule.is_for(self.asked).map_err(bad)? {
                        true => match self.apply(rule, place, name, depth)? {
                            RuleMatch::No => None,
                            RuleMatch::Yes(found) => Some(found),
                            RuleMatch::NothingBeyond => return Ok(None),
                        },
                        false => None,
                    }
                }
                _ => None,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn apply(
        &mut self,
        rule: &PatternRule,
        place: usize,
        name: &str,
        depth: usize,
    ) -> Result<RuleMatch, RuleError> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(RuleError::TooMuch(format!("the limit is {STEPS_MAX}")));
        }
        let mut from = Mapped { name: name.to_owned(), space_token: None };
        if let (Direction::LfnToPfn, Some(chain)) = (self.direction, &rule.chain) {
            match self.through(chain, name, depth + 1)? {
                Some(before) => from = before,
                None => return Ok(RuleMatch::No),
            }
        }
        if from.name.len() > NAME_BYTES_MAX {
            return Err(rule.bad(place, format!("a name has more than {NAME_BYTES_MAX} bytes")));
        }
        let replaced = replace(&rule.path_match, &rule.result, &from.name, NAME_BYTES_MAX);
        let Some(name) = replaced.map_err(|why| rule.bad(place, why))? else { return Ok(RuleMatch::No) };
        let space_token = rule.space_token.clone().or(from.space_token);
        if let (Direction::PfnToLfn, Some(chain)) = (self.direction, &rule.chain) {
            let beyond = self.through(chain, &name, depth + 1)?;
            return Ok(beyond.map_or(RuleMatch::NothingBeyond, |beyond| {
                RuleMatch::Yes(Mapped { space_token: beyond.space_token.or(space_token), ..beyond })
            }));
        }
        Ok(RuleMatch::Yes(Mapped { name, space_token }))
    }
}

enum RuleMatch {
    No,
    Yes(Mapped),
    /// The rule matches, and the rules that it chains to have no answer.
    NothingBeyond,
}

impl PatternRule {
    fn is_for(&self, asked: &NameQuery<'_>) -> Result<bool, String> {
        if self.custodial.is_some_and(|custodial| custodial != asked.custodial) {
            return Ok(false);
        }
        match (&self.target_match, asked.target) {
            (Some(pattern), Some(target)) => Ok(pattern.regex()?.is_match(target)),
            _ => Ok(true),
        }
    }

    pub(super) fn bad(&self, place: usize, why: impl Into<String>) -> RuleError {
        let what = format!("{} of {}", self.direction, crate::units::printable(&self.protocol));
        RuleError::BadRule { place: place + 1, what, why: why.into() }
    }
}

impl PrefixRule {
    fn apply(&self, direction: Direction, name: &str, base: &str) -> Option<String> {
        match direction {
            Direction::LfnToPfn => {
                Some(format!("{base}/{}", prefixed(name.strip_prefix('/')?, &self.lfn, &self.pfn)?))
            }
            Direction::PfnToLfn => {
                let path = name.strip_prefix(base)?.strip_prefix('/')?;
                Some(format!("/{}", prefixed(path, &self.pfn, &self.lfn)?))
            }
        }
    }
}

/// `path` with the leading components `from` replaced by `to`; none if it does not begin with them.
fn prefixed(path: &str, from: &str, to: &str) -> Option<String> {
    let rest = if from.is_empty() { path } else { path.strip_prefix(from)?.strip_prefix('/')? };
    Some(if to.is_empty() { rest.to_owned() } else { format!("{to}/{rest}") })
}
