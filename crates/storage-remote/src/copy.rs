//! The steps of one copy: examine source and target, transfer by the first mode that works, verify, rename.
//! Whatever fails, the target has a whole file under its name, or what it had before.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;

use http::StatusCode;
use longhaul_model::{Fault, FaultCode, Locality};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::checksum::Checksum;
use crate::failure::{Failure, Kind, Scope};
use crate::naming::{Arrival, Leftover, arrival, check_tag};
use crate::order::{Cancel, CopyDone, CopyOrder, CopyOutcome, Credential, Mode, Overwrite, Stat};
use crate::remote::Remote;
use crate::s3::{Slot, WHOLE_MAX};
use crate::stream::{Progress, ScopedResult};
use crate::tpc::{Terms, another_way_may_help};
use crate::url::RemoteUrl;
use crate::verify::Comparison;
use crate::webdav::{RenameOutcome, Resource};

/// Other software knows both by these words.
const EXISTS: &str = "Destination file exists and overwrite is not enabled";
const EXISTS_ON_TAPE: &str = "Destination file exists and is on tape (overwrite-when-only-on-disk requested)";

/// An order with its names understood.
struct Plan<'a> {
    order: &'a CopyOrder,
    /// Where it would have to go through us, it is left to somebody else.
    leaves_stream: bool,
    source: RemoteUrl,
    target: RemoteUrl,
    begun: Instant,
    /// The name that the present attempt writes, and whether it may still be written.
    writing: Mutex<Option<Arrival>>,
    /// Parts with a storage that speaks S3.
    upload: Slot,
    /// The source's metadata.
    size: OnceLock<u64>,
    /// The file that had the target's name before, if any; unknown where it was not examined.
    before: OnceLock<Option<Stat>>,
}

impl Plan<'_> {
    fn source(&self) -> Resource<'_> {
        Resource { url: &self.source, credential: &self.order.source.credential }
    }

    fn target(&self) -> Resource<'_> {
        Resource { url: &self.target, credential: &self.order.target.credential }
    }

    /// A server that knows no third-party copies may take a destination at another port of its host for a
    /// file of its own, as nginx does, and copy within itself.
    fn is_between_ports(&self) -> bool {
        let one_host = self.source.host() == self.target.host() && self.source.port() != self.target.port();
        // To S3 a file goes by a signed address, which is no destination.
        one_host && !self.target.is_s3()
    }

    /// Whether there is another token for the storage that did not take the one that the other showed it.
    async fn with_refreshed_tokens(&self, mode: Mode) -> bool {
        let passive = match mode {
            Mode::Pull => &self.order.source.credential,
            Mode::Push => &self.order.target.credential,
            // Who is asked by us is asked again with another one at once.
            Mode::Stream => return false,
        };
        let Credential::Refreshing(token) = passive else { return false };
        let refused = token.current().await;
        matches!(token.refresh_refused(&refused).await, Ok(Some(_)))
    }

    /// What this attempt may leave under the file's own name.
    fn leftover(&self, failure: &Failure) -> Leftover<'_> {
        Leftover {
            may_be_written: is_unknown(failure),
            before: self.before.get().and_then(Option::as_ref),
            // One that is wrong in itself is no good one of somebody else's.
            whole: self.size.get().copied().filter(|_| failure.kind != Kind::WrongChecksum),
        }
    }

    fn write(&self, arrival: Option<Arrival>) {
        *self.writing.lock() = arrival;
    }
}

/// Both ends as they were before the copy.
struct CopySurvey {
    stat: Stat,
    modes: Vec<Mode>,
    place: TargetName,
}

/// How the target's name can be used.
#[derive(Clone, Copy)]
struct TargetName {
    /// A file has the name and may be replaced.
    replaces: bool,
    renames: bool,
}

impl Remote {
    /// Copies one file. A fault's detail is the reason as FTS writes it: `SCOPE [errno] text`.
    ///
    /// `progress` hears how many bytes have been moved; they may begin anew with another way. Dropping the
    /// future ends the copy as well, without cleaning up.
    pub async fn copy(
        &self,
        order: &CopyOrder,
        progress: &(dyn Fn(u64) + Send + Sync),
        cancel: &Cancel,
    ) -> Result<CopyDone, Fault> {
        match self.copy_by(&plan(order)?, progress, cancel).await? {
            CopyOutcome::Done(done) => Ok(done),
            CopyOutcome::ToStream(_) => Err(no_way().at(Scope::Transfer)),
        }
    }

    /// As [`Remote::copy`], but no byte of the file goes through this process: where the order would have it
    /// streamed, that is left to somebody else, who is to be given the same order with that way alone.
    pub async fn copy_or_leave(
        &self,
        order: &CopyOrder,
        progress: &(dyn Fn(u64) + Send + Sync),
        cancel: &Cancel,
    ) -> Result<CopyOutcome, Fault> {
        self.copy_by(&Plan { leaves_stream: true, ..plan(order)? }, progress, cancel).await
    }

    async fn copy_by(
        &self,
        plan: &Plan<'_>,
        progress: Progress<'_>,
        cancel: &Cancel,
    ) -> Result<CopyOutcome, Fault> {
        let ended = tokio::select! {
            biased;
            () = cancel.cancelled() => {
                Err((Scope::Transfer, Failure::new(Kind::Cancelled, "Transfer canceled")))
            }
            ended = self.copy_in_time(plan, progress) => ended,
        };
        let (scope, mut failure) = match ended {
            Ok(done) => return Ok(done),
            Err(failed) => failed,
        };
        let left = plan.writing.lock().take();
        if plan.target.is_s3()
            && let Some(left) = self.abandon(plan.target(), &plan.upload).await
        {
            failure.text = format!("{} ({left})", failure.text);
        }
        if let Some(arrival) = left
            && let Some(left) = self.clear(plan, &arrival, &failure).await
        {
            failure.text = format!("{} ({left})", failure.text);
        }
        Err(failure.at(scope))
    }

    /// Takes away what a copy that failed has left, where that is wanted and can be told from what was there
    /// before.
    async fn clear(&self, plan: &Plan<'_>, arrival: &Arrival, failure: &Failure) -> Option<String> {
        if plan.order.keeps_partial && failure.kind != Kind::Exists {
            return Some(format!("what came of it stays at {}", arrival.url));
        }
        if plan.before.get().is_none() {
            return Some(format!("{} may be left: nobody looked what was there before", arrival.url));
        }
        self.clean_up(plan.target(), arrival, &plan.leftover(failure)).await
    }

    async fn copy_in_time(&self, plan: &Plan<'_>, progress: Progress<'_>) -> ScopedResult<CopyOutcome> {
        let mut comparison = Comparison::new(plan.order);
        let limit = self.limit(plan.order, plan.order.size);
        let found = timeout_at(plan.begun + limit, self.survey(plan, &mut comparison));
        let found = found.await.map_err(|_| overdue(limit))??;
        let limit = self.limit(plan.order, Some(found.stat.size));
        let moved = timeout_at(plan.begun + limit, self.transfer(plan, &found, &mut comparison, progress));
        let (mode, failed_before) = moved.await.map_err(|_| overdue(limit))??;
        let Some(mode) = mode else { return Ok(CopyOutcome::ToStream(failed_before)) };
        Ok(CopyOutcome::Done(CopyDone {
            mode,
            bytes: found.stat.size,
            verified: comparison.verified,
            source_checksum: comparison.source,
            target_checksum: comparison.target,
            failed_before,
        }))
    }

    fn limit(&self, order: &CopyOrder, size: Option<u64>) -> Duration {
        order.timeout.unwrap_or_else(|| self.config.times.copy_of(size.unwrap_or(0)))
    }

    /// Both ends as they are, the source's checksum, and room for the file.
    async fn survey(&self, plan: &Plan<'_>, comparison: &mut Comparison) -> ScopedResult<CopySurvey> {
        let (stat, modes) = self.survey_source(plan, comparison).await?;
        // This is looked at once, so neither this nor what was before is set already.
        let _ = plan.size.set(stat.size);
        let place = self.survey_target(plan).await.map_err(|failure| (Scope::Target, failure))?;
        Ok(CopySurvey { stat, modes, place })
    }

    async fn survey_source(
        &self,
        plan: &Plan<'_>,
        comparison: &mut Comparison,
    ) -> ScopedResult<(Stat, Vec<Mode>)> {
        let at_source = |failure| (Scope::Source, failure);
        let order = plan.order;
        let wanted = comparison.of_source();
        if let Some(size) = order.size.filter(|_| order.unchecked) {
            let modes = modes(plan, size, comparison).map_err(|failure| (Scope::Transfer, failure))?;
            return Ok((Stat { size, ..Stat::default() }, modes));
        }
        let Some(stat) = self.head(plan.source(), wanted).await.map_err(at_source)? else {
            let text = format!("HEAD {}: No such file or directory", plan.source);
            return Err(at_source(Failure::new(Kind::Status(StatusCode::NOT_FOUND), text)));
        };
        if stat.is_collection {
            let text = format!("{} is a collection: Is a directory", plan.source);
            return Err(at_source(Failure::new(Kind::Order, text)));
        }
        if let Some(size) = order.size.filter(|size| *size != stat.size) {
            let text = format!("User-defined and source file size mismatch ({size} != {})", stat.size);
            return Err(at_source(Failure::new(Kind::WrongSize, text)));
        }
        let mut modes = modes(plan, stat.size, comparison).map_err(|failure| (Scope::Transfer, failure))?;
        // Nothing is to be moved, and there are releases of XRootD that wait two minutes for it, then fail
        // (its issue 2113).
        if stat.size == 0 && modes.contains(&Mode::Stream) {
            modes = vec![Mode::Stream];
        }
        if let Some(algorithm) = wanted {
            if let Some(told) = stat.checksum.clone() {
                comparison.take_source(told)?;
            } else if modes.contains(&Mode::Stream) {
                // Through us it is computed on the way; any other way it would have to be read twice.
                modes = vec![Mode::Stream];
            } else {
                let read = self.told_or_read(plan.source(), &stat, algorithm).await.map_err(at_source)?;
                comparison.take_source(read)?;
            }
        }
        Ok((stat, modes))
    }

    /// Nothing is replaced that may not be, whatever else is not to be looked at.
    async fn survey_target(&self, plan: &Plan<'_>) -> Result<TargetName, Failure> {
        let order = plan.order;
        if order.unchecked && order.overwrite == Overwrite::Always {
            return Ok(TargetName { replaces: true, renames: false });
        }
        let there = match self.head(plan.target(), None).await {
            // Such a name may be written, and that is all that is asked of it.
            Err(Failure { kind: Kind::Status(_), .. }) if order.unchecked => {
                return Ok(TargetName { replaces: false, renames: false });
            }
            looked => looked?,
        };
        let replaces = there.is_some();
        if replaces {
            self.may_be_replaced(plan).await?;
        }
        let _ = plan.before.set(there);
        if order.unchecked {
            return Ok(TargetName { replaces, renames: false });
        }
        if !replaces {
            self.make_parents(plan.target()).await?;
        }
        Ok(TargetName { replaces, renames: self.renames(plan.target(), &order.tag).await? })
    }

    /// Whether what has the target's name may make room.
    async fn may_be_replaced(&self, plan: &Plan<'_>) -> Result<(), Failure> {
        match plan.order.overwrite {
            Overwrite::Always => Ok(()),
            Overwrite::Never => Err(exists()),
            Overwrite::OnlyOnDisk => match self.locality(plan.target()).await? {
                Some(Locality::Disk) => Ok(()),
                Some(at) if at.is_on_tape() => Err(Failure::new(Kind::Exists, EXISTS_ON_TAPE)),
                Some(at) => {
                    let text = format!("{EXISTS} (its tape system says that it is {})", at.word());
                    Err(Failure::new(Kind::Exists, text))
                }
                None => {
                    let text = format!(
                        "{EXISTS} (the storage offers no Tape REST API by which to learn that it is on disk \
                            only)"
                    );
                    Err(Failure::new(Kind::Exists, text))
                }
            },
        }
    }

    /// By one way after the other, until one works or no other would help. Says which; none if it is left to
    /// be streamed.
    async fn transfer(
        &self,
        plan: &Plan<'_>,
        found: &CopySurvey,
        comparison: &mut Comparison,
        progress: Progress<'_>,
    ) -> ScopedResult<(Option<Mode>, Vec<String>)> {
        let mut failed_before = Vec::new();
        let mut modes = VecDeque::from(found.modes.clone());
        while let Some(mode) = modes.pop_front() {
            if mode == Mode::Stream && plan.leaves_stream {
                return Ok((None, failed_before));
            }
            let arrival = arrival(&plan.target, &plan.order.tag, mode, found.place.renames);
            let is_last = modes.is_empty();
            if mode == Mode::Push && !is_last && !arrival.temporary && plan.is_between_ports() {
                failed_before
                    .push("push: not between ports of one host, under the file's own name".to_owned());
                continue;
            }
            plan.write(Some(arrival.clone()));
            let moved = match self.transfer_by(mode, plan, found, &arrival, comparison, progress).await {
                Ok(()) => self.commit_arrival(plan, found, &arrival, comparison).await,
                failed => failed,
            };
            let Err((scope, failure)) = moved else { return Ok((Some(mode), failed_before)) };
            let may_go_on = arrival.temporary || !is_unknown(&failure);
            // A server that looks at hosts only has looked for the target's folder in itself.
            let stays_within = mode == Mode::Push && arrival.temporary && plan.is_between_ports();
            let may_help =
                stays_within && matches!(failure.kind, Kind::Status(_)) || another_way_may_help(&failure);
            let refused = scope == Scope::Transfer && failure.kind == Kind::Status(StatusCode::UNAUTHORIZED);
            if refused && plan.with_refreshed_tokens(mode).await {
                modes.push_front(mode);
            } else if is_last || mode == Mode::Stream || !may_go_on || !may_help {
                return Err((scope, with_earlier(failure, &failed_before)));
            }
            if plan.before.get().is_some() {
                self.clean_up(plan.target(), &arrival, &plan.leftover(&failure)).await;
            }
            if stays_within {
                let stray = Arrival { url: arrival.url.at_port(plan.source.port()), ..arrival.clone() };
                self.clean_up(plan.source(), &stray, &plan.leftover(&failure)).await;
            }
            plan.write(None);
            tracing::debug!(%mode, target = %plan.target, "another way after: {}", failure.text);
            failed_before.push(format!("{mode}: {}", failure.text));
        }
        Err((Scope::Transfer, no_way()))
    }

    async fn transfer_by(
        &self,
        mode: Mode,
        plan: &Plan<'_>,
        found: &CopySurvey,
        arrival: &Arrival,
        comparison: &mut Comparison,
        progress: Progress<'_>,
    ) -> ScopedResult<()> {
        let target = plan.target().at(&arrival.url);
        if mode == Mode::Stream && target.url.is_s3() {
            return self.transfer_to_s3(plan, found, comparison, progress).await;
        }
        if mode == Mode::Stream {
            let algorithms: Vec<_> = comparison.algorithm().into_iter().collect();
            let streams = plan.order.streams;
            let sent = self.stream(plan.source(), &found.stat, target, &algorithms, streams, progress).await;
            let digests = sent?;
            return match algorithms.first().and_then(|algorithm| digests.get(*algorithm)) {
                Some(digest) => comparison.take_source(Checksum::from_digest(&digest)),
                None => Ok(()),
            };
        }
        let terms = Terms {
            overwrite: !arrival.temporary && found.place.replaces,
            streams: plan.order.streams,
            size: found.stat.size,
            lasts: self.limit(plan.order, Some(found.stat.size)),
            scitag: plan.order.scitag,
        };
        let macaroon = self.macaroon(mode, plan.source(), target, terms.lasts).await;
        let copied = self.third_party(mode, plan.source(), target, macaroon, terms, progress).await;
        copied.map_err(|failure| (Scope::Transfer, failure))
    }

    /// Nothing has a name before all of it has been compared with what is known of it.
    async fn transfer_to_s3(
        &self,
        plan: &Plan<'_>,
        found: &CopySurvey,
        comparison: &mut Comparison,
        progress: Progress<'_>,
    ) -> ScopedResult<()> {
        let algorithms: Vec<_> = comparison.algorithm().into_iter().collect();
        let (target, size) = (plan.target(), found.stat.size);
        let (streams, upload) = (plan.order.streams, &plan.upload);
        let gathered =
            self.gather(plan.source(), &found.stat, target, &algorithms, streams, progress, upload);
        let gathered = gathered.await?;
        let digest = algorithms.first().and_then(|algorithm| gathered.digests.get(*algorithm));
        let sent = digest.map(|digest| Checksum::from_digest(&digest));
        if let Some(sent) = &sent {
            comparison.take_source(sent.clone())?;
            if comparison.of_target().is_some() {
                comparison.clone().take_target(sent.clone())?;
            }
        }
        let revealed = self.reveal(gathered, target, size, found.place.replaces, upload).await;
        let confirmed = revealed.map_err(|failure| (Scope::Target, failure))?;
        progress(size);
        comparison.arrived = sent.filter(|_| confirmed);
        Ok(())
    }

    /// Compares what has arrived, and gives it its name.
    async fn commit_arrival(
        &self,
        plan: &Plan<'_>,
        found: &CopySurvey,
        arrival: &Arrival,
        comparison: &mut Comparison,
    ) -> ScopedResult<()> {
        let at_target = |failure| (Scope::Target, failure);
        let here = plan.target().at(&arrival.url);
        if plan.order.unchecked {
            return Ok(());
        }
        self.compare_target(here, found.stat.size, comparison).await?;
        if !arrival.temporary {
            return Ok(());
        }
        let overwrite = match plan.order.overwrite {
            Overwrite::OnlyOnDisk if found.place.replaces => {
                // It may have gone to tape while this one came.
                self.may_be_replaced(plan).await.map_err(at_target)?;
                true
            }
            overwrite => overwrite == Overwrite::Always,
        };
        match self.move_to(here, &plan.target, overwrite).await {
            Ok(RenameOutcome::Done) => {}
            Ok(RenameOutcome::Exists) => return Err(at_target(exists())),
            Err(failure) => {
                // The answer may be lost and the rename done.
                let there = self.head(plan.target(), None).await.map_err(at_target)?;
                let gone = self.head(here, None).await.map_err(at_target)?.is_none();
                if !gone || there.is_none_or(|stat| stat.size != found.stat.size) {
                    return Err(at_target(failure));
                }
            }
        }
        plan.write(None);
        // It was compared before and is renamed, so only a look that finds something else tells against it.
        // As a failed copy it would be tried again, and meet the file that it has made itself.
        let there = match self.head(plan.target(), None).await {
            Ok(there) => there,
            Err(failure) => {
                tracing::debug!(target = %plan.target, "no last look at a copy: {}", failure.text);
                return Ok(());
            }
        };
        if there.is_none_or(|stat| stat.size != found.stat.size) {
            let text = format!("{}: renamed to its name, and not there", plan.target);
            return Err(at_target(Failure::new(Kind::Told, text)));
        }
        Ok(())
    }
}

fn no_way() -> Failure {
    Failure::new(Kind::Order, "no way of copying is allowed: neither pull, push nor stream")
}

fn plan(order: &CopyOrder) -> Result<Plan<'_>, Fault> {
    let of_order = |fault: Fault| Failure::of_fault(&fault);
    let parse = |url: &str, scope| RemoteUrl::parse(url).map_err(|fault| of_order(fault).at(scope));
    let source = parse(&order.source.url, Scope::Source)?;
    let target = parse(&order.target.url, Scope::Target)?;
    check_tag(&order.tag).map_err(|failure| failure.at(Scope::Transfer))?;
    if source.is_same_file(&target) {
        let text = format!("source and destination are the same file: {source}");
        return Err(Failure::new(Kind::Order, text).at(Scope::Transfer));
    }
    if target.path().ends_with('/') {
        let text = format!("{target} names a collection, not a file");
        return Err(Failure::new(Kind::Order, text).at(Scope::Target));
    }
    let unnamed = order.checksum.as_ref().is_some_and(|sum| crate::checksum::wanted(sum.algorithm).is_none());
    if unnamed {
        let detail = "TRANSFER [22] storages know no such checksum";
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    Ok(Plan {
        order,
        leaves_stream: false,
        source,
        target,
        begun: Instant::now(),
        writing: Mutex::default(),
        upload: Slot::default(),
        size: OnceLock::new(),
        before: OnceLock::new(),
    })
}

/// Those of the ways that the two ends allow: S3 copies nothing by itself, but others can be given a URL that
/// opens a file of it.
fn modes(plan: &Plan<'_>, size: u64, comparison: &Comparison) -> Result<Vec<Mode>, Failure> {
    let (source, target) = (&plan.source, &plan.target);
    if !source.is_s3() && !target.is_s3() {
        return Ok(plan.order.modes.clone());
    }
    let allowed = |mode: Mode| match mode {
        Mode::Stream => true,
        // Such a URL is a secret.
        Mode::Pull => source.is_s3() && !target.is_s3() && target.is_secure(),
        Mode::Push => target.is_s3() && !source.is_s3() && source.is_secure() && size <= WHOLE_MAX,
    };
    let mut modes: Vec<Mode> = plan.order.modes.iter().copied().filter(|mode| allowed(*mode)).collect();
    // What comes through us is confirmed part by part; any other way it would have to be read back to be
    // compared.
    if target.is_s3() && comparison.of_target().is_some() && modes.contains(&Mode::Stream) {
        modes = vec![Mode::Stream];
    }
    if modes.is_empty() {
        let text = format!("{source} to {target}: no way of copying that is allowed can be taken with S3");
        return Err(Failure::new(Kind::Order, text));
    }
    Ok(modes)
}

/// Whether a storage may still be at work on it.
fn is_unknown(failure: &Failure) -> bool {
    matches!(failure.kind, Kind::TimedOut | Kind::Lost)
}

fn exists() -> Failure {
    Failure::new(Kind::Exists, EXISTS)
}

fn overdue(limit: Duration) -> (Scope, Failure) {
    let text = format!("Operation timed out: not done within {} s", limit.as_secs());
    (Scope::Transfer, Failure::new(Kind::TimedOut, text))
}

/// The last cause counts; the ones before it are kept.
pub(crate) fn with_earlier(failure: Failure, before: &[String]) -> Failure {
    if before.is_empty() {
        return failure;
    }
    Failure { text: format!("{} (before: {})", failure.text, before.join("; ")), ..failure }
}
