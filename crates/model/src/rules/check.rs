//! Validates rules before any of them is used.

use std::collections::{BTreeMap, BTreeSet};

use super::apply::CHAINED_MAX;
use super::pattern::{PATTERN_BYTES_MAX, Piece, pieces};
use super::{Direction, NameRule, NameRules, PatternRule, PrefixRule, RuleError};
use crate::units::printable;
use crate::{Lfn, StorageName};

/// Rules of one storage: the largest catalogues of PhEDEx's sites had some dozens.
pub const RULES_MAX: usize = 256;
/// Length of a protocol's name and of a space token, in bytes.
pub const WORD_BYTES_MAX: usize = 64;

impl NameRules {
    /// Finds every error that shows without a name: in each rule alone, chains that lead nowhere or in a
    /// circle, and protocols whose names cannot be mapped back.
    ///
    /// # Errors
    /// The first error found.
    pub fn check(&self) -> Result<(), RuleError> {
        self.check_each()?;
        self.check_reverse()
    }

    /// As [`NameRules::check`], for another party's names, which never have to be mapped back.
    ///
    /// # Errors
    /// The first error found.
    pub fn check_each(&self) -> Result<(), RuleError> {
        let wrong = |why: String| Err(RuleError::BadRules(why));
        if self.rules.len() > RULES_MAX {
            return wrong(format!("{} rules, the limit is {RULES_MAX}", self.rules.len()));
        }
        if self.own.base.ends_with('/') || self.own.base.len() > PATTERN_BYTES_MAX {
            return wrong(format!(
                "base is {:?}: {PATTERN_BYTES_MAX} bytes at most without a / at the end are expected",
                printable(&self.own.base)
            ));
        }
        check_word(&self.own.protocol).or_else(|why| wrong(format!("the storage's own protocol {why}")))?;
        for (place, rule) in self.rules.iter().enumerate() {
            match rule {
                NameRule::Prefix(rule) => rule.check(place)?,
                NameRule::Pattern(rule) => rule.check().map_err(|why| rule.bad(place, why))?,
            }
        }
        [Direction::LfnToPfn, Direction::PfnToLfn].into_iter().try_for_each(|way| self.check_chains(way))
    }

    /// Maps sample names of the site: each has to map to a path and back.
    ///
    /// # Errors
    /// The first name that does not.
    pub fn try_names<'a>(
        &self,
        storage: &StorageName,
        names: impl IntoIterator<Item = &'a Lfn>,
    ) -> Result<(), RuleError> {
        names.into_iter().try_for_each(|lfn| self.to_pfn(storage, lfn).map(drop))
    }

    /// Every chain leads to rules, and none to itself.
    fn check_chains(&self, direction: Direction) -> Result<(), RuleError> {
        let known: BTreeSet<&str> = self.protocols(direction).into_iter().collect();
        let mut chains: BTreeMap<&str, Vec<(usize, &PatternRule, &str)>> = BTreeMap::new();
        for (place, rule) in self.rules.iter().enumerate() {
            let NameRule::Pattern(rule) = rule else { continue };
            let Some(chain) = rule.chain.as_deref().filter(|_| rule.direction == direction) else { continue };
            if !known.contains(chain) {
                return Err(rule.bad(
                    place,
                    format!("it chains to {}, which has no rules in this direction", printable(chain)),
                ));
            }
            chains.entry(&rule.protocol).or_default().push((place, rule, chain));
        }
        // A chain of n steps is settled after n rounds; a circle never is.
        let mut settled: BTreeSet<&str> =
            known.iter().copied().filter(|protocol| !chains.contains_key(protocol)).collect();
        for _ in 0..CHAINED_MAX {
            let more: Vec<&str> = chains
                .iter()
                .filter(|(_, to)| to.iter().all(|(_, _, chain)| settled.contains(chain)))
                .map(|(protocol, _)| *protocol)
                .collect();
            settled.extend(more);
        }
        let unsettled = chains.into_iter().find(|(protocol, _)| !settled.contains(protocol));
        match unsettled.and_then(|(_, to)| to.into_iter().find(|(_, _, chain)| !settled.contains(chain))) {
            Some((place, rule, chain)) => Err(rule.bad(
                place,
                format!(
                    "its chain to {} leads in a circle, or over more than {CHAINED_MAX} protocols",
                    printable(chain)
                ),
            )),
            None => Ok(()),
        }
    }

    /// Names made from LFNs must map back to LFNs: otherwise nobody could tell which file a name belongs to.
    fn check_reverse(&self) -> Result<(), RuleError> {
        let [to_pfn, to_lfn] = [Direction::LfnToPfn, Direction::PfnToLfn].map(|way| self.protocols(way));
        let own = self.own.protocol.as_str();
        if let Some(protocol) = to_pfn.iter().find(|protocol| !to_lfn.contains(protocol)) {
            return Err(RuleError::BadRules(format!(
                "protocol {} has rules from LFN to PFN and none back: a name that does not come back is \
                    never used, so add pfn-to-lfn rules",
                printable(protocol)
            )));
        }
        if !to_pfn.contains(&own) {
            return Err(RuleError::BadRules(format!(
                "there are no rules of protocol {}, by which the storage's own files are named: known are {}",
                printable(own),
                if to_pfn.is_empty() { "none".into() } else { printable(&to_pfn.join(", ")) }
            )));
        }
        Ok(())
    }
}

impl PrefixRule {
    fn check(&self, place: usize) -> Result<(), RuleError> {
        for (what, prefix) in [("lfn", &self.lfn), ("pfn", &self.pfn)] {
            if !prefix.is_empty() {
                Lfn::parse(prefix).map_err(|error| RuleError::BadRule {
                    place: place + 1,
                    what: what.into(),
                    why: error.to_string(),
                })?;
            }
        }
        Ok(())
    }
}

impl PatternRule {
    /// Finds errors in this rule alone.
    ///
    /// # Errors
    /// A text for people with the name of the wrong field.
    pub fn check(&self) -> Result<(), String> {
        check_word(&self.protocol).map_err(|why| format!("protocol {why}"))?;
        for (what, word) in [("chain", &self.chain), ("space_token", &self.space_token)] {
            word.as_deref().map_or(Ok(()), check_word).map_err(|why| format!("{what} {why}"))?;
        }
        if let Some(pattern) = &self.target_match {
            pattern.regex().map_err(|why| format!("target_match: {why}"))?;
        }
        let groups = self.path_match.groups().map_err(|why| format!("path_match: {why}"))?;
        if self.result.len() > PATTERN_BYTES_MAX {
            return Err(format!("result has {} bytes, the limit is {PATTERN_BYTES_MAX}", self.result.len()));
        }
        for piece in pieces(&self.result) {
            match piece.map_err(|why| format!("result: {why}"))? {
                Piece::Group(number) if number > groups => {
                    return Err(format!("result has ${number}, but path_match has {groups} groups"));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn check_word(word: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_graphic();
    if !word.is_empty() && word.len() <= WORD_BYTES_MAX && word.chars().all(plain) {
        return Ok(());
    }
    let shown: String = word.chars().take(40).collect();
    Err(format!("is \"{}\": 1 to {WORD_BYTES_MAX} visible ASCII characters are expected", printable(&shown)))
}
