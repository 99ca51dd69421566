//! Budgets: Gbit/s × hours per community in a sliding window, and requests per provider (rate limit).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use longhaul_model::{CommunityName, Timestamp};
use serde::{Deserialize, Serialize};

use super::BookingId;
use super::settings::PlanSettings;

/// Window of the rate limit.
const HOUR: Duration = Duration::from_secs(3600);
/// Entries kept; beyond this, nothing is booked until the oldest expire.
const BUDGET_ENTRIES_MAX: usize = 10_000;

/// One booking charged to a community.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct BudgetEntry {
    at: Timestamp,
    booking: BookingId,
    community: CommunityName,
    gbit_hours: f64,
}

/// Share of a booking's cost for each community with work on the link.
pub(crate) type CostShares = BTreeMap<CommunityName, f64>;

/// Bookings and requests within their windows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BudgetLedger {
    entries: VecDeque<BudgetEntry>,
    requests: BTreeMap<String, VecDeque<Timestamp>>,
}

impl BudgetLedger {
    /// Drops what has left its window.
    pub(crate) fn expire(&mut self, settings: &PlanSettings, now: Timestamp) {
        self.entries.retain(|entry| entry.at <= now && now.since(entry.at) < settings.budget_window);
        for times in self.requests.values_mut() {
            times.retain(|at| *at <= now && now.since(*at) < HOUR);
        }
    }

    pub(crate) fn booked_gbit_hours(&self, community: &CommunityName) -> f64 {
        let own = self.entries.iter().filter(|entry| entry.community == *community);
        own.map(|entry| entry.gbit_hours).sum()
    }

    pub(crate) fn booked_by_community(&self) -> Vec<(CommunityName, f64)> {
        let mut sums: BTreeMap<CommunityName, f64> = BTreeMap::new();
        for entry in &self.entries {
            *sums.entry(entry.community.clone()).or_default() += entry.gbit_hours;
        }
        sums.into_iter().collect()
    }

    /// The first community over budget, with what it has left and what it would need.
    pub(crate) fn over_budget(
        &self,
        payers: &CostShares,
        gbit_hours: f64,
        settings: &PlanSettings,
    ) -> Option<(CommunityName, f64, f64)> {
        payers.iter().find_map(|(community, part)| {
            let limit = settings.budgets.get(community).copied().or(settings.budget)?;
            let left = (limit - self.booked_gbit_hours(community)).max(0.0);
            let needed = gbit_hours * part;
            (needed > left || self.entries.len() >= BUDGET_ENTRIES_MAX)
                .then(|| (community.clone(), left, needed))
        })
    }

    pub(crate) fn book(&mut self, booking: BookingId, payers: &CostShares, gbit_hours: f64, now: Timestamp) {
        self.entries.extend(payers.iter().map(|(community, part)| BudgetEntry {
            at: now,
            booking,
            community: community.clone(),
            gbit_hours: gbit_hours * part,
        }));
    }

    /// Settles a booking of which only this part was used.
    pub(crate) fn settle(&mut self, booking: BookingId, part: f64) {
        for entry in self.entries.iter_mut().filter(|entry| entry.booking == booking) {
            entry.gbit_hours *= part.clamp(0.0, 1.0);
        }
    }

    pub(crate) fn requests_in_last_hour(&self, provider: &str) -> u32 {
        self.requests.get(provider).map_or(0, |times| times.len() as u32)
    }

    pub(crate) fn count_request(&mut self, provider: &str, now: Timestamp) {
        self.requests.entry(provider.to_owned()).or_default().push_back(now);
    }
}
