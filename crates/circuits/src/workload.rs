//! Workload check of the ANSE paper: time to finish the pending bytes at the measured rate of the link; and
//! whether a circuit is slower than the best-effort path was.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::settings::{ReleaseRule, SlownessRule};
use crate::{Explanation, Note, RateSource, Settings};

/// Busy seconds before a measured rate counts.
const BUSY_S_MIN: f64 = 1.0;

/// Busy-time average rate with a bounded memory: idle time between jobs does not count.
#[derive(Debug, Default)]
struct BusyRate {
    bytes: f64,
    busy_s: f64,
}

impl BusyRate {
    /// Adds bytes; what lies further back than `over` decays.
    fn add(&mut self, bytes: u64, during: Duration, over: Duration) {
        self.bytes += bytes as f64;
        self.busy_s += during.as_secs_f64();
        let kept = (over.as_secs_f64().max(BUSY_S_MIN) / self.busy_s).min(1.0);
        if kept < 1.0 {
            self.bytes *= kept;
            self.busy_s *= kept;
        }
    }

    fn bytes_per_s(&self) -> Option<f64> {
        (self.busy_s >= BUSY_S_MIN && self.bytes > 0.0).then(|| self.bytes / self.busy_s)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Workload {
    pending_bytes: u64,
    /// Rate forecast by the service, which sees more than this link.
    forecast_rate: Option<f64>,
    best_effort: BusyRate,
    best_effort_moved_at: Timestamp,
    circuit: BusyRate,
    /// Busy time since the use of the circuit began.
    circuit_busy: Duration,
    /// Best-effort rate shortly before that.
    best_effort_before: Option<f64>,
    /// Consecutive checks that passed.
    checks_passed: u32,
    little_since: Option<Timestamp>,
}

impl Workload {
    pub(crate) fn set_pending(&mut self, pending_bytes: u64, told: Option<f64>) {
        self.pending_bytes = pending_bytes;
        self.forecast_rate = told.filter(|rate| *rate > 0.0 && rate.is_finite());
    }

    pub(crate) fn record_moved(
        &mut self,
        circuit: bool,
        bytes: u64,
        during: Duration,
        settings: &Settings,
        now: Timestamp,
    ) {
        if circuit {
            // The rate that a circuit is judged by has a shorter memory.
            let over = settings.slowness.map_or(settings.rate_window, |slower| slower.during);
            self.circuit.add(bytes, during, over.min(settings.rate_window));
            self.circuit_busy = self.circuit_busy.saturating_add(during);
        } else {
            self.best_effort.add(bytes, during, settings.rate_window);
            self.best_effort_moved_at = now;
        }
    }

    /// The use of a circuit begins.
    pub(crate) fn start_circuit(&mut self, settings: &Settings, now: Timestamp) {
        self.reset_circuit_rate();
        let fresh = now.since(self.best_effort_moved_at) <= settings.rate_window;
        self.best_effort_before = self.best_effort.bytes_per_s().filter(|_| fresh);
    }

    /// The use moves to a replacement. The best-effort rate is known from before the first circuit.
    pub(crate) fn reset_circuit_rate(&mut self) {
        self.circuit = BusyRate::default();
        self.circuit_busy = Duration::ZERO;
        self.little_since = None;
    }

    /// A measured rate takes precedence over the forecast; none without either.
    fn rate(&self, circuit: bool) -> Option<f64> {
        let seen = if circuit { self.circuit.bytes_per_s() } else { None };
        seen.or_else(|| self.best_effort.bytes_per_s()).or(self.forecast_rate)
    }

    /// Time to finish the pending bytes; zero without any, at whatever rate.
    pub(crate) fn time_to_finish(&self, circuit: bool) -> Option<Duration> {
        if self.pending_bytes == 0 {
            return Some(Duration::ZERO);
        }
        let seconds = self.pending_bytes as f64 / self.rate(circuit)?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Best-effort rate before the use of the circuit began, in bytes per second.
    pub(crate) fn best_effort_before(&self) -> Option<f64> {
        self.best_effort_before
    }

    /// Fills in the numbers of the explanation.
    pub(crate) fn explain(&self, settings: &Settings, look: Explanation) -> Explanation {
        let on_circuit = self.circuit.bytes_per_s().filter(|_| look.is_used());
        let rate_from = match (on_circuit, self.best_effort.bytes_per_s(), self.forecast_rate) {
            (Some(_), ..) | (_, Some(_), _) => RateSource::Measured,
            (_, _, Some(_)) => RateSource::Forecast,
            _ => RateSource::Unknown,
        };
        Explanation {
            pending_bytes: self.pending_bytes,
            bytes_per_s: on_circuit.or_else(|| self.rate(false)),
            rate_source: rate_from,
            time_to_finish: self.time_to_finish(on_circuit.is_some()),
            threshold: settings.work_threshold,
            release_below: settings.release.map(|leave| leave.work_below),
            checks: (self.checks_passed, settings.checks_in_a_row),
            ..look
        }
    }

    /// Called at each check: time to finish, if it exceeded the threshold in enough consecutive checks. No
    /// circuit is worth requesting where the best-effort path is as fast.
    pub(crate) fn worth_requesting(&mut self, settings: &Settings) -> Option<Duration> {
        let gains = self.rate(false).is_some_and(|rate| rate * 8e-6 < settings.mbit as f64);
        let much = self.time_to_finish(false).filter(|work| gains && *work > settings.work_threshold);
        self.checks_passed = if much.is_some() { self.checks_passed.saturating_add(1) } else { 0 };
        much.filter(|_| self.checks_passed >= settings.checks_in_a_row)
    }

    /// Called at each check of a circuit established at `since`: time to finish, if so little is left that
    /// the circuit is to be released.
    pub(crate) fn worth_releasing(
        &mut self,
        leave: &ReleaseRule,
        since: Timestamp,
        now: Timestamp,
    ) -> Option<Duration> {
        let Some(work) = self.time_to_finish(true).filter(|work| *work < leave.work_below) else {
            self.little_since = None;
            return None;
        };
        let little_since = *self.little_since.get_or_insert(now);
        // A clock step back starts the time anew, at the latest.
        self.little_since = Some(little_since.min(now));
        (now.since(little_since) >= leave.during && now.since(since) >= leave.age_min).then_some(work)
    }

    /// Whether the circuit is slower than the best-effort path was, for long enough to tell.
    pub(crate) fn check_slowness(&self, slower: &SlownessRule) -> Option<Note> {
        let (before, now) =
            (self.best_effort_before?, self.circuit.bytes / self.circuit.busy_s.max(BUSY_S_MIN));
        (self.circuit_busy >= slower.during && now < before * slower.rate_share_min)
            .then_some(Note::SlowerThanBestEffort { circuit: now, best_effort: before })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: Timestamp = Timestamp(1_790_000_000_000_000);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    proptest! {
        /// The paper's formula, computed in another way: bytes that would have to pass in that time.
        #[test]
        fn work_deserves_a_circuit_exactly_above_the_threshold(
            pending in any::<u64>(), moved in proptest::collection::vec((0..1_u64 << 40, 1..100_u64), 0..20),
            told in proptest::option::of(1e3..1e9_f64), hours in 1..48_u64, mbit in 1..100_000_u64,
                checks in 1..5_u32,
        ) {
            let settings =
                Settings { work_threshold: seconds(hours * 3600), mbit, checks_in_a_row: checks,
                    rate_window: seconds(1 << 20), ..Settings::default() };
            let mut load = Workload::default();
            moved.iter().for_each(|(bytes, during)| load.record_moved(false, *bytes, seconds(*during),
                &settings, START));
            load.set_pending(pending, told);
            let bytes: u64 = moved.iter().map(|(bytes, _)| bytes).sum();
            let busy: u64 = moved.iter().map(|(_, during)| during).sum();
            let rate = if bytes > 0 { Some(bytes as f64 / busy as f64) } else { told };
            let much = rate.is_some_and(|rate| pending as f64 > rate * (hours * 3600) as f64);
            let faster = rate.is_some_and(|rate| mbit as f64 * 125_000.0 > rate);
            // Rounding decides where both are equal.
            let close = rate.is_some_and(|rate| (pending as f64 / (rate *
                (hours * 3600) as f64) - 1.0).abs() < 1e-9
                || (mbit as f64 * 125_000.0 / rate - 1.0).abs() < 1e-9);
            prop_assume!(!close);
            for check in 1..=checks + 1 {
                let found = load.worth_requesting(&settings);
                prop_assert_eq!(found.is_some(), much && faster && check >= checks, "check {}", check);
            }
            load.set_pending(0, told);
            prop_assert_eq!(load.worth_requesting(&settings), None);
            load.set_pending(pending, told);
            prop_assert_eq!(load.worth_requesting(&settings).is_some(), much && faster && checks == 1, "it \
                begins anew");
        }

        /// Monotonic: more pending bytes, or a slower link, never make a circuit less worthwhile; nor do
        /// fewer keep one longer.
        #[test]
        fn more_work_never_makes_a_circuit_less_worthwhile(pending in 0..1_u64 << 50,
            more in 0..1_u64 << 50, rate in 1e4..1e8_f64) {
            let settings = Settings::default();
            let worth = |bytes| {
                let mut load = Workload::default();
                load.set_pending(bytes, Some(rate));
                load.worth_requesting(&settings).is_some()
            };
            prop_assert!(worth(pending + more) || !worth(pending));
            let leave = ReleaseRule { work_below: settings.work_threshold, during: Duration::ZERO,
                age_min: Duration::ZERO };
            let little = |bytes| {
                let mut load = Workload::default();
                load.set_pending(bytes, Some(rate));
                load.worth_releasing(&leave, START, START).is_some()
            };
            prop_assert!(little(pending) || !little(pending + more));
            prop_assert!(!(little(pending) && worth(pending)), "asked for and given back for the same work");
        }

        /// A circuit is released only after little work without a break, and not before its minimum age.
        #[test]
        fn a_circuit_is_kept_while_work_comes_and_goes(
            found in proptest::collection::vec(0..3_u64, 1..60), during in 0..10_u64, hold in 0..30_u64,
        ) {
            let leave = ReleaseRule { work_below: seconds(2), during: seconds(during),
                age_min: seconds(hold) };
            let mut load = Workload::default();
            let mut run = 0;
            for (at, work) in found.into_iter().enumerate() {
                let at = at as u64;
                load.set_pending(work, Some(1.0));
                let given_back = load.worth_releasing(&leave, START, START.plus(seconds(at))).is_some();
                run = if work < 2 { run + 1 } else { 0 };
                prop_assert_eq!(given_back, run > during && at >= hold, "after {} s", at);
            }
        }

        #[test]
        fn a_circuit_is_slower_only_if_it_carried_less_for_long_enough(
            plain in 1_000..1_000_000_u64, circuit in 0..1_000_000_u64, for_s in 0..600_u64,
                share in 0.1..1.0_f64,
        ) {
            let slower = SlownessRule { rate_share_min: share, during: seconds(300) };
            let settings = Settings { slowness: Some(slower), ..Settings::default() };
            let mut load = Workload::default();
            prop_assert_eq!(load.check_slowness(&slower), None, "nothing to compare with");
            load.record_moved(false, plain * 60, seconds(60), &settings, START);
            load.start_circuit(&settings, START.plus(seconds(1)));
            (0..for_s).for_each(|_| load.record_moved(true, circuit, seconds(1), &settings, START));
            let bound = plain as f64 * share;
            prop_assume!((circuit as f64 - bound).abs() > 1e-3);
            prop_assert_eq!(load.check_slowness(&slower).is_some(), for_s >= 300 && (circuit as f64) < bound);
        }
    }

    #[test]
    fn no_work_releases_a_circuit_even_without_a_rate() {
        let leave = ReleaseRule { work_below: seconds(1), during: Duration::ZERO, age_min: Duration::ZERO };
        let mut load = Workload::default();
        load.set_pending(0, None);
        assert_eq!(load.worth_releasing(&leave, START, START), Some(Duration::ZERO));
        load.set_pending(1, None);
        assert_eq!(load.worth_releasing(&leave, START, START), None);
    }

    #[test]
    fn old_rates_decay() {
        let settings = Settings { rate_window: seconds(100), ..Settings::default() };
        let mut load = Workload::default();
        load.record_moved(false, 100_000, seconds(100), &settings, START);
        assert_eq!(load.rate(false), Some(1_000.0));
        (0..1_000).for_each(|_| load.record_moved(false, 10, seconds(1), &settings, START));
        assert!(load.rate(false).is_some_and(|rate| (10.0..10.1).contains(&rate)), "{load:?}");
        // A best-effort rate from long ago says nothing about a circuit.
        load.start_circuit(&settings, START.plus(seconds(101)));
        assert_eq!(load.best_effort_before, None);
    }
}
