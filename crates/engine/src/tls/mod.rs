//! TLS 1.3 (RFC 8446) of a stream: rustls performs the handshake; afterwards [`records`] seals and opens
//! records in bulk, or [`authenticated_records`] sends authenticated clear text if both ends choose that.
//!
//! rustls's own buffered records cost nearly twice the CPU, in copies and small reads. All TLS code is in
//! this module.

use std::io::{self, Read, Write};
use std::sync::Arc;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::{PeerIdentity, io_fault};
use rustls::{ClientConfig, ServerConfig};

mod authenticated_records;
mod handshake;
mod key_update;
mod records;

use authenticated_records::{AuthenticatedRecords, Incoming, WriteProgress};
use handshake::Handshake;
use key_update::KeyUpdates;
pub(crate) use key_update::RECORDS_PER_KEY;
use records::{Opener, RECORD_BYTES_MAX, RecordContent, Sealer};

/// ALPN name by which both ends choose authenticated clear text.
pub(crate) const AUTHENTICATED_PROTOCOL: &[u8] = b"longhaul-authenticated/1";
/// Shorter plaintext is copied behind the pending bytes: a system call of its own costs more.
const SMALL_BYTES: usize = 4 << 10;

/// Records per read or write system call: 16 of full size. Larger batches gained nothing on loopback.
const BATCH_BYTES: usize = 16 * RECORD_BYTES_MAX;
/// Buffer size during the handshake.
const HANDSHAKE_BYTES: usize = 2 * RECORD_BYTES_MAX;

/// The alert `access_denied` for a stream that is refused before its handshake, in clear text like all alerts
/// before the keys.
pub(crate) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStatus {
    /// There may be more to read.
    More,
    /// Nothing to read now.
    Drained,
    /// The peer has closed the stream.
    Closed,
}

/// Receives the plaintext of a stream.
pub(crate) trait Sink {
    fn take(&mut self, plaintext: &[u8]) -> Result<(), Fault>;

    /// Whether the next bytes all belong to one buffer, as far as is known.
    fn in_payload(&self) -> bool;

    /// The destination of the next `len` bytes if they all belong to one buffer, with room for at least one
    /// byte more. Returns the same destination until they are delivered.
    fn space(&mut self, len: usize) -> Option<&mut [u8]>;

    /// Reports that this many bytes were put into the space.
    fn filled(&mut self, len: usize) -> Result<(), Fault>;
}

enum Stage {
    Handshaking(Handshake),
    Open { sealer: Sealer, opener: Opener, renewal: KeyUpdates, peer: AgentId },
    Authenticated { clear: Box<AuthenticatedRecords>, peer: AgentId },
    Broken,
}

pub(crate) struct Tls {
    stage: Stage,
    deployment: Arc<str>,
    identity: Option<PeerIdentity>,
    /// Records sealed under one key.
    records_per_key: u64,
    /// Bytes from the socket: `incoming[start..end]` is not consumed yet.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// During the handshake: the bytes of `incoming` from `start` on that rustls has seen and needs to see
    /// again.
    seen: usize,
    /// Bytes for the socket: `outgoing[sent..filled]`. The rest is free.
    outgoing: Vec<u8>,
    filled: usize,
    sent: usize,
}

impl Tls {
    /// Keys are updated after at most this many records.
    pub(crate) fn client(
        config: &Arc<ClientConfig>,
        deployment: &Arc<str>,
        records_per_key: u64,
    ) -> Result<Tls, Fault> {
        let mut tls = Tls::new(Handshake::client(config)?, deployment, records_per_key);
        tls.advance(0)?;
        Ok(tls)
    }

    pub(crate) fn server(
        config: &Arc<ServerConfig>,
        deployment: &Arc<str>,
        records_per_key: u64,
    ) -> Result<Tls, Fault> {
        Ok(Tls::new(Handshake::server(config)?, deployment, records_per_key))
    }

    fn new(handshake: Handshake, deployment: &Arc<str>, records_per_key: u64) -> Tls {
        let incoming = vec![0; HANDSHAKE_BYTES];
        Tls {
            stage: Stage::Handshaking(handshake),
            deployment: deployment.clone(),
            identity: None,
            records_per_key,
            incoming,
            start: 0,
            end: 0,
            seen: 0,
            outgoing: Vec::new(),
            filled: 0,
            sent: 0,
        }
    }

    /// The peer's agent id, once the handshake is complete.
    pub(crate) fn peer(&self) -> Option<AgentId> {
        match &self.stage {
            Stage::Open { peer, .. } | Stage::Authenticated { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// The contents of the peer's certificate, once the handshake is complete.
    pub(crate) fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_ref()
    }

    /// Reads once from the socket and delivers the complete plaintext. Returns at the end of the handshake
    /// before anything that follows it, so that the caller can check the peer's identity.
    pub(crate) fn receive(
        &mut self,
        socket: &mut impl Read,
        sink: &mut impl Sink,
    ) -> Result<ReadStatus, Fault> {
        if let Stage::Authenticated { clear, .. } = &mut self.stage {
            let (bytes, start, end) = (&mut self.incoming[..], &mut self.start, &mut self.end);
            return clear.receive(socket, Incoming { bytes, start, end }, sink);
        }
        if self.peer().is_some() && records::complete_record(&self.incoming[self.start..self.end])?.is_some()
        {
            let closed = self.open_records(sink)?;
            return Ok(if closed { ReadStatus::Closed } else { ReadStatus::More });
        }
        self.make_room();
        let space = self.incoming.len() - self.end;
        let read = match socket.read(&mut self.incoming[self.end..]) {
            Ok(0) => return Ok(ReadStatus::Closed),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadStatus::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(ReadStatus::More),
            Err(error) => return Err(io_fault(error)),
        };
        self.end += read;
        if self.peer().is_none() {
            self.handshake()?;
            if self.peer().is_some() {
                return Ok(ReadStatus::More);
            }
        }
        if self.open_records(sink)? {
            return Ok(ReadStatus::Closed);
        }
        Ok(if read < space { ReadStatus::Drained } else { ReadStatus::More })
    }

    /// Moves a partial record to the front when the space behind it gets small.
    fn make_room(&mut self) {
        if self.start == self.end || self.incoming.len() - self.end < self.incoming.len() / 2 {
            self.incoming.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Feeds whole records to rustls, one at a time, so that it consumes none of the records that follow the
    /// handshake.
    fn handshake(&mut self) -> Result<(), Fault> {
        while let Some(len) = records::complete_record(&self.incoming[self.start + self.seen..self.end])? {
            self.seen += len;
            self.advance(self.seen)?;
            if matches!(&self.stage, Stage::Handshaking(handshake) if handshake.is_done()) {
                return self.begin_records();
            }
        }
        if self.end - self.start == self.incoming.len() {
            return Err(Fault::new(FaultCode::ProtocolError, "the peer's handshake is too long"));
        }
        Ok(())
    }

    fn advance(&mut self, seen: usize) -> Result<(), Fault> {
        let Stage::Handshaking(handshake) = &mut self.stage else { return Ok(()) };
        self.outgoing.truncate(self.filled);
        let records = &mut self.incoming[self.start..self.start + seen];
        let (used, result) = handshake.advance(records, &mut self.outgoing);
        self.filled = self.outgoing.len();
        self.start += used;
        self.seen = seen.saturating_sub(used);
        result
    }

    fn begin_records(&mut self) -> Result<(), Fault> {
        let Stage::Handshaking(handshake) = std::mem::replace(&mut self.stage, Stage::Broken) else {
            return Ok(());
        };
        if self.seen > 0 {
            return Err(Fault::new(FaultCode::ProtocolError, "a broken message at the end of the handshake"));
        }
        let agreed = handshake.finish(&self.deployment)?;
        let (peer, _) = agreed.identity.require_agent()?;
        self.identity = Some(agreed.identity);
        let renewal = KeyUpdates::new(agreed.secrets, self.records_per_key);
        self.stage = if agreed.clear {
            Stage::Authenticated {
                clear: Box::new(AuthenticatedRecords::new(agreed.send, agreed.receive, renewal)),
                peer,
            }
        } else {
            let (sealer, opener) = (Sealer::new(agreed.send), Opener::new(agreed.receive));
            Stage::Open { sealer, opener, renewal, peer }
        };
        self.incoming.resize(BATCH_BYTES, 0);
        // Written behind the pending bytes of the handshake.
        self.outgoing.resize(BATCH_BYTES.max(self.filled + RECORD_BYTES_MAX), 0);
        Ok(())
    }

    /// Returns whether the peer announced its end.
    fn open_records(&mut self, sink: &mut impl Sink) -> Result<bool, Fault> {
        let Stage::Open { opener, renewal, .. } = &mut self.stage else { return Ok(false) };
        while let Some(len) = records::complete_record(&self.incoming[self.start..self.end])? {
            let record = &mut self.incoming[self.start..self.start + len];
            self.start += len;
            // A record that holds only payload is opened directly into its destination.
            let opened = match sink.space(records::opened_bytes(record).saturating_sub(1)) {
                Some(space) => {
                    let opened = opener.open_into(record, space)?;
                    if let RecordContent::Data(len) = opened {
                        sink.filled(len)?;
                    }
                    opened
                }
                None => {
                    let opened = opener.open(record)?;
                    if let RecordContent::Data(len) = opened {
                        sink.take(&record[records::HEADER_BYTES..][..len])?;
                    }
                    opened
                }
            };
            match opened {
                RecordContent::Data(_) | RecordContent::Ignored => {}
                RecordContent::KeyUpdate { asks } => {
                    let next = renewal.update_received(opener.records(), asks)?;
                    opener.set_keys(next);
                }
                RecordContent::Closed => return Ok(true),
            }
            renewal.note_opened(opener.records());
        }
        Ok(false)
    }

    /// Seals as much as there is room for, writes it directly where that saves a copy, and returns how much
    /// was consumed. Zero means that the socket or the buffer is full.
    pub(crate) fn send(&mut self, plaintext: &[u8], socket: &mut impl Write) -> Result<usize, Fault> {
        match &mut self.stage {
            Stage::Open { sealer, renewal, .. } => {
                let mut taken = 0;
                while taken < plaintext.len() && self.filled + RECORD_BYTES_MAX <= self.outgoing.len() {
                    if renewal.is_due(sealer.records()) {
                        // Far smaller than the difference between this sender's records and the largest
                        // allowed ones.
                        self.filled += sealer.update_keys(renewal, &mut self.outgoing[self.filled..])?;
                    }
                    let (used, len) = sealer.seal(&plaintext[taken..], &mut self.outgoing[self.filled..])?;
                    taken += used;
                    self.filled += len;
                }
                Ok(taken)
            }
            Stage::Authenticated { clear, .. } => {
                if clear.must_renew() {
                    if self.filled + RECORD_BYTES_MAX > self.outgoing.len() {
                        return Ok(0);
                    }
                    self.filled += clear.renew(&mut self.outgoing[self.filled..])?;
                }
                let room = self.outgoing.len() - self.filled;
                if !clear.is_writing()
                    && plaintext.len() < SMALL_BYTES
                    && AuthenticatedRecords::room_for(plaintext.len()) <= room
                {
                    self.filled += clear.seal_copy(plaintext, &mut self.outgoing[self.filled..])?;
                    return Ok(plaintext.len());
                }
                let wrote = clear.write(socket, plaintext, &self.outgoing[..self.filled], &mut self.sent)?;
                if self.sent == self.filled {
                    (self.filled, self.sent) = (0, 0);
                }
                Ok(if let WriteProgress::Taken(taken) = wrote { taken } else { 0 })
            }
            _ => Ok(0),
        }
    }

    /// Announces the orderly end of the stream to the peer.
    pub(crate) fn close(&mut self) {
        if self.filled + RECORD_BYTES_MAX > self.outgoing.len() {
            return;
        }
        let room = &mut self.outgoing[self.filled..];
        self.filled += match &mut self.stage {
            Stage::Open { sealer, .. } => sealer.close_notify(room),
            // Nothing can follow a partly sent record: the peer sees the stream end.
            Stage::Authenticated { clear, .. } if !clear.is_writing() => clear.close(room),
            _ => 0,
        };
    }

    /// Sends a pending key update.
    fn renew(&mut self) -> Result<(), Fault> {
        if self.filled + RECORD_BYTES_MAX > self.outgoing.len() {
            // The next record brings it.
            return Ok(());
        }
        let room = &mut self.outgoing[self.filled..];
        self.filled += match &mut self.stage {
            Stage::Open { sealer, renewal, .. } if renewal.is_urgent() => {
                sealer.update_keys(renewal, room)?
            }
            Stage::Authenticated { clear, .. } if clear.should_renew() => clear.renew(room)?,
            _ => 0,
        };
        Ok(())
    }

    /// Writes to the socket. True if everything is sent.
    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> Result<bool, Fault> {
        self.renew()?;
        while self.sent < self.filled {
            match socket.write(&self.outgoing[self.sent..self.filled]) {
                Ok(0) => return Err(Fault::new(FaultCode::ConnectionLost, "the socket takes nothing")),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_fault(error)),
            }
        }
        (self.filled, self.sent) = (0, 0);
        Ok(!matches!(&self.stage, Stage::Authenticated { clear, .. } if clear.is_writing()))
    }
}

#[cfg(test)]
impl Tls {
    /// Records sealed and opened under the current keys.
    fn records(&self) -> (u64, u64) {
        match &self.stage {
            Stage::Open { sealer, opener, .. } => (sealer.records(), opener.records()),
            Stage::Authenticated { clear, .. } => clear.records(),
            _ => (0, 0),
        }
    }
}

#[cfg(test)]
mod openssl_tests;
#[cfg(test)]
pub(crate) mod tests;
