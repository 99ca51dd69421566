//! The receiver's side of offered streams: a pool of parked streams, offered by sources or preconnected, and
//! the sessions that wait for one.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::StreamNumber;
use parking_lot::Mutex;

use super::offering::OFFERED_STREAMS_MAX;
use crate::fetch::Session;
use crate::net::Link;

/// Parked streams of all peers. Each holds a socket and a few hundred kilobytes.
const PARKED_MAX: usize = 128;
/// Lifetime of a parked stream of a source that no session fetches from.
const PARKED_STREAM_TTL: Duration = Duration::from_secs(30);
/// A waiting session is told after this time that no stream came, and asks again.
const WAIT_FOR_STREAM_MAX: Duration = Duration::from_secs(2);

/// A session and its stream that wait.
pub(crate) type SessionStream = (Arc<Session>, StreamNumber);

#[derive(Default)]
pub(crate) struct ParkedStreams {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    parked: Vec<ParkedStream>,
    waiting: Vec<WaitingSession>,
}

impl Inner {
    fn assign_parked(&mut self, session: &Arc<Session>, stream: StreamNumber) -> bool {
        let found = self.parked.iter().rposition(|parked| parked.peer == session.peer());
        // Called with the lock held: closing a stream checks here first whether it was parked.
        found.map(|place| self.parked.remove(place).link.assign_to(session.clone(), stream)).is_some()
    }
}

struct ParkedStream {
    peer: AgentId,
    link: Arc<Link>,
    since: Duration,
}

struct WaitingSession {
    session: Arc<Session>,
    stream: StreamNumber,
    since: Duration,
}

impl ParkedStreams {
    /// Accepts an offered stream. Returns the session that uses it at once; otherwise the stream is parked.
    pub(crate) fn park_or_assign(
        &self,
        peer: AgentId,
        link: &Arc<Link>,
        now: Duration,
    ) -> Result<Option<SessionStream>, Fault> {
        let mut inner = self.inner.lock();
        if let Some(place) = inner.waiting.iter().position(|wish| wish.session.peer() == peer) {
            let wish = inner.waiting.remove(place);
            return Ok(Some((wish.session, wish.stream)));
        }
        let of_peer = inner.parked.iter().filter(|parked| parked.peer == peer).count();
        if of_peer >= OFFERED_STREAMS_MAX || inner.parked.len() >= PARKED_MAX {
            return Err(Fault::new(FaultCode::Busy, "more streams are offered than anybody waits for"));
        }
        inner.parked.push(ParkedStream { peer, link: link.clone(), since: now });
        Ok(None)
    }

    /// Takes the newest parked stream for a session, since it was alive most recently.
    pub(crate) fn assign_or_wait(&self, session: &Arc<Session>, stream: StreamNumber, now: Duration) {
        let mut inner = self.inner.lock();
        if !inner.assign_parked(session, stream) {
            inner.waiting.push(WaitingSession { session: session.clone(), stream, since: now });
        }
    }

    /// Takes a parked stream for a session that can dial if there is none.
    pub(crate) fn assign_parked(&self, session: &Arc<Session>, stream: StreamNumber) -> bool {
        self.inner.lock().assign_parked(session, stream)
    }

    /// Removes a parked stream that ended.
    pub(crate) fn remove(&self, link: &Arc<Link>) {
        self.inner.lock().parked.retain(|parked| !Arc::ptr_eq(&parked.link, link));
    }

    /// Closes parked streams that are not needed. Returns the sessions that waited too long.
    pub(crate) fn tick(&self, now: Duration, fetches_from: impl Fn(AgentId) -> bool) -> Vec<SessionStream> {
        let mut inner = self.inner.lock();
        inner.parked.retain_mut(|parked| {
            if fetches_from(parked.peer) {
                parked.since = now;
            }
            let over = now.saturating_sub(parked.since) >= PARKED_STREAM_TTL;
            if over {
                tracing::debug!(source = %parked.peer, "an offered stream that nobody uses is closed");
                parked.link.close(None);
            }
            !over
        });
        let mut late = Vec::new();
        inner.waiting.retain(|wish| {
            let over = now.saturating_sub(wish.since) >= WAIT_FOR_STREAM_MAX;
            if over {
                late.push((wish.session.clone(), wish.stream));
            }
            !over
        });
        late
    }

    /// Breaks the reference cycles between sessions and streams at shutdown.
    pub(crate) fn clear(&self) {
        let inner = std::mem::take(&mut *self.inner.lock());
        drop(inner);
    }
}

pub(crate) fn no_stream_offered() -> Fault {
    Fault::new(FaultCode::Unreachable, "no address of the source is known, and it has offered no stream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::NetworkThread;

    #[test]
    fn unused_streams_are_bounded_and_closed_in_time() {
        let poll = mio::Poll::new().unwrap();
        let thread = NetworkThread::idle(&poll);
        let link = |number| Link::new(thread.clone(), number);
        let (offers, at) = (ParkedStreams::default(), Duration::from_secs);
        let (one, two) = (link(1), link(2));
        offers.park_or_assign(AgentId(1), &one, at(0)).unwrap();
        offers.park_or_assign(AgentId(2), &two, at(10)).unwrap();
        offers.tick(at(29), |_| false);
        assert!(one.take_close().is_none() && two.take_close().is_none());
        // A session fetches from the first source: its stream may be needed at any time.
        offers.tick(at(40), |peer| peer == AgentId(1));
        assert!(one.take_close().is_none() && two.take_close().is_some());
        offers.remove(&one);
        offers.tick(at(1_000), |_| false);
        assert!(one.take_close().is_none(), "it is not ours any more");
        // The limits per peer and in total.
        let results = |peer| (0..OFFERED_STREAMS_MAX + 1).map(move |_| peer).map(AgentId);
        let all: Vec<AgentId> = (10..20).flat_map(results).collect();
        let taken =
            all.iter().filter(|peer| offers.park_or_assign(**peer, &link(9), at(1_000)).is_ok()).count();
        assert_eq!(taken, PARKED_MAX);
        let of_first = offers.inner.lock().parked.iter().filter(|parked| parked.peer == AgentId(10)).count();
        assert_eq!(of_first, OFFERED_STREAMS_MAX);
    }
}
