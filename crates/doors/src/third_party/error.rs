//! Why a third-party copy failed. The text goes to the client in the last line of the answer, where
//! controllers look for the reference server's words.

use std::fmt;
use std::io;
use std::time::Duration;

use http::header::InvalidHeaderValue;
use longhaul_model::{Digest, Fault};
use longhaul_outbound::REDIRECTS_MAX;

use crate::answer::Refusal;

#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    // ---- reaching the remote side ----
    #[error("the remote URL: {0}")]
    Url(#[source] http::Error),
    #[error("the remote URL has no host")]
    NoHost,
    #[error("{0}")]
    HostHeader(#[from] InvalidHeaderValue),
    #[error("{0} is not at a public address, and not at one that is allowed here")]
    AddressRefused(String),
    #[error("{0} has no address")]
    NoAddress(String),
    #[error("{host}: {error}")]
    Unreachable {
        host: String,
        #[source]
        error: io::Error,
    },
    #[error("{0}: no answer")]
    NoAnswer(String),
    #[error("connecting to the remote side took too long")]
    ConnectTimeout,
    #[error("the handshake with the remote side took too long")]
    HandshakeTimeout,
    #[error("{0} is no host name")]
    NoHostName(String),
    #[error("TLS with {host}: {fault}")]
    Tls {
        host: String,
        #[source]
        fault: Fault,
    },
    #[error("connection to the remote side: {0}")]
    Connection(#[source] hyper::Error),
    #[error("the remote side does not answer")]
    AnswerTimeout,

    // ---- its answers ----
    #[error("the remote side redirects more than {REDIRECTS_MAX} times")]
    TooManyRedirects,
    #[error("the remote side redirects without saying where")]
    RedirectWithoutLocation,
    #[error("the remote side redirects: {0}")]
    BadRedirect(String),
    #[error("Remote side failed with status code {status}; error message: \"{text}\"")]
    Status { status: u16, text: String },

    // ---- the source ----
    #[error("no bytes have been received from the source in {} seconds", .0.as_secs())]
    Stalled(Duration),
    #[error("connection lost during transfer: {0}")]
    ConnectionLost(#[source] hyper::Error),
    #[error("connection lost during transfer: {received} of {size} bytes came")]
    Truncated { received: u64, size: u64 },
    #[error("the source sends more bytes than it said")]
    TooManyBytes,
    #[error("the source is a directory, not a file")]
    SourceIsDirectory,
    #[error("the source sends the file encoded")]
    SourceEncoded,
    #[error("the source says {first} first and {then} then")]
    DigestChanged { first: Digest, then: Digest },
    #[error("the source has {first} bytes first and {then} then")]
    SizeChanged { first: u64, then: u64 },
    #[error("the source gives no checksum that is known here, and one is required")]
    SourceWithoutDigest,

    // ---- the destination ----
    #[error("the destination gives no checksum that is known here, and one is required")]
    TargetWithoutDigest,
    /// The mismatch, and what became of the file that was sent.
    #[error("{mismatch}; it {cleanup}")]
    Mismatch {
        #[source]
        mismatch: Mismatch,
        cleanup: Cleanup,
    },

    /// The door's own storage, or its rules, refuse.
    #[error("{0}")]
    Refused(String),
}

impl From<Refusal> for CopyError {
    fn from(refusal: Refusal) -> CopyError {
        CopyError::Refused(refusal.text)
    }
}

/// What became of a file at the destination that differs from what was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cleanup {
    Removed,
    /// The destination did not remove it.
    Failed,
    /// Nothing proves that it is the file that was sent.
    NotTried,
}

impl fmt::Display for Cleanup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cleanup::Removed => "was removed",
            Cleanup::Failed => "was left there",
            Cleanup::NotTried => "is left there",
        })
    }
}

/// How the file at the destination differs from what was sent.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Mismatch {
    #[error("the destination has {theirs} bytes, {sent} were sent")]
    Size { theirs: u64, sent: u64 },
    #[error("checksum mismatch: {sent} was sent, the destination has {theirs}")]
    Digest { sent: Digest, theirs: Digest },
}
