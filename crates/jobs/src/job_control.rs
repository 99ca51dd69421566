//! The state of this crate, and what it tells others.

use std::sync::Arc;

use longhaul_catalog::{JobAttemptRow, JobFileRow, JobRow};
use longhaul_control::{Control, Kernel};
use longhaul_identity::{FtsConfig, Identity};
use longhaul_model::{Fault, JobId};
use longhaul_netops::NetOps;

use crate::by_circuit::CircuitBacklog;
use crate::config::JobsConfig;
use crate::config_store::ConfigStore;
use crate::jobs::Jobs;
use crate::queued::QueuedFiles;
use crate::tokens::Tokens;

/// Hears that files of jobs have changed, once that is durable.
pub trait ChangeListener: Send + Sync {
    fn jobs_changed(&self);
}

/// The settings that concern jobs.
#[derive(Clone, Debug)]
pub struct JobSettings {
    pub jobs: JobsConfig,
    pub fts: FtsConfig,
    /// The name of this service to those who come from elsewhere.
    pub host: String,
}

pub struct JobControl {
    pub kernel: Arc<Kernel>,
    pub control: Arc<Control>,
    pub identity: Arc<Identity>,
    pub netops: Arc<NetOps>,
    pub settings: JobSettings,
    pub config_store: Arc<ConfigStore>,
    pub jobs: Jobs,
    pub tokens: Tokens,
    pub queued: QueuedFiles,
    pub backlog: Arc<CircuitBacklog>,
    pub listener: Arc<dyn ChangeListener>,
}

impl JobControl {
    /// Whether an administrator lets no copy of a job begin.
    pub fn drains(&self) -> bool {
        self.config_store.get().is_ok_and(|configured| configured.draining.contains(&self.settings.host))
    }

    /// A job with its files; none if there is no such job.
    pub fn job(&self, id: JobId) -> Result<Option<(JobRow, Vec<JobFileRow>)>, Fault> {
        let Some(job) = self.kernel.catalog.jobs(&[id])?.into_iter().next().flatten() else {
            return Ok(None);
        };
        let files = self.kernel.catalog.job_files(&[id])?.into_iter().next().unwrap_or_default();
        Ok(Some((job, files)))
    }

    /// Why each attempt of a file was made, and what it came to.
    pub fn job_file_attempts(&self, file: u64) -> Result<Vec<JobAttemptRow>, Fault> {
        Ok(self.kernel.catalog.job_file_attempts(file)?)
    }
}
