//! The order in which files are staged: cartridge by cartridge, and on each by position, as a tape is wound.
//! An elevator that serves its floors in batches (N-step SCAN): what comes for a cartridge while it is
//! mounted waits for its next turn, so that no cartridge keeps a drive from the others.
//!
//! Files of an unknown cartridge go in the order in which they came, as many commands at a time as there are.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use longhaul_model::Timestamp;

use super::state::Path;

/// Files whose places are not known yet hold up the others for this long at most: a cartridge is mounted once
/// for all that is wanted of it, and a mount takes longer.
const PLACING_TIME_MAX: Duration = Duration::from_secs(60);

/// Where a file lies on tape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TapePlace {
    pub(super) cartridge: Arc<str>,
    pub(super) position: u64,
}

/// What a caller makes of a path that is offered to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offer {
    Take,
    /// Not now.
    Pass,
    /// Nobody wants it any more.
    Forget,
    /// Nothing further by this command.
    Stop,
}

#[derive(Debug, Default)]
pub(super) struct StageQueue {
    /// Whether somebody tells where files lie.
    has_places: bool,
    cartridges: BTreeMap<Arc<str>, Cartridge>,
    waiting: BTreeMap<Path, Waiting>,
    unplaced: BTreeSet<(u64, Path)>,
    unplaced_since: Option<Timestamp>,
    arrivals: u64,
    /// Paths that commands work on, with their cartridges.
    in_use: BTreeMap<Path, Arc<str>>,
    /// Cartridges whose turn it is, each with the last arrival that it serves: until it is over, a drive has
    /// them.
    turns: BTreeMap<Arc<str>, u64>,
}

#[derive(Debug, Default)]
struct Cartridge {
    by_position: BTreeSet<(u64, u64, Path)>,
    by_arrival: BTreeSet<u64>,
}

#[derive(Clone, Debug)]
struct Waiting {
    arrival: u64,
    place: Option<TapePlace>,
}

/// The cartridge of files of which nobody tells where they lie.
const UNKNOWN_CARTRIDGE: &str = "";

impl StageQueue {
    pub(super) fn with_places(has_places: bool) -> StageQueue {
        StageQueue { has_places, ..StageQueue::default() }
    }

    /// A path waits; one that waits already keeps its turn.
    pub(super) fn push(&mut self, path: Path, now: Timestamp) {
        if self.waiting.contains_key(&path) {
            return;
        }
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.waiting.insert(path.clone(), Waiting { arrival, place: None });
        if self.has_places {
            self.unplaced_since.get_or_insert(now);
            self.unplaced.insert((arrival, path));
        } else {
            self.put(path, TapePlace { cartridge: UNKNOWN_CARTRIDGE.into(), position: 0 }, arrival);
        }
    }

    /// Whatever waits, waits since now: after a restart.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.unplaced_since = self.unplaced_since.map(|_| now);
    }

    /// The first paths whose places are to be asked for.
    pub(super) fn unplaced(&self, most: usize) -> Vec<Path> {
        self.unplaced.iter().take(most).map(|(_, path)| path.clone()).collect()
    }

    /// Where a path lies; none: that is not known.
    pub(super) fn place(&mut self, path: &Path, place: Option<TapePlace>) {
        let Some(arrival) = self.waiting.get(path).map(|waiting| waiting.arrival) else { return };
        if !self.unplaced.remove(&(arrival, path.clone())) {
            return;
        }
        if self.unplaced.is_empty() {
            self.unplaced_since = None;
        }
        let unknown = || TapePlace { cartridge: UNKNOWN_CARTRIDGE.into(), position: 0 };
        self.put(path.clone(), place.unwrap_or_else(unknown), arrival);
    }

    fn put(&mut self, path: Path, place: TapePlace, arrival: u64) {
        let cartridge = self.cartridges.entry(place.cartridge.clone()).or_default();
        cartridge.by_position.insert((place.position, arrival, path.clone()));
        cartridge.by_arrival.insert(arrival);
        self.waiting.insert(path, Waiting { arrival, place: Some(place) });
    }

    fn forget(&mut self, path: &Path) {
        let Some(Waiting { arrival, place }) = self.waiting.remove(path) else { return };
        self.unplaced.remove(&(arrival, path.clone()));
        let Some(TapePlace { cartridge, position }) = place else { return };
        if let Some(row) = self.cartridges.get_mut(&cartridge) {
            row.by_position.remove(&(position, arrival, path.clone()));
            row.by_arrival.remove(&arrival);
            if row.by_position.is_empty() {
                self.cartridges.remove(&cartridge);
            }
        }
    }

    /// The paths of the next command, at most `most` and all of one cartridge, as `offer` takes them.
    pub(super) fn next(
        &mut self,
        most: usize,
        now: Timestamp,
        mut offer: impl FnMut(&Path) -> Offer,
    ) -> Vec<Path> {
        if self.unplaced_since.is_some_and(|since| now.since(since) < PLACING_TIME_MAX) {
            return Vec::new();
        }
        for (cartridge, last_arrival) in self.candidates() {
            // Where nothing of a turn can be taken now, what came later need not wait for it.
            for last_arrival in BTreeSet::from([last_arrival, self.arrivals]) {
                let (taken, is_full) = self.take(&cartridge, last_arrival, most, &mut offer);
                if taken.is_empty() && !is_full {
                    continue;
                }
                if !taken.is_empty() && *cartridge != *UNKNOWN_CARTRIDGE {
                    self.turns.insert(cartridge, last_arrival);
                }
                return taken;
            }
        }
        Vec::new()
    }

    /// Takes paths of a cartridge for a command. Returns them, and whether nothing further is to be offered.
    fn take(
        &mut self,
        cartridge: &Arc<str>,
        last_arrival: u64,
        most: usize,
        offer: &mut impl FnMut(&Path) -> Offer,
    ) -> (Vec<Path>, bool) {
        let (mut taken, mut forgotten, mut is_full) = (Vec::new(), Vec::new(), false);
        let rows = self.cartridges.get(cartridge).into_iter().flat_map(|row| &row.by_position);
        for (_, _, path) in rows.filter(|(_, arrival, _)| *arrival <= last_arrival) {
            match offer(path) {
                Offer::Take => taken.push(path.clone()),
                Offer::Forget => forgotten.push(path.clone()),
                Offer::Pass => {}
                Offer::Stop => is_full = true,
            }
            if is_full || taken.len() >= most {
                break;
            }
        }
        forgotten.iter().for_each(|path| self.forget(path));
        for path in &taken {
            self.forget(path);
            self.in_use.insert(path.clone(), cartridge.clone());
        }
        (taken, is_full)
    }

    /// Cartridges that a command may work on, in their order, each with the last arrival that its turn
    /// serves.
    fn candidates(&self) -> Vec<(Arc<str>, u64)> {
        let used: BTreeSet<&Arc<str>> = self.in_use.values().collect();
        let is_free = |name: &Arc<str>| **name == *UNKNOWN_CARTRIDGE || !used.contains(name);
        let mut rows: Vec<(bool, u64, Arc<str>, u64)> = Vec::new();
        for (name, row) in self.cartridges.iter().filter(|(name, _)| is_free(name)) {
            let Some(&first) = row.by_arrival.first() else { continue };
            let turn = self.turns.get(name).copied().filter(|last| first <= *last);
            rows.push((turn.is_none(), first, name.clone(), turn.unwrap_or(self.arrivals)));
        }
        rows.sort();
        rows.into_iter().map(|(_, _, name, last)| (name, last)).collect()
    }

    /// A command is done with a path.
    pub(super) fn release(&mut self, path: &str) {
        let Some(cartridge) = self.in_use.remove(path) else { return };
        let first = self.cartridges.get(&cartridge).and_then(|row| row.by_arrival.first());
        let is_over = self.turns.get(&cartridge).is_some_and(|last| first.is_none_or(|first| first > last));
        if is_over && !self.in_use.values().any(|other| *other == cartridge) {
            self.turns.remove(&cartridge);
        }
    }

    #[cfg(test)]
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.waiting.contains_key(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(seconds)
    }

    fn path(name: &str) -> Path {
        name.into()
    }

    /// Files named after their cartridges and positions, such as `b7`.
    fn queue(names: &[&str]) -> StageQueue {
        let mut queue = StageQueue::with_places(true);
        push(&mut queue, names);
        queue
    }

    fn push(queue: &mut StageQueue, names: &[&str]) {
        for name in names {
            queue.push(path(name), at(0));
            let place = TapePlace { cartridge: name[..1].into(), position: name[1..].parse().unwrap() };
            queue.place(&path(name), Some(place));
        }
    }

    fn next(queue: &mut StageQueue, most: usize) -> Vec<String> {
        let taken = queue.next(most, at(0), |_| Offer::Take);
        taken.iter().map(|path| path.to_string()).collect()
    }

    #[test]
    fn files_go_by_cartridge_and_position_and_the_oldest_cartridge_goes_first() {
        let mut queue = queue(&["b7", "a3", "b2", "a1", "c5"]);
        assert_eq!(next(&mut queue, 9), ["b2", "b7"]);
        assert_eq!(next(&mut queue, 9), ["a1", "a3"], "one cartridge is in one drive");
        push(&mut queue, &["b1"]);
        assert_eq!(next(&mut queue, 9), ["c5"]);
        assert_eq!(next(&mut queue, 9), [""; 0], "that cartridge is in use");
        ["b2", "b7"].into_iter().for_each(|name| queue.release(name));
        assert_eq!(next(&mut queue, 9), ["b1"]);
    }

    #[test]
    fn a_cartridge_ends_its_turn_and_serves_what_came_meanwhile_later() {
        let mut queue = queue(&["a1", "a2", "a3", "b1"]);
        assert_eq!(next(&mut queue, 2), ["a1", "a2"]);
        push(&mut queue, &["a4"]);
        ["a1", "a2"].into_iter().for_each(|name| queue.release(name));
        assert_eq!(next(&mut queue, 2), ["a3"], "it is mounted");
        queue.release("a3");
        assert_eq!(next(&mut queue, 2), ["b1"], "and has had its turn");
        assert_eq!(next(&mut queue, 2), ["a4"]);
    }

    #[test]
    fn without_places_the_order_is_that_of_arrival() {
        let mut queue = StageQueue::default();
        ["b", "a", "c", "b"].into_iter().for_each(|name| queue.push(path(name), at(0)));
        assert_eq!(next(&mut queue, 2), ["b", "a"]);
        assert_eq!(next(&mut queue, 2), ["c"], "beside the other command");
        assert_eq!(next(&mut queue, 2), [""; 0]);
    }

    #[test]
    fn what_cannot_be_staged_now_holds_up_nothing_else() {
        let mut queue = queue(&["a1", "a2"]);
        assert_eq!(next(&mut queue, 1), ["a1"]);
        queue.release("a1");
        push(&mut queue, &["a3"]);
        let taken = queue.next(9, at(0), |path| if &**path == "a2" { Offer::Pass } else { Offer::Take });
        assert_eq!(taken, [path("a3")]);
    }

    #[test]
    fn commands_wait_for_places_and_not_for_ever() {
        let mut queue = queue(&["a1"]);
        queue.push(path("b1"), at(5));
        assert_eq!(queue.unplaced(9), [path("b1")]);
        assert!(queue.next(9, at(64), |_| Offer::Take).is_empty());
        assert_eq!(queue.next(9, at(65), |_| Offer::Take), [path("a1")]);
        queue.place(&path("b1"), None);
        queue.place(&path("nobody"), None);
        assert_eq!(next(&mut queue, 9), ["b1"], "of an unknown cartridge");
    }

    #[test]
    fn whoever_takes_files_may_pass_and_forget_them() {
        let mut queue = queue(&["a1", "a2", "a3", "b1"]);
        let taken = queue.next(9, at(0), |path| match &**path {
            "a1" => Offer::Pass,
            "a2" => Offer::Forget,
            "a3" => Offer::Stop,
            _ => Offer::Take,
        });
        assert!(taken.is_empty(), "there is no room, on any cartridge");
        assert!(queue.contains(&path("a1")) && !queue.contains(&path("a2")));
        let taken = queue.next(9, at(0), |path| if &**path == "a1" { Offer::Take } else { Offer::Stop });
        assert_eq!(taken, [path("a1")]);
        push(&mut queue, &["b0"]);
        queue.release("a1");
        assert_eq!(next(&mut queue, 9), ["a3"], "its turn goes on");
        assert_eq!(next(&mut queue, 9), ["b0", "b1"]);
    }
}
