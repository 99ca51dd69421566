//! What waits for brokers, on disk: segments of records in their order, and for each way how far it has come.
//!
//! ```text
//! DIR/00065d…​.spool    records; a torn end is what was never durable
//!     stomp.cursor     the number of the next record that this way has to publish
//! ```
//!
//! A record is durable when [`Spool::append`] returns. It goes when all ways have published it, when it is
//! too old to be of use, or, as the last resort, when there is no room: then the oldest goes, and that is
//! told. The calls block.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use longhaul_api::fts::Message;
use longhaul_model::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::record::{DecodeResult, Record};

const SUFFIX: &str = "spool";
const SEGMENT_BYTES_MAX: u64 = 8 << 20;
/// Records that are read at once.
const READ_BYTES: usize = 512 << 10;
pub const BATCH_MAX: usize = 200;

pub struct Spool {
    directory: PathBuf,
    bytes_max: u64,
    expire: Duration,
    inner: Mutex<Inner>,
    grown: watch::Sender<u64>,
}

struct Inner {
    segments: VecDeque<Segment>,
    /// File of the last segment, if this process began it.
    writer: Option<File>,
    next: u64,
    cursors: BTreeMap<&'static str, u64>,
    dropped: u64,
    dropped_at: Option<Timestamp>,
}

struct Segment {
    first: u64,
    path: PathBuf,
    /// Durable ones.
    bytes: u64,
    newest: Timestamp,
}

/// Where one way reads. Its beginning is what its cursor says.
pub struct Reader {
    way: &'static str,
    segment: u64,
    offset: u64,
    number: u64,
}

impl Spool {
    /// `ways`: by whom all is to be published before it goes.
    pub fn open(
        directory: &Path,
        (bytes_max, expire): (u64, Duration),
        ways: &[&'static str],
        now: Timestamp,
    ) -> io::Result<Spool> {
        DirBuilder::new().mode(0o700).recursive(true).create(directory)?;
        let segments = segments(directory)?;
        let mut cursors = BTreeMap::new();
        for &way in ways {
            // A damaged cursor begins at the oldest: twice is better than never.
            let text = fs::read_to_string(cursor_path(directory, way)).unwrap_or_default();
            cursors.insert(way, text.trim().parse().unwrap_or(0));
        }
        // Beyond all that was given out, also where the spool was taken away.
        let known = segments.iter().map(|segment| segment.first + segment.bytes).max().unwrap_or(0);
        let clock = u64::try_from(now.as_micros()).unwrap_or(0);
        let next = known.max(clock).max(cursors.values().copied().max().unwrap_or(0));
        let inner = Inner { segments, writer: None, next, cursors, dropped: 0, dropped_at: None };
        Ok(Spool {
            directory: directory.to_owned(),
            bytes_max,
            expire,
            inner: Mutex::new(inner),
            grown: watch::Sender::new(next),
        })
    }

    /// All of them are on disk, in this order, when this returns well; otherwise none counts.
    pub fn append(&self, messages: Vec<Message>, now: Timestamp) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let mut bytes = Vec::new();
        let mut next = inner.next;
        for message in messages {
            Record { number: next, at: now, kind: message.kind, vo: message.vo, body: message.body }
                .encode(&mut bytes);
            next += 1;
        }
        if next == inner.next {
            return Ok(());
        }
        self.drop_old(&mut inner, now)?;
        self.make_room(&mut inner, bytes.len() as u64, now)?;
        let written = self.write(&mut inner, &bytes, now);
        if written.is_err() {
            // What a failed write left has no place that we know: the next begins a file of its own.
            inner.writer = None;
            inner.next = next;
            return written;
        }
        inner.next = next;
        drop(inner);
        self.grown.send_replace(next);
        Ok(())
    }

    fn write(&self, inner: &mut Inner, bytes: &[u8], now: Timestamp) -> io::Result<()> {
        let full = inner.segments.back().is_some_and(|last| last.bytes >= self.segment_bytes());
        if full || inner.writer.is_none() {
            let first = inner.next;
            let path = self.directory.join(format!("{first:016x}.{SUFFIX}"));
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            File::open(&self.directory)?.sync_all()?;
            inner.segments.push_back(Segment { first, path, bytes: 0, newest: now });
            inner.writer = Some(file);
        }
        let (Some(file), Some(segment)) = (&mut inner.writer, inner.segments.back_mut()) else {
            return Ok(());
        };
        file.write_all(bytes)?;
        file.sync_data()?;
        segment.bytes += bytes.len() as u64;
        segment.newest = now;
        Ok(())
    }

    fn segment_bytes(&self) -> u64 {
        SEGMENT_BYTES_MAX.min(self.bytes_max / 8)
    }

    /// The oldest go until there is room: what is new is worth more, and order is kept.
    fn make_room(&self, inner: &mut Inner, more: u64, now: Timestamp) -> io::Result<()> {
        while inner.bytes() + more > self.bytes_max && !inner.segments.is_empty() {
            self.drop_first(inner, now)?;
        }
        Ok(())
    }

    fn drop_old(&self, inner: &mut Inner, now: Timestamp) -> io::Result<()> {
        while inner.segments.front().is_some_and(|segment| now.since(segment.newest) > self.expire) {
            self.drop_first(inner, now)?;
        }
        Ok(())
    }

    fn drop_first(&self, inner: &mut Inner, now: Timestamp) -> io::Result<()> {
        let Some(segment) = inner.segments.pop_front() else { return Ok(()) };
        if inner.segments.is_empty() {
            inner.writer = None;
        }
        let behind = inner.cursors.values().copied().min().unwrap_or(0);
        let bytes = fs::read(&segment.path).unwrap_or_default();
        let lost = records(&bytes).0.iter().filter(|record| record.number >= behind).count() as u64;
        if lost > 0 {
            tracing::error!(lost, "messages were dropped before a broker had them");
        }
        if lost > 0 {
            inner.dropped_at = inner.dropped_at.or(Some(now));
        }
        inner.dropped += lost;
        remove(&segment.path)
    }

    pub fn reader(&self, way: &'static str) -> Reader {
        let inner = self.inner.lock();
        let number = inner.cursors.get(way).copied().unwrap_or(0);
        let segment = inner.segments.iter().rev().find(|segment| segment.first <= number);
        Reader { way, segment: segment.map_or(0, |segment| segment.first), offset: 0, number }
    }

    /// The next records, in order; none: there is nothing now. The same come again until [`Spool::done`].
    pub fn read(&self, reader: &mut Reader) -> io::Result<Vec<Record>> {
        let (mut segment, mut offset) = (reader.segment, reader.offset);
        loop {
            let Some((at, path, bytes)) = self.segment_from(segment) else { return Ok(Vec::new()) };
            if at != segment {
                (segment, offset) = (at, 0);
            }
            let piece = match read_piece(&path, offset, bytes, READ_BYTES) {
                // It was dropped a moment ago.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    segment = at + 1;
                    continue;
                }
                piece => piece?,
            };
            let (mut found, used) = records(&piece);
            if used == 0 {
                // Its end, or damage behind which nothing can be told apart.
                if offset < bytes {
                    tracing::warn!(segment = %path.display(), offset, "the rest of a file of messages cannot \
                        be read");
                }
                segment = at + 1;
                if self.segment_from(segment).is_none() {
                    return Ok(Vec::new());
                }
                continue;
            }
            found.retain(|record| record.number >= reader.number);
            if found.is_empty() {
                offset += used as u64;
                continue;
            }
            found.truncate(BATCH_MAX);
            (reader.segment, reader.offset) = (segment, offset);
            return Ok(found);
        }
    }

    /// A way has published these: they do not come again.
    pub fn done(&self, reader: &mut Reader, records: &[Record]) -> io::Result<()> {
        let Some(last) = records.last() else { return Ok(()) };
        reader.number = last.number + 1;
        let mut inner = self.inner.lock();
        inner.cursors.insert(reader.way, reader.number);
        let behind = inner.cursors.values().copied().min().unwrap_or(0);
        while inner.segments.len() > 1 && inner.segments.get(1).is_some_and(|second| second.first <= behind) {
            if let Some(segment) = inner.segments.pop_front() {
                remove(&segment.path)?;
            }
        }
        drop(inner);
        let path = cursor_path(&self.directory, reader.way);
        let new = path.with_extension("new");
        fs::write(&new, format!("{}\n", reader.number))?;
        fs::rename(new, path)
    }

    /// The segment of that number, or the one that follows.
    fn segment_from(&self, number: u64) -> Option<(u64, PathBuf, u64)> {
        let inner = self.inner.lock();
        let segment = inner.segments.iter().find(|segment| segment.first >= number)?;
        Some((segment.first, segment.path.clone(), segment.bytes))
    }

    /// Changes when there is more.
    pub fn grown(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    pub fn bytes(&self) -> u64 {
        self.inner.lock().bytes()
    }

    /// Messages that went before some broker had them.
    pub fn dropped(&self) -> u64 {
        self.inner.lock().dropped
    }

    /// When the first of them went.
    pub fn dropped_at(&self) -> Option<Timestamp> {
        self.inner.lock().dropped_at
    }
}

impl Inner {
    fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }
}

/// What lies there, oldest first. Files of other names are left alone.
fn segments(directory: &Path) -> io::Result<VecDeque<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if path.extension().is_none_or(|extension| extension != SUFFIX) {
            continue;
        }
        let Ok(first) = u64::from_str_radix(stem, 16) else { continue };
        let bytes = fs::metadata(&path)?.len();
        found.push(Segment { first, path, bytes, newest: Timestamp::MAX });
    }
    found.sort_by_key(|segment| segment.first);
    // A file's newest is no newer than the first of the next one. Times of files are not ours to believe.
    let mut next = None;
    for segment in found.iter_mut().rev() {
        let all = next.is_none();
        let records =
            records(&read_piece(&segment.path, 0, segment.bytes, if all { usize::MAX } else { 1 })?).0;
        let newest = next.or(records.last().map(|record| record.at));
        next = records.first().map(|record| record.at).or(next);
        segment.newest = newest.unwrap_or(Timestamp::ZERO);
    }
    Ok(found.into())
}

fn cursor_path(directory: &Path, way: &str) -> PathBuf {
    directory.join(format!("{way}.cursor"))
}

/// So many bytes, or as many as the first record has.
fn read_piece(path: &Path, offset: u64, bytes: u64, mut wanted: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    let left = bytes.saturating_sub(offset);
    let mut piece = Vec::new();
    loop {
        let more = (wanted.saturating_sub(piece.len()) as u64).min(left - piece.len() as u64);
        if Read::by_ref(&mut file).take(more).read_to_end(&mut piece)? == 0 {
            return Ok(piece);
        }
        match Record::decode(&piece) {
            DecodeResult::More(needed) if needed > piece.len() => wanted = needed,
            _ => return Ok(piece),
        }
    }
}

/// Whole records, and how many bytes they take.
fn records(bytes: &[u8]) -> (Vec<Record>, usize) {
    let (mut found, mut at) = (Vec::new(), 0);
    while let DecodeResult::Record(record, length) = Record::decode(&bytes[at..]) {
        found.push(record);
        at += length;
    }
    (found, at)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "spool_tests.rs"]
mod tests;
