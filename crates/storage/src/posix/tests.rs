//! What is particular to a real file system: links, devices, the order of system calls, a full disk.

mod alike;
mod escape;
mod faults;
mod tree;

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::seam::Hook;
use super::*;
use tempfile::TempDir;

fn options(root: &Path) -> PosixOptions {
    PosixOptions {
        name: "disk".parse().unwrap(),
        root: root.to_owned(),
        work: None,
        writable: true,
        flush: FlushPolicy::FileAndDirectory,
    }
}

fn at(path: &str) -> Pfn {
    Pfn::new("disk".parse().unwrap(), path).unwrap()
}

fn temp(number: u8) -> TempName {
    TempName::of_bytes([number; 16])
}

fn written(posix: &Posix, number: u8, path: &str, bytes: &[u8]) -> Commit {
    posix.create(&temp(number), bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
    Commit::new(temp(number), at(path), bytes.len() as u64)
}

fn code<T>(result: Result<T, Fault>) -> FaultCode {
    result.err().expect("an error").code
}

fn resolvers() -> [Resolver; 2] {
    [Resolver::Kernel, Resolver::Components]
}

/// The calls made, with what they were about.
type Log = Arc<Mutex<Vec<(Call, String)>>>;

fn logged() -> (Log, Seam) {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let hook: Hook = Arc::new(move |call, what| {
        kept.lock().unwrap().push((call, what.to_owned()));
        Ok(())
    });
    (log, Seam::with(hook))
}

/// Makes every call of one kind fail.
fn failing(which: Call, errno: Errno) -> Seam {
    Seam::with(Arc::new(move |call, _| if call == which { Err(errno) } else { Ok(()) }))
}

/// A storage that keeps its directory for as long as it is used.
struct Kept<S>(S, #[allow(dead_code, reason = "kept for its drop")] TempDir);

macro_rules! forward {
    ($($name:ident(&self $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {
        impl<S: Storage> Storage for Kept<S> {
            $(fn $name(&self $(, $argument: $kind)*) -> $result { self.0.$name($($argument),*) })*
        }
    };
}

forward! {
    name(&self) -> &StorageName;
    capabilities(&self) -> Capabilities;
    space(&self) -> Result<Space, Fault>;
    stat(&self, at: &Pfn) -> Result<Option<Identity>, Fault>;
    open(&self, at: &Pfn) -> Result<Box<dyn SourceFile>, Fault>;
    create(&self, temp: &TempName, size: u64) -> Result<Box<dyn TargetFile>, Fault>;
    reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault>;
    commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>>;
    flush_present(&self, at: &[Pfn]) -> Result<(), Fault>;
    temps(&self) -> Result<Vec<TempName>, Fault>;
    remove_temp(&self, temp: &TempName) -> Result<(), Fault>;
    delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;
    walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault>;
}

fn conforms(make: impl Fn(&Path) -> Posix, base: Option<&Path>) {
    crate::conformance::check(&|| {
        let directory = match base {
            Some(base) => tempfile::tempdir_in(base).unwrap(),
            None => tempfile::tempdir().unwrap(),
        };
        let posix = make(directory.path());
        Box::new(Kept(posix, directory))
    });
}

#[test]
fn conforms_in_both_ways_to_resolve() {
    for resolver in resolvers() {
        conforms(|root| Posix::open_with(options(root), Some(resolver), Seam::default()).unwrap(), None);
    }
}

#[test]
fn conforms_without_flushes_and_with_a_work_directory_elsewhere() {
    conforms(
        |root| {
            let storage = root.join("storage");
            std::fs::create_dir(&storage).unwrap();
            let work = Some(root.join("work/inner"));
            Posix::open(PosixOptions { work, flush: FlushPolicy::None, ..options(&storage) }).unwrap()
        },
        None,
    );
}

#[test]
fn conforms_where_the_file_system_can_do_less() {
    let lesser = |call: Call, _: &str| match call {
        Call::Rename => Err(Errno::INVAL),
        Call::Reserve => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    };
    conforms(|root| Posix::open_with(options(root), None, Seam::with(Arc::new(lesser))).unwrap(), None);
    // Every file and directory flushed by itself, for file systems whose whole cannot be.
    conforms(
        |root| {
            let posix = Posix::open(options(root)).unwrap();
            let mut work = Work::prepare(&posix.beneath, None, FlushPolicy::None).unwrap();
            work.flushed_as_a_whole = false;
            *posix.work.lock().unwrap() = Some(Arc::new(work));
            posix
        },
        None,
    );
}

#[test]
fn conforms_on_tmpfs() {
    let tmpfs = Path::new("/dev/shm");
    if tmpfs.is_dir() {
        conforms(|root| Posix::open(options(root)).unwrap(), Some(tmpfs));
    }
}
