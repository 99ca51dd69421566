//! Weighted fair queueing at a target, hierarchical: communities by their shares, within one its activities
//! by theirs, within one its priorities.
//!
//! Start-time fair queueing (P. Goyal, H. Vin, H. Cheng, SIGCOMM 1996): a party that is served moves on by
//! cost over weight, and the one with the lowest start tag is next. A party that had nothing waiting begins
//! at the virtual time of the present. A party that waited and could not be served (its sources were busy)
//! stays behind it, and that is worth a bounded claim (`claim`): a short block costs it nothing, a long one
//! cannot starve the others afterwards, and those that wait share by weight among each other.
//!
//! Within an activity the highest priority that waits goes first, and one byte in [`crate::Settings::relief`]
//! goes to the lower priorities by turns, so that none starves.

use std::num::NonZeroU32;

use crate::claim;
use crate::shares::{Parties, Weights};
use crate::state::{Class, Rank};

/// Number of priorities: 1 to 9.
pub(crate) const LEVELS: usize = 9;
/// Activities with an account of their own at one target.
const ACTIVITIES_MAX: usize = 1_000;
/// Virtual time, in bytes for a weight of 1, at which it is rebased: up to here an f64 is exact to an eighth
/// of a byte.
const VIRTUAL_TIME_MAX: f64 = 1e15;

/// All lanes of a target: its hierarchical fair queue.
#[derive(Default)]
pub(crate) struct Lanes {
    /// Addressed by `Want::lane`; they stay where they are.
    lanes: Vec<Lane>,
    communities: Vec<CommunityQueue>,
    /// What waits, by priority.
    queued: [u32; LEVELS],
    /// Start tag of the last one served, in bytes over weight.
    virtual_time: f64,
    /// Version of the weights behind the fractions of activities; none if an activity became active or idle
    /// since.
    fractions_version: Option<u64>,
}

struct Lane {
    level: u32,
    account: Account,
    class: Class,
}

/// Account of a lane: its community and activity, by index.
#[derive(Clone, Copy)]
struct Account {
    community: u32,
    activity: u32,
}

/// Remaining order of turns, computed lazily: mostly the first one is served. The next is at the end of each
/// list.
#[derive(Default)]
pub(crate) struct TurnOrder {
    strict: bool,
    /// By tag, with their places.
    communities: Vec<(f64, u32)>,
    /// Community that the activities belong to.
    community: u32,
    activities: Vec<(f64, u32)>,
    /// Lanes of one activity.
    lanes: Vec<usize>,
}

struct CommunityQueue {
    number: u32,
    start_tag: f64,
    virtual_time: f64,
    queued: u32,
    /// Sums over its activities: transfers in memory, and priorities with open wants.
    in_memory: u32,
    open: u32,
    activities: Vec<ActivityQueue>,
}

impl CommunityQueue {
    fn is_active(&self) -> bool {
        self.open > 0 || self.in_memory > 0
    }
}

/// One activity, with sums over its priorities that each decision needs, so that their lanes need not be
/// visited. What is read of all activities comes first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct ActivityQueue {
    /// Fraction of the target among all active parties: see [`Lanes::update_fractions`].
    fraction: f64,
    party: u32,
    queued: u32,
    in_memory_all: u32,
    /// One bit per priority with waiting files, and one per priority with a want that has more files than
    /// transfers.
    waiting_levels: u16,
    open: u16,
    /// By priority: live transfers in memory, plus files under query.
    in_memory: [u32; LEVELS],
    start_tag: f64,
    /// Bytes that higher priorities still get before a lower one has its turn.
    relief_debt: f64,
    relief_turn: usize,
    /// By priority: the lane, if there was ever one.
    lanes: [Option<NonZeroU32>; LEVELS],
}

impl ActivityQueue {
    fn is_active(&self) -> bool {
        self.open != 0 || self.in_memory_all > 0
    }

    /// The priorities for which there is more to ask for, from the highest down: with what is held for it and
    /// for those above, and for it alone.
    pub(crate) fn open_levels(&self) -> impl Iterator<Item = (usize, u32, u32)> + '_ {
        let (mut left, mut above, mut held) = (self.open, LEVELS, 0);
        std::iter::from_fn(move || {
            let level = left.checked_ilog2()? as usize;
            left ^= 1 << level;
            held += self.in_memory[level..above].iter().sum::<u32>();
            above = level;
            Some((level, held, self.in_memory[level]))
        })
    }

    pub(crate) fn lane(&self, level: usize) -> Option<usize> {
        self.lanes[level].map(|after| after.get() as usize - 1)
    }

    /// In the order in which they should be tried.
    fn levels(&self, strict: bool, order: &mut Vec<usize>) {
        let waiting =
            |level: usize| if self.waiting_levels & 1 << level == 0 { None } else { self.lane(level) };
        let Some(highest) = self.waiting_levels.checked_ilog2() else { return };
        let highest = highest as usize;
        if strict {
            return order.extend(waiting(highest));
        }
        if self.relief_debt <= 0.0 && highest > 0 {
            let turn = self.relief_turn;
            order.extend((0..highest).filter_map(|step| waiting((turn + step) % highest)));
        }
        order.extend((0..=highest).rev().filter_map(waiting));
    }

    fn all_lanes(&self) -> impl Iterator<Item = usize> + '_ {
        (0..LEVELS).filter_map(|level| self.lane(level))
    }
}

impl Lanes {
    /// The lane of a party and a priority.
    pub(crate) fn lane(&mut self, party: u32, level: usize, parties: &Parties) -> usize {
        let number = parties.community(party);
        let known = self.communities.iter().position(|row| row.number == number);
        let community = known.unwrap_or_else(|| {
            self.communities.push(CommunityQueue {
                number,
                start_tag: self.virtual_time,
                virtual_time: 0.0,
                queued: 0,
                in_memory: 0,
                open: 0,
                activities: Vec::new(),
            });
            self.communities.len() - 1
        });
        let row = &mut self.communities[community];
        let known = row.activities.iter().position(|activity| activity.party == party);
        let full = row.activities.len() >= ACTIVITIES_MAX;
        let activity = known.or(full.then_some(ACTIVITIES_MAX - 1)).unwrap_or_else(|| {
            row.activities.push(ActivityQueue {
                party,
                start_tag: row.virtual_time,
                queued: 0,
                relief_debt: 0.0,
                relief_turn: 0,
                lanes: [None; LEVELS],
                in_memory: [0; LEVELS],
                in_memory_all: 0,
                waiting_levels: 0,
                open: 0,
                fraction: 0.0,
            });
            row.activities.len() - 1
        });
        let lane = &mut row.activities[activity].lanes[level];
        if lane.is_none() {
            let account = Account { community: community as u32, activity: activity as u32 };
            self.lanes.push(Lane { level: level as u32, account, class: Class::default() });
            *lane = NonZeroU32::new(self.lanes.len() as u32);
        }
        lane.map_or(0, |after| after.get() as usize - 1)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Class> {
        self.lanes.iter().map(|lane| &lane.class)
    }

    /// Classes with the party of each.
    pub(crate) fn classes_by_party(&self) -> impl Iterator<Item = (u32, &Class)> {
        (0..self.lanes.len()).map(|lane| (self.party(lane), self.class(lane)))
    }

    pub(crate) fn level(&self, lane: usize) -> usize {
        self.lanes[lane].level as usize
    }

    pub(crate) fn party(&self, lane: usize) -> u32 {
        self.activity(self.lanes[lane].account).party
    }

    pub(crate) fn class(&self, lane: usize) -> &Class {
        &self.lanes[lane].class
    }

    pub(crate) fn class_mut(&mut self, lane: usize) -> &mut Class {
        &mut self.lanes[lane].class
    }

    /// The lanes of the same activity, this one and those of higher priority.
    pub(crate) fn same_or_higher(&self, lane: usize) -> impl Iterator<Item = (usize, &Class)> {
        let activity = self.activity(self.lanes[lane].account);
        let levels = self.level(lane)..LEVELS;
        levels.filter_map(|level| activity.lane(level)).map(|lane| (lane, &self.lanes[lane].class))
    }

    fn activity(&self, account: Account) -> &ActivityQueue {
        &self.communities[account.community as usize].activities[account.activity as usize]
    }

    /// The priority that an agent should see for a lease of this lane. Agents begin the highest priority that
    /// they hold, so a lease that has its turn here, by its share or by relief, carries the highest priority
    /// that waits with it; otherwise it would wait there in vain. More urgent work still overtakes it later.
    pub(crate) fn agent_level(&self, lane: usize) -> usize {
        let highest = self.queued.iter().rposition(|&queued| queued > 0);
        highest.unwrap_or(0).max(self.level(lane))
    }

    /// Whether all queued files are in this lane.
    pub(crate) fn holds_all_queued(&self, lane: usize) -> bool {
        self.queued.iter().sum::<u32>() == self.lanes[lane].class.queued
    }

    /// More or fewer wait in a lane.
    pub(crate) fn count_queued(&mut self, lane: usize, more: bool) {
        let row = &mut self.lanes[lane];
        let (account, level) = (row.account, row.level as usize);
        let community = &mut self.communities[account.community as usize];
        let activity = &mut community.activities[account.activity as usize];
        if more {
            if activity.queued == 0 {
                activity.start_tag = activity.start_tag.max(community.virtual_time);
            }
            if community.queued == 0 {
                community.start_tag = community.start_tag.max(self.virtual_time);
            }
            row.class.queued += 1;
            self.queued[level] += 1;
            activity.queued += 1;
            community.queued += 1;
        } else {
            row.class.queued -= 1;
            self.queued[level] -= 1;
            activity.queued -= 1;
            community.queued -= 1;
        }
        let bit = 1 << level;
        activity.waiting_levels =
            if row.class.queued > 0 { activity.waiting_levels | bit } else { activity.waiting_levels & !bit };
    }

    /// More or fewer transfers of a lane are in memory, or asked for.
    pub(crate) fn count_in_memory(&mut self, lane: usize, count: u32, more: bool) {
        let (account, level) = (self.lanes[lane].account, self.level(lane));
        let community = &mut self.communities[account.community as usize];
        let activity = &mut community.activities[account.activity as usize];
        let wanted = activity.is_active();
        for held in [&mut activity.in_memory[level], &mut activity.in_memory_all, &mut community.in_memory] {
            *held = if more { *held + count } else { *held - count };
        }
        if activity.is_active() != wanted {
            self.fractions_version = None;
        }
    }

    /// A want has more files than transfers.
    pub(crate) fn list_open(&mut self, lane: usize, rank: Rank, want: u32) {
        self.lanes[lane].class.open.insert((rank, want));
        self.count_open(lane);
    }

    /// True if it had.
    pub(crate) fn unlist_open(&mut self, lane: usize, rank: Rank, want: u32) -> bool {
        let known = self.lanes[lane].class.open.remove(&(rank, want));
        self.count_open(lane);
        known
    }

    fn count_open(&mut self, lane: usize) {
        let (account, bit) = (self.lanes[lane].account, 1 << self.level(lane));
        let open = !self.lanes[lane].class.open.is_empty();
        let community = &mut self.communities[account.community as usize];
        let activity = &mut community.activities[account.activity as usize];
        let wanted = activity.is_active();
        match (activity.open & bit != 0, open) {
            (false, true) => community.open += 1,
            (true, false) => community.open -= 1,
            _ => {}
        }
        activity.open = if open { activity.open | bit } else { activity.open & !bit };
        if activity.is_active() != wanted {
            self.fractions_version = None;
        }
    }

    /// `count` waiting ones move from one lane to another.
    pub(crate) fn move_queued(&mut self, from: usize, to: usize, count: u32) {
        for _ in 0..count {
            self.count_queued(from, false);
            self.count_queued(to, true);
        }
    }

    // ---- order ---------------------------------------------------------------------------------------

    /// Begins the order in which lanes with something waiting should be tried: the first that has something
    /// that can be leased has its turn. `strict`: of each activity the highest priority only.
    pub(crate) fn begin_turns(&self, strict: bool, turns: &mut TurnOrder) {
        turns.strict = strict;
        turns.communities.clear();
        turns.activities.clear();
        turns.lanes.clear();
        for (at, row) in (0u32..).zip(&self.communities) {
            if row.queued > 0 {
                turns.communities.push((row.start_tag, at));
            }
        }
        sort_descending(&mut turns.communities);
    }

    /// The same for the lanes of one community, by its place here.
    pub(crate) fn begin_turns_of(&self, community: u32, strict: bool, turns: &mut TurnOrder) {
        turns.strict = strict;
        turns.activities.clear();
        turns.lanes.clear();
        turns.communities.clear();
        turns.communities.push((0.0, community));
    }

    /// The communities for which something waits that a source has: their numbers, and their places here.
    pub(crate) fn communities_for(&self, source: u32) -> impl Iterator<Item = (u32, u32)> {
        let has = move |activity: &ActivityQueue| {
            activity.queued > 0
                && activity.all_lanes().any(|lane| self.lanes[lane].class.has_waiting_for(source))
        };
        let waiting = (0u32..).zip(&self.communities).filter(move |(_, row)| row.activities.iter().any(has));
        waiting.map(|(at, row)| (row.number, at))
    }

    pub(crate) fn next_turn(&self, turns: &mut TurnOrder) -> Option<usize> {
        loop {
            if let Some(lane) = turns.lanes.pop() {
                return Some(lane);
            }
            if let Some((_, at)) = turns.activities.pop() {
                let row = &self.communities[turns.community as usize];
                row.activities[at as usize].levels(turns.strict, &mut turns.lanes);
                turns.lanes.reverse();
                continue;
            }
            let (_, at) = turns.communities.pop()?;
            turns.community = at;
            let row = &self.communities[at as usize];
            for (at, activity) in (0u32..).zip(&row.activities) {
                if activity.queued > 0 {
                    turns.activities.push((activity.start_tag, at));
                }
            }
            sort_descending(&mut turns.activities);
        }
    }

    /// A lane got `cost` bytes, in the turn of its own community or of another: that one pays.
    pub(crate) fn pay(
        &mut self,
        turn: usize,
        lane: usize,
        cost: f64,
        relief: f64,
        parties: &Parties,
        claim: f64,
    ) {
        let (account, level) = (self.lanes[lane].account, self.level(lane));
        let payer = self.lanes[turn].account.community as usize;
        self.virtual_time = self.virtual_time.max(self.communities[payer].start_tag);
        let row = &mut self.communities[account.community as usize];
        row.virtual_time = row.virtual_time.max(row.activities[account.activity as usize].start_tag);
        self.advance(payer, account, cost, parties, claim);
        self.rebase(account);
        let activity =
            &mut self.communities[account.community as usize].activities[account.activity as usize];
        if activity.waiting_levels >> (level + 1) != 0 {
            activity.relief_debt = cost * (relief - 1.0);
            activity.relief_turn = level + 1;
        } else if activity.waiting_levels & ((1 << level) - 1) != 0 {
            activity.relief_debt = (activity.relief_debt - cost).max(0.0);
        }
    }

    /// A community and an activity, perhaps of another, were served `cost` bytes, or give them back.
    fn advance(&mut self, payer: usize, account: Account, cost: f64, parties: &Parties, claim: f64) {
        let of_community = |row: &CommunityQueue| parties.weight_of_community(row.number);
        let of_activity = |activity: &ActivityQueue| parties.weight_of_activity(activity.party);
        let row = &self.communities[payer];
        let by = cost / of_community(row);
        let ahead = claim::advance(row.start_tag - self.virtual_time, by, || {
            let waiting = self.communities.iter().filter(|row| row.queued > 0);
            claim / waiting.map(of_community).sum::<f64>()
        });
        self.communities[payer].start_tag = self.virtual_time + ahead;
        let row = &mut self.communities[account.community as usize];
        let activity = &row.activities[account.activity as usize];
        let by = cost / of_activity(activity);
        let ahead = claim::advance(activity.start_tag - row.virtual_time, by, || {
            let waiting = row.activities.iter().filter(|activity| activity.queued > 0);
            claim / waiting.map(of_activity).sum::<f64>()
        });
        row.activities[account.activity as usize].start_tag = row.virtual_time + ahead;
    }

    /// Rebases virtual times: parties with next to no weight make them leap, and a number so large has no
    /// precision left for one file of another party.
    fn rebase(&mut self, account: Account) {
        if self.virtual_time > VIRTUAL_TIME_MAX {
            let clock = std::mem::take(&mut self.virtual_time);
            self.communities.iter_mut().for_each(|row| row.start_tag -= clock);
        }
        let row = &mut self.communities[account.community as usize];
        if row.virtual_time > VIRTUAL_TIME_MAX {
            let clock = std::mem::take(&mut row.virtual_time);
            row.activities.iter_mut().for_each(|activity| activity.start_tag -= clock);
        }
    }

    /// Applies new weights: leads and lags keep their size in bytes.
    pub(crate) fn reweigh(&mut self, before: &Weights, parties: &Parties) {
        for row in &mut self.communities {
            let by = before.communities[row.number as usize] / parties.weight_of_community(row.number);
            row.start_tag = self.virtual_time + (row.start_tag - self.virtual_time) * by;
            for activity in &mut row.activities {
                let by =
                    before.activities[activity.party as usize] / parties.weight_of_activity(activity.party);
                activity.start_tag = row.virtual_time + (activity.start_tag - row.virtual_time) * by;
            }
        }
    }

    /// Refunds the charge for `cost` bytes that did not arrive.
    pub(crate) fn refund(&mut self, turn: usize, lane: usize, cost: f64, parties: &Parties, claim: f64) {
        let payer = self.lanes[turn].account.community as usize;
        self.advance(payer, self.lanes[lane].account, -cost, parties, claim);
    }

    // ---- what is wanted ------------------------------------------------------------------------------

    /// Updates the fraction of the target of each active party; cached until a party becomes active or idle.
    pub(crate) fn update_fractions(&mut self, parties: &Parties) {
        if self.fractions_version == Some(parties.version()) {
            return;
        }
        self.fractions_version = Some(parties.version());
        let weight = |row: &CommunityQueue| parties.weight_of_community(row.number);
        let active = self.communities.iter().filter(|row| row.is_active());
        let whole: f64 = active.map(weight).sum();
        for row in self.communities.iter_mut().filter(|row| row.is_active()) {
            let of_activity = |activity: &ActivityQueue| parties.weight_of_activity(activity.party);
            let active = row.activities.iter().filter(|activity| activity.is_active());
            let sum: f64 = active.map(of_activity).sum();
            let weight = weight(row);
            for activity in row.activities.iter_mut().filter(|activity| activity.is_active()) {
                activity.fraction = weight * of_activity(activity) / sum / whole;
            }
        }
    }

    /// The first answer among activities with open wants, each given its fraction.
    pub(crate) fn find_open_activity<T>(
        &self,
        mut answer: impl FnMut(f64, &ActivityQueue) -> Option<T>,
    ) -> Option<T> {
        let rows = self.communities.iter().filter(|row| row.open > 0);
        let mut open = rows.flat_map(|row| &row.activities).filter(|activity| activity.open != 0);
        open.find_map(|activity| answer(activity.fraction, activity))
    }

    /// The part of a target that a lane's activity is entitled to now, of those that lack something.
    pub(crate) fn entitled_fraction(&self, lane: usize, parties: &Parties) -> f64 {
        let lacks =
            |activity: &ActivityQueue| activity.all_lanes().any(|lane| self.lanes[lane].class.bytes_left > 0);
        let account = self.lanes[lane].account;
        let (mut communities, mut activities) = (0.0, 0.0);
        for (at, row) in self.communities.iter().enumerate() {
            let own = at == account.community as usize;
            if own || row.activities.iter().any(lacks) {
                communities += parties.weight_of_community(row.number);
            }
            if own {
                let counted = row.activities.iter().enumerate();
                let counted =
                    counted.filter(|(at, activity)| *at == account.activity as usize || lacks(activity));
                activities = counted.map(|(_, activity)| parties.weight_of_activity(activity.party)).sum();
            }
        }
        let row = &self.communities[account.community as usize];
        let of_activity = parties.weight_of_activity(self.activity(account).party);
        parties.weight_of_community(row.number) / communities * of_activity / activities
    }
}

fn sort_descending(turns: &mut [(f64, u32)]) {
    turns.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(other.1.cmp(&one.1)));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::shares::{CommunityShare, Party, Shares};

    /// In files of one byte.
    const CLAIM: f64 = 100.0;

    /// Parties that all want more than there is, with their lanes in that order.
    struct Market {
        parties: Parties,
        lanes: Lanes,
    }

    impl Market {
        fn new(shares: Shares, all: impl IntoIterator<Item = Party>) -> Market {
            let mut at = Market { parties: Parties::default(), lanes: Lanes::default() };
            at.parties.set(shares);
            for party in all {
                let party = at.parties.number(&party);
                let lane = at.lanes.lane(party, 4, &at.parties);
                at.lanes.count_queued(lane, true);
            }
            at
        }

        /// Each weight once as a community's, and once as an activity's of the same one.
        fn both(weights: &[f64]) -> [Market; 2] {
            let named = || ["a", "b", "c", "d"].into_iter().zip(weights);
            let communities =
                named().map(|(name, &weight)| (name.parse().unwrap(), CommunityShare::with_weight(weight)));
            let communities = Shares { communities: communities.collect(), default: 1.0 };
            let activities = named().map(|(name, &weight)| (name.parse().unwrap(), weight)).collect();
            let one = CommunityShare { activities, ..CommunityShare::with_weight(1.0) };
            let activities =
                Shares { communities: BTreeMap::from([("all".parse().unwrap(), one)]), default: 1.0 };
            let community = |(name, _): (&str, _)| Party { community: name.parse().unwrap(), activity: None };
            let activity = |(name, _): (&str, _)| Party {
                community: "all".parse().unwrap(),
                activity: Some(name.parse().unwrap()),
            };
            [Market::new(communities, named().map(community)), Market::new(activities, named().map(activity))]
        }

        /// Serves one of these, whose turn comes first.
        fn serve(&mut self, those: &[usize]) -> usize {
            let mut turns = TurnOrder::default();
            self.lanes.begin_turns(false, &mut turns);
            let mut order = std::iter::from_fn(|| self.lanes.next_turn(&mut turns));
            let lane = order.find(|lane| those.contains(lane)).unwrap();
            self.lanes.pay(lane, lane, 1.0, 16.0, &self.parties, CLAIM);
            lane
        }

        /// What each has of so many files.
        fn serve_many(&mut self, those: &[usize], files: u32) -> Vec<f64> {
            let mut got = vec![0.0; self.lanes.lanes.len()];
            (0..files).for_each(|_| got[self.serve(those)] += 1.0);
            got
        }
    }

    /// Two wait for a source that gives one file in 20, and a third takes the target meanwhile: for that
    /// source, and when they can have all they like, the two share by their weights.
    #[test]
    fn those_that_wait_share_by_weight_what_they_get_and_what_they_catch_up_on() {
        for mut at in Market::both(&[3.0, 1.0, 1.0]) {
            let mut got = [0.0; 3];
            for file in 0..10_000 {
                got[at.serve(if file % 20 == 0 { &[0, 1] } else { &[2] })] += 1.0;
            }
            assert!((355.0..=385.0).contains(&got[0]), "of 500: {got:?}");
            let got = at.serve_many(&[0, 1, 2], 60);
            assert!((43.0..=47.0).contains(&got[0]) && got[2] == 0.0, "of 60: {got:?}");
        }
    }

    /// Blocked for 100 times what they can claim in full they catch up on less than six times that, and then
    /// all have their shares.
    #[test]
    fn those_that_were_blocked_catch_up_by_weight_and_starve_nobody() {
        for mut at in Market::both(&[3.0, 1.0, 1.0]) {
            at.serve_many(&[2], 10_000);
            let got = at.serve_many(&[0, 1, 2], 100);
            assert!((74.0..=76.0).contains(&got[0]) && got[2] == 0.0, "{got:?}");
            at.serve_many(&[0, 1, 2], 500);
            assert_eq!(at.serve_many(&[0, 1, 2], 500), [300.0, 100.0, 100.0]);
        }
    }

    /// At the present, and however far behind it.
    #[test]
    fn who_paid_for_what_came_to_nothing_gets_as_much_again() {
        for blocked in [0, 50, 10_000] {
            for mut at in Market::both(&[3.0, 1.0, 1.0]) {
                at.serve_many(&[2], blocked);
                let got = at.serve_many(&[0, 1], 200);
                assert_eq!(got[..2], [150.0, 50.0], "{blocked}");
                (0..150).for_each(|_| at.lanes.refund(0, 0, 1.0, &at.parties, CLAIM));
                let got = at.serve_many(&[0, 1], 200);
                assert!((186.0..=189.0).contains(&got[0]), "{blocked}: {got:?}");
            }
        }
    }
}
