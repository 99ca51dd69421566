//! Evaluation of the scheduler's network knowledge in a world: how its forecasts turned out, and which link
//! changes it detected, true alarms and false ones.

use std::collections::BTreeMap;

use longhaul_network::{Change, ChangeScope, ForecastQuality, Locality};

use crate::world::{START, World, micros};

/// A detected change counts as true within this time after a failure of the link or one of its ends.
const CHANGE_EXPECTED_S: f64 = 24.0 * 3_600.0;
/// Length of a month, the unit of false-alarm rates.
const MONTH_S: f64 = 30.0 * 86_400.0;
/// Changes reported one by one; all are counted.
const CHANGES_REPORTED_MAX: usize = 1_000;

/// A change of a link, or of the path below it, that was noticed.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectedChange {
    /// Seconds since the beginning.
    pub at: f64,
    pub source: String,
    pub target: String,
    pub change: Change,
    /// Whether something had happened to the link or to one of its ends.
    pub expected: bool,
    /// Files that had come over the link since the last thing that befell it, and probes that had been sent.
    pub files: u32,
    pub probes: u32,
}

#[derive(Clone, Debug, Default)]
pub struct KnowledgeReport {
    /// By the history that links had, a quarter of the outcomes each.
    pub forecasts: Vec<ForecastQuality>,
    pub changes: Vec<DetectedChange>,
    /// Changes for which there was no cause.
    pub false_alarms: u64,
    /// Links with work, times the months that were simulated.
    pub link_months: f64,
    /// Changes that were told of so far.
    changes_seen: u64,
    /// Files over each link since something befell it, and probes.
    link_counts: BTreeMap<(u32, u32), (u32, u32)>,
}

impl World<'_> {
    /// A file came over the link.
    pub(crate) fn count_file(&mut self, source: u32, target: u32) {
        self.knowledge.link_counts.entry((source, target)).or_default().0 += 1;
    }

    /// The link is probed.
    pub(crate) fn count_probe(&mut self, source: u32, target: u32) {
        self.knowledge.link_counts.entry((source, target)).or_default().1 += 1;
    }

    /// Something begins or ends that touches these links.
    pub(crate) fn reset_link_counts(&mut self, trouble: u32) {
        let trouble = &self.plan.failures[trouble as usize];
        self.knowledge
            .link_counts
            .retain(|&(source, target), _| !trouble.affects_rate_of(source as usize, target as usize));
    }

    /// Takes down what the scheduler noticed since it was last asked.
    pub(crate) fn record_changes(&mut self) {
        let knowledge = self.scheduler.knowledge();
        let told = knowledge.changes_since_start();
        let new = told - self.knowledge.changes_seen;
        if new == 0 {
            return;
        }
        self.knowledge.changes_seen = told;
        let changes: Vec<Change> = knowledge.changes().rev().take(new as usize).copied().collect();
        for change in changes.into_iter().rev() {
            let (source, target) = match change.affected {
                ChangeScope::Link(link) => (link.source.0 as usize, link.target.0 as usize),
                ChangeScope::Path { source, target, .. } => (site_of(source), site_of(target)),
            };
            let at = (change.noticed.0 - START.0 - self.clock_jump) as f64 / 1e6;
            let due = self.plan.failures.iter().any(|trouble| {
                let recent = |then: f64| (0.0..CHANGE_EXPECTED_S).contains(&(self.now as f64 / 1e6 - then));
                trouble.affects_rate_of(source, target) && (recent(trouble.begin) || recent(trouble.end))
            });
            self.knowledge.false_alarms += u64::from(!due);
            if self.knowledge.changes.len() < CHANGES_REPORTED_MAX {
                let name = |site: usize| self.plan.layout.sites[site].name.clone();
                let since = self.knowledge.link_counts.get(&(source as u32, target as u32));
                let (files, probes) = since.copied().unwrap_or_default();
                self.knowledge.changes.push(DetectedChange {
                    at,
                    source: name(source),
                    target: name(target),
                    change,
                    expected: due,
                    files,
                    probes,
                });
            }
        }
    }

    /// At the end.
    pub(crate) fn take_knowledge_report(&mut self) -> KnowledgeReport {
        let mut learned = std::mem::take(&mut self.knowledge);
        let knowledge = self.scheduler.knowledge();
        learned.forecasts = knowledge.quarters().to_vec();
        let months = self.now.min(micros(self.plan.until)) as f64 / 1e6 / MONTH_S;
        learned.link_months = knowledge.links().count() as f64 * months;
        learned
    }
}

/// Each site has one storage, of the same number.
fn site_of(home: Locality) -> usize {
    match home {
        Locality::Site(site) => site.0 as usize,
        Locality::Storage(storage) => storage.0 as usize,
    }
}
