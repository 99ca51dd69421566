use std::io::{self, Read, Write};
use std::sync::Arc;

use longhaul_model::{AgentId, FaultCode, Timestamp};
use longhaul_security::{Authority, Credentials, new_signing_request};
use proptest::prelude::*;

use crate::shared::TlsSettings;
use crate::tls::{BATCH_BYTES, Received, Tls};

/// A socket in memory that passes so many bytes a call.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    portion: usize,
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
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn now() -> Timestamp {
    Timestamp(std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64)
}

fn settings() -> TlsSettings {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::create(&directory.path().join("a"), "test", now()).unwrap();
    let (request, key_pem) = new_signing_request().unwrap();
    let issued = authority.issue_agent(&request, AgentId(7), &"site".parse().unwrap(), now()).unwrap();
    let credentials = Credentials {
        certificate_pem: issued.certificate_pem,
        key_pem,
        ca_pem: authority.ca_pem().to_owned(),
    };
    TlsSettings::of(&credentials).unwrap()
}

struct Pair {
    client: Tls,
    server: Tls,
    to_server: Pipe,
    to_client: Pipe,
    at_server: Vec<u8>,
    at_client: Vec<u8>,
}

impl Pair {
    fn new(portion: usize) -> Pair {
        let (settings, deployment): (_, Arc<str>) = (settings(), "test".into());
        let pipe = || Pipe { bytes: Vec::new(), portion };
        let mut pair = Pair {
            client: Tls::client(&settings.client, &deployment).unwrap(),
            server: Tls::server(&settings.server, &deployment).unwrap(),
            to_server: pipe(),
            to_client: pipe(),
            at_server: Vec::new(),
            at_client: Vec::new(),
        };
        while pair.client.peer().is_none() || pair.server.peer().is_none() {
            pair.turn().unwrap();
        }
        pair
    }

    fn turn(&mut self) -> Result<(Received, Received), longhaul_model::Fault> {
        self.client.flush(&mut self.to_server).unwrap();
        let at_server = &mut self.at_server;
        let one = self.server.receive(&mut self.to_server, &mut |bytes| {
            at_server.extend_from_slice(bytes);
            Ok(())
        })?;
        self.server.flush(&mut self.to_client).unwrap();
        let at_client = &mut self.at_client;
        let two = self.client.receive(&mut self.to_client, &mut |bytes| {
            at_client.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok((one, two))
    }
}

#[test]
fn both_know_each_other() {
    let pair = Pair::new(usize::MAX);
    assert_eq!((pair.client.peer(), pair.server.peer()), (Some(AgentId(7)), Some(AgentId(7))));
}

#[test]
fn an_end_is_told() {
    let mut pair = Pair::new(usize::MAX);
    pair.client.send(b"the last").unwrap();
    pair.client.close();
    let (received, _) = pair.turn().unwrap();
    assert_eq!((received, pair.at_server.as_slice()), (Received::Closed, &b"the last"[..]));
}

#[test]
fn a_changed_bit_is_noticed() {
    for at in [0, 1, 3, 5, 50, 1_000] {
        let mut pair = Pair::new(usize::MAX);
        pair.client.send(&[7; 2_000]).unwrap();
        pair.client.flush(&mut pair.to_server).unwrap();
        pair.to_server.bytes[at] ^= 0x40;
        let result = pair.turn();
        assert!(pair.at_server.is_empty());
        match result {
            Err(fault) => {
                assert!(matches!(fault.code, FaultCode::Corrupted | FaultCode::ProtocolError), "{fault}")
            }
            // A longer record than there is: it is waited for.
            Ok(_) => assert_eq!(at, 3),
        }
    }
}

#[test]
fn a_replayed_record_is_refused() {
    let mut pair = Pair::new(usize::MAX);
    pair.client.send(b"pay once").unwrap();
    pair.client.flush(&mut pair.to_server).unwrap();
    let copy = pair.to_server.bytes.clone();
    pair.to_server.bytes.extend(copy);
    assert_eq!(pair.turn().unwrap_err().code, FaultCode::Corrupted);
    assert_eq!(pair.at_server, b"pay once");
}

#[test]
fn what_is_not_sent_is_bounded() {
    let mut pair = Pair::new(usize::MAX);
    let taken = pair.client.send(&vec![1; 10 * BATCH_BYTES]).unwrap();
    assert!(taken > 0 && taken <= BATCH_BYTES);
    assert_eq!(pair.client.send(&[1; 100]).unwrap(), 0);
    pair.turn().unwrap();
    assert!(pair.client.send(&[1; 100]).unwrap() > 0);
}

#[test]
fn the_limit_of_a_key_ends_the_stream() {
    let mut pair = Pair::new(usize::MAX);
    let super::super::Stage::Open { sealer, .. } = &mut pair.client.stage else { unreachable!() };
    sealer.0.sequence = super::RECORDS_PER_KEY_MAX;
    assert_eq!(pair.client.send(b"more").unwrap_err().code, FaultCode::ConnectionLost);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24 * ProptestConfig::default().cases / 256, ..ProptestConfig::default() })]

    #[test]
    fn all_bytes_arrive_in_order(parts in proptest::collection::vec((0usize..60_000, any::<bool>()), 1..12), portion in 1usize..40_000) {
        let mut pair = Pair::new(portion);
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        for (number, (len, up)) in parts.iter().enumerate() {
            let bytes: Vec<u8> = (0..*len).map(|at| (at * 31 + number) as u8).collect();
            let (tls, expected) = if *up { (&mut pair.client, &mut to_server) } else { (&mut pair.server, &mut to_client) };
            let taken = tls.send(&bytes).unwrap();
            expected.extend_from_slice(&bytes[..taken]);
            pair.turn().unwrap();
        }
        while pair.at_server.len() < to_server.len() || pair.at_client.len() < to_client.len() {
            pair.turn().unwrap();
        }
        prop_assert!(pair.at_server == to_server && pair.at_client == to_client);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), type_byte in 18u8..26) {
        let mut pair = Pair::new(usize::MAX);
        pair.to_server.bytes.push(type_byte);
        pair.to_server.bytes.extend_from_slice(&[3, 3]);
        pair.to_server.bytes.extend_from_slice(&bytes);
        let _ = pair.turn();
        prop_assert!(pair.at_server.is_empty());
        let settings = settings();
        let mut stranger = Tls::server(&settings.server, &"test".into()).unwrap();
        let mut pipe = Pipe { bytes, portion: usize::MAX };
        let _ = stranger.receive(&mut pipe, &mut |_| Ok(()));
        prop_assert!(stranger.peer().is_none());
    }
}
