//! Files that wait at their source before anything of them comes.

use longhaul_simulator::{Plan, Scenario, Way, simulate};

/// Tapes are mounted and wound for 90 s, and read in 3 s: the drives have work from the first minutes on, though two files at once
/// would pay as well once they come.
#[test]
fn while_a_file_comes_the_next_are_brought_from_tape() {
    let text = r#"
        name = "recall"
        until = "1 d"
        site = [
            { name = "archive", port = "10 Gbit/s", tape = { drives = 4, rate = "300 MB/s", mount = "90 s" } },
            { name = "target", port = "10 Gbit/s" },
        ]
        dataset = [{ name = "old", files = 100, sizes = "1 GB", at = ["archive"] }]
        campaign = [{ datasets = ["old"], to = ["target"] }]
        "#;
    let plan = Plan::new(&Scenario::parse(text).unwrap(), None).unwrap();
    let report = simulate(&plan, &Way::named("best").unwrap(), None);
    let of_bound = report.summary.makespan_bound_s / report.summary.makespan_s.unwrap();
    assert!(of_bound > 0.9, "{of_bound}");
}
