//! The access log.

use longhaul_model::Timestamp;

use super::{BETA, NOW, World};
use crate::{DecisionFilter, NewDecision, ReportItem, ReportedFact};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    decisions_are_found,
    decisions_of_doors_are_found_by_site,
    old_decisions_are_deleted_per_outcome,
    doors_report_once_and_displace_only_their_own,
];

fn decision(who: &str, allowed: bool, object: &str) -> NewDecision {
    NewDecision {
        allowed,
        since: NOW,
        at: Timestamp(NOW.0 + 2),
        times: 3,
        who: who.into(),
        credential: "API token".into(),
        origin: "192.0.2.7".into(),
        operation: "job_cancel".into(),
        object: object.into(),
        why: "it is \"theirs\"\n".into(),
        at_door: None,
    }
}

fn found(world: &World, allowed: Option<bool>, who: Option<&str>, before: Option<u64>) -> Vec<NewDecision> {
    let filter = DecisionFilter { allowed, who: who.map(str::to_owned), before, limit: 10, sites: None };
    world.catalog.decisions(&filter).unwrap().into_iter().map(|row| row.decision).collect()
}

fn decisions_are_found(world: &mut World) {
    world.catalog.record_decisions(&[]).unwrap();
    let list = [decision("anna", true, "1"), decision("bert", false, "2"), decision("anna", false, "3")];
    world.catalog.record_decisions(&list).unwrap();
    let [first, second, third] = list;
    assert_eq!(found(world, None, None, None), [third.clone(), second.clone(), first.clone()]);
    assert_eq!(found(world, Some(true), None, None), std::slice::from_ref(&first));
    assert_eq!(found(world, None, Some("anna"), None), [third.clone(), first.clone()]);
    assert_eq!(found(world, Some(false), Some("anna"), None), [third]);
    assert_eq!(found(world, Some(true), Some("bert"), None), []);
    let newest = world.catalog.decisions(&DecisionFilter { limit: 1, ..DecisionFilter::default() }).unwrap();
    assert_eq!(found(world, None, None, Some(newest[0].id)), [second, first]);
}

fn decisions_of_doors_are_found_by_site(world: &mut World) {
    let door = |site: &str, object: &str| NewDecision {
        at_door: Some((site.parse().unwrap(), format!("{site}-disk").parse().unwrap())),
        ..decision("anna", object.len() == 1, object)
    };
    let list = [decision("anna", true, "0"), door("beta", "1"), door("gamma", "22"), door("beta", "33")];
    world.catalog.record_decisions(&list).unwrap();
    let [_, first, second, third] = list;
    let of = |sites: &[&str], filter: DecisionFilter| -> Vec<NewDecision> {
        let sites = sites.iter().map(|name| name.parse().unwrap()).collect();
        let filter = DecisionFilter { sites: Some(sites), ..filter };
        world.catalog.decisions(&filter).unwrap().into_iter().map(|row| row.decision).collect()
    };
    let all = || DecisionFilter { limit: 10, ..DecisionFilter::default() };
    assert_eq!(of(&["beta"], all()), [third.clone(), first.clone()]);
    assert_eq!(of(&["gamma", "beta"], all()), [third.clone(), second.clone(), first]);
    assert_eq!(of(&["gamma", "beta"], DecisionFilter { limit: 2, ..all() }), [third.clone(), second]);
    let refused = DecisionFilter { allowed: Some(false), who: Some("anna".into()), ..all() };
    assert_eq!(of(&["beta"], refused), [third]);
    assert_eq!(of(&[], all()), []);
    assert_eq!(found(world, None, None, None).len(), 4, "with those of the service");
}

/// A repeated report is recorded once, and no site displaces entries of another's doors or of the service.
fn doors_report_once_and_displace_only_their_own(world: &mut World) {
    let at = |object: String| NewDecision {
        at_door: Some(("beta".parse().unwrap(), "beta".parse().unwrap())),
        ..decision("mallory", false, &object)
    };
    world.catalog.record_decisions(&[decision("anna", false, "kept")]).unwrap();
    world.report(BETA, vec![ReportedFact::DoorDecisions(vec![at("first".into())])]);
    let item = ReportItem {
        sequence: world.sequences[BETA],
        fact: ReportedFact::DoorDecisions(vec![at("x".into())]),
    };
    world.catalog.apply_report(super::agent(BETA), &[item], 0, NOW).unwrap();
    assert_eq!(found(world, Some(false), Some("mallory"), None), [at("first".into())]);
    for page in 0..=crate::DOOR_DECISIONS_MAX / 1_000 {
        let list = (0..1_000).map(|number| at(format!("{page}/{number}"))).collect();
        world.report(BETA, vec![ReportedFact::DoorDecisions(list)]);
    }
    let sites = Some(vec!["beta".parse().unwrap()]);
    let filter = DecisionFilter { sites, limit: usize::MAX, ..DecisionFilter::default() };
    let newest = world.catalog.decisions(&filter).unwrap();
    assert_eq!(newest[0].decision, at(format!("{}/999", crate::DOOR_DECISIONS_MAX / 1_000)));
    let oldest = DecisionFilter { before: Some(newest[0].id - crate::DOOR_DECISIONS_MAX + 1), ..filter };
    assert_eq!(world.catalog.decisions(&oldest).unwrap(), []);
    assert_eq!(found(world, Some(false), Some("anna"), None).len(), 1);
}

fn old_decisions_are_deleted_per_outcome(world: &mut World) {
    world.catalog.record_decisions(&[decision("anna", true, "kept")]).unwrap();
    for number in 0..9 {
        let list = [decision("mallory", false, &number.to_string())];
        world.catalog.record_decisions_within(&list, 4).unwrap();
    }
    let refused: Vec<String> =
        found(world, Some(false), None, None).into_iter().map(|one| one.object).collect();
    assert_eq!(refused, ["8", "7", "6", "5"]);
    assert_eq!(found(world, Some(true), None, None).len(), 1);
}
