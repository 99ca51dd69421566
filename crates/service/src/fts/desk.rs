//! What the API asks of jobs. Everything is durable when it returns.

use longhaul_catalog::{CatalogError, JobCanceled, NewJob, StorageStep, Submitted};
use longhaul_model::JobId;
use longhaul_security::{new_secret, secret_hash};

use crate::operations::Operations;
use crate::shared::Shared;

impl Shared {
    /// A job id that nobody can guess, as a UUID of random bits.
    pub fn new_job_id(&self) -> JobId {
        let digest = secret_hash(&new_secret(""));
        let mut bytes = [0u8; 16];
        bytes.iter_mut().zip(digest.as_ref()).for_each(|(byte, random)| *byte = *random);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        JobId(u128::from_be_bytes(bytes))
    }
}

impl Operations {
    pub(super) fn submit_job(&self, job: NewJob) -> Result<Submitted, CatalogError> {
        let (answers, _) = self.shared.catalog.submit_jobs(&[job])?;
        answers.into_iter().next().ok_or_else(|| CatalogError::Busy("the job was not answered for".into()))
    }

    pub(super) fn cancel_jobs(
        &self,
        wanted: &[(JobId, Option<Vec<u64>>)],
        reason: &str,
    ) -> Result<Vec<JobCanceled>, CatalogError> {
        self.shared.catalog.cancel_job_files(wanted, reason, self.now()).map(|(answers, _)| answers)
    }

    pub(super) fn set_job_priority(&self, jobs: &[JobId], priority: u8) -> Result<(), CatalogError> {
        self.shared.catalog.set_job_priority(jobs, priority).map(drop)
    }

    pub(super) fn force_job_files(&self, files: Vec<u64>) -> Result<(), CatalogError> {
        self.shared.catalog.force_job_files(&files, self.now()).map(drop)
    }

    /// Some jobs at a time; none when all are done.
    pub(super) fn step_storage_jobs(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'_>,
    ) -> Result<Vec<JobId>, CatalogError> {
        self.shared.catalog.step_storage_files(storage, vo, step, self.now()).map(|(jobs, _)| jobs)
    }
}
