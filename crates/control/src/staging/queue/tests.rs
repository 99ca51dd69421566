use proptest::prelude::*;

use super::*;

const BETA: StorageId = StorageId(1);
const GAMMA: StorageId = StorageId(2);
const HOUR: Duration = Duration::from_secs(3_600);

fn limits() -> StagingLimits {
    StagingLimits { files: 100, pin: 48 * HOUR, order_timeout: 24 * HOUR }
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_seconds(1_000_000) + Duration::from_secs(seconds)
}

fn lfn(file: u64) -> Lfn {
    format!("run7/f{file}").parse().unwrap()
}

fn wanted(file: u64) -> TapeFile {
    TapeFile { file: FileId(file), block: BlockId(file / 10), lfn: lfn(file), size: 10 }
}

/// A queue in which these files are wanted at beta.
fn queue(files: impl IntoIterator<Item = u64>) -> StagingQueue {
    let mut queue = StagingQueue::default();
    files.into_iter().for_each(|file| assert!(!queue.want(wanted(file), BETA, at(0))));
    queue
}

fn order(queue: &mut StagingQueue, now: Timestamp) -> Vec<StageBatch> {
    let mut next = now.0 as u64;
    queue.take_orders(&limits(), now, || {
        next += 1;
        StageId(next)
    })
}

fn sums(queue: &StagingQueue) -> [u64; 3] {
    let status = queue.status();
    [status.waiting.files, status.ordered.files, status.pinned.files]
}

#[test]
fn files_are_ordered_together_and_by_block() {
    let mut queue = queue([25, 1, 12, 3]);
    queue.want(wanted(2), BETA, at(1));
    assert_eq!(order(&mut queue, at(2)), [], "more is being wanted");
    let batches = order(&mut queue, at(3));
    let [batch] = batches.as_slice() else { panic!("{batches:?}") };
    assert_eq!(batch.lfns, [1, 2, 3, 12, 25].map(lfn));
    assert_eq!(sums(&queue), [0, 5, 0]);
    assert_eq!(queue.orders(), batches, "what a new session has to know");
    assert_eq!(order(&mut queue, at(100)), []);
    (101..140).for_each(|second| assert!(!queue.want(wanted(second), BETA, at(second))));
    assert_eq!(order(&mut queue, at(132)), []);
    assert!(!order(&mut queue, at(133)).is_empty(), "it does not wait for ever");
}

#[test]
fn what_is_ordered_or_pinned_stays_within_the_limits() {
    let mut queue = queue(0..150);
    let first = order(&mut queue, at(2));
    assert_eq!(sums(&queue), [50, 100, 0]);
    let report = |queue: &mut StagingQueue, file| {
        queue.report(first[0].order, &lfn(file), None, &limits(), at(3)).unwrap().unwrap()
    };
    (0..10).for_each(|file| drop(report(&mut queue, file)));
    assert_eq!(order(&mut queue, at(4)), [], "what is on disk and not read counts");
    assert_eq!(queue.arrived(FileId(3), BETA), Some((first[0].order, lfn(3))));
    assert_eq!(order(&mut queue, at(5))[0].lfns.len(), 1);
    let many = StagingLimits { files: 5_000, ..limits() };
    let mut queue = self::queue(0..2_500);
    let batches = queue.take_orders(&many, at(2), || StageId(1));
    assert_eq!(batches.iter().map(|batch| batch.lfns.len()).collect::<Vec<_>>(), [1_000, 1_000, 500]);
}

#[test]
fn a_staged_file_stays_until_all_targets_have_it() {
    let mut queue = queue([1]);
    let number = order(&mut queue, at(2))[0].order;
    let report = |queue: &mut StagingQueue, order| queue.report(order, &lfn(1), None, &limits(), at(60));
    assert_eq!(report(&mut queue, StageId(99)), Err(NotWanted), "an order of before");
    let staged = report(&mut queue, number).unwrap().unwrap();
    assert_eq!((staged.file, staged.block, staged.targets), (FileId(1), BlockId(0), BTreeSet::from([BETA])));
    assert_eq!(report(&mut queue, number), Ok(None), "once is enough");
    assert!(queue.want(wanted(1), GAMMA, at(70)), "another target reads it at once");
    assert_eq!(queue.arrived(FileId(1), BETA), None);
    assert_eq!(queue.arrived(FileId(1), GAMMA), Some((number, lfn(1))));
    assert!(queue.is_empty() && queue.ends.is_empty() && queue.by_demand.is_empty());
    assert_eq!(report(&mut queue, number), Err(NotWanted));
}

#[test]
fn a_file_that_does_not_come_is_tried_again_later_and_later() {
    let mut queue = queue([1, 2]);
    let mut now = at(2);
    for (failures, delay_s) in [(1, 30), (2, 60), (3, 120)] {
        let number = order(&mut queue, now)[0].order;
        assert_eq!(queue.report(number, &lfn(1), Some("drive 3 is broken"), &limits(), now), Ok(None));
        let failure = queue.status().last_failure.unwrap();
        assert_eq!((failure.lfn, failure.why.as_str(), failure.at), (lfn(1), "drive 3 is broken", now));
        assert_eq!(queue.status().failing, 1, "after {failures}");
        // It may go with others shortly before its time.
        let due = now + Duration::from_secs(delay_s);
        assert_eq!(order(&mut queue, Timestamp(due.0 - 1)), []);
        now = due;
    }
}

#[test]
fn an_order_that_hangs_is_given_again_and_a_pin_that_ends_is_renewed() {
    let mut queue = queue([1, 2]);
    let number = order(&mut queue, at(2))[0].order;
    queue.report(number, &lfn(2), None, &limits(), at(10)).unwrap();
    assert_eq!(queue.expire(at(2) + 23 * HOUR), Expired::default());
    let expired = queue.expire(at(2) + 24 * HOUR);
    assert_eq!(expired.unpinned, []);
    assert_eq!(expired.releases, Releases::from([(number, vec![lfn(1)])]));
    assert_eq!(queue.report(number, &lfn(1), None, &limits(), at(9)), Err(NotWanted), "too late");
    let again = order(&mut queue, at(100) + 24 * HOUR);
    assert_eq!(again[0].lfns, [lfn(1)]);
    assert_ne!(again[0].order, number);
    let expired = queue.expire(at(10) + 48 * HOUR);
    assert!(expired.unpinned.contains(&FileId(2)) && expired.releases[&number] == [lfn(2)]);
    assert_eq!(order(&mut queue, at(10) + 48 * HOUR).len(), 1, "it is still wanted");
}

#[test]
fn a_file_that_left_the_disk_early_is_brought_again() {
    let mut queue = queue([1]);
    let number = order(&mut queue, at(2))[0].order;
    queue.report(number, &lfn(1), None, &limits(), at(3)).unwrap();
    queue.not_on_disk(wanted(1), BETA, at(4));
    queue.not_on_disk(wanted(2), GAMMA, at(4));
    assert_eq!(sums(&queue), [2, 0, 0]);
    assert_eq!(order(&mut queue, at(6))[0].lfns, [lfn(1), lfn(2)]);
    queue.not_on_disk(wanted(1), BETA, at(7));
    assert_eq!(sums(&queue), [0, 2, 0], "it is on its way");
}

#[test]
fn demands_that_end_take_back_what_nobody_else_wants() {
    let mut queue = queue([1, 2, 3, 11]);
    queue.want(wanted(2), GAMMA, at(0));
    let number = order(&mut queue, at(2))[0].order;
    queue.want(wanted(4), BETA, at(3));
    assert_eq!(
        queue.demands(),
        BTreeSet::from([(BlockId(0), BETA), (BlockId(0), GAMMA), (BlockId(1), BETA)])
    );
    let releases = queue.demand_gone(BlockId(0), BETA);
    assert_eq!(releases, Releases::from([(number, vec![lfn(1), lfn(3)])]));
    assert_eq!(sums(&queue), [0, 2, 0]);
    assert_eq!(queue.demand_gone(BlockId(9), BETA), Releases::new());
    let of_beta = queue.awaited_by(BETA, &BTreeSet::from([BlockId(0), BlockId(1)]));
    assert_eq!((of_beta.ordered.files, of_beta.oldest_order), (1, Some(at(2))));
    assert!(queue.is_awaited_by(GAMMA) && !queue.is_awaited_by(StorageId(7)));
}

proptest! {
    /// Whatever happens in whatever order: sums agree with the files, limits hold, and a file that somebody
    /// wants is waiting, ordered or pinned.
    #[test]
    fn sums_and_limits_hold_whatever_happens(
        steps in prop::collection::vec((0..7u8, 0..30u64, 1..3u64, 0..50_000u64), 1..200)
    ) {
        let limits = StagingLimits { files: 8, ..limits() };
        let (mut queue, mut now, mut last) = (StagingQueue::default(), at(0), 0);
        let mut wants = BTreeSet::new();
        for (what, file, target, seconds) in steps {
            now = now + Duration::from_secs(seconds);
            let target = StorageId(target);
            match what {
                0 => {
                    queue.want(wanted(file), target, now);
                    wants.insert((file, target));
                }
                1 => {
                    queue.not_on_disk(wanted(file), target, now);
                    wants.insert((file, target));
                }
                2 => drop(queue.take_orders(&limits, now, || { last += 1; StageId(last) })),
                3 | 4 => for batch in queue.orders() {
                    let why = (what == 4).then_some("no drive");
                    let _ = queue.report(batch.order, &batch.lfns[0], why, &limits, now);
                },
                5 => {
                    queue.arrived(FileId(file), target);
                    wants.remove(&(file, target));
                }
                _ => drop(queue.expire(now)),
            }
            let status = queue.status();
            let under_way = status.ordered.files + status.pinned.files;
            prop_assert!(under_way <= limits.files);
            let files: BTreeSet<u64> = wants.iter().map(|(file, _)| *file).collect();
            prop_assert_eq!(status.waiting.files + under_way, files.len() as u64);
            prop_assert_eq!(queue.ends.len(), files.len());
            prop_assert_eq!(queue.by_lfn.len(), files.len());
            prop_assert_eq!(queue.by_demand.len(), wants.len());
        }
    }
}
