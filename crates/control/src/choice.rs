//! Reasons of a choice, from the scheduler's words to the API's.

use std::time::Duration;

use longhaul_api::native::{Candidate, Choice};
use longhaul_model::{StorageId, StorageName};
use longhaul_scheduler::ChoiceExplanation;

/// What a choice was about besides its source.
pub struct About {
    /// The storages after the source, if the target is only on the way to another one.
    pub way: Vec<StorageName>,
    pub charged_to: String,
}

/// As it is kept with the attempt. `rate_by`: what the rate expected from a source rests on.
pub fn to_json(
    words: ChoiceExplanation,
    about: About,
    rate_by: impl Fn(StorageId) -> &'static str,
) -> String {
    let choice = Choice {
        reason: words.reason,
        way: about.way,
        charged_to: about.charged_to,
        candidates: words
            .candidates
            .into_iter()
            .map(|candidate| Candidate {
                storage: candidate.storage,
                chosen: candidate.chosen,
                finish_us: candidate.finish.map(micros),
                rate_bytes_per_s: candidate.rate_bytes_per_s,
                rate_by: rate_by(candidate.id).to_owned(),
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
