//! Distribution of delays: from a histogram, or from published statistics.

use serde_json::Value;

use super::delay_ms;
use crate::lenient::{at, count, list, number};

/// Buckets of one histogram that are read; powstream's have about a hundred.
const BUCKETS_MAX: usize = 10_000;

/// Milliseconds. What the archive does not say is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Packets; 0 where only statistics are known.
    pub count: u64,
    pub min: f64,
    pub median: f64,
    pub mean: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: f64,
}

impl Spread {
    /// From `(milliseconds, packets)` in any order.
    pub(super) fn of_buckets(mut buckets: Vec<(f64, u64)>) -> Option<Spread> {
        buckets.retain(|(_, packets)| *packets > 0);
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let count = buckets.iter().try_fold(0u64, |sum, (_, packets)| sum.checked_add(*packets))?;
        let (first, last) = (buckets.first()?, buckets.last()?);
        // The value below or at which at least this share of the packets is.
        let quantile = |share: f64| {
            let wanted = ((count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            let found = buckets.iter().find(|(_, packets)| {
                seen += packets;
                seen >= wanted
            });
            found.map_or(last.0, |(value, _)| *value)
        };
        let sum: f64 = buckets.iter().map(|(value, packets)| value * *packets as f64).sum();
        Some(Spread {
            count,
            min: first.0,
            median: quantile(0.5),
            mean: Some(sum / count as f64),
            p95: Some(quantile(0.95)),
            p99: Some(quantile(0.99)),
            max: last.0,
        })
    }

    /// esmond's: milliseconds as text to number of packets.
    pub(super) fn of_histogram(value: &Value) -> Option<Spread> {
        let buckets = value.as_object()?;
        if buckets.len() > BUCKETS_MAX {
            return None;
        }
        let read =
            |(key, packets): (&String, &Value)| Some((delay_ms(key.trim().parse().ok()?)?, count(packets)?));
        Spread::of_buckets(buckets.iter().map(read).collect::<Option<Vec<_>>>()?)
    }

    /// Version 5's: `{"values": […], "counts": […]}`.
    pub(super) fn of_lists(value: &Value) -> Option<Spread> {
        let (values, counts) = (list(at(value, "values")), list(at(value, "counts")));
        if values.len() != counts.len() || values.len() > BUCKETS_MAX {
            return None;
        }
        let read = |(value, packets)| Some((delay_ms(number(value)?)?, count(packets)?));
        Spread::of_buckets(values.iter().zip(counts).map(read).collect::<Option<Vec<_>>>()?)
    }

    /// Statistics under these names; `scale` makes milliseconds of them. Minimum and maximum are needed.
    pub(super) fn of_statistics(value: &Value, names: &Names, scale: f64) -> Option<Spread> {
        let read = |name: &str| at(value, name).and_then(number).and_then(|number| delay_ms(number * scale));
        let (min, max) = (read(names.min)?, read(names.max)?);
        let (median, mean) = (read(names.median), read(names.mean));
        if min > max {
            return None;
        }
        let within = |value: f64| value.clamp(min, max);
        Some(Spread {
            count: 0,
            min,
            median: within(median.or(mean)?),
            mean: mean.map(within),
            p95: read(names.p95).map(within),
            p99: None,
            max,
        })
    }
}

/// The archive's names of the statistics.
pub(super) struct Names {
    pub(super) min: &'static str,
    pub(super) median: &'static str,
    pub(super) mean: &'static str,
    pub(super) p95: &'static str,
    pub(super) max: &'static str,
}

pub(super) const ESMOND: Names =
    Names { min: "minimum", median: "median", mean: "mean", p95: "percentile-95", max: "maximum" };
pub(super) const DOCUMENT: Names =
    Names { min: "min", median: "median", mean: "mean", p95: "p_95", max: "max" };

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_recorded_histogram_has_the_figures_of_the_reference() {
        let spread = Spread::of_histogram(&json!({"34.4": 510, "34.5": 80, "61.0": 10})).unwrap();
        assert_eq!((spread.count, spread.min, spread.median, spread.p99), (600, 34.4, 34.4, Some(61.0)));
        // A clock error makes keys negative.
        assert_eq!(Spread::of_histogram(&json!({"-0.2": 1, "0.1": "3"})).unwrap().min, -0.2);
        for bad in
            [json!({}), json!([]), json!({"x": 1}), json!({"1": -1}), json!({"1e99": 1}), json!({"1": 0})]
        {
            assert_eq!(Spread::of_histogram(&bad), None, "{bad}");
        }
    }

    #[test]
    fn statistics_are_taken_where_they_agree_with_themselves() {
        let statistics = json!({"minimum": "34.1", "maximum": "60.2", "mean": 35.0, "median": 34.4,
            "mode": [34.4],
            "standard-deviation": 1.0, "variance": 1.0, "percentile-25": 34.2, "percentile-75": 34.6,
                "percentile-95": 40});
        let spread = Spread::of_statistics(&statistics, &ESMOND, 1.0).unwrap();
        assert_eq!((spread.min, spread.median, spread.p95, spread.max), (34.1, 34.4, Some(40.0), 60.2));
        assert_eq!(
            Spread::of_statistics(&json!({"minimum": 2, "maximum": 1, "mean": 1}), &ESMOND, 1.0),
            None
        );
    }

    proptest! {
        #[test]
        fn quantiles_are_in_order(buckets in prop::collection::vec((-1e5f64..1e5, 0u64..1_000), 0..50)) {
            if let Some(spread) = Spread::of_buckets(buckets.clone()) {
                prop_assert_eq!(spread.count, buckets.iter().map(|bucket| bucket.1).sum::<u64>());
                let (p95, p99) = (spread.p95.unwrap(), spread.p99.unwrap());
                prop_assert!(spread.min <= spread.median && spread.median <= p95 && p95 <= p99
                    && p99 <= spread.max);
            }
        }
    }
}
