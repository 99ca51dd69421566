//! The marks in the roots of pools. Each has the text of the storage's mark, and the names of all pools that
//! were marked with it: a pool that is named there and has no mark is not mounted, and one that is not named
//! is new and gets the mark.
//!
//! ```text
//! TEXT
//! pools: NAME NAME …
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use longhaul_model::units::printable_prefix;
use longhaul_model::{Fault, FaultCode};
use parking_lot::Mutex;

use super::pool::Pool;

/// What the second line begins with.
const POOLS_PREFIX: &str = "pools:";
/// How much of a mark that belongs to another storage is shown.
const SHOWN_BYTES_MAX: usize = 80;

/// One look at the marks at a time.
#[derive(Default)]
pub(super) struct PoolMarks(Mutex<()>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PoolMark {
    text: String,
    /// Empty if the root was a storage of its own.
    pools: BTreeSet<String>,
}

impl PoolMark {
    fn parse(content: &str) -> PoolMark {
        let (text, rest) = content.split_once('\n').unwrap_or((content, ""));
        let names = rest.trim_end().strip_prefix(POOLS_PREFIX).unwrap_or_default();
        PoolMark { text: text.to_owned(), pools: names.split_whitespace().map(str::to_owned).collect() }
    }

    fn render(&self) -> String {
        let names: String = self.pools.iter().map(|name| format!(" {name}")).collect();
        format!("{}\n{POOLS_PREFIX}{names}\n", self.text)
    }
}

impl PoolMarks {
    /// Reads the marks of all pools, and takes those out of service whose root is not the right one. New
    /// pools are marked if `adopts`. The text of the mark; none if no pool has one yet.
    ///
    /// # Errors
    /// No pool has a mark, and one of them cannot be read.
    pub(super) fn check(&self, pools: &[Arc<Pool>], adopts: bool) -> Result<Option<String>, Fault> {
        let _one = self.0.lock();
        let found: Vec<Result<Option<PoolMark>, Fault>> = pools
            .iter()
            .map(|pool| Ok(pool.root()?.root_mark()?.map(|content| PoolMark::parse(&content))))
            .collect();
        let Some(mark) = most_frequent(&found) else {
            for (pool, found) in pools.iter().zip(&found) {
                note_outage(pool, found.as_ref().err().map(ToString::to_string).or_else(|| pool.unfitness()));
            }
            return found.into_iter().find_map(Result::err).map_or(Ok(None), Err);
        };
        let mut new = Vec::new();
        for (pool, found) in pools.iter().zip(&found) {
            let why = match found {
                Ok(Some(other)) if other.text == mark.text => pool.unfitness(),
                Ok(Some(other)) => Some(format!(
                    "its root has the mark of another storage: {}",
                    printable_prefix(&other.text, SHOWN_BYTES_MAX)
                )),
                Ok(None) if adopts && !mark.pools.contains(&pool.name) => {
                    new.push(pool);
                    pool.unfitness()
                }
                Ok(None) => Some("its root has no mark: mount the right disk".to_owned()),
                Err(fault) => Some(fault.to_string()),
            };
            note_outage(pool, why);
        }
        if !new.is_empty() || (adopts && mark.pools.is_empty()) {
            let names = pools.iter().filter(|pool| pool.storage().is_ok()).map(|pool| pool.name.clone());
            let pools_known = mark.pools.iter().cloned().chain(names).collect();
            write(pools, &PoolMark { text: mark.text.clone(), pools: pools_known });
        }
        Ok(Some(mark.text))
    }

    /// Marks the roots of all pools.
    ///
    /// # Errors
    /// `TargetReadOnly` or `TargetWrite` if none could be marked.
    pub(super) fn put(&self, pools: &[Arc<Pool>], text: &str) -> Result<(), Fault> {
        let _one = self.0.lock();
        if text.contains('\n') {
            return Err(Fault::new(FaultCode::Internal, "a mark is one line"));
        }
        pools.iter().for_each(|pool| note_outage(pool, pool.root().err().map(|fault| fault.to_string())));
        let names = pools.iter().map(|pool| pool.name.clone()).collect();
        let refusals = write(pools, &PoolMark { text: text.to_owned(), pools: names });
        match refusals.into_iter().next() {
            Some(fault) if pools.iter().all(|pool| pool.storage().is_err()) => Err(fault),
            _ => Ok(()),
        }
    }
}

/// Writes the mark to all pools in service; one that does not take it is out of service.
fn write(pools: &[Arc<Pool>], mark: &PoolMark) -> Vec<Fault> {
    let content = mark.render();
    let mut refusals = Vec::new();
    for pool in pools.iter().filter(|pool| pool.storage().is_ok()) {
        if let Err(fault) = pool.storage().and_then(|storage| storage.put_root_mark(&content)) {
            note_outage(pool, Some(format!("its root gets no mark: {fault}")));
            refusals.push(fault);
        }
    }
    refusals
}

fn note_outage(pool: &Pool, why: Option<String>) {
    let (is_out, text) = (why.is_some(), why.clone().unwrap_or_default());
    match pool.set_outage(why) {
        true if is_out => tracing::error!(pool = pool.name, why = text, "the pool is out of service"),
        true => tracing::info!(pool = pool.name, "the pool is in service again"),
        false => {}
    }
}

/// The text that most pools have, with all names that were marked with it.
fn most_frequent(found: &[Result<Option<PoolMark>, Fault>]) -> Option<PoolMark> {
    let marks: Vec<&PoolMark> = found.iter().flatten().flatten().collect();
    let count = |text: &str| marks.iter().filter(|mark| mark.text == text).count();
    // The last maximum is taken: in reverse order, the first of equals.
    let text = marks.iter().rev().max_by_key(|mark| count(&mark.text))?.text.clone();
    let same = marks.iter().filter(|mark| mark.text == text);
    Some(PoolMark { pools: same.flat_map(|mark| mark.pools.clone()).collect(), text })
}
