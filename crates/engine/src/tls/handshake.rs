//! The TLS 1.3 handshake (RFC 8446 section 4), by rustls: whole records in, records out. The record layers
//! that follow it have their own modules.

use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use longhaul_security::{AGENT_NAME, PeerIdentity, client_identity, server_identity, tls_fault};
use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, UnbufferedStatus};
use rustls::{ClientConfig, CommonState, ServerConfig};

use super::AUTHENTICATED_PROTOCOL;
use super::key_update::TrafficSecrets;
use super::records::Keys;

pub(super) enum Handshake {
    // Large, and dropped after a few round trips.
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// The result of a handshake.
pub(super) struct HandshakeResult {
    pub(super) identity: PeerIdentity,
    /// Whether records are authenticated clear text.
    pub(super) clear: bool,
    pub(super) send: Keys,
    pub(super) receive: Keys,
    pub(super) secrets: TrafficSecrets,
}

/// The result of one step of rustls.
struct HandshakeStep {
    /// Consumed bytes at the front.
    used: usize,
    /// None if it waits for more, or is done.
    next: Option<Result<(), Fault>>,
}

impl Handshake {
    pub(super) fn client(config: &Arc<ClientConfig>) -> Result<Handshake, Fault> {
        let name = ServerName::try_from(AGENT_NAME)
            .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error))?;
        let connection = UnbufferedClientConnection::new(config.clone(), name);
        Ok(Handshake::Client(Box::new(connection.map_err(|error| tls_fault(&error))?)))
    }

    pub(super) fn server(config: &Arc<ServerConfig>) -> Result<Handshake, Fault> {
        let connection = UnbufferedServerConnection::new(config.clone());
        Ok(Handshake::Server(Box::new(connection.map_err(|error| tls_fault(&error))?)))
    }

    /// Passes at most one more record than the previous call, and appends the bytes to send to `out`. Returns
    /// how many bytes at the front are consumed: the rest has to be passed again. After a fault, `out` may
    /// hold an alert that tells the peer the reason.
    pub(super) fn advance(&mut self, records: &mut [u8], out: &mut Vec<u8>) -> (usize, Result<(), Fault>) {
        let mut used = 0;
        let mut result = Ok(());
        loop {
            // Also after a fault: rustls remembers what it has seen of them.
            let rest = &mut records[used..];
            let step = match self {
                Handshake::Client(connection) => step(connection.process_tls_records(rest), out),
                Handshake::Server(connection) => step(connection.process_tls_records(rest), out),
            };
            used += step.used;
            match step.next {
                None => return (used, result),
                Some(Err(_)) if result.is_err() => return (used, result),
                Some(Err(fault)) => result = Err(fault),
                Some(Ok(())) => {}
            }
        }
    }

    fn state(&self) -> &CommonState {
        match self {
            Handshake::Client(connection) => connection,
            Handshake::Server(connection) => connection,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        !self.state().is_handshaking()
    }

    /// The peer's identity and the traffic keys.
    pub(super) fn finish(self, deployment: &str) -> Result<HandshakeResult, Fault> {
        let clear = self.state().alpn_protocol() == Some(AUTHENTICATED_PROTOCOL);
        let identity = match &self {
            Handshake::Client(connection) => Some(server_identity(connection, deployment)?),
            Handshake::Server(connection) => client_identity(connection, deployment)?,
        };
        let none = || Fault::new(FaultCode::NotAuthenticated, "the peer showed no certificate");
        let identity = identity.ok_or_else(none)?;
        let extracted = match self {
            Handshake::Client(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(keys, later)| (keys, TrafficSecrets::Client(Box::new(later)))),
            Handshake::Server(connection) => connection
                .dangerous_into_kernel_connection()
                .map(|(keys, later)| (keys, TrafficSecrets::Server(Box::new(later)))),
        };
        let (keys, secrets) = extracted.map_err(|error| tls_fault(&error))?;
        Ok(HandshakeResult {
            identity,
            clear,
            send: Keys::new(keys.tx)?,
            receive: Keys::new(keys.rx)?,
            secrets,
        })
    }
}

fn step<Data>(status: UnbufferedStatus<'_, '_, Data>, out: &mut Vec<u8>) -> HandshakeStep {
    let next = match status.state {
        Ok(ConnectionState::EncodeTlsData(mut record)) => {
            let before = out.len();
            if let Err(EncodeError::InsufficientSize(needed)) = record.encode(&mut []) {
                out.resize(before + needed.required_size, 0);
            }
            let encoded = record.encode(&mut out[before..]);
            Some(
                encoded
                    .map(drop)
                    .map_err(|error| Fault::new(FaultCode::Internal, error.to_string()).with_source(error)),
            )
        }
        // It follows whatever is still to be sent.
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            sent.done();
            Some(Ok(()))
        }
        Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => None,
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
            Some(Err(Fault::new(FaultCode::ConnectionLost, "the peer closed the stream while shaking hands")))
        }
        Ok(_) => Some(Err(Fault::new(FaultCode::ProtocolError, "data before the handshake was done"))),
        Err(error) => Some(Err(tls_fault(&error))),
    };
    HandshakeStep { used: status.discard, next }
}
