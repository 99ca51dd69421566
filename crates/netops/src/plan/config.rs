//! What an administrator can set about the plan of circuits.

use std::collections::BTreeSet;
use std::time::Duration;

use longhaul_circuits::plan::PlanSettings;
use longhaul_model::{CommunityName, Fault, FaultCode, SiteName};
use longhaul_storage_remote::is_host;
use serde::{Deserialize, Serialize};

/// Seconds and counts are no larger than this: some thirty years.
const NUMBER_MAX: u32 = 1_000_000_000;
const ROWS_MAX: usize = 1_000;

/// The level that decides whether work is worth a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Each agent, for its own links.
    #[default]
    Agent,
    /// The service, for all.
    Service,
}

impl Level {
    pub fn word(self) -> &'static str {
        match self {
            Level::Agent => "agent",
            Level::Service => "service",
        }
    }
}

/// Defaults are those of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CircuitsConfig {
    pub level: Level,
    /// Between two plans.
    pub every_s: u32,
    /// Work below this priority asks for no circuit,
    pub floor: u8,
    /// and counts as one higher for each such time that it has waited.
    pub age_step_s: u32,
    /// A circuit must save so much time,
    pub gain_s: u32,
    /// and such a part of the time that the work takes without it,
    pub gain_percent: u32,
    /// in so many plans in a row.
    pub checks: u32,
    /// It is given back if what waits takes less without it, in as many plans in a row,
    pub leave_s: u32,
    /// and not before it is so old.
    pub hold_s: u32,
    /// A link rests so long after a request that failed, twice as long after each further one, and after a
    /// circuit that was given back.
    pub rest_s: u32,
    /// Rests are no longer than this.
    pub rest_max_s: u32,
    /// A site whose agents are not in contact for so long has no circuits.
    pub away_s: u32,
    /// Gbit/s times hours that a community may book within a day; none: as much as there is.
    pub budget_gbit_h: Option<u32>,
    /// Budgets of single communities.
    pub budgets: Vec<BudgetConfig>,
    /// What is known of providers beyond what agents tell.
    pub providers: Vec<ProviderConfig>,
    /// Storages of others that can be reached by circuits, whoever decides about these.
    pub hosts: Vec<HostConfig>,
}

/// A host in URLs of jobs, and what the same storage is called on the circuits of its site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    pub site: SiteName,
    pub host: String,
    pub on_circuit: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetConfig {
    pub community: CommunityName,
    pub gbit_h: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProviderConfig {
    /// As `longhaul circuit plan` shows it.
    pub name: String,
    /// Circuits at a time; none: one for each link.
    pub at_once: Option<u32>,
    /// Bandwidth of all its circuits together.
    pub mbit_all: Option<u64>,
    /// From a request to its use, before that was seen.
    pub setup_s: u32,
    /// The part of each port that may be reserved.
    pub port_percent: u32,
    /// No circuit is asked for longer.
    pub lifetime_s: u32,
    pub requests_per_hour: u32,
}

impl Default for CircuitsConfig {
    fn default() -> Self {
        CircuitsConfig {
            level: Level::Agent,
            every_s: 60,
            floor: 5,
            age_step_s: 21_600,
            gain_s: 1_800,
            gain_percent: 20,
            checks: 2,
            leave_s: 300,
            hold_s: 600,
            rest_s: 3_600,
            rest_max_s: 86_400,
            away_s: 120,
            budget_gbit_h: None,
            budgets: Vec::new(),
            providers: Vec::new(),
            hosts: Vec::new(),
        }
    }
}

impl Default for ProviderConfig {
    fn default() -> Self {
        ProviderConfig {
            name: String::new(),
            at_once: None,
            mbit_all: None,
            setup_s: 60,
            port_percent: 80,
            lifetime_s: 21_600,
            requests_per_hour: 60,
        }
    }
}

impl CircuitsConfig {
    pub fn check(&self) -> Result<(), Fault> {
        let wrong = |why: String| Err(Fault::new(FaultCode::BadRequest, format!("service.circuits: {why}")));
        for (key, value) in
            [("every_s", self.every_s), ("checks", self.checks), ("age_step_s", self.age_step_s)]
        {
            if value == 0 {
                return wrong(format!("{key} is 0, the least is 1"));
            }
        }
        let times = [
            ("every_s", self.every_s),
            ("age_step_s", self.age_step_s),
            ("gain_s", self.gain_s),
            ("checks", self.checks),
            ("leave_s", self.leave_s),
            ("hold_s", self.hold_s),
            ("rest_s", self.rest_s),
            ("rest_max_s", self.rest_max_s),
            ("away_s", self.away_s),
        ];
        if let Some((key, value)) = times.into_iter().find(|(_, value)| *value > NUMBER_MAX) {
            return wrong(format!("{key} is {value}, the most is {NUMBER_MAX}"));
        }
        if !(1..=9).contains(&self.floor) {
            return wrong(format!("floor is {}, priorities are 1 to 9", self.floor));
        }
        if self.gain_percent > 100 {
            return wrong(format!("gain_percent is {}, the most is 100", self.gain_percent));
        }
        if [self.budgets.len(), self.providers.len(), self.hosts.len()]
            .into_iter()
            .any(|rows| rows > ROWS_MAX)
        {
            return wrong(format!("more than {ROWS_MAX} budgets, providers or hosts"));
        }
        let mut names = BTreeSet::new();
        for provider in &self.providers {
            provider.check().or_else(&wrong)?;
            if !names.insert(&provider.name) {
                return wrong(format!("the provider {:?} is named twice", provider.name));
            }
        }
        let mut hosts = BTreeSet::new();
        for row in &self.hosts {
            row.check().or_else(&wrong)?;
            if !hosts.insert(row.host.to_ascii_lowercase()) {
                return wrong(format!("the host {:?} is named twice", row.host));
            }
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> PlanSettings {
        let span = |seconds: u32| Duration::from_secs(seconds.into());
        let budgets = self.budgets.iter().map(|row| (row.community.clone(), row.gbit_h.into()));
        PlanSettings {
            priority_floor: self.floor,
            aging_step: span(self.age_step_s),
            gain_min: span(self.gain_s),
            gain_share_min: f64::from(self.gain_percent) / 100.0,
            plans_in_a_row: self.checks,
            release_below: span(self.leave_s),
            age_min: span(self.hold_s),
            cooldown: span(self.rest_s),
            cooldown_max: span(self.rest_max_s),
            cooldown_after_release: span(self.rest_s),
            budget: self.budget_gbit_h.map(f64::from),
            budgets: budgets.collect(),
            ..PlanSettings::default()
        }
    }

    /// What holds for a provider of that name.
    pub(super) fn provider(&self, name: &str) -> ProviderConfig {
        self.providers.iter().find(|row| row.name == name).cloned().unwrap_or_default()
    }
}

impl HostConfig {
    fn check(&self) -> Result<(), String> {
        match [&self.host, &self.on_circuit].into_iter().find(|host| !is_host(host)) {
            Some(wrong) => Err(format!(
                "{wrong:?} of {}: a name, an IPv4 address, or an IPv6 address without brackets is wanted, \
                    and no port",
                self.site
            )),
            None => Ok(()),
        }
    }
}

impl ProviderConfig {
    fn check(&self) -> Result<(), String> {
        if self.name.is_empty() {
            return Err("a provider without a name: see longhaul circuit plan".into());
        }
        let name = &self.name;
        if !(1..=100).contains(&self.port_percent) {
            return Err(format!("port_percent of {name} is {}: 1 to 100", self.port_percent));
        }
        if self.lifetime_s == 0 || self.lifetime_s > NUMBER_MAX {
            return Err(format!("lifetime_s of {name} is {}: 1 to {NUMBER_MAX}", self.lifetime_s));
        }
        if self.setup_s > NUMBER_MAX {
            return Err(format!("setup_s of {name} is {}, the most is {NUMBER_MAX}", self.setup_s));
        }
        if self.at_once == Some(0) || self.requests_per_hour == 0 {
            return Err(format!("{name} would never be asked: at_once and requests_per_hour are at least 1"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_plan_and_agents_decide() {
        let config = CircuitsConfig::default();
        config.check().unwrap();
        assert_eq!((config.level, config.settings()), (Level::Agent, PlanSettings::default()));
    }

    #[test]
    fn mistakes_are_told() {
        for (text, expected) in [
            (r#"{"every_s":0}"#, "every_s is 0"),
            (r#"{"floor":10}"#, "priorities are 1 to 9"),
            (r#"{"gain_percent":101}"#, "gain_percent is 101"),
            (r#"{"providers":[{}]}"#, "without a name"),
            (r#"{"providers":[{"name":"a","at_once":0}]}"#, "never be asked"),
            (r#"{"providers":[{"name":"a"},{"name":"a"}]}"#, "named twice"),
            (r#"{"hosts":[{"site":"s","host":"a:80","on_circuit":"b"}]}"#, "\"a:80\" of s"),
            (r#"{"hosts":[{"site":"s","host":"a","on_circuit":"[::1]"}]}"#, "without brackets"),
            (
                r#"{"hosts":[{"site":"s","host":"a","on_circuit":"b"},
                    {"site":"t","host":"A","on_circuit":"c"}]}"#,
                "named twice",
            ),
        ] {
            let config: CircuitsConfig = serde_json::from_str(text).unwrap();
            let detail = config.check().unwrap_err().detail;
            assert!(detail.starts_with("service.circuits: ") && detail.contains(expected), "{detail}");
        }
        assert!(serde_json::from_str::<CircuitsConfig>(r#"{"level":"site"}"#).is_err());
    }
}
