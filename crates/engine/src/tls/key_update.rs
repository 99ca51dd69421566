//! TLS 1.3 key updates (RFC 8446 section 4.6.3): when to update, and how often the peer may do so.
//!
//! A key seals a bounded number of records. Before that limit each end updates its own key (`KeyUpdate`); an
//! end that does not is asked to. The next keys are derived from the current ones, so only a notice is sent
//! and no data waits. Both record layers use this; each encodes the notice in its own way.

use longhaul_model::{Fault, FaultCode};
use longhaul_security::tls_fault;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::records::Keys;

/// Records sealed under one key, unless configured otherwise: well below
/// [`super::records::RECORDS_PER_KEY_MAX`], 275 GB of TLS.
pub(crate) const RECORDS_PER_KEY: u64 = 1 << 24;
/// Key updates that a peer may send in a burst.
const KEY_UPDATES_BURST_MAX: u32 = 32;
/// Records that earn the peer another key update (a token bucket). Each update costs a key derivation.
const RECORDS_PER_KEY_UPDATE: u64 = 8;

/// The secrets from which the next keys are derived.
pub(super) enum TrafficSecrets {
    Client(Box<KernelConnection<ClientConnectionData>>),
    Server(Box<KernelConnection<ServerConnectionData>>),
}

pub(super) struct KeyUpdates {
    secrets: TrafficSecrets,
    records_per_key: u64,
    /// Whether a key update has to be sent: the peer asked for one, or has to be asked.
    due: bool,
    /// The state of this end's request that the peer update its keys.
    ask: UpdateRequest,
    updates_left: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UpdateRequest {
    None,
    Pending,
    Sent,
}

impl KeyUpdates {
    pub(super) fn new(secrets: TrafficSecrets, records_per_key: u64) -> KeyUpdates {
        let records_per_key = records_per_key.clamp(1, RECORDS_PER_KEY);
        KeyUpdates {
            secrets,
            records_per_key,
            due: false,
            ask: UpdateRequest::None,
            updates_left: KEY_UPDATES_BURST_MAX,
        }
    }

    /// Whether a key update has to be sent before the next record, after this many records under the current
    /// key.
    pub(super) fn is_due(&self, sealed: u64) -> bool {
        self.due || sealed >= self.records_per_key
    }

    /// Whether a key update should be sent although there is no data to send.
    pub(super) fn is_urgent(&self) -> bool {
        self.due
    }

    /// Whether the key update requests one from the peer. [`KeyUpdates::update_sent`] returns the keys that
    /// follow it.
    pub(super) fn requests_update(&self) -> bool {
        self.ask == UpdateRequest::Pending
    }

    /// The key update is sealed under the old keys; returns the next ones.
    pub(super) fn update_sent(&mut self) -> Result<Keys, Fault> {
        self.due = false;
        if self.ask == UpdateRequest::Pending {
            self.ask = UpdateRequest::Sent;
        }
        let next = match &mut self.secrets {
            TrafficSecrets::Client(connection) => connection.update_tx_secret(),
            TrafficSecrets::Server(connection) => connection.update_tx_secret(),
        };
        Keys::new(next.map_err(|error| tls_fault(&error))?)
    }

    /// The peer's key update has arrived after this many records under its old key. Returns its next keys.
    pub(super) fn update_received(&mut self, opened: u64, asks: bool) -> Result<Keys, Fault> {
        let earned = u32::try_from(opened / RECORDS_PER_KEY_UPDATE).unwrap_or(u32::MAX);
        self.updates_left = self.updates_left.saturating_add(earned).min(KEY_UPDATES_BURST_MAX);
        let Some(left) = self.updates_left.checked_sub(1) else {
            return Err(Fault::new(FaultCode::ProtocolError, "the peer renews its keys without end"));
        };
        self.updates_left = left;
        // Several requests get one answer.
        self.due |= asks;
        self.ask = UpdateRequest::None;
        let next = match &mut self.secrets {
            TrafficSecrets::Client(connection) => connection.update_rx_secret(),
            TrafficSecrets::Server(connection) => connection.update_rx_secret(),
        };
        Keys::new(next.map_err(|error| tls_fault(&error))?)
    }

    /// Counts records opened under the peer's current key. A late peer is asked to update.
    pub(super) fn note_opened(&mut self, records: u64) {
        if self.ask == UpdateRequest::None && records >= self.records_per_key + self.records_per_key / 4 {
            self.ask = UpdateRequest::Pending;
            self.due = true;
        }
    }
}
