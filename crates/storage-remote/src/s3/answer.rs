//! XML answers of S3, and what its error codes mean: whose turn it is and what to do.

use http::{HeaderMap, StatusCode};
use longhaul_model::Timestamp;
use longhaul_model::percent::decode_lenient;

use crate::failure::{Kind, sanitized};
use crate::order::Stat;
use crate::xml;

/// A document that is read: a thousand parts with all that is told of them is a tenth of it.
pub(crate) const BYTES_MAX: usize = 4 << 20;
const FIELDS_MAX: usize = 20_000;
/// The path of a key in a listing of objects.
const KEY: &str = "Contents/Key";
/// The clock skew that S3 accepts, in seconds.
const SKEW_MAX_S: i64 = 15 * 60;

/// The elements below the root as paths (`Part/ETag`), in the order of their ends, so that `Part` ends a
/// part.
#[derive(Default)]
struct Fields {
    open: Vec<String>,
    root: String,
    found: Vec<(String, String)>,
}

impl xml::Visit for Fields {
    fn begin(&mut self, _: &str, local: &str) -> Result<(), String> {
        if self.open.is_empty() {
            self.root = local.to_owned();
        }
        self.open.push(local.to_owned());
        Ok(())
    }

    fn end(&mut self, text: &str) -> Result<(), String> {
        let path = self.open.get(1..).unwrap_or_default().join("/");
        // A key may begin and end with blanks.
        let text = if path == KEY { xml::without_layout(text) } else { text.trim() };
        self.open.pop();
        if path.is_empty() {
            return Ok(());
        }
        if self.found.len() >= FIELDS_MAX {
            return Err(format!("it has more than {FIELDS_MAX} elements"));
        }
        self.found.push((path, text.to_owned()));
        Ok(())
    }
}

impl Fields {
    fn read(document: &[u8], root: &str) -> Result<Fields, String> {
        let mut fields = Fields::default();
        xml::walk(document, BYTES_MAX as u64, &mut fields)?;
        if fields.root != root {
            return Err(format!("{root} was expected, and {} came", sanitized(&fields.root)));
        }
        Ok(fields)
    }

    fn get(&self, path: &str) -> Option<&str> {
        let text = self.found.iter().find(|(found, _)| found == path)?.1.as_str();
        (!text.is_empty()).then_some(text)
    }
}

/// The name of an upload that was begun.
pub(crate) fn upload_id(document: &[u8]) -> Result<String, String> {
    let fields = Fields::read(document, "InitiateMultipartUploadResult")?;
    fields.get("UploadId").map(str::to_owned).ok_or_else(|| "it names no upload".into())
}

/// Parts that are with the storage, and after which of them the rest is to be asked for.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Listed {
    pub(crate) parts: Vec<ListedPart>,
    pub(crate) more_after: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ListedPart {
    pub(crate) number: u32,
    pub(crate) etag: String,
    pub(crate) size: u64,
}

pub(crate) fn listed(document: &[u8]) -> Result<Listed, String> {
    let fields = Fields::read(document, "ListPartsResult")?;
    let (mut listed, mut part) = (Listed::default(), ListedPart::default());
    for (path, text) in &fields.found {
        let number = || text.parse::<u64>().map_err(|_| format!("{} in it is no number", sanitized(path)));
        match path.as_str() {
            "Part/PartNumber" => part.number = u32::try_from(number()?).map_err(|error| error.to_string())?,
            "Part/Size" => part.size = number()?,
            "Part/ETag" => part.etag.clone_from(text),
            "Part" => listed.parts.push(std::mem::take(&mut part)),
            _ => {}
        }
    }
    if fields.get("IsTruncated") == Some("true") {
        let marker = fields.get("NextPartNumberMarker").and_then(|text| text.parse().ok());
        listed.more_after = Some(marker.ok_or("it is cut and does not say where")?);
    }
    Ok(listed)
}

/// One page of a listing of objects.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ObjectPage {
    pub(crate) objects: Vec<(String, Stat)>,
    /// The token that the next page is asked for with.
    pub(crate) more: Option<String>,
}

/// A page of ListObjectsV2. Keys are percent-encoded if it says so; then a plus sign is a blank.
pub(crate) fn objects(document: &[u8]) -> Result<ObjectPage, String> {
    let fields = Fields::read(document, "ListBucketResult")?;
    let is_encoded = fields.get("EncodingType") == Some("url");
    let (mut page, mut key, mut stat) = (ObjectPage::default(), String::new(), Stat::default());
    for (path, text) in &fields.found {
        match path.as_str() {
            KEY if is_encoded => {
                let bytes = decode_lenient(&text.replace('+', " "));
                key = String::from_utf8(bytes).map_err(|_| "a key in it is not UTF-8".to_owned())?;
            }
            KEY => key.clone_from(text),
            "Contents/Size" => {
                stat.size = text.parse().map_err(|_| "a size in it is no number".to_owned())?;
            }
            "Contents/ETag" => stat.etag = Some(text.clone()),
            "Contents/LastModified" => stat.modified = Some(text.clone()),
            "Contents" => {
                let stat = Stat { ranges: true, ..std::mem::take(&mut stat) };
                page.objects.push((std::mem::take(&mut key), stat));
            }
            _ => {}
        }
    }
    if fields.get("IsTruncated") == Some("true") {
        let token = fields.get("NextContinuationToken").map(str::to_owned);
        page.more = Some(token.ok_or("it is cut and does not say where")?);
    }
    Ok(page)
}

/// Storages say 200 before they have put a file together, and may find trouble then.
pub(crate) fn completed(document: &[u8]) -> Result<(), String> {
    Fields::read(document, "CompleteMultipartUploadResult").map(drop)
}

/// The kind and text of an error document, with what to do about it.
pub(crate) fn refusal(status: StatusCode, document: &[u8]) -> Option<(Kind, String)> {
    let fields = Fields::read(document, "Error").ok()?;
    let code = fields.get("Code")?;
    let plain = code.len() <= 60 && code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    let code = if plain { code } else { "an unknown error" };
    let message = sanitized(fields.get("Message").unwrap_or_default());
    let status_of = |status| Kind::Status(status);
    let (kind, advice) = match code {
        "AccessDenied" | "AllAccessDisabled" => (
            status_of(StatusCode::FORBIDDEN),
            "the bucket's policy does not let these keys do this".to_owned(),
        ),
        "InvalidAccessKeyId" | "SignatureDoesNotMatch" => (
            status_of(StatusCode::UNAUTHORIZED),
            "the storage does not know these keys: look at the access key, the secret and the region"
                .to_owned(),
        ),
        "ExpiredToken" | "InvalidToken" => {
            (status_of(StatusCode::UNAUTHORIZED), "the keys were lent for a while, which is over".to_owned())
        }
        "AuthorizationHeaderMalformed" => {
            let region = fields.get("Region").map(sanitized).unwrap_or_else(|| "another one".to_owned());
            (
                status_of(StatusCode::UNAUTHORIZED),
                format!("the bucket's region is {region}: set it with the keys"),
            )
        }
        "PermanentRedirect" | "TemporaryRedirect" | "Redirect" => {
            let endpoint = fields.get("Endpoint").map(sanitized).unwrap_or_else(|| "another host".to_owned());
            (Kind::Order, format!("the bucket is served by {endpoint}: name that host"))
        }
        "RequestTimeTooSkewed" => (Kind::Skewed, CLOCKS.to_owned()),
        "SlowDown" | "ServiceUnavailable" | "InternalError" | "RequestTimeout" | "OperationAborted" => {
            (status_of(StatusCode::SERVICE_UNAVAILABLE), "the storage is busy: it is tried again".to_owned())
        }
        "BadDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" => {
            (Kind::WrongChecksum, "the bytes changed on the way".to_owned())
        }
        "QuotaExceeded" => (status_of(StatusCode::INSUFFICIENT_STORAGE), "free space there".to_owned()),
        "NoSuchBucket" => (status_of(status), "there is no such bucket".to_owned()),
        "NoSuchUpload" => (status_of(status), "what was begun is no longer there".to_owned()),
        _ => (status_of(status), String::new()),
    };
    let mut text = code.to_owned();
    for more in [message, advice] {
        if !more.is_empty() {
            text.push_str(": ");
            text.push_str(more.trim_end_matches('.'));
        }
    }
    Some((kind, text))
}

const CLOCKS: &str =
    "the clocks of this host and of the storage differ by more than 15 minutes: set this host's (NTP)";

/// An answer to `HEAD` has no document: then its date tells whether the clocks are the trouble.
pub(crate) fn skew(headers: &HeaderMap, now: Timestamp) -> Option<String> {
    let date = headers.get(http::header::DATE)?.to_str().ok()?;
    let theirs = jiff::fmt::rfc2822::parse(date).ok()?.timestamp().as_second();
    let differ = now.as_micros() / 1_000_000 - theirs;
    (differ.abs() > SKEW_MAX_S).then(|| {
        let word = if differ > 0 { "before" } else { "behind" };
        format!("{CLOCKS}; it is {} min {word} the storage's", differ.abs() / 60)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ERROR: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>CODE</Code><Message>The words of the storage.</Message>
<Region>eu-west-2</Region><Endpoint>b.s3.example.org</Endpoint></Error>"#;

    fn refused(code: &str) -> (Kind, String) {
        refusal(StatusCode::BAD_REQUEST, ERROR.replace("CODE", code).as_bytes()).unwrap()
    }

    #[test]
    fn errors_say_what_to_do() {
        assert_eq!(refused("RequestTimeTooSkewed").0, Kind::Skewed);
        assert!(refused("RequestTimeTooSkewed").1.contains("set this host's (NTP)"));
        assert_eq!(refused("SlowDown").0, Kind::Status(StatusCode::SERVICE_UNAVAILABLE));
        assert_eq!(refused("AccessDenied").0, Kind::Status(StatusCode::FORBIDDEN));
        assert!(refused("AuthorizationHeaderMalformed").1.contains("region is eu-west-2"));
        assert!(
            refused("PermanentRedirect").1.contains("name that host")
                && refused("PermanentRedirect").1.contains("b.s3.")
        );
        assert_eq!(
            refused("Strange"),
            (Kind::Status(StatusCode::BAD_REQUEST), "Strange: The words of the storage".into())
        );
        assert!(refused("no code\n").1.starts_with("an unknown error"));
        assert_eq!(refusal(StatusCode::FORBIDDEN, b"<html>no</html>"), None);
        assert_eq!(refusal(StatusCode::FORBIDDEN, b""), None);
    }

    #[test]
    fn parts_are_listed() {
        let document = r#"<ListPartsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <UploadId>u</UploadId><IsTruncated>true</IsTruncated>
            <NextPartNumberMarker>2</NextPartNumberMarker>
            <Part><PartNumber>1</PartNumber><ETag>&quot;aa&quot;</ETag><Size>5</Size></Part>
            <Part><PartNumber>2</PartNumber><ETag>"bb"</ETag><Size>3</Size></Part></ListPartsResult>"#;
        let part = |number, etag: &str, size| ListedPart { number, etag: etag.into(), size };
        let parts = vec![part(1, "\"aa\"", 5), part(2, "\"bb\"", 3)];
        assert_eq!(listed(document.as_bytes()).unwrap(), Listed { parts, more_after: Some(2) });
        assert!(listed(b"<ListPartsResult><IsTruncated>true</IsTruncated></ListPartsResult>").is_err());
        assert!(upload_id(document.as_bytes()).unwrap_err().contains("was expected"));
        let begun = b"<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(upload_id(begun).unwrap(), "u1");
        assert!(completed(ERROR.as_bytes()).is_err());
    }

    #[test]
    fn objects_are_listed() {
        let document = |encoding: &str, key: &str| {
            format!(
                "<ListBucketResult>{encoding}<IsTruncated>true</IsTruncated>\
                 <NextContinuationToken>t=</NextContinuationToken><Contents><Key>{key}</Key>\
                 <LastModified>2026-11-29T19:00:01.250Z</LastModified><ETag>&quot;aa&quot;</ETag>\
                 <Size>5</Size></Contents></ListBucketResult>"
            )
        };
        let page = objects(document("", " a+b%20 ").as_bytes()).unwrap();
        let (key, stat) = &page.objects[0];
        assert_eq!((key.as_str(), stat.size, stat.etag.as_deref()), (" a+b%20 ", 5, Some("\"aa\"")));
        assert_eq!((stat.modified_s(), page.more.as_deref()), (Some(1_795_978_801), Some("t=")));
        let encoded = "<EncodingType>url</EncodingType>";
        assert_eq!(objects(document(encoded, "a+b%2B%C3%BC").as_bytes()).unwrap().objects[0].0, "a b+ü");
        assert!(objects(document(encoded, "%FF").as_bytes()).unwrap_err().contains("UTF-8"));
        assert!(objects(b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>").is_err());
    }

    #[test]
    fn clocks_are_compared() {
        let headers: HeaderMap =
            [(http::header::DATE, "Fri, 24 May 2013 00:00:00 GMT".parse().unwrap())].into_iter().collect();
        let at = |text: &str| skew(&headers, text.parse().unwrap());
        assert_eq!(at("2013-05-24T00:14:00Z"), None);
        assert!(at("2013-05-24T01:00:00Z").unwrap().ends_with("60 min before the storage's"));
        assert!(at("2013-05-23T23:00:00Z").unwrap().ends_with("60 min behind the storage's"));
        assert_eq!(skew(&HeaderMap::new(), Timestamp(0)), None);
    }

    proptest! {
        #[test]
        fn nothing_upsets_it(parts in prop::collection::vec(prop::sample::select(vec![
            "<ListPartsResult>", "</ListPartsResult>", "<Part>", "</Part>", "<PartNumber>", "</PartNumber>",
                "7", "-1", "99999999999999999999",
            "<Error>", "</Error>", "<Code>", "</Code>", "&amp;", "&x;", "<",
                "<IsTruncated>true</IsTruncated>"]), 0..30)) {
            let document = parts.concat();
            let _ = listed(document.as_bytes());
            let _ = refusal(StatusCode::OK, document.as_bytes());
            let _ = upload_id(document.as_bytes());
        }
    }
}
