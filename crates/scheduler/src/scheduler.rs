//! The scheduler's face.

use longhaul_model::{StorageId, SubscriptionId, Timestamp, TransferId};
use longhaul_network::Knowledge;

use crate::decision::{Choice, ChoiceInWords, Decision};
use crate::event::Event;
use crate::query::{Counts, LinkNow, Outlook, TransferNow};
use crate::settings::Settings;

pub struct Scheduler {
    settings: Settings,
    knowledge: Knowledge,
}

#[allow(clippy::todo)]
impl Scheduler {
    /// `last_id`: the highest transfer or attempt id ever used (0 if none), so that ids never repeat.
    pub fn new(settings: Settings, knowledge: Knowledge, last_id: u64) -> Self {
        let _ = last_id;
        Scheduler { settings, knowledge }
    }
    pub fn handle(&mut self, event: Event, now: Timestamp) {
        let _ = (event, now);
        todo!()
    }
    pub fn poll_decision(&mut self, now: Timestamp) -> Option<Decision> {
        let _ = now;
        todo!()
    }
    /// When to poll again even without an event.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        todo!()
    }
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
    /// To be kept across restarts (serde).
    pub fn knowledge(&self) -> &Knowledge {
        &self.knowledge
    }
    pub fn outlook(&self, subscription: SubscriptionId, now: Timestamp) -> Outlook {
        let _ = (subscription, now);
        todo!()
    }
    /// Why a transfer waits, in one sentence; none if it is unknown or leased.
    pub fn waits(&self, transfer: TransferId, now: Timestamp) -> Option<String> {
        let _ = (transfer, now);
        todo!()
    }
    pub fn explain(&self, choice: &Choice) -> ChoiceInWords {
        let _ = choice;
        todo!()
    }
    pub fn links(&self, now: Timestamp) -> Vec<LinkNow> {
        let _ = now;
        todo!()
    }
    pub fn counts(&self) -> Counts {
        todo!()
    }
    pub fn counts_of(&self, target: StorageId) -> Counts {
        let _ = target;
        todo!()
    }
    /// Transfers in memory in the order of their ids, after `after`; of one subscription if given.
    pub fn transfers(
        &self,
        subscription: Option<SubscriptionId>,
        after: Option<TransferId>,
        limit: usize,
    ) -> Vec<TransferNow> {
        let _ = (subscription, after, limit);
        todo!()
    }
    pub fn transfer(&self, transfer: TransferId) -> Option<TransferNow> {
        let _ = transfer;
        todo!()
    }
}
