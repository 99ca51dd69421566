//! One copy as a person orders it: which of the ways to go it takes.

use std::path::{Path, PathBuf};

use longhaul_gateways::circuits::CircuitConfig;
use longhaul_model::{DataSecurity, Digest, Fault, FaultCode};

use crate::options::Options;
use crate::progress::{FileCallback, Progress};
use crate::pull::Pull;
use crate::push::Push;
use crate::replicas::SERVERS_MAX;
use crate::ssh::SshServer;
use crate::stop::Stop;
use crate::third_party::ThirdParty;
use crate::url::{Endpoint, RemotePath, ServerUrl};

#[derive(Clone, Debug)]
pub struct CopyRequest {
    pub sources: Vec<Endpoint>,
    pub target: Endpoint,
    pub options: Options,
    pub data_security: DataSecurity,
    /// A third-party copy goes on when this process ends.
    pub detach: bool,
    /// Servers that have the same as the only source, to be read at the same time.
    pub replicas: Vec<Endpoint>,
    /// Of the only source, which is a file.
    pub blake3: Option<Digest>,
    /// Asked for while a copy from one server to this host runs.
    pub circuit: Option<CircuitConfig>,
}

/// A side with its server, if it needs one that had to be started.
enum Side {
    Local(PathBuf),
    Server { url: ServerUrl, path: RemotePath, _started: Option<SshServer> },
}

/// Copies, and returns when all that was wanted is there, or the whole of it has failed. Files that failed by
/// themselves are counted in `progress` and told.
pub fn copy(
    order: &CopyRequest,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    order.options.check().map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
    if order.sources.is_empty() {
        return Err(Fault::new(FaultCode::BadRequest, "there is nothing to copy: name a source"));
    }
    check_replicas(order)?;
    check_circuit(order)?;
    check_bind(order)?;
    let target = resolve_side(&order.target, true)?;
    if order.detach && (matches!(target, Side::Local(_)) || order.sources.iter().any(Endpoint::is_local)) {
        let detail = "only a copy between two servers can go on without this process";
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    let sources: Result<Vec<Side>, Fault> =
        order.sources.iter().map(|source| resolve_side(source, false)).collect();
    let sources = sources?;
    let replicas: Result<Vec<Side>, Fault> =
        order.replicas.iter().map(|replica| resolve_side(replica, false)).collect();
    let replicas = replicas?;
    let groups = group_sources(&sources);
    for group in groups {
        match (group, &target) {
            (SourceGroup::Local(paths), Side::Local(target)) => {
                crate::local_copy::run(&paths, target, &order.options, progress, stop, &mut *tell)?;
            }
            (SourceGroup::Local(paths), Side::Server { url, path, .. }) => Push {
                sources: &paths,
                url,
                target: path,
                options: &order.options,
                data_security: order.data_security,
                names: None,
            }
            .run(progress, stop, &mut *tell)?,
            (SourceGroup::Server(url, paths), Side::Local(target)) => {
                pull(order, (url, &paths), &replicas, target, progress, stop, &mut *tell)?;
            }
            (SourceGroup::Server(url, paths), Side::Server { url: target, path, .. }) => {
                for source in &paths {
                    ThirdParty {
                        source: (url, source),
                        target: (target, path),
                        options: &order.options,
                        detach: order.detach,
                    }
                    .run(progress, stop, &mut *tell)?;
                }
            }
        }
    }
    Ok(())
}

fn pull(
    order: &CopyRequest,
    (url, sources): (&ServerUrl, &[RemotePath]),
    replicas: &[Side],
    target: &Path,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    let server = |side: &Side| match side {
        Side::Server { url, path, .. } => Some((url.clone(), path.clone())),
        Side::Local(_) => None,
    };
    let replicas: Vec<(ServerUrl, RemotePath)> = replicas.iter().filter_map(server).collect();
    let pull = Pull {
        replicas: &replicas,
        blake3: order.blake3,
        circuit: order.circuit.as_ref(),
        url,
        sources,
        target,
        options: &order.options,
        data_security: order.data_security,
        names: None,
    };
    pull.run(progress, stop, tell)
}

/// Streams that this side does not open cannot be moved by it.
fn check_circuit(order: &CopyRequest) -> Result<(), Fault> {
    let fits = order.sources.iter().all(|source| !source.is_local()) && order.target.is_local();
    if order.circuit.is_some() && (!fits || !order.replicas.is_empty()) {
        let why = "--circuit is for copies from one server to this host";
        return Err(Fault::new(FaultCode::BadRequest, why));
    }
    Ok(())
}

/// Between two servers, or two directories of this host, no stream is this host's.
fn check_bind(order: &CopyRequest) -> Result<(), Fault> {
    let between = |source: &Endpoint| source.is_local() == order.target.is_local();
    if !order.options.bind.is_empty() && order.sources.iter().any(between) {
        let why = "--bind is for copies between this host and a server: no other stream begins here";
        return Err(Fault::new(FaultCode::BadRequest, why));
    }
    Ok(())
}

/// Replicas and a digest belong to one source, which is a server, and what they make sure of is what lands
/// here.
fn check_replicas(order: &CopyRequest) -> Result<(), Fault> {
    if order.replicas.is_empty() && order.blake3.is_none() {
        return Ok(());
    }
    let refuse = |why: &str| Err(Fault::new(FaultCode::BadRequest, why));
    if order.sources.len() != 1 {
        return refuse(
            "--replica and --blake3 go with one source: name one, or copy the others by themselves",
        );
    }
    if order.sources[0].is_local() || !order.target.is_local() {
        return refuse("--replica and --blake3 are for copies from a server to this host");
    }
    if order.replicas.iter().any(Endpoint::is_local) {
        return refuse("a replica is a server: name its URL (lh://…, @FILE) or user@host:DIR");
    }
    if order.replicas.len() >= SERVERS_MAX {
        return refuse(&format!("{} replicas; the limit is {}", order.replicas.len(), SERVERS_MAX - 1));
    }
    Ok(())
}

fn resolve_side(place: &Endpoint, is_target: bool) -> Result<Side, Fault> {
    Ok(match place {
        Endpoint::Local(path) => Side::Local(path.clone()),
        Endpoint::Server { url, path } => {
            Side::Server { url: url.clone(), path: path.clone(), _started: None }
        }
        Endpoint::Ssh { login, directory } => {
            let (started, url, path) = SshServer::serve(login, directory, is_target)?;
            Side::Server { url, path, _started: Some(started) }
        }
    })
}

enum SourceGroup<'a> {
    Local(Vec<PathBuf>),
    Server(&'a ServerUrl, Vec<RemotePath>),
}

/// Neighbours of one kind are copied together.
fn group_sources(sources: &[Side]) -> Vec<SourceGroup<'_>> {
    let mut groups: Vec<SourceGroup<'_>> = Vec::new();
    for source in sources {
        match (source, groups.last_mut()) {
            (Side::Local(path), Some(SourceGroup::Local(paths))) => paths.push(path.clone()),
            (Side::Local(path), _) => groups.push(SourceGroup::Local(vec![path.clone()])),
            (Side::Server { url, path, .. }, Some(SourceGroup::Server(known, paths))) if *known == url => {
                paths.push(path.clone());
            }
            (Side::Server { url, path, .. }, _) => groups.push(SourceGroup::Server(url, vec![path.clone()])),
        }
    }
    groups
}
