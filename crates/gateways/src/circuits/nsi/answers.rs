//! Messages from NSI providers: acknowledgements, summaries, callbacks and faults, parsed leniently. Ids and
//! texts are opaque.

use longhaul_circuits::RequestKey;
use longhaul_model::{Fault, FaultCode, Timestamp};

use super::xml::{self, Element};
use crate::circuits::remote::HttpAnswer;

/// Longer ids than anybody gives.
const ID_BYTES_MAX: usize = 512;
const TEXT_BYTES_MAX: usize = 300;
/// Exceptions inside exceptions that are looked at.
const CHILDREN_MAX: usize = 8;

/// Why a provider does not do something.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub(super) class: Class,
    /// The error id, if there is one.
    pub(super) error: Option<String>,
    pub(super) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// There is not so much, or not now: less may do.
    Unavailable,
    /// Something is wrong there: again after a while.
    Provider,
    /// Something is wrong here, and trying again does not help.
    Configuration,
    /// The reservation does not exist, or no longer.
    Gone,
    /// The operation is not allowed in its state.
    State,
}

impl Class {
    fn from_error_id(error: &str) -> Class {
        match error {
            "00600" | "00704" | "00705" | "00710" => Class::Unavailable,
            "00203" | "00204" => Class::Gone,
            "00201" | "00202" => Class::State,
            _ => match error.get(..3) {
                Some("002" | "005" | "008") => Class::Provider,
                Some("001" | "003" | "004" | "007") => Class::Configuration,
                _ => Class::Provider,
            },
        }
    }
}

impl Refusal {
    pub(super) fn words(&self) -> String {
        match &self.error {
            Some(error) => format!("{} (NSI error {error})", self.text),
            None => self.text.clone(),
        }
    }

    fn from_exception(exception: &Element) -> Refusal {
        // An aggregator's own error says little: the innermost is where it happened.
        let mut inner = exception;
        for _ in 0..CHILDREN_MAX {
            let Some(child) = inner.child("childException") else { break };
            inner = child.child("serviceException").unwrap_or(child);
        }
        let error = inner.text_of("errorId").or(exception.text_of("errorId")).map(shortened);
        let text = inner.text_of("text").or(exception.text_of("text")).unwrap_or("no reason is given");
        let class = error.as_deref().map_or(Class::Provider, Class::from_error_id);
        Refusal { class, error, text: shortened(text) }
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(TEXT_BYTES_MAX).collect()
}

/// The element in the body of an answer, or why there is none.
pub(super) fn body(heard: &HttpAnswer) -> Result<Element, Refusal> {
    let provider = |text: String| Refusal { class: Class::Provider, error: None, text };
    if matches!(heard.status, 401 | 403) {
        let text = format!("it answered {}: our certificate is not accepted there", heard.status);
        return Err(Refusal { class: Class::Configuration, error: None, text });
    }
    // Not everything that goes wrong there is told in XML.
    let read = xml::read(&heard.body).map_err(|fault| match heard.status {
        200 => provider(fault.detail),
        status => provider(format!("it answered {status} without a reason")),
    })?;
    let body = read.child("Body").and_then(|body| body.children.first());
    match body {
        Some(fault) if fault.name == "Fault" => Err(refusal_of_fault(fault)),
        Some(body) if heard.status == 200 => Ok(body.clone()),
        _ => Err(provider(format!("it answered {} without a body", heard.status))),
    }
}

fn refusal_of_fault(fault: &Element) -> Refusal {
    match fault.child("detail").and_then(|detail| detail.child("serviceException")) {
        Some(exception) => Refusal::from_exception(exception),
        None => {
            let text = shortened(fault.text_of("faultstring").unwrap_or("a fault without words"));
            Refusal { class: Class::Provider, error: None, text }
        }
    }
}

pub(super) fn connection_id(body: &Element) -> Option<String> {
    body.text_of("connectionId").filter(|id| id.len() <= ID_BYTES_MAX).map(str::to_owned)
}

/// Where a connection stands: the words of its states, in lower case, for they are misspelt here and there.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Summary {
    pub(super) id: String,
    pub(super) key: Option<RequestKey>,
    pub(super) description: String,
    pub(super) mbit: Option<u64>,
    pub(super) end: Option<Timestamp>,
    pub(super) reservation: String,
    pub(super) provision: String,
    pub(super) lifecycle: String,
    pub(super) is_active: bool,
}

impl Summary {
    pub(super) fn from_reservation(reservation: &Element) -> Option<Summary> {
        let states = reservation.child("connectionStates");
        let state =
            |name: &str| states.and_then(|states| states.text_of(name)).unwrap_or_default().to_lowercase();
        let plane = states.and_then(|states| states.child("dataPlaneStatus"));
        let is = |name: &str| {
            plane.and_then(|plane| plane.text_of(name)).is_some_and(|text| matches!(text, "true" | "1"))
        };
        // The newest version is the last.
        let criteria = reservation.children("criteria").last();
        let wanted = criteria.and_then(|criteria| criteria.child("p2ps"));
        let end = criteria
            .and_then(|criteria| criteria.child("schedule"))
            .and_then(|schedule| schedule.text_of("endTime"));
        let key = reservation.text_of("globalReservationId");
        Some(Summary {
            id: connection_id(reservation)?,
            key: key.and_then(|key| key.strip_prefix("urn:uuid:")).and_then(|key| key.parse().ok()),
            description: reservation.text_of("description").unwrap_or_default().to_owned(),
            mbit: wanted.and_then(|wanted| wanted.text_of("capacity")).and_then(|text| text.parse().ok()),
            end: end.and_then(|end| end.parse().ok()),
            reservation: state("reservationState"),
            provision: state("provisionState"),
            lifecycle: state("lifecycleState"),
            // Of one who says nothing about versions, there is one.
            is_active: is("active")
                && (is("versionConsistent")
                    || plane.is_none_or(|plane| plane.child("versionConsistent").is_none())),
        })
    }

    /// Whether the connection is usable, or may become so.
    pub(super) fn lives(&self) -> bool {
        self.lifecycle == "created" && self.reservation != "reservefailed"
    }
}

pub(super) fn summaries(body: &Element) -> Result<Vec<Summary>, Fault> {
    if !body.name.starts_with("querySummary") {
        let detail = format!("a query was answered with {:?}", shortened(&body.name));
        return Err(Fault::new(FaultCode::ProtocolError, detail));
    }
    Ok(body.children("reservation").filter_map(Summary::from_reservation).collect())
}

/// A call of a provider's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Called {
    pub(super) correlation: String,
    pub(super) id: String,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    Reserved {
        mbit: Option<u64>,
        end: Option<Timestamp>,
    },
    Committed,
    Aborted,
    Provisioned,
    Terminated,
    Failed(Refusal),
    /// Something has happened there, in these words.
    Event(String),
}

pub(super) fn called(text: &str) -> Option<Called> {
    let root = xml::read(text).ok()?;
    let correlation = root.child("Header")?.child("nsiHeader")?.text_of("correlationId")?.to_owned();
    let body = root.child("Body")?.children.first()?;
    let id = connection_id(body).unwrap_or_default();
    let what = match body.name.as_str() {
        "reserveConfirmed" => {
            let summary = Summary::from_reservation(body)?;
            What::Reserved { mbit: summary.mbit, end: summary.end }
        }
        "reserveCommitConfirmed" => What::Committed,
        "reserveAbortConfirmed" => What::Aborted,
        "provisionConfirmed" => What::Provisioned,
        "terminateConfirmed" => What::Terminated,
        "reserveFailed" | "reserveCommitFailed" | "error" => {
            let none = Element::default();
            What::Failed(Refusal::from_exception(body.child("serviceException").unwrap_or(&none)))
        }
        "errorEvent" => What::Event(shortened(body.text_of("event").unwrap_or("an error"))),
        other => What::Event(shortened(other)),
    };
    Some(Called { correlation, id, what })
}
