//! Start-up cost of a file: the affine latency–bandwidth model t = start + slope · t_data (Hockney, 1994),
//! fitted by exponentially weighted least squares.
//!
//! Residuals are relative to the time, so that large files do not drown small ones.

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

/// Transfers remembered.
const WEIGHT_MAX: f64 = 300.0;
/// Half-life of a transfer's weight: a day.
const HALF_LIFE_S: f64 = 86_400.0;
/// Prior start-up time of a file.
const START_S_ASSUMED: f64 = 0.2;
/// Transfers that the prior weighs.
const PRIOR_TRANSFERS: f64 = 2.0;

/// Weighted sums over transfers (weight 1 / time²) of the expected time of the bytes (x) and the time taken
/// (y).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct StartupCost {
    count: f32,
    one: f64,
    x: f64,
    xx: f64,
    y: f64,
    xy: f64,
    last: Timestamp,
}

impl StartupCost {
    /// Observes a file that took `seconds`; at the estimated rate its bytes take `data_s`.
    pub(crate) fn observe(&mut self, data_s: f64, seconds: f64, now: Timestamp) {
        let sane = |value: f64| value.is_finite() && value < 1e8;
        if !sane(data_s) || !sane(seconds) || data_s < 0.0 || seconds <= 0.0 {
            return;
        }
        let age = (-now.since(self.last).as_secs_f64() / HALF_LIFE_S).exp2();
        let full = (WEIGHT_MAX / (f64::from(self.count) + 1.0)).min(1.0);
        let keep = age * full;
        let weight = 1.0 / seconds.max(1e-3).powi(2);
        self.count = (f64::from(self.count) * keep) as f32 + 1.0;
        let add = |sum: &mut f64, value: f64| *sum = *sum * keep + weight * value;
        add(&mut self.one, 1.0);
        add(&mut self.x, data_s);
        add(&mut self.xx, data_s * data_s);
        add(&mut self.y, seconds);
        add(&mut self.xy, data_s * seconds);
        self.last = self.last.max(now);
    }

    /// Start-up seconds, and the factor by which bytes take longer than expected.
    pub(crate) fn fit(&self) -> (f64, f64) {
        let count = f64::from(self.count);
        if count <= 0.0 || self.one <= 0.0 {
            return (START_S_ASSUMED, 1.0);
        }
        // The prior enters as transfers without bytes, and as a slope of one.
        let unit = PRIOR_TRANSFERS / count;
        let (one, y) = (self.one * (1.0 + unit), self.y + self.one * unit * START_S_ASSUMED);
        let (xx, xy) = (self.xx * (1.0 + unit), self.xy + self.xx * unit);
        let determinant = one * xx - self.x * self.x;
        if !determinant.is_finite() || determinant <= 1e-9 * one * xx {
            let start = (y / one).clamp(0.0, 3_600.0);
            return if xx <= 1e-9 * one { (start, 1.0) } else { (0.0, (xy / xx).clamp(0.1, 10.0)) };
        }
        let start = (y * xx - self.x * xy) / determinant;
        if start < 0.0 {
            return (0.0, (xy / xx).clamp(0.1, 10.0));
        }
        let slope = (one * xy - self.x * y) / determinant;
        if slope < 0.1 {
            return ((y - 0.1 * self.x).max(0.0) / one, 0.1);
        }
        (start.min(3_600.0), slope.min(10.0))
    }

    pub(crate) fn sanitized(self) -> Self {
        let all = [self.one, self.x, self.xx, self.y, self.xy, f64::from(self.count)];
        if all.iter().all(|value| value.is_finite() && *value >= 0.0) { self } else { StartupCost::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn start_and_slope_are_found_from_small_and_large_files() {
        let mut overhead = StartupCost::default();
        for number in 0..200_i64 {
            let data = [0.001, 0.1, 2.0, 60.0][number as usize % 4];
            let noise = 1.0 + 0.1 * ((number * 37 % 11) as f64 / 5.0 - 1.0);
            overhead.observe(
                data,
                (1.5 + 1.2 * data) * noise,
                Timestamp::from_seconds(1_800_000_000 + number),
            );
        }
        let (start, slope) = overhead.fit();
        assert!((start - 1.5).abs() < 0.15 && (slope - 1.2).abs() < 0.12, "{start} {slope}");
        assert_eq!(StartupCost::default().fit(), (START_S_ASSUMED, 1.0));
    }

    proptest! {
        #[test]
        fn any_transfers_give_a_valid_fit(all in proptest::collection::vec((any::<f64>(), any::<f64>(),
            any::<i64>()), 0..50)) {
            let mut overhead = StartupCost::default();
            for (data, seconds, time) in all {
                overhead.observe(data, seconds, Timestamp(time));
                let (start, slope) = overhead.fit();
                prop_assert!(start.is_finite() && (0.0..=1e8).contains(&start), "{start}");
                prop_assert!((0.1..=10.0).contains(&slope), "{slope}");
            }
        }
    }
}
