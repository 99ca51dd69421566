//! The source's side of offered streams: keeps streams open to a receiver, redialling with a delay.

use std::sync::Arc;
use std::time::Duration;

use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_wire::keepalive::reconnect_delay;
use parking_lot::Mutex;

use crate::net::Link;

/// Streams of one offer, within what a receiver accepts.
pub(crate) const OFFERED_STREAMS_MAX: usize = 32;
/// A stream that lived at least this long is redialled without delay.
const HEALTHY_STREAM_AGE_MIN: Duration = Duration::from_secs(3);

/// Streams on which a peer may fetch from this agent's exports. They are redialled when they end, until this
/// is dropped.
pub struct Offer {
    offering: Arc<Offering>,
}

impl Offer {
    pub(crate) fn new(offering: Arc<Offering>) -> Offer {
        Offer { offering }
    }

    /// Established streams.
    pub fn streams(&self) -> usize {
        self.offering.inner.lock().up()
    }

    /// The peer, once a stream was established.
    pub fn peer(&self) -> Option<AgentId> {
        self.offering.inner.lock().peer
    }

    /// The fault that ended the last stream; another stream may be established by now.
    pub fn fault(&self) -> Option<Fault> {
        self.offering.inner.lock().fault.clone()
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        self.offering.close();
    }
}

pub(crate) struct Offering {
    addresses: Vec<String>,
    inner: Mutex<Inner>,
}

struct Inner {
    streams: Vec<OfferedStream>,
    closed: bool,
    peer: Option<AgentId>,
    fault: Option<Fault>,
}

struct OfferedStream {
    state: State,
    failures: usize,
}

enum State {
    Down { since: Duration },
    Dialling,
    Up { since: Duration, link: Arc<Link> },
}

impl Inner {
    fn up(&self) -> usize {
        self.streams.iter().filter(|place| matches!(place.state, State::Up { .. })).count()
    }
}

impl Offering {
    pub(crate) fn new(addresses: &[String], streams: usize, now: Duration) -> Offering {
        let place = || OfferedStream { state: State::Down { since: now }, failures: 0 };
        let places = (0..streams.clamp(1, OFFERED_STREAMS_MAX)).map(|_| place()).collect();
        let inner = Mutex::new(Inner { streams: places, closed: false, peer: None, fault: None });
        Offering { addresses: addresses.to_vec(), inner }
    }

    pub(crate) fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Slots to dial now; they count as dialling from here on. None if the offer has ended.
    pub(crate) fn due(&self, now: Duration) -> Option<Vec<usize>> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return None;
        }
        let mut due = Vec::new();
        for (number, place) in inner.streams.iter_mut().enumerate() {
            if let State::Down { since } = place.state
                && now.saturating_sub(since) >= reconnect_delay(place.failures)
            {
                place.state = State::Dialling;
                due.push(number);
            }
        }
        Some(due)
    }

    /// Called when the peer is authenticated and the stream is offered to it.
    pub(crate) fn stream_up(&self, place: usize, peer: AgentId, link: Arc<Link>, now: Duration) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return link.close(None);
        }
        inner.peer = Some(peer);
        inner.streams[place].state = State::Up { since: now, link };
    }

    pub(crate) fn stream_down(&self, place: usize, fault: Fault, now: Duration) {
        let mut inner = self.inner.lock();
        if inner.closed {
            return;
        }
        let place = &mut inner.streams[place];
        let lived = matches!(&place.state, State::Up { since,
            .. } if now.saturating_sub(*since) >= HEALTHY_STREAM_AGE_MIN);
        place.failures = if lived { 0 } else { place.failures + 1 };
        place.state = State::Down { since: now };
        tracing::debug!(fault = %fault.chain(), "an offered stream ended");
        inner.fault = Some(fault);
    }

    fn close(&self) {
        let mut inner = self.inner.lock();
        inner.closed = true;
        for place in std::mem::take(&mut inner.streams) {
            if let State::Up { link, .. } = place.state {
                let done = Fault::new(FaultCode::ConnectionLost, "the source offers no streams any more");
                link.close(Some(done));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_streams_are_dialled_again_with_backoff() {
        let at = Duration::from_millis;
        let offering = Offering::new(&["here:1".into()], 2, at(0));
        assert_eq!(offering.due(at(0)), Some(vec![0, 1]));
        assert_eq!(offering.due(at(9_000)), Some(vec![]), "while they are dialled");
        offering.stream_down(1, Fault::new(FaultCode::Unreachable, "refused"), at(9_000));
        assert_eq!(offering.due(at(9_050)), Some(vec![]));
        assert_eq!(offering.due(at(9_100)), Some(vec![1]));
        offering.stream_down(1, Fault::new(FaultCode::Unreachable, "refused"), at(9_200));
        assert_eq!(offering.due(at(9_300)), Some(vec![]));
        assert_eq!(offering.due(at(9_500)), Some(vec![1]));
        let offer = Offer::new(Arc::new(offering));
        assert_eq!((offer.streams(), offer.fault().unwrap().code), (0, FaultCode::Unreachable));
        let offering = offer.offering.clone();
        drop(offer);
        assert_eq!(offering.due(at(60_000)), None);
    }
}
