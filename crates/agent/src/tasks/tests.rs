//! Tasks over real trees: every kind of name and file, restarts, changes, panics.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc::sync_channel;

use longhaul_api::agent::{CheckedFile, ExpectedFile, FoundFile, LeftOut, LeftOutReason, Work};
use longhaul_model::{Algorithm, DigestOrigin, DigestSet, Hasher};
use longhaul_storage::hooked::HookedStorage;
use tempfile::TempDir;

use super::*;
use crate::config::StorageConfig;
use crate::fault_injecting_storage::fault_injecting_storage;
use crate::state_dir::StateDir;

const BOTH: [Algorithm; 2] = [Algorithm::Adler32, Algorithm::Crc32c];

/// A storage, a state directory, and the tasks of one run over them.
struct TestSite {
    files: TempDir,
    state: TempDir,
    storage: Arc<HookedStorage>,
    rules: NameRules,
    roots: Arc<RootMarks>,
}

struct Run {
    tasks: Arc<Tasks>,
    log: Arc<OutboxLog>,
    stop: StopFlag,
}

/// Everything that a task reported.
#[derive(Default)]
struct TaskReport {
    found: BTreeMap<String, FoundFile>,
    left_out: Vec<LeftOut>,
    checked: BTreeMap<String, CheckedFile>,
    fault: Option<Fault>,
}

impl TestSite {
    fn new() -> TestSite {
        let files = tempfile::tempdir().unwrap();
        let storage = fault_injecting_storage(files.path());
        let (state, rules) = (tempfile::tempdir().unwrap(), NameRules::default());
        let config = StorageConfig::new("alpha".parse().unwrap(), files.path());
        let marked: Arc<dyn Storage> = storage.clone();
        let exports = [Export { storage: marked, rules: rules.clone() }];
        let known = StateDir::open(&state.path().join("known")).unwrap();
        let roots = Arc::new(RootMarks::open(&[config], &exports, "d", &known).unwrap());
        TestSite { files, state, storage, rules, roots }
    }

    fn write(&self, path: impl AsRef<Path>, bytes: &[u8]) {
        let path = self.files.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn run(&self) -> Run {
        let log = Arc::new(OutboxLog::open(self.state.path()).unwrap());
        let scans = self.state.path().join("scans");
        fs::create_dir_all(&scans).unwrap();
        let stop = StopFlag::default();
        let storage: Arc<dyn Storage> = self.storage.clone();
        let exports = vec![Export { storage, rules: self.rules.clone() }];
        let room = TaskContext {
            exports,
            hooks: None,
            log: log.clone(),
            roots: self.roots.clone(),
            scans,
            digest_threads: 1,
            stop: stop.clone(),
        };
        let (_, left) = log.resumed();
        let tasks = Tasks::new(room, left);
        tasks.spawn().unwrap();
        Run { tasks, log, stop }
    }

    fn caches(&self) -> usize {
        fs::read_dir(self.state.path().join("scans")).unwrap().count()
    }
}

impl Run {
    fn give(&self, kind: TaskKind) {
        let task = Task { id: TaskId(1), storage: "alpha".parse().unwrap(), kind };
        let work = Work { number: self.log.received() + 1, tasks: vec![task], ..Work::default() };
        self.tasks.add(self.log.receive(&work).unwrap().tasks);
    }

    /// Acknowledges facts until the last one of the task.
    async fn task_report(&self) -> TaskReport {
        let mut told = TaskReport::default();
        loop {
            for entry in self.log.entries() {
                self.log.acknowledge(entry.sequence).unwrap();
                match entry.fact {
                    Fact::Scanned { found, left_out, .. } => {
                        assert!(found.len() + left_out.len() <= scan::FACT_ITEMS_MAX);
                        told.found.extend(found.into_iter().map(|file| (file.lfn.as_str().to_owned(), file)));
                        told.left_out.extend(left_out);
                    }
                    Fact::Checked { files, .. } => {
                        told.checked
                            .extend(files.into_iter().map(|file| (file.lfn.as_str().to_owned(), file)));
                    }
                    Fact::TaskDone { fault, .. } => {
                        told.fault = fault;
                        return told;
                    }
                    other => panic!("no fact of a task: {other:?}"),
                }
            }
            self.log.fact_added().await;
        }
    }

    fn end(self) {
        self.stop.set();
        self.tasks.join();
    }
}

fn scan_all(path: &str) -> TaskKind {
    TaskKind::Scan {
        dataset: "d".parse().unwrap(),
        path: path.into(),
        algorithms: BOTH.to_vec(),
        digests: DigestOrigin::Computed,
    }
}

fn digests(bytes: &[u8]) -> DigestSet {
    let mut hasher = Hasher::new(BOTH);
    hasher.update(bytes);
    hasher.finish()
}

fn expected(lfn: &str, bytes: &[u8]) -> ExpectedFile {
    ExpectedFile { lfn: lfn.parse().unwrap(), size: bytes.len() as u64, digests: digests(bytes) }
}

#[tokio::test]
async fn every_kind_of_name_and_file_is_registered_or_left_out_with_its_reason() {
    let site = TestSite::new();
    let long = "n".repeat(255);
    let good = [
        "plain",
        "with space",
        "new\nline",
        "ünï/cödé",
        "Twin",
        "twin",
        "-dash",
        "...",
        ".hidden",
        "a/b/c/d/e",
        "quote'\"\\",
        &long,
    ];
    for name in good {
        site.write(name, name.as_bytes());
    }
    site.write("empty", b"");
    let root = site.files.path();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    symlink("plain", root.join("link inside")).unwrap();
    symlink(outside.path().join("secret"), root.join("link outside")).unwrap();
    symlink("nowhere", root.join("link broken")).unwrap();
    fs::create_dir(root.join("empty directory")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"not \xff utf-8")), "x").unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    site.write("unreadable", b"locked away");
    site.storage.set_read_hook(|at, _| match at.path() {
        "unreadable" => Err(Fault::new(FaultCode::SourceUnreadable, "permission denied")),
        _ => Ok(()),
    });

    let run = site.run();
    run.give(scan_all(""));
    let told = run.task_report().await;
    assert_eq!(told.fault, None);
    let names: BTreeSet<&str> = told.found.keys().map(String::as_str).collect();
    let registered: BTreeSet<&str> = good.into_iter().chain(["empty", "link inside"]).collect();
    assert_eq!(names, registered);
    for name in good {
        let file = &told.found[name];
        assert_eq!((file.size, &file.digests), (name.len() as u64, &digests(name.as_bytes())), "{name:?}");
    }
    assert_eq!(told.found["link inside"].digests, digests(b"plain"));
    let reasons: BTreeMap<&str, LeftOutReason> =
        told.left_out.iter().map(|left| (left.path.as_str(), left.reason)).collect();
    let reason = |part: &str| reasons.iter().find(|(path, _)| path.contains(part)).map(|(_, &reason)| reason);
    assert_eq!(reason("link outside"), Some(LeftOutReason::LinkLeadsOut));
    assert_eq!(reason("link broken"), Some(LeftOutReason::BrokenLink));
    assert_eq!(reason("empty directory"), Some(LeftOutReason::EmptyDirectory));
    assert_eq!(reason("utf-8"), Some(LeftOutReason::NotUtf8));
    assert_eq!(reason("socket"), Some(LeftOutReason::Socket));
    assert_eq!(reason("fifo"), Some(LeftOutReason::Fifo));
    assert_eq!(reason("unreadable"), Some(LeftOutReason::Unreadable));
    assert_eq!(reasons.len(), 7, "{reasons:?}");
    run.end();
    assert_eq!(site.caches(), 0, "the cache goes with its scan");
}

#[tokio::test]
async fn paths_become_lfns_by_the_rules_of_the_storage() {
    let mut site = TestSite::new();
    site.rules = NameRules::prefix("store", "data");
    site.write("data/run/f", b"f");
    site.write("elsewhere/g", b"g");
    let run = site.run();
    run.give(scan_all(""));
    let told = run.task_report().await;
    assert_eq!(told.found.keys().collect::<Vec<_>>(), ["store/run/f"]);
    assert_eq!(
        (told.left_out[0].path.as_str(), told.left_out[0].reason),
        ("elsewhere/g", LeftOutReason::NameRules)
    );
    run.end();
}

/// Promise 4: a scan that is killed reads nothing twice but the file it was reading.
#[tokio::test]
async fn a_restarted_scan_reads_nothing_twice() {
    let site = TestSite::new();
    for n in 0..300 {
        site.write(format!("d{}/f{n}", n % 7), format!("content {n}").as_bytes());
    }
    let run = site.run();
    let (reached, at_middle) = sync_channel(1);
    let stop = run.stop.clone();
    let reads = std::sync::atomic::AtomicUsize::new(0);
    site.storage.set_read_hook(move |_, _| {
        if reads.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 150 {
            stop.set();
            reached.send(()).unwrap();
        }
        Ok(())
    });
    run.give(scan_all(""));
    at_middle.recv().unwrap();
    run.end();
    let first: BTreeSet<String> = site.storage.take_opened_paths().into_iter().collect();
    assert!((150..300).contains(&first.len()), "{} files were opened", first.len());
    assert_eq!(site.caches(), 1);

    // A new file takes part, one that changed is read again.
    site.write("d0/new", b"new");
    let changed = first.iter().next().unwrap();
    site.write(changed, b"changed meanwhile");
    site.storage.set_read_hook(|_, _| Ok(()));
    let run = site.run();
    let told = run.task_report().await;
    assert_eq!(told.found.len(), 301);
    assert_eq!(told.found[changed].digests, digests(b"changed meanwhile"));
    let second: BTreeSet<String> = site.storage.take_opened_paths().into_iter().collect();
    let twice: Vec<&String> = first.intersection(&second).filter(|path| *path != changed).collect();
    assert!(twice.len() <= 2, "read twice: {twice:?}");
    assert!(second.contains(changed));
    run.end();
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read_is_left_out() {
    let site = TestSite::new();
    site.write("steady", b"steady");
    site.write("growing", b"grow");
    site.write("vanishing", b"vanish");
    let root = site.files.path().to_path_buf();
    site.storage.set_read_hook(move |at, offset| {
        match at.path() {
            "growing" if offset == 0 => fs::write(root.join("growing"), "grown much larger").unwrap(),
            "vanishing" => return Err(Fault::new(FaultCode::SourceMissing, "gone")),
            _ => {}
        }
        Ok(())
    });
    let run = site.run();
    run.give(scan_all(""));
    let told = run.task_report().await;
    assert_eq!(told.found.keys().collect::<Vec<_>>(), ["steady"]);
    assert!(told.left_out.iter().all(|left| left.reason == LeftOutReason::ChangedWhileReading));
    assert_eq!(told.left_out.len(), 2);
    assert_eq!(told.fault, None);
    run.end();
}

/// A panic is reported and ends nothing else.
#[tokio::test]
async fn a_panic_costs_one_file_and_is_reported() {
    let site = TestSite::new();
    for name in ["a", "poison", "z"] {
        site.write(name, name.as_bytes());
    }
    site.storage.set_read_hook(|at, _| match at.path() {
        "poison" => panic!("hit by poison"),
        _ => Ok(()),
    });
    let run = site.run();
    run.give(scan_all(""));
    let told = run.task_report().await;
    assert_eq!(told.found.keys().collect::<Vec<_>>(), ["a", "z"]);
    assert_eq!(told.left_out[0].path, "poison");
    let fault = told.fault.unwrap();
    assert_eq!(fault.code, FaultCode::Internal);
    assert!(fault.detail.contains("hit by poison"), "{fault}");

    run.log.acknowledge(1).unwrap();
    run.end();
    let run = site.run();
    let files = vec![expected("poison", b"poison"), expected("z", b"z")];
    let work = Work {
        number: 9,
        tasks: vec![Task {
            id: TaskId(2),
            storage: "alpha".parse().unwrap(),
            kind: TaskKind::Verify { files },
        }],
        ..Work::default()
    };
    run.tasks.add(run.log.receive(&work).unwrap().tasks);
    let told = run.task_report().await;
    assert_eq!(told.checked["poison"].fault.as_ref().unwrap().code, FaultCode::Internal);
    assert_eq!(told.checked["z"].fault, None);
    run.end();
}

#[tokio::test]
async fn a_scan_of_a_missing_directory_fails() {
    let site = TestSite::new();
    let run = site.run();
    run.give(scan_all("no/such/directory"));
    assert!(run.task_report().await.fault.is_some());
    let elsewhere = Task { id: TaskId(3), storage: "gamma".parse().unwrap(), kind: scan_all("") };
    run.tasks.add(vec![elsewhere]);
    assert_eq!(run.task_report().await.fault.unwrap().code, FaultCode::NotFound);
    run.end();
}

#[tokio::test]
async fn verification_reports_each_kind_of_damage() {
    let site = TestSite::new();
    for name in ["right", "flipped", "cut", "longer", "unreadable", "changing"] {
        site.write(name, b"0123456789");
    }
    let files: Vec<_> = ["right", "flipped", "cut", "longer", "unreadable", "changing", "missing"]
        .into_iter()
        .map(|name| expected(name, b"0123456789"))
        .chain([ExpectedFile { digests: DigestSet::default(), ..expected("right/not", b"") }])
        .collect();
    site.write("flipped", b"0123456798");
    site.write("cut", b"01234");
    site.write("longer", b"0123456789a");
    let root = site.files.path().to_path_buf();
    site.storage.set_read_hook(move |at, _| {
        match at.path() {
            "unreadable" => return Err(Fault::new(FaultCode::SourceUnreadable, "input/output error")),
            "changing" => fs::write(root.join("changing"), "9876543210").unwrap(),
            _ => {}
        }
        Ok(())
    });
    let run = site.run();
    run.give(TaskKind::Verify { files });
    let told = run.task_report().await;
    let code = |name: &str| told.checked[name].fault.as_ref().map(|fault| fault.code);
    assert_eq!(code("right"), None);
    assert_eq!(code("flipped"), Some(FaultCode::WrongDigest));
    assert_eq!(code("cut"), Some(FaultCode::SourceTruncated));
    assert_eq!(code("longer"), Some(FaultCode::SourceChanged));
    assert_eq!(code("unreadable"), Some(FaultCode::SourceUnreadable));
    assert_eq!(code("changing"), Some(FaultCode::SourceChanged));
    assert_eq!(code("missing"), Some(FaultCode::SourceMissing));
    assert!(code("right/not").is_some());
    assert_eq!(told.fault, None, "the task itself did its work");
    run.end();
}

#[tokio::test]
async fn deletion_removes_only_what_the_catalog_has() {
    let site = TestSite::new();
    site.write("d/old", b"old");
    site.write("other", b"somebody else's");
    let files = || vec![expected("d/old", b"old"), expected("other", b"ours"), expected("gone", b"gone")];
    let run = site.run();
    run.give(TaskKind::Delete { files: files() });
    let told = run.task_report().await;
    assert_eq!(told.checked["d/old"].fault, None);
    assert_eq!(told.checked["gone"].fault, None, "missing counts as gone");
    assert_eq!(told.checked["other"].fault.as_ref().unwrap().code, FaultCode::NameClash);
    assert!(!site.files.path().join("d").exists());
    assert_eq!(fs::read(site.files.path().join("other")).unwrap(), b"somebody else's");
    run.end();
}

#[tokio::test]
async fn a_cancelled_task_ends_silently() {
    let site = TestSite::new();
    for name in ["a", "b", "c"] {
        site.write(name, b"x");
    }
    let (reached, at_read) = sync_channel(1);
    let (release, wait) = sync_channel::<()>(1);
    let wait = Mutex::new(wait);
    site.storage.set_read_hook(move |_, _| {
        let _ = reached.try_send(());
        let _ = wait.lock().recv();
        Ok(())
    });
    let run = site.run();
    run.give(scan_all(""));
    at_read.recv().unwrap();
    let cancel = Work { number: 5, cancel_tasks: vec![TaskId(1)], ..Work::default() };
    run.tasks.cancel(&run.log.receive(&cancel).unwrap().cancel_tasks);
    drop(release);
    let log = run.log.clone();
    run.end();
    assert_eq!(log.facts_pending(), 0);
    assert!(log.resumed().1.is_empty());
    drop(log);
    let run = site.run();
    assert_eq!(site.caches(), 0);
    run.end();
}

/// All files would be missing there: verified, they would be suspect, deleted, they would be gone.
#[tokio::test]
async fn nothing_is_concluded_at_a_root_that_is_not_the_storages() {
    let lists: [fn(Vec<ExpectedFile>) -> TaskKind; 2] =
        [|files| TaskKind::Verify { files }, |files| TaskKind::Delete { files }];
    let kinds = lists.map(|list| list(vec![expected("f", b"bytes")]));
    for kind in kinds.into_iter().chain([scan_all("")]) {
        let site = TestSite::new();
        site.write("other", b"of another disk");
        fs::remove_file(site.files.path().join(".longhaul/root.json")).unwrap();
        let run = site.run();
        run.give(kind);
        let report = run.task_report().await;
        assert!(report.checked.is_empty() && report.found.is_empty() && report.left_out.is_empty());
        let fault = report.fault.unwrap();
        assert!(fault.code == FaultCode::Conflict && fault.detail.contains("accept-root alpha"), "{fault}");
        run.end();
    }
}
