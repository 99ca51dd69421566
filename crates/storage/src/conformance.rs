//! The conformance suite of [`Storage`](crate::Storage): an adapter's tests call [`check`] for each
//! configuration.
//!
//! Tests only what the interface promises; adapters test their own failure modes.

use std::ops::ControlFlow;

use longhaul_model::{Algorithm, Fault, FaultCode, Hasher, Pfn};

use crate::{Commit, DirectoryCache, Identity, Storage, TempName, Visit, digest_file};

/// Runs the suite; `make` returns an empty, writable storage each time.
///
/// # Panics
/// If the storage does not conform.
pub fn check(make: &dyn Fn() -> Box<dyn Storage>) {
    const CHECKS: &[fn(&dyn Storage)] = &[
        a_file_appears_by_commit_only,
        chunks_may_come_in_any_order,
        commits_replace_nothing,
        commits_replace_the_expected_only,
        what_is_put_at_once_is_committed_as_well,
        each_item_of_a_batch_has_its_own_result,
        incomplete_files_are_refused,
        strange_names_are_kept,
        case_twins_are_kept_or_refused,
        nothing_is_reached_in_the_work_directory,
        what_is_no_file_is_told,
        deletion_is_careful,
        walks_are_ordered,
        space_is_told,
        directories_are_made_and_removed,
        names_change_in_one_step,
        directories_are_listed_page_by_page,
    ];
    /// Not applicable to a storage that discards the bytes.
    const OF_WHAT_IS_KEPT: &[fn(&dyn Storage)] =
        &[files_are_opened_one_after_the_other, digests_are_those_of_the_bytes];
    const OF_RESUMPTION: &[fn(&dyn Storage)] = &[temporary_files_are_resumed_and_removed];
    const OF_ATTRIBUTES: &[fn(&dyn Storage)] = &[commits_set_the_time];
    let capabilities = make().capabilities();
    let optional = [
        (!capabilities.discards, OF_WHAT_IS_KEPT),
        (capabilities.resumes, OF_RESUMPTION),
        (capabilities.sets_attributes, OF_ATTRIBUTES),
    ];
    let applicable = optional.into_iter().filter(|(applies, _)| *applies).flat_map(|(_, checks)| checks);
    for check in CHECKS.iter().chain(applicable) {
        let storage = make();
        assert!(storage.capabilities().writable);
        check(&*storage);
    }
}

fn temp(number: u32) -> TempName {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_be_bytes());
    TempName::from_bytes(bytes)
}

fn at(storage: &dyn Storage, path: &str) -> Pfn {
    done(Pfn::new(storage.name().clone(), path), "a name of the suite")
}

#[track_caller]
fn done<T, E: std::fmt::Display>(result: Result<T, E>, what: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Fault>, codes: &[FaultCode], what: &str) {
    match result {
        Ok(_) => panic!("{what}: was done"),
        Err(fault) => assert!(codes.contains(&fault.code), "{what}: {:?} {fault}", fault.code),
    }
}

#[track_caller]
fn write(storage: &dyn Storage, number: u32, path: &str, bytes: &[u8]) -> Commit {
    done(try_write(storage, number, path, bytes), "write")
}

/// Fails for a name that the storage refuses before it takes any bytes.
fn try_write(storage: &dyn Storage, number: u32, path: &str, bytes: &[u8]) -> Result<Commit, Fault> {
    let target = at(storage, path);
    let file = storage.create(&temp(number), Some(&target), bytes.len() as u64)?;
    file.write_at(bytes, 0)?;
    Ok(Commit::new(temp(number), target, bytes.len() as u64))
}

#[track_caller]
fn put(storage: &dyn Storage, path: &str, bytes: &[u8]) {
    let item = write(storage, 9_999, path, bytes);
    for result in storage.commit(&[item]) {
        done(result, path);
    }
}

#[track_caller]
fn contents(storage: &dyn Storage, path: &str) -> Vec<u8> {
    let file = done(storage.open(&at(storage, path)), path);
    let mut bytes = vec![0; file.identity().size as usize + 1];
    let read = done(file.read_at(&mut bytes, 0), path);
    assert_eq!(read as u64, file.identity().size, "{path}: as many bytes as its size says");
    bytes.truncate(read);
    bytes
}

/// The file of this name has these bytes, or (where bytes are discarded) this size.
#[track_caller]
fn holds(storage: &dyn Storage, path: &str, bytes: &[u8]) {
    if storage.capabilities().discards {
        assert_eq!(identity(storage, path).size, bytes.len() as u64, "{path}");
        refused(storage.open(&at(storage, path)), &[FaultCode::SourceUnreadable], path);
    } else {
        assert!(contents(storage, path) == bytes, "{path}: not the bytes that were written");
    }
}

#[track_caller]
fn walked(storage: &dyn Storage, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let walk = storage.walk(path, &mut |visit| {
        found.push(match visit {
            Visit::File { at, .. } => at.path().to_owned(),
            Visit::Skipped { path, reason, .. } => format!("{reason:?} {path}"),
        });
        ControlFlow::Continue(())
    });
    done(walk, "walk");
    found
}

/// What a walk finds, in name order, component by component; a storage with directories has that order
/// itself.
#[track_caller]
fn walked_by_name(storage: &dyn Storage, path: &str) -> Vec<String> {
    let mut found = walked(storage, path);
    if !storage.capabilities().has_directories {
        found.sort_by(|one, other| one.split('/').cmp(other.split('/')));
    }
    found
}

/// Promise 1: complete and flushed before it has its name.
fn a_file_appears_by_commit_only(storage: &dyn Storage) {
    let item = write(storage, 1, "dir/sub/a", b"content");
    assert_eq!(done(storage.stat(&item.target), "stat"), None);
    assert_eq!(walked(storage, ""), Vec::<String>::new());
    assert_eq!(done(storage.temps(), "temps"), [temp(1)]);
    refused(storage.open(&item.target), &[FaultCode::SourceMissing], "opening what is not there");

    assert_eq!(storage.commit(std::slice::from_ref(&item)), [Ok(())]);
    let identity = done(storage.stat(&item.target), "stat").map(|identity| identity.size);
    assert_eq!(identity, Some(7));
    holds(storage, "dir/sub/a", b"content");
    assert_eq!(done(storage.temps(), "temps"), []);
    done(storage.flush_present(&[item.target]), "flushing what is there");
    assert_eq!(storage.commit(&[]), []);
}

fn chunks_may_come_in_any_order(storage: &dyn Storage) {
    const LEN: usize = 3 << 20;
    let bytes: Vec<u8> = (0..LEN).map(|place| (place / 7) as u8).collect();
    let file = done(storage.create(&temp(1), Some(&at(storage, "large")), LEN as u64), "create");
    let mut chunks: Vec<(usize, &[u8])> = bytes.chunks(1 << 20).enumerate().collect();
    if storage.capabilities().random_write {
        chunks.reverse();
    } else {
        // A hole or a second version is an error, and changes nothing.
        let only_appends = &[FaultCode::Internal];
        refused(file.write_at(b"behind a hole", 1 << 20), only_appends, "writing behind the end");
        done(file.write_at(chunks.remove(0).1, 0), "write");
        refused(file.write_at(b"again", 0), only_appends, "writing in the middle");
    }
    for (place, chunk) in chunks {
        let offset = (place << 20) as u64;
        done(file.write_at(chunk, offset), "write");
        file.begin_writeback(offset, chunk.len() as u64);
    }
    done(file.flush(), "flush");
    if storage.capabilities().reads_temps {
        let mut back = vec![0; LEN];
        assert_eq!(done(file.read_at(&mut back, 0), "reading back"), LEN);
        assert!(back == bytes);
        assert_eq!(done(file.read_at(&mut back[..8], LEN as u64), "reading at the end"), 0);
    }
    drop(file);
    let item = Commit::new(temp(1), at(storage, "large"), LEN as u64);
    assert_eq!(storage.commit(&[item]), [Ok(())]);
    holds(storage, "large", &bytes);
}

/// Promise 1: a good replica is never destroyed.
fn commits_replace_nothing(storage: &dyn Storage) {
    put(storage, "a", b"good");
    let before = done(storage.stat(&at(storage, "a")), "stat");
    for bytes in [b"same", b"evil"] {
        let item = write(storage, 1, "a", bytes);
        for result in storage.commit(&[item]) {
            refused(result, &[FaultCode::NameClash], "replacing a file");
        }
    }
    holds(storage, "a", b"good");
    assert_eq!(done(storage.stat(&at(storage, "a")), "stat"), before);
    assert_eq!(done(storage.temps(), "temps"), [temp(1)], "the temporary file stays");
}

#[track_caller]
fn identity(storage: &dyn Storage, path: &str) -> Identity {
    match done(storage.stat(&at(storage, path)), path) {
        Some(identity) => identity,
        None => panic!("{path} is not there"),
    }
}

/// Promise 1: only the version that the caller has seen is replaced.
fn commits_replace_the_expected_only(storage: &dyn Storage) {
    put(storage, "dir/a", b"old");
    put(storage, "b", b"old");
    let (a, b) = (identity(storage, "dir/a"), identity(storage, "b"));
    let replacing = |number: u32, path: &str, replaces: &Identity| Commit {
        replaces: Some(replaces.clone()),
        ..write(storage, number, path, b"newer")
    };
    let mut others = vec![
        replacing(1, "dir/a", &b),
        replacing(2, "dir/a", &Identity { mtime_ns: a.mtime_ns - 1, ..a.clone() }),
    ];
    if storage.capabilities().has_directories {
        others.extend([replacing(3, "dir", &a), replacing(4, "b/below", &b)]);
    }
    for result in storage.commit(&others) {
        refused(result, &[FaultCode::NameClash], "replacing what nobody named");
    }
    holds(storage, "dir/a", b"old");
    assert_eq!(identity(storage, "dir/a"), a);
    // Together with a new file, and with one whose old version is gone by now.
    let batch = [replacing(5, "dir/a", &a), write(storage, 6, "c", b"new"), replacing(7, "d", &b)];
    assert_eq!(storage.commit(&batch), [Ok(()), Ok(()), Ok(())]);
    holds(storage, "dir/a", b"newer");
    holds(storage, "d", b"newer");
    let again = replacing(8, "dir/a", &a);
    for result in storage.commit(&[again]) {
        refused(result, &[FaultCode::NameClash], "the same replacement twice");
    }
    assert_eq!(walked(storage, ""), ["b", "c", "d", "dir/a"]);
}

fn commits_set_the_time(storage: &dyn Storage) {
    let times = [0, 1, -1_500_000_000, 1_700_000_000_123_456_789];
    let batch: Vec<Commit> = (1..)
        .zip(times)
        .map(|(number, mtime_ns)| Commit {
            mtime_ns: Some(mtime_ns),
            mode: Some(0o640),
            ..write(storage, number, &format!("t{number}"), b"x")
        })
        .collect();
    assert!(storage.commit(&batch).iter().all(Result::is_ok));
    // Also alone: a storage may flush one file differently from several.
    let alone = Commit { mtime_ns: Some(5_000_000_000), ..write(storage, 9, "t9", b"x") };
    assert_eq!(storage.commit(&[alone]), [Ok(())]);
    for (path, mtime_ns) in (1..).map(|number| format!("t{number}")).zip(times) {
        assert_eq!(identity(storage, &path).mtime_ns, mtime_ns, "{path}");
    }
    assert_eq!(identity(storage, "t9").mtime_ns, 5_000_000_000);
}

fn what_is_put_at_once_is_committed_as_well(storage: &dyn Storage) {
    let item = |number: u32, size: u64, mtime_ns| Commit {
        mtime_ns,
        ..Commit::new(temp(number), at(storage, &format!("p/{number}")), size)
    };
    let mut batch =
        vec![item(1, 5, None), item(2, 5, Some(7_000_000_000)), item(3, 5, None), item(4, 0, None)];
    for item in &batch {
        done(storage.put(item, &b"first"[..item.size as usize]), "put");
        assert_eq!(done(storage.stat(&item.target), "stat"), None, "promise 1");
    }
    // Once more, under the same temporary name, with another modification time than at `put`.
    done(storage.put(&batch[0], b"other"), "put again");
    batch[2].mtime_ns = Some(9_000_000_000);
    assert_eq!(storage.commit(&batch), [Ok(()), Ok(()), Ok(()), Ok(())]);
    holds(storage, "p/1", b"other");
    holds(storage, "p/2", b"first");
    holds(storage, "p/4", b"");
    if storage.capabilities().sets_attributes {
        assert_eq!(identity(storage, "p/2").mtime_ns, 7_000_000_000);
        assert_eq!(identity(storage, "p/3").mtime_ns, 9_000_000_000);
    }
    let short = item(5, 9, None);
    done(storage.put(&short, b"short"), "put too little");
    for result in storage.commit(&[short]) {
        refused(result, &[FaultCode::TargetWrite], "committing what was put in part");
    }
    let gone = item(6, 5, None);
    done(storage.put(&gone, b"bytes"), "put");
    done(storage.remove_temp(&gone.temp), "remove");
    for result in storage.commit(&[gone]) {
        refused(result, &[FaultCode::TargetWrite], "committing what is gone");
    }
}

fn files_are_opened_one_after_the_other(storage: &dyn Storage) {
    let paths = ["a", "d/a", "d/b", "d/e/a", "b", "d/c"];
    paths.iter().for_each(|path| put(storage, path, path.as_bytes()));
    let mut directory_cache = DirectoryCache::default();
    for path in paths {
        let file = done(storage.open_with_cache(&at(storage, path), &mut directory_cache), path);
        let mut bytes = vec![0; 9];
        let read = done(file.read_at(&mut bytes, 0), path);
        assert_eq!(&bytes[..read], path.as_bytes());
        done(file.read_exact_at(&mut bytes[..path.len()], 0), path);
        refused(file.read_exact_at(&mut bytes, 0), &[FaultCode::SourceTruncated], path);
        assert_eq!(file.identity(), identity(storage, path), "{path}");
        assert_eq!(done(file.identity_now(), path), file.identity(), "{path}");
    }
    for missing in ["d/none", "none/a", "a/b"] {
        let opened = storage.open_with_cache(&at(storage, missing), &mut directory_cache);
        refused(opened, &[FaultCode::SourceMissing], missing);
    }
    let expected = match storage.capabilities().has_directories {
        true => FaultCode::SourceUnreadable,
        false => FaultCode::SourceMissing,
    };
    refused(storage.open_with_cache(&at(storage, "d"), &mut directory_cache), &[expected], "a directory");
}

/// Which of the commits failed since something has the name.
fn name_clashes(results: &[Result<(), Fault>]) -> Vec<bool> {
    let is_clash =
        |result: &Result<(), Fault>| result.as_ref().is_err_and(|fault| fault.code == FaultCode::NameClash);
    results.iter().map(is_clash).collect()
}

fn each_item_of_a_batch_has_its_own_result(storage: &dyn Storage) {
    if !storage.capabilities().has_directories {
        return each_item_has_its_own_result_without_directories(storage);
    }
    put(storage, "file", b"x");
    put(storage, "dir/inner", b"x");
    let paths = ["n1/a", "file/below", "n1/b", "dir", "file", "n2/c/d", "n1/a"];
    let batch: Vec<Commit> =
        (1..).zip(paths).map(|(number, path)| write(storage, number, path, path.as_bytes())).collect();
    let results = storage.commit(&batch);
    let clashes = name_clashes(&results);
    // Either of the two that want `n1/a` may get it.
    let twice = [clashes[0], clashes[6]];
    assert!(twice == [false, true] || twice == [true, false], "{results:?}");
    assert_eq!(clashes[1..6], [true, false, true, true, false], "{results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3, "{results:?}");
    for path in ["n1/a", "n1/b", "n2/c/d"] {
        holds(storage, path, path.as_bytes());
    }
    assert_eq!(walked(storage, ""), ["dir/inner", "file", "n1/a", "n1/b", "n2/c/d"]);
}

fn each_item_has_its_own_result_without_directories(storage: &dyn Storage) {
    put(storage, "file", b"x");
    let paths = ["n1/a", "file", "n1/b", "n1/a"];
    let batch: Vec<Commit> =
        (1..).zip(paths).map(|(number, path)| write(storage, number, path, path.as_bytes())).collect();
    let results = storage.commit(&batch);
    let clashes = name_clashes(&results);
    assert!(clashes[1] && !clashes[2] && clashes[0] != clashes[3], "{results:?}");
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2, "{results:?}");
}

fn incomplete_files_are_refused(storage: &dyn Storage) {
    let mut short = write(storage, 1, "short", b"12");
    short.size = 3;
    let gone = Commit::new(temp(2), at(storage, "gone"), 0);
    for result in storage.commit(&[short, gone]) {
        refused(result, &[FaultCode::TargetWrite], "committing an incomplete file");
    }
    assert_eq!(walked(storage, ""), Vec::<String>::new());
    let empty = write(storage, 3, "empty", b"");
    assert_eq!(storage.commit(&[empty]), [Ok(())]);
    holds(storage, "empty", b"");
}

/// Promise 4: progress survives.
fn temporary_files_are_resumed_and_removed(storage: &dyn Storage) {
    let item = write(storage, 1, "a", b"0123456789");
    let file = done(storage.reopen(&temp(1), 10), "reopen");
    let Some(file) = file else { panic!("reopen: it is gone") };
    let mut back = [0; 4];
    assert_eq!(done(file.read_at(&mut back, 3), "reading back"), 4);
    assert_eq!(&back, b"3456");
    let expected: &[u8] = if storage.capabilities().random_write {
        done(file.write_at(b"x", 9), "write");
        b"012345678x"
    } else {
        b"0123456789"
    };
    assert_eq!(storage.commit(&[item]), [Ok(())]);
    holds(storage, "a", expected);

    let begun = done(storage.create(&temp(6), Some(&at(storage, "e")), 4), "create");
    done(begun.write_at(b"ab", 0), "write");
    drop(begun);
    match done(storage.reopen(&temp(6), 4), "reopen") {
        Some(file) => done(file.write_at(b"cd", 2), "going on where it ends"),
        None => panic!("reopen: it is gone"),
    }
    assert_eq!(storage.commit(&[Commit::new(temp(6), at(storage, "e"), 4)]), [Ok(())]);
    holds(storage, "e", b"abcd");

    assert!(done(storage.reopen(&temp(1), 10), "reopen").is_none(), "it has its final name now");
    write(storage, 2, "b", b"too long");
    assert!(done(storage.reopen(&temp(2), 3), "reopen").is_none(), "of another file");
    write(storage, 3, "c", b"old and long");
    let renewed = write(storage, 3, "c", b"new");
    assert_eq!(storage.commit(&[renewed]), [Ok(())], "an older one of that name is replaced");
    holds(storage, "c", b"new");

    write(storage, 5, "d", b"x");
    write(storage, 4, "d", b"x");
    assert_eq!(done(storage.temps(), "temps"), [temp(4), temp(5)]);
    for _ in 0..2 {
        done(storage.remove_temp(&temp(4)), "removing a temporary file, twice");
    }
    assert_eq!(done(storage.temps(), "temps"), [temp(5)]);
}

/// Every kind of name that an LFN can have. A storage may refuse those with control characters and
/// backslashes, and those that are as long as a name can be.
fn strange_names_are_kept(storage: &dyn Storage) {
    let long = "x".repeat(255);
    let deep = format!("{}z", "deep/".repeat(204));
    assert!(deep.len() > 1_000);
    let names = [
        "new\nline",
        "tab\tand \u{1b}[2J",
        "ünï/cödé",
        "e\u{301}/\u{e9}",
        "...",
        "..a",
        "-x",
        " ",
        "a\\b",
        &long,
        &deep,
    ];
    let is_refusable = |c: char| c.is_control() || c == '\\';
    let may_refuse = !storage.capabilities().keeps_any_name;
    let may_be_refused = |path: &str, fault: &Fault| match fault.code {
        _ if !may_refuse => false,
        FaultCode::BadName => path.contains(is_refusable),
        FaultCode::NameTooLong => path == long,
        _ => false,
    };
    let (mut batch, mut written) = (Vec::new(), Vec::new());
    for (number, path) in (1..).zip(names) {
        match try_write(storage, number, path, path.as_bytes()) {
            Err(fault) if may_be_refused(path, &fault) => {}
            item => {
                batch.push(done(item, path));
                written.push(path);
            }
        }
    }
    let mut expected = Vec::new();
    for (result, path) in storage.commit(&batch).into_iter().zip(written) {
        match result {
            Err(fault) if may_be_refused(path, &fault) => {}
            result => {
                done(result, path);
                holds(storage, path, path.as_bytes());
                expected.push(path);
            }
        }
    }
    expected.sort_by(|one, other| one.split('/').cmp(other.split('/')));
    assert_eq!(walked_by_name(storage, ""), expected);
}

fn case_twins_are_kept_or_refused(storage: &dyn Storage) {
    put(storage, "Dir/Name", b"1");
    for (number, path) in (1..).zip(["Dir/name", "dir/other"]) {
        let item = write(storage, number, path, b"2");
        let results = storage.commit(&[item]);
        for result in results {
            match storage.capabilities().case_insensitive {
                true => refused(result, &[FaultCode::CaseTwin], path),
                false => done(result, path),
            }
        }
    }
    holds(storage, "Dir/Name", b"1");
}

/// Promise 9: nothing outside the root.
fn nothing_is_reached_in_the_work_directory(storage: &dyn Storage) {
    put(storage, "a", b"x");
    let identity = Identity { size: 1, mtime_ns: 1, inode: 1 };
    let bad = [FaultCode::BadName];
    for path in [".longhaul", ".longhaul/temps", ".longhaul/new/file"] {
        let at = at(storage, path);
        refused(storage.stat(&at), &bad, path);
        refused(storage.open(&at), &bad, path);
        refused(storage.delete(&at, &identity), &bad, path);
        refused(storage.walk(path, &mut |_| ControlFlow::Continue(())), &bad, path);
        match try_write(storage, 1, path, b"x") {
            Ok(item) => storage.commit(&[item]).into_iter().for_each(|result| refused(result, &bad, path)),
            refusal => refused(refusal, &bad, path),
        }
    }
    assert_eq!(walked(storage, ""), ["a"]);
    let elsewhere = done(Pfn::new(done("another-storage".parse(), "a name"), "a"), "a name");
    refused(storage.open(&elsewhere), &[FaultCode::NotFound], "a name of another storage");
}

fn what_is_no_file_is_told(storage: &dyn Storage) {
    put(storage, "dir/a", b"x");
    if storage.capabilities().has_directories {
        refused(storage.stat(&at(storage, "dir")), &[FaultCode::SourceUnreadable], "a directory");
        refused(storage.open(&at(storage, "dir")), &[FaultCode::SourceUnreadable], "a directory");
    } else {
        assert_eq!(done(storage.stat(&at(storage, "dir")), "stat what others are below"), None);
    }
    assert_eq!(done(storage.stat(&at(storage, "dir/a/below")), "stat below a file"), None);
    refused(storage.open(&at(storage, "dir/a/below")), &[FaultCode::SourceMissing], "below a file");
    let visit = &mut |_| ControlFlow::Continue(());
    refused(storage.walk("none", visit), &[FaultCode::SourceMissing], "walking what is not there");
    refused(storage.walk("../x", visit), &[FaultCode::BadName], "walking out");
    refused(storage.walk("/etc", visit), &[FaultCode::BadName], "walking out");
}

fn deletion_is_careful(storage: &dyn Storage) {
    for path in ["d/e/f/a", "d/b"] {
        put(storage, path, b"x");
    }
    let a = at(storage, "d/e/f/a");
    let Some(identity) = done(storage.stat(&a), "stat") else { panic!("it is there") };
    let other = Identity { mtime_ns: identity.mtime_ns - 1, ..identity.clone() };
    refused(storage.delete(&a, &other), &[FaultCode::Conflict], "deleting something else");
    holds(storage, "d/e/f/a", b"x");
    for _ in 0..2 {
        done(storage.delete(&a, &identity), "deleting, twice");
    }
    if storage.capabilities().removes_empty_directories {
        assert_eq!(walked(storage, ""), ["d/b"], "with the directories that are empty now");
        put(storage, "d/e", b"a file where a directory was");
    } else {
        assert_eq!(walked(storage, ""), ["d/b", "EmptyDirectory d/e/f/"]);
    }
}

fn walks_are_ordered(storage: &dyn Storage) {
    let names = ["b", "a.txt", "a/z", "a/b/c", "a-", "a/b.d", "z"];
    names.iter().for_each(|path| put(storage, path, path.as_bytes()));
    assert_eq!(walked_by_name(storage, ""), ["a/b/c", "a/b.d", "a/z", "a-", "a.txt", "b", "z"]);
    assert_eq!(walked_by_name(storage, "a"), ["a/b/c", "a/b.d", "a/z"]);
    assert_eq!(walked(storage, "a/b/c"), ["a/b/c"]);
    let mut seen = 0;
    let walk = storage.walk("", &mut |visit| {
        seen += 1;
        if let Visit::File { at, identity } = visit {
            assert_eq!(identity.size, at.path().len() as u64);
            assert_eq!(storage.stat(&at), Ok(Some(identity)));
        }
        if seen == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    done(walk, "walk");
    assert_eq!(seen, 3, "a walk ends when it is told to");
}

fn digests_are_those_of_the_bytes(storage: &dyn Storage) {
    let bytes: Vec<u8> = (0..10_000u32).flat_map(u32::to_le_bytes).collect();
    put(storage, "a", &bytes);
    let mut hasher = Hasher::new(Algorithm::ALL.iter().copied());
    hasher.update(&bytes);
    let expected = hasher.finish();
    // One read larger than the file, one that divides its size, one that does not.
    for len in [1 << 20, 1_000, 777] {
        let algorithms = Algorithm::ALL.iter().copied();
        let read = digest_file(storage, &at(storage, "a"), algorithms, &mut vec![0; len]);
        let (found, identity) = done(read, "digest");
        assert_eq!((found, identity.size), (expected.clone(), bytes.len() as u64));
    }
}

/// For storages that are trees; the others pass.
fn directories_are_made_and_removed(storage: &dyn Storage) {
    let Some(tree) = storage.directories() else { return };
    let path = |path| at(storage, path);
    assert!(done(tree.stat_entry(""), "the root").is_some_and(|root| root.is_directory));
    done(tree.make_directory(&path("d")), "make");
    refused(tree.make_directory(&path("d")), &[FaultCode::NameClash], "make it twice");
    refused(tree.make_directory(&path("none/d")), &[FaultCode::Conflict], "in a missing one");
    refused(tree.make_directory(&path(".longhaul/d")), &[FaultCode::BadName], "in the work directory");
    put(storage, "d/a", b"x");
    refused(tree.make_directory(&path("d/a/b")), &[FaultCode::Conflict], "below a file");
    refused(tree.remove_directory(&path("d")), &[FaultCode::Conflict], "remove a full one");
    refused(tree.remove_directory(&path("d/a")), &[FaultCode::NameClash], "remove a file as a directory");
    let file = identity(storage, "d/a");
    let other = Identity { mtime_ns: file.mtime_ns - 1, ..file.clone() };
    refused(tree.remove_file(&path("d/a"), &other), &[FaultCode::Conflict], "remove another file");
    holds(storage, "d/a", b"x");
    for _ in 0..2 {
        done(tree.remove_file(&path("d/a"), &file), "remove the file, twice");
    }
    assert_eq!(done(tree.stat_entry("d/a"), "look"), None);
    let left = done(tree.stat_entry("d"), "look").map(|entry| (entry.name, entry.is_directory));
    assert_eq!(left, Some(("d".to_owned(), true)), "an empty directory stays");
    done(tree.remove_directory(&path("d")), "remove");
    refused(tree.remove_directory(&path("d")), &[FaultCode::SourceMissing], "remove it twice");
    assert_eq!(done(tree.stat_entry("d"), "look"), None);
    refused(tree.stat_entry(".longhaul"), &[FaultCode::BadName], "the work directory");
}

fn names_change_in_one_step(storage: &dyn Storage) {
    let Some(tree) = storage.directories() else { return };
    let path = |path| at(storage, path);
    for name in ["a", "b", "d/c"] {
        put(storage, name, name.as_bytes());
    }
    refused(tree.rename(&path("a"), &path("b"), None), &[FaultCode::NameClash], "over a file");
    let b = identity(storage, "b");
    let other = Identity { mtime_ns: b.mtime_ns - 1, ..b.clone() };
    refused(tree.rename(&path("a"), &path("b"), Some(&other)), &[FaultCode::NameClash], "over another");
    holds(storage, "b", b"b");
    done(tree.rename(&path("a"), &path("b"), Some(&b)), "over the expected one");
    holds(storage, "b", b"a");
    assert_eq!(done(tree.stat_entry("a"), "look"), None);
    refused(tree.rename(&path("a"), &path("x"), None), &[FaultCode::SourceMissing], "what is not there");
    refused(tree.rename(&path("b"), &path("none/x"), None), &[FaultCode::Conflict], "to a missing directory");
    refused(tree.rename(&path("b"), &path("d"), None), &[FaultCode::NameClash], "over a directory");
    done(tree.rename(&path("d"), &path("e"), None), "a directory");
    holds(storage, "e/c", b"d/c");
    let inside = tree.rename(&path("e"), &path("e/f"), None);
    refused(inside, &[FaultCode::Conflict], "a directory into itself");
    for (from, to) in [("b", ".longhaul/x"), (".longhaul", "x")] {
        refused(tree.rename(&path(from), &path(to), None), &[FaultCode::BadName], "the work directory");
    }
    assert_eq!(walked(storage, ""), ["b", "e/c"]);
}

fn directories_are_listed_page_by_page(storage: &dyn Storage) {
    let Some(tree) = storage.directories() else { return };
    let names = ["a", "b/inner", "c\nd", "é"];
    names.iter().for_each(|name| put(storage, name, name.as_bytes()));
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = done(tree.list("", after.as_deref(), 2), "list");
        assert!(page.entries.len() <= 2);
        found.extend(page.entries.into_iter().map(|entry| (entry.name, entry.is_directory)));
        after = page.more_after;
        if after.is_none() {
            break;
        }
    }
    let expected = [("a", false), ("b", true), ("c\nd", false), ("é", false)];
    assert_eq!(found, expected.map(|(name, is_directory)| (name.to_owned(), is_directory)));
    let inner = done(tree.list("b", None, 9), "list").entries;
    assert_eq!(inner[0].identity, identity(storage, "b/inner"));
    refused(tree.list("none", None, 9), &[FaultCode::SourceMissing], "what is not there");
    refused(tree.list("a", None, 9), &[FaultCode::SourceMissing], "a file");
}

fn space_is_told(storage: &dyn Storage) {
    let space = done(storage.space(), "space");
    if space.total_bytes == 0 && !storage.capabilities().always_tells_space {
        return;
    }
    assert!(space.free_bytes > 0 && space.free_bytes <= space.total_bytes, "{space:?}");
    refused(
        storage.create(&temp(1), Some(&at(storage, "a")), 1 << 62),
        &[FaultCode::TargetFull, FaultCode::TargetWrite],
        "four exabytes",
    );
    assert_eq!(done(storage.temps(), "temps"), [], "nothing stays of what did not fit");
}
