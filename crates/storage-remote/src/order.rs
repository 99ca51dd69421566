//! Copy orders and their outcomes.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::checksum::Checksum;
use crate::refreshing_token::RefreshingToken;
use crate::s3::S3Keys;

/// The credential for one end. Never shown, never logged, wiped when dropped.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Credential {
    #[default]
    None,
    /// A token (or a macaroon), without the word `Bearer`.
    Bearer(Zeroizing<String>),
    /// A token that is refreshed when it expires, or is refused, while the copy runs.
    Refreshing(RefreshingToken),
    /// A certificate with its key, both in PEM. A delegated proxy is one: the proxy first, then its issuers.
    Certificate { chain_pem: Zeroizing<String>, key_pem: Zeroizing<String> },
    /// Keys for `s3s` and `s3`, with which every request is signed.
    S3(S3Keys),
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Credential::None => "None",
            Credential::Bearer(_) => "Bearer(..)",
            Credential::Refreshing(_) => "Refreshing(..)",
            Credential::Certificate { .. } => "Certificate(..)",
            Credential::S3(_) => "S3(..)",
        })
    }
}

/// A file of a storage, and the credential for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// `https`, `http`, `davs` or `dav`; `s3s` or `s3`.
    pub url: String,
    pub credential: Credential,
}

impl End {
    pub fn new(url: impl Into<String>, credential: Credential) -> End {
        End { url: url.into(), credential }
    }
}

/// The party that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The target, asked to fetch the file.
    Pull,
    /// The source, asked to send it.
    Push,
    /// We: from the one to the other.
    Stream,
}

impl Mode {
    pub const ALL: &'static [Mode] = &[Mode::Pull, Mode::Push, Mode::Stream];

    pub fn word(self) -> &'static str {
        match self {
            Mode::Pull => "pull",
            Mode::Push => "push",
            Mode::Stream => "stream",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Whether a file that has the target's name may be replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overwrite {
    #[default]
    Never,
    Always,
    /// It is replaced if the target's tape system says that it lies on disk and nowhere else.
    OnlyOnDisk,
}

/// Which checksums are compared with what the user named, and with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ChecksumMode {
    #[default]
    None,
    Source,
    Target,
    Both,
}

impl ChecksumMode {
    pub fn source(self) -> bool {
        matches!(self, ChecksumMode::Source | ChecksumMode::Both)
    }

    pub fn target(self) -> bool {
        matches!(self, ChecksumMode::Target | ChecksumMode::Both)
    }
}

/// One file from one end to the other.
#[derive(Clone, Debug)]
pub struct CopyOrder {
    /// Unique to this attempt: part of temporary names at the target. Letters, digits and `-` only.
    pub tag: String,
    pub source: End,
    pub target: End,
    /// The size that the user expects of the source.
    pub size: Option<u64>,
    /// Algorithm and, if the user knows it, the value.
    pub checksum: Option<Checksum>,
    pub checksum_mode: ChecksumMode,
    pub overwrite: Overwrite,
    /// Nothing is looked at or compared that the copy could do without: not the source before it, where its
    /// size is known, nor what has arrived. Collections are not made, and the file comes under its own name
    /// at once.
    pub unchecked: bool,
    /// A failed copy's partial file stays where it is.
    pub keeps_partial: bool,
    /// Modes to try in this order, while another mode may cure the error.
    pub modes: Vec<Mode>,
    /// Timeout of the whole copy. None: ten minutes, and two seconds for each MiB.
    pub timeout: Option<Duration>,
    /// Connections that the data may use at once; at least one.
    pub streams: u16,
    /// The SciTag with which storages mark their packets: experiment × 64 + activity.
    pub scitag: Option<u32>,
}

impl CopyOrder {
    /// By any mode that works; replaces nothing, compares only sizes.
    pub fn new(tag: impl Into<String>, source: End, target: End) -> CopyOrder {
        CopyOrder {
            tag: tag.into(),
            source,
            target,
            size: None,
            checksum: None,
            checksum_mode: ChecksumMode::None,
            overwrite: Overwrite::Never,
            unchecked: false,
            keeps_partial: false,
            modes: Mode::ALL.to_vec(),
            timeout: None,
            streams: 1,
            scitag: None,
        }
    }
}

/// What was compared and found equal. The sizes of source and target always are, unless nothing was to be
/// checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The source's checksum with the user's.
    pub source_with_user: bool,
    /// The target's checksum with the user's.
    pub target_with_user: bool,
    /// The target's checksum with the source's.
    pub target_with_source: bool,
}

/// A copy that is complete at the target, under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyDone {
    /// The mode that worked.
    pub mode: Mode,
    pub bytes: u64,
    pub verified: Verified,
    pub source_checksum: Option<Checksum>,
    pub target_checksum: Option<Checksum>,
    /// Failures of the modes tried before, as `mode: text`.
    pub failed_before: Vec<String>,
}

/// The outcome of a copy whose bytes may not pass through this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyOutcome {
    Done(CopyDone),
    /// Nothing was moved: the copy has to be streamed. With the failures of the modes before.
    ToStream(Vec<String>),
}

/// Metadata of a file or collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub size: u64,
    pub is_collection: bool,
    /// As sent, with quotes; `W/` before a weak one.
    pub etag: Option<String>,
    /// As sent: a date of HTTP, or of RFC 3339.
    pub modified: Option<String>,
    /// Whether parts of it can be asked for.
    pub ranges: bool,
    /// The one that was asked for, if the storage told it.
    pub checksum: Option<Checksum>,
}

impl Stat {
    /// Seconds since 1970, if the storage tells when it was changed.
    pub fn modified_s(&self) -> Option<i64> {
        let text = self.modified.as_ref()?;
        let parsed = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text);
        // Listings of S3 tell it as RFC 3339 does.
        parsed.ok().or_else(|| text.parse().ok()).map(|time: jiff::Timestamp| time.as_second())
    }
}

/// The file under a target's name, to judge whether it is the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    pub size: u64,
    pub checksum: Option<Checksum>,
    /// None: nobody can say.
    pub on_disk: Option<bool>,
    pub on_tape: Option<bool>,
}

/// One member of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its last segment, decoded.
    pub name: String,
    pub stat: Stat,
}

/// Asks a copy to end. Dropping it asks nothing.
#[derive(Debug)]
pub struct Canceller(watch::Sender<bool>);

/// Tells a copy whether it shall end; copies of it tell the same.
#[derive(Clone, Debug)]
pub struct Cancel(watch::Receiver<bool>);

/// The two ends of a cancellation.
pub fn cancellation() -> (Canceller, Cancel) {
    let (sender, receiver) = watch::channel(false);
    (Canceller(sender), Cancel(receiver))
}

impl Canceller {
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Cancel {
    /// One that is never asked for.
    pub fn never() -> Cancel {
        cancellation().1
    }

    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Ends when it is asked for, else never.
    pub async fn cancelled(&self) {
        if self.0.clone().wait_for(|asked| *asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
