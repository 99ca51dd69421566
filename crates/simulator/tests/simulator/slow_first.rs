//! What is wished for first comes from a slow source, and what is wished for a little later from a fast one,
//! to a target that has room for both: neither keeps the other waiting.

use longhaul_simulator::{Plan, Policy, Scenario, simulate};

/// Mean seconds until a dataset is complete, as a multiple of what they take alone. The slow source gives 20
/// MB/s, or as many times as much as there are more files of 20 MB than 400.
fn of_alone(files: u64, strategy: &str) -> f64 {
    let times = files / 400;
    let text = format!(
        r#"
        name = "slow-first"
        until = "1 h"
        site = [
            {{ name = "slow", port = "{} Mbit/s" }},
            {{ name = "fast", port = "{times} Gbit/s" }},
            {{ name = "target", port = "{times} Gbit/s" }},
        ]
        dataset = [
            {{ name = "old", files = {files}, sizes = "20 MB", at = ["slow"] }},
            {{ name = "new", files = {files}, sizes = "20 MB", at = ["fast"] }},
        ]
        campaign = [
            {{ datasets = ["old"], to = ["target"] }},
            {{ datasets = ["new"], to = ["target"], at = "20 s" }},
        ]
        "#,
        160 * times
    );
    let plan = Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap();
    let report = simulate(&plan, &Policy::parse(strategy).unwrap(), None);
    // 8 GB for each time at 20 MB/s, and at the other 105 that the port has room for.
    report.summary.dataset_mean_s.unwrap() / ((8_000.0 / 20.0 + 8_000.0 / 105.0) / 2.0)
}

/// What came to the target before it was there says nothing of it.
#[test]
fn a_source_that_joins_is_used() {
    let part = of_alone(400, "best");
    assert!(part < 1.15, "{part}");
}

/// More waits for the slow source than a target has in memory.
#[test]
fn a_large_wish_keeps_no_other_from_being_known() {
    for strategy in ["best", "orderly"] {
        let part = of_alone(4_000, strategy);
        assert!(part < 1.15, "{strategy}: {part}");
    }
}
