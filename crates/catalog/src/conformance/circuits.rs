//! Circuits as reported, their outcome, and people's orders.

use longhaul_model::{AgentId, CircuitOrderId, Timestamp};

use super::{NOW, World};
use crate::{CircuitLinkRow, CircuitOrderRow, CircuitRow};

pub(super) const SCENARIOS: &[fn(&mut World)] =
    &[circuits_are_stored_as_reported_by_their_agent, orders_are_open_until_they_are_done];

const AGENT: AgentId = AgentId(7);
const OTHER_AGENT: AgentId = AgentId(8);

fn circuit(id: &str, agent: AgentId, at: i64, details: &str) -> CircuitRow {
    let (source, asked) = ("beta".parse().unwrap(), Timestamp(NOW.0 + at));
    CircuitRow { id: id.into(), agent, source, requested: asked, ended: None, details: details.into() }
}

fn circuits_are_stored_as_reported_by_their_agent(world: &mut World) {
    let catalog = &world.catalog;
    let link = |at: i64| CircuitLinkRow {
        agent: AGENT,
        source: "beta".parse().unwrap(),
        reported: Timestamp(NOW.0 + at),
        details: at.to_string(),
    };
    let (first, second) = (circuit("a", AGENT, 1, "1"), circuit("b", AGENT, 2, "2"));
    catalog.record_circuits(&[link(1)], &[first.clone(), second.clone()], &[]).unwrap();
    let ended = CircuitRow { ended: Some(NOW), details: "over".into(), ..first };
    catalog.record_circuits(&[link(2)], std::slice::from_ref(&ended), &[]).unwrap();
    assert_eq!(catalog.circuit_links().unwrap(), [link(2)]);
    assert_eq!(catalog.circuit("a").unwrap(), Some(ended.clone()));
    // An agent that claims another's circuit changes nothing.
    catalog.record_circuits(&[], &[circuit("b", OTHER_AGENT, 3, "mine")], &[]).unwrap();
    assert_eq!(catalog.circuit("b").unwrap(), Some(second.clone()));
    let beta = "beta".parse().unwrap();
    assert_eq!(catalog.circuits_of(AGENT, &beta, 9).unwrap(), [second.clone(), ended.clone()]);
    assert!(catalog.circuits_of(OTHER_AGENT, &beta, 9).unwrap().is_empty());
    let page = catalog.circuits_page(None, 1).unwrap();
    assert_eq!(page, [second]);
    assert_eq!(catalog.circuits_page(Some((page[0].requested, "b")), 9).unwrap(), [ended]);
    catalog.forget_circuit_links(AGENT, &["beta".parse().unwrap()]).unwrap();
    assert!(catalog.circuit_links().unwrap().is_empty() && catalog.circuit("a").unwrap().is_some());
}

fn orders_are_open_until_they_are_done(world: &mut World) {
    let catalog = &world.catalog;
    let order = |id: u64| CircuitOrderRow {
        id: CircuitOrderId(id),
        agent: AGENT,
        source: "beta".parse().unwrap(),
        at: NOW,
        who: "ada".into(),
        over: false,
        details: "sent".into(),
    };
    let over = |id: u64, details: &str| CircuitOrderRow { over: true, details: details.into(), ..order(id) };
    catalog.order_circuit(&order(1), &[], "wants a circuit").unwrap();
    catalog.order_circuit(&order(2), &[over(1, "replaced")], "wants another").unwrap();
    assert_eq!(catalog.open_circuit_orders().unwrap(), [order(2)]);
    let entry = catalog.audit(None, None, 1).unwrap().remove(0);
    assert_eq!((entry.who.as_str(), entry.what.as_str()), ("ada", "wants another"));
    // Another agent cannot change the order, nor can a late report about one that is done.
    let foreign = CircuitOrderRow { agent: OTHER_AGENT, ..over(2, "stolen") };
    catalog.record_circuits(&[], &[], &[foreign, over(1, "late")]).unwrap();
    catalog.record_circuits(&[], &[], &[over(2, "refused")]).unwrap();
    let beta = "beta".parse().unwrap();
    assert_eq!(
        catalog.circuit_orders_of(AGENT, &beta, 9).unwrap(),
        [over(2, "refused"), over(1, "replaced")]
    );
    assert_eq!(catalog.circuit_order(CircuitOrderId(1)).unwrap(), Some(over(1, "replaced")));
    assert_eq!(catalog.circuit_order(CircuitOrderId(9)).unwrap(), None);
    assert!(catalog.last_id().unwrap() >= 2);
}
