//! Throughput and concurrency of a target over all its links at once, counted for [`crate::concurrency`],
//! which finds how many files at once pay.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_network::IntakeRate;

use crate::concurrency::{FlowBytes, Sample};
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::state::{Target, to_f64};

/// A link that has been silent for longer keeps no other link from work.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Load of a target, with files weighed by the limits of their links: a link that has all it can use counts
/// as
/// much as any other, however many files that takes. So a slow link with many small files does not keep the
/// target from the others.
struct TargetLoad {
    files_used: u32,
    files_moving: u32,
    bytes: f64,
}

fn target_load(target: &Target, least: u32, now: Timestamp) -> TargetLoad {
    let (mut used, mut moving, mut bytes) = (0.0, 0.0, 0.0);
    for link in target.links.values() {
        if link.files == 0 || now.since(link.last_arrival) > SILENCE_MAX {
            continue;
        }
        let part = f64::from(least) / f64::from(link.concurrency_limit(least));
        used += (part * f64::from(link.files)).min(f64::from(least));
        moving += (part * f64::from(link.moving)).min(f64::from(least));
        bytes += to_f64(link.bytes);
    }
    TargetLoad { files_used: used.round() as u32, files_moving: moving.round() as u32, bytes }
}

impl Scheduler {
    /// Whether enough links bring as much as the target can use: files that are due first arrive sooner if
    /// they share the target with few.
    pub(crate) fn is_saturated(&mut self, target: u32, pace: IntakeRate, now: Timestamp) -> bool {
        if self.settings.rules == Rules::Fts3 {
            return false;
        }
        let row = &self.storages[target];
        let work = (pace.bytes_per_s * self.settings.target_window.as_secs_f64())
            .max(self.settings.lease_bytes_min as f64);
        if to_f64(row.target.leased_bytes) < work {
            return false;
        }
        let least = self.settings.lease_files_always;
        let row = &mut self.storages[target].target;
        let wide = target_load(row, least, now);
        if wide.files_used < row.concurrency.files(self.settings.target_files_always) || wide.bytes < work {
            return false;
        }
        row.concurrency.note_limited();
        let links = row.links.values_mut();
        links
            .filter(|link| link.files > 0 && link.files >= link.concurrency_limit(least))
            .for_each(|link| link.concurrency.note_limited());
        true
    }

    /// Counts arrived bytes: progress of a running file (`report`), or the end of a file.
    pub(crate) fn count_arrival(
        &mut self,
        target: u32,
        source: u32,
        bytes: u64,
        report: bool,
        now: Timestamp,
    ) {
        let least = self.settings.lease_files_always;
        let row = &self.storages[target].target;
        if row.concurrency.may_sample(now) {
            self.count_source_bytes(target);
            let row = &mut self.storages[target].target;
            let wide = target_load(row, least, now);
            let come = FlowBytes {
                link: row.bytes_arrived,
                source: row.sources_bytes_sent,
                target: row.bytes_arrived,
            };
            let look = Sample { bytes: come, files: wide.files_used, moving: wide.files_moving, report };
            row.concurrency.record_sample(&look, self.settings.target_files_always, now);
        } else {
            self.storages[target].target.concurrency.count_with_last(report, now);
        }
        let sent = &mut self.storages[source].bytes_sent;
        let before = *sent;
        *sent += bytes as f64;
        let row = &mut self.storages[target].target;
        let Some(link) = row.links.get_mut(source) else { return };
        let come = FlowBytes { link: link.bytes_arrived, source: before, target: row.bytes_arrived };
        link.concurrency.record_sample(
            &Sample { bytes: come, files: link.files, moving: link.moving, report },
            least,
            now,
        );
        link.bytes_arrived += bytes as f64;
        link.arrivals += u64::from(bytes > 0);
        row.bytes_arrived += bytes as f64;
        row.arrivals += u64::from(bytes > 0);
    }

    /// Adds what the sources of a target have sent to anybody since the last call.
    fn count_source_bytes(&mut self, target: u32) {
        // The links are taken out meanwhile, since their sources lie in the same table.
        let mut links = std::mem::take(&mut self.storages[target].target.links);
        for (source, link) in links.iter_mut().filter(|(_, link)| link.files > 0) {
            let sent = self.storages[source].bytes_sent;
            let before = std::mem::replace(&mut link.source_bytes_sent, sent);
            self.storages[target].target.sources_bytes_sent += sent - before;
        }
        self.storages[target].target.links = links;
    }
}
