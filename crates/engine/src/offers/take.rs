//! The receiver's side: streams that sources have offered, or that were dialled ahead, and nobody uses yet;
//! and sessions that wait for one.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::StreamNumber;

use super::give::STREAMS_MAX;
use crate::fetch::Session;
use crate::net::Link;
use crate::sync::lock;

/// Streams that rest here, of all peers. Each holds a socket and a few hundred kilobytes.
const PARKED_MAX: usize = 128;
/// A stream that nobody uses, of a source that nobody fetches from.
const PARKED_FOR: Duration = Duration::from_secs(30);
/// A session is told after this that no stream came; it asks again.
const WAITED_FOR: Duration = Duration::from_secs(2);

/// A stream of a session.
pub(crate) type Place = (Arc<Session>, StreamNumber);

#[derive(Default)]
pub(crate) struct Offers {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    parked: Vec<Parked>,
    wishes: Vec<Wish>,
}

impl Inner {
    fn use_parked(&mut self, session: &Arc<Session>, stream: StreamNumber) -> bool {
        let found = self.parked.iter().rposition(|parked| parked.peer == session.peer());
        // Told with the lock held: who closes a stream asks here first whether it was parked.
        found.map(|place| self.parked.remove(place).link.use_for(session.clone(), stream)).is_some()
    }
}

struct Parked {
    peer: AgentId,
    link: Arc<Link>,
    since: Duration,
}

struct Wish {
    session: Arc<Session>,
    stream: StreamNumber,
    since: Duration,
}

impl Offers {
    /// A source offers a stream. Returns who is to use it at once; if nobody, it is parked.
    pub(crate) fn arrive(
        &self,
        peer: AgentId,
        link: &Arc<Link>,
        now: Duration,
    ) -> Result<Option<Place>, Fault> {
        let mut inner = lock(&self.inner);
        if let Some(place) = inner.wishes.iter().position(|wish| wish.session.peer() == peer) {
            let wish = inner.wishes.remove(place);
            return Ok(Some((wish.session, wish.stream)));
        }
        let of_peer = inner.parked.iter().filter(|parked| parked.peer == peer).count();
        if of_peer >= STREAMS_MAX || inner.parked.len() >= PARKED_MAX {
            return Err(Fault::new(FaultCode::Busy, "more streams are offered than anybody waits for"));
        }
        inner.parked.push(Parked { peer, link: link.clone(), since: now });
        Ok(None)
    }

    /// A session wants a stream. The newest is taken: it was alive most recently.
    pub(crate) fn want(&self, session: &Arc<Session>, stream: StreamNumber, now: Duration) {
        let mut inner = lock(&self.inner);
        if !inner.use_parked(session, stream) {
            inner.wishes.push(Wish { session: session.clone(), stream, since: now });
        }
    }

    /// The same for a session that can dial if there is none.
    pub(crate) fn use_parked(&self, session: &Arc<Session>, stream: StreamNumber) -> bool {
        lock(&self.inner).use_parked(session, stream)
    }

    /// A stream that was parked ends.
    pub(crate) fn left(&self, link: &Arc<Link>) {
        lock(&self.inner).parked.retain(|parked| !Arc::ptr_eq(&parked.link, link));
    }

    /// Closes what nobody needs. Returns who waited in vain.
    pub(crate) fn tick(&self, now: Duration, fetches_from: impl Fn(AgentId) -> bool) -> Vec<Place> {
        let mut inner = lock(&self.inner);
        inner.parked.retain_mut(|parked| {
            if fetches_from(parked.peer) {
                parked.since = now;
            }
            let over = now.saturating_sub(parked.since) >= PARKED_FOR;
            if over {
                tracing::debug!(source = %parked.peer, "an offered stream that nobody uses is closed");
                parked.link.close(None);
            }
            !over
        });
        let mut late = Vec::new();
        inner.wishes.retain(|wish| {
            let over = now.saturating_sub(wish.since) >= WAITED_FOR;
            if over {
                late.push((wish.session.clone(), wish.stream));
            }
            !over
        });
        late
    }

    /// At the end: sessions and streams know each other no more.
    pub(crate) fn forget_all(&self) {
        let inner = std::mem::take(&mut *lock(&self.inner));
        drop(inner);
    }
}

pub(crate) fn none_came() -> Fault {
    Fault::new(FaultCode::Unreachable, "no address of the source is known, and it has offered no stream")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::NetworkThread;

    #[test]
    fn what_nobody_uses_is_closed_in_time_and_bounded() {
        let poll = mio::Poll::new().unwrap();
        let thread = NetworkThread::idle(&poll);
        let link = |number| Link::new(thread.clone(), number);
        let (offers, at) = (Offers::default(), Duration::from_secs);
        let (one, two) = (link(1), link(2));
        offers.arrive(AgentId(1), &one, at(0)).unwrap();
        offers.arrive(AgentId(2), &two, at(10)).unwrap();
        offers.tick(at(29), |_| false);
        assert!(one.closing().is_none() && two.closing().is_none());
        // Somebody fetches from the first: its stream may be needed at any time.
        offers.tick(at(40), |peer| peer == AgentId(1));
        assert!(one.closing().is_none() && two.closing().is_some());
        offers.left(&one);
        offers.tick(at(1_000), |_| false);
        assert!(one.closing().is_none(), "it is not ours any more");
        // Of one peer, and of all.
        let results = |peer| (0..STREAMS_MAX + 1).map(move |_| peer).map(AgentId);
        let all: Vec<AgentId> = (10..20).flat_map(results).collect();
        let taken = all.iter().filter(|peer| offers.arrive(**peer, &link(9), at(1_000)).is_ok()).count();
        assert_eq!(taken, PARKED_MAX);
        let of_first = lock(&offers.inner).parked.iter().filter(|parked| parked.peer == AgentId(10)).count();
        assert_eq!(of_first, STREAMS_MAX);
    }
}
