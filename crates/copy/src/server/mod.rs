//! `longhaul serve`: exports one directory to whoever holds its URL.
//!
//! It answers requests of clients (listings, digests, stat), lets them fetch through the engine and, if it is
//! writable, fetches what they offer or order from another server. State of a client that disconnects is
//! cleaned up; its partial files are kept, so that it can resume. Not here: trust (`security`), paths
//! (`storage`, `walk`), bytes (`engine`).

mod listing;
mod orders;
mod receive_job;
mod requests;
mod retained_jobs;
mod trees;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use longhaul_engine::Responder;
use longhaul_model::address::IpNetwork;
use longhaul_model::{AgentId, DataSecurity, Fault, FaultCode};
use longhaul_security::{Access, SharedSecret};
use longhaul_storage::{FlushPolicy, Posix, PosixOptions, Storage};
use parking_lot::{Condvar, Mutex};

use crate::protocol::{self, Reply};
use crate::rename_on_commit::MappedStorage;
use crate::site::{EXPORT, Site, SiteConfig, TARGET, storage_name};
use crate::state::{CopyKey, ScratchDir, StateDir};
use crate::stop::Stop;
use crate::target_index::TargetIndex;
use crate::url::ServerUrl;
use listing::Listing;
use orders::Orders;
use receive_job::ReceiveJob;
pub use retained_jobs::RetainedKey;

/// How often the end of the server is checked, for events without a notification such as the end of an order.
const END_CHECK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The exported directory.
    pub root: PathBuf,
    pub listen: Vec<SocketAddr>,
    /// Addresses in the URL instead of this host's, `host:port`; port 0 means the listening port.
    pub advertise: Vec<String>,
    /// Whether clients may write.
    pub writable: bool,
    /// End when the first client has disconnected.
    pub once: bool,
    pub memory_bytes: u64,
    /// Rate limit in bytes per second, each way.
    pub limit: Option<u64>,
    pub data_security: DataSecurity,
    /// Allowed client addresses and networks; empty allows all.
    pub allow: Vec<IpNetwork>,
    /// Secret of an earlier run whose clients should reconnect; none makes a new one.
    pub secret: Option<SharedSecret>,
    /// Subject of the client that this server is for, where several servers share one directory.
    pub party: Option<String>,
}

pub struct Server {
    url: ServerUrl,
    inner: Arc<Inner>,
    site: Option<Arc<Site>>,
    state: Option<StateDir>,
    once: bool,
    _scratch: Option<ScratchDir>,
}

struct Inner {
    root: PathBuf,
    writable: bool,
    agent: AgentId,
    index: TargetIndex,
    export: Arc<dyn Storage>,
    storage: Option<Arc<MappedStorage>>,
    site: OnceLock<Weak<Site>>,
    clients: Mutex<HashMap<AgentId, ClientState>>,
    orders: Orders,
    /// A client that had said hello has disconnected.
    served: Mutex<bool>,
    changed: Condvar,
}

/// State of one client.
#[derive(Default)]
struct ClientState {
    welcomed: bool,
    listings: HashMap<u32, Arc<Mutex<Listing>>>,
    receiving: HashMap<u32, Arc<ReceiveJob>>,
}

impl Server {
    pub fn start(options: &ServeOptions) -> Result<Server, Fault> {
        let root = options.root.canonicalize().map_err(|error| {
            let shown = longhaul_model::units::printable(&options.root.to_string_lossy());
            Fault::new(FaultCode::NotFound, format!("{shown}: {error}")).with_source(error)
        })?;
        let missing = || {
            let shown = longhaul_model::units::printable(&root.to_string_lossy());
            Fault::new(FaultCode::NotFound, format!("{shown} is not a directory"))
        };
        let looker = TargetIndex::open(&root)?.ok_or_else(missing)?;
        let secret = options.secret.clone().unwrap_or_default();
        // The same agent after a restart, since clients' partial files belong to this source.
        let shown_root = root.to_string_lossy();
        let key = CopyKey::from_parts(["serve", &*shown_root].into_iter().chain(options.party.as_deref()));
        let export: Arc<dyn Storage> = Arc::new(read_only(&root)?);
        let mut exports: Vec<Arc<dyn Storage>> = vec![export.clone()];
        let (mut state, mut scratch, mut landing) = (None, None, None);
        let state_dir = if options.writable {
            let state = state.insert(StateDir::open(&root, "serve", &key)?);
            let target = MappedStorage::open(storage_name(TARGET), root.clone(), FlushPolicy::default())?;
            exports.push(landing.insert(Arc::new(target)).clone());
            state.path().to_owned()
        } else {
            scratch.insert(ScratchDir::new()?).path().to_owned()
        };
        let inner = Arc::new(Inner {
            root,
            writable: options.writable,
            agent: key.agent(),
            index: looker,
            export,
            storage: landing,
            site: OnceLock::new(),
            clients: Mutex::default(),
            orders: Orders::new(options.data_security),
            served: Mutex::new(false),
            changed: Condvar::new(),
        });
        let config = SiteConfig {
            agent: key.agent(),
            listen: options.listen.clone(),
            state_dir,
            memory_bytes: options.memory_bytes,
            streams: None,
            bind: Vec::new(),
            responder: Some(inner.clone()),
            data_security: options.data_security,
            access: Access { addresses: options.allow.clone(), subjects: Vec::new() },
        };
        let site = Site::start(&secret, config, exports)?;
        site.engine().set_limits(options.limit, options.limit);
        // Cannot be set already: nobody knows the URL yet.
        let _ = inner.site.set(Arc::downgrade(&site));
        let addresses = advertised(&options.advertise, &site.engine().data_addresses());
        let url = ServerUrl { secret, addresses };
        Ok(Server { url, inner, site: Some(site), state, once: options.once, _scratch: scratch })
    }

    pub fn url(&self) -> &ServerUrl {
        &self.url
    }

    pub fn root(&self) -> &std::path::Path {
        &self.inner.root
    }

    /// Listening addresses with ports.
    pub fn listening(&self) -> Vec<SocketAddr> {
        self.site.as_ref().map_or_else(Vec::new, |site| site.engine().data_addresses())
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.inner.clients.lock().values().filter(|peer| peer.welcomed).count()
    }

    /// Receive jobs of all clients.
    pub fn receiving(&self) -> usize {
        self.inner.clients.lock().values().map(|peer| peer.receiving.len()).sum()
    }

    /// Payload bytes sent and received so far.
    pub fn bytes(&self) -> (u64, u64) {
        self.site.as_ref().map_or((0, 0), |site| {
            let now = site.engine().snapshot();
            (now.bytes_out, now.bytes_in)
        })
    }

    /// Connections refused because of their address.
    pub fn refused(&self) -> u64 {
        self.site.as_ref().map_or(0, |site| site.engine().snapshot().refused_addresses)
    }

    /// Blocks until the server is stopped or, with `once`, the first client has disconnected.
    pub fn wait(&self, stop: &Stop) {
        let inner = self.inner.clone();
        let _hook = stop.hook(move || {
            inner.changed.notify_all();
        });
        let mut served = self.inner.served.lock();
        loop {
            let is_over = self.once && *served && !self.inner.orders.is_busy();
            if is_over || stop.is_stopped() {
                return;
            }
            // The hook may have fired between the check and the wait.
            self.inner.changed.wait_for(&mut served, END_CHECK_INTERVAL);
        }
    }

    /// Shuts down; what clients were sending can be resumed.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.inner.orders.stop();
        let peers = std::mem::take(&mut *self.inner.clients.lock());
        for receiving in peers.values().flat_map(|peer| peer.receiving.values()) {
            receiving.end();
        }
        drop(peers);
        drop(self.site.take());
        if let Some(state) = self.state.take() {
            let nothing_left = self.inner.storage.as_ref().is_none_or(|landing| landing.is_clean());
            if nothing_left {
                state.remove();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Server({:?})", self.url)
    }
}

fn read_only(root: &std::path::Path) -> Result<Posix, Fault> {
    Posix::open(PosixOptions {
        name: storage_name(EXPORT),
        root: root.to_owned(),
        work: None,
        writable: false,
        flush: FlushPolicy::None,
    })
}

/// Addresses in the URL: those given, else the listening ones, with this host's addresses in place of "any".
fn advertised(wanted: &[String], listening: &[SocketAddr]) -> Vec<String> {
    let port = listening.first().map_or(0, SocketAddr::port);
    if !wanted.is_empty() {
        let with_port = |address: &String| match address.strip_suffix(":0") {
            Some(host) => format!("{host}:{port}"),
            None => address.clone(),
        };
        return wanted.iter().map(with_port).collect();
    }
    let mut addresses: Vec<String> = Vec::new();
    for address in listening {
        let mut found = vec![*address];
        if address.ip().is_unspecified() {
            found = own_addresses(address.is_ipv6())
                .into_iter()
                .map(|ip| SocketAddr::new(ip, address.port()))
                .collect();
        }
        for address in found.iter().map(ToString::to_string) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    addresses.truncate(crate::url::ADDRESSES_MAX);
    addresses
}

/// The addresses this host uses to reach others; loopback if it reaches none. No packet is sent.
fn own_addresses(both_families: bool) -> Vec<std::net::IpAddr> {
    // Documentation addresses: nobody has them, and they follow the default route.
    let probes: &[(&str, &str)] = &[("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let families = if both_families { 2 } else { 1 };
    let found: Vec<std::net::IpAddr> = probes[..families]
        .iter()
        .filter_map(|(from, to)| {
            let socket = std::net::UdpSocket::bind(from).ok()?;
            socket.connect(to).ok()?;
            Some(socket.local_addr().ok()?.ip())
        })
        .collect();
    if found.is_empty() { vec![std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST)] } else { found }
}

impl Responder for Inner {
    fn answer(&self, peer: AgentId, request: Vec<u8>) -> Vec<u8> {
        let reply = protocol::read_request(&request).and_then(|request| self.reply(peer, request));
        protocol::write(&reply.unwrap_or_else(|fault| {
            tracing::info!(client = %peer, fault = %fault.chain(), "request refused");
            Reply::Fault { fault }
        }))
    }

    fn gone(&self, peer: AgentId) {
        let Some(gone) = self.clients.lock().remove(&peer) else { return };
        for receiving in gone.receiving.values() {
            receiving.drain();
        }
        self.orders.gone(peer);
        if gone.welcomed {
            tracing::info!(client = %peer, "client disconnected");
            *self.served.lock() = true;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_names_addresses_that_can_be_dialled() {
        let listening: Vec<SocketAddr> = vec!["[::]:7000".parse().unwrap(), "0.0.0.0:7000".parse().unwrap()];
        let found = advertised(&[], &listening);
        assert!(!found.is_empty());
        for address in &found {
            let address: SocketAddr = address.parse().unwrap();
            assert!(!address.ip().is_unspecified() && address.port() == 7000, "{address}");
        }
        let wanted = ["far.example:0".to_owned(), "other:9".to_owned()];
        assert_eq!(advertised(&wanted, &listening), ["far.example:7000", "other:9"]);
        assert_eq!(advertised(&[], &["127.0.0.1:5".parse().unwrap()]), ["127.0.0.1:5"]);
    }
}
