//! PROPFIND (RFC 4918): properties of files and directories.
//!
//! Depth 0 and 1 only: nobody makes this server walk its tree. A large directory is sent page by page while
//! it is read.

use std::io;
use std::sync::Arc;

use http::{HeaderName, Response, StatusCode, header};
use longhaul_model::Algorithm;
use longhaul_model::percent::encode_path;
use longhaul_storage::{Entry, Space};
use tokio::sync::mpsc;

use crate::answer::{Answer, Outcome, Refusal, set};
use crate::body::Body;
use crate::conditions::{etag, http_date, iso_date};
use crate::lock;
use crate::properties::DeadProperties;
use crate::rights::Action;
use crate::serve::{Call, DAV, DoorContext, blocking};
use crate::xml::{self, Element, Name, XML_BYTES_MAX, empty_element, escape};

/// Names of a directory read at once.
const PAGE_NAMES: usize = 16_384;
/// Entries in one piece of an answer.
const PIECE_ENTRIES: usize = 256;
const PIECES_AHEAD: usize = 4;
pub(crate) const MULTISTATUS: &str =
    "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";
/// More properties in one question are no question.
pub(crate) const PROPERTIES_MAX: usize = 200;
pub(crate) const XML_TYPE: &str = "application/xml; charset=utf-8";
const DCACHE: &str = "http://www.dcache.org/2013/webdav";
const STORM: &str = "http://storm.italiangrid.org/2014/webdav";

/// The properties that a PROPFIND asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PropfindRequest {
    All,
    Names,
    Some(Vec<Name>),
}

pub(crate) async fn propfind(mut call: Call) -> Outcome {
    let depth_one = match call.header("depth")?.map(str::trim) {
        Some("0") => false,
        Some("1") => true,
        // None means infinity.
        None | Some("infinity") => return Ok(infinite()),
        Some(_) => return Err(Refusal::bad("the header Depth is 0 or 1")),
    };
    let body = call.small_body(XML_BYTES_MAX).await?;
    let question = question(&body)?;
    let entry = {
        let (shared, place, granted) = (call.shared.clone(), call.place.clone(), call.granted.clone());
        blocking(move || shared.look_up(&granted, Action::Look, &place)).await?
    };
    let entry = entry.filter(|entry| entry.is_directory || !call.place.slash);
    let entry =
        entry.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "there is no such file or directory"))?;
    if !(depth_one && entry.is_directory) {
        let mut text = String::new();
        let about_one = move || {
            // Neither a directory is read nor a client waited for, so nothing can fail.
            let _ = write_multistatus(&call, &question, entry, false, &mut |piece| {
                text.push_str(&piece);
                Ok(())
            });
            Ok(text)
        };
        return Ok(multistatus(Body::from(blocking(about_one).await?)));
    }
    let listing = call.shared.listing_slot().await?;
    let (sender, pieces) = mpsc::channel(PIECES_AHEAD);
    tokio::task::spawn_blocking(move || {
        let _listing = listing;
        let gone = |_| io::Error::other("the client went");
        let mut send = |piece: String| sender.blocking_send(Ok(piece.into())).map_err(gone);
        if let Err(error) = write_multistatus(&call, &question, entry, true, &mut send) {
            // The client sees a broken answer, never a short one that looks whole.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Ok(multistatus(Body::Pieces(pieces)))
}

pub(crate) fn multistatus(body: Body) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::MULTI_STATUS;
    set(answer.headers_mut(), header::CONTENT_TYPE, XML_TYPE);
    set(answer.headers_mut(), HeaderName::from_static("dav"), DAV);
    answer
}

fn infinite() -> Answer {
    let text = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n\
                <D:error xmlns:D=\"DAV:\"><D:propfind-finite-depth/></D:error>\n";
    let mut answer = Response::new(Body::from(text.to_owned()));
    *answer.status_mut() = StatusCode::FORBIDDEN;
    set(answer.headers_mut(), header::CONTENT_TYPE, XML_TYPE);
    answer
}

/// The body of a request, which has to be this element.
pub(crate) fn document(body: &[u8], local: &str) -> Outcome<Element> {
    let root = xml::parse(body).map_err(|why| Refusal::bad(format!("the XML of the request: {why}")))?;
    if !root.name.is_dav(local) {
        return Err(Refusal::bad(format!("the request is no DAV: {local}")));
    }
    Ok(root)
}

fn question(body: &[u8]) -> Outcome<PropfindRequest> {
    if body.is_empty() {
        return Ok(PropfindRequest::All);
    }
    let root = document(body, "propfind")?;
    if root.child("propname").is_some() {
        return Ok(PropfindRequest::Names);
    }
    if root.child("allprop").is_some() {
        return Ok(PropfindRequest::All);
    }
    let prop = root.child("prop").ok_or_else(|| Refusal::bad("the request asks for nothing"))?;
    if prop.children().count() > PROPERTIES_MAX {
        return Err(Refusal::bad(format!("the request asks for more than {PROPERTIES_MAX} properties")));
    }
    Ok(PropfindRequest::Some(prop.children().map(|child| child.name.clone()).collect()))
}

/// Takes the next piece of an answer.
type SendChunk<'a> = &'a mut dyn FnMut(String) -> io::Result<()>;

fn write_multistatus(
    call: &Call,
    question: &PropfindRequest,
    entry: Entry,
    depth_one: bool,
    send: SendChunk<'_>,
) -> io::Result<()> {
    let failed = |refusal: Refusal| io::Error::other(refusal.text);
    let (shared, place) = (&call.shared, &call.place);
    let is_directory = entry.is_directory;
    let space = is_directory.then(|| shared.storage().space().ok()).flatten();
    let mut text = String::from(MULTISTATUS);
    response(&mut text, shared, &place.path, &entry, question, space);
    let has_members = depth_one && is_directory && shared.storage().directories().is_some();
    let mut page_begin = has_members.then_some(None::<String>);
    while let Some(after) = page_begin.take() {
        let page = shared
            .list((&call.granted, Action::Look), &place.path, after.as_deref(), PAGE_NAMES)
            .map_err(failed)?;
        for (number, entry) in page.entries.iter().enumerate() {
            let path = join(&place.path, &entry.name);
            response(&mut text, shared, &path, entry, question, None);
            if number % PIECE_ENTRIES == PIECE_ENTRIES - 1 {
                send(std::mem::take(&mut text))?;
            }
        }
        page_begin = page.more_after.map(Some);
    }
    text.push_str("</D:multistatus>\n");
    send(text)
}

pub(crate) fn join(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

fn response(
    text: &mut String,
    shared: &Arc<DoorContext>,
    path: &str,
    entry: &Entry,
    question: &PropfindRequest,
    space: Option<Space>,
) {
    begin_response(text, path, entry);
    let (mut found, mut missing) = (String::new(), String::new());
    let about = ResourceInfo { shared, path, entry, space };
    match question {
        PropfindRequest::All => {
            for local in ALL {
                found.push_str(&about.element(local).unwrap_or_default());
            }
            about.own().values().for_each(|element| found.push_str(element));
        }
        PropfindRequest::Names => {
            for local in ALL.iter().chain(ON_DEMAND).filter(|local| about.element(local).is_some()) {
                found.push_str(&format!("<D:{local}/>"));
            }
            about.own().keys().for_each(|name| found.push_str(&empty_element(name)));
        }
        PropfindRequest::Some(names) => {
            for name in names {
                match about.property(name) {
                    Some(element) => found.push_str(&element),
                    None => missing.push_str(&empty_element(name)),
                }
            }
        }
    }
    if !found.is_empty() || missing.is_empty() {
        propstat(text, &found, "200 OK");
    }
    if !missing.is_empty() {
        propstat(text, &missing, "404 Not Found");
    }
    text.push_str("</D:response>\n");
}

pub(crate) fn begin_response(text: &mut String, path: &str, entry: &Entry) {
    let slash = if entry.is_directory && !path.is_empty() { "/" } else { "" };
    text.push_str(&format!("<D:response><D:href>/{}{slash}</D:href>", encode_path(path)));
}

pub(crate) fn propstat(text: &mut String, properties: &str, status: &str) {
    text.push_str(&format!(
        "<D:propstat><D:prop>{properties}</D:prop><D:status>HTTP/1.1 {status}</D:status></D:propstat>"
    ));
}

const ALL: &[&str] = &[
    "displayname",
    "resourcetype",
    "getcontentlength",
    "getcontenttype",
    "getlastmodified",
    "creationdate",
    "getetag",
    "iscollection",
];
/// Told only when asked for: RFC 4331 says so of quotas, and locks are asked for by who wants to know.
const ON_DEMAND: &[&str] = &["quota-available-bytes", "quota-used-bytes", "lockdiscovery", "supportedlock"];
/// Checksum properties in the namespaces of other servers.
const CHECKSUMS: [(&str, &str); 2] = [(DCACHE, "Checksums"), (STORM, "Checksum")];

/// Whether a property is what the door says of a file, so that nobody else may.
pub(crate) fn is_told_by_door(name: &Name) -> bool {
    let ours = ALL.iter().chain(ON_DEMAND).any(|local| name.is_dav(local));
    ours || CHECKSUMS.contains(&(name.space.as_str(), name.local.as_str()))
}

struct ResourceInfo<'a> {
    shared: &'a Arc<DoorContext>,
    path: &'a str,
    entry: &'a Entry,
    space: Option<Space>,
}

impl ResourceInfo<'_> {
    /// What clients say of it: looked up only for questions that reach so far, since a directory may be
    /// large.
    fn own(&self) -> DeadProperties {
        self.shared.properties.get(self.path)
    }

    fn property(&self, name: &Name) -> Option<String> {
        match name.space.as_str() {
            "DAV:" => self.element(&name.local),
            DCACHE if name.local == "Checksums" => self.checksum(name, "adler32="),
            STORM if name.local == "Checksum" => self.checksum(name, ""),
            _ => None,
        }
        .or_else(|| self.own().remove(name))
    }

    /// A checksum that is known already: listing a directory reads no files.
    fn checksum(&self, name: &Name, before: &str) -> Option<String> {
        let known = self.shared.remembered.get(self.path, &self.entry.identity);
        let value = known.get(Algorithm::Adler32)?.as_u32()?;
        Some(format!("<x:{0} xmlns:x=\"{1}\">{before}{value:08x}</x:{0}>", name.local, name.space))
    }

    fn element(&self, local: &str) -> Option<String> {
        let (entry, is_directory) = (self.entry, self.entry.is_directory);
        let value = match local {
            "displayname" => escape(&entry.name),
            "resourcetype" => (if is_directory { "<D:collection/>" } else { "" }).to_owned(),
            "getcontentlength" if !is_directory => entry.identity.size.to_string(),
            "getcontenttype" if !is_directory => "application/octet-stream".to_owned(),
            "getlastmodified" => http_date(entry.identity.mtime_ns)?,
            "creationdate" => iso_date(entry.identity.mtime_ns)?,
            "getetag" if !is_directory => escape(&etag(&entry.identity)),
            "iscollection" => u8::from(is_directory).to_string(),
            "quota-available-bytes" => self.space?.free_bytes.to_string(),
            "quota-used-bytes" => {
                let space = self.space?;
                space.total_bytes.saturating_sub(space.free_bytes).to_string()
            }
            "supportedlock" => lock::SUPPORTED.to_owned(),
            "lockdiscovery" => {
                let now = self.shared.uptime();
                let locks = self.shared.locks();
                locks.covering(self.path, now).map(|one| lock::active(one, now)).collect()
            }
            _ => return None,
        };
        Some(format!("<D:{local}>{value}</D:{local}>"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_understood() {
        assert_eq!(question(b"").unwrap(), PropfindRequest::All);
        let asked =
            question(b"<propfind xmlns='DAV:'><prop><getetag/><a xmlns='urn:x'/></prop></propfind>").unwrap();
        let PropfindRequest::Some(names) = asked else { panic!("{asked:?}") };
        assert!(names[0].is_dav("getetag"));
        assert!(is_told_by_door(&names[0]) && !is_told_by_door(&names[1]));
        for bad in ["<propfind xmlns='DAV:'/>", "<prop xmlns='DAV:'/>", "<propfind/>", "x"] {
            assert_eq!(question(bad.as_bytes()).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }
}
