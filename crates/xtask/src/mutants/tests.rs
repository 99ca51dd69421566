//! A mutant of a small tree: read, found wanting, applied, restored. And how the end of its test is read.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::definitions::{self, Mutant, fault_number, in_build_order};
use super::runner::{Outcome, last_lines, last_panic, read_outcome, run_logged};
use super::sources::SourceCopy;
use super::{description, select, table};

const TABLE: &str = r#"# Chapter A of the faults.

[[mutant]]
fault = "A2"
behaviour = "a number that an agent says overflows"
package = "longhaul-control"
target = "lib"
test = "outbox::tests::no_number_that_an_agent_says_is_too_large"

[[mutant.edit]]
file = "crates/control/src/outbox.rs"
from = """
    let received = received.min(PARCEL_NUMBER_MAX);
"""
to = ""
"#;

const OUTBOX: &str = "const PARCEL_NUMBER_MAX: u64 = 1 << 53;

fn next_number(received: u64) -> u64 {
    let received = received.min(PARCEL_NUMBER_MAX);
    received + 1
}
";

const OUTBOX_FILE: &str = "crates/control/src/outbox.rs";
const TABLE_FILE: &str = "crates/xtask/mutants/faults-a.toml";

/// A tree with these mutants, one package and one file of code.
fn tree(mutants: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [
        (TABLE_FILE, mutants),
        ("crates/control/Cargo.toml", "[package]\nname = \"longhaul-control\"\n"),
        ("crates/control/src/lib.rs", "mod outbox;\n"),
        (OUTBOX_FILE, OUTBOX),
    ] {
        let path = directory.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    directory
}

fn read(mutants: &str) -> (Vec<Mutant>, Vec<String>) {
    let mut findings = Vec::new();
    let read = definitions::read(tree(mutants).path(), &mut findings);
    (read, findings)
}

/// Mutants that differ in these: fault, package, file.
fn mutants(rows: &[(&str, &str, &str)]) -> Vec<Mutant> {
    let one = |(fault, package, file): &(&str, &str, &str)| {
        TABLE.replace("A2", fault).replace("longhaul-control", package).replace(OUTBOX_FILE, file)
    };
    read(&rows.iter().map(one).collect::<String>()).0
}

fn faults<'m>(mutants: impl IntoIterator<Item = &'m Mutant>) -> Vec<&'m str> {
    mutants.into_iter().map(|mutant| mutant.fault.as_str()).collect()
}

#[test]
fn a_mutant_is_read_and_fits() {
    let (mutants, findings) = read(TABLE);
    assert!(findings.is_empty(), "{findings:?}");
    let rows = mutants.iter().map(description);
    assert_eq!(
        table(&["fault", "old behaviour", "test"], rows),
        "| fault | old behaviour | test |\n| --- | --- | --- |\n\
         | A2 | a number that an agent says overflows | `longhaul-control lib \
         outbox::tests::no_number_that_an_agent_says_is_too_large` |"
    );
    assert!(definitions::read(Path::new("nowhere"), &mut Vec::new()).is_empty());
}

#[test]
fn a_mutant_that_does_not_fit_is_a_finding() {
    let line = "    let received = received.min(PARCEL_NUMBER_MAX);\n";
    let unchanged = format!("to = \"\"\"\n{line}\"\"\"");
    for (text, instead, expected) in [
        ("received.min(", "received.max(", "occurs 0 times"),
        (line, "    let received\n", "occurs 0 times"),
        (line, "PARCEL_NUMBER_MAX", "occurs 2 times"),
        ("to = \"\"", unchanged.as_str(), "change nothing"),
        (line, "", "change nothing"),
        ("longhaul-control", "longhaul-nowhere", "no package longhaul-nowhere"),
        ("\"lib\"", "\"nowhere\"", "no test program nowhere"),
        ("outbox.rs", "inbox.rs", "inbox.rs: "),
        ("src/outbox.rs", "tests/outbox.rs", "is a test"),
        ("\"A2\"", "\"2\"", "not a letter and a number"),
        ("behaviour =", "behavior =", "unknown field"),
        ("[[mutant.edit]]", "[[mutant.change]]", "unknown field"),
    ] {
        assert!(TABLE.contains(text), "{text}");
        let (_, findings) = read(&TABLE.replace(text, instead));
        let [finding] = findings.as_slice() else { panic!("{instead}: {findings:?}") };
        assert!(finding.starts_with(TABLE_FILE) && finding.contains(expected), "{finding}");
    }
}

#[test]
fn edits_of_one_file_follow_each_other() {
    let second = format!(
        "{TABLE}\n[[mutant.edit]]\nfile = \"{OUTBOX_FILE}\"\nfrom = \"received + 1\"\nto = \"received + 2\"\n"
    );
    let root = tree(&second);
    let mutants = definitions::read(root.path(), &mut Vec::new());
    let changed = mutants[0].mutate(root.path()).unwrap();
    let expected = "const PARCEL_NUMBER_MAX: u64 = 1 << 53;\n\n\
        fn next_number(received: u64) -> u64 {\n    received + 2\n}\n";
    assert_eq!(changed.into_iter().collect::<Vec<_>>(), [(OUTBOX_FILE, expected.to_owned())]);
}

#[test]
fn faults_are_in_order_and_files_stay_together() {
    let all = mutants(&[
        ("A10", "longhaul-wire", "z.rs"),
        ("A2", "longhaul-wire", "y.rs"),
        ("B1", "longhaul-api", "z.rs"),
        ("A1", "longhaul-wire", "z.rs"),
    ]);
    assert_eq!(faults(&all), ["A1", "A2", "A10", "B1"]);
    assert_eq!(faults(in_build_order(&all)), ["B1", "A2", "A1", "A10"]);
    assert!(fault_number("A9") < fault_number("A10"));
    assert_eq!((fault_number("a1"), fault_number("A"), fault_number("")), (None, None, None));
}

#[test]
fn mutants_are_selected_by_fault_and_by_chapter() {
    let all = mutants(&[("A1", "x", "x"), ("A10", "x", "x"), ("B1", "x", "x")]);
    let selected = |words: &[&str]| select(all.clone(), words).map(|some| faults(&some).join(" "));
    assert_eq!(selected(&[]).unwrap(), "A1 A10 B1");
    assert_eq!(selected(&["A1"]).unwrap(), "A1");
    assert_eq!(selected(&["B", "A10"]).unwrap(), "A10 B1");
    assert!(selected(&["A1", "C1"]).unwrap_err().contains("no mutant is of C1"));
    assert!(select(Vec::new(), &[]).is_err());
}

#[test]
fn a_mutant_is_applied_to_the_copy_alone_and_restored() {
    let root = tree(TABLE);
    let mutants = definitions::read(root.path(), &mut Vec::new());
    let folder = root.path().join("target/mutants/sources");
    let files = [OUTBOX_FILE.to_owned()];
    let copy = SourceCopy::update(root.path(), &files, folder).unwrap();
    let text = |folder: &Path| fs::read_to_string(folder.join(OUTBOX_FILE)).unwrap();
    let seen = copy.with_mutant(&mutants[0], || Ok((text(copy.folder()), text(root.path())))).unwrap();
    let mutated = OUTBOX.replace("    let received = received.min(PARCEL_NUMBER_MAX);\n", "");
    assert_eq!(seen, (mutated, OUTBOX.to_owned()));
    assert_eq!(text(copy.folder()), OUTBOX);
    let failed = copy.with_mutant(&mutants[0], || Err::<(), String>("no".into()));
    assert_eq!((failed, text(copy.folder())), (Err("no".into()), OUTBOX.to_owned()));
}

#[test]
fn only_files_that_differ_are_copied_again() {
    let root = tree(TABLE);
    let folder = root.path().join("target/mutants/sources");
    let both = ["crates/control/src/lib.rs".to_owned(), OUTBOX_FILE.to_owned()];
    SourceCopy::update(root.path(), &both, folder.clone()).unwrap();
    let (same, other) = (folder.join(&both[0]), folder.join(&both[1]));
    for file in [&same, &other] {
        fs::File::options().write(true).open(file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    fs::write(root.path().join(OUTBOX_FILE), "// changed\n").unwrap();
    SourceCopy::update(root.path(), &both, folder.clone()).unwrap();
    assert_eq!(fs::metadata(&same).unwrap().modified().unwrap(), SystemTime::UNIX_EPOCH);
    assert_eq!(fs::read_to_string(&other).unwrap(), "// changed\n");
    SourceCopy::update(root.path(), &both[..1], folder).unwrap();
    assert!(same.exists() && !other.exists(), "a file that is no more is removed");
}

#[test]
fn the_end_of_a_test_is_read_from_its_program() {
    let failed = "running 1 test\ntest a::b ... FAILED\n\nfailures:\n\nfailures:\n    a::b\n\n\
        test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 9 filtered out\n";
    let passed = "running 1 test\ntest a::b ... ok\n\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out\n";
    let none =
        "running 0 tests\n\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 10 filtered out\n";
    assert_eq!(read_outcome("a::b", false, failed), Outcome::Failed);
    assert_eq!(read_outcome("a::b", true, passed), Outcome::Passed);
    assert_eq!(read_outcome("a::b", true, none), Outcome::Missing);
    let aborted = "running 1 test\nthread 'commit-loop' panicked\n";
    assert_eq!(read_outcome("a::b", false, aborted), Outcome::Aborted);
    assert_eq!(read_outcome("a::c", false, failed), Outcome::Aborted, "another test failed");
    let torn = failed.replace("... FAILED", "... a line of a child\nFAILED");
    assert_eq!(read_outcome("a::b", false, &torn), Outcome::Failed);
    let panicking = "test a::b - should panic ... FAILED\n";
    assert_eq!(read_outcome("a::b", false, panicking), Outcome::Failed);
}

#[test]
fn a_command_is_logged_and_ends_at_its_limit() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let shell = |script: &str, time_max: Option<Duration>| {
        run_logged(Command::new("sh").args(["-c", script]), &log, time_max).unwrap()
    };
    let status = shell("seq 40; echo late >&2; exit 3", None).unwrap();
    assert_eq!(status.code(), Some(3));
    let shown = last_lines(&log);
    assert!(shown.contains("\n    12\n") && !shown.contains("\n    11\n"), "{shown}");
    assert!(shown.ends_with("\n    late"), "{shown}");
    assert_eq!(last_panic(&log), None);
    let panics =
        "echo \"thread 'a' (1) panicked at src/a.rs:12:5:\"; echo \"thread 'b' panicked at b.rs:7:9:\"";
    assert!(shell(panics, None).unwrap().success());
    assert_eq!(last_panic(&log).as_deref(), Some("b.rs:7"));
    let ample = Duration::from_secs(600);
    assert!(shell("true", Some(ample)).unwrap().success());
    assert!(shell("sleep 600 & wait", Some(Duration::ZERO)).is_none(), "it was killed");
}
