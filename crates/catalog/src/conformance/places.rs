//! Which site a measurement host belongs to.

use longhaul_model::Timestamp;
use longhaul_network::mapping::{Entry, Family, Mapping, Origin, Place, Role};

use super::{NOW, World};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[places_are_kept, an_import_leaves_what_somebody_said];

fn entry(place: &str, site: &str, origin: Origin) -> Entry {
    Entry {
        place: Place::parse(place).unwrap(),
        site: site.parse().unwrap(),
        role: if place.contains('/') { None } else { Some(Role::Bandwidth) },
        family: None,
        origin,
    }
}

fn places_are_kept(world: &mut World) {
    let catalog = &world.catalog;
    let mut v6 = entry("2001:db8::1", "beta", Origin::Explicit);
    v6.family = Some(Family::V6);
    let entries = [
        entry("ps.alpha.example", "alpha", Origin::Explicit),
        entry("192.0.2.0/24", "gamma", Origin::Imported),
        v6,
        entry("ps.nowhere.example", "nowhere", Origin::Explicit),
    ];
    let done = catalog.set_places(&entries, NOW).unwrap();
    assert_eq!((done.set, done.unchanged, done.unknown_sites.len()), (3, 0, 1));
    let rows = catalog.places().unwrap();
    let mut kept: Vec<Entry> = rows.iter().map(|row| row.entry.clone()).collect();
    kept.sort_by_key(|entry| entry.site.clone());
    assert_eq!(kept, [entries[0].clone(), entries[2].clone(), entries[1].clone()]);
    // Said again, nothing changes, not even the time.
    let again = catalog.set_places(&entries[..3], Timestamp(NOW.0 + 1)).unwrap();
    assert_eq!((again.set, again.unchanged), (0, 3));
    assert_eq!(catalog.places().unwrap(), rows);
    let mapping = Mapping::new(rows.into_iter().map(|row| row.entry));
    assert_eq!(mapping.find(Some("ps.alpha.example"), None, None).unwrap().site.as_str(), "alpha");
    let network = Place::parse("192.0.2.0/24").unwrap();
    assert!(catalog.remove_place(&network).unwrap() && !catalog.remove_place(&network).unwrap());
    assert_eq!(catalog.places().unwrap().len(), 2);
}

fn an_import_leaves_what_somebody_said(world: &mut World) {
    let catalog = &world.catalog;
    let site_of = |place: &str| {
        let rows = catalog.places().unwrap();
        let row = rows.into_iter().find(|row| row.entry.place.to_string() == place).unwrap();
        (row.entry.site.to_string(), row.entry.origin)
    };
    catalog.set_places(&[entry("ps.example", "alpha", Origin::Imported)], NOW).unwrap();
    catalog.set_places(&[entry("ps.example", "beta", Origin::Imported)], NOW).unwrap();
    assert_eq!(site_of("ps.example"), ("beta".into(), Origin::Imported));
    catalog.set_places(&[entry("ps.example", "gamma", Origin::Explicit)], NOW).unwrap();
    let done = catalog.set_places(&[entry("ps.example", "alpha", Origin::Imported)], NOW).unwrap();
    assert_eq!((done.set, done.kept_explicit), (0, 1));
    assert_eq!(site_of("ps.example"), ("gamma".into(), Origin::Explicit));
    catalog.set_places(&[entry("ps.example", "alpha", Origin::Explicit)], NOW).unwrap();
    assert_eq!(site_of("ps.example"), ("alpha".into(), Origin::Explicit));
}
