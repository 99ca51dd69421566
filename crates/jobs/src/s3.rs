//! S3 keys of hosts and buckets, and which communities' jobs may use them. They stay in the service; users
//! name files only, and storages get URLs that are signed for one file.

use std::path::{Path, PathBuf};

use longhaul_model::units::printable;
use longhaul_model::{Blame, Fault, FaultCode, Retry};
use longhaul_security::read_secret;
use longhaul_storage_remote::{RemoteUrl, S3Keys, bucket_of};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Wildcard for all communities.
const ALL: &str = "*";

/// The keys of a host that speaks S3, or of one bucket there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct S3Config {
    /// As in URLs; it also stands for the hosts of its buckets (`bucket.host`).
    pub host: String,
    /// None: all buckets that have no keys of their own.
    #[serde(default)]
    pub bucket: Option<String>,
    /// A part of what is signed; storages without regions take this one.
    #[serde(default = "region")]
    pub region: String,
    pub access_key: String,
    /// Holds the secret and nothing else; only the service's user may read it. Read again for each copy.
    pub secret_file: PathBuf,
    /// Communities whose jobs may use the keys; `*` stands for all.
    pub communities: Vec<String>,
}

fn region() -> String {
    "us-east-1".to_owned()
}

impl S3Config {
    pub fn check(&self) -> Result<(), Fault> {
        let wrong = |text: String| Err(Fault::new(FaultCode::BadRequest, format!("service.jobs.s3: {text}")));
        let plain = |text: &str, more: &str| {
            !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
        };
        if !plain(&self.host, ".-_:") || self.host.chars().any(|c| c.is_ascii_uppercase()) {
            return wrong(format!(
                "host is {:?}: a name in small letters is expected, without scheme and port",
                self.host
            ));
        }
        if !plain(&self.region, "-_") {
            return wrong(format!(
                "region of {} is {:?}: letters, digits and hyphens are expected",
                self.host, self.region
            ));
        }
        if !plain(&self.access_key, "-_.:@+/=") {
            return wrong(format!("access_key of {} is empty or has characters that no key has", self.host));
        }
        if self.communities.is_empty() {
            return wrong(format!(
                "communities of {} is empty: name those whose jobs may use the keys, or \"*\"",
                self.host
            ));
        }
        Ok(())
    }

    fn is_for(&self, community: &str) -> bool {
        self.communities.iter().any(|name| name == ALL || name == community)
    }

    fn opens(&self, url: &RemoteUrl, path_style: bool) -> bool {
        let bucket = bucket_of(url, &self.host, path_style);
        bucket.is_some() && (self.bucket.is_none() || self.bucket == bucket)
    }

    /// The keys, with the secret read from its file.
    fn keys(&self) -> Result<S3Keys, Fault> {
        Ok(S3Keys {
            access_key: self.access_key.clone(),
            secret: secret(&self.secret_file)?,
            session_token: None,
            region: self.region.clone(),
        })
    }

    /// Fails if the secret cannot be read now.
    pub fn check_secret(&self) -> Result<(), Fault> {
        self.keys().map(drop)
    }
}

/// The keys that open a URL for a community: those of its bucket before those of its host.
pub fn keys(
    configured: &[S3Config],
    url: &RemoteUrl,
    community: &str,
    path_style: bool,
) -> Result<S3Keys, Fault> {
    let opening = configured.iter().filter(|one| one.opens(url, path_style) && one.is_for(community));
    let best = opening.max_by_key(|one| (one.bucket.is_some(), one.host.len()));
    let Some(best) = best else {
        let detail = format!(
            "no keys are configured that open {url} for the community {}: service.jobs.s3 names those of \
                each host",
            printable(community)
        );
        return Err(Fault::new(FaultCode::NotAllowed, detail));
    };
    best.keys()
}

fn secret(file: &Path) -> Result<Zeroizing<String>, Fault> {
    let wrong = |why: String| {
        let detail = format!("service.jobs.s3: {why}");
        Fault::new(FaultCode::NotAuthenticated, detail).blaming(Blame::Ourselves).retrying(Retry::Later)
    };
    let secret = read_secret(file).map_err(|error| wrong(Fault::from(error).detail.to_string()))?;
    if secret.is_empty() || secret.chars().any(char::is_whitespace) {
        return Err(wrong(format!(
            "the secret in {}: one word is expected, and nothing else",
            file.display()
        )));
    }
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn configured(
        file: &Path,
        host: &str,
        bucket: Option<&str>,
        communities: &[&str],
        access_key: &str,
    ) -> S3Config {
        S3Config {
            host: host.into(),
            bucket: bucket.map(str::to_owned),
            region: region(),
            access_key: access_key.into(),
            secret_file: file.into(),
            communities: communities.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn keys_open_only_for_whom_they_are_meant() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        std::fs::write(&file, " canary\n").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let all = [
            configured(&file, "s3.example.org", None, &["*"], "EVERYBODY"),
            configured(&file, "s3.example.org", Some("raw"), &["atlas"], "RAW"),
            configured(&file, "other.example.org", None, &["cms"], "CMS"),
        ];
        let of = |url: &str, community: &str| {
            let url = RemoteUrl::parse(url).unwrap();
            keys(&all, &url, community, false).map(|keys| keys.access_key).map_err(|fault| fault.detail)
        };
        assert_eq!(of("s3s://raw.s3.example.org/x", "atlas").unwrap(), "RAW");
        assert_eq!(of("s3s://s3.example.org/raw/x", "atlas").unwrap(), "RAW");
        assert_eq!(of("s3s://s3.example.org/raw/x", "cms").unwrap(), "EVERYBODY");
        assert_eq!(of("s3s://s3.example.org/derived/x", "atlas").unwrap(), "EVERYBODY");
        let refused = of("s3s://other.example.org/b/x", "atlas").unwrap_err();
        assert!(
            refused.contains("for the community atlas") && refused.contains("service.jobs.s3"),
            "{refused}"
        );
        assert!(of("s3s://evil-s3.example.org/b/x", "atlas").is_err());
        assert_eq!(all[0].keys().unwrap().secret.as_str(), "canary");
        assert!(!format!("{:?} {:?}", all, all[0].keys()).contains("canary"));
    }

    #[test]
    fn a_secret_that_others_may_read_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let look = || configured(&file, "h", None, &["*"], "A").check_secret().unwrap_err().detail;
        assert!(look().contains("No such file"), "{}", look());
        std::fs::write(&file, "canary two").unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        assert!(look().contains("mode 640): chmod 600"), "{}", look());
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert!(look().contains("one word") && !look().contains("canary"), "{}", look());
    }

    #[test]
    fn settings_are_checked() {
        let with = |change: fn(&mut S3Config)| {
            let mut config = configured(Path::new("x"), "s3.example.org", None, &["*"], "A");
            change(&mut config);
            config.check().map_err(|fault| fault.detail)
        };
        assert!(with(|_| {}).is_ok());
        assert!(with(|config| config.host = "https://a".into()).unwrap_err().contains("without scheme"));
        assert!(with(|config| config.communities.clear()).unwrap_err().contains("communities"));
        assert!(with(|config| config.access_key = "a b".into()).unwrap_err().contains("access_key"));
        assert!(with(|config| config.region = String::new()).unwrap_err().contains("region"));
    }
}
