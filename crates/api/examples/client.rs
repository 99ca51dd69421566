//! The typed client: lists the datasets of a service, page by page.
//!
//! ```sh
//! cargo run -p longhaul-api --example client -- http://127.0.0.1:8443 lht_…
//! ```
//!
//! `longhaul demo` starts a service to try it on; `longhaul token create` makes the API token.

use std::io::Write as _;
use std::sync::Arc;

use longhaul_api::client::Client;
use longhaul_api::native::{DatasetView, Page, WhoAmI};
use longhaul_api::{Problem, routes};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(base), Some(token)) = (arguments.next(), arguments.next()) else {
        return Err("usage: client URL TOKEN".into());
    };

    // A client is cheap to clone, and its clones share connections. This one trusts no certificate authority,
    // which is enough for plain HTTP on this machine; for HTTPS, add the deployment's CA to the store.
    let tls =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
    let client = Client::new(&base, tls, Some(token))?;

    // Every operation is a constant of `routes`. It knows method, path and parameters; the type of the reply
    // is the one that the OpenAPI description names.
    let me: WhoAmI = client.request(&routes::WHOAMI).send().await?;
    let mut out = std::io::stdout();
    writeln!(out, "{} has the role {}", me.name, me.role)?;

    // Lists come in pages: `next` of one page is `after` of the following.
    let mut after = None;
    loop {
        let request = client.request(&routes::DATASET_LIST).query("limit", 50).maybe("after", after);
        let page: Page<DatasetView> = request.send().await?;
        for dataset in &page.items {
            writeln!(out, "{}: {} files, {} bytes", dataset.name, dataset.files, dataset.bytes)?;
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }

    // Errors are RFC 9457 problems: what, why, what to do next, and a code. Parameters of a path are encoded
    // by the client, so the `/` in a dataset's name needs no care.
    let missing =
        client.request(&routes::DATASET_SHOW).parameter("no/such-dataset").send::<DatasetView>().await;
    if let Err(Problem { code, title, remedy, .. }) = missing {
        writeln!(out, "{code} {title}: {remedy}")?;
    }
    Ok(())
}
