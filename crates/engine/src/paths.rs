//! Path selection: assigns the streams of a session to a peer's addresses (multi-path).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_wire::StreamNumber;

use crate::interface::Path;

/// A path that failed is tried last for this long.
const AVOID_FAILED_PATH_FOR: Duration = Duration::from_secs(30);
/// Shares of streams are compared in fractions of one over this.
const LOAD_SCALE: u64 = 1 << 20;

/// A path with its host name resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedPath {
    pub(crate) address: SocketAddr,
    pub(crate) path: Arc<Path>,
}

/// A local and a remote address.
type Endpoints = (SocketAddr, Option<IpAddr>);

impl ResolvedPath {
    pub(crate) fn endpoints(&self) -> Endpoints {
        (self.address, self.path.local)
    }

    /// Whether it equals one of the given addresses, or an address that one of them resolves to.
    fn matches_any<'a>(&self, mut paths: impl Iterator<Item = &'a Arc<Path>>) -> bool {
        paths.any(|path| self.matches(path))
    }

    pub(crate) fn matches(&self, path: &Path) -> bool {
        path.local == self.path.local
            && (path.address == self.path.address || path.address.parse() == Ok(self.address))
    }
}

/// Whether an address that failed belongs to the path. Host names are not resolved here.
fn names_endpoints(path: &Path, ends: &Endpoints) -> bool {
    path.local == ends.1 && path.address.parse() == Ok(ends.0)
}

#[derive(Default)]
pub(crate) struct PathSelector {
    /// Whether streams go to all addresses, and not only to the one that answered first.
    pub(crate) spread: bool,
    used: BTreeMap<StreamNumber, StreamPath>,
    /// End of the penalty.
    avoided: BTreeMap<Endpoints, Duration>,
}

#[derive(Clone)]
struct StreamPath {
    path: ResolvedPath,
    /// Whether the peer has answered there.
    up: bool,
}

impl PathSelector {
    /// Orders the paths for the next stream.
    pub(crate) fn rank(
        &mut self,
        stream: StreamNumber,
        mut found: Vec<ResolvedPath>,
        now: Duration,
    ) -> Vec<ResolvedPath> {
        self.used.remove(&stream);
        let places: BTreeMap<Endpoints, usize> =
            found.iter().enumerate().map(|(place, way)| (way.endpoints(), place)).collect();
        let wanted = |way: &ResolvedPath| {
            let key = way.endpoints();
            let streams = self.used.values().filter(|used| used.path.endpoints() == key).count() as u64;
            let taken = match self.spread {
                true => (streams + 1) * LOAD_SCALE / u64::from(way.path.weight.max(1)),
                false => u64::MAX - streams,
            };
            let is_avoided = self.avoided.get(&key).is_some_and(|until| *until > now);
            (is_avoided, way.path.spare, taken, places.get(&key).copied())
        };
        found.sort_by_cached_key(wanted);
        if let (true, Some(first)) = (self.spread, found.first()) {
            // Streams dialled at the same time should not all choose the same path.
            self.used.insert(stream, StreamPath { path: first.clone(), up: false });
        }
        found
    }

    /// Ends the penalties that are over, and says whether there were any: streams on spare paths may then
    /// be misplaced.
    pub(crate) fn end_penalties(&mut self, now: Duration) -> bool {
        let before = self.avoided.len();
        self.avoided.retain(|_, until| *until > now);
        self.avoided.len() < before
    }

    pub(crate) fn stream_up(&mut self, stream: StreamNumber, way: Option<ResolvedPath>) {
        match way {
            Some(way) => self.used.insert(stream, StreamPath { path: way, up: true }),
            None => self.used.remove(&stream),
        };
    }

    /// The state of a path whose peer has answered.
    pub(crate) fn path_of(&self, stream: StreamNumber) -> Option<&ResolvedPath> {
        self.used.get(&stream).filter(|used| used.up).map(|used| &used.path)
    }

    /// Streams on this path.
    pub(crate) fn streams_on(&self, way: &ResolvedPath) -> usize {
        self.used.values().filter(|used| used.up && used.path.endpoints() == way.endpoints()).count()
    }

    /// The paths that streams use now.
    pub(crate) fn addresses_in_use(&self) -> Vec<SocketAddr> {
        let up = self.used.values().filter(|used| used.up);
        up.map(|used| used.path.address).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The streams on other paths than these, or on a spare path while a preferred one may answer.
    pub(crate) fn misplaced_streams(&self, paths: &[Arc<Path>], now: Duration) -> Vec<StreamNumber> {
        let is_avoided = |path: &Path| {
            self.avoided.iter().any(|(ends, until)| *until > now && names_endpoints(path, ends))
        };
        let may_answer = paths.iter().any(|path| !path.spare && !is_avoided(path));
        let usable = || paths.iter().filter(|path| !path.spare || !may_answer);
        let other = self.used.iter().filter(|(_, used)| used.up && !used.path.matches_any(usable()));
        other.map(|(stream, _)| *stream).collect()
    }

    pub(crate) fn stream_down(&mut self, stream: StreamNumber) {
        self.used.remove(&stream);
    }

    /// Records that a stream was too slow or silent.
    pub(crate) fn stream_given_up(&mut self, stream: StreamNumber, now: Duration) {
        if let Some(used) = self.used.remove(&stream) {
            self.avoid(&used.path, now);
        }
    }

    pub(crate) fn avoid(&mut self, way: &ResolvedPath, now: Duration) {
        self.avoided.insert(way.endpoints(), now + AVOID_FAILED_PATH_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: u8) -> Vec<ResolvedPath> {
        (1..=count).map(|last| way(last, 1)).collect()
    }

    fn way(last: u8, weight: u32) -> ResolvedPath {
        let address = SocketAddr::from(([10, 0, 0, last], 1));
        ResolvedPath { address, path: Arc::new(Path { weight, ..Path::new(address.to_string()) }) }
    }

    #[test]
    fn one_address_is_used_until_it_fails() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = PathSelector::default();
        assert_eq!(paths.rank(StreamNumber(0), all.clone(), at(0)), all);
        paths.stream_up(StreamNumber(0), Some(all[1].clone()));
        let of = |places: [usize; 3]| places.map(|place| all[place].clone());
        assert_eq!(paths.rank(StreamNumber(1), all.clone(), at(0)), of([1, 0, 2]));
        paths.stream_up(StreamNumber(1), Some(all[1].clone()));
        paths.stream_given_up(StreamNumber(0), at(1));
        assert_eq!(paths.rank(StreamNumber(0), all.clone(), at(1)), of([0, 2, 1]));
        assert_eq!(paths.rank(StreamNumber(0), all.clone(), at(40)), of([1, 0, 2]));
    }

    #[test]
    fn streams_spread_over_the_addresses_that_answer() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = PathSelector { spread: true, ..PathSelector::default() };
        let first = |paths: &mut PathSelector, stream| {
            paths.rank(StreamNumber(stream), all.clone(), at(0))[0].clone()
        };
        let firsts: Vec<ResolvedPath> = (0..6).map(|stream| first(&mut paths, stream)).collect();
        assert_eq!(firsts, [&all[..], &all[..]].concat());
        // The second path does not answer: its streams moved to others, and new ones go there as well.
        paths.avoid(&all[1], at(0));
        paths.stream_up(StreamNumber(1), Some(all[2].clone()));
        paths.stream_up(StreamNumber(4), Some(all[0].clone()));
        assert_eq!(first(&mut paths, 6), all[0]);
        assert_eq!(first(&mut paths, 7), all[2]);
        assert_eq!(paths.addresses_in_use(), [all[0].address, all[2].address], "the others are only tried");
        paths.stream_down(StreamNumber(0));
        assert_eq!(first(&mut paths, 8), all[0]);
    }

    #[test]
    fn streams_are_distributed_by_weight() {
        let ways = vec![way(1, 3), way(2, 1)];
        let mut paths = PathSelector { spread: true, ..PathSelector::default() };
        let mut to = |stream| paths.rank(StreamNumber(stream), ways.clone(), Duration::ZERO)[0].clone();
        let first = (0..8).filter(|&stream| to(stream) == ways[0]).count();
        assert_eq!(first, 6);
    }

    #[test]
    fn misplaced_streams_are_found() {
        let mut paths = PathSelector { spread: true, ..PathSelector::default() };
        paths.stream_up(StreamNumber(0), Some(way(1, 1)));
        paths.stream_up(StreamNumber(1), Some(way(2, 1)));
        let local = Some("10.0.0.9".parse().unwrap());
        let first = || Arc::new(Path { weight: 7, ..Path::new("10.0.0.1:1") });
        let at = Duration::from_secs;
        assert_eq!(paths.misplaced_streams(&[first()], at(0)), [StreamNumber(1)]);
        assert_eq!(paths.misplaced_streams(&[first(), way(2, 1).path], at(0)), []);
        let from_elsewhere = Arc::new(Path { local, ..(*first()).clone() });
        assert_eq!(paths.misplaced_streams(&[from_elsewhere], at(0)), [StreamNumber(0), StreamNumber(1)]);
    }

    #[test]
    fn a_spare_path_is_used_only_while_no_other_answers() {
        let at = Duration::from_secs;
        let spare =
            ResolvedPath { path: Arc::new(Path { spare: true, ..(*way(1, 1).path).clone() }), ..way(1, 1) };
        let (first, ways) = (way(2, 1), [spare.clone(), way(2, 1)]);
        let set = ways.each_ref().map(|way| way.path.clone());
        for spread in [false, true] {
            let mut paths = PathSelector { spread, ..PathSelector::default() };
            let order = |paths: &mut PathSelector, at| paths.rank(StreamNumber(0), ways.to_vec(), at);
            assert_eq!(order(&mut paths, at(0)), [first.clone(), spare.clone()]);
            // It was in use before.
            paths.stream_up(StreamNumber(0), Some(spare.clone()));
            assert_eq!(paths.misplaced_streams(&set, at(0)), [StreamNumber(0)]);
            paths.stream_up(StreamNumber(1), Some(first.clone()));
            paths.stream_given_up(StreamNumber(1), at(1));
            assert_eq!(paths.misplaced_streams(&set, at(1)), [], "there is nothing else");
            assert_eq!(order(&mut paths, at(1)), [spare.clone(), first.clone()]);
            assert!(!paths.end_penalties(at(30)));
            assert_eq!(order(&mut paths, at(40)), [first.clone(), spare.clone()], "it may answer again");
            paths.stream_up(StreamNumber(0), Some(spare.clone()));
            assert!(paths.end_penalties(at(40)) && !paths.end_penalties(at(40)));
            assert_eq!(paths.misplaced_streams(&set, at(40)), [StreamNumber(0)]);
        }
    }
}
