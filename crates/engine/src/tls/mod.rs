//! TLS 1.3 of a stream: rustls makes the handshake, then [`records`] seals and opens records in bulk, or [`clear`] sends
//! them in clear text with a MAC where both ends want that.
//!
//! rustls's own buffered records cost nearly twice the CPU, in copies and small reads. Everything that knows TLS is in
//! this module.

use std::io::{self, Read, Write};
use std::sync::Arc;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::{AGENT_NAME, PeerIdentity, client_identity, io_fault, server_identity, tls_fault};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

mod clear;
mod records;

use clear::{Clear, Incoming, Wrote};
use records::{Keys, Opened, Opener, RECORD_BYTES_MAX, Sealer};

/// Both ends name it in the handshake: then records are in clear text, with a MAC.
pub(crate) const AUTHENTICATED_PROTOCOL: &[u8] = b"longhaul-authenticated/1";
/// Plaintext shorter than this is copied behind what waits to be sent: a call of its own costs more.
const SMALL_BYTES: usize = 4 << 10;

/// Records read or written by one system call: 16 of full size. Larger batches gained nothing on loopback.
const BATCH_BYTES: usize = 16 * RECORD_BYTES_MAX;
/// While shaking hands nothing is large.
const HANDSHAKE_BYTES: usize = 2 * RECORD_BYTES_MAX;

/// What a stream gets that is refused before any handshake: the alert `access_denied`, in clear text, as all alerts are
/// that come before keys.
pub(crate) const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// There may be more to read.
    More,
    /// Nothing to read now.
    Drained,
    /// The peer has closed the stream.
    Closed,
}

/// Takes the plaintext of a stream.
pub(crate) trait Sink {
    fn take(&mut self, plaintext: &[u8]) -> Result<(), Fault>;

    /// Whether the next bytes belong to one place, as far as is known.
    fn in_payload(&self) -> bool;

    /// If the next `len` bytes all belong to one place, that place, with at least one byte more. The
    /// same again until they are there.
    fn space(&mut self, len: usize) -> Option<&mut [u8]>;

    /// So many bytes were put into the space.
    fn filled(&mut self, len: usize) -> Result<(), Fault>;
}

enum Stage {
    Client(ClientConnection),
    Server(ServerConnection),
    Open { sealer: Sealer, opener: Opener, peer: AgentId },
    Clear { clear: Clear, peer: AgentId },
    Broken,
}

pub(crate) struct Tls {
    stage: Stage,
    deployment: Arc<str>,
    identity: Option<PeerIdentity>,
    /// Bytes from the socket: `incoming[start..end]` is not used yet.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes for the socket: `outgoing[sent..filled]`. What lies behind is room.
    outgoing: Vec<u8>,
    filled: usize,
    sent: usize,
}

impl Tls {
    pub(crate) fn client(config: &Arc<ClientConfig>, deployment: &Arc<str>) -> Result<Tls, Fault> {
        let name = ServerName::try_from(AGENT_NAME)
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()))?;
        let connection = ClientConnection::new(config.clone(), name).map_err(|error| tls_fault(&error))?;
        let mut tls = Tls::new(Stage::Client(connection), deployment);
        tls.handshake()?;
        Ok(tls)
    }

    pub(crate) fn server(config: &Arc<ServerConfig>, deployment: &Arc<str>) -> Result<Tls, Fault> {
        let connection = ServerConnection::new(config.clone()).map_err(|error| tls_fault(&error))?;
        Ok(Tls::new(Stage::Server(connection), deployment))
    }

    fn new(stage: Stage, deployment: &Arc<str>) -> Tls {
        let incoming = vec![0; HANDSHAKE_BYTES];
        Tls {
            stage,
            deployment: deployment.clone(),
            identity: None,
            incoming,
            start: 0,
            end: 0,
            outgoing: Vec::new(),
            filled: 0,
            sent: 0,
        }
    }

    /// Who the peer is, once the handshake is done.
    pub(crate) fn peer(&self) -> Option<AgentId> {
        match &self.stage {
            Stage::Open { peer, .. } | Stage::Clear { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// All that the peer's certificate says, once the handshake is done.
    pub(crate) fn identity(&self) -> Option<&PeerIdentity> {
        self.identity.as_ref()
    }

    /// Reads once from the socket and hands on the plaintext that is complete. When the handshake is done it returns
    /// before anything that follows, so that the caller can see who the peer is.
    pub(crate) fn receive(
        &mut self,
        socket: &mut impl Read,
        sink: &mut impl Sink,
    ) -> Result<Received, Fault> {
        if let Stage::Clear { clear, .. } = &mut self.stage {
            let (bytes, start, end) = (&mut self.incoming[..], &mut self.start, &mut self.end);
            return clear.receive(socket, Incoming { bytes, start, end }, sink);
        }
        if self.peer().is_some() && records::whole_record(&self.incoming[self.start..self.end])?.is_some() {
            let closed = self.open_records(sink)?;
            return Ok(if closed { Received::Closed } else { Received::More });
        }
        self.make_room();
        let space = self.incoming.len() - self.end;
        let read = match socket.read(&mut self.incoming[self.end..]) {
            Ok(0) => return Ok(Received::Closed),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Received::More),
            Err(error) => return Err(io_fault(&error)),
        };
        self.end += read;
        if self.peer().is_none() {
            self.handshake()?;
            if self.peer().is_some() {
                return Ok(Received::More);
            }
        }
        if self.open_records(sink)? {
            return Ok(Received::Closed);
        }
        Ok(if read < space { Received::Drained } else { Received::More })
    }

    /// Moves what is left, a part of a record, to the front when the space behind it gets small.
    fn make_room(&mut self) {
        if self.start == self.end || self.incoming.len() - self.end < self.incoming.len() / 2 {
            self.incoming.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
    }

    /// Feeds whole records to rustls, one at a time, so that none is left half-eaten in it when it is done.
    fn handshake(&mut self) -> Result<(), Fault> {
        loop {
            let result = self.handshake_step();
            // An alert tells the peer why: it has to go out even if we give up.
            self.take_handshake_output();
            if self.done() {
                return self.begin_records();
            }
            if !result? {
                return Ok(());
            }
        }
    }

    fn handshake_step(&mut self) -> Result<bool, Fault> {
        let Some(len) = records::whole_record(&self.incoming[self.start..self.end])? else {
            return Ok(false);
        };
        let mut record = &self.incoming[self.start..self.start + len];
        self.start += len;
        while !record.is_empty() {
            let progress = match &mut self.stage {
                Stage::Client(connection) => {
                    connection.read_tls(&mut record).map(|_| connection.process_new_packets())
                }
                Stage::Server(connection) => {
                    connection.read_tls(&mut record).map(|_| connection.process_new_packets())
                }
                _ => return Ok(false),
            };
            progress.map_err(|error| io_fault(&error))?.map_err(|error| tls_fault(&error))?;
        }
        Ok(true)
    }

    fn take_handshake_output(&mut self) {
        let out = &mut self.outgoing;
        out.truncate(self.filled);
        // Writing to memory does not fail.
        let _ = match &mut self.stage {
            Stage::Client(connection) => drain(|| connection.write_tls(out)),
            Stage::Server(connection) => drain(|| connection.write_tls(out)),
            _ => Ok(()),
        };
        self.filled = out.len();
    }

    fn done(&self) -> bool {
        match &self.stage {
            Stage::Client(connection) => !connection.is_handshaking(),
            Stage::Server(connection) => !connection.is_handshaking(),
            _ => false,
        }
    }

    fn begin_records(&mut self) -> Result<(), Fault> {
        let (identity, clear, secrets) = match std::mem::replace(&mut self.stage, Stage::Broken) {
            Stage::Client(connection) => {
                let clear = connection.alpn_protocol() == Some(AUTHENTICATED_PROTOCOL);
                let identity = server_identity(&connection, &self.deployment)?;
                (identity, clear, connection.dangerous_extract_secrets())
            }
            Stage::Server(connection) => {
                let clear = connection.alpn_protocol() == Some(AUTHENTICATED_PROTOCOL);
                let identity = client_identity(&connection, &self.deployment)?;
                let none = || Fault::new(FaultCode::NotAuthenticated, "the peer showed no certificate");
                (identity.ok_or_else(none)?, clear, connection.dangerous_extract_secrets())
            }
            other => {
                self.stage = other;
                return Ok(());
            }
        };
        let (peer, _) = identity.agent()?;
        self.identity = Some(identity);
        let secrets = secrets.map_err(|error| tls_fault(&error))?;
        let (tx, rx) = (Keys::new(secrets.tx)?, Keys::new(secrets.rx)?);
        self.stage = if clear {
            Stage::Clear { clear: Clear::new(tx, rx), peer }
        } else {
            Stage::Open { sealer: Sealer::new(tx), opener: Opener::new(rx), peer }
        };
        self.incoming.resize(BATCH_BYTES, 0);
        // Behind what the handshake left to be sent.
        self.outgoing.resize(BATCH_BYTES.max(self.filled + RECORD_BYTES_MAX), 0);
        Ok(())
    }

    /// Returns whether the peer said that it is done.
    fn open_records(&mut self, sink: &mut impl Sink) -> Result<bool, Fault> {
        let Stage::Open { opener, .. } = &mut self.stage else { return Ok(false) };
        while let Some(len) = records::whole_record(&self.incoming[self.start..self.end])? {
            let record = &mut self.incoming[self.start..self.start + len];
            self.start += len;
            // Where a record holds nothing but payload, its opening puts that where it belongs.
            if let Some(space) = sink.space(records::opened_bytes(record).saturating_sub(1)) {
                match opener.open_into(record, space)? {
                    Opened::Data(plaintext) => {
                        let len = plaintext.len();
                        sink.filled(len)?;
                    }
                    Opened::Ignored => {}
                    Opened::Closed => return Ok(true),
                }
                continue;
            }
            match opener.open(record)? {
                Opened::Data(plaintext) => sink.take(plaintext)?,
                Opened::Ignored => {}
                Opened::Closed => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Seals as much as there is room for, writes it where that saves a copy, and returns how much was taken. Nothing
    /// means that the socket or the room is full.
    pub(crate) fn send(&mut self, plaintext: &[u8], socket: &mut impl Write) -> Result<usize, Fault> {
        match &mut self.stage {
            Stage::Open { sealer, .. } => {
                let mut taken = 0;
                while taken < plaintext.len() && self.filled + RECORD_BYTES_MAX <= self.outgoing.len() {
                    let (used, len) = sealer.seal(&plaintext[taken..], &mut self.outgoing[self.filled..])?;
                    taken += used;
                    self.filled += len;
                }
                Ok(taken)
            }
            Stage::Clear { clear, .. } => {
                let room = self.outgoing.len() - self.filled;
                if !clear.is_writing()
                    && plaintext.len() < SMALL_BYTES
                    && Clear::room_for(plaintext.len()) <= room
                {
                    self.filled += clear.put(plaintext, &mut self.outgoing[self.filled..])?;
                    return Ok(plaintext.len());
                }
                let wrote = clear.write(socket, plaintext, &self.outgoing[..self.filled], &mut self.sent)?;
                if self.sent == self.filled {
                    (self.filled, self.sent) = (0, 0);
                }
                Ok(if let Wrote::Taken(taken) = wrote { taken } else { 0 })
            }
            _ => Ok(0),
        }
    }

    /// Tells the peer that nothing more will come.
    pub(crate) fn close(&mut self) {
        if self.filled + RECORD_BYTES_MAX > self.outgoing.len() {
            return;
        }
        let room = &mut self.outgoing[self.filled..];
        self.filled += match &mut self.stage {
            Stage::Open { sealer, .. } => sealer.close_notify(room),
            // A record that is half out cannot be followed: the peer sees the stream end.
            Stage::Clear { clear, .. } if !clear.is_writing() => clear.close(room),
            _ => 0,
        };
    }

    /// Writes to the socket. True if all of it is out.
    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> Result<bool, Fault> {
        while self.sent < self.filled {
            match socket.write(&self.outgoing[self.sent..self.filled]) {
                Ok(0) => return Err(Fault::new(FaultCode::ConnectionLost, "the socket takes nothing")),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_fault(&error)),
            }
        }
        (self.filled, self.sent) = (0, 0);
        Ok(!matches!(&self.stage, Stage::Clear { clear, .. } if clear.is_writing()))
    }
}

fn drain(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    while write()? > 0 {}
    Ok(())
}

#[cfg(test)]
mod openssl_tests;
#[cfg(test)]
mod tests;
