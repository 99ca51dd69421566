//! One copy as requested on the command line: dispatches to pull, push, local or third-party copy.

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
    /// A third-party copy continues when this process ends.
    pub detach: bool,
    /// Servers with replicas of the only source, read in parallel.
    pub replicas: Vec<Endpoint>,
    /// BLAKE3 digest of the only source, which must be a file.
    pub blake3: Option<Digest>,
    /// Circuit to request for a copy from one server to this host.
    pub circuit: Option<CircuitConfig>,
}

/// One end of the copy; a server started over ssh for it lives as long as this value.
enum Side {
    Local(PathBuf),
    Server { url: ServerUrl, path: RemotePath, _started: Option<SshServer> },
}

/// Runs the copy. Fails only if the copy as a whole fails; files that fail individually are counted in
/// `progress` and passed to `tell`.
pub fn copy(
    order: &CopyRequest,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    stop.conclude(copy_groups(order, progress, stop, tell))
}

fn copy_groups(
    order: &CopyRequest,
    progress: &Progress,
    stop: &Stop,
    tell: FileCallback<'_>,
) -> Result<(), Fault> {
    order.options.check().map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
    if order.sources.is_empty() {
        return Err(Fault::new(FaultCode::BadRequest, "no source is given"));
    }
    check_replicas(order)?;
    check_circuit(order)?;
    check_bind(order)?;
    let target = resolve_side(&order.target, true)?;
    if order.detach && (matches!(target, Side::Local(_)) || order.sources.iter().any(Endpoint::is_local)) {
        let detail = "--detach is for copies between two servers";
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

/// A circuit needs streams that this host opens, to a single server.
fn check_circuit(order: &CopyRequest) -> Result<(), Fault> {
    let fits = order.sources.iter().all(|source| !source.is_local()) && order.target.is_local();
    if order.circuit.is_some() && (!fits || !order.replicas.is_empty()) {
        let why = "--circuit is for copies from one server to this host";
        return Err(Fault::new(FaultCode::BadRequest, why));
    }
    Ok(())
}

/// Between two servers, or two local directories, this host opens no stream.
fn check_bind(order: &CopyRequest) -> Result<(), Fault> {
    let between = |source: &Endpoint| source.is_local() == order.target.is_local();
    if !order.options.bind.is_empty() && order.sources.iter().any(between) {
        let why = "--bind is for copies between this host and a server";
        return Err(Fault::new(FaultCode::BadRequest, why));
    }
    Ok(())
}

/// Replicas and a digest go with exactly one source, which is a server, and a local target.
fn check_replicas(order: &CopyRequest) -> Result<(), Fault> {
    if order.replicas.is_empty() && order.blake3.is_none() {
        return Ok(());
    }
    let refuse = |why: &str| Err(Fault::new(FaultCode::BadRequest, why));
    if order.sources.len() != 1 {
        return refuse("--replica and --blake3 take exactly one source: copy the others separately");
    }
    if order.sources[0].is_local() || !order.target.is_local() {
        return refuse("--replica and --blake3 are for copies from a server to this host");
    }
    if order.replicas.iter().any(Endpoint::is_local) {
        return refuse("--replica takes a server: a URL (lh://…, @FILE) or user@host:DIR");
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

/// Consecutive sources of one kind and server are copied together.
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
