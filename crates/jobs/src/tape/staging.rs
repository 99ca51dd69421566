//! One bulk at its tape system: asked for, looked after, and let go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_catalog::{JobFileRow, JobRow, TapeFileState, TapeRequestRow, TapeStep};
use longhaul_model::job::{REASON_BYTES, STAGING_TOO_LONG, reason};
use longhaul_model::{Fault, FaultCode, JobFileState, Retry, Timestamp};
use longhaul_storage_remote::{End, Remote, StageFile, StageState, StagedFile, plain_path};

use super::Tape;
use crate::job_options::Terms;
use crate::submission::FileDetails;
use crate::{order, remote};

/// Where a job names none of the two.
const WEEK: Duration = Duration::from_secs(604_800);
/// So often a tape system is asked to let go of something; then its pins end by themselves.
const LET_GO_TRIES: u32 = 12;

/// A file of the bulk, with what is needed of it here.
struct Wish {
    file: u64,
    path: String,
    pin: Duration,
    stands: TapeFileState,
    state: JobFileState,
    /// Not waited for any longer.
    until: Timestamp,
}

impl Tape {
    pub(super) async fn poll_bulk(&self, bulk: u64) -> Result<(), Fault> {
        let Some(row) = self.read(move |catalog| catalog.tape_request(bulk)).await? else { return Ok(()) };
        let Some(end) = self.end(&row).await? else { return Ok(()) };
        let mut wishes = self.wishes(&row).await?;
        if row.request.is_none() {
            self.drop_not_allowed(&row, &mut wishes).await?;
        }
        self.give_up_late(&mut wishes).await?;
        match (&row.base, &row.request) {
            (Some(base), Some(id)) => {
                let base = End::new(base.clone(), end.credential);
                self.follow(&row, &base, id, wishes).await
            }
            _ => self.request_staging(&row, &end, wishes).await,
        }
    }

    /// The end point with the user's credential, which is the same for all files of a request.
    async fn end(&self, row: &TapeRequestRow) -> Result<Option<End>, Fault> {
        let Some((_, file)) = row.files.first() else { return Ok(None) };
        let (file, job) = (file.clone(), row.jobs.get(&file.job).cloned());
        let Some(job) = job else { return Ok(None) };
        let job_control = self.job_control.clone();
        let ends = self.read(move |_| Ok(order::ends(&job_control, &job, &file))).await??;
        Ok(Some(remote::end(&ends.0)))
    }

    /// What cannot be named to a tape system fails here.
    async fn wishes(&self, row: &TapeRequestRow) -> Result<Vec<Wish>, Fault> {
        let mut wishes = Vec::with_capacity(row.files.len());
        let mut nameless = Vec::new();
        for (stands, file) in &row.files {
            let terms = row.jobs.get(&file.job).map(Terms::for_job).unwrap_or_default();
            let began = file.tape.staging_began.unwrap_or(row.made);
            match Remote::tape_path(&file.source) {
                Ok(path) => wishes.push(Wish {
                    file: file.id,
                    path,
                    pin: terms.pin.unwrap_or(WEEK),
                    stands: *stands,
                    state: file.state,
                    until: began + terms.bring_online.unwrap_or(WEEK),
                }),
                Err(fault) => nameless.push((file.id, reason(&fault))),
            }
        }
        if !nameless.is_empty() {
            let files = nameless.iter().map(|(file, _)| *file).collect();
            let let_go = TapeStep::Released { request: row.id, files };
            self.apply_steps(vec![TapeStep::NotStaged { files: nameless }, let_go]).await?;
        }
        Ok(wishes)
    }

    /// Before a tape system hears of files: their owners are asked about as before each copy.
    async fn drop_not_allowed(&self, row: &TapeRequestRow, wishes: &mut Vec<Wish>) -> Result<(), Fault> {
        let jobs: BTreeMap<u64, JobRow> = row
            .files
            .iter()
            .filter_map(|(_, file)| Some((file.id, row.jobs.get(&file.job)?.clone())))
            .collect();
        let wanted: Vec<u64> = wishes
            .iter()
            .filter(|wish| wish.stands == TapeFileState::Requested && wish.state == JobFileState::Staging)
            .map(|wish| wish.file)
            .collect();
        let job_control = self.job_control.clone();
        let asked = self.read(move |_| {
            let verdict = |file: &u64| {
                job_control.identity.may_still_transfer(jobs.get(file)?, *file).err().map(|why| (*file, why))
            };
            Ok(wanted.iter().filter_map(verdict).collect::<Vec<_>>())
        });
        let (never, later): (Vec<_>, Vec<_>) =
            asked.await?.into_iter().partition(|(_, why)| why.retry == Retry::Never);
        if let Some((_, why)) = later.into_iter().next() {
            return Err(why);
        }
        if never.is_empty() {
            return Ok(());
        }
        let gone: BTreeSet<u64> = never.iter().map(|(file, _)| *file).collect();
        wishes.retain(|wish| !gone.contains(&wish.file));
        let let_go = TapeStep::Released { request: row.id, files: gone.into_iter().collect() };
        let files = never.iter().map(|(file, why)| (*file, shortened(reason(why)))).collect();
        self.apply_steps(vec![TapeStep::NotStaged { files }, let_go]).await
    }

    async fn give_up_late(&self, wishes: &mut [Wish]) -> Result<(), Fault> {
        let now = self.job_control.kernel.now();
        let mut late = Vec::new();
        for wish in
            wishes.iter_mut().filter(|wish| wish.stands == TapeFileState::Requested && wish.until <= now)
        {
            wish.stands = TapeFileState::Abandoned;
            late.push((wish.file, STAGING_TOO_LONG.to_owned()));
        }
        if late.is_empty() {
            Ok(())
        } else {
            self.apply_steps(vec![TapeStep::NotStaged { files: late }]).await
        }
    }

    // ---- not asked for yet ---------------------------------------------------------------------------

    async fn request_staging(&self, row: &TapeRequestRow, end: &End, wishes: Vec<Wish>) -> Result<(), Fault> {
        let request = row.id;
        let (wanted, others): (Vec<Wish>, Vec<Wish>) = wishes
            .into_iter()
            .partition(|wish| wish.stands == TapeFileState::Requested && wish.state == JobFileState::Staging);
        // Nobody has heard of them.
        self.apply_steps(vec![TapeStep::Released { request, files: ids(&others) }]).await?;
        if wanted.is_empty() {
            return Ok(());
        }
        let now = self.job_control.kernel.now();
        let (base, fault) = match self.stage(end, &files(row, &wanted)).await {
            Ok((base, id)) => {
                tracing::info!(files = wanted.len(), at = %base, request = %id, "asked a tape system for \
                    files");
                let next = now + Duration::from_secs(u64::from(self.config().poll_first_s));
                let taken = TapeStep::Accepted { request, base: base.clone(), id: id.clone(), next };
                let Err(fault) = self.apply_steps(vec![taken]).await else { return Ok(()) };
                // Nobody would know it any more.
                let base = End::new(base, end.credential.clone());
                let ended = self.remote.stage_end(&base, &id).await;
                tracing::error!(fault = %fault.chain(), request = %id, given_back = ended.is_ok(),
                    "a request to a tape \
                    system is not known");
                return Err(fault);
            }
            Err((base, fault)) => (base, fault),
        };
        tracing::info!(fault = %fault.chain(), at = base.as_deref().unwrap_or(&end.url),
            "a tape system does not take files");
        let step = match fault.retry {
            Retry::Never if fault.code == FaultCode::TooLarge && wanted.len() > 1 => {
                // The first half at once, the others by another bulk.
                let files = ids(&wanted[wanted.len() / 2..]);
                let look = TapeStep::Polled { request, next: Some(now), failed: false };
                return self.apply_steps(vec![TapeStep::Restage { request, files }, look]).await;
            }
            Retry::Never => {
                let why = shortened(reason(&fault));
                let files = wanted.iter().map(|wish| (wish.file, why.clone())).collect();
                let let_go = TapeStep::Released { request, files: ids(&wanted) };
                return self.apply_steps(vec![TapeStep::NotStaged { files }, let_go]).await;
            }
            Retry::Now | Retry::Later => self.later(row, now, true),
        };
        self.apply_steps(vec![step]).await
    }

    async fn stage(
        &self,
        end: &End,
        files: &[StageFile],
    ) -> Result<(String, String), (Option<String>, Fault)> {
        let api = self.remote.staging_api(end).await.map_err(|fault| (None, fault))?;
        let base = End::new(api.base.clone(), end.credential.clone());
        match self.remote.stage(&base, files).await {
            Ok(id) => Ok((api.base, id)),
            Err(fault) => Err((Some(api.base), fault)),
        }
    }

    fn later(&self, row: &TapeRequestRow, now: Timestamp, failed: bool) -> TapeStep {
        let next = self.config().next_poll(row.made, now);
        TapeStep::Polled { request: row.id, next: Some(next), failed }
    }

    // ---- at the tape system --------------------------------------------------------------------------

    async fn follow(
        &self,
        row: &TapeRequestRow,
        base: &End,
        id: &str,
        mut wishes: Vec<Wish>,
    ) -> Result<(), Fault> {
        let request = row.id;
        let mut failed = false;
        if wishes.iter().any(|wish| wish.stands == TapeFileState::Requested) {
            match self.remote.stage_report(base, id).await {
                Ok(Some(report)) => self.take_in(request, &report, &mut wishes).await?,
                Ok(None) => return self.lost(request, id, &wishes).await,
                Err(fault) => {
                    tracing::info!(fault = %fault.chain(), "a tape system does not say how far files are");
                    failed = true;
                }
            }
        }
        let given_up = row.tries >= LET_GO_TRIES;
        let stays = row.files.iter().any(|(_, file)| file.source == file.target);
        match self.let_go(base, id, &wishes, stays).await {
            Ok(gone) => self.apply_steps(vec![TapeStep::Released { request, files: gone }]).await?,
            Err(fault) if given_up => {
                tracing::warn!(fault = %fault.chain(), request = %id,
                    "a tape system does not let go of files; their pins \
                    end by themselves");
                let gone = wishes.iter().filter(|wish| is_over(wish)).map(|wish| wish.file).collect();
                self.apply_steps(vec![TapeStep::Released { request, files: gone }]).await?;
            }
            Err(fault) => {
                tracing::info!(fault = %fault.chain(), "a tape system does not let go of files");
                failed = true;
            }
        }
        let now = self.job_control.kernel.now();
        let waits = failed || wishes.iter().any(|wish| wish.stands == TapeFileState::Requested);
        let look = if waits {
            self.later(row, now, failed)
        } else {
            TapeStep::Polled { request, next: None, failed }
        };
        self.apply_steps(vec![look]).await
    }

    /// What is on disk can be copied, what does not come fails.
    async fn take_in(
        &self,
        request: u64,
        report: &[StagedFile],
        wishes: &mut Vec<Wish>,
    ) -> Result<(), Fault> {
        let told: BTreeMap<String, &StagedFile> =
            report.iter().map(|file| (plain_path(&file.path), file)).collect();
        let (mut on_disk, mut not_staged) = (Vec::new(), Vec::new());
        for wish in wishes.iter_mut().filter(|wish| wish.stands == TapeFileState::Requested) {
            let Some(said) = told.get(&plain_path(&wish.path)) else { continue };
            match said.state {
                StageState::Waiting => {}
                StageState::OnDisk => {
                    wish.stands = TapeFileState::OnDisk;
                    on_disk.push(wish.file);
                }
                StageState::Failed => {
                    let why = said
                        .error
                        .as_deref()
                        .unwrap_or("the tape system could not bring it, and says no more");
                    not_staged.push((wish.file, shortened(format!("STAGING [{}] {why}", errno_of(why)))));
                }
                StageState::Cancelled => {
                    let why = "STAGING [125] the request for it was cancelled at the storage";
                    not_staged.push((wish.file, why.to_owned()));
                }
            }
        }
        // Nothing is held for those.
        let gone: BTreeSet<u64> = not_staged.iter().map(|(file, _)| *file).collect();
        wishes.retain(|wish| !gone.contains(&wish.file));
        self.apply_steps(vec![
            TapeStep::OnDisk { request, files: on_disk },
            TapeStep::NotStaged { files: not_staged },
            TapeStep::Released { request, files: gone.into_iter().collect() },
        ])
        .await
    }

    /// The tape system has forgotten the request: what has not come is asked for again.
    async fn lost(&self, request: u64, id: &str, wishes: &[Wish]) -> Result<(), Fault> {
        tracing::warn!(request = %id, "a tape system does not know a request any more; its files are asked \
            for again");
        let of = |wanted: bool| {
            let those = wishes.iter().filter(|wish| (wish.stands == TapeFileState::Requested) == wanted);
            those.map(|wish| wish.file).collect()
        };
        let (again, gone) = (of(true), of(false));
        self.apply_steps(vec![
            TapeStep::Restage { request, files: again },
            TapeStep::Released { request, files: gone },
        ])
        .await
    }

    /// Tells the tape system of what nobody wants any more; gives the files that it has let go.
    async fn let_go(&self, base: &End, id: &str, wishes: &[Wish], stays: bool) -> Result<Vec<u64>, Fault> {
        // A name that another file of the bulk has too is still in use.
        let used: BTreeSet<&str> =
            wishes.iter().filter(|wish| !is_over(wish)).map(|wish| wish.path.as_str()).collect();
        let paths = |stands: TapeFileState| {
            let those =
                wishes.iter().filter(|wish| wish.stands == stands && !used.contains(wish.path.as_str()));
            those.map(|wish| wish.path.clone()).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let (unwanted, spent) = (paths(TapeFileState::Abandoned), paths(TapeFileState::Consumed));
        if !spent.is_empty() {
            self.remote.release(base, id, &spent).await?;
        }
        if used.is_empty() && !stays {
            self.remote.stage_end(base, id).await?;
        } else if !unwanted.is_empty() {
            self.remote.stage_cancel(base, id, &unwanted).await?;
        }
        Ok(wishes.iter().filter(|wish| is_over(wish)).map(|wish| wish.file).collect())
    }
}

fn is_over(wish: &Wish) -> bool {
    matches!(wish.stands, TapeFileState::Abandoned | TapeFileState::Consumed)
}

fn ids(wishes: &[Wish]) -> Vec<u64> {
    wishes.iter().map(|wish| wish.file).collect()
}

/// What a tape system is asked for; a name only once.
fn files(row: &TapeRequestRow, wanted: &[Wish]) -> Vec<StageFile> {
    let details: BTreeMap<u64, &JobFileRow> = row.files.iter().map(|(_, file)| (file.id, file)).collect();
    let mut met = BTreeSet::new();
    let mut files = Vec::with_capacity(wanted.len());
    for wish in wanted.iter().filter(|wish| met.insert(wish.path.as_str())) {
        let said =
            details.get(&wish.file).and_then(|file| serde_json::from_str::<FileDetails>(&file.details).ok());
        let metadata = said.and_then(|said| said.staging_metadata.as_object().cloned());
        let metadata = metadata.filter(|metadata| !metadata.is_empty());
        files.push(StageFile { path: wish.path.clone(), pin: wish.pin, metadata });
    }
    files
}

/// The number that says most nearly what a tape system said in words.
fn errno_of(why: &str) -> u16 {
    let why = why.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    match () {
        () if says(&["not exist", "no such file", "not found", "enoent"]) => 2,
        () if says(&["permission", "not allowed", "denied", "unauthor"]) => 13,
        () if says(&["timeout", "timed out", "time-out"]) => 110,
        () => 5,
    }
}

fn shortened(mut text: String) -> String {
    let mut end = text.len().min(REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_tape_systems_have_numbers() {
        for (why, number) in [
            ("file does not exist", 2),
            ("No such file or directory", 2),
            ("Permission denied", 13),
            ("mount timed out", 110),
            ("no such volume", 5),
        ] {
            assert_eq!(errno_of(why), number, "{why}");
        }
        assert_eq!(shortened("é".repeat(2_000)).len(), REASON_BYTES);
    }
}
