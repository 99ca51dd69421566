//! The order of flushes and renames, and their failures.

use super::*;
use std::fs as std_fs;
use std::process::Command;

fn opened(fault_injector: FaultInjector) -> (Posix, TempDir) {
    let root = tempfile::tempdir().unwrap();
    (Posix::open_with(options(root.path()), PosixTuning::default(), None, fault_injector).unwrap(), root)
}

fn batch(posix: &Posix, directories: usize) -> Vec<Commit> {
    let path = |number: u8| format!("d{}/f{number}", usize::from(number) % directories);
    (0..12).map(|number| written(posix, number, &path(number), b"bytes")).collect()
}

/// Promises 1 and 4: data, then names, then the flush of the names, and only then the report.
#[test]
fn data_is_flushed_before_names_and_names_before_the_report() {
    for (directories, names_flush) in [(1, Syscall::FlushDirectory), (12, Syscall::FlushFileSystem)] {
        let (log, fault_injector) = logged();
        let (posix, _root) = opened(fault_injector);
        if !posix.work().unwrap().flushed_as_a_whole {
            return;
        }
        let items = batch(&posix, directories);
        log.lock().clear();
        assert!(posix.commit(&items).iter().all(Result::is_ok));
        let calls: Vec<Syscall> = log.lock().iter().map(|(call, _)| *call).collect();
        assert_eq!(calls[0], Syscall::FlushFileSystem, "one flush of all data, first");
        let renames: Vec<usize> = (0..calls.len()).filter(|&place| calls[place] == Syscall::Rename).collect();
        assert_eq!(renames.len(), items.len());
        assert_eq!(*calls.last().unwrap(), names_flush, "names are flushed last");
        let between = &calls[1..=renames[renames.len() - 1]];
        assert!(
            between.iter().all(|call| matches!(call, Syscall::Rename | Syscall::MakeDirectory)),
            "{between:?}"
        );
        // New directories are names too: the root is flushed as well, or everything is.
        let flushes = calls.iter().filter(|&&call| call == names_flush).count();
        assert_eq!(flushes, 2, "{calls:?}");
    }
}

#[test]
fn a_single_file_is_flushed_alone() {
    let (log, fault_injector) = logged();
    let (posix, _root) = opened(fault_injector);
    std_fs::create_dir(_root.path().join("dir")).unwrap();
    let item = written(&posix, 1, "dir/a", b"x");
    log.lock().clear();
    assert_eq!(posix.commit(&[item]), [Ok(())]);
    let name = temp(1).as_str().to_owned();
    let flushed = |path: &str| (Syscall::FlushDirectory, path.to_owned());
    // Another process created the directory and may not have flushed its name.
    let expected = [(Syscall::FlushData, name.clone()), (Syscall::Rename, name), flushed(""), flushed("dir")];
    assert_eq!(*log.lock(), expected);
    let item = written(&posix, 2, "dir/b", b"x");
    log.lock().clear();
    assert_eq!(posix.commit(&[item]), [Ok(())]);
    let flushes: Vec<_> =
        log.lock().iter().filter(|call| call.0 == Syscall::FlushDirectory).cloned().collect();
    assert_eq!(flushes, [flushed("dir")], "now it is known");
}

/// Promise 4: a directory that is recreated after it was pruned is flushed again.
#[test]
fn a_recreated_directory_is_flushed_again() {
    let (log, fault_injector) = logged();
    let (posix, _root) = opened(fault_injector);
    let item = written(&posix, 1, "a/b/c", b"x");
    assert_eq!(posix.commit(std::slice::from_ref(&item)), [Ok(())]);
    let identity = posix.stat(&item.target).unwrap().unwrap();
    posix.delete(&item.target, &identity).unwrap();
    let item = written(&posix, 2, "a/b/c", b"x");
    log.lock().clear();
    assert_eq!(posix.commit(&[item]), [Ok(())]);
    let flushes = log.lock().iter().filter(|call| call.0 == Syscall::FlushDirectory).count();
    assert_eq!(flushes, 3, "the root, a, and a/b");
}

/// Promises 1 and 4: attributes are set and flushed before the file is visible, and replacements go in the
/// same group as new files.
#[test]
fn attributes_and_replacements_are_part_of_the_group() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (log, fault_injector) = logged();
    let (posix, root) = opened(fault_injector);
    if !posix.work().unwrap().flushed_as_a_whole {
        return;
    }
    std_fs::write(root.path().join("old"), "old").unwrap();
    std::os::unix::fs::symlink("old", root.path().join("link")).unwrap();
    let there = |name: &str| {
        let stat = posix.rooted_tree.stat(name.as_bytes()).unwrap();
        Some(Identity::from(&stat))
    };
    let with = |number, path: &str, replaces| Commit {
        mode: Some(0o104_640),
        mtime_ns: Some(-1_500_000_000),
        replaces,
        ..written(&posix, number, path, b"new")
    };
    let items = [with(1, "old", there("old")), with(2, "new", None), with(3, "link", there("link"))];
    log.lock().clear();
    assert_eq!(posix.commit(&items), [Ok(()), Ok(()), Ok(())]);
    let calls: Vec<Syscall> = log.lock().iter().map(|(call, _)| *call).collect();
    let (set, named) = ([Syscall::SetAttributes; 3], [Syscall::Replace, Syscall::Rename, Syscall::Replace]);
    assert_eq!(calls, [&set[..], &[Syscall::FlushFileSystem], &named, &[Syscall::FlushDirectory]].concat());
    for name in ["old", "new", "link"] {
        let found = std_fs::symlink_metadata(root.path().join(name)).unwrap();
        assert!(found.is_file(), "{name}");
        assert_eq!(found.permissions().mode() & 0o7777, 0o640, "{name}");
        assert_eq!((found.mtime(), found.mtime_nsec()), (-2, 500_000_000), "{name}");
        assert_eq!(std_fs::read(root.path().join(name)).unwrap(), b"new");
    }
}

/// Promises 1 and 4: files written in one step only need the flush and the rename, in this order.
#[test]
fn files_written_in_one_step_only_need_a_rename() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let (log, fault_injector) = logged();
    let (posix, root) = opened(fault_injector);
    let item = Commit { mode: Some(0o104_640), mtime_ns: Some(-1), ..Commit::new(temp(1), at("a"), 3) };
    posix.put(&item, b"new").unwrap();
    assert_eq!(posix.commit(std::slice::from_ref(&item)), [Ok(())]);
    let calls: Vec<Syscall> = log.lock().iter().map(|(call, _)| *call).collect();
    assert_eq!(calls, [Syscall::SetAttributes, Syscall::FlushData, Syscall::Rename, Syscall::FlushDirectory]);
    let found = std_fs::metadata(root.path().join("a")).unwrap();
    assert_eq!(
        (found.permissions().mode() & 0o7777, found.mtime(), found.mtime_nsec()),
        (0o640, -1, 999_999_999)
    );
    // A file restarted in another way is checked again.
    posix.put(&item, b"new").unwrap();
    posix.create(&item.temp, None, 3).unwrap().write_at(b"n", 0).unwrap();
    assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::TargetWrite);
    for call in [Syscall::SetAttributes, Syscall::FlushData] {
        let (posix, root) = opened(failing(call, Errno::IO));
        let item = Commit { mtime_ns: Some(7), ..Commit::new(temp(1), at("a"), 3) };
        let done = posix.put(&item, b"new").and_then(|()| posix.commit(&[item]).remove(0));
        assert_eq!(code(done), FaultCode::TargetWrite, "{call:?}");
        assert!(!root.path().join("a").exists(), "{call:?}");
    }
}

/// Promise 1: whichever call fails, the name has the complete old or new file.
#[test]
fn a_replacement_that_fails_leaves_the_old_file() {
    for call in [Syscall::SetAttributes, Syscall::FlushData, Syscall::Replace] {
        let (posix, root) = opened(failing(call, Errno::IO));
        std_fs::write(root.path().join("a"), "good").unwrap();
        let item = Commit {
            mtime_ns: Some(7),
            replaces: posix.stat(&at("a")).unwrap(),
            ..written(&posix, 1, "a", b"newer")
        };
        assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::TargetWrite, "{call:?}");
        assert_eq!(std_fs::read(root.path().join("a")).unwrap(), b"good", "{call:?}");
    }
    let memory = crate::memory::FaultyStore::new("disk".parse().unwrap());
    memory.put("a", b"good");
    let file = memory.create(&temp(1), None, 5).unwrap();
    file.write_at(b"newer", 0).unwrap();
    let replaces = memory.stat(&at("a")).unwrap();
    let item = Commit { mode: Some(0o4600), replaces, ..Commit::new(temp(1), at("a"), 5) };
    use crate::memory::UnflushedNames::{Kept, Lost};
    assert_eq!(memory.after_power_cut(Lost).contents("a"), Some(b"good".to_vec()));
    assert_eq!(memory.commit(&[item]), [Ok(())]);
    for names in [Kept, Lost] {
        assert_eq!(memory.after_power_cut(names).contents("a"), Some(b"newer".to_vec()), "{names:?}");
    }
    assert_eq!(memory.mode("a"), Some(0o600), "never set-user-id");
}

#[test]
fn nothing_is_flushed_under_the_policy_never() {
    let (log, fault_injector) = logged();
    let root = tempfile::tempdir().unwrap();
    let unflushed = PosixOptions { flush: FlushPolicy::None, ..options(root.path()) };
    let posix = Posix::open_with(unflushed, PosixTuning::default(), None, fault_injector).unwrap();
    assert!(posix.commit(&batch(&posix, 2)).iter().all(Result::is_ok));
    let flush = |call: &Syscall| {
        matches!(call, Syscall::FlushData | Syscall::FlushDirectory | Syscall::FlushFileSystem)
    };
    assert!(!log.lock().iter().any(|(call, _)| flush(call)));
}

/// Fails only the first flush of a kind.
fn failing_once(which: Syscall) -> FaultInjector {
    let failed = AtomicBool::new(false);
    FaultInjector::with(Arc::new(move |call, _| {
        if call == which && !failed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            return Err(Errno::IO);
        }
        Ok(())
    }))
}

/// The kernel reports a failed write-back once, and has dropped the bytes: no later flush restores them.
#[test]
fn a_failed_flush_is_never_retried() {
    let (posix, root) = opened(failing_once(Syscall::FlushFileSystem));
    let bystander = written(&posix, 100, "bystander", b"x");
    let items = batch(&posix, 3);
    for _ in 0..2 {
        for result in posix.commit(&items) {
            assert_eq!(code(result), FaultCode::TargetWrite);
        }
    }
    assert_eq!(code(posix.commit(&[bystander]).remove(0)), FaultCode::TargetWrite, "it may be lost too");
    assert!(posix.reopen(&temp(100), 1).unwrap().is_none());
    assert_eq!(std_fs::read_dir(root.path()).unwrap().count(), 1, "only the work directory");
    assert!(posix.commit(&batch(&posix, 3)).iter().all(Result::is_ok), "written anew, all is well");

    let (posix, _root) = opened(failing_once(Syscall::FlushData));
    let target = posix.create(&temp(1), None, 1).unwrap();
    target.write_at(b"x", 0).unwrap();
    assert_eq!(code(target.flush()), FaultCode::TargetWrite);
    let item = Commit::new(temp(1), at("a"), 1);
    assert_eq!(code(posix.commit(std::slice::from_ref(&item)).remove(0)), FaultCode::TargetWrite);
    written(&posix, 1, "a", b"x");
    assert_eq!(posix.commit(&[item]), [Ok(())]);
}

#[test]
fn names_that_may_not_be_durable_are_not_reported() {
    let (posix, root) = opened(failing(Syscall::FlushDirectory, Errno::IO));
    let item = written(&posix, 1, "a", b"x");
    assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::TargetWrite);
    assert!(root.path().join("a").exists(), "complete, and found again by whoever tries again");
    posix.flush_present(&[at("a")]).unwrap();
    assert_eq!(code(posix.flush_present(&[at("b")])), FaultCode::TargetWrite, "gone meanwhile");
}

#[test]
fn faults_are_told_apart() {
    let cases = [
        (Syscall::Rename, Errno::NOSPC, FaultCode::TargetFull),
        (Syscall::Rename, Errno::ROFS, FaultCode::TargetReadOnly),
        (Syscall::Rename, Errno::XDEV, FaultCode::TargetWrite),
        (Syscall::Rename, Errno::NAMETOOLONG, FaultCode::NameTooLong),
        (Syscall::MakeDirectory, Errno::ACCESS, FaultCode::TargetReadOnly),
        (Syscall::FlushData, Errno::DQUOT, FaultCode::TargetFull),
    ];
    for (call, errno, expected) in cases {
        let (posix, _root) = opened(failing(call, errno));
        let item = written(&posix, 1, "d/a", b"x");
        assert_eq!(code(posix.commit(&[item]).remove(0)), expected, "{call:?} {errno:?}");
    }
    let (posix, _root) = opened(failing(Syscall::Reserve, Errno::NOSPC));
    assert_eq!(code(posix.create(&temp(1), None, 1 << 30)), FaultCode::TargetFull);
    assert_eq!(posix.temps().unwrap(), []);
}

#[test]
fn directories_pruned_during_a_commit_are_recreated() {
    let root = tempfile::tempdir().unwrap();
    let victim = root.path().join("d");
    let pruned = AtomicBool::new(false);
    let hook: Hook = Arc::new(move |call, _| {
        if call == Syscall::Rename && !pruned.swap(true, std::sync::atomic::Ordering::Relaxed) {
            std_fs::remove_dir_all(&victim).unwrap();
        }
        Ok(())
    });
    let posix =
        Posix::open_with(options(root.path()), PosixTuning::default(), None, FaultInjector::with(hook))
            .unwrap();
    let item = written(&posix, 1, "d/e/a", b"x");
    assert_eq!(posix.commit(&[item]), [Ok(())]);
    assert!(root.path().join("d/e/a").exists());
}

/// The file systems of test machines are case-sensitive; the answers of a case-insensitive one are injected.
#[test]
fn case_variants_are_refused_on_case_insensitive_storages() {
    let hook: Hook = Arc::new(|call, what| match (call, what) {
        (Syscall::MakeDirectory, "dir") => Err(Errno::EXIST),
        (Syscall::Rename, what) if what == temp(2).as_str() => Err(Errno::EXIST),
        _ => Ok(()),
    });
    let (posix, _root) = opened(FaultInjector::with(hook));
    let mut work = WorkDirectory::prepare(&posix.rooted_tree, None, None, FlushPolicy::None).unwrap();
    assert!(!work.case_insensitive, "or this test is not needed");
    work.case_insensitive = true;
    *posix.work.lock() = Some(Arc::new(work));
    assert!(posix.capabilities().case_insensitive);

    let first = written(&posix, 1, "Dir/Name", b"x");
    assert_eq!(posix.commit(&[first]), [Ok(())]);
    let twins = [written(&posix, 2, "Dir/name", b"x"), written(&posix, 3, "dir/other", b"x")];
    for result in posix.commit(&twins) {
        let fault = result.unwrap_err();
        assert_eq!(fault.code, FaultCode::CaseTwin);
        assert!(fault.detail.contains("\"Name\"") || fault.detail.contains("\"Dir\""), "{fault}");
    }
    let same = [written(&posix, 2, "Dir/Name", b"x")];
    assert_eq!(code(posix.commit(&same).remove(0)), FaultCode::NameClash, "the very same name");
    assert_eq!(code(posix.refuse_other_spelling(&at("Dir/name"), b"Dir/name")), FaultCode::CaseTwin);
    assert!(posix.stat(&at("Dir/Name")).unwrap().is_some());
    assert_eq!(code(posix.open(&at(".LongHaul/temps"))), FaultCode::BadName);
}

#[test]
fn concurrent_commits_and_deletions_do_not_interfere() {
    let root = tempfile::tempdir().unwrap();
    let unflushed = PosixOptions { flush: FlushPolicy::None, ..options(root.path()) };
    let posix = &Posix::open(unflushed).unwrap();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            scope.spawn(move || {
                for turn in 0..100 {
                    let item = written(posix, worker, &format!("d/e/{worker}-{turn}"), b"x");
                    assert_eq!(posix.commit(std::slice::from_ref(&item)), [Ok(())]);
                    let identity = posix.stat(&item.target).unwrap().unwrap();
                    posix.delete(&item.target, &identity).unwrap();
                }
            });
        }
    });
    assert_eq!(std_fs::read_dir(root.path()).unwrap().count(), 1, "only the work directory");
}

#[test]
fn a_configured_work_directory_is_reserved() {
    let base = tempfile::tempdir().unwrap();
    std_fs::create_dir(base.path().join("root")).unwrap();
    std::os::unix::fs::symlink("root", base.path().join("link")).unwrap();
    let work = Some(base.path().join("link/scratch/ours"));
    let posix = Posix::open(PosixOptions { work, ..options(&base.path().join("root")) }).unwrap();
    assert!(base.path().join("root/scratch/ours/temps").is_dir());
    assert_eq!(code(posix.stat(&at("scratch/ours/temps"))), FaultCode::BadName);
    let mut seen = 0;
    posix
        .walk("", &mut |_| {
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 0);
}

#[test]
fn the_work_directory_is_private_and_recreated() {
    use std::os::unix::fs::PermissionsExt;
    let (posix, root) = opened(FaultInjector::default());
    let work = root.path().join(WORK_DIRECTORY);
    assert_eq!(std_fs::metadata(&work).unwrap().permissions().mode() & 0o777, 0o700);
    std_fs::remove_dir_all(&work).unwrap();
    let item = written(&posix, 1, "a", b"x");
    assert_eq!(posix.commit(&[item]), [Ok(())]);
}

/// A crash between link and unlink leaves a temporary name for a finished file.
#[test]
fn a_finished_file_is_not_written_through_its_temporary_name() {
    let (posix, root) = opened(FaultInjector::default());
    written(&posix, 1, "a", b"good");
    let temp_path = root.path().join(WORK_DIRECTORY).join("temps").join(temp(1).as_str());
    for renewed in [false, true] {
        let finished = root.path().join(format!("a-{renewed}"));
        std_fs::write(&temp_path, "good").unwrap();
        std_fs::hard_link(&temp_path, &finished).unwrap();
        if renewed {
            posix.create(&temp(1), None, 4).unwrap().write_at(b"evil", 0).unwrap();
        } else {
            assert!(posix.reopen(&temp(1), 4).unwrap().is_none());
        }
        assert_eq!(std_fs::read(&finished).unwrap(), b"good");
    }
}

#[test]
fn configuration_errors_are_reported_at_open() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    assert_eq!(code(Posix::open(options(&missing))), FaultCode::StateDirectory);
    assert!(!missing.exists(), "a missing root may be a disk that is not mounted");
    let itself = PosixOptions { work: Some(root.path().join(".")), ..options(root.path()) };
    assert_eq!(code(Posix::open(itself)), FaultCode::StateDirectory);
    if let Ok(other) = tempfile::tempdir_in("/dev/shm") {
        let options = PosixOptions { work: Some(other.path().to_owned()), ..options(root.path()) };
        let fault = Posix::open(options).err().unwrap();
        assert!(fault.code == FaultCode::StateDirectory && fault.detail.contains("file system"), "{fault}");
    }
}

/// The errors of a really full and a really read-only file system. Runs itself again in a mount namespace of
/// its own, where it may mount; elsewhere the same faults are injected above.
#[test]
fn full_and_read_only_file_systems() {
    const INSIDE: &str = "LONGHAUL_TEST_SMALL_DISK";
    if let Some(root) = std::env::var_os(INSIDE) {
        return on_a_small_disk(Path::new(&root));
    }
    let mount = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=4m,nr_inodes=50 none \"$1\" || exit 77; exec \"$0\" --exact \
                  posix::tests::faults::full_and_read_only_file_systems --nocapture";
    let run = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .arg(mount.path())
        .env(INSIDE, mount.path())
        .output();
    let Ok(run) = run else { return eprintln!("skipped: there is no `unshare` here") };
    let said = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    let may_not_mount = run.status.code() == Some(77) || said.contains("unshare failed");
    if may_not_mount {
        return eprintln!("skipped: no right to mount here");
    }
    assert!(run.status.success(), "{said}");
}

fn on_a_small_disk(root: &Path) {
    let posix = Posix::open(options(root)).unwrap();
    assert_eq!(code(posix.create(&temp(1), None, 5 << 20)), FaultCode::TargetFull, "before the first byte");
    assert_eq!(posix.temps().unwrap(), []);
    let small = posix.create(&temp(1), None, 100).unwrap();
    let filler = posix.create(&temp(2), None, 3 << 20).unwrap();
    let written = (0..).map(|chunk| filler.write_at(&[1; 4096], chunk * 4096)).find(Result::is_err);
    assert_eq!(code(written.unwrap()), FaultCode::TargetFull);
    assert_eq!(code(small.write_at(&[1; 100], 0)), FaultCode::TargetFull);
    posix.remove_temp(&temp(2)).unwrap();
    drop(filler);
    small.write_at(&[1; 100], 0).unwrap();
    let item = Commit::new(temp(1), at("a"), 100);
    assert_eq!(posix.commit(&[item]), [Ok(())], "there is room again");
    // A file open for writing keeps the mount writable.
    drop(small);
    let made = (3..60).map(|number| posix.create(&temp(number), None, 0)).find(Result::is_err);
    assert_eq!(code(made.unwrap()), FaultCode::TargetFull, "no inode is left");

    let remount = Command::new("mount").args(["-o", "remount,ro"]).arg(root).status().unwrap();
    assert!(remount.success());
    assert_eq!(code(posix.create(&temp(70), None, 1)), FaultCode::TargetReadOnly);
    let item = Commit::new(temp(3), at("b"), 0);
    assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::TargetReadOnly);
    assert_eq!(posix.open(&at("a")).unwrap().identity().size, 100, "reading goes on");
    let opened = Posix::open(options(root)).unwrap();
    assert_eq!(code(opened.create(&temp(70), None, 1)), FaultCode::TargetReadOnly, "opens all the same");
}
