//! The certificates by which agents, people and programs know the service's listeners.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{Fault, Timestamp};
use longhaul_security::{
    Credentials, HostCertificate, grid_server_tls, read_private, read_secret, service_server_tls,
};
use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;

use crate::Config;
use crate::context::ServiceContext;

/// The current acceptor, replaced when one of its certificates is.
pub(crate) type Acceptor = Arc<RwLock<TlsAcceptor>>;

/// The deployment's own certificate is replaced this often; new connections get the new one.
const CERTIFICATE_LIFE: Duration = Duration::from_secs(30 * 24 * 3_600);

/// The acceptor of all listeners, and what it was made of.
pub(crate) struct ListenerTls {
    acceptor: Acceptor,
    /// In use.
    host: Option<HostCertificate>,
    issued: Timestamp,
    /// What the files held last, whether it could be used or not: each content is tried once.
    tried: Option<HostCertificate>,
    /// The last trouble that was reported.
    reported: Option<String>,
}

impl ListenerTls {
    pub(crate) fn open(shared: &ServiceContext) -> Result<ListenerTls, Fault> {
        let host = read_host_certificate(&shared.config)?;
        let acceptor = Arc::new(RwLock::new(acceptor(shared, host.as_ref())?));
        let issued = shared.kernel.now();
        Ok(ListenerTls { acceptor, tried: host.clone(), host, issued, reported: None })
    }

    pub(crate) fn acceptor(&self) -> Acceptor {
        self.acceptor.clone()
    }

    /// Makes a new acceptor when the host's files have changed or the own certificate gets old. Files that
    /// cannot be used leave the former certificate in place.
    pub(crate) fn renew(&mut self, shared: &ServiceContext, now: Timestamp) {
        match read_host_certificate(&shared.config) {
            Ok(read) if read != self.tried => {
                self.tried = read.clone();
                self.replace(shared, read, now);
            }
            Ok(_) => {}
            Err(fault) => self.report(&fault),
        }
        if now.since(self.issued) > CERTIFICATE_LIFE {
            self.replace(shared, self.host.clone(), now);
        }
    }

    fn replace(&mut self, shared: &ServiceContext, host: Option<HostCertificate>, now: Timestamp) {
        match acceptor(shared, host.as_ref()) {
            Ok(renewed) => {
                tracing::info!("the listeners have new certificates");
                *self.acceptor.write() = renewed;
                (self.host, self.issued, self.reported) = (host, now, None);
            }
            Err(fault) => self.report(&fault),
        }
    }

    fn report(&mut self, fault: &Fault) {
        let why = fault.to_string();
        if self.reported.as_ref() != Some(&why) {
            tracing::error!(fault = %fault.chain(), "the listeners' certificates are not replaced");
            self.reported = Some(why);
        }
    }
}

/// The host's certificate as its files are now; none without such files.
fn read_host_certificate(config: &Config) -> Result<Option<HostCertificate>, Fault> {
    let (Some(certificate), Some(key)) = (&config.host_certificate, &config.host_key) else {
        return Ok(None);
    };
    Ok(Some(HostCertificate { certificate_pem: read_private(certificate)?, key_pem: read_secret(key)? }))
}

/// Issues a certificate for all names of this service, and makes an acceptor of it and of the host's.
fn acceptor(shared: &ServiceContext, host: Option<&HostCertificate>) -> Result<TlsAcceptor, Fault> {
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
    let public = shared
        .public_url
        .strip_prefix("https://")
        .and_then(|rest| rest.parse::<::http::uri::Authority>().ok());
    names.extend(public.map(|authority| authority.host().trim_matches(['[', ']']).to_owned()));
    names.sort();
    names.dedup();
    let pair = shared.control.authority.issue_service(&names, shared.kernel.wall_time())?;
    let credentials = Credentials {
        certificate_pem: pair.certificate_pem,
        key_pem: pair.key_pem,
        ca_pem: shared.control.authority.ca_pem().to_owned(),
    };
    let tls = match shared.identity.users().trust() {
        Some(_) => grid_server_tls(&credentials, host)?,
        None => service_server_tls(&credentials, host)?,
    };
    Ok(TlsAcceptor::from(tls))
}
