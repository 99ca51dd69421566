//! Recorded hosts: what is examined is a tree of files, so a host that is tuned badly, one that is tuned
//! well, and one that tells nothing are all at hand.

use std::path::Path;

use longhaul_doctor::facts::HostFacts;
use longhaul_doctor::{
    Examination, ExaminationRequest, FigureSource, Finding, PathOverrides, Severity, examine, tune,
};
use longhaul_model::Timestamp;

/// Lays out a recording: `--- path`, then the contents.
fn lay_out(recording: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for part in recording.split("--- ").skip(1) {
        let (path, contents) = part.split_once('\n').unwrap();
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    }
    root
}

fn examine_with(recording: &str, path: PathOverrides) -> Examination {
    let root = lay_out(recording);
    examine(
        &ExaminationRequest { root: root.path().into(), path, ..ExaminationRequest::default() },
        Timestamp::ZERO,
    )
}

fn finding<'a>(done: &'a Examination, check: &str) -> &'a Finding {
    let found = done.findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("no {check} in {:#?}", done.findings))
}

const MISTUNED: &str = include_str!("hosts/mistuned.tree");
const TUNED: &str = include_str!("hosts/tuned.tree");

fn long_path() -> PathOverrides {
    PathOverrides { rtt_us: Some(150_000), rate_bytes_per_s: Some(1_250_000_000), streams: None }
}

/// The host of the notes on the engine: send autotunes to 4 MiB only while 256 MiB may be set; receive the
/// reverse.
#[test]
fn the_two_ceilings_disagree_in_both_directions() {
    let done = examine_with(MISTUNED, PathOverrides { streams: Some(1), ..long_path() });
    let send = finding(&done, "send buffers");
    assert_eq!(send.severity, Severity::Advice, "{send:?}");
    for part in [
        "grows by itself to 4 MiB",
        "set it to 512 MiB (wmem_max 256 MiB)",
        "setting helps",
        "the send ceiling of 4 MiB binds",
    ] {
        assert!(send.found.contains(part), "{part:?} is not in {:?}", send.found);
    }
    assert!(
        send.cost.as_ref().unwrap().contains("one stream carries at most 28.0 MB/s at 150 ms"),
        "{send:?}"
    );
    assert_eq!(send.remedy[0], "sysctl -w net.ipv4.tcp_wmem=\"4096 65536 536870912\"");

    let receive = finding(&done, "receive buffers");
    for part in ["grows by itself to 32 MiB", "rmem_max 4 MiB", "setting hurts, it then stays at 8 MiB"] {
        assert!(receive.found.contains(part), "{part:?} is not in {:?}", receive.found);
    }
    assert!(receive.cost.as_ref().unwrap().contains("12 streams are needed"), "{receive:?}");
    assert!(
        receive.remedy.iter().any(|line| line == "sysctl -w net.core.rmem_max=\"536870912\""),
        "{receive:?}"
    );
}

#[test]
fn every_fault_of_a_mistuned_host_has_cost_and_remedy() {
    let done = examine_with(MISTUNED, long_path());
    assert_eq!((done.path.rtt_from, done.path.rate_from), (FigureSource::Given, FigureSource::Given));
    for (check, level, cost, remedy) in [
        ("tcp_window_scaling", Severity::Problem, "at most 437 kB/s", "net.ipv4.tcp_window_scaling=\"1\""),
        ("netdev_max_backlog", Severity::Advice, "drops packets", "250000"),
        ("somaxconn", Severity::Advice, "refused", "4096"),
        ("tcp_mtu_probing", Severity::Advice, "stand still", "=\"1\""),
        ("tcp_slow_start_after_idle", Severity::Advice, "to be fast again", "=\"0\""),
        ("default_qdisc", Severity::Advice, "bursts", "fq"),
        ("tcp memory", Severity::Advice, "exceeds", "more memory"),
        ("congestion control", Severity::Advice, "1e-5", "modprobe tcp_bbr"),
        ("eth0 mtu", Severity::Advice, "black hole", "tcp_mtu_probing"),
        ("eth0 drops", Severity::Advice, "loss", "ethtool -G eth0"),
        ("eth0 interrupts", Severity::Advice, "one CPU bounds", "rps_cpus"),
        ("open files", Severity::Problem, "too many open files", "LimitNOFILE"),
        ("cpu", Severity::Advice, "CPU time", "host-passthrough"),
        ("pressure", Severity::Advice, "give way", "psi=1"),
    ] {
        let found = finding(&done, check);
        assert_eq!(found.severity, level, "{found:?}");
        assert!(found.cost.as_ref().is_some_and(|text| text.contains(cost)), "{cost:?}: {found:?}");
        assert!(found.remedy.iter().any(|text| text.contains(remedy)), "{remedy:?}: {found:?}");
    }
    assert!(finding(&done, "eth0 interrupts").found.contains("CPU 0 serves 100 %"));
    assert!(!done.findings.iter().any(|one| one.check.starts_with("lo ")), "the loop back is no interface");
    // Nothing but `ok` stands alone.
    for one in &done.findings {
        assert!(
            one.severity <= Severity::Unknown || (one.cost.is_some() && !one.remedy.is_empty()),
            "{one:?}"
        );
    }
    assert_eq!(done.problems, 2, "{:#?}", done.findings);
}

#[test]
fn a_well_tuned_host_gets_no_advice() {
    let done = examine_with(TUNED, PathOverrides { rtt_us: Some(50_000), ..PathOverrides::default() });
    // The rate is that of its interface.
    assert_eq!(done.path.path.rate_bytes_per_s, 12_500_000_000);
    let bad: Vec<&Finding> = done.findings.iter().filter(|one| one.severity > Severity::Unknown).collect();
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(finding(&done, "send buffers").found.contains("1 GiB"));
    assert_eq!(finding(&done, "data0 interrupts").severity, Severity::Ok);
    assert!(finding(&done, "cpu").found.contains("VAES"));
}

/// Containers hide half of these files: what cannot be read is not known, and never a problem.
#[test]
fn missing_and_damaged_files_are_unknown() {
    let done = examine_with("", PathOverrides::default());
    assert_eq!((done.problems, done.path.rtt_from), (0, FigureSource::Assumed));
    assert_eq!(finding(&done, "send buffers").severity, Severity::Unknown);
    assert_eq!(finding(&done, "open files").severity, Severity::Unknown);
    assert_eq!(finding(&done, "cpu").severity, Severity::Unknown);

    let damaged = "--- proc/sys/net/ipv4/tcp_rmem\n1 2\n--- proc/sys/net/core/rmem_max\nmany\n--- \
        proc/interrupts\nCPU0\n\
                   --- proc/self/limits\nMax open files\n--- proc/cpuinfo\n:\n--- \
                   sys/class/net/eth0/mtu\n-1\n";
    let root = lay_out(damaged);
    std::fs::write(root.path().join("proc/meminfo"), [0xff, 0xfe, 0x00]).unwrap();
    let facts = HostFacts::read(root.path());
    assert_eq!((facts.limits.tcp_rmem, facts.limits.rmem_max, facts.open_files), (None, None, None));
    assert_eq!((facts.memory_bytes, facts.interfaces[0].mtu), (None, None));
    assert_eq!(HostFacts::read(Path::new("/nonexistent")), HostFacts::default());
}

/// An assumed path makes nobody's host a problem.
#[test]
fn buffers_are_a_problem_only_for_a_given_path() {
    let far = PathOverrides { rtt_us: Some(300_000), rate_bytes_per_s: Some(12_500_000_000), streams: None };
    assert_eq!(finding(&examine_with(MISTUNED, far), "receive buffers").severity, Severity::Problem);
    let guessed = PathOverrides { rtt_us: None, ..far };
    assert_eq!(finding(&examine_with(MISTUNED, guessed), "receive buffers").severity, Severity::Advice);
    let near = PathOverrides { rtt_us: Some(1_000), rate_bytes_per_s: Some(125_000_000), streams: None };
    assert_eq!(finding(&examine_with(MISTUNED, near), "send buffers").severity, Severity::Ok);
    assert_eq!(finding(&examine_with(MISTUNED, near), "receive buffers").severity, Severity::Ok);
    // Nothing hurts but setting: that is told.
    let middle = PathOverrides { rtt_us: Some(20_000), rate_bytes_per_s: Some(1_250_000_000), streams: None };
    let receive = finding(&examine_with(MISTUNED, middle), "receive buffers").clone();
    assert_eq!(receive.severity, Severity::Advice);
    assert!(receive.cost.unwrap().contains("unless a program sets"), "{:?}", receive.found);
}

#[test]
fn a_plan_follows_the_host_and_lowers_nothing() {
    let root = lay_out(TUNED);
    let facts = HostFacts::read(root.path());
    let plan = tune::plan(&facts, tune::path(1_250_000_000, 150_000), None);
    assert_eq!(plan.settings, []);
    let root = lay_out(MISTUNED);
    let plan = tune::plan(&HostFacts::read(root.path()), tune::path(1_250_000_000, 150_000), None);
    let lines: Vec<&str> = plan.settings.iter().map(|line| line.line.as_str()).collect();
    assert!(lines.contains(&"net.ipv4.tcp_wmem = 4096 65536 134217728"), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("net.core.wmem_max")), "256 MiB stay: {lines:?}");
}

/// Examining this very host works, whatever it is.
#[test]
fn this_host_is_examined() {
    let directory = tempfile::tempdir().unwrap();
    let order = ExaminationRequest {
        directories: vec![directory.path().into(), "/nonexistent".into()],
        ..ExaminationRequest::default()
    };
    let done = examine(&order, Timestamp::from_seconds(1_763_717_531));
    assert_eq!(finding(&done, "/nonexistent").severity, Severity::Problem);
    assert!(done.findings.iter().any(|one| one.check.ends_with(" speed")), "{:#?}", done.findings);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
}
