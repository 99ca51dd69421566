//! Copies many pairs: groups them by their two endpoints and moves each group in one transfer, so that a
//! hundred pairs cost no more connections than one.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use longhaul_model::{DataSecurity, Fault, FaultCode};

use crate::copy::{CopyRequest, copy};
use crate::options::Options;
use crate::progress::{FileOutcome, Outcome, Progress};
use crate::pull::Pull;
use crate::push::Push;
use crate::stop::Stop;
use crate::url::{Endpoint, RemotePath, ServerUrl};

/// Called for the files of the pair with this index; for a pair that is a single file exactly once, unless
/// the copy is stopped.
pub type PairCallback<'a> = &'a mut dyn FnMut(usize, &FileOutcome);

/// Pairs that one transfer moves.
struct Group<'a> {
    ends: GroupEnds<'a>,
    indices: Vec<usize>,
    names: HashMap<String, usize>,
}

enum GroupEnds<'a> {
    Pull {
        url: &'a ServerUrl,
        sources: Vec<RemotePath>,
        directory: PathBuf,
    },
    Push {
        sources: Vec<PathBuf>,
        url: &'a ServerUrl,
    },
    /// A pair that cannot be grouped and is copied by itself.
    Single(&'a Endpoint, &'a Endpoint),
}

/// Copies all pairs. A pair that fails does not affect the others.
pub fn copy_pairs(
    pairs: &[(Endpoint, Endpoint)],
    options: &Options,
    data_security: DataSecurity,
    progress: &Progress,
    stop: &Stop,
    tell: PairCallback<'_>,
) -> Result<(), Fault> {
    options.check().map_err(|why| Fault::new(FaultCode::BadRequest, why))?;
    for group in group_pairs(pairs) {
        stop.check()?;
        let mut told = vec![false; group.indices.len()];
        let (failed_before, bytes_before) = (progress.failed().len(), progress.totals().bytes_done);
        let mut of_pair = |outcome: &FileOutcome| {
            if let Some(at) = group.find(outcome) {
                told[at] = true;
                tell(group.indices[at], outcome);
            }
        };
        let result = stop.conclude(group.run(options, data_security, progress, stop, &mut of_pair));
        let Err(fault) = result else {
            if let (GroupEnds::Single(..), false) = (&group.ends, told[0]) {
                // A directory without files: no file reported the end of this pair.
                let outcome = match progress.failed().get(failed_before) {
                    Some((_, fault)) => Outcome::Failed(fault.clone()),
                    None => Outcome::Done { verification: options.verification },
                };
                let (source, target) = &pairs[group.indices[0]];
                let (source, target) = (source.shown(), target.shown());
                let size = progress.totals().bytes_done - bytes_before;
                tell(group.indices[0], &FileOutcome { source, target, size, outcome, replicas: Vec::new() });
            }
            continue;
        };
        if fault.code == FaultCode::Interrupted {
            return Err(fault);
        }
        for (at, index) in group.indices.iter().enumerate().filter(|(at, _)| !told[*at]) {
            let _ = at;
            let (source, target) = (pairs[*index].0.shown(), pairs[*index].1.shown());
            progress.change(|totals| totals.files += 1);
            progress.fail(&target, &fault);
            let outcome = Outcome::Failed(fault.clone());
            tell(*index, &FileOutcome { source, target, size: 0, outcome, replicas: Vec::new() });
        }
    }
    progress.change(|totals| totals.listed = true);
    Ok(())
}

impl Group<'_> {
    fn find(&self, outcome: &FileOutcome) -> Option<usize> {
        if matches!(self.ends, GroupEnds::Single(..)) {
            return Some(0);
        }
        // The files of a directory have its name as a prefix.
        let target = outcome.target.as_str();
        let ends = target.match_indices('/').map(|(at, _)| at).chain([target.len()]);
        ends.into_iter().find_map(|end| self.names.get(&target[..end]).copied())
    }

    fn run(
        &self,
        options: &Options,
        data_security: DataSecurity,
        progress: &Progress,
        stop: &Stop,
        tell: &mut dyn FnMut(&FileOutcome),
    ) -> Result<(), Fault> {
        let mut names = vec![String::new(); self.indices.len()];
        self.names.iter().for_each(|(name, at)| names[*at].clone_from(name));
        match &self.ends {
            GroupEnds::Single(source, target) => {
                let order = CopyRequest {
                    sources: vec![(*source).clone()],
                    target: (*target).clone(),
                    options: options.clone(),
                    data_security,
                    detach: false,
                    replicas: Vec::new(),
                    blake3: None,
                    circuit: None,
                };
                copy(&order, progress, stop, tell)
            }
            GroupEnds::Pull { url, sources, directory } => {
                if !options.dry_run {
                    std::fs::create_dir_all(directory).map_err(|error| {
                        let shown = longhaul_model::units::printable(&directory.to_string_lossy());
                        Fault::new(FaultCode::TargetWrite, format!("cannot create {shown}: {error}"))
                            .with_source(error)
                    })?;
                }
                let pull = Pull {
                    url,
                    sources,
                    target: directory,
                    options,
                    data_security,
                    names: Some(&names),
                    replicas: &[],
                    blake3: None,
                    circuit: None,
                };
                pull.run(progress, stop, tell)
            }
            GroupEnds::Push { sources, url } => {
                let root = RemotePath::root();
                let push = Push { sources, url, target: &root, options, data_security, names: Some(&names) };
                push.run(progress, stop, tell)
            }
        }
    }
}

/// What pairs of one group have in common; pairs that want the same target name are put in different groups.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Pull(String, PathBuf),
    Push(String),
}

fn group_pairs(pairs: &[(Endpoint, Endpoint)]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    let mut known: BTreeMap<GroupKey, usize> = BTreeMap::new();
    for (index, (source, target)) in pairs.iter().enumerate() {
        let found = match (source, target) {
            (Endpoint::Server { url, path }, Endpoint::Local(target)) => {
                split_target(target).map(|(directory, name)| {
                    let key = GroupKey::Pull(url.reveal("").to_string(), directory.clone());
                    (key, name, GroupMember::Pull(url, path, directory))
                })
            }
            (Endpoint::Local(source), Endpoint::Server { url, path }) if !path.contents => {
                let key = GroupKey::Push(url.reveal("").to_string());
                Some((key, path.path.clone(), GroupMember::Push(source, url)))
            }
            _ => None,
        };
        let Some((key, name, member)) = found else {
            let ends = GroupEnds::Single(source, target);
            groups.push(Group { ends, indices: vec![index], names: HashMap::new() });
            continue;
        };
        let at = known.get(&key).copied().filter(|at| !groups[*at].names.contains_key(&name));
        let at = at.unwrap_or_else(|| {
            groups.push(Group { ends: member.new_ends(), indices: Vec::new(), names: HashMap::new() });
            known.insert(key, groups.len() - 1);
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.names.insert(name, group.indices.len());
        group.indices.push(index);
        match (&mut group.ends, member) {
            (GroupEnds::Pull { sources, .. }, GroupMember::Pull(_, path, _)) => sources.push(path.clone()),
            (GroupEnds::Push { sources, .. }, GroupMember::Push(source, _)) => sources.push(source.clone()),
            _ => {}
        }
    }
    groups
}

enum GroupMember<'a> {
    Pull(&'a ServerUrl, &'a RemotePath, PathBuf),
    Push(&'a PathBuf, &'a ServerUrl),
}

impl<'a> GroupMember<'a> {
    fn new_ends(&self) -> GroupEnds<'a> {
        match self {
            GroupMember::Pull(url, _, directory) => {
                GroupEnds::Pull { url, sources: Vec::new(), directory: directory.clone() }
            }
            GroupMember::Push(_, url) => GroupEnds::Push { sources: Vec::new(), url },
        }
    }
}

/// Splits a local target into directory and name; none if it is meant to be a directory itself.
fn split_target(target: &std::path::Path) -> Option<(PathBuf, String)> {
    let text = target.to_str()?;
    if text.ends_with('/') || target.is_dir() {
        return None;
    }
    let name = target.file_name()?.to_str()?.to_owned();
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    Some((parent.map_or_else(|| PathBuf::from("."), PathBuf::from), name))
}
