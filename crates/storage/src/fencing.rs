//! Fencing of writers: how one of several programs that write to the same root makes sure that another one
//! brings nothing more to a final name there, whether that one runs or not.

use std::fmt;

use longhaul_model::{AgentId, Fault};

/// One of the programs that write to a root, the same in each of its runs: the number of its agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterId(pub u64);

impl fmt::Display for WriterId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As people know it.
        AgentId(self.0).fmt(formatter)
    }
}

/// What became of an attempt to fence a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceResult {
    /// Nothing that the writer had begun can get a final name any more.
    Fenced,
    /// The writer holds its lock: it runs, or its host is gone and the file system has not noticed.
    Locked,
}

/// The writers of one root. Each brings files to their final names through a work directory of its own, and
/// holds a lock as long as it runs. Whoever removes that directory fences its writer: a file is renamed out
/// of it by name, and a name in a directory that is gone exists no more, nor can one be made there.
pub trait WriterFencing: Send + Sync {
    /// Whether this writer may not write: another one fenced it, or it has never written here.
    ///
    /// # Errors
    /// The work directory cannot be read.
    fn is_fenced(&self) -> Result<bool, Fault>;

    /// Makes the work directory of this writer if it is missing. Whoever calls it makes sure first that
    /// nothing goes on that was begun before the fence.
    ///
    /// # Errors
    /// `Conflict` if another program runs under the same id; `TargetReadOnly` or `TargetWrite` if the
    /// directory cannot be made.
    fn rejoin(&self) -> Result<(), Fault>;

    /// Fences another writer of the root, with the temporary files that it has. `even_if_locked` does so also
    /// to one that holds its lock. Idempotent; a writer that never wrote here counts as fenced.
    ///
    /// # Errors
    /// `BadRequest` for this writer's own id; `TargetReadOnly` or `TargetWrite` if the directory cannot be
    /// removed.
    fn fence(&self, writer: WriterId, even_if_locked: bool) -> Result<FenceResult, Fault>;
}
