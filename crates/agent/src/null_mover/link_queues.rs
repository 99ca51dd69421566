//! Queues of a null mover: every link serves its files in turn, at the rate that its file gives.
//!
//! Pure: time is an argument, since the start.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use longhaul_engine::{AttemptOutcome, AttemptTimeline, FetchBatch, FetchFile, Success};
use longhaul_model::{AttemptId, Fault, FaultCode, StorageName, Timestamp};

use super::links::{NullLink, NullLinks};

pub(super) struct LinkQueues {
    links: NullLinks,
    lanes: BTreeMap<(StorageName, StorageName), Lane>,
    pub(super) bytes_in: u64,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<QueuedFile>,
    current: Option<RunningFile>,
    /// When the current or the last file ends.
    free_at: Duration,
}

struct QueuedFile {
    file: FetchFile,
    received: Timestamp,
    start_by: Timestamp,
}

struct RunningFile {
    item: QueuedFile,
    began: Duration,
    ends: Duration,
    started: Timestamp,
    /// Bytes after which it fails.
    fails_after: Option<u64>,
    failure: FaultCode,
}

/// An attempt has begun or ended.
#[derive(Debug)]
pub(super) enum QueueEvent {
    Started(AttemptId),
    Finished(Box<AttemptOutcome>),
}

impl LinkQueues {
    pub(super) fn new(links: NullLinks) -> Self {
        LinkQueues { links, lanes: BTreeMap::new(), bytes_in: 0 }
    }

    pub(super) fn add(&mut self, batch: FetchBatch, wall: Timestamp) {
        let lane = self.lanes.entry((batch.source_storage, batch.target_storage)).or_default();
        let item = |file| QueuedFile { file, received: wall, start_by: batch.start_by };
        let files = batch.files.into_iter().filter(|file| !batch.withheld.contains(&file.attempt));
        lane.waiting.extend(files.map(item));
    }

    /// Cancels attempts; they end without an event.
    pub(super) fn cancel(&mut self, attempts: &[AttemptId], now: Duration) {
        let gone: BTreeSet<&AttemptId> = attempts.iter().collect();
        for lane in self.lanes.values_mut() {
            lane.waiting.retain(|item| !gone.contains(&item.file.attempt));
            if lane.current.as_ref().is_some_and(|current| gone.contains(&current.item.file.attempt)) {
                lane.current = None;
                lane.free_at = now;
            }
        }
    }

    /// When something happens next.
    pub(super) fn due(&self) -> Option<Duration> {
        let due = |lane: &Lane| match &lane.current {
            Some(current) => Some(current.ends),
            None => (!lane.waiting.is_empty()).then_some(lane.free_at),
        };
        self.lanes.values().filter_map(due).min()
    }

    /// Events up to now, in order of links; about `most` at most.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        wall: Timestamp,
        in_bytes_per_s: Option<u64>,
        most: usize,
    ) -> Vec<QueueEvent> {
        let mut steps = Vec::new();
        // The site's limit is shared by all its links.
        let busy = self.lanes.values().filter(|lane| !lane.is_idle()).count().max(1);
        let limit = in_bytes_per_s.map(|limit| (limit / busy as u64).max(1));
        for ((source, target), lane) in &mut self.lanes {
            let mut link = self.links.link(source, target);
            link.bytes_per_s = limit.map_or(link.bytes_per_s, |limit| limit.min(link.bytes_per_s));
            while steps.len() < most {
                if let Some(current) = lane.current.take_if(|current| current.ends <= now) {
                    let finished = current.finish(wall);
                    self.bytes_in += finished.bytes_moved;
                    steps.push(QueueEvent::Finished(Box::new(finished)));
                } else if lane.current.is_none()
                    && let Some(item) = lane.waiting.pop_front()
                {
                    // Begins at the time of the step, even if the link has been free for a while.
                    lane.begin(item, link, self.links.seed, now, wall, &mut steps);
                } else {
                    break;
                }
            }
        }
        self.lanes.retain(|_, lane| !lane.is_idle() || lane.free_at > now);
        steps
    }

    pub(super) fn waiting(&self) -> usize {
        self.lanes.values().map(|lane| lane.waiting.len()).sum()
    }

    /// Running attempts with the bytes that they have.
    pub(super) fn running(&self, now: Duration) -> Vec<(AttemptId, u64)> {
        let progress = |current: &RunningFile| {
            let whole = current.fails_after.unwrap_or(current.item.file.size);
            let (done, all) = (now.saturating_sub(current.began), current.ends.saturating_sub(current.began));
            let part = if all.is_zero() { 1.0 } else { (done.as_secs_f64() / all.as_secs_f64()).min(1.0) };
            (current.item.file.attempt, (whole as f64 * part) as u64)
        };
        self.lanes.values().filter_map(|lane| lane.current.as_ref()).map(progress).collect()
    }
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_empty()
    }

    fn begin(
        &mut self,
        item: QueuedFile,
        link: NullLink,
        seed: u64,
        now: Duration,
        wall: Timestamp,
        steps: &mut Vec<QueueEvent>,
    ) {
        if wall > item.start_by {
            let fault = Fault::new(FaultCode::LeaseExpired, format!("it had to begin by {}", item.start_by));
            steps.push(QueueEvent::Finished(Box::new(finished_attempt(&item, None, None, Err(fault), 0))));
            return;
        }
        let (chance, how_far) = (random(seed, item.file.attempt, 0), random(seed, item.file.attempt, 1));
        let fails_after = (chance < link.failure_rate).then_some((item.file.size as f64 * how_far) as u64);
        let bytes = fails_after.unwrap_or(item.file.size);
        let needs = Duration::from_millis(link.overhead_ms.into())
            + Duration::from_secs_f64(bytes as f64 / link.bytes_per_s as f64);
        let began = now;
        self.free_at = began.saturating_add(needs);
        steps.push(QueueEvent::Started(item.file.attempt));
        let failure = link.failure;
        self.current =
            Some(RunningFile { item, began, ends: self.free_at, started: wall, fails_after, failure });
    }
}

impl RunningFile {
    fn finish(self, wall: Timestamp) -> AttemptOutcome {
        match self.fails_after {
            None => {
                let success = Success {
                    digests: self.item.file.digests.clone(),
                    verification: self.item.file.verification,
                    already_there: false,
                };
                finished_attempt(&self.item, Some(self.started), Some(wall), Ok(success), self.item.file.size)
            }
            Some(bytes) => {
                let fault = Fault::new(self.failure, "a failure of the null mover, as configured");
                finished_attempt(&self.item, Some(self.started), Some(wall), Err(fault), bytes)
            }
        }
    }
}

fn finished_attempt(
    item: &QueuedFile,
    started: Option<Timestamp>,
    end: Option<Timestamp>,
    result: Result<Success, Fault>,
    bytes: u64,
) -> AttemptOutcome {
    AttemptOutcome {
        attempt: item.file.attempt,
        transfer: item.file.transfer,
        epoch: item.file.epoch,
        bytes_moved: bytes,
        bytes_resent: 0,
        executor: None,
        times: AttemptTimeline {
            received: item.received,
            started,
            first_byte: started,
            last_byte: end,
            committed: end.filter(|_| result.is_ok()),
        },
        result,
        shares: Vec::new(),
    }
}

/// A number from 0 to 1, the same for the same attempt and seed (splitmix64, Steele et al. 2014).
fn random(seed: u64, attempt: AttemptId, which: u64) -> f64 {
    let mut z =
        seed ^ attempt.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ which.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake_engine::{fetch_batch, fetch_file};

    fn batch(attempts: std::ops::Range<u64>, source: &str, size: u64) -> FetchBatch {
        let files = attempts.map(|attempt| fetch_file(attempt, size)).collect();
        FetchBatch { start_by: Timestamp(1_000_000_000), ..fetch_batch(source, "beta", files) }
    }

    fn queue(text: &str) -> LinkQueues {
        LinkQueues::new(NullLinks::parse(text).unwrap())
    }

    /// Runs until nothing is due; how long that took, and what finished.
    fn run(queue: &mut LinkQueues, limit: Option<u64>) -> (Duration, Vec<AttemptOutcome>) {
        let (mut now, mut finished) = (Duration::ZERO, Vec::new());
        while let Some(due) = queue.due() {
            now = now.max(due);
            let wall = Timestamp(now.as_micros() as i64);
            finished.extend(queue.advance(now, wall, limit, usize::MAX).into_iter().filter_map(|step| {
                match step {
                    QueueEvent::Finished(finished) => Some(*finished),
                    QueueEvent::Started(_) => None,
                }
            }));
        }
        (now, finished)
    }

    #[test]
    fn a_link_gives_its_rate_and_costs_its_overhead() {
        let mut queue = queue("[default]\nrate = '10MB'\noverhead_ms = 50\n");
        queue.add(batch(0..10, "alpha", 1_000_000), Timestamp(0));
        let (took, finished) = run(&mut queue, None);
        assert_eq!(finished.len(), 10);
        assert_eq!(took.as_millis(), 1_500, "ten times 100 ms of bytes and 50 ms");
        assert_eq!(queue.bytes_in, 10_000_000);
        assert!(finished.iter().all(|one| one.result.as_ref().is_ok_and(|ok| !ok.digests.is_empty())));
    }

    #[test]
    fn links_work_in_parallel_and_share_a_limit() {
        let mut queue = queue("[default]\nrate = '10MB'\n");
        for (place, source) in ["alpha", "gamma"].into_iter().enumerate() {
            queue.add(batch(place as u64 * 10..place as u64 * 10 + 10, source, 1_000_000), Timestamp(0));
        }
        assert_eq!(run(&mut queue, None).0.as_millis(), 1_000);
        queue.add(batch(0..10, "alpha", 1_000_000), Timestamp(0));
        queue.add(batch(10..20, "gamma", 1_000_000), Timestamp(0));
        assert_eq!(run(&mut queue, Some(5_000_000)).0.as_millis(), 4_000);
    }

    /// Within four standard deviations; the same again with the same seed, and others with another.
    #[test]
    fn failures_have_their_rate_and_depend_on_the_seed() {
        let failed = |seed: u64| -> Vec<u64> {
            let mut queue =
                queue(&format!("seed = {seed}\n[default]\nfailure_rate = 0.2\nfailure = 'target'\n"));
            queue.add(batch(0..10_000, "alpha", 1_000), Timestamp(0));
            let finished = run(&mut queue, None).1;
            assert_eq!(finished.len(), 10_000, "each attempt ends once");
            let failed = finished.iter().filter(|one| one.result.is_err());
            failed
                .map(|one| {
                    assert_eq!(
                        one.result.as_ref().err().map(|fault| fault.code),
                        Some(FaultCode::TargetWrite)
                    );
                    assert!(one.bytes_moved < 1_000 && one.times.committed.is_none());
                    one.attempt.0
                })
                .collect()
        };
        let first = failed(1);
        assert!((1_840..=2_160).contains(&first.len()), "{}", first.len());
        assert_eq!(first, failed(1));
        assert_ne!(first, failed(2));
    }

    #[test]
    fn cancelled_late_and_withheld_files_do_not_run() {
        let mut queue = queue("[default]\nrate = '1MB'\n");
        queue.add(batch(0..3, "alpha", 1_000_000), Timestamp(0));
        let steps = queue.advance(Duration::ZERO, Timestamp(0), None, 10);
        assert!(matches!(steps[..], [QueueEvent::Started(AttemptId(0))]), "{steps:?}");
        assert_eq!(queue.running(Duration::from_millis(250)), [(AttemptId(0), 250_000)]);
        queue.cancel(&[AttemptId(0), AttemptId(2)], Duration::from_millis(500));
        let late = Timestamp(2_000_000_000);
        let steps = queue.advance(Duration::from_millis(500), late, None, 10);
        let [QueueEvent::Finished(only)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(only.attempt, AttemptId(1));
        assert_eq!(only.result.as_ref().err().map(|fault| fault.code), Some(FaultCode::LeaseExpired));
        assert_eq!((queue.due(), queue.waiting()), (None, 0));
        let withheld = [AttemptId(3), AttemptId(5)].into();
        queue.add(FetchBatch { withheld, ..batch(3..6, "alpha", 1_000_000) }, Timestamp(0));
        let attempts: Vec<AttemptId> = run(&mut queue, None).1.iter().map(|one| one.attempt).collect();
        assert_eq!(attempts, [AttemptId(4)]);
    }
}
