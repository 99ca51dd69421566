//! The whole at a glance: status, problems, rates, invariants, health, metrics.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use longhaul_api::Problem;
use longhaul_api::native::{
    AgentView, BlameCount, CheckReport, Health, HealthReason, LinkRates, LinkView, Page, ProblemView,
    RateHistory, Status, SubscriptionView,
};
use longhaul_api::pools::PoolReport;
use longhaul_catalog::{LinkTotals, LostFilesRow, SiteState, Totals, WornReplicasRow};
use longhaul_control::agent_health;
use longhaul_control::metrics::Gauges;
use longhaul_control::staging::StagingStatus;
use longhaul_control::turned_away::TurnedAwayAgent;
use longhaul_control::turns::TurnAge;
use longhaul_model::{
    AgentId, Blame, Fault, FaultCode, SiteName, StorageName, SubscriptionState, Timestamp, units,
};
use longhaul_netops::measured::{changes, probe_state};
use longhaul_network::Link;

use super::{Operations, PageQuery, SubscriptionList, page, problem};
use crate::state_check::{self, CheckOutcome};

/// Subscriptions in the status.
const SUBSCRIPTIONS_MAX: u32 = 100;
/// Seconds of history shown with the status.
const HISTORY_S: u32 = 900;
const SECONDS_DEFAULT: u32 = 3_600;

impl Operations {
    pub fn status(&self) -> Result<Status, Problem> {
        let now = self.now();
        let totals = self.shared.kernel.catalog.totals().map_err(problem)?;
        let live = &self.shared.control.live;
        let (history_step_s, history) = live.history(HISTORY_S, now);
        let subscriptions = self.wanted_now()?;
        let all = self.shared.kernel.catalog.open_subscriptions().map_err(problem)?;
        Ok(Status {
            deployment: self.shared.control.authority.deployment().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            now,
            started: self.shared.started,
            rate_now: live.total(now).rate,
            files_done: totals.files_done,
            bytes_done: totals.bytes_done,
            transfers_running: totals.transfers_leased,
            transfers_waiting: totals.transfers_waiting,
            subscriptions_more: all.saturating_sub(subscriptions.len() as u64),
            subscriptions,
            links: self.links(&totals, now),
            problems: self.problems(now)?,
            failures_by_blame: failures(&totals),
            history,
            history_step_s,
        })
    }

    /// Active and suspended ones, what is complete last.
    fn wanted_now(&self) -> Result<Vec<SubscriptionView>, Problem> {
        let mut views = Vec::new();
        for state in [SubscriptionState::Active, SubscriptionState::Suspended] {
            let page = PageQuery { limit: Some(SUBSCRIPTIONS_MAX), after: None };
            let list = SubscriptionList { state: Some(state), page, ..SubscriptionList::default() };
            views.extend(self.subscription_list(&list)?.items);
        }
        views.sort_by_key(|view| (view.complete, view.created));
        views.truncate(SUBSCRIPTIONS_MAX as usize);
        Ok(views)
    }

    fn links(&self, totals: &Totals, now: Timestamp) -> Vec<LinkView> {
        let mut links: BTreeMap<Link, Option<&LinkTotals>> =
            self.shared.control.live.links().into_iter().map(|link| (link, None)).collect();
        links.extend(
            totals.links.iter().map(|row| (Link { source: row.source, target: row.target }, Some(row))),
        );
        let directory = self.shared.kernel.directory();
        let view = |(link, row): (Link, Option<&LinkTotals>)| {
            let now = self.shared.control.live.of_link(link, now);
            Some(LinkView {
                source: directory.name(link.source)?,
                target: directory.name(link.target)?,
                rate_now: now.rate,
                active: now.files,
                files_done: row.map_or(0, |row| row.files),
                bytes_done: row.map_or(0, |row| row.bytes),
                attempts_failed: row.map_or(0, |row| row.attempts_failed),
            })
        };
        links.into_iter().filter_map(view).collect()
    }

    pub fn problem_list(&self, query: &PageQuery) -> Result<Page<ProblemView>, Problem> {
        let all = self.problems(self.now())?;
        let skip: usize = query.after()?.unwrap_or(0);
        let limit = query.limit();
        let mut at = skip;
        let rows: Vec<ProblemView> = all.into_iter().skip(skip).take(limit + 1).collect();
        at += limit.min(rows.len());
        page(rows, limit, |_| at.to_string(), Ok)
    }

    /// What stands now (paused sites, agents out of contact, storages in trouble, ourselves), then what
    /// failed.
    fn problems(&self, now: Timestamp) -> Result<Vec<ProblemView>, Problem> {
        let (mut views, mut absent) = (Vec::new(), BTreeMap::new());
        if let Some(fault) = self.shared.kernel.trouble() {
            views.push(standing(fault, None, now));
        }
        views.extend(self.own_problems(now));
        let directory = self.shared.kernel.directory();
        for site in directory.sites.values() {
            let why = site.reason.clone().map(|reason| format!(": {reason}")).unwrap_or_default();
            let word = match site.state {
                SiteState::Open => None,
                SiteState::Draining => Some("drains"),
                SiteState::Paused => Some("is paused by its administrator"),
            };
            if let Some(word) = word {
                let fault = Fault::new(FaultCode::SitePaused, format!("{} {word}{why}", site.name));
                let remedy = format!("none, if it is meant so; to go on: longhaul site resume {}", site.name);
                views.push(ProblemView {
                    remedy,
                    ..standing(fault, StorageName::parse(site.name.as_str()).ok(), now)
                });
            }
            let busy = |agent| self.shared.job_control.jobs.stream_ledger.busy(agent);
            let agents = self.shared.control.agents.views(site.id, now, busy);
            let wall = self.shared.kernel.wall_time();
            let found = agents.iter().flat_map(|agent| agent_health::problems(&site.name, agent, wall));
            views.extend(
                found.map(|found| ProblemView { remedy: found.remedy, ..standing(found.fault, None, now) }),
            );
            for agent in agents {
                if agent.connected {
                    views.extend(self.unconfirmed_names(&site.name, agent.id, &agent.host, now));
                }
                // Also one that is connected: a copy of it may be the one that tries.
                let turned = self.shared.control.turned_away.get(agent.id, now);
                let is_explained = turned.is_some() || agent.connected;
                views.extend(turned.map(|row| turned_away(&site.name, agent.id, row, now)));
                if is_explained {
                    continue;
                }
                let own = directory.storages.values().filter(|row| row.agent == agent.id);
                let own: Vec<StorageName> = own.map(|row| row.name.clone()).collect();
                // One that is refused is missed only while nobody has its storages.
                if agent.refused_since.is_some() && own.is_empty() {
                    continue;
                }
                absent.extend(own.into_iter().map(|name| (name, views.len())));
                views.push(self.absent_agent(&site.name, &agent, now));
            }
        }
        for storage in directory.storages.values() {
            views.extend(
                storage.trouble.clone().map(|fault| standing(fault, Some(storage.name.clone()), now)),
            );
            let pools = self.shared.control.pool_reports.of_storage(storage.id);
            views.extend(pools.into_iter().filter_map(|pool| pool_problem(&storage.name, pool, now)));
            views.extend(
                self.shared
                    .control
                    .staging
                    .status(storage.id)
                    .and_then(|status| not_staged(&storage.name, &status, now)),
            );
        }
        views.extend(self.space_shortages().into_values().map(|shortage| ProblemView {
            remedy: shortage.remedy(),
            ..standing(shortage.fault(), Some(shortage.storage), now)
        }));
        views.extend(self.foreign_claims(now));
        let told = self.shared.messages.problems();
        views.extend(
            told.into_iter()
                .map(|(since, fault)| ProblemView { first_seen: since, ..standing(fault, None, now) }),
        );
        views.extend(probe_state::problems(&self.shared.netops, now));
        views.extend(changes::problems(&self.shared.netops));
        for (id, danger) in self.shared.control.deadlines.all() {
            let fault = Fault::new(FaultCode::DeadlineInDanger, danger.words);
            let remedy = format!(
                "see what holds it up: longhaul subscription show {id}; raise its priority or its share"
            );
            let seen = ProblemView {
                first_seen: danger.since,
                last_seen: danger.seen,
                ..standing(fault, None, now)
            };
            views.push(ProblemView { remedy, examples: vec![id.to_string()], ..seen });
        }
        let lost = self.shared.control.lost_files.all();
        views.extend(lost.into_iter().map(|(since, row)| lost_files(since, row, now)));
        let worn = self.shared.kernel.catalog.worn_replicas(now).map_err(problem)?;
        views.extend(worn.into_iter().map(|row| worn_replicas(row, now)));
        for problem in self.shared.control.live.problems() {
            let reason = problem.storage.as_ref().and_then(|storage| absent.get(storage));
            match reason.and_then(|&place| views.get_mut(place)) {
                Some(reason) if follows_from_absence(&problem.fault) => include(reason, problem),
                _ => views.push(problem),
            }
        }
        Ok(views)
    }

    /// An agent out of contact.
    fn absent_agent(&self, site: &SiteName, agent: &AgentView, now: Timestamp) -> ProblemView {
        let host = &agent.host;
        if let Some(since) = agent.refused_since {
            let detail = format!("agent {} of {site} on {host} is refused since {since}", agent.id);
            let fault = Fault::new(FaultCode::Unreachable, detail).blaming(Blame::Target);
            let remedy = format!("let another agent go on there: longhaul site add {site} --another-agent");
            return ProblemView { first_seen: since, remedy, ..standing(fault, None, now) };
        }
        let (detail, since) = match (self.shared.control.agents.ended(agent.id), agent.last_contact) {
            (Some(ended), _) => (format!("the agent of {site} on {host} was stopped at {ended}"), ended),
            (None, Some(last)) => {
                (format!("the agent of {site} on {host} was last heard of at {last}"), last)
            }
            (None, None) => (format!("the agent of {site} on {host} was never heard of"), now),
        };
        // It is the turn of its site, whatever is to move from or to it.
        let fault = Fault::new(FaultCode::Unreachable, detail).blaming(Blame::Target);
        ProblemView {
            first_seen: since,
            remedy: format!("start the agent on {host}, or see in its log why it has no contact"),
            ..standing(fault, None, now)
        }
    }

    /// Agents that speak about other sites' things: their keys may be in foreign hands.
    fn foreign_claims(&self, now: Timestamp) -> Vec<ProblemView> {
        let views = self.shared.control.foreign_claims.problems(now).into_iter().map(|(agent, row)| {
            let (site, host) = (&row.site, &row.host);
            let detail = format!("agent {agent} of {site} on {host} reports things of other sites; ignored");
            let fault = Fault::new(FaultCode::NotAllowed, detail);
            let kinds = row.by_claim.iter().map(|(claim, times)| format!("{}: {times}", claim.word()));
            let remedy =
                format!("look at {host}, and at who holds its key: an unchanged agent never does this");
            ProblemView {
                count: row.total(),
                first_seen: row.first,
                last_seen: row.last,
                examples: kinds.collect(),
                remedy,
                ..standing(fault, StorageName::parse(site.as_str()).ok(), now)
            }
        });
        views.collect()
    }

    /// Problems of the service's own state.
    fn own_problems(&self, now: Timestamp) -> Vec<ProblemView> {
        let checked = self.shared.last_check.outcome();
        let checked = checked.and_then(|outcome| outcome.fault().map(|fault| (outcome.at, fault)));
        let checked = checked.map(|(at, fault)| ProblemView {
            first_seen: at,
            remedy: CheckOutcome::REMEDY.to_owned(),
            ..standing(fault, None, now)
        });
        let moved = self.shared.place_change.as_ref().map(|change| ProblemView {
            first_seen: self.shared.started,
            remedy: change.remedy(),
            ..standing(change.fault(), None, now)
        });
        checked.into_iter().chain(moved).collect()
    }

    pub fn rate_history(
        &self,
        source: Option<&StorageName>,
        target: Option<&StorageName>,
        seconds: Option<u32>,
    ) -> Result<RateHistory, Problem> {
        let source = source.map(|name| self.storage_row(name)).transpose()?.map(|row| row.id);
        let target = target.map(|name| self.storage_row(name)).transpose()?.map(|row| row.id);
        let now = self.now();
        let seconds = seconds.unwrap_or(SECONDS_DEFAULT);
        let (step_s, all) = self.shared.control.live.history(seconds, now);
        let directory = self.shared.kernel.directory();
        let fits = |link: &Link| {
            source.is_none_or(|source| link.source == source)
                && target.is_none_or(|target| link.target == target)
        };
        let links: Vec<LinkRates> = self
            .shared
            .control
            .live
            .links()
            .into_iter()
            .filter(fits)
            .filter_map(|link| {
                let bytes_per_s = self.shared.control.live.link_history(link, seconds, now);
                Some(LinkRates {
                    source: directory.name(link.source)?,
                    target: directory.name(link.target)?,
                    bytes_per_s,
                })
            })
            .collect();
        let total = if source.is_none() && target.is_none() { all } else { sum(&links, all.len()) };
        Ok(RateHistory { step_s, until: now, total, links })
    }

    /// The invariants of the catalog, and those between it and what is in memory.
    pub fn check(&self) -> Result<CheckReport, Problem> {
        state_check::check(&self.shared)
    }

    /// Whether the process works at all.
    pub fn healthz(&self) -> Health {
        let answers = self.query_scheduler(|_, _| ()).is_some();
        let detail = if answers { "answers" } else { "does not answer" };
        health(vec![reason("scheduler", answers, detail)])
    }

    /// The age of each loop's last turn. One that stands still is a reason not to be ready: what is accepted
    /// would wait for it.
    fn loop_reasons(&self) -> impl Iterator<Item = HealthReason> {
        let ages = self.shared.kernel.turns.ages(self.now());
        ages.into_iter().map(|TurnAge { name, age, is_late }| {
            let still = if is_late { "stands still: its last turn was" } else { "made its last turn" };
            let detail = format!("{still} {:.1} s ago", age.as_secs_f64());
            HealthReason {
                last_turn_age_ms: Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                ..reason(name, !is_late, detail)
            }
        })
    }

    /// Whether requests will be answered, and work goes on.
    pub fn readyz(&self) -> Health {
        let mut reasons = self.healthz().reasons;
        let read = self.shared.kernel.catalog.totals();
        let catalog = match (&read, self.shared.kernel.trouble()) {
            (Err(error), _) => reason("catalog", false, error.to_string()),
            (Ok(_), Some(fault)) => reason("catalog", false, fault.to_string()),
            (Ok(_), None) => reason("catalog", true, "reads and writes"),
        };
        reasons.push(catalog);
        let (known, connected, _) = self.shared.control.agents.totals(self.now());
        let detail = format!("{connected} of {known} connected");
        // Agents come and go: the service is ready without them.
        reasons.push(reason("agents", true, detail));
        reasons.extend(self.loop_reasons());
        health(reasons)
    }

    fn recording_gauges(&self, gauges: &mut Gauges) {
        if self.shared.config.record_dir.is_none() {
            return;
        }
        let recording = &self.shared.control.recording;
        let bytes = recording.bytes.load(Ordering::Relaxed);
        let broken = recording.broken.load(Ordering::Relaxed);
        gauges.gauge("longhaul_recording_bytes", "Recorded since the start.", vec![], bytes as f64);
        gauges.gauge(
            "longhaul_recording_broken",
            "1 if the recording ended before the service did.",
            vec![],
            f64::from(u8::from(broken)),
        );
    }

    pub fn metrics(&self) -> String {
        let now = self.now();
        let mut gauges = Gauges::default();
        gauges.gauge(
            "longhaul_build_info",
            "Always 1; the version is a label.",
            vec![("version", env!("CARGO_PKG_VERSION").into())],
            1.0,
        );
        gauges.gauge(
            "longhaul_start_time_seconds",
            "When the process started, seconds since 1970.",
            vec![],
            self.shared.started.as_seconds_f64(),
        );
        self.shared.messages.show(&mut gauges, self.now());
        let (known, connected, undelivered) = self.shared.control.agents.totals(now);
        gauges.gauge("longhaul_agents", "Agents known.", vec![], known as f64);
        gauges.gauge("longhaul_agents_connected", "Agents in contact.", vec![], connected as f64);
        gauges.gauge(
            "longhaul_leases_undelivered",
            "Leases that agents have not fetched or not acknowledged.",
            vec![],
            undelivered as f64,
        );
        let total = self.shared.control.live.total(now);
        gauges.gauge(
            "longhaul_goodput_bytes_per_second",
            "Verified bytes over the last ten seconds.",
            vec![],
            total.rate,
        );
        gauges.gauge("longhaul_attempts_running", "Leased attempts.", vec![], total.files as f64);
        gauges.gauge(
            "longhaul_catalog_writable",
            "Whether the catalog can be written.",
            vec![],
            f64::from(u8::from(self.shared.kernel.trouble().is_none())),
        );
        self.shared.last_check.gauges(&mut gauges);
        self.recording_gauges(&mut gauges);
        self.measured_gauges(&mut gauges);
        self.circuit_gauges(&mut gauges);
        changes::gauges(&self.shared.netops, &mut gauges);
        probe_state::uplink_gauges(&self.shared.netops, now, &mut gauges);
        if let Some(counts) = self.query_scheduler(|scheduler, _| scheduler.counts()) {
            for (state, files) in [
                ("queued", counts.queued),
                ("resting", counts.in_backoff),
                ("parked", counts.parked),
                ("leased", counts.leased),
            ] {
                gauges.gauge(
                    "longhaul_transfers",
                    "Transfers in memory, by what they do.",
                    vec![("state", state.into())],
                    files as f64,
                );
            }
            gauges.gauge(
                "longhaul_queued_bytes",
                "Bytes of queued transfers.",
                vec![],
                counts.queued_bytes as f64,
            );
        }
        if let Ok(totals) = self.shared.kernel.catalog.totals() {
            gauges.gauge("longhaul_datasets", "Datasets.", vec![], totals.datasets as f64);
            gauges.gauge("longhaul_files", "Files in the catalog.", vec![], totals.files as f64);
            gauges.total(
                "longhaul_delivered_files_total",
                "Files delivered since the beginning.",
                vec![],
                totals.files_done,
            );
            gauges.total(
                "longhaul_delivered_bytes_total",
                "Bytes delivered since the beginning.",
                vec![],
                totals.bytes_done,
            );
            for (blame, count) in &totals.failures {
                gauges.total(
                    "longhaul_failures_total",
                    "Failed attempts since the beginning, by blame.",
                    vec![("blame", blame.to_string())],
                    *count,
                );
            }
        }
        self.shared.kernel.metrics.render(&gauges)
    }
}

/// Whether transfers fail so because the agent of their source is away.
fn follows_from_absence(fault: &Fault) -> bool {
    fault.code == FaultCode::Unreachable && fault.blame == Blame::Source
}

/// Shows what follows from a problem with it, not beside it.
fn include(reason: &mut ProblemView, consequence: ProblemView) {
    reason.storage = reason.storage.take().or(consequence.storage);
    reason.count = reason.count.saturating_add(consequence.count);
    reason.examples.extend(consequence.examples);
}

fn failures(totals: &Totals) -> Vec<BlameCount> {
    totals.failures.iter().map(|&(blame, count)| BlameCount { blame, count }).collect()
}

pub(super) fn standing(fault: Fault, storage: Option<StorageName>, now: Timestamp) -> ProblemView {
    let remedy = fault.code.next_step().to_owned();
    ProblemView {
        fault,
        storage,
        count: 1,
        first_seen: now,
        last_seen: now,
        remedy,
        examples: Vec::new(),
        open: true,
    }
}

fn reason(part: &str, ok: bool, detail: impl Into<String>) -> HealthReason {
    HealthReason { part: part.to_owned(), ok, detail: detail.into(), last_turn_age_ms: None }
}

/// An agent that tries to connect and is not let in.
fn turned_away(site: &SiteName, agent: AgentId, row: TurnedAwayAgent, now: Timestamp) -> ProblemView {
    let detail = format!("agent {agent} of {site} on {} is not let in: {}", row.host, row.fault.detail);
    let fault = Fault::new(row.fault.code, detail).blaming(Blame::Target);
    ProblemView {
        count: row.times,
        first_seen: row.first,
        last_seen: row.last,
        remedy: format!(
            "see its configuration on {}, and the log of the agent there; to be rid of it: longhaul agent \
                refuse {agent}",
            row.host
        ),
        ..standing(fault, None, now)
    }
}

/// A pool that is out of service or takes no files, or one that is drained and keeps some.
fn pool_problem(storage: &StorageName, pool: PoolReport, now: Timestamp) -> Option<ProblemView> {
    let stuck = pool.drain.filter(|drain| drain.stuck_files > 0);
    let (fault, remedy) = match (pool.trouble, stuck) {
        (Some(fault), _) => {
            let remedy = format!(
                "mend or mount its disk: the pool comes back by itself; if the disk is lost, take the pool \
                 out of the agent's configuration, restart the agent, then: longhaul verify {storage} DATASET"
            );
            (fault, remedy)
        }
        (None, Some(drain)) => {
            let left = units::plural(drain.stuck_files, "file cannot leave it", "files cannot leave it");
            let why =
                drain.last_fault.map(|fault| format!("; the last: {}", fault.detail)).unwrap_or_default();
            let fault = Fault::new(FaultCode::TargetWrite, format!("it is drained, and {left}{why}"));
            (fault, "see the log of the agent; each file is tried again by itself".to_owned())
        }
        (None, None) => return None,
    };
    let fault = Fault::new(fault.code, format!("pool {} of {storage}: {}", pool.name, fault.detail));
    Some(ProblemView { remedy, ..standing(fault, Some(storage.clone()), now) })
}

/// Files that are wanted elsewhere and do not come from tape.
fn not_staged(storage: &StorageName, status: &StagingStatus, now: Timestamp) -> Option<ProblemView> {
    let last = status.last_failure.as_ref().filter(|_| status.failing > 0)?;
    let fail = units::plural(status.failing, "wanted file does", "wanted files do");
    let detail = format!("{storage}: {fail} not come from tape; the last, {}: {}", last.lfn, last.why);
    Some(ProblemView {
        count: status.failing,
        first_seen: last.at,
        last_seen: last.at,
        remedy: format!(
            "see the tape system, and the log of the agent of {storage}; each file is tried again by itself"
        ),
        ..standing(Fault::new(FaultCode::OnTape, detail), Some(storage.clone()), now)
    })
}

/// Files that nobody has any more: which, who had them last, and what to do.
fn lost_files(since: Timestamp, row: LostFilesRow, now: Timestamp) -> ProblemView {
    let (dataset, files) = (&row.dataset_name, row.files);
    let holders: Vec<&str> = row.last_holders.iter().map(StorageName::as_str).collect();
    let (whose, remedy) = match holders.first() {
        Some(holder) => (
            format!("the replicas at {} are suspect or being deleted", holders.join(", ")),
            format!("restore them at {holder}, then: longhaul verify {holder} {dataset}"),
        ),
        None => (
            match &row.virtual_holders[..] {
                [] => "no storage holds them".to_owned(),
                names => {
                    let names: Vec<&str> = names.iter().map(StorageName::as_str).collect();
                    format!("they went to virtual storages only, which hold nothing: {}", names.join(", "))
                }
            },
            format!("bring them to a storage, then: longhaul dataset add {dataset} --scan STORAGE:PATH"),
        ),
    };
    let detail = format!("{files} of the files of {dataset} have no good copy: {whose}");
    let fault = Fault::new(FaultCode::NoSource, detail).blaming(Blame::Source);
    ProblemView {
        storage: row.last_holders.into_iter().next(),
        count: files,
        first_seen: since,
        remedy,
        examples: row.examples.iter().map(|lfn| lfn.shown().to_string()).collect(),
        ..standing(fault, None, now)
    }
}

/// Files that a storage damages each time that they are repaired.
fn worn_replicas(row: WornReplicasRow, now: Timestamp) -> ProblemView {
    let (storage, dataset) = (row.storage_name, row.dataset_name);
    let detail = format!(
        "{} of the files of {dataset} at {storage} were damaged again after each of {} repairs within a day: \
            they rest until tomorrow",
        row.files, row.repairs
    );
    let fault = Fault::new(FaultCode::WrongDigest, detail).blaming(Blame::Target);
    let remedy = format!("check the disks and the memory of {storage}");
    ProblemView {
        count: row.files,
        remedy,
        examples: row.examples.iter().map(|lfn| lfn.shown().to_string()).collect(),
        ..standing(fault, Some(storage), now)
    }
}

fn health(reasons: Vec<HealthReason>) -> Health {
    Health { ok: reasons.iter().all(|reason| reason.ok), reasons }
}

fn sum(links: &[LinkRates], bins: usize) -> Vec<f64> {
    let bin = |place: usize| links.iter().filter_map(|link| link.bytes_per_s.get(place)).sum();
    (0..bins).map(bin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_follow_from_an_absent_agent_are_shown_with_it() {
        let now = Timestamp::from_seconds(100);
        let unreachable = |blame| Fault::new(FaultCode::Unreachable, "").blaming(blame);
        assert!(follows_from_absence(&unreachable(Blame::Source)));
        assert!(!follows_from_absence(&unreachable(Blame::Network)));
        assert!(!follows_from_absence(&Fault::new(FaultCode::SourceMissing, "")));
        let mut reason = standing(unreachable(Blame::Target), None, now);
        let storage: StorageName = "alpha".parse().unwrap();
        let failed = standing(unreachable(Blame::Source), Some(storage.clone()), now);
        include(&mut reason, ProblemView { count: 133, examples: vec!["a/f1".into()], ..failed });
        assert_eq!(
            (reason.count, reason.storage, reason.examples),
            (134, Some(storage), vec!["a/f1".into()])
        );
    }

    fn remedies_of_lost_files(last: &[&str], virtual_ones: &[&str]) -> (String, String) {
        let parsed =
            |names: &[&str]| -> Vec<StorageName> { names.iter().map(|name| name.parse().unwrap()).collect() };
        let row = LostFilesRow {
            dataset: longhaul_model::DatasetId(1),
            dataset_name: "run7".parse().unwrap(),
            files: 3,
            examples: Vec::new(),
            last_holders: parsed(last),
            virtual_holders: parsed(virtual_ones),
        };
        let view = lost_files(Timestamp::ZERO, row, Timestamp::ZERO);
        (view.fault.detail, view.remedy)
    }

    #[test]
    fn a_virtual_storage_is_not_asked_for_the_files_that_it_dropped() {
        let (detail, remedy) = remedies_of_lost_files(&[], &["beta-test"]);
        assert!(detail.ends_with("which hold nothing: beta-test"), "{detail}");
        assert!(!remedy.contains("beta-test"), "{remedy}");
        let (detail, remedy) = remedies_of_lost_files(&["alpha"], &["beta-test"]);
        assert!(detail.ends_with("the replicas at alpha are suspect or being deleted"), "{detail}");
        assert!(remedy.ends_with("longhaul verify alpha run7"), "{remedy}");
        assert!(remedies_of_lost_files(&[], &[]).0.ends_with("no storage holds them"));
    }
}
