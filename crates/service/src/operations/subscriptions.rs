//! Standing wishes: made, changed, and shown with their progress and expected end.

use std::collections::BTreeMap;

use longhaul_api::Problem;
use longhaul_api::formats::SubscriptionPriority;
use longhaul_api::native::{
    self, ChangeKind, Expected, Page, StuckFiles, Subscribe, SubscriptionChange, SubscriptionView,
};
use longhaul_api::rights;
use longhaul_api::steering::TermsChange;
use longhaul_catalog::custody::CancelConsent;
use longhaul_catalog::{
    NewSubscription, SubscriptionFilter, SubscriptionPatch, SubscriptionResult, SubscriptionRow,
};
use longhaul_control::brain::Input;
use longhaul_control::deadlines;
use longhaul_identity::{Belonging, Caller};
use longhaul_model::{
    DatasetName, Fault, FaultCode, StorageId, StorageName, SubscriptionId, SubscriptionState, Timestamp,
    Verification,
};
use longhaul_scheduler::{DemandId, Outlook};

use super::space::SpaceShortage;
use super::steering::{terms, terms_patch, terms_view};
use super::{Operations, PageQuery, bad_request, not_found, page, problem};

use crate::views;

const PRIORITY: u8 = 5;

/// Query of `subscription_list`.
#[derive(Clone, Debug, Default)]
pub struct SubscriptionList {
    pub dataset: Option<DatasetName>,
    pub storage: Option<StorageName>,
    pub state: Option<SubscriptionState>,
    pub page: PageQuery,
}

impl Operations {
    pub fn subscription_create(
        &self,
        caller: &Caller,
        request: &Subscribe,
    ) -> Result<SubscriptionView, Problem> {
        let dataset = self.dataset_row(&request.dataset)?;
        let target = self.storage_row(&request.storage)?;
        let of = [Belonging::Data(&dataset.community), Belonging::Site(&target.site_name)];
        caller.check(&rights::SUBSCRIPTION_CREATE, &of)?;
        // Data is charged to its own community, unless it is said otherwise.
        if let Some(community) = request.terms.community.as_ref().filter(|name| **name != dataset.community) {
            caller.check(&rights::SUBSCRIPTION_CHARGE, &[Belonging::Charge(community)])?;
        }
        let block = match &request.block {
            None => None,
            Some(name) => match self.shared.kernel.catalog.block(name).map_err(problem)? {
                Some(row) if row.dataset == dataset.id => Some(row.id),
                _ => {
                    let blocks = format!("longhaul dataset show {} --blocks", dataset.name);
                    return Err(not_found("block", name, &blocks));
                }
            },
        };
        if !target.writable {
            let detail =
                format!("{} is a storage that takes no files: its agent serves it read-only", target.name);
            let problem = Problem::from(Fault::new(FaultCode::Conflict, detail));
            return Err(problem.with_remedy("choose one that takes files: longhaul storage list"));
        }
        let new = NewSubscription {
            id: self.shared.kernel.new_id(),
            dataset: dataset.id,
            block,
            target: target.id,
            priority: priority(request.priority)?.unwrap_or(PRIORITY),
            verification: request.verification.unwrap_or(Verification::EndToEnd),
            terms: terms(&request.terms, self.now())?,
            custodial: request.custodial,
        };
        let changed = self.shared.kernel.catalog.add_subscription(&new, self.now()).map_err(problem)?;
        let (subscription, made) = (changed.subscription.id, changed.changed);
        if !made && let Some(change) = changes_to_existing(request, &changed.subscription)? {
            return self.subscription_change(caller, subscription, &change);
        }
        tracing::info!(%subscription, dataset = %dataset.name, target = %target.name, made, "subscribed");
        self.subscription_changed(changed)
    }

    pub fn subscription_change(
        &self,
        caller: &Caller,
        id: SubscriptionId,
        change: &SubscriptionChange,
    ) -> Result<SubscriptionView, Problem> {
        let row = self.subscription_row(id)?;
        let community = row.terms.community.as_ref().unwrap_or(&row.community);
        let target = self.storage_row(&row.target_name)?;
        let of = [Belonging::Charge(community), Belonging::Site(&target.site_name)];
        caller.check(&rights::SUBSCRIPTION_STATE, &of)?;
        if (SubscriptionChange { state: None, ..change.clone() }) != SubscriptionChange::default() {
            caller.check(&rights::SUBSCRIPTION_TERMS, &of)?;
        }
        let patch = SubscriptionPatch {
            state: change.state,
            priority: priority(change.priority)?,
            terms: terms_patch(&change.terms, self.now())?,
            consent: row.custodial.then(|| CancelConsent {
                key: caller.owner_key(),
                who: caller.principal.name.clone(),
                for_data: caller.check(&rights::SUBSCRIPTION_STATE, &of[..1]).is_ok(),
                for_site: caller.check(&rights::SUBSCRIPTION_STATE, &of[1..]).is_ok(),
                at: self.now(),
            }),
        };
        // Whose it becomes has to be theirs as well.
        if let Some(community) = &patch.terms.community {
            let community = community.as_ref().unwrap_or(&row.community);
            caller.check(&rights::SUBSCRIPTION_TERMS, &[Belonging::Charge(community)])?;
        }
        let changed = self.shared.kernel.catalog.change_subscription(id, &patch, self.now());
        let changed = changed.map_err(|error| change_problem(problem(error), &row))?;
        let (state, priority) = (&changed.subscription.state, changed.subscription.priority);
        tracing::info!(subscription = %id, %state, priority, "subscription changed");
        self.subscription_changed(changed)
    }

    pub fn subscription_show(&self, id: SubscriptionId) -> Result<SubscriptionView, Problem> {
        self.subscription_view(self.subscription_row(id)?)
    }

    fn subscription_row(&self, id: SubscriptionId) -> Result<SubscriptionRow, Problem> {
        let row = self.shared.kernel.catalog.subscription(id).map_err(problem)?;
        row.ok_or_else(|| not_found("subscription", id, "longhaul subscription list"))
    }

    pub fn subscription_list(&self, query: &SubscriptionList) -> Result<Page<SubscriptionView>, Problem> {
        let limit = query.page.limit();
        let filter = SubscriptionFilter {
            dataset: query.dataset.as_ref().map(|name| self.dataset_row(name)).transpose()?.map(|row| row.id),
            target: query.storage.as_ref().map(|name| self.storage_row(name)).transpose()?.map(|row| row.id),
            state: query.state,
            after: query.page.after()?,
            limit: limit + 1,
        };
        let rows = self.shared.kernel.catalog.subscriptions(&filter).map_err(problem)?;
        let ids: Vec<SubscriptionId> = rows.iter().take(limit).map(|row| row.id).collect();
        let mut outlooks = self.outlooks(ids).into_iter();
        let shortages = self.space_shortages();
        page(
            rows,
            limit,
            |row| row.id.to_string(),
            |row| {
                let outlook = outlooks.next().flatten();
                self.view_with(row, outlook, &shortages)
            },
        )
    }

    fn subscription_changed(&self, changed: SubscriptionResult) -> Result<SubscriptionView, Problem> {
        let row = changed.subscription;
        let now = self.now();
        let gone =
            changed.demands_gone.iter().map(|&block| DemandId { subscription: row.id, block }).collect();
        self.shared.kernel.notify_scheduler(Input::Demands { now: changed.demands, gone });
        for cancelled in changed.cancelled {
            self.shared.control.live.settled(cancelled.transfer);
            if let Some((attempt, agent)) = cancelled.lease {
                self.shared.control.live.ended(attempt, false, 0, now);
                self.shared.control.agents.cancel(agent, [attempt]);
            }
        }
        self.shared.kernel.changes.touch(ChangeKind::Subscription, row.id, now);
        self.subscription_view(row)
    }

    fn outlooks(&self, ids: Vec<SubscriptionId>) -> Vec<Option<Outlook>> {
        let count = ids.len();
        let all = self.query_scheduler(move |scheduler, now| {
            ids.into_iter().map(|id| Some(scheduler.outlook(id, now))).collect()
        });
        all.unwrap_or_else(|| vec![None; count])
    }

    fn subscription_view(&self, row: SubscriptionRow) -> Result<SubscriptionView, Problem> {
        let outlook = self.outlooks(vec![row.id]).into_iter().next().flatten();
        self.view_with(row, outlook, &self.space_shortages())
    }

    /// What the subscription waits for from tape, storage by storage, for people. None if nothing.
    fn awaited_from_tape(&self, row: &SubscriptionRow) -> Result<Option<String>, Problem> {
        let staging = &self.shared.control.staging;
        if !staging.is_awaited_by(row.target) {
            return Ok(None);
        }
        let blocks = self.shared.kernel.catalog.demanded_blocks(row.id).map_err(problem)?;
        let (directory, now) = (self.shared.kernel.directory(), self.now());
        let awaited = staging.awaited_by(row.target, &blocks).into_iter().filter_map(|(storage, status)| {
            let name = directory.name(storage)?;
            Some(format!("comes from tape at {name} first: {}", views::tape_queue(&status).words(now)))
        });
        Ok(Some(awaited.collect::<Vec<_>>().join("; ")).filter(|text| !text.is_empty()))
    }

    /// The consent that stands, and whose is missing.
    fn consent_view(
        &self,
        row: &SubscriptionRow,
        standing: &CancelConsent,
    ) -> Result<native::CancelConsent, Problem> {
        let site = self.storage_row(&row.target_name)?.site_name;
        let community = row.terms.community.as_ref().unwrap_or(&row.community);
        let missing = match (standing.for_data, standing.for_site) {
            (true, true) => format!("another manager of {community} or of {site}"),
            (true, false) => format!("a manager of {site}"),
            (false, _) => format!("a manager of {community}"),
        };
        Ok(native::CancelConsent { who: standing.who.clone(), at: standing.at, missing })
    }

    fn view_with(
        &self,
        row: SubscriptionRow,
        outlook: Option<Outlook>,
        shortages: &BTreeMap<StorageId, SpaceShortage>,
    ) -> Result<SubscriptionView, Problem> {
        let now = self.now();
        let progress = self.shared.kernel.catalog.subscription_progress(row.id).map_err(problem)?;
        let live = self.shared.control.live.of_subscription(row.id, now);
        let delivered: u64 = progress.sources.iter().map(|source| source.bytes).sum();
        // A subscription older than this process had its first byte before anyone here could see it.
        let seen = self.shared.control.live.first_byte(row.id).filter(|_| self.shared.started <= row.created);
        let since = seen.unwrap_or(row.created);
        let promise = outlook
            .as_ref()
            .filter(|_| !progress.complete && row.state == SubscriptionState::Active)
            .and_then(|outlook| {
                deadlines::promise(&row, outlook, self.shared.control.deadlines.since(row.id), now)
            });
        let waits = !progress.complete && row.state == SubscriptionState::Active;
        let cancel_consent = match &row.consent {
            Some(standing) if row.state != SubscriptionState::Cancelled => {
                Some(self.consent_view(&row, standing)?)
            }
            _ => None,
        };
        let from_tape = if waits { self.awaited_from_tape(&row)? } else { None };
        let space_warning = shortages.get(&row.target).filter(|_| waits).map(SpaceShortage::text);
        Ok(SubscriptionView {
            id: row.id,
            dataset: row.dataset_name,
            block: row.block_name,
            storage: row.target_name,
            state: row.state,
            priority: row.priority,
            verification: row.verification,
            charged_to: Some(row.terms.community.clone().unwrap_or(row.community)),
            terms: terms_view(row.terms),
            custodial: row.custodial,
            cancel_consent,
            promise,
            created: row.created,
            files_wanted: progress.files_wanted,
            bytes_wanted: progress.bytes_wanted,
            files_present: progress.files_present,
            bytes_present: progress.bytes_present,
            complete: progress.complete,
            completed: row.completed,
            rate_now: if progress.complete { 0.0 } else { live.rate },
            rate_average: average(delivered, since, row.completed.unwrap_or(now)),
            files_running: live.files,
            retries: progress.retries,
            failed_files: progress.files_failed,
            space_warning,
            sources: progress.sources.into_iter().map(views::source_share).collect(),
            expected: with_tape(expected(row.state, progress.complete, outlook), from_tape),
            verified: views::verified(&progress.verified),
        })
    }
}

/// Why a subscription stays as it is, with the command that goes on.
fn change_problem(problem: Problem, row: &SubscriptionRow) -> Problem {
    if problem.code != FaultCode::Conflict {
        return problem;
    }
    match row.state {
        SubscriptionState::Cancelled => problem.with_remedy(format!(
            "that is for good; make a new one: longhaul subscribe {} {}",
            row.block_name.as_ref().map_or(row.dataset_name.as_str(), |block| block.as_str()),
            row.target_name
        )),
        SubscriptionState::Active | SubscriptionState::Suspended => {
            problem.with_remedy(format!("see it: longhaul subscription show {}", row.id))
        }
    }
}

/// What a repeated request changes in the subscription that it finds: only what it names. None if it agrees.
fn changes_to_existing(
    request: &Subscribe,
    row: &SubscriptionRow,
) -> Result<Option<SubscriptionChange>, Problem> {
    if let Some(wanted) = request.verification.filter(|&wanted| wanted != row.verification) {
        let detail = format!(
            "subscription {} to the same data verifies {}, not {wanted}, and that cannot be changed",
            row.id, row.verification
        );
        let problem = Problem::from(Fault::new(FaultCode::AlreadyExists, detail));
        return Err(problem.with_remedy(format!("cancel it first: longhaul subscription cancel {}", row.id)));
    }
    if request.custodial && !row.custodial {
        let detail =
            format!("subscription {} to the same data is not custodial, and cannot become so", row.id);
        let problem = Problem::from(Fault::new(FaultCode::AlreadyExists, detail));
        return Err(problem.with_remedy(format!("cancel it first: longhaul subscription cancel {}", row.id)));
    }
    let named = |wanted: Option<String>, present: Option<String>| {
        wanted.filter(|wanted| present.as_ref() != Some(wanted))
    };
    let (wanted, present) = (&request.terms, &row.terms);
    let change = SubscriptionChange {
        state: None,
        priority: request.priority.filter(|&wanted| wanted != row.priority),
        terms: TermsChange {
            community: named(
                wanted.community.as_ref().map(ToString::to_string),
                present.community.as_ref().map(ToString::to_string),
            ),
            activity: named(
                wanted.activity.as_ref().map(ToString::to_string),
                present.activity.as_ref().map(ToString::to_string),
            ),
            strategy: named(wanted.strategy.clone(), present.strategy.clone()),
            deadline: named(
                wanted.deadline.map(|at| at.to_string()),
                present.deadline.map(|at| at.to_string()),
            ),
        },
    };
    Ok((change != SubscriptionChange::default()).then_some(change))
}

fn priority(priority: Option<u8>) -> Result<Option<u8>, Problem> {
    if priority.is_some_and(|priority| !SubscriptionPriority::accepts(priority)) {
        return Err(bad_request("a priority is 1 (least) to 9"));
    }
    Ok(priority)
}

fn average(bytes: u64, since: Timestamp, until: Timestamp) -> f64 {
    let seconds = until.since(since).as_secs_f64();
    // A burst within a tenth of a second has no meaningful average.
    if bytes == 0 { 0.0 } else { bytes as f64 / seconds.max(0.1) }
}

fn expected(state: SubscriptionState, complete: bool, outlook: Option<Outlook>) -> Expected {
    let none = |why: &str| Expected { why_none: Some(why.to_owned()), ..Expected::default() };
    match (state, complete, outlook) {
        (SubscriptionState::Suspended, false, _) => none("the subscription is suspended"),
        (SubscriptionState::Cancelled, false, _) => none("the subscription is cancelled"),
        (_, true, _) => none("it is complete"),
        (_, _, None) => none("the scheduler did not answer in time"),
        (_, _, Some(outlook)) => Expected {
            median: outlook.median,
            ninety: outlook.ninety,
            why_none: outlook.why_none,
            held_up_by: outlook.held_up_by,
            stuck: outlook.stuck.map(|stuck| StuckFiles { files: stuck.files, why: stuck.why }),
        },
    }
}

/// Adds what comes from tape first: as the reason where there is no forecast, since files that are not on
/// disk are in no queue yet; else as what holds it up.
fn with_tape(mut expected: Expected, from_tape: Option<String>) -> Expected {
    match from_tape {
        Some(why) if expected.why_none.is_some() => expected.why_none = Some(why),
        Some(why) => expected.held_up_by.insert(0, why),
        None => {}
    }
    expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_one_to_nine() {
        assert!(priority(Some(0)).is_err() && priority(Some(10)).is_err() && priority(Some(255)).is_err());
        assert_eq!(priority(Some(9)).unwrap(), Some(9));
        assert_eq!(priority(None).unwrap(), None);
    }

    #[test]
    fn the_average_is_over_the_time_since_the_first_byte() {
        let at = Timestamp::from_seconds;
        assert_eq!(average(1_000, at(10), at(20)), 100.0);
        assert_eq!(average(0, at(10), at(10)), 0.0);
        assert!(average(1_000, at(20), at(10)).is_finite());
    }

    #[test]
    fn a_repeated_subscription_changes_what_it_names_and_nothing_else() {
        let row = SubscriptionRow {
            id: SubscriptionId(7),
            dataset: longhaul_model::DatasetId(1),
            dataset_name: "a/b".parse().unwrap(),
            community: "atlas".parse().unwrap(),
            block: None,
            block_name: None,
            target: StorageId(2),
            target_name: "beta".parse().unwrap(),
            state: SubscriptionState::Active,
            priority: 5,
            verification: Verification::EndToEnd,
            created: Timestamp::ZERO,
            completed: None,
            terms: longhaul_catalog::Terms::default(),
            custodial: false,
            consent: None,
        };
        let request = Subscribe {
            dataset: row.dataset_name.clone(),
            block: None,
            storage: row.target_name.clone(),
            priority: None,
            verification: None,
            custodial: false,
            terms: longhaul_api::steering::Terms::default(),
        };
        assert_eq!(changes_to_existing(&request, &row).unwrap(), None);
        let same =
            Subscribe { priority: Some(5), verification: Some(Verification::EndToEnd), ..request.clone() };
        assert_eq!(changes_to_existing(&same, &row).unwrap(), None);
        let mut other = Subscribe { priority: Some(8), ..request.clone() };
        other.terms.strategy = Some("orderly".into());
        let change = changes_to_existing(&other, &row).unwrap().unwrap();
        assert_eq!((change.priority, change.terms.strategy.as_deref()), (Some(8), Some("orderly")));
        assert_eq!((change.state, change.terms.deadline), (None, None));
        let stricter = Subscribe { verification: Some(Verification::Readback), ..request };
        let problem = changes_to_existing(&stricter, &row).unwrap_err();
        assert_eq!(problem.code, FaultCode::AlreadyExists);
        assert!(problem.remedy.contains("longhaul subscription cancel"), "{}", problem.remedy);
    }

    /// Promise 10: what has no estimate says why.
    #[test]
    fn no_estimate_without_a_reason() {
        for state in [SubscriptionState::Active, SubscriptionState::Suspended, SubscriptionState::Cancelled] {
            for complete in [false, true] {
                let view = expected(state, complete, None);
                assert!(view.median.is_some() || view.why_none.is_some());
            }
        }
    }
}
