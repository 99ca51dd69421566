//! Faults: the only error that crosses rooms upwards. A fault says whose turn it is ([`Blame`]), whether to
//! try again ([`Retry`]), what happened in plain words, and has a code that documents the next step.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backoff::{Backoff, Jitter};
use crate::cause::{Cause, ErrorChain};
use crate::lifecycle::words;
use crate::units::printable;

/// The longest detail of a fault, in bytes: nobody reads more than that.
const DETAIL_BYTES: usize = 600;

/// The side that has to act before another attempt can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Blame {
    Source,
    Target,
    Network,
    Credential,
    Request,
    Ourselves,
}

words!(Blame {
    Source = "source",
    Target = "target",
    Network = "network",
    Credential = "credential",
    Request = "request",
    Ourselves = "ourselves",
});

/// Whether another try makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retry {
    /// At once or after seconds: the cause is likely gone.
    Now,
    /// After a while: somebody or something has to change first.
    Later,
    /// Not with this source, or (if the request is to blame) not at all.
    Never,
}

macro_rules! fault_codes {
    ($($variant:ident = $number:literal, $blame:ident, $retry:ident, $title:literal, $next:literal;)*) => {
        /// What went wrong, by number. Numbers are never reused; `docs/reference/errors.md` lists them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum FaultCode { $($variant),* }

        impl FaultCode {
            pub const ALL: &'static [FaultCode] = &[$(FaultCode::$variant),*];
            pub fn number(self) -> u16 { match self { $(FaultCode::$variant => $number),* } }
            pub fn blame(self) -> Blame { match self { $(FaultCode::$variant => Blame::$blame),* } }
            pub fn retry(self) -> Retry { match self { $(FaultCode::$variant => Retry::$retry),* } }
            /// What happened, without the particulars.
            pub fn title(self) -> &'static str { match self { $(FaultCode::$variant => $title),* } }
            /// What a person should do.
            pub fn next_step(self) -> &'static str { match self { $(FaultCode::$variant => $next),* } }
        }
    };
}

impl FaultCode {
    /// Why a program cannot listen at an address: another one does, or the address is not this host's.
    pub fn from_listen_error(kind: std::io::ErrorKind) -> FaultCode {
        if kind == std::io::ErrorKind::AddrInUse { FaultCode::AddressInUse } else { FaultCode::BadRequest }
    }
}

// E1xxx requests, E2xxx source, E3xxx target, E4xxx credentials and rights, E5xxx network, E9xxx ourselves.
fault_codes! {
    BadRequest = 1000, Request, Never, "the request is malformed", "correct the request; `longhaul help` \
        shows the form";
    BadName = 1001, Request, Never, "a name breaks the rules", "rename it; docs/reference/names.md has the \
        rules";
    NotFound = 1002, Request, Never, "there is no such thing", "check the name with the matching `list` \
        command";
    AlreadyExists = 1003, Request, Never, "it exists already, and differs", "choose another name, or delete \
        the existing one first";
    Conflict = 1004, Request, Never, "the present state forbids it", "see the state with the matching `show` \
        command";
    BadManifest = 1005, Request, Never, "a line of the manifest is wrong", "correct that line and send the \
        manifest again; nothing was registered";
    LastReplica = 1006, Request, Never, "it is the last good replica", "copy it elsewhere first, or repeat \
        with --force to lose it";
    TooLarge = 1007, Request, Never, "the request is larger than its limit", "split it";
    NoSource = 1008, Source, Later, "no storage holds a usable replica", "bring a copy back to \
        where it was, then: longhaul verify STORAGE DATASET";
    NoSpaceForRequest = 1102, Target, Later, "the target cannot hold it", "free space at the target, or \
        choose blocks";

    SourceMissing = 2001, Source, Never, "the file is gone at the source", "restore it there, then: \
        longhaul verify STORAGE DATASET";
    SourceChanged = 2002, Source, Never, "the file changed at the source after registration", "restore the \
        registered content, or register it under a new name";
    SourceUnreadable = 2003, Source, Later, "the source cannot read the file", "check permissions and disk \
        at the source";
    SourceTruncated = 2004, Source, Never, "the file at the source is shorter than registered", "restore it \
        there, then: longhaul verify STORAGE DATASET";
    OnTape = 2005, Source, Later, "the file is on tape only", "a subscription from a storage of kind tape \
        has it brought to disk; else have it brought by a job with bring_online, or by the Tape REST API of \
        the storage's door (docs/howto/tape.md)";
    WrongDigest = 2041, Source, Never, "the bytes at the source do not have the registered digest", "the \
        source's copy is damaged: restore it from another replica";

    TargetFull = 3001, Target, Later, "the target is full", "free space at the target; its queue goes on by \
        itself";
    TargetReadOnly = 3002, Target, Later, "the target cannot be written", "remount it writable or correct \
        permissions; its queue goes on by itself";
    TargetWrite = 3003, Target, Later, "the target failed to write", "check the disk at the target";
    NameClash = 3004, Target, Never, "the target holds something else under this name", "move it away at the \
        target, or delete it";
    CaseTwin = 3005, Target, Never, "the target cannot hold two names that differ in case only", "choose a \
        target that can, or rename";
    NameTooLong = 3006, Target, Never, "the target cannot hold a name this long", "shorten the target's \
        prefix, or choose another target";
    HookRefused = 3007, Target, Later, "a command of the target's site refuses the file", "see what it says, \
        and docs/howto/hooks.md";
    MoverFailed = 3008, Target, Later, "the mover of the target's site did not bring the file", "see what it \
        says, and docs/howto/outside-mover.md";
    SitePaused = 3009, Target, Later, "the site takes no part in transfers now", "none, if it is meant so; \
        to go on: longhaul site resume SITE";

    NotAllowed = 4001, Credential, Never, "not allowed", "ask an administrator for the right";
    NotAuthenticated = 4002, Credential, Never, "the credential is missing, unknown or expired", "log in \
        again, or ask for a new token";
    JoinTokenUsed = 4003, Credential, Never, "the join token was used already", "make a new one: longhaul \
        site add NAME";
    JoinTokenExpired = 4004, Credential, Never, "the join token has expired", "make a new one: longhaul site \
        add NAME";
    ForeignDeployment = 4005, Credential, Never, "the certificate belongs to another deployment", "join this \
        deployment with a token of its own: longhaul agent join";
    StaleIncarnation = 4006, Credential, Never, "another process runs with this agent's identity", "stop the \
        copy, or join the second host as an agent of its own";
    PermitRefused = 4007, Credential, Now, "the source refused the permit", "none: a new permit is issued \
        with the next lease";
    ClockSkew = 4008, Credential, Later, "the clocks differ too much", "set the clock of this host (NTP)";

    Unreachable = 5001, Network, Now, "the peer cannot be reached", "check that its agent runs and that the \
        port is open";
    ConnectionLost = 5002, Network, Now, "the connection broke", "none: what has arrived is kept";
    Corrupted = 5003, Network, Now, "bytes changed on the way", "none, unless it repeats: then check memory \
        and network cards";
    Stalled = 5004, Network, Now, "no byte arrived for too long", "check the path";
    Degraded = 5005, Network, Later, "the network is worse than it was", "see what is known: longhaul \
        network explain SOURCE TARGET";
    DeadlineInDanger = 5006, Network, Later, "a deadline is in danger", "see what holds it up: longhaul \
        subscription show SUBSCRIPTION";

    ProtocolError = 9001, Ourselves, Now, "the peer broke the protocol", "report it with both logs";
    VersionMismatch = 9002, Ourselves, Later, "the two versions have no protocol in common", "upgrade the \
        older side";
    Interrupted = 9003, Ourselves, Now, "the attempt was interrupted by a restart", "none: it is resumed";
    LeaseExpired = 9004, Ourselves, Now, "the lease expired before the attempt began", "none: it is leased \
        again";
    Internal = 9005, Ourselves, Later, "an internal error", "report it with the logs";
    Busy = 9006, Ourselves, Now, "too much at once", "try again in a moment";
    StateDirectory = 9007, Ourselves, Later, "the state directory cannot be used", "see the text";
    Cancelled = 9008, Request, Never, "cancelled", "none";
    GivenBack = 9009, Ourselves, Now, "given back before it began", "none: it comes from another source";
    AddressInUse = 9010, Ourselves, Later, "another program listens at this address", "stop that program, or \
        choose another address or port";
}

impl fmt::Display for FaultCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "E{}", self.number())
    }
}

impl std::str::FromStr for FaultCode {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        FaultCode::ALL
            .iter()
            .copied()
            .find(|code| code.to_string() == text)
            .ok_or_else(|| format!("{text:?} is no error code"))
    }
}

impl Serialize for FaultCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FaultCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// One thing that went wrong, as it is stored, sent and shown. The error that it was made from, its
/// `source()`, stays in the process: logs show it by [`Fault::chain`].
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fault {
    pub code: FaultCode,
    pub blame: Blame,
    pub retry: Retry,
    /// The particulars: which file, which number, which host; escaped, at most a few hundred characters.
    #[serde(deserialize_with = "read_detail")]
    pub detail: String,
    #[serde(skip)]
    cause: Cause,
}

/// Details come from peers and agents too: nothing in them forges a line of a log or steers a terminal.
fn shown(detail: &str) -> String {
    let mut shown = printable(cut(detail, DETAIL_BYTES));
    if shown.len() > DETAIL_BYTES || detail.len() > DETAIL_BYTES {
        shown.truncate(cut(&shown, DETAIL_BYTES).len());
        shown.push('…');
    }
    shown
}

/// The beginning of a text, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
    &text[..end]
}

fn read_detail<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(shown(&String::deserialize(deserializer)?))
}

impl Fault {
    pub fn new(code: FaultCode, detail: impl Into<String>) -> Self {
        let detail = shown(&detail.into());
        Fault { code, blame: code.blame(), retry: code.retry(), detail, cause: Cause::default() }
    }

    /// The same code can be somebody else's turn: a read-only directory at a source, say.
    pub fn blaming(mut self, blame: Blame) -> Self {
        self.blame = blame;
        self
    }

    pub fn retrying(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Keeps the error that the fault was made from.
    pub fn with_source(mut self, error: impl Error + Send + Sync + 'static) -> Self {
        self.cause = Cause::new(error);
        self
    }

    /// The cause, for an error that is made from this fault.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// The fault and its causes in one line, for logs.
    pub fn chain(&self) -> ErrorChain<'_> {
        ErrorChain::new(self)
    }
}

impl fmt::Debug for Fault {
    /// What is stored and sent, and no more: a fault that was read back looks the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { code, blame, retry, detail, cause: _ } = self;
        f.debug_struct("Fault")
            .field("code", code)
            .field("blame", blame)
            .field("retry", retry)
            .field("detail", detail)
            .finish()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.detail.is_empty() {
            write!(f, "{}", self.code.title())
        } else {
            write!(f, "{}: {}", self.code.title(), self.detail)
        }
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_source()
    }
}

/// How long to wait before try number `attempt` + 1 of the same (source, target, cause): doubling from one
/// second for [`Retry::Now`], from thirty for [`Retry::Later`]; `jitter` in 0..1 spreads it by ±25 %.
pub fn retry_delay(retry: Retry, attempt: u32, jitter: f64) -> Duration {
    let (first_s, max_s) = match retry {
        Retry::Now => (1, 60),
        Retry::Later | Retry::Never => (30, 3_600),
    };
    let backoff = Backoff {
        first: Duration::from_secs(first_s),
        max: Duration::from_secs(max_s),
        jitter: Jitter::Quarter,
    };
    backoff.delay(attempt, jitter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_have_a_next_step() {
        let mut numbers: Vec<u16> = FaultCode::ALL.iter().map(|code| code.number()).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), FaultCode::ALL.len(), "sorted and unique");
        for &code in FaultCode::ALL {
            assert!(!code.title().is_empty() && !code.next_step().is_empty(), "{code}");
            assert_eq!(code.to_string().parse::<FaultCode>().unwrap(), code);
        }
    }

    #[test]
    fn details_are_bounded() {
        let fault = Fault::new(FaultCode::BadName, "ü".repeat(5_000));
        assert!(fault.detail.len() < 700);
        let forged = Fault::new(FaultCode::BadName, "a\nb\u{1b}[2J\u{202e}".repeat(90));
        assert!(
            forged.detail.len() < 700 && forged.detail.starts_with("a\\nb\\u{1b}[2J\\u{202e}a"),
            "{forged}"
        );
        let told = r#"{"code":"E1001","blame":"request","retry":"never","detail":"a\nb"}"#;
        assert_eq!(serde_json::from_str::<Fault>(told).unwrap().detail, "a\\nb");
        let json = serde_json::to_string(&forged).unwrap();
        assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), forged);
        let json = serde_json::to_string(&fault).unwrap();
        assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), fault);
    }

    #[test]
    fn the_cause_stays_in_the_process() {
        let cause = std::io::Error::other("disk on fire");
        let fault = Fault::new(FaultCode::TargetWrite, "writing a").with_source(cause);
        assert_eq!(fault.clone().source().unwrap().to_string(), "disk on fire");
        assert_eq!(fault.chain().to_string(), "the target failed to write: writing a: disk on fire");

        let json = serde_json::to_string(&fault).unwrap();
        assert_eq!(json, r#"{"code":"E3003","blame":"target","retry":"later","detail":"writing a"}"#);
        let read: Fault = serde_json::from_str(&json).unwrap();
        assert!(read.source().is_none());
        assert_eq!(read, fault);
        assert_eq!(format!("{read:?}"), format!("{fault:?}"));
    }

    #[test]
    fn retries_slow_down_and_are_bounded() {
        assert!(retry_delay(Retry::Now, 1, 0.5) <= Duration::from_secs(2));
        assert!(retry_delay(Retry::Now, 4, 0.5) > retry_delay(Retry::Now, 2, 0.5));
        assert!(retry_delay(Retry::Later, u32::MAX, 1.0) <= Duration::from_secs(4_600));
    }
}
