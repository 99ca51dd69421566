//! Report of a run: its results in numbers.

use serde::Serialize;

use crate::bound::Certificate;
pub use crate::circuits::CircuitsSummary;
use crate::knowledge_report::KnowledgeReport;
use crate::metrics::{Curve, RunMetrics};
use crate::plan::Plan;

/// One strategy in one scenario: the object of `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub scenario: String,
    pub strategy: String,
    /// When the last file was there; none if some never came.
    pub makespan_s: Option<f64>,
    /// No scheduler could be faster.
    pub makespan_bound_s: f64,
    pub dataset_mean_s: Option<f64>,
    pub dataset_p95_s: Option<f64>,
    pub transfer_mean_s: Option<f64>,
    pub bytes_moved: u128,
    pub bytes_wanted: u128,
    pub jain: f64,
    pub failed: u64,
    /// Where work has several priorities: what each got, the highest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub priorities: Vec<PriorityReport>,
    /// Where circuits are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuits: Option<CircuitsSummary>,
    /// Where rates are recomputed once a second, filled in by whoever compared them with exact ones: by what
    /// part the bytes of the first hour differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rates_error: Option<f64>,
    /// Measured by whoever runs the world; 0 until then.
    pub decisions_per_s: f64,
    pub wall_s: f64,
}

/// Requests of one priority.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PriorityReport {
    pub priority: u8,
    pub requests: u64,
    pub unfinished: u64,
    pub mean_s: Option<f64>,
    pub worst_s: Option<f64>,
}

#[derive(Clone, Debug)]
pub struct Report {
    pub summary: Summary,
    pub transfer_p95_s: Option<f64>,
    /// Files that were wanted and neither came nor failed for good.
    pub unfinished: u64,
    /// What the scheduler says they wait for.
    pub wait_reasons: Vec<String>,
    pub attempts_failed: u64,
    /// Leases that agents gave back before they began, since their link had become slow.
    pub leases_returned: u64,
    pub leases: u64,
    pub decisions: u64,
    /// Half of the forecasts were off by more than this part of what it took.
    pub forecast_error: Option<f64>,
    /// The busiest capacities: name, and the part of them that was used up to the end.
    pub busiest: Vec<(String, f64)>,
    pub files: u64,
    pub datasets: u64,
    pub curve: Curve,
    pub dataset_ends: Vec<f32>,
    /// By community: name, share wanted, part obtained while all wanted something.
    pub shares: Vec<(String, f64, f64)>,
    pub recomputations: u64,
    /// Every capacity: name, bytes that went through, its rate in bytes per second.
    pub bytes_through: Vec<(String, f64, f64)>,
    /// The most that was ever used of one at a time: 1 is all of it.
    pub utilization_max: f64,
    pub certificate: Certificate,
    pub knowledge: KnowledgeReport,
    /// Seconds until each request was complete, in the plan's order.
    pub requests: Vec<Option<f32>>,
}

/// Busiest capacities listed in a report.
const BUSIEST_MAX: usize = 5;

pub(crate) fn report(
    plan: &Plan,
    strategy: &str,
    measure: RunMetrics,
    through: &[f64],
    unfinished: u64,
    waits: Vec<String>,
    certificate: Certificate,
    calculations: u64,
    fullest: f64,
    curve: Curve,
    learned: KnowledgeReport,
    circuits: Option<CircuitsSummary>,
) -> Report {
    let end = if unfinished > 0 { measure.end } else { measure.last_done };
    let end = end.max(1) as f64 / 1e6;
    let mut used: Vec<(String, f64)> = plan
        .layout
        .capacities
        .iter()
        .zip(through)
        .map(|(capacity, bytes)| (capacity.name.clone(), bytes / capacity.rate / end))
        .collect();
    used.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    used.truncate(BUSIEST_MAX);
    let shares = shares(plan, &measure);
    let finished = unfinished == 0 && measure.failed == 0;
    let (files, datasets) = (measure.transfers.len() as u64, measure.datasets.len() as u64);
    let summary = Summary {
        scenario: plan.name.clone(),
        strategy: strategy.to_owned(),
        makespan_s: finished.then_some(measure.last_done as f64 / 1e6),
        makespan_bound_s: certificate.bound,
        dataset_mean_s: mean(&measure.datasets),
        dataset_p95_s: quantile(&measure.datasets, 0.95),
        transfer_mean_s: mean(&measure.transfers),
        bytes_moved: measure.bytes_moved,
        bytes_wanted: measure.bytes_done,
        jain: jain(&shares),
        failed: measure.failed,
        priorities: priorities(plan, &measure),
        circuits,
        rates_error: None,
        decisions_per_s: 0.0,
        wall_s: 0.0,
    };
    Report {
        transfer_p95_s: quantile(&measure.transfers, 0.95),
        unfinished,
        wait_reasons: waits,
        attempts_failed: measure.faults,
        leases_returned: measure.leases_returned,
        leases: measure.leases,
        decisions: measure.decisions,
        forecast_error: forecast_error(&measure.forecasts),
        busiest: used,
        files,
        datasets,
        curve,
        dataset_ends: measure.dataset_ends,
        shares,
        recomputations: calculations,
        utilization_max: fullest,
        bytes_through: plan
            .layout
            .capacities
            .iter()
            .zip(through)
            .map(|(capacity, bytes)| (capacity.name.clone(), *bytes, capacity.rate))
            .collect(),
        certificate,
        knowledge: learned,
        requests: measure.requests,
        summary,
    }
}

fn priorities(plan: &Plan, measure: &RunMetrics) -> Vec<PriorityReport> {
    let mut by: std::collections::BTreeMap<u8, (u64, Vec<f32>)> = std::collections::BTreeMap::new();
    for (request, took) in plan.work.requests.iter().zip(&measure.requests) {
        let (requests, done) = by.entry(request.priority).or_default();
        *requests += 1;
        done.extend(took);
    }
    if by.len() < 2 {
        return Vec::new();
    }
    let rows = by.into_iter().rev().map(|(priority, (requests, done))| PriorityReport {
        priority,
        requests,
        unfinished: requests - done.len() as u64,
        mean_s: mean(&done),
        worst_s: quantile(&done, 1.0),
    });
    rows.collect()
}

fn mean(values: &[f32]) -> Option<f64> {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    (!values.is_empty()).then(|| sum / values.len() as f64)
}

fn quantile(values: &[f32], part: f64) -> Option<f64> {
    let mut values = values.to_vec();
    values.sort_unstable_by(f32::total_cmp);
    let place = ((values.len() as f64 * part).ceil() as usize).max(1) - 1;
    values.get(place).map(|&value| f64::from(value))
}

fn forecast_error(forecasts: &[(f32, f32)]) -> Option<f64> {
    let errors: Vec<f32> =
        forecasts.iter().map(|(expected, taken)| (expected - taken).abs() / taken.max(1e-3)).collect();
    quantile(&errors, 0.5)
}

/// What each community wanted and got while all of them wanted something.
fn shares(plan: &Plan, measure: &RunMetrics) -> Vec<(String, f64, f64)> {
    let wanted: f64 = plan.work.communities.iter().map(|community| community.share).sum();
    let got: u128 = measure.contended.iter().sum();
    let rows = plan.work.communities.iter().zip(&measure.contended);
    rows.map(|(community, &bytes)| {
        (community.name.to_string(), community.share / wanted.max(1e-12), bytes as f64 / (got.max(1)) as f64)
    })
    .collect()
}

/// Jain's index of what was obtained for each part wanted: 1 is fair, 1/n is one that has all.
fn jain(shares: &[(String, f64, f64)]) -> f64 {
    let ratios: Vec<f64> =
        shares.iter().filter(|(_, wanted, _)| *wanted > 0.0).map(|(_, wanted, got)| got / wanted).collect();
    let (sum, squares) =
        ratios.iter().fold((0.0, 0.0), |(sum, squares), ratio| (sum + ratio, squares + ratio * ratio));
    if ratios.len() < 2 || squares <= 0.0 { 1.0 } else { sum * sum / (ratios.len() as f64 * squares) }
}
