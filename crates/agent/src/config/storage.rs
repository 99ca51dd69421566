//! `[[agent.storages]]`: one exported storage.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use longhaul_api::agent::StorageOffer;
use longhaul_model::rules::{NameRule, OwnNames};
use longhaul_model::{Fault, FaultCode, Lfn, NameRules, StorageKind, StorageName};
use longhaul_storage::{
    DirectIo, FlushPolicy, PoolOptions, PooledStorage, Posix, PosixOptions, PosixTuning, Storage,
};
use serde::{Deserialize, Serialize};

use super::hooks::HooksConfig;
use super::mover::MoverConfig;
use super::pools::{PoolConfig, check_pools};
use super::server::ServerConfig;
use super::tape::TapeConfig;

/// Maximum number of names with which rules are tested at each start.
const RULES_TEST_MAX: usize = 1_000;

/// One exported storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StorageConfig {
    /// Unique in the deployment; the site's first storage usually bears the site's name.
    pub name: StorageName,
    /// What holds the files: a directory of this host, one in front of a tape system, a collection of a
    /// WebDAV server, a bucket, or nothing at all. A virtual storage makes what is read from it, and checks
    /// and drops what is written to it.
    #[serde(default)]
    pub kind: StorageKind,
    /// Nothing outside this directory is ever read or written. Only a directory of this host has one.
    #[serde(default)]
    pub root: PathBuf,
    /// The file systems that the storage consists of, in place of one root.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolConfig>,
    /// The server of a storage of kind `webdav` or `s3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerConfig>,
    /// Where files lie before they are complete; must be on the same file system. Default: `.longhaul` in the
    /// root.
    #[serde(default)]
    pub work: Option<PathBuf>,
    /// Whether the storage accepts files.
    #[serde(default = "yes")]
    pub writable: bool,
    /// Other agents of the site serve the same root, on hosts of their own: each says so here.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared: bool,
    /// The first matching rule gives the path. Default: LFN and path are spelled alike.
    #[serde(default = "default_rules")]
    pub rules: Vec<NameRule>,
    /// Must be raised with each change of `rules` and their settings.
    #[serde(default = "default_rules_version")]
    pub rules_version: u32,
    /// The protocol whose names are those of the storage's own files.
    #[serde(default = "default_rules_protocol")]
    pub rules_protocol: String,
    /// Prefix of such a name for `root`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rules_base: String,
    /// Whether rules for custodial copies are meant.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rules_custodial: bool,
    /// Names that must map to paths and back, or the agent does not start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules_test: Vec<Lfn>,
    #[serde(default)]
    pub flush: Flush,
    /// The file system is append-only: files are written sequentially.
    #[serde(default)]
    pub append_only: bool,
    /// Whether large files bypass the page cache, as far as the file system can; none: for writing, while the
    /// disk is fast.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct_io: Option<bool>,
    /// Concurrent reads, and as many writes; 0: the default.
    #[serde(default)]
    pub parallel: u16,
    /// The site's own commands before and after each fetched file, and for deletions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hooks: Option<HooksConfig>,
    /// The storage is tape-backed: the site's own commands stage and migrate files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tape: Option<TapeConfig>,
    /// The site's own command that fetches files in place of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mover: Option<MoverConfig>,
}

/// What is flushed before a file counts as complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flush {
    /// The file's data, then its directory: a power cut loses nothing that was reported.
    #[default]
    FileAndDirectory,
    /// Nothing: a power cut may lose what was reported. For storages in memory.
    None,
}

impl StorageConfig {
    /// A writable storage with every default.
    pub fn new(name: StorageName, root: impl Into<PathBuf>) -> Self {
        StorageConfig {
            name,
            kind: StorageKind::Posix,
            root: root.into(),
            pools: Vec::new(),
            server: None,
            work: None,
            writable: true,
            shared: false,
            rules: default_rules(),
            rules_version: default_rules_version(),
            rules_protocol: default_rules_protocol(),
            rules_base: String::new(),
            rules_custodial: false,
            rules_test: Vec::new(),
            flush: Flush::default(),
            append_only: false,
            direct_io: None,
            parallel: 0,
            hooks: None,
            tape: None,
            mover: None,
        }
    }

    /// A virtual storage that may be read and written.
    pub fn new_virtual(name: StorageName) -> Self {
        StorageConfig { kind: StorageKind::Virtual, ..StorageConfig::new(name, "") }
    }

    pub(super) fn check_kind(&self, null_mover: bool) -> Result<(), String> {
        let name = &self.name;
        let rooted = !self.root.as_os_str().is_empty();
        if self.shared {
            self.check_shared()?;
        }
        if !self.pools.is_empty() {
            return self.check_pools(rooted, null_mover);
        }
        match self.kind {
            kind if null_mover && kind != StorageKind::Virtual => Err(format!(
                "storage {name}: beside a null mover all storages have to be virtual (kind = \"virtual\"), \
                 since it reports files as brought that are not"
            )),
            StorageKind::Posix | StorageKind::Tape if !rooted => Err(format!(
                "storage {name}: root is missing: the directory that is exported; or pools, a table \
                     [[agent.storages.pools]] for each file system"
            )),
            StorageKind::Tape if self.tape.is_none() => Err(format!(
                "storage {name}: tape is missing: a table [agent.storages.tape] with the site's commands"
            )),
            StorageKind::Posix | StorageKind::Tape | StorageKind::Virtual if self.server.is_some() => {
                Err(format!("storage {name}: server belongs to storages of kind = \"webdav\" or \"s3\""))
            }
            StorageKind::Webdav | StorageKind::S3 => self.check_remote(rooted),
            StorageKind::Virtual if rooted || self.work.is_some() => {
                Err(format!("storage {name}: a virtual storage has no directory: leave out root and work"))
            }
            StorageKind::Virtual if self.hooks.is_some() || self.mover.is_some() => {
                Err(format!("storage {name}: a virtual storage has no files: leave out hooks and mover"))
            }
            StorageKind::Virtual if self.tape.is_some() => {
                Err(format!("storage {name}: a virtual storage is on no tape: leave out tape"))
            }
            StorageKind::Virtual if self.append_only || self.direct_io.is_some() || self.parallel > 0 => {
                Err(format!(
                    "storage {name}: a virtual storage has no disk: leave out append_only, direct_io and \
                        parallel"
                ))
            }
            _ => Ok(()),
        }
    }

    fn check_pools(&self, rooted: bool, null_mover: bool) -> Result<(), String> {
        let name = &self.name;
        if self.kind != StorageKind::Posix || null_mover {
            return Err(format!(
                "storage {name}: pools belong to storages of kind = \"posix\": leave them out"
            ));
        }
        if rooted || self.work.is_some() || self.shared {
            return Err(format!(
                "storage {name}: each pool has a root and a work directory of its own, on this host: leave \
                 out root, work and shared"
            ));
        }
        if self.hooks.is_some() || self.mover.is_some() || self.tape.is_some() || self.server.is_some() {
            return Err(format!(
                "storage {name}: the site's commands know one directory, and not pools: leave out hooks, \
                 mover, tape and server"
            ));
        }
        check_pools(&self.pools).map_err(|why| format!("storage {name}: {why}"))
    }

    fn check_shared(&self) -> Result<(), String> {
        let name = &self.name;
        if self.offered_kind() != StorageKind::Posix && self.tape.is_none() {
            return Err(format!(
                "storage {name}: shared belongs to storages of kind = \"posix\": leave it out, or give the \
                 storages of the agents names of their own"
            ));
        }
        if self.work.is_some() || self.tape.is_some() {
            return Err(format!(
                "storage {name}: a shared storage keeps its temporary files in its root, and its agents know \
                 of no common queue for tape: leave out work and tape"
            ));
        }
        Ok(())
    }

    fn check_remote(&self, rooted: bool) -> Result<(), String> {
        let name = &self.name;
        if rooted || self.work.is_some() || self.append_only || self.direct_io.is_some() {
            return Err(format!(
                "storage {name}: a storage that a server holds has no directory here: leave out root, work, \
                 append_only and direct_io"
            ));
        }
        if self.hooks.is_some() || self.mover.is_some() || self.tape.is_some() {
            return Err(format!(
                "storage {name}: the site's commands work on directories of this host: leave out hooks, \
                 mover and tape"
            ));
        }
        let Some(server) = &self.server else {
            return Err(format!(
                "storage {name}: server is missing: a table [agent.storages.server] with url"
            ));
        };
        server.check(self.kind).map_err(|why| format!("storage {name}: server: {why}"))
    }

    /// A directory with a tape system behind it is on tape, also where the configuration does not name the
    /// kind.
    fn offered_kind(&self) -> StorageKind {
        match self.kind {
            StorageKind::Posix if self.tape.is_some() => StorageKind::Tape,
            kind => kind,
        }
    }

    pub fn name_rules(&self) -> NameRules {
        NameRules {
            version: self.rules_version,
            rules: self.rules.clone(),
            own: OwnNames {
                protocol: self.rules_protocol.clone(),
                base: self.rules_base.clone(),
                custodial: self.rules_custodial,
            },
        }
    }

    /// Checks the rules and the site's own test names.
    pub fn check_rules(&self) -> Result<(), Fault> {
        let wrong = |why: String| {
            Err(Fault::new(FaultCode::BadName, format!("name rules of storage {}: {why}", self.name)))
        };
        if self.rules_test.len() > RULES_TEST_MAX {
            return wrong(format!("rules_test holds {RULES_TEST_MAX} names at most"));
        }
        let rules = self.name_rules();
        rules.check().or_else(|error| wrong(error.to_string()))?;
        rules.try_names(&self.name, &self.rules_test).or_else(|error| wrong(format!("rules_test: {error}")))
    }

    /// Opens the pools that the storage consists of.
    pub(crate) fn open_pools(&self) -> Result<PooledStorage, Fault> {
        let (begun, tuning) = (Instant::now(), self.posix_tuning());
        let pool = |config: &PoolConfig| {
            let options = PosixOptions { root: config.root.clone(), ..self.posix() };
            let open = move || {
                let pool = Posix::open_in(options.clone(), tuning)?;
                Ok(Arc::new(pool) as Arc<dyn Storage>)
            };
            PoolOptions { name: config.name.clone(), open: Box::new(open), state: config.state }
        };
        let clock = Arc::new(move || begun.elapsed());
        PooledStorage::open(self.name.clone(), self.pools.iter().map(pool).collect(), clock)
    }

    pub(crate) fn posix(&self) -> PosixOptions {
        PosixOptions {
            name: self.name.clone(),
            root: self.root.clone(),
            work: self.work.clone(),
            writable: self.writable,
            flush: match self.flush {
                Flush::FileAndDirectory => FlushPolicy::FileAndDirectory,
                Flush::None => FlushPolicy::None,
            },
        }
    }

    pub(crate) fn posix_tuning(&self) -> PosixTuning {
        PosixTuning {
            append_only: self.append_only,
            direct_io: match self.direct_io {
                None => DirectIo::default(),
                Some(true) => DirectIo::Always,
                Some(false) => DirectIo::Never,
            },
            parallel: (self.parallel > 0).then_some(self.parallel),
        }
    }

    pub(crate) fn offer(&self, writable: bool, case_insensitive: bool) -> StorageOffer {
        StorageOffer {
            name: self.name.clone(),
            kind: self.offered_kind(),
            rules: self.name_rules(),
            writable,
            case_insensitive,
            root_mark: None,
            shared: self.shared,
        }
    }
}

fn yes() -> bool {
    true
}

fn is_false(value: &bool) -> bool {
    !value
}

fn default_rules() -> Vec<NameRule> {
    NameRules::default().rules
}

fn default_rules_protocol() -> String {
    OwnNames::default().protocol
}

fn default_rules_version() -> u32 {
    NameRules::default().version
}
