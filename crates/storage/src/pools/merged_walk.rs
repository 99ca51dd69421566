//! One walk over the trees of several storages, in name order: a k-way merge.

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{Builder, ScopedJoinHandle};

use longhaul_model::{Fault, FaultCode};

use crate::{SkipReason, Storage, Visit};

/// Entries that each storage finds ahead.
const VISITS_AHEAD: usize = 256;

/// Visits everything at and below `path` in any of the storages until the visitor breaks. What several have
/// is visited once; a directory that is empty in one and not in another is not empty.
///
/// # Errors
/// `SourceMissing` if none has the path; any other fault of one of the walks, after all others have ended.
pub(super) fn walk(
    storages: &[Arc<dyn Storage>],
    path: &str,
    visit: &mut dyn FnMut(Visit) -> ControlFlow<()>,
) -> Result<(), Fault> {
    std::thread::scope(|scope| {
        let mut found = Vec::new();
        let mut walks: Vec<ScopedJoinHandle<'_, Result<(), Fault>>> = Vec::new();
        for storage in storages {
            let (give, take) = sync_channel(VISITS_AHEAD);
            let run = move || {
                storage.walk(path, &mut |visit| match give.send(visit) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                })
            };
            let started = Builder::new().name("pool-walk".to_owned()).spawn_scoped(scope, run);
            walks.push(started.map_err(|error| {
                Fault::new(FaultCode::Internal, format!("no thread: {error}")).with_source(error)
            })?);
            found.push(FoundEntries { head: None, take });
        }
        merge(found, visit);
        outcome(walks)
    })
}

/// What a storage has found and was not visited yet.
struct FoundEntries {
    head: Option<Visit>,
    take: Receiver<Visit>,
}

impl FoundEntries {
    fn peek(&mut self) -> Option<&Visit> {
        if self.head.is_none() {
            self.head = self.take.recv().ok();
        }
        self.head.as_ref()
    }
}

/// Ends, and lets the walks end, when the visitor breaks.
fn merge(mut found: Vec<FoundEntries>, visit: &mut dyn FnMut(Visit) -> ControlFlow<()>) {
    loop {
        // The first storage's entry, if several have the name.
        let heads = found.iter_mut().enumerate().filter_map(|(place, found)| Some((place, found.peek()?)));
        let next = heads.min_by(|(_, one), (_, other)| order(key(one), key(other))).map(|(place, _)| place);
        let Some(taken) = next.and_then(|place| found[place].head.take()) else { return };
        // The same in other storages.
        for other in &mut found {
            if other.peek().is_some_and(|visit| key(visit) == key(&taken)) {
                other.head = None;
            }
        }
        let is_empty = matches!(&taken, Visit::Skipped { reason: SkipReason::EmptyDirectory, .. });
        let is_below = |visit: &Visit| key(visit).starts_with(key(&taken));
        if is_empty && found.iter_mut().any(|other| other.peek().is_some_and(is_below)) {
            continue;
        }
        if visit(taken).is_break() {
            return;
        }
    }
}

fn key(visit: &Visit) -> &str {
    match visit {
        Visit::File { at, .. } => at.path(),
        Visit::Skipped { path, .. } => path,
    }
}

/// By name, component by component, as each storage walks.
fn order(one: &str, other: &str) -> Ordering {
    one.split('/').cmp(other.split('/'))
}

fn outcome(walks: Vec<ScopedJoinHandle<'_, Result<(), Fault>>>) -> Result<(), Fault> {
    let panicked = |_| Err(Fault::new(FaultCode::Internal, "a walk has panicked"));
    let ended: Vec<Result<(), Fault>> =
        walks.into_iter().map(|walk| walk.join().unwrap_or_else(panicked)).collect();
    let is_missing = |fault: &Fault| fault.code == FaultCode::SourceMissing;
    let somewhere = ended.iter().any(Result::is_ok);
    ended
        .into_iter()
        .filter_map(Result::err)
        .find(|fault| !(somewhere && is_missing(fault)))
        .map_or(Ok(()), Err)
}
