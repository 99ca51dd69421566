//! What the decoders of this room promise of any bytes that a client sends. A broken promise is a panic:
//! fuzzing (`fuzz/`) looks for one, nothing else calls this.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, HeaderValue};
use longhaul_model::StorageName;
use longhaul_model::percent::encode_path;
use longhaul_security::macaroon::{Macaroon, Macaroons};

use crate::answer::{Outcome, Refusal};
use crate::if_header::{IfHeader, ResourceState};
use crate::ranges::RangeRequest;
use crate::request::{Destination, RequestPath, destination};
use crate::rights::Action;
use crate::{digests, macaroons, ranges, tape, xml};

/// Bodies of WebDAV: what is kept of them means the same when it is told again.
pub fn bodies(bytes: &[u8]) {
    let Ok(element) = xml::parse(bytes) else { return };
    let text = element.to_text();
    match xml::parse(text.as_bytes()) {
        Ok(again) => assert_eq!(again, element),
        // With a declaration at each name it may be larger than what anybody may send.
        Err(why) => assert!(why.contains("more than"), "{why}: {text}"),
    }
}

/// Headers of requests: the first byte says which.
pub fn headers(bytes: &[u8]) {
    let [which, bytes @ ..] = bytes else { return };
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let mut headers = HeaderMap::new();
    headers.insert("host", HeaderValue::from_static("door.example:8443"));
    let Ok(text) = value.to_str().map(str::to_owned) else { return };
    match which % 5 {
        0 => {
            headers.insert("if", value);
            let Some(submitted) = taken(IfHeader::parse(&headers, &[])) else { return };
            assert!(submitted.tokens().iter().all(|token| !token.contains('>')));
            let (locked, free) = (submitted.holds("a", &World(true)), submitted.holds("a", &World(false)));
            assert!(locked.is_ok() && free.is_ok());
        }
        1 => ranges_of(&text),
        2 => {
            headers.insert("digest", value.clone());
            let old = taken(digests::claimed(&headers));
            headers.remove("digest");
            headers.insert("repr-digest", value);
            drop((old, taken(digests::claimed(&headers))));
        }
        3 => {
            let Some(Destination::Here(place)) = taken(destination(&text, &headers, &[])) else { return };
            sound(&place);
        }
        _ => {
            let Some(place) = taken(RequestPath::parse(&text)) else { return };
            sound(&place);
        }
    }
}

/// Parts lie in the file, and are together not larger.
fn ranges_of(text: &str) {
    for size in [0, 1, 1_000, u64::MAX] {
        let RangeRequest::Parts(parts) = ranges::parse(Some(text), size) else { continue };
        assert!(!parts.is_empty());
        assert!(parts.iter().all(|&(start, len)| len > 0 && start < size && len <= size - start));
        assert!(parts.iter().map(|&(_, len)| u128::from(len)).sum::<u128>() <= u128::from(size));
    }
}

/// Bodies of the Tape REST API: files beneath the root, each once, and no more than are taken.
pub fn tape_bodies(bytes: &[u8]) {
    let Ok(storage) = "alpha".parse::<StorageName>() else { return };
    if let Some(files) = taken(tape::parse_stage(bytes, &storage, "SITE_A")) {
        assert!((1..=tape::FILES_MAX).contains(&files.len()));
        let names: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(names.len(), files.len(), "each once");
        for file in &files {
            sound(&RequestPath { path: file.path.clone(), slash: false });
            assert_eq!(tape::path(&format!("/{}", file.path), &storage).as_ref(), Ok(&file.path));
            assert!(file.lifetime.is_none_or(|lifetime| !lifetime.is_zero()));
            assert!(file.metadata.as_ref().is_none_or(|text| text.len() <= tape::METADATA_BYTES_MAX));
        }
    }
    for text in taken(tape::paths(bytes)).unwrap_or_default() {
        match tape::path(&text, &storage) {
            Ok(path) => sound(&RequestPath { path, slash: false }),
            Err(why) => assert!(!why.contains(char::is_control), "{why:?}"),
        }
    }
}

/// Macaroons, and what is asked for in one: what is given is known again, and not for longer or for more than
/// it may be.
pub fn macaroons(bytes: &[u8]) {
    let [which, bytes @ ..] = bytes else { return };
    let Ok(now) = jiff::Timestamp::from_second(1_800_000_000) else { return };
    let from = std::net::IpAddr::from([192, 0, 2, 7]);
    if which % 2 == 0 {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let shown = macaroons::terms(&Macaroon { identifier: GIVER.into(), caveats: vec![text] }, from, now);
        drop(taken(shown));
        for text in [URL_SAFE_NO_PAD.encode(bytes), String::from_utf8_lossy(bytes).into_owned()] {
            assert!(Macaroons::new().open("longhaul-door", &text).is_err(), "nobody knows the key");
        }
        return;
    }
    let place = RequestPath { path: "a/50%20 f".into(), slash: false };
    let Some((caveats, ends)) = taken(macaroons::caveats(bytes, &place, |_| true, now, jiff::Timestamp::MAX))
    else {
        return;
    };
    assert!(ends.duration_since(now).as_secs() <= 86_400);
    let ours = Macaroons::new();
    let macaroon = Macaroon { identifier: GIVER.into(), caveats };
    let Some(text) = ours.give("here", &macaroon) else { return };
    assert_eq!(ours.open("here", &text).as_ref(), Ok(&macaroon));
    // It may be for another address, or be over.
    if let Some(shown) = taken(macaroons::terms(&macaroon, from, now)) {
        assert!(!shown.terms.allow(Action::Read, "a/50%20 ff") && !shown.terms.allow(Action::Look, ""));
    }
}

const GIVER: &str = r#"{"who":["/CN=alice"]}"#;

/// Nothing that another program could take for another place; written again it is the same.
fn sound(place: &RequestPath) {
    let odd = |part: &str| matches!(part, "" | "." | "..") || part.chars().any(char::is_control);
    assert!(place.is_root() || !place.path.split('/').any(odd), "{:?}", place.path);
    let again = RequestPath::parse(&format!("/{}", encode_path(&place.path)));
    // Encoding makes it longer, perhaps longer than it may be.
    if let Ok(again) = again {
        assert_eq!(again.path, place.path);
    }
}

/// Refusals are one line that may be shown.
fn taken<T>(outcome: Outcome<T>) -> Option<T> {
    match outcome {
        Ok(taken) => Some(taken),
        Err(Refusal { text, status, .. }) => {
            assert!(status.is_client_error() && !text.contains(char::is_control), "{text:?}");
            None
        }
    }
}

struct World(bool);

impl ResourceState for World {
    fn is_locked(&self, _: &str, _: &str) -> bool {
        self.0
    }

    fn etag(&self, _: &str) -> Outcome<Option<String>> {
        Ok(self.0.then(|| "\"1\"".to_owned()))
    }
}
