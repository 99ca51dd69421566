//! Settings of a door.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::Fault;
use longhaul_model::address::IpNetwork;
use longhaul_storage::Storage;
use rustls::{ClientConfig, CommonState, ServerConfig};

use crate::audit::AuditSink;
use crate::rights::Rights;
use crate::tape::TapeEnd;
use crate::trusted_issuers::TrustedIssuers;

pub struct Settings {
    pub storage: Arc<dyn Storage>,
    /// Other names under which clients reach this door, as `host` or `host:port`.
    pub names: Vec<String>,
    /// Missing directories of a new file are made, as is grid practice; RFC 4918 refuses.
    pub make_parents: bool,
    /// A deletion of a directory takes all that is in it, as RFC 4918 says; if not, a full one is refused.
    pub delete_trees: bool,
    /// Marks temporary files as this agent's, so that what a killed predecessor left is removed at the next
    /// start.
    pub owner: [u8; 8],
    /// Where properties of the clients' own are kept. None: they end with the door.
    pub properties: Option<PathBuf>,
    /// None: no third-party copies.
    pub outgoing: Option<Arc<Outgoing>>,
    /// Says whose a client's certificate is. None: its subject says so.
    pub users: Option<Arc<dyn Users>>,
    /// None: no tokens but those of a file.
    pub issued: Option<TrustedIssuers>,
    /// The tape behind the storage, which clients may then have files brought from. None: everything is on
    /// disk.
    pub tape: Option<TapeEnd>,
    /// Hears who was allowed or refused what. None: nobody.
    pub audit: Option<Arc<dyn AuditSink>>,
    pub limits: Limits,
}

/// Users and their rights; replaced while the door is open.
#[derive(Clone)]
pub struct Access {
    /// Certificate and key, and whose client certificates are believed.
    pub tls: Arc<ServerConfig>,
    /// Identities of Longhaul's in client certificates count: no authority but the deployment's is believed.
    pub identities: bool,
    pub rights: Rights,
}

/// Knows the holders of certificates where a handshake alone does not, as with proxies of the grid.
pub trait Users: Send + Sync {
    /// The client's names as rules have them, attributes of virtual organisations with [`VOMS`] before them;
    /// none if it showed no certificate. The fault is told to the client, who is not served as somebody
    /// without.
    fn names(&self, connection: &CommonState) -> Result<Vec<String>, Fault>;
}

/// Before an attribute of a virtual organisation among a client's names: `voms:/atlas/Role=production`.
pub const VOMS: &str = "voms:";

/// How third-party copies reach other servers.
pub struct Outgoing {
    /// Trusted authorities, and the client certificate if there is one.
    pub tls: Arc<ClientConfig>,
    /// Networks that may be dialled though they are not public.
    pub allow: Vec<IpNetwork>,
}

/// Limits on what clients use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connections: usize,
    /// Connections from one address.
    pub connections_of_address: usize,
    /// Files on their way at once, in and out; each holds up to 2 MiB of memory. More wait.
    pub transfers: usize,
    /// How long a transfer waits for its turn before it is told to come again.
    pub turn: Duration,
    /// Timeout of a handshake, and of the head of a request.
    pub head: Duration,
    /// A peer that neither sends nor takes anything for so long is gone.
    pub stall: Duration,
    /// Bytes of a file that a client has to send in so long; one that trickles gives up its turn.
    pub bytes_per_stall_min: u64,
    /// Entries that one request may copy or delete.
    pub entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1_024,
            connections_of_address: 512,
            transfers: 64,
            turn: Duration::from_secs(20),
            head: Duration::from_secs(30),
            stall: Duration::from_secs(60),
            bytes_per_stall_min: 64 << 10,
            entries: 10_000,
        }
    }
}
