//! Tests of a real file system: links, devices, the order of system calls, a full disk.

mod confinement;
mod equivalence;
mod faults;
mod fencing;
mod tree;

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::fault_injector::Hook;
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
    TempName::from_bytes([number; 16])
}

fn written(posix: &Posix, number: u8, path: &str, bytes: &[u8]) -> Commit {
    posix.create(&temp(number), None, bytes.len() as u64).unwrap().write_at(bytes, 0).unwrap();
    Commit::new(temp(number), at(path), bytes.len() as u64)
}

fn code<T>(result: Result<T, Fault>) -> FaultCode {
    result.err().expect("an error").code
}

fn resolvers() -> [Resolver; 2] {
    [Resolver::Kernel, Resolver::Components]
}

/// The recorded calls with their subjects.
type Log = Arc<Mutex<Vec<(Syscall, String)>>>;

fn logged() -> (Log, FaultInjector) {
    let log = Log::default();
    let kept = Arc::clone(&log);
    let hook: Hook = Arc::new(move |call, what| {
        kept.lock().push((call, what.to_owned()));
        Ok(())
    });
    (log, FaultInjector::with(hook))
}

/// Makes every call of one kind fail.
fn failing(which: Syscall, errno: Errno) -> FaultInjector {
    FaultInjector::with(Arc::new(move |call, _| if call == which { Err(errno) } else { Ok(()) }))
}

/// A storage that keeps its directory alive.
struct WithDirectory<S>(S, #[allow(dead_code, reason = "kept for its drop")] TempDir);

macro_rules! forward {
    ($($name:ident(&self $(, $argument:ident: $kind:ty)*) -> $result:ty;)*) => {
        impl<S: Storage> Storage for WithDirectory<S> {
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
    open_with_cache(&self, at: &Pfn, directory_cache: &mut DirectoryCache) -> Result<Box<dyn SourceFile>,
        Fault>;
    create(&self, temp: &TempName, target: Option<&Pfn>, size: u64) -> Result<Box<dyn TargetFile>, Fault>;
    put(&self, item: &Commit, bytes: &[u8]) -> Result<(), Fault>;
    reopen(&self, temp: &TempName, size: u64) -> Result<Option<Box<dyn TargetFile>>, Fault>;
    commit(&self, batch: &[Commit]) -> Vec<Result<(), Fault>>;
    flush_present(&self, at: &[Pfn]) -> Result<(), Fault>;
    temps(&self) -> Result<Vec<TempName>, Fault>;
    remove_temp(&self, temp: &TempName) -> Result<(), Fault>;
    delete(&self, at: &Pfn, expected: &Identity) -> Result<(), Fault>;
    walk(&self, path: &str, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) -> Result<(), Fault>;
    directories(&self) -> Option<&dyn Directories>;
}

fn conforms(make: impl Fn(&Path) -> Posix, base: Option<&Path>) {
    crate::conformance::check(&|| {
        let directory = match base {
            Some(base) => tempfile::tempdir_in(base).unwrap(),
            None => tempfile::tempdir().unwrap(),
        };
        let posix = make(directory.path());
        Box::new(WithDirectory(posix, directory))
    });
}

#[test]
fn conforms_with_both_resolvers() {
    for resolver in resolvers() {
        conforms(
            |root| {
                Posix::open_with(
                    options(root),
                    PosixTuning::default(),
                    Some(resolver),
                    FaultInjector::default(),
                )
                .unwrap()
            },
            None,
        );
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
fn conforms_on_limited_file_systems() {
    let lesser = |call: Syscall, _: &str| match call {
        Syscall::Rename => Err(Errno::INVAL),
        Syscall::Reserve => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    };
    conforms(
        |root| {
            Posix::open_with(
                options(root),
                PosixTuning::default(),
                None,
                FaultInjector::with(Arc::new(lesser)),
            )
            .unwrap()
        },
        None,
    );
    // Every file and directory flushed by itself, for file systems without `syncfs`.
    conforms(
        |root| {
            let posix = Posix::open(options(root)).unwrap();
            let mut work = WorkDirectory::prepare(&posix.rooted_tree, None, None, FlushPolicy::None).unwrap();
            work.flushed_as_a_whole = false;
            *posix.work.lock() = Some(Arc::new(work));
            posix
        },
        None,
    );
}

fn with_tuning(root: &Path, tuning: PosixTuning, fault_injector: FaultInjector) -> Posix {
    Posix::open_with(options(root), tuning, None, fault_injector).unwrap()
}

#[test]
fn conforms_when_append_only() {
    let tuning = PosixTuning { append_only: true, ..PosixTuning::default() };
    conforms(|root| with_tuning(root, tuning, FaultInjector::default()), None);
}

#[test]
fn conforms_with_direct_io_and_where_it_is_refused() {
    let tuning = PosixTuning { direct_io: DirectIo::Always, ..PosixTuning::default() };
    conforms(|root| with_tuning(root, tuning, FaultInjector::default()), None);
    conforms(|root| with_tuning(root, tuning, failing(Syscall::OpenDirect, Errno::INVAL)), None);
}

/// Page-aligned memory.
fn aligned(bytes: &mut Vec<u8>, len: usize) -> &mut [u8] {
    bytes.resize(len + 4096, 0);
    let start = bytes.as_ptr().align_offset(4096);
    &mut bytes[start..start + len]
}

/// Unaligned ends, offsets and memory use buffered I/O; together the parts are the file.
#[test]
fn aligned_and_unaligned_parts_make_one_file() {
    const LEN: usize = (2 << 20) + 12_345;
    let root = tempfile::tempdir().unwrap();
    let tuning = PosixTuning { direct_io: DirectIo::Always, ..PosixTuning::default() };
    let posix = with_tuning(root.path(), tuning, FaultInjector::default());
    let mut memory = Vec::new();
    let bytes = aligned(&mut memory, LEN);
    bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = (place / 3) as u8);
    let file = posix.create(&temp(1), None, LEN as u64).unwrap();
    file.write_at(&bytes[1 << 20..], 1 << 20).unwrap();
    file.write_at(&bytes[..5_000], 0).unwrap();
    file.write_at(&bytes[5_000..1 << 20], 5_000).unwrap();
    let mut back = Vec::new();
    let back = aligned(&mut back, LEN);
    assert_eq!(file.read_at(back, 0).unwrap(), LEN);
    assert!(back == bytes);
    file.flush().unwrap();
    drop(file);
    assert_eq!(posix.commit(&[Commit::new(temp(1), at("a"), LEN as u64)]), [Ok(())]);
    let source = posix.open(&at("a")).unwrap();
    for (offset, len) in [(0, LEN), (4_096, 1 << 20), (4_096, 1_000), (77, 9_000), (2 << 20, 1 << 20)] {
        let want = &bytes[offset..LEN.min(offset + len)];
        back.fill(0);
        let most = len.min(back.len());
        assert_eq!(source.read_at(&mut back[..most], offset as u64).unwrap(), want.len(), "{offset} {len}");
        assert!(&back[..want.len()] == want, "{offset} {len}");
    }
}

/// One refusal suffices: the file system is not asked again.
#[test]
fn a_refusal_is_remembered() {
    let root = tempfile::tempdir().unwrap();
    let (log, _) = logged();
    let kept = Arc::clone(&log);
    let hook: Hook = Arc::new(move |call, what| {
        kept.lock().push((call, what.to_owned()));
        if call == Syscall::OpenDirect { Err(Errno::INVAL) } else { Ok(()) }
    });
    let tuning = PosixTuning { direct_io: DirectIo::Always, ..PosixTuning::default() };
    let posix = with_tuning(root.path(), tuning, FaultInjector::with(hook));
    let large = longhaul_model::limits::SMALL_FILE_BYTES + 1;
    for number in 1..4 {
        posix.create(&temp(number), None, large).unwrap();
    }
    let asked = log.lock().iter().filter(|call| call.0 == Syscall::OpenDirect).count();
    assert_eq!((asked, posix.direct_writes.is_on()), (1, false));
}

/// By default only writes use direct I/O, and only on file systems known to benefit.
#[test]
fn writes_use_direct_io_by_default_and_reads_do_not() {
    const LEN: usize = 2 << 20;
    let wishes =
        [(DirectIo::FastWrites, None), (DirectIo::FastWrites, Some("/dev/shm")), (DirectIo::Never, None)];
    for (direct_io, place) in wishes {
        let root = match place {
            Some(place) if !Path::new(place).is_dir() => continue,
            Some(place) => tempfile::tempdir_in(place).unwrap(),
            None => tempfile::tempdir().unwrap(),
        };
        let kind = fs::statfs(root.path()).unwrap().f_type;
        let (log, fault_injector) = logged();
        let posix =
            with_tuning(root.path(), PosixTuning { direct_io, ..PosixTuning::default() }, fault_injector);
        let mut memory = Vec::new();
        let bytes = aligned(&mut memory, LEN);
        bytes.iter_mut().enumerate().for_each(|(place, byte)| *byte = (place / 5) as u8);
        let file = posix.create(&temp(1), None, LEN as u64).unwrap();
        file.write_at(bytes, 0).unwrap();
        drop(file);
        assert_eq!(posix.commit(&[Commit::new(temp(1), at("a"), LEN as u64)]), [Ok(())]);
        let mut back = Vec::new();
        let back = aligned(&mut back, LEN);
        let source = posix.open(&at("a")).unwrap();
        let mut read = |source: &dyn SourceFile| {
            back.fill(0);
            assert_eq!(source.read_at(back, 0).unwrap(), LEN);
            assert!(back == &bytes[..]);
        };
        read(&*source);
        // Bytes that are only in the cache so far.
        std::fs::write(root.path().join("a"), &bytes[..]).unwrap();
        read(&*source);
        let opened = log.lock().iter().filter(|call| call.0 == Syscall::OpenDirect).count();
        let is_of_use = direct_io == DirectIo::FastWrites && [0xef53, 0x5846_5342].contains(&kind);
        assert_eq!(opened, usize::from(is_of_use), "{direct_io:?} {kind:x}");
    }
}

#[test]
fn conforms_on_tmpfs() {
    let tmpfs = Path::new("/dev/shm");
    if tmpfs.is_dir() {
        conforms(|root| Posix::open(options(root)).unwrap(), Some(tmpfs));
    }
}
