//! The TLS 1.3 record layer after the handshake (RFC 8446 section 5): seals and opens records in place, with
//! the traffic keys that rustls negotiated.
//!
//! [`super::key_update`] decides when keys are updated.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::tls_fault;
use rustls::{AlertDescription, ConnectionTrafficSecrets};

use super::key_update::KeyUpdates;

//= https://www.rfc-editor.org/rfc/rfc8446#section-5.1
//# The length MUST NOT exceed 2^14 bytes.
const PLAINTEXT_BYTES_MAX: usize = 1 << 14;
pub(super) const HEADER_BYTES: usize = 5;
const TAG_BYTES: usize = 16;
/// A full record of this sender: header, plaintext, content type, tag.
const SEALED_BYTES_MAX: usize = HEADER_BYTES + PLAINTEXT_BYTES_MAX + 1 + TAG_BYTES;
//= https://www.rfc-editor.org/rfc/rfc8446#section-5.2
//# The length MUST NOT exceed 2^14 + 256 bytes.
const CIPHERTEXT_BYTES_MAX: usize = (1 << 14) + 256;
/// The largest record that RFC 8446 allows.
pub(super) const RECORD_BYTES_MAX: usize = HEADER_BYTES + CIPHERTEXT_BYTES_MAX;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
const CLOSE_NOTIFY: u8 = 0;

//= https://www.rfc-editor.org/rfc/rfc8446#section-5.5
//# For AES-GCM, up to 2^24.5 full-size records (about 24 million) may be
//# encrypted on a given connection while keeping a safety margin
/// The limit on records per key, 2^24.5 (RFC 8446 section 5.5).
pub(super) const RECORDS_PER_KEY_MAX: u64 = 23_726_566;

pub(super) struct Keys {
    key: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
}

impl Keys {
    pub(super) fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Keys, Fault> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(Fault::new(FaultCode::VersionMismatch, "an unknown cipher was agreed on")),
        };
        let unusable = |_| Fault::new(FaultCode::Internal, "an unusable key");
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(unusable)?);
        let mut nonce = [0; 12];
        nonce.copy_from_slice(iv.as_ref());
        Ok(Keys { key, iv: nonce, sequence })
    }

    pub(super) fn key(&self) -> &LessSafeKey {
        &self.key
    }

    /// Records sealed or opened with this key.
    pub(super) fn records(&self) -> u64 {
        self.sequence
    }

    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.sequence = RECORDS_PER_KEY_MAX;
    }

    //= https://www.rfc-editor.org/rfc/rfc8446#section-5.3
    //# The padded sequence number is XORed with either the static
    //# client_write_iv or server_write_iv (depending on the role).
    pub(super) fn next_nonce(&mut self) -> Result<Nonce, Fault> {
        if self.sequence >= RECORDS_PER_KEY_MAX {
            return Err(Fault::new(FaultCode::ConnectionLost, "the key of the stream is used up"));
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

fn header(len: usize) -> [u8; HEADER_BYTES] {
    let len = len as u16;
    [APPLICATION_DATA, 3, 3, (len >> 8) as u8, len as u8]
}

/// Length of the record at the front, once it is complete.
pub(super) fn complete_record(bytes: &[u8]) -> Result<Option<usize>, Fault> {
    let Some(head) = bytes.get(..HEADER_BYTES) else { return Ok(None) };
    let len = usize::from(head[3]) << 8 | usize::from(head[4]);
    if !(20..=APPLICATION_DATA).contains(&head[0]) || head[1] != 3 || len > CIPHERTEXT_BYTES_MAX {
        return Err(Fault::new(FaultCode::ProtocolError, "the peer does not speak TLS"));
    }
    Ok((bytes.len() >= HEADER_BYTES + len).then_some(HEADER_BYTES + len))
}

pub(super) struct Sealer(Keys);

impl Sealer {
    pub(super) fn new(keys: Keys) -> Sealer {
        Sealer(keys)
    }

    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.0.exhaust();
    }

    pub(super) fn records(&self) -> u64 {
        self.0.records()
    }

    //= https://www.rfc-editor.org/rfc/rfc8446#section-4.6.3
    //# After sending a KeyUpdate message, the sender SHALL send all its
    //# traffic using the next generation of keys
    /// Writes a key update to the front of `out` and seals with the next keys from then on.
    pub(super) fn update_keys(&mut self, renewal: &mut KeyUpdates, out: &mut [u8]) -> Result<usize, Fault> {
        let notice = [KEY_UPDATE, 0, 0, 1, u8::from(renewal.requests_update())];
        let len = self.seal_as(HANDSHAKE, &notice, out)?;
        self.0 = renewal.update_sent()?;
        Ok(len)
    }

    /// Writes one record with the front of `plaintext` to the front of `out`, which has room for it. Returns
    /// the consumed plaintext and the used room.
    pub(super) fn seal(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<(usize, usize), Fault> {
        let taken = plaintext.len().min(PLAINTEXT_BYTES_MAX);
        let len = self.seal_as(APPLICATION_DATA, &plaintext[..taken], out)?;
        Ok((taken, len))
    }

    /// Returns the length of the record; none if the nonces are exhausted, and then the peer sees the stream
    /// end anyway.
    pub(super) fn close_notify(&mut self, out: &mut [u8]) -> usize {
        self.seal_as(ALERT, &[1, CLOSE_NOTIFY], out).unwrap_or(0)
    }

    fn seal_as(&mut self, kind: u8, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        let nonce = self.0.next_nonce()?;
        let head = header(plaintext.len() + 1 + TAG_BYTES);
        let len = HEADER_BYTES + plaintext.len() + 1 + TAG_BYTES;
        assert!(len <= SEALED_BYTES_MAX, "a record of at most 2^14 bytes");
        let (front, body) = out[..len].split_at_mut(HEADER_BYTES);
        front.copy_from_slice(&head);
        let (sealed, tail) = body.split_at_mut(plaintext.len());
        self.0
            .key
            .seal_out_of_place_scatter(nonce, Aad::from(head), plaintext, sealed, &[kind], tail)
            .map_err(|_| Fault::new(FaultCode::Internal, "a record could not be sealed"))?;
        Ok(len)
    }
}

/// The content of an opened record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordContent {
    /// Bytes of plaintext at the front of the destination.
    Data(usize),
    Ignored,
    /// The following records use the peer's next keys.
    KeyUpdate {
        asks: bool,
    },
    /// The peer sends nothing more.
    Closed,
}

pub(super) struct Opener(Keys);

impl Opener {
    pub(super) fn new(keys: Keys) -> Opener {
        Opener(keys)
    }

    pub(super) fn records(&self) -> u64 {
        self.0.records()
    }

    pub(super) fn set_keys(&mut self, keys: Keys) {
        self.0 = keys;
    }

    /// Opens one whole record in place; its plaintext starts behind the header.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<RecordContent, Fault> {
        let aad = checked_header(record)?;
        let nonce = self.0.next_nonce()?;
        let inner = self
            .0
            .key
            .open_in_place(nonce, Aad::from(aad), &mut record[HEADER_BYTES..])
            .map_err(|_| damaged())?;
        parse_content(inner)
    }

    /// Opens one whole record into the front of `space`, which has room for [`opened_bytes`] of it.
    pub(super) fn open_into(&mut self, record: &[u8], space: &mut [u8]) -> Result<RecordContent, Fault> {
        let aad = checked_header(record)?;
        let nonce = self.0.next_nonce()?;
        let inner = &mut space[..opened_bytes(record)];
        let (sealed, tag) = record[HEADER_BYTES..].split_at(inner.len());
        self.0.key.open_separate_gather(nonce, Aad::from(aad), sealed, tag, inner).map_err(|_| damaged())?;
        parse_content(inner)
    }
}

/// Plaintext, content type and padding of a record.
pub(super) fn opened_bytes(record: &[u8]) -> usize {
    record.len().saturating_sub(HEADER_BYTES + TAG_BYTES)
}

fn checked_header(record: &[u8]) -> Result<[u8; HEADER_BYTES], Fault> {
    let mut head = [0; HEADER_BYTES];
    head.copy_from_slice(&record[..HEADER_BYTES]);
    if head[0] != APPLICATION_DATA {
        return Err(Fault::new(FaultCode::ProtocolError, "a record in clear text"));
    }
    if record.len() < HEADER_BYTES + TAG_BYTES {
        return Err(damaged());
    }
    Ok(head)
}

fn damaged() -> Fault {
    Fault::new(FaultCode::Corrupted, "a TLS record failed its check")
}

/// Interprets the content of a record.
fn parse_content(inner: &[u8]) -> Result<RecordContent, Fault> {
    // Zeros after the content type are padding.
    let Some(at) = inner.iter().rposition(|&byte| byte != 0) else {
        return Err(Fault::new(FaultCode::ProtocolError, "a TLS record without a type"));
    };
    let (content, kind) = (&inner[..at], inner[at]);
    match (kind, content) {
        (APPLICATION_DATA, _) => Ok(RecordContent::Data(at)),
        (ALERT, [_, CLOSE_NOTIFY]) => Ok(RecordContent::Closed),
        (ALERT, [_, description]) => {
            Err(tls_fault(&rustls::Error::AlertReceived(AlertDescription::from(*description))))
        }
        (HANDSHAKE, messages) => handshake_messages(messages),
        _ => Err(Fault::new(FaultCode::ProtocolError, "a TLS record of an unknown type")),
    }
}

/// Session tickets are ignored; key updates are applied, and nothing may follow one under the old keys.
fn handshake_messages(mut messages: &[u8]) -> Result<RecordContent, Fault> {
    let broken = |what| Fault::new(FaultCode::ProtocolError, what);
    loop {
        let [kind, a, b, c, rest @ ..] = messages else {
            return Err(broken("a broken message of the handshake"));
        };
        let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
        let Some((body, rest)) = rest.split_at_checked(len) else {
            return Err(broken("a broken message of the handshake"));
        };
        match (*kind, body) {
            (NEW_SESSION_TICKET, _) if rest.is_empty() => return Ok(RecordContent::Ignored),
            (NEW_SESSION_TICKET, _) => messages = rest,
            (KEY_UPDATE, [asks @ (0 | 1)]) if rest.is_empty() => {
                return Ok(RecordContent::KeyUpdate { asks: *asks == 1 });
            }
            _ => return Err(broken("a message that has no place after the handshake")),
        }
    }
}
