//! The mesh of looks: who shall look at whom next, what was found, and what of it is believed.
//!
//! Each agent is given one peer at a time, every `probe_every_s` seconds, in the order of the agents'
//! numbers; every second turn goes to one that it could not reach, if there is any. So an agent makes as many
//! looks a minute in a deployment of three sites as in one of three hundred, n peers are seen once in n turns
//! (twice that in trouble), and trouble that ends is noticed within a few. Here is no clock and no socket.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::measured::MeasurementsTaken;
use longhaul_api::probe::{PROBES_MAX, ProbeResult, ProbedWay, Reach};
use longhaul_model::{AgentId, SiteId, Timestamp};
use longhaul_network::advice::Family;
use longhaul_network::{
    CLOCK_AHEAD_MAX, Endpoint, Mapping, Metric, Observation, ObservationId, Origin, PathSelector, Subject,
};

use super::ecmp_hint::{self, EcmpHint};
use super::error::MeasurementError;

/// Pairs of agents remembered: all of 300. Beyond it the one looked at longest ago goes.
const ROWS_MAX: usize = 90_000;
/// What took longer to get here says nothing about now.
const PROBE_AGE_MAX: Duration = Duration::from_secs(600);
const FAMILIES_MAX: usize = 2;
const TEXT_CHARS_MAX: usize = 300;
const TEXTS_MAX: usize = 4;
/// Source ports that are as uneven in so many looks in a row are no chance.
const UNEVEN_PROBES_MIN: u8 = 3;

/// What was last found by one agent at another.
#[derive(Clone, Debug)]
pub struct Row {
    pub at: Timestamp,
    pub ways: Vec<ProbedWay>,
    pub fault: Option<String>,
    pub unreachable_since: Option<Timestamp>,
    /// How often in a row, by family: IPv4, IPv6; and how the last time.
    uneven: [(u8, Option<EcmpHint>); 2],
}

impl Row {
    /// In words, for each family whose source ports differ again and again.
    pub fn uneven(&self) -> impl Iterator<Item = String> {
        let named = self.uneven.iter().zip(["IPv4", "IPv6"]);
        named
            .filter(|((times, _), _)| *times >= UNEVEN_PROBES_MIN)
            .filter_map(|((_, found), family)| Some(format!("over {family} {}", found.as_ref()?.words())))
    }
}

struct Turn {
    due: Timestamp,
    /// The peer whose turn was last.
    after: AgentId,
    /// The last turn went to one that cannot be reached.
    in_trouble: bool,
}

#[derive(Default)]
pub struct Probes {
    turns: BTreeMap<AgentId, Turn>,
    rows: BTreeMap<(AgentId, AgentId), Row>,
}

impl Probes {
    /// The peer that `agent` shall look at now, if it is time. `peers` are all that could be, in order.
    pub fn next(
        &mut self,
        agent: AgentId,
        peers: impl FnOnce() -> Vec<AgentId>,
        every: Duration,
        now: Timestamp,
    ) -> Option<AgentId> {
        let first = || Turn { due: now.plus(every), after: AgentId(0), in_trouble: false };
        let turn = self.turns.entry(agent).or_insert_with(first);
        // A clock that was set back must not stop it for as long.
        if now < turn.due && turn.due.since(now) <= every {
            return None;
        }
        turn.due = now.plus(every);
        let peers = peers();
        let of_agent = (agent, AgentId(0))..=(agent, AgentId(u64::MAX));
        let unreachable = self
            .rows
            .range(of_agent)
            .filter(|((_, peer), row)| row.unreachable_since.is_some() && peers.binary_search(peer).is_ok());
        let oldest = unreachable.min_by_key(|(_, row)| row.at).map(|((_, peer), _)| *peer);
        if let Some(peer) = oldest.filter(|_| !turn.in_trouble) {
            turn.in_trouble = true;
            return Some(peer);
        }
        turn.in_trouble = false;
        let peer = *peers.iter().find(|peer| **peer > turn.after).or(peers.first())?;
        turn.after = peer;
        Some(peer)
    }

    /// Notes what `agent` found. Refuses what cannot be; nothing of it is kept then.
    pub fn note(
        &mut self,
        agent: AgentId,
        found: &ProbeResult,
        now: Timestamp,
    ) -> Result<(), MeasurementError> {
        check(found, now)?;
        let key = (agent, found.agent);
        let known = self.rows.get(&key);
        if known.is_some_and(|row| row.at >= found.at) {
            return Err(MeasurementError::NotNewer);
        }
        let reached = found.ways.iter().any(|way| way.reach == Reach::Answers);
        let since = known.and_then(|row| row.unreachable_since);
        let mut uneven = known.map(|row| row.uneven.clone()).unwrap_or_default();
        for way in &found.ways {
            let slot = &mut uneven[usize::from(way.address.is_ipv6())];
            *slot = match ecmp_hint::find(&way.rtts_us) {
                Some(found) => (slot.0.saturating_add(1), Some(found)),
                None => (0, None),
            };
        }
        if self.rows.len() >= ROWS_MAX && known.is_none() {
            let oldest = self.rows.iter().min_by_key(|(_, row)| row.at).map(|(key, _)| *key);
            oldest.map(|oldest| self.rows.remove(&oldest));
        }
        let row = Row {
            at: found.at,
            ways: found.ways.iter().cloned().map(short).collect(),
            fault: found.fault.clone().map(|fault| fault.chars().take(TEXT_CHARS_MAX).collect()),
            unreachable_since: (!reached).then_some(since.unwrap_or(found.at)),
            uneven,
        };
        self.rows.insert(key, row);
        Ok(())
    }

    /// All rows: the agent that probed, its peer, and the result.
    pub fn rows(&self) -> impl Iterator<Item = (AgentId, AgentId, &Row)> {
        self.rows.iter().map(|(&(agent, peer), row)| (agent, peer, row))
    }
}

fn short(mut way: ProbedWay) -> ProbedWay {
    way.unknown.truncate(TEXTS_MAX);
    way.unknown.iter_mut().for_each(|text| *text = text.chars().take(TEXT_CHARS_MAX).collect());
    way
}

/// The numbers themselves are checked by the room that believes them.
fn check(found: &ProbeResult, now: Timestamp) -> Result<(), MeasurementError> {
    let ahead = found.at.since(now);
    if ahead > CLOCK_AHEAD_MAX {
        return Err(MeasurementError::Future(ahead));
    }
    let age = now.since(found.at);
    if age > PROBE_AGE_MAX {
        return Err(MeasurementError::TooOld(age));
    }
    let families =
        found.ways.iter().map(|way| way.address.is_ipv6()).collect::<std::collections::BTreeSet<_>>();
    if found.ways.len() > FAMILIES_MAX || families.len() < found.ways.len() {
        return Err(MeasurementError::FamilyTwice(found.ways.len()));
    }
    for way in &found.ways {
        if way.rtts_us.len() > PROBES_MAX || way.hops.len() > longhaul_network::HOPS_MAX {
            return Err(MeasurementError::TooDetailed);
        }
        if (way.reach == Reach::Answers) == way.rtts_us.is_empty() {
            return Err(MeasurementError::ReachContradictsRtts);
        }
    }
    Ok(())
}

/// What a look tells of the paths between two sites. Data come from where the dialling agent connects to:
/// whether the peer answers, belongs to the way from it. Routers and packet size were found in the direction
/// in which the look went. A round trip is that of both.
pub fn observations(agent: AgentId, (from, to): (SiteId, SiteId), found: &ProbeResult) -> Vec<Observation> {
    let reached = found.ways.iter().any(|way| way.reach == Reach::Answers);
    let mut all = Vec::new();
    for way in &found.ways {
        let family = if way.address.is_ipv6() { Family::Ipv6 } else { Family::Ipv4 };
        let numbers = [agent.to_string(), found.agent.to_string(), found.at.to_string()];
        let mut add = |what: &str, (source, target): (SiteId, SiteId), seen| {
            let id =
                ["probe", &numbers[0], &numbers[1], &numbers[2], way.family(), what, &source.to_string()];
            let (source, target) = (Endpoint::Site(source), Endpoint::Site(target));
            all.push(Observation {
                id: ObservationId::from_parts(&id),
                at: found.at,
                subject: Subject::Path { source, target, path: PathSelector::over_family(family) },
                metric: seen,
                origin: Origin::Probe,
                mapping: Mapping::Explicit,
            });
        };
        let (there, back) = ((from, to), (to, from));
        // First the route: a round trip that is not what it was is believed at once if that changed.
        if !way.hops.is_empty() {
            add("hops", there, Metric::Hops(way.hops.clone()));
        }
        if let Some(bytes) = way.mtu {
            add("mtu", there, Metric::Mtu { bytes, black_hole: way.black_hole });
        }
        if let Some(us) = way.rtt_us() {
            add("rtt", there, Metric::Rtt { us: us.into() });
            add("rtt", back, Metric::Rtt { us: us.into() });
        }
        // Who has no route for a family is not to blame the peer, unless that is all there is.
        if way.reach != Reach::NoRoute || !reached {
            add("reach", back, Metric::Reach { up: way.reach == Reach::Answers });
        }
    }
    all
}

/// Counts what became of one result.
pub fn count_outcome(taken: &mut MeasurementsTaken, outcome: Result<(), MeasurementError>) {
    match outcome {
        Ok(()) => taken.taken += 1,
        Err(error) => {
            taken.refused += 1;
            taken.why.get_or_insert_with(|| error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PROBE_INTERVAL: Duration = Duration::from_secs(10);

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_800_000_000 + seconds)
    }

    fn agents(count: u64) -> Vec<AgentId> {
        (1..=count).map(AgentId).collect()
    }

    fn way(address: &str, reach: Reach) -> ProbedWay {
        let answers = reach == Reach::Answers;
        ProbedWay {
            address: address.parse().unwrap(),
            reach,
            rtts_us: if answers { vec![20_000, 20_100] } else { Vec::new() },
            mtu: answers.then_some(1_500),
            black_hole: false,
            hops: if answers { vec![None, Some("192.0.2.1".parse().unwrap())] } else { Vec::new() },
            unknown: Vec::new(),
        }
    }

    fn result(agent: u64, seconds: i64, reach: Reach) -> ProbeResult {
        ProbeResult {
            agent: AgentId(agent),
            at: at(seconds),
            ways: vec![way("192.0.2.9:7470", reach)],
            fault: None,
        }
    }

    #[test]
    fn a_mesh_is_covered_in_as_many_turns_as_there_are_peers_at_a_fixed_rate() {
        for count in [2, 60, 170] {
            let mut probes = Probes::default();
            let peers: Vec<AgentId> =
                agents(count).into_iter().filter(|agent| *agent != AgentId(1)).collect();
            let mut asked = Vec::new();
            // Asked each second, it answers every ten.
            for second in 0..=count as i64 * 10 {
                asked.extend(probes.next(AgentId(1), || peers.clone(), PROBE_INTERVAL, at(second)));
            }
            assert_eq!(asked.len(), count as usize, "six a minute");
            let mut different = asked.clone();
            different.sort();
            different.dedup();
            assert_eq!(different, peers, "and each of them once in a round");
        }
    }

    #[test]
    fn who_cannot_be_reached_is_looked_at_every_second_turn_until_it_answers() {
        let mut probes = Probes::default();
        let peers = agents(60);
        let next = |probes: &mut Probes, turn: i64| {
            probes.next(AgentId(99), || peers.clone(), PROBE_INTERVAL, at(turn * 10))
        };
        assert_eq!(next(&mut probes, 0), None, "not at once: agents come all together after a restart");
        probes.note(AgentId(99), &result(7, 5, Reach::Silent), at(6)).unwrap();
        let turns: Vec<_> = (1..=6).filter_map(|turn| next(&mut probes, turn)).collect();
        assert_eq!(turns, [7, 1, 7, 2, 7, 3].map(AgentId));
        probes.note(AgentId(99), &result(7, 65, Reach::Answers), at(66)).unwrap();
        assert_eq!(next(&mut probes, 7), Some(AgentId(4)));
        assert!(probes.rows().all(|(_, _, row)| row.unreachable_since.is_none()));
        assert_eq!(probes.next(AgentId(99), Vec::new, PROBE_INTERVAL, at(100)), None, "nobody else is there");
        assert_eq!(next(&mut probes, -100), Some(AgentId(5)), "a clock that was set back stops nothing");
    }

    #[test]
    fn trouble_keeps_its_beginning() {
        let mut probes = Probes::default();
        for (seconds, reach) in [(0, Reach::Answers), (10, Reach::Silent), (20, Reach::Refused)] {
            probes.note(AgentId(1), &result(2, seconds, reach), at(seconds)).unwrap();
        }
        let since = |probes: &Probes| probes.rows().next().unwrap().2.unreachable_since;
        assert_eq!(since(&probes), Some(at(10)));
        let mut named = result(2, 30, Reach::Silent);
        named.ways.push(way("[2001:db8::9]:7470", Reach::Answers));
        probes.note(AgentId(1), &named, at(30)).unwrap();
        assert_eq!(since(&probes), None, "one family is enough");
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_reason() {
        let mut probes = Probes::default();
        let mut say = |found: ProbeResult, now| match probes.note(AgentId(1), &found, at(now)) {
            Ok(()) => "taken".to_owned(),
            Err(why) => why.to_string(),
        };
        assert!(say(result(2, 1_000, Reach::Answers), 0).contains("in the future"));
        assert!(say(result(2, 0, Reach::Answers), 1_000).contains("old"));
        assert_eq!(say(result(2, 0, Reach::Answers), 0), "taken");
        assert!(say(result(2, 0, Reach::Answers), 1).contains("not newer"), "twice");
        let mut twice = result(2, 1, Reach::Answers);
        twice.ways.push(twice.ways[0].clone());
        assert!(say(twice, 1).contains("one for each address family"));
        let mut long = result(2, 1, Reach::Answers);
        long.ways[0].hops = vec![None; 65];
        assert!(say(long, 1).contains("more round trips or routers"));
        let mut odd = result(2, 1, Reach::Silent);
        odd.ways[0].rtts_us = vec![5];
        assert!(say(odd, 1).contains("silence has none"));
    }

    #[test]
    fn a_look_tells_of_both_directions_what_it_can() {
        let mut found = result(2, 0, Reach::Answers);
        found.ways.push(way("[2001:db8::9]:7470", Reach::NoRoute));
        let all = observations(AgentId(1), (SiteId(1), SiteId(2)), &found);
        let said: Vec<(SiteId, usize)> = all
            .iter()
            .map(|one| {
                let Subject::Path { source: Endpoint::Site(source), .. } = one.subject else {
                    panic!("{one:?}")
                };
                let kind = match one.metric {
                    Metric::Hops(_) => 0,
                    Metric::Mtu { .. } => 1,
                    Metric::Rtt { .. } => 2,
                    Metric::Reach { up: true } => 3,
                    _ => 9,
                };
                (source, kind)
            })
            .collect();
        assert_eq!(said, [(1, 0), (1, 1), (1, 2), (2, 2), (2, 3)].map(|(site, kind)| (SiteId(site), kind)));
        let ids: std::collections::BTreeSet<_> = all.iter().map(|one| one.id).collect();
        assert_eq!(ids.len(), all.len());
        assert!(all.iter().all(|one| one.origin == Origin::Probe));
        found.ways.remove(0);
        let alone = observations(AgentId(1), (SiteId(1), SiteId(2)), &found);
        assert!(matches!(alone[0].metric, Metric::Reach { up: false }), "no way at all");
    }

    proptest! {
        #[test]
        fn whatever_agents_say_is_taken_or_refused(
            all in proptest::collection::vec(
                (
                    any::<u64>(), any::<u64>(), any::<i64>(),
                    proptest::collection::vec(any::<u32>(), 0..80), any::<Option<u32>>(), any::<i64>(),
                ),
                0..40,
            )
        ) {
            let mut probes = Probes::default();
            for (agent, peer, seconds, rtts_us, mtu, now) in all {
                let ways = vec![ProbedWay { rtts_us, mtu, ..way("192.0.2.9:7470", Reach::Answers) }];
                let found = ProbeResult { agent: AgentId(peer), at: Timestamp(seconds), ways, fault: None };
                let _ = probes.note(AgentId(agent), &found, Timestamp(now));
                let _ = probes.next(AgentId(agent), || vec![AgentId(peer)], PROBE_INTERVAL, Timestamp(now));
                let all = observations(AgentId(agent), (SiteId(1), SiteId(2)), &found);
                prop_assert_eq!(all.is_empty(), false);
            }
            prop_assert!(probes.rows().all(|(_, _, row)| row.uneven().count() <= 2));
        }
    }
}
