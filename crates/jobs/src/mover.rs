//! The interface to what moves the bytes of a job's file. The binary brings an implementation.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use longhaul_catalog::JobRow;
use longhaul_model::{AttemptId, CircuitUse, Epoch, Fault};
use longhaul_storage_remote as remote;
use longhaul_storage_remote::{Family, Overwrite, RefreshingToken, Remote, S3Keys};
use serde::Serialize;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::derived_limits::CopyModes;

/// Copies between URLs. A file that was copied is whole at its target and durable there, or it is not said.
pub trait ForeignMover: Send + Sync {
    /// Copies a file. Reports the bytes that have arrived to `progress`, and ends soon after `stop` is true.
    fn copy<'a>(
        &'a self,
        order: CopyOrder,
        progress: &'a (dyn Fn(u64) + Send + Sync),
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = Result<Moved, Fault>> + Send + 'a>>;

    /// As [`ForeignMover::copy`], but a file that would have to go through this process may be left to
    /// somebody else.
    fn copy_directly<'a>(
        &'a self,
        order: CopyOrder,
        progress: &'a (dyn Fn(u64) + Send + Sync),
        stop: Stop,
    ) -> Pin<Box<dyn Future<Output = Result<DirectCopy, Fault>> + Send + 'a>> {
        Box::pin(async move { self.copy(order, progress, stop).await.map(DirectCopy::Moved) })
    }

    /// The file that exists under the target's name, for a job that asks for it; none if it is unknown.
    fn existing_file<'a>(
        &'a self,
        _order: &'a CopyOrder,
    ) -> Pin<Box<dyn Future<Output = Option<ExistingFile>> + Send + 'a>> {
        Box::pin(std::future::ready(None))
    }

    /// The client for tape systems; without one, files on tape wait.
    fn remote(&self) -> Option<Arc<Remote>> {
        None
    }
}

/// Result of a copy without any byte through this process.
pub enum DirectCopy {
    Moved(Moved),
    /// Nothing was moved: the storages cannot copy between themselves, and the file has to be streamed.
    ToStream(Box<remote::CopyOrder>),
}

/// A file that is complete at its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub bytes: u64,
    /// The mode: `pull`, `push`, `stream`; `there` if it was already; with `by circuit` after it if it
    /// went by one, and `by the agent … of …` if one streamed it.
    pub mode: String,
}

/// A failed copy.
#[derive(Clone, Debug)]
pub struct Unmoved {
    pub fault: Fault,
    /// The file in its way, for a job that asks for it.
    pub standing: Option<ExistingFile>,
    /// The source has the file on tape only, and was not read.
    pub on_tape: bool,
}

impl From<Fault> for Unmoved {
    fn from(fault: Fault) -> Unmoved {
        Unmoved { fault, standing: None, on_tape: false }
    }
}

/// Becomes true when the copy is to end.
pub type Stop = watch::Receiver<bool>;

#[derive(Clone, Debug)]
pub struct CopyOrder {
    /// Part of the name of an incomplete file.
    pub attempt: AttemptId,
    pub epoch: Epoch,
    /// The community of the job.
    pub community: String,
    /// The job itself: its owner's rights are checked when the attempt begins.
    pub job: Arc<JobRow>,
    pub source: End,
    pub target: End,
    pub size: Option<u64>,
    /// `ALGORITHM:value`, or the algorithm alone.
    pub checksum: Option<String>,
    pub verify: Verify,
    /// Whether what stands under the target's name is replaced.
    pub overwrite: Overwrite,
    /// The job wants to hear what stands there, if it stands in the way.
    pub reports_standing: bool,
    /// Nothing is checked that the copy could do without.
    pub strict: bool,
    /// What has come of a copy that failed stays.
    pub keeps_partial: bool,
    /// A replica among others that may be on tape: if it is, it is not read, for that would bring it from
    /// there unasked.
    pub asks_tape: bool,
    /// Over these addresses only, as far as it goes through us.
    pub family: Option<Family>,
    /// An attempt before may have brought it, without anybody having heard of that: then what stands there is
    /// compared.
    pub may_be_there: bool,
    /// For the whole copy; none: by its size.
    pub timeout: Option<Duration>,
    pub streams: u32,
    /// In the URLs of S3, the bucket stands before the key whatever the host is called.
    pub path_style: bool,
    /// What storages that copy between themselves are to mark their packets with.
    pub scitag: Option<u32>,
    /// `only` is no more than `prefer` here: whether the storages have a circuit is found out by going there.
    pub circuits: CircuitUse,
    pub modes: CopyModes,
    /// Tokens are used as they came.
    pub unmanaged_tokens: bool,
}

/// What stands under a target's name, as FTS tells of it in the metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExistingFile {
    pub file_size: u64,
    pub checksum_type: String,
    /// Empty if the storage tells none.
    pub checksum_value: String,
    pub file_on_tape: bool,
    pub file_on_disk: bool,
}

#[derive(Clone, Debug)]
pub struct End {
    pub url: String,
    pub credential: Credential,
}

/// The credential of a user at one end. `Debug` shows no secret.
#[derive(Clone, Default)]
pub enum Credential {
    #[default]
    None,
    Bearer(Zeroizing<String>),
    /// A token that is renewed when it expires, or is refused, while the copy runs.
    Refreshing(RefreshingToken),
    /// A certificate with its chain and its key.
    Pem(Zeroizing<String>),
    /// Keys of an S3 storage.
    Keys(S3Keys),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Bearer(_) => "Bearer(…)",
            Credential::Refreshing(_) => "Refreshing(…)",
            Credential::Pem(_) => "Pem(…)",
            Credential::Keys(_) => "Keys(…)",
        })
    }
}

/// Which checksums are compared with what the user gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    #[default]
    None,
    Source,
    Target,
    Both,
}
