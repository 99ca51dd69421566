//! What the service says of the work under the limit: when it will be there, and what holds it up.

use longhaul_api::routes;
use longhaul_model::Timestamp;
use longhaul_testbed::http::Api;
use serde_json::Value;

use super::{CASE, LIMIT_BYTES_PER_S, LIMIT_SHOWN};
use crate::measure::Row;

/// What holds a link up that the limit of its target's site binds, as the network's knowledge has it.
const CAUSE: &str = "our own limit on what enters the target or its site";
/// One forecast for each subscription of the demo.
const FORECASTS: f64 = 2.0;

/// A forecast for a subscription that has its site to itself.
struct Forecast {
    /// As likely before this as after it.
    median_s: f64,
    /// In nine of ten cases before this.
    ninety_s: f64,
    /// What is left, at the limit.
    due_s: f64,
    names_limit: bool,
}

impl Forecast {
    /// None if the view has none.
    fn from_view(view: &Value, now: Timestamp) -> Option<Forecast> {
        let seconds = |name: &str| -> Option<f64> {
            let at: Timestamp = view["expected"][name].as_str()?.parse().ok()?;
            Some(at.since(now).as_secs_f64())
        };
        let left = view["bytes_wanted"].as_u64()?.saturating_sub(view["bytes_present"].as_u64()?);
        let site = view["storage"].as_str()?;
        let limit = format!("site {site} takes in {LIMIT_SHOWN} at most, its limit");
        Some(Forecast {
            median_s: seconds("median")?,
            ninety_s: seconds("ninety")?,
            due_s: left as f64 / LIMIT_BYTES_PER_S,
            names_limit: reasons(view).any(|reason| reason == limit),
        })
    }

    /// Whether what is due lies within the interval of eight cases in ten. The logarithm of the time is
    /// distributed evenly about that of the median.
    fn holds(&self) -> bool {
        let ten_s = self.median_s.powi(2) / self.ninety_s.max(1e-3);
        (ten_s..=self.ninety_s).contains(&self.due_s)
    }
}

fn reasons(view: &Value) -> impl Iterator<Item = &str> {
    view["expected"]["held_up_by"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Compares the forecasts of subscriptions, as the status has them, with its time.
pub(super) fn rows(views: &[&Value], now: &Value) -> [Row; 2] {
    let now: Timestamp = now.as_str().and_then(|text| text.parse().ok()).expect("the status has a time");
    for view in views {
        let reasons: Vec<&str> = reasons(view).collect();
        eprintln!("  {} at {}: {}", view["dataset"], view["storage"], reasons.join("; "));
    }
    let forecasts: Vec<Forecast> = views.iter().filter_map(|view| Forecast::from_view(view, now)).collect();
    let count = |fits: fn(&Forecast) -> bool| forecasts.iter().filter(|one| fits(one)).count() as f64;
    let of_due = |one: &Forecast| {
        let due = one.due_s.max(1.0);
        format!("{:.0} s, median {:.2}, nine in ten {:.2}", one.due_s, one.median_s / due, one.ninety_s / due)
    };
    let yardsticks: Vec<String> = forecasts.iter().map(of_due).collect();
    [
        Row {
            yardstick: format!("bytes left ÷ limit: {}", yardsticks.join("; ")),
            ..Row::at_least(
                CASE,
                "forecasts whose interval holds bytes left ÷ limit",
                count(Forecast::holds),
                FORECASTS,
                "2 of 2",
            )
        },
        Row::at_least(
            CASE,
            "forecasts that name the limit of the site",
            count(|one| one.names_limit),
            FORECASTS,
            "2 of 2",
        ),
    ]
}

/// Links under way of which something else than the limit is said to hold them up.
pub(super) fn causes_row(api: &Api) -> Row {
    let links = api.all(&routes::NETWORK_LINKS, &[], &[]);
    let active: Vec<&Value> =
        links.iter().filter(|link| link["active"].as_u64().is_some_and(|files| files > 0)).collect();
    let others: Vec<&&Value> =
        active.iter().filter(|link| link["held_up_by"].as_str() != Some(CAUSE)).collect();
    for link in &others {
        eprintln!("  {} to {} is held up by {}", link["source"], link["target"], link["held_up_by"]);
    }
    Row {
        yardstick: format!("{} links under way", active.len()),
        ..Row::at_most(CASE, "links held up by something else than the limit", others.len() as f64, 0.0, "0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn forecast(median: &str, ninety: &str, held_up_by: &str) -> Option<Forecast> {
        let view = json!({
            "storage": "beta", "bytes_wanted": 1_000_000_000u64, "bytes_present": 800_000_000u64,
            "expected": { "median": median, "ninety": ninety, "held_up_by": ["nothing", held_up_by] },
        });
        Forecast::from_view(&view, "2026-11-21T14:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_forecast_is_compared_with_what_the_limit_says() {
        let limit = "site beta takes in 2.00 MB/s at most, its limit";
        // Due in 100 s.
        let right = forecast("2026-11-21T14:01:38Z", "2026-11-21T14:01:45Z", limit).unwrap();
        assert!(right.holds() && right.names_limit, "{} s", right.due_s);
        let early = forecast("2026-11-21T14:01:20Z", "2026-11-21T14:01:24Z", "site beta").unwrap();
        assert!(!early.holds() && !early.names_limit);
        let late = forecast("2026-11-21T14:02:00Z", "2026-11-21T14:02:06Z", limit).unwrap();
        assert!(!late.holds());
        assert!(forecast("", "", limit).is_none());
    }
}
