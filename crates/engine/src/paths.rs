//! Which of a peer's addresses the streams of a session go to.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use longhaul_wire::StreamNumber;

use crate::interface::Path;

/// A way that failed comes last for so long.
const AVOIDED_FOR: Duration = Duration::from_secs(30);
/// A share of streams is compared in this many parts of one.
const PARTS: u64 = 1 << 20;

/// A path whose name is an address now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub(crate) address: SocketAddr,
    pub(crate) path: Arc<Path>,
}

/// Both ends of a way.
type Ends = (SocketAddr, Option<IpAddr>);

impl Way {
    pub(crate) fn key(&self) -> Ends {
        (self.address, self.path.local)
    }

    /// Whether it is one of these, or what one of these names.
    fn is_of<'a>(&self, mut paths: impl Iterator<Item = &'a Arc<Path>>) -> bool {
        paths.any(|path| self.is(path))
    }

    pub(crate) fn is(&self, path: &Path) -> bool {
        path.local == self.path.local
            && (path.address == self.path.address || path.address.parse() == Ok(self.address))
    }
}

/// Whether an address that failed is one that the path names. Names of hosts are not looked up here.
fn is_at(path: &Path, ends: &Ends) -> bool {
    path.local == ends.1 && path.address.parse() == Ok(ends.0)
}

#[derive(Default)]
pub(crate) struct Paths {
    /// Streams go to all addresses, not to the one that answered first.
    pub(crate) spread: bool,
    used: BTreeMap<StreamNumber, Use>,
    /// Until then.
    avoided: BTreeMap<Ends, Duration>,
}

#[derive(Clone)]
struct Use {
    way: Way,
    /// The peer has answered there.
    up: bool,
}

impl Paths {
    /// In which order a stream tries the ways.
    pub(crate) fn order(&mut self, stream: StreamNumber, mut found: Vec<Way>, now: Duration) -> Vec<Way> {
        self.avoided.retain(|_, until| *until > now);
        self.used.remove(&stream);
        let places: BTreeMap<Ends, usize> =
            found.iter().enumerate().map(|(place, way)| (way.key(), place)).collect();
        let wanted = |way: &Way| {
            let key = way.key();
            let streams = self.used.values().filter(|used| used.way.key() == key).count() as u64;
            let taken = match self.spread {
                true => (streams + 1) * PARTS / u64::from(way.path.weight.max(1)),
                false => u64::MAX - streams,
            };
            (self.avoided.contains_key(&key), way.path.spare, taken, places.get(&key).copied())
        };
        found.sort_by_cached_key(wanted);
        if let (true, Some(first)) = (self.spread, found.first()) {
            // Those that are dialled at the same time should not all choose the same.
            self.used.insert(stream, Use { way: first.clone(), up: false });
        }
        found
    }

    pub(crate) fn up(&mut self, stream: StreamNumber, way: Option<Way>) {
        match way {
            Some(way) => self.used.insert(stream, Use { way, up: true }),
            None => self.used.remove(&stream),
        };
    }

    /// How it goes, once its peer has answered.
    pub(crate) fn way_of(&self, stream: StreamNumber) -> Option<&Way> {
        self.used.get(&stream).filter(|used| used.up).map(|used| &used.way)
    }

    /// Streams that go this way.
    pub(crate) fn on(&self, way: &Way) -> usize {
        self.used.values().filter(|used| used.up && used.way.key() == way.key()).count()
    }

    /// Where streams go to now.
    pub(crate) fn in_use(&self) -> Vec<SocketAddr> {
        let up = self.used.values().filter(|used| used.up);
        up.map(|used| used.way.address).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The streams that go another way than these, or a spare one while another may answer.
    pub(crate) fn elsewhere(&self, paths: &[Arc<Path>], now: Duration) -> Vec<StreamNumber> {
        let is_avoided =
            |path: &Path| self.avoided.iter().any(|(ends, until)| *until > now && is_at(path, ends));
        let may_answer = paths.iter().any(|path| !path.spare && !is_avoided(path));
        let usable = || paths.iter().filter(|path| !path.spare || !may_answer);
        let other = self.used.iter().filter(|(_, used)| used.up && !used.way.is_of(usable()));
        other.map(|(stream, _)| *stream).collect()
    }

    pub(crate) fn down(&mut self, stream: StreamNumber) {
        self.used.remove(&stream);
    }

    /// The stream was too slow, or silent.
    pub(crate) fn given_up(&mut self, stream: StreamNumber, now: Duration) {
        if let Some(used) = self.used.remove(&stream) {
            self.failed(&used.way, now);
        }
    }

    pub(crate) fn failed(&mut self, way: &Way, now: Duration) {
        self.avoided.insert(way.key(), now + AVOIDED_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: u8) -> Vec<Way> {
        (1..=count).map(|last| way(last, 1)).collect()
    }

    fn way(last: u8, weight: u32) -> Way {
        let address = SocketAddr::from(([10, 0, 0, last], 1));
        Way { address, path: Arc::new(Path { weight, ..Path::to(address.to_string()) }) }
    }

    #[test]
    fn one_address_is_used_until_it_fails() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = Paths::default();
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(0)), all);
        paths.up(StreamNumber(0), Some(all[1].clone()));
        let of = |places: [usize; 3]| places.map(|place| all[place].clone());
        assert_eq!(paths.order(StreamNumber(1), all.clone(), at(0)), of([1, 0, 2]));
        paths.up(StreamNumber(1), Some(all[1].clone()));
        paths.given_up(StreamNumber(0), at(1));
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(1)), of([0, 2, 1]));
        assert_eq!(paths.order(StreamNumber(0), all.clone(), at(40)), of([1, 0, 2]));
    }

    #[test]
    fn streams_spread_over_what_answers() {
        let (all, at) = (addresses(3), Duration::from_secs);
        let mut paths = Paths { spread: true, ..Paths::default() };
        let first =
            |paths: &mut Paths, stream| paths.order(StreamNumber(stream), all.clone(), at(0))[0].clone();
        let firsts: Vec<Way> = (0..6).map(|stream| first(&mut paths, stream)).collect();
        assert_eq!(firsts, [&all[..], &all[..]].concat());
        // The second does not answer: its streams went to others, and new ones do as well.
        paths.failed(&all[1], at(0));
        paths.up(StreamNumber(1), Some(all[2].clone()));
        paths.up(StreamNumber(4), Some(all[0].clone()));
        assert_eq!(first(&mut paths, 6), all[0]);
        assert_eq!(first(&mut paths, 7), all[2]);
        assert_eq!(paths.in_use(), [all[0].address, all[2].address], "the others are only tried");
        paths.down(StreamNumber(0));
        assert_eq!(first(&mut paths, 8), all[0]);
    }

    #[test]
    fn streams_are_shared_out_by_weight() {
        let ways = vec![way(1, 3), way(2, 1)];
        let mut paths = Paths { spread: true, ..Paths::default() };
        let mut to = |stream| paths.order(StreamNumber(stream), ways.clone(), Duration::ZERO)[0].clone();
        let first = (0..8).filter(|&stream| to(stream) == ways[0]).count();
        assert_eq!(first, 6);
    }

    #[test]
    fn what_goes_another_way_is_known() {
        let mut paths = Paths { spread: true, ..Paths::default() };
        paths.up(StreamNumber(0), Some(way(1, 1)));
        paths.up(StreamNumber(1), Some(way(2, 1)));
        let local = Some("10.0.0.9".parse().unwrap());
        let first = || Arc::new(Path { weight: 7, ..Path::to("10.0.0.1:1") });
        let at = Duration::from_secs;
        assert_eq!(paths.elsewhere(&[first()], at(0)), [StreamNumber(1)]);
        assert_eq!(paths.elsewhere(&[first(), way(2, 1).path], at(0)), []);
        let from_elsewhere = Arc::new(Path { local, ..(*first()).clone() });
        assert_eq!(paths.elsewhere(&[from_elsewhere], at(0)), [StreamNumber(0), StreamNumber(1)]);
    }

    #[test]
    fn a_spare_way_is_used_only_while_no_other_answers() {
        let at = Duration::from_secs;
        let spare = Way { path: Arc::new(Path { spare: true, ..(*way(1, 1).path).clone() }), ..way(1, 1) };
        let (first, ways) = (way(2, 1), [spare.clone(), way(2, 1)]);
        let set = ways.each_ref().map(|way| way.path.clone());
        for spread in [false, true] {
            let mut paths = Paths { spread, ..Paths::default() };
            let order = |paths: &mut Paths, at| paths.order(StreamNumber(0), ways.to_vec(), at);
            assert_eq!(order(&mut paths, at(0)), [first.clone(), spare.clone()]);
            // It was in use before.
            paths.up(StreamNumber(0), Some(spare.clone()));
            assert_eq!(paths.elsewhere(&set, at(0)), [StreamNumber(0)]);
            paths.up(StreamNumber(1), Some(first.clone()));
            paths.given_up(StreamNumber(1), at(1));
            assert_eq!(paths.elsewhere(&set, at(1)), [], "there is nothing else");
            assert_eq!(order(&mut paths, at(1)), [spare.clone(), first.clone()]);
            assert_eq!(order(&mut paths, at(40)), [first.clone(), spare.clone()], "it may answer again");
        }
    }
}
