//! Configuration of the client of remote storages. Defaults are those of gfal2 and FTS, which peers are used
//! to.

use std::path::PathBuf;
use std::time::Duration;

use longhaul_model::address::IpNetwork;

/// Certificate authorities that are trusted to identify storages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The authorities of the system.
    #[default]
    System,
    /// The certificates in these files, PEM.
    Files(Vec<PathBuf>),
    /// These certificates, PEM.
    Pem(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteConfig {
    pub trust: Trust,
    /// Loopback, link-local and private addresses that may be dialled all the same.
    pub allow: Vec<IpNetwork>,
    /// Hosts (`pool.example.org`, or `.example.org` for all below) to which credentials go along when a
    /// storage redirects there. To all others go none.
    pub redirect_hosts: Vec<String>,
    /// Whether a checksum that a storage does not tell is computed by reading the file.
    pub checksum_by_reading: bool,
    /// Rate limit of all reads of all copies together; none: no limit.
    pub bytes_per_s: Option<u64>,
    pub times: Times,
    pub s3: S3Config,
}

/// How files are sent to storages that speak S3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Config {
    /// Files up to this are sent whole, larger ones in parts of at least this. S3 takes no parts below 5 MiB.
    pub part_bytes: u64,
    /// Parts that are in memory, of all copies together; further ones wait.
    pub memory_bytes: u64,
    /// Where is written which files are half sent, so that a process that comes after us can go on with them;
    /// none: nowhere.
    pub records: Option<PathBuf>,
}

impl Default for S3Config {
    fn default() -> S3Config {
        S3Config { part_bytes: 16 << 20, memory_bytes: 512 << 20, records: None }
    }
}

/// Timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// Resolving, connecting and the handshake.
    pub connect: Duration,
    /// The head of an answer.
    pub answer: Duration,
    /// The head of an answer for which a storage may have to read a whole file.
    pub checksum: Duration,
    /// Silence: no byte of data, no marker of a third-party copy.
    pub stall: Duration,
    /// Markers without progress.
    pub progress: Duration,
    /// A whole copy, to which `copy_per_mib` is added for each MiB.
    pub copy: Duration,
    pub copy_per_mib: Duration,
    /// The wait for 100 Continue; then the body is sent without it.
    pub may_send: Duration,
    /// Cleaning up after a failure.
    pub cleanup: Duration,
}

const MIB: u64 = 1 << 20;

impl Times {
    /// How long the copy of a file of `size` bytes may take.
    pub(crate) fn copy_of(&self, size: u64) -> Duration {
        let mebibytes = u32::try_from(size.div_ceil(MIB)).unwrap_or(u32::MAX);
        self.copy.saturating_add(self.copy_per_mib.saturating_mul(mebibytes))
    }
}

impl Default for Times {
    fn default() -> Times {
        Times {
            connect: Duration::from_secs(60),
            answer: Duration::from_secs(120),
            // gfal2's timeout for a checksum that has to be computed.
            checksum: Duration::from_secs(1_800),
            stall: Duration::from_secs(60),
            progress: Duration::from_secs(180),
            copy: Duration::from_secs(600),
            copy_per_mib: Duration::from_secs(2),
            may_send: Duration::from_secs(2),
            cleanup: Duration::from_secs(30),
        }
    }
}

impl Default for RemoteConfig {
    fn default() -> RemoteConfig {
        RemoteConfig {
            trust: Trust::default(),
            allow: Vec::new(),
            redirect_hosts: Vec::new(),
            checksum_by_reading: true,
            bytes_per_s: None,
            times: Times::default(),
            s3: S3Config::default(),
        }
    }
}
