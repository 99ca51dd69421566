//! Measurements by others and by our agents: mapped from hosts to sites, then passed to the scheduler loop,
//! which believes them or says why not.
//!
//! Pushed results and what is read from archives ([`puller`]) come through [`take`]; what our agents look at
//! and count through [`probe_state::take`]. What changed is told by [`changes`]. Not here: formats
//! (`gateways`), the rule by which hosts belong to sites (`network::mapping`), what a measurement means
//! (`network`).

mod archive_config;
pub mod changes;
mod dedup;
mod ecmp_hint;
mod error;
mod path_counters;
pub mod probe_state;
mod probes;
pub mod puller;
mod translate;
mod uplinks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_api::measured::{ArchiveView, MeasurementsTaken, UnmappedHost};
use longhaul_catalog::CatalogError;
use longhaul_gateways::perfsonar::{Harvest, Host, Measurement, Reading, mesh};
use longhaul_model::{Fault, FaultCode, SiteId, Timestamp};
use longhaul_network::mapping::{HostMap, Mapping};
use longhaul_network::{
    Endpoint, Observation, ObservationError, ObservationId, Origin, PathSelector, Subject,
};
use parking_lot::{Mutex, MutexGuard};

use crate::NetOps;
use dedup::RecentObservations;
use translate::Delays;

pub use archive_config::ArchiveConfig;

/// Hosts in the report; beyond it the one seen longest ago goes.
const UNMAPPED_HOSTS_MAX: usize = 10_000;
/// The map is made anew this often even if nobody changed it: agents come and move.
const MAP_AGE_MAX: Duration = Duration::from_secs(60);
/// Observations handed to the brain at a time: a few milliseconds of its thread.
const OBSERVATIONS_PER_BATCH_MAX: usize = 2_000;

#[derive(Default)]
pub struct Measured {
    map: Mutex<Option<(Timestamp, Arc<HostMap>)>>,
    state: Mutex<State>,
    /// What our own agents look at and count.
    probe_state: Mutex<probe_state::ProbeState>,
    changes: changes::ChangeWatch,
}

#[derive(Default)]
struct State {
    seen: RecentObservations,
    unmapped: BTreeMap<String, UnmappedHost>,
    delays: Delays,
    archives: Vec<ArchiveState>,
}

/// One configured archive or mesh.
struct ArchiveState {
    view: ArchiveView,
    watch: mesh::Watch,
}

/// One end of a measurement: its site, and how that is known.
type End = (SiteId, Mapping);

impl Measured {
    /// For archives as configured, in that order.
    pub fn new(archives: &[crate::measured::ArchiveConfig]) -> Self {
        let measured = Measured::default();
        let states = archives.iter().map(|config| ArchiveState {
            view: ArchiveView {
                url: config.url.clone(),
                kind: config.kind.clone(),
                verify: config.verify,
                every_s: config.every_s,
                last_read: None,
                fault: None,
                found: MeasurementsTaken::default(),
                pairs: 0,
                silent: 0,
                silences: Vec::new(),
            },
            watch: mesh::Watch::default(),
        });
        measured.state().archives = states.collect();
        measured
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// After a change of the table.
    pub fn map_changed(&self) {
        *self.map.lock() = None;
    }

    fn host_map(&self, netops: &NetOps) -> Result<Arc<HostMap>, CatalogError> {
        let now = netops.kernel.now();
        if let Some((made, map)) = &*self.map.lock()
            && now.since(*made) < MAP_AGE_MAX
        {
            return Ok(map.clone());
        }
        let mut map = HostMap::new(netops.kernel.catalog.hosts()?.into_iter().map(|row| row.entry));
        for agent in netops.kernel.catalog.agents()? {
            let addresses = agent
                .addresses
                .iter()
                .map(|address| address.rsplit_once(':').map_or(&**address, |(host, _)| host));
            for host in addresses.chain([&*agent.host]) {
                map.add_storage(host, agent.site_name.clone());
            }
        }
        let map = Arc::new(map);
        *self.map.lock() = Some((now, map.clone()));
        Ok(map)
    }

    /// Most measurements first.
    pub fn unmapped(&self) -> Vec<UnmappedHost> {
        let mut hosts: Vec<UnmappedHost> = self.state().unmapped.values().cloned().collect();
        hosts.sort_by(|a, b| b.measurements.cmp(&a.measurements).then_with(|| a.host.cmp(&b.host)));
        hosts
    }

    /// How a reading of an archive went; nothing is found by reading a mesh.
    fn note(&self, place: usize, outcome: Result<Option<MeasurementsTaken>, Fault>, now: Timestamp) {
        let mut state = self.state();
        let Some(archive) = state.archives.get_mut(place) else { return };
        match outcome {
            Ok(found) => {
                archive.view.last_read = Some(now);
                archive.view.fault = None;
                archive.view.found = found.unwrap_or_default();
            }
            Err(fault) => archive.view.fault = Some(fault),
        }
    }

    /// Notes the pairs that a mesh expects results from.
    fn expect(&self, place: usize, mesh: &mesh::Mesh, now: Timestamp) {
        if let Some(archive) = self.state().archives.get_mut(place) {
            archive.watch.expect(&mesh.expected, now);
        }
    }

    pub fn archives(&self, now: Timestamp) -> Vec<ArchiveView> {
        self.state().archives.iter().map(|archive| archive.view(now)).collect()
    }
}

impl ArchiveState {
    fn view(&self, now: Timestamp) -> ArchiveView {
        const SHOWN: usize = 100;
        let silent = self.watch.silent(now);
        let shown = silent.iter().take(SHOWN).map(|pair| longhaul_api::measured::SilentPair {
            source: pair.source.clone(),
            target: pair.target.clone(),
            test: pair.test.to_owned(),
            since: pair.since,
            every_s: pair.interval.as_secs(),
        });
        ArchiveView {
            pairs: self.watch.expected() as u64,
            silent: silent.len() as u64,
            silences: shown.collect(),
            ..self.view.clone()
        }
    }
}

/// What is to be observed of one measurement.
struct Pending {
    id: ObservationId,
    observations: Vec<Observation>,
}

/// Takes in what one payload held; `from` says who sent it, `via` how it came.
pub fn take(
    netops: &NetOps,
    harvest: Harvest,
    from: &str,
    via: &'static str,
) -> Result<MeasurementsTaken, Fault> {
    let map = netops.measured.host_map(netops)?;
    let directory = netops.kernel.directory();
    let sites: BTreeMap<_, _> = directory.sites.values().map(|site| (site.name.clone(), site.id)).collect();
    let with_storage: BTreeSet<SiteId> = directory.storages.values().map(|storage| storage.site).collect();
    let now = netops.kernel.now();
    let mut taken = MeasurementsTaken {
        unused: harvest.unused,
        refused: harvest.refused,
        why: harvest.first_fault.map(|fault| fault.detail),
        ..MeasurementsTaken::default()
    };
    let mut pending = Vec::new();
    {
        let mut state = netops.measured.state();
        for measurement in &harvest.measurements {
            state.archives.iter_mut().for_each(|archive| archive.watch.heard(measurement));
            let id = ObservationId::from_parts(&["perfsonar", &measurement.id]);
            if state.seen.contains(id) {
                taken.repeated += 1;
                continue;
            }
            let mut end = |host: &Host| -> Option<End> {
                let found = map.find(host.name.as_deref(), host.address, measurement.family);
                let known = found.as_ref().and_then(|found| Some((*sites.get(&found.site)?, found.mapping)));
                let inferred = found.filter(|found| known.is_some() && found.mapping == Mapping::Inferred);
                if known.is_none() || inferred.is_some() {
                    state.report(host, inferred, from, now);
                }
                known
            };
            // Both, so that both are reported.
            let (source, target) = (end(&measurement.source), end(&measurement.target));
            let (Some(source), Some(target)) = (source, target) else {
                taken.unmapped += 1;
                continue;
            };
            // Without storages there is no link that it could tell of.
            let linked = with_storage.contains(&source.0) && with_storage.contains(&target.0);
            let observations = if linked {
                observations(measurement, source, target, &mut state.delays)
            } else {
                Vec::new()
            };
            if observations.is_empty() {
                taken.unused += 1;
            } else {
                state.seen.insert(id);
                pending.push(Pending { id, observations });
            }
        }
    }
    for batch in pending.chunks(OBSERVATIONS_PER_BATCH_MAX) {
        believe(netops, batch, &mut taken)?;
    }
    count(netops, &taken, via);
    Ok(taken)
}

/// Hands a batch to the brain, and counts what it says.
fn believe(netops: &NetOps, batch: &[Pending], taken: &mut MeasurementsTaken) -> Result<(), Fault> {
    let all = batch.iter().flat_map(|pending| pending.observations.iter().cloned()).collect();
    let Some(said) = netops.kernel.scheduler.observe(all) else {
        let mut state = netops.measured.state();
        // Not taken: the same may come again.
        batch.iter().for_each(|pending| state.seen.forget(pending.id));
        return Err(Fault::new(FaultCode::Busy, "the brain does not answer"));
    };
    let mut said = said.into_iter();
    for pending in batch {
        let answers: Vec<Result<(), ObservationError>> =
            said.by_ref().take(pending.observations.len()).collect();
        match answers.iter().find_map(|answer| answer.as_ref().err()) {
            _ if answers.iter().any(Result::is_ok) => taken.taken += 1,
            None | Some(ObservationError::Duplicate) => taken.repeated += 1,
            Some(why) => {
                taken.refused += 1;
                taken.why.get_or_insert_with(|| why.to_string());
            }
        }
    }
    Ok(())
}

fn observations(
    measurement: &Measurement,
    source: End,
    target: End,
    delays: &mut Delays,
) -> Vec<Observation> {
    if source.0 == target.0 {
        return Vec::new();
    }
    let way = measurement.family.map(PathSelector::over_family).unwrap_or_default();
    let of = Subject::Path { source: Endpoint::Site(source.0), target: Endpoint::Site(target.0), path: way };
    // A rate is known when the test ends. Tests of delays go on for days and give a sample each minute.
    let at = match measurement.value {
        Reading::Throughput { .. } => measurement.at + measurement.lasted.unwrap_or_default(),
        _ => measurement.at,
    };
    let found = delays.translate(measurement);
    let numbered = found.into_iter().enumerate();
    let observation = |(number, seen): (usize, _)| Observation {
        id: ObservationId::from_parts(&["perfsonar", &measurement.id, &number.to_string()]),
        at,
        subject: of,
        metric: seen,
        origin: Origin::PerfSonar,
        mapping: source.1.min(target.1),
    };
    numbered.map(observation).collect()
}

impl State {
    fn report(
        &mut self,
        host: &Host,
        inferred: Option<longhaul_network::mapping::SiteMatch>,
        from: &str,
        now: Timestamp,
    ) {
        let name = host.to_string();
        if self.unmapped.len() >= UNMAPPED_HOSTS_MAX && !self.unmapped.contains_key(&name) {
            let oldest =
                self.unmapped.values().min_by_key(|host| host.last_seen).map(|host| host.host.clone());
            oldest.map(|oldest| self.unmapped.remove(&oldest));
        }
        let row = self.unmapped.entry(name.clone()).or_insert_with(|| UnmappedHost {
            host: name,
            address: None,
            inferred: None,
            because: None,
            measurements: 0,
            first_seen: now,
            last_seen: now,
            reported_by: String::new(),
        });
        row.measurements += 1;
        row.last_seen = now;
        row.address = host.address.map(|address| address.to_string()).or(row.address.take());
        (row.inferred, row.because) = match inferred {
            Some(found) => (Some(found.site), Some(found.reason)),
            None => (None, None),
        };
        row.reported_by = from.to_owned();
    }

    /// Hosts that have a site by now leave the report.
    fn review(&mut self, map: &HostMap) {
        self.unmapped.retain(|name, row| {
            let address = row.address.as_ref().and_then(|address| address.parse().ok());
            map.find(Some(name), address, None).is_none_or(|found| found.mapping == Mapping::Inferred)
        });
    }
}

/// After a change of the table: the report without those that it names now.
pub fn review(netops: &NetOps) -> Result<(), CatalogError> {
    netops.measured.map_changed();
    let map = netops.measured.host_map(netops)?;
    netops.measured.state().review(&map);
    Ok(())
}

fn count(netops: &NetOps, taken: &MeasurementsTaken, via: &'static str) {
    for (result, count) in [
        ("taken", taken.taken),
        ("repeated", taken.repeated),
        ("unmapped", taken.unmapped),
        ("unused", taken.unused),
        ("refused", taken.refused),
    ] {
        if count > 0 {
            netops.kernel.metrics.count(
                "longhaul_measurements_total",
                "Measurements, by how they came and what became of them.",
                vec![("via", via.to_owned()), ("result", result.to_owned())],
                count,
            );
        }
    }
}
