//! S3 keys, and the bucket that a URL names.

use std::fmt;

use longhaul_model::percent::decode_lenient;
use zeroize::Zeroizing;

use crate::url::RemoteUrl;

/// An access key with its secret, which is wiped when dropped and never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct S3Keys {
    pub access_key: String,
    pub secret: Zeroizing<String>,
    /// The session token of temporary keys.
    pub session_token: Option<Zeroizing<String>>,
    /// Part of what is signed; `us-east-1` where a storage knows no regions.
    pub region: String,
}

impl fmt::Debug for S3Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3Keys({})", self.access_key)
    }
}

/// The bucket of a URL at a host that serves S3: none if the URL is not of that host.
///
/// It stands before the host (`bucket.host/key`) or before the key (`host/bucket/key`). The latter is certain
/// where the host has nothing before it; `path_style` (FTS's `s3alternate`) says it of any URL.
pub fn bucket_of(url: &RemoteUrl, host: &str, path_style: bool) -> Option<String> {
    let before = match url.host() == host {
        true => "",
        false => url.host().strip_suffix(host)?.strip_suffix('.')?,
    };
    if !before.is_empty() && !path_style {
        return Some(before.to_owned());
    }
    let path = decode_lenient(url.path());
    let first = path.split(|&byte| byte == b'/').find(|part| !part.is_empty())?;
    String::from_utf8(first.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_stand_before_the_host_or_before_the_key() {
        for (url, host, path_style, bucket) in [
            ("s3s://b.s3.example.org/x/y", "s3.example.org", false, Some("b")),
            ("s3s://b.s3.example.org/c/y", "s3.example.org", true, Some("c")),
            ("s3s://s3.example.org/c/y", "s3.example.org", false, Some("c")),
            ("s3s://s3.example.org/", "s3.example.org", false, None),
            ("s3s://evil-s3.example.org/c", "s3.example.org", false, None),
            ("s3s://s3.example.org.evil/c", "s3.example.org", false, None),
        ] {
            let url = RemoteUrl::parse(url).unwrap();
            assert_eq!(bucket_of(&url, host, path_style).as_deref(), bucket, "{url}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let keys = S3Keys {
            access_key: "AKIA".into(),
            secret: Zeroizing::new("canary".into()),
            session_token: Some(Zeroizing::new("canary".into())),
            region: "us-east-1".into(),
        };
        assert!(!format!("{keys:?}").contains("canary"));
    }
}
