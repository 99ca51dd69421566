//! What is said to a provider: envelopes of NSI CS 2.1. Only the elements of the body and the header
//! themselves are in a namespace, their children are in none, and there is never a default namespace: this is
//! where implementations disagree.

use std::fmt::Write as _;

use super::xml::{self, escape};

const OF_PROVIDER: &str = "application/vnd.ogf.nsi.cs.v2.provider+soap";
const OF_REQUESTER: &str = "application/vnd.ogf.nsi.cs.v2.requester+soap";
pub(super) const ACTIONS: &str = "http://schemas.ogf.org/nsi/2013/12/connection/service/";
const SERVICE_TYPE: &str = "http://services.ogf.org/nsi/2013/12/descriptions/EVTS.A-GOLE";

#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Header {
    pub(super) correlation: String,
    pub(super) requester: String,
    pub(super) provider: String,
    pub(super) reply_to: Option<String>,
}

/// A request to a provider.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    Reserve(Reserve),
    Commit(String),
    Abort(String),
    Provision(String),
    Terminate(String),
    /// Query of one connection, or of all of ours.
    Query(Option<String>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reserve {
    pub(super) key: String,
    pub(super) description: String,
    /// With its zone. The beginning is now, which is best said by saying nothing: a second ago is refused.
    pub(super) end: Option<String>,
    pub(super) mbit: u64,
    pub(super) source: String,
    pub(super) target: String,
}

impl Request {
    pub(super) fn operation(&self) -> &'static str {
        match self {
            Request::Reserve(_) => "reserve",
            Request::Commit(_) => "reserveCommit",
            Request::Abort(_) => "reserveAbort",
            Request::Provision(_) => "provision",
            Request::Terminate(_) => "terminate",
            Request::Query(_) => "querySummarySync",
        }
    }

    fn body(&self) -> String {
        match self {
            Request::Reserve(reserve) => reserve.body(),
            Request::Commit(id)
            | Request::Abort(id)
            | Request::Provision(id)
            | Request::Terminate(id)
            | Request::Query(Some(id)) => format!("   <connectionId>{}</connectionId>\n", escape(id)),
            Request::Query(None) => String::new(),
        }
    }

    pub(super) fn envelope(&self, header: &Header) -> String {
        envelope(header, OF_PROVIDER, self.operation(), &self.body())
    }
}

impl Reserve {
    fn body(&self) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "   <globalReservationId>{}</globalReservationId>", escape(&self.key));
        let _ = writeln!(text, "   <description>{}</description>", escape(&self.description));
        text.push_str("   <criteria version=\"0\">\n");
        if let Some(end) = &self.end {
            let _ = writeln!(text, "    <schedule>\n     <endTime>{end}</endTime>\n    </schedule>");
        }
        let _ = writeln!(text, "    <serviceType>{SERVICE_TYPE}</serviceType>");
        text.push_str("    <p2p:p2ps>\n");
        let _ = writeln!(text, "     <capacity>{}</capacity>", self.mbit);
        text.push_str("     <directionality>Bidirectional</directionality>\n");
        text.push_str("     <symmetricPath>true</symmetricPath>\n");
        let _ = writeln!(text, "     <sourceSTP>{}</sourceSTP>", escape(&self.source));
        let _ = writeln!(text, "     <destSTP>{}</destSTP>", escape(&self.target));
        text.push_str("    </p2p:p2ps>\n   </criteria>\n");
        text
    }
}

fn envelope(header: &Header, version: &str, operation: &str, children: &str) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <soap:Envelope xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\"\n  \
         xmlns:h=\"http://schemas.ogf.org/nsi/2013/12/framework/headers\"\n  \
         xmlns:c=\"http://schemas.ogf.org/nsi/2013/12/connection/types\"\n  \
         xmlns:p2p=\"http://schemas.ogf.org/nsi/2013/12/services/point2point\">\n \
         <soap:Header>\n  <h:nsiHeader>\n",
    );
    let reply_to = header.reply_to.as_deref().map(|to| ("replyTo", to));
    let fields = [
        ("protocolVersion", version),
        ("correlationId", &header.correlation),
        ("requesterNSA", &header.requester),
        ("providerNSA", &header.provider),
    ];
    for (name, value) in fields.into_iter().chain(reply_to) {
        let _ = writeln!(text, "   <{name}>{}</{name}>", escape(value));
    }
    text.push_str("  </h:nsiHeader>\n </soap:Header>\n <soap:Body>\n");
    let _ = match children {
        "" => writeln!(text, "  <c:{operation}/>"),
        _ => writeln!(text, "  <c:{operation}>\n{children}  </c:{operation}>"),
    };
    text.push_str(" </soap:Body>\n</soap:Envelope>\n");
    text
}

/// The acknowledgement of a provider's call; none if it is no call.
pub(in crate::circuits) fn acknowledge(call: &str) -> Option<String> {
    let root = xml::read(call).ok()?;
    let header = root.child("Header")?.child("nsiHeader")?;
    let text = |name: &str| header.text_of(name).unwrap_or_default().to_owned();
    root.child("Body")?.children.first()?;
    let header = Header {
        correlation: text("correlationId"),
        requester: text("requesterNSA"),
        provider: text("providerNSA"),
        reply_to: None,
    };
    Some(envelope(&header, OF_REQUESTER, "acknowledgment", ""))
}
