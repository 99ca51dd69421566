//! Test control interface: faults to inject, events of circuits, clock steps.

use serde::Deserialize;
use serde_json::json;

use crate::http::{Reply, Request};
use crate::mischief::Rule;
use crate::nsi;
use crate::world::World;

pub(crate) const PATH: &str = "/control";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum Command {
    /// Replaces all fault rules.
    Mischief(Vec<Rule>),
    AdvanceS(f64),
    /// Sets the processing time of requests.
    ThinkS(f64),
    /// Ends a connection before its time.
    End(String),
    /// Sets a connection's data plane without changing its states.
    Active(String, bool),
    /// Reports an error of a connection's data plane, which is active afterwards or not.
    Broken(String, bool),
    /// Forgets a reservation of any protocol.
    Forget(String),
    /// Sends a callback about an unknown connection to this address.
    Unknown {
        to: String,
        id: String,
    },
}

pub(crate) fn answer(world: &mut World, request: &Request) -> Reply {
    match request.method.as_str() {
        "GET" => Reply::json(&world.to_json()),
        _ => match serde_json::from_str::<Command>(&request.body) {
            Ok(order) => {
                execute(world, order);
                Reply::json(&json!({}))
            }
            Err(error) => Reply::text(400, error.to_string()),
        },
    }
}

fn execute(world: &mut World, order: Command) {
    match order {
        Command::Mischief(rules) => world.mischief.set(rules),
        Command::AdvanceS(seconds) => world.clock.jump(seconds),
        Command::ThinkS(seconds) => world.settings.think_s = seconds,
        Command::End(id) => {
            nsi::force_end(world, &id);
            crate::oscars::force_end(world, &id);
            crate::sense::force_end(world, &id);
        }
        Command::Active(id, is_active) => nsi::set_active(world, &id, is_active),
        Command::Broken(id, is_active) => nsi::fail_data_plane(world, &id, is_active),
        Command::Forget(id) => {
            world.nsi.connections.remove(&id);
            world.oscars.connections.remove(&id);
            world.sense.instances.remove(&id);
            world.network.release_all(&id);
        }
        Command::Unknown { to, id } => nsi::notify_unknown(world, &to, &id),
    }
}
