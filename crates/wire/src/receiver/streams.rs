//! Streams of a session: up, down, dialled again; silence and stalls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, Retry};

use super::{Announced, Output, Receiver, StreamNumber};
use crate::frame::{FileNumber, Frame, RequestId};
use crate::health::{Health, Pulse};
use crate::limits::{RECONNECT_FOR, STALL_MAX};

/// Waits between tries to connect; the last one repeats.
const BACK_OFF_MS: [u64; 6] = [0, 100, 300, 700, 1_500, 3_000];

pub(super) struct Stream {
    pub(super) state: State,
    failures: usize,
}

pub(super) enum State {
    Down { since: Duration },
    Dialling,
    Up(Up),
}

pub(super) struct Up {
    pub(super) health: Health,
    pub(super) heard: Duration,
    pub(super) requests: BTreeMap<RequestId, Request>,
    pub(super) next_request: u32,
    pub(super) slots: usize,
    pub(super) arriving: Option<Arriving>,
}

pub(super) struct Request {
    pub(super) what: What,
    /// Another stream has been asked for it as well.
    pub(super) repeated: bool,
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
    fn slots(&self) -> usize {
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

impl Stream {
    pub(super) fn new() -> Self {
        Stream { state: State::Down { since: Duration::ZERO }, failures: 0 }
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

    fn back_off(&self) -> Duration {
        Duration::from_millis(BACK_OFF_MS[self.failures.min(BACK_OFF_MS.len() - 1)])
    }
}

impl Receiver {
    /// The source has welcomed the stream.
    pub fn stream_up(&mut self, stream: StreamNumber, incarnation: u64, now: Duration) {
        if self.incarnation.is_some_and(|known| known != incarnation) {
            self.source_forgot(now);
        }
        self.incarnation = Some(incarnation);
        let Some(place) = self.streams.get_mut(stream.0 as usize) else { return };
        place.failures = 0;
        if self.streams.iter().all(|stream| stream.slots() == 0) {
            self.progress_at = now;
        }
        self.streams[stream.0 as usize].state = State::Up(Up {
            health: Health::new(now),
            heard: now,
            requests: BTreeMap::new(),
            next_request: 0,
            slots: 0,
            arriving: None,
        });
        self.say_forget();
    }

    /// The source was restarted: what was announced to its predecessor, and streams to that, are void.
    fn source_forgot(&mut self, now: Duration) {
        for batch in self.batches.values_mut() {
            batch.announced = Announced::No;
            batch.known = false;
        }
        self.announced_files = 0;
        self.forget.clear();
        for place in 0..self.streams.len() {
            if self.streams[place].up().is_some() {
                let stream = StreamNumber(place as u32);
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
            State::Dialling => place.failures += 1,
            State::Up(_) => {}
        }
        self.let_go(stream, now);
        let hopeless = fault.retry == Retry::Never || fault.code == FaultCode::VersionMismatch;
        if hopeless {
            self.fail_all(&fault, now);
        }
        self.last_fault = Some(fault);
        self.handle_timeout(now);
    }

    /// What was asked for on the stream goes back to the queue.
    fn let_go(&mut self, stream: StreamNumber, now: Duration) {
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
        for batch in self.batches.values_mut() {
            if batch.announced == Announced::On(stream) {
                batch.announced = Announced::No;
                self.announced_files -= batch.files.len();
            }
        }
    }

    /// Bytes came in on the stream; `payload` if they were data.
    pub fn heard(&mut self, stream: StreamNumber, payload: bool, now: Duration) {
        if payload {
            self.progress_at = now;
            self.cut_off_since = None;
        }
        if let Some(State::Up(up)) = self.state(stream) {
            up.health.heard(now);
            up.heard = now;
        }
    }

    /// Dials, asks silent peers, gives up. Call it several times a second.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.check_pulses(now);
        self.check_progress(now);
        if !self.has_work() {
            return;
        }
        for place in 0..self.streams.len() {
            let stream = &mut self.streams[place];
            if let State::Down { since } = stream.state
                && now.saturating_sub(since) >= stream.back_off()
            {
                stream.state = State::Dialling;
                self.outputs.push_back(Output::Dial { stream: StreamNumber(place as u32) });
            }
        }
        if self.first_up().is_none() {
            let since = *self.cut_off_since.get_or_insert(now);
            if now.saturating_sub(since) >= RECONNECT_FOR {
                let fault = self.cut_off_fault();
                self.fail_all(&fault, now);
            }
        }
    }

    fn cut_off_fault(&self) -> Fault {
        let why = self.last_fault.as_ref().map_or("no connection".to_owned(), |fault| fault.to_string());
        match (&self.last_fault, self.incarnation) {
            (Some(fault), _) if fault.code == FaultCode::Stalled => fault.clone(),
            (_, Some(_)) => Fault::new(FaultCode::ConnectionLost, why),
            (_, None) => self.last_fault.clone().unwrap_or_else(|| Fault::new(FaultCode::Unreachable, why)),
        }
    }

    fn check_pulses(&mut self, now: Duration) {
        for place in 0..self.streams.len() {
            let stream = StreamNumber(place as u32);
            let State::Up(up) = &mut self.streams[place].state else { continue };
            match up.health.check(now) {
                Pulse::Fine => {}
                Pulse::Ask(number) => {
                    self.outputs.push_back(Output::Send { stream, frame: Frame::Ping { number } });
                }
                Pulse::Dead => {
                    let fault = Fault::new(FaultCode::Stalled, "the source fell silent");
                    self.outputs.push_back(Output::Close { stream, fault: Some(fault.clone()) });
                    self.let_go(stream, now);
                    self.last_fault = Some(fault);
                }
            }
        }
    }

    /// The peer answers pings but sends no data.
    fn check_progress(&mut self, now: Duration) {
        if self.slots() == 0 {
            self.progress_at = now;
        } else if now.saturating_sub(self.progress_at) >= STALL_MAX {
            let fault = Fault::new(
                FaultCode::Stalled,
                format!("the source lives but sent nothing for {} s", STALL_MAX.as_secs()),
            );
            self.progress_at = now;
            let asked: BTreeSet<FileNumber> = self
                .streams
                .iter()
                .filter_map(Stream::up)
                .flat_map(|up| up.requests.values())
                .flat_map(|request| request.what.parts())
                .map(|(file, _)| file)
                .collect();
            for place in 0..self.streams.len() {
                if self.streams[place].up().is_some() {
                    let stream = StreamNumber(place as u32);
                    self.let_go(stream, now);
                    self.outputs.push_back(Output::Close { stream, fault: Some(fault.clone()) });
                }
            }
            asked.into_iter().for_each(|file| self.fail(file, fault.clone(), now));
            self.last_fault = Some(fault);
        }
    }

    /// Frees the slots of a request that is over.
    pub(super) fn end_request(&mut self, stream: StreamNumber, request: RequestId) -> Option<Request> {
        let Some(State::Up(up)) = self.state(stream) else { return None };
        let ended = up.requests.remove(&request)?;
        let slots = ended.what.slots();
        up.slots -= slots;
        self.freed += slots;
        Some(ended)
    }
}
