//! Commissioning: results of test transfers over the links between sites.

use longhaul_model::{SiteName, StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// Whether tests have shown that a link between two sites works. Links never tested are not listed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CommissionState {
    /// The first test began and did not end.
    #[default]
    Untested,
    /// A test is under way.
    Commissioning,
    /// The last test succeeded.
    Commissioned,
    /// The last test did not succeed.
    Degraded,
}

/// Result of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// The link works and reaches the wanted rate.
    Commissioned,
    /// The link works, but below the wanted rate.
    Slow,
    /// Too many attempts fail.
    Failing,
    /// Nothing arrived.
    Unreachable,
}

/// A part of a test with a certain number of files under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommissionStep {
    /// Files under way at the same time.
    pub files_at_once: u32,
    /// Files that arrived and were verified.
    pub files: u64,
    /// Bytes of these files.
    pub bytes: u64,
    /// Duration of the step in seconds.
    pub seconds: f64,
    /// Goodput in bytes per second.
    pub rate: f64,
    /// Attempts, failed ones included.
    pub attempts: u64,
    /// Failed attempts.
    pub attempts_failed: u64,
    /// True if the step ended before all files had arrived.
    pub cut_short: bool,
}

/// A test of one link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkTest {
    /// Source site.
    #[schema(value_type = formats::SiteName)]
    pub source: SiteName,
    /// Target site.
    #[schema(value_type = formats::SiteName)]
    pub target: SiteName,
    /// Virtual storage that stood for the source site.
    #[schema(value_type = formats::StorageName)]
    pub source_storage: StorageName,
    /// Virtual storage that stood for the target site.
    #[schema(value_type = formats::StorageName)]
    pub target_storage: StorageName,
    /// Result of the test.
    pub grade: Grade,
    /// Rule that gave the grade, with numbers.
    pub why: String,
    /// Addresses `host:port` where the target dials the source's agents.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Round-trip time in microseconds, if known.
    pub rtt_us: Option<f64>,
    /// Highest rate of the steps, in bytes per second.
    pub rate_best: f64,
    /// Steps of the test, in order.
    pub steps: Vec<CommissionStep>,
    /// Bottleneck in words; empty if unknown.
    #[serde(default)]
    pub limited_by: String,
    /// Faults of failed attempts, each once.
    #[serde(default)]
    pub faults: Vec<String>,
}

/// State of a link between two sites, with the test behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkCommission {
    /// Source site.
    #[schema(value_type = formats::SiteName)]
    pub source: SiteName,
    /// Target site.
    #[schema(value_type = formats::SiteName)]
    pub target: SiteName,
    /// Whether tests have shown that the link works.
    pub state: CommissionState,
    /// Time when the link came into this state.
    #[schema(value_type = String)]
    pub since: Timestamp,
    /// The last completed test.
    pub test: Option<LinkTest>,
}

/// `POST /api/v1/sites/{site}/commissioning`: progress and results of tests of links from and to the site.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Commissioning {
    /// Links whose test begins, as pairs of source and target.
    #[serde(default)]
    #[schema(value_type = Vec<formats::SitePair>)]
    pub begin: Vec<(SiteName, SiteName)>,
    /// Links whose test was abandoned; they return to their former state.
    #[serde(default)]
    #[schema(value_type = Vec<formats::SitePair>)]
    pub give_up: Vec<(SiteName, SiteName)>,
    /// Completed tests.
    #[serde(default)]
    pub tests: Vec<LinkTest>,
}
