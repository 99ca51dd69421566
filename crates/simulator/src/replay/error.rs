//! Why a recording cannot be replayed.

use longhaul_scheduler::Strategy;
use longhaul_scheduler::record::{FORMAT_VERSION, LINE_BYTES_MAX};

use super::STRATEGIES_COMPARABLE;

/// An error of the request or of a recording.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The strategy is not one of [`STRATEGIES_COMPARABLE`].
    #[error(
        "{0} goes by what waits at each source, and the recorded choices made that queue, not its own: a \
         recording can tell of {names}",
        names = STRATEGIES_COMPARABLE.map(Strategy::name).join(", ")
    )]
    NotComparable(Strategy),
    #[error("it is empty: not even its head has been written")]
    Empty,
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong { line: u64 },
    #[error("line {line} is damaged or no line of a recording")]
    DamagedLine { line: u64 },
    #[error("line {line} is missing: line {found} comes in its place")]
    MissingLine { line: u64, found: u64 },
    /// A whole line that a recording cannot have there.
    #[error("line {line}: {error}")]
    Line {
        line: u64,
        #[source]
        error: LineError,
    },
}

/// An error of a whole line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("a recording begins with its head")]
    NoHead,
    #[error("a second head")]
    SecondHead,
    /// The text of the decoder.
    #[error("{0}")]
    Body(String),
    #[error("its format is {0}; this program understands {FORMAT_VERSION}")]
    Format(u32),
    #[error("its knowledge: {0}")]
    Knowledge(#[source] serde_json::Error),
    #[error("its settings say {setting} = 0")]
    ZeroSetting { setting: &'static str },
    #[error("its settings say nominal_bytes_per_s = {0}")]
    NominalRate(f64),
    #[error("its last id is {0}")]
    LastId(u64),
    /// The fault is in the replay, not in the recording.
    #[error("a decision that JSON cannot hold")]
    Unencodable,
}
