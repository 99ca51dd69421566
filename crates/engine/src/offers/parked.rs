//! The receiver's side: streams that sources have offered, or that were dialled ahead, and nobody uses yet;
//! and sessions that wait for one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::StreamNumber;

use super::offering::OFFERED_STREAMS_MAX;
use crate::fetch::Session;
use crate::net::Link;
use crate::sync::lock;

/// Streams that rest here, of all peers. Each holds a socket and a few hundred kilobytes.
const PARKED_MAX: usize = 128;
/// A stream that nobody uses, of a source that nobody fetches from.
const PARKED_STREAM_TTL: Duration = Duration::from_secs(30);
/// A session is told after this that no stream came; it asks again.
const WAIT_FOR_STREAM_MAX: Duration = Duration::from_secs(2);

/// A stream of a session.
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
        // Told with the lock held: who closes a stream asks here first whether it was parked.
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
    /// A source offers a stream. Returns who is to use it at once; if nobody, it is parked.
    pub(crate) fn park_or_assign(
        &self,
        peer: AgentId,
        link: &Arc<Link>,
        now: Duration,
    ) -> Result<Option<SessionStream>, Fault> {
        let mut inner = lock(&self.inner);
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

    /// A session wants a stream. The newest is taken: it was alive most recently.
    pub(crate) fn assign_or_wait(&self, session: &Arc<Session>, stream: StreamNumber, now: Duration) {
        let mut inner = lock(&self.inner);
        if !inner.assign_parked(session, stream) {
            inner.waiting.push(WaitingSession { session: session.clone(), stream, since: now });
        }
    }

    /// The same for a session that can dial if there is none.
    pub(crate) fn assign_parked(&self, session: &Arc<Session>, stream: StreamNumber) -> bool {
        lock(&self.inner).assign_parked(session, stream)
    }

    /// A stream that was parked ends.
    pub(crate) fn remove(&self, link: &Arc<Link>) {
        lock(&self.inner).parked.retain(|parked| !Arc::ptr_eq(&parked.link, link));
    }

    /// Closes what nobody needs. Returns who waited in vain.
    pub(crate) fn tick(&self, now: Duration, fetches_from: impl Fn(AgentId) -> bool) -> Vec<SessionStream> {
        let mut inner = lock(&self.inner);
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

    /// At the end: sessions and streams know each other no more.
    pub(crate) fn clear(&self) {
        let inner = std::mem::take(&mut *lock(&self.inner));
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
        // Somebody fetches from the first: its stream may be needed at any time.
        offers.tick(at(40), |peer| peer == AgentId(1));
        assert!(one.take_close().is_none() && two.take_close().is_some());
        offers.remove(&one);
        offers.tick(at(1_000), |_| false);
        assert!(one.take_close().is_none(), "it is not ours any more");
        // Of one peer, and of all.
        let results = |peer| (0..OFFERED_STREAMS_MAX + 1).map(move |_| peer).map(AgentId);
        let all: Vec<AgentId> = (10..20).flat_map(results).collect();
        let taken =
            all.iter().filter(|peer| offers.park_or_assign(**peer, &link(9), at(1_000)).is_ok()).count();
        assert_eq!(taken, PARKED_MAX);
        let of_first = lock(&offers.inner).parked.iter().filter(|parked| parked.peer == AgentId(10)).count();
        assert_eq!(of_first, OFFERED_STREAMS_MAX);
    }
}
