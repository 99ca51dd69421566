//! Multi-source pull: the source, and replicas of it that are read in parallel.
//!
//! The first reachable server that has the source leads: its listing counts, and its digests where none was
//! given. A server that is unreachable, lacks the source or has something else is left out with the reason,
//! and the others continue.

use std::sync::Arc;

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode, TrafficClass};

use crate::fetch_job::FileFetch;
use crate::progress::{Progress, ReplicaShare};
use crate::protocol::{Entry, Kind, ListRequest, RelativePath};
use crate::remote::Remote;
use crate::site::{PathMapping, ReplicaSource, Site, Source};
use crate::stop::Stop;
use crate::url::{RemotePath, SCHEME, ServerUrl};

/// Servers of one copy, including the source.
pub const SERVERS_MAX: usize = longhaul_engine::ORIGINS_MAX;

/// A server that has the source.
pub(crate) struct ReplicaServer {
    pub(crate) remote: Remote,
    /// Path of the source at this server.
    pub(crate) path: RemotePath,
    pub(crate) shown: String,
}

/// A server and a path for display, without the secret.
pub(crate) fn shown(url: &ServerUrl, path: &str) -> String {
    format!("{SCHEME}{}/{}", url.shown(), printable(path))
}

/// Connects to all servers in parallel. The leader comes first; fails if no server has the source.
pub(crate) fn connect(
    site: &Arc<Site>,
    servers: &[(&ServerUrl, &RemotePath)],
    lists: Option<&ListRequest>,
    progress: &Progress,
    stop: &Stop,
) -> Result<Vec<ReplicaServer>, Fault> {
    let connected: Vec<Result<ReplicaServer, Fault>> = std::thread::scope(|scope| {
        let connecting: Vec<_> = servers
            .iter()
            .enumerate()
            .map(|(place, server)| scope.spawn(move || connect_one(site, place, server, lists, stop)))
            .collect();
        let panicked = || Fault::new(FaultCode::Internal, "a connecting thread panicked");
        connecting.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    });
    stop.check()?;
    let mut members: Vec<ReplicaServer> = Vec::new();
    let mut first_fault = None;
    for (member, (url, path)) in connected.into_iter().zip(servers) {
        let fits = member.and_then(|member| check_same_content(&members, member));
        match fits {
            Ok(member) => members.push(member),
            Err(fault) => {
                let shown = shown(url, &path.path);
                tracing::warn!(replica = shown, fault = %fault.chain(), "a replica is left out");
                progress
                    .add_share(&ReplicaShare { fault: Some(fault.clone()), ..ReplicaShare::empty(&shown) });
                first_fault.get_or_insert(fault);
            }
        }
    }
    match (members.is_empty(), first_fault) {
        (true, Some(fault)) => Err(fault),
        _ => Ok(members),
    }
}

fn connect_one(
    site: &Arc<Site>,
    place: usize,
    (url, path): &(&ServerUrl, &RemotePath),
    lists: Option<&ListRequest>,
    stop: &Stop,
) -> Result<ReplicaServer, Fault> {
    let looks_at = vec![RelativePath::parse(&path.path)?];
    // The site belongs to the source's deployment.
    let guest = if place == 0 { None } else { Some(Arc::new(site.guest(&url.secret)?)) };
    let lists = lists.filter(|_| place == 0).cloned();
    let mut remote = Remote::connect_as(site.clone(), guest, &url.addresses, looks_at, lists, stop)?;
    remote.shorten_reconnect();
    Ok(ReplicaServer { remote, path: (*path).clone(), shown: shown(url, &path.path) })
}

/// Checks that a server has what the leader has, as far as kind and size tell; the first one leads.
fn check_same_content(members: &[ReplicaServer], member: ReplicaServer) -> Result<ReplicaServer, Fault> {
    let Some(found) = member.found() else { return Err(Fault::new(FaultCode::SourceMissing, member.shown)) };
    if found.kind == Kind::LeftOut {
        let detail = format!("{} is {}", member.shown, printable(&found.note));
        return Err(Fault::new(FaultCode::SourceUnreadable, detail));
    }
    let Some(leads) = members.first().and_then(ReplicaServer::found) else { return Ok(member) };
    if found.kind != leads.kind || (found.kind == Kind::File && found.size != leads.size) {
        let what = |entry: &Entry| match entry.kind {
            Kind::File => format!("a file of {} bytes", entry.size),
            _ => "a directory".to_owned(),
        };
        let detail = format!("{} is {}, and not {}", member.shown, what(found), what(leads));
        return Err(Fault::new(FaultCode::SourceChanged, detail));
    }
    Ok(member)
}

impl ReplicaServer {
    fn found(&self) -> Option<&Entry> {
        self.remote.welcome.found.first().and_then(Option::as_ref)
    }

    /// Maps its names to those of another server.
    pub(crate) fn path_mapping_to(&self, other: &ReplicaServer) -> PathMapping {
        PathMapping { from: self.path.path.clone(), to: other.path.path.clone() }
    }
}

/// What each server contributed to a file.
pub(crate) fn shares(members: &[ReplicaServer], wanted: &FileFetch) -> Vec<ReplicaShare> {
    let shares = wanted.shares.iter().zip(members);
    shares.map(|(share, member)| ReplicaShare::new(&member.shown, share)).collect()
}

/// The sources of a fetch for the engine.
///
/// # Panics
/// If `members` is empty.
pub(crate) fn source(members: &[ReplicaServer], class: TrafficClass) -> Source {
    let (leader, others) = (&members[0], &members[1..]);
    let replica = |member: &ReplicaServer| ReplicaSource {
        agent: member.remote.agent(),
        addresses: member.remote.addresses().to_vec(),
        guest: member.remote.guest(),
        path_mapping: leader.path_mapping_to(member),
    };
    Source {
        agent: leader.remote.agent(),
        addresses: leader.remote.addresses().to_vec(),
        class,
        guest: leader.remote.guest(),
        replicas: others.iter().map(replica).collect(),
    }
}
