//! Fetches the BLAKE3 trees of files that come from several servers, or from one that is not trusted, ahead
//! of the files themselves.
//!
//! If a digest was given, a tree is accepted only if it combines to it, so a lie is found at once and the
//! next server is asked. Otherwise the leader's tree counts, or that of the next server that answers.

use std::collections::VecDeque;
use std::sync::Arc;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::tree::{ChunkValue, VALUES_MAX, values_of};
use longhaul_model::{Blame, Digest, Fault, FaultCode, Tree};
use parking_lot::Mutex;

use crate::fetch_job::FileFetch;
use crate::listing_diff::Step;
use crate::plan_queue::PageSink;
use crate::protocol::{
    ITEMS_PER_MESSAGE_MAX, PAGE_BYTES_MAX, RelativePath, Reply, Request, TreeAnswer, TreePart,
};
use crate::remote::{Remote, escaped_len, unexpected};
use crate::replicas::ReplicaServer;

/// Chunk values per request: the server reads 256 MiB for them.
const VALUES_PER_REQUEST_MAX: u64 = 256;
const REQUESTS_IN_FLIGHT: usize = 4;
/// Bytes and files that start together, while the trees of the next batch are fetched.
const BATCH_BYTES_MAX: u64 = 1 << 30;
const BATCH_FILES_MAX: usize = 512;
/// Bytes around a path and its values in a message.
const PART_OVERHEAD_BYTES: usize = 200;

pub(crate) struct TreeFetcher<'a> {
    pub(crate) members: &'a [ReplicaServer],
    /// Digest of the only file, if one was given.
    pub(crate) root: Option<Digest>,
}

impl TreeFetcher<'_> {
    /// Passes the steps on in batches, each file with its tree.
    pub(crate) fn attach(
        &self,
        steps: Vec<Step>,
        last: bool,
        excluded: u64,
        take: PageSink<'_, Step>,
    ) -> Result<(), Fault> {
        let mut rest = VecDeque::from(steps);
        loop {
            let (mut portion, mut bytes) = (Vec::new(), 0);
            while bytes < BATCH_BYTES_MAX
                && portion.len() < BATCH_FILES_MAX
                && let Some(step) = rest.pop_front()
            {
                bytes += step.wanted_bytes().unwrap_or(0);
                portion.push(step);
            }
            let portion = self.fetch_trees(portion)?;
            take(portion, last && rest.is_empty(), excluded)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn fetch_trees(&self, mut steps: Vec<Step>) -> Result<Vec<Step>, Fault> {
        let mut faults: Vec<Option<Fault>> = steps.iter().map(|_| None).collect();
        for (place, member) in self.members.iter().enumerate() {
            let mut open: Vec<(usize, &mut FileFetch)> = Vec::new();
            for (at, step) in steps.iter_mut().enumerate() {
                match step {
                    Step::Fetch(wanted) if wanted.tree.is_none() => open.push((at, wanted)),
                    _ => {}
                }
            }
            if open.is_empty() {
                return Ok(steps);
            }
            self.fetch_from(place, member, open, &mut faults);
        }
        for (step, fault) in steps.iter_mut().zip(faults) {
            if let (Step::Fetch(wanted), Some(fault)) = (&*step, fault)
                && wanted.tree.is_none()
            {
                if fault.blame == Blame::Network || fault.code == FaultCode::Interrupted {
                    // No server answers: the same command resumes later.
                    return Err(fault);
                }
                let source = format!("{}: {}", self.members[0].shown, wanted.name.shown());
                let (target, size) = (wanted.destination.path.clone(), wanted.size);
                *step = Step::Refuse { source, target, size, fault };
            }
        }
        Ok(steps)
    }

    fn fetch_from(
        &self,
        place: usize,
        member: &ReplicaServer,
        open: Vec<(usize, &mut FileFetch)>,
        faults: &mut [Option<Fault>],
    ) {
        let renaming = self.members[0].path_mapping_to(member);
        let mut files = Vec::with_capacity(open.len());
        for (at, wanted) in open {
            match renaming
                .apply(wanted.name.as_str())
                .and_then(|name| RelativePath::parse(name.as_str()).ok())
            {
                Some(name) => files.push((at, name, wanted)),
                None => faults[at] = Some(Fault::new(FaultCode::BadName, "the name is not valid there")),
            }
        }
        let asked: Vec<(RelativePath, u64)> =
            files.iter().map(|(_, name, wanted)| (name.clone(), wanted.size)).collect();
        for ((at, _, wanted), found) in files.into_iter().zip(trees(&member.remote, &asked)) {
            match found.and_then(|tree| self.check_root(tree)) {
                Ok(tree) => wanted.tree = Some(Arc::new(tree)),
                Err(fault) => {
                    tracing::warn!(
                        replica = member.shown,
                        file = wanted.name.shown(),
                        fault = %fault.chain(),
                        "no tree from this server"
                    );
                    if fault.code != FaultCode::Interrupted && self.members.len() > 1 {
                        wanted.add_source_fault(place, fault.clone());
                    }
                    // The leader's fault counts: what others say about a file that it lacks is secondary.
                    faults[at].get_or_insert(fault);
                }
            }
        }
    }

    /// Checks that a tree combines to the given digest.
    fn check_root(&self, tree: Tree) -> Result<Tree, Fault> {
        match self.root {
            Some(root) if tree.root() != root => {
                let detail = format!("the file there has {}, expected {root}", tree.root());
                Err(Fault::new(FaultCode::WrongDigest, detail))
            }
            _ => Ok(tree),
        }
    }
}

/// A part of the file with this index.
struct FilePart {
    file: usize,
    part: TreePart,
}

/// Fetches the trees of files from one server, one result each.
fn trees(remote: &Remote, files: &[(RelativePath, u64)]) -> Vec<Result<Tree, Fault>> {
    let mut parts = VecDeque::new();
    let mut found: Vec<Result<Vec<ChunkValue>, Fault>> = Vec::with_capacity(files.len());
    for (file, (path, size)) in files.iter().enumerate() {
        let count = values_of(*size);
        if count > VALUES_MAX as u64 {
            let detail = format!("a tree of {count} values; the limit is {VALUES_MAX}");
            found.push(Err(Fault::new(FaultCode::TooLarge, detail)));
            continue;
        }
        found.push(Ok(vec![[0; 32]; count as usize]));
        for first in (0..count).step_by(VALUES_PER_REQUEST_MAX as usize) {
            let count = (count - first).min(VALUES_PER_REQUEST_MAX) as u32;
            parts.push_back(FilePart {
                file,
                part: TreePart { path: path.clone(), size: *size, first, count },
            });
        }
    }
    let parts = Mutex::new(parts);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..REQUESTS_IN_FLIGHT {
            scope.spawn(|| {
                while let Some(question) = next_request(&mut parts.lock()) {
                    let answer = request_parts(remote, &question);
                    answers.lock().extend(question.into_iter().zip(answer));
                }
            });
        }
    });
    let mut read_at: Vec<Option<i64>> = vec![None; files.len()];
    for (FilePart { file, part }, answer) in answers.into_inner() {
        let put = answer.and_then(|(mtime_ns, values)| {
            if *read_at[file].get_or_insert(mtime_ns) != mtime_ns {
                return Err(Fault::new(FaultCode::SourceChanged, "the file changed while its tree was read"));
            }
            Ok(values)
        });
        match (put, &mut found[file]) {
            (Ok(values), Ok(all)) => {
                let first = part.first as usize;
                all[first..first + values.len()].copy_from_slice(&values);
            }
            (Err(fault), known @ Ok(_)) => *known = Err(fault),
            (_, Err(_)) => {}
        }
    }
    let whole = |(found, (_, size)): (Result<Vec<ChunkValue>, Fault>, &(RelativePath, u64))| {
        Tree::from_values(*size, found?).ok_or_else(unexpected)
    };
    found.into_iter().zip(files).map(whole).collect()
}

/// Takes as many parts as are read quickly and fit in a message. None if all have been requested.
fn next_request(parts: &mut VecDeque<FilePart>) -> Option<Vec<FilePart>> {
    let (mut values, mut bytes, mut size) = (0, 0, 0);
    let mut question = Vec::new();
    while question.len() < ITEMS_PER_MESSAGE_MAX
        && let Some(next) = parts.front()
    {
        values += u64::from(next.part.count);
        bytes += PART_OVERHEAD_BYTES + escaped_len(next.part.path.as_str()) + 64 * next.part.count as usize;
        size += next.part.size.min(u64::from(next.part.count) * u64::from(CHUNK_BYTES));
        let full = values > VALUES_PER_REQUEST_MAX
            || bytes > PAGE_BYTES_MAX
            || size > VALUES_PER_REQUEST_MAX * u64::from(CHUNK_BYTES);
        if full && !question.is_empty() {
            break;
        }
        question.extend(parts.pop_front());
    }
    (!question.is_empty()).then_some(question)
}

type PartValues = Result<(i64, Vec<ChunkValue>), Fault>;

/// Requests the values of parts, one result each.
fn request_parts(remote: &Remote, question: &[FilePart]) -> Vec<PartValues> {
    let parts = question.iter().map(|one| one.part.clone()).collect();
    let found = match remote.call(&Request::Trees { parts }) {
        Ok(Reply::Trees { found }) if found.len() == question.len() => found,
        Ok(_) => return question.iter().map(|_| Err(unexpected())).collect(),
        Err(fault) => return question.iter().map(|_| Err(fault.clone())).collect(),
    };
    let checked = |(answer, one): (TreeAnswer, &FilePart)| match answer {
        TreeAnswer::Fault(fault) => Err(fault),
        TreeAnswer::Values { mtime_ns, values } if values.0.len() == one.part.count as usize => {
            Ok((mtime_ns, values.0))
        }
        TreeAnswer::Values { .. } => Err(unexpected()),
    };
    found.into_iter().zip(question).map(checked).collect()
}
