//! What people ask of jobs, by whichever API they come: who may see and change which. Everything is durable
//! when it returns, and waited for on a thread that may block.

use std::future::Future;

use longhaul_api::fts::{Refusal, no_such_job};
use longhaul_catalog::{JobCancelResult, JobRow, NewJob, StorageStep, SubmitResult};
use longhaul_identity::{Person, catalog_problem, refusal};
use longhaul_model::{Fault, JobId};
use longhaul_security::{hash_secret, new_secret};

use crate::job_control::JobControl;

impl JobControl {
    /// A job id that nobody can guess, as a UUID of random bits.
    pub fn new_job_id(&self) -> JobId {
        let digest = hash_secret(&new_secret(""));
        let mut bytes = [0u8; 16];
        bytes.iter_mut().zip(digest.as_ref()).for_each(|(byte, random)| *byte = *random);
        bytes[6] = (bytes[6] & 0x0f) | 0x40;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        JobId(u128::from_be_bytes(bytes))
    }
}

impl JobControl {
    /// Those jobs, each with the person's leave to do that to it; none of what is no id of a job.
    pub fn jobs_for(
        &self,
        person: &Person,
        words: &[&str],
        doing: &str,
    ) -> Result<Vec<Result<JobRow, Refusal>>, Refusal> {
        person.needs("transfer")?;
        let parsed: Vec<Option<JobId>> = words.iter().map(|word| word.parse().ok()).collect();
        let known: Vec<JobId> = parsed.iter().flatten().copied().collect();
        let mut rows =
            self.kernel.catalog.jobs(&known).map_err(|error| refusal(catalog_problem(error)))?.into_iter();
        let found = words.iter().zip(parsed).map(|(word, id)| match id.and_then(|_| rows.next().flatten()) {
            None => Err(no_such_job(word)),
            Some(row) if person.may_touch(&row.vo, &row.credential) => Ok(row),
            Some(row) => {
                let text = format!("Not enough permissions to {doing} the job \"{}\"", row.id);
                Err(Refusal::forbidden(text))
            }
        });
        Ok(found.collect())
    }

    /// Waits for the job loop on a thread that may block.
    fn at_job_loop<T>(&self, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Refusal> {
        tokio::runtime::Handle::current().block_on(answer).map_err(|fault| refusal(fault.into()))
    }

    pub(crate) fn submit_job(&self, job: NewJob) -> Result<SubmitResult, Refusal> {
        let answers = self.at_job_loop(self.jobs.submit(vec![job]))?;
        answers.into_iter().next().ok_or_else(|| Refusal::new(503, "the job was not answered for"))
    }

    pub fn cancel_jobs(
        &self,
        wanted: Vec<(JobId, Option<Vec<u64>>)>,
        reason: &str,
    ) -> Result<Vec<JobCancelResult>, Refusal> {
        self.at_job_loop(self.jobs.cancel(wanted, reason))
    }

    pub fn set_job_priority(&self, jobs: &[JobId], priority: u8) -> Result<(), Refusal> {
        self.at_job_loop(self.jobs.priority(jobs.to_vec(), priority)).map(drop)
    }

    pub fn force_job_files(&self, files: Vec<u64>) -> Result<(), Refusal> {
        self.at_job_loop(self.jobs.force_start(files)).map(drop)
    }

    /// Some jobs at a time; none when all are done.
    pub fn step_storage_jobs(
        &self,
        storage: &str,
        vo: Option<&str>,
        step: StorageStep<'static>,
    ) -> Result<Vec<JobId>, Refusal> {
        self.at_job_loop(self.jobs.storage(storage, vo, step))
    }
}
