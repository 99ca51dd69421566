//! Findings: the results of checks.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Ok,
    /// It could not be checked.
    Unknown,
    /// It works, but costs rate or safety.
    Advice,
    /// Transfers fail, or the requested path cannot be filled.
    Problem,
}

impl Severity {
    pub fn word(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Unknown => "unknown",
            Severity::Advice => "advice",
            Severity::Problem => "problem",
        }
    }
}

/// Subject of a check, in display order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    Network,
    Host,
    Disk,
    Credentials,
    Peer,
}

impl Group {
    pub fn word(self) -> &'static str {
        match self {
            Group::Network => "network",
            Group::Host => "host",
            Group::Disk => "disk",
            Group::Credentials => "credentials",
            Group::Peer => "peer",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub group: Group,
    pub check: String,
    #[serde(rename = "level")]
    pub severity: Severity,
    /// What was found, with numbers.
    pub found: String,
    /// Impact; none if harmless.
    pub cost: Option<String>,
    /// Commands or settings, in order.
    pub remedy: Vec<String>,
}

impl Finding {
    fn new(group: Group, check: impl Into<String>, level: Severity, found: impl Into<String>) -> Finding {
        Finding {
            group,
            check: check.into(),
            severity: level,
            found: found.into(),
            cost: None,
            remedy: Vec::new(),
        }
    }

    pub(crate) fn ok(group: Group, check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(group, check, Severity::Ok, found)
    }

    pub(crate) fn unknown(group: Group, check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(group, check, Severity::Unknown, found)
    }

    pub(crate) fn advice(group: Group, check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(group, check, Severity::Advice, found)
    }

    pub(crate) fn problem(group: Group, check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding::new(group, check, Severity::Problem, found)
    }

    pub(crate) fn costs(mut self, cost: impl Into<String>) -> Finding {
        self.cost = Some(cost.into());
        self
    }

    pub(crate) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy.push(remedy.into());
        self
    }
}
