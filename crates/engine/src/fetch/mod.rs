//! The target's side: fetches files and commits them under their final names.
//!
//! ```text
//! fetch ─► prepare ─► session ─► network ─► write ─► commit ─► event
//!           (present already? resumable parts?)                   (flush, rename, flush)
//! ```

mod arrival;
mod group_commit;
mod held_copy;
mod job;
mod journal;
mod large_files;
mod prepare;
mod reorder_buffer;
mod session;
mod sources;
mod target;
mod verify;
mod write;

pub(crate) use arrival::Arrival;
pub(crate) use job::{FileLocks, Job};
pub(crate) use journal::{JournalFile, boot_id};
pub(crate) use reorder_buffer::ReorderBudget;
pub(crate) use session::{IndexedJobs, Session};
pub(crate) use sources::{SessionKey, SourceList};
pub(crate) use target::Target;
pub(crate) use write::WriteJob;
