//! People and programs reach the service by a certificate of an authority that they know, while agents know
//! only the deployment's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use longhaul_api::client::Client;
use longhaul_api::{Problem, routes};
use longhaul_security::{ForeignServerTrust, foreign_client_tls};
use longhaul_testkit::CertificateAuthority;

use crate::world::{World, until};

fn write(folder: &Path, (certificate, key): &(String, String)) {
    let write = |name: &str, text: &str| {
        // As tools that renew certificates do it: nobody reads half a file.
        let (new, path) = (folder.join("new"), folder.join(name));
        fs::write(&new, text).unwrap();
        fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        fs::rename(new, path).unwrap();
    };
    write("host.pem", certificate);
    write("host.key", key);
}

/// Somebody who knows that authority, on a new connection.
async fn whoami(world: &World, authority: &CertificateAuthority) -> Result<(), Problem> {
    let tls = foreign_client_tls(ForeignServerTrust::Authorities(&authority.ca_pem)).unwrap();
    let url = format!("https://localhost:{}", world.address().port());
    let client = Client::new(&url, tls, Some(world.admin_token.clone())).unwrap();
    client.request(&routes::WHOAMI).send::<longhaul_api::native::WhoAmI>().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_the_hosts_certificate_and_agents_the_deployments() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (CertificateAuthority::new("first"), CertificateAuthority::new("second"));
    write(folder.path(), &first.issue("service", &["localhost"]));
    let mut world = World::with(|config| {
        config.host_certificate = Some(folder.path().join("host.pem"));
        config.host_key = Some(folder.path().join("host.key"));
    })
    .await;
    let agent = world.agent("alpha").await;
    agent.hello(&[]).await.unwrap();
    whoami(&world, &first).await.unwrap();
    world.admin().request(&routes::WHOAMI).send::<longhaul_api::native::WhoAmI>().await.unwrap();

    // A key of another certificate changes nothing; both new files are read without a restart.
    let renewed = second.issue("service", &["localhost"]);
    write(folder.path(), &(renewed.0.clone(), first.issue("service", &["localhost"]).1));
    whoami(&world, &first).await.unwrap();
    write(folder.path(), &renewed);
    let shown = async || whoami(&world, &second).await.map_err(|problem| problem.detail);
    until("the new certificate is shown", shown).await;
    assert!(whoami(&world, &first).await.is_err());
    agent.hello(&[]).await.unwrap();
    world.stop().await;
}
