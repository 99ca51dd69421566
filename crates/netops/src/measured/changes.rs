//! Changes of the network as they are told: once each to listeners, the log and the counters; those for the
//! worse as problems too, from when they are noticed until the network is nearly as it was.
//!
//! Not here: what is a change and where its cause lies (`network`).

use std::collections::BTreeMap;

use longhaul_api::native::{ChangeKind, ProblemView};
use longhaul_api::network::NetworkChange;
use longhaul_control::Directory;
use longhaul_control::metrics::Gauges;
use longhaul_model::{Blame, Fault, FaultCode, StorageName, Timestamp};
use longhaul_network::{CauseLocation, Change, ChangeScope, Locality, Shift};
use longhaul_scheduler::Scheduler;
use parking_lot::Mutex;

use crate::NetOps;

/// Sentences shown with a problem, beside the first.
const EXAMPLES_MAX: usize = 5;

/// What was told already, and what stands.
#[derive(Default)]
pub struct ChangeWatch {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Changes since the start of the process.
    told: u64,
    standing: Vec<Change>,
}

/// ProbeState for what is new, and for what is over.
pub fn watch(netops: &NetOps) {
    let told = netops.measured.changes.state.lock().told;
    let ask = move |scheduler: &Scheduler, now: Timestamp| {
        let knowledge = scheduler.knowledge();
        let count = knowledge.changes_since_start();
        let fresh = usize::try_from(count.saturating_sub(told)).unwrap_or(usize::MAX);
        let mut fresh: Vec<Change> = knowledge.changes().rev().take(fresh).copied().collect();
        fresh.reverse();
        (count, fresh, knowledge.ongoing_degradations(now))
    };
    // A brain that does not answer is asked again at the next look.
    let Some((told, fresh, standing)) = netops.kernel.scheduler.query(ask) else { return };
    let before = {
        let mut state = netops.measured.changes.state.lock();
        state.told = told;
        std::mem::replace(&mut state.standing, standing.clone())
    };
    let (directory, now) = (netops.kernel.directory(), netops.kernel.now());
    for change in &fresh {
        announce(netops, &directory, change, now);
    }
    let same = |one: &Change, other: &Change| one.affected == other.affected && one.kind() == other.kind();
    for over in before.iter().filter(|old| !standing.iter().any(|new| same(old, new))) {
        let (source, target) = end_names(over, &directory);
        tracing::info!(%source, %target, kind = over.kind(), "the network is nearly as it was, or it is how \
            things are");
        netops.kernel.changes.touch(ChangeKind::Network, format!("{source}:{target}"), now);
        netops.kernel.changes.touch(ChangeKind::Problem, "", now);
    }
}

fn announce(netops: &NetOps, directory: &Directory, change: &Change, now: Timestamp) {
    let (source, target) = end_names(change, directory);
    let words = change.describe(&source, &target);
    let direction = if change.is_worse() {
        tracing::warn!(%source, %target, kind = change.kind(), since = %change.from, "{words}");
        "worse"
    } else {
        tracing::info!(%source, %target, kind = change.kind(), since = %change.from, "{words}");
        "better"
    };
    netops.kernel.metrics.count(
        "longhaul_network_changes_total",
        "Changes of the network that were noticed.",
        vec![("kind", change.kind().into()), ("direction", direction.into())],
        1,
    );
    netops.kernel.changes.touch(ChangeKind::Network, format!("{source}:{target}"), now);
    netops.kernel.changes.touch(ChangeKind::Problem, "", now);
}

/// How many times worse each is than it was, and since when.
pub fn gauges(netops: &NetOps, gauges: &mut Gauges) {
    let directory = netops.kernel.directory();
    for change in &netops.measured.changes.state.lock().standing {
        let (source, target) = end_names(change, &directory);
        let labels = || {
            vec![("source", source.clone()), ("target", target.clone()), ("kind", change.kind().to_owned())]
        };
        gauges.gauge(
            "longhaul_network_worse_factor",
            "How many times worse the network is than it was; only while it is.",
            labels(),
            severity(&change.shift),
        );
        gauges.gauge(
            "longhaul_network_worse_since_seconds",
            "Since when it is so, seconds since 1970.",
            labels(),
            change.from.as_seconds_f64(),
        );
    }
}

/// How many times worse, or how often for what comes and goes.
fn severity(shift: &Shift) -> f64 {
    match *shift {
        Shift::Rate { before, after } => before / after.max(1.0),
        Shift::RoundTrip { before_us, after_us } => after_us / before_us.max(1.0),
        Shift::Loss { before, after } => after / before.max(1e-6),
        Shift::Mtu { before, after, .. } => f64::from(before) / f64::from(after.max(1)),
        Shift::Flapping { times, .. } => f64::from(times),
    }
}

/// What stands, those with one cause as one.
pub fn problems(netops: &NetOps) -> Vec<ProblemView> {
    let standing = netops.measured.changes.state.lock().standing.clone();
    group_by_cause(&standing)
        .into_values()
        .filter_map(|alike| problem(&alike, &netops.kernel.directory()))
        .collect()
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    Source(Locality),
    Target(Locality),
    Hop(std::net::IpAddr),
    Own(ChangeScope),
}

fn group_by_cause(standing: &[Change]) -> BTreeMap<(Cause, &'static str), Vec<Change>> {
    let mut causes: BTreeMap<_, Vec<Change>> = BTreeMap::new();
    for change in standing {
        let homes = match change.affected {
            ChangeScope::Link(link) => (Locality::Storage(link.source), Locality::Storage(link.target)),
            ChangeScope::Path { source, target, .. } => (source, target),
        };
        let cause = match change.location {
            CauseLocation::Source => Cause::Source(homes.0),
            CauseLocation::Target => Cause::Target(homes.1),
            CauseLocation::Hop(hop) => Cause::Hop(hop),
            CauseLocation::Link | CauseLocation::Unknown => Cause::Own(change.affected),
        };
        causes.entry((cause, change.kind())).or_default().push(*change);
    }
    causes
}

fn problem(alike: &[Change], directory: &Directory) -> Option<ProblemView> {
    let worst = alike.iter().max_by(|one, other| severity(&one.shift).total_cmp(&severity(&other.shift)))?;
    let (source, target) = end_names(worst, directory);
    let more = match alike.len() - 1 {
        0 => String::new(),
        1 => "; and one more link".to_owned(),
        more => format!("; and {more} more links"),
    };
    let (blame, whose) = match worst.location {
        CauseLocation::Source => (Blame::Source, format!("ask {source} what changed there")),
        CauseLocation::Target => (Blame::Target, format!("ask {target} what changed there")),
        CauseLocation::Hop(hop) => (Blame::Network, format!("ask the network's operators of router {hop}")),
        CauseLocation::Link | CauseLocation::Unknown => {
            (Blame::Network, "ask the network's operators, with these numbers".to_owned())
        }
    };
    let command = match worst.affected {
        ChangeScope::Link(_) => format!("longhaul network explain {source} {target}"),
        ChangeScope::Path { .. } => format!("longhaul network show {source} {target}"),
    };
    let words = format!("{}{more}", worst.describe(&source, &target));
    let examples = alike.iter().filter(|change| *change != worst).take(EXAMPLES_MAX);
    Some(ProblemView {
        fault: Fault::new(FaultCode::Degraded, words).blaming(blame),
        storage: StorageName::parse(if blame == Blame::Source { &source } else { &target }).ok(),
        count: alike.len() as u64,
        first_seen: alike.iter().map(|change| change.from).min()?,
        last_seen: alike.iter().map(|change| change.noticed).max()?,
        remedy: format!("see what is known: {command}; {whose}. Other sources go first meanwhile"),
        examples: examples
            .map(|change| {
                let (source, target) = end_names(change, directory);
                change.describe(&source, &target)
            })
            .collect(),
        open: true,
    })
}

pub fn view(change: &Change, directory: &Directory) -> NetworkChange {
    let (source, target) = end_names(change, directory);
    NetworkChange {
        from: change.from,
        noticed: change.noticed,
        worse: change.is_worse(),
        what: change.describe(&source, &target),
    }
}

/// The names of both ends: storages where those are known, else sites.
fn end_names(change: &Change, directory: &Directory) -> (String, String) {
    let storage = |id| directory.name(id).map_or_else(|| format!("storage {id}"), |name| name.to_string());
    let place = |home| match home {
        Locality::Storage(id) => storage(id),
        Locality::Site(id) => {
            directory.sites.get(&id).map_or_else(|| format!("site {id}"), |site| site.name.to_string())
        }
    };
    match change.affected {
        ChangeScope::Link(link) => (storage(link.source), storage(link.target)),
        ChangeScope::Path { source, target, .. } => (place(source), place(target)),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::StorageId;
    use longhaul_network::{Evidence, Link};

    use super::*;

    fn fell(source: u64, target: u64, after: f64, location: CauseLocation) -> Change {
        Change {
            from: Timestamp::from_seconds(100),
            noticed: Timestamp::from_seconds(160),
            affected: ChangeScope::Link(Link { source: StorageId(source), target: StorageId(target) }),
            shift: Shift::Rate { before: 100e6, after },
            rerouted: None,
            location,
            evidence: Evidence::Measurements(9),
        }
    }

    #[test]
    fn one_cause_is_one_problem_with_the_worst_link_first() {
        let standing = [
            fell(1, 2, 50e6, CauseLocation::Source),
            fell(1, 3, 20e6, CauseLocation::Source),
            fell(4, 5, 20e6, CauseLocation::Unknown),
        ];
        let problems: Vec<ProblemView> = group_by_cause(&standing)
            .values()
            .filter_map(|alike| problem(alike, &Directory::default()))
            .collect();
        assert_eq!(problems.len(), 2);
        let source = problems.iter().find(|view| view.count == 2).unwrap();
        assert_eq!((source.fault.code, source.fault.blame), (FaultCode::Degraded, Blame::Source));
        let detail = &source.fault.detail;
        assert!(detail.starts_with("rate from storage 1 to storage 3 fell 5.0-fold"), "{detail}");
        assert!(detail.contains("by 9 measurements") && detail.ends_with("; and one more link"), "{detail}");
        assert_eq!(source.examples.len(), 1);
        let other = problems.iter().find(|view| view.count == 1).unwrap();
        assert_eq!(other.fault.blame, Blame::Network);
    }
}
