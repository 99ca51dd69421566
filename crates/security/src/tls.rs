use crate::{Credentials, PeerIdentity};
use longhaul_model::Fault;
use rustls::{ClientConfig, ServerConfig};
use std::io;
use std::sync::Arc;

/// Server name to give when dialling the service. Any other name but [`AGENT_NAME`] means the service too, so that a URL's
/// host does as well.
pub const SERVICE_NAME: &str = "service.longhaul";
/// Server name to give when dialling an agent's data port.
pub const AGENT_NAME: &str = "agent.longhaul";

/// Of an agent, towards the service and towards sources. TLS 1.3 only.
pub fn agent_client_tls(_credentials: &Credentials) -> Result<Arc<ClientConfig>, Fault> {
    todo!()
}
/// Of an agent's data port: a client certificate of an agent of this deployment is required. TLS 1.3 only.
pub fn data_server_tls(_credentials: &Credentials) -> Result<Arc<ServerConfig>, Fault> {
    todo!()
}
/// Of the service's port: a client certificate is optional, and checked if there is one.
pub fn service_server_tls(_credentials: &Credentials) -> Result<Arc<ServerConfig>, Fault> {
    todo!()
}
/// Of an agent that is about to join: trusts exactly the CA of that fingerprint.
pub fn join_client_tls(_ca_fingerprint: &str) -> Result<Arc<ClientConfig>, Fault> {
    todo!()
}
/// Of commands: trusts the deployment's CA, shows no certificate.
pub fn people_client_tls(_ca_pem: &str) -> Result<Arc<ClientConfig>, Fault> {
    todo!()
}

/// Server side, after the handshake: who the client is. None if it showed no certificate.
pub fn client_identity(
    _connection: &rustls::ServerConnection,
    _deployment: &str,
) -> Result<Option<PeerIdentity>, Fault> {
    todo!()
}
/// Client side, after the handshake: who the server is.
pub fn server_identity(
    _connection: &rustls::ClientConnection,
    _deployment: &str,
) -> Result<PeerIdentity, Fault> {
    todo!()
}

/// What a failed handshake means, in words for people.
pub fn tls_fault(_error: &rustls::Error) -> Fault {
    todo!()
}
/// The same for an error of a stream: TLS errors inside it are found.
pub fn io_fault(_error: &io::Error) -> Fault {
    todo!()
}
