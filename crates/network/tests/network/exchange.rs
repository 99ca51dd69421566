//! What instances tell each other: nothing is lost by name, own recent data wins, absurd documents are
//! refused.

use std::collections::BTreeMap;

use longhaul_model::{SiteId, Timestamp};
use longhaul_network::exchange::{Aliases, Exchange, ExchangeLink, FORMAT, VERSION, merge};
use longhaul_network::{Basis, Knowledge};
use proptest::prelude::*;

use crate::world::{at, link, sites, transfer};

fn names(all: &[&str]) -> BTreeMap<SiteId, String> {
    (1..).map(SiteId).zip(all.iter().map(|&name| name.to_owned())).collect()
}

fn ids(all: &[&str]) -> BTreeMap<String, SiteId> {
    names(all).into_iter().map(|(id, name)| (name, id)).collect()
}

fn busy(knowledge: &mut Knowledge, source: u64, target: u64, rate: f64, from: f64, seconds: i32) {
    for step in 0..seconds {
        transfer(knowledge, link(source, target), rate as u64, 1.0, from + f64::from(step));
    }
}

fn one(source: &str, target: &str, bytes_per_s: f64, seconds: f64, seen: Timestamp) -> ExchangeLink {
    let (source, target) = (source.to_owned(), target.to_owned());
    ExchangeLink {
        source,
        target,
        family: None,
        bytes_per_s,
        spread: 0.2,
        seconds,
        seen_at: seen,
        rtt_us: None,
        loss: None,
    }
}

fn document(instance: &str, links: Vec<ExchangeLink>) -> Exchange {
    let written = links.iter().map(|link| link.seen_at).max().unwrap_or_default();
    Exchange { format: FORMAT.into(), version: VERSION, instances: vec![instance.into()], written, links }
}

#[test]
fn an_import_adds_unknown_links() {
    let mut production = sites(3);
    busy(&mut production, 1, 2, 400e6, 0.0, 100);
    busy(&mut production, 3, 2, 20e6, 0.0, 100);
    let exported = production.export("production", &names(&["alpha", "beta", "gamma"]), at(200.0));
    let text = serde_json::to_string_pretty(&exported).unwrap();
    let exported: Exchange = serde_json::from_str(&text).unwrap();

    // The other counts its sites differently and has another name for one.
    let mut debug = sites(3);
    let ours = ids(&["gamma", "beta", "cern"]);
    let aliases = Aliases::new([("alpha", "cern")]).unwrap();
    let imported = debug.import(&exported, &ours, &aliases, at(300.0)).unwrap();
    assert_eq!(
        (imported.imported, imported.unmapped.len(), imported.refused.len()),
        (2, 0, 0),
        "{imported:?}"
    );
    let (from_cern, from_gamma) = (debug.rate(link(3, 2), at(300.0)), debug.rate(link(1, 2), at(300.0)));
    assert!(from_cern.bytes_per_s > 4.0 * from_gamma.bytes_per_s, "{from_cern:?} {from_gamma:?}");
    assert_eq!(from_cern.basis, Basis::SitePair);
    let again = debug.import(&exported, &ours, &aliases, at(310.0)).unwrap();
    assert_eq!((again.imported, again.nothing_new), (0, 2), "{again:?}");
}

#[test]
fn own_recent_data_precedes_foreign_old_data() {
    let mut own = sites(2);
    busy(&mut own, 1, 2, 50e6, 100_000.0, 60);
    let before = own.rate(link(1, 2), at(100_100.0));
    let foreign = document("old", vec![one("alpha", "beta", 900e6, 5_000.0, at(0.0))]);
    let imported =
        own.import(&foreign, &ids(&["alpha", "beta"]), &Aliases::default(), at(100_100.0)).unwrap();
    assert_eq!((imported.imported, imported.kept_own), (0, 1));
    assert_eq!(own.rate(link(1, 2), at(100_100.0)), before);
}

#[test]
fn merges_weigh_by_volume_and_age() {
    let day = 86_400.0;
    let large = document("a", vec![one("x", "y", 100e6, 900.0, at(10.0 * day))]);
    let small = document("b", vec![one("x", "y", 10e6, 100.0, at(10.0 * day))]);
    let merged = merge(&[large.clone(), small], &Aliases::default()).unwrap();
    assert_eq!(merged.instances, ["a", "b"]);
    assert!((merged.links[0].bytes_per_s / 79.4e6 - 1.0).abs() < 0.01, "{merged:?}");
    assert!(merged.links[0].spread > 0.5, "they disagree");
    let old = document("c", vec![one("x", "y", 10e6, 900.0, at(3.0 * day))]);
    let merged = merge(&[old, large], &Aliases::default()).unwrap();
    assert!(merged.links[0].bytes_per_s > 95e6, "a week weighs a hundred times less: {merged:?}");
    let renamed = merge(&[merged], &Aliases::new([("x", "z")]).unwrap()).unwrap();
    assert_eq!(renamed.links[0].source, "z");
}

#[test]
fn contradictory_aliases_are_rejected_by_name() {
    let say = |pairs: &[(&str, &str)]| Aliases::new(pairs.iter().copied()).unwrap_err().detail;
    assert_eq!(
        say(&[("T2_X", "alpha"), ("T2_X", "beta")]),
        "the alias T2_X cannot stand for both alpha and beta; name it once"
    );
    assert!(say(&[("a", "b"), ("b", "c")]).contains("which is an alias itself"));
    let mut knowledge = sites(2);
    let ours = ids(&["alpha", "beta"]);
    let mut refuse = |theirs, name| {
        let aliases = Aliases::new([(theirs, name)]).unwrap();
        knowledge.import(&document("x", vec![]), &ours, &aliases, at(0.0)).unwrap_err().detail
    };
    assert!(refuse("beta", "alpha").contains("beta is a site of its own here"));
    assert!(refuse("T2_X", "delta").contains("no site has this name"));
}

#[test]
fn invalid_documents_are_rejected() {
    let good = document("x", vec![one("alpha", "nowhere", 1e6, 1.0, at(0.0))]);
    let say = |document: &Exchange| document.check().unwrap_err().detail;
    assert!(say(&Exchange { format: "phedex".into(), ..good.clone() }).contains("no network knowledge"));
    assert!(say(&Exchange { version: 7, ..good.clone() }).contains("version is 7"));
    for absurd in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        let mut bad = good.clone();
        bad.links[0].bytes_per_s = absurd;
        assert!(say(&bad).contains("link 1 of the document: bytes_per_s is"), "{}", say(&bad));
    }
    let mut knowledge = sites(2);
    let imported = knowledge.import(&good, &ids(&["alpha", "beta"]), &Aliases::default(), at(10.0)).unwrap();
    assert_eq!(imported.unmapped, ["nowhere"]);
    let future = document("y", vec![one("alpha", "beta", 1e6, 1.0, at(1e6))]);
    let imported =
        knowledge.import(&future, &ids(&["alpha", "beta"]), &Aliases::default(), at(10.0)).unwrap();
    assert!(imported.refused[0].contains("in the future"), "{imported:?}");
}

proptest! {
    #[test]
    fn any_document_keeps_the_state_valid(
        all in proptest::collection::vec(("[a-d]", "[a-d]", any::<f64>(), any::<f64>(), any::<f64>(),
            any::<i64>()), 0..30),
        mild in proptest::collection::vec(("[a-d]", "[a-d]", 1.0..1e12_f64, 0.0..9.0_f64, 0.0..1e6_f64,
            -1_000_000..1_000_000_i64), 0..30),
    ) {
        let link = |(source, target, bytes_per_s, spread, seconds, seen): (String, String, f64, f64, f64,
            i64)| ExchangeLink {
            source, target, family: None, bytes_per_s, spread, seconds, seen_at: Timestamp(seen),
                rtt_us: Some(seconds), loss: Some(spread / 10.0),
        };
        let wild = document("wild", all.into_iter().map(link).collect());
        let mild = document("mild", mild.into_iter().map(|one| {
            let one = link(one);
            ExchangeLink { seen_at: at(one.seen_at.as_micros() as f64), rtt_us: None, ..one }
        }).filter(|one| one.source != one.target).collect());
        let mut knowledge = sites(3);
        for document in [&wild, &mild] {
            if let Ok(merged) = merge(&[document.clone(), mild.clone()], &Aliases::default()) {
                prop_assert!(merged.check().is_ok(), "{merged:?}");
                knowledge.import(&merged, &ids(&["a", "b", "c"]), &Aliases::default(), at(1e6)).unwrap();
            }
        }
        for source in 1..=3 {
            let rate = knowledge.rate(link_of(source, source % 3 + 1), at(1e6));
            prop_assert!(rate.bytes_per_s.is_finite() && rate.low <= rate.high);
        }
        prop_assert!(knowledge.export("x", &names(&["a", "b", "c"]), at(1e6)).check().is_ok());
    }
}

fn link_of(source: u64, target: u64) -> longhaul_network::Link {
    link(source, target)
}
