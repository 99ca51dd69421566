//! Joins what agents look at, count and see of their transfers with who they are: whose turn it is, what is
//! believed, what stands as a problem, what is shown of a link.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::measured::MeasurementsTaken;
use longhaul_api::native::ProblemView;
use longhaul_api::probe::{
    PATHS_MAX, PROBES_MAX, PathSample, ProbeAsked, ProbeResult, ProbeShort, ProbeView, Reach, UPLINKS_MAX,
    UplinkSample, UplinkView,
};
use longhaul_catalog::{Admission, Claim, Phase, Subject, admit};
use longhaul_control::agents::AgentInfo;
use longhaul_control::metrics::Gauges;
use longhaul_model::{AgentId, Blame, Fault, FaultCode, SiteId, Timestamp};
use longhaul_network::{Metric, Observation, ObservationError};

use super::count;
use super::error::MeasurementError;
use super::path_counters;
use super::probes::{self, Probes, Row};
use super::uplinks::Uplinks;
use crate::NetOps;

/// Agents named of those that cannot reach a peer.
const NAMED_MAX: usize = 5;
/// What nobody looked at for so long is no problem any more: its agent may look at peers no longer.
const PROBLEM_AGE_MAX: Duration = Duration::from_secs(3_600);

#[derive(Default)]
pub struct ProbeState {
    probes: Probes,
    uplinks: Uplinks,
}

/// The peer that an agent shall look at next, when it is time.
pub fn next_probe(netops: &NetOps, agent: AgentId) -> Vec<ProbeAsked> {
    let every = Duration::from_secs(netops.settings.probe_interval_s.into());
    if every.is_zero() {
        return Vec::new();
    }
    let now = netops.kernel.now();
    let peers = || netops.control.agents.peers_of(agent, now);
    let next = netops.measured.probe_state.lock().probes.next(agent, peers, every, now);
    let asked = next.and_then(|peer| {
        Some(ProbeAsked {
            agent: peer,
            addresses: netops.control.agents.connected_agent(peer, now)?.addresses,
        })
    });
    asked.into_iter().collect()
}

/// What an agent measured, as it comes in a report.
pub struct AgentMeasurements {
    pub probes: Vec<ProbeResult>,
    pub uplinks: Vec<UplinkSample>,
    pub paths: Vec<PathSample>,
}

impl AgentMeasurements {
    pub fn is_empty(&self) -> bool {
        self.probes.is_empty() && self.uplinks.is_empty() && self.paths.is_empty()
    }
}

/// Takes what an agent found. Waits for the brain.
pub fn take(netops: &NetOps, agent: AgentId, found: &AgentMeasurements) {
    let now = netops.kernel.now();
    let Some(from) = netops.control.agents.connected_agent(agent, now) else { return };
    let (mut looked, mut counted) = (MeasurementsTaken::default(), MeasurementsTaken::default());
    let mut observations = Vec::new();
    for result in found.probes.iter().take(PROBES_MAX) {
        let to = netops.control.agents.connected_agent(result.agent, now);
        let to = to.filter(|to| is_link(Claim::Probe, &from, to));
        let outcome = match &to {
            None => Err(MeasurementError::UnknownOrLocalPeer),
            Some(_) => netops.measured.probe_state.lock().probes.note(agent, result, now),
        };
        if let (Ok(()), Some(to)) = (&outcome, to) {
            observations.extend(probes::observations(agent, (from.site, to.site), result));
        }
        probes::count_outcome(&mut looked, outcome);
    }
    for sample in found.uplinks.iter().take(UPLINKS_MAX) {
        let mut looks = netops.measured.probe_state.lock();
        let outcome = looks.uplinks.note(from.site, agent, sample.clone(), now);
        probes::count_outcome(&mut counted, outcome);
    }
    if counted.taken > 0 {
        observations.extend(netops.measured.probe_state.lock().uplinks.observation(from.site, now));
    }
    let travelled = take_path_samples(netops, &from, &found.paths, &mut observations, now);
    believe(netops, observations, agent);
    for (taken, via) in [(looked, "probe"), (counted, "uplink"), (travelled, "transfers")] {
        if let Some(why) = &taken.why {
            tracing::warn!(%agent, why, via, "a measurement of an agent was refused");
        }
        count(netops, &taken, via);
    }
}

/// Whether what an agent says of itself and a peer is about a link of its site.
fn is_link(claim: Claim, speaker: &AgentInfo, peer: &AgentInfo) -> bool {
    let subject = Subject { agent: peer.id, site: peer.site, phase: Phase::Open };
    admit(claim, (speaker.id, speaker.site), Some(subject)) == Admission::Full
}

/// What transfers showed. Those within a site say nothing of the network.
fn take_path_samples(
    netops: &NetOps,
    to: &AgentInfo,
    samples: &[PathSample],
    observations: &mut Vec<Observation>,
    now: Timestamp,
) -> MeasurementsTaken {
    let mut taken = MeasurementsTaken::default();
    for sample in samples.iter().take(PATHS_MAX) {
        match netops.control.agents.connected_agent(sample.source, now) {
            Some(from) if !is_link(Claim::Path, to, &from) => taken.unused += 1,
            Some(from) => {
                let outcome = path_counters::check(sample);
                if outcome.is_ok() {
                    observations.push(path_counters::observation(to.id, (from.site, to.site), sample));
                }
                probes::count_outcome(&mut taken, outcome);
            }
            None => probes::count_outcome(&mut taken, Err(MeasurementError::UnknownAgent)),
        }
    }
    taken
}

/// Sites without a storage have no links that could be believed anything of.
fn believe(netops: &NetOps, observations: Vec<Observation>, agent: AgentId) {
    if observations.is_empty() {
        return;
    }
    let said = netops.kernel.scheduler.observe(observations).unwrap_or_default();
    for refused in said.into_iter().filter_map(Result::err) {
        if !matches!(refused, ObservationError::UnknownSite(_)) {
            tracing::warn!(%agent, %refused, "what an agent found is not believed");
        }
    }
}

/// What an agent cannot reach stands as a problem, from the first look that found it to the first that finds
/// it over. Who is out of contact altogether is a problem already.
pub fn problems(netops: &NetOps, now: Timestamp) -> Vec<ProblemView> {
    let agents = netops.control.agents.connected(now);
    let looks = netops.measured.probe_state.lock();
    let broken: Vec<Broken<'_>> = looks
        .probes
        .rows()
        .filter_map(|(from, to, row)| {
            let since = row.unreachable_since.filter(|_| now.since(row.at) < PROBLEM_AGE_MAX)?;
            Some(Broken { from: agents.get(&from)?, to: agents.get(&to)?, since, row })
        })
        .collect();
    group_by_end(&broken).iter().filter_map(problem).collect()
}

/// What a site's connection carries as a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteUplink {
    pub into_bytes_per_s: f64,
    pub out_bytes_per_s: f64,
    /// If that is known of each of its interfaces.
    pub capacity_bytes_per_s: Option<f64>,
}

/// As counted of late, if it is.
pub fn uplink_of(netops: &NetOps, site: SiteId, now: Timestamp) -> Option<SiteUplink> {
    match netops.measured.probe_state.lock().uplinks.observation(site, now)?.metric {
        Metric::Uplink { into_bytes_per_s, out_bytes_per_s, capacity_bytes_per_s } => {
            Some(SiteUplink { into_bytes_per_s, out_bytes_per_s, capacity_bytes_per_s })
        }
        _ => None,
    }
}

/// What passes the sites' connections, for whoever compares it with what transfers moved.
pub fn uplink_gauges(netops: &NetOps, now: Timestamp, gauges: &mut Gauges) {
    for (id, site) in &netops.kernel.directory().sites {
        let Some(uplink) = uplink_of(netops, *id, now) else { continue };
        for (direction, bytes_per_s) in [("in", uplink.into_bytes_per_s), ("out", uplink.out_bytes_per_s)] {
            gauges.gauge(
                "longhaul_uplink_bytes_per_second",
                "What passes the uplinks of a site, whoever sends it.",
                vec![("site", site.name.to_string()), ("direction", direction.into())],
                bytes_per_s,
            );
        }
    }
}

/// Uplinks of one of the sites over which flows are not spread, a sentence each.
pub fn uneven_uplinks(netops: &NetOps, sites: [SiteId; 2], now: Timestamp) -> Vec<String> {
    let directory = netops.kernel.directory();
    let looks = netops.measured.probe_state.lock();
    let told = sites.into_iter().filter_map(|site| {
        Some(format!("at {}: {}", directory.sites.get(&site)?.name, looks.uplinks.uneven(site, now)?))
    });
    told.collect()
}

struct Broken<'a> {
    from: &'a AgentInfo,
    to: &'a AgentInfo,
    since: Timestamp,
    row: &'a Row,
}

/// One problem for each end that is in most of them: a host behind a closed firewall is silent to all, and
/// must not be as many problems as there are sites.
fn group_by_end<'a>(broken: &[Broken<'a>]) -> Vec<(bool, Vec<Broken<'a>>)> {
    let mut from: BTreeMap<AgentId, usize> = BTreeMap::new();
    let mut to: BTreeMap<AgentId, usize> = BTreeMap::new();
    for one in broken {
        *from.entry(one.from.id).or_default() += 1;
        *to.entry(one.to.id).or_default() += 1;
    }
    let mut groups: BTreeMap<(bool, AgentId), Vec<Broken<'a>>> = BTreeMap::new();
    for one in broken {
        let by_source = from[&one.from.id] > to[&one.to.id];
        let end = if by_source { one.from.id } else { one.to.id };
        let one = Broken { from: one.from, to: one.to, since: one.since, row: one.row };
        groups.entry((by_source, end)).or_default().push(one);
    }
    groups.into_iter().map(|((by_source, _), group)| (by_source, group)).collect()
}

fn problem((by_source, group): &(bool, Vec<Broken<'_>>)) -> Option<ProblemView> {
    let first = group.first()?;
    let named = |agent: &AgentInfo| format!("{} ({})", agent.site_name, agent.host);
    let other = |one: &Broken<'_>| named(if *by_source { one.to } else { one.from });
    let mut others: Vec<String> = group.iter().take(NAMED_MAX).map(other).collect();
    if group.len() > NAMED_MAX {
        others.push(format!("{} more", group.len() - NAMED_MAX));
    }
    let others = listed(&others);
    // Whoever dials is the target of data.
    let (who, blame) = if *by_source {
        (format!("{} cannot reach {others}", named(first.from)), Blame::Target)
    } else {
        (format!("{others} cannot reach {}", named(first.to)), Blame::Source)
    };
    let fault =
        Fault::new(FaultCode::Unreachable, format!("{who}: {}", describe_failure(first.row))).blaming(blame);
    let example =
        |one: &Broken<'_>| format!("{} → {}: {}", named(one.from), named(one.to), describe_failure(one.row));
    let port = first.row.ways.first().map(|way| format!("TCP port {}", way.address.port()));
    let port = port.unwrap_or_else(|| "the data port".to_owned());
    Some(ProblemView {
        fault,
        storage: None,
        count: group.len() as u64,
        first_seen: group.iter().map(|one| one.since).min()?,
        last_seen: group.iter().map(|one| one.row.at).max()?,
        remedy: format!(
            "open {port} between them in the firewalls of both sites; check what the agent advertises"
        ),
        examples: group.iter().take(NAMED_MAX).map(example).collect(),
        open: true,
    })
}

/// Address by address, or why there is none.
fn describe_failure(row: &Row) -> String {
    let ways = row.ways.iter().map(|way| format!("{} {}", way.address, way.reach.words()));
    row.fault.clone().unwrap_or_else(|| ways.collect::<Vec<_>>().join("; "))
}

fn listed(all: &[String]) -> String {
    match all {
        [] => String::new(),
        [one] => one.clone(),
        [head @ .., last] => format!("{} and {last}", head.join(", ")),
    }
}

/// For each source and target, the last probe from an agent at the target to one at the source: where data
/// would come from.
pub fn shorts(netops: &NetOps, now: Timestamp) -> BTreeMap<(SiteId, SiteId), ProbeShort> {
    let agents = netops.control.agents.connected(now);
    let mut all: BTreeMap<(SiteId, SiteId), ProbeShort> = BTreeMap::new();
    for (from, to, row) in netops.measured.probe_state.lock().probes.rows() {
        let (Some(from), Some(to)) = (agents.get(&from), agents.get(&to)) else { continue };
        let short = || ProbeShort {
            at: row.at,
            unreachable_since: row.unreachable_since,
            black_hole: row.ways.iter().any(|way| way.black_hole),
        };
        let known = all.entry((to.site, from.site)).or_insert_with(short);
        if row.at > known.at {
            *known = short();
        }
    }
    all
}

fn between(
    agents: &BTreeMap<AgentId, AgentInfo>,
    (from, to): (AgentId, AgentId),
    (looking, looked_at): (SiteId, SiteId),
) -> bool {
    let at = |agent| agents.get(&agent).map(|known| known.site);
    at(from) == Some(looking) && at(to) == Some(looked_at)
}

/// All that the two sites' agents found at each other, and their uplinks.
pub fn views(
    netops: &NetOps,
    source: SiteId,
    target: SiteId,
    now: Timestamp,
) -> (Vec<ProbeView>, Vec<UplinkView>) {
    let agents = netops.control.agents.connected(now);
    let looks = netops.measured.probe_state.lock();
    let view = |(from, to, row): (AgentId, AgentId, &Row)| {
        let (from, to) = (agents.get(&from)?, agents.get(&to)?);
        Some(ProbeView {
            from: from.site_name.clone(),
            from_host: from.host.clone(),
            to: to.site_name.clone(),
            to_host: to.host.clone(),
            at: row.at,
            ways: row.ways.clone(),
            fault: row.fault.clone(),
            unreachable_since: row.unreachable_since,
            remarks: remarks(row),
        })
    };
    let both = [(target, source), (source, target)];
    let mut probes: Vec<ProbeView> = Vec::new();
    for ends in both {
        let rows = looks.probes.rows().filter(|(from, to, _)| between(&agents, (*from, *to), ends));
        probes.extend(rows.filter_map(view));
    }
    let mut uplinks = Vec::new();
    for site in [source, target] {
        uplinks.extend(looks.uplinks.samples_of(site, now).filter_map(|(agent, sample)| {
            let agent = agents.get(&agent)?;
            let (site, host) = (agent.site_name.clone(), agent.host.clone());
            Some(UplinkView { site, host, sample: sample.clone() })
        }));
    }
    (probes, uplinks)
}

/// What stands out in a look.
fn remarks(row: &Row) -> Vec<String> {
    let mut remarks: Vec<String> = row.uneven().collect();
    for way in row.ways.iter().filter(|way| way.black_hole) {
        let mtu = way.mtu.unwrap_or_default();
        remarks.push(format!(
            "over {} packets of more than {mtu} bytes vanish and nobody says so: transfers begin and then \
                stand still",
            way.family()
        ));
    }
    let reach: Vec<Reach> = row.ways.iter().map(|way| way.reach).collect();
    if reach.contains(&Reach::Answers) {
        let not = row.ways.iter().filter(|way| matches!(way.reach, Reach::Silent | Reach::Refused));
        remarks.extend(not.map(|way| {
            format!("only one family works: {} {} {}", way.family(), way.address, way.reach.words())
        }));
    }
    let rtt = |ipv6: bool| {
        let way = row.ways.iter().find(|way| way.address.is_ipv6() == ipv6)?;
        way.rtt_us()
    };
    if let (Some(four), Some(six)) = (rtt(false), rtt(true)) {
        let (slow, fast) = (four.max(six), four.min(six));
        // Below a millisecond the difference is noise.
        if slow > fast.saturating_mul(2) && slow > 1_000 {
            let which = if six > four { "IPv6" } else { "IPv4" };
            let ms = |us: u32| f64::from(us) / 1e3;
            remarks.push(format!(
                "{which} takes {:.1} ms and the other family {:.1} ms: the two are routed differently",
                ms(slow),
                ms(fast)
            ));
        }
    }
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::probe::ProbedWay;

    fn agent(id: u64) -> AgentInfo {
        let site_name = format!("s{id}").parse().unwrap();
        let host = format!("h{id}");
        AgentInfo { id: AgentId(id), site: SiteId(id), site_name, host, addresses: Vec::new() }
    }

    #[test]
    fn a_host_that_is_silent_to_all_is_one_problem() {
        let (agents, now) = ((0..10).map(agent).collect::<Vec<_>>(), Timestamp::from_seconds(1_000));
        let way = ProbedWay {
            address: "192.0.2.7:7470".parse().unwrap(),
            reach: Reach::Silent,
            rtts_us: Vec::new(),
            mtu: None,
            black_hole: false,
            hops: Vec::new(),
            unknown: Vec::new(),
        };
        let mut probes = Probes::default();
        // All but one cannot reach 9; 1 reaches nobody.
        let pairs = (0..9).map(|from| (from, 9)).chain((2..8).map(|to| (1, to)));
        for (from, to) in pairs {
            let found = ProbeResult { agent: AgentId(to), at: now, ways: vec![way.clone()], fault: None };
            probes.note(AgentId(from), &found, now).unwrap();
        }
        let broken: Vec<Broken<'_>> = probes
            .rows()
            .map(|(from, to, row)| {
                let (from, to) = (&agents[from.0 as usize], &agents[to.0 as usize]);
                Broken { from, to, since: now, row }
            })
            .collect();
        let all: Vec<ProblemView> = group_by_end(&broken).iter().filter_map(problem).collect();
        let said: Vec<&str> = all.iter().map(|one| one.fault.detail.as_str()).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(
            said[0].contains("s4 (h4) and 4 more cannot reach s9 (h9): 192.0.2.7:7470 is silent"),
            "{said:?}"
        );
        assert!(said[1].contains("s1 (h1) cannot reach s2 (h2), "), "{said:?}");
        assert_eq!((all[0].count, all[0].examples.len(), all[1].count), (9, NAMED_MAX, 6));
        assert!(all[0].remedy.contains("TCP port 7470"));
    }
}
