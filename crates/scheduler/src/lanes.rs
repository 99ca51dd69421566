//! Whose turn it is at a target: communities by their shares, within one its activities by theirs, within one its
//! priorities.
//!
//! Weighted fair queueing by start tags: whoever is served moves on by cost over weight, and the one furthest back is
//! next. Who had nothing waiting begins at the present; who waited and could not be served (its sources were busy)
//! keeps a bounded claim, so that a short block costs it nothing and a long one cannot starve the others afterwards.
//!
//! Within an activity the highest priority that waits goes first, and of every [`crate::Settings::relief`] bytes one
//! goes to the lower priorities by turns: none starves.

use crate::shares::Parties;
use crate::state::Class;

/// Priorities 1 to 9.
pub(crate) const LEVELS: usize = 9;
/// Activities with an account of their own at one target.
const ACCOUNTS_MAX: usize = 1_000;

/// All that waits at a target.
#[derive(Default)]
pub(crate) struct Lanes {
    /// Addressed by `Want::lane`; they stay where they are.
    lanes: Vec<Lane>,
    communities: Vec<CommunityAt>,
    /// What waits, by priority.
    queued: [u32; LEVELS],
    /// Start tag of the last one served, in bytes over weight.
    clock: f64,
}

pub(crate) struct Lane {
    pub level: usize,
    account: Account,
    pub class: Class,
}

/// Where a lane is accounted for: community and activity, by their places here.
#[derive(Clone, Copy)]
struct Account {
    community: usize,
    activity: usize,
}

struct CommunityAt {
    number: u32,
    served: f64,
    clock: f64,
    queued: u32,
    activities: Vec<ActivityAt>,
}

struct ActivityAt {
    party: u32,
    served: f64,
    queued: u32,
    /// By priority: the lane, if there was ever one.
    lanes: [Option<usize>; LEVELS],
    /// Bytes that higher priorities still get before a lower one has its turn.
    relief_debt: f64,
    relief_turn: usize,
}

impl Lanes {
    /// The lane of a party and a priority.
    pub(crate) fn lane(&mut self, party: u32, level: usize, parties: &Parties) -> usize {
        let number = parties.community(party);
        let known = self.communities.iter().position(|row| row.number == number);
        let community = known.unwrap_or_else(|| {
            self.communities.push(CommunityAt {
                number,
                served: self.clock,
                clock: 0.0,
                queued: 0,
                activities: Vec::new(),
            });
            self.communities.len() - 1
        });
        let row = &mut self.communities[community];
        let known = row.activities.iter().position(|activity| activity.party == party);
        let full = row.activities.len() >= ACCOUNTS_MAX;
        let activity = known.or(full.then_some(ACCOUNTS_MAX - 1)).unwrap_or_else(|| {
            row.activities.push(ActivityAt {
                party,
                served: row.clock,
                queued: 0,
                lanes: [None; LEVELS],
                relief_debt: 0.0,
                relief_turn: 0,
            });
            row.activities.len() - 1
        });
        let lanes = &mut row.activities[activity].lanes;
        *lanes[level].get_or_insert_with(|| {
            let account = Account { community, activity };
            self.lanes.push(Lane { level, account, class: Class::default() });
            self.lanes.len() - 1
        })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Class> {
        self.lanes.iter().map(|lane| &lane.class)
    }

    pub(crate) fn level(&self, lane: usize) -> usize {
        self.lanes[lane].level
    }

    pub(crate) fn party(&self, lane: usize) -> u32 {
        let account = self.lanes[lane].account;
        self.communities[account.community].activities[account.activity].party
    }

    pub(crate) fn class(&self, lane: usize) -> &Class {
        &self.lanes[lane].class
    }

    pub(crate) fn class_mut(&mut self, lane: usize) -> &mut Class {
        &mut self.lanes[lane].class
    }

    /// The lanes of the same activity, this one and those of higher priority.
    pub(crate) fn not_after(&self, lane: usize) -> impl Iterator<Item = (usize, &Class)> {
        let row = &self.lanes[lane];
        let activity = &self.communities[row.account.community].activities[row.account.activity];
        activity.lanes[row.level..].iter().flatten().map(|&lane| (lane, &self.lanes[lane].class))
    }

    /// At which level an agent should see what a lane gives out now. Agents begin the highest priority that they hold; so
    /// what has its turn here, by its share or to relieve a lower priority, goes by the highest that waits with it:
    /// else it would wait there in vain. What comes later and is more urgent still overtakes it.
    pub(crate) fn level_of_turn(&self, lane: usize) -> usize {
        let highest = self.queued.iter().rposition(|&queued| queued > 0);
        highest.unwrap_or(0).max(self.level(lane))
    }

    /// More or fewer wait in a lane.
    pub(crate) fn count_queued(&mut self, lane: usize, more: bool) {
        let row = &mut self.lanes[lane];
        let account = row.account;
        let community = &mut self.communities[account.community];
        let activity = &mut community.activities[account.activity];
        if more {
            if activity.queued == 0 {
                activity.served = activity.served.max(community.clock);
            }
            if community.queued == 0 {
                community.served = community.served.max(self.clock);
            }
            row.class.queued += 1;
            self.queued[row.level] += 1;
            activity.queued += 1;
            community.queued += 1;
        } else {
            row.class.queued -= 1;
            self.queued[row.level] -= 1;
            activity.queued -= 1;
            community.queued -= 1;
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

    /// Lanes with something waiting, in the order in which they should be tried: the first that has something that
    /// can be leased has its turn. `strict`: of each activity the highest priority only.
    pub(crate) fn turns(&self, parties: &Parties, claim: f64, strict: bool, order: &mut Vec<usize>) {
        order.clear();
        let mut communities: Vec<(f64, usize)> = Vec::with_capacity(self.communities.len());
        for (at, row) in self.communities.iter().enumerate() {
            if row.queued > 0 {
                communities.push((self.tag(row, parties, claim), at));
            }
        }
        communities.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        for (_, at) in communities {
            let row = &self.communities[at];
            let mut activities: Vec<(f64, usize)> = Vec::with_capacity(row.activities.len());
            for (at, activity) in row.activities.iter().enumerate() {
                if activity.queued > 0 {
                    activities.push((activity_tag(row, activity, parties, claim), at));
                }
            }
            activities.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
            for (_, at) in activities {
                self.levels(&row.activities[at], strict, order);
            }
        }
    }

    fn levels(&self, activity: &ActivityAt, strict: bool, order: &mut Vec<usize>) {
        let waiting = |level: usize| activity.lanes[level].filter(|&lane| self.lanes[lane].class.queued > 0);
        let Some(highest) = (0..LEVELS).rev().find(|&level| waiting(level).is_some()) else { return };
        if strict {
            return order.extend(waiting(highest));
        }
        if activity.relief_debt <= 0.0 && highest > 0 {
            let turn = activity.relief_turn;
            order.extend((0..highest).filter_map(|step| waiting((turn + step) % highest)));
        }
        order.extend((0..=highest).rev().filter_map(waiting));
    }

    fn tag(&self, row: &CommunityAt, parties: &Parties, claim: f64) -> f64 {
        row.served.max(self.clock - claim / parties.weight_of_community(row.number))
    }

    /// A lane got `cost` bytes.
    pub(crate) fn pay(&mut self, lane: usize, cost: f64, relief: f64, parties: &Parties, claim: f64) {
        let (account, level) = (self.lanes[lane].account, self.lanes[lane].level);
        let tag = self.tag(&self.communities[account.community], parties, claim);
        self.clock = self.clock.max(tag);
        let row = &mut self.communities[account.community];
        row.served = tag + cost / parties.weight_of_community(row.number);
        let activity = &row.activities[account.activity];
        let tag = activity_tag(row, activity, parties, claim);
        row.clock = row.clock.max(tag);
        let activity = &mut row.activities[account.activity];
        activity.served = tag + cost / parties.weight_of_activity(activity.party);
        let waits = |level: &Option<usize>| level.is_some_and(|lane| self.lanes[lane].class.queued > 0);
        if activity.lanes[level + 1..].iter().any(waits) {
            activity.relief_debt = cost * (relief - 1.0);
            activity.relief_turn = level + 1;
        } else if activity.lanes[..level].iter().any(waits) {
            activity.relief_debt = (activity.relief_debt - cost).max(0.0);
        }
    }

    /// What was paid for `cost` bytes came to nothing.
    pub(crate) fn refund(&mut self, lane: usize, cost: f64, parties: &Parties) {
        let account = self.lanes[lane].account;
        let row = &mut self.communities[account.community];
        row.served -= cost / parties.weight_of_community(row.number);
        let activity = &mut row.activities[account.activity];
        activity.served -= cost / parties.weight_of_activity(activity.party);
    }

    // ---- what is wanted ------------------------------------------------------------------------------

    /// Activities that want something, with the part of the target that is theirs, and their lanes from the highest
    /// priority down.
    pub(crate) fn parts(&self, parties: &Parties) -> Vec<(f64, Vec<usize>)> {
        let wants = |activity: &ActivityAt| {
            let mut lanes = activity.lanes.iter().flatten().map(|&lane| &self.lanes[lane].class);
            lanes.any(|class| class.live > 0 || class.asked > 0 || !class.open.is_empty())
        };
        let mut parts = Vec::new();
        let mut whole = 0.0;
        for row in &self.communities {
            let active: Vec<&ActivityAt> = row.activities.iter().filter(|activity| wants(activity)).collect();
            if active.is_empty() {
                continue;
            }
            let weight = parties.weight_of_community(row.number);
            whole += weight;
            let of_activity = |activity: &ActivityAt| parties.weight_of_activity(activity.party);
            let sum: f64 = active.iter().map(|activity| of_activity(activity)).sum();
            for activity in active {
                let lanes = activity.lanes.iter().rev().flatten().copied().collect();
                parts.push((weight * of_activity(activity) / sum, lanes));
            }
        }
        parts.iter_mut().for_each(|(part, _)| *part /= whole);
        parts
    }

    /// The part of a target that a lane's activity is entitled to now, of those that lack something.
    pub(crate) fn part_of(&self, lane: usize, parties: &Parties) -> f64 {
        let lacks = |activity: &ActivityAt| {
            activity.lanes.iter().flatten().any(|&lane| self.lanes[lane].class.bytes_left > 0)
        };
        let account = self.lanes[lane].account;
        let (mut communities, mut activities) = (0.0, 0.0);
        for (at, row) in self.communities.iter().enumerate() {
            let own = at == account.community;
            if own || row.activities.iter().any(lacks) {
                communities += parties.weight_of_community(row.number);
            }
            if own {
                let counted = row.activities.iter().enumerate();
                let counted = counted.filter(|(at, activity)| *at == account.activity || lacks(activity));
                activities = counted.map(|(_, activity)| parties.weight_of_activity(activity.party)).sum();
            }
        }
        let row = &self.communities[account.community];
        let of_activity = parties.weight_of_activity(row.activities[account.activity].party);
        parties.weight_of_community(row.number) / communities * of_activity / activities
    }
}

fn activity_tag(row: &CommunityAt, activity: &ActivityAt, parties: &Parties, claim: f64) -> f64 {
    activity.served.max(row.clock - claim / parties.weight_of_activity(activity.party))
}
