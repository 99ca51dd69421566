//! Who was allowed or refused what.

use longhaul_model::Timestamp;

use super::{NOW, World};
use crate::{DecisionFilter, NewDecision};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[decisions_are_found, outcomes_are_forgotten_apart];

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
    }
}

fn found(world: &World, allowed: Option<bool>, who: Option<&str>, before: Option<u64>) -> Vec<NewDecision> {
    let filter = DecisionFilter { allowed, who: who.map(str::to_owned), before, limit: 10 };
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

fn outcomes_are_forgotten_apart(world: &mut World) {
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
