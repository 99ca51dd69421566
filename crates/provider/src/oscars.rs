//! Reservation manager with the OSCARS 1.x REST interface.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::mischief::Deed;
use crate::network::{BookingError, PortRequest, Span};
use crate::world::{self, World};

const BASE: &str = "/oscars";
const USER: &str = "longhaul";
const PASSWORD: &str = "secret";
/// A start further in the past is refused.
const BEGIN_AGE_S_MAX: f64 = 300.0;
const HOLD_S: f64 = 900.0;

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Manager {
    pub(crate) connections: BTreeMap<String, Connection>,
    /// Session tokens; a restart forgets them.
    #[serde(skip)]
    tokens: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    id: String,
    description: String,
    span: Span,
    ends: Vec<PortRequest>,
    mbit: u64,
    phase: Phase,
    state: State,
    deployment: Deployment,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Phase {
    Held,
    Reserved,
    Archived,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum State {
    Waiting,
    Active,
    Finished,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
enum Deployment {
    WaitingToBeDeployed,
    Deployed,
    Undeployed,
    DeployFailed,
}

#[derive(Clone, Debug)]
pub(crate) enum Job {
    Deploy { id: String, fails: bool },
    HoldOver { id: String },
    Ends { id: String },
}

pub(crate) fn handles(path: &str) -> bool {
    path.starts_with("/oscars/")
}

pub(crate) fn answer(world: &mut World, request: &Request) -> Reply {
    let path = request.path.strip_prefix(BASE).unwrap_or_default().to_owned();
    let operation = operation(&request.method, &path);
    let Some((name, of)) = operation else { return Reply::text(404, "no such page") };
    world.record_message(&format!("oscars {name}"), of, &request.body);
    let deed = world.mischief.take(name, Deed::is_answer);
    if let Some(reply) = deed.as_ref().and_then(world::replacement_reply) {
        return reply;
    }
    if path.starts_with("/protected/") && !is_known(world, request) {
        return Reply::text(401, "who are you?");
    }
    if let Some(Deed::Fault(_)) = deed {
        return Reply::text(400, "as it was told");
    }
    let reply = operate(world, name, of, &request.body);
    world::apply_to_reply(reply.unwrap_or_else(|(status, text)| Reply::text(status, text)), deed)
}

/// Name of the operation for fault rules, and its object.
fn operation<'a>(method: &str, path: &'a str) -> Option<(&'static str, &'a str)> {
    let exact = match (method, path) {
        ("POST", "/api/account/login") => "login",
        ("GET", "/protected/conn/generateId") => "generateId",
        ("POST", "/api/topo/available") => "available",
        ("POST", "/api/pce/paths") => "paths",
        ("POST", "/protected/hold") => "hold",
        ("POST", "/protected/conn/commit") => "conn_commit",
        ("POST", "/protected/conn/release") => "conn_release",
        ("POST", "/api/conn/list") => "list",
        ("GET", path) => {
            let clear = path.strip_prefix("/protected/held/clear/").map(|id| ("clear", id));
            return clear.or_else(|| path.strip_prefix("/api/conn/info/").map(|id| ("info", id)));
        }
        _ => return None,
    };
    Some((exact, ""))
}

fn is_known(world: &World, request: &Request) -> bool {
    let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    let token = request.header("authentication").or(bearer);
    token.is_some_and(|token| world.oscars.tokens.iter().any(|known| known == token))
}

type Outcome = Result<Reply, (u16, String)>;

fn operate(world: &mut World, name: &str, of: &str, body: &str) -> Outcome {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    match name {
        "login" => {
            if value["username"] != USER || value["password"] != PASSWORD {
                return Err((401, "no such account".to_owned()));
            }
            let token = world.new_id("token-", 16);
            world.oscars.tokens.push(token.clone());
            Ok(Reply::json(&json!({ "token": token, "admin": false })))
        }
        "generateId" => Ok(Reply::text(200, world.new_id("", 4).to_uppercase())),
        "available" => {
            let time = |name: &str| value[name].as_f64().ok_or((400, format!("no {name}")));
            let span = Span { begin: time("beginning")?, end: time("ending")? };
            let shown = world.network.ports().iter().filter_map(|port| {
                let (vlans, mbit) = world.network.available(&port.name, span)?;
                let ranges: Vec<_> =
                    vlans.iter().map(|vlan| json!({ "floor": vlan, "ceiling": vlan })).collect();
                let expression: Vec<_> = vlans.iter().map(u16::to_string).collect();
                Some((
                    port.name.clone(),
                    json!({
                        "vlanRanges": ranges,
                        "vlanExpression": expression.join(","),
                        "ingressBandwidth": mbit,
                        "egressBandwidth": mbit,
                    }),
                ))
            });
            Ok(Reply::json(&shown.collect::<serde_json::Map<_, _>>().into()))
        }
        "paths" => paths(&value),
        "hold" => hold(world, &value),
        "conn_commit" => commit(world, body.trim()),
        "conn_release" => release(world, body.trim()),
        "clear" => {
            let is_held = world.oscars.connections.get(of).is_some_and(|one| one.phase == Phase::Held);
            if is_held && world.mischief.take("clear", |deed| *deed == Deed::Lie).is_none() {
                world.oscars.connections.remove(of);
                world.network.release_all(of);
            }
            Ok(Reply::text(200, ""))
        }
        "info" => match world.oscars.connections.get(of) {
            Some(connection) => Ok(Reply::json(&to_json(connection))),
            None => Err((404, format!("{of} is not known"))),
        },
        _ => list(world, &value),
    }
}

/// A direct path between two devices.
fn paths(value: &Value) -> Outcome {
    let (Some(a), Some(z)) = (value["a"].as_str(), value["z"].as_str()) else {
        return Err((400, "a and z are devices".to_owned()));
    };
    let urn = |text: String| json!({ "urn": text });
    let ero = [urn(a.to_owned()), urn(format!("{a}:1/1/1")), urn(format!("{z}:1/1/1")), urn(z.to_owned())];
    let back: Vec<_> = ero.iter().rev().cloned().collect();
    let path =
        json!({ "cost": 1, "azEro": ero, "zaEro": back, "azAvailable": 100_000, "zaAvailable": 100_000 });
    Ok(Reply::json(&json!({ "evaluated": 1, "shortest": path, "leastHops": path, "fits": path })))
}

fn hold(world: &mut World, value: &Value) -> Outcome {
    let wrong = |text: &str| (400, text.to_owned());
    let id = value["connectionId"].as_str().ok_or(wrong("no connectionId"))?.to_owned();
    let time =
        |name: &str| value[name].as_i64().ok_or(wrong("times are whole seconds")).map(|time| time as f64);
    let span = Span { begin: time("begin")?, end: time("end")? };
    let now = world.clock.now();
    if span.begin < now - BEGIN_AGE_S_MAX {
        return Err(wrong("Begin time is more than 5 minutes in the past"));
    }
    if span.end <= now || span.end <= span.begin {
        return Err(wrong("the end is not in the future, or not after the beginning"));
    }
    let list = |name: &str| value[name].as_array().cloned().unwrap_or_default();
    let (junctions, fixtures, pipes) = (list("junctions"), list("fixtures"), list("pipes"));
    if junctions.is_empty() || fixtures.len() < 2 || (junctions.len() > 1 && pipes.is_empty()) {
        return Err(wrong("a junction, two fixtures and pipes between junctions are the least"));
    }
    if pipes.iter().any(|pipe| pipe["ero"].as_array().is_none_or(|ero| ero.len() % 3 != 1)) {
        return Err(wrong("an ERO is device, port, port, device"));
    }
    let mut ends = Vec::new();
    let mut mbit = u64::MAX;
    for fixture in &fixtures {
        let port = fixture["port"].as_str().ok_or(wrong("a fixture without a port"))?.to_owned();
        let vlan =
            fixture["vlan"].as_u64().and_then(|vlan| u16::try_from(vlan).ok()).ok_or(wrong("no vlan"))?;
        let both = fixture["mbps"].as_u64().or(fixture["inMbps"].as_u64());
        mbit = mbit.min(both.ok_or(wrong("no bandwidth"))?);
        ends.push(PortRequest { port, vlans: vec![vlan] });
    }
    // A repeated hold overwrites the first.
    world.network.release_all(&id);
    let outcome = world.mischief.take("hold", Deed::is_outcome);
    match &outcome {
        Some(Deed::Less(less)) => mbit = *less,
        Some(Deed::Refuse(why)) => return Err((409, why.clone())),
        _ => {}
    }
    let description = value["description"].as_str().unwrap_or_default().to_owned();
    let (phase, state, deployment) = (Phase::Held, State::Waiting, Deployment::Undeployed);
    let connection = Connection { id, description, span, ends, mbit, phase, state, deployment };
    if outcome == Some(Deed::Twice) {
        // A duplicate with an unpublished name, on other VLANs, since those of the first are taken.
        let mut twin = Connection { id: world.new_id("", 4).to_uppercase(), ..connection.clone() };
        twin.ends.iter_mut().for_each(|end| end.vlans = vec![end.vlans[0] + 1]);
        hold_connection(world, twin)?;
    }
    hold_connection(world, connection)?;
    let until = now + HOLD_S;
    let mut told = value.clone();
    told["heldUntil"] = json!(until);
    told["phase"] = json!("HELD");
    told["validity"] = json!({ "valid": true, "message": "" });
    Ok(Reply::json(&told))
}

/// Holds the connection for a limited time.
fn hold_connection(world: &mut World, connection: Connection) -> Result<(), (u16, String)> {
    let Connection { id, ends, mbit, span, .. } = &connection;
    world.network.book(id, ends, *mbit, *span).map_err(|no| {
        let what = match no {
            BookingError::Port => "the port is unknown",
            BookingError::Vlan => "the VLAN is in use",
            BookingError::Bandwidth => "the bandwidth is in use",
        };
        (400, what.to_owned())
    })?;
    let id = id.clone();
    world.oscars.connections.insert(id.clone(), connection);
    world.schedule_in(HOLD_S, world::Job::Oscars(Job::HoldOver { id }));
    Ok(())
}

fn commit(world: &mut World, id: &str) -> Outcome {
    let connection = world.oscars.connections.get_mut(id).ok_or((404, format!("{id} is not known")))?;
    if connection.phase != Phase::Held {
        return Err((400, format!("{id} is not held")));
    }
    connection.phase = Phase::Reserved;
    connection.deployment = Deployment::WaitingToBeDeployed;
    let end = connection.span.end;
    let outcome = world.mischief.take("conn_commit", Deed::is_outcome);
    let fails = matches!(outcome, Some(Deed::Refuse(_)));
    let wait = match outcome {
        Some(Deed::Silence) => f64::MAX / 4.0,
        Some(Deed::Take(seconds)) => seconds,
        _ => world.settings.think_s,
    };
    let id = id.to_owned();
    world.schedule_in(wait, world::Job::Oscars(Job::Deploy { id: id.clone(), fails }));
    world.schedule_at(end, world::Job::Oscars(Job::Ends { id }));
    Ok(Reply::json(&json!({ "what": "COMMITTED", "phase": "RESERVED", "when": world.clock.now() as i64 })))
}

fn release(world: &mut World, id: &str) -> Outcome {
    let connection = world.oscars.connections.get_mut(id).ok_or((404, format!("{id} is not known")))?;
    if connection.phase == Phase::Archived {
        return Err((400, format!("{id} is archived")));
    }
    if world.mischief.take("conn_release", |deed| *deed == Deed::Lie).is_none() {
        finish(connection, State::Finished);
        world.network.release_all(id);
    }
    Ok(Reply::json(&json!({ "what": "ARCHIVED", "phase": "ARCHIVED", "when": world.clock.now() as i64 })))
}

fn finish(connection: &mut Connection, state: State) {
    (connection.phase, connection.state, connection.deployment) =
        (Phase::Archived, state, Deployment::Undeployed);
}

fn list(world: &World, filter: &Value) -> Outcome {
    let fits = |connection: &&Connection| {
        let phase = filter["phase"].as_str().is_none_or(|phase| json!(connection.phase) == phase);
        let text = filter["description"].as_str().is_none_or(|text| connection.description.contains(text));
        phase && text
    };
    let size = filter["sizePerPage"].as_u64().filter(|size| *size > 0).unwrap_or(20) as usize;
    let page = filter["page"].as_u64().unwrap_or(1).max(1) as usize;
    let found: Vec<_> = world.oscars.connections.values().filter(fits).map(to_json).collect();
    let shown: Vec<_> = found.iter().skip((page - 1) * size).take(size).collect();
    Ok(Reply::json(
        &json!({ "page": page, "sizePerPage": size, "totalSize": found.len(), "connections": shown }),
    ))
}

fn to_json(connection: &Connection) -> Value {
    let fixtures: Vec<_> = connection
        .ends
        .iter()
        .map(|end| {
            json!({ "portUrn": end.port, "vlan": { "vlanId": end.vlans[0] },
                "ingressBandwidth": connection.mbit, "egressBandwidth": connection.mbit })
        })
        .collect();
    let part = json!({
        "cmp": { "fixtures": fixtures },
        "schedule": { "beginning": connection.span.begin, "ending": connection.span.end },
    });
    let name = match connection.phase {
        Phase::Held => "held",
        Phase::Reserved => "reserved",
        Phase::Archived => "archived",
    };
    let mut shown = json!({
        "connectionId": connection.id,
        "username": USER,
        "description": connection.description,
        "phase": connection.phase,
        "state": connection.state,
        "deploymentState": connection.deployment,
        "mode": "AUTOMATIC",
    });
    shown[name] = part;
    shown
}

pub(crate) fn run_job(world: &mut World, job: Job) {
    let (Job::Deploy { id, .. } | Job::HoldOver { id } | Job::Ends { id }) = &job;
    let Some(connection) = world.oscars.connections.get_mut(id) else { return };
    match (&job, connection.phase) {
        (Job::Deploy { fails: false, .. }, Phase::Reserved) => {
            (connection.state, connection.deployment) = (State::Active, Deployment::Deployed);
        }
        (Job::Deploy { fails: true, .. }, Phase::Reserved) => {
            (connection.state, connection.deployment) = (State::Failed, Deployment::DeployFailed);
        }
        (Job::HoldOver { .. }, Phase::Held) => {
            let id = connection.id.clone();
            world.oscars.connections.remove(&id);
            world.network.release_all(&id);
        }
        (Job::Ends { .. }, Phase::Reserved) => {
            finish(connection, State::Finished);
            let id = connection.id.clone();
            world.network.release_all(&id);
        }
        _ => {}
    }
}

pub(crate) fn force_end(world: &mut World, id: &str) {
    if let Some(connection) = world.oscars.connections.get_mut(id) {
        finish(connection, State::Failed);
        world.network.release_all(id);
    }
}

pub(crate) fn resume(world: &mut World) {
    let mut jobs = Vec::new();
    for connection in world.oscars.connections.values() {
        let id = connection.id.clone();
        match (connection.phase, connection.deployment) {
            (Phase::Held, _) => jobs.push(Job::HoldOver { id }),
            (Phase::Reserved, Deployment::WaitingToBeDeployed) => jobs.push(Job::Deploy { id, fails: false }),
            _ => {}
        }
    }
    for job in jobs {
        let wait = if matches!(job, Job::HoldOver { .. }) { HOLD_S } else { world.settings.think_s };
        world.schedule_in(wait, world::Job::Oscars(job));
    }
    let ends: Vec<_> = world.oscars.connections.values().map(|one| (one.span.end, one.id.clone())).collect();
    for (end, id) in ends {
        world.schedule_at(end, world::Job::Oscars(Job::Ends { id }));
    }
}
