//! Row ids of the end points and queues of copy jobs, cached by their content: an insert-only table never
//! changes the id of a row.

use std::collections::HashMap;

/// Entries of each map. A map that would grow beyond this starts over, and ids are read from the database
/// again.
const ROW_IDS_MAX: usize = 100_000;

/// Ids of end points and queues whose rows are committed.
#[derive(Default)]
pub(crate) struct RowIds {
    pub(crate) endpoints: HashMap<String, i64>,
    pub(crate) queues: HashMap<QueueKey, i64>,
}

/// What files of copy jobs must have in common to wait in one queue.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) target: i64,
    pub(crate) vo: String,
    pub(crate) activity: String,
    pub(crate) priority: u8,
    pub(crate) strategy: String,
}

impl RowIds {
    /// Takes over the ids that a transaction made, after its commit.
    pub(crate) fn extend(&mut self, more: RowIds) {
        if self.endpoints.len() + more.endpoints.len() > ROW_IDS_MAX {
            self.endpoints.clear();
        }
        if self.queues.len() + more.queues.len() > ROW_IDS_MAX {
            self.queues.clear();
        }
        self.endpoints.extend(more.endpoints);
        self.queues.extend(more.queues);
    }
}
