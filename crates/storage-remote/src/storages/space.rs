//! What is known of the space of a storage: by a report of its site (SRR), by the quota that its server tells
//! (RFC 4331), by a configured number, and by what was sent there since.

use std::collections::VecDeque;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Timestamp};
use longhaul_storage::Space;

use super::storage::{Protocol, RemoteStorage};
use crate::exchange::now;
use crate::failure::{Failure, Scope};
use crate::multistatus::Quota;
use crate::order::Credential;
use crate::space_report::{self, REPORT_AGE_MAX, ShareSpace};
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// Sites write reports every few minutes to hours.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Bytes that were sent are added up over this time.
const SENT_INTERVAL: Duration = Duration::from_secs(60);

/// Where a site publishes the space of its storages (WLCG Storage Resource Reporting).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceReport {
    url: RemoteUrl,
    share: String,
}

impl SpaceReport {
    /// The share with this name or path in the document at this address.
    ///
    /// # Errors
    /// `BadRequest` if the address is malformed, or one of S3.
    pub fn new(url: &str, share: &str) -> Result<SpaceReport, Fault> {
        let url = RemoteUrl::parse(url)?;
        if url.is_s3() {
            let detail = format!("{url}: a storage report is read by https or http");
            return Err(Fault::new(FaultCode::BadRequest, detail));
        }
        Ok(SpaceReport { url, share: share.to_owned() })
    }
}

/// What is known of the space of one storage.
#[derive(Debug, Default)]
pub(super) struct SpaceKnowledge {
    /// As told last, less what was announced since; at most as large as it is told when it is asked for anew.
    /// None: nobody knows.
    free_bytes: Option<u64>,
    report: ReportKnowledge,
}

/// What the site's report told, and what was sent to the storage since.
#[derive(Debug, Default)]
struct ReportKnowledge {
    asked_at: Option<Timestamp>,
    told: Option<ShareSpace>,
    /// Why it does not count now.
    trouble: Option<String>,
    /// Bytes sent, by the time at which each interval began.
    sent: VecDeque<(Timestamp, u64)>,
}

impl ReportKnowledge {
    fn is_due(&self, now: Timestamp) -> bool {
        self.asked_at.is_none_or(|asked_at| now.since(asked_at) >= REPORT_INTERVAL)
    }

    fn note_sent(&mut self, bytes: u64, now: Timestamp) {
        match self.sent.back_mut() {
            Some((since, sent)) if now.since(*since) < SENT_INTERVAL => *sent = sent.saturating_add(bytes),
            _ => self.sent.push_back((now, bytes)),
        }
        // What was measured before that is stale.
        self.forget_sent(now - REPORT_AGE_MAX);
    }

    /// Forgets what was sent before this time. An interval that had begun before may have ended after.
    fn forget_sent(&mut self, until: Timestamp) {
        while self.sent.front().is_some_and(|(since, _)| *since + SENT_INTERVAL <= until) {
            self.sent.pop_front();
        }
    }

    /// Takes note of an answer; what was told before counts on until it is too old. Returns a trouble that is
    /// new.
    fn note_answer(&mut self, answer: Result<ShareSpace, String>, now: Timestamp) -> Option<&str> {
        self.asked_at = Some(now);
        let trouble = match answer {
            Ok(told) => {
                // A clock that is ahead must not hide what was sent since.
                let told = ShareSpace { measured_at: told.measured_at.min(now), ..told };
                self.told = Some(told);
                self.forget_sent(told.measured_at);
                told.is_stale(now).then(|| format!("the share was measured at {}", told.measured_at))
            }
            Err(why) => Some(why),
        };
        let is_new = trouble.is_some() && trouble != self.trouble;
        self.trouble = trouble;
        self.trouble.as_deref().filter(|_| is_new)
    }

    /// What the report allows now. None: nothing follows from it.
    fn space(&self, now: Timestamp) -> Option<Space> {
        let told = self.told.filter(|told| !told.is_stale(now))?;
        let sent = self.sent.iter().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        Some(Space { total_bytes: told.total_bytes, free_bytes: told.free_bytes.saturating_sub(sent) })
    }
}

/// The space by all that is told: of a report and a quota the smaller one. `capacity_bytes` counts where
/// neither tells what is free.
fn combine(reported: Option<Space>, quota: &Quota, capacity_bytes: Option<u64>) -> Space {
    let by_quota = quota.available_bytes.map(|free_bytes| Space {
        total_bytes: free_bytes.saturating_add(quota.used_bytes.unwrap_or(0)),
        free_bytes,
    });
    let told = [reported, by_quota].into_iter().flatten().min_by_key(|space| space.free_bytes);
    let by_capacity = |total_bytes: u64| Space {
        total_bytes,
        free_bytes: total_bytes.saturating_sub(quota.used_bytes.unwrap_or(0)),
    };
    // Nobody can tell: shown as unknown, and nothing is refused for it.
    let unknown = Space { total_bytes: 0, free_bytes: 0 };
    told.or_else(|| capacity_bytes.map(by_capacity)).unwrap_or(unknown)
}

impl RemoteStorage {
    /// Asks for the space anew.
    pub(super) fn ask_space(&self) -> Result<Space, Fault> {
        let quota = self.ask_quota()?;
        let reported = self.reported_space();
        let space = combine(reported, &quota, self.options.capacity_bytes);
        self.space.lock().free_bytes = (space.total_bytes > 0).then_some(space.free_bytes);
        Ok(space)
    }

    fn ask_quota(&self) -> Result<Quota, Fault> {
        let root = &self.root;
        match self.protocol {
            Protocol::WebDav => self.wait(async {
                let found = root.remote.quota(root.resource(&root.url)).await;
                found.map_err(|failure| failure.in_storage(Scope::Target))
            }),
            // It tells none.
            Protocol::S3(_) => Ok(Quota::default()),
        }
    }

    /// A report that cannot be had, or is none, takes no storage out of use: it tells nothing.
    fn reported_space(&self) -> Option<Space> {
        let report = self.options.space_report.as_ref()?;
        let is_due = self.space.lock().report.is_due(now());
        if is_due {
            let answer = self.runtime.block_on(self.read_report(report));
            let mut known = self.space.lock();
            if let Some(trouble) = known.report.note_answer(answer, now()) {
                tracing::warn!(storage = %self.root.name, url = %report.url, share = report.share, trouble,
                    "the storage report tells nothing");
            }
        }
        self.space.lock().report.space(now())
    }

    async fn read_report(&self, report: &SpaceReport) -> Result<ShareSpace, String> {
        let url = &report.url;
        // Nobody else is shown the storage's credential.
        let own = !self.root.url.is_s3() && url.origin() == self.root.url.origin();
        let credential = if own { &self.root.credential } else { &Credential::None };
        let document = self.root.remote.storage_report(Resource { url, credential }).await;
        let document = document.map_err(|failure: Failure| failure.text)?;
        space_report::read_share(&document, &report.share)
    }

    /// Fails for a file that does not fit, asking anew before it says so: what was told last may be old.
    pub(super) fn reserve(&self, size: u64) -> Result<(), Fault> {
        if self.take_space(size) {
            return Ok(());
        }
        let space = self.ask_space()?;
        if self.take_space(size) {
            return Ok(());
        }
        let detail =
            format!("{}: {size} bytes do not fit into {} free ones", self.root.name, space.free_bytes);
        Err(Fault::new(FaultCode::TargetFull, detail))
    }

    fn take_space(&self, size: u64) -> bool {
        let mut known = self.space.lock();
        if let Some(free_bytes) = &mut known.free_bytes {
            let Some(left) = free_bytes.checked_sub(size) else { return false };
            *free_bytes = left;
        }
        if self.options.space_report.is_some() {
            known.report.note_sent(size, now());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn at(second: i64) -> Timestamp {
        Timestamp((1_790_000_000 + second) * 1_000_000)
    }

    fn measured(free_bytes: u64, second: i64) -> Result<ShareSpace, String> {
        Ok(ShareSpace { total_bytes: 1_000, free_bytes, measured_at: at(second) })
    }

    fn free(report: &ReportKnowledge, second: i64) -> Option<u64> {
        report.space(at(second)).map(|space| space.free_bytes)
    }

    #[test]
    fn the_smaller_of_report_and_quota_counts_and_a_number_where_neither_tells() {
        let space = |total_bytes, free_bytes| Space { total_bytes, free_bytes };
        let quota = |available_bytes, used_bytes| Quota { available_bytes, used_bytes };
        let nothing = quota(None, None);
        assert_eq!(combine(Some(space(100, 40)), &quota(Some(30), Some(5)), Some(7)), space(35, 30));
        assert_eq!(combine(Some(space(100, 20)), &quota(Some(30), Some(5)), Some(7)), space(100, 20));
        assert_eq!(combine(Some(space(100, 20)), &nothing, Some(7)), space(100, 20));
        assert_eq!(combine(None, &quota(Some(30), None), Some(7)), space(30, 30));
        assert_eq!(combine(None, &quota(None, Some(30)), Some(100)), space(100, 70));
        assert_eq!(combine(None, &nothing, Some(100)), space(100, 100));
        assert_eq!(combine(None, &quota(None, Some(30)), None), space(0, 0));
    }

    #[test]
    fn what_was_sent_since_the_measurement_is_not_free_any_more() {
        let mut report = ReportKnowledge::default();
        assert!(report.is_due(at(0)) && free(&report, 0).is_none());
        assert_eq!(report.note_answer(measured(500, -3_600), at(0)), None);
        assert!(!report.is_due(at(299)) && report.is_due(at(300)));
        report.note_sent(100, at(10));
        report.note_sent(50, at(20));
        report.note_sent(30, at(100));
        assert_eq!(free(&report, 100), Some(320));
        // The same measurement, told again.
        assert_eq!(report.note_answer(measured(500, -3_600), at(300)), None);
        assert_eq!(free(&report, 300), Some(320));
        // A newer one knows of the first two.
        assert_eq!(report.note_answer(measured(350, 90), at(600)), None);
        assert_eq!(free(&report, 600), Some(320));
        report.note_sent(u64::MAX, at(700));
        report.note_sent(u64::MAX, at(800));
        assert_eq!(free(&report, 800), Some(0));
        // Nor is it remembered for ever where no report can be read any more.
        report.note_sent(1, at(800) + DAY + SENT_INTERVAL);
        assert_eq!(report.sent.len(), 1);
    }

    #[test]
    fn a_report_that_is_missing_or_stale_is_told_once_and_the_last_counts_for_a_day() {
        let mut report = ReportKnowledge::default();
        assert_eq!(report.note_answer(measured(500, 0), at(0)), None);
        let gone = || Err("GET https://a/srr: 404".to_owned());
        assert_eq!(report.note_answer(gone(), at(400)), Some("GET https://a/srr: 404"));
        assert_eq!(report.note_answer(gone(), at(800)), None, "told already");
        assert_eq!(free(&report, 800), Some(500));
        let next_day = DAY.as_secs() as i64;
        assert_eq!(free(&report, next_day), Some(500));
        assert_eq!(free(&report, next_day + 1), None);
        // The document is written anew, with old numbers.
        let stale = report.note_answer(measured(500, 0), at(next_day + 400)).unwrap();
        assert!(stale.starts_with("the share was measured at 2026-"), "{stale}");
        assert_eq!(report.note_answer(measured(400, next_day), at(next_day + 800)), None);
        assert_eq!(free(&report, next_day + 800), Some(400));
        // A clock that is ahead.
        assert_eq!(report.note_answer(measured(400, next_day + 5_000), at(next_day + 900)), None);
        report.note_sent(1, at(next_day + 901));
        assert_eq!(free(&report, next_day + 901), Some(399));
    }
}
