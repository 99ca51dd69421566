//! Where a request comes from.

use std::net::{IpAddr, SocketAddr};

use longhaul_model::Fault;
use longhaul_security::ClientIdentity;
use longhaul_security::grid::GridIdentity;

/// The other end of a connection; an extension of each of its requests.
#[derive(Clone, Debug)]
pub struct Origin {
    pub address: SocketAddr,
    /// Whether it came over TLS.
    pub secure: bool,
    /// The identity of its certificate; a fault if the certificate is neither of this deployment nor of a
    /// user we know.
    pub identity: Result<Option<ClientIdentity>, Fault>,
}

/// The origin of a person who may log in; pages find it among a request's extensions.
#[derive(Clone, Debug)]
pub struct Visitor {
    pub address: IpAddr,
    /// Whether the request came over TLS.
    pub secure: bool,
    identity: Result<Option<ClientIdentity>, Fault>,
}

impl Visitor {
    pub fn new(origin: &Origin) -> Visitor {
        Visitor {
            address: origin.address.ip().to_canonical(),
            secure: origin.secure,
            identity: origin.identity.clone(),
        }
    }

    pub(crate) fn certificate(&self) -> Result<Option<&GridIdentity>, &Fault> {
        match &self.identity {
            Ok(Some(ClientIdentity::Grid(certificate))) => Ok(Some(certificate)),
            Ok(_) => Ok(None),
            Err(fault) => Err(fault),
        }
    }
}
