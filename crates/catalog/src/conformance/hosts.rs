//! The mapping of measurement hosts to sites.

use longhaul_model::Timestamp;
use longhaul_network::mapping::{Entry, Family, HostMap, HostOrNetwork, Mapping, Role};

use super::{NOW, World};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[hosts_are_stored, an_import_leaves_explicit_entries];

fn entry(place: &str, site: &str, mapping: Mapping) -> Entry {
    Entry {
        what: HostOrNetwork::parse(place).unwrap(),
        site: site.parse().unwrap(),
        role: if place.contains('/') { None } else { Some(Role::Bandwidth) },
        family: None,
        mapping,
    }
}

fn hosts_are_stored(world: &mut World) {
    let catalog = &world.catalog;
    let mut v6 = entry("2001:db8::1", "beta", Mapping::Explicit);
    v6.family = Some(Family::Ipv6);
    let entries = [
        entry("ps.alpha.example", "alpha", Mapping::Explicit),
        entry("192.0.2.0/24", "gamma", Mapping::Imported),
        v6,
        entry("ps.nowhere.example", "nowhere", Mapping::Explicit),
    ];
    let done = catalog.set_hosts(&entries, NOW).unwrap();
    assert_eq!((done.set, done.unchanged, done.unknown_sites.len()), (3, 0, 1));
    let rows = catalog.hosts().unwrap();
    let mut kept: Vec<Entry> = rows.iter().map(|row| row.entry.clone()).collect();
    kept.sort_by_key(|entry| entry.site.clone());
    assert_eq!(kept, [entries[0].clone(), entries[2].clone(), entries[1].clone()]);
    let page = |after: Option<&str>| -> Vec<String> {
        let rows = catalog.hosts_page(after, 2).unwrap();
        rows.iter().map(|row| row.entry.what.to_string()).collect()
    };
    assert_eq!(page(None), ["192.0.2.0/24", "2001:db8::1"]);
    assert_eq!(page(Some("2001:db8::1")), ["ps.alpha.example"]);
    // Setting the same again changes nothing, not even the time.
    let again = catalog.set_hosts(&entries[..3], Timestamp(NOW.0 + 1)).unwrap();
    assert_eq!((again.set, again.unchanged), (0, 3));
    assert_eq!(catalog.hosts().unwrap(), rows);
    let map = HostMap::new(rows.into_iter().map(|row| row.entry));
    assert_eq!(map.find(Some("ps.alpha.example"), None, None).unwrap().site.as_str(), "alpha");
    let network = HostOrNetwork::parse("192.0.2.0/24").unwrap();
    assert!(catalog.remove_host(&network).unwrap() && !catalog.remove_host(&network).unwrap());
    assert_eq!(catalog.hosts().unwrap().len(), 2);
}

fn an_import_leaves_explicit_entries(world: &mut World) {
    let catalog = &world.catalog;
    let site_of = |place: &str| {
        let rows = catalog.hosts().unwrap();
        let row = rows.into_iter().find(|row| row.entry.what.to_string() == place).unwrap();
        (row.entry.site.to_string(), row.entry.mapping)
    };
    catalog.set_hosts(&[entry("ps.example", "alpha", Mapping::Imported)], NOW).unwrap();
    catalog.set_hosts(&[entry("ps.example", "beta", Mapping::Imported)], NOW).unwrap();
    assert_eq!(site_of("ps.example"), ("beta".into(), Mapping::Imported));
    catalog.set_hosts(&[entry("ps.example", "gamma", Mapping::Explicit)], NOW).unwrap();
    let done = catalog.set_hosts(&[entry("ps.example", "alpha", Mapping::Imported)], NOW).unwrap();
    assert_eq!((done.set, done.kept_explicit), (0, 1));
    assert_eq!(site_of("ps.example"), ("gamma".into(), Mapping::Explicit));
    catalog.set_hosts(&[entry("ps.example", "alpha", Mapping::Explicit)], NOW).unwrap();
    assert_eq!(site_of("ps.example"), ("alpha".into(), Mapping::Explicit));
}
