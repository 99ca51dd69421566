//! What browsers and FTS's clients send to the service.

use http::{HeaderMap, HeaderValue, header};
use longhaul_api::fts::UrlNames;
use longhaul_api::fts::submission::{Rules, Submission};
use longhaul_api::routes::{SESSION_COOKIE, SESSION_COOKIE_TLS};
use longhaul_model::Timestamp;
use longhaul_service::cookie;

/// FTS's bound of a job's files.
const FILES_MAX: usize = 20_000;
const METADATA_BYTES: usize = 4_096;

/// A job.
pub fn submissions(bytes: &[u8]) {
    let Ok(body) = serde_json::from_slice(bytes) else { return };
    let rules = Rules {
        now: Timestamp::from_seconds(1_767_225_600),
        metadata_bytes: METADATA_BYTES,
        auth_method: "certificate",
        names: UrlNames::default(),
    };
    match Submission::parse(&body, &rules) {
        Err(refusal) => {
            assert!((400..500).contains(&refusal.status), "{refusal:?}");
            assert!(!refusal.message.is_empty());
        }
        Ok(job) => {
            assert!((1..=FILES_MAX).contains(&job.files.len()));
            assert!((1..=5).contains(&job.priority));
            for file in &job.files {
                assert!((file.index as usize) < job.files.len());
                assert!(file.source.contains("://") && file.target.contains("://"), "{file:?}");
                assert!(file.scitag.is_none_or(|tag| (65..=65_535).contains(&tag)));
            }
            assert_eq!(Submission::parse(&body, &rules), Ok(job));
        }
    }
}

/// Headers, one in a line. The first byte says whether they come to the port with TLS.
pub fn cookies(bytes: &[u8]) {
    let Some((&port, lines)) = bytes.split_first() else { return };
    let secure = port % 2 == 1;
    let mut headers = HeaderMap::new();
    for value in lines.split(|&byte| byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()) {
        headers.append(header::COOKIE, value);
    }
    let sent = headers.clone();
    if cookie::normalise(&mut headers, secure).is_err() {
        return;
    }
    assert!(headers.get_all(header::COOKIE).iter().count() <= 1);
    let session = cookie::get(&headers);
    if let Some(session) = &session {
        let name = if secure { SESSION_COOKIE_TLS } else { SESSION_COOKIE };
        let pair = format!("{name}={session}");
        let sends = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(&pair));
        assert!(sent.get_all(header::COOKIE).iter().any(sends), "{session} was sent by another name");
    }
    // Handlers know one name; what they get stays the same for them.
    let login = cookie::get_login(&headers);
    cookie::normalise(&mut headers, false).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!((cookie::get(&headers), cookie::get_login(&headers)), (session, login));
}

/// The first byte says which form it is.
pub fn forms(bytes: &[u8]) {
    longhaul_web::promises::forms(bytes);
}
