//! Agents whose certificates are refused.

use std::time::Duration;

use longhaul_model::{FaultCode, Timestamp, TransferState};

use super::{ALPHA, BETA, GAMMA, NOW, World, agent, offer};
use crate::{CatalogError, Incarnation, RefusedAgentRow};

pub(super) const SCENARIOS: &[fn(&mut World)] = &[
    a_refused_agent_says_no_hello_and_renews_nothing,
    leases_of_and_from_a_refused_agent_wait_again,
    another_agent_goes_on_with_the_storages_of_a_refused_one,
];

fn code(error: CatalogError) -> FaultCode {
    let CatalogError::Refused(fault) = error else { panic!("{error}") };
    fault.code
}

fn a_refused_agent_says_no_hello_and_renews_nothing(world: &mut World) {
    let catalog = &world.catalog;
    catalog.set_agent_certificate(agent(BETA), Timestamp(NOW.0 + 5)).unwrap();
    catalog.refuse_agent(agent(BETA), "its key was stolen", NOW).unwrap();
    catalog.refuse_agent(agent(BETA), "again", Timestamp(NOW.0 + 1)).unwrap();
    let refused = RefusedAgentRow {
        agent: agent(BETA),
        reason: "its key was stolen".into(),
        refused: NOW,
        // An earlier certificate of it may be valid for longer than the last one.
        expires: NOW.plus(Duration::from_secs(90 * 86_400)),
    };
    assert_eq!(catalog.refused_agents().unwrap(), [refused], "the first reason stays");
    let renewed = catalog.set_agent_certificate(agent(BETA), Timestamp::MAX);
    assert_eq!(code(renewed.unwrap_err()), FaultCode::NotAllowed);
    let next = Incarnation { number: 2, nonce: 9 };
    let hello = catalog.agent_hello(agent(BETA), next, "beta", "0.1.0", &[], &[offer("beta")], NOW);
    assert_eq!(code(hello.unwrap_err()), FaultCode::NotAllowed);
    catalog.set_agent_certificate(agent(GAMMA), Timestamp::MAX).unwrap();
    assert_eq!(code(catalog.refuse_agent(agent(7), "", NOW).unwrap_err()), FaultCode::NotFound);
}

fn leases_of_and_from_a_refused_agent_wait_again(world: &mut World) {
    let dataset = world.dataset("refused");
    world.register(dataset, 0..3, Some(ALPHA), None);
    world.subscribe(dataset, None, BETA);
    world.subscribe(dataset, None, GAMMA);
    let files: Vec<_> = (0..3).map(|number| world.file(dataset, number).id).collect();
    world.bring(files[0], ALPHA, BETA);
    let into = world.lease(files[1], ALPHA, BETA);
    let from = world.lease(files[0], BETA, GAMMA);
    let other = world.lease(files[2], ALPHA, GAMMA);
    let concerns = world.catalog.agent_concerns(agent(BETA)).unwrap();
    assert_eq!((concerns.leases_in, concerns.leases_out), (1, 1));
    assert_eq!((concerns.files, concerns.subscriptions, concerns.tasks), (1, 1, 0));
    assert_eq!(concerns.storages, ["beta".parse().unwrap()]);
    let result = world.catalog.refuse_agent(agent(BETA), "stolen", world.now).unwrap();
    let released: Vec<_> = result.released.iter().map(|row| row.attempt).collect();
    assert_eq!(released, [into.attempt, from.attempt]);
    let live = world.catalog.live_transfers().unwrap();
    let leased: Vec<_> =
        live.iter().filter(|row| row.state == TransferState::Leased).map(|row| row.attempt).collect();
    assert_eq!(leased, [other.attempt], "nobody else's lease ends");
}

fn another_agent_goes_on_with_the_storages_of_a_refused_one(world: &mut World) {
    let catalog = &world.catalog;
    catalog.refuse_agent(agent(BETA), "stolen", NOW).unwrap();
    let site = catalog.site(&"beta".parse().unwrap()).unwrap().unwrap();
    catalog.add_agent(agent(7), site.id, "new", Timestamp::MAX, NOW).unwrap();
    let first = Incarnation { number: 1, nonce: 1 };
    let hello = catalog.agent_hello(agent(7), first, "new", "0.1.0", &[], &[offer("beta")], NOW).unwrap();
    let row = &hello.storages[0];
    assert_eq!((row.id, row.agent), (world.storages[BETA], agent(7)));
    assert!(catalog.agent_concerns(agent(BETA)).unwrap().storages.is_empty());
}
