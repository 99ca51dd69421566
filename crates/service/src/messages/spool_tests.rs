use longhaul_api::fts::MessageKind;
use proptest::prelude::*;

use super::*;

const WAYS: &[&str] = &["stomp", "nats"];
const DAY: Duration = Duration::from_secs(86_400);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_seconds(1_800_000_000 + seconds)
}

fn message(body: &str) -> Message {
    Message { kind: MessageKind::State, vo: Some("atlas".into()), body: body.into() }
}

fn open(directory: &Path, seconds: i64) -> Spool {
    Spool::open(directory, (64 << 20, DAY), WAYS, at(seconds)).unwrap()
}

fn bodies(records: &[Record]) -> Vec<String> {
    records.iter().map(|record| record.body.clone()).collect()
}

/// All that a way has not had.
fn all(spool: &Spool, way: &'static str) -> Vec<String> {
    let mut reader = spool.reader(way);
    let mut found = Vec::new();
    loop {
        let records = spool.read(&mut reader).unwrap();
        if records.is_empty() {
            return found;
        }
        found.extend(bodies(&records));
        // As if it were published, and forgotten: the cursor stays.
        reader.number = records[records.len() - 1].number + 1;
    }
}

#[test]
fn each_way_gets_everything_in_order_and_then_it_goes() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path(), 0);
    spool.append(vec![message("a"), message("b")], at(0)).unwrap();
    spool.append(vec![message("c")], at(1)).unwrap();
    let mut stomp = spool.reader("stomp");
    let first = spool.read(&mut stomp).unwrap();
    assert_eq!(bodies(&first), ["a", "b", "c"]);
    assert_eq!(bodies(&spool.read(&mut stomp).unwrap()), ["a", "b", "c"], "until it is done");
    spool.done(&mut stomp, &first[..2]).unwrap();
    assert_eq!(bodies(&spool.read(&mut stomp).unwrap()), ["c"]);
    assert_eq!(all(&spool, "nats"), ["a", "b", "c"]);

    // Another start: a new file, and each way goes on where it was.
    drop(spool);
    let spool = open(directory.path(), 10);
    spool.append(vec![message("d")], at(10)).unwrap();
    assert_eq!((all(&spool, "stomp"), all(&spool, "nats").len()), (vec!["c".to_owned(), "d".into()], 4));
    let files = || segments(directory.path()).unwrap().len();
    assert_eq!(files(), 2);
    for way in WAYS {
        let mut reader = spool.reader(way);
        loop {
            let records = spool.read(&mut reader).unwrap();
            if records.is_empty() {
                break;
            }
            spool.done(&mut reader, &records).unwrap();
        }
    }
    assert_eq!((files(), spool.dropped()), (1, 0), "all had the first file");
}

#[test]
fn a_torn_end_hides_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path(), 0);
    spool.append(vec![message("a"), message("b")], at(0)).unwrap();
    drop(spool);
    let file = segments(directory.path()).unwrap()[0].path.clone();
    let whole = fs::read(&file).unwrap();
    for end in (whole.len() / 2 + 1)..whole.len() {
        fs::write(&file, &whole[..end]).unwrap();
        let spool = open(directory.path(), 10 + end as i64);
        assert_eq!(all(&spool, "nats"), ["a"], "{end}");
        spool.append(vec![message("c")], at(20)).unwrap();
        assert_eq!(all(&spool, "nats"), ["a", "c"], "{end}");
        drop(spool);
        fs::remove_file(&segments(directory.path()).unwrap()[1].path).unwrap();
    }
}

#[test]
fn a_damaged_cursor_repeats_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path(), 0);
    spool.append(vec![message("a")], at(0)).unwrap();
    let mut reader = spool.reader("stomp");
    let records = spool.read(&mut reader).unwrap();
    spool.done(&mut reader, &records).unwrap();
    assert!(all(&spool, "stomp").is_empty());
    drop(spool);
    fs::write(directory.path().join("stomp.cursor"), "").unwrap();
    assert_eq!(all(&open(directory.path(), 10), "stomp"), ["a"]);
}

#[test]
fn without_room_the_oldest_go_and_it_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let spool = Spool::open(directory.path(), (80_000, DAY), WAYS, at(0)).unwrap();
    for number in 0..200 {
        spool.append(vec![message(&format!("{number:01000}"))], at(number)).unwrap();
        assert!(spool.bytes() <= 80_000);
    }
    let left = all(&spool, "stomp");
    assert_eq!(left.last().map(|body| body.trim_start_matches('0').to_owned()), Some("199".into()));
    assert_eq!(left.len() as u64 + spool.dropped(), 200);
    assert!(spool.dropped_at().is_some() && left.len() > 60);
    assert!(left.windows(2).all(|pair| pair[0] < pair[1]), "in order, without holes");
}

#[test]
fn what_is_too_old_goes() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path(), 0);
    spool.append(vec![message("old")], at(0)).unwrap();
    spool.append(vec![message("new")], at(86_500)).unwrap();
    assert_eq!((all(&spool, "stomp"), spool.dropped()), (vec!["new".to_owned()], 1));
}

#[test]
fn a_large_message_fits() {
    let directory = tempfile::tempdir().unwrap();
    let spool = open(directory.path(), 0);
    let large = "x".repeat(READ_BYTES * 2);
    spool.append(vec![message("a"), message(&large), message("b")], at(0)).unwrap();
    assert_eq!(all(&spool, "stomp"), ["a".to_owned(), large, "b".into()]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Whatever is appended, read, confirmed and restarted: each way gets all, in order, and again only what
    /// was not confirmed.
    #[test]
    fn nothing_is_lost(steps in prop::collection::vec((0..4u8, 1..300usize), 1..25)) {
        let directory = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(directory.path(), (400_000, DAY), WAYS, at(0)).unwrap();
        let (mut written, mut got, mut now) = (0usize, [0usize; 2], 1);
        for (step, count) in steps {
            now += 1;
            match step {
                0 => {
                    let messages = (written..written + count).map(|n| message(&n.to_string()));
                    spool.append(messages.collect(), at(now)).unwrap();
                    written += count;
                }
                1 => {
                    drop(spool);
                    spool = Spool::open(directory.path(), (400_000, DAY), WAYS, at(now)).unwrap();
                }
                way => {
                    let (way, got) = (WAYS[usize::from(way) - 2], &mut got[usize::from(way) - 2]);
                    let mut reader = spool.reader(way);
                    let records = spool.read(&mut reader).unwrap();
                    prop_assert_eq!(records.is_empty(), *got == written);
                    for record in records.iter().take(count) {
                        prop_assert_eq!(&record.body, &got.to_string());
                        *got += 1;
                    }
                    spool.done(&mut reader, &records[..records.len().min(count)]).unwrap();
                }
            }
        }
        prop_assert_eq!(spool.dropped(), 0);
        for (way, got) in WAYS.iter().zip(got) {
            let expected: Vec<String> = (got..written).map(|n| n.to_string()).collect();
            prop_assert_eq!(all(&spool, way), expected);
        }
    }
}
