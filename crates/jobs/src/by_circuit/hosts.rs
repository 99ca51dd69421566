//! Hosts of storages that have a second address on their sites' circuits, as configured.
//!
//! Start with [`host_config`].

use longhaul_control::Directory;
use longhaul_model::SiteId;
use longhaul_netops::HostConfig;
use longhaul_storage_remote::RemoteUrl;

/// The configuration of the host in a URL; none for S3, whose signed URLs stay on the plain path.
pub(super) fn host_config<'a>(hosts: &'a [HostConfig], url: &str) -> Option<&'a HostConfig> {
    if hosts.is_empty() {
        return None;
    }
    let url = RemoteUrl::parse(url).ok().filter(|url| !url.is_s3())?;
    hosts.iter().find(|row| row.host.eq_ignore_ascii_case(url.host()))
}

/// The site of the host in a URL, if it is configured.
pub(crate) fn site_of(directory: &Directory, hosts: &[HostConfig], url: &str) -> Option<SiteId> {
    site_id(directory, host_config(hosts, url)?)
}

pub(super) fn site_id(directory: &Directory, host: &HostConfig) -> Option<SiteId> {
    directory.sites.iter().find(|(_, row)| row.name == host.site).map(|(&id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_however_they_are_written() {
        let row = |host: &str| HostConfig {
            site: "beta".parse().unwrap(),
            host: host.to_owned(),
            on_circuit: "x".to_owned(),
        };
        let hosts = [row("SE.example"), row("2001:db8::1")];
        let found = |url: &str| host_config(&hosts, url).map(|row| row.host.as_str());
        assert_eq!(found("davs://se.EXAMPLE:1094/f"), Some("SE.example"));
        assert_eq!(found("https://[2001:DB8::1]:8443/f"), Some("2001:db8::1"));
        assert_eq!(found("https://se.example.org/f"), None);
        assert_eq!(found("se.example"), None);
        assert_eq!(found("s3s://se.example/bucket/f"), None);
        assert!(host_config(&[], "https://se.example/f").is_none());
    }
}
