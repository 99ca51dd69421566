use std::collections::BTreeSet;

use longhaul_model::Digest;
use tempfile::TempDir;

use super::*;
use crate::batch::{self, Format, words_of_report};

const NO_ERROR: CopyResult<'static> = CopyResult { exit_code: 0, fault: None };

fn batch_of(text: &str) -> Batch {
    batch::parse(text.as_bytes(), Path::new("job"), Format::Copyjob, &|_| Ok(())).unwrap()
}

struct ReportDir {
    directory: TempDir,
    path: PathBuf,
}

fn report_dir(name: &str) -> ReportDir {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(name);
    ReportDir { directory, path }
}

impl ReportDir {
    fn read(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

#[test]
fn a_line_for_each_file() {
    let place = report_dir("report");
    let mut report = Report::create(&place.path).unwrap();
    assert!(!place.path.exists(), "nobody reads half of it");
    report.add("a", "/t/a", &Outcome::ok("copied", 5)).unwrap();
    let fault = Fault::new(FaultCode::NameClash, "\"b\nb\" differs");
    report.add("b b", "/t/b", &Outcome::from_fault(&fault)).unwrap();
    report.add("c", "d", &Outcome::from_fault(&Fault::new(FaultCode::TargetReadOnly, ""))).unwrap();
    report.add("e", "f", &Outcome::from_fault(&Fault::new(FaultCode::SourceMissing, "no e"))).unwrap();
    let totals = report.finish(&NO_ERROR).unwrap();
    assert_eq!(totals, Totals { ok: 1, error: 1, exists: 1, permission: 1, bytes: 5 });
    assert_eq!(
        place.read(),
        "a /t/a 0 copied\n\
         \"b b\" /t/b 2 the target holds something else under this name: \"b\\nb\" differs\n\
         c d 3 the target cannot be written\n\
         e f 1 the file is gone at the source: no e\n"
    );
    assert_eq!(place.names(), ["report"], "no temporary file is left");
}

/// C.5 27: with many files every one has its line.
#[test]
fn many_files() {
    let place = report_dir("report");
    let text: String = (0..20_000).map(|n| format!("a{n} b{n}\n")).collect();
    let batch = batch_of(&text);
    let mut report = BatchReport::create(&place.path, &batch).unwrap();
    for index in (0..batch.pairs.len()).rev() {
        let outcome = if index % 1_000 == 7 {
            Outcome::failed(FaultCode::SourceMissing, "gone".into())
        } else {
            Outcome::ok("copied", 1)
        };
        report.add(index, &outcome).unwrap();
        report.add(index, &Outcome::failed(FaultCode::Internal, "twice".into())).unwrap();
    }
    let totals = report.finish(&NO_ERROR).unwrap();
    assert_eq!((totals.ok, totals.error, totals.bytes), (19_980, 20, 19_980));
    let written = place.read();
    let pairs: BTreeSet<String> =
        written.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    assert_eq!((written.lines().count(), pairs.len()), (20_000, 20_000));
    assert_eq!(written.lines().filter(|line| line.ends_with(" 1 gone")).count(), 20);
}

/// C.5 26: also when the set-up fails; C.5 25: per file.
#[test]
fn it_is_written_when_nothing_began() {
    let place = report_dir("report");
    let batch = batch_of("a b\nfdt://h:1/x /y\nc d\nonly\n");
    let fault = Fault::new(FaultCode::Unreachable, "h:1");
    let ending = CopyResult { exit_code: 4, fault: Some(&fault) };
    BatchReport::create(&place.path, &batch).unwrap().finish(&ending).unwrap();
    let text = place.read();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("fdt://h:1/x /y 1 line 2, column 1: fdt://"), "{text}");
    assert_eq!(lines[1], "a b 1 the peer cannot be reached: h:1");
    assert_eq!(lines[2], "c d 1 the peer cannot be reached: h:1");
    assert_eq!(lines[3], "# E5001: the peer cannot be reached: h:1");
    // And a report of a copy that was interrupted.
    let mut report = BatchReport::create(&place.path, &batch).unwrap();
    report.add(1, &Outcome::ok("copied", 3)).unwrap();
    report.finish(&NO_ERROR).unwrap();
    let text = place.read();
    assert!(text.contains("c d 0 copied\n") && text.contains("a b 1 not started\n"), "{text}");
}

#[test]
fn json() {
    let place = report_dir("report.json");
    let mut report = Report::create(&place.path).unwrap();
    let outcome = Outcome::ok("copied", 5).verified("end-to-end", Some(Digest::crc32c(7)));
    report.add("a \"x\"", "t", &outcome).unwrap();
    report.add("b", "u", &Outcome::failed(FaultCode::NameClash, "there".into())).unwrap();
    let fault = Fault::new(FaultCode::Cancelled, "");
    report.finish(&CopyResult { exit_code: 7, fault: Some(&fault) }).unwrap();
    let value: serde_json::Value = serde_json::from_str(&place.read()).unwrap();
    assert_eq!(value["version"], 1);
    assert_eq!(value["files"][0]["source"], "a \"x\"");
    assert_eq!(value["files"][0]["digest"], "crc32c:00000007");
    assert_eq!(value["files"][0]["verified"], "end-to-end");
    assert_eq!(value["files"][1]["status"], 2);
    assert_eq!(value["files"][1]["code"], "E3004");
    assert_eq!(value["totals"]["ok"], 1);
    assert_eq!((&value["exit_code"], &value["fault"]["code"]), (&7.into(), &"E9008".into()));
    Report::create(&place.path).unwrap().finish(&NO_ERROR).unwrap();
    let empty: serde_json::Value = serde_json::from_str(&place.read()).unwrap();
    assert_eq!((empty["files"].as_array().unwrap().len(), &empty["fault"]), (0, &serde_json::Value::Null));
}

#[test]
fn secrets_are_for_their_owner() {
    let place = report_dir("report");
    let mode = || std::fs::metadata(&place.path).unwrap().permissions().mode() & 0o777;
    let tell = |source: &str| {
        let mut report = Report::create(&place.path).unwrap();
        report.add(source, "t", &Outcome::ok("copied", 0)).unwrap();
        report.finish(&NO_ERROR).unwrap();
    };
    tell("lh://s3cret@h:1/a");
    assert_eq!(mode(), 0o600);
    assert!(place.read().starts_with("lh://s3cret@h:1/a t 0 "), "readers match by the pair");
    tell("@file/a");
    assert_ne!(mode(), 0o600);
}

#[test]
fn what_cannot_be_written_is_told_before_the_copy() {
    let place = report_dir("report");
    for bad in [place.path.join("missing/report"), place.directory.path().to_owned()] {
        let fault = Report::create(&bad).err().unwrap();
        assert!(fault.detail.contains("cannot write the report"), "{fault}");
    }
    std::fs::write(&place.path, "old\n").unwrap();
    drop(Report::create(&place.path).unwrap());
    assert_eq!(
        (place.read().as_str(), place.names().len()),
        ("old\n", 1),
        "a dropped report leaves nothing behind"
    );
}

/// A report can be parsed by the rules of the copyjobfile.
#[test]
fn names_with_blanks_come_back() {
    let place = report_dir("report");
    let mut report = Report::create(&place.path).unwrap();
    report.add("a \"b\"\t", "#c", &Outcome::ok("copied", 0)).unwrap();
    report.finish(&NO_ERROR).unwrap();
    let line = place.read();
    assert_eq!(words_of_report(line.trim_end()).unwrap(), ["a \"b\"\t", "#c", "0"]);
}
