//! The body of an answer for parsers that pull: reading it blocks.

use std::io::{self, BufRead, Read};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::runtime::Handle;

use crate::exchange::Answer;
use crate::failure::Failure;

/// Not for threads that run tasks of a runtime.
pub(crate) struct BodyReader {
    answer: Answer,
    runtime: Handle,
    /// The longest wait for the next bytes.
    stall: Duration,
    piece: Bytes,
    has_ended: bool,
    failure: Option<Failure>,
}

impl BodyReader {
    pub(crate) fn new(answer: Answer, runtime: Handle, stall: Duration) -> BodyReader {
        BodyReader { answer, runtime, stall, piece: Bytes::new(), has_ended: false, failure: None }
    }

    /// Why it could not be read, if that was it.
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.failure.take()
    }
}

impl BufRead for BodyReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.piece.is_empty() && !self.has_ended {
            match self.runtime.block_on(self.answer.data(self.stall)) {
                Ok(Some(piece)) => self.piece = piece,
                Ok(None) => self.has_ended = true,
                Err(failure) => {
                    self.failure = Some(failure);
                    return Err(io::Error::other("the body cannot be read"));
                }
            }
        }
        Ok(&self.piece)
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.advance(bytes);
    }
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut available = self.fill_buf()?;
        let read = available.read(buffer)?;
        self.consume(read);
        Ok(read)
    }
}
