//! What the agent's doors allowed and refused, on its way to the service's log of decisions.
//!
//! A request only counts its decision up in memory, where equal ones are one and what waits is bounded. Every
//! few seconds what has gathered becomes facts of the ledger, a bounded number of them; from there it is told
//! as all facts are, once. While the ledger holds as many as it may (the service is away) they gather on,
//! counted together beyond the bound. An agent that is killed loses what its doors decided within the last
//! seconds, one that is stopped loses nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use longhaul_api::agent::{DoorDecision, Fact};
use longhaul_doors::Witness;
use longhaul_model::{Fault, StorageName};
use longhaul_security::{Counted, Decision, Tally, TallyBounds};

use crate::clock::ServiceClock;
use crate::ledger::Ledger;
use crate::threads::locked;

/// A door with tens of thousands of uploads a second tells of a hundred, and counts the others.
const BOUNDS: TallyBounds = TallyBounds { most: 1_000, refused_of_one: 20, allowed_of_one: 100 };
/// In one fact.
const BATCH: usize = 200;
/// How long decisions gather.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Decided {
    tally: Mutex<Tally>,
    clock: ServiceClock,
}

/// Hears of the decisions at one storage's door.
pub(crate) struct AtDoor(pub(crate) Arc<Decided>);

impl Witness for AtDoor {
    fn decided(&self, decision: Decision) {
        locked(&self.0.tally).note(decision, self.0.clock.now());
    }
}

impl Decided {
    pub(crate) fn new(clock: ServiceClock) -> Decided {
        Decided { tally: Mutex::new(Tally::new(BOUNDS)), clock }
    }

    /// Makes what has gathered durable, as far as there is room. What cannot be written waits on.
    pub(crate) fn hand_over(&self, ledger: &Ledger) -> Result<(), Fault> {
        while ledger.has_room_for_decisions() {
            let list = locked(&self.tally).take(BATCH);
            if list.is_empty() {
                return Ok(());
            }
            let fact = Fact::Decided { decisions: list.iter().filter_map(told).collect() };
            if let Err(fault) = ledger.add_decisions(fact) {
                locked(&self.tally).put_back(list);
                return Err(fault);
            }
        }
        Ok(())
    }
}

/// None for what no door has decided.
fn told(counted: &Counted) -> Option<DoorDecision> {
    let Counted { decision, since, at, times } = counted.clone();
    let storage: StorageName = decision.storage?;
    Some(DoorDecision {
        storage,
        allowed: decision.allowed,
        since,
        at,
        times,
        who: decision.who,
        credential: decision.credential,
        origin: decision.origin,
        operation: decision.operation,
        object: decision.object,
        why: decision.why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::Timestamp;

    fn gathering() -> Arc<Decided> {
        Arc::new(Decided::new(ServiceClock::new(Arc::new(|| Timestamp::from_seconds(7)), 0)))
    }

    fn refused(object: &str) -> Decision {
        Decision {
            allowed: false,
            who: "/CN=mallory".into(),
            credential: "certificate".into(),
            origin: "192.0.2.7".into(),
            operation: "door PUT".into(),
            object: object.into(),
            why: "not allowed".into(),
            storage: Some("disk".parse().unwrap()),
        }
    }

    fn decisions(ledger: &Ledger) -> Vec<DoorDecision> {
        let of = |fact| match fact {
            Fact::Decided { decisions } => decisions,
            other => panic!("{other:?}"),
        };
        ledger.entries().into_iter().flat_map(|entry| of(entry.fact)).collect()
    }

    #[test]
    fn what_doors_decided_is_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let door = AtDoor(decided.clone());
        for _ in 0..3 {
            door.decided(refused("/x"));
        }
        let ledger = Ledger::open(directory.path()).unwrap();
        ledger.service_speaks(3);
        decided.hand_over(&ledger).unwrap();
        decided.hand_over(&ledger).unwrap();
        let list = decisions(&ledger);
        assert_eq!(list.len(), 1);
        assert_eq!((list[0].times, list[0].storage.as_str(), list[0].object.as_str()), (3, "disk", "/x"));
        assert_eq!(list[0].at, Timestamp::from_seconds(7));
        drop(ledger);
        let again = Ledger::open(directory.path()).unwrap();
        again.service_speaks(3);
        assert_eq!(decisions(&again), list, "it outlives the agent");
        again.acknowledge(1).unwrap();
        assert!(again.entries().is_empty());
    }

    /// Promise 7, while the service is away.
    #[test]
    fn a_door_that_refuses_all_the_time_fills_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let door = AtDoor(decided.clone());
        let ledger = Ledger::open(directory.path()).unwrap();
        ledger.service_speaks(3);
        let mut noted = 0;
        for round in 0..200 {
            for number in 0..300 {
                let who = format!("/CN={}", number % 60);
                door.decided(Decision { who, ..refused(&format!("/{round}/{number}")) });
                noted += 1;
            }
            decided.hand_over(&ledger).unwrap();
        }
        assert!(!ledger.has_room_for_decisions());
        assert!(locked(&decided.tally).len() <= BOUNDS.most + 1);
        let (mut told, mut sequence) = (0, 0);
        while !ledger.entries().is_empty() {
            told += decisions(&ledger).iter().map(|one| one.times).sum::<u64>();
            sequence = ledger.entries().last().map_or(sequence, |entry| entry.sequence);
            ledger.acknowledge(sequence).unwrap();
            decided.hand_over(&ledger).unwrap();
        }
        assert_eq!(told, noted, "none is lost");
    }

    /// A service of an older release would not understand the report.
    #[test]
    fn an_older_service_is_not_told() {
        let directory = tempfile::tempdir().unwrap();
        let decided = gathering();
        let ledger = Ledger::open(directory.path()).unwrap();
        AtDoor(decided.clone()).decided(refused("/x"));
        decided.hand_over(&ledger).unwrap();
        ledger.add_task_fact(&task_done(), &crate::stop::Stop::default()).unwrap();
        assert!(ledger.entries().is_empty(), "until it is known what it speaks");
        ledger.service_speaks(2);
        let entries = ledger.entries();
        assert!(matches!(entries.as_slice(), [entry] if entry.sequence == 2), "{entries:?}");
        ledger.service_speaks(3);
        assert_eq!(ledger.entries().len(), 2);
    }

    fn task_done() -> Fact {
        Fact::TaskDone { task: longhaul_model::TaskId(1), fault: None }
    }
}
