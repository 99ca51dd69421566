//! Files on storages that have never heard of Longhaul: any WebDAV or HTTPS server, and those that copy between themselves by
//! HTTP-TPC. A copy is asked of the target, else of the source, else it goes through us; what arrives is compared
//! with what was sent, and a target holds a whole file under its name or none.
//!
//! Not here: when and whether to copy (`scheduler`), what becomes of an outcome (`service`), server side of the same
//! protocols (`doors`). Start with [`Remote`] and [`CopyOrder`].

mod address;
mod checksum;
mod config;
mod copy;
mod dial;
mod exchange;
mod failure;
mod header_case;
mod markers;
mod multistatus;
mod naming;
mod order;
mod remote;
mod stream;
mod tape;
mod tape_answers;
mod tpc;
mod upload;
mod url;
mod verify;
mod webdav;

pub use address::Network;
pub use checksum::Checksum;
pub use config::{RemoteConfig, Times, Trust};
pub use order::{
    Cancel, Canceller, ChecksumMode, CopyDone, CopyOrder, Credential, End, Entry, Mode, Stat, Verified,
    cancellation,
};
pub use remote::Remote;
pub use tape::{StageFile, TapeApi, plain_path};
pub use tape_answers::{ArchiveInfo, Locality, StageState, StagedFile};
pub use url::{RemoteUrl, SCHEMES};
