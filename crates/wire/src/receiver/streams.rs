//! Streams of a session: up, down, dialled again; silence and stalls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Retry};

use super::{Announced, OriginNumber, Output, Receiver, StreamNumber};
use crate::frame::{FileNumber, Frame, RequestId};
use crate::health::{Health, Patience, Pulse, back_off};
use crate::limits::{RECONNECT_AFTER_SILENCE_FOR, RECONNECT_FOR, SLOW_NOT_BEFORE, SLOW_SHARE, STALL_MAX};
use crate::meter::{Meter, WINDOW};
use crate::path::PathReport;

/// Time-outs are looked at far more often. If not, this machine was busy.
const OWN_STALL: Duration = Duration::from_millis(500);
/// A stream that was there already is up after this, and one that had to be dialled over the longest path
/// after that.
const COMES_AT_ONCE: Duration = Duration::from_millis(30);
const COMES_SOON: Duration = Duration::from_secs(1);
/// How often rates are compared.
const COMPARE_EVERY: Duration = Duration::from_millis(500);

pub(super) struct Stream {
    pub(super) origin: OriginNumber,
    pub(super) state: State,
    failures: usize,
    /// It is not asked for anything more, and not dialled again.
    pub(super) retired: bool,
}

pub(super) enum State {
    Down { since: Duration },
    Dialling { since: Duration },
    Up(Up),
}

pub(super) struct Up {
    pub(super) since: Duration,
    pub(super) health: Health,
    pub(super) meter: Meter,
    /// As far as it was measured.
    pub(super) round_trip: Duration,
    pub(super) round_trip_min: Duration,
    pub(super) report: Option<PathReport>,
    /// Since when it has owed us data without a pause.
    pub(super) busy_since: Option<Duration>,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) next_request: u32,
    pub(super) slots: usize,
    /// How many slots it may hold at most, as of the last deal.
    pub(super) depth: usize,
    pub(super) arriving: Option<Arriving>,
}

pub(super) struct Request {
    pub(super) what: What,
    /// It was asked for on another stream before.
    pub(super) copy: bool,
}

pub(super) enum What {
    /// Chunks of a file that have not begun to arrive.
    Extent {
        file: FileNumber,
        left: BTreeSet<u64>,
    },
    Pack {
        files: Vec<FileNumber>,
    },
}

impl What {
    pub(super) fn slots(&self) -> usize {
        match self {
            What::Extent { left, .. } => left.len(),
            What::Pack { .. } => 1,
        }
    }

    /// (file, offset) of everything in it.
    pub(super) fn parts(&self) -> Vec<(FileNumber, u64)> {
        match self {
            What::Extent { file, left } => left.iter().map(|&offset| (*file, offset)).collect(),
            What::Pack { files } => files.iter().map(|&file| (file, 0)).collect(),
        }
    }
}

/// Payload that is on its way in, and wanted.
pub(super) struct Arriving {
    pub(super) parts: Vec<(FileNumber, u64)>,
}

impl Up {
    /// What was asked for here and has not come, or not all of it.
    fn files(&self) -> impl Iterator<Item = FileNumber> {
        let asked = self.requests.values().flat_map(|request| request.what.parts());
        let arriving = self.arriving.iter().flat_map(|arriving| arriving.parts.iter().copied());
        asked.chain(arriving).map(|(file, _)| file)
    }

    /// The longest of the round trips that the two ends measured.
    pub(super) fn farthest(&self) -> Duration {
        self.round_trip.max(self.report.map_or(Duration::ZERO, |report| report.round_trip))
    }

    /// So many slots were asked for.
    pub(super) fn asked(&mut self, slots: usize, now: Duration) {
        if self.slots == 0 {
            // Its silence counts from the first request after rest.
            self.health.heard(now);
            self.busy_since = Some(now);
        }
        self.slots += slots;
    }

    pub(super) fn answered(&mut self, slots: usize) {
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

    pub(super) fn up(&self) -> Option<&Up> {
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
    /// The stream is connected and hello is said: requests may follow at once, before the source's welcome.
    /// `round_trip` is zero if it was not measured.
    pub fn stream_up(&mut self, stream: StreamNumber, round_trip: Duration, now: Duration) {
        if stream.0 as usize >= self.streams.len() {
            return;
        }
        let origin = self.origin_of(stream);
        if self.slots_of(origin) == 0 {
            self.origin(origin).progress(now);
        }
        self.streams[stream.0 as usize].state = State::Up(Up {
            since: now,
            health: Health::new(now),
            meter: Meter::new(now),
            round_trip,
            round_trip_min: round_trip,
            report: None,
            busy_since: None,
            requests: BTreeMap::new(),
            next_request: 0,
            slots: 0,
            depth: 0,
            arriving: None,
        });
        self.say_forget(origin);
        // The first that tells how far the source is decides how many there are.
        self.tune(now);
        self.dial(now);
    }

    /// The source has welcomed the stream, which is before anything else that it says there.
    pub fn welcomed(&mut self, stream: StreamNumber, incarnation: u64, now: Duration) {
        let origin = self.origin_of(stream);
        if self.origin(origin).incarnation.is_some_and(|known| known != incarnation) {
            self.source_forgot(origin, now);
        }
        self.origin(origin).incarnation = Some(incarnation);
    }

    /// The source was restarted: what was announced to its predecessor, and all streams, are void.
    fn source_forgot(&mut self, origin: OriginNumber, now: Duration) {
        for listed in self.batches.values_mut().filter_map(|batch| batch.at_mut(origin)) {
            listed.announced = Announced::No;
            listed.said_on.clear();
            listed.known = false;
        }
        let source = self.origin(origin);
        source.announced_files = 0;
        source.forget.clear();
        source.cut_off_since.get_or_insert(now);
        for place in 0..self.streams.len() {
            if self.streams[place].origin == origin && self.streams[place].up().is_some() {
                let stream = StreamNumber(place as u32);
                // One that says on each stream that it was restarted is not dialled without end.
                self.streams[place].failures += 1;
                self.let_go(stream, now);
                self.outputs.push_back(Output::Close { stream, fault: None });
            }
        }
    }

    /// The stream is closed, or could not be opened.
    pub fn stream_down(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        let Some(place) = self.streams.get_mut(stream.0 as usize) else { return };
        match place.state {
            State::Down { .. } => return,
            // A welcome is cheap: only data makes up for a stream that ended.
            State::Dialling { .. } | State::Up(_) => place.failures += 1,
        }
        self.let_go(stream, now);
        let hopeless = fault.retry == Retry::Never || fault.code == FaultCode::VersionMismatch;
        let origin = self.origin_of(stream);
        if hopeless {
            self.lose(origin, &fault, now);
        }
        self.origin(origin).last_fault = Some(fault);
        self.handle_timeout(now);
    }

    /// What was asked for on the stream goes back to the queue.
    pub(super) fn let_go(&mut self, stream: StreamNumber, now: Duration) {
        let origin = self.origin_of(stream);
        let Some(state) = self.state(stream) else { return };
        let State::Up(up) = std::mem::replace(state, State::Down { since: now }) else { return };
        self.freed += up.slots;
        for request in up.requests.values() {
            self.unasked(&request.what);
        }
        for (number, offset) in up.arriving.into_iter().flat_map(|arriving| arriving.parts) {
            if let Some(file) = self.files.get_mut(&number) {
                file.body.want_again(offset, file.size);
                self.queue(number);
            }
        }
        for listed in self.batches.values_mut().filter_map(|batch| batch.at_mut(origin)) {
            listed.said_on.remove(&stream);
            if listed.announced == Announced::Said && listed.said_on.is_empty() {
                listed.announced = Announced::No;
                self.origins[usize::from(origin.0)].announced_files -= listed.files.len();
            }
        }
    }

    /// Bytes came in on the stream, `payload` of them data.
    pub fn heard(&mut self, stream: StreamNumber, payload: u64, now: Duration) {
        if payload > 0 {
            if let Some(place) = self.streams.get_mut(stream.0 as usize) {
                place.failures = 0;
            }
            let origin = self.origin_of(stream);
            let source = self.origin(origin);
            source.trickles(payload, now);
            source.reconnect_for = RECONNECT_FOR;
            source.is_back();
        }
        if let Some(State::Up(up)) = self.state(stream) {
            up.health.heard(now);
            up.meter.add(payload, now);
        }
    }

    /// Dials, asks silent peers, gives up. Call it several times a second.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.check_ourselves(now);
        self.check_pulses(now);
        self.check_progress(now);
        self.check_rates(now);
        self.tune(now);
        self.close_surplus(now);
        if !self.has_work() {
            return;
        }
        self.dial(now);
        for origin in self.all_origins() {
            self.check_connection(origin, now);
        }
    }

    fn check_connection(&mut self, origin: OriginNumber, now: Duration) {
        let is_up = self.first_up(origin).is_some();
        let source = self.origin(origin);
        if source.lost || source.gone.is_some() {
            return;
        }
        if !is_up {
            source.cut_off_since.get_or_insert(now);
        }
        if source.cut_off_since.is_some_and(|since| now.saturating_sub(since) >= source.reconnect_for) {
            let fault = source.cut_off_fault();
            self.give_up_on(origin, fault, now);
        }
    }

    fn dial(&mut self, now: Duration) {
        if !self.has_work() {
            return;
        }
        for place in self.used().collect::<Vec<_>>() {
            let stream = &mut self.streams[place];
            if let State::Down { since } = stream.state
                && now.saturating_sub(since) >= back_off(stream.failures)
            {
                stream.state = State::Dialling { since: now };
                self.outputs.push_back(Output::Dial { stream: StreamNumber(place as u32) });
            }
        }
    }

    /// Streams that are being dialled and may be up soon.
    pub(super) fn coming(&self, now: Duration) -> usize {
        let soon = |stream: &&Stream| match stream.state {
            State::Dialling { since } => now.saturating_sub(since) < COMES_SOON,
            _ => false,
        };
        self.streams.iter().filter(soon).count()
    }

    /// Whether streams come up one after the other just now, and none has been up for a while.
    pub(super) fn begins(&self, now: Duration) -> bool {
        let young = |since: Duration| now.saturating_sub(since) < COMES_AT_ONCE;
        let all_young = self.streams.iter().filter_map(Stream::up).all(|up| young(up.since));
        let dialled = |stream: &Stream| matches!(stream.state, State::Dialling { since } if young(since));
        all_young && self.streams.iter().any(dialled)
    }

    fn check_pulses(&mut self, now: Duration) {
        for place in 0..self.streams.len() {
            let stream = StreamNumber(place as u32);
            let State::Up(up) = &mut self.streams[place].state else { continue };
            let patience = if up.slots > 0 { Patience::busy(up.farthest()) } else { Patience::RESTING };
            match up.health.check(patience, now) {
                Pulse::Fine => {}
                Pulse::Ask(number) => {
                    self.outputs.push_back(Output::Send { stream, frame: Frame::Ping { number } });
                }
                Pulse::Dead => {
                    let fault = Fault::new(FaultCode::Stalled, "the source fell silent");
                    self.give_up(stream, fault.clone(), now);
                    // The others, or new ones, have to prove that the source is there.
                    let origin = self.origin_of(stream);
                    let source = self.origin(origin);
                    source.cut_off_since.get_or_insert(now);
                    source.reconnect_for = RECONNECT_AFTER_SILENCE_FOR;
                    source.last_fault = Some(fault);
                }
            }
        }
    }

    /// What the stream owed us is asked for on others at once, and it is dialled anew.
    fn give_up(&mut self, stream: StreamNumber, fault: Fault, now: Duration) {
        self.outputs.push_back(Output::Close { stream, fault: Some(fault) });
        self.let_go(stream, now);
    }

    /// If we were not running ourselves, nobody was silent.
    fn check_ourselves(&mut self, now: Duration) {
        if now.saturating_sub(self.looked_at) >= OWN_STALL {
            for stream in &mut self.streams {
                if let State::Up(up) = &mut stream.state {
                    up.health.heard(now);
                }
            }
        }
        self.looked_at = self.looked_at.max(now);
    }

    /// Gives up the slowest stream, if it is far slower than the others: it may do better over another
    /// address.
    fn check_rates(&mut self, now: Duration) {
        if now.saturating_sub(self.compared_at) < COMPARE_EVERY {
            return;
        }
        self.compared_at = now;
        self.all_origins().for_each(|origin| self.compare_streams(origin, now));
    }

    /// Of one source: another may well be slower.
    fn compare_streams(&mut self, origin: OriginNumber, now: Duration) {
        let mut rates: Vec<(f64, usize, Duration)> = Vec::new();
        for (place, stream) in self.streams.iter_mut().enumerate() {
            if stream.origin == origin
                && let State::Up(up) = &mut stream.state
                && up.busy_since.is_some_and(|since| now.saturating_sub(since) >= WINDOW)
            {
                rates.push((up.meter.rate(now), place, up.since));
            }
        }
        rates.sort_by(|left, right| left.0.total_cmp(&right.0));
        if let [(slowest, place, since), others @ ..] = rates.as_slice()
            && !others.is_empty()
            && *slowest < SLOW_SHARE * others[others.len() / 2].0
            && now.saturating_sub(*since) >= SLOW_NOT_BEFORE
        {
            let fault = Fault::new(FaultCode::Stalled, "the stream was far slower than the others");
            self.give_up(StreamNumber(*place as u32), fault, now);
        }
    }

    fn close_surplus(&mut self, now: Duration) {
        let used: BTreeSet<usize> = self.used().collect();
        for place in (0..self.streams.len()).filter(|place| !used.contains(place)) {
            if self.streams[place].up().is_some_and(|up| up.slots == 0 && up.arriving.is_none()) {
                let stream = StreamNumber(place as u32);
                self.outputs.push_back(Output::Close { stream, fault: None });
                self.let_go(stream, now);
            }
        }
    }

    /// The peer answers pings but sends no data.
    fn check_progress(&mut self, now: Duration) {
        self.all_origins().for_each(|origin| self.check_progress_of(origin, now));
    }

    fn check_progress_of(&mut self, origin: OriginNumber, now: Duration) {
        let owes = |up: &Up| up.slots > 0 || up.arriving.is_some();
        if !self.streams_of(origin).filter_map(Stream::up).any(owes) {
            self.origin(origin).progress(now);
        } else if self.origin(origin).stalls(now) {
            let open: BTreeSet<FileNumber> =
                self.streams_of(origin).filter_map(Stream::up).flat_map(Up::files).collect();
            let fault = Fault::new(
                FaultCode::Stalled,
                format!("the source lives but sent nothing of use for {} s", STALL_MAX.as_secs()),
            );
            self.origin(origin).progress(now);
            for place in 0..self.streams.len() {
                if self.streams[place].origin == origin && self.streams[place].up().is_some() {
                    let stream = StreamNumber(place as u32);
                    self.let_go(stream, now);
                    self.outputs.push_back(Output::Close { stream, fault: Some(fault.clone()) });
                }
            }
            open.into_iter().for_each(|file| self.leave_out(file, origin, fault.clone(), now));
            self.origin(origin).last_fault = Some(fault);
        }
    }

    /// Frees the slots of a request that is over.
    pub(super) fn end_request(&mut self, stream: StreamNumber, request: RequestId) -> Option<Request> {
        let Some(State::Up(up)) = self.state(stream) else { return None };
        let ended = up.requests.remove(&request)?;
        let slots = ended.what.slots();
        up.answered(slots);
        self.freed += slots;
        Some(ended)
    }
}
