//! Any events in any order at any time: unknown ids, contradictions, absurd numbers, clocks that leap.
//! Nothing panics, and every decision is about something that was told.

use std::collections::BTreeSet;

use longhaul_model::{
    AgentId, AttemptId, BlockId, Epoch, Fault, FaultCode, FileId, SiteId, StorageId, SubscriptionId,
    Timestamp, TransferId,
};
use longhaul_network::Knowledge;
use longhaul_scheduler::*;
use proptest::prelude::{ProptestConfig, any, prop_assert, proptest};

/// Raw numbers; `event` makes something of them, often nonsense.
type Raw = (u8, u64, u64, u64, u64, bool);

fn few(value: u64) -> u64 {
    value % 4
}

fn amount(value: u64) -> u64 {
    match value % 5 {
        0 => 0,
        1 => u64::MAX,
        2 => i64::MAX as u64,
        _ => value % 10_000_000,
    }
}

fn fault(value: u64) -> Fault {
    let codes = FaultCode::ALL;
    Fault::new(codes[(value % codes.len() as u64) as usize], "absurd")
}

fn event((kind, a, b, c, d, flag): Raw, leases: &[Lease], asked: &[DemandId]) -> Event {
    let known = (!leases.is_empty()).then(|| &leases[(a % leases.len().max(1) as u64) as usize]);
    let attempt = known.map_or(AttemptId(a), |lease| lease.attempt);
    let epoch = known.map_or(Epoch(b), |lease| if b % 8 == 0 { Epoch(b) } else { lease.epoch });
    let id = DemandId { subscription: SubscriptionId(few(a)), block: BlockId(few(b)) };
    match kind % 20 {
        0 => Event::Site(SiteInfo {
            id: SiteId(few(a)),
            name: "s".parse().unwrap(),
            state: [SiteState::Open, SiteState::Open, SiteState::Draining, SiteState::Paused]
                [few(b) as usize],
            reason: flag.then(|| "why".to_owned()),
            limits: SiteLimits {
                active_in: (c % 3 == 0).then_some((c % 7) as u32),
                active_out: (d % 3 == 0).then_some((d % 7) as u32),
                in_bytes_per_s: flag.then_some(amount(c)),
                out_bytes_per_s: flag.then_some(amount(d)),
            },
        }),
        1 => Event::Storage(StorageInfo {
            id: StorageId(few(a)),
            name: format!("t{}", few(a)).parse().unwrap(),
            site: SiteId(few(b)),
            writable: c % 5 != 0,
            relay: c % 3 == 0,
            trouble: (d % 5 == 0).then(|| fault(c)),
        }),
        2 | 3 => Event::Agent {
            storage: StorageId(few(a)),
            agent: (b % 6 != 0).then_some(AgentId(b % 2)),
            connected: c % 6 != 0,
        },
        4 => Event::HeldLeases { agent: AgentId(few(a)), attempts: vec![attempt, AttemptId(b)] },
        5 | 6 => Event::Demand(Demand {
            id,
            target: StorageId(if flag { few(a) } else { few(c) }),
            priority: d as u8,
            party: Party {
                community: ["cms", "atlas"][(a % 2) as usize].parse().unwrap(),
                activity: (b % 3 != 0).then(|| ["bulk", "express"][(b % 2) as usize].parse().unwrap()),
            },
            deadline: flag.then_some(Timestamp(d as i64)),
            strategy: Strategy::ALL.get((c % 14) as usize).copied(),
            created: Timestamp(c as i64),
            files_left: amount(c),
            bytes_left: amount(d),
        }),
        19 => Event::Links((a % 3 != 0).then(|| {
            (0..b % 60)
                .map(|pair| (StorageId(few(pair.wrapping_mul(c))), StorageId(few(pair.wrapping_mul(d)))))
                .collect()
        })),
        7 => Event::DemandGone { id },
        8 => Event::SubscriptionGone { subscription: SubscriptionId(few(a)) },
        9..=11 => Event::Files {
            demand: asked.last().copied().unwrap_or(id),
            files: (0..c % 20)
                .map(|at| WantedFile {
                    file: FileId((a % 3).wrapping_add(at)),
                    size: amount(d.wrapping_add(at)),
                    sources: (0..(b.wrapping_add(at)) % 12)
                        .map(|source| StorageId((source + at) % 11))
                        .collect(),
                })
                .collect(),
            exhausted: flag,
        },
        12 => Event::ReplicaAdded { file: FileId(a % 20), storage: StorageId(few(b)) },
        13 => Event::ReplicaLost { file: FileId(a % 20), storage: StorageId(few(b)) },
        14 if flag => Event::BlockComplete { block: BlockId(few(a)), storage: StorageId(few(b)) },
        14 => Event::BlockLost { block: BlockId(few(a)), storage: StorageId(few(b)) },
        15 => Event::Adopt(AdoptedTransfer {
            transfer: TransferId(a),
            file: FileId(b % 20),
            block: BlockId(few(c)),
            target: StorageId(few(d)),
            size: amount(a),
            sources: vec![StorageId(few(b)), StorageId(few(c))],
            attempts: c as u32,
            epoch: Epoch(b % 1_000),
            not_before: flag.then_some(Timestamp(d as i64)),
            lease: (d % 2 == 0).then(|| AdoptedLease {
                attempt: AttemptId(c),
                source: StorageId(few(a)),
                agent: AgentId(few(b)),
            }),
        }),
        16 => Event::Progress { attempt, bytes_done: amount(b) },
        17 | 18 => Event::Outcome(Outcome {
            attempt,
            epoch,
            fault: (c % 3 != 0).then(|| fault(c)),
            bytes_moved: amount(d),
        }),
        _ if flag => Event::LeaseReleased { attempt },
        _ => Event::ExpandFailed { demand: asked.last().copied().unwrap_or(id) },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400 * ProptestConfig::default().cases / 256,
        failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_told_makes_it_panic(raws in proptest::collection::vec((any::<Raw>(), any::<i64>(), 0u8..22),
        0..300)) {
        let mut scheduler = Scheduler::new(Settings::default(), Knowledge::default(), 0);
        let mut now = Timestamp::from_seconds(1_800_000_000);
        let mut leases: Vec<Lease> = Vec::new();
        let mut asked: Vec<DemandId> = Vec::new();
        let mut attempts = BTreeSet::new();
        for (raw, time, leap) in raws {
            now = match leap {
                0 => Timestamp(time),
                1 => Timestamp(now.0.saturating_sub(time.rem_euclid(3_600_000_000))),
                _ => Timestamp(now.0.saturating_add(time.rem_euclid(60_000_000))),
            };
            scheduler.handle(event(raw, &leases, &asked), now);
            for turn in 0.. {
                let Some(decision) = scheduler.poll_decision(now) else { break };
                prop_assert!(turn < 3_000, "it never ends: {decision:?}");
                match decision {
                    Decision::Lease(lease) => {
                        prop_assert!(attempts.insert(lease.attempt), "an attempt id came twice");
                        prop_assert!(lease.source != lease.target);
                        scheduler.explain(&lease.choice);
                        leases.push(lease);
                    }
                    Decision::Expand { demand, limit, .. } => {
                        prop_assert!(limit > 0);
                        asked.push(demand);
                    }
                    _ => {}
                }
            }
            (0..4).for_each(|id| {
                scheduler.outlook(SubscriptionId(id), now);
            });
            for row in scheduler.transfers(None, None, 50) {
                scheduler.explain_wait(row.transfer, now);
            }
            scheduler.links(now);
            scheduler.counts();
            scheduler.next_wakeup();
        }
    }
}
