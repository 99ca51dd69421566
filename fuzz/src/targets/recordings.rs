//! Recordings of a service, from a disk that may have damaged them.

use longhaul_scheduler::record::{Line, LineKind};
use longhaul_simulator::replay::{Replay, ReplayError, ReplayOptions, ReplayReport};

/// As bytes of a file; and, so that more than checksums is tried, as bodies of lines whose checksums are
/// right: each line of the input is one, its first byte says of which kind.
pub fn recordings(bytes: &[u8]) {
    let _ = replay(bytes, bytes.len().max(1));
    let mut lines = Vec::new();
    for (number, body) in (0..).zip(bytes.split(|&byte| byte == b'\n')) {
        let Some((&first, body)) = body.split_first() else { break };
        let Ok(body) = std::str::from_utf8(body) else { break };
        let kind = match first {
            b'H' => LineKind::Head,
            b'O' => LineKind::Observation,
            b'L' => LineKind::Knowledge,
            b'P' => LineKind::Poll,
            _ => LineKind::Event,
        };
        let now = longhaul_model::Timestamp(1_800_000_000_000_000 + 1_000_000 * number as i64);
        Line { number, kind, now, body }.write(&mut lines);
    }
    let whole = replay(&lines, lines.len().max(1));
    assert_eq!(replay(&lines, 7), whole, "where it is cut tells nothing");
}

fn replay(bytes: &[u8], at_once: usize) -> Result<ReplayReport, String> {
    let replayed = || -> Result<ReplayReport, ReplayError> {
        let mut run = Replay::new(ReplayOptions::default())?;
        bytes.chunks(at_once).try_for_each(|part| run.feed(part))?;
        run.end()
    };
    replayed().map_err(|error| error.to_string())
}
