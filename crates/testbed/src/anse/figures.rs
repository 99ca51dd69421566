//! The figures of the run by name, and what is wanted of them.

use longhaul_model::limits::CHUNK_BYTES;
use serde::Serialize;

use super::Outcome;
use super::record::Sample;
use crate::wan::PACKET_PAYLOAD_FRACTION;

/// TCP and the scheduler find their pace before the first half counts.
const BEGIN_S: f64 = 5.0;
/// Less than this part of a path is no progress.
const PAUSE_PART: f64 = 0.1;
/// Streams have moved by then: what is wanted of the switch.
const SWITCH_S: f64 = 3.0;
/// After a cut data come again within this.
const STALL_S_MAX: f64 = 3.0;
/// The last files of the last job do not fill a path.
const END_S: f64 = 1.5;
/// Share of a bandwidth-delay product that may be sent twice, beside the chunks in flight when a path was
/// left.
const RESENT_FRACTION_MAX: f64 = 0.01;
/// One is in flight on each stream, of which an agent has no more.
const CHUNKS_IN_FLIGHT: f64 = 8.0;
const CHUNK_MB: f64 = CHUNK_BYTES as f64 * 1e-6;

/// Rates in Mbit/s; shares are of payload, of what the path has for it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figures {
    pub rate_mbit: f64,
    pub rtt_ms: f64,
    pub jobs: usize,
    pub files_per_job: usize,
    pub job_mb: f64,
    /// Share of files' payload in what our packets had room for: the rest is TLS, messages, and what was sent
    /// twice.
    pub payload_share: f64,
    pub background_mbit: f64,
    pub shared_mbit: f64,
    /// What passed in all, of the path.
    pub shared_link_used: f64,
    /// Ours, of what the background left.
    pub shared_share: f64,
    pub switch_to_95_percent_s: f64,
    pub switch_longest_pause_s: f64,
    pub decision_s: f64,
    pub dedicated_mbit: f64,
    pub dedicated_share: f64,
    pub dedicated_over_shared: f64,
    /// More than the files and their framing, megabytes: an upper bound of what was sent twice.
    pub surplus_mb: f64,
    /// What of files came twice until the last job was done, megabytes; and what may.
    pub resent_mb: f64,
    pub resent_mb_max: f64,
    /// The same of a circuit that is cut silently, and for how long nothing came then, by the emulator's
    /// clock.
    pub cut_resent_mb: f64,
    pub cut_stall_s: f64,
    pub attempts_failed: u64,
}

/// What is wanted of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bar {
    pub figure: &'static str,
    pub wanted: &'static str,
    pub measured: f64,
    pub reached: bool,
    /// What the paper had.
    pub paper: Option<&'static str>,
}

impl Figures {
    pub(super) fn from_outcome(outcome: &Outcome) -> Figures {
        let (experiment, record) = (&outcome.experiment, &outcome.record);
        let bytes = outcome.jobs as f64 * experiment.files_per_job as f64 * experiment.file_bytes as f64;
        let carried = record.last().ours() as f64;
        let payload_share = bytes / (carried * PACKET_PAYLOAD_FRACTION);
        // Until the queue grows long, and from when streams have moved until the work runs out.
        let (from, to) = (BEGIN_S, outcome.queued_s);
        let rate = |from, to, count: fn(&Sample) -> u64| record.rate(from, to, count);
        let background = rate(from, to, |sample| sample.background);
        let shared = rate(from, to, |sample| sample.shared);
        let (moved, end) = (outcome.used_s + SWITCH_S, outcome.done_s - END_S);
        let dedicated = rate(moved, end, |sample| sample.circuit);
        let full = experiment.rate_mbit;
        let seconds = || record.samples.iter().map(|sample| sample.at_s).filter(|at| *at > outcome.used_s);
        // Half a second that is full of payload, first seen at its end: of what the path has for it.
        let goodput = |at: f64| rate(at - 0.5, at, |sample| sample.circuit) * payload_share;
        let there = seconds().find(|at| goodput(*at) >= 0.95 * full);
        Figures {
            rate_mbit: full,
            rtt_ms: experiment.rtt_ms,
            jobs: outcome.jobs,
            files_per_job: experiment.files_per_job,
            job_mb: experiment.files_per_job as f64 * experiment.file_bytes as f64 * 1e-6,
            payload_share,
            background_mbit: background,
            shared_mbit: shared * PACKET_PAYLOAD_FRACTION * payload_share,
            shared_link_used: (shared + background) / full,
            shared_share: shared * payload_share / (full - background),
            switch_to_95_percent_s: there.map_or(f64::INFINITY, |at| at - outcome.used_s),
            switch_longest_pause_s: record.longest_pause_s(outcome.used_s - 1.0, moved, full * PAUSE_PART),
            decision_s: outcome.used_s - outcome.queued_s,
            dedicated_mbit: dedicated * PACKET_PAYLOAD_FRACTION * payload_share,
            dedicated_share: dedicated * payload_share / full,
            dedicated_over_shared: dedicated / shared.max(1e-9),
            surplus_mb: (carried * PACKET_PAYLOAD_FRACTION - bytes) * 1e-6,
            resent_mb: outcome.resent_bytes as f64 * 1e-6,
            resent_mb_max: full / 8.0 * experiment.rtt_ms * 1e-3 * RESENT_FRACTION_MAX
                + CHUNKS_IN_FLIGHT * CHUNK_MB,
            cut_resent_mb: outcome.cut_resent_bytes as f64 * 1e-6,
            cut_stall_s: outcome.cut_stall_s,
            attempts_failed: outcome.attempts_failed,
        }
    }

    pub fn bars(&self) -> Vec<Bar> {
        let bar =
            |figure, wanted, measured: f64, reached, paper| Bar { figure, wanted, measured, reached, paper };
        let failed = self.attempts_failed as f64;
        vec![
            bar(
                "shared_link_used",
                "≥ 0.98",
                self.shared_link_used,
                self.shared_link_used >= 0.98,
                Some("0.95"),
            ),
            bar("shared_share", "≥ 0.98", self.shared_share, self.shared_share >= 0.98, Some("0.90")),
            bar(
                "switch_to_95_percent_s",
                "≤ 3",
                self.switch_to_95_percent_s,
                self.switch_to_95_percent_s <= 3.0,
                None,
            ),
            bar(
                "switch_longest_pause_s",
                "< 1",
                self.switch_longest_pause_s,
                self.switch_longest_pause_s < 1.0,
                Some("one gap between jobs"),
            ),
            bar(
                "dedicated_share",
                "≥ 0.98",
                self.dedicated_share,
                self.dedicated_share >= 0.98,
                Some("0.85"),
            ),
            bar("resent_mb", "≤ resent_mb_max", self.resent_mb, self.resent_mb <= self.resent_mb_max, None),
            bar("cut_stall_s", "≤ 3", self.cut_stall_s, self.cut_stall_s <= STALL_S_MAX, None),
            bar(
                "cut_resent_mb",
                "≤ resent_mb_max",
                self.cut_resent_mb,
                self.cut_resent_mb <= self.resent_mb_max,
                None,
            ),
            bar("attempts_failed", "0", failed, self.attempts_failed == 0, Some("0")),
        ]
    }
}
