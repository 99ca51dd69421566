//! Write-ahead journal of the receiver: its records, and the state that they replay to.
//!
//! As in ARIES (Mohan et al. 1992), order makes it safe: data is written before its record, the record before
//! the report to the service.
//!
//! ```text
//! file:    "LHJR" │ version u16 │ boot id [16] │ crc32c u32 │ record …
//! record:  length of body u8 │ kind u8 │ body │ crc32c u32 of all the bytes of the record before it
//! ```
//!
//! Extents pass two stages. *Written*: handed to the operating system; trusted only until the machine
//! restarts, and after their checksum was read again. *Durable*: flushed to the disk. Replay stops at the
//! first incomplete or damaged record, since a crash tears only the tail.

use std::collections::BTreeMap;

use longhaul_model::Timestamp;
use longhaul_model::digest::PartDigest;

use crate::codec::{FieldReader, Malformed, PutField};
use crate::coverage::Coverage;
use crate::identity::{FileKey, SourceIdentity};

const MAGIC: [u8; 4] = *b"LHJR";
const VERSION: u16 = 1;
/// Magic, version, boot ID and checksum.
pub const HEADER_BYTES: usize = 26;

/// Identifies one boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

/// Identifies where bytes came from: a hash of agent and storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OriginId(pub u64);

/// The source file that the bytes came from, and when they began to arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceOpening {
    /// When they began to arrive, on this machine's clock.
    pub at: Timestamp,
    /// Agent and storage that sent them.
    pub origin: OriginId,
    /// Identity of the source file.
    pub identity: SourceIdentity,
}

/// One record of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Bytes of this file start arriving from the beginning: its earlier records are void.
    Open {
        /// The file.
        key: FileKey,
        /// The source file that the bytes come from.
        opened: SourceOpening,
    },
    /// An extent was handed to the operating system.
    Written {
        /// The file.
        key: FileKey,
        /// Start of the extent, in bytes.
        offset: u64,
        /// Length and checksums of the extent.
        part: PartDigest,
    },
    /// Everything written in this range has been flushed.
    Durable {
        /// The file.
        key: FileKey,
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        len: u64,
    },
    /// A small file, opened and written at once.
    Whole {
        /// The file.
        key: FileKey,
        /// The source file that the bytes come from.
        opened: SourceOpening,
        /// Size and checksums of the file.
        part: PartDigest,
    },
    /// The temporary file is gone: committed or abandoned.
    Closed {
        /// The file.
        key: FileKey,
    },
}

mod kind {
    pub(super) const OPEN: u8 = 1;
    pub(super) const WRITTEN: u8 = 2;
    pub(super) const DURABLE: u8 = 3;
    pub(super) const WHOLE: u8 = 4;
    pub(super) const CLOSED: u8 = 5;
}

impl Record {
    /// Appends the record with its length and checksum.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put(&[0, 0]);
        let kind = self.put_body(out);
        let body_len = out.len() - start - 2;
        assert!(body_len <= usize::from(u8::MAX), "records are small");
        out[start] = body_len as u8;
        out[start + 1] = kind;
        let crc = crc32c::crc32c(&out[start..]);
        out.put_u32(crc);
    }

    fn put_body(&self, out: &mut Vec<u8>) -> u8 {
        match self {
            Record::Open { key, opened } => {
                out.put(&key.0);
                put_opened(opened, out);
                kind::OPEN
            }
            Record::Written { key, offset, part } => {
                out.put(&key.0);
                out.put_u64(*offset);
                put_part(part, out);
                kind::WRITTEN
            }
            Record::Durable { key, offset, len } => {
                out.put(&key.0);
                out.put_u64(*offset);
                out.put_u64(*len);
                kind::DURABLE
            }
            Record::Whole { key, opened, part } => {
                out.put(&key.0);
                put_opened(opened, out);
                put_part(part, out);
                kind::WHOLE
            }
            Record::Closed { key } => {
                out.put(&key.0);
                kind::CLOSED
            }
        }
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Record, Malformed> {
        let mut from = FieldReader::new(body);
        let key = FileKey(from.array()?);
        let record = match kind {
            kind::OPEN => Record::Open { key, opened: read_opened(&mut from)? },
            kind::WRITTEN => Record::Written { key, offset: from.u64()?, part: read_part(&mut from)? },
            kind::DURABLE => Record::Durable { key, offset: from.u64()?, len: from.u64()? },
            kind::WHOLE => {
                Record::Whole { key, opened: read_opened(&mut from)?, part: read_part(&mut from)? }
            }
            kind::CLOSED => Record::Closed { key },
            _ => return Err(Malformed("a record of an unknown kind")),
        };
        from.finish()?;
        Ok(record)
    }
}

fn put_opened(opened: &SourceOpening, out: &mut Vec<u8>) {
    out.put_i64(opened.at.0);
    out.put_u64(opened.origin.0);
    opened.identity.put(out);
}

fn read_opened(from: &mut FieldReader<'_>) -> Result<SourceOpening, Malformed> {
    let (at, origin) = (Timestamp(from.i64()?), OriginId(from.u64()?));
    Ok(SourceOpening { at, origin, identity: SourceIdentity::read(from)? })
}

fn put_part(part: &PartDigest, out: &mut Vec<u8>) {
    out.put_u64(part.len);
    out.put_u32(part.adler32);
    out.put_u32(part.crc32c);
}

fn read_part(from: &mut FieldReader<'_>) -> Result<PartDigest, Malformed> {
    Ok(PartDigest { len: from.u64()?, adler32: from.u32()?, crc32c: from.u32()? })
}

/// Progress of one file under its temporary name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// The source file that the bytes came from.
    pub opened: SourceOpening,
    /// Written and not yet flushed, by offset.
    pub written: BTreeMap<u64, PartDigest>,
    /// Flushed extents.
    pub durable: Coverage,
}

impl JournalEntry {
    /// Keeps only what survives a restart of the machine.
    fn discard_written(&mut self) {
        self.written.clear();
    }
}

/// The state that the records replay to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    entries: BTreeMap<FileKey, JournalEntry>,
}

/// Result of a replay.
#[derive(Debug)]
pub struct ReplayOutcome {
    /// State as of the last intact record.
    pub journal: Journal,
    /// Length of the intact records; what follows is a torn tail.
    pub valid_bytes: usize,
}

impl Journal {
    /// The bytes that a new journal file begins with.
    pub fn header(boot: BootId) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.put_u16(VERSION);
        out.put(&boot.0);
        let crc = crc32c::crc32c(&out);
        out.put_u32(crc);
        out
    }

    /// Replays a journal file. Total: any bytes give the state as of the last intact record, which is empty
    /// without a valid header.
    pub fn replay(bytes: &[u8], boot: BootId) -> ReplayOutcome {
        let mut journal = Journal::default();
        let Some(written_in) = read_header(bytes) else { return ReplayOutcome { journal, valid_bytes: 0 } };
        let mut at = HEADER_BYTES;
        while let Some((record, len)) = read_record(&bytes[at..]) {
            journal.apply(&record);
            at += len;
        }
        if written_in != boot {
            journal.entries.values_mut().for_each(JournalEntry::discard_written);
        }
        ReplayOutcome { journal, valid_bytes: at }
    }

    /// Applies the next record; one about a file that is not open changes nothing.
    pub fn apply(&mut self, record: &Record) {
        match *record {
            Record::Open { key, opened } => {
                self.entries.insert(
                    key,
                    JournalEntry { opened, written: BTreeMap::new(), durable: Coverage::default() },
                );
            }
            Record::Whole { key, opened, part } => {
                let written = [(0, part)].into_iter().collect();
                self.entries.insert(key, JournalEntry { opened, written, durable: Coverage::default() });
            }
            Record::Written { key, offset, part } => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.written.insert(offset, part);
                }
            }
            Record::Durable { key, offset, len } => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    let end = offset.saturating_add(len);
                    let inside: Vec<u64> =
                        entry.written.range(offset..end).map(|(&start, _)| start).collect();
                    for start in inside {
                        if let Some(part) = entry.written.remove(&start) {
                            entry.durable.add(start, part);
                        }
                    }
                }
            }
            Record::Closed { key } => {
                self.entries.remove(&key);
            }
        }
    }

    /// Progress of a file, if there is any.
    pub fn entry(&self, key: &FileKey) -> Option<&JournalEntry> {
        self.entries.get(key)
    }

    /// Progress of all files.
    pub fn entries(&self) -> impl Iterator<Item = (&FileKey, &JournalEntry)> {
        self.entries.iter()
    }

    /// Number of files with progress.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no file has progress.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The shortest list of records that leads to the same state.
    pub fn compacted(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for (&key, entry) in &self.entries {
            records.push(Record::Open { key, opened: entry.opened });
            for (offset, part) in entry.durable.runs() {
                records.push(Record::Written { key, offset, part });
                records.push(Record::Durable { key, offset, len: part.len });
            }
            for (&offset, &part) in &entry.written {
                records.push(Record::Written { key, offset, part });
            }
        }
        records
    }
}

fn read_header(bytes: &[u8]) -> Option<BootId> {
    let mut from = FieldReader::new(bytes.get(..HEADER_BYTES)?);
    let fits = from.array().ok()? == MAGIC && from.u16().ok()? == VERSION;
    let boot = BootId(from.array().ok()?);
    (fits && from.u32().ok()? == crc32c::crc32c(&bytes[..HEADER_BYTES - 4])).then_some(boot)
}

/// Reads the first record, and returns its length.
fn read_record(bytes: &[u8]) -> Option<(Record, usize)> {
    let body_len = usize::from(*bytes.first()?);
    let mut from = FieldReader::new(bytes);
    let framed = from.bytes(2 + body_len).ok()?;
    let crc = from.u32().ok()?;
    if crc32c::crc32c(framed) != crc {
        return None;
    }
    let record = Record::decode(framed[1], &framed[2..]).ok()?;
    Some((record, framed.len() + 4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOOT: BootId = BootId([7; 16]);

    fn any_part() -> impl Strategy<Value = PartDigest> {
        (1u64..4, any::<(u32, u32)>()).prop_map(|(len, (adler32, crc32c))| PartDigest {
            len: len << 20,
            adler32: adler32 % 65_521,
            crc32c,
        })
    }

    fn any_opened() -> impl Strategy<Value = SourceOpening> {
        any::<(i64, u64, u64, i64, u64)>().prop_map(|(at, origin, size, mtime_ns, inode)| SourceOpening {
            at: Timestamp(at),
            origin: OriginId(origin),
            identity: SourceIdentity { size, mtime_ns, inode },
        })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let key = || (0u8..4).prop_map(|n| FileKey([n; 16]));
        let offset = || (0u64..8).prop_map(|n| n << 20);
        prop_oneof![
            (key(), any_opened()).prop_map(|(key, opened)| Record::Open { key, opened }),
            (key(), offset(), any_part()).prop_map(|(key, offset, part)| Record::Written {
                key,
                offset,
                part
            }),
            (key(), offset(), offset()).prop_map(|(key, offset, len)| Record::Durable { key, offset, len }),
            (key(), any_opened(), any_part()).prop_map(|(key, opened, part)| Record::Whole {
                key,
                opened,
                part
            }),
            key().prop_map(|key| Record::Closed { key }),
        ]
    }

    fn file_of(records: &[Record]) -> Vec<u8> {
        let mut bytes = Journal::header(BOOT);
        records.iter().for_each(|record| record.encode(&mut bytes));
        bytes
    }

    #[test]
    fn after_a_reboot_only_flushed_extents_count() {
        let key = FileKey([1; 16]);
        let opened = SourceOpening {
            at: Timestamp(1),
            origin: OriginId(2),
            identity: SourceIdentity { size: 9, mtime_ns: 8, inode: 7 },
        };
        let records = [
            Record::Open { key, opened },
            Record::Written { key, offset: 0, part: PartDigest::compute(b"abc") },
            Record::Durable { key, offset: 0, len: 3 },
            Record::Written { key, offset: 3, part: PartDigest::compute(b"defg") },
        ];
        let bytes = file_of(&records);
        let same = Journal::replay(&bytes, BOOT).journal;
        assert_eq!(same.entry(&key).unwrap().written.len(), 1);
        let other = Journal::replay(&bytes, BootId([8; 16])).journal;
        assert!(other.entry(&key).unwrap().written.is_empty());
        assert_eq!(other.entry(&key).unwrap().durable.covered_bytes(), 3);
        assert!(Journal::replay(b"something else, long enough for a header", BOOT).journal.is_empty());
    }

    proptest! {
        /// Promise 4: wherever a crash tears the journal, exactly the records before the tear are replayed.
        #[test]
        fn a_torn_tail_loses_nothing_before_it(records in proptest::collection::vec(any_record(), 1..12),
            cut in any::<prop::sample::Index>(),
                                         flip in proptest::option::of(0u8..8)) {
            let bytes = file_of(&records);
            let mut ends = vec![HEADER_BYTES];
            for record in &records {
                let mut one = Vec::new();
                record.encode(&mut one);
                ends.push(ends[ends.len() - 1] + one.len());
            }
            let at = HEADER_BYTES + cut.index(bytes.len() - HEADER_BYTES);
            let torn = match flip {
                None => bytes[..at].to_vec(),
                Some(bit) => { let mut torn = bytes.clone(); torn[at] ^= 1 << bit; torn }
            };
            let whole = ends.iter().filter(|&&end| end <= at).count() - 1;
            let replayed = Journal::replay(&torn, BOOT);
            prop_assert_eq!(replayed.valid_bytes, ends[whole]);
            prop_assert_eq!(replayed.journal, Journal::replay(&file_of(&records[..whole]), BOOT).journal);
        }

        #[test]
        fn compaction_keeps_the_state(records in proptest::collection::vec(any_record(), 0..40)) {
            let journal = Journal::replay(&file_of(&records), BOOT).journal;
            prop_assert_eq!(Journal::replay(&file_of(&journal.compacted()), BOOT).journal, journal);
        }

        #[test]
        fn random_bytes_never_panic(tail in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = Journal::header(BOOT);
            bytes.extend_from_slice(&tail);
            let _ = Journal::replay(&bytes, BOOT);
            let _ = Journal::replay(&tail, BOOT);
        }
    }
}
