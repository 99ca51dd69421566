//! Client side of the control protocol: typed requests over a connection that is re-established when it
//! breaks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_engine::Channel;
use longhaul_model::{AgentId, Blame, DigestSet, Fault, FaultCode};
use parking_lot::Mutex;

use crate::protocol::{
    self, DigestAnswer, Entry, ITEMS_PER_MESSAGE_MAX, ListRequest, Page, RelativePath, Reply, Request,
    VERSION_MAX, VERSION_MIN, Welcome,
};
use crate::site::{Guest, Site};
use crate::stop::Stop;

/// Timeout of the first connection: long enough for a satellite path, short enough for a person.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long reconnecting is tried: the server or its network may be restarting.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// As above, if other servers have the same files.
const RECONNECT_TIMEOUT_WITH_REPLICAS: Duration = Duration::from_secs(6);
const RECONNECT_BACKOFF_MIN: Duration = Duration::from_millis(200);
const RECONNECT_BACKOFF_MAX: Duration = Duration::from_secs(5);

const HELLO_PATHS_MAX: usize = 32;

pub(crate) const PROGRAM: &str = concat!("longhaul ", env!("CARGO_PKG_VERSION"));

pub(crate) struct Remote {
    site: Arc<Site>,
    addresses: Vec<String>,
    channel: Mutex<Arc<Channel>>,
    pub(crate) welcome: Welcome,
    lists: Option<ListRequest>,
    stop: Stop,
    /// The server's deployment, if it is not the site's own.
    guest: Option<Arc<Guest>>,
    /// How long reconnecting is tried.
    reconnect_timeout: Duration,
}

impl Remote {
    /// Connects and says hello. `looks_at`: paths to describe in the answer; `lists`: what to start listing.
    pub(crate) fn connect(
        site: Arc<Site>,
        addresses: &[String],
        looks_at: Vec<RelativePath>,
        lists: Option<ListRequest>,
        stop: &Stop,
    ) -> Result<Remote, Fault> {
        Remote::connect_as(site, None, addresses, looks_at, lists, stop)
    }

    /// As [`Remote::connect`], to a server of another deployment.
    pub(crate) fn connect_as(
        site: Arc<Site>,
        guest: Option<Arc<Guest>>,
        addresses: &[String],
        looks_at: Vec<RelativePath>,
        lists: Option<ListRequest>,
        stop: &Stop,
    ) -> Result<Remote, Fault> {
        stop.check()?;
        let membership = guest.as_ref().map(|guest| &guest.membership);
        let channel = Arc::new(site.engine().channel_in(membership, addresses, CONNECT_TIMEOUT)?);
        // The first few paths go along with hello, which saves a round trip; a long list is sent separately.
        let mut rest = looks_at;
        let first: Vec<RelativePath> = rest.drain(..rest.len().min(HELLO_PATHS_MAX)).collect();
        let welcome = hello(&channel, first, lists.clone())?;
        let mut remote = Remote {
            site,
            addresses: addresses.to_vec(),
            channel: Mutex::new(channel),
            welcome,
            lists,
            stop: stop.clone(),
            guest,
            reconnect_timeout: RECONNECT_TIMEOUT,
        };
        if !rest.is_empty() {
            let found = remote.stats(rest)?;
            remote.welcome.found.extend(found);
        }
        Ok(remote)
    }

    /// Gives up sooner, since other servers can answer.
    pub(crate) fn shorten_reconnect(&mut self) {
        self.reconnect_timeout = RECONNECT_TIMEOUT_WITH_REPLICAS;
    }

    pub(crate) fn guest(&self) -> Option<Arc<Guest>> {
        self.guest.clone()
    }

    pub(crate) fn site(&self) -> &Arc<Site> {
        &self.site
    }

    pub(crate) fn agent(&self) -> AgentId {
        self.welcome.agent
    }

    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The first page of this listing, if it came with the answer to hello.
    pub(crate) fn first_page(&self, of: &ListRequest) -> Option<&Page> {
        self.welcome.page.as_ref().filter(|_| self.lists.as_ref() == Some(of))
    }

    fn channel(&self) -> Arc<Channel> {
        self.channel.lock().clone()
    }

    /// Sends one request on the present connection.
    pub(crate) fn call_once(&self, request: &Request) -> Result<Reply, Fault> {
        protocol::read_reply(&self.channel().call(&protocol::write(request))?)
    }

    /// Sends a request, again on a new connection if the old one breaks: for idempotent requests.
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, Fault> {
        let bytes = protocol::write(request);
        let begun = Instant::now();
        let mut pause = RECONNECT_BACKOFF_MIN;
        loop {
            let channel = self.channel();
            let fault = match channel.call(&bytes) {
                Ok(reply) => return protocol::read_reply(&reply),
                Err(fault) if channel.is_up() => return Err(fault),
                Err(fault) => fault,
            };
            if fault.blame != Blame::Network || begun.elapsed() > self.reconnect_timeout {
                return Err(fault);
            }
            tracing::info!(fault = %fault.chain(), "the control connection broke");
            if self.stop.wait(pause) {
                return Err(crate::stop::interrupted());
            }
            pause = (pause * 2).min(RECONNECT_BACKOFF_MAX);
            self.reconnect(&channel)?;
        }
    }

    /// Replaces `broken` unless that has been done. An unreachable server is no error yet.
    fn reconnect(&self, broken: &Arc<Channel>) -> Result<(), Fault> {
        let mut channel = self.channel.lock();
        if !Arc::ptr_eq(&channel, broken) {
            return Ok(());
        }
        let membership = self.guest.as_ref().map(|guest| &guest.membership);
        match self.site.engine().channel_in(membership, &self.addresses, RECONNECT_BACKOFF_MAX) {
            Ok(fresh) => {
                if fresh.peer() != self.welcome.agent {
                    let detail = "a different server answers at this address now";
                    return Err(Fault::new(FaultCode::NotAuthenticated, detail));
                }
                hello(&fresh, Vec::new(), None)?;
                *channel = Arc::new(fresh);
                Ok(())
            }
            Err(fault) if fault.blame == Blame::Network => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Describes any number of paths.
    pub(crate) fn stats(&self, paths: Vec<RelativePath>) -> Result<Vec<Option<Entry>>, Fault> {
        let mut all = Vec::with_capacity(paths.len());
        for part in message_batches(&paths) {
            match self.call(&Request::Stat { paths: part.to_vec() })? {
                Reply::Stats { found } if found.len() == part.len() => all.extend(found),
                _ => return Err(unexpected()),
            }
        }
        Ok(all)
    }

    /// CRC32C of these files, one result each.
    pub(crate) fn digests(&self, paths: &[RelativePath]) -> Result<Vec<Result<DigestSet, Fault>>, Fault> {
        let mut all = Vec::with_capacity(paths.len());
        for part in message_batches(paths) {
            match self.call(&Request::Digests { paths: part.to_vec() })? {
                Reply::Digests { found } if found.len() == part.len() => {
                    all.extend(found.into_iter().map(DigestAnswer::into_result));
                }
                _ => return Err(unexpected()),
            }
        }
        Ok(all)
    }

    pub(crate) fn call_done(&self, request: &Request) -> Result<(), Fault> {
        match self.call(request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// For requests that must not be sent twice.
    pub(crate) fn call_done_once(&self, request: &Request) -> Result<(), Fault> {
        match self.call_once(request)? {
            Reply::Done => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

impl DigestAnswer {
    pub(crate) fn into_result(self) -> Result<DigestSet, Fault> {
        match self {
            DigestAnswer::Digests(digests) => Ok(digests),
            DigestAnswer::Fault(fault) => Err(fault),
        }
    }

    pub(crate) fn from_result(result: Result<DigestSet, Fault>) -> DigestAnswer {
        match result {
            Ok(digests) => DigestAnswer::Digests(digests),
            Err(fault) => DigestAnswer::Fault(fault),
        }
    }
}

fn hello(
    channel: &Channel,
    looks_at: Vec<RelativePath>,
    lists: Option<ListRequest>,
) -> Result<Welcome, Fault> {
    let (asked, listed) = (looks_at.len(), lists.is_some());
    let request = Request::Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        program: PROGRAM.to_owned(),
        looks_at,
        lists,
    };
    match protocol::read_reply(&channel.call(&protocol::write(&request))?)? {
        Reply::Hello(welcome)
            if welcome.found.len() == asked
                && welcome.agent == channel.peer()
                && (listed || welcome.page.is_none()) =>
        {
            Ok(welcome)
        }
        _ => Err(unexpected()),
    }
}

/// Splits paths into batches that fit in a message, as do the answers.
fn message_batches(paths: &[RelativePath]) -> impl Iterator<Item = &[RelativePath]> {
    /// Bytes around a path in a request, and in the answer to it.
    const PATH_OVERHEAD_BYTES: usize = 160;
    let mut rest = paths;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let too_many = |path: &RelativePath| {
            bytes += PATH_OVERHEAD_BYTES + escaped_len(path.as_str());
            bytes > protocol::PAGE_BYTES_MAX
        };
        let most = rest.len().min(ITEMS_PER_MESSAGE_MAX);
        let count = rest[..most].iter().position(too_many).unwrap_or(most);
        let (part, left) = rest.split_at(count);
        rest = left;
        (!part.is_empty()).then_some(part)
    })
}

/// The length of a text as a JSON string.
pub(crate) fn escaped_len(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' => 2,
            0..0x20 => 6,
            _ => 1,
        })
        .sum()
}

pub(crate) fn unexpected() -> Fault {
    Fault::new(FaultCode::ProtocolError, "the server sent an unexpected reply")
}
