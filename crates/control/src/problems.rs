//! Equal faults counted together: what is wrong, since when, whose turn it is, and whether anything still
//! waits because of it. Pure.

use std::collections::{BTreeMap, VecDeque};

use longhaul_api::native::ProblemView;
use longhaul_model::{Blame, Fault, FaultCode, StorageName, Timestamp, TransferId};

/// Groups kept; beyond it the one not seen for longest is forgotten, closed ones first.
pub const GROUPS_MAX: usize = 500;
const EXAMPLES_MAX: usize = 5;

/// What makes two faults the same problem: the code, whose turn it is, and where.
type Fingerprint = (FaultCode, Blame, Option<StorageName>);

struct Group {
    fault: Fault,
    count: u64,
    first_seen: Timestamp,
    last_seen: Timestamp,
    examples: VecDeque<String>,
    /// Transfers that failed so and have not succeeded since.
    waiting: u64,
}

#[derive(Default)]
pub struct Problems {
    groups: BTreeMap<Fingerprint, Group>,
    /// Bounded by the transfers that are live.
    waiting: BTreeMap<TransferId, Fingerprint>,
}

impl Problems {
    /// An attempt of `transfer` failed; `example` is what a person would look for, such as the file's name.
    pub fn failed(
        &mut self,
        transfer: TransferId,
        fault: &Fault,
        storage: Option<StorageName>,
        example: String,
        now: Timestamp,
    ) {
        self.ended(transfer);
        let key = (fault.code, fault.blame, storage);
        self.waiting.insert(transfer, key.clone());
        let group = self.groups.entry(key).or_insert_with(|| Group {
            fault: fault.clone(),
            count: 0,
            first_seen: now,
            last_seen: now,
            examples: VecDeque::new(),
            waiting: 0,
        });
        group.count += 1;
        group.waiting += 1;
        group.last_seen = now;
        group.fault = fault.clone();
        if !group.examples.contains(&example) {
            group.examples.push_back(example);
            if group.examples.len() > EXAMPLES_MAX {
                group.examples.pop_front();
            }
        }
        self.forget_oldest();
    }

    /// The transfer succeeded or is wanted no longer: nothing waits for it.
    pub fn ended(&mut self, transfer: TransferId) {
        if let Some(key) = self.waiting.remove(&transfer)
            && let Some(group) = self.groups.get_mut(&key)
        {
            group.waiting = group.waiting.saturating_sub(1);
        }
    }

    fn forget_oldest(&mut self) {
        if self.groups.len() <= GROUPS_MAX {
            return;
        }
        let oldest = self
            .groups
            .iter()
            .min_by_key(|(_, group)| (group.waiting > 0, group.last_seen))
            .map(|(key, _)| key.clone());
        if let Some(key) = oldest {
            self.groups.remove(&key);
        }
    }

    /// Open ones first, then the latest.
    pub fn views(&self) -> Vec<ProblemView> {
        let mut views: Vec<ProblemView> = self
            .groups
            .iter()
            .map(|((_, _, storage), group)| ProblemView {
                fault: group.fault.clone(),
                storage: storage.clone(),
                count: group.count,
                first_seen: group.first_seen,
                last_seen: group.last_seen,
                remedy: group.fault.code.next_step().to_owned(),
                examples: group.examples.iter().cloned().collect(),
                open: group.waiting > 0,
            })
            .collect();
        views.sort_by_key(|view| (!view.open, std::cmp::Reverse(view.last_seen)));
        views
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_faults_are_one_problem_until_nothing_waits_for_it() {
        let mut problems = Problems::default();
        let fault = Fault::new(FaultCode::WrongDigest, "f1");
        let storage: StorageName = "alpha".parse().unwrap();
        for n in 1..=3 {
            let at = Timestamp::from_seconds(n as i64);
            problems.failed(TransferId(n), &fault, Some(storage.clone()), format!("f{n}"), at);
            problems.failed(TransferId(n), &fault, Some(storage.clone()), format!("f{n}"), at);
        }
        let view = &problems.views()[0];
        assert_eq!((view.count, view.open, view.examples.len()), (6, true, 3));
        (1..=3).for_each(|n| problems.ended(TransferId(n)));
        assert!(!problems.views()[0].open);
    }

    #[test]
    fn the_number_of_problems_is_bounded_and_open_ones_stay() {
        let mut problems = Problems::default();
        let fault = Fault::new(FaultCode::TargetFull, "");
        for n in 0..GROUPS_MAX as u64 + 50 {
            let storage = format!("s{n}").parse().unwrap();
            problems.failed(TransferId(n), &fault, Some(storage), String::new(), Timestamp(n as i64));
            if n > 0 {
                problems.ended(TransferId(n));
            }
        }
        assert_eq!(problems.views().len(), GROUPS_MAX);
        assert_eq!(problems.views()[0].storage.as_ref().unwrap().as_str(), "s0");
    }
}
