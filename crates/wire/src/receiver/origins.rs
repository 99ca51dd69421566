//! Several sources of the same files in parallel (swarming, as BitTorrent): which of them may be asked for a
//! chunk.
//!
//! A file from several sources has to be *checked*: the writer verifies each chunk against a digest known
//! beforehand, so it does not matter which source a chunk came from. A chunk that was wrong at one source is
//! requested from the others. A file fails when no source is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::limits::CHUNK_BYTES;
use longhaul_model::{Fault, FaultCode};

use super::overdue_files::OverdueFiles;
use super::streams::{State, Stream};
use super::{Output, Receiver, StreamNumber};
use crate::frame::{BatchId, FileNumber};
use crate::limits::{
    RECONNECT_FOR, STALL_BYTES_MIN, STALL_MAX, WRONG_CHUNKS_ONE_IN, WRONG_CHUNKS_PER_FILE_MAX,
    WRONG_CHUNKS_PER_ORIGIN_MAX, WRONG_TRIES_MAX,
};
use crate::path::StreamCountTuner;

/// Most sources of one file at once: one bit each in a `u16`.
pub const ORIGINS_MAX: usize = 16;

/// Position of a source in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginNumber(pub u8);

/// What the session knows about one of its sources.
pub(super) struct Origin {
    /// Number of streams to use; surplus ones close when they have answered.
    pub(super) wanted_streams: usize,
    /// Tunes `wanted_streams`; none if their number is fixed.
    pub(super) tuner: Option<StreamCountTuner>,
    pub(super) tuned_at: Duration,
    pub(super) announced_files: usize,
    /// Batches that the source may forget, not yet sent.
    pub(super) pending_forgets: Vec<(BatchId, BTreeSet<StreamNumber>)>,
    /// Incarnation of the session at the source.
    pub(super) incarnation: Option<u64>,
    /// Since when there has been no stream, or one fell silent, without any useful answer since. A welcome
    /// alone is not useful: a peer may fall silent after each.
    pub(super) cut_off_since: Option<Duration>,
    /// How long the source may be cut off before it counts as unreachable.
    pub(super) reconnect_for: Duration,
    pub(super) last_fault: Option<Fault>,
    progress_at: Duration,
    /// Payload since `progress_at`.
    bytes_since_progress: u64,
    /// Files that it does not send while it sends others.
    pub(super) overdue: OverdueFiles,
    /// It was cut off for too long. It is still dialled: it may come back while others deliver the files.
    pub(super) unreachable: Option<Fault>,
    /// It is of no use, and not dialled.
    pub(super) excluded: bool,
    /// Chunks and small files from there that were verified.
    checked_chunks: usize,
    /// How many of them were wrong.
    wrong_chunks: usize,
}

impl Origin {
    pub(super) fn new(streams: usize, now: Duration) -> Origin {
        Origin {
            wanted_streams: streams,
            tuner: None,
            tuned_at: now,
            announced_files: 0,
            pending_forgets: Vec::new(),
            incarnation: None,
            cut_off_since: None,
            reconnect_for: RECONNECT_FOR,
            last_fault: None,
            progress_at: now,
            bytes_since_progress: 0,
            overdue: OverdueFiles::default(),
            unreachable: None,
            excluded: false,
            checked_chunks: 0,
            wrong_chunks: 0,
        }
    }

    pub(super) fn note_progress(&mut self, now: Duration) {
        (self.progress_at, self.bytes_since_progress) = (now, 0);
    }

    /// Payload that continues an earlier chunk: progress only if there is enough of it.
    pub(super) fn note_trickle(&mut self, bytes: u64, now: Duration) {
        self.bytes_since_progress = self.bytes_since_progress.saturating_add(bytes);
        if self.bytes_since_progress >= STALL_BYTES_MIN {
            self.note_progress(now);
        }
    }

    pub(super) fn is_stalled(&self, now: Duration) -> bool {
        now.saturating_sub(self.progress_at) >= STALL_MAX
    }

    pub(super) fn cut_off_fault(&self) -> Fault {
        let why = self.last_fault.as_ref().map_or("no connection".to_owned(), |fault| fault.to_string());
        match (&self.last_fault, self.incarnation) {
            (Some(fault), _) if fault.code == FaultCode::Stalled => fault.clone(),
            (_, Some(_)) => Fault::new(FaultCode::ConnectionLost, why),
            (_, None) => self.last_fault.clone().unwrap_or_else(|| Fault::new(FaultCode::Unreachable, why)),
        }
    }

    /// The source proved useful.
    pub(super) fn mark_reachable(&mut self) {
        self.cut_off_since = None;
        self.unreachable = None;
    }
}

/// The sources of one file.
pub(super) struct FileSources {
    /// One bit per source.
    origins: u16,
    /// The writer knows the digest of each chunk.
    pub(super) checked: bool,
    /// Number of chunks from each source.
    chunks_by_origin: BTreeMap<u8, usize>,
    /// Wrong chunks: offset and source, with the number of tries.
    wrong_tries: BTreeMap<(u64, u8), u8>,
}

impl FileSources {
    /// Only a checked file may come from several sources.
    pub(super) fn new(offered: impl Iterator<Item = OriginNumber>, checked: bool) -> FileSources {
        let most = if checked { ORIGINS_MAX } else { 1 };
        let origins = offered.take(most).fold(0, |bits, origin| bits | 1 << origin.0);
        FileSources { origins, checked, chunks_by_origin: BTreeMap::new(), wrong_tries: BTreeMap::new() }
    }

    pub(super) fn contains(&self, origin: OriginNumber) -> bool {
        self.origins >> origin.0 & 1 > 0
    }

    fn tries_at(&self, offset: u64, origin: u8) -> u8 {
        self.wrong_tries.get(&(offset, origin)).copied().unwrap_or(0)
    }

    /// The lowest number of wrong tries of a chunk at any of these sources.
    fn fewest_tries(&self, offset: u64, origins: u16) -> Option<u8> {
        let among = (0..ORIGINS_MAX as u8).filter(|origin| origins >> origin & 1 > 0);
        among.map(|origin| self.tries_at(offset, origin)).min()
    }

    /// Whether this source may be asked for a chunk: not where it was wrong, as long as another live source
    /// may have it.
    pub(super) fn may_request(&self, offset: u64, origin: OriginNumber, alive: u16) -> bool {
        if !self.contains(origin) {
            return false;
        }
        if self.wrong_tries.is_empty() {
            return true;
        }
        let others = self.origins & (alive | 1 << origin.0);
        Some(self.tries_at(offset, origin.0)) == self.fewest_tries(offset, others)
    }

    /// Whether this source is worth waiting for, with regard to this chunk.
    fn may_supply(&self, offset: Option<u64>, origin: OriginNumber) -> bool {
        self.contains(origin) && offset.is_none_or(|offset| self.tries_at(offset, origin.0) < WRONG_TRIES_MAX)
    }

    /// A chunk that was wrong at every source that can be reached.
    fn unobtainable_chunk(&self, alive: u16) -> Option<u64> {
        let tried_out = |&offset: &u64| {
            self.fewest_tries(offset, self.origins & alive).is_none_or(|fewest| fewest >= WRONG_TRIES_MAX)
        };
        self.wrong_tries.keys().map(|(offset, _)| *offset).find(tried_out)
    }

    /// The number of wrong chunks from there, if it is too high to go on with this source.
    fn excess_wrong_chunks(&self, origin: u8) -> Option<usize> {
        let wrong = self.wrong_tries.keys().filter(|(_, of)| *of == origin).count();
        let taken = self.chunks_by_origin.get(&origin).copied().unwrap_or(0);
        is_excess(wrong, WRONG_CHUNKS_PER_FILE_MAX, taken).then_some(wrong)
    }
}

/// A few wrong chunks do not disqualify a source: no other may have the rest of the file.
fn is_excess(wrong: usize, most: usize, taken: usize) -> bool {
    wrong >= most && wrong * WRONG_CHUNKS_ONE_IN >= taken
}

impl Receiver {
    /// Creates a session with several sources.
    ///
    /// # Panics
    /// If there are none, or more than [`ORIGINS_MAX`].
    pub fn with_origins(origins: usize, streams: usize, now: Duration) -> Self {
        assert!((1..=ORIGINS_MAX).contains(&origins), "a session needs 1 to {ORIGINS_MAX} sources");
        let mut receiver = Receiver::new(streams, now);
        for origin in 1..origins {
            receiver.origins.push(Origin::new(streams, now));
            let number = OriginNumber(origin as u8);
            receiver.streams.extend((0..streams).map(|_| Stream::new(number)));
        }
        receiver
    }

    /// The source that the stream connects to.
    pub fn origin_of(&self, stream: StreamNumber) -> OriginNumber {
        self.streams.get(stream.0 as usize).map_or(OriginNumber(0), |stream| stream.origin)
    }

    pub(super) fn origin(&mut self, origin: OriginNumber) -> &mut Origin {
        &mut self.origins[usize::from(origin.0)]
    }

    pub(super) fn all_origins(&self) -> impl Iterator<Item = OriginNumber> + use<> {
        (0..self.origins.len()).map(|origin| OriginNumber(origin as u8))
    }

    pub(super) fn streams_of(&self, origin: OriginNumber) -> impl Iterator<Item = &Stream> {
        self.streams.iter().filter(move |stream| stream.origin == origin)
    }

    pub(super) fn slots_of(&self, origin: OriginNumber) -> usize {
        self.streams_of(origin).map(Stream::slots).sum()
    }

    /// One bit for each reachable source.
    pub(super) fn alive(&self) -> u16 {
        let alive = |origin: &Origin| origin.unreachable.is_none() && !origin.excluded;
        let origins = self.origins.iter().enumerate().filter(|(_, origin)| alive(origin));
        origins.fold(0, |bits, (place, _)| bits | 1 << place)
    }

    /// Counts a chunk (or whole small file) that will be verified.
    pub(super) fn note_taken(&mut self, number: FileNumber, from: OriginNumber) {
        if let Some(file) = self.files.get_mut(&number)
            && file.sources.checked
        {
            *file.sources.chunks_by_origin.entry(from.0).or_default() += 1;
            self.origins[usize::from(from.0)].checked_chunks += 1;
        }
    }

    /// A chunk (or whole small file) has the checksum that its source declared, but not the content of the
    /// file.
    pub fn chunk_wrong(&mut self, number: FileNumber, offset: u64, from: OriginNumber, now: Duration) {
        let Some(file) = self.files.get_mut(&number) else { return };
        let tries = file.sources.wrong_tries.entry((offset, from.0)).or_insert(0);
        *tries = tries.saturating_add(1);
        file.body.requeue_chunk(offset, file.size);
        let useless = file.sources.excess_wrong_chunks(from.0);
        self.enqueue(number);
        if let Some(wrong) = useless {
            let detail = format!("{wrong} chunks from there were not those of the file");
            self.exclude_source(number, from, Fault::new(FaultCode::WrongDigest, detail), now);
        }
        self.check_sources(number, now);
        let origin = self.origin(from);
        origin.wrong_chunks += 1;
        let wrong = origin.wrong_chunks;
        if is_excess(wrong, WRONG_CHUNKS_PER_ORIGIN_MAX, origin.checked_chunks) && self.origins.len() > 1 {
            let detail = format!("{wrong} chunks from there were wrong");
            self.exclude_origin(from, &Fault::new(FaultCode::WrongDigest, detail), now);
        }
    }

    /// The source is no longer used for the file. The file fails if it was the last one.
    pub(super) fn exclude_source(
        &mut self,
        number: FileNumber,
        origin: OriginNumber,
        fault: Fault,
        now: Duration,
    ) {
        let Some(file) = self.files.get_mut(&number) else { return };
        if !file.sources.contains(origin) {
            return;
        }
        if file.sources.origins == 1 << origin.0 {
            return self.fail_file(number, fault, now);
        }
        file.sources.origins &= !(1 << origin.0);
        self.outputs.push_back(Output::SourceExcluded { file: number, origin, fault });
        self.check_sources(number, now);
    }

    /// Fails a file that no source can deliver.
    pub(super) fn check_sources(&mut self, number: FileNumber, now: Duration) {
        let alive = self.alive();
        let Some(file) = self.files.get(&number) else { return };
        let wrong = file.sources.unobtainable_chunk(alive);
        if file.sources.origins & alive != 0 && wrong.is_none() {
            return;
        }
        // An unreachable source may have it: then another attempt is worthwhile.
        let mut away = self.all_origins().filter(|origin| file.sources.may_supply(wrong, *origin));
        let gone = away.find_map(|origin| self.origins[usize::from(origin.0)].unreachable.clone());
        let fault = gone.or_else(|| {
            let offset = wrong?;
            let end = (offset + u64::from(CHUNK_BYTES)).min(file.size);
            let detail =
                format!("bytes {offset} to {end} are not those of the file, wherever they were asked for");
            Some(Fault::new(FaultCode::WrongDigest, detail))
        });
        if let Some(fault) = fault {
            self.fail_file(number, fault, now);
        }
    }

    fn check_all_sources(&mut self, now: Duration) {
        let numbers: Vec<FileNumber> = self.files.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.check_sources(number, now));
    }

    /// Checks new files while some of the sources are unreachable.
    pub(super) fn check_new_files(&mut self, first: FileNumber, now: Duration) {
        if self.origins.iter().any(|origin| origin.unreachable.is_some()) {
            let numbers: Vec<FileNumber> = self.files.range(first..).map(|(number, _)| *number).collect();
            numbers.into_iter().for_each(|number| self.check_sources(number, now));
        }
    }

    /// The source was cut off for so long that files which only it has fail.
    pub(super) fn mark_unreachable(&mut self, origin: OriginNumber, fault: Fault, now: Duration) {
        self.origin(origin).unreachable = Some(fault);
        self.check_all_sources(now);
    }

    /// A fault concerns the source as a whole: nothing more is requested from it.
    pub(super) fn exclude_origin(&mut self, origin: OriginNumber, fault: &Fault, now: Duration) {
        if self.origins.len() == 1 {
            return self.fail_all(fault, now);
        }
        self.origin(origin).excluded = true;
        let numbers: Vec<FileNumber> = self.files.keys().copied().collect();
        for number in numbers {
            self.exclude_source(number, origin, fault.clone(), now);
        }
        for place in 0..self.streams.len() {
            let stream = StreamNumber(place as u32);
            if self.origin_of(stream) == origin && matches!(self.streams[place].state, State::Up(_)) {
                self.release_stream(stream, now);
                self.outputs.push_back(Output::Close { stream, fault: None });
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn require_checks(&mut self) {
        self.files.values_mut().for_each(|file| file.sources.checked = true);
    }

    /// The session has no work: what comes next may find all sources well again.
    pub(super) fn reset_origins(&mut self) {
        for origin in &mut self.origins {
            origin.mark_reachable();
            origin.excluded = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A source that stops within a chunk fills it with its answers to pings.
    #[test]
    fn a_trickle_is_a_stall() {
        let seconds = STALL_MAX.as_secs();
        let mut origin = Origin::new(1, Duration::ZERO);
        for second in 1..seconds {
            origin.note_trickle(STALL_BYTES_MIN / seconds, SECOND * second as u32);
            assert!(!origin.is_stalled(SECOND * second as u32));
        }
        assert!(origin.is_stalled(STALL_MAX));
        origin.note_progress(STALL_MAX);
        assert!(!origin.is_stalled(STALL_MAX));
    }

    #[test]
    fn slow_progress_is_no_stall() {
        let seconds = STALL_MAX.as_secs();
        let mut origin = Origin::new(1, Duration::ZERO);
        for second in 1..20 * seconds {
            origin.note_trickle(STALL_BYTES_MIN.div_ceil(seconds - 1), SECOND * second as u32);
            assert!(!origin.is_stalled(SECOND * second as u32), "{second}");
        }
    }
}
