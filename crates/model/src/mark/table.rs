//! Table of marks: which community and activity gets which treatment on the network.

use serde::{Deserialize, Serialize};

use super::{Dscp, Mark, Registry, SciTag};
use crate::fault::{Fault, FaultCode};
use crate::lifecycle::{CircuitUse, TrafficClass};
use crate::name::{ActivityName, CommunityName};

/// Most rules: each may open its own set of streams between two agents that have such work at the same time.
pub const RULES_MAX: usize = 64;

/// An experiment or an activity, by number or by its name in the registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Named {
    /// Number in the registry.
    Number(u16),
    /// Name in the registry, in either case.
    Name(String),
}

/// One rule, as in the administrator's file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MarkRule {
    /// Community that the rule is for; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub community: Option<CommunityName>,
    /// Activity that the rule is for; absent: any, and work without an activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activity: Option<ActivityName>,
    /// Experiment in packets and fireflies; absent: no SciTag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment: Option<Named>,
    /// Activity of the experiment; absent: its default, 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experiment_activity: Option<Named>,
    /// Forwarding class; absent: the default class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dscp: Option<Dscp>,
    /// Whether its traffic yields to other traffic.
    #[serde(default)]
    pub class: TrafficClass,
    /// Whether its work uses circuits.
    #[serde(default)]
    pub circuits: CircuitUse,
}

/// How the network treats some work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Treatment {
    /// Marks on its packets.
    pub mark: Mark,
    /// Best effort, or less.
    pub class: TrafficClass,
    /// Whether it uses circuits.
    pub circuits: CircuitUse,
}

/// Rules in their order, with names resolved to numbers. Empty: nothing is marked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkTable(Vec<(Option<CommunityName>, Option<ActivityName>, Treatment)>);

impl MarkTable {
    /// Resolves the names of rules by a registry.
    ///
    /// # Errors
    /// `BadRequest` with the number of the rule that is wrong, or if there are too many.
    pub fn new(rules: &[MarkRule], registry: &Registry) -> Result<MarkTable, Fault> {
        let wrong = |why: String| Fault::new(FaultCode::BadRequest, why);
        if rules.len() > RULES_MAX {
            return Err(wrong(format!("{} rules for marks, the limit is {RULES_MAX}", rules.len())));
        }
        let row = |(place, rule): (usize, &MarkRule)| {
            let scitag = rule.scitag(registry);
            let scitag = scitag.map_err(|why| wrong(format!("rule {} for marks: {why}", place + 1)))?;
            let mark = Mark { scitag, dscp: rule.dscp };
            let treatment = Treatment { mark, class: rule.class, circuits: rule.circuits };
            Ok((rule.community.clone(), rule.activity.clone(), treatment))
        };
        rules.iter().enumerate().map(row).collect::<Result<_, Fault>>().map(MarkTable)
    }

    /// The treatment by the first rule that matches; the default one if none does.
    pub fn treatment(&self, community: &CommunityName, activity: Option<&ActivityName>) -> Treatment {
        let fits = |(of, class, _): &&(Option<CommunityName>, Option<ActivityName>, Treatment)| {
            of.as_ref().is_none_or(|of| of == community) && (class.is_none() || class.as_ref() == activity)
        };
        self.0.iter().find(fits).map(|(_, _, treatment)| *treatment).unwrap_or_default()
    }

    /// Circuit use of each rule in order, or nothing if no rule differs from the default; the first match
    /// counts here as well.
    pub fn circuits(
        &self,
    ) -> impl Iterator<Item = (Option<&CommunityName>, Option<&ActivityName>, CircuitUse)> {
        let any = self.0.iter().any(|(_, _, treatment)| treatment.circuits != CircuitUse::default());
        let rules = self.0.iter().filter(move |_| any);
        rules.map(|(community, activity, treatment)| {
            (community.as_ref(), activity.as_ref(), treatment.circuits)
        })
    }
}

impl MarkRule {
    fn scitag(&self, registry: &Registry) -> Result<Option<SciTag>, String> {
        let experiment = match &self.experiment {
            None if self.experiment_activity.is_some() => {
                return Err("experiment_activity without an experiment".into());
            }
            None => return Ok(None),
            Some(Named::Number(number)) => *number,
            Some(Named::Name(name)) => registry.experiment(name)?,
        };
        let activity = match &self.experiment_activity {
            None => 1,
            Some(Named::Number(number)) => u8::try_from(*number).map_err(|_| format!("activity {number}"))?,
            Some(Named::Name(name)) => registry.activity(experiment, name)?,
        };
        SciTag::new(experiment, activity).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(community: Option<&str>, activity: Option<&str>, experiment: u16) -> MarkRule {
        MarkRule {
            community: community.map(|name| name.parse().unwrap()),
            activity: activity.map(|name| name.parse().unwrap()),
            experiment: Some(Named::Number(experiment)),
            ..MarkRule::default()
        }
    }

    #[test]
    fn the_first_rule_that_fits_says_it() {
        let rules = [
            rule(Some("cms"), Some("production"), 3),
            rule(Some("cms"), None, 4),
            rule(None, Some("tests"), 5),
        ];
        let table = MarkTable::new(&rules, &Registry::built_in()).unwrap();
        let of = |community: &str, activity: Option<&str>| {
            let activity = activity.map(|name| name.parse().unwrap());
            let treatment = table.treatment(&community.parse().unwrap(), activity.as_ref());
            treatment.mark.scitag.map(SciTag::experiment)
        };
        assert_eq!(of("cms", Some("production")), Some(3));
        assert_eq!(of("cms", Some("tests")), Some(4));
        assert_eq!(of("cms", None), Some(4));
        assert_eq!(of("atlas", Some("tests")), Some(5));
        assert_eq!(of("atlas", None), None);
    }

    #[test]
    fn names_are_looked_up_and_mistakes_told() {
        let registry = Registry::built_in();
        let named = |name: &str| Some(Named::Name(name.into()));
        let row = MarkRule {
            experiment: named("cms"),
            experiment_activity: named("Staging"),
            dscp: "cs1".parse().ok(),
            class: TrafficClass::Scavenger,
            ..MarkRule::default()
        };
        let table = MarkTable::new(std::slice::from_ref(&row), &registry).unwrap();
        let treatment = table.treatment(&"any".parse().unwrap(), None);
        assert_eq!(treatment.mark, Mark { scitag: SciTag::new(3, 16).ok(), dscp: "cs1".parse().ok() });
        assert_eq!(treatment.class, TrafficClass::Scavenger);
        let said = |rule: MarkRule| MarkTable::new(&[rule], &registry).unwrap_err().detail;
        assert!(
            said(MarkRule { experiment: named("cmms"), ..row.clone() })
                .contains("rule 1 for marks: the registry has no experiment \"cmms\"")
        );
        assert!(said(MarkRule { experiment: None, ..row.clone() }).contains("without an experiment"));
        assert!(
            said(MarkRule { experiment_activity: Some(Named::Number(64)), ..row.clone() })
                .contains("activity 64")
        );
        assert!(MarkTable::new(&vec![row; RULES_MAX + 1], &registry).is_err());
    }
}
