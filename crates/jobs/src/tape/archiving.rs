//! Files that are whole at their targets, until they are on tape there.

use std::collections::BTreeMap;

use longhaul_catalog::{JobFileRow, JobRow, TapeStep};
use longhaul_model::job::{ARCHIVING_TOO_LONG, end_point, reason};
use longhaul_model::{Fault, Locality, Retry, Timestamp};
use longhaul_storage_remote::{ArchiveInfo, Credential, End, Remote, plain_path};
use tokio::task::JoinSet;

use super::Tape;
use crate::job_options::Terms;
use crate::{order, remote};

/// Files that are looked at together; the others have their turn with the next look.
const FILES_PER_POLL_MAX: usize = 2_000;

struct Watched {
    file: u64,
    path: String,
    began: Timestamp,
    /// Not waited for any longer.
    until: Timestamp,
}

/// What can be asked in one question: an end point, a community, and as whom.
type Group = (String, String, String);

impl Tape {
    pub(super) async fn watch_archives(&self) -> Result<(), Fault> {
        let now = self.job_control.kernel.now();
        let read =
            move |catalog: &longhaul_catalog::Catalog| catalog.archiving_files(now, FILES_PER_POLL_MAX);
        let due = self.read(read).await?;
        let mut groups: BTreeMap<Group, Vec<(JobFileRow, JobRow)>> = BTreeMap::new();
        for (file, job) in due {
            groups.entry(group(&file, &job)).or_default().push((file, job));
        }
        let mut asking = JoinSet::new();
        for files in groups.into_values() {
            let tape = self.clone();
            asking.spawn(async move { tape.watch(files).await });
        }
        let mut worst = Ok(());
        while let Some(done) = asking.join_next().await {
            match done {
                Ok(done) => worst = worst.and(done),
                Err(error) => tracing::error!(%error, "a question to a tape system ended abnormally"),
            }
        }
        worst
    }

    /// Files of one end point and user.
    async fn watch(&self, files: Vec<(JobFileRow, JobRow)>) -> Result<(), Fault> {
        let Some((file, job)) = files.first().cloned() else { return Ok(()) };
        let job_control = self.job_control.clone();
        let ends = self.read(move |_| Ok(order::ends(&job_control, &job, &file))).await??;
        let end = remote::end(&ends.1);
        let mut watched = Vec::with_capacity(files.len());
        let mut steps = Vec::new();
        for (file, job) in &files {
            let began = file.tape.archiving_began.unwrap_or(Timestamp::ZERO);
            let until = began + Terms::for_job(job).archive_timeout.unwrap_or_default();
            match Remote::tape_path(&file.target) {
                Ok(path) => watched.push(Watched { file: file.id, path, began, until }),
                Err(fault) => steps.push(TapeStep::NotArchived { files: vec![(file.id, reason(&fault))] }),
            }
        }
        for bulk in watched.chunks(self.config().bulk_files as usize) {
            let paths: Vec<String> = bulk.iter().map(|one| one.path.clone()).collect();
            let answer = self.archive_info(&end, &paths).await;
            let now = self.job_control.kernel.now();
            steps.extend(bulk.iter().map(|one| self.judge(one, &answer, now)));
        }
        self.apply_steps(steps).await
    }

    async fn archive_info(
        &self,
        end: &End,
        paths: &[String],
    ) -> Result<BTreeMap<String, ArchiveInfo>, Fault> {
        let api = self.remote.archiving_api(end).await?;
        let base = End::new(api.base, Credential::clone(&end.credential));
        let list = self.remote.archive_info(&base, paths).await?;
        Ok(list.into_iter().map(|one| (plain_path(&one.path), one)).collect())
    }

    fn judge(
        &self,
        one: &Watched,
        answer: &Result<BTreeMap<String, ArchiveInfo>, Fault>,
        now: Timestamp,
    ) -> TapeStep {
        let fails = |why: String| TapeStep::NotArchived { files: vec![(one.file, why)] };
        let said = match answer {
            // What will never be answered is not asked again.
            Err(fault) if fault.retry == Retry::Never => return fails(reason(fault)),
            Err(fault) => {
                tracing::info!(fault = %fault.chain(), "a tape system does not say where files are");
                None
            }
            Ok(list) => list.get(&plain_path(&one.path)),
        };
        match said.map(|said| &said.at) {
            Some(Ok(at)) if at.is_on_tape() => return TapeStep::Archived { files: vec![one.file] },
            Some(Ok(at @ (Locality::Lost | Locality::None))) => {
                return fails(format!("ARCHIVING [5] the storage says that the file is {}", at.word()));
            }
            Some(Err(why)) => return fails(format!("ARCHIVING [5] {why}")),
            _ => {}
        }
        if one.until <= now {
            return fails(ARCHIVING_TOO_LONG.to_owned());
        }
        let next = self.config().next_poll(one.began, now).min(one.until);
        TapeStep::ArchivePending { files: vec![one.file], next }
    }
}

fn group(file: &JobFileRow, job: &JobRow) -> Group {
    let details: crate::submission::FileDetails = serde_json::from_str(&file.details).unwrap_or_default();
    let party = details.target_token_id.unwrap_or_else(|| job.credential.clone());
    (end_point(&file.target).unwrap_or_default(), job.vo.clone(), party)
}
