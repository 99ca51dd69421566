//! Which of a peer's addresses the streams of a session go to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use longhaul_wire::StreamNumber;

/// An address that failed comes last for so long.
const AVOIDED_FOR: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct Paths {
    /// Streams go to all addresses, not to the one that answered first.
    pub(crate) spread: bool,
    used: BTreeMap<StreamNumber, Use>,
    /// Until then.
    avoided: BTreeMap<SocketAddr, Duration>,
}

#[derive(Clone, Copy)]
struct Use {
    address: SocketAddr,
    /// The peer has answered there.
    up: bool,
}

impl Paths {
    /// In which order a stream tries the addresses.
    pub(crate) fn order(
        &mut self,
        stream: StreamNumber,
        mut found: Vec<SocketAddr>,
        now: Duration,
    ) -> Vec<SocketAddr> {
        self.avoided.retain(|_, until| *until > now);
        self.used.remove(&stream);
        let places: BTreeMap<SocketAddr, usize> =
            found.iter().enumerate().map(|(place, &address)| (address, place)).collect();
        let wanted = |address: &SocketAddr| {
            let streams = self.used.values().filter(|used| used.address == *address).count();
            let streams = if self.spread { streams } else { usize::MAX - streams };
            (self.avoided.contains_key(address), streams, places.get(address).copied())
        };
        found.sort_by_cached_key(wanted);
        if let (true, Some(&first)) = (self.spread, found.first()) {
            // Those that are dialled at the same time should not all choose the same.
            self.used.insert(stream, Use { address: first, up: false });
        }
        found
    }

    pub(crate) fn up(&mut self, stream: StreamNumber, address: Option<SocketAddr>) {
        match address {
            Some(address) => self.used.insert(stream, Use { address, up: true }),
            None => self.used.remove(&stream),
        };
    }

    /// Where streams go to now.
    pub(crate) fn in_use(&self) -> Vec<SocketAddr> {
        let up = self.used.values().filter(|used| used.up);
        up.map(|used| used.address).collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(crate) fn down(&mut self, stream: StreamNumber) {
        self.used.remove(&stream);
    }

    /// The stream was too slow, or silent.
    pub(crate) fn given_up(&mut self, stream: StreamNumber, now: Duration) {
        if let Some(used) = self.used.remove(&stream) {
            self.failed(used.address, now);
        }
    }

    pub(crate) fn failed(&mut self, address: SocketAddr, now: Duration) {
        self.avoided.insert(address, now + AVOIDED_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|last| SocketAddr::from(([10, 0, 0, last], 1))).collect()
    }

    #[test]
    fn one_address_is_used_until_it_fails() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = Paths::default();
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(0)), all);
        paths.up(StreamNumber(0), Some(all[1]));
        assert_eq!(paths.order(StreamNumber(1), all.clone(), at(0)), [all[1], all[0], all[2]]);
        paths.up(StreamNumber(1), Some(all[1]));
        paths.given_up(StreamNumber(0), at(1));
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(1)), [all[0], all[2], all[1]]);
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(40)), [all[1], all[0], all[2]]);
    }

    #[test]
    fn streams_spread_over_what_answers() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = Paths { spread: true, ..Paths::default() };
        let first = |paths: &mut Paths, stream| paths.order(StreamNumber(stream), all.clone(), at(0))[0];
        let firsts: Vec<SocketAddr> = (0..6).map(|stream| first(&mut paths, stream)).collect();
        assert_eq!(firsts, [&all[..], &all[..]].concat());
        // The second does not answer: its streams went to others, and new ones do as well.
        paths.failed(all[1], at(0));
        paths.up(StreamNumber(1), Some(all[2]));
        paths.up(StreamNumber(4), Some(all[0]));
        assert_eq!(first(&mut paths, 6), all[0]);
        assert_eq!(first(&mut paths, 7), all[2]);
        assert_eq!(paths.in_use(), [all[0], all[2]], "the others are only tried");
        paths.down(StreamNumber(0));
        assert_eq!(first(&mut paths, 8), all[0]);
    }
}
