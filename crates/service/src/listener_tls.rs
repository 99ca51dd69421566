//! The service's own certificate, by which agents and people know its listeners.

use std::sync::Arc;

use longhaul_model::Fault;
use longhaul_security::{Credentials, grid_server_tls, service_server_tls};
use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;

use crate::context::ServiceContext;

/// The current acceptor, replaced when its certificate is renewed.
pub(crate) type Acceptor = Arc<RwLock<TlsAcceptor>>;

/// Issues a certificate for all names of this service, and makes an acceptor of it.
pub(crate) fn acceptor(shared: &ServiceContext) -> Result<TlsAcceptor, Fault> {
    let mut names = shared.config.names.clone();
    names.push("localhost".to_owned());
    names.extend(
        shared
            .config
            .listen
            .iter()
            .filter(|address| !address.ip().is_unspecified())
            .map(|address| address.ip().to_string()),
    );
    let host = shared
        .public_url
        .strip_prefix("https://")
        .and_then(|rest| rest.parse::<::http::uri::Authority>().ok());
    names.extend(host.map(|authority| authority.host().trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    let pair = shared.control.authority.issue_service(&names, shared.kernel.wall_time())?;
    let credentials = Credentials {
        certificate_pem: pair.certificate_pem,
        key_pem: pair.key_pem,
        ca_pem: shared.control.authority.ca_pem().to_owned(),
    };
    let tls = match shared.identity.users().trust() {
        Some(_) => grid_server_tls(&credentials)?,
        None => service_server_tls(&credentials)?,
    };
    Ok(TlsAcceptor::from(tls))
}
