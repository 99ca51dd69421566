//! Pools of storages, as agents report them and people see them.

use longhaul_model::{Fault, PoolState, units};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::formats;

/// One of the pools of a storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolReport {
    /// Its name, unique in the storage.
    pub name: String,
    /// What it is for.
    #[schema(value_type = formats::PoolState)]
    pub state: PoolState,
    /// Size of the pool in bytes; 0 while it cannot be told.
    pub total_bytes: u64,
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Bytes per second that it took while it had something to write, as last measured; absent before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_bytes_per_s: Option<u64>,
    /// Why it is out of service, or why it did not take a file within the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub trouble: Option<Fault>,
    /// How far its draining is; absent if it is not drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<PoolDrainReport>,
}

/// How far the draining of a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolDrainReport {
    /// Files that went to other pools since the agent's start.
    pub moved_files: u64,
    /// Files that could not be moved yet; they are tried again each hour.
    pub stuck_files: u64,
    /// Why the last of them could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub last_fault: Option<Fault>,
    /// Nothing is left in the pool.
    pub is_empty: bool,
}

impl PoolReport {
    /// Its state and what becomes of it in a few words, for people.
    pub fn words(&self) -> String {
        let files = |count| units::plural(count, "file", "files");
        match &self.drain {
            Some(drain) if drain.is_empty => "drained: it is empty".to_owned(),
            Some(drain) if drain.stuck_files > 0 => {
                format!("draining: {} moved, {} stuck", files(drain.moved_files), files(drain.stuck_files))
            }
            Some(drain) => format!("draining: {} moved", files(drain.moved_files)),
            None => self.state.word().to_owned(),
        }
    }
}
