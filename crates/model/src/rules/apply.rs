//! How a name goes through the rules. Per protocol the first rule that fits wins:
//!
//! ```text
//! LFN ─► rules of `chain`, if it names one ─► path_match, result ─► PFN
//! PFN ─► path_match, result ─► rules of `chain`, if it names one ─► LFN
//! ```
//!
//! On the way to a PFN a rule whose chain has no answer does not fit, and the next is tried; on the way back
//! the rule has been chosen by then, and there is no answer. An LFN has a `/` before it here, as in PhEDEx.

use super::pattern::replace;
use super::{Direction, NameRule, NameRules, PatternRule, PrefixRule, RuleError};
use crate::Lfn;

/// Of a name on its way: any LFN with a URL before it.
pub const NAME_BYTES_MAX: usize = 4_096;
/// Protocols that build on each other.
pub(super) const CHAINED_MAX: usize = 8;
/// Patterns that one name is held against.
const STEPS_MAX: usize = 1_024;

/// Which names are wanted.
#[derive(Clone, Copy, Debug)]
pub struct NameQuery<'a> {
    pub protocol: &'a str,
    /// The site at the other end; none: any, and conditions on it count as met.
    pub target: Option<&'a str>,
    pub custodial: bool,
}

/// A name, and where the storage shall take it from the space of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub name: String,
    pub space_token: Option<String>,
}

impl NameRules {
    /// Under which name a protocol knows a file. None: no rule fits.
    pub fn lfn_to_pfn(&self, lfn: &Lfn, asked: &NameQuery<'_>) -> Result<Option<Mapped>, RuleError> {
        let mut walk = Walk { rules: self, asked, direction: Direction::LfnToPfn, steps: 0 };
        walk.through(asked.protocol, &format!("/{lfn}", lfn = lfn.as_str()), 0)
    }

    /// Which file a protocol's name is of. None: no rule fits.
    pub fn pfn_to_lfn(&self, name: &str, asked: &NameQuery<'_>) -> Result<Option<Lfn>, RuleError> {
        let mut walk = Walk { rules: self, asked, direction: Direction::PfnToLfn, steps: 0 };
        let found = walk.through(asked.protocol, name, 0)?;
        Ok(found.map(|found| Lfn::parse(found.name.trim_start_matches('/'))).transpose()?)
    }

    /// Protocols that rules of this direction are for, in the order of their first rules.
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
    /// It was this rule's turn, and what it chains to had no answer.
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
