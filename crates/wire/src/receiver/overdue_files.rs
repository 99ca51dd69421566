//! Files that a source owes and does not send while it sends others, as where a read hangs at one place of
//! its disk. The source as a whole makes progress, so only a count by file shows it.
//!
//! A source reads in the order of the requests of each stream. If it has answered many times what was asked
//! of it at most meanwhile, a file of which nothing came was not merely late: it was passed over.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{Blame, Fault, FaultCode};

use super::streams::Stream;
use super::{OriginNumber, Receiver, StreamNumber};
use crate::frame::{FileNumber, RequestId};
use crate::limits::STALL_MAX;

const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time that one check counts at most: while this process stood still, no source was silent.
const CHECK_ELAPSED_MAX: Duration = Duration::from_secs(2);
/// Younger requests do not count: nearly all are answered before.
const REQUEST_AGE_MIN: Duration = Duration::from_secs(1);
/// A file is passed over when so many times the slots in use have been answered. Streams of one source differ
/// in rate, by a factor of five at most: slower ones are closed.
const ANSWERS_PER_SLOT_MIN: u64 = 8;

/// The files that one source owes, since something of them came last.
#[derive(Default)]
pub(super) struct OverdueFiles {
    files: BTreeMap<FileNumber, OverdueFile>,
    /// Requests of slots that the source has answered.
    answers: u64,
}

struct OverdueFile {
    /// Time during which it was requested. Pauses, such as under a rate limit of ours, do not count.
    owed_for: Duration,
    answers_before: u64,
    /// Most slots that were in use meanwhile.
    slots_max: usize,
}

impl OverdueFiles {
    /// The source answered a request of these files.
    pub(super) fn note_answer(&mut self, files: &[FileNumber]) {
        self.answers = self.answers.saturating_add(1);
        files.iter().for_each(|&number| self.forget(number));
    }

    pub(super) fn forget(&mut self, number: FileNumber) {
        self.files.remove(&number);
    }

    /// Counts the time since the last check for the files that are owed, and returns those that the source
    /// has passed over.
    fn check(&mut self, owed: &BTreeSet<FileNumber>, slots: usize, elapsed: Duration) -> Vec<FileNumber> {
        let answers = self.answers;
        let mut passed_over = Vec::new();
        for &number in owed {
            let file = self.files.entry(number).or_insert(OverdueFile {
                owed_for: Duration::ZERO,
                answers_before: answers,
                slots_max: 1,
            });
            file.owed_for += elapsed;
            file.slots_max = file.slots_max.max(slots);
            let answered = answers.saturating_sub(file.answers_before);
            let lawful = ANSWERS_PER_SLOT_MIN.saturating_mul(file.slots_max as u64);
            if file.owed_for >= STALL_MAX && answered >= lawful {
                passed_over.push(number);
            }
        }
        passed_over.iter().for_each(|&number| self.forget(number));
        passed_over
    }
}

impl Receiver {
    /// Leaves sources out for files that they do not send while they send others.
    pub(super) fn check_overdue_files(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.overdue_checked_at);
        if elapsed < CHECK_INTERVAL {
            return;
        }
        self.overdue_checked_at = now;
        for origin in self.all_origins() {
            let owed = self.owed_files(origin, now);
            let slots = self.slots_of(origin);
            let passed_over = self.origin(origin).overdue.check(&owed, slots, elapsed.min(CHECK_ELAPSED_MAX));
            passed_over.into_iter().for_each(|number| self.give_up_at(number, origin, now));
        }
    }

    /// Files of which something was requested from there and has not come.
    fn owed_files(&self, origin: OriginNumber, now: Duration) -> BTreeSet<FileNumber> {
        let requests = self.streams_of(origin).filter_map(Stream::up).flat_map(|up| up.requests.values());
        let old = requests.filter(|request| now.saturating_sub(request.sent_at) >= REQUEST_AGE_MIN);
        old.flat_map(|request| request.content.files()).copied().collect()
    }

    /// Waits no longer for what the source owes of the file, and leaves the source out for it.
    fn give_up_at(&mut self, number: FileNumber, origin: OriginNumber, now: Duration) {
        for place in 0..self.streams.len() {
            let stream = StreamNumber(place as u32);
            for request in self.requests_of(number, stream, origin) {
                if let Some(ended) = self.end_request(stream, request) {
                    self.requeue_request(&ended.content);
                }
            }
        }
        let detail = format!("the source sent nothing of it for {} s, but others", STALL_MAX.as_secs());
        let fault = Fault::new(FaultCode::Stalled, detail).blaming(Blame::Source);
        self.exclude_source(number, origin, fault, now);
    }

    /// The requests of the file on a stream, if that is one to the source.
    fn requests_of(&self, number: FileNumber, stream: StreamNumber, origin: OriginNumber) -> Vec<RequestId> {
        let to_source = self.streams.get(stream.0 as usize).filter(|stream| stream.origin == origin);
        let Some(up) = to_source.and_then(Stream::up) else { return Vec::new() };
        let asked = up.requests.iter().filter(|(_, request)| request.content.files().contains(&number));
        asked.map(|(&request, _)| request).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const FILE: FileNumber = FileNumber(7);

    /// The second at which the file is passed over, within two minutes, if the source answers so many
    /// requests a second of `slots`, and the file is requested while `is_owed` of the second.
    fn passed_over_at(answers: u64, slots: usize, is_owed: impl Fn(u64) -> bool) -> Option<u64> {
        let mut overdue = OverdueFiles::default();
        (1..=120).find(|&second| {
            (0..answers).for_each(|_| overdue.note_answer(&[FileNumber(1)]));
            let owed = BTreeSet::from_iter(is_owed(second).then_some(FILE));
            !overdue.check(&owed, slots, SECOND).is_empty()
        })
    }

    #[test]
    fn a_file_is_passed_over_by_others_and_not_by_time_alone() {
        let stall_s = STALL_MAX.as_secs();
        assert_eq!(passed_over_at(10, 4, |_| true), Some(stall_s));
        assert_eq!(passed_over_at(0, 4, |_| true), None, "a source that sends nothing is another matter");
        assert_eq!(passed_over_at(1, 32, |_| true), None, "there is much before it");
        assert_eq!(passed_over_at(10, 0, |_| true), Some(stall_s));
    }

    /// Under a rate limit of ours it is requested now and then.
    #[test]
    fn only_the_time_in_which_it_is_requested_counts() {
        assert_eq!(passed_over_at(10, 4, |second| second.is_multiple_of(2)), Some(2 * STALL_MAX.as_secs()));
        assert_eq!(passed_over_at(10, 4, |second| second.is_multiple_of(4)), None);
    }

    #[test]
    fn a_file_of_which_something_came_begins_anew() {
        let mut overdue = OverdueFiles::default();
        let owed = BTreeSet::from([FILE]);
        for second in 1..=200_u64 {
            (0..10).for_each(|_| overdue.note_answer(&[FileNumber(1)]));
            if second.is_multiple_of(50) {
                overdue.note_answer(&[FILE]);
            }
            assert_eq!(overdue.check(&owed, 4, SECOND), [], "after {second} s");
        }
        overdue.forget(FILE);
        assert!(overdue.files.is_empty());
    }
}
