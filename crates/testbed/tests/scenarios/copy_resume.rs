//! Promise 4 by whole processes: either end of `longhaul copy` is killed again and again, and a power cut is
//! emulated; what was there is not sent again, and nobody ever sees half a file. `LONGHAUL_SOAK_RESUME_KILLS`
//! sets how often; with 10 kills or more there are 500 MB for each.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_storage::TempName;
use longhaul_testbed::wan::{Change, Lab, PathConfig};
use longhaul_testbed::{AdHoc, CommandOutput, INTERRUPTED, Random, TICK, Watcher, effort, needs, tree};
use longhaul_wire::FileKey;
use longhaul_wire::journal::{BootId, HEADER_BYTES, Journal, JournalEntry, ReplayOutcome};
use rustix::process::Signal;

const WITHIN: Duration = Duration::from_secs(1_200);
const RTT_MS: f64 = 20.0;
const RATE_MBIT: f64 = 400.0;
/// For the few megabytes of the test command until the last kill: that comes long before their end.
const SLOW_MBIT: f64 = 50.0;
const MTU: u32 = 9000;
/// A second run of 10 GB would show nothing that these do not.
const PUSH_KILLS_MAX: u64 = 9;
const IN_MEMORY_MAX: u64 = 2_000_000_000;
/// Bytes on the wire per byte of files: headers, digests, listings.
const OVERHEAD: f64 = 1.03;
/// Lost by a kill: the volume in flight (twice the BDP of 1 MB, at least an extent for each of the streams),
/// what waits for a writer, a group of small files that was not committed.
const IN_FLIGHT: u64 = 10 << 20;
/// Unflushed bytes of one file at which it is flushed (or after two seconds).
const BATCH: u64 = 128 << 20;
/// What a client and a server say to each other before data flow: listing, manifest.
const START: u64 = 1 << 20;

fn ad_hoc(path: PathConfig, disk: bool) -> Option<AdHoc> {
    if let Err(why) = Lab::available() {
        needs::not_run("copies over an emulated network", &why);
        return None;
    }
    let lab = Lab::start(&[path]).unwrap();
    Some(if disk { AdHoc::below(lab, &std::env::temp_dir()) } else { AdHoc::new(lab) })
}

/// A fifth in small files, the rest in four large ones. Many GB have no place four times: then the large ones
/// are one.
fn make_source(root: &Path, bytes: u64) {
    let mut random = Random::new(bytes);
    fs::create_dir(root.join("small")).unwrap();
    for number in 0..bytes / 5 / 65_536 {
        fs::write(root.join(format!("small/{number:05}")), tree::content(&mut random, 65_536)).unwrap();
    }
    for number in 0..4 {
        if number > 0 && bytes > IN_MEMORY_MAX {
            fs::hard_link(root.join("large0"), root.join(format!("large{number}"))).unwrap();
            continue;
        }
        let file = File::create(root.join(format!("large{number}"))).unwrap();
        let piece = tree::content(&mut random, 1 << 20);
        for place in 0..(bytes / 5) >> 20 {
            file.write_all_at(&piece, place << 20).unwrap();
            file.write_all_at(&place.to_le_bytes(), place << 20).unwrap();
        }
    }
}

#[test]
fn kills_of_either_end_of_a_pull_cost_what_was_in_flight() {
    kills_cost_what_was_in_flight(effort::copy_kills(), |ground| ground);
}

/// Here the server receives.
#[test]
fn kills_of_either_end_of_a_push_cost_what_was_in_flight() {
    kills_cost_what_was_in_flight(effort::copy_kills().min(PUSH_KILLS_MAX), AdHoc::pushing);
}

fn kills_cost_what_was_in_flight(kills: u64, way: impl FnOnce(AdHoc) -> AdHoc) {
    let (bytes, mbit) = if kills < 10 { (40_000_000, SLOW_MBIT) } else { (kills * 500_000_000, RATE_MBIT) };
    let path = PathConfig::new(RTT_MS).rate_mbit(mbit).mtu(MTU);
    // Many GB have no place in memory.
    let Some(ground) = ad_hoc(path, bytes > IN_MEMORY_MAX).map(way) else { return };
    make_source(&ground.source(), bytes);
    let expected = tree::survey(&ground.source());
    let size = expected.bytes();
    let watcher = Watcher::start(&ground.target(), expected.files.clone());
    let mut server = ground.serve(&[]);
    let mut copy = ground.copy(&[]);
    let (mut recorded, mut sent_before) = (0, 0);
    // Each copy has moved data, and knows it: one that never did says at once that it does not work.
    let under_way = (size * 3 / 10 / kills).min(IN_FLIGHT);
    for kill in 1..=kills {
        // Evenly over the first six tenths, so that the last one too comes in the middle of something.
        let at = (size * 6 / 10 * kill / kills).max(sent_before + under_way);
        assert!(ground.carries(at, &mut copy), "the copy ended by itself: {}", copy.log.tail());
        if kill % 2 == 0 {
            server.kill();
            // It would go on trying; a new server has another key, so its user stops it.
            copy.signal(Signal::INT);
            let ended = copy.wait(WITHIN).expect("it ends when it is told to");
            assert_eq!(ended.code(), Some(INTERRUPTED), "{}", copy.log.tail());
            server = ground.serve(&[]);
        } else {
            copy.kill();
        }
        // What is in flight is lost: a receiver that is slow may have much of it in its memory and sockets.
        let before = recorded;
        (recorded, sent_before) = (recorded_bytes(&ground.target()), ground.on_the_wire());
        assert!(recorded >= before, "{recorded} bytes are recorded after kill {kill}, {before} before it");
        copy = ground.copy(&[]);
    }
    ground.lab.set(0, Change::RateMbit(Some(RATE_MBIT))).unwrap();
    let status = copy.wait(WITHIN).expect("it ends");
    assert!(status.success(), "{}", copy.log.tail());
    println!("{kills} kills: {} bytes on the wire for {size}", ground.on_the_wire());
    let sent = ground.on_the_wire() - sent_before;
    let most = ((size - recorded) as f64 * OVERHEAD) as u64 + IN_FLIGHT;
    assert!(sent <= most, "{sent} bytes on the wire for {} that were not recorded", size - recorded);
    let seen = watcher.finish();
    assert!(seen.wrong.is_empty(), "{:?}", seen.wrong);
    tree::assert_same(&expected.files, &ground.target(), "");
    // A server that receives keeps its folder while it runs.
    server.stop();
    assert!(!ground.target().join(".longhaul").exists(), "nothing is left to resume");
}

/// What a target has recorded: whole files, and what its journals say of temporary ones. Read at a moment at
/// which no file gets its name: the receiver may be at work.
fn recorded_bytes(target: &Path) -> u64 {
    loop {
        let before = temps(target);
        let partial: u64 = recorded_entries(target)
            .filter(|(key, _)| before.iter().any(|temp| is_of_file(temp, key)))
            .map(|(_, entry)| covered(&entry))
            .sum();
        let whole: u64 = tree::stored(target).values().map(|content| content.size).sum();
        if temps(target) == before {
            return whole + partial;
        }
    }
}

fn temps(target: &Path) -> BTreeSet<TempName> {
    let files = below(&target.join(".longhaul/temps"));
    files.iter().filter_map(|path| TempName::parse(path.file_name()?.to_str()?).ok()).collect()
}

/// The first bytes of a temporary file's name are its writer's, the others the file's.
fn is_of_file(temp: &TempName, key: &FileKey) -> bool {
    const WRITER_DIGITS: usize = 8;
    temp.as_str()[WRITER_DIGITS..] == TempName::from_bytes(key.0).as_str()[WRITER_DIGITS..]
}

fn recorded_entries(target: &Path) -> impl Iterator<Item = (FileKey, JournalEntry)> {
    let journals = below(&target.join(".longhaul")).into_iter().flat_map(|folder| below(&folder));
    journals.filter(|path| is_journal(path)).flat_map(|journal| {
        let replayed = replay(&fs::read(journal).unwrap_or_default());
        Vec::from_iter(replayed.journal.entries().map(|(key, entry)| (*key, entry.clone())))
    })
}

fn covered(entry: &JournalEntry) -> u64 {
    entry.durable.covered_bytes() + entry.written.values().map(|part| part.len).sum::<u64>()
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

fn is_journal(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "journal")
}

/// As the process that wrote it would.
fn replay(bytes: &[u8]) -> ReplayOutcome {
    let boot = bytes.get(6..22).map_or(BootId([0; 16]), |id| BootId(id.try_into().unwrap()));
    Journal::replay(bytes, boot)
}

/// What a journal says that would survive, and what it says beside.
struct Marks {
    durable: u64,
    written: u64,
}

/// The machine loses power: what was not flushed is gone from the file, and what was not synced from the
/// journal.
struct PowerCut {
    journal: PathBuf,
    data: PathBuf,
}

impl PowerCut {
    /// The state of the one large file under way; none before there is one.
    fn find(target: &Path) -> Option<PowerCut> {
        let work = target.join(".longhaul");
        let journal = below(&work).iter().flat_map(|folder| below(folder)).find(|path| is_journal(path))?;
        let data = below(&work.join("temps")).into_iter().next()?;
        Some(PowerCut { journal, data })
    }

    fn marks(&self) -> Marks {
        let replayed = replay(&fs::read(&self.journal).unwrap_or_default());
        let entries = || replayed.journal.entries().map(|(_, entry)| entry);
        Marks {
            durable: entries().map(|entry| entry.durable.runs().map(|(_, part)| part.len).sum::<u64>()).sum(),
            written: entries().map(|entry| entry.written.values().map(|part| part.len).sum::<u64>()).sum(),
        }
    }

    fn happen(&self) {
        let mut bytes = fs::read(&self.journal).unwrap();
        bytes.truncate(after_last_durable(&bytes));
        let other_start = BootId([7; 16]);
        bytes[..HEADER_BYTES].copy_from_slice(&Journal::header(other_start));
        fs::write(&self.journal, &bytes).unwrap();
        let replayed = Journal::replay(&bytes, other_start);
        let (_, entry) = replayed.journal.entries().next().expect("the file under way");
        // What the disk had not got is whatever stood there before.
        let file = File::options().read(true).write(true).open(&self.data).unwrap();
        let len = file.metadata().unwrap().len();
        let mut at = 0;
        for (offset, part) in entry.durable.runs() {
            spoil(&file, at, offset);
            at = offset + part.len;
        }
        spoil(&file, at, len);
    }
}

fn spoil(file: &File, from: u64, to: u64) {
    let piece = [0xe5; 1 << 16];
    let mut at = from;
    while at < to {
        let length = piece.len().min((to - at) as usize);
        file.write_all_at(&piece[..length], at).unwrap();
        at += length as u64;
    }
}

/// A mark of flushed data is synced with all before it; what follows the last one was not. Records are framed
/// as in `wire::journal`: length of body, kind, body, checksum.
fn after_last_durable(bytes: &[u8]) -> usize {
    const DURABLE: u8 = 3;
    let (mut at, mut end) = (HEADER_BYTES, HEADER_BYTES);
    while let Some(&[body, kind]) = bytes.get(at..at + 2) {
        at += 2 + usize::from(body) + 4;
        if kind == DURABLE && at <= bytes.len() {
            end = at;
        }
    }
    end
}

/// Promise 4, after a power cut: one journal batch is lost and what is flushed is not fetched again.
#[test]
fn a_power_cut_costs_one_journal_batch() {
    let Some(ground) = ad_hoc(PathConfig::new(1.0).mtu(MTU), false) else { return };
    let size: u64 = 400 << 20;
    let mut random = Random::new(4);
    fs::write(ground.source().join("large"), tree::content(&mut random, size)).unwrap();
    let expected = tree::survey(&ground.source());
    let mut server = ground.serve(&[]);
    let mut copy = ground.copy(&["--limit", "200MB"]);
    let cut = loop {
        assert!(
            copy.wait(TICK).is_none(),
            "it ended before it was caught between two flushes: {}",
            copy.log.tail()
        );
        let cut = PowerCut::find(&ground.target());
        // In the middle between two flushes.
        let between = |marks: Marks| marks.durable >= BATCH / 2 && marks.written >= BATCH / 8;
        if let Some(cut) = cut.filter(|cut| between(cut.marks())) {
            break cut;
        }
    };
    copy.kill();
    let Marks { durable, written } = cut.marks();
    println!("{durable} bytes were flushed, {written} were not, of {size}");
    // A batch is full when the next byte comes; what comes while it is flushed belongs to the next.
    assert!(written <= BATCH + IN_FLIGHT, "{written} bytes were not flushed");
    cut.happen();
    let before = ground.on_the_wire();
    let ran = CommandOutput::from_command(&mut ground.command(&["--json"]), WITHIN).ok();
    let sent = ground.on_the_wire() - before;
    let most = ((size - durable) as f64 * OVERHEAD) as u64 + START;
    assert!(sent <= most, "{sent} bytes were sent for {} that were lost: {ran}", size - durable);
    tree::assert_same(&expected.files, &ground.target(), "");
    server.kill();
}
