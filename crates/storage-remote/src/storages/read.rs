//! A file of the server open for reading: one GET that reads ahead, for readers that come in about the order
//! of the bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{Identity, SourceFile};
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::{Root, identity};
use crate::failure::Scope;
use crate::order::Stat;
use crate::stream::RangeReading;
use crate::url::RemoteUrl;

/// Bytes behind the furthest read that are kept for readers that come late.
const WINDOW_BYTES: u64 = 16 << 20;
/// A reader that is ahead by no more waits for the bytes in between; for others a new GET begins.
const SKIP_BYTES_MAX: u64 = 16 << 20;

pub(super) struct RemoteSource {
    root: Arc<Root>,
    url: RemoteUrl,
    stat: Stat,
    runtime: Handle,
    window: Mutex<Option<Window>>,
}

/// The bytes of a GET that have come and are kept, and those that still come.
struct Window {
    start: u64,
    end: u64,
    pieces: VecDeque<Bytes>,
    reading: RangeReading,
}

impl RemoteSource {
    pub(super) fn new(root: Arc<Root>, url: RemoteUrl, stat: Stat, runtime: Handle) -> RemoteSource {
        RemoteSource { root, url, stat, runtime, window: Mutex::new(None) }
    }

    fn begin(&self, offset: u64) -> Window {
        // Tasks are spawned: this thread is none of the runtime's.
        let _within = self.runtime.enter();
        let place = self.root.resource(&self.url);
        let reading = self.root.remote.read_range(place, &self.stat, offset..self.stat.size);
        Window { start: offset, end: offset, pieces: VecDeque::new(), reading }
    }
}

impl Window {
    fn serves(&self, offset: u64) -> bool {
        self.start <= offset && offset <= self.end + SKIP_BYTES_MAX
    }

    /// Reads on until it holds all bytes before `end`.
    fn fill(&mut self, end: u64, runtime: &Handle) -> Result<(), crate::failure::Failure> {
        while self.end < end {
            let piece = runtime.block_on(self.reading.next())?;
            self.end += piece.len() as u64;
            self.pieces.push_back(piece);
            while let Some(first) = self.pieces.front()
                && self.end - self.start - first.len() as u64 > WINDOW_BYTES
            {
                self.start += first.len() as u64;
                self.pieces.pop_front();
            }
        }
        Ok(())
    }

    fn copy(&self, buffer: &mut [u8], offset: u64) {
        let (mut at, mut filled) = (self.start, 0);
        for piece in &self.pieces {
            let wanted = offset + filled as u64;
            let end = at + piece.len() as u64;
            if wanted < end && filled < buffer.len() {
                let rest = &piece[(wanted - at) as usize..];
                let taken = rest.len().min(buffer.len() - filled);
                buffer[filled..filled + taken].copy_from_slice(&rest[..taken]);
                filled += taken;
            }
            at = end;
        }
    }
}

impl SourceFile for RemoteSource {
    fn identity(&self) -> Identity {
        identity(&self.url, &self.stat)
    }

    fn identity_now(&self) -> Result<Identity, Fault> {
        let found = self.runtime.block_on(self.root.stat(&self.url));
        match found.map_err(|failure| failure.in_storage(Scope::Source))? {
            Some(stat) => Ok(identity(&self.url, &stat)),
            None => Err(Fault::new(FaultCode::SourceMissing, format!("{} is gone", self.url))),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Fault> {
        let left = self.stat.size.saturating_sub(offset);
        let wanted = left.min(buffer.len() as u64) as usize;
        if wanted == 0 {
            return Ok(0);
        }
        let end = offset + wanted as u64;
        let mut slot = self.window.lock();
        let mut window = match slot.take() {
            Some(window) if window.serves(offset) => window,
            _ => self.begin(offset),
        };
        if let Err(failure) = window.fill(end, &self.runtime) {
            return Err(failure.in_storage(Scope::Source));
        }
        window.copy(&mut buffer[..wanted], offset);
        // A file that was read to its end needs no connection.
        *slot = (window.end < self.stat.size || window.start > 0).then_some(window);
        Ok(wanted)
    }
}
