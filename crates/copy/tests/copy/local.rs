//! Copies between directories of this host, with real files.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longhaul_copy::batch::{self, Format, quoted};
use longhaul_copy::filter::{Action, Filters};
use longhaul_copy::local::{
    LocalOptions, LocalOutcome, LocalPlan, LocalRequest, LocalTotals, Method, Observer, OpenTargets,
    PlannedEntry, PlannedFile, VerifiedBy, copy, copy_to,
};
use longhaul_copy::report::{BatchReport, CopyResult, FdtcpExit, Outcome};
use longhaul_copy::rules::{Decision, Policy, SkipReason, dry_run_line};
use longhaul_copy::walk::{DirectoryEntry, LeftOutEntry};
use longhaul_model::{Algorithm, Fault, FaultCode, Hasher, Verification};
use longhaul_storage::FlushPolicy;
use longhaul_testkit::content;
use tempfile::TempDir;

const UPDATE: Policy = Policy { update: true, checksum: false, window_ns: 0 };
const CHECKSUM: Policy = Policy { update: false, checksum: true, window_ns: 0 };

struct Scene(TempDir);

/// Everything that one copy reported.
#[derive(Default)]
struct CopyLog {
    bytes: AtomicU64,
    ends: Mutex<BTreeMap<String, Result<LocalOutcome, Fault>>>,
    left_out: Mutex<Vec<String>>,
    /// Called for each report of bytes with the sum so far.
    at_bytes: Option<Box<dyn Fn(u64) + Sync + Send>>,
}

impl Observer for CopyLog {
    fn bytes(&self, count: u64) {
        let sum = self.bytes.fetch_add(count, Ordering::Relaxed) + count;
        if let Some(call) = &self.at_bytes {
            call(sum);
        }
    }

    fn file(&self, file: &PlannedFile, end: &Result<LocalOutcome, Fault>) {
        // Two sources may claim one name; then one of them fails.
        let mut ends = self.ends.lock().unwrap();
        let before = ends.get(file.target.as_str());
        assert!(before.is_none_or(|before| before.is_err() != end.is_err()), "{} ended twice", file.target);
        if before.is_none() || end.is_err() {
            ends.insert(file.target.to_string(), end.clone());
        }
    }

    fn directory(&self, directory: &DirectoryEntry, end: &Result<(), Fault>) {
        assert!(end.is_ok(), "{directory:?}: {end:?}");
    }

    fn left_out(&self, entry: &LeftOutEntry) {
        self.left_out.lock().unwrap().push(format!("{} {:?}", entry.path, entry.reason));
    }
}

impl CopyLog {
    fn end(&self, path: &str) -> Result<LocalOutcome, Fault> {
        self.ends.lock().unwrap().get(path).unwrap_or_else(|| panic!("{path} has no end")).clone()
    }

    fn code(&self, path: &str) -> FaultCode {
        self.end(path).unwrap_err().code
    }
}

impl Scene {
    fn new() -> Scene {
        Scene(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn typed(&self, name: &str) -> String {
        format!("{}/{name}", self.0.path().display())
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn time(&self, name: &str, seconds: u64) -> &Self {
        let at = std::time::UNIX_EPOCH + std::time::Duration::new(seconds, 123_456_789);
        fs::File::options().write(true).open(self.path(name)).unwrap().set_modified(at).unwrap();
        self
    }

    fn request(&self, sources: &[&str], target: &str) -> LocalRequest {
        LocalRequest {
            sources: sources.iter().map(|source| self.typed(source)).collect(),
            target: self.typed(target),
            recursive: true,
            ..LocalRequest::default()
        }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn options() -> LocalOptions {
    LocalOptions { flush: FlushPolicy::None, ..LocalOptions::default() }
}

fn run(request: LocalRequest, options: &LocalOptions) -> (LocalTotals, CopyLog) {
    let told = CopyLog::default();
    let plan = LocalPlan::prepare(request).unwrap();
    let totals = plan.totals().unwrap();
    let done = copy(&plan, totals.copy_bytes, options, &told, &AtomicBool::new(false)).unwrap();
    (done, told)
}

fn refused(request: LocalRequest) -> Fault {
    LocalPlan::prepare(request).err().expect("it should be refused")
}

/// Names, contents and modes of everything beneath a directory; directories end in `/`.
fn tree(root: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let mode = path.metadata().unwrap().mode() & 0o777;
            if path.is_dir() {
                found.insert(format!("{name}/"), (0, Vec::new()));
                waiting.push(path);
            } else {
                found.insert(name, (mode, fs::read(path).unwrap()));
            }
        }
    }
    found
}

fn noise(len: usize) -> Vec<u8> {
    content(1, len)
}

/// Promises 1 and 2: all files are complete, with digests of the written bytes; mode and time are preserved;
/// no work file is left.
#[test]
fn a_tree_arrives_as_it_is() {
    let place = Scene::new();
    for number in 0..700 {
        place.file(&format!("from/d{}/f{number}", number % 7), noise(number * 13));
    }
    place.file("from/large", noise(5 << 20)).file("from/d1/empty", "");
    fs::create_dir_all(place.path("from/hollow/inner")).unwrap();
    fs::set_permissions(place.path("from/d1/f1"), fs::Permissions::from_mode(0o751)).unwrap();
    place.time("from/d1/f1", 1_600_000_000);
    let (totals, told) = run(place.request(&["from/"], "to"), &options());
    assert_eq!(tree(&place.path("from")), tree(&place.path("to")), "and no .longhaul is left");
    assert_eq!((totals.copied_files, totals.failed_files, totals.made_directories), (702, 0, 1));
    assert_eq!(told.bytes.load(Ordering::Relaxed), totals.copied_bytes);
    let metadata = place.path("to/d1/f1").metadata().unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_600_000_000, 123_456_789));
    let Ok(LocalOutcome::Copied { verified, digest, method }) = told.end("large") else { panic!() };
    let mut hasher = Hasher::new([Algorithm::Crc32c]);
    hasher.update(&noise(5 << 20));
    match method {
        Method::Clone => assert_eq!((verified, digest), (VerifiedBy::SharedBlocks, None)),
        _ => assert_eq!((verified, digest), (VerifiedBy::EndToEnd, hasher.finish().get(Algorithm::Crc32c))),
    }
}

#[test]
fn every_way_gives_the_same_bytes_and_says_what_it_is() {
    let place = Scene::new();
    place.file("from/large", noise((17 << 20) + 7)).file("from/small", "x").file("from/empty", "");
    let mut ways = Vec::new();
    for verification in [Verification::Wire, Verification::EndToEnd, Verification::Readback] {
        for (clone, kernel_copy) in [(true, true), (false, true), (false, false)] {
            let target = format!("to-{verification}-{clone}-{kernel_copy}");
            let options = LocalOptions { verification, clone, kernel_copy, ..options() };
            let (totals, told) = run(place.request(&["from/"], &target), &options);
            assert_eq!(totals.failed_files, 0);
            assert_eq!(tree(&place.path("from")), tree(&place.path(&target)), "{target}");
            let Ok(LocalOutcome::Copied { method, verified, digest }) = told.end("large") else {
                panic!("{target}")
            };
            let expected = match (verification, method) {
                (Verification::Readback, _) => VerifiedBy::Readback,
                (_, Method::Clone) => VerifiedBy::SharedBlocks,
                (_, Method::Kernel) => VerifiedBy::SizeOnly,
                (_, Method::ReadWrite) => VerifiedBy::EndToEnd,
            };
            assert_eq!(verified, expected, "{target}");
            assert_eq!(digest.is_some(), matches!(verified, VerifiedBy::EndToEnd | VerifiedBy::Readback));
            assert!(clone || method != Method::Clone);
            assert!(verification == Verification::Wire || method != Method::Kernel, "no digest comes of it");
            ways.push(method);
        }
    }
    assert!(ways.contains(&Method::ReadWrite));
    if !ways.contains(&Method::Clone) {
        println!("not tested: this file system cannot clone files");
    }
    if !ways.contains(&Method::Kernel) {
        println!("not tested: this kernel does not copy here");
    }
}

#[test]
fn the_slash_rule_on_disk() {
    let place = Scene::new();
    place.file("a/run7/x/f", "1").file("b/g", "2");
    run(place.request(&["a/run7"], "t1"), &options());
    assert_eq!(place.read("t1/run7/x/f"), "1");
    run(place.request(&["a/run7/"], "t2"), &options());
    assert_eq!(place.read("t2/x/f"), "1");
    run(place.request(&["b/g"], "t3"), &options());
    assert_eq!(place.read("t3"), "2", "a file under a new name");
    run(place.request(&["b/g"], "t1"), &options());
    assert_eq!(place.read("t1/g"), "2", "into a directory that is there");
    run(place.request(&["b/g", "a/run7"], "t4"), &options());
    assert_eq!((place.read("t4/g"), place.read("t4/run7/x/f")), ("2".into(), "1".into()));
    fs::create_dir(place.path("nothing")).unwrap();
    run(place.request(&["nothing"], "t5"), &options());
    assert!(place.path("t5/nothing").is_dir(), "an empty directory is copied too");
    symlink("b/g", place.path("link")).unwrap();
    run(place.request(&["link"], "t1"), &options());
    assert_eq!(place.read("t1/link"), "2", "a link to a file is copied under its own name");
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let place = Scene::new();
    place.file("d/f", "1").file("file", "2");
    assert_eq!(refused(place.request(&["missing"], "t")).code, FaultCode::SourceMissing);
    assert_eq!(refused(place.request(&["d"], "file")).code, FaultCode::NameClash);
    assert_eq!(refused(place.request(&["file"], "no/such/place")).code, FaultCode::NotFound);
    assert_eq!(
        refused(LocalRequest { recursive: false, ..place.request(&["d"], "t") }).code,
        FaultCode::BadRequest
    );
    let fault = refused(place.request(&["d"], "d/inside"));
    assert_eq!(fault.code, FaultCode::Conflict);
    assert!(fault.detail.contains("the copy would never end"), "{fault}");
    let filters = Filters::parse([(Action::Exclude, "/inside/")]).unwrap();
    run(LocalRequest { filters, ..place.request(&["d/"], "d/inside") }, &options());
    assert_eq!(place.read("d/inside/f"), "1");
    assert!(!place.path("t").exists() && !place.path("no").exists());
    // A directory in the way of a file fails that file only.
    place.file("from/x", "1").file("from/y", "2").file("to/x/z", "3");
    let (totals, told) = run(place.request(&["from/"], "to"), &options());
    assert_eq!((told.code("x"), totals.copied_files, totals.failed_files), (FaultCode::NameClash, 1, 1));
}

#[test]
fn two_sources_for_one_name_are_both_named() {
    let place = Scene::new();
    place
        .file("one/f", "1")
        .file("two/f", "2")
        .file("two/g", "3")
        .file("one/dir", "4")
        .file("two/dir/h", "5");
    let (totals, told) = run(place.request(&["one/", "two/"], "t"), &options());
    let fault = told.end("f").unwrap_err();
    assert!(fault.detail.contains("one/") && fault.detail.contains("two/"), "{fault}");
    assert_eq!(told.code("dir/h"), FaultCode::NameClash);
    assert_eq!((place.read("t/f"), place.read("t/g"), totals.failed_files), ("1".into(), "3".into(), 2));
}

/// Existing files are never replaced without an option, and a repeated command has nothing to do.
#[test]
fn what_is_there() {
    let place = Scene::new();
    place.file("from/same", "12345").file("from/touched", "12345").file("from/other", "12345");
    place.time("from/touched", 1_600_000_000);
    let (first, _) = run(place.request(&["from/"], "to"), &options());
    assert_eq!(first.copied_files, 3);
    let (again, told) = run(place.request(&["from/"], "to"), &options());
    assert_eq!((again.copied_files, again.skipped_files), (0, 3));
    assert_eq!(told.end("same"), Ok(LocalOutcome::Skipped(SkipReason::SameSizeAndTime)));
    place.time("to/touched", 1_500_000_000);
    place.file("to/other", "54321").time("to/other", 1_500_000_000);
    let (plain, told) = run(place.request(&["from/"], "to"), &options());
    assert_eq!(told.end("touched"), Ok(LocalOutcome::Skipped(SkipReason::SameDigest)));
    assert_eq!((told.code("other"), place.read("to/other").as_str()), (FaultCode::NameClash, "54321"));
    assert_eq!((plain.skipped_files, plain.failed_files), (2, 1));
}

#[test]
fn update_and_checksum_replace() {
    let place = Scene::new();
    place
        .file("from/a", "new")
        .time("from/a", 1_700_000_000)
        .file("to/a", "old!")
        .time("to/a", 1_600_000_000);
    place
        .file("from/b", "old")
        .time("from/b", 1_600_000_000)
        .file("to/b", "newer")
        .time("to/b", 1_700_000_000);
    let update = LocalRequest { policy: UPDATE, ..place.request(&["from/"], "to") };
    let (totals, told) =
        run(update.clone(), &LocalOptions { flush: FlushPolicy::FileAndDirectory, ..options() });
    assert_eq!((totals.copied_files, totals.skipped_files), (1, 1));
    assert_eq!((place.read("to/a"), place.read("to/b")), ("new".into(), "newer".into()));
    assert_eq!(told.end("b"), Ok(LocalOutcome::Skipped(SkipReason::TargetNewer)));
    assert_eq!(run(update, &options()).0.copied_files, 0, "after it all is equal");
    // Same size and time, different bytes: only digests show it.
    place.file("to/a", "wen").time("to/a", 1_700_000_000);
    let checksum = LocalRequest { policy: CHECKSUM, ..place.request(&["from/"], "to") };
    let (totals, told) = run(checksum, &options());
    assert_eq!((place.read("to/a"), place.read("to/b")), ("new".into(), "old".into()));
    assert_eq!((totals.copied_files, told.end("a").is_ok()), (2, true));
    assert!(!place.path("to/.longhaul").exists());
}

#[test]
fn a_dry_run_changes_nothing() {
    let place = Scene::new();
    place.file("from/a", "1").file("from/b.o", "2").file("to/a", "3");
    let before = tree(place.0.path());
    let filters = Filters::parse([(Action::Exclude, "*.o")]).unwrap();
    let plan =
        LocalPlan::prepare(LocalRequest { filters, policy: UPDATE, ..place.request(&["from/"], "to") })
            .unwrap();
    place.time("to/a", 1_000);
    let mut files = plan.files().unwrap();
    let mut lines = Vec::new();
    for planned in files.by_ref() {
        let PlannedEntry::File(file) = planned.unwrap() else { continue };
        assert_eq!(file.decision, Decision::Copy { replaces: true });
        lines.push(dry_run_line(
            &file.decision,
            file.size,
            &file.shown_source(),
            &plan.shown_target(&file.target),
        ));
    }
    assert_eq!((lines.len(), files.excluded()), (1, 1));
    assert!(lines[0].starts_with("replace ") && lines[0].contains("from/a -> "), "{lines:?}");
    assert_eq!(tree(place.0.path()), before);
}

/// Promise 1: a stopped copy leaves complete files and nothing else, and the same command resumes it.
#[test]
fn stopped_and_resumed() {
    let place = Scene::new();
    for number in 0..40 {
        place.file(&format!("from/f{number:02}"), noise((2 << 20) + number));
    }
    let cancel: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let stop = move |sum| {
        if sum > 30 << 20 {
            cancel.store(true, Ordering::Relaxed);
        }
    };
    let told = CopyLog { at_bytes: Some(Box::new(stop)), ..CopyLog::default() };
    let plan = LocalPlan::prepare(place.request(&["from/"], "to")).unwrap();
    let options = LocalOptions { files_at_once: 3, ..options() };
    let totals = copy(&plan, 0, &options, &told, cancel).unwrap();
    assert!(totals.stopped && totals.copied_files > 0 && totals.copied_files < 40, "{totals:?}");
    let from = tree(&place.path("from"));
    let arrived = tree(&place.path("to"));
    assert_eq!(arrived.len() as u64, totals.copied_files);
    for (name, content) in &arrived {
        assert_eq!(from.get(name), Some(content), "{name}");
    }
    let (rest, _) = run(place.request(&["from/"], "to"), &options);
    assert_eq!((rest.skipped_files, rest.copied_files), (totals.copied_files, 40 - totals.copied_files));
    assert_eq!(tree(&place.path("to")), from);
}

/// A file that changes during the copy is an error, never a mixture.
#[test]
fn a_source_that_changes_is_not_recorded() {
    let place = Scene::new();
    place.file("from/f", noise(8 << 20));
    for change in ["grow", "shrink", "touch", "replace"] {
        let path = place.path("from/f");
        let content = noise(8 << 20);
        fs::write(&path, &content).unwrap();
        let changing = path.clone();
        let once = AtomicBool::new(false);
        let act = move |_| {
            if once.swap(true, Ordering::Relaxed) {
                return;
            }
            match change {
                "grow" => fs::write(&changing, noise(9 << 20)).unwrap(),
                "shrink" => fs::write(&changing, noise(3 << 20)).unwrap(),
                "touch" => {
                    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(77);
                    fs::File::options().write(true).open(&changing).unwrap().set_modified(at).unwrap();
                }
                _ => {
                    fs::remove_file(&changing).unwrap();
                    fs::write(&changing, noise(8 << 20)).unwrap();
                }
            }
        };
        let told = CopyLog { at_bytes: Some(Box::new(act)), ..CopyLog::default() };
        let plan = LocalPlan::prepare(place.request(&["from/"], "to")).unwrap();
        let options = LocalOptions { clone: false, files_at_once: 1, ..options() };
        copy(&plan, 0, &options, &told, &AtomicBool::new(false)).unwrap();
        if change == "replace" {
            // The descriptor is that of the old file, which did not change: it arrived complete.
            assert!(told.end("f").is_ok());
            assert_eq!(fs::read(place.path("to/f")).unwrap(), content);
        } else {
            let code = told.code("f");
            assert!(
                matches!(code, FaultCode::SourceChanged | FaultCode::SourceTruncated),
                "{change}: {code}"
            );
            assert!(!place.path("to/f").exists(), "{change}");
            assert!(!place.path("to/.longhaul").exists(), "{change}");
        }
    }
}

/// A file that another process creates or replaces at the target during the copy is never overwritten.
#[test]
fn what_appears_meanwhile_stays() {
    for replacing in [false, true] {
        let place = Scene::new();
        place.file("from/f", noise(2 << 20)).time("from/f", 1_700_000_000);
        if replacing {
            place.file("to/f", "old").time("to/f", 1_600_000_000);
        }
        let request = LocalRequest { policy: UPDATE, ..place.request(&["from/"], "to") };
        let theirs = place.path("to/f");
        let act = move |_| fs::write(&theirs, "theirs").unwrap();
        let told = CopyLog { at_bytes: Some(Box::new(act)), ..CopyLog::default() };
        let plan = LocalPlan::prepare(request).unwrap();
        let totals = copy(&plan, 0, &options(), &told, &AtomicBool::new(false)).unwrap();
        assert_eq!((told.code("f"), totals.failed_files), (FaultCode::NameClash, 1));
        assert_eq!(place.read("to/f"), "theirs");
        let left: Vec<String> =
            tree(&place.path("to")).into_keys().filter(|name| !name.ends_with('/')).collect();
        assert_eq!(left, ["f"], "no temporary file is left");
    }
}

#[test]
fn no_space_is_told_in_advance() {
    let place = Scene::new();
    place.file("from/f", "1");
    let plan = LocalPlan::prepare(place.request(&["from/"], "to")).unwrap();
    let told = CopyLog::default();
    let options = LocalOptions { clone: false, ..options() };
    let fault = copy(&plan, u64::MAX / 2, &options, &told, &AtomicBool::new(false)).unwrap_err();
    assert_eq!(fault.code, FaultCode::NoSpaceForRequest);
    assert!(fault.detail.contains("free") && !place.path("to/f").exists(), "{fault}");
    assert!(told.ends.lock().unwrap().is_empty());
}

#[test]
fn filters_and_what_is_left_out() {
    let place = Scene::new();
    place.file("from/a.c", "1").file("from/a.o", "2").file("from/cache/x", "3");
    symlink("/etc/hostname", place.path("from/out")).unwrap();
    symlink("a.c", place.path("from/link.c")).unwrap();
    let filters = Filters::parse([(Action::Exclude, "*.o"), (Action::Exclude, "cache/")]).unwrap();
    let (totals, told) = run(LocalRequest { filters, ..place.request(&["from"], "to") }, &options());
    assert_eq!((totals.copied_files, totals.excluded, totals.left_out), (2, 2, 1));
    assert_eq!(*told.left_out.lock().unwrap(), ["out LinkLeadsOut"]);
    assert_eq!(place.read("to/from/link.c"), "1", "a link to a file inside counts as that file");
    assert!(!place.path("to/from/link.c").is_symlink());
}

/// Promise 9: no symbolic link at the target leads a file out of it.
#[test]
fn links_at_the_target_are_not_followed() {
    let place = Scene::new();
    place.file("from/sub/f", "1").file("from/g", "2").file("outside/g", "kept");
    fs::create_dir(place.path("to")).unwrap();
    symlink("../outside", place.path("to/sub")).unwrap();
    symlink("../outside/g", place.path("to/g")).unwrap();
    let request = LocalRequest { policy: UPDATE, ..place.request(&["from/"], "to") };
    let (totals, told) = run(request, &options());
    assert_eq!(
        (totals.failed_files, told.code("sub/f"), told.code("g")),
        (2, FaultCode::NameClash, FaultCode::NameClash)
    );
    assert_eq!(
        (place.read("outside/g"), fs::read_dir(place.path("outside")).unwrap().count()),
        ("kept".into(), 1)
    );
}

/// The tree is walked while it is copied, so memory does not grow with the number of files. No file is lost
/// or reported twice.
#[test]
fn many_small_files() {
    let place = Scene::new();
    for number in 0..3_000 {
        place.file(&format!("from/{}/{number}", number % 11), number.to_string());
    }
    let options = LocalOptions { files_at_once: 4, ..options() };
    let (totals, told) = run(place.request(&["from/"], "to"), &options);
    assert_eq!((totals.copied_files, told.ends.lock().unwrap().len()), (3_000, 3_000));
    assert_eq!(tree(&place.path("from")), tree(&place.path("to")));
}

const KILLED_IN: &str = "LONGHAUL_TEST_KILLED_IN";

/// Not a test: the process that `killed_and_repeated` kills in the middle of a copy.
#[test]
#[ignore = "started by killed_and_repeated"]
fn copies_until_it_is_killed() {
    let Some(directory) = std::env::var_os(KILLED_IN) else { return };
    let typed = |name: &str| Path::new(&directory).join(name).to_str().unwrap().to_owned() + "/";
    let request = LocalRequest {
        sources: vec![typed("from")],
        target: typed("to"),
        recursive: true,
        ..LocalRequest::default()
    };
    let wait = |sum| {
        if sum > 20 << 20 {
            println!("in the middle");
            loop {
                std::thread::park();
            }
        }
    };
    let told = CopyLog { at_bytes: Some(Box::new(wait)), ..CopyLog::default() };
    let plan = LocalPlan::prepare(request).unwrap();
    let options = LocalOptions { clone: false, ..options() };
    copy(&plan, 0, &options, &told, &AtomicBool::new(false)).unwrap();
}

/// Promises 1 and 4: a kill leaves complete files and abandoned temporary ones; the same command copies the
/// rest and removes the temporary ones.
#[test]
fn killed_and_repeated() {
    let place = Scene::new();
    for number in 0..20 {
        place.file(&format!("from/f{number:02}"), noise((3 << 20) + number));
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "local::copies_until_it_is_killed", "--ignored", "--nocapture"])
        .env(KILLED_IN, place.0.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let in_the_middle = said.into_iter().any(|line| line.contains("in the middle"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(in_the_middle, "it ended by itself");
    let temps = place.path("to/.longhaul/temps");
    assert!(fs::read_dir(&temps).unwrap().count() > 0, "it was killed with a file in hand");
    let from = tree(&place.path("from"));
    let arrived = tree(&place.path("to"));
    let arrived: Vec<_> = arrived.iter().filter(|(name, _)| !name.starts_with(".longhaul")).collect();
    assert!(!arrived.is_empty() && arrived.len() < 20, "{}", arrived.len());
    for (name, content) in &arrived {
        assert_eq!(from.get(*name), Some(*content), "{name} is whole");
    }
    let (totals, _) = run(place.request(&["from/"], "to"), &options());
    assert_eq!(totals.skipped_files, arrived.len() as u64);
    assert_eq!(fs::read_dir(&temps).unwrap().count(), 0);
    fs::remove_dir_all(place.path("to/.longhaul")).unwrap();
    assert_eq!(tree(&place.path("to")), from);
}

/// C.3: a copyjobfile of 100 pairs, three of them bad, gives a reportfile with a line for each and the
/// exit code of the reference; 97 files arrive.
#[test]
fn a_copyjobfile_of_100_pairs() {
    let place = Scene::new();
    fs::create_dir(place.path("to")).unwrap();
    let mut job = String::from("# source target\n");
    for number in 0..100 {
        let source = place.typed(&format!("from/f {number}"));
        let target = place.typed(&format!("to/g{number}"));
        match number {
            17 => job.push_str(&format!("fdt://far.example:8444/f17 {target}\n")),
            42 => job.push_str(&format!("{} {target}\n", quoted(&source))),
            _ => {
                place.file(&format!("from/f {number}"), format!("{number}"));
                job.push_str(&format!("{} {target}\n", quoted(&source)));
            }
        }
    }
    place.file("to/g77", "something else");
    let read = batch::parse(job.as_bytes(), Path::new("job"), Format::Copyjob, &|_| Ok(())).unwrap();
    let mut report = BatchReport::create(&place.path("report"), &read).unwrap();
    let targets = OpenTargets::default();
    for (index, pair) in read.pairs.iter().enumerate() {
        let request = LocalRequest {
            sources: vec![pair.source.to_string()],
            target: pair.target.to_string(),
            ..LocalRequest::default()
        };
        let told = CopyLog::default();
        let copied = LocalPlan::prepare(request)
            .and_then(|plan| copy_to(&targets, &plan, 0, &options(), &told, &AtomicBool::new(false)));
        let end = match copied {
            Ok(_) => told.ends.into_inner().unwrap().into_values().next().unwrap(),
            Err(fault) => Err(fault),
        };
        let outcome = match end {
            Ok(done) => done.outcome(2),
            Err(fault) => Outcome::from_fault(&fault),
        };
        report.add(index, &outcome).unwrap();
    }
    let totals = report.finish(&CopyResult { exit_code: 1, fault: None }).unwrap();
    assert_eq!((totals.ok, totals.error, totals.exists), (97, 2, 1));
    assert_eq!(FdtcpExit::from_totals(&totals, read.bad.len()).code(), 1);
    let written = place.read("report");
    assert_eq!(written.lines().count(), 100);
    for number in 0..100 {
        let target = format!(" {} ", place.typed(&format!("to/g{number}")));
        let line = written.lines().find(|line| line.contains(&target)).unwrap();
        let status = match number {
            17 | 42 => '1',
            77 => '2',
            _ => '0',
        };
        assert_eq!(line.split_once(&target).unwrap().1.chars().next(), Some(status), "{line}");
    }
    drop(targets);
    assert_eq!(fs::read_dir(place.path("to")).unwrap().count(), 98);
}
