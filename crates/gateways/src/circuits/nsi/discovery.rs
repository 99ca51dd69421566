//! The provider's discovery document.

use longhaul_model::{Fault, FaultCode};

use super::dialogue::Endpoint;
use super::xml;
use crate::circuits::remote::HttpAnswer;

const INTERFACE: &str = "application/vnd.ogf.nsi.cs.v2.provider+soap";
const TEXT_BYTES_MAX: usize = 1_000;

/// `from` is where the description is, `known` who it must be.
pub(super) fn read(heard: &HttpAnswer, from: Option<&str>, known: Option<&str>) -> Result<Endpoint, Fault> {
    let wrong = |why: String| {
        let shown = from.unwrap_or_default();
        Fault::new(
            FaultCode::ProtocolError,
            format!("{shown}: {why}; give url and provider_nsa instead of discovery"),
        )
    };
    if heard.status != 200 {
        return Err(wrong(format!("it answered {}", heard.status)));
    }
    let root = xml::read(&heard.body).map_err(|fault| wrong(fault.detail))?;
    let nsa = root.attribute("id").filter(|id| !id.is_empty() && id.len() <= TEXT_BYTES_MAX);
    let nsa = nsa.ok_or_else(|| wrong("no description of an NSA".to_owned()))?;
    if known.is_some_and(|known| known != nsa) {
        return Err(wrong(format!("it is {nsa}")));
    }
    let interface = root.children("interface").find(|one| one.text_of("type") == Some(INTERFACE));
    let url = interface.and_then(|one| one.text_of("href")).filter(|url| url.len() <= TEXT_BYTES_MAX);
    let url = url.ok_or_else(|| wrong("it offers no connection service of version 2".to_owned()))?;
    // Who is believed over TLS is not asked in clear text, and who is asked in clear text is not believed
    // over TLS.
    let scheme = |url: &str| url.split_once("://").map(|(scheme, _)| scheme.to_owned());
    if from.is_some_and(|from| scheme(from) != scheme(url)) {
        return Err(wrong(format!("its connection service is at {url}")));
    }
    Ok(Endpoint { url: url.to_owned(), nsa: nsa.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_leads_to_the_service() {
        let document = |href: &str| HttpAnswer {
            status: 200,
            date: None,
            body: format!(
                "<nsa:nsa xmlns:nsa='u' id='urn:p'><interface><type>x</type><href>y</href></interface>\
                 <interface><type>{INTERFACE}</type><href>{href}</href></interface></nsa:nsa>"
            ),
        };
        let from = Some("https://p.example/d.xml");
        let found = read(&document("https://p.example/cs"), from, None).unwrap();
        assert_eq!((found.url.as_str(), found.nsa.as_str()), ("https://p.example/cs", "urn:p"));
        for (href, known) in
            [("http://p.example/cs", None), ("file:///x", None), ("https://p.example/", Some("urn:q"))]
        {
            assert!(read(&document(href), from, known).is_err(), "{href}");
        }
        assert!(
            read(&document("http://p.example/cs"), Some("http://p.example/d.xml"), Some("urn:p")).is_ok()
        );
        assert!(read(&HttpAnswer { status: 404, ..document("") }, from, None).is_err());
    }
}
