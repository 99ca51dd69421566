//! What jobs want moved between sites whose storages can be reached by circuits.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::{PendingWork, SitePair};
use longhaul_control::{Control, Kernel};
use longhaul_model::{CircuitUse, SiteId, StorageId, Timestamp};
use longhaul_netops::{BacklogSource, HostConfig, JobBacklog};
use longhaul_scheduler::{MissingBytes, Party, Scheduler};

use super::hosts::{host_config, site_id};
use crate::ids;

/// The work of jobs that waits between two sites whose storages can be reached by circuits.
pub struct PairBacklog {
    pub pair: SitePair,
    pub bytes: u64,
    /// Expected rate without a circuit.
    pub bytes_per_s: f64,
    /// What the whole target lacks, from whichever source.
    missing: Vec<MissingBytes>,
    since: Timestamp,
}

/// Reports the backlog of jobs to the circuit planner and to agents.
pub struct CircuitBacklog {
    kernel: Arc<Kernel>,
    control: Arc<Control>,
    hosts: Vec<HostConfig>,
}

impl BacklogSource for CircuitBacklog {
    fn by_pair(&self) -> Result<Vec<JobBacklog>, CatalogError> {
        let backlog = |row: &PairBacklog| JobBacklog {
            pair: row.pair,
            bytes_per_s: row.bytes_per_s,
            pending: row.pending_work().collect(),
        };
        Ok(self.backlogs()?.iter().map(backlog).collect())
    }
}

impl CircuitBacklog {
    pub fn new(kernel: Arc<Kernel>, control: Arc<Control>, hosts: Vec<HostConfig>) -> CircuitBacklog {
        CircuitBacklog { kernel, control, hosts }
    }

    pub(super) fn backlogs(&self) -> Result<Vec<PairBacklog>, CatalogError> {
        let hosts = &self.hosts;
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        let directory = self.kernel.directory();
        let ends: BTreeMap<u64, SiteId> = self
            .kernel
            .catalog
            .job_endpoints()?
            .into_iter()
            .filter_map(|end| Some((end.id, site_id(&directory, host_config(hosts, &end.url)?)?)))
            .collect();
        let targets: Vec<(StorageId, SiteId)> =
            ends.iter().map(|(&end, &site)| (ids::target(end), site)).collect();
        let asked = self.kernel.scheduler.query(move |scheduler: &Scheduler, now: Timestamp| {
            let of = |(target, site): (StorageId, SiteId)| {
                (site, scheduler.link_backlogs(target, now), scheduler.missing_bytes(target), now)
            };
            targets.into_iter().map(of).collect::<Vec<_>>()
        });
        let mut all = Vec::new();
        // Without an answer nothing is known to wait.
        for (target, links, lacking, since) in asked.unwrap_or_default() {
            for link in links {
                let Some(&source) = ends.get(&ids::end(link.source)).filter(|source| **source != target)
                else {
                    continue;
                };
                let ahead = PairBacklog {
                    pair: SitePair { source, target },
                    bytes: link.bytes,
                    bytes_per_s: link.plain_expected,
                    missing: lacking.clone(),
                    since,
                };
                all.extend(ahead.for_parties(|party| may_use_circuits(&self.control, party)));
            }
        }
        Ok(all)
    }
}

fn may_use_circuits(control: &Control, party: &Party) -> bool {
    control.marks.treatment(&party.community, party.activity.as_ref()).circuits != CircuitUse::Never
}

impl PairBacklog {
    /// The part of the backlog whose parties may use circuits; none if there is none.
    fn for_parties(self, goes: impl Fn(&Party) -> bool) -> Option<PairBacklog> {
        let sum = |rows: &[MissingBytes]| rows.iter().map(|row| u128::from(row.bytes)).sum::<u128>();
        let all = sum(&self.missing);
        let lacking: Vec<MissingBytes> = self.missing.into_iter().filter(|row| goes(&row.party)).collect();
        let bytes = u128::from(self.bytes) * sum(&lacking) / all.max(1);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        (!lacking.is_empty()).then_some(PairBacklog { bytes, missing: lacking, ..self })
    }

    /// The backlog as the circuit planner counts it: the part of each party and priority.
    pub fn pending_work(&self) -> impl Iterator<Item = PendingWork> + '_ {
        let all: u128 = self.missing.iter().map(|row| u128::from(row.bytes)).sum();
        self.missing.iter().map(move |row| PendingWork {
            target: self.pair.target,
            sources: vec![self.pair.source],
            bytes: u64::try_from(u128::from(self.bytes) * u128::from(row.bytes) / all.max(1))
                .unwrap_or(u64::MAX),
            priority: row.priority,
            community: row.party.community.clone(),
            since: self.since,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_divided_among_those_who_want_it_by_circuits() {
        let lacking = |community: &str, priority, bytes| MissingBytes {
            party: Party { community: community.parse().unwrap(), activity: None },
            priority,
            bytes,
        };
        let ahead = PairBacklog {
            pair: SitePair { source: SiteId(1), target: SiteId(2) },
            bytes: 600,
            bytes_per_s: 1.0,
            missing: vec![lacking("atlas", 8, 2_000), lacking("cms", 5, 1_000)],
            since: Timestamp(0),
        };
        let waits: Vec<_> =
            ahead.pending_work().map(|row| (row.community.to_string(), row.priority, row.bytes)).collect();
        assert_eq!(waits, [("atlas".to_owned(), 8, 400), ("cms".to_owned(), 5, 200)]);
        let ahead = ahead.for_parties(|party| party.community.as_str() == "cms").unwrap();
        assert_eq!(
            (ahead.bytes, ahead.pending_work().map(|row| row.bytes).collect::<Vec<_>>()),
            (200, vec![200])
        );
        assert!(ahead.for_parties(|_| false).is_none());
    }
}
