//! The target's side: fetching files and bringing them under their final names.
//!
//! ```text
//! fetch ─► prepare ─► session ─► network ─► write ─► commit ─► event
//!           (is it there already, what is left from before?)      (flush, rename, flush)
//! ```

mod arrival;
mod commit;
mod in_line;
mod job;
mod journal;
mod large;
mod prepare;
mod session;
mod sources;
mod target;
mod verify;
mod write;

pub(crate) use arrival::Arrival;
pub(crate) use in_line::Reorder;
pub(crate) use job::{Job, Keys};
pub(crate) use journal::{JournalFile, boot_id};
pub(crate) use session::{PlacedJobs, Session};
pub(crate) use sources::{SessionKey, SourceList};
pub(crate) use target::Target;
pub(crate) use write::WriteJob;
