//! One copy as a person orders it: which of the ways to go it takes.

use std::path::{Path, PathBuf};

use longhaul_model::{DataSecurity, Fault, FaultCode};

use crate::options::Options;
use crate::progress::{Progress, Tell};
use crate::pull::Pull;
use crate::push::Push;
use crate::ssh::Started;
use crate::stop::Stop;
use crate::third::ThirdParty;
use crate::url::{Place, RemotePath, ServerUrl};

#[derive(Clone, Debug)]
pub struct CopyOrder {
    pub sources: Vec<Place>,
    pub target: Place,
    pub options: Options,
    pub data_security: DataSecurity,
    /// A third-party copy goes on when this process ends.
    pub detach: bool,
}

/// A side with its server, if it needs one that had to be started.
enum Side {
    Local(PathBuf),
    Server { url: ServerUrl, path: RemotePath, _started: Option<Started> },
}

/// Copies, and returns when all that was wanted is there, or the whole of it has failed. Files that failed by themselves
/// are counted in `progress` and told.
pub fn copy(order: &CopyOrder, progress: &Progress, stop: &Stop, tell: Tell<'_>) -> Result<(), Fault> {
    order.options.check().map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
    if order.sources.is_empty() {
        return Err(Fault::new(FaultCode::BadRequest, "there is nothing to copy: name a source"));
    }
    let target = side(&order.target, true)?;
    if order.detach && (matches!(target, Side::Local(_)) || order.sources.iter().any(Place::is_local)) {
        let detail = "only a copy between two servers can go on without this process";
        return Err(Fault::new(FaultCode::BadRequest, detail));
    }
    let sources: Result<Vec<Side>, Fault> = order.sources.iter().map(|source| side(source, false)).collect();
    let sources = sources?;
    let groups = grouped(&sources);
    for group in groups {
        match (group, &target) {
            (Group::Local(paths), Side::Local(target)) => {
                crate::local_copy::run(&paths, target, &order.options, progress, stop, &mut *tell)?;
            }
            (Group::Local(paths), Side::Server { url, path, .. }) => Push {
                sources: &paths,
                url,
                target: path,
                options: &order.options,
                data_security: order.data_security,
                names: None,
            }
            .run(progress, stop, &mut *tell)?,
            (Group::Server(url, paths), Side::Local(target)) => {
                pull(order, url, &paths, target, progress, stop, &mut *tell)?;
            }
            (Group::Server(url, paths), Side::Server { url: target, path, .. }) => {
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
    order: &CopyOrder,
    url: &ServerUrl,
    sources: &[RemotePath],
    target: &Path,
    progress: &Progress,
    stop: &Stop,
    tell: Tell<'_>,
) -> Result<(), Fault> {
    let pull = Pull {
        url,
        sources,
        target,
        options: &order.options,
        data_security: order.data_security,
        names: None,
    };
    pull.run(progress, stop, tell)
}

fn side(place: &Place, is_target: bool) -> Result<Side, Fault> {
    Ok(match place {
        Place::Local(path) => Side::Local(path.clone()),
        Place::Server { url, path } => Side::Server { url: url.clone(), path: path.clone(), _started: None },
        Place::Ssh { login, directory } => {
            let (started, url, path) = Started::serve(login, directory, is_target)?;
            Side::Server { url, path, _started: Some(started) }
        }
    })
}

enum Group<'a> {
    Local(Vec<PathBuf>),
    Server(&'a ServerUrl, Vec<RemotePath>),
}

/// Neighbours of one kind are copied together.
fn grouped(sources: &[Side]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for source in sources {
        match (source, groups.last_mut()) {
            (Side::Local(path), Some(Group::Local(paths))) => paths.push(path.clone()),
            (Side::Local(path), _) => groups.push(Group::Local(vec![path.clone()])),
            (Side::Server { url, path, .. }, Some(Group::Server(known, paths))) if *known == url => {
                paths.push(path.clone());
            }
            (Side::Server { url, path, .. }, _) => groups.push(Group::Server(url, vec![path.clone()])),
        }
    }
    groups
}
