//! Snapshot of a planner, which survives the process: bookings with their states, back-offs, budgets and
//! gains.
//!
//! Reasons and confirmations are not kept: the next plans restore them.

use std::time::Duration;

use longhaul_model::Timestamp;
use serde::{Deserialize, Serialize};

use super::booking::{Booking, BookingState};
use super::budget::BudgetLedger;
use super::provider_gains::ProviderGains;
use super::{BookingId, LinkBackoff, PlanSettings, Planner, SitePair};

/// To be persisted after each plan, before its decisions are carried out.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PlannerSnapshot {
    last: u64,
    bookings: Vec<(BookingId, Booking)>,
    ledger: BudgetLedger,
    accounts: ProviderGains,
    plain: Vec<(SitePair, f64, Option<Timestamp>)>,
    rests: Vec<(SitePair, LinkBackoff)>,
}

impl Planner {
    pub fn snapshot(&self) -> PlannerSnapshot {
        PlannerSnapshot {
            last: self.last,
            bookings: self.bookings.iter().map(|(id, booking)| (*id, booking.clone())).collect(),
            ledger: self.ledger.clone(),
            accounts: self.accounts.clone(),
            plain: self.best_effort.iter().map(|(pair, (rate, until))| (*pair, *rate, *until)).collect(),
            rests: self.backoffs.iter().map(|(pair, rest)| (*pair, *rest)).collect(),
        }
    }

    /// Restores a planner; the downtime does not count as time of work.
    pub fn restore(settings: PlanSettings, kept: PlannerSnapshot) -> Planner {
        let PlannerSnapshot { last, bookings, ledger, accounts, plain, rests } = kept;
        let highest = bookings.iter().map(|(id, _)| id.0).max().unwrap_or(0);
        let plain = plain.into_iter().filter(|(_, rate, _)| rate.is_finite() && *rate >= 0.0);
        Planner {
            last: last.max(highest),
            bookings: bookings.into_iter().collect(),
            ledger,
            accounts,
            best_effort: plain.map(|(pair, rate, until)| (pair, (rate, until))).collect(),
            backoffs: rests.into_iter().collect(),
            ..Planner::new(settings)
        }
    }

    /// Adopts a circuit requested by an earlier planner of which nothing else is known, so that it is not
    /// requested twice.
    pub fn adopt(
        &mut self,
        pair: SitePair,
        provider: &str,
        mbit: u64,
        asked: Timestamp,
        lifetime: Duration,
    ) -> BookingId {
        self.last += 1;
        let id = BookingId(self.last);
        let booking = Booking {
            pair,
            provider: provider.to_owned(),
            bypasses_ports: false,
            mbit,
            requested_at: asked,
            lifetime,
            state: BookingState::Requested,
            best_effort: 0.0,
            replaces: None,
            idle: 0,
            useless: 0,
            misfit: 0,
            busy_s: 0.0,
            lost: 0.0,
        };
        self.bookings.insert(id, booking);
        id
    }
}
