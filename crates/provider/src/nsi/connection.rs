//! A connection with its three NSI state machines, and its XML forms.

use serde::{Deserialize, Serialize};

use super::soap::{field, operation};
use crate::clock;
use crate::network::{PortRequest, Span};

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reservation {
    Start,
    Checking,
    Held,
    Failed,
    /// The hold timed out; a query does not show it.
    TimedOut,
    Committing,
    Aborting,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Provision {
    Released,
    Provisioning,
    Provisioned,
    Releasing,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Lifecycle {
    Created,
    Failed,
    PassedEndTime,
    Terminating,
    Terminated,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) id: String,
    pub(crate) global: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) requester: String,
    /// Address for notifications, from the reserve.
    pub(crate) reply_to: Option<String>,
    pub(crate) ends: Vec<PortRequest>,
    /// STPs without their labels.
    pub(crate) points: Vec<String>,
    /// VLANs chosen, once held.
    pub(crate) vlans: Vec<u16>,
    pub(crate) mbit: u64,
    pub(crate) start: Option<f64>,
    pub(crate) end: Option<f64>,
    pub(crate) reservation: Reservation,
    pub(crate) provision: Provision,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) is_committed: bool,
    pub(crate) is_active: bool,
}

impl Connection {
    pub(crate) fn span(&self, now: f64) -> Span {
        Span { begin: self.start.unwrap_or(now), end: self.end.unwrap_or(f64::MAX) }
    }

    fn schedule(&self) -> String {
        let start = self.start.map(|at| field("startTime", &clock::format(at))).unwrap_or_default();
        let end = self.end.map(|at| field("endTime", &clock::format(at))).unwrap_or_default();
        format!("<schedule>{start}{end}</schedule>")
    }

    /// With a superfluous empty element and another service type than was sent, as real providers do.
    fn criteria(&self) -> String {
        let point = |at: usize| match self.vlans.get(at) {
            Some(vlan) => format!("{}?vlan={vlan}", self.points[at]),
            None => self.points[at].clone(),
        };
        format!(
            "<criteria version=\"0\">{}{}<children/><pp:p2ps>{}{}{}{}{}</pp:p2ps></criteria>",
            self.schedule(),
            field("serviceType", "http://services.ogf.org/nsi/2013/07/descriptions/EVTS.A-GOLE"),
            field("capacity", &self.mbit.to_string()),
            field("directionality", "Bidirectional"),
            field("symmetricPath", "false"),
            field("sourceSTP", &point(0)),
            field("destSTP", &point(1)),
        )
    }

    fn names(&self) -> String {
        let global = self.global.as_ref().map(|text| field("globalReservationId", text)).unwrap_or_default();
        let description =
            self.description.as_ref().map(|text| field("description", text)).unwrap_or_default();
        format!("{}{global}{description}", field("connectionId", &self.id))
    }

    pub(crate) fn confirmed(&self) -> String {
        operation("reserveConfirmed", &format!("{}{}", self.names(), self.criteria()))
    }

    pub(crate) fn states(&self) -> String {
        let reservation = match self.reservation {
            Reservation::Start => "ReserveStart",
            Reservation::Checking => "ReserveChecking",
            Reservation::Held | Reservation::TimedOut => "ReserveHeld",
            Reservation::Failed => "ReserveFailed",
            // Misspelt as by real providers.
            Reservation::Committing => "ReserveComitting",
            Reservation::Aborting => "ReserveAborting",
        };
        format!(
            "<connectionStates>{}{}{}{}</connectionStates>",
            field("reservationState", reservation),
            field("provisionState", &format!("{:?}", self.provision)),
            field("lifecycleState", &format!("{:?}", self.lifecycle)),
            self.data_plane(),
        )
    }

    pub(crate) fn data_plane(&self) -> String {
        format!(
            "<dataPlaneStatus><active>{}</active><version>0</version>\
             <versionConsistent>true</versionConsistent></dataPlaneStatus>",
            self.is_active
        )
    }

    /// Summary for a query.
    pub(crate) fn summary(&self) -> String {
        format!(
            "<reservation>{}{}{}{}</reservation>",
            self.names(),
            self.criteria(),
            field("requesterNSA", &self.requester),
            self.states()
        )
    }
}
