//! Produces the steps of a pull: lists with the leading server, fails over to the next, and attaches BLAKE3
//! trees where they are needed.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

use longhaul_model::{Algorithm, Blame, Fault, FaultCode};

use crate::listing_diff::{ListingDiff, Step};
use crate::plan_queue::PageSink;
use crate::pull::Pull;
use crate::replicas::ReplicaServer;
use crate::rules::Placements;
use crate::site::PathMapping;
use crate::target_index::{DIGEST_READ_BYTES, TargetIndex};
use crate::trees::TreeFetcher;

pub(crate) struct PullSteps<'a> {
    pub(crate) pull: &'a Pull<'a>,
    /// At least one, the leader first.
    pub(crate) members: &'a [ReplicaServer],
    pub(crate) placements: &'a Placements,
    pub(crate) root: &'a Path,
    pub(crate) shown: &'a (dyn Fn(&str) -> String + Sync),
}

impl PullSteps<'_> {
    /// The diff against the listing of this server.
    pub(crate) fn diff_with(&self, member: usize) -> Result<ListingDiff<'_>, Fault> {
        let remote = &self.members[member].remote;
        let sources = match self.members {
            [_] => self.pull.sources,
            members => std::slice::from_ref(&members[member].path),
        };
        Ok(ListingDiff {
            remote,
            sources,
            placements: self.placements,
            options: self.pull.options,
            target: TargetIndex::open(self.root)?,
            shown: self.shown,
        })
    }

    pub(crate) fn for_each_page(&self, take: PageSink<'_, Step>) -> Result<(), Fault> {
        if !self.pull.is_checked() {
            return self.diff_with(0)?.for_each_page(take);
        }
        let trees = TreeFetcher { members: self.members, root: self.pull.blake3 };
        let (mut seen, mut excluded_before) = (HashSet::new(), 0);
        let mut failed = None;
        for (place, member) in self.members.iter().enumerate() {
            let renaming = member.path_mapping_to(&self.members[0]);
            let planned = self.diff_with(place)?.for_each_page(&mut |mut steps, last, excluded| {
                if self.members.len() > 1 {
                    // Everything in the first listing is new.
                    steps.retain_mut(|step| {
                        (is_new(step, &mut seen) || place == 0) && rename(step, &renaming)
                    });
                }
                steps.iter_mut().try_for_each(|step| self.compare_skipped(step))?;
                // Another server counts from zero.
                excluded_before = excluded.max(excluded_before);
                trees.attach(steps, last, excluded_before, &mut *take)
            });
            match planned {
                Err(fault) if fault.blame == Blame::Network => {
                    tracing::warn!(replica = member.shown, fault = %fault.chain(),
                        "the listing goes on with another server");
                    failed.get_or_insert(fault);
                }
                ended => return ended,
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// An existing file counts as complete only if it has the requested digest.
    fn compare_skipped(&self, step: &mut Step) -> Result<(), Fault> {
        let (Step::Skip { source, target, size, .. }, Some(root)) = (&*step, self.pull.blake3) else {
            return Ok(());
        };
        let Some(looker) = TargetIndex::open(self.root)? else { return Ok(()) };
        let found = looker.digest(target, Algorithm::Blake3, &mut vec![0; DIGEST_READ_BYTES])?;
        if found != root {
            let detail = format!(
                "{target} has {found}, expected {root}; --checksum replaces it if the source differs"
            );
            let fault = Fault::new(FaultCode::NameClash, detail);
            *step = Step::Refuse { source: source.clone(), target: target.clone(), size: *size, fault };
        }
        Ok(())
    }
}

/// Whether no earlier listing contained this entry.
fn is_new(step: &Step, seen: &mut HashSet<u64>) -> bool {
    let place = match step {
        Step::Fetch(wanted) => &wanted.destination.path,
        Step::Skip { target, .. } | Step::Refuse { target, .. } => target,
        Step::Directory { path, .. } => path.as_str(),
        Step::LeftOut { path, .. } => path,
    };
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    seen.insert(hasher.finish())
}

/// Renames a file to its name at the leader. False if it cannot have one there.
fn rename(step: &mut Step, renaming: &PathMapping) -> bool {
    let Step::Fetch(wanted) = step else { return true };
    match renaming.apply(wanted.name.as_str()) {
        Some(name) => {
            wanted.name = name;
            true
        }
        None => false,
    }
}
