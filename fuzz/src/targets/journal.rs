//! The receiver's journal as it may lie on a disk after any crash, or after anything else.

use longhaul_model::Timestamp;
use longhaul_model::digest::PartDigest;
use longhaul_wire::journal::{BootId, HEADER_BYTES, Journal, OriginId, Record, SourceOpening};
use longhaul_wire::{FileKey, SourceIdentity};

use super::dice::Dice;

const BOOT: BootId = BootId([7; 16]);
const OTHER_BOOT: BootId = BootId([8; 16]);

/// Any bytes, behind a good header and without one.
pub fn journal_bytes(bytes: &[u8]) {
    check(bytes);
    let mut headed = Journal::header(BOOT);
    headed.extend_from_slice(bytes);
    check(&headed);
    // With good checksums, so that what is in the records is looked at.
    let mut sealed = Journal::header(BOOT);
    for body in bytes.chunks(64) {
        let (kind, body) = (body[0], &body[1..]);
        let start = sealed.len();
        sealed.push(body.len() as u8);
        sealed.push(kind);
        sealed.extend_from_slice(body);
        let crc = PartDigest::compute(&sealed[start..]).crc32c;
        sealed.extend_from_slice(&crc.to_le_bytes());
    }
    check(&sealed);
}

fn check(bytes: &[u8]) {
    for boot in [BOOT, OTHER_BOOT] {
        let replayed = Journal::replay(bytes, boot);
        assert!(replayed.valid_bytes <= bytes.len());
        // What makes sense makes the same sense without the rest.
        let again = Journal::replay(&bytes[..replayed.valid_bytes], boot);
        assert_eq!(again.valid_bytes, replayed.valid_bytes);
        assert_eq!(again.journal, replayed.journal);
        compaction_keeps(&replayed.journal);
        if boot == OTHER_BOOT && replayed.valid_bytes > 0 && bytes[6..22] == BOOT.0 {
            let clean = replayed.journal.entries().all(|(_, entry)| entry.written.is_empty());
            assert!(clean, "after a restart of the machine only what was flushed counts");
        }
    }
}

/// A journal that is written anew says the same.
fn compaction_keeps(journal: &Journal) {
    let mut compacted = Journal::header(BOOT);
    journal.compacted().iter().for_each(|record| record.encode(&mut compacted));
    let again = Journal::replay(&compacted, BOOT);
    assert_eq!(again.valid_bytes, compacted.len());
    assert_eq!(again.journal, *journal);
}

/// Histories of records, torn and damaged: what stands before the tear is known, and nothing else (Promise
/// 4).
pub fn journal_records(bytes: &[u8]) {
    let mut dice = Dice::new(bytes);
    let (tear, damage) = (dice.number() as usize, dice.byte());
    let mut file = Journal::header(BOOT);
    let (mut ends, mut journal) = (vec![file.len()], vec![Journal::default()]);
    let mut state = Journal::default();
    while !dice.is_empty() && ends.len() < 64 {
        let record = record(&mut dice);
        record.encode(&mut file);
        state.apply(&record);
        ends.push(file.len());
        journal.push(state.clone());
    }
    let at = HEADER_BYTES + tear % (file.len() - HEADER_BYTES + 1);
    if damage == 0 || at == file.len() {
        file.truncate(at);
    } else {
        file[at] ^= damage;
    }
    let whole = ends.iter().filter(|&&end| end <= at).count() - 1;
    let replayed = Journal::replay(&file, BOOT);
    assert_eq!(replayed.valid_bytes, ends[whole]);
    assert_eq!(replayed.journal, journal[whole]);
    compaction_keeps(&replayed.journal);
    for (_, entry) in replayed.journal.entries() {
        let gaps: u64 = entry.durable.gaps(1 << 40).iter().map(|gap| gap.1).sum();
        assert!(gaps <= 1 << 40);
    }
}

/// As a receiver writes them: records about few files, extents at few places.
fn record(dice: &mut Dice<'_>) -> Record {
    let key = FileKey([dice.below(3); 16]);
    let offset = u64::from(dice.below(8)) << 20;
    let part = PartDigest {
        len: 1 + u64::from(dice.below(3)),
        adler32: dice.byte().into(),
        crc32c: dice.byte().into(),
    };
    let identity = SourceIdentity { size: offset, mtime_ns: i64::from(dice.byte()), inode: 1 };
    let opened = SourceOpening { at: Timestamp(1), origin: OriginId(2), identity };
    match dice.below(8) {
        0 => Record::Open { key, opened },
        1 => Record::Whole { key, opened, part },
        2 => Record::Closed { key },
        3 | 4 => Record::Durable { key, offset, len: u64::from(dice.below(4)) << 20 },
        _ => Record::Written { key, offset, part },
    }
}
