//! What the API asks of jobs. Everything is durable when it returns.

use std::future::Future;

use longhaul_api::fts::Refusal;
use longhaul_catalog::{JobCanceled, NewJob, StorageStep, Submitted};
use longhaul_model::{Fault, JobId};
use longhaul_security::{new_secret, secret_hash};

use super::kept::refusal;
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
    /// Waits for the desk on a thread that may block.
    fn at_desk<T>(&self, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Refusal> {
        tokio::runtime::Handle::current().block_on(answer).map_err(|fault| refusal(fault.into()))
    }

    pub(super) fn submit_job(&self, job: NewJob) -> Result<Submitted, Refusal> {
        let answers = self.at_desk(self.shared.jobs.submit(vec![job]))?;
        answers.into_iter().next().ok_or_else(|| Refusal::new(503, "the job was not answered for"))
    }

    pub(super) fn cancel_jobs(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCanceled>, Refusal> {
        self.at_desk(self.shared.jobs.cancel(wanted, reason))
    }

    pub(super) fn set_job_priority(&self, jobs: &[JobId], priority: u8) -> Result<(), Refusal> {
        self.at_desk(self.shared.jobs.priority(jobs.to_vec(), priority)).map(drop)
    }

    pub(super) fn force_job_files(&self, files: Vec<u64>) -> Result<(), Refusal> {
        self.at_desk(self.shared.jobs.force_start(files)).map(drop)
    }

    /// Some jobs at a time; none when all are done.
    pub(super) fn step_storage_jobs(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'static>,
    ) -> Result<Vec<JobId>, Refusal> {
        self.at_desk(self.shared.jobs.storage(storage, vo, step))
    }
}
