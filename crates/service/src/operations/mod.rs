//! What people and programs can ask for: one method per route of `api::routes`, named after it. The router
//! and the pages call the same methods.
//!
//! They block on the catalog, and some ask the brain: call them through [`Operations::run`] from async code.
//! Whether a route is open to who calls is decided before, by the router's table; what is about one site or
//! community, the operation asks `rights` about.

mod access;
mod accounts;
mod agents;
mod audit;
mod circuits;
mod commissioning;
mod datasets;
mod jobs;
mod limits;
mod logins;
mod manifest;
mod measured;
mod movers;
mod network;
mod overview;
mod refusals;
mod removals;
mod replicas;
mod sites;
mod space;
mod steering;
mod storage_names;
mod subscriptions;
mod tasks;
mod transfers;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use longhaul_api::Problem;
use longhaul_api::native::{ChangeEvent, Page};
use longhaul_api::rights::Right;
use longhaul_api::routes::{PAGE_ITEMS_DEFAULT, PAGE_ITEMS_MAX};
use longhaul_catalog::{AddError, CatalogError, DatasetRow, StorageRow};
use longhaul_control::commit_loop::CommitWork;
use longhaul_identity::{Belonging, Caller, Identity};
use longhaul_model::{DatasetName, Fault, FaultCode, StorageName, SubscriptionId, Timestamp};
use longhaul_network::exchange::Imported;
use longhaul_scheduler::{ImportedKnowledge, Scheduler};
use tokio::sync::{Semaphore, broadcast};

use crate::Config;
use crate::context::ServiceContext;

pub use agents::AgentPeer;
pub use datasets::FileList;
pub use jobs::JobList;
pub(crate) use longhaul_identity::catalog_problem as problem;
pub(crate) use manifest::spool_problem;
pub use network::MoreWork;
pub use subscriptions::SubscriptionList;
pub use tasks::TaskList;

pub struct Operations {
    pub(crate) shared: Arc<ServiceContext>,
    /// Blocking operations under way.
    slots: Arc<Semaphore>,
    /// Reports that wait for the commit loop.
    pub(crate) reports: Arc<Semaphore>,
    /// What goes through the whole catalog: one at a time, and never in place of an agent's request.
    scans: Arc<Semaphore>,
    /// Blocking operations run where they are called: nobody else is kept from working.
    inline: bool,
    /// Held while the records of commissioned links are changed.
    commissioning: parking_lot::Mutex<()>,
}

/// Reports taken in at a time: each is at most a body, so this bounds their memory.
const REPORTS_MAX: usize = 64;

/// Which part of a list.
#[derive(Clone, Debug, Default)]
pub struct PageQuery {
    pub limit: Option<u32>,
    pub after: Option<String>,
}

impl PageQuery {
    pub(crate) fn limit(&self) -> usize {
        self.limit.unwrap_or(PAGE_ITEMS_DEFAULT).clamp(1, PAGE_ITEMS_MAX) as usize
    }

    /// The cursor as whatever the list is ordered by.
    pub(crate) fn after<T: std::str::FromStr>(&self) -> Result<Option<T>, Problem> {
        let parse = |text: &String| {
            text.parse().map_err(|_| unprocessable(format!("{text:?} is no cursor of this list")))
        };
        self.after.as_ref().map(parse).transpose()
    }
}

impl Operations {
    pub(crate) fn new(shared: Arc<ServiceContext>) -> Self {
        let slots = Arc::new(Semaphore::new(shared.config.limits.operations as usize));
        Operations {
            shared,
            slots,
            reports: Arc::new(Semaphore::new(REPORTS_MAX)),
            scans: Arc::new(Semaphore::new(1)),
            inline: false,
            commissioning: parking_lot::Mutex::default(),
        }
    }

    /// As [`Operations::new`], for a service without threads.
    #[cfg(feature = "testing")]
    pub(crate) fn new_inline(shared: Arc<ServiceContext>) -> Self {
        Operations { inline: true, ..Operations::new(shared) }
    }

    /// Runs a blocking operation where it may block; a bounded number at a time.
    pub async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&Operations) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.run_in(&self.slots, operation).await
    }

    /// The same for what goes through the whole catalog.
    pub(crate) async fn run_scan<T: Send + 'static>(
        self: &Arc<Self>,
        operation: impl FnOnce(&Operations) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        self.run_in(&self.scans, operation).await
    }

    async fn run_in<T: Send + 'static>(
        self: &Arc<Self>,
        slots: &Arc<Semaphore>,
        operation: impl FnOnce(&Operations) -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if self.inline {
            return operation(self);
        }
        let slot = match tokio::time::timeout(self.shared.config.limits.wait(), slots.clone().acquire_owned())
            .await
        {
            Ok(Ok(slot)) => slot,
            _ => return Err(busy("too many requests at once")),
        };
        let operations = self.clone();
        let done = tokio::task::spawn_blocking(move || {
            let result = operation(&operations);
            drop(slot);
            result
        });
        done.await.unwrap_or_else(|error| {
            tracing::error!(%error, "an operation panicked");
            Err(Fault::new(FaultCode::Internal, "the operation ended abnormally").into())
        })
    }

    pub fn now(&self) -> Timestamp {
        self.shared.kernel.now()
    }

    /// People, their sessions and logins.
    pub fn identity(&self) -> &Arc<Identity> {
        &self.shared.identity
    }

    pub(crate) fn clock(&self) -> crate::Clock {
        self.shared.kernel.clock.clone()
    }

    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// Hears of every change from now on, each object at most once a second.
    pub fn changes(&self) -> broadcast::Receiver<ChangeEvent> {
        self.shared.kernel.changes.listen()
    }

    /// Asks the scheduler; none if it does not answer in time.
    pub(crate) fn query_scheduler<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Scheduler, Timestamp) -> T + Send + 'static,
    ) -> Option<T> {
        self.shared.kernel.scheduler.query(question)
    }

    /// Teaches what others know of the network; none if it does not answer in time.
    pub(crate) fn learn(&self, lesson: ImportedKnowledge) -> Option<Result<Imported, Fault>> {
        self.shared.kernel.scheduler.learn(lesson)
    }

    pub(crate) fn dataset_row(&self, name: &DatasetName) -> Result<DatasetRow, Problem> {
        let row = self.shared.kernel.catalog.dataset(name).map_err(problem)?;
        row.ok_or_else(|| not_found("dataset", name, "longhaul dataset list"))
    }

    /// Refuses callers who do not manage the storage's site.
    pub(crate) fn check_storage(
        &self,
        caller: &Caller,
        right: &Right,
        storage: &StorageName,
    ) -> Result<(), Problem> {
        caller.check(right, &[Belonging::Site(&self.storage_row(storage)?.site_name)])
    }

    /// Has the commit loop do a work, and waits until it is done.
    pub(crate) fn commit(
        &self,
        work: impl FnOnce(Sender<Result<(), CatalogError>>) -> CommitWork,
    ) -> Result<(), Problem> {
        let (reply, done) = channel();
        self.shared.kernel.writer.send(work(reply))?;
        done.recv().map_err(|_| busy("the service stops"))?.map_err(problem)
    }

    pub(crate) fn storage_row(&self, name: &StorageName) -> Result<StorageRow, Problem> {
        let row = self.shared.kernel.catalog.storage(name).map_err(problem)?;
        row.ok_or_else(|| not_found("storage", name, "longhaul site list"))
    }
}

/// One page of rows that were asked for with one more than `limit`.
pub(crate) fn page<R, V>(
    mut rows: Vec<R>,
    limit: usize,
    cursor: impl Fn(&R) -> String,
    view: impl FnMut(R) -> Result<V, Problem>,
) -> Result<Page<V>, Problem> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = if more { rows.last().map(cursor) } else { None };
    let items = rows.into_iter().map(view).collect::<Result<Vec<V>, Problem>>()?;
    Ok(Page { items, next })
}

/// The next step where a subscription keeps what is to go.
pub(crate) fn end_subscription(subscription: SubscriptionId) -> String {
    format!("end it: longhaul subscription cancel {subscription}")
}

pub(crate) fn bad_request(detail: impl Into<String>) -> Problem {
    Fault::new(FaultCode::BadRequest, detail).into()
}

/// The body is as the API document says, but what it says as a whole makes no sense.
pub(crate) fn unprocessable(detail: impl Into<String>) -> Problem {
    bad_request(detail).unprocessable()
}

/// The same, told by a fault.
pub(crate) fn unprocessable_fault(fault: Fault) -> Problem {
    Problem::from(fault).unprocessable()
}

pub(crate) fn busy(detail: impl Into<String>) -> Problem {
    Fault::new(FaultCode::Busy, detail).into()
}

pub(crate) fn not_found(what: &str, which: impl std::fmt::Display, list: &str) -> Problem {
    let which = longhaul_model::units::printable(&which.to_string());
    Problem::from(Fault::new(FaultCode::NotFound, format!("there is no {what} {which}")))
        .with_remedy(format!("see what there is: {list}"))
}

/// The next step where files are to be added to what is closed, which is for good.
pub(crate) const CLOSED_REMEDY: &str =
    "register them in another dataset: longhaul dataset register NAME --scan STORAGE:PATH";

/// A line of a manifest or list: what is wrong with it keeps its number.
pub(crate) fn add_problem(error: AddError) -> Problem {
    match error {
        AddError::Catalog(error) => problem(error),
        error @ AddError::Manifest(_) => {
            let problem = Problem::from(Fault::from(error));
            if problem.code == FaultCode::Conflict { problem.with_remedy(CLOSED_REMEDY) } else { problem }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr;

    #[test]
    fn the_words_of_the_api_document_are_those_that_are_accepted() {
        use longhaul_api::formats::*;
        fn accepted<T: std::str::FromStr>(words: &[&str]) -> usize {
            words.iter().filter(|word| word.parse::<T>().is_ok()).count()
        }
        use longhaul_security::{Role, Scopes};
        assert_eq!(accepted::<Role>(TokenRole::ALL), TokenRole::ALL.len());
        assert_eq!(AccountRole::ALL, TokenRole::ALL.split_first().unwrap().1, "an observer has no account");
        assert_eq!(accepted::<Scopes>(Scope::ALL), Scope::ALL.len());
        assert!(Scopes::from_str("other").is_err());
        // `auto` is a strategy under another name.
        assert_eq!(accepted::<longhaul_scheduler::Strategy>(Strategy::ALL), Strategy::ALL.len());
        assert_eq!(Strategy::ALL.len(), longhaul_scheduler::Strategy::ALL.len() + 1);
        assert_eq!(StrategyOrNone::ALL.split_first().unwrap().1, Strategy::ALL);
        assert_eq!(accepted::<longhaul_catalog::SpacePolicy>(SpacePolicy::ALL), SpacePolicy::ALL.len());
        use longhaul_network::mapping::{Family, Role as HostDuty};
        assert_eq!(accepted::<HostDuty>(HostRole::ALL), HostRole::ALL.len());
        assert_eq!(accepted::<Family>(AddressFamily::ALL), AddressFamily::ALL.len());
    }

    #[test]
    fn a_page_has_a_cursor_only_if_there_is_more() {
        let of = |rows: Vec<u32>| page(rows, 2, |row| row.to_string(), Ok).unwrap();
        assert_eq!(of(vec![1, 2, 3]).next.as_deref(), Some("2"));
        assert_eq!(of(vec![1, 2]).next, None);
        assert_eq!(of(vec![]).items.len(), 0);
        let query = PageQuery { limit: Some(1_000_000), after: Some("x".into()) };
        assert_eq!(query.limit(), PAGE_ITEMS_MAX as usize);
        assert!(query.after::<u64>().is_err());
    }
}
