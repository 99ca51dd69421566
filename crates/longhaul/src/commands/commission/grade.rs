//! Grades a tested link. Pure: measurements in, a grade and its reason out.

use longhaul_api::commissioning::{CommissionStep, Grade};
use longhaul_model::units::rate;

/// More than one failed attempt in this many is too often.
const ATTEMPTS_PER_FAILURE: u64 = 20;

/// The rules, for display.
pub const RULES: &str = "unreachable: nothing arrived; failing: more than one attempt in 20 failed; slow: \
    below --at-least; \
                         otherwise commissioned";

/// Grades a link. `probe` is one small file; the steps follow only if it arrived.
pub fn grade(probe: &CommissionStep, steps: &[CommissionStep], at_least: u64) -> (Grade, String) {
    let all = || std::iter::once(probe).chain(steps);
    if all().all(|step| step.files == 0) && all().all(|step| step.bytes == 0) {
        let failed = match all().map(|step| step.attempts_failed).sum::<u64>() {
            0 => "no attempt finished".to_owned(),
            1 => "its attempt failed".to_owned(),
            failed => format!("{failed} attempts failed"),
        };
        return (
            Grade::Unreachable,
            format!("nothing arrived within {:.0} s: {failed}", all().map(|step| step.seconds).sum::<f64>()),
        );
    }
    let attempts: u64 = all().map(|step| step.attempts).sum();
    let failed: u64 = all().map(|step| step.attempts_failed).sum();
    if failed * ATTEMPTS_PER_FAILURE > attempts {
        return (
            Grade::Failing,
            format!("{failed} of {attempts} attempts failed, more than one in {ATTEMPTS_PER_FAILURE}"),
        );
    }
    let best = best_rate(steps);
    let wanted = rate(at_least as f64);
    if best < at_least as f64 {
        return (Grade::Slow, format!("{} at best, below {wanted}", rate(best)));
    }
    (
        Grade::Commissioned,
        format!("{} at best, at least {wanted} required; {failed} of {attempts} attempts failed", rate(best)),
    )
}

pub fn best_rate(steps: &[CommissionStep]) -> f64 {
    steps.iter().map(|step| step.rate).fold(0.0, f64::max)
}

/// Size of the next step: what the last rate moves in half the allowed time, within limits.
pub fn step_bytes(last_rate: f64, seconds: u64, most: u64) -> u64 {
    let wanted = last_rate * seconds as f64 / 2.0;
    // A step that ends in an instant measures only the start.
    let least = STEP_BYTES_MIN.min(most);
    if wanted.is_finite() { (wanted as u64).clamp(least, most) } else { least }
}

const STEP_BYTES_MIN: u64 = 16_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn step(files: u64, attempts: u64, failed: u64, rate: f64) -> CommissionStep {
        CommissionStep {
            files_at_once: 1,
            files,
            bytes: files * 10,
            seconds: 1.0,
            rate,
            attempts,
            attempts_failed: failed,
            cut_short: false,
        }
    }

    #[test]
    fn grades_follow_the_rules() {
        let good = step(1, 1, 0, 1e6);
        let of = |steps: &[CommissionStep]| grade(&good, steps, 20_000_000);
        assert_eq!(of(&[step(1, 1, 0, 10e6), step(8, 8, 0, 80e6)]).0, Grade::Commissioned);
        let slow = of(&[step(1, 1, 0, 10e6), step(8, 8, 0, 15e6)]);
        assert_eq!(slow, (Grade::Slow, "15.0 MB/s at best, below 20.0 MB/s".into()));
        let failing = of(&[step(8, 12, 4, 80e6)]);
        assert_eq!(failing.0, Grade::Failing, "{failing:?}");
        assert!(failing.1.contains("4 of 13 attempts"), "{failing:?}");
        assert_eq!(of(&[step(40, 40, 2, 80e6)]).0, Grade::Commissioned, "one in 20 is tolerated");
        let (none, why) = grade(&step(0, 3, 3, 0.0), &[], 1);
        assert_eq!(none, Grade::Unreachable);
        assert!(why.contains("3 attempts failed"), "{why}");
    }

    proptest! {
        #[test]
        fn a_step_stays_within_its_bytes(
            last in proptest::num::f64::ANY,
            seconds in 1u64..3_600,
            most in 1u64..1_000_000_000_000,
        ) {
            let bytes = step_bytes(last, seconds, most);
            prop_assert!(bytes <= most && bytes > 0);
        }
    }
}
