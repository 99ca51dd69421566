//! What comes to a target over all its links at once, as far as its concurrency is concerned: counted here
//! for [`crate::at_once`], which finds out how much of it pays.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_network::IntakeRate;

use crate::at_once::{Come, Look};
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::state::{Target, float};

/// A link that has been silent for so long keeps no other from work.
const SILENT: Duration = Duration::from_secs(60);

/// Files, counted by their links' numbers: a link that has all that it can use counts as much as any other,
/// however many files that takes. A slow link that was given many small files must not keep the target from
/// the others.
struct Width {
    used: u32,
    moving: u32,
    bytes: f64,
}

fn width(target: &Target, least: u32, now: Timestamp) -> Width {
    let (mut used, mut moving, mut bytes) = (0.0, 0.0, 0.0);
    for link in target.links.values() {
        if link.files == 0 || now.since(link.heard) > SILENT {
            continue;
        }
        let part = f64::from(least) / f64::from(link.files_at_once(least));
        used += (part * f64::from(link.files)).min(f64::from(least));
        moving += (part * f64::from(link.moving)).min(f64::from(least));
        bytes += float(link.bytes);
    }
    Width { used: used.round() as u32, moving: moving.round() as u32, bytes }
}

impl Scheduler {
    /// Whether as much as the target can use comes over enough links: the files of what is due first come
    /// sooner if they share it with few.
    pub(crate) fn is_wide(&mut self, target: u32, pace: IntakeRate, now: Timestamp) -> bool {
        if self.settings.rules == Rules::Fts3 {
            return false;
        }
        let row = &self.storages[target];
        let work = (pace.bytes_per_s * self.settings.target_window.as_secs_f64())
            .max(self.settings.lease_bytes_min as f64);
        if float(row.target.leased_bytes) < work {
            return false;
        }
        let least = self.settings.lease_files_always;
        let row = &mut self.storages[target].target;
        let wide = width(row, least, now);
        if wide.used < row.at_once.files(self.settings.target_files_always) || wide.bytes < work {
            return false;
        }
        row.at_once.held_back();
        let links = row.links.values_mut();
        links
            .filter(|link| link.files > 0 && link.files >= link.files_at_once(least))
            .for_each(|link| link.at_once.held_back());
        true
    }

    /// Counts what comes: of a running file (`report`), or at a file's end.
    pub(crate) fn came(&mut self, target: u32, source: u32, bytes: u64, report: bool, now: Timestamp) {
        let least = self.settings.lease_files_always;
        let row = &self.storages[target].target;
        if row.at_once.looks(now) {
            self.count_sources(target);
            let row = &mut self.storages[target].target;
            let wide = width(row, least, now);
            let come = Come { link: row.come, source: row.sources_sent, target: row.come };
            let look = Look { come, files: wide.used, moving: wide.moving, report };
            row.at_once.look(&look, self.settings.target_files_always, now);
        } else {
            self.storages[target].target.at_once.comes_as_well(report, now);
        }
        let sent = &mut self.storages[source].sent;
        let before = *sent;
        *sent += bytes as f64;
        let row = &mut self.storages[target].target;
        let Some(link) = row.links.get_mut(source) else { return };
        let come = Come { link: link.come, source: before, target: row.come };
        link.at_once.look(&Look { come, files: link.files, moving: link.moving, report }, least, now);
        link.come += bytes as f64;
        link.pieces += u64::from(bytes > 0);
        row.come += bytes as f64;
        row.pieces += u64::from(bytes > 0);
    }

    /// What the sources of a target have sent to anybody since the last time.
    fn count_sources(&mut self, target: u32) {
        // The links are taken out meanwhile, since their sources lie in the same table.
        let mut links = std::mem::take(&mut self.storages[target].target.links);
        for (source, link) in links.iter_mut().filter(|(_, link)| link.files > 0) {
            let sent = self.storages[source].sent;
            let before = std::mem::replace(&mut link.source_sent, sent);
            self.storages[target].target.sources_sent += sent - before;
        }
        self.storages[target].target.links = links;
    }
}
