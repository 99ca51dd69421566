//! Write-ahead log: an append-only file of checksummed records that survives any crash.
//!
//! One record a line: eight hexadecimal digits of the payload's CRC-32C, a space, the payload (JSON, hence
//! without a newline), a newline. A torn tail after the last good line is cut off when the file is opened. A
//! flushed record is never behind a torn one, since each flush ends before the next append begins.
//!
//! Not here: what the records mean (`outbox_log`, `tasks::cache`, `tape`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_api::client::REPLY_BYTES_MAX;

/// Longest record: a whole reply of the service, as we write it.
const RECORD_BYTES_MAX: usize = 2 * REPLY_BYTES_MAX;
/// Bytes before the payload: the checksum's digits and a space.
const HEAD_BYTES: usize = 9;

pub(crate) struct RecordLog {
    file: File,
    path: PathBuf,
    /// End of the last good record.
    bytes: u64,
    /// A write or flush failed: what the file holds after `bytes`, or holds durably, is unknown.
    broken: bool,
}

/// Result of opening a log.
pub(crate) struct OpenedLog {
    pub log: RecordLog,
    /// Bytes after the last good record that were cut off.
    pub cut_bytes: u64,
}

impl RecordLog {
    /// Opens or creates the file and passes each payload, with the offset of its line, to `each`.
    pub(crate) fn open(
        path: &Path,
        mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<OpenedLog> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let length = file.metadata()?.len();
        let mut reader = BufReader::with_capacity(1 << 16, &file);
        let mut bytes = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut reader).take(RECORD_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
            let Some(payload) = decode(&line) else { break };
            each(bytes, payload)?;
            bytes += read as u64;
        }
        drop(reader);
        if bytes < length {
            file.set_len(bytes)?;
            file.sync_data()?;
        }
        let log = RecordLog { file, path: path.into(), bytes, broken: false };
        Ok(OpenedLog { log, cut_bytes: length - bytes })
    }

    /// Appends records; with `flush` they are durable on return. After an error nothing counts as written,
    /// and the log refuses everything but [`RecordLog::replace`]: after a failed fsync the next one may
    /// falsely succeed.
    pub(crate) fn append<P: AsRef<[u8]>>(&mut self, payloads: &[P], flush: bool) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier write failed"));
        }
        let mut lines = Vec::new();
        payloads.iter().for_each(|payload| encode(payload.as_ref(), &mut lines));
        let written = self.file.write_all_at(&lines, self.bytes);
        let result = written.and_then(|()| if flush { self.file.sync_data() } else { Ok(()) });
        match &result {
            Ok(()) => self.bytes += lines.len() as u64,
            Err(_) => self.broken = true,
        }
        result
    }

    /// Atomically replaces the file by one with these records; durable on return.
    pub(crate) fn replace<P: AsRef<[u8]>>(&mut self, payloads: impl Iterator<Item = P>) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        let mut lines = Vec::new();
        let mut bytes = 0;
        for payload in payloads {
            encode(payload.as_ref(), &mut lines);
            if lines.len() >= 1 << 20 {
                file.write_all_at(&lines, bytes)?;
                bytes += lines.len() as u64;
                lines.clear();
            }
        }
        file.write_all_at(&lines, bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &self.path)?;
        if let Some(directory) = self.path.parent() {
            File::open(directory)?.sync_all()?;
        }
        self.file = file;
        self.bytes = bytes + lines.len() as u64;
        self.broken = false;
        Ok(())
    }

    /// The payload of the line at `offset`, if there is a good one.
    pub(crate) fn read_at(&self, offset: u64) -> io::Result<Option<Vec<u8>>> {
        let mut line = Vec::new();
        let mut piece = [0; 1024];
        while line.len() < RECORD_BYTES_MAX {
            let read = self.file.read_at(&mut piece, offset + line.len() as u64)?;
            let end = piece[..read].iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(&piece[..end.map_or(read, |end| end + 1)]);
            if end.is_some() || read == 0 {
                break;
            }
        }
        Ok(decode(&line).map(<[u8]>::to_vec))
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }
}

fn encode(payload: &[u8], out: &mut Vec<u8>) {
    assert!(!payload.contains(&b'\n'), "a record is one line");
    assert!(payload.len() + HEAD_BYTES < RECORD_BYTES_MAX, "a record has a bound");
    out.extend_from_slice(format!("{:08x} ", crc32c::crc32c(payload)).as_bytes());
    out.extend_from_slice(payload);
    out.push(b'\n');
}

/// The payload of a line, if it is complete and undamaged.
fn decode(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (head, payload) = line.split_at_checked(HEAD_BYTES)?;
    (head == format!("{:08x} ", crc32c::crc32c(payload)).as_bytes()).then_some(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(path: &Path) -> (Vec<Vec<u8>>, OpenedLog) {
        let mut payloads = Vec::new();
        let opened = RecordLog::open(path, |_, payload| {
            payloads.push(payload.to_vec());
            Ok(())
        });
        (payloads, opened.unwrap())
    }

    /// Promise 3, 5: whatever byte the disk stopped at, all whole records before it are there, and the log
    /// goes on.
    #[test]
    fn every_cut_leaves_the_whole_records_before_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let records = ["one", "", "{\"three\":3}", "four"];
        let mut ends = vec![0];
        let (_, mut opened) = read(&path);
        for record in records {
            opened.log.append(&[record], true).unwrap();
            ends.push(opened.log.bytes());
        }
        let whole = fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            let (found, mut opened) = read(&path);
            let complete = ends.iter().filter(|&&end| end <= cut as u64).count() - 1;
            assert_eq!(found, records[..complete].iter().map(|r| r.as_bytes().to_vec()).collect::<Vec<_>>());
            assert_eq!(opened.cut_bytes, cut as u64 - ends[complete]);
            opened.log.append(&["next"], false).unwrap();
            assert_eq!(read(&path).0.len(), complete + 1, "cut at {cut}");
        }
    }

    #[test]
    fn replacing_is_all_or_nothing_and_offsets_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (_, mut opened) = read(&path);
        opened.log.append(&["old"], true).unwrap();
        fs::write(path.with_extension("new"), "left by a killed process").unwrap();
        assert_eq!(read(&path).0, [b"old"]);
        opened.log.replace(["a", "bb"].iter()).unwrap();
        opened.log.append(&["ccc"], true).unwrap();
        let mut offsets = Vec::new();
        let reopened = RecordLog::open(&path, |offset, _| {
            offsets.push(offset);
            Ok(())
        })
        .unwrap();
        let texts: Vec<_> = offsets.iter().map(|&at| reopened.log.read_at(at).unwrap().unwrap()).collect();
        assert_eq!(texts, [&b"a"[..], b"bb", b"ccc"]);
        assert_eq!(reopened.log.read_at(1).unwrap(), None);
    }

    proptest! {
        #[test]
        fn a_flipped_byte_is_noticed(payload in "[ -~]{0,60}", at in 0usize..70, flip in 1u8..) {
            let mut line = Vec::new();
            encode(payload.as_bytes(), &mut line);
            prop_assert_eq!(decode(&line), Some(payload.as_bytes()));
            let at = at % line.len();
            line[at] ^= flip;
            prop_assert_eq!(decode(&line), None);
        }

        #[test]
        fn garbage_is_no_record(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("log");
            fs::write(&path, &bytes).unwrap();
            prop_assert_eq!(read(&path).0.len(), 0);
        }
    }
}
