//! Copies of jobs by the circuits between the sites of their ends, though the storages there know nothing of
//! circuits: just before a copy begins, the hosts in both URLs are replaced by those that the storages have
//! on their sites' circuits.
//!
//! A copy that fails there is made again on the plain way at once, as part of the same attempt; a circuit
//! that failed copies which then went well is not used for others. Not here: when there is a circuit
//! (`circuits`, `plan`, `agent`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::CircuitCopies;
use longhaul_catalog::CatalogError;
use longhaul_circuits::plan::{PendingWork, SitePair};
use longhaul_control::{Control, Directory, Kernel, guard};
use longhaul_model::{AgentId, CircuitUse, Fault, SiteId, StorageId, StorageName, Timestamp};
use longhaul_netops::circuits::{self, LinkKey};
use longhaul_netops::plan::pair_of;
use longhaul_netops::{BacklogSource, HostConfig, JobBacklog};
use longhaul_scheduler::{MissingBytes, Party, Scheduler};
use longhaul_storage_remote::{RemoteUrl, on_host};

use crate::JobControl;
use crate::mover::{CopyOrder, ForeignMover, Stop};
use crate::{Moved, agent_streams, ids};

/// Copies in a row that failed on a circuit and went well without it; then it is left.
const FAILURES_MAX: u32 = 3;
/// Circuits that are remembered; beyond it those on which nothing runs are forgotten.
const REMEMBERED_MAX: usize = 1_000;

/// How copies did on each circuit, by its name.
#[derive(Default)]
pub struct ByCircuit(Mutex<BTreeMap<String, Used>>);

#[derive(Default)]
struct Used {
    link: Option<LinkKey>,
    running: u32,
    /// Since when without a pause.
    since: Option<Timestamp>,
    failed: u32,
}

/// What can be done instead of a plain copy.
struct Way {
    key: LinkKey,
    circuit: String,
    order: CopyOrder,
}

/// As the mover's own, by a circuit if there is one.
pub(crate) async fn copy(
    job_control: &JobControl,
    mover: &dyn ForeignMover,
    order: CopyOrder,
    progress: &(dyn Fn(u64) + Send + Sync),
    stop: Stop,
) -> Result<Moved, Fault> {
    let Some(way) = way(job_control, &order) else {
        return agent_streams::copy(job_control, mover, order, progress, stop).await;
    };
    let used = &job_control.jobs.by_circuit;
    used.began(&way.key, &way.circuit, job_control.kernel.now());
    let tried = mover.copy(way.order, progress, stop.clone()).await;
    let bytes = tried.as_ref().map_or(0, |moved| moved.bytes);
    used.ended(job_control, &way.key, &way.circuit, bytes);
    let fault = match tried {
        Ok(moved) => {
            used.judged(&way.circuit, true);
            return Ok(Moved { mode: format!("{} by circuit", moved.mode), ..moved });
        }
        Err(fault) if *stop.borrow() => return Err(fault),
        Err(fault) => fault,
    };
    tracing::info!(circuit = way.circuit, fault = %fault.chain(),
        "a copy of a job failed on the circuit; it is made on the \
        plain way");
    // It may have arrived all the same.
    let again = CopyOrder { may_be_there: true, ..order };
    let done = agent_streams::copy(job_control, mover, again, progress, stop).await;
    if done.is_ok() {
        used.judged(&way.circuit, false);
    }
    done
}

/// A circuit that may be used now between the sites of both ends.
fn way(job_control: &JobControl, order: &CopyOrder) -> Option<Way> {
    if order.circuits == CircuitUse::Never {
        return None;
    }
    let hosts = &job_control.netops.settings.circuits.hosts;
    let (source, target) = (named(hosts, &order.source.url)?, named(hosts, &order.target.url)?);
    let directory = job_control.kernel.directory();
    let wanted = SitePair { source: site(&directory, source)?, target: site(&directory, target)? };
    let now = job_control.kernel.now();
    let (key, circuit) = job_control.netops.circuits.in_use().into_iter().find(|(key, circuit)| {
        pair_of(&job_control.netops, &directory, key) == Some(wanted)
            && job_control.control.agents.is_connected(key.0, now)
            && !job_control.jobs.by_circuit.is_left(circuit)
    })?;
    let mut moved = order.clone();
    moved.source.url = on_host(&order.source.url, &source.on_circuit)?;
    moved.target.url = on_host(&order.target.url, &target.on_circuit)?;
    Some(Way { key, circuit, order: moved })
}

/// What is known of the host in a URL; nothing in those of S3, which stay on the plain way.
fn named<'a>(hosts: &'a [HostConfig], url: &str) -> Option<&'a HostConfig> {
    if hosts.is_empty() {
        return None;
    }
    let url = RemoteUrl::parse(url).ok().filter(|url| !url.is_s3())?;
    hosts.iter().find(|row| row.host.eq_ignore_ascii_case(url.host()))
}

/// The site of the host in a URL, where the administrator has said it.
pub(crate) fn site_of(job_control: &JobControl, url: &str) -> Option<SiteId> {
    site(&job_control.kernel.directory(), named(&job_control.netops.settings.circuits.hosts, url)?)
}

fn site(directory: &Directory, host: &HostConfig) -> Option<SiteId> {
    directory.sites.iter().find(|(_, row)| row.name == host.site).map(|(&id, _)| id)
}

impl ByCircuit {
    fn began(&self, link: &LinkKey, circuit: &str, now: Timestamp) {
        let mut all = guard(&self.0);
        if all.len() >= REMEMBERED_MAX {
            all.retain(|_, used| used.running > 0);
        }
        let used = all.entry(circuit.to_owned()).or_default();
        used.link.get_or_insert_with(|| link.clone());
        used.running += 1;
        used.since.get_or_insert(now);
    }

    fn ended(&self, job_control: &JobControl, key: &LinkKey, circuit: &str, bytes: u64) {
        let during = self.stopped(circuit, job_control.kernel.now());
        circuits::add_carried(&job_control.netops, key, circuit, bytes, during);
    }

    /// One copy less; for how long the circuit was used since the one before.
    fn stopped(&self, circuit: &str, now: Timestamp) -> Duration {
        let mut all = guard(&self.0);
        let Some(used) = all.get_mut(circuit) else { return Duration::ZERO };
        used.running = used.running.saturating_sub(1);
        let since = if used.running > 0 { used.since.replace(now) } else { used.since.take() };
        now.since(since.unwrap_or(now))
    }

    /// Copies that go by circuits of this agent, by the link's source.
    fn under_way(&self, agent: AgentId) -> BTreeMap<StorageName, u32> {
        let mut copies = BTreeMap::new();
        for used in guard(&self.0).values().filter(|used| used.running > 0) {
            if let Some((_, source)) = used.link.as_ref().filter(|link| link.0 == agent) {
                *copies.entry(source.clone()).or_default() += used.running;
            }
        }
        copies
    }

    fn judged(&self, circuit: &str, good: bool) {
        if let Some(used) = guard(&self.0).get_mut(circuit) {
            used.failed = if good { 0 } else { used.failed.saturating_add(1) };
        }
    }

    fn is_left(&self, circuit: &str) -> bool {
        guard(&self.0).get(circuit).is_some_and(|used| used.failed >= FAILURES_MAX)
    }
}

/// As an agent hears it, which gives no circuit back under them.
pub fn under_way(job_control: &JobControl, agent: AgentId) -> Vec<CircuitCopies> {
    let copies = job_control.jobs.by_circuit.under_way(agent);
    copies.into_iter().map(|(source, copies)| CircuitCopies { source, copies }).collect()
}

/// What jobs want moved between sites whose storages can be reached by circuits.
pub struct Ahead {
    pub pair: SitePair,
    pub bytes: u64,
    /// What is expected of the plain way.
    pub bytes_per_s: f64,
    /// Of the whole target, from wherever it comes.
    lacking: Vec<MissingBytes>,
    since: Timestamp,
}

/// Says what jobs want moved to the plan of circuits and to agents.
pub struct CircuitBacklog {
    kernel: Arc<Kernel>,
    control: Arc<Control>,
    hosts: Vec<HostConfig>,
}

impl BacklogSource for CircuitBacklog {
    fn by_pair(&self) -> Result<Vec<JobBacklog>, CatalogError> {
        let backlog = |row: &Ahead| JobBacklog {
            pair: row.pair,
            bytes_per_s: row.bytes_per_s,
            pending: row.waits().collect(),
        };
        Ok(self.ahead()?.iter().map(backlog).collect())
    }
}

impl CircuitBacklog {
    pub fn new(kernel: Arc<Kernel>, control: Arc<Control>, hosts: Vec<HostConfig>) -> CircuitBacklog {
        CircuitBacklog { kernel, control, hosts }
    }

    fn ahead(&self) -> Result<Vec<Ahead>, CatalogError> {
        let hosts = &self.hosts;
        if hosts.is_empty() {
            return Ok(Vec::new());
        }
        let directory = self.kernel.directory();
        let ends: BTreeMap<u64, SiteId> = self
            .kernel
            .catalog
            .job_endpoints()?
            .into_iter()
            .filter_map(|end| Some((end.id, site(&directory, named(hosts, &end.url)?)?)))
            .collect();
        let targets: Vec<(StorageId, SiteId)> =
            ends.iter().map(|(&end, &site)| (ids::target(end), site)).collect();
        let asked = self.kernel.scheduler.query(move |scheduler: &Scheduler, now: Timestamp| {
            let of = |(target, site): (StorageId, SiteId)| {
                (site, scheduler.link_backlogs(target, now), scheduler.missing_bytes(target), now)
            };
            targets.into_iter().map(of).collect::<Vec<_>>()
        });
        let mut all = Vec::new();
        // Without an answer nothing is known to wait.
        for (target, links, lacking, since) in asked.unwrap_or_default() {
            for link in links {
                let Some(&source) = ends.get(&ids::end(link.source)).filter(|source| **source != target)
                else {
                    continue;
                };
                let ahead = Ahead {
                    pair: SitePair { source, target },
                    bytes: link.bytes,
                    bytes_per_s: link.plain_expected,
                    lacking: lacking.clone(),
                    since,
                };
                all.extend(ahead.of(|party| goes(&self.control, party)));
            }
        }
        Ok(all)
    }
}

fn goes(control: &Control, party: &Party) -> bool {
    control.marks.treatment(&party.community, party.activity.as_ref()).circuits != CircuitUse::Never
}

impl Ahead {
    /// What is left of it for those who want circuits, if anything.
    fn of(self, goes: impl Fn(&Party) -> bool) -> Option<Ahead> {
        let sum = |rows: &[MissingBytes]| rows.iter().map(|row| u128::from(row.bytes)).sum::<u128>();
        let all = sum(&self.lacking);
        let lacking: Vec<MissingBytes> = self.lacking.into_iter().filter(|row| goes(&row.party)).collect();
        let bytes = u128::from(self.bytes) * sum(&lacking) / all.max(1);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        (!lacking.is_empty()).then_some(Ahead { bytes, lacking, ..self })
    }

    /// As the plan of circuits counts it: each party's and priority's part.
    pub fn waits(&self) -> impl Iterator<Item = PendingWork> + '_ {
        let all: u128 = self.lacking.iter().map(|row| u128::from(row.bytes)).sum();
        self.lacking.iter().map(move |row| PendingWork {
            target: self.pair.target,
            sources: vec![self.pair.source],
            bytes: u64::try_from(u128::from(self.bytes) * u128::from(row.bytes) / all.max(1))
                .unwrap_or(u64::MAX),
            priority: row.priority,
            community: row.party.community.clone(),
            since: self.since,
        })
    }
}

/// The same as agents hear it that may ask for circuits: by the storage whose link it is, with bytes a
/// second.
pub fn ahead_of(
    job_control: &JobControl,
    agent: AgentId,
) -> Result<Vec<(StorageName, u64, f64)>, CatalogError> {
    let all = job_control.backlog.ahead()?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let directory = job_control.kernel.directory();
    let links = job_control.netops.circuits.links().into_iter().filter(|(key, _)| key.0 == agent);
    let links: Vec<(StorageName, Option<SitePair>)> =
        links.map(|(key, _)| (key.1.clone(), pair_of(&job_control.netops, &directory, &key))).collect();
    let told = all.into_iter().filter_map(|row| {
        // Where several links join two sites, it is the first one's.
        let (source, _) = links.iter().find(|(_, pair)| *pair == Some(row.pair))?;
        Some((source.clone(), row.bytes, row.bytes_per_s))
    });
    Ok(told.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_however_they_are_written() {
        let row = |host: &str| HostConfig {
            site: "beta".parse().unwrap(),
            host: host.to_owned(),
            on_circuit: "x".to_owned(),
        };
        let hosts = [row("SE.example"), row("2001:db8::1")];
        let found = |url: &str| named(&hosts, url).map(|row| row.host.as_str());
        assert_eq!(found("davs://se.EXAMPLE:1094/f"), Some("SE.example"));
        assert_eq!(found("https://[2001:DB8::1]:8443/f"), Some("2001:db8::1"));
        assert_eq!(found("https://se.example.org/f"), None);
        assert_eq!(found("se.example"), None);
        assert_eq!(found("s3s://se.example/bucket/f"), None);
        assert!(named(&[], "https://se.example/f").is_none());
    }

    #[test]
    fn what_waits_is_divided_among_those_who_want_it_by_circuits() {
        let lacking = |community: &str, priority, bytes| MissingBytes {
            party: Party { community: community.parse().unwrap(), activity: None },
            priority,
            bytes,
        };
        let ahead = Ahead {
            pair: SitePair { source: SiteId(1), target: SiteId(2) },
            bytes: 600,
            bytes_per_s: 1.0,
            lacking: vec![lacking("atlas", 8, 2_000), lacking("cms", 5, 1_000)],
            since: Timestamp(0),
        };
        let waits: Vec<_> =
            ahead.waits().map(|row| (row.community.to_string(), row.priority, row.bytes)).collect();
        assert_eq!(waits, [("atlas".to_owned(), 8, 400), ("cms".to_owned(), 5, 200)]);
        let ahead = ahead.of(|party| party.community.as_str() == "cms").unwrap();
        assert_eq!((ahead.bytes, ahead.waits().map(|row| row.bytes).collect::<Vec<_>>()), (200, vec![200]));
        assert!(ahead.of(|_| false).is_none());
    }

    #[test]
    fn a_circuit_is_left_after_failures_in_a_row() {
        let used = ByCircuit::default();
        used.began(&(AgentId(1), "beta".parse().unwrap()), "one", Timestamp(0));
        for good in [false, false, true, false, false] {
            used.judged("one", good);
            assert!(!used.is_left("one"));
        }
        used.judged("one", false);
        assert!(used.is_left("one") && !used.is_left("another"));
    }

    #[test]
    fn an_agent_hears_of_the_copies_on_its_own_circuits() {
        let used = ByCircuit::default();
        let link = |agent, source: &str| (AgentId(agent), source.parse().unwrap());
        let (beta, gamma): (StorageName, StorageName) = ("beta".parse().unwrap(), "gamma".parse().unwrap());
        used.began(&link(1, "beta"), "one", Timestamp(0));
        used.began(&link(1, "beta"), "one", Timestamp(0));
        // The next one of the same link, and those of others.
        used.began(&link(1, "beta"), "two", Timestamp(0));
        used.began(&link(1, "gamma"), "three", Timestamp(0));
        used.began(&link(2, "beta"), "four", Timestamp(0));
        assert_eq!(used.under_way(AgentId(1)), BTreeMap::from([(beta.clone(), 3), (gamma.clone(), 1)]));
        assert_eq!(used.under_way(AgentId(2)), BTreeMap::from([(beta.clone(), 1)]));
        used.stopped("three", Timestamp(1));
        assert_eq!(used.under_way(AgentId(1)), BTreeMap::from([(beta, 3)]));
        assert!(used.under_way(AgentId(3)).is_empty());
    }
}
