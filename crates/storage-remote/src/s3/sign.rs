//! AWS Signature Version 4: in a header, or in a presigned URL for a third party.
//!
//! Pure: the time is an argument, and what is signed is what is sent, letter by letter.

use std::time::Duration;

use aws_lc_rs::{digest, hmac};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Method};
use longhaul_model::Timestamp;
use longhaul_model::hex;

use super::keys::S3Keys;
use super::query::canonical_query;
use crate::url::RemoteUrl;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The bytes are protected by TLS, and compared by other means.
const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// S3 lets no URL live longer.
const PRESIGNED_MAX: Duration = Duration::from_secs(7 * 24 * 3_600);

/// The payload, as far as the signature covers it.
#[derive(Clone, Copy)]
pub(crate) enum Signed<'a> {
    Bytes(&'a [u8]),
    /// Over TLS only.
    Nothing,
}

impl Signed<'_> {
    fn text(self) -> String {
        match self {
            Signed::Bytes(bytes) => hex::encode(digest::digest(&digest::SHA256, bytes).as_ref()),
            Signed::Nothing => UNSIGNED.to_owned(),
        }
    }
}

/// Puts the signature, and what it needs, among the headers of a request. `Host` has to be there already.
pub(crate) fn sign(
    keys: &S3Keys,
    method: &Method,
    url: &RemoteUrl,
    headers: &mut HeaderMap,
    payload: Signed<'_>,
    now: Timestamp,
) -> Result<(), http::header::InvalidHeaderValue> {
    let (date, payload) = (date(now), payload.text());
    headers.insert("x-amz-date", HeaderValue::from_str(&date)?);
    headers.insert("x-amz-content-sha256", HeaderValue::from_str(&payload)?);
    if let Some(token) = &keys.session_token {
        let mut value = HeaderValue::from_str(token)?;
        value.set_sensitive(true);
        headers.insert("x-amz-security-token", value);
    }
    let signed = signed_headers(headers);
    let names = signed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(";");
    let (path, query) = parts(url);
    let request = canonical(method, path, query, &signed, &names, &payload);
    let (scope, signature) = signature(keys, &request, &date);
    let value = format!(
        "{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}",
        keys.access_key
    );
    let mut value = HeaderValue::from_str(&value)?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    Ok(())
}

/// A URL with which anybody may do this one thing until it expires. It is as secret as a key.
pub(crate) fn presigned(
    keys: &S3Keys,
    method: &Method,
    url: &RemoteUrl,
    expires: Duration,
    now: Timestamp,
) -> RemoteUrl {
    let date = date(now);
    let credential = format!("{}/{}", keys.access_key, scope(keys, &date));
    let expires = expires.min(PRESIGNED_MAX).as_secs().max(1).to_string();
    let mut pairs = vec![
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", credential.as_str()),
        ("X-Amz-Date", date.as_str()),
        ("X-Amz-Expires", expires.as_str()),
        ("X-Amz-SignedHeaders", "host"),
    ];
    if let Some(token) = &keys.session_token {
        pairs.push(("X-Amz-Security-Token", token.as_str()));
    }
    let signed = [("host".to_owned(), url.authority())];
    let (path, _) = parts(url);
    let request = canonical(method, path, &canonical_query(&pairs), &signed, "host", UNSIGNED);
    let (_, signature) = signature(keys, &request, &date);
    pairs.push(("X-Amz-Signature", signature.as_str()));
    url.asking(&pairs)
}

/// `20130524T000000Z`
fn date(now: Timestamp) -> String {
    let text = now.to_string();
    let whole = text.split('.').next().unwrap_or_default();
    let digits: String = whole.chars().filter(|c| !matches!(c, '-' | ':' | 'Z')).collect();
    digits + "Z"
}

fn parts(url: &RemoteUrl) -> (&str, &str) {
    (url.path(), url.query().unwrap_or_default())
}

/// Those that change what a request does. Others may be changed on the way, by proxies that mean well.
fn signed_headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let counts = |name: &HeaderName| {
        *name == HOST
            || *name == CONTENT_TYPE
            || *name == IF_NONE_MATCH
            || name == "content-md5"
            || name == "range"
            || name.as_str().starts_with("x-amz-")
    };
    let mut signed: Vec<(String, String)> = headers
        .iter()
        .filter(|(name, _)| counts(name))
        .map(|(name, value)| {
            let words = String::from_utf8_lossy(value.as_bytes());
            (name.as_str().to_owned(), words.split_whitespace().collect::<Vec<_>>().join(" "))
        })
        .collect();
    signed.sort();
    signed
}

fn canonical(
    method: &Method,
    path: &str,
    query: &str,
    headers: &[(String, String)],
    names: &str,
    payload: &str,
) -> String {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    format!("{method}\n{path}\n{query}\n{headers}\n{names}\n{payload}")
}

fn scope(keys: &S3Keys, date: &str) -> String {
    format!("{}/{}/s3/aws4_request", day(date), keys.region)
}

fn day(date: &str) -> &str {
    date.split('T').next().unwrap_or_default()
}

fn signature(keys: &S3Keys, request: &str, date: &str) -> (String, String) {
    let scope = scope(keys, date);
    let hashed = hex::encode(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let to_sign = format!("{ALGORITHM}\n{date}\n{scope}\n{hashed}");
    let first = zeroize::Zeroizing::new(format!("AWS4{}", keys.secret.as_str()));
    let mut key = mac(first.as_bytes(), day(date));
    for word in [keys.region.as_str(), "s3", "aws4_request"] {
        key = mac(key.as_ref(), word);
    }
    (scope, hex::encode(mac(key.as_ref(), &to_sign).as_ref()))
}

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zeroize::Zeroizing;

    use super::*;

    /// The keys, the day and the four requests of AWS's own description of signatures, with what it says
    /// comes out.
    fn example_keys() -> S3Keys {
        S3Keys {
            access_key: "AKIAIOSFODNN7EXAMPLE".into(),
            secret: Zeroizing::new("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into()),
            session_token: None,
            region: "us-east-1".into(),
        }
    }

    fn example_day() -> Timestamp {
        "2013-05-24T00:00:00Z".parse().unwrap()
    }

    fn signed(method: Method, url: &RemoteUrl, more: &[(&'static str, &str)], payload: &[u8]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, url.authority().parse().unwrap());
        for (name, value) in more {
            headers.insert(*name, value.parse().unwrap());
        }
        sign(&example_keys(), &method, url, &mut headers, Signed::Bytes(payload), example_day()).unwrap();
        headers[AUTHORIZATION].to_str().unwrap().to_owned()
    }

    fn example(path: &str) -> RemoteUrl {
        RemoteUrl::parse(&format!("s3s://examplebucket.s3.amazonaws.com{path}")).unwrap()
    }

    #[test]
    fn a_read_is_signed_as_described() {
        let value = signed(Method::GET, &example("/test.txt"), &[("range", "bytes=0-9")], b"");
        assert_eq!(
            value,
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, \
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, \
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn questions_about_a_bucket_are_signed_as_described() {
        let url = example("/").asking(&[("lifecycle", "")]);
        let value = signed(Method::GET, &url, &[], b"");
        assert!(
            value.ends_with("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
            "{value}"
        );
        let url = example("/").asking(&[("prefix", "J"), ("max-keys", "2")]);
        let value = signed(Method::GET, &url, &[], b"");
        assert!(
            value.ends_with("34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
            "{value}"
        );
    }

    #[test]
    fn a_url_is_signed_as_described() {
        let expires = Duration::from_secs(86_400);
        let url =
            presigned(&example_keys(), &Method::GET, &example("/test.txt"), expires, example_day()).whole();
        assert_eq!(
            url,
            "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
             &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
             &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400\
             &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404\
             &X-Amz-SignedHeaders=host"
        );
    }

    #[test]
    fn everything_that_counts_changes_it() {
        let plain = signed(Method::PUT, &example("/x"), &[], b"content");
        assert_eq!(plain, signed(Method::PUT, &example("/x"), &[("accept", "a")], b"content"));
        let others = [
            signed(Method::GET, &example("/x"), &[], b"content"),
            signed(Method::PUT, &example("/y"), &[], b"content"),
            signed(Method::PUT, &example("/x").asking(&[("partNumber", "1")]), &[], b"content"),
            signed(Method::PUT, &example("/x"), &[("content-md5", "a")], b"content"),
            signed(Method::PUT, &example("/x"), &[], b"contents"),
        ];
        for other in others {
            assert_ne!(plain, other);
        }
    }

    proptest! {
        /// Whatever a key is called, what is signed stands in the request as it is.
        #[test]
        fn what_is_signed_is_what_is_sent(key in "[^\\x00-\\x1f\\x7f#?]{1,40}") {
            if let Ok(url) = RemoteUrl::parse(&format!("s3s://host.example/b/{key}")) {
                let decoded = longhaul_model::percent::decode_lenient(url.path());
                prop_assert_eq!(longhaul_model::percent::encode_path(decoded), url.path());
                let again = presigned(&example_keys(), &Method::PUT, &url, Duration::from_secs(60),
                    example_day());
                prop_assert!(again.whole().starts_with(&url.whole()));
                prop_assert!(!again.to_string().contains("Signature"));
            }
        }
    }
}
