//! Link shares: weights of communities on links that have their own, in place of [`Shares`](crate::Shares); a
//! second fair queue (`claim`) per link, below that of the target.
//!
//! The turn at a target follows from the weights of all (`lanes`). When the file that has its turn
//! would go over a link with weights of its own, the link's accounts say whose file goes instead: among the
//! communities with work for that link, the one furthest back. The turn is paid for by the community whose
//! turn it was. So the target's time for that link is divided by the link's weights, and what comes over
//! other links, and parties without work for this one, have just what they would have without: the two rules
//! never use one account. Nobody starves, since each turn is paid for at the target, and each file at the
//! link.
//!
//! Accounts are kept relative to the present, so that a tiny weight never spoils the precision of the others.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use longhaul_model::{CommunityName, Timestamp};
use serde::{Deserialize, Serialize};

use crate::claim;
use crate::decision::Decision;
use crate::dispatch::TargetBacklog;
use crate::limits::Pattern;
use crate::pick::turn_cost;
use crate::scheduler::Scheduler;
use crate::settings::Rules;
use crate::shares::sanitize_weight;
use crate::state::{ActiveLease, Phase};
use crate::strategy::Strategy;

/// Weights on the links that fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkShares {
    /// The links; the most specific pattern that fits a link counts.
    pub links: Pattern,
    pub communities: BTreeMap<CommunityName, f64>,
    /// Weight of all communities not named, shared evenly by those with work. 0: only what nobody else can
    /// use.
    pub others: f64,
}

/// By which weight a file went first over its link.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkWeight {
    pub weight: f64,
    /// Sum of the weights of all that wanted the link then.
    pub all: f64,
}

/// All of them, with the accounts of the links that were used.
#[derive(Default)]
pub(crate) struct LinkShareTable {
    rules: BTreeMap<(Option<u32>, Option<u32>), LinkShareRule>,
    /// By source and target.
    accounts: BTreeMap<(u32, u32), LinkAccount>,
}

#[derive(Clone, PartialEq)]
struct LinkShareRule {
    communities: BTreeMap<CommunityName, f64>,
    others: f64,
}

/// Accounts of a link by community: how much each got.
#[derive(Default)]
struct LinkAccount(BTreeMap<u32, AccountEntry>);

#[derive(Clone, Copy, Debug)]
struct AccountEntry {
    /// Lead over the present, in bytes over weight.
    lead: f64,
    /// By which it was served last, and what counted in full of what it is behind: see `claim`.
    weight: f64,
    claim_full: f64,
}

/// A community that wants something over a link.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Contender {
    community: u32,
    /// Its place in the lanes of the target.
    at: u32,
    weight: f64,
}

impl LinkWeight {
    /// Follows the reason of a choice.
    pub(crate) fn describe(self) -> String {
        let LinkWeight { weight, all } = self;
        format!("; by the weights of that link its community had {weight} of {all} there")
    }
}

impl LinkShareTable {
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn rule(&self, source: u32, target: u32) -> Option<&LinkShareRule> {
        let patterns =
            [(Some(source), Some(target)), (Some(source), None), (None, Some(target)), (None, None)];
        patterns.iter().find_map(|pattern| self.rules.get(pattern))
    }

    /// A link whose weights are others than before begins anew: what was taken by former ones says nothing of
    /// these.
    fn set(&mut self, rules: BTreeMap<(Option<u32>, Option<u32>), LinkShareRule>) {
        let before = std::mem::replace(self, LinkShareTable { rules, accounts: BTreeMap::new() });
        let same = |&(source, target): &(u32, u32)| before.rule(source, target) == self.rule(source, target);
        let kept: Vec<_> = before.accounts.keys().copied().filter(same).collect();
        let mut links = before.accounts;
        links.retain(|link, _| kept.binary_search(link).is_ok());
        self.accounts = links;
    }
}

impl LinkShareRule {
    /// Gives each its weight.
    fn set_weights<'a>(&self, contenders: &mut [Contender], name: impl Fn(u32) -> &'a CommunityName) {
        let named = |one: &Contender| self.communities.get(name(one.community)).copied();
        let others = contenders.iter().filter(|one| named(one).is_none()).count();
        for one in contenders.iter_mut() {
            one.weight = sanitize_weight(named(one).unwrap_or(self.others / others.max(1) as f64));
        }
    }
}

impl LinkAccount {
    /// Puts those that want something in the order of their turns. Who wanted nothing begins at the present.
    fn sort_by_turn(&mut self, contenders: &mut [Contender]) {
        let wants = |community: &u32| contenders.iter().any(|one| one.community == *community);
        // Who is ahead stays so, or else it would take more by pausing.
        self.0.retain(|community, row| wants(community) || row.lead > 0.0);
        for one in contenders.iter() {
            let present = AccountEntry { lead: 0.0, weight: one.weight, claim_full: f64::INFINITY };
            self.0.entry(one.community).or_insert(present);
        }
        let ahead = |one: &Contender| self.0.get(&one.community).map_or(0.0, |row| row.lead);
        contenders.sort_by(|one, other| {
            let by_weight = other.weight.total_cmp(&one.weight);
            ahead(one).total_cmp(&ahead(other)).then(by_weight).then(one.community.cmp(&other.community))
        });
    }

    fn pay(&mut self, served: &Contender, cost: f64, full: f64) {
        let Some(row) = self.0.get_mut(&served.community) else { return };
        let passed = row.lead.max(0.0);
        let weight = served.weight;
        *row =
            AccountEntry { lead: claim::advance(row.lead, cost / weight, || full), weight, claim_full: full };
        self.0.values_mut().for_each(|row| row.lead -= passed);
    }

    fn refund(&mut self, community: u32, cost: f64) {
        if let Some(row) = self.0.get_mut(&community) {
            row.lead = claim::advance(row.lead, -cost / row.weight, || row.claim_full);
        }
    }
}

impl Scheduler {
    pub(crate) fn link_shares_changed(&mut self, all: Vec<LinkShares>) {
        let mut rules = BTreeMap::new();
        for LinkShares { links: (source, target), communities, others } in all {
            let pattern = (source.map(|id| self.storage_index(id)), target.map(|id| self.storage_index(id)));
            rules.insert(pattern, LinkShareRule { communities, others });
        }
        self.link_shares.set(rules);
    }

    /// What has its turn at a target is leased; or, over a link with weights of its own, what has its turn
    /// there.
    pub(crate) fn dispatch_by_link_shares(
        &mut self,
        target: u32,
        (index, lane): (u32, usize),
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<Decision> {
        let Some((source, mut contenders)) = self.contenders(target, index, lane, now) else {
            self.pay(target, lane, lane, self.transfers[index].size, backlog.pace);
            return self.lease(index, now);
        };
        self.link_shares.accounts.entry((source, target)).or_default().sort_by_turn(&mut contenders);
        let own = self.community_of(target, lane);
        let (served, found) = contenders.iter().find_map(|&one| {
            let found = if one.community == own {
                Some((index, lane))
            } else {
                self.pick_over_link(target, source, one.at, backlog, now)
            };
            Some((one, found?))
        })?;
        let size = self.transfers[found.0].size;
        self.pay(target, lane, found.1, size, backlog.pace);
        let all: f64 = contenders.iter().map(|one| one.weight).sum();
        let claim = self.claim(backlog.pace);
        if let Some(account) = self.link_shares.accounts.get_mut(&(source, target)) {
            account.pay(&served, turn_cost(size), claim / all);
        }
        let mut decision = self.lease(found.0, now);
        if let Some(Decision::Lease(lease)) = &mut decision
            && contenders.len() > 1
        {
            lease.choice.link_weight = Some(LinkWeight { weight: served.weight, all });
        }
        if let Phase::Leased(leased) = &mut self.transfers[found.0].phase {
            leased.charged_lane = NonZeroU32::new(lane as u32 + 1);
        }
        decision
    }

    /// The source from which a transfer would come now, if that link has weights of its own, and who wants
    /// it.
    fn contenders(
        &mut self,
        target: u32,
        index: u32,
        lane: usize,
        now: Timestamp,
    ) -> Option<(u32, Vec<Contender>)> {
        let source = self.best_source(index, now)?;
        let all = self.contenders_at(source, target)?;
        // It waits for this source as all others do: or else nobody would have this turn.
        let own = self.community_of(target, lane);
        all.iter().any(|one| one.community == own).then_some((source, all))
    }

    fn contenders_at(&self, source: u32, target: u32) -> Option<Vec<Contender>> {
        let rule = self.link_shares.rule(source, target)?;
        let waiting = self.storages[target].target.lanes.communities_for(source);
        let mut all: Vec<Contender> =
            waiting.map(|(community, at)| Contender { community, at, weight: 0.0 }).collect();
        rule.set_weights(&mut all, |community| self.parties.name_of_community(community));
        Some(all)
    }

    /// What a party has of a link that has weights of its own; empty if there are none, or nobody else wants
    /// it.
    pub(crate) fn describe_link_share(&self, source: u32, target: u32, party: u32) -> String {
        let all = self.contenders_at(source, target).unwrap_or_default();
        let community = self.parties.community(party);
        let own = all.iter().find(|one| one.community == community);
        let Some(own) = own.filter(|_| all.len() > 1) else { return String::new() };
        let sum: f64 = all.iter().map(|one| one.weight).sum();
        format!(
            "; of what comes from {} the share of {} is {:.0} % now, by the weights of that link",
            self.name(self.storages[source].id),
            self.parties.name_of_community(community),
            100.0 * own.weight / sum
        )
    }

    fn community_of(&self, target: u32, lane: usize) -> u32 {
        self.parties.community(self.storages[target].target.lanes.party(lane))
    }

    /// The usable source that a lease would take.
    fn best_source(&mut self, index: u32, now: Timestamp) -> Option<u32> {
        if self.strategy_of(&self.transfers[index]) != Strategy::Best {
            return self.transfers[index].assigned();
        }
        let candidates = self.candidates(index, now);
        let best = candidates.first().filter(|(best, _)| best.unusable.is_none()).map(|(_, source)| *source);
        self.candidates = candidates;
        best
    }

    /// The next file of one community that would come over a link now, with its lane.
    fn pick_over_link(
        &mut self,
        target: u32,
        source: u32,
        community: u32,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<(u32, usize)> {
        let mut turns = std::mem::take(&mut self.turn_order);
        let strict = self.settings.rules == Rules::Fts3;
        self.storages[target].target.lanes.begin_turns_of(community, strict, &mut turns);
        let mut found = None;
        while found.is_none()
            && let Some(lane) = self.storages[target].target.lanes.next_turn(&mut turns)
        {
            found = self.pick_from(target, source, lane, backlog, now).map(|index| (index, lane));
        }
        self.turn_order = turns;
        found
    }

    fn pick_from(
        &mut self,
        target: u32,
        source: u32,
        lane: usize,
        backlog: &TargetBacklog,
        now: Timestamp,
    ) -> Option<u32> {
        let class = self.storages[target].target.lanes.class(lane);
        let at = class.sources.iter().position(|(known, _)| *known == source)?;
        if !self.may_lease(source, target, lane, now) {
            return None;
        }
        let (_, head) = self.first_of_source(target, lane, at, backlog, now)?;
        if head.awaited() && !self.runs_low(backlog, target, now) {
            return None;
        }
        let index = head.transfer();
        (self.best_source(index, now) == Some(source)).then_some(index)
    }

    /// What a lease that came to nothing had cost at its link is given back.
    pub(crate) fn refund_at_link(&mut self, index: u32, lease: &ActiveLease, back: f64) {
        if lease.charged_lane.is_none() {
            return;
        }
        let community = self.parties.community(lease.party);
        let link = (lease.source, self.transfers[index].target);
        if let Some(account) = self.link_shares.accounts.get_mut(&link) {
            account.refund(community, back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contenders(weights: &[f64]) -> Vec<Contender> {
        let one = |(at, &weight)| Contender { community: at, at, weight };
        (0..).zip(weights).map(one).collect()
    }

    /// Full claim of a contender, for a claim of 100 bytes in total.
    fn full(contenders: &[Contender]) -> f64 {
        100.0 / contenders.iter().map(|one| one.weight).sum::<f64>()
    }

    /// Serves so many files of one byte, each to whom is first.
    fn serve(account: &mut LinkAccount, wanting: &[Contender], files: u32) -> Vec<f64> {
        let mut got = vec![0.0; 4];
        for _ in 0..files {
            let mut order = wanting.to_vec();
            account.sort_by_turn(&mut order);
            account.pay(&order[0], 1.0, full(wanting));
            got[order[0].community as usize] += 1.0;
        }
        got
    }

    #[test]
    fn a_link_is_dealt_by_its_weights_and_next_to_none_gets_what_nobody_wants() {
        let all = contenders(&[3.0, 1.0, sanitize_weight(0.0)]);
        let mut account = LinkAccount::default();
        // One, since it comes when the others do.
        assert_eq!(serve(&mut account, &all, 401)[..3], [300.0, 100.0, 1.0]);
        // Alone it has everything, for as long as it likes, and then nothing again.
        assert_eq!(serve(&mut account, &all[2..], 1_000_000)[2], 1e6);
        assert_eq!(serve(&mut account, &all, 400)[..3], [300.0, 100.0, 0.0]);
    }

    #[test]
    fn who_comes_begins_at_the_present_and_who_was_held_up_has_a_bounded_claim() {
        let all = contenders(&[1.0, 1.0]);
        let mut account = LinkAccount::default();
        serve(&mut account, &all[..1], 10_000);
        assert_eq!(serve(&mut account, &all, 100)[..2], [50.0, 50.0]);
        // It waits, and cannot be served.
        for _ in 0..10_000 {
            account.sort_by_turn(&mut all.clone());
            account.pay(&all[0], 1.0, full(&all));
        }
        // Of 10,000 it catches up on 315: its share of 100, and what the logarithm leaves of the rest.
        let got = serve(&mut account, &all, 1_000);
        assert!((650.0..=660.0).contains(&got[1]), "{got:?}");
        // What came to nothing is given back.
        serve(&mut account, &all, 100);
        (0..40).for_each(|_| account.refund(1, 1.0));
        assert_eq!(serve(&mut account, &all, 200)[..2], [80.0, 120.0]);
    }

    /// Two can have one file in 20, and a third takes the others: of what comes to the two each has its part
    /// by weight, and so of what they catch up on.
    #[test]
    fn those_held_up_share_by_weight_among_each_other() {
        let all = contenders(&[3.0, 1.0, 1.0]);
        let mut account = LinkAccount::default();
        let mut serve = |those: &[u32]| {
            let mut order = all.clone();
            account.sort_by_turn(&mut order);
            let served = *order.iter().find(|one| those.contains(&one.community)).unwrap();
            account.pay(&served, 1.0, full(&all));
            served.community as usize
        };
        let mut got = [0.0; 3];
        for file in 0..10_000 {
            got[serve(if file % 20 == 0 { &[0, 1] } else { &[2] })] += 1.0;
        }
        assert!((355.0..=385.0).contains(&got[0]), "of 500: {got:?}");
        let mut got = [0.0; 3];
        (0..60).for_each(|_| got[serve(&[0, 1, 2])] += 1.0);
        assert!((43.0..=47.0).contains(&got[0]) && got[2] == 0.0, "of 60: {got:?}");
    }

    #[test]
    fn those_not_named_share_one_weight_and_other_weights_begin_anew() {
        let names: Vec<CommunityName> =
            ["atlas", "cms", "lhcb"].iter().map(|name| name.parse().unwrap()).collect();
        let rule = |weight: f64| LinkShareRule {
            communities: BTreeMap::from([(names[0].clone(), weight)]),
            others: 3.0,
        };
        let mut all = contenders(&[0.0; 3]);
        rule(5.0).set_weights(&mut all, |community| &names[community as usize]);
        assert_eq!(all.iter().map(|one| one.weight).collect::<Vec<_>>(), [5.0, 1.5, 1.5]);

        let mut own = LinkShareTable::default();
        let of = |pair: f64, from: f64| {
            BTreeMap::from([((Some(1), Some(2)), rule(pair)), ((Some(1), None), rule(from))])
        };
        own.set(of(1.0, 2.0));
        assert!(own.rule(2, 1).is_none() && own.rule(1, 2) != own.rule(1, 3));
        own.accounts = BTreeMap::from([((1, 2), LinkAccount::default()), ((1, 3), LinkAccount::default())]);
        own.set(of(1.0, 9.0));
        assert_eq!(own.accounts.keys().collect::<Vec<_>>(), [&(1, 2)]);
        own.set(BTreeMap::from([((Some(1), None), rule(1.0))]));
        assert_eq!(own.accounts.len(), 1, "the same weights, by a wider pattern");
        own.set(BTreeMap::new());
        assert!(own.accounts.is_empty() && own.is_empty());
    }
}
