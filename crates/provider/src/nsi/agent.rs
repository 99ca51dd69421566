//! Provider agent of NSI CS: the immediate effect of each operation.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::connection::{Connection, Lifecycle, Provision, Reservation};
use super::discovery;
use super::jobs::{call_back, check_resources, confirm, run_job};
use super::soap::{self, ACTIONS, Header, Message, POINT_TO_POINT, field, operation};
use crate::clock;
use crate::http::{Reply, Request};
use crate::mischief::Deed;
use crate::network::{PortRequest, read_vlans};
use crate::world::{self, World};
use crate::xml::Element;

pub(crate) const PATH: &str = "/NSI/services/CS2";

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Agent {
    pub(crate) connections: BTreeMap<String, Connection>,
    /// Correlation ids used so far; each is valid once.
    used: Vec<String>,
}

/// A pending call to a requester.
#[derive(Clone, Debug)]
pub(crate) struct Callback {
    pub(crate) name: &'static str,
    pub(crate) to: String,
    pub(crate) body: String,
}

impl Callback {
    pub(crate) fn action(&self) -> String {
        format!("{ACTIONS}{}", self.name)
    }
}

/// A scheduled event of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    Check { id: String, origin: Header, outcome: Option<Deed> },
    Step { id: String, origin: Header, step: Step, outcome: Option<Deed> },
    HoldOver { id: String },
    Undelivered { id: String, correlation: String },
    Ends { id: String },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    Commit,
    Abort,
    Provision,
    Release,
    Terminate,
}

impl Step {
    fn from_operation(name: &str) -> Option<Step> {
        Some(match name {
            "reserveCommit" => Step::Commit,
            "reserveAbort" => Step::Abort,
            "provision" => Step::Provision,
            "release" => Step::Release,
            "terminate" => Step::Terminate,
            _ => return None,
        })
    }

    pub(super) fn confirmation(self) -> &'static str {
        match self {
            Step::Commit => "reserveCommitConfirmed",
            Step::Abort => "reserveAbortConfirmed",
            Step::Provision => "provisionConfirmed",
            Step::Release => "releaseConfirmed",
            Step::Terminate => "terminateConfirmed",
        }
    }
}

/// A fault: its error id, if it has one, and text.
type Refusal = (Option<&'static str>, String);

pub(crate) fn handles(path: &str) -> bool {
    path.starts_with("/NSI/")
}

pub(crate) fn answer(world: &mut World, request: &Request) -> Reply {
    let base = format!("http://{}", request.header("host").unwrap_or_default());
    match request.path.as_str() {
        discovery::DESCRIPTION => {
            Reply::new(200, "text/xml", discovery::description(&world.nsa(), &world.network_id(), &base))
        }
        discovery::TOPOLOGY => {
            Reply::new(200, "text/xml", discovery::topology(&world.network_id(), &world.network))
        }
        PATH => answer_call(world, request),
        _ => Reply::new(404, "text/html", "<html>no such page"),
    }
}

fn answer_call(world: &mut World, request: &Request) -> Reply {
    let action = request.header("soapaction").unwrap_or_default();
    let named = action.strip_prefix('"').and_then(|action| action.strip_suffix('"'));
    let Some(named) = named.and_then(|action| action.strip_prefix(ACTIONS)) else {
        return Reply::new(500, "text/html", "<html><body>no such <b>action</body>");
    };
    let nsa = world.nsa();
    let refuse = |error: Option<&str>, text: &str| {
        Reply::new(500, "text/xml; charset=utf-8", soap::fault(&nsa, None, error, text))
    };
    let message = match soap::read(&request.body) {
        Ok(message) if message.body.name == named => message,
        Ok(_) => return refuse(None, "the action is not the body's"),
        Err(why) => return refuse(Some("00100"), &why),
    };
    world.record_message(named, message.body.text_of("connectionId").unwrap_or_default(), &request.body);
    if message.header.provider != nsa {
        return refuse(Some("00102"), "this is another provider");
    }
    if world.nsi.used.contains(&message.header.correlation) {
        return refuse(Some("00101"), "the correlation id was used before");
    }
    world.nsi.used.push(message.header.correlation.clone());
    if message.body.children.iter().any(|child| !child.space.is_empty()) {
        return refuse(None, "'NoneType' object is not iterable");
    }
    let answer = world.mischief.take(named, Deed::is_answer);
    if let Some(Deed::Fault(error)) = &answer {
        return refuse(Some(error), "as it was told");
    }
    if let Some(reply) = answer.as_ref().and_then(world::replacement_reply) {
        return reply;
    }
    let reply = match operate(world, named, &message) {
        Ok(body) => Reply::new(200, "text/xml; charset=utf-8", soap::reply(&message.header, &body)),
        Err((error, text)) => refuse(error, &text),
    };
    world::apply_to_reply(reply, answer)
}

fn operate(world: &mut World, name: &str, message: &Message) -> Result<String, Refusal> {
    match name {
        "reserve" => reserve(world, message),
        "querySummarySync" => query(world, message),
        "querySummary" => {
            let found = query(world, message)?.replace("querySummarySyncConfirmed", "querySummaryConfirmed");
            call_back(world, "querySummaryConfirmed", &message.header, &found);
            Ok(operation("acknowledgment", ""))
        }
        _ => match Step::from_operation(name) {
            Some(step) => change(world, step, message),
            None => Err((Some("00103"), format!("{name} is not implemented"))),
        },
    }
}

fn reserve(world: &mut World, message: &Message) -> Result<String, Refusal> {
    let missing = |what: &str| (Some("00101"), format!("no {what}"));
    if message.body.text_of("connectionId").is_some() {
        return Err((Some("00202"), "the connection exists".to_owned()));
    }
    let criteria = message.body.child("", "criteria").ok_or_else(|| missing("criteria"))?;
    let wanted = criteria.child(POINT_TO_POINT, "p2ps").ok_or_else(|| missing("p2ps"))?;
    let mbit =
        wanted.text_of("capacity").and_then(|text| text.parse().ok()).ok_or_else(|| missing("capacity"))?;
    wanted.text_of("directionality").ok_or_else(|| missing("directionality"))?;
    let (points, ends) =
        [end(world, wanted, "sourceSTP")?, end(world, wanted, "destSTP")?].into_iter().unzip();
    let time = |name: &str| match criteria.child("", "schedule").and_then(|schedule| schedule.text_of(name)) {
        Some(text) => clock::parse(text).map(Some).ok_or((Some("00100"), format!("{name} has no zone"))),
        None => Ok(None),
    };
    let (start, end, now) = (time("startTime")?, time("endTime")?, world.clock.now());
    if start.is_some_and(|start| start < now) {
        return Err((Some("00100"), "the start is in the past".to_owned()));
    }
    if end.is_some_and(|end| end <= start.unwrap_or(now)) {
        return Err((Some("00102"), "the end is not after the start".to_owned()));
    }
    let outcome = world.mischief.take("reserve", Deed::is_outcome);
    let text = |name: &str| message.body.text_of(name).map(str::to_owned);
    let connection = Connection {
        id: String::new(),
        global: text("globalReservationId"),
        description: text("description"),
        requester: message.header.requester.clone(),
        reply_to: message.header.reply_to.clone(),
        points,
        ends,
        vlans: Vec::new(),
        mbit,
        start,
        end,
        reservation: Reservation::Checking,
        provision: Provision::Released,
        lifecycle: Lifecycle::Created,
        is_committed: false,
        is_active: false,
    };
    if outcome == Some(Deed::Twice) {
        // A duplicate that nobody is told of, with everything that a connection has.
        let id = world.new_id("EX-", 10);
        let twin = Connection { id: id.clone(), reply_to: None, ..connection.clone() };
        world.nsi.connections.insert(id.clone(), twin);
        check_resources(world, &id, &Header::default(), None);
    }
    let id = world.new_id("EX-", 10);
    world.nsi.connections.insert(id.clone(), Connection { id: id.clone(), ..connection });
    let job = match outcome {
        Some(Deed::Undelivered) => undelivered(&id, message),
        _ => Job::Check { id: id.clone(), origin: message.header.clone(), outcome: outcome.clone() },
    };
    later(world, "reserveConfirmed", outcome, job);
    Ok(operation("reserveResponse", &field("connectionId", &id)))
}

/// The STP without its label, and the port request there.
fn end(world: &World, wanted: &Element, name: &str) -> Result<(String, PortRequest), Refusal> {
    let text = wanted.text_of(name).ok_or((Some("00101"), format!("no {name}")))?;
    let (point, label) = text.rsplit_once('?').ok_or((Some("00709"), format!("{text} has no label")))?;
    let vlans = label
        .strip_prefix("vlan=")
        .and_then(read_vlans)
        .ok_or((Some("00709"), format!("{label}: no VLANs")))?;
    let prefix = format!("urn:ogf:network:{}:", world.network_id());
    // An unknown port is reported like one in use.
    let port = point.strip_prefix(&prefix).ok_or((Some("00704"), format!("{point} is unknown")))?;
    Ok((point.to_owned(), PortRequest { port: port.to_owned(), vlans }))
}

fn query(world: &mut World, message: &Message) -> Result<String, Refusal> {
    if message.header.reply_to.is_none() {
        return Err((None, "'NoneType' object has no attribute 'replyTo'".to_owned()));
    }
    let texts = |name: &str| -> Vec<String> {
        let named = message.body.children.iter().filter(|child| child.name == name);
        named.map(|child| child.text.trim().to_owned()).collect()
    };
    let (ids, globals) = (texts("connectionId"), texts("globalReservationId"));
    if !globals.is_empty() {
        return Err((None, "column \"global_reservation_ids\" does not exist".to_owned()));
    }
    let ours = |connection: &&Connection| {
        connection.requester == message.header.requester && (ids.is_empty() || ids.contains(&connection.id))
    };
    let found: String = world.nsi.connections.values().filter(ours).map(Connection::summary).collect();
    Ok(operation("querySummarySyncConfirmed", &found))
}

fn change(world: &mut World, step: Step, message: &Message) -> Result<String, Refusal> {
    let id = message.body.text_of("connectionId").unwrap_or_default().to_owned();
    let connection =
        world.nsi.connections.get_mut(&id).ok_or((Some("00203"), format!("{id} does not exist")))?;
    let before = connection.clone();
    let invalid = |state: String| Err((Some("00201"), format!("{step:?} from {state}")));
    let is_created = connection.lifecycle == Lifecycle::Created;
    match step {
        Step::Terminate => match connection.lifecycle {
            Lifecycle::Terminating => return invalid("Terminating".to_owned()),
            Lifecycle::Terminated => return Err((Some("00204"), format!("{id} is gone"))),
            _ => connection.lifecycle = Lifecycle::Terminating,
        },
        _ if !is_created => return invalid(format!("{:?}", connection.lifecycle)),
        Step::Commit => match connection.reservation {
            Reservation::Held => connection.reservation = Reservation::Committing,
            Reservation::TimedOut => {
                // It stays in this state.
                connection.reservation = Reservation::Committing;
                return Err((
                    Some("00500"),
                    "Transition from state ReserveStart to ReserveCommitting not allowed".to_owned(),
                ));
            }
            other => return invalid(format!("{other:?}")),
        },
        Step::Abort => match connection.reservation {
            Reservation::Held | Reservation::Failed | Reservation::TimedOut => {
                connection.reservation = Reservation::Aborting;
            }
            other => return invalid(format!("{other:?}")),
        },
        Step::Provision if connection.is_committed && connection.provision == Provision::Released => {
            connection.provision = Provision::Provisioning;
        }
        Step::Release if connection.provision == Provision::Provisioned => {
            connection.provision = Provision::Releasing;
        }
        Step::Provision | Step::Release => return invalid(format!("{:?}", connection.provision)),
    }
    let name = message.body.name.clone();
    let outcome = world.mischief.take(&name, Deed::is_outcome);
    if matches!(outcome, Some(Deed::Lie)) {
        // Confirmed, without any effect.
        world.nsi.connections.insert(id.clone(), before);
        confirm(world, step, &id, &message.header);
        return Ok(operation("acknowledgment", ""));
    }
    let job = match outcome {
        Some(Deed::Undelivered) => {
            let job = undelivered(&id, message);
            world.nsi.connections.insert(id, before);
            job
        }
        _ => Job::Step { id, origin: message.header.clone(), step, outcome: outcome.clone() },
    };
    later(world, step.confirmation(), outcome, job);
    Ok(operation("acknowledgment", ""))
}

fn undelivered(id: &str, message: &Message) -> Job {
    Job::Undelivered { id: id.to_owned(), correlation: message.header.correlation.clone() }
}

/// Schedules the job, which may run at once.
fn later(world: &mut World, callback: &str, outcome: Option<Deed>, job: Job) {
    let wait = match outcome {
        Some(Deed::Silence) => return,
        Some(Deed::Take(seconds)) => seconds,
        _ => world.settings.think_s,
    };
    if world.mischief.take(callback, |deed| *deed == Deed::BeforeAnswer).is_some() {
        run_job(world, job);
        world.calls_first = true;
        return;
    }
    world.schedule_in(wait, world::Job::Nsi(job));
}
