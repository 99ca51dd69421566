//! Walks over everything a tree can hold, and read-only storages.

use super::*;
use crate::SkipReason;
use std::ffi::OsStr;
use std::fs as std_fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;

fn walked(posix: &Posix, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let visit = &mut |visit| {
        found.push(match visit {
            Visit::File { at, identity } => format!("{} {}", at.path(), identity.size),
            Visit::Skipped { path, reason, detail } => {
                assert!(!detail.is_empty());
                format!("{path}: {reason:?}")
            }
        });
        ControlFlow::Continue(())
    };
    posix.walk(path, visit).unwrap();
    found
}

fn special(root: &Path, name: &str, kind: FileType) -> bool {
    let directory = fs::open(root, OFlags::PATH, Mode::empty()).unwrap();
    let device = rustix::fs::makedev(1, 3);
    fs::mknodat(&directory, name, kind, Mode::from_raw_mode(0o600), device).is_ok()
}

#[test]
fn every_entry_is_visited_or_skipped_with_a_reason() {
    for resolver in resolvers() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("root");
        std_fs::create_dir_all(root.join("dir/empty")).unwrap();
        std_fs::write(root.join("dir/file"), "1234").unwrap();
        std_fs::write(base.path().join("outside"), "secret").unwrap();
        std_fs::hard_link(root.join("dir/file"), root.join("hard")).unwrap();
        symlink("dir/file", root.join("link-file")).unwrap();
        symlink(root.join("dir/file"), root.join("link-absolute")).unwrap();
        symlink("../root/./dir//file", root.join("link-out-and-in")).unwrap();
        symlink("link-chain-2", root.join("link-chain-1")).unwrap();
        symlink("dir/../link-file", root.join("link-chain-2")).unwrap();
        symlink("../../outside", root.join("dir/link-out")).unwrap();
        symlink("/dev/null", root.join("link-out-absolute")).unwrap();
        symlink("dir", root.join("link-directory")).unwrap();
        symlink("nothing", root.join("link-broken")).unwrap();
        symlink("dir/file/below", root.join("link-below-file")).unwrap();
        symlink("loop-2", root.join("loop-1")).unwrap();
        symlink("loop-1", root.join("loop-2")).unwrap();
        symlink(".longhaul/temps", root.join("link-work")).unwrap();
        std_fs::write(root.join(OsStr::from_bytes(b"bad\xffname")), "x").unwrap();
        std_fs::create_dir(root.join(OsStr::from_bytes(b"bad\xffdir"))).unwrap();
        std_fs::write(root.join(OsStr::from_bytes(b"bad\xffdir/in")), "x").unwrap();
        let _socket = UnixListener::bind(root.join("socket")).unwrap();
        assert!(special(&root, "pipe", FileType::Fifo));
        let device = special(&root, "device", FileType::CharacterDevice);
        let mut deep = root.clone();
        for _ in 0..5 {
            deep.push("d".repeat(250));
        }
        std_fs::create_dir_all(&deep).unwrap();
        std_fs::write(deep.join("too-deep"), "x").unwrap();

        let posix = Posix::open_with(
            options(&root),
            PosixTuning::default(),
            Some(resolver),
            FaultInjector::default(),
        )
        .unwrap();
        let found = walked(&posix, "");
        let d = "d".repeat(250);
        let mut expected = vec![
            "bad\\xffdir/: NotUtf8".to_owned(),
            "bad\\xffname: NotUtf8".into(),
            format!("{d}/{d}/{d}/{d}/{d}/: NameRules"),
            "dir/empty/: EmptyDirectory".into(),
            "dir/file 4".into(),
            "dir/link-out: LinkLeadsOut".into(),
            "hard 4".into(),
            "link-absolute 4".into(),
            "link-below-file: BrokenLink".into(),
            "link-broken: BrokenLink".into(),
            "link-chain-1 4".into(),
            "link-chain-2 4".into(),
            "link-directory: LinkLeadsOut".into(),
            "link-file 4".into(),
            "link-out-absolute: LinkLeadsOut".into(),
            "link-out-and-in 4".into(),
            "link-work: LinkLeadsOut".into(),
            "loop-1: BrokenLink".into(),
            "loop-2: BrokenLink".into(),
            "pipe: Fifo".into(),
            "socket: Socket".into(),
        ];
        if device {
            expected.push("device: Device".into());
        }
        let mut sorted = found.clone();
        sorted.sort();
        expected.sort();
        assert_eq!(sorted, expected, "{resolver:?}");
        assert_eq!(walked(&posix, ""), found, "the same order again");
        // Every visited file can be read as one.
        for path in found.iter().filter_map(|line| line.strip_suffix(" 4")) {
            assert_eq!(posix.open(&at(path)).unwrap().read_at(&mut [0; 9], 0).unwrap(), 4, "{path}");
        }
        for path in ["link-out-absolute", "dir/link-out", "loop-1", "link-work", "pipe", "socket"] {
            assert_eq!(code(posix.open(&at(path))), FaultCode::SourceUnreadable, "{path}");
        }
    }
}

#[test]
fn large_directories_are_paged_and_deep_ones_are_not_recursed() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..50 {
        std_fs::write(root.path().join(format!("f{number:02}")), "").unwrap();
    }
    std_fs::create_dir_all(root.path().join(format!("f10-{}", "/x".repeat(400)))).unwrap();
    let mut posix = Posix::open(options(root.path())).unwrap();
    let whole = walked(&posix, "");
    assert_eq!(whole.len(), 51);
    for limit in [1, 2, 7, 51, 52] {
        posix.names_at_once = limit;
        assert_eq!(walked(&posix, ""), whole, "{limit} names at once");
    }
}

#[test]
fn unreadable_entries_are_reported() {
    let root = tempfile::tempdir().unwrap();
    for path in ["locked-directory/a", "a", "locked-file", "z"] {
        std_fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        std_fs::write(root.path().join(path), "1").unwrap();
    }
    let locks: Hook = Arc::new(|call, what| match (call, what) {
        (Syscall::ReadDirectory, "locked-directory") | (Syscall::MayRead, "locked-file") => {
            Err(Errno::ACCESS)
        }
        (Syscall::MayRead, "z") => Err(Errno::NOENT),
        _ => Ok(()),
    });
    let posix =
        Posix::open_with(options(root.path()), PosixTuning::default(), None, FaultInjector::with(locks))
            .unwrap();
    let expected = ["a 1", "locked-directory/: Unreadable", "locked-file: Unreadable"];
    assert_eq!(walked(&posix, ""), expected, "and z, which vanished, is not");
}

#[test]
fn a_walk_tolerates_concurrent_changes() {
    let root = tempfile::tempdir().unwrap();
    for path in ["a", "b", "c/d", "e/f"] {
        std_fs::create_dir_all(root.path().join(path).parent().unwrap()).unwrap();
        std_fs::write(root.path().join(path), "1").unwrap();
    }
    let posix = Posix::open(options(root.path())).unwrap();
    let mut found = Vec::new();
    let visit = &mut |visit: Visit| {
        if found.is_empty() {
            std_fs::remove_file(root.path().join("b")).unwrap();
            std_fs::remove_dir_all(root.path().join("c")).unwrap();
            std_fs::remove_dir_all(root.path().join("e")).unwrap();
            symlink("/etc", root.path().join("e")).unwrap();
        }
        found.push(visit);
        ControlFlow::Continue(())
    };
    posix.walk("", visit).unwrap();
    let only_a = matches!(&found[0], Visit::File { at, .. } if at.path() == "a");
    let link = |visit: &Visit| matches!(visit, Visit::Skipped { reason: SkipReason::LinkLeadsOut, .. });
    assert!(only_a && found[1..].iter().all(link), "{found:?}");
}

/// Serving a directory in place changes nothing in it, including access times.
#[test]
fn a_read_only_storage_leaves_no_trace() {
    let base = tempfile::tempdir().unwrap();
    let root = base.path().join("root");
    std_fs::create_dir(&root).unwrap();
    std_fs::write(root.join("a"), "1234").unwrap();
    let before = (std_fs::metadata(&root).unwrap().mtime_nsec(), std_fs::metadata(root.join("a")).unwrap());
    let work = Some(base.path().join("work"));
    let posix = Posix::open(PosixOptions { writable: false, work, ..options(&root) }).unwrap();
    assert!(!posix.capabilities().writable);
    assert_eq!(walked(&posix, ""), ["a 4"]);
    let file = posix.open(&at("a")).unwrap();
    assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 4);
    assert_eq!(posix.temps().unwrap(), []);
    assert_eq!(code(posix.create(&temp(1), None, 1)), FaultCode::TargetReadOnly);
    assert_eq!(code(posix.reopen(&temp(1), 1).map(drop)), FaultCode::TargetReadOnly);
    assert_eq!(code(posix.remove_temp(&temp(1))), FaultCode::TargetReadOnly);
    assert_eq!(code(posix.delete(&at("a"), &file.identity())), FaultCode::TargetReadOnly);
    let item = Commit::new(temp(1), at("b"), 1);
    assert_eq!(code(posix.commit(&[item]).remove(0)), FaultCode::TargetReadOnly);

    let after = (std_fs::metadata(&root).unwrap().mtime_nsec(), std_fs::metadata(root.join("a")).unwrap());
    assert_eq!(before.0, after.0);
    assert_eq!((before.1.atime_nsec(), before.1.mtime_nsec()), (after.1.atime_nsec(), after.1.mtime_nsec()));
    assert_eq!(std_fs::read_dir(&root).unwrap().count(), 1);
    assert!(!base.path().join("work").exists());
}

#[test]
fn identities_change_with_the_file() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a");
    std_fs::write(&path, "1234").unwrap();
    let posix = Posix::open(options(root.path())).unwrap();
    let file = posix.open(&at("a")).unwrap();
    assert_eq!(posix.stat(&at("a")).unwrap(), Some(file.identity()));
    assert_eq!(file.identity_now().unwrap(), file.identity());
    std_fs::OpenOptions::new().append(true).open(&path).unwrap().set_len(3).unwrap();
    assert_ne!(file.identity_now().unwrap(), file.identity(), "cut short");
    std_fs::remove_file(&path).unwrap();
    std_fs::write(&path, "1234").unwrap();
    assert_ne!(posix.stat(&at("a")).unwrap(), Some(file.identity()), "replaced");
}
