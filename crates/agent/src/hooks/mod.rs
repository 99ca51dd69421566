//! A site's hooks: commands before and after each file that is fetched, and for each that is deleted. Their
//! contract is that of PhEDEx's download agent, so that existing scripts go on working:
//!
//! ```text
//! validate WORDS… pre|0 PFN SIZE CHECKSUMS n       delete WORDS… PFN
//! ```
//!
//! Before a transfer, `validate` may say that the file is there already (exit code 0) or not wanted (86);
//! with any other code the transfer begins. After a transfer its verdict is final: any code but 0 fails the
//! attempt, and `delete` then undoes what the site made of the file. The file itself is complete and
//! verified; it stays, so that the next attempt only has to be validated.
//!
//! Not here: when files are fetched or deleted. Start with [`Hooks`]; `mover` puts it around the engine.

mod mover;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_engine::FetchFile;
use longhaul_model::{Blame, DigestSet, Fault, FaultCode, NameRules, Pfn, Retry, StorageName};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::command::{self, CommandExit, CommandSpec};
use crate::config::StorageConfig;
use crate::config::hooks::HooksConfig;
pub(crate) use mover::start;

/// Exit code with which `validate` refuses a file for good.
const VETO_EXIT_CODE: i32 = 86;

/// The hooks of all storages of an agent.
pub(crate) struct Hooks {
    by_storage: BTreeMap<StorageName, StorageHooks>,
    runtime: Handle,
}

struct StorageHooks {
    config: HooksConfig,
    root: PathBuf,
    rules: NameRules,
    slots: Semaphore,
}

/// Verdict of `validate` before a transfer.
#[derive(Debug, PartialEq)]
enum PreTransferVerdict {
    Begin,
    AlreadyThere,
    Vetoed(Fault),
}

impl Hooks {
    /// None if no storage has hooks. Must be called within a runtime.
    pub(crate) fn from_storages(storages: &[StorageConfig]) -> Result<Option<Hooks>, Fault> {
        let mut of = BTreeMap::new();
        for storage in storages {
            let Some(config) = storage.hooks.clone() else { continue };
            let slots = Semaphore::new(config.at_once);
            let (root, rules) = (storage.root.clone(), storage.name_rules());
            of.insert(storage.name.clone(), StorageHooks { config, root, rules, slots });
        }
        if of.is_empty() {
            return Ok(None);
        }
        let runtime = Handle::try_current()
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
        Ok(Some(Hooks { by_storage: of, runtime }))
    }

    fn validating(&self, storage: &StorageName) -> Option<&StorageHooks> {
        self.by_storage.get(storage).filter(|of| !of.config.validate.is_empty())
    }

    /// Runs the storage's `delete`, if it has one. Not to be called from the runtime's own threads.
    pub(crate) fn delete(&self, at: &Pfn) -> Result<(), Fault> {
        match self.by_storage.get(&at.storage) {
            Some(of) => self.runtime.block_on(of.delete(at)),
            None => Ok(()),
        }
    }
}

impl StorageHooks {
    async fn validate_before(&self, storage: &StorageName, file: &FetchFile) -> PreTransferVerdict {
        let ended = match self.validate(storage, "pre", file, &file.digests).await {
            Ok(ended) => ended,
            Err(fault) => {
                tracing::warn!(lfn = %file.lfn, fault = %fault.chain(),
                    "a file is not validated before its transfer");
                return PreTransferVerdict::Begin;
            }
        };
        match ended.code {
            Some(0) => PreTransferVerdict::AlreadyThere,
            // Not a failure of any side, and a later attempt would not change it.
            Some(VETO_EXIT_CODE) => {
                let fault = refusal("does not want", &file.lfn, &ended);
                PreTransferVerdict::Vetoed(fault.blaming(Blame::Request).retrying(Retry::Never))
            }
            _ => PreTransferVerdict::Begin,
        }
    }

    /// Whether the site accepts an arrived file.
    async fn validate_after(
        &self,
        storage: &StorageName,
        file: &FetchFile,
        found: &DigestSet,
    ) -> Result<(), Fault> {
        let ended = self.validate(storage, "0", file, found).await?;
        if ended.code == Some(0) {
            return Ok(());
        }
        let fault = refusal("does not take", &file.lfn, &ended);
        let at = self.pfn(storage, file)?;
        if let Err(another) = self.delete(&at).await {
            tracing::warn!(lfn = %file.lfn, fault = %another, "what the site made of a file that it refuses \
                stays");
        }
        Err(fault)
    }

    async fn validate(
        &self,
        storage: &StorageName,
        when: &str,
        file: &FetchFile,
        digests: &DigestSet,
    ) -> Result<CommandExit, Fault> {
        let at = self.pfn(storage, file)?;
        let checksums: Vec<String> = digests.iter().map(ToString::to_string).collect();
        // The last argument means custodial: always no.
        let more = [when.into(), self.path(&at), file.size.to_string(), checksums.join(","), "n".into()];
        self.run(&self.config.validate, &more).await
    }

    async fn delete(&self, at: &Pfn) -> Result<(), Fault> {
        if self.config.delete.is_empty() {
            return Ok(());
        }
        let ended = self.run(&self.config.delete, &[self.path(at)]).await?;
        if ended.code == Some(0) { Ok(()) } else { Err(refusal("does not delete", at, &ended)) }
    }

    async fn run(&self, words: &[String], more: &[String]) -> Result<CommandExit, Fault> {
        let _slot = self.slots.acquire().await;
        let limit = Duration::from_secs(self.config.timeout_s.into());
        command::run(CommandSpec {
            program: words,
            arguments: more,
            timeout: limit,
            ..CommandSpec::default()
        })
        .await
    }

    fn pfn(&self, storage: &StorageName, file: &FetchFile) -> Result<Pfn, Fault> {
        let at = self.rules.to_pfn(storage, &file.lfn);
        at.map_err(Fault::from)
    }

    /// The absolute path, as the site's programs know it.
    fn path(&self, at: &Pfn) -> String {
        self.root.join(at.path()).to_string_lossy().into_owned()
    }
}

fn refusal(what: &str, name: impl std::fmt::Display, ended: &CommandExit) -> Fault {
    Fault::new(FaultCode::HookRefused, format!("the site's command {what} {name} {}", ended.describe()))
}
