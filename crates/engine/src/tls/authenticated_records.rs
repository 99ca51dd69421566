//! Authenticated records in clear text (integrity only, as with GMAC): the data security level
//! `authenticated`, for sites whose policy allows eavesdropping but no tampering.
//!
//! The keys are those of the TLS handshake. A record is
//!
//! ```text
//! kind u8 │ 0 u8 │ 0 u16 │ length u32, little-endian │ bytes │ tag of 16 bytes
//! ```
//!
//! The tag is the AEAD's over an empty plaintext with the bytes as associated data (with AES-GCM that is
//! GMAC, NIST SP 800-38D section 4). The nonce is formed as in TLS 1.3 (RFC 8446 section 5.3) from the
//! record's sequence number, with the kind in its first byte: so nothing can be changed, dropped, replayed or
//! reordered. Keys are updated as in TLS. Bytes are not copied on sending nor, if they belong to one buffer,
//! on receiving.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use aws_lc_rs::aead::{Aad, Nonce};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::io_fault;

use super::key_update::KeyUpdates;
use super::records::Keys;
use super::{BATCH_BYTES, ReadStatus, Sink};

const HEAD_BYTES: usize = 8;
const TAG_BYTES: usize = 16;
/// A quarter of a chunk: long enough that heads, tags and system calls cost little, and short enough for the
/// buffer of a stream.
pub(super) const BYTES_MAX: usize = 256 << 10;
/// The read size where no payload is expected: a longer read would only bring payload that has to be copied.
const READ_BYTES_SMALL: usize = 4 << 10;

const DATA: u8 = 1;
const CLOSE: u8 = 2;
/// Key update: the following records use the next keys. Its byte is 1 if the peer should update its own keys,
/// otherwise 0.
const RENEWAL: u8 = 3;

const _: () = assert!(HEAD_BYTES + BYTES_MAX + TAG_BYTES + READ_BYTES_SMALL <= BATCH_BYTES);

pub(super) struct AuthenticatedRecords {
    tx: Keys,
    rx: Keys,
    renewal: KeyUpdates,
    /// A record that is read directly into its destination.
    direct: Option<DirectRead>,
    /// A partly sent record.
    pending: Option<PendingWrite>,
}

struct DirectRead {
    len: usize,
    /// The bytes of it that have arrived.
    at: usize,
}

struct PendingWrite {
    head: [u8; HEAD_BYTES],
    tag: [u8; TAG_BYTES],
    len: usize,
    /// Bytes sent, counted over head, bytes and tag together.
    at: usize,
}

/// Bytes read from the socket and not yet used: `bytes[start..end]`.
pub(super) struct Incoming<'a> {
    pub(super) bytes: &'a mut [u8],
    pub(super) start: &'a mut usize,
    pub(super) end: &'a mut usize,
}

impl Incoming<'_> {
    fn have(&self) -> &[u8] {
        &self.bytes[*self.start..*self.end]
    }

    /// Moves the unused bytes to the front, so that there is room for a whole record.
    fn make_room(&mut self) {
        self.bytes.copy_within(*self.start..*self.end, 0);
        *self.end -= *self.start;
        *self.start = 0;
    }
}

/// The result of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WriteProgress {
    /// This much of the plaintext was sent.
    Taken(usize),
    /// The socket would block.
    Blocked,
}

impl AuthenticatedRecords {
    pub(super) fn new(tx: Keys, rx: Keys, renewal: KeyUpdates) -> AuthenticatedRecords {
        AuthenticatedRecords { tx, rx, renewal, direct: None, pending: None }
    }

    #[cfg(test)]
    pub(super) fn records(&self) -> (u64, u64) {
        (self.tx.records(), self.rx.records())
    }

    #[cfg(test)]
    pub(super) fn exhaust(&mut self) {
        self.tx.exhaust();
    }

    /// Whether a key update has to be sent before the next record, which is possible only between two
    /// records.
    pub(super) fn must_renew(&self) -> bool {
        !self.is_writing() && self.renewal.is_due(self.tx.records())
    }

    /// Whether a key update should be sent when there is no next record.
    pub(super) fn should_renew(&self) -> bool {
        !self.is_writing() && self.renewal.is_urgent()
    }

    /// Writes a key update to the front of `out` and uses the next keys from then on.
    pub(super) fn renew(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let len = self.seal_copy_as(RENEWAL, &[u8::from(self.renewal.requests_update())], out)?;
        self.tx = self.renewal.update_sent()?;
        Ok(len)
    }

    /// Writes the next record with the front of `plaintext`, behind `before`, of which `sent` bytes are sent.
    /// After [`WriteProgress::Blocked`] the same plaintext has to be passed again.
    pub(super) fn write(
        &mut self,
        socket: &mut impl Write,
        plaintext: &[u8],
        before: &[u8],
        sent: &mut usize,
    ) -> Result<WriteProgress, Fault> {
        let pending = match &mut self.pending {
            Some(pending) => pending,
            none => none.insert(PendingWrite::new(
                &mut self.tx,
                DATA,
                &plaintext[..plaintext.len().min(BYTES_MAX)],
            )?),
        };
        let bytes = &plaintext[..pending.len];
        while pending.at < HEAD_BYTES + pending.len + TAG_BYTES {
            let (head, rest) = remaining(&pending.head, pending.at);
            let (bytes, rest) = remaining(bytes, rest);
            let (tag, _) = remaining(&pending.tag, rest);
            let parts = [&before[*sent..], head, bytes, tag].map(IoSlice::new);
            match socket.write_vectored(&parts) {
                Ok(0) => return Err(Fault::new(FaultCode::ConnectionLost, "the socket takes nothing")),
                Ok(written) => {
                    let of_before = written.min(before.len() - *sent);
                    *sent += of_before;
                    pending.at += written - of_before;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(WriteProgress::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io_fault(error)),
            }
        }
        let taken = pending.len;
        self.pending = None;
        Ok(WriteProgress::Taken(taken))
    }

    /// Whether a record is partly sent, so that nothing else may follow.
    pub(super) fn is_writing(&self) -> bool {
        self.pending.is_some()
    }

    /// Writes a small record to the front of `out`, which has room for it, and returns its length.
    pub(super) fn seal_copy(&mut self, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        self.seal_copy_as(DATA, plaintext, out)
    }

    /// Announces the orderly end of the stream.
    pub(super) fn close(&mut self, out: &mut [u8]) -> usize {
        self.seal_copy_as(CLOSE, &[], out).unwrap_or(0)
    }

    fn seal_copy_as(&mut self, kind: u8, plaintext: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        let record = PendingWrite::new(&mut self.tx, kind, plaintext)?;
        let len = HEAD_BYTES + plaintext.len() + TAG_BYTES;
        let (head, rest) = out[..len].split_at_mut(HEAD_BYTES);
        let (bytes, tag) = rest.split_at_mut(plaintext.len());
        head.copy_from_slice(&record.head);
        bytes.copy_from_slice(plaintext);
        tag.copy_from_slice(&record.tag);
        Ok(len)
    }

    /// Room that [`AuthenticatedRecords::seal_copy`] needs for this many bytes.
    pub(super) fn room_for(len: usize) -> usize {
        HEAD_BYTES + len + TAG_BYTES
    }

    /// Reads once and delivers the complete records.
    pub(super) fn receive(
        &mut self,
        socket: &mut impl Read,
        mut incoming: Incoming<'_>,
        sink: &mut impl Sink,
    ) -> Result<ReadStatus, Fault> {
        // An earlier read may have left some bytes.
        if self.deliver_all(&mut incoming, sink)? {
            return Ok(ReadStatus::Closed);
        }
        incoming.make_room();
        let (read, asked) = match self.read(socket, &mut incoming, sink) {
            Ok((0, _)) => return Ok(ReadStatus::Closed),
            Ok(both) => both,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(ReadStatus::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(ReadStatus::More),
            Err(error) => return Err(io_fault(error)),
        };
        if self.deliver_all(&mut incoming, sink)? {
            return Ok(ReadStatus::Closed);
        }
        Ok(if read < asked { ReadStatus::Drained } else { ReadStatus::More })
    }

    /// Reads into the payload's destination, and behind it no further than the next head.
    fn read(
        &mut self,
        socket: &mut impl Read,
        incoming: &mut Incoming<'_>,
        sink: &mut impl Sink,
    ) -> io::Result<(usize, usize)> {
        let end = *incoming.end;
        let Some(direct) = &mut self.direct else {
            let wanted = read_len(incoming.have(), sink);
            let read = socket.read(&mut incoming.bytes[end..end + wanted])?;
            *incoming.end += read;
            return Ok((read, wanted));
        };
        // A record that began in its destination keeps it until it is complete.
        let Some(space) = sink.space(direct.len) else {
            return Err(io::Error::other("the place of a payload is gone"));
        };
        let left = direct.len - direct.at;
        let tail = TAG_BYTES + HEAD_BYTES;
        let mut parts = [
            IoSliceMut::new(&mut space[direct.at..direct.len]),
            IoSliceMut::new(&mut incoming.bytes[end..end + tail]),
        ];
        let read = socket.read_vectored(&mut parts)?;
        direct.at += read.min(left);
        *incoming.end += read.saturating_sub(left);
        Ok((read, left + tail))
    }

    /// Delivers all complete records. True if the peer announced its end.
    fn deliver_all(&mut self, incoming: &mut Incoming<'_>, sink: &mut impl Sink) -> Result<bool, Fault> {
        loop {
            if let Some(direct) = &self.direct {
                if direct.at < direct.len || incoming.have().len() < TAG_BYTES {
                    return Ok(false);
                }
                let len = direct.len;
                let tag = &incoming.have()[..TAG_BYTES];
                let space = sink.space(len).ok_or_else(space_gone)?;
                self.rx.check(DATA, &space[..len], tag)?;
                self.renewal.note_opened(self.rx.records());
                *incoming.start += TAG_BYTES;
                self.direct = None;
                sink.filled(len)?;
                continue;
            }
            let have = incoming.have();
            let Some((kind, len)) = parse_head(have)? else { return Ok(false) };
            let whole = HEAD_BYTES + len + TAG_BYTES;
            if have.len() < whole {
                let begun = &have[HEAD_BYTES..have.len().min(HEAD_BYTES + len)];
                if kind == DATA
                    && len > 0
                    && let Some(space) = sink.space(len)
                {
                    space[..begun.len()].copy_from_slice(begun);
                    self.direct = Some(DirectRead { len, at: begun.len() });
                    *incoming.start += HEAD_BYTES + begun.len();
                    continue;
                }
                return Ok(false);
            }
            let (bytes, tag) = have[HEAD_BYTES..whole].split_at(len);
            self.rx.check(kind, bytes, tag)?;
            match (kind, bytes) {
                (CLOSE, _) => return Ok(true),
                (RENEWAL, [asks @ (0 | 1)]) => {
                    self.rx = self.renewal.update_received(self.rx.records(), *asks == 1)?;
                }
                (RENEWAL, _) => {
                    return Err(Fault::new(FaultCode::ProtocolError, "a garbled notice of new keys"));
                }
                _ => sink.take(bytes)?,
            }
            self.renewal.note_opened(self.rx.records());
            *incoming.start += whole;
        }
    }
}

impl PendingWrite {
    fn new(keys: &mut Keys, kind: u8, plaintext: &[u8]) -> Result<PendingWrite, Fault> {
        let mut head = [kind, 0, 0, 0, 0, 0, 0, 0];
        head[4..].copy_from_slice(&(plaintext.len() as u32).to_le_bytes());
        Ok(PendingWrite { head, tag: keys.tag(kind, plaintext)?, len: plaintext.len(), at: 0 })
    }
}

impl Keys {
    fn nonce_for(&mut self, kind: u8) -> Result<Nonce, Fault> {
        let mut nonce = *self.next_nonce()?.as_ref();
        nonce[0] ^= kind;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    fn tag(&mut self, kind: u8, bytes: &[u8]) -> Result<[u8; TAG_BYTES], Fault> {
        let nonce = self.nonce_for(kind)?;
        let sealed = self.key().seal_in_place_separate_tag(nonce, Aad::from(bytes), &mut []);
        let made =
            sealed.map_err(|_| Fault::new(FaultCode::Internal, "a record could not be authenticated"))?;
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(made.as_ref());
        Ok(tag)
    }

    fn check(&mut self, kind: u8, bytes: &[u8], tag: &[u8]) -> Result<(), Fault> {
        let nonce = self.nonce_for(kind)?;
        let mut sealed = [0; TAG_BYTES];
        sealed.copy_from_slice(tag);
        let opened = self.key().open_in_place(nonce, Aad::from(bytes), &mut sealed);
        opened.map(drop).map_err(|_| Fault::new(FaultCode::Corrupted, "a record failed its check"))
    }
}

fn space_gone() -> Fault {
    Fault::new(FaultCode::Internal, "the place of a payload is gone")
}

/// How much to read when the buffer is empty or holds the beginning of a record.
fn read_len(have: &[u8], sink: &impl Sink) -> usize {
    match parse_head(have) {
        // The rest of the record, and the next head.
        Ok(Some((_, len))) => (HEAD_BYTES + len + TAG_BYTES + HEAD_BYTES).saturating_sub(have.len()).max(1),
        _ if sink.in_payload() => HEAD_BYTES.saturating_sub(have.len()).max(1),
        _ => READ_BYTES_SMALL,
    }
}

/// Kind and length, once the head is complete.
fn parse_head(have: &[u8]) -> Result<Option<(u8, usize)>, Fault> {
    let Some(head) = have.get(..HEAD_BYTES) else { return Ok(None) };
    let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
    if !matches!(head[0], DATA | CLOSE | RENEWAL) || head[1..4] != [0; 3] || len > BYTES_MAX {
        return Err(Fault::new(FaultCode::ProtocolError, "the head of a record is garbled"));
    }
    Ok(Some((head[0], len)))
}

/// What is left of `part` after `at` bytes, and how many of these bytes lie behind it.
fn remaining(part: &[u8], at: usize) -> (&[u8], usize) {
    (&part[at.min(part.len())..], at.saturating_sub(part.len()))
}
