//! Batching of files into stage requests.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_catalog::TapeStep;
use longhaul_model::job::storage_element;
use longhaul_model::{Fault, Timestamp};

use crate::job_control::JobControl;

/// Files of one end point that are read at a time; further ones wait until these are requested.
const FILES_PER_POLL_MAX: usize = 4_000;

/// Files that may share one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    end: u64,
    vo: String,
    party: String,
    /// Files that are pinned only: their request is not deleted when the others are done.
    stays: bool,
}

/// Since when each group waits for more files.
#[derive(Default)]
pub struct Gather {
    since: BTreeMap<Group, Timestamp>,
}

impl Gather {
    /// The requests that are due now.
    pub fn next_bulks(&mut self, job_control: &JobControl, now: Timestamp) -> Result<Vec<TapeStep>, Fault> {
        let catalog = &job_control.kernel.catalog;
        let mut groups: BTreeMap<Group, Vec<u64>> = BTreeMap::new();
        for end in catalog.staging_endpoints()? {
            for file in catalog.staging_files(end, FILES_PER_POLL_MAX, now)? {
                let group = Group { end, vo: file.vo, party: file.requester, stays: file.pin_only };
                groups.entry(group).or_default().push(file.file);
            }
        }
        self.since.retain(|group, _| groups.contains_key(group));
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let urls: BTreeMap<u64, String> =
            catalog.job_endpoints()?.into_iter().map(|end| (end.id, end.url)).collect();
        let config = &job_control.settings.jobs.tape;
        let mut made = 0;
        let mut steps = Vec::new();
        for (group, files) in groups {
            let (all, of_end) = catalog.count_tape_requests(group.end, &group.vo)?;
            let limit = limit(job_control, urls.get(&group.end), &group.vo).unwrap_or(u64::MAX);
            let room =
                limit.saturating_sub(of_end).min(u64::from(config.requests).saturating_sub(all + made));
            let bulks = self.bulks(&group, &files, config, now);
            for bulk in bulks.into_iter().take(usize::try_from(room).unwrap_or(usize::MAX)) {
                made += 1;
                steps.push(TapeStep::Request { endpoint: group.end, vo: group.vo.clone(), files: bulk });
            }
        }
        Ok(steps)
    }

    /// The full batches, and the last, incomplete one if it has waited long enough.
    fn bulks(
        &mut self,
        group: &Group,
        files: &[u64],
        config: &super::config::TapeConfig,
        now: Timestamp,
    ) -> Vec<Vec<u64>> {
        let most = config.bulk_files as usize;
        let since = *self.since.entry(group.clone()).or_insert(now);
        let waited = now.since(since) >= Duration::from_secs(u64::from(config.bulk_wait_s));
        let ready = files.chunks(most).filter(|bulk| waited || bulk.len() == most);
        let bulks: Vec<Vec<u64>> = ready.map(<[u64]>::to_vec).collect();
        if waited {
            self.since.remove(group);
        }
        bulks
    }
}

/// Limit of requests of one community at one storage, as set by FTS's API.
fn limit(job_control: &JobControl, url: Option<&String>, vo: &str) -> Option<u64> {
    let kept = job_control.config_store.get().ok()?;
    let settings = kept.storages.get(&storage_element(url?)?)?;
    settings.operations.as_ref()?.get(vo)?.get("staging").map(|limit| u64::from(*limit))
}

#[cfg(test)]
mod tests {
    use super::super::config::TapeConfig;
    use super::*;

    #[test]
    fn bulks_are_full_or_have_waited() {
        let config = TapeConfig { bulk_files: 3, bulk_wait_s: 10, ..TapeConfig::default() };
        let group = Group { end: 1, vo: "higgs".into(), party: "x".into(), stays: false };
        let mut gather = Gather::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000_000);
        let files: Vec<u64> = (1..8).collect();
        assert_eq!(gather.bulks(&group, &files, &config, at(100)), [vec![1, 2, 3], vec![4, 5, 6]]);
        assert!(gather.bulks(&group, &files[6..], &config, at(109)).is_empty());
        assert_eq!(gather.bulks(&group, &files[6..], &config, at(110)), [vec![7]]);
        // What comes later waits for itself.
        assert!(gather.bulks(&group, &files[..1], &config, at(111)).is_empty());
    }
}
