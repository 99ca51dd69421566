//! Orchestrator with the northbound interface of SENSE-O, and its token endpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::http::{Reply, Request};
use crate::mischief::Deed;
use crate::network::{PortRequest, Span, read_vlans};
use crate::world::{self, World};

pub(crate) const ALPHA: &str = "urn:ogf:network:alpha.example:2026";
pub(crate) const BETA: &str = "urn:ogf:network:beta.example:2026";
const TOKEN: &str = "/auth/realms/StackV/protocol/openid-connect/token";
const BASE: &str = "/StackV-web/restapi";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Orchestrator {
    pub(crate) instances: BTreeMap<String, Instance>,
    /// Access tokens; a restart forgets them, and clients must ask again.
    #[serde(skip)]
    tokens: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Instance {
    id: String,
    alias: String,
    above: Above,
    below: Below,
    configuration: Configuration,
    ends: Vec<PortRequest>,
    mbit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Above {
    Create,
    Reinstate,
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Below {
    Pending,
    Compiled,
    Committing,
    Committed,
    Ready,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum Configuration {
    Unknown,
    Stable,
    Expired,
}

#[derive(Clone, Debug)]
pub(crate) struct Job {
    id: String,
    fails: bool,
}

pub(crate) fn handles(path: &str) -> bool {
    path == TOKEN || path.starts_with("/StackV-web/")
}

pub(crate) fn answer(world: &mut World, request: &Request) -> Reply {
    if request.path == TOKEN {
        return token(world, &request.body);
    }
    let path = request.path.strip_prefix(BASE).unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    let words: Vec<_> = path.trim_start_matches('/').split('/').collect();
    let (name, id) = match (request.method.as_str(), words.as_slice()) {
        ("GET", ["instance"]) => ("instance", ""),
        ("POST", ["instance", id]) => ("intent", *id),
        ("PUT", ["instance", id, "provision"]) => ("sense_provision", *id),
        ("PUT", ["instance", id, "cancel"]) => ("cancel", *id),
        ("PUT", ["instance", id, "reprovision"]) => ("reprovision", *id),
        ("PUT", ["instance", id, "delete"]) | ("DELETE", ["service", id]) => ("delete", *id),
        ("GET", ["instance", id, "status"]) => ("status", *id),
        ("GET", ["instance", id, "status", "configuration"]) => ("configuration", *id),
        _ => return Reply::text(404, "no such page"),
    };
    world.record_message(&format!("sense {name}"), id, &request.body);
    let deed = world.mischief.take(name, Deed::is_answer);
    if let Some(reply) = deed.as_ref().and_then(world::replacement_reply) {
        return reply;
    }
    let bearer = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    if !bearer.is_some_and(|token| world.sense.tokens.iter().any(|known| known == token)) {
        return Reply::text(401, "no such token");
    }
    if let Some(Deed::Fault(_)) = deed {
        return Reply::text(500, "as it was told");
    }
    let is_forced = request.query("force") == Some("true");
    let reply = operate(world, name, id, is_forced, &request.body);
    world::apply_to_reply(reply.unwrap_or_else(|(status, text)| Reply::text(status, text)), deed)
}

fn token(world: &mut World, form: &str) -> Reply {
    let value =
        |name: &str| form.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name);
    let right = match value("grant_type") {
        Some((_, "password")) => {
            value("username").is_some() && value("password").is_some_and(|(_, word)| word == "secret")
        }
        Some((_, "refresh_token")) => value("refresh_token")
            .is_some_and(|(_, token)| world.sense.tokens.iter().any(|known| known == token)),
        _ => false,
    };
    world.record_message("sense token", "", value("grant_type").map(|(_, value)| value).unwrap_or_default());
    if !right {
        return Reply::new(401, "application/json", json!({ "error": "invalid_grant" }).to_string());
    }
    let (access, refresh) = (world.new_id("access-", 16), world.new_id("refresh-", 16));
    world.sense.tokens.extend([access.clone(), refresh.clone()]);
    Reply::json(&json!({ "access_token": access, "refresh_token": refresh, "expires_in": 300,
            "token_type": "Bearer" }))
}

type Outcome = Result<Reply, (u16, String)>;

fn operate(world: &mut World, name: &str, id: &str, is_forced: bool, body: &str) -> Outcome {
    match name {
        "instance" => Ok(Reply::text(200, world.uuid())),
        "intent" => intent(world, id, body),
        _ => {
            let instance = world.sense.instances.get_mut(id).ok_or((404, format!("{id} is not known")))?;
            match name {
                "status" => Ok(Reply::text(200, status_text(instance))),
                "configuration" => Ok(Reply::text(
                    200,
                    json!(instance.configuration).as_str().unwrap_or_default().to_owned(),
                )),
                _ => change(world, name, id, is_forced),
            }
        }
    }
}

fn status_text(instance: &Instance) -> String {
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} - {}", word(json!(instance.above)), word(json!(instance.below)))
}

/// Parses an intent, by profile or in full: the fields that both have.
fn intent(world: &mut World, id: &str, body: &str) -> Outcome {
    let wrong = |text: &str| (400, text.to_owned());
    let intent: Value = serde_json::from_str(body).map_err(|_| wrong("no JSON"))?;
    let connection = &intent["data"]["connections"][0];
    let capacity = connection["bandwidth"]["capacity"].as_str().ok_or(wrong("capacity is a text"))?;
    let mbit: u64 = capacity.parse().map_err(|_| wrong("capacity is in Mb/s"))?;
    let mut ends = Vec::new();
    for terminal in connection["terminals"].as_array().into_iter().flatten() {
        let port = terminal["uri"].as_str().ok_or(wrong("a terminal without its URI"))?.to_owned();
        let vlans = match terminal["vlan_tag"].as_str().ok_or(wrong("vlan_tag is a text"))? {
            "any" => (1..4095).collect(),
            tag => read_vlans(tag).ok_or(wrong("no VLANs"))?,
        };
        ends.push(PortRequest { port, vlans });
    }
    if ends.len() < 2 {
        return Err(wrong("two terminals are the least"));
    }
    let mut granted = mbit;
    match world.mischief.take("intent", Deed::is_outcome) {
        Some(Deed::Refuse(why)) => return Err((403, why)),
        Some(Deed::Less(less)) => granted = less,
        _ => {}
    }
    let now = world.clock.now();
    let span = Span { begin: now, end: f64::MAX };
    let free =
        ends.iter().filter_map(|end| world.network.available(&end.port, span)).map(|(_, mbit)| mbit).min();
    let free = free.ok_or(wrong("a terminal that is not known"))?;
    let queries: Vec<_> = intent["queries"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|query| {
            let bits = (free * 1_000_000).to_string();
            json!({ "asked": query["ask"], "results": [{ "name": "Connection 1", "bandwidth": bits }] })
        })
        .collect();
    let instance = Instance {
        id: id.to_owned(),
        alias: intent["alias"].as_str().unwrap_or_default().to_owned(),
        above: Above::Create,
        below: Below::Compiled,
        configuration: Configuration::Unknown,
        ends,
        mbit: granted,
    };
    world.sense.instances.insert(id.to_owned(), instance);
    let intent_id = world.uuid();
    Ok(Reply::json(&json!({ "service_uuid": id, "intent_uuid": intent_id, "model": "", "queries": queries })))
}

fn change(world: &mut World, name: &str, id: &str, is_forced: bool) -> Outcome {
    let now = world.clock.now();
    if world.mischief.take(name, |deed| *deed == Deed::Lie).is_some() {
        return Ok(Reply::text(200, ""));
    }
    let Some(instance) = world.sense.instances.get_mut(id) else { return Err((404, String::new())) };
    let from = status_text(instance);
    let refused = Err((409, format!("{name} from {from}")));
    let is_ready = instance.below == Below::Ready;
    match name {
        "sense_provision" if instance.below == Below::Compiled => {
            let span = Span { begin: now, end: f64::MAX };
            if world.network.book(id, &instance.ends, instance.mbit, span).is_err() {
                instance.below = Below::Failed;
                return Ok(Reply::text(200, ""));
            }
            instance.below = Below::Committing;
        }
        "reprovision" if instance.above == Above::Cancel && (is_ready || is_forced) => {
            (instance.above, instance.below) = (Above::Reinstate, Below::Committing);
        }
        "cancel"
            if instance.above != Above::Cancel
                && (is_ready || is_forced)
                && instance.below != Below::Compiled =>
        {
            (instance.above, instance.below) = (Above::Cancel, Below::Committing);
            instance.configuration = Configuration::Unknown;
        }
        "delete" if (instance.above == Above::Cancel && is_ready) || instance.below == Below::Compiled => {
            world.sense.instances.remove(id);
            world.network.release_all(id);
            return Ok(Reply::text(200, ""));
        }
        _ => return refused,
    }
    let outcome = world.mischief.take(name, Deed::is_outcome);
    let fails = matches!(outcome, Some(Deed::Refuse(_)));
    let wait = match outcome {
        Some(Deed::Silence) => f64::MAX / 4.0,
        Some(Deed::Take(seconds)) => seconds,
        _ => world.settings.think_s,
    };
    world.schedule_in(wait, world::Job::Sense(Job { id: id.to_owned(), fails }));
    Ok(Reply::text(200, ""))
}

/// Advances one step: Committing, Committed, Ready, and then the configuration is stable.
pub(crate) fn run_job(world: &mut World, job: Job) {
    let Some(instance) = world.sense.instances.get_mut(&job.id) else { return };
    match instance.below {
        Below::Committing if job.fails => instance.below = Below::Failed,
        Below::Committing => instance.below = Below::Committed,
        Below::Committed => instance.below = Below::Ready,
        Below::Ready if instance.above != Above::Cancel => instance.configuration = Configuration::Stable,
        _ => {}
    }
    if instance.above == Above::Cancel && instance.below == Below::Ready {
        let id = instance.id.clone();
        world.network.release_all(&id);
    } else if matches!(instance.below, Below::Committed | Below::Ready)
        && instance.configuration == Configuration::Unknown
    {
        world.schedule_in(world.settings.think_s, world::Job::Sense(Job { fails: false, ..job }));
    }
}

pub(crate) fn force_end(world: &mut World, id: &str) {
    if let Some(instance) = world.sense.instances.get_mut(id) {
        instance.configuration = Configuration::Expired;
        instance.below = Below::Failed;
        world.network.release_all(id);
    }
}

pub(crate) fn resume(world: &mut World) {
    let under_way: Vec<_> = world.sense.instances.values().map(|instance| instance.id.clone()).collect();
    for id in under_way {
        world.schedule_in(world.settings.think_s, world::Job::Sense(Job { id, fails: false }));
    }
}
