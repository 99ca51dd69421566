//! `longhaul simulate SCENARIO` as a shell sees it: what it prints and writes, the same for the same seed,
//! and what it says of an invalid scenario.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use longhaul_testbed::binary;
use serde_json::Value;

/// 100 GB through a port of 500 MB/s: 200 s, and the first round trips.
const TWO: &str = r#"
name = "two"
about = "a hundred files from one site to another"
until = "1 d"
[[site]]
name = "a"
port = "8 Gbit/s"
[[site]]
name = "b"
port = "4 Gbit/s"
[[dataset]]
name = "data"
files = 100
at = ["a"]
[[campaign]]
datasets = ["data"]
to = ["b"]
"#;

/// Exact rates, since once per second is too coarse for it.
const QMUL: &str = include_str!("../../../../scenarios/qmul.toml");

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Runs in the directory, which is also its home.
    fn simulate(&self, arguments: &[&str]) -> Output {
        Command::new(binary())
            .env_clear()
            .env("HOME", self.path())
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .current_dir(self.path())
            .arg("simulate")
            .args(arguments)
            .output()
            .unwrap()
    }

    /// As `simulate`, and asserts success.
    fn text(&self, arguments: &[&str]) -> String {
        let output = self.simulate(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", error_of(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Names and bytes of everything in a directory.
    fn files(&self, folder: &str) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(self.path().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<(String, Vec<u8>)> = entries
            .map(|path| {
                (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(&path).unwrap())
            })
            .collect();
        files.sort();
        files
    }
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn json_is_one_object_for_each_strategy() {
    let bench = Bench::new();
    bench.write("two.toml", TWO);
    let text = bench.text(&["two.toml", "--strategy", "all", "--json"]);
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 19);
    let names: BTreeSet<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 19);
    assert!(
        names.contains("best") && names.contains("queue") && names.contains("waiting-time-with-error/fts3")
    );
    for row in &rows {
        assert_eq!(row["scenario"], "two");
        for key in [
            "makespan_s",
            "makespan_bound_s",
            "dataset_mean_s",
            "dataset_p95_s",
            "transfer_mean_s",
            "bytes_moved",
            "bytes_wanted",
            "jain",
            "failed",
            "decisions_per_s",
            "wall_s",
        ] {
            assert!(row[key].is_number(), "{key} in {row}");
        }
        let (makespan, bound) =
            (row["makespan_s"].as_f64().unwrap(), row["makespan_bound_s"].as_f64().unwrap());
        assert!((bound - 200.0).abs() < 1e-6 && makespan >= bound, "{row}");
        assert_eq!(row["bytes_wanted"], 100_000_000_000_u64);
        assert!(row["decisions_per_s"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row.get("rates_error").is_none(), "rates are exact here: {row}");
    }
}

#[test]
fn the_table_says_what_each_strategy_achieved() {
    let bench = Bench::new();
    bench.write("two.toml", TWO);
    let text = bench.text(&["two.toml", "--strategy", "best", "--strategy", "best/at-once-3"]);
    for part in [
        "two: a hundred files",
        "no scheduler can finish in less than 3",
        "best/at-once-3",
        "busiest b in",
        "makespan",
    ] {
        assert!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    let plain = bench.text(&["two.toml", "--plain"]);
    let rows: Vec<Vec<&str>> = plain.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((rows.len(), rows[1][0]), (2, "best"), "{plain}");
    let makespan: f64 = rows[1][1].parse().unwrap();
    assert!((200.0..202.0).contains(&makespan), "{plain}");
}

#[test]
fn the_same_seed_writes_the_same_bytes() {
    let bench = Bench::new();
    let world = bench.text(&["--generate", "failures", "--seed", "3"]);
    bench.write("world.toml", &world);
    let run = |seed: &str, out: &str| {
        let strategies = ["--strategy", "best", "--strategy", "success/fts3"];
        bench.text(&[&["world.toml", "--seed", seed, "--out", out][..], &strategies].concat());
        bench.files(out)
    };
    let (first, again, other) = (run("3", "first"), run("3", "again"), run("4", "other"));
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    let expected =
        ["bound-best.tsv", "bound-success-fts3.tsv", "datasets.svg", "goodput.svg", "summaries.jsonl"];
    assert_eq!(names, expected);
    for ((name, one), (_, other)) in first.iter().zip(&again) {
        assert!(!one.is_empty() && one == other, "{name} differs");
    }
    assert_ne!(first, other, "another seed is another world");
    let proof = String::from_utf8(first[0].1.clone()).unwrap();
    for line in ["bound\t", "site\t0\t", "capacity\t0\t", "way\t", "group\t"] {
        assert!(proof.lines().any(|row| row.starts_with(line)), "{line:?} is not in {proof}");
    }
}

#[test]
fn a_scenario_that_is_none_is_told_with_its_place() {
    let bench = Bench::new();
    for (text, expected) in [
        (TWO.replace("port = \"4", "prot = \"4"), "line 10: unknown field `prot`"),
        (TWO.replace("4 Gbit/s", "0 Gbit/s"), "moves nothing"),
        (TWO.replace("to = [\"b\"]", "to = [\"nowhere\"]"), "[[campaign]] 1: there is no site \"nowhere\""),
        (TWO.replace("[[campaign]]", "[[campaign]]\npriority = 12"), "[[campaign]] 1: a priority of 12"),
        (
            TWO.replace("name = \"b\"", "name = \"b\"\nparent = \"a\"")
                .replace("name = \"a\"", "name = \"a\"\nparent = \"b\""),
            "its own ancestor",
        ),
        (format!("{TWO}[links]\ntopology = \"listed\"\n"), "is an island"),
        ("\u{0}".to_owned(), "line 1"),
    ] {
        bench.write("bad.toml", &text);
        let output = bench.simulate(&["bad.toml"]);
        let error = error_of(&output);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(output.stdout.is_empty());
        // Long lines are wrapped for the terminal.
        let flat = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(expected), "{expected:?} is not in:\n{error}");
        assert!(flat.contains("bad.toml is not a scenario") && error.contains("\n  next: "), "{error}");
    }
    let output = bench.simulate(&["missing.toml"]);
    assert_eq!(output.status.code(), Some(3), "{}", error_of(&output));
    bench.write("two.toml", TWO);
    for (strategy, expected) in [
        ("fastest", "fastest"),
        ("best/soon", "after a strategy come /fts3"),
        ("best/at-once-0", "1 to 256"),
        ("best/at-once-257", "1 to 256"),
    ] {
        let output = bench.simulate(&["two.toml", "--strategy", strategy]);
        assert_eq!(output.status.code(), Some(2));
        assert!(error_of(&output).contains(expected), "{}", error_of(&output));
    }
}

#[test]
fn rates_once_a_second_are_compared_with_exact_ones() {
    let bench = Bench::new();
    let second = TWO.replace("[[dataset]]", "[model]\nrates = \"second\"\n[[dataset]]");
    bench.write("near.toml", &second);
    let row: Value = serde_json::from_str(&bench.text(&["near.toml", "--json"])).unwrap();
    let error = row["rates_error"].as_f64().unwrap();
    assert!(error <= 0.01, "{row}");
    let text = bench.text(&["near.toml"]);
    assert!(text.contains("% off exact ones in bytes"), "{text}");
    // Files that go one after another each wait for the next second; with many short ones that adds up.
    let far = QMUL.replace("rates = \"exact\"", "rates = \"second\"");
    assert_ne!(far, QMUL);
    bench.write("far.toml", &far);
    for arguments in [&["far.toml"][..], &["far.toml", "--check-rates"]] {
        let output = bench.simulate(arguments);
        assert_eq!(output.status.code(), Some(10), "{arguments:?}: {output:?}");
        assert!(error_of(&output).contains("use rates = \"exact\""), "{}", error_of(&output));
    }
}
