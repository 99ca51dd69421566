//! `doctor`, `tune` and `bench` as a shell sees them. They measure this host, so only the form of their
//! output is checked.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use longhaul_testbed::binary;
use serde_json::Value;

fn longhaul(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    longhaul(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn json(arguments: &[&str]) -> (Value, Option<i32>) {
    let output = run(arguments);
    let document = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{arguments:?}: {error}: {}", text(&output.stderr)));
    (document, output.status.code())
}

fn path_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn doctor_ends_with_1_if_and_only_if_it_finds_problems() {
    let directory = tempfile::tempdir().unwrap();
    let map = directory.path().join("grid-mapfile");
    std::fs::write(&map, "\"/CN=a\" a\nnonsense\n").unwrap();
    let (document, code) = json(&["doctor", "--json", "--gridmap", path_of(&map)]);
    assert_eq!(code, Some(1));
    let findings = document["findings"].as_array().unwrap();
    assert!(
        findings
            .iter()
            .any(|one| one["level"] == "problem" && one["found"].to_string().contains("grid-mapfile:2:"))
    );
    assert!(findings.iter().any(|one| one["check"] == "send buffers"));

    std::fs::write(&map, "\"/CN=a\" a\n").unwrap();
    let (document, code) = json(&["doctor", "--json", "--gridmap", path_of(&map)]);
    let problems = document["problems"].as_u64().unwrap();
    assert_eq!(code, Some(i32::from(problems > 0)), "{document:#}");
}

#[test]
fn doctor_keeps_secrets_and_says_what_is_wrong_with_a_peer() {
    let output = run(&["doctor", "lh://SECRET@"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!text(&output.stderr).contains("SECRET"), "{}", text(&output.stderr));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("url");
    // A port just closed refuses.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    std::fs::write(&file, format!("lh://SECRET@127.0.0.1:{port}/data\n")).unwrap();
    let output = run(&["doctor", &format!("@{}", path_of(&file))]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stdout);
    assert!(shown.contains("nothing listens there") && shown.contains("\npeer\n"), "{shown}");
    assert!(!shown.contains("SECRET") && !shown.contains('\u{1b}'), "{shown}");
    assert_eq!(run(&["doctor", "@/nonexistent/url"]).status.code(), Some(3));
}

#[test]
fn tune_prints_a_file_for_sysctl() {
    let output = run(&["tune", "--rtt", "150ms", "--bandwidth", "10Gbit"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    assert!(shown.contains("188 MB in flight"), "{shown}");
    for line in shown.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (setting, value) = line.split_once(" = ").unwrap();
        assert!(setting.starts_with("net.") && !value.is_empty(), "{line}");
    }
    let (plan, _) = json(&["tune", "--rtt", "150ms", "--bandwidth", "10Gbit", "--streams", "1", "--json"]);
    assert_eq!(plan["bdp_bytes"], 187_500_000);
    assert_eq!(plan["buffer_bytes"], 375_000_000);
    for bad in [&["tune", "--rtt", "soon", "--bandwidth", "1G"][..], &["tune", "--rtt", "1ms"]] {
        assert_eq!(run(bad).status.code(), Some(2), "{bad:?}");
    }
}

#[test]
fn bench_disk_reads_writes_and_leaves_nothing_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let at = path_of(directory.path());
    let knobs = ["--size", "1MB", "--block", "64KiB", "--count-buffers", "3", "--sync", "dsync"];
    let (parts, code) = json(&[&["bench", "disk", "--json", "--file", at][..], &knobs[..]].concat());
    assert_eq!(
        (code, parts[0]["part"].as_str(), parts[1]["bytes"].as_u64()),
        (Some(0), Some("disk write"), Some(1_000_000))
    );
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);

    let file = directory.path().join("f");
    let file = path_of(&file);
    assert_eq!(run(&["bench", "disk", "--file", file]).status.code(), Some(2));
    assert_eq!(run(&["bench", "disk", "--file", file, "--write", "--size", "1MB"]).status.code(), Some(0));
    assert_eq!(run(&["bench", "disk", "--file", file, "--write", "--size", "1MB"]).status.code(), Some(1));
    assert_eq!(run(&["bench", "disk", "--file", file, "--read"]).status.code(), Some(0));
    assert_eq!(std::fs::metadata(file).unwrap().len(), 1_000_000);
    assert_eq!(run(&["bench", "disk", "--file", at, "--block", "0"]).status.code(), Some(2));
}

#[test]
fn bench_network_goes_to_a_peer_and_over_the_loop_back() {
    let mut listener = longhaul(&["bench", "network", "--listen", "127.0.0.1:0", "--once"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(listener.stderr.take().unwrap()).read_line(&mut said).unwrap();
    let address = said.strip_prefix("listening on ").unwrap().split(' ').next().unwrap();
    let connect = [
        "bench",
        "network",
        "--json",
        "--connect",
        address,
        "--size",
        "4MiB",
        "--streams",
        "2",
        "--mode",
        "checked",
    ];
    let (runs, code) = json(&connect);
    assert_eq!(
        (code, runs[0]["bytes"].as_u64(), runs[0]["streams"].as_u64()),
        (Some(0), Some(4 << 20), Some(2))
    );
    assert!(listener.wait().unwrap().success());
    // It no longer listens.
    assert_eq!(run(&connect).status.code(), Some(5));

    let (runs, _) = json(&["bench", "network", "--json", "--size", "2MiB"]);
    let modes: Vec<&str> = runs.as_array().unwrap().iter().filter_map(|run| run["mode"].as_str()).collect();
    assert_eq!(modes, ["plain", "sealed"]);
}

#[test]
fn bench_terabyte_and_floor_give_rates_and_name_a_limit() {
    let (done, code) = json(&["bench", "terabyte", "--size", "8MiB", "--json"]);
    assert_eq!((code, done["bytes"].as_u64()), (Some(0), Some(8 << 20)));
    assert!(done["terabyte_s"].as_f64().unwrap() > 0.0);
    let directory = tempfile::tempdir().unwrap();
    let floor = ["bench", "floor", "--size", "2MiB", "--link", "1Mbit", "--disk", path_of(directory.path())];
    let (done, _) = json(&[&floor[..], &["--json"][..]].concat());
    assert_eq!(done["limited_by"], "link");
    let names: Vec<&str> =
        done["parts"].as_array().unwrap().iter().filter_map(|part| part["part"].as_str()).collect();
    assert_eq!(names, ["tcp", "seal", "open", "crc32c", "disk read", "disk write"]);
    let output = run(&floor);
    assert!(text(&output.stdout).contains("limited by: link (125 kB/s)"), "{}", text(&output.stdout));
}
