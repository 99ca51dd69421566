//! Scheduled events of connections, and their callbacks.

use super::agent::{Agent, Callback, Job, Step};
use super::connection::{Connection, Lifecycle, Provision, Reservation};
use super::soap::{self, Header, field, operation};
use crate::clock;
use crate::mischief::Deed;
use crate::network::BookingError;
use crate::world::{self, World};

pub(crate) fn run_job(world: &mut World, job: Job) {
    match job {
        Job::Check { id, origin, outcome } => check_resources(world, &id, &origin, outcome),
        Job::Step { id, origin, step, outcome } => run_step(world, step, &id, &origin, outcome),
        Job::HoldOver { id } => expire_hold(world, &id),
        Job::Undelivered { id, correlation } => undelivered(world, &id, &correlation),
        Job::Ends { id } => expire(world, &id),
    }
}

pub(super) fn check_resources(world: &mut World, id: &str, origin: &Header, outcome: Option<Deed>) {
    let now = world.clock.now();
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    if connection.lifecycle != Lifecycle::Created || connection.reservation != Reservation::Checking {
        return;
    }
    if let Some(Deed::Less(mbit)) = outcome {
        connection.mbit = mbit;
    }
    let booked = match outcome {
        Some(Deed::Refuse(error)) => Err(error),
        _ => world.network.book(id, &connection.ends, connection.mbit, connection.span(now)).map_err(|no| {
            let error = if no == BookingError::Bandwidth { "00705" } else { "00704" };
            error.to_owned()
        }),
    };
    match booked {
        Ok(vlans) => {
            connection.vlans = vlans;
            connection.reservation = Reservation::Held;
            let body = connection.confirmed();
            call_back(world, "reserveConfirmed", origin, &body);
            let hold = world.settings.hold_s;
            world.schedule_in(hold, world::Job::Nsi(Job::HoldOver { id: id.to_owned() }));
        }
        Err(error) => {
            connection.reservation = Reservation::Failed;
            let states = connection.states();
            notify_failure(world, "reserveFailed", id, origin, &states, &error);
        }
    }
}

fn notify_failure(
    world: &mut World,
    name: &'static str,
    id: &str,
    origin: &Header,
    states: &str,
    error: &str,
) {
    let exception = soap::exception(&world.nsa(), Some(id), error, "not to be had");
    let body = operation(name, &format!("{}{states}{exception}", field("connectionId", id)));
    call_back(world, name, origin, &body);
}

fn run_step(world: &mut World, step: Step, id: &str, origin: &Header, outcome: Option<Deed>) {
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    match step {
        Step::Commit => {
            if let Some(Deed::Refuse(error)) = outcome {
                connection.reservation = Reservation::Start;
                let states = connection.states();
                world.network.release_all(id);
                return notify_failure(world, "reserveCommitFailed", id, origin, &states, &error);
            }
            connection.reservation = Reservation::Start;
            connection.is_committed = true;
            if let Some(end) = connection.end {
                world.schedule_at(end, world::Job::Nsi(Job::Ends { id: id.to_owned() }));
            }
        }
        Step::Abort => {
            connection.reservation = Reservation::Start;
            world.network.release_all(id);
        }
        Step::Provision => {
            let is_created = connection.lifecycle == Lifecycle::Created;
            connection.provision = Provision::Provisioned;
            match outcome {
                Some(Deed::Refuse(_)) => error_event(world, id, "activateFailed"),
                _ => set_active(world, id, is_created),
            }
        }
        Step::Release => {
            connection.provision = Provision::Released;
            set_active(world, id, false);
        }
        Step::Terminate if matches!(outcome, Some(Deed::Refuse(_))) => {
            // A failed teardown leaves it as it is; it may be terminated again.
            connection.lifecycle = Lifecycle::Failed;
            return error_event(world, id, "deactivateFailed");
        }
        Step::Terminate => {
            set_active(world, id, false);
            world.network.release_all(id);
            if let Some(connection) = world.nsi.connections.get_mut(id) {
                connection.lifecycle = Lifecycle::Terminated;
            }
        }
    }
    confirm(world, step, id, origin);
}

pub(super) fn confirm(world: &mut World, step: Step, id: &str, origin: &Header) {
    let name = step.confirmation();
    call_back(world, name, origin, &operation(name, &field("connectionId", id)));
}

pub(crate) fn set_active(world: &mut World, id: &str, is_active: bool) {
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    if std::mem::replace(&mut connection.is_active, is_active) != is_active {
        let children = connection.data_plane();
        notify(world, "dataPlaneStateChange", id, &children);
    }
}

/// Reports a data-plane error, which may be over by then.
pub(crate) fn fail_data_plane(world: &mut World, id: &str, is_active: bool) {
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    connection.is_active = is_active;
    error_event(world, id, "dataplaneError");
}

/// Ends the circuit before its time.
pub(crate) fn force_end(world: &mut World, id: &str) {
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    connection.lifecycle = Lifecycle::Failed;
    world.network.release_all(id);
    set_active(world, id, false);
    error_event(world, id, "forcedEnd");
}

fn error_event(world: &mut World, id: &str, event: &str) {
    let children = format!(
        "{}{}{}",
        field("event", event),
        field("originatingConnectionId", id),
        field("originatingNSA", &world.nsa())
    );
    notify(world, "errorEvent", id, &children);
}

/// A requester's message was not delivered beyond this agent.
fn undelivered(world: &mut World, id: &str, correlation: &str) {
    notify(world, "messageDeliveryTimeout", id, &field("correlationId", correlation));
}

fn expire_hold(world: &mut World, id: &str) {
    let hold = world.settings.hold_s;
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    if connection.reservation != Reservation::Held || connection.lifecycle != Lifecycle::Created {
        return;
    }
    connection.reservation = Reservation::TimedOut;
    world.network.release_all(id);
    let children = format!(
        "{}{}{}",
        field("timeoutValue", &format!("{hold}")),
        field("originatingConnectionId", id),
        field("originatingNSA", &world.nsa())
    );
    notify(world, "reserveTimeout", id, &children);
}

fn expire(world: &mut World, id: &str) {
    let Some(connection) = world.nsi.connections.get_mut(id) else { return };
    if connection.lifecycle == Lifecycle::Created {
        connection.lifecycle = Lifecycle::PassedEndTime;
        world.network.release_all(id);
        set_active(world, id, false);
    }
}

/// All notifications have number 0, as by real providers.
fn notify(world: &mut World, name: &'static str, id: &str, children: &str) {
    let correlation = format!("urn:uuid:{}", world.uuid());
    let Some(connection) = world.nsi.connections.get(id) else { return };
    let header = Header {
        correlation,
        requester: connection.requester.clone(),
        provider: world.nsa(),
        reply_to: connection.reply_to.clone(),
    };
    let stamp = field("timeStamp", &clock::format(world.clock.now()));
    let body = format!("{}{}{stamp}{children}", field("connectionId", id), field("notificationId", "0"));
    call_back(world, name, &header, &operation(name, &body));
}

/// Notifies about an unknown connection.
pub(crate) fn notify_unknown(world: &mut World, to: &str, id: &str) {
    let correlation = format!("urn:uuid:{}", world.uuid());
    let (provider, requester) = (world.nsa(), "urn:ogf:network:nobody".to_owned());
    let header = Header { correlation, requester, provider, reply_to: Some(to.to_owned()) };
    let body = operation("provisionConfirmed", &field("connectionId", id));
    call_back(world, "provisionConfirmed", &header, &body);
}

pub(super) fn call_back(world: &mut World, name: &'static str, origin: &Header, body: &str) {
    let Some(to) = origin.reply_to.clone() else { return };
    let header = Header { reply_to: None, ..origin.clone() };
    world.queue_callback(Callback { name, to, body: soap::call(&header, body) });
}

impl Agent {
    /// Resumes operations after a restart.
    pub(crate) fn resume(world: &mut World) {
        let origin =
            |connection: &Connection| Header { requester: connection.requester.clone(), ..Header::default() };
        let mut jobs = Vec::new();
        for connection in world.nsi.connections.values() {
            let (id, origin) = (connection.id.clone(), origin(connection));
            let step = |step| Job::Step { id: id.clone(), origin: origin.clone(), step, outcome: None };
            match (connection.lifecycle, connection.reservation, connection.provision) {
                (Lifecycle::Terminating, ..) => jobs.push(step(Step::Terminate)),
                (_, Reservation::Checking, _) => {
                    jobs.push(Job::Check { id: id.clone(), origin: origin.clone(), outcome: None });
                }
                (_, Reservation::Committing, _) => jobs.push(step(Step::Commit)),
                (_, Reservation::Aborting, _) => jobs.push(step(Step::Abort)),
                (_, _, Provision::Provisioning) => jobs.push(step(Step::Provision)),
                (_, _, Provision::Releasing) => jobs.push(step(Step::Release)),
                _ => {}
            }
        }
        for job in jobs {
            world.schedule_in(world.settings.think_s, world::Job::Nsi(job));
        }
        let ends: Vec<_> =
            world.nsi.connections.values().filter_map(|one| Some((one.end?, one.id.clone()))).collect();
        for (end, id) in ends {
            world.schedule_at(end, world::Job::Nsi(Job::Ends { id }));
        }
        let held: Vec<_> =
            world.nsi.connections.values().filter(|one| one.reservation == Reservation::Held).collect();
        let held: Vec<_> = held.into_iter().map(|one| one.id.clone()).collect();
        for id in held {
            world.schedule_in(world.settings.hold_s, world::Job::Nsi(Job::HoldOver { id }));
        }
    }
}
