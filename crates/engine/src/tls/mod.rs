//! TLS 1.3 of a stream: rustls makes the handshake, then [`records`] seals and opens records in bulk.
//!
//! rustls's own buffered records cost nearly twice the CPU, in copies and small reads. Everything that knows TLS is in
//! this module.

use std::io::{self, Read, Write};
use std::sync::Arc;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::{AGENT_NAME, client_identity, io_fault, server_identity, tls_fault};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

mod records;

use records::{Opened, Opener, RECORD_BYTES_MAX, Sealer};

/// Records read or written by one system call: 16 of full size. Larger batches gained nothing on loopback.
const BATCH_BYTES: usize = 16 * RECORD_BYTES_MAX;
/// While shaking hands nothing is large.
const HANDSHAKE_BYTES: usize = 2 * RECORD_BYTES_MAX;

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

enum Stage {
    Client(ClientConnection),
    Server(ServerConnection),
    Open { sealer: Sealer, opener: Opener, peer: AgentId },
    Broken,
}

pub(crate) struct Tls {
    stage: Stage,
    deployment: Arc<str>,
    /// Bytes from the socket: `incoming[start..end]` is not used yet.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes for the socket, of which `sent` are sent.
    outgoing: Vec<u8>,
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
            incoming,
            start: 0,
            end: 0,
            outgoing: Vec::new(),
            sent: 0,
        }
    }

    /// Who the peer is, once the handshake is done.
    pub(crate) fn peer(&self) -> Option<AgentId> {
        match &self.stage {
            Stage::Open { peer, .. } => Some(*peer),
            _ => None,
        }
    }

    /// Reads once from the socket and hands on the plaintext that is complete. When the handshake is done it returns
    /// before anything that follows, so that the caller can see who the peer is.
    pub(crate) fn receive(
        &mut self,
        socket: &mut impl Read,
        deliver: &mut dyn FnMut(&[u8]) -> Result<(), Fault>,
    ) -> Result<Received, Fault> {
        if self.peer().is_some() && records::whole_record(&self.incoming[self.start..self.end])?.is_some() {
            let closed = self.open_records(deliver)?;
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
        if self.open_records(deliver)? {
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
        // Writing to memory does not fail.
        let _ = match &mut self.stage {
            Stage::Client(connection) => drain(|| connection.write_tls(out)),
            Stage::Server(connection) => drain(|| connection.write_tls(out)),
            _ => Ok(()),
        };
    }

    fn done(&self) -> bool {
        match &self.stage {
            Stage::Client(connection) => !connection.is_handshaking(),
            Stage::Server(connection) => !connection.is_handshaking(),
            _ => false,
        }
    }

    fn begin_records(&mut self) -> Result<(), Fault> {
        let (identity, secrets) = match std::mem::replace(&mut self.stage, Stage::Broken) {
            Stage::Client(connection) => {
                (server_identity(&connection, &self.deployment)?, connection.dangerous_extract_secrets())
            }
            Stage::Server(connection) => {
                let identity = client_identity(&connection, &self.deployment)?;
                let none = || Fault::new(FaultCode::NotAuthenticated, "the peer showed no certificate");
                (identity.ok_or_else(none)?, connection.dangerous_extract_secrets())
            }
            other => {
                self.stage = other;
                return Ok(());
            }
        };
        let (peer, _) = identity.agent()?;
        let secrets = secrets.map_err(|error| tls_fault(&error))?;
        let (sealer, opener) = (Sealer::new(secrets.tx)?, Opener::new(secrets.rx)?);
        self.stage = Stage::Open { sealer, opener, peer };
        self.incoming.resize(BATCH_BYTES, 0);
        Ok(())
    }

    /// Returns whether the peer said that it is done.
    fn open_records(&mut self, deliver: &mut dyn FnMut(&[u8]) -> Result<(), Fault>) -> Result<bool, Fault> {
        let Stage::Open { opener, .. } = &mut self.stage else { return Ok(false) };
        while let Some(len) = records::whole_record(&self.incoming[self.start..self.end])? {
            let record = &mut self.incoming[self.start..self.start + len];
            self.start += len;
            match opener.open(record)? {
                Opened::Data(plaintext) => deliver(plaintext)?,
                Opened::Ignored => {}
                Opened::Closed => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Seals as much as there is room for, and returns how much that was.
    pub(crate) fn send(&mut self, plaintext: &[u8]) -> Result<usize, Fault> {
        let Stage::Open { sealer, .. } = &mut self.stage else { return Ok(0) };
        let mut taken = 0;
        while taken < plaintext.len() && self.outgoing.len() + RECORD_BYTES_MAX <= BATCH_BYTES {
            taken += sealer.seal(&plaintext[taken..], &mut self.outgoing)?;
        }
        Ok(taken)
    }

    /// Tells the peer that nothing more will come.
    pub(crate) fn close(&mut self) {
        if let Stage::Open { sealer, .. } = &mut self.stage {
            sealer.close_notify(&mut self.outgoing);
        }
    }

    /// Writes to the socket. True if all of it is out.
    pub(crate) fn flush(&mut self, socket: &mut impl Write) -> Result<bool, Fault> {
        while self.sent < self.outgoing.len() {
            match socket.write(&self.outgoing[self.sent..]) {
                Ok(0) => return Err(Fault::new(FaultCode::ConnectionLost, "the socket takes nothing")),
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_fault(&error)),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
        Ok(true)
    }
}

fn drain(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<()> {
    while write()? > 0 {}
    Ok(())
}
