use std::io::{self, Read, Write};
use std::sync::Arc;

use longhaul_model::{AgentId, DataSecurity, Fault, FaultCode, Timestamp};
use longhaul_security::{Authority, Credentials, new_signing_request};
use proptest::prelude::*;

use super::{BATCH_BYTES, RECORDS_PER_KEY, ReadStatus, Sink, Stage, Tls};
use crate::context::TlsSettings;

/// An in-memory socket that transfers a limited number of bytes per call.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    portion: usize,
    full: bool,
}

impl Read for Pipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = self.bytes.len().min(buffer.len()).min(self.portion);
        buffer[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes.drain(..len);
        Ok(len)
    }
}

impl Write for Pipe {
    /// Alternates between accepting a portion and blocking.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.full = !self.full && self.portion < usize::MAX;
        if self.full {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let len = bytes.len().min(self.portion);
        self.bytes.extend_from_slice(&bytes[..len]);
        Ok(len)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn now() -> Timestamp {
    Timestamp(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64)
}

pub(crate) fn authority() -> Authority {
    let directory = tempfile::tempdir().unwrap();
    Authority::create(&directory.path().join("a"), "test", now()).unwrap()
}

/// The certificate of agent number 7.
pub(crate) fn credentials(authority: &Authority) -> Credentials {
    let (request, key_pem) = new_signing_request().unwrap();
    let issued = authority.issue_agent(&request, AgentId(7), &"site".parse().unwrap(), now()).unwrap();
    Credentials { certificate_pem: issued.certificate_pem, key_pem, ca_pem: authority.ca_pem().to_owned() }
}

fn settings(authority: &Authority, security: DataSecurity) -> TlsSettings {
    TlsSettings::new(&credentials(authority), security).unwrap()
}

/// Collects plaintext; every other piece is delivered to its destination without a copy.
#[derive(Default)]
pub(super) struct Collected {
    bytes: Vec<u8>,
    /// The previous content of a space that is lent out.
    before: Option<usize>,
    turn: bool,
}

impl Sink for Collected {
    fn take(&mut self, plaintext: &[u8]) -> Result<(), Fault> {
        self.settle();
        self.bytes.extend_from_slice(plaintext);
        Ok(())
    }

    fn in_payload(&self) -> bool {
        self.turn
    }

    fn space(&mut self, len: usize) -> Option<&mut [u8]> {
        if let Some(before) = self.before
            && self.bytes.len() == before + len + 1
        {
            return Some(&mut self.bytes[before..]);
        }
        self.settle();
        self.turn = !self.turn;
        if !self.turn {
            return None;
        }
        let before = self.bytes.len();
        self.before = Some(before);
        self.bytes.resize(before + len + 1, 0xaa);
        Some(&mut self.bytes[before..])
    }

    fn filled(&mut self, len: usize) -> Result<(), Fault> {
        let before = self.before.take().expect("a space was given away");
        self.bytes.truncate(before + len);
        Ok(())
    }
}

impl Collected {
    /// Nothing was written into the lent space.
    fn settle(&mut self) {
        if let Some(before) = self.before.take() {
            self.bytes.truncate(before);
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.before.unwrap_or(self.bytes.len())]
    }
}

struct Pair {
    client: Tls,
    server: Tls,
    to_server: Pipe,
    to_client: Pipe,
    at_server: Collected,
    at_client: Collected,
}

impl Pair {
    fn with(portion: usize, of_client: DataSecurity, of_server: DataSecurity) -> Pair {
        Pair::renewing(portion, of_client, of_server, [RECORDS_PER_KEY; 2])
    }

    /// The numbers of records after which the client and the server update their keys.
    fn renewing(
        portion: usize,
        of_client: DataSecurity,
        of_server: DataSecurity,
        [client_records, server_records]: [u64; 2],
    ) -> Pair {
        let authority = authority();
        let (client, server) = (settings(&authority, of_client), settings(&authority, of_server));
        let deployment: Arc<str> = "test".into();
        let pipe = || Pipe { bytes: Vec::new(), portion, full: false };
        let mut pair = Pair {
            client: Tls::client(&client.client, &deployment, client_records).unwrap(),
            server: Tls::server(&server.server, &deployment, server_records).unwrap(),
            to_server: pipe(),
            to_client: pipe(),
            at_server: Collected::default(),
            at_client: Collected::default(),
        };
        while pair.client.peer().is_none() || pair.server.peer().is_none() {
            pair.turn().unwrap();
        }
        pair
    }

    /// Sends everything, in as many turns as that takes.
    fn send(&mut self, up: bool, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            at += match up {
                true => self.client.send(&bytes[at..], &mut self.to_server).unwrap(),
                false => self.server.send(&bytes[at..], &mut self.to_client).unwrap(),
            };
            self.turn().unwrap();
        }
    }

    fn turn(&mut self) -> Result<(ReadStatus, ReadStatus), Fault> {
        self.client.flush(&mut self.to_server).unwrap();
        let one = self.server.receive(&mut self.to_server, &mut self.at_server)?;
        self.server.flush(&mut self.to_client).unwrap();
        let two = self.client.receive(&mut self.to_client, &mut self.at_client)?;
        Ok((one, two))
    }
}

const BOTH: [DataSecurity; 2] = [DataSecurity::Tls, DataSecurity::Authenticated];

fn pair(security: DataSecurity) -> Pair {
    Pair::with(usize::MAX, security, security)
}

#[test]
fn both_ends_are_authenticated() {
    for security in BOTH {
        let pair = pair(security);
        assert_eq!((pair.client.peer(), pair.server.peer()), (Some(AgentId(7)), Some(AgentId(7))));
    }
}

/// Authenticated clear text needs the consent of both ends.
#[test]
fn clear_text_is_sent_only_if_both_ends_agree() {
    for (client, server, clear) in [
        (DataSecurity::Tls, DataSecurity::Tls, false),
        (DataSecurity::Tls, DataSecurity::Authenticated, false),
        (DataSecurity::Authenticated, DataSecurity::Tls, false),
        (DataSecurity::Authenticated, DataSecurity::Authenticated, true),
    ] {
        let mut pair = Pair::with(usize::MAX, client, server);
        let words = b"can anybody on the way read this?";
        pair.client.send(words, &mut pair.to_server).unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        let seen = pair.to_server.bytes.windows(words.len()).any(|window| window == words);
        assert_eq!(seen, clear, "{client:?} {server:?}");
        pair.turn().unwrap();
        assert_eq!(pair.at_server.bytes(), words);
    }
}

#[test]
fn an_orderly_close_is_reported() {
    for security in BOTH {
        let mut pair = pair(security);
        pair.client.send(b"the last", &mut pair.to_server).unwrap();
        pair.client.close();
        let (received, _) = pair.turn().unwrap();
        assert_eq!((received, pair.at_server.bytes()), (ReadStatus::Closed, &b"the last"[..]));
    }
}

#[test]
fn a_flipped_bit_is_detected() {
    for (security, at) in
        BOTH.into_iter().flat_map(|security| [0, 1, 3, 5, 50, 1_000, 2_010].map(|at| (security, at)))
    {
        let mut pair = pair(security);
        pair.client.send(&[7; 2_000], &mut pair.to_server).unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        pair.to_server.bytes[at] ^= 0x40;
        let result = pair.turn();
        assert!(pair.at_server.bytes().is_empty());
        match result {
            Err(fault) => {
                assert!(matches!(fault.code, FaultCode::Corrupted | FaultCode::ProtocolError), "{fault}")
            }
            // A record that claims to be longer than what arrived is waited for.
            Ok(_) => assert!(at == 3 && security == DataSecurity::Tls || at == 5, "{security:?} {at}"),
        }
    }
}

#[test]
fn a_replayed_record_is_refused() {
    for security in BOTH {
        let mut pair = pair(security);
        pair.client.send(b"pay once", &mut pair.to_server).unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        let copy = pair.to_server.bytes.clone();
        pair.to_server.bytes.extend(copy);
        assert_eq!(pair.turn().unwrap_err().code, FaultCode::Corrupted);
        assert_eq!(pair.at_server.bytes(), b"pay once");
    }
}

/// The nonce binds the kind: an end cannot be forged from data, nor data from an end.
#[test]
fn the_kind_of_a_record_cannot_be_changed() {
    let mut pair = pair(DataSecurity::Authenticated);
    pair.client.close();
    pair.client.flush(&mut pair.to_server).unwrap();
    pair.to_server.bytes[0] = 1;
    assert_eq!(pair.turn().unwrap_err().code, FaultCode::Corrupted);
}

#[test]
fn unsent_bytes_are_bounded() {
    let mut pair = pair(DataSecurity::Tls);
    let taken = pair.client.send(&vec![1; 10 * BATCH_BYTES], &mut pair.to_server).unwrap();
    assert!(taken > 0 && taken <= BATCH_BYTES);
    assert_eq!(pair.client.send(&[1; 100], &mut pair.to_server).unwrap(), 0);
    pair.turn().unwrap();
    assert!(pair.client.send(&[1; 100], &mut pair.to_server).unwrap() > 0);
}

/// Where keys could not be updated, nothing more is sealed.
#[test]
fn no_key_is_used_beyond_its_limit() {
    for security in BOTH {
        let mut pair = pair(security);
        match &mut pair.client.stage {
            Stage::Open { sealer, .. } => sealer.exhaust(),
            Stage::Authenticated { clear, .. } => clear.exhaust(),
            _ => unreachable!(),
        }
        let sent = pair.client.send(b"more", &mut pair.to_server);
        assert_eq!(sent.unwrap_err().code, FaultCode::ConnectionLost);
    }
}

/// Sends many small pieces, and returns which direction's keys were updated at least once, by the counts of
/// records.
fn chat(pair: &mut Pair, pieces: usize, most: [u64; 2]) {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for number in 0..pieces {
        let piece = vec![number as u8; 7_000];
        pair.send(true, &piece);
        pair.send(false, &piece[..100]);
        up.extend(piece.iter().copied());
        down.extend(piece[..100].iter().copied());
        pair.turn().unwrap();
        let (by_client, by_server) = (pair.client.records().0, pair.server.records().0);
        assert!(by_client <= most[0] && by_server <= most[1], "{by_client} {by_server}");
    }
    assert!(pair.at_server.bytes() == up && pair.at_client.bytes() == down);
    // A request and its answer may be in flight.
    (0..3).for_each(|_| _ = pair.turn().unwrap());
    assert_eq!(pair.client.records().0, pair.server.records().1);
    assert_eq!(pair.server.records().0, pair.client.records().1);
}

#[test]
fn keys_are_renewed_in_time_by_both_ends() {
    for security in BOTH {
        let mut pair = Pair::renewing(usize::MAX, security, security, [40, 25]);
        chat(&mut pair, 300, [40, 25]);
    }
}

/// A peer that keeps its keys for too long is asked to update them, and does.
#[test]
fn keys_are_renewed_when_the_peer_requests_it() {
    for security in BOTH {
        let mut pair = Pair::renewing(usize::MAX, security, security, [40, RECORDS_PER_KEY]);
        // A quarter more, plus what was sent before the request arrived.
        chat(&mut pair, 300, [40, 52]);
        let mut pair = Pair::renewing(usize::MAX, security, security, [RECORDS_PER_KEY, 40]);
        chat(&mut pair, 300, [52, 40]);
    }
}

/// An end that only receives answers as well: a request costs one key update, not one per record.
#[test]
fn a_key_update_request_is_answered_once_and_without_data() {
    for security in BOTH {
        let mut pair = Pair::renewing(usize::MAX, security, security, [RECORDS_PER_KEY, 40]);
        let sent = vec![1; 200 * 7_000];
        for piece in sent.chunks(7_000) {
            pair.client.send(piece, &mut pair.to_server).unwrap();
            pair.client.flush(&mut pair.to_server).unwrap();
        }
        // Everything was sealed under the first keys, since the other end did not read.
        while pair.at_server.bytes().len() < sent.len() {
            let _ = pair.server.receive(&mut pair.to_server, &mut pair.at_server).unwrap();
            pair.server.flush(&mut pair.to_client).unwrap();
        }
        assert_eq!(pair.server.records(), (0, 200), "one notice, under the keys before");
        let _ = pair.client.receive(&mut pair.to_client, &mut pair.at_client).unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        assert_eq!((pair.client.records(), pair.server.records()), ((0, 0), (0, 200)));
        pair.send(true, b"under the next");
        (0..4).for_each(|_| _ = pair.turn().unwrap());
        assert_eq!((pair.client.records().0, pair.server.records().1), (1, 1));
        assert!(pair.at_server.bytes().ends_with(b"under the next"));
    }
}

/// Each key update costs a key derivation, so a peer has to earn it with data.
#[test]
fn a_flood_of_key_updates_is_cut_off() {
    for security in BOTH {
        let mut pair = pair(security);
        let notice = |pair: &mut Pair| {
            let mut room = [0; 100];
            let len = match &mut pair.client.stage {
                Stage::Open { sealer, renewal, .. } => sealer.update_keys(renewal, &mut room).unwrap(),
                Stage::Authenticated { clear, .. } => clear.renew(&mut room).unwrap(),
                _ => unreachable!(),
            };
            pair.to_server.bytes.extend_from_slice(&room[..len]);
            pair.turn()
        };
        let taken = (0..1_000).take_while(|_| notice(&mut pair).is_ok()).count();
        assert_eq!(taken, 32);
        // With data between them key updates may go on without end.
        let mut pair = super::tests::pair(security);
        for _ in 0..200 {
            (0..8).for_each(|_| pair.send(true, b"data"));
            notice(&mut pair).unwrap();
        }
        let fault = (0..1_000).find_map(|_| notice(&mut pair).err()).unwrap();
        assert_eq!(fault.code, FaultCode::ProtocolError);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24 * ProptestConfig::default().cases / 256,
        ..ProptestConfig::default() })]

    #[test]
    fn all_bytes_arrive_in_order(
        parts in proptest::collection::vec((0usize..600_000, any::<bool>()), 1..8),
            portion in 100usize..400_000, clear: bool,
        client_records in 16u64..200, server_records in 16u64..200
    ) {
        let security = if clear { DataSecurity::Authenticated } else { DataSecurity::Tls };
        let mut pair = Pair::renewing(portion, security, security, [client_records, server_records]);
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        for (number, (len, up)) in parts.iter().enumerate() {
            let bytes: Vec<u8> = (0..*len).map(|at| (at * 31 + number) as u8).collect();
            pair.send(*up, &bytes);
            if *up { to_server.extend(bytes) } else { to_client.extend(bytes) }
        }
        while pair.at_server.bytes().len() < to_server.len()
            || pair.at_client.bytes().len() < to_client.len() {
            pair.turn().unwrap();
        }
        prop_assert!(pair.at_server.bytes() == to_server && pair.at_client.bytes() == to_client);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400),
        type_byte in 0u8..26, clear: bool) {
        let mut pair = pair(if clear { DataSecurity::Authenticated } else { DataSecurity::Tls });
        pair.to_server.bytes.push(type_byte);
        pair.to_server.bytes.extend_from_slice(if clear { &[0, 0, 0] } else { &[3, 3] });
        pair.to_server.bytes.extend_from_slice(&bytes);
        let _ = pair.turn();
        prop_assert!(pair.at_server.bytes().is_empty());
        let authority = authority();
        let settings = settings(&authority, DataSecurity::Tls);
        let mut stranger = Tls::server(&settings.server, &"test".into(), RECORDS_PER_KEY).unwrap();
        let mut pipe = Pipe { bytes, portion: usize::MAX, full: false };
        let _ = stranger.receive(&mut pipe, &mut Collected::default());
        prop_assert!(stranger.peer().is_none());
    }
}
