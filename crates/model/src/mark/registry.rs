//! Registry of experiments and their activities: a file in the format of `scitags.org`, or the built-in
//! entries.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{ACTIVITY_MAX, EXPERIMENT_MAX, SciTag};
use crate::fault::{Fault, FaultCode};

/// Maximum length of a registry file: the published one has some 20 kB.
pub const REGISTRY_BYTES_MAX: usize = 1 << 20;
const EXPERIMENTS_MAX: usize = EXPERIMENT_MAX as usize;
const ACTIVITIES_MAX: usize = ACTIVITY_MAX as usize;
const NAME_BYTES_MAX: usize = 200;

/// Names, in lower case, with their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    experiments: BTreeMap<String, Experiment>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Experiment {
    number: u16,
    activities: BTreeMap<String, u8>,
}

/// JSON layout of the published file.
#[derive(Deserialize)]
struct File {
    version: u32,
    experiments: Vec<ExperimentRow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExperimentRow {
    exp_name: String,
    exp_id: u16,
    #[serde(default)]
    activities: Vec<ActivityRow>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActivityRow {
    activity_name: String,
    activity_id: u8,
}

const BUILT_IN: &[(&str, u16)] = &[
    ("default", 1),
    ("atlas", 2),
    ("cms", 3),
    ("lhcb", 4),
    ("alice", 5),
    ("belleii", 6),
    ("ska", 7),
    ("dune", 8),
    ("lsst", 9),
    ("ilc", 10),
    ("auger", 11),
    ("juno", 12),
    ("nova", 13),
    ("xenon", 14),
];
/// Activities that every experiment has.
const COMMON_ACTIVITIES: &[(&str, u8)] = &[("default", 1), ("perfsonar", 2)];
/// Further activities of experiments without a list of their own below.
const DEFAULT_ACTIVITIES: &[(&str, u8)] = &[("cache", 3), ("data challenge", 4)];
const ATLAS: &[(&str, u8)] = &[
    ("data brokering", 3),
    ("data consolidation", 4),
    ("data rebalancing", 8),
    ("express", 10),
    ("functional test", 11),
    ("production input", 15),
    ("production output", 16),
    ("analysis input", 17),
    ("analysis output", 18),
    ("staging", 19),
    ("t0 export", 20),
    ("t0 tape", 21),
    ("user subscriptions", 24),
    ("data challenge", 26),
];
const CMS: &[(&str, u8)] = &[
    ("cache", 3),
    ("data challenge", 4),
    ("data brokering", 5),
    ("data consolidation", 6),
    ("data rebalancing", 7),
    ("express", 9),
    ("production input", 12),
    ("production output", 13),
    ("analysis input", 14),
    ("analysis output", 15),
    ("staging", 16),
    ("t0 export", 17),
    ("t0 tape", 18),
    ("user subscriptions", 21),
];

impl Registry {
    /// The entries built into the program, for use without a file.
    pub fn built_in() -> Registry {
        let experiment = |&(name, number): &(&str, u16)| {
            let own = match name {
                "atlas" => ATLAS,
                "cms" => CMS,
                _ => DEFAULT_ACTIVITIES,
            };
            let activities =
                COMMON_ACTIVITIES.iter().chain(own).map(|&(name, number)| (name.to_owned(), number));
            (name.to_owned(), Experiment { number, activities: activities.collect() })
        };
        Registry { experiments: BUILT_IN.iter().map(experiment).collect() }
    }

    /// Parses a file in the format of `scitags.org`.
    ///
    /// # Errors
    /// `BadRequest` with a text for people, if it is not such a file or is too large.
    pub fn parse(bytes: &[u8]) -> Result<Registry, Fault> {
        let wrong =
            |why: String| Fault::new(FaultCode::BadRequest, format!("the registry of SciTags: {why}"));
        if bytes.len() > REGISTRY_BYTES_MAX {
            return Err(wrong(format!("{} bytes, the limit is {REGISTRY_BYTES_MAX}", bytes.len())));
        }
        let file: File = serde_json::from_slice(bytes).map_err(|error| wrong(error.to_string()))?;
        if file.version != 1 {
            return Err(wrong(format!("it is of version {}, this program knows version 1", file.version)));
        }
        if file.experiments.len() > EXPERIMENTS_MAX {
            return Err(wrong(format!("{} experiments", file.experiments.len())));
        }
        let mut registry = Registry::default();
        for row in file.experiments {
            let (name, experiment) = row.read().map_err(wrong)?;
            if registry.experiments.insert(name.clone(), experiment).is_some() {
                return Err(wrong(format!("experiment {name} stands there twice")));
            }
        }
        Ok(registry)
    }

    /// Number of an experiment by its name, in either case.
    ///
    /// # Errors
    /// A text for people that lists the known names.
    pub fn experiment(&self, name: &str) -> Result<u16, String> {
        self.named(name).map(|experiment| experiment.number)
    }

    /// Number of an activity of this experiment, by its name in either case.
    ///
    /// # Errors
    /// A text for people that lists the known names.
    pub fn activity(&self, experiment: u16, name: &str) -> Result<u8, String> {
        let of = self.experiments.values().find(|known| known.number == experiment);
        let of = of.ok_or_else(|| format!("the registry has no experiment {experiment}"))?;
        of.activities.get(&name.to_lowercase()).copied().ok_or_else(|| {
            let known: Vec<&str> = of.activities.keys().map(String::as_str).collect();
            format!("experiment {experiment} has no activity {name:?}; it has {}", known.join(", "))
        })
    }

    fn named(&self, name: &str) -> Result<&Experiment, String> {
        self.experiments.get(&name.to_lowercase()).ok_or_else(|| {
            let known: Vec<&str> = self.experiments.keys().map(String::as_str).collect();
            format!("the registry has no experiment {name:?}; it has {}", known.join(", "))
        })
    }
}

impl ExperimentRow {
    fn read(self) -> Result<(String, Experiment), String> {
        let name = checked(&self.exp_name)?;
        if self.activities.len() > ACTIVITIES_MAX {
            return Err(format!("{} activities of {name}", self.activities.len()));
        }
        let mut experiment = Experiment { number: self.exp_id, activities: BTreeMap::new() };
        for row in self.activities {
            SciTag::new(self.exp_id, row.activity_id).map_err(|why| format!("{name}: {why}"))?;
            // Of two activities with the same name the first counts.
            experiment.activities.entry(checked(&row.activity_name)?).or_insert(row.activity_id);
        }
        SciTag::new(self.exp_id, 1).map_err(|why| format!("{name}: {why}"))?;
        Ok((name, experiment))
    }
}

fn checked(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("{:?} is no name", name.chars().take(40).collect::<String>()));
    }
    Ok(name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REGISTRY_JSON: &str = r#"{"version":1,"modified":"2026-01-01T00:00:00","experiments":[
        {"expName":"CMS","expId":3,"activities":[{"activityName":"Production Input","activityId":12}]},
        {"expName":"new","expId":40,"activities":[]}]}"#;

    #[test]
    fn names_become_numbers() {
        let registry = Registry::parse(REGISTRY_JSON.as_bytes()).unwrap();
        assert_eq!(registry.experiment("cms"), Ok(3));
        assert_eq!(registry.activity(3, "production INPUT"), Ok(12));
        let why = registry.activity(3, "staging").unwrap_err();
        assert!(why.contains("\"staging\"") && why.contains("production input"), "{why}");
        assert!(registry.experiment("atlas").unwrap_err().contains("it has cms, new"));
        assert!(registry.activity(40, "default").is_err());
        assert!(registry.activity(9, "default").unwrap_err().contains("no experiment 9"));
    }

    #[test]
    fn much_is_built_in() {
        let registry = Registry::built_in();
        assert_eq!(registry.experiment("Atlas"), Ok(2));
        assert_eq!(registry.activity(2, "data challenge"), Ok(26));
        assert_eq!(registry.activity(4, "data challenge"), Ok(4));
        assert_eq!(registry.activity(3, "perfSONAR"), Ok(2));
    }

    #[test]
    fn mistakes_are_told() {
        let said = |text: &str| Registry::parse(text.as_bytes()).unwrap_err().detail;
        assert!(said(&REGISTRY_JSON.replace("\"version\":1", "\"version\":2")).contains("version 2"));
        assert!(said(&REGISTRY_JSON.replace("\"new\"", "\"cms\"")).contains("cms stands there twice"));
        assert!(said(&REGISTRY_JSON.replace(":12}", ":64}")).contains("cms: activity 64"));
        assert!(said(&REGISTRY_JSON.replace(":40,", ":0,")).contains("new: experiment 0"));
        assert!(said(&REGISTRY_JSON.replace("\"new\"", "\"a\\nb\"")).contains("is no name"));
        assert!(said(&" ".repeat(REGISTRY_BYTES_MAX + 1)).contains("the limit is"));
        assert!(said("[").contains("EOF"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_registry_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Registry::parse(&bytes);
        }

        #[test]
        fn what_is_taken_gives_tags(experiments in proptest::collection::vec((".{0,6}", any::<u16>(),
            ".{0,6}", any::<u8>()), 0..4)) {
            let rows: Vec<_> = experiments.iter().map(|(name, number, activity, id)| serde_json::json!({
                "expName": name, "expId": number, "activities": [{ "activityName": activity,
                    "activityId": id }]
            })).collect();
            let text = serde_json::json!({ "version": 1, "experiments": rows }).to_string();
            if let Ok(registry) = Registry::parse(text.as_bytes()) {
                for (name, number, activity, id) in &experiments {
                    prop_assert_eq!(registry.experiment(name), Ok(*number));
                    prop_assert!(registry.activity(*number, activity).is_ok());
                    prop_assert!(SciTag::new(*number, *id).is_ok());
                }
            }
        }
    }
}
