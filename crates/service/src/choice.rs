//! Reasons of a choice, from the scheduler's words to the API's.

use std::time::Duration;

use longhaul_api::native::{Candidate, Choice};
use longhaul_scheduler::ChoiceInWords;

/// As it is kept with the attempt.
pub fn to_json(words: ChoiceInWords) -> String {
    let choice = Choice {
        reason: words.reason,
        candidates: words
            .candidates
            .into_iter()
            .map(|candidate| Candidate {
                storage: candidate.storage,
                chosen: candidate.chosen,
                finish_us: candidate.finish.map(micros),
                rate_bytes_per_s: candidate.rate_bytes_per_s,
                bytes_ahead: candidate.bytes_ahead,
                failure_share: candidate.failure_share,
                unusable: candidate.unusable,
            })
            .collect(),
        waited_us: micros(words.waited),
        waited_for: words.waited_for,
    };
    serde_json::to_string(&choice).unwrap_or_default()
}

/// What was kept; empty if it has been pruned.
pub fn from_json(text: &str) -> Choice {
    serde_json::from_str(text).unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
