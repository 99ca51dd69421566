//! Tape recalls: files that wait at their source before their first byte.

use longhaul_simulator::{Plan, Policy, Report, Scenario, simulate};

/// 100 files of 1 GB; tapes are mounted and wound for 90 s, and read in 3 s.
fn recall(drives: u32) -> Report {
    let tape = format!("{{ drives = {drives}, rate = \"300 MB/s\", mount = \"90 s\" }}");
    let text = format!(
        r#"
        name = "recall"
        until = "1 d"
        site = [
            {{ name = "archive", port = "10 Gbit/s", tape = {tape} }},
            {{ name = "target", port = "10 Gbit/s" }},
        ]
        dataset = [{{ name = "old", files = 100, sizes = "1 GB", at = ["archive"] }}]
        campaign = [{{ datasets = ["old"], to = ["target"] }}]
        "#
    );
    let plan = Plan::new(&Scenario::parse(&text).unwrap(), None).unwrap();
    simulate(&plan, &Policy::parse("best").unwrap(), None)
}

fn of_bound(report: &Report) -> f64 {
    report.summary.makespan_bound_s / report.summary.makespan_s.unwrap()
}

/// The drives have work from the first minutes on, though two files at once would pay as well once they come.
#[test]
fn while_a_file_comes_the_next_are_brought_from_tape() {
    let part = of_bound(&recall(4));
    assert!(part > 0.9, "{part}");
}

/// More drives than a session opens files for are no use to it, and the bound knows.
#[test]
fn a_session_has_few_tapes_mounted() {
    let report = recall(20);
    let (drives, session) = (report.certificate.recall.unwrap(), report.certificate.session.unwrap());
    assert!(session.bound() > 4.0 * drives.bound(), "{drives:?}, {session:?}");
    let part = of_bound(&report);
    assert!(part > 0.9 && part <= 1.0, "{part}");
}
