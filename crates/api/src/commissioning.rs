//! What test transfers said of the links between sites.

use longhaul_model::{SiteName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Whether a link between two sites has shown that it works. A link that nobody tested is in no list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CommissionState {
    /// A test began and did not end, and there was none before.
    #[default]
    Untested,
    /// A test is under way.
    Commissioning,
    /// The last test was good.
    Commissioned,
    /// The last test was not.
    Degraded,
}

/// What a test found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    Commissioned,
    /// It works, but below the wanted rate.
    Slow,
    /// Attempts fail too often.
    Failing,
    /// Nothing arrived.
    Unreachable,
}

/// So many files at once over a link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommissionStep {
    pub files_at_once: u32,
    /// What arrived, verified.
    pub files: u64,
    pub bytes: u64,
    pub seconds: f64,
    /// Bytes per second.
    pub rate: f64,
    pub attempts: u64,
    pub attempts_failed: u64,
    /// It was ended before everything had arrived.
    pub cut_short: bool,
}

/// One test of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkTest {
    #[schema(value_type = String)]
    pub source: SiteName,
    #[schema(value_type = String)]
    pub target: SiteName,
    /// The virtual storages that stood for the sites.
    #[schema(value_type = String)]
    pub source_storage: StorageName,
    #[schema(value_type = String)]
    pub target_storage: StorageName,
    pub grade: Grade,
    /// By which rule, with numbers.
    pub why: String,
    /// Where the target dials the source, as its agent says.
    #[serde(default)]
    pub addresses: Vec<String>,
    pub rtt_us: Option<f64>,
    /// The highest of the steps, bytes per second.
    pub rate_best: f64,
    pub steps: Vec<CommissionStep>,
    /// What held it up, in words; empty if nobody knows.
    #[serde(default)]
    pub limited_by: String,
    /// Faults of failed attempts, each once.
    #[serde(default)]
    pub faults: Vec<String>,
}

/// A link's state, with the test that it follows from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkCommission {
    #[schema(value_type = String)]
    pub source: SiteName,
    #[schema(value_type = String)]
    pub target: SiteName,
    pub state: CommissionState,
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// The last test that ended.
    pub test: Option<LinkTest>,
}

/// `POST /api/v1/sites/{site}/commissioning`: tests of links from and to the site.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Commissioning {
    /// Links whose test begins, as source and target.
    #[serde(default)]
    #[schema(value_type = Vec<Vec<String>>)]
    pub begin: Vec<(SiteName, SiteName)>,
    /// Links whose test was given up: they are what they were before.
    #[serde(default)]
    #[schema(value_type = Vec<Vec<String>>)]
    pub give_up: Vec<(SiteName, SiteName)>,
    #[serde(default)]
    pub tests: Vec<LinkTest>,
}
