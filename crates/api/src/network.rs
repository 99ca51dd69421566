//! Network knowledge of the service, for people and programs: `/api/v1/network`.

use std::collections::BTreeMap;

use longhaul_model::{StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

use crate::probe::{ProbeShort, ProbeView, UplinkView};

/// `GET /api/v1/network`: how much is known about links, how good forecasts are, and what changed last.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    /// Time by the service's clock.
    #[schema(value_type = String)]
    pub now: Timestamp,
    /// Links with knowledge.
    pub links: u64,
    /// Latest changes, newest first.
    pub changes: Vec<NetworkChange>,
    /// Quality of forecasts, by the number of outcomes that a link had before.
    pub forecasts: Vec<ForecastQuality>,
}

/// A change point of a link or path.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkChange {
    /// Estimated time of the change.
    #[schema(value_type = String)]
    pub from: Timestamp,
    /// Time when the change was detected.
    #[schema(value_type = String)]
    pub noticed: Timestamp,
    /// True if the change is for the worse.
    pub worse: bool,
    /// What changed and where, with numbers.
    pub what: String,
}

/// Quality of forecasts for links with about as much history.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ForecastQuality {
    /// Links with fewer earlier outcomes than this; absent: all others.
    pub history_below: Option<u64>,
    /// Forecasts that could be compared with an outcome.
    pub outcomes: u64,
    /// Share of outcomes within the 90 % prediction interval, 0 to 1.
    pub within: f64,
    /// Mean interval score of the logarithm of the time; lower is better.
    pub score: f64,
    /// The score divided by that of a forecast from the link's former rates; below 1 is better.
    pub score_ratio: Option<f64>,
}

/// State of one link. Rates are in bytes per second.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkLink {
    /// Source storage.
    #[schema(value_type = formats::StorageName)]
    pub source: StorageName,
    /// Target storage.
    #[schema(value_type = formats::StorageName)]
    pub target: StorageName,
    /// Estimated rate: the median.
    pub rate: f64,
    /// The rate is lower than this with a probability of 10 %.
    pub rate_low: f64,
    /// The rate is higher than this with a probability of 10 %.
    pub rate_high: f64,
    /// What the estimate is based on, in words.
    pub basis: String,
    /// Rate of similar links.
    pub rate_expected: f64,
    /// Goodput now; 0 without work.
    pub rate_now: f64,
    /// Files under way.
    pub active: u64,
    /// Round-trip time in microseconds.
    pub rtt_us: Option<f64>,
    /// Packet loss rate, 0 to 1.
    pub loss: Option<f64>,
    /// Largest IP packet that arrives, in bytes.
    pub mtu: Option<u32>,
    /// Highest rate of one stream that its window allows.
    pub window_limit: Option<f64>,
    /// Highest rate of one stream that loss and round-trip time allow.
    pub loss_limit: Option<f64>,
    /// Share of recent attempts that failed, 0 to 1.
    pub failure_share: f64,
    /// Bottleneck, in words.
    pub held_up_by: String,
    /// Time of the latest change for the worse, within a day.
    #[schema(value_type = Option<String>)]
    pub worse_since: Option<Timestamp>,
    /// Latest probe of an agent at the source's site by one at the target's.
    #[serde(default)]
    pub probed: Option<ProbeShort>,
}

/// `GET /api/v1/network/links/{source}/{target}`: everything known about a link.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkLinkDetail {
    /// State of the link.
    pub link: NetworkLink,
    /// Why the link performs as it does, a sentence each.
    pub explanation: Vec<String>,
    /// What would make it faster, a sentence each.
    pub advice: Vec<String>,
    /// Changes of the link, newest first.
    pub changes: Vec<NetworkChange>,
    /// Goodput of the last days, oldest first.
    pub history: Vec<NetworkBin>,
    /// Probes of the path by agents of the two sites, in both directions.
    #[serde(default)]
    pub probes: Vec<ProbeView>,
    /// Uplinks of the two sites, where agents count their traffic.
    #[serde(default)]
    pub uplinks: Vec<UplinkView>,
    /// Forecasts for more work.
    #[serde(default)]
    pub what_if: NetworkWhatIf,
}

/// Forecasts for more work on a link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkWhatIf {
    /// Rates with more files under way.
    pub rates: Vec<NetworkRate>,
    /// Times for more bytes.
    pub times: Vec<NetworkTime>,
    /// Probability that the next attempt fails, by blame, most likely first; negligible ones are left out.
    pub failures: Vec<NetworkFailure>,
}

/// Forecast rate of all files of a link together, with more files under way. Rates are in bytes per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkRate {
    /// Files beyond those under way.
    pub more_files: u32,
    /// Median of the forecast.
    pub rate: f64,
    /// The rate is lower than this with a probability of 10 %.
    pub rate_low: f64,
    /// The rate is higher than this with a probability of 10 %.
    pub rate_high: f64,
}

/// Forecast time for additional bytes that are submitted now, after the work submitted before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkTime {
    /// Additional bytes.
    pub bytes: u64,
    /// Assumed number of files.
    pub files: u32,
    /// Assumed files under way at the same time.
    pub at_once: u32,
    /// Median of the forecast.
    pub seconds: f64,
    /// Lower end of the 90 % prediction interval, in seconds.
    pub seconds_low: f64,
    /// Upper end of the 90 % prediction interval, in seconds.
    pub seconds_high: f64,
}

/// Probability of a failure with one blame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkFailure {
    /// Party that would have to act: `source`, `target`, `network`, `credential`, `request` or `ourselves`.
    pub blame: String,
    /// Probability, 0 to 1.
    pub share: f64,
}

/// Goodput of a link in an interval in which it had work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkBin {
    /// Beginning of the interval.
    #[schema(value_type = String)]
    pub from: Timestamp,
    /// Length of the interval in seconds.
    pub seconds: u32,
    /// Mean goodput while there was work, in bytes per second.
    pub rate: f64,
    /// Share of the interval with work, 0 to 1.
    pub busy: f64,
}

/// `POST /api/v1/network/import`: network knowledge of another deployment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkImport {
    /// A document as `GET /api/v1/network/export` returns it; see docs/reference/network-exchange.md.
    #[schema(value_type = Object)]
    pub document: serde_json::Value,
    /// Site names of the other deployment, with the names of the same sites here.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
}

/// Result of an import.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct NetworkImported {
    /// Links imported.
    pub taken: u64,
    /// Links skipped because more is known here.
    pub own_is_better: u64,
    /// Links skipped because nothing in them is new.
    pub nothing_new: u64,
    /// Site names that match no site here.
    pub unmapped: Vec<String>,
    /// The first few entries that were refused, with reasons.
    pub refused: Vec<String>,
}
