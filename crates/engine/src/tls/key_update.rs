//! When the keys of a stream are renewed, and how often the peer may do so.
//!
//! A key seals a bounded number of records. Before its end each end renews its own (`KeyUpdate`, RFC 8446
//! section 4.6.3); an end that does not is asked to. The next keys follow from the present ones, so nothing
//! travels but a notice, and no data waits. Both record layers use this; how the notice looks is theirs.

use longhaul_model::{Fault, FaultCode};
use longhaul_security::tls_fault;
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;

use super::records::Keys;

/// Records sealed under one key, unless set otherwise: well below [`super::records::RECORDS_PER_KEY_MAX`],
/// 275 GB of TLS.
pub(crate) const RECORDS_PER_KEY: u64 = 1 << 24;
/// Notices that a peer may send in a row...
const KEY_UPDATES_BURST_MAX: u32 = 32;
/// ... and records that earn it another. Each costs us the derivation of a key.
const RECORDS_PER_KEY_UPDATE: u64 = 8;

/// From which the next keys follow.
pub(super) enum TrafficSecrets {
    Client(Box<KernelConnection<ClientConnectionData>>),
    Server(Box<KernelConnection<ServerConnectionData>>),
}

pub(super) struct KeyUpdates {
    secrets: TrafficSecrets,
    records_per_key: u64,
    /// A notice has to go out: the peer asked for one, or has to be asked.
    due: bool,
    /// The peer is to renew its keys, and has been told (or will be).
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

    /// Whether a notice has to be sent before the next record, of which so many were sealed under the present
    /// key.
    pub(super) fn is_due(&self, sealed: u64) -> bool {
        self.due || sealed >= self.records_per_key
    }

    /// Whether a notice should go out though there is nothing to send.
    pub(super) fn is_urgent(&self) -> bool {
        self.due
    }

    /// Whether the notice asks the peer for one of its own. The keys after it come from [`Renewal::sent`].
    pub(super) fn requests_update(&self) -> bool {
        self.ask == UpdateRequest::Pending
    }

    /// The notice is sealed, under the old keys: these are the next ones.
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

    /// The peer's notice has come, after so many records under its old key. Returns its next keys.
    pub(super) fn update_received(&mut self, opened: u64, asks: bool) -> Result<Keys, Fault> {
        let earned = u32::try_from(opened / RECORDS_PER_KEY_UPDATE).unwrap_or(u32::MAX);
        self.updates_left = self.updates_left.saturating_add(earned).min(KEY_UPDATES_BURST_MAX);
        let Some(left) = self.updates_left.checked_sub(1) else {
            return Err(Fault::new(FaultCode::ProtocolError, "the peer renews its keys without end"));
        };
        self.updates_left = left;
        // Several questions get one answer.
        self.due |= asks;
        self.ask = UpdateRequest::None;
        let next = match &mut self.secrets {
            TrafficSecrets::Client(connection) => connection.update_rx_secret(),
            TrafficSecrets::Server(connection) => connection.update_rx_secret(),
        };
        Keys::new(next.map_err(|error| tls_fault(&error))?)
    }

    /// So many records were opened under the peer's present key. One that is late gets a reminder.
    pub(super) fn note_opened(&mut self, records: u64) {
        if self.ask == UpdateRequest::None && records >= self.records_per_key + self.records_per_key / 4 {
            self.ask = UpdateRequest::Pending;
            self.due = true;
        }
    }
}
