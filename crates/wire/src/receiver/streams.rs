//! Streams of a session: connecting, reconnecting with backoff, keepalive, and stall detection.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Retry};

use super::{Announcement, OriginNumber, Output, Receiver, StreamNumber};
use crate::frame::{FileNumber, Frame, RequestId};
use crate::keepalive::{Keepalive, KeepaliveAction, KeepaliveTimeouts, reconnect_delay};
use crate::limits::{
    RECONNECT_AFTER_SILENCE_FOR, RECONNECT_FOR, SLOW_STREAM_AGE_MIN, SLOW_STREAM_RATE_SHARE, STALL_MAX,
};
use crate::path::PathReport;
use crate::rate_meter::{RATE_WINDOW, RateMeter};

/// A gap this long between checks of the time-outs means that this machine was busy, not that peers were
/// silent.
const LOCAL_STALL_MIN: Duration = Duration::from_millis(500);
/// A connection that a peer has offered is up within this time.
const CONNECT_AT_ONCE_MAX: Duration = Duration::from_millis(30);
/// Dialling over the longest path takes at most this time.
const CONNECT_SOON_MAX: Duration = Duration::from_secs(1);
/// Interval at which the rates of the streams are compared.
const RATE_COMPARE_INTERVAL: Duration = Duration::from_millis(500);

/// A stream slot of the session; its connection may come and go.
pub(super) struct Stream {
    pub(super) origin: OriginNumber,
    pub(super) state: State,
    failures: usize,
    /// Nothing more is requested on it, and it is not dialled again.
    pub(super) retired: bool,
}

pub(super) enum State {
    Down { since: Duration },
    Dialling { since: Duration },
    Up(LiveStream),
}

/// A connected stream.
pub(super) struct LiveStream {
    pub(super) since: Duration,
    pub(super) keepalive: Keepalive,
    pub(super) meter: RateMeter,
    /// Zero if unknown.
    pub(super) round_trip: Duration,
    pub(super) round_trip_min: Duration,
    pub(super) report: Option<PathReport>,
    /// Since when it has owed us data continuously.
    pub(super) busy_since: Option<Duration>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) next_request: u32,
    pub(super) slots: usize,
    /// Most slots that it may use, as of the last scheduling.
    pub(super) slots_max: usize,
    pub(super) arriving: Option<Arriving>,
    /// Protocol version that the source has chosen; none before its Welcome.
    pub(super) version: Option<u16>,
}

/// A request that is not fully answered.
pub(super) struct Request {
    pub(super) content: RequestContent,
    /// Endgame: the content was requested on another stream before.
    pub(super) is_duplicate: bool,
    pub(super) sent_at: Duration,
}

/// What a request asks for.
pub(super) enum RequestContent {
    /// Chunks of a file that have not begun to arrive.
    Extent { file: FileNumber, left: BTreeSet<u64> },
    /// Whole small files.
    Pack { files: Vec<FileNumber> },
}

impl RequestContent {
    pub(super) fn slots(&self) -> usize {
        match self {
            RequestContent::Extent { left, .. } => left.len(),
            RequestContent::Pack { .. } => 1,
        }
    }

    /// The files of which it requests something.
    pub(super) fn files(&self) -> &[FileNumber] {
        match self {
            RequestContent::Extent { file, .. } => std::slice::from_ref(file),
            RequestContent::Pack { files } => files,
        }
    }

    /// (file, offset) of each part.
    pub(super) fn parts(&self) -> Vec<(FileNumber, u64)> {
        match self {
            RequestContent::Extent { file, left } => left.iter().map(|&offset| (*file, offset)).collect(),
            RequestContent::Pack { files } => files.iter().map(|&file| (file, 0)).collect(),
        }
    }
}

/// Wanted payload that is arriving.
pub(super) struct Arriving {
    pub(super) parts: Vec<(FileNumber, u64)>,
}

impl LiveStream {
    /// Files that were requested here and have not arrived completely.
    fn files(&self) -> impl Iterator<Item = FileNumber> {
        let asked = self.requests.values().flat_map(|request| request.content.parts());
        let arriving = self.arriving.iter().flat_map(|arriving| arriving.parts.iter().copied());
        asked.chain(arriving).map(|(file, _)| file)
    }

    /// The longer of the round trips that the two ends measured.
    pub(super) fn round_trip_max(&self) -> Duration {
        self.round_trip.max(self.report.map_or(Duration::ZERO, |report| report.round_trip))
    }

    /// Counts slots that were requested.
    pub(super) fn note_requested(&mut self, slots: usize, now: Duration) {
        if self.slots == 0 {
            // Silence counts from the first request after a pause.
            self.keepalive.note_received(now);
            self.busy_since = Some(now);
        }
        self.slots += slots;
    }

    pub(super) fn note_answered(&mut self, slots: usize) {
        self.slots -= slots;
        if self.slots == 0 {
            self.busy_since = None;
        }
    }
}

impl Stream {
    pub(super) fn new(origin: OriginNumber) -> Self {
        Stream { origin, state: State::Down { since: Duration::ZERO }, failures: 0, retired: false }
    }

    pub(super) fn up(&self) -> Option<&LiveStream> {
        match &self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    pub(super) fn slots(&self) -> usize {
        self.up().map_or(0, |up| up.slots)
    }
}

impl Receiver {
    /// The stream is connected and Hello was sent: requests may follow at once, before the source's Welcome.
    /// `round_trip` is zero if unknown.
    pub fn stream_up(&mut self, stream: StreamNumber, round_trip: Duration, now: Duration) {
        if stream.0 as usize >= self.streams.len() {
            return;
        }
        let origin = self.origin_of(stream);
        if self.slots_of(origin) == 0 {
            self.origin(origin).note_progress(now);
        }
        self.streams[stream.0 as usize].state = State::Up(LiveStream {
            since: now,
            keepalive: Keepalive::new(now),
            meter: RateMeter::new(now),
            round_trip,
            round_trip_min: round_trip,
            report: None,
            busy_since: None,
            requests: BTreeMap::new(),
            next_request: 0,
            slots: 0,
            slots_max: 0,
            arriving: None,
            version: None,
        });
        self.send_forgets(origin);
        // The first measured round trip decides the number of streams.
        self.tune(now);
        self.dial(now);
    }

    /// The source's Welcome, which precedes everything else that it sends on the stream.
    pub fn handle_welcome(&mut self, stream: StreamNumber, version: u16, incarnation: u64, now: Duration) {
        let origin = self.origin_of(stream);
        if let Some(State::Up(up)) = self.state(stream) {
            up.version = Some(version);
        }
        if self.origin(origin).incarnation.is_some_and(|known| known != incarnation) {
            self.handle_source_restart(origin, now);
        }
        self.origin(origin).incarnation = Some(incarnation);
    }

    /// The source was restarted: its manifests and all streams are void.
    fn handle_source_restart(&mut self, origin: OriginNumber, now: Duration) {
        for listed in self.batches.values_mut().filter_map(|batch| batch.manifest_for_mut(origin)) {
            listed.announced = Announcement::NotSent;
            listed.sent_on.clear();
            listed.may_be_held = false;
        }
        let source = self.origin(origin);
        source.announced_files = 0;
        source.pending_forgets.clear();
        source.cut_off_since.get_or_insert(now);
        for place in 0..self.streams.len() {
            if self.streams[place].origin == origin && self.streams[place].up().is_some() {
                let stream = StreamNumber(place as u32);
                // A source that claims a restart on each stream is not dialled without end.
                self.streams[place].failures += 1;
                self.release_stream(stream, now);
                self.outputs.push_back(Output::Close { stream, fault: None });
            }
        }
    }

    /// The stream is closed, or could not be opened.
    pub fn stream_down(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        let Some(place) = self.streams.get_mut(stream.0 as usize) else { return };
        match place.state {
            State::Down { .. } => return,
            // A Welcome is cheap: only data makes up for a stream that ended.
            State::Dialling { .. } | State::Up(_) => place.failures += 1,
        }
        self.release_stream(stream, now);
        let hopeless = fault.retry == Retry::Never || fault.code == FaultCode::VersionMismatch;
        let origin = self.origin_of(stream);
        if hopeless {
            self.exclude_origin(origin, &fault, now);
        }
        self.origin(origin).last_fault = Some(fault);
        self.handle_timeout(now);
    }

    /// Takes a stream down, and requeues what was requested on it.
    pub(super) fn release_stream(&mut self, stream: StreamNumber, now: Duration) {
        let origin = self.origin_of(stream);
        let Some(state) = self.state(stream) else { return };
        let State::Up(up) = std::mem::replace(state, State::Down { since: now }) else { return };
        self.freed_slots += up.slots;
        for request in up.requests.values() {
            self.requeue_request(&request.content);
        }
        for (number, offset) in up.arriving.into_iter().flat_map(|arriving| arriving.parts) {
            if let Some(file) = self.files.get_mut(&number) {
                file.body.requeue_chunk(offset, file.size);
                self.enqueue(number);
            }
        }
        for listed in self.batches.values_mut().filter_map(|batch| batch.manifest_for_mut(origin)) {
            listed.sent_on.remove(&stream);
            if listed.announced == Announcement::Sent && listed.sent_on.is_empty() {
                listed.announced = Announcement::NotSent;
                self.origins[usize::from(origin.0)].announced_files -= listed.files.len();
            }
        }
    }

    /// Bytes arrived on the stream, `payload` of them data.
    pub fn note_received(&mut self, stream: StreamNumber, payload: u64, now: Duration) {
        if payload > 0 {
            if let Some(place) = self.streams.get_mut(stream.0 as usize) {
                place.failures = 0;
            }
            let origin = self.origin_of(stream);
            let source = self.origin(origin);
            source.note_trickle(payload, now);
            source.reconnect_for = RECONNECT_FOR;
            source.mark_reachable();
        }
        if let Some(State::Up(up)) = self.state(stream) {
            up.keepalive.note_received(now);
            up.meter.add(payload, now);
        }
    }

    /// Dials, pings silent peers, checks time-outs. Call it several times a second.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.check_local_stall(now);
        self.check_keepalives(now);
        self.check_progress(now);
        self.check_overdue_files(now);
        self.check_rates(now);
        self.tune(now);
        self.close_surplus_streams(now);
        if !self.has_work() {
            return;
        }
        self.dial(now);
        for origin in self.all_origins() {
            self.check_connection(origin, now);
        }
    }

    fn check_connection(&mut self, origin: OriginNumber, now: Duration) {
        let is_up = self.first_stream_up(origin).is_some();
        let source = self.origin(origin);
        if source.excluded || source.unreachable.is_some() {
            return;
        }
        if !is_up {
            source.cut_off_since.get_or_insert(now);
        }
        if source.cut_off_since.is_some_and(|since| now.saturating_sub(since) >= source.reconnect_for) {
            let fault = source.cut_off_fault();
            self.mark_unreachable(origin, fault, now);
        }
    }

    fn dial(&mut self, now: Duration) {
        if !self.has_work() {
            return;
        }
        for place in self.used_streams().collect::<Vec<_>>() {
            let stream = &mut self.streams[place];
            if let State::Down { since } = stream.state
                && now.saturating_sub(since) >= reconnect_delay(stream.failures)
            {
                stream.state = State::Dialling { since: now };
                self.outputs.push_back(Output::Dial { stream: StreamNumber(place as u32) });
            }
        }
    }

    /// Number of streams that are being dialled and may be up soon.
    pub(super) fn connecting_soon(&self, now: Duration) -> usize {
        let soon = |stream: &&Stream| match stream.state {
            State::Dialling { since } => now.saturating_sub(since) < CONNECT_SOON_MAX,
            _ => false,
        };
        self.streams.iter().filter(soon).count()
    }

    /// Whether streams are just coming up one after the other, and none has been up for a while.
    pub(super) fn is_starting(&self, now: Duration) -> bool {
        let young = |since: Duration| now.saturating_sub(since) < CONNECT_AT_ONCE_MAX;
        let all_young = self.streams.iter().filter_map(Stream::up).all(|up| young(up.since));
        let dialled = |stream: &Stream| matches!(stream.state, State::Dialling { since } if young(since));
        all_young && self.streams.iter().any(dialled)
    }

    fn check_keepalives(&mut self, now: Duration) {
        for place in 0..self.streams.len() {
            let stream = StreamNumber(place as u32);
            let State::Up(up) = &mut self.streams[place].state else { continue };
            let timeouts = if up.slots > 0 {
                KeepaliveTimeouts::busy(up.round_trip_max())
            } else {
                KeepaliveTimeouts::IDLE
            };
            match up.keepalive.check(timeouts, now) {
                KeepaliveAction::Wait => {}
                KeepaliveAction::Ping(number) => {
                    self.outputs.push_back(Output::Send { stream, frame: Frame::Ping { number } });
                }
                KeepaliveAction::Close => {
                    let fault = Fault::new(FaultCode::Stalled, "the source fell silent");
                    self.close_stream(stream, fault.clone(), now);
                    // The other streams, or new ones, have to prove that the source is reachable.
                    let origin = self.origin_of(stream);
                    let source = self.origin(origin);
                    source.cut_off_since.get_or_insert(now);
                    source.reconnect_for = RECONNECT_AFTER_SILENCE_FOR;
                    source.last_fault = Some(fault);
                }
            }
        }
    }

    /// Closes a stream: what it owes is requested on others at once, and it is dialled again.
    fn close_stream(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        self.outputs.push_back(Output::Close { stream, fault: Some(fault) });
        self.release_stream(stream, now);
    }

    /// If this process was not running itself, peers were not silent, and a source without a stream had no
    /// chance to come back.
    fn check_local_stall(&mut self, now: Duration) {
        let stall = now.saturating_sub(self.timeouts_checked_at);
        if stall >= LOCAL_STALL_MIN {
            for stream in &mut self.streams {
                if let State::Up(up) = &mut stream.state {
                    up.keepalive.note_received(now);
                }
            }
            for origin in self.all_origins() {
                let source = self.origin(origin);
                source.cut_off_since = source.cut_off_since.map(|since| now.min(since + stall));
            }
        }
        self.timeouts_checked_at = self.timeouts_checked_at.max(now);
    }

    /// Closes the slowest stream if it is far slower than its siblings: a new one may do better over another
    /// network path.
    fn check_rates(&mut self, now: Duration) {
        if now.saturating_sub(self.rates_compared_at) < RATE_COMPARE_INTERVAL {
            return;
        }
        self.rates_compared_at = now;
        self.all_origins().for_each(|origin| self.close_slow_stream(origin, now));
    }

    /// Compares the streams to one source; those to another may well be slower.
    fn close_slow_stream(&mut self, origin: OriginNumber, now: Duration) {
        let mut rates: Vec<(f64, usize, Duration)> = Vec::new();
        for (place, stream) in self.streams.iter_mut().enumerate() {
            if stream.origin == origin
                && let State::Up(up) = &mut stream.state
                && up.busy_since.is_some_and(|since| now.saturating_sub(since) >= RATE_WINDOW)
            {
                rates.push((up.meter.rate(now), place, up.since));
            }
        }
        rates.sort_by(|left, right| left.0.total_cmp(&right.0));
        if let [(slowest, place, since), others @ ..] = rates.as_slice()
            && !others.is_empty()
            && *slowest < SLOW_STREAM_RATE_SHARE * others[others.len() / 2].0
            && now.saturating_sub(*since) >= SLOW_STREAM_AGE_MIN
        {
            let fault = Fault::new(FaultCode::Stalled, "the stream was far slower than the others");
            self.close_stream(StreamNumber(*place as u32), fault, now);
        }
    }

    fn close_surplus_streams(&mut self, now: Duration) {
        let used: BTreeSet<usize> = self.used_streams().collect();
        for place in (0..self.streams.len()).filter(|place| !used.contains(place)) {
            if self.streams[place].up().is_some_and(|up| up.slots == 0 && up.arriving.is_none()) {
                let stream = StreamNumber(place as u32);
                self.outputs.push_back(Output::Close { stream, fault: None });
                self.release_stream(stream, now);
            }
        }
    }

    /// Detects a peer that answers pings but sends no data.
    fn check_progress(&mut self, now: Duration) {
        self.all_origins().for_each(|origin| self.check_progress_of(origin, now));
    }

    fn check_progress_of(&mut self, origin: OriginNumber, now: Duration) {
        let owes = |up: &LiveStream| up.slots > 0 || up.arriving.is_some();
        if !self.streams_of(origin).filter_map(Stream::up).any(owes) {
            self.origin(origin).note_progress(now);
        } else if self.origin(origin).is_stalled(now) {
            let open: BTreeSet<FileNumber> =
                self.streams_of(origin).filter_map(Stream::up).flat_map(LiveStream::files).collect();
            let fault = Fault::new(
                FaultCode::Stalled,
                format!("the source is alive but sent no data for {} s", STALL_MAX.as_secs()),
            );
            self.origin(origin).note_progress(now);
            for place in 0..self.streams.len() {
                if self.streams[place].origin == origin && self.streams[place].up().is_some() {
                    let stream = StreamNumber(place as u32);
                    self.release_stream(stream, now);
                    self.outputs.push_back(Output::Close { stream, fault: Some(fault.clone()) });
                }
            }
            open.into_iter().for_each(|file| self.exclude_source(file, origin, fault.clone(), now));
            self.origin(origin).last_fault = Some(fault);
        }
    }

    /// Frees the slots of a request that is over.
    pub(super) fn end_request(&mut self, stream: StreamNumber, request: RequestId) -> Option<Request> {
        let Some(State::Up(up)) = self.state(stream) else { return None };
        let ended = up.requests.remove(&request)?;
        let slots = ended.content.slots();
        up.note_answered(slots);
        self.freed_slots += slots;
        Some(ended)
    }
}
