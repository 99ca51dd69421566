//! The check of the state's invariants: on request, and by itself once a day at low priority.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::native::{CheckReport, CheckResult};
use longhaul_control::commit_loop::CommitWork;
use longhaul_control::metrics::Gauges;
use longhaul_identity::catalog_problem as problem;
use longhaul_model::{Blame, Fault, FaultCode, Timestamp};
use longhaul_threads::spawn_worker;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::context::ServiceContext;

/// Where the outcome of the last check is kept across restarts.
const SETTING: &str = "state-check";
/// A service that has just started has better things to do.
const START_DELAY: Duration = Duration::from_secs(600);
/// Longest wait of a check for reports: it should also work while the catalog cannot be written.
const REPORTS_TIMEOUT: Duration = Duration::from_secs(5);
/// The nice value of the checking thread: whatever else wants a processor goes first.
const NICE: i32 = 19;

/// What the last check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CheckOutcome {
    pub at: Timestamp,
    /// Violations of all invariants together.
    pub findings: u64,
    /// The invariants that do not hold.
    pub broken: Vec<String>,
}

impl CheckOutcome {
    fn new(report: &CheckReport, at: Timestamp) -> CheckOutcome {
        let broken = report.checks.iter().filter(|check| check.violations > 0);
        CheckOutcome {
            at,
            findings: report.checks.iter().fold(0, |sum, check| sum.saturating_add(check.violations)),
            broken: broken.map(|check| check.name.clone()).collect(),
        }
    }

    /// The problem of ours that stands until a check finds nothing.
    pub(crate) fn fault(&self) -> Option<Fault> {
        let detail =
            format!("the check of the state found {} violations: {}", self.findings, self.broken.join(", "));
        (self.findings > 0).then(|| Fault::new(FaultCode::Internal, detail).blaming(Blame::Ourselves))
    }

    pub(crate) const REMEDY: &'static str =
        "see them: longhaul service check; keep a copy of the state directory and report it with the log";
}

/// The outcome of the last check, in memory.
#[derive(Default)]
pub(crate) struct LastCheck(Mutex<Option<CheckOutcome>>);

impl LastCheck {
    /// The one of an earlier run. What another version wrote is found out again.
    pub(crate) fn read(text: Option<&str>) -> LastCheck {
        LastCheck(Mutex::new(text.and_then(|text| serde_json::from_str(text).ok())))
    }

    pub(crate) fn load(
        catalog: &longhaul_catalog::Catalog,
    ) -> Result<LastCheck, longhaul_catalog::CatalogError> {
        Ok(LastCheck::read(catalog.setting(SETTING)?.as_deref()))
    }

    pub(crate) fn outcome(&self) -> Option<CheckOutcome> {
        self.0.lock().clone()
    }

    pub(crate) fn gauges(&self, gauges: &mut Gauges) {
        let Some(outcome) = self.outcome() else { return };
        let help = "When the state was last checked, seconds since 1970.";
        gauges.gauge("longhaul_state_check_time_seconds", help, vec![], outcome.at.as_seconds_f64());
        let help = "Violations of invariants that the last check found.";
        gauges.gauge("longhaul_state_check_findings", help, vec![], outcome.findings as f64);
    }
}

/// When the next check by itself is due. Its time is an argument.
#[derive(Debug)]
pub(crate) struct CheckSchedule {
    /// None: never.
    every: Option<Duration>,
    due: Timestamp,
}

impl CheckSchedule {
    pub(crate) fn new(every: Option<Duration>, last: Option<Timestamp>, start: Timestamp) -> CheckSchedule {
        // The clock may have been wrong at the last one: a time ahead is no reason to wait for it.
        let after_last = last.zip(every).map(|(last, every)| last.plus(every).min(start.plus(every)));
        let after_last = after_last.unwrap_or(start);
        CheckSchedule { every, due: after_last.max(start.plus(START_DELAY)) }
    }

    /// Whether a check is to begin now; the next is due a whole period later.
    pub(crate) fn is_due(&mut self, now: Timestamp) -> bool {
        let Some(every) = self.every else { return false };
        let is_due = now >= self.due;
        if is_due {
            self.due = now.plus(every);
        }
        is_due
    }
}

/// Checks in a thread of low priority.
pub(crate) fn start_check(shared: Arc<ServiceContext>) {
    let body = move || {
        let thread = rustix::thread::gettid();
        if let Err(error) = rustix::process::setpriority_process(Some(thread), NICE) {
            tracing::debug!(%error, "the check of the state runs at normal priority");
        }
        match check(&shared) {
            Ok(report) => {
                tracing::info!(checks = report.checks.len(), sound = report.sound, "the state was checked")
            }
            Err(problem) => tracing::warn!(detail = %problem.detail, "the state could not be checked"),
        }
    };
    if let Err(error) = spawn_worker("state-check", body) {
        tracing::warn!(%error, "no thread for the check of the state");
    }
}

/// The invariants of the catalog, and those between it and what is in memory. Keeps the outcome.
pub(crate) fn check(shared: &ServiceContext) -> Result<CheckReport, Problem> {
    let rows = shared.kernel.catalog.check().map_err(problem)?;
    let mut checks: Vec<CheckResult> = rows
        .into_iter()
        .map(|row| CheckResult {
            name: row.name.to_owned(),
            violations: row.violations,
            examples: row.examples,
        })
        .collect();
    checks.push(check_running(shared)?);
    let sound = checks.iter().all(|check| check.violations == 0);
    let report = CheckReport { checks, sound };
    let outcome = CheckOutcome::new(&report, shared.kernel.now());
    if !sound {
        tracing::error!(broken = outcome.broken.join(", "), "the state is not sound");
    }
    if let Err(error) = serde_json::to_string(&outcome)
        .map_err(|error| error.to_string())
        .and_then(|text| shared.kernel.catalog.set_setting(SETTING, &text).map_err(|error| error.to_string()))
    {
        // Checks also run while the catalog cannot be written.
        tracing::warn!(%error, "the outcome of the check is not kept for the next start");
    }
    *shared.last_check.0.lock() = Some(outcome);
    Ok(report)
}

/// Whatever an agent runs for us has a live lease in the catalog. An outcome is durable a moment before it is
/// counted: what ends meanwhile is looked at once more, behind the reports that were under way.
fn check_running(shared: &ServiceContext) -> Result<CheckResult, Problem> {
    let mut suspects: Option<BTreeSet<_>> = None;
    for look in 0..2 {
        if look > 0 {
            pass_reports(shared);
        }
        let running = shared.control.live.attempts();
        let live = shared.kernel.catalog.live_transfers().map_err(problem)?;
        let leased: BTreeSet<_> = live.into_iter().map(|row| row.attempt).collect();
        let now: BTreeSet<_> = running.into_iter().filter(|attempt| !leased.contains(attempt)).collect();
        suspects = Some(match suspects {
            None => now,
            Some(before) => before.intersection(&now).copied().collect(),
        });
    }
    let suspects = suspects.unwrap_or_default();
    Ok(CheckResult {
        name: "an attempt runs without a live lease".to_owned(),
        violations: suspects.len() as u64,
        examples: suspects.iter().take(5).map(|attempt| attempt.to_string()).collect(),
    })
}

/// Waits until the reports that are under way are counted.
fn pass_reports(shared: &ServiceContext) {
    let (reached, passed) = std::sync::mpsc::channel();
    if shared.kernel.writer.send(CommitWork::Fence(reached)).is_ok() {
        let _ = passed.recv_timeout(REPORTS_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_763_717_531_000_000);
    const DAY: Duration = Duration::from_secs(86_400);

    /// Seconds after the start at which checks begin within five days.
    fn begun(mut schedule: CheckSchedule) -> Vec<u64> {
        (0..5 * 1_440)
            .map(|minute| minute * 60)
            .filter(|&s| schedule.is_due(START + Duration::from_secs(s)))
            .collect()
    }

    #[test]
    fn the_state_is_checked_once_a_day_and_not_right_at_the_start() {
        let day = DAY.as_secs();
        assert_eq!(
            begun(CheckSchedule::new(Some(DAY), None, START)),
            (0..5).map(|n| n * day + 600).collect::<Vec<_>>()
        );
        let yesterday = Some(START - Duration::from_secs(86_400 - 7_200));
        assert_eq!(
            begun(CheckSchedule::new(Some(DAY), yesterday, START))[0],
            7_200,
            "restarts do not put it off"
        );
        let long_ago = Some(START - 9 * DAY);
        assert_eq!(begun(CheckSchedule::new(Some(DAY), long_ago, START))[0], 600);
        let ahead = Some(START + 700 * DAY);
        assert_eq!(begun(CheckSchedule::new(Some(DAY), ahead, START))[0], day, "the clock was wrong");
        assert!(begun(CheckSchedule::new(None, long_ago, START)).is_empty(), "switched off");
    }

    fn report(violations: &[u64]) -> CheckReport {
        let check = |(place, &violations): (usize, &u64)| CheckResult {
            name: format!("invariant {place}"),
            violations,
            examples: Vec::new(),
        };
        let checks = violations.iter().enumerate().map(check).collect();
        CheckReport { checks, sound: violations.iter().all(|&count| count == 0) }
    }

    #[test]
    fn what_a_check_finds_is_a_problem_until_one_finds_nothing() {
        let found = CheckOutcome::new(&report(&[0, 2, 0, u64::MAX]), START);
        assert_eq!((found.findings, found.broken.len()), (u64::MAX, 2));
        assert!(found.fault().unwrap().detail.contains("invariant 1, invariant 3"));
        assert_eq!(CheckOutcome::new(&report(&[0, 0]), START).fault(), None);
        let kept = LastCheck::read(Some(&serde_json::to_string(&found).unwrap()));
        assert_eq!(kept.outcome(), Some(found), "over a restart too");
        assert_eq!(LastCheck::read(Some("{}")).outcome(), None);
    }

    #[test]
    fn the_metric_tells_the_time_and_the_findings() {
        let metrics = longhaul_control::metrics::Metrics::default();
        let text = |last: &LastCheck| {
            let mut gauges = Gauges::default();
            last.gauges(&mut gauges);
            metrics.render(&gauges)
        };
        assert!(!text(&LastCheck::default()).contains("state_check"), "never checked is no finding");
        let last = LastCheck(Mutex::new(Some(CheckOutcome::new(&report(&[3]), START))));
        for name in ["longhaul_state_check_time_seconds", "longhaul_state_check_findings"] {
            assert!(text(&last).contains(name), "{name}");
        }
    }
}
