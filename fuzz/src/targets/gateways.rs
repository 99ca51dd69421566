//! What measurement hosts, their archives and grids' directories send: read or refused, within bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_gateways::cric;
use longhaul_gateways::perfsonar::{Harvest, MEASUREMENTS_MAX, Reading, documents, esmond, mesh, push};
use longhaul_model::Timestamp;
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
    assert!(read.expected.iter().all(|one| one.every >= Duration::from_secs(1)));
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
