//! How a test steers the provider: what it is to do wrong, what happens to its circuits, what time it is.

use serde::Deserialize;
use serde_json::json;

use crate::http::{Reply, Request};
use crate::mischief::Rule;
use crate::nsi;
use crate::world::World;

pub(crate) const PATH: &str = "/control";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Order {
    /// From now on these rules, and no others.
    Mischief(Vec<Rule>),
    AdvanceS(f64),
    /// Time between a request and what comes of it.
    ThinkS(f64),
    /// A connection ends before its time.
    End(String),
    /// A connection's data plane, without any of its states changing.
    Active(String, bool),
    /// A connection's data plane has an error, and is active after it or not.
    Broken(String, bool),
    /// A reservation of any protocol is forgotten, as if it had never been.
    Forget(String),
    /// A callback to this address about a connection that nobody knows.
    Unknown {
        to: String,
        id: String,
    },
}

pub(crate) fn answer(world: &mut World, request: &Request) -> Reply {
    match request.method.as_str() {
        "GET" => Reply::json(&world.show()),
        _ => match serde_json::from_str::<Order>(&request.body) {
            Ok(order) => {
                obey(world, order);
                Reply::json(&json!({}))
            }
            Err(error) => Reply::text(400, error.to_string()),
        },
    }
}

fn obey(world: &mut World, order: Order) {
    match order {
        Order::Mischief(rules) => world.mischief.set(rules),
        Order::AdvanceS(seconds) => world.clock.jump(seconds),
        Order::ThinkS(seconds) => world.settings.think_s = seconds,
        Order::End(id) => {
            nsi::force_end(world, &id);
            crate::oscars::force_end(world, &id);
            crate::sense::force_end(world, &id);
        }
        Order::Active(id, is_active) => nsi::set_active(world, &id, is_active),
        Order::Broken(id, is_active) => nsi::break_down(world, &id, is_active),
        Order::Forget(id) => {
            world.nsi.connections.remove(&id);
            world.oscars.connections.remove(&id);
            world.sense.instances.remove(&id);
            world.network.free_all(&id);
        }
        Order::Unknown { to, id } => nsi::tell_of_unknown(world, &to, &id),
    }
}
