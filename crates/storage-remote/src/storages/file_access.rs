//! Access to one file of a storage, for a server that has no credential of its own for it: the file's URL,
//! and where the storage wants one, a token. Both open this file alone, for reading, for the time of a copy.

use std::fmt;

use http::Method;
use longhaul_model::{Fault, FaultCode, Pfn};
use zeroize::Zeroizing;

use super::storage::RemoteStorage;
use super::third_party::{STREAMS, ServerCopyFault};
use crate::exchange::now;
use crate::macaroon::fits_header;
use crate::order::{Credential, Mode};
use crate::s3::presigned;
use crate::url::RemoteUrl;

/// What opens one file of a storage.
#[derive(Clone, PartialEq, Eq)]
pub struct FileAccess {
    /// With a signature as its query, if the storage speaks S3.
    url: RemoteUrl,
    token: Option<Zeroizing<String>>,
}

impl FileAccess {
    /// As another agent tells it.
    ///
    /// # Errors
    /// `BadRequest` if the URL is none of a WebDAV server, or the token could not be shown over TLS.
    pub fn parse(url: &str, token: Option<Zeroizing<String>>) -> Result<FileAccess, Fault> {
        let refuse = |why: &str| Err(Fault::new(FaultCode::BadRequest, format!("access to a file: {why}")));
        let url = RemoteUrl::parse(url)?;
        if url.is_s3() {
            return refuse("an object of S3 is opened by a signed URL over https");
        }
        if token.as_ref().is_some_and(|token| !url.is_secure() || !fits_header(token)) {
            return refuse("its token cannot be shown in a header over TLS");
        }
        Ok(FileAccess { url, token })
    }

    /// The whole URL, as secret as a key where it is signed.
    pub fn whole_url(&self) -> Zeroizing<String> {
        Zeroizing::new(self.url.whole())
    }

    /// What is to be shown with the URL, if anything.
    pub fn token(&self) -> Option<&str> {
        self.token.as_ref().map(|token| token.as_str())
    }

    pub(super) fn url(&self) -> &RemoteUrl {
        &self.url
    }

    /// Whether it opens what is closed to others.
    pub(super) fn is_secret(&self) -> bool {
        self.token.is_some() || self.url.query().is_some()
    }

    pub(super) fn credential(&self) -> Credential {
        self.token.clone().map_or(Credential::None, Credential::Bearer)
    }

    /// Connections that the server is asked to use. For several it asks HEAD first (XRootD), for which a URL
    /// that is signed for GET is no good.
    pub(super) fn streams(&self) -> u16 {
        if self.url.query().is_some() { 1 } else { STREAMS }
    }
}

impl fmt::Debug for FileAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileAccess({}, ..)", self.url)
    }
}

impl RemoteStorage {
    /// Access to a file of this size, for as long as a copy of it may take. A credential of the storage is
    /// never part of it: a server that gives no token for one file gets none.
    ///
    /// # Errors
    /// The file is another one, or the storage's server gives no access that could be handed on.
    pub async fn file_access(&self, at: &Pfn, size: u64) -> Result<FileAccess, ServerCopyFault> {
        let url = self.find_file(at, size).await.map_err(ServerCopyFault::of_file)?;
        let lasts = self.root.remote.config.times.copy_of(size);
        let place = self.root.resource(&url);
        if let Credential::S3(keys) = place.credential {
            if !url.is_secure() {
                return Err(no_access(format!("{url}: a signed URL is told over TLS only: use s3s")));
            }
            let signed = presigned(keys, &Method::GET, &url, lasts, now());
            return FileAccess::parse(&signed.whole(), None).map_err(ServerCopyFault::of_file);
        }
        if *place.credential == Credential::None {
            return Ok(FileAccess { url, token: None });
        }
        match self.root.remote.file_macaroon(Mode::Pull, place, lasts).await {
            Some(token) => Ok(FileAccess { url, token: Some(token) }),
            None => Err(no_access(format!("{}: its server gives no macaroons", self.root.url))),
        }
    }
}

/// What every file of the storage would meet.
fn no_access(detail: String) -> ServerCopyFault {
    ServerCopyFault { fault: Fault::new(FaultCode::NotAllowed, detail), is_of_servers: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_agent_tells_is_checked_and_never_shown() {
        let token = |text: &str| Some(Zeroizing::new(text.to_owned()));
        let signed = FileAccess::parse("https://s3.example/b/f?X-Amz-Signature=secret", None).unwrap();
        assert!(signed.is_secret() && signed.streams() == 1);
        assert_eq!(signed.whole_url().as_str(), "https://s3.example/b/f?X-Amz-Signature=secret");
        let held = FileAccess::parse("https://dav.example/f", token("MDAx")).unwrap();
        assert!(held.is_secret() && held.streams() == STREAMS);
        assert_eq!(held.credential(), Credential::Bearer(Zeroizing::new("MDAx".to_owned())));
        let open = FileAccess::parse("http://dav.example/f", None).unwrap();
        assert!(!open.is_secret() && open.credential() == Credential::None);
        let shown = format!("{signed:?} {held:?}");
        assert!(!shown.contains("secret") && !shown.contains("MDAx"), "{shown}");
        for (url, token) in [
            ("http://dav.example/f", token("MDAx")),
            ("https://dav.example/f", token("a b")),
            ("https://dav.example/f", token("a\r\nHost: evil")),
            ("s3s://s3.example/b/f", None),
            ("file:///etc/passwd", None),
            ("https://user@dav.example/f", None),
        ] {
            assert!(FileAccess::parse(url, token).is_err(), "{url}");
        }
    }
}
