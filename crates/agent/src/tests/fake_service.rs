//! The service's side of one agent, played by a test: it gives what the test says and remembers what it is
//! told.

use std::sync::Arc;
use std::time::Duration;

use longhaul_api::agent::{
    Fact, Hello, Incarnation, LeaseBatch, Outcome, RenewReply, RenewRequest, Report, ReportReply,
    StorageSpace, Task, Work, WorkRequest,
};
use longhaul_api::circuits::{CircuitLink, CircuitOrder};
use longhaul_api::probe::{ProbeAsked, ProbeResult, UplinkSample};
use longhaul_model::{AttemptId, Fault, FaultCode, TaskId};
use longhaul_security::Credentials;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::timeout;

use super::TestClock;
use crate::service_api::{Reply, ServiceApi};

/// A test that waits longer than this has failed.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct FakeService {
    clock: TestClock,
    pub state: Mutex<FakeServiceState>,
    changed: watch::Sender<u64>,
    /// Whether dropping a request is seen at once.
    direct: bool,
}

#[derive(Default)]
pub(crate) struct FakeServiceState {
    /// Nobody answers.
    pub away: bool,
    /// What every call is answered with.
    pub refuse: Option<Fault>,
    pub acknowledged: u64,
    /// How often the agent said that it stops.
    pub endings: usize,
    pub facts: Vec<Fact>,
    pub hellos: Vec<(Incarnation, Hello)>,
    pub spaces: Vec<StorageSpace>,
    /// Peers that the next reply asks to probe, and the results.
    pub probe: Vec<ProbeAsked>,
    pub probes: Vec<ProbeResult>,
    pub uplinks: Vec<UplinkSample>,
    pub renewed: Option<RenewReply>,
    /// Orders for circuits, and the last status reported.
    pub orders: Vec<CircuitOrder>,
    pub circuits: Vec<CircuitLink>,
    /// Peers that are refused.
    pub refused: Vec<longhaul_model::AgentId>,
    /// Storages whose names are not confirmed.
    pub unconfirmed: Vec<longhaul_model::StorageName>,
    /// Another agent has taken over a storage; until the next hello.
    pub offer_again: bool,
    known: Option<Incarnation>,
    queued_work: Vec<Work>,
    number: u64,
    asking: usize,
    pub renewal: Option<RenewReply>,
}

impl FakeServiceState {
    pub fn outcomes(&self) -> Vec<&Outcome> {
        let outcome = |fact: &'_ Fact| matches!(fact, Fact::Outcome(_));
        let outcomes = self.facts.iter().filter(|fact| outcome(fact));
        outcomes
            .map(|fact| match fact {
                Fact::Outcome(outcome) => outcome,
                _ => unreachable!(),
            })
            .collect()
    }

    pub fn tasks_done(&self) -> Vec<TaskId> {
        let done = |fact: &Fact| match fact {
            Fact::TaskDone { task, .. } => Some(*task),
            _ => None,
        };
        self.facts.iter().filter_map(done).collect()
    }
}

impl FakeService {
    pub fn new(clock: &TestClock, direct: bool) -> Arc<FakeService> {
        Arc::new(FakeService {
            clock: clock.clone(),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            direct,
        })
    }

    /// Changes what the service is or does.
    pub fn change<T>(&self, change: impl FnOnce(&mut FakeServiceState) -> T) -> T {
        let result = change(&mut self.state.lock());
        self.changed.send_modify(|count| *count += 1);
        result
    }

    pub fn lease(&self, batches: Vec<LeaseBatch>) {
        self.send_work(Work { batches, ..Work::default() });
    }

    pub fn task(&self, task: Task) {
        self.send_work(Work { tasks: vec![task], ..Work::default() });
    }

    pub fn cancel(&self, cancel: Vec<AttemptId>) {
        self.send_work(Work { cancel, ..Work::default() });
    }

    pub fn send_work(&self, work: Work) {
        self.change(|state| {
            state.number += 1;
            state.queued_work.push(Work { number: state.number, ..work });
        });
    }

    /// Restarts the service: it knows nobody, but has what was acknowledged.
    pub fn restart(&self) {
        self.change(|state| state.known = None);
    }

    /// Waits until the service has seen something.
    pub async fn wait_until<T>(&self, mut look: impl FnMut(&FakeServiceState) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let seen = async {
            loop {
                changed.borrow_and_update();
                if let Some(found) = look(&self.state.lock()) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        timeout(WAIT_TIMEOUT, seen).await.expect("it never happened")
    }

    pub async fn wait_for_outcomes(&self, count: usize) -> Vec<Outcome> {
        self.wait_until(|state| {
            let outcomes = state.outcomes();
            (outcomes.len() >= count).then(|| outcomes.into_iter().cloned().collect())
        })
        .await
    }

    pub fn answer(&self, report: Report) -> Result<ReportReply, Fault> {
        let now = self.clock.now();
        self.change(|state| {
            state.check()?;
            let mut last = report.entries.first().map_or(0, |entry| entry.sequence.saturating_sub(1));
            for entry in report.entries {
                assert_eq!(entry.sequence, last + 1, "facts are numbered without a gap");
                last = entry.sequence;
                if entry.sequence > state.acknowledged {
                    state.acknowledged = entry.sequence;
                    state.facts.push(entry.fact);
                }
            }
            if let Some(hello) = report.hello {
                assert!(
                    !self.direct || state.asking == 0,
                    "no lease may be under way while the held ones are listed"
                );
                state.known = Some(report.incarnation);
                state.offer_again = false;
                state.hellos.push((report.incarnation, hello));
            }
            state.endings += usize::from(report.ending);
            state.spaces = report.spaces;
            let say_hello = state.known != Some(report.incarnation);
            state.probes.extend(report.probes);
            state.uplinks.extend(report.uplinks);
            if !report.circuits.is_empty() {
                state.circuits = report.circuits;
            }
            let probe = std::mem::take(&mut state.probe);
            Ok(ReportReply {
                version: 1,
                acknowledged: state.acknowledged,
                now,
                say_hello,
                probe,
                ahead: Vec::new(),
                circuits: state.orders.clone(),
                circuits_planned: false,
                circuit_copies: Vec::new(),
                circuit_peers: Vec::new(),
                refused: state.refused.clone(),
                unconfirmed: state.unconfirmed.clone(),
                offer_again: state.offer_again,
            })
        })
    }

    pub fn next_work(&self, request: &WorkRequest) -> Result<Option<Work>, Fault> {
        let mut state = self.state.lock();
        state.check()?;
        if state.known != Some(request.incarnation) {
            return Err(Fault::new(FaultCode::Busy, "who are you?"));
        }
        state.queued_work.retain(|parcel| parcel.number > request.received);
        Ok(state.queued_work.first().cloned().map(|parcel| Work { now: self.clock.now(), ..parcel }))
    }
}

impl FakeServiceState {
    fn check(&self) -> Result<(), Fault> {
        if self.away {
            return Err(Fault::new(FaultCode::Unreachable, "connection refused"));
        }
        self.refuse.clone().map_or(Ok(()), Err)
    }
}

/// Counts a request that is under way, dropped ones included.
struct RequestGuard<'a>(&'a FakeService);

impl<'a> RequestGuard<'a> {
    fn new(service: &'a FakeService) -> Self {
        service.state.lock().asking += 1;
        RequestGuard(service)
    }
}

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().asking -= 1;
    }
}

impl ServiceApi for FakeService {
    fn report(&self, report: Report) -> Reply<'_, ReportReply> {
        Box::pin(async move { self.answer(report) })
    }

    fn work(&self, request: WorkRequest) -> Reply<'_, Work> {
        Box::pin(async move {
            let _asking = RequestGuard::new(self);
            let mut changed = self.changed.subscribe();
            let wait = async {
                loop {
                    changed.borrow_and_update();
                    if let Some(work) = self.next_work(&request)? {
                        return Ok(work);
                    }
                    changed.changed().await.unwrap();
                }
            };
            let empty = Work { now: self.clock.now(), ..Work::default() };
            timeout(Duration::from_millis(request.wait_ms.into()), wait).await.unwrap_or(Ok(empty))
        })
    }

    fn renew(&self, _request: RenewRequest) -> Reply<'_, RenewReply> {
        Box::pin(async move {
            let missing = || Fault::new(FaultCode::Unreachable, "nothing prepared");
            self.change(|state| state.renewal.take()).ok_or_else(missing)
        })
    }

    fn use_credentials(&self, credentials: &Credentials) -> Result<(), Fault> {
        let reply =
            RenewReply { certificate: credentials.certificate_pem.clone(), ca: credentials.ca_pem.clone() };
        self.change(|state| state.renewed = Some(reply));
        Ok(())
    }
}
