//! The workload check of the ANSE paper: what waits on a link, at the rate that the link is seen to carry.
//! And whether a circuit carries less than the plain way did.

use std::time::Duration;

use longhaul_model::Timestamp;

use crate::settings::{Leave, Slower};
use crate::{Look, Note, RateFrom, Settings};

/// A rate that was seen for less than this is none yet.
const SEEN_MIN: f64 = 1.0;

/// Bytes over the time in which something was under way: pauses between jobs are no slowness.
#[derive(Debug, Default)]
struct Carried {
    bytes: f64,
    busy_s: f64,
}

impl Carried {
    /// What lies further back than `over` fades.
    fn add(&mut self, bytes: u64, during: Duration, over: Duration) {
        self.bytes += bytes as f64;
        self.busy_s += during.as_secs_f64();
        let kept = (over.as_secs_f64().max(SEEN_MIN) / self.busy_s).min(1.0);
        if kept < 1.0 {
            self.bytes *= kept;
            self.busy_s *= kept;
        }
    }

    fn bytes_per_s(&self) -> Option<f64> {
        (self.busy_s >= SEEN_MIN && self.bytes > 0.0).then(|| self.bytes / self.busy_s)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Workload {
    pending_bytes: u64,
    /// By somebody who sees more than this link's owner.
    told: Option<f64>,
    plain: Carried,
    plain_seen: Timestamp,
    circuit: Carried,
    /// Since its use began.
    on_circuit: Duration,
    /// What the plain way carried not long before that.
    before: Option<f64>,
    /// Checks in a row that found enough.
    enough: u32,
    little_since: Option<Timestamp>,
}

impl Workload {
    pub(crate) fn waits(&mut self, pending_bytes: u64, told: Option<f64>) {
        self.pending_bytes = pending_bytes;
        self.told = told.filter(|rate| *rate > 0.0 && rate.is_finite());
    }

    pub(crate) fn moved(
        &mut self,
        circuit: bool,
        bytes: u64,
        during: Duration,
        settings: &Settings,
        now: Timestamp,
    ) {
        if circuit {
            // What a circuit is judged by must be able to forget sooner.
            let over = settings.slower.map_or(settings.rate_over, |slower| slower.during);
            self.circuit.add(bytes, during, over.min(settings.rate_over));
            self.on_circuit = self.on_circuit.saturating_add(during);
        } else {
            self.plain.add(bytes, during, settings.rate_over);
            self.plain_seen = now;
        }
    }

    /// Its use begins.
    pub(crate) fn circuit_begins(&mut self, settings: &Settings, now: Timestamp) {
        self.circuit_follows();
        let fresh = now.since(self.plain_seen) <= settings.rate_over;
        self.before = self.plain.bytes_per_s().filter(|_| fresh);
    }

    /// Its use goes on, on another. What the plain way carried is known from before the first.
    pub(crate) fn circuit_follows(&mut self) {
        self.circuit = Carried::default();
        self.on_circuit = Duration::ZERO;
        self.little_since = None;
    }

    /// What was seen here counts more than what one is told; without either nothing is known.
    fn rate(&self, circuit: bool) -> Option<f64> {
        let seen = if circuit { self.circuit.bytes_per_s() } else { None };
        seen.or_else(|| self.plain.bytes_per_s()).or(self.told)
    }

    /// How long what waits takes. Nothing takes no time, at whatever rate.
    pub(crate) fn work(&self, circuit: bool) -> Option<Duration> {
        if self.pending_bytes == 0 {
            return Some(Duration::ZERO);
        }
        let seconds = self.pending_bytes as f64 / self.rate(circuit)?;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// What the plain way carried before the circuit's use began, in bytes per second.
    pub(crate) fn plain_before(&self) -> Option<f64> {
        self.before
    }

    /// The numbers that decide.
    pub(crate) fn look(&self, settings: &Settings, look: Look) -> Look {
        let on_circuit = self.circuit.bytes_per_s().filter(|_| look.is_used());
        let rate_from = match (on_circuit, self.plain.bytes_per_s(), self.told) {
            (Some(_), ..) | (_, Some(_), _) => RateFrom::Seen,
            (_, _, Some(_)) => RateFrom::Told,
            _ => RateFrom::Nobody,
        };
        Look {
            pending_bytes: self.pending_bytes,
            bytes_per_s: on_circuit.or_else(|| self.rate(false)),
            rate_from,
            work: self.work(on_circuit.is_some()),
            threshold: settings.work,
            leave_below: settings.leave.map(|leave| leave.work),
            checks: (self.enough, settings.checks),
            ..look
        }
    }

    /// To be called at each check: how much waits if it is enough, and was in as many checks in a row as are
    /// wanted. Where the plain way carries what the circuit would, none is worth its while.
    pub(crate) fn worth(&mut self, settings: &Settings) -> Option<Duration> {
        let gains = self.rate(false).is_some_and(|rate| rate * 8e-6 < settings.mbit as f64);
        let much = self.work(false).filter(|work| gains && *work > settings.work);
        self.enough = if much.is_some() { self.enough.saturating_add(1) } else { 0 };
        much.filter(|_| self.enough >= settings.checks)
    }

    /// To be called at each check of a circuit that was established at `since`: how little waits, if a
    /// circuit is to be given back for it.
    pub(crate) fn little(&mut self, leave: &Leave, since: Timestamp, now: Timestamp) -> Option<Duration> {
        let Some(work) = self.work(true).filter(|work| *work < leave.work) else {
            self.little_since = None;
            return None;
        };
        let little_since = *self.little_since.get_or_insert(now);
        // A clock that goes back begins anew, at the latest.
        self.little_since = Some(little_since.min(now));
        (now.since(little_since) >= leave.during && now.since(since) >= leave.hold).then_some(work)
    }

    /// Whether the circuit carries less than the plain way did, for long enough to tell.
    pub(crate) fn slower(&self, slower: &Slower) -> Option<Note> {
        let (before, now) = (self.before?, self.circuit.bytes / self.circuit.busy_s.max(SEEN_MIN));
        (self.on_circuit >= slower.during && now < before * slower.share)
            .then_some(Note::Slower { circuit: now, plain: before })
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
        /// The paper's formula, worked out in another way: bytes that would have to pass in that time.
        #[test]
        fn work_is_enough_exactly_if_it_takes_longer_than_the_threshold(
            pending in any::<u64>(), moved in proptest::collection::vec((0..1_u64 << 40, 1..100_u64), 0..20),
            told in proptest::option::of(1e3..1e9_f64), hours in 1..48_u64, mbit in 1..100_000_u64, checks in 1..5_u32,
        ) {
            let settings =
                Settings { work: seconds(hours * 3600), mbit, checks, rate_over: seconds(1 << 20), ..Settings::default() };
            let mut load = Workload::default();
            moved.iter().for_each(|(bytes, during)| load.moved(false, *bytes, seconds(*during), &settings, START));
            load.waits(pending, told);
            let bytes: u64 = moved.iter().map(|(bytes, _)| bytes).sum();
            let busy: u64 = moved.iter().map(|(_, during)| during).sum();
            let rate = if bytes > 0 { Some(bytes as f64 / busy as f64) } else { told };
            let much = rate.is_some_and(|rate| pending as f64 > rate * (hours * 3600) as f64);
            let faster = rate.is_some_and(|rate| mbit as f64 * 125_000.0 > rate);
            // Floating point has its say where both are equal.
            let close = rate.is_some_and(|rate| (pending as f64 / (rate * (hours * 3600) as f64) - 1.0).abs() < 1e-9
                || (mbit as f64 * 125_000.0 / rate - 1.0).abs() < 1e-9);
            prop_assume!(!close);
            for check in 1..=checks + 1 {
                let found = load.worth(&settings);
                prop_assert_eq!(found.is_some(), much && faster && check >= checks, "check {}", check);
            }
            load.waits(0, told);
            prop_assert_eq!(load.worth(&settings), None);
            load.waits(pending, told);
            prop_assert_eq!(load.worth(&settings).is_some(), much && faster && checks == 1, "it begins anew");
        }

        /// More waiting, or a slower link, never makes a circuit less worth its while; nor does less keep one
        /// longer.
        #[test]
        fn more_work_is_never_worth_less(pending in 0..1_u64 << 50, more in 0..1_u64 << 50, rate in 1e4..1e8_f64) {
            let settings = Settings::default();
            let worth = |bytes| {
                let mut load = Workload::default();
                load.waits(bytes, Some(rate));
                load.worth(&settings).is_some()
            };
            prop_assert!(worth(pending + more) || !worth(pending));
            let leave = Leave { work: settings.work, during: Duration::ZERO, hold: Duration::ZERO };
            let little = |bytes| {
                let mut load = Workload::default();
                load.waits(bytes, Some(rate));
                load.little(&leave, START, START).is_some()
            };
            prop_assert!(little(pending) || !little(pending + more));
            prop_assert!(!(little(pending) && worth(pending)), "asked for and given back for the same work");
        }

        /// A circuit is given back only after little work without a break, and not before its time.
        #[test]
        fn a_circuit_is_kept_while_work_comes_and_goes(
            found in proptest::collection::vec(0..3_u64, 1..60), during in 0..10_u64, hold in 0..30_u64,
        ) {
            let leave = Leave { work: seconds(2), during: seconds(during), hold: seconds(hold) };
            let mut load = Workload::default();
            let mut run = 0;
            for (at, work) in found.into_iter().enumerate() {
                let at = at as u64;
                load.waits(work, Some(1.0));
                let given_back = load.little(&leave, START, START.plus(seconds(at))).is_some();
                run = if work < 2 { run + 1 } else { 0 };
                prop_assert_eq!(given_back, run > during && at >= hold, "after {} s", at);
            }
        }

        #[test]
        fn a_circuit_is_slower_only_if_it_carried_less_for_long_enough(
            plain in 1_000..1_000_000_u64, circuit in 0..1_000_000_u64, for_s in 0..600_u64, share in 0.1..1.0_f64,
        ) {
            let slower = Slower { share, during: seconds(300) };
            let settings = Settings { slower: Some(slower), ..Settings::default() };
            let mut load = Workload::default();
            prop_assert_eq!(load.slower(&slower), None, "nothing to compare with");
            load.moved(false, plain * 60, seconds(60), &settings, START);
            load.circuit_begins(&settings, START.plus(seconds(1)));
            (0..for_s).for_each(|_| load.moved(true, circuit, seconds(1), &settings, START));
            let bound = plain as f64 * share;
            prop_assume!((circuit as f64 - bound).abs() > 1e-3);
            prop_assert_eq!(load.slower(&slower).is_some(), for_s >= 300 && (circuit as f64) < bound);
        }
    }

    #[test]
    fn nothing_to_do_is_little_even_if_no_rate_is_known() {
        let leave = Leave { work: seconds(1), during: Duration::ZERO, hold: Duration::ZERO };
        let mut load = Workload::default();
        load.waits(0, None);
        assert_eq!(load.little(&leave, START, START), Some(Duration::ZERO));
        load.waits(1, None);
        assert_eq!(load.little(&leave, START, START), None);
    }

    #[test]
    fn what_was_seen_long_ago_fades() {
        let settings = Settings { rate_over: seconds(100), ..Settings::default() };
        let mut load = Workload::default();
        load.moved(false, 100_000, seconds(100), &settings, START);
        assert_eq!(load.rate(false), Some(1_000.0));
        (0..1_000).for_each(|_| load.moved(false, 10, seconds(1), &settings, START));
        assert!(load.rate(false).is_some_and(|rate| (10.0..10.1).contains(&rate)), "{load:?}");
        // A plain way that was not used for long says nothing about a circuit.
        load.circuit_begins(&settings, START.plus(seconds(101)));
        assert_eq!(load.before, None);
    }
}
