//! Conditional requests (RFC 9110, section 13): entity tags, modification times, and the preconditions of a
//! request.

use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use longhaul_storage::Identity;

use crate::answer::{Outcome, Refusal};
use crate::request::single;

/// Strong: it changes with every replacement, since a new file is another inode.
pub(crate) fn etag(identity: &Identity) -> String {
    format!("\"{:x}-{:x}-{:x}\"", identity.size, identity.mtime_ns, identity.inode)
}

/// As in `Last-Modified`; none for times that it cannot say.
pub(crate) fn http_date(mtime_ns: i64) -> Option<String> {
    let at = Timestamp::from_second(mtime_ns.div_euclid(1_000_000_000)).ok()?;
    DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()
}

/// As in WebDAV's `creationdate`.
pub(crate) fn iso_date(mtime_ns: i64) -> Option<String> {
    Some(Timestamp::from_second(mtime_ns.div_euclid(1_000_000_000)).ok()?.to_string())
}

/// Checks `If-Match` and `If-None-Match` before something is changed. `found` is what is there now.
pub(crate) fn check_for_change(headers: &HeaderMap, found: Option<&Identity>) -> Outcome<()> {
    let failed = |text: &str| Err(Refusal::new(StatusCode::PRECONDITION_FAILED, text));
    let tag = found.map(etag);
    if let Some(wanted) = single(headers, "if-match")?
        && !matches(wanted, tag.as_deref())
    {
        return failed("If-Match: what is there is another version");
    }
    if let Some(unwanted) = single(headers, "if-none-match")?
        && matches(unwanted, tag.as_deref())
    {
        return failed("If-None-Match: it is there already");
    }
    Ok(())
}

/// The result of a reader's conditions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Send,
    NotModified,
}

pub(crate) fn check_for_reading(headers: &HeaderMap, found: &Identity) -> Outcome<Reading> {
    let tag = etag(found);
    if let Some(wanted) = single(headers, "if-match")?
        && !matches(wanted, Some(&tag))
    {
        return Err(Refusal::new(StatusCode::PRECONDITION_FAILED, "If-Match: the file is another version"));
    }
    let same = match single(headers, "if-none-match")? {
        Some(known) => matches(known, Some(&tag)),
        None => single(headers, "if-modified-since")?
            .is_some_and(|since| http_date(found.mtime_ns).is_some_and(|date| date == since)),
    };
    Ok(if same { Reading::NotModified } else { Reading::Send })
}

/// Whether a range may be served: a range of another version must not be mixed with what the client has.
pub(crate) fn range_still_fits(headers: &HeaderMap, found: &Identity) -> Outcome<bool> {
    Ok(match single(headers, "if-range")? {
        None => true,
        Some(known) if known.trim_start().starts_with('"') => known.trim() == etag(found),
        // A time is a strong validator only if the file has not changed in that second; ours may have.
        Some(_) => false,
    })
}

/// A list of tags, or `*` for whatever is there. Weak tags never match: all of ours are strong.
fn matches(list: &str, tag: Option<&str>) -> bool {
    let Some(tag) = tag else { return false };
    list.trim() == "*" || list.split(',').any(|one| one.trim() == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Identity = Identity { size: 10, mtime_ns: 1_700_000_000_123_456_789, inode: 7 };

    fn with(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn dates_are_as_http_writes_them() {
        assert_eq!(http_date(FILE.mtime_ns).unwrap(), "Tue, 14 Nov 2023 22:13:20 GMT");
        assert_eq!(iso_date(FILE.mtime_ns).unwrap(), "2023-11-14T22:13:20Z");
        assert_eq!(http_date(-1).unwrap(), "Wed, 31 Dec 1969 23:59:59 GMT");
        // As far as nanoseconds reach.
        assert!(http_date(i64::MAX).is_some() && iso_date(i64::MIN).is_some());
    }

    #[test]
    fn conditions_hold_or_fail() {
        let tag = etag(&FILE);
        assert!(check_for_change(&with("if-match", &tag), Some(&FILE)).is_ok());
        assert!(check_for_change(&with("if-match", "*"), None).is_err());
        assert!(check_for_change(&with("if-match", "\"x\""), Some(&FILE)).is_err());
        assert!(check_for_change(&with("if-none-match", "*"), Some(&FILE)).is_err());
        assert!(check_for_change(&with("if-none-match", "*"), None).is_ok());
        let reading = |name, value: &str| check_for_reading(&with(name, value), &FILE).unwrap();
        assert_eq!(reading("if-none-match", &format!("\"a\", {tag}")), Reading::NotModified);
        assert_eq!(reading("if-none-match", "\"a\""), Reading::Send);
        assert_eq!(reading("if-modified-since", "Tue, 14 Nov 2023 22:13:20 GMT"), Reading::NotModified);
        assert!(range_still_fits(&with("if-range", &tag), &FILE).unwrap());
        assert!(!range_still_fits(&with("if-range", "\"x\""), &FILE).unwrap());
    }
}
