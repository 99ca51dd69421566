//! A server and directories, for the tests.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longhaul_copy::{
    CopyRequest, DataSecurity, Endpoint, FileOutcome, Options, Progress, ServeOptions, Server, Stop, Totals,
    copy,
};
use longhaul_model::Fault;

/// All that a copy has in flight.
const IN_FLIGHT_MAX: u64 = 27 << 20;

/// Directories and servers of one test.
pub struct Ground {
    pub directory: tempfile::TempDir,
}

impl Ground {
    pub fn new() -> Ground {
        Ground { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn make(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn serve(&self, name: &str, writable: bool) -> Server {
        Server::start(&serve_options(&self.make(name), writable)).unwrap()
    }
}

pub fn serve_options(root: &Path, writable: bool) -> ServeOptions {
    ServeOptions {
        root: root.to_owned(),
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        advertise: Vec::new(),
        writable,
        once: false,
        memory_bytes: longhaul_copy::MEMORY_BYTES,
        limit: None,
        data_security: DataSecurity::Tls,
        allow: Vec::new(),
        secret: None,
        party: None,
    }
}

/// Contents of a tree: bytes, permission bits and time of each file; only the bits of directories.
pub fn tree(root: &Path) -> BTreeMap<String, (Vec<u8>, u32, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            if metadata.is_dir() {
                found.insert(format!("{name}/"), (Vec::new(), 0, 0));
                left.push(path);
            } else if metadata.is_file() {
                let time = metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec();
                let mode = metadata.permissions().mode() & 0o777;
                found.insert(name, (std::fs::read(&path).unwrap(), mode, time));
            }
        }
    }
    found
}

pub fn recursive() -> Options {
    Options { recursive: true, ..Options::default() }
}

/// Options of a copy with this rate limit.
pub fn limited(bytes_per_s: u64) -> Options {
    Options { limit: Some(bytes_per_s), ..Options::default() }
}

/// Most bytes that a copy may have moved twice, by the time that it took.
pub fn resent_max(took: Duration, usual: Duration) -> u64 {
    longhaul_testkit::resent_max(took.saturating_sub(usual), IN_FLIGHT_MAX)
}

pub fn place(text: &str) -> Endpoint {
    Endpoint::parse(text).unwrap()
}

/// A path at a server.
pub fn at(server: &Server, path: &str) -> Endpoint {
    place(&server.url().reveal(path))
}

pub struct Ran {
    pub result: Result<(), Fault>,
    pub totals: Totals,
    pub failed: Vec<(String, Fault)>,
    pub told: Vec<FileOutcome>,
}

pub fn order(sources: Vec<Endpoint>, target: Endpoint, options: Options) -> CopyRequest {
    CopyRequest {
        sources,
        target,
        options,
        data_security: DataSecurity::Tls,
        detach: false,
        replicas: Vec::new(),
        blake3: None,
        circuit: None,
    }
}

pub fn run(sources: Vec<Endpoint>, target: Endpoint, options: Options) -> Ran {
    run_order(&order(sources, target, options), &Arc::default(), &Stop::default())
}

pub fn run_order(order: &CopyRequest, progress: &Arc<Progress>, stop: &Stop) -> Ran {
    let mut told = Vec::new();
    let result = copy(order, progress, stop, &mut |outcome| told.push(outcome.clone()));
    Ran { result, totals: progress.totals(), failed: progress.failed(), told }
}

impl Ran {
    #[track_caller]
    pub fn good(self) -> Self {
        assert!(self.result.is_ok(), "{:?}", self.result);
        assert!(self.failed.is_empty(), "{:?}", self.failed);
        self
    }
}
