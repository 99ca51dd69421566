//! Explanations of choices, recalls and waits: sentences for people, with the numbers behind them.

use std::time::Duration;

use longhaul_model::{StorageId, Timestamp, TransferId, units};

use crate::decision::{Candidate, CandidateExplanation, Choice, ChoiceExplanation, LeaseRecall, Unusable};
use crate::dispatch::TargetUnusable;
use crate::limits;
use crate::link_shares::LinkWeight;
use crate::scheduler::Scheduler;
use crate::shares::Party;
use crate::state::{Phase, Transfer};
use crate::strategy::Strategy;

impl Scheduler {
    /// Explains why this storage was chosen, and how the others compare.
    pub fn explain(&self, choice: &Choice) -> ChoiceExplanation {
        let usable = choice.candidates.first().filter(|best| best.unusable.is_none());
        let candidates = choice.candidates.iter().enumerate();
        ChoiceExplanation {
            reason: match usable {
                Some(best) => {
                    let weight = choice.link_weight.map_or_else(String::new, LinkWeight::describe);
                    self.reason(choice.strategy, best, &choice.candidates[1..]) + &weight
                }
                None => "no storage could be used".to_owned(),
            },
            candidates: candidates
                .filter_map(|(at, candidate)| {
                    Some(CandidateExplanation {
                        id: candidate.storage,
                        storage: self.known_name(candidate.storage)?.clone(),
                        chosen: at == 0 && usable.is_some(),
                        finish: candidate.unusable.is_none().then_some(candidate.finish),
                        rate_bytes_per_s: candidate.rate_bytes_per_s,
                        bytes_ahead: candidate.bytes_ahead,
                        failure_share: candidate.failure_share,
                        unusable: candidate.unusable.map(describe_unusable),
                    })
                })
                .collect(),
            waited: choice.waited,
            waited_for: match choice.leased_before {
                0 => "nothing".to_owned(),
                files => format!("{} that went before it to the same storage", describe_files(files)),
            },
        }
    }

    fn reason(&self, strategy: Strategy, best: &Candidate, others: &[Candidate]) -> String {
        let name = self.name(best.storage);
        let name = if best.by_circuit { format!("{name} by a circuit") } else { name };
        let Some(other) = others.first() else {
            return format!("{name}, the only storage that holds it");
        };
        let other_name = self.name(other.storage);
        if let Some(why) = other.unusable {
            let why = describe_unusable(why);
            let more = match others.len() {
                1 => String::new(),
                len => format!(", and {} more", len - 1),
            };
            return format!("{name}, the only one that can be used now: {other_name} {why}{more}");
        }
        if strategy != Strategy::Best {
            let (own, others) = (describe_rank(strategy, best.rank), describe_rank(strategy, other.rank));
            return format!("{name}, by the strategy {strategy}: {own} against {others} at {other_name}");
        }
        let because = if other.failure_share > best.failure_share + 0.2 {
            format!("of whose recent attempts {:.0} % failed", 100.0 * other.failure_share)
        } else if other.bytes_ahead > best.bytes_ahead {
            format!("which has {} ahead", units::bytes(other.bytes_ahead))
        } else {
            format!("which is expected to give {}", units::rate(other.rate_bytes_per_s))
        };
        format!(
            "{name}, because it finishes first: {} against {} at {other_name}, {because}",
            describe_seconds(best.finish),
            describe_seconds(other.finish),
        )
    }

    /// Explains why a lease is recalled.
    pub fn explain_recall(&self, asked: &LeaseRecall) -> String {
        format!(
            "{} gives {} now: the file would arrive from there after {}, from {} after {}",
            self.name(asked.source),
            units::rate(asked.rate_bytes_per_s),
            describe_seconds(asked.finish),
            self.name(asked.other),
            describe_seconds(asked.other_finish),
        )
    }

    /// Why a transfer waits, in one sentence; none if it is unknown or has begun.
    pub fn explain_wait(&self, transfer: TransferId, now: Timestamp) -> Option<String> {
        let index = *self.by_id.get(&transfer)?;
        let transfer = &self.transfers[index];
        match transfer.phase {
            Phase::Leased(lease) if lease.started => None,
            Phase::Leased(lease) => {
                let row = &self.storages[transfer.target].target;
                let others = (row.leased.len() as u64).saturating_sub(1);
                let source = self.name(self.storages[lease.source].id);
                Some(format!(
                    "its agent has the lease, to fetch it from {source}, and {}",
                    units::plural(others, "other", "others")
                ))
            }
            Phase::Parked => Some(match &transfer.fault {
                Some(fault) => format!("no storage holds a usable replica; the last attempt: {fault}"),
                None => "no storage holds a usable replica".to_owned(),
            }),
            Phase::Unlinked => Some(self.describe_unlinked(transfer)),
            Phase::InBackoff | Phase::New => Some(self.describe_backoff(transfer, now)),
            Phase::Queued => Some(self.describe_queued(transfer, now)),
        }
    }

    fn describe_unlinked(&self, transfer: &Transfer) -> String {
        let relay = self.current_relay(transfer).map(|relay| self.name(self.storages[relay].id));
        let sources = transfer.sources.iter().map(|source| self.name(self.storages[source.storage].id));
        let sources: Vec<String> = sources.collect();
        match relay {
            Some(relay) => {
                format!("it comes over {relay}: {} has no link to its target", sources.join(" or "))
            }
            None => match self.uncommissioned_source(transfer) {
                Some(source) => format!(
                    "the link from {source} to its target is not commissioned: only test transfers may use it"
                ),
                None => format!("no route leads from {} to its target", sources.join(" or ")),
            },
        }
    }

    /// A source that has a link to the target, but for test transfers only.
    pub(crate) fn uncommissioned_source(&self, transfer: &Transfer) -> Option<String> {
        let party = self.wants[transfer.want].party;
        let mut closed = transfer.sources.iter().filter(|source| {
            self.is_link(source.storage, transfer.target)
                && !self.commissioned(source.storage, transfer.target, party)
        });
        closed.next().map(|source| self.name(self.storages[source.storage].id))
    }

    fn describe_backoff(&self, transfer: &Transfer, now: Timestamp) -> String {
        let source = transfer.sources.iter().map(|source| source.backoff_until).min();
        let until =
            self.clock.caller_time(transfer.backoff_until.max(source.unwrap_or(transfer.backoff_until)));
        let fault = transfer.fault.as_ref().map_or_else(String::new, |fault| format!(": {fault}"));
        let (wait, until) = (units::duration(until.since(now)), until.to_seconds_text());
        let failed = units::plural(transfer.tries.into(), "attempt", "attempts");
        format!("{failed} failed, the next is in {wait}, at {until}{fault}")
    }

    fn describe_queued(&self, transfer: &Transfer, now: Timestamp) -> String {
        let danger = self.describe_deadline_risk(transfer);
        self.describe_turn_or_obstacle(transfer, now) + &danger
    }

    /// Says that a deadline at risk expedites the transfer; empty if none is at risk.
    fn describe_deadline_risk(&self, transfer: &Transfer) -> String {
        let want = &self.wants[transfer.want];
        let hurries = want.demands.iter().any(|(id, wish)| {
            self.subscriptions.get(&id).is_some_and(|subscription| self.is_expedited(wish, subscription))
        });
        match hurries {
            true => format!(
                "; its deadline is in danger: it goes before all else of {}",
                self.describe_party(want.party)
            ),
            false => String::new(),
        }
    }

    fn describe_party(&self, party: u32) -> String {
        match self.parties.party(party) {
            Party { community, activity: Some(activity) } => format!("{community}, {activity}"),
            Party { community, activity: None } => community.to_string(),
        }
    }

    fn describe_turn_or_obstacle(&self, transfer: &Transfer, now: Timestamp) -> String {
        let target = transfer.target;
        let steady = self.clock.steady_time(now);
        if let Some(barred) = self.target_unusable(target, steady) {
            return self.describe_target_unusable(target, barred, now);
        }
        if let Some(detour) = self.describe_detour(transfer, steady) {
            return detour;
        }
        let party = self.wants[transfer.want].party;
        let sources = transfer.sources.iter().filter(|source| source.backoff_until <= steady);
        let mut reasons = Vec::new();
        for source in sources {
            match self.unusable(source.storage, target, party, steady) {
                None => return self.describe_turn(transfer, source.storage),
                Some(why) => {
                    let why = self.to_caller_times(why);
                    let name = self.name(self.storages[source.storage].id);
                    let at_once = self.describe_concurrency(source.storage, target, why);
                    let share = match why {
                        Unusable::WindowFull { .. } | Unusable::LimitActive { .. } => {
                            self.describe_link_share(source.storage, target, party)
                        }
                        _ => String::new(),
                    };
                    reasons.push(format!("{name} {}{at_once}{share}", describe_unusable(why)));
                }
            }
        }
        format!("no source can be used now: {}", reasons.join("; "))
    }

    /// Explains the concurrency limit of a link whose window is full.
    fn describe_concurrency(&self, source: u32, target: u32, why: Unusable) -> String {
        let link = self.storages[target].target.links.get(source);
        match (why, link) {
            (Unusable::WindowFull { .. }, Some(link)) => {
                let least = self.settings.lease_files_always;
                let (files, why) = (link.concurrency_limit(least), link.explain_concurrency(least));
                format!(" ({files} large ones at once, {why})")
            }
            _ => String::new(),
        }
    }

    fn describe_turn(&self, transfer: &Transfer, source: u32) -> String {
        let target = transfer.target;
        let row = &self.storages[target];
        let queued = row.target.lanes.same_or_higher(self.wants[transfer.want].lane);
        let (files, bytes) = queued.fold((0u64, 0u128), |(files, bytes), (_, class)| {
            (files + u64::from(class.queued), bytes + class.queued_bytes)
        });
        let want = &self.wants[transfer.want];
        let part = row.target.lanes.entitled_fraction(want.lane, &self.parties);
        let whose = self.describe_party(want.party);
        let own = self.describe_link_share(source, target, want.party);
        let share = if !own.is_empty() {
            own
        } else if part < 0.995 {
            format!("; the share of {whose} is {:.0} % of what goes there now", 100.0 * part)
        } else {
            String::new()
        };
        let before = files.saturating_sub(1);
        format!(
            "its turn: {} has {} ({}) under way, and {} more ({}) of this priority or a higher one {} \
                there{share}",
            self.name(row.id),
            describe_files(row.target.leased.len() as u64),
            describe_bytes(row.target.leased_bytes),
            units::count(before),
            describe_bytes(bytes.saturating_sub(u128::from(transfer.size))),
            if before == 1 { "waits" } else { "wait" },
        )
    }

    pub(crate) fn describe_target_unusable(
        &self,
        target: u32,
        barred: TargetUnusable,
        now: Timestamp,
    ) -> String {
        let row = &self.storages[target];
        let name = self.name(row.id);
        let site = self.sites[row.site].info.as_ref();
        let site_name = site.map_or_else(|| "its site".to_owned(), |info| format!("site {}", info.name));
        let why = site.and_then(|info| info.reason.as_ref());
        let why = why.map_or_else(String::new, |why| format!(": {}", units::printable(why)));
        match barred {
            TargetUnusable::Unknown => format!("storage {name} is not known to the scheduler yet"),
            TargetUnusable::NotWritable => format!("{name} is not offered for writing"),
            TargetUnusable::InTrouble => match &row.trouble {
                Some(fault) => format!("{name} takes no files now: {fault}"),
                None => format!("{name} takes no files now"),
            },
            TargetUnusable::NotConnected => format!("the agent of {name} is not connected"),
            TargetUnusable::SiteDraining => format!("{site_name} is draining{why}"),
            TargetUnusable::SitePaused => format!("{site_name} is paused{why}"),
            TargetUnusable::AttemptsInFull { limit } => {
                format!("{site_name} has {limit} of {} in running, its limit", describe_attempts(limit))
            }
            TargetUnusable::NoRoom { until } => {
                let until = self.clock.caller_time(until);
                let (wait, until) = (units::duration(until.since(now)), until.to_seconds_text());
                format!("{name} is full or read-only; one file is tried in {wait}, at {until}")
            }
        }
    }

    pub fn storage_name(&self, storage: StorageId) -> Option<&longhaul_model::StorageName> {
        self.known_name(storage)
    }

    fn known_name(&self, storage: StorageId) -> Option<&longhaul_model::StorageName> {
        let index = self.storage_of.get(&storage)?;
        self.storages[*index].name.as_ref()
    }

    pub(crate) fn name(&self, storage: StorageId) -> String {
        self.known_name(storage).map_or_else(|| format!("storage {storage}"), ToString::to_string)
    }
}

/// The value by which a strategy ranked a source, with its unit.
fn describe_rank(strategy: Strategy, rank: f64) -> String {
    if rank == f64::NEG_INFINITY {
        return "never measured, so tried first,".to_owned();
    }
    let whole = rank.abs() as u64; // Saturates.
    match strategy {
        Strategy::Best | Strategy::Orderly => format!("place {} in the order given", whole + 1),
        Strategy::Queue => format!("{} waiting", describe_files(whole)),
        Strategy::Success => format!("{:.0} % failures", 100.0 * rank),
        Strategy::Throughput => format!("{} over the link", units::rate(rank.abs())),
        Strategy::FileThroughput => format!("{} for one file", units::rate(rank.abs())),
        Strategy::PendingData => format!("{} waiting", units::bytes(whole)),
        Strategy::WaitingTime | Strategy::WaitingTimeWithError => {
            format!("{} of work waiting", describe_seconds(Duration::from_secs_f64(rank.clamp(0.0, 1e9))))
        }
        Strategy::Duration => {
            format!("{} until it is there", describe_seconds(Duration::from_secs_f64(rank.clamp(0.0, 1e9))))
        }
    }
}

pub(crate) fn describe_files(files: u64) -> String {
    units::plural(files, "file", "files")
}

pub(crate) fn describe_attempts(attempts: u32) -> String {
    units::plural(attempts.into(), "attempt", "attempts")
}

/// Why a storage cannot be used: a predicate that follows its name.
pub(crate) fn describe_unusable(why: Unusable) -> String {
    match why {
        Unusable::NotConnected => "has no agent connected".to_owned(),
        Unusable::SiteDraining => "is at a draining site".to_owned(),
        Unusable::SitePaused => "is at a paused site".to_owned(),
        Unusable::ActiveOut { limit } => {
            let attempts = describe_attempts(limit);
            format!("has {limit} of {attempts} out running, its site's limit, or others are before")
        }
        Unusable::WindowFull { files, bytes } => {
            let (files, bytes) = (describe_files(files.into()), units::bytes(bytes));
            format!("has enough to do: {files} ({bytes}) for this target")
        }
        Unusable::InBackoff { until } => {
            format!("failed for this file and is tried again at {}", until.to_seconds_text())
        }
        Unusable::Unreachable { until } => {
            format!("could not be reached and is tried again at {}", until.to_seconds_text())
        }
        Unusable::NoLink => "has no link to this storage".to_owned(),
        Unusable::NotCommissioned => {
            "has a link to this storage that is not commissioned: only test transfers may use it".to_owned()
        }
        Unusable::NoCircuit => {
            "has no circuit to this storage now, and this work goes by circuits only".to_owned()
        }
        Unusable::LimitActive { of, limit } => {
            limits::describe_limit(of, &limits::describe_active_limit(limit))
        }
        Unusable::LimitRate { of, bytes_per_s, until } => {
            format!(
                "{}; the next file goes at {}",
                limits::describe_limit(of, &units::rate(bytes_per_s as f64)),
                until.to_seconds_text()
            )
        }
        Unusable::Unknown => "is not known to the scheduler yet".to_owned(),
    }
}

pub(crate) fn describe_bytes(bytes: u128) -> String {
    units::bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn describe_seconds(value: Duration) -> String {
    let seconds = value.as_secs_f64();
    if seconds < 100.0 { format!("{seconds:.1} s") } else { units::duration(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_no_plural() {
        let full = |files| describe_unusable(Unusable::WindowFull { files, bytes: 1_000 });
        assert_eq!(full(1), "has enough to do: 1 file (1.00 kB) for this target");
        assert_eq!(full(2_000), "has enough to do: 2,000 files (1.00 kB) for this target");
        let limit = |limit| describe_unusable(Unusable::ActiveOut { limit });
        assert!(limit(1).starts_with("has 1 of 1 attempt out running"), "{}", limit(1));
        assert!(limit(8).starts_with("has 8 of 8 attempts out running"), "{}", limit(8));
        assert_eq!(describe_rank(Strategy::Queue, 1.0), "1 file waiting");
        assert_eq!(describe_rank(Strategy::Queue, 0.0), "0 files waiting");
    }
}
