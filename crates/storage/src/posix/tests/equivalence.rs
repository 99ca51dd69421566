//! Equivalence of the disk and the in-memory store (model-based testing), so that tests of other crates with
//! the one hold for the other.

use super::*;
use crate::memory::FaultyStore;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Create(u8, usize),
    Reopen(u8, u64),
    RemoveTemp(u8),
    /// Temporary files with their final names; the size of each is its number.
    Commit(Vec<(u8, String)>),
    /// The same for one, in place of an existing file, with a time.
    Replace(u8, String, bool),
    Stat(String),
    Read(String),
    Delete(String),
    FlushPresent(String),
    Walk(String),
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]", 1..4).prop_map(|names| names.join("/"))
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0..4u8;
    let commit = || (0..4u8, path());
    prop_oneof![
        4 => number.clone().prop_map(|number| Step::Create(number, usize::from(number))),
        1 => (number.clone(), 0..6usize).prop_map(|(number, size)| Step::Create(number, size)),
        1 => (number.clone(), 0..6u64).prop_map(|(number, size)| Step::Reopen(number, size)),
        1 => number.prop_map(Step::RemoveTemp),
        4 => proptest::collection::vec(commit(), 1..4).prop_map(Step::Commit),
        3 => (commit(), any::<bool>()).prop_map(|((number, path), right)| Step::Replace(number, path, right)),
        1 => path().prop_map(Step::Stat),
        1 => path().prop_map(Step::Read),
        2 => path().prop_map(Step::Delete),
        1 => path().prop_map(Step::FlushPresent),
        1 => prop_oneof![Just(String::new()), path()].prop_map(Step::Walk),
    ]
}

/// The observable result of one step, without storage-specific numbers.
fn take(storage: &dyn Storage, step: &Step) -> String {
    match step {
        Step::Create(number, size) => {
            let made = storage.create(&temp(*number), None, *size as u64);
            seen(made.and_then(|file| file.write_at(&vec![*number; *size], 0)))
        }
        Step::Reopen(number, size) => seen(storage.reopen(&temp(*number), *size).map(|file| file.is_some())),
        Step::RemoveTemp(number) => seen(storage.remove_temp(&temp(*number))),
        Step::Commit(wanted) => {
            let item =
                |(number, path): &(u8, String)| Commit::new(temp(*number), at(path), u64::from(*number));
            // One by one: within a batch the order of names is the storage's own choice.
            let results = wanted.iter().flat_map(|one| storage.commit(&[item(one)])).map(seen);
            results.collect::<Vec<_>>().join(" ")
        }
        Step::Replace(number, path, right) => {
            let there = storage.stat(&at(path)).ok().flatten();
            let there = there.unwrap_or(Identity { size: 0, mtime_ns: 0, inode: 0 });
            let replaces = Identity { mtime_ns: there.mtime_ns + i64::from(!right), ..there };
            // Independent of clocks and counters.
            let time = -1_000 * i64::from(*number);
            let mut item = Commit::new(temp(*number), at(path), u64::from(*number));
            (item.replaces, item.mtime_ns) = (Some(replaces), Some(time));
            let result = seen(storage.commit(&[item]).remove(0));
            result
                + &seen(storage.stat(&at(path)).map(|found| found.map(|identity| identity.mtime_ns == time)))
        }
        Step::Stat(path) => seen(storage.stat(&at(path)).map(|found| found.map(|identity| identity.size))),
        Step::Read(path) => seen(storage.open(&at(path)).and_then(|file| {
            let mut bytes = [0; 8];
            let len = file.read_at(&mut bytes, 0)?;
            Ok(bytes[..len].to_vec())
        })),
        Step::Delete(path) => {
            let identity = storage.stat(&at(path)).ok().flatten();
            let identity = identity.unwrap_or(Identity { size: 0, mtime_ns: 0, inode: 0 });
            seen(storage.delete(&at(path), &identity))
        }
        Step::FlushPresent(path) => seen(storage.flush_present(&[at(path)])),
        Step::Walk(path) => {
            let mut found = Vec::new();
            let visit = &mut |visit| {
                found.push(match visit {
                    Visit::File { at, identity } => format!("{} {}", at.path(), identity.size),
                    left_out => format!("{left_out:?}"),
                });
                ControlFlow::Continue(())
            };
            seen(storage.walk(path, visit)) + &found.join(" ")
        }
    }
}

fn seen<T: std::fmt::Debug>(result: Result<T, Fault>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(fault) => format!("{:?} {:?}", fault.code, fault.blame),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]

    #[test]
    fn disk_and_memory_are_equivalent(steps in proptest::collection::vec(step(), 1..40)) {
        let root = tempfile::tempdir().unwrap();
        let disk = Posix::open(PosixOptions { flush: FlushPolicy::None, ..options(root.path()) }).unwrap();
        let memory = FaultyStore::new("disk".parse().unwrap());
        for step in &steps {
            prop_assert_eq!(take(&disk, step), take(&memory, step), "{:?}", step);
        }
        prop_assert_eq!(disk.temps().unwrap(), memory.temps().unwrap());
    }
}
