//! Files on storages that have never heard of Longhaul: any WebDAV or HTTPS server, and those that copy
//! between themselves by HTTP-TPC; and those that speak S3. A copy is asked of the target, else of the
//! source, else it goes through us; what arrives is compared with what was sent, and a target holds a whole
//! file under its name or none.
//!
//! A collection of a WebDAV server and a bucket are also storages that agents serve: [`RemoteStorage`].
//!
//! Not here: when and whether to copy (`scheduler`), what becomes of an outcome (`service`), server side of
//! the same protocols (`doors`). Start with [`Remote`] and [`CopyOrder`].

mod body_reader;
mod checksum;
mod config;
mod copy;
mod dial;
mod exchange;
mod failure;
mod header_case;
mod macaroon;
mod markers;
mod multistatus;
mod naming;
mod order;
#[cfg(feature = "testing")]
pub mod promises;
mod rate_limiter;
mod refreshing_token;
mod remote;
mod retry;
mod s3;
mod space_report;
mod storages;
mod stream;
mod tape;
mod tape_answers;
mod tpc;
mod upload;
mod url;
mod verify;
mod webdav;
mod xml;

pub use checksum::Checksum;
pub use config::{RemoteConfig, S3Config, Times, Trust};
pub use longhaul_model::address::Family;
pub use order::{
    Cancel, Canceller, ChecksumMode, CopyDone, CopyOrder, CopyOutcome, Credential, End, Entry, Mode,
    Overwrite, Standing, Stat, Verified, cancellation,
};
pub use refreshing_token::{RefreshResult, RefreshingToken, TokenRefresher};
pub use remote::Remote;
pub use s3::{S3Keys, bucket_of};
pub use storages::{
    FileAccess, RemoteStorage, RemoteStorageOptions, ServerCopy, ServerCopyFault, SpaceReport,
};
pub use tape::{StageFile, TapeApi, plain_path};
pub use tape_answers::{ArchiveInfo, StageState, StagedFile};
pub use url::{RemoteUrl, SCHEMES, is_host, on_host};
