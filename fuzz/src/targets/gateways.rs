//! What measurement hosts, their archives and grids' directories send: read or refused, within bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_gateways::brokers::{nats, stomp};
use longhaul_gateways::perfsonar::{Harvest, MEASUREMENTS_MAX, Reading, documents, esmond, mesh, push};
use longhaul_gateways::{cric, storage_xml};
use longhaul_model::rules::{NameRule, RULES_MAX};
use longhaul_model::{NameRules, Timestamp};
use longhaul_network::mapping::{HostMap, HostOrNetwork, Mapping};

/// What may be believed of any harvest, whatever it was read from.
fn sound(harvest: &Harvest) {
    assert!(harvest.measurements.len() <= MEASUREMENTS_MAX);
    for measurement in &harvest.measurements {
        for host in [&measurement.source, &measurement.target] {
            assert!(host.name.is_some() || host.address.is_some(), "a measurement has two ends");
            assert!(!host.to_string().contains('\n'), "names are safe to show");
        }
        assert!(measurement.at >= Timestamp::ZERO);
        match &measurement.value {
            Reading::Throughput { bits_per_s, .. } => assert!(bits_per_s.is_finite() && *bits_per_s >= 0.0),
            Reading::Delay { delay, .. } | Reading::RoundTrip { rtt: delay } => {
                assert!(delay.min <= delay.median && delay.median <= delay.max)
            }
            Reading::Loss { sent, lost } => assert!(*sent > 0 && lost <= sent),
            Reading::LossShare { share } => assert!((0.0..=1.0).contains(share)),
            Reading::Path(path) => assert!(path.hops.len() <= 255),
            Reading::PathMtu { mtu } => assert!((68..=65_535).contains(mtu)),
            Reading::Failed { why } => assert!(!why.contains('\n')),
        }
    }
}

/// What a measurement host pushes.
pub fn results(bytes: &[u8]) {
    if let Ok(harvest) = push::read(bytes) {
        sound(&harvest);
    }
}

/// The first byte says which answer of an archive it is.
pub fn archives(bytes: &[u8]) {
    let Some((&which, json)) = bytes.split_first() else { return };
    match which % 3 {
        0 => {
            if let Ok(page) = documents::page(json) {
                sound(&page.harvest);
            }
        }
        1 => {
            let Ok(found) = esmond::tests(json) else { return };
            assert_eq!(found.tests.len() as u64 + found.refused, found.items as u64);
        }
        _ => {
            // A test of our own, with the bytes as the series of each event type.
            let test = br#"[{"metadata-key":"k","source":"192.0.2.1","destination":"192.0.2.2"}]"#;
            let test = esmond::tests(test).expect("it is one").tests.remove(0);
            let Ok((points, _)) = esmond::series(json) else { return };
            for kind in esmond::WANTED {
                sound(&esmond::join(&test, &BTreeMap::from([((*kind).to_owned(), points.clone())])));
            }
        }
    }
}

/// Templates: no pair is with itself, and no interval is zero.
pub fn meshes(bytes: &[u8]) {
    let Ok(read) = mesh::read(bytes) else { return };
    assert!(read.expected.len() <= mesh::PAIRS_MAX);
    assert!(read.expected.iter().all(|one| one.interval >= Duration::from_secs(1)));
    let mut watch = mesh::Watch::default();
    watch.expect(&read.expected, Timestamp::ZERO);
    assert!(watch.silent(Timestamp::ZERO).is_empty());
    assert_eq!(watch.silent(Timestamp::MAX).len(), watch.expected());
}

/// Exports of sites and services, and the names and networks in them.
pub fn directories(bytes: &[u8]) {
    if let Ok(export) = cric::sites(bytes) {
        for network in export.items {
            assert_eq!(network.prefix.to_string().parse(), Ok(network.prefix));
        }
    }
    if let Ok(export) = cric::services(bytes) {
        for host in export.items {
            let mut map = HostMap::default();
            map.add_storage(&host.host, "here".parse().expect("it is a name"));
            let found = map.find(Some(&host.host), None, None);
            assert!(found.is_none_or(|found| found.mapping == Mapping::Inferred));
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(what) = HostOrNetwork::parse(text)
    {
        assert_eq!(HostOrNetwork::parse(&what.to_string()), Ok(what));
    }
}

/// What brokers say: the first byte says by which protocol, the second in pieces of how many bytes it comes.
/// Cut anywhere it means the same, and a frame of STOMP survives being written.
pub fn broker_frames(bytes: &[u8]) {
    let [which, cut, bytes @ ..] = bytes else { return };
    let cut = usize::from(*cut).max(1);
    if which % 2 == 0 {
        let whole = stomp_frames(bytes, bytes.len().max(1));
        let pieces = stomp_frames(bytes, cut);
        assert_eq!(whole, pieces);
        for frame in whole.0.iter().filter(|frame| !frame.body.contains(&0) && plain(frame)) {
            let mut written = Vec::new();
            frame.encode(&mut written);
            assert_eq!(stomp_frames(&written, cut).0, std::slice::from_ref(frame));
        }
    } else {
        assert_eq!(nats_said(bytes, bytes.len().max(1)), nats_said(bytes, cut));
    }
}

/// Headers that are written as they were read: a length is not, and for a carriage return there is no form in
/// 1.1.
fn plain(frame: &stomp::Frame) -> bool {
    let odd = |text: &str| text.contains(['\r', '\0']);
    let greeting = matches!(frame.command.as_str(), "CONNECT" | "CONNECTED");
    !greeting
        && frame.header("content-length").is_none()
        && frame.headers.iter().all(|(name, value)| !odd(name) && !odd(value))
        && frame.headers.len() < 50
        && frame.headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() < 6_000
}

fn stomp_frames(bytes: &[u8], cut: usize) -> (Vec<stomp::Frame>, bool) {
    let (mut decoder, mut frames) = (stomp::Decoder::default(), Vec::new());
    for piece in bytes.chunks(cut) {
        decoder.push(piece);
        loop {
            match decoder.poll() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, true),
            }
        }
    }
    (frames, false)
}

fn nats_said(bytes: &[u8], cut: usize) -> (Vec<nats::ServerOp>, bool) {
    let (mut decoder, mut said) = (nats::Decoder::default(), Vec::new());
    for piece in bytes.chunks(cut) {
        decoder.push(piece);
        loop {
            match decoder.poll() {
                Ok(Some(one)) => said.push(one),
                Ok(None) => break,
                Err(_) => return (said, true),
            }
        }
    }
    (said, false)
}

/// A site's catalogue of PhEDEx: every rule that is taken over is sound, and no name leads out through them.
pub fn storage_catalogues(bytes: &[u8]) {
    let Ok(rules) = storage_xml::read(bytes) else { return };
    assert!(rules.len() <= RULES_MAX);
    for rule in &rules {
        let NameRule::Pattern(rule) = rule else { panic!("a catalogue has patterns only") };
        assert!(rule.check().is_ok());
    }
    let mut rules = NameRules::new(1, rules);
    let first =
        rules.protocols(longhaul_model::rules::Direction::LfnToPfn).first().map(|&first| first.to_owned());
    rules.own.protocol = first.unwrap_or_default();
    super::model::come_back(&rules, "store/a");
}
