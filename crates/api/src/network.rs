//! What people and programs ask of the service about the network: `/api/v1/network`.

use std::collections::BTreeMap;

use longhaul_model::{StorageName, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::probe::{ProbeShort, ProbeView, UplinkView};

/// `GET /api/v1/network`: how much is known, how good forecasts are, what changed last.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkView {
    #[schema(value_type = String)]
    pub now: Timestamp,
    pub links: u64,
    /// Newest first.
    pub changes: Vec<NetworkChange>,
    /// By the number of outcomes that links had before.
    pub forecasts: Vec<ForecastQuality>,
}

/// Something that is not what it was.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkChange {
    #[schema(value_type = String)]
    pub from: Timestamp,
    #[schema(value_type = String)]
    pub noticed: Timestamp,
    pub worse: bool,
    /// What and where, in a sentence with its numbers.
    pub what: String,
}

/// How forecasts turned out for links with about as much history.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ForecastQuality {
    /// Links with fewer outcomes before than this; none for all others.
    pub history_below: Option<u64>,
    pub outcomes: u64,
    /// Share of them within the interval that promised 90 %.
    pub within: f64,
    /// Mean interval score of the logarithm of the time; less is better.
    pub score: f64,
    /// The same as a multiple of that of the link's former rates.
    pub score_ratio: Option<f64>,
}

/// One link. Rates are bytes per second.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkLink {
    #[schema(value_type = String)]
    pub source: StorageName,
    #[schema(value_type = String)]
    pub target: StorageName,
    /// As likely less as more; one in ten is less than `rate_low`, one in ten more than `rate_high`.
    pub rate: f64,
    pub rate_low: f64,
    pub rate_high: f64,
    /// What the estimate rests on.
    pub basis: String,
    /// What links of its kind give.
    pub rate_expected: f64,
    pub rate_now: f64,
    pub active: u64,
    pub rtt_us: Option<f64>,
    pub loss: Option<f64>,
    pub mtu: Option<u32>,
    /// What one stream gets at the most by its window, and by loss and round trip.
    pub window_limit: Option<f64>,
    pub loss_limit: Option<f64>,
    pub failure_share: f64,
    pub held_up_by: String,
    /// When it last changed for the worse, within a day.
    #[schema(value_type = Option<String>)]
    pub worse_since: Option<Timestamp>,
    /// The last look of an agent of the target's site at one of the source's.
    #[serde(default)]
    pub probed: Option<ProbeShort>,
}

/// `GET /api/v1/network/links/{source}/{target}`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkLinkDetail {
    pub link: NetworkLink,
    /// Why it gives what it gives, a sentence each.
    pub explanation: Vec<String>,
    /// What would help, a sentence each.
    pub advice: Vec<String>,
    /// Newest first.
    pub changes: Vec<NetworkChange>,
    /// The last days, oldest first.
    pub history: Vec<NetworkBin>,
    /// What agents of the two sites found on the way, in both directions.
    #[serde(default)]
    pub probes: Vec<ProbeView>,
    /// Uplinks of the two sites, as far as agents count them.
    #[serde(default)]
    pub uplinks: Vec<UplinkView>,
    /// What would be with more work on it.
    #[serde(default)]
    pub what_if: NetworkWhatIf,
}

/// What a link would do with more work than it has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkWhatIf {
    pub rates: Vec<NetworkRate>,
    pub times: Vec<NetworkTime>,
    /// How likely the next attempt fails by whose fault, most likely first; what is not to be expected is
    /// left out.
    pub failures: Vec<NetworkFailure>,
}

/// What all files of a link get together, with so many beyond those under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkRate {
    pub more_files: u32,
    /// As likely less as more; one in ten is less than `rate_low`, one in ten more than `rate_high`.
    pub rate: f64,
    pub rate_low: f64,
    pub rate_high: f64,
}

/// How long so many bytes take, asked for now in addition to what was asked for before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkTime {
    pub bytes: u64,
    /// Files that they are taken to be, and how many of them are under way at once.
    pub files: u32,
    pub at_once: u32,
    /// As likely less as more; nine in ten times lie between `seconds_low` and `seconds_high`.
    pub seconds: f64,
    pub seconds_low: f64,
    pub seconds_high: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkFailure {
    /// source, target, network, credential, request or ourselves.
    pub blame: String,
    /// From 0 to 1.
    pub share: f64,
}

/// A stretch of time in which a link had work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkBin {
    #[schema(value_type = String)]
    pub from: Timestamp,
    pub seconds: u32,
    pub rate: f64,
    /// Part of the time in which there was work.
    pub busy: f64,
}

/// `POST /api/v1/network/import`: knowledge of another instance.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NetworkImport {
    /// As `GET /api/v1/network/export` gives it; docs/reference/network-exchange.md.
    #[schema(value_type = Object)]
    pub document: serde_json::Value,
    /// Their names of sites, and ours.
    #[serde(default)]
    pub aliases: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct NetworkImported {
    pub taken: u64,
    /// Links of which more is known here.
    pub own_is_better: u64,
    pub nothing_new: u64,
    /// Names that no site here has.
    pub unmapped: Vec<String>,
    /// What was refused and why; the first few.
    pub refused: Vec<String>,
}
