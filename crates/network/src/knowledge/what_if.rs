//! What-if questions: so many more files, so many more bytes, one more attempt. Answers for people; the
//! scheduler asks for the same numbers one at a time. Start with [`Knowledge::what_if`].

use longhaul_model::limits::WHAT_IF_FILES_MAX;
use longhaul_model::{Blame, Timestamp};

use super::{Backlog, Estimate, Forecast, Knowledge, Link, Work};

/// Questions of each kind that are answered at once.
pub const WHAT_IF_QUERIES_MAX: usize = 16;
/// File size assumed for bytes that are asked about: the mean of the grid (1.5 GB) in round numbers.
pub const WHAT_IF_FILE_BYTES: u64 = 1_000_000_000;

/// What is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WhatIfQuery {
    /// Files beyond those under way.
    pub more: Vec<u32>,
    /// Bytes beyond those requested already.
    pub bytes: Vec<u64>,
    /// Concurrency of these bytes; none: the link's usual one.
    pub at_once: Option<u32>,
    /// Bytes requested earlier.
    pub backlog: Backlog,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WhatIfAnswer {
    /// Total rate of the link with so many more files.
    pub rates: Vec<(u32, Estimate)>,
    pub times: Vec<(Work, Forecast)>,
    /// Odds that the next attempt fails, by blame, most likely first; zero odds are left out.
    pub failures: Vec<(Blame, f64)>,
}

impl Knowledge {
    pub fn what_if(&self, link: Link, questions: &WhatIfQuery, now: Timestamp) -> WhatIfAnswer {
        let more = questions.more.iter().take(WHAT_IF_QUERIES_MAX).map(|&more| more.min(WHAT_IF_FILES_MAX));
        let usual = self.links.get(&link).map_or(1.0, |state| state.files_usual());
        let at_once = questions.at_once.unwrap_or(usual.round() as u32).clamp(1, WHAT_IF_FILES_MAX);
        let bytes = questions.bytes.iter().take(WHAT_IF_QUERIES_MAX);
        let times = bytes.map(|&bytes| {
            let files = u32::try_from(bytes.div_ceil(WHAT_IF_FILE_BYTES)).unwrap_or(u32::MAX).max(1);
            let work = Work { bytes, files, at_once: at_once.min(files), backlog: questions.backlog };
            (work, self.forecast(link, work, now))
        });
        WhatIfAnswer {
            rates: more.map(|more| (more, self.rate_with(link, more, now))).collect(),
            times: times.collect(),
            failures: self.failure_odds(link, now),
        }
    }

    fn failure_odds(&self, link: Link, now: Timestamp) -> Vec<(Blame, f64)> {
        let shares = self.failure_shares(link, now);
        let all = Blame::ALL.iter().copied().zip(shares);
        let mut odds: Vec<(Blame, f64)> = all.filter(|&(_, share)| share > 0.0).collect();
        odds.sort_by(|one, other| other.1.total_cmp(&one.1));
        odds
    }
}
