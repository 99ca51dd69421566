//! What the decoders of this room promise of any bytes that a storage or a user sends. A broken promise is a
//! panic: fuzzing (`fuzz/`) looks for one, nothing else calls this.

use http::StatusCode;
use longhaul_model::percent::decode_lenient;

use crate::markers::{Markers, Outcome};
use crate::s3::answer;
use crate::{RemoteUrl, multistatus, space_report, tape_answers};

/// A report of space: what it tells can be.
pub fn space_reports(bytes: &[u8]) {
    match space_report::read_share(bytes, "DATA") {
        Ok(space) => assert!(space.free_bytes <= space.total_bytes && space.total_bytes > 0),
        Err(why) => assert!(is_one_line(&why)),
    }
}

/// The first byte says which answer of a storage it is.
pub fn answers(bytes: &[u8]) {
    let Some((&which, document)) = bytes.split_first() else { return };
    match which % 7 {
        0 => {
            let Ok(members) = multistatus::read(document) else { return };
            assert!(members.len() <= multistatus::MEMBERS_MAX);
            for name in members.iter().filter_map(multistatus::Member::name) {
                assert!(is_name(&name), "{name:?} is no member of a collection");
            }
        }
        1 => drop(tape_answers::endpoint(document)),
        2 => {
            let text = std::str::from_utf8(document).ok();
            for id in [tape_answers::request_id(document, None), tape_answers::request_id(b"", text)] {
                assert!(id.is_err() || id.is_ok_and(|id| is_name(&id) && id.is_ascii()));
            }
        }
        3 => {
            let Ok(files) = tape_answers::report(document) else { return };
            assert!(files.iter().all(|file| file.error.as_deref().is_none_or(is_one_line)));
        }
        4 => {
            let Ok(files) = tape_answers::archive_info(document) else { return };
            assert!(files.iter().all(|file| file.at.as_ref().err().is_none_or(|why| is_one_line(why))));
        }
        5 => {
            for said in [answer::upload_id(document).err(), answer::completed(document).err()] {
                assert!(said.is_none_or(|why| is_one_line(&why)));
            }
            drop(answer::listed(document));
            let listed = answer::objects(document);
            assert!(listed.err().is_none_or(|why| is_one_line(&why)));
        }
        _ => {
            let said = answer::refusal(StatusCode::CONFLICT, document);
            assert!(said.is_none_or(|(_, text)| is_one_line(&text)));
        }
    }
}

/// Markers of a copy: the first byte says in pieces of how many bytes they come. Cut anywhere they mean the
/// same.
pub fn markers(bytes: &[u8]) {
    let Some((&cut, bytes)) = bytes.split_first() else { return };
    let read = |cut: usize| {
        let mut markers = Markers::default();
        bytes.chunks(cut.max(1)).for_each(|piece| markers.feed(piece));
        (markers.bytes(), markers.blocks(), markers.end())
    };
    let whole = read(bytes.len());
    assert_eq!(whole, read(cut.into()));
    if let Some(Outcome::Failure { text, status }) = whole.2 {
        assert!(is_one_line(&text));
        assert!(status.is_none_or(|status| (400..600).contains(&status)));
    }
}

/// URLs of files, and where redirects lead.
pub fn urls(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let url = match RemoteUrl::parse(text) {
        Ok(url) => url,
        Err(fault) => return assert!(is_one_line(&fault.detail)),
    };
    let (shown, sent) = (url.to_string(), url.whole());
    assert!(
        sent.bytes().all(|byte| byte.is_ascii_graphic()),
        "{sent:?} fits into the first line of a request"
    );
    assert!(!url.path().split('/').any(|part| matches!(decode_lenient(part).as_slice(), b"." | b"..")));
    // Encoding makes it longer, perhaps longer than it may be.
    if let Ok(again) = RemoteUrl::parse(&sent) {
        assert_eq!(again.whole(), sent);
    }
    if let Ok(again) = RemoteUrl::parse(&shown) {
        assert!(again.is_same_file(&url) && again.to_string() == shown);
    }
    let storage = RemoteUrl::parse("https://storage.example/a/b").ok();
    if let Some(next) = storage.and_then(|storage| storage.redirected(text).ok()) {
        assert!(next.is_secure());
    }
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(|c: char| c == '/' || c.is_control())
}

fn is_one_line(text: &str) -> bool {
    !text.contains(|c: char| c.is_control())
}
