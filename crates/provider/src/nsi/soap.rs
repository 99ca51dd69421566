//! SOAP envelopes of NSI CS 2.1: parsed strictly, as the pickiest providers do, and written with unqualified
//! children.

use crate::xml::{self, Element, escape};

pub(crate) const SOAP: &str = "http://schemas.xmlsoap.org/soap/envelope/";
pub(crate) const HEADERS: &str = "http://schemas.ogf.org/nsi/2013/12/framework/headers";
pub(crate) const CONNECTION: &str = "http://schemas.ogf.org/nsi/2013/12/connection/types";
pub(crate) const POINT_TO_POINT: &str = "http://schemas.ogf.org/nsi/2013/12/services/point2point";
pub(crate) const ACTIONS: &str = "http://schemas.ogf.org/nsi/2013/12/connection/service/";
const PROVIDER_CONTENT_TYPE: &str = "application/vnd.ogf.nsi.cs.v2.provider+soap";
const REQUESTER_CONTENT_TYPE: &str = "application/vnd.ogf.nsi.cs.v2.requester+soap";

#[derive(Clone, Debug, Default)]
pub(crate) struct Header {
    pub(crate) correlation: String,
    pub(crate) requester: String,
    pub(crate) provider: String,
    pub(crate) reply_to: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) header: Header,
    pub(crate) body: Element,
}

/// Parses a request, or says why it is none.
pub(crate) fn read(text: &str) -> Result<Message, String> {
    let root = xml::read(text)?;
    let is_envelope = root.space == SOAP && root.name == "Envelope";
    let header = root.child(SOAP, "Header").filter(|_| is_envelope).ok_or("no SOAP header")?;
    let header = header.child(HEADERS, "nsiHeader").ok_or("no nsiHeader in its namespace")?;
    let field = |name: &str| header.text_of(name).map(str::to_owned).ok_or_else(|| format!("no {name}"));
    if field("protocolVersion")? != PROVIDER_CONTENT_TYPE {
        return Err("protocolVersion is not that of requests to providers".to_owned());
    }
    let correlation = field("correlationId")?;
    if !is_uuid(&correlation) {
        return Err(format!("correlationId {correlation} is no urn:uuid: in lower case"));
    }
    let header = Header {
        correlation,
        requester: field("requesterNSA")?,
        provider: field("providerNSA")?,
        reply_to: field("replyTo").ok().filter(|text| !text.is_empty()),
    };
    let body = root.child(SOAP, "Body").ok_or("no SOAP body")?;
    let body = body
        .children
        .first()
        .filter(|body| body.space == CONNECTION)
        .ok_or("no operation in its namespace")?;
    Ok(Message { header, body: body.clone() })
}

fn is_uuid(text: &str) -> bool {
    let Some(uuid) = text.strip_prefix("urn:uuid:") else { return false };
    let parts: Vec<_> = uuid.split('-').map(str::len).collect();
    parts == [8, 4, 4, 4, 12] && uuid.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

fn envelope(header: &Header, version: &str, body: &str) -> String {
    let reply_to =
        header.reply_to.iter().map(|to| format!("<replyTo>{}</replyTo>", escape(to))).collect::<String>();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <soapenv:Envelope xmlns:soapenv=\"{SOAP}\" xmlns:hd=\"{HEADERS}\" xmlns:ct=\"{CONNECTION}\" \
         xmlns:pp=\"{POINT_TO_POINT}\">\
         <soapenv:Header><hd:nsiHeader><protocolVersion>{version}</protocolVersion>\
         <correlationId>{}</correlationId><requesterNSA>{}</requesterNSA><providerNSA>{}</providerNSA>\
         {reply_to}</hd:nsiHeader>\
         </soapenv:Header><soapenv:Body>{body}</soapenv:Body></soapenv:Envelope>",
        escape(&header.correlation),
        escape(&header.requester),
        escape(&header.provider),
    )
}

/// Reply on the same connection.
pub(crate) fn reply(to: &Header, body: &str) -> String {
    envelope(&Header { reply_to: None, ..to.clone() }, PROVIDER_CONTENT_TYPE, body)
}

/// Call to a requester.
pub(crate) fn call(header: &Header, body: &str) -> String {
    envelope(header, REQUESTER_CONTENT_TYPE, body)
}

/// `name` with its children, which are XML already.
pub(crate) fn operation(name: &str, children: &str) -> String {
    format!("<ct:{name}>{children}</ct:{name}>")
}

pub(crate) fn field(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escape(text))
}

pub(crate) fn exception(nsa: &str, connection: Option<&str>, error: &str, text: &str) -> String {
    let connection = connection.map(|id| field("connectionId", id)).unwrap_or_default();
    format!(
        "<serviceException>{}{connection}{}{}<variables/></serviceException>",
        field("nsaId", nsa),
        field("errorId", error),
        field("text", text)
    )
}

/// SOAP fault; without an error id it has no detail.
pub(crate) fn fault(nsa: &str, connection: Option<&str>, error: Option<&str>, text: &str) -> String {
    let detail = error.map(|error| {
        let inside = exception(nsa, connection, error, text);
        let inside = inside.replacen("<serviceException>", "<ct:serviceException>", 1);
        format!("<detail>{}</detail>", inside.replace("</serviceException>", "</ct:serviceException>"))
    });
    format!(
        "<?xml version=\"1.0\"?><soapenv:Envelope xmlns:soapenv=\"{SOAP}\" \
            xmlns:ct=\"{CONNECTION}\"><soapenv:Body><soapenv:Fault>\
         <faultcode>soapenv:Server</faultcode><faultstring>{}</faultstring>{}</soapenv:Fault>\
         </soapenv:Body></soapenv:Envelope>",
        escape(text),
        detail.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_strictly() {
        let header = Header {
            correlation: "urn:uuid:5f0c3a52-6c1e-4f0a-9d7e-0b6f2a4c1d11".to_owned(),
            requester: "urn:r".to_owned(),
            provider: "urn:p".to_owned(),
            reply_to: Some("http://h/".to_owned()),
        };
        let text = reply(&header, &operation("provision", &field("connectionId", "EX-1")));
        let message = read(&text).unwrap();
        assert_eq!(
            (message.body.name.as_str(), message.body.text_of("connectionId")),
            ("provision", Some("EX-1"))
        );
        assert_eq!(message.header.reply_to, None);
        assert!(read(&text.replace("5f0c", "5F0C")).unwrap_err().contains("lower case"));
        assert!(read(&text.replace("<correlationId>", "<hd:correlationId>")).is_err());
        assert!(read(&text.replace(HEADERS, "urn:other")).unwrap_err().contains("nsiHeader"));
    }
}
