//! Who has booked how much of late: Gbit/s times hours of a community, and requests to a provider.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CommunityName, Timestamp};
use serde::{Deserialize, Serialize};

use super::BookingId;
use super::settings::PlanSettings;

const HOUR: Duration = Duration::from_secs(3600);
/// Entries that are kept; with more, nothing is booked until the oldest are past.
const ENTRIES_MAX: usize = 10_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    at: Timestamp,
    booking: BookingId,
    community: CommunityName,
    gbit_hours: f64,
}

/// What a booking costs each community that has work on the link, in parts of one.
pub(crate) type Payers = BTreeMap<CommunityName, f64>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ledger {
    entries: VecDeque<Entry>,
    requests: BTreeMap<String, VecDeque<Timestamp>>,
}

impl Ledger {
    /// What is past its window does not count any more.
    pub(crate) fn forget(&mut self, settings: &PlanSettings, now: Timestamp) {
        self.entries.retain(|entry| entry.at <= now && now.since(entry.at) < settings.budget_window);
        for times in self.requests.values_mut() {
            times.retain(|at| *at <= now && now.since(*at) < HOUR);
        }
    }

    pub(crate) fn booked(&self, community: &CommunityName) -> f64 {
        let own = self.entries.iter().filter(|entry| entry.community == *community);
        own.map(|entry| entry.gbit_hours).sum()
    }

    pub(crate) fn all(&self) -> Vec<(CommunityName, f64)> {
        let mut sums: BTreeMap<CommunityName, f64> = BTreeMap::new();
        for entry in &self.entries {
            *sums.entry(entry.community.clone()).or_default() += entry.gbit_hours;
        }
        sums.into_iter().collect()
    }

    /// The first payer that cannot, with what it has left and what it would need.
    pub(crate) fn short(
        &self,
        payers: &Payers,
        gbit_hours: f64,
        settings: &PlanSettings,
    ) -> Option<(CommunityName, f64, f64)> {
        payers.iter().find_map(|(community, part)| {
            let limit = settings.budgets.get(community).copied().or(settings.budget)?;
            let left = (limit - self.booked(community)).max(0.0);
            let needed = gbit_hours * part;
            (needed > left || self.entries.len() >= ENTRIES_MAX).then(|| (community.clone(), left, needed))
        })
    }

    pub(crate) fn book(&mut self, booking: BookingId, payers: &Payers, gbit_hours: f64, now: Timestamp) {
        self.entries.extend(payers.iter().map(|(community, part)| Entry {
            at: now,
            booking,
            community: community.clone(),
            gbit_hours: gbit_hours * part,
        }));
    }

    /// Only this part of it was used in the end.
    pub(crate) fn settle(&mut self, booking: BookingId, part: f64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.booking == booking) {
            entry.gbit_hours *= part.clamp(0.0, 1.0);
        }
    }

    pub(crate) fn asked(&self, provider: &str) -> u32 {
        self.requests.get(provider).map_or(0, |times| times.len() as u32)
    }

    pub(crate) fn ask(&mut self, provider: &str, now: Timestamp) {
        self.requests.entry(provider.to_owned()).or_default().push_back(now);
    }
}
