//! The scheduler's ids for the objects of jobs.
//!
//! An end point is two storages of the scheduler, one to read from and one to write to: copies within one
//! server are copies too, and the two directions are independent.

use longhaul_catalog::JobQueueRow;
use longhaul_model::job::JOBS_HALF;
use longhaul_model::{
    ActivityName, AgentId, BlockId, CommunityName, FileId, SiteId, SiteName, StorageId, StorageName,
    SubscriptionId,
};
use longhaul_scheduler::{DemandId, Party};

/// The one agent of all end points: the movers here.
pub const MOVERS: AgentId = AgentId(JOBS_HALF | 1);

pub fn source(end: u64) -> StorageId {
    StorageId(JOBS_HALF | (end << 1))
}

pub fn target(end: u64) -> StorageId {
    StorageId(JOBS_HALF | (end << 1) | 1)
}

/// The end point that a storage is one side of.
pub fn end(storage: StorageId) -> u64 {
    (storage.0 & !JOBS_HALF) >> 1
}

pub fn site(number: u64) -> SiteId {
    SiteId(JOBS_HALF | number)
}

pub fn demand(queue: u64) -> DemandId {
    DemandId { subscription: SubscriptionId(JOBS_HALF | queue), block: BlockId(JOBS_HALF | queue) }
}

pub fn queue(block: BlockId) -> u64 {
    block.0 & !JOBS_HALF
}

pub fn file(number: u64) -> FileId {
    FileId(JOBS_HALF | number)
}

pub fn file_number(file: FileId) -> u64 {
    file.0 & !JOBS_HALF
}

/// The scheduler's nine priorities for the five of jobs, and for what an administrator put before all others.
pub fn priority(of_job: u8) -> u8 {
    match of_job {
        0 | 1 => 1,
        2 => 3,
        3 => 5,
        4 => 6,
        5 => 8,
        _ => 9,
    }
}

/// The party of the share: the VO, and the activity unless that is the default one. Case does not matter in
/// activities, as in FTS.
pub fn party(queue: &JobQueueRow) -> Party {
    party_of(&queue.vo, &queue.activity)
}

pub fn party_of(vo: &str, activity: &str) -> Party {
    let activity = activity.to_lowercase();
    Party {
        community: CommunityName::parse(&word(vo)).unwrap_or_else(|_| others()),
        activity: match activity.as_str() {
            "" | "default" => None,
            named => ActivityName::parse(&word(named)).ok(),
        },
    }
}

pub fn site_name(host: &str) -> Option<SiteName> {
    SiteName::parse(&word(host)).ok()
}

pub fn storage_name(url: &str) -> Option<StorageName> {
    StorageName::parse(&word(url.split_once("://").map_or(url, |(_, rest)| rest))).ok()
}

/// A foreign text as a valid name.
fn word(text: &str) -> String {
    let letters =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_') { c } else { '-' });
    let text: String = letters.skip_while(|c| !c.is_ascii_alphanumeric()).take(64).collect();
    if text.is_empty() { "unnamed".to_owned() } else { text }
}

fn others() -> CommunityName {
    match CommunityName::parse("unnamed") {
        Ok(name) => name,
        Err(_) => unreachable!("a word of letters is a name"),
    }
}

#[cfg(test)]
mod tests {
    use longhaul_model::job::of_jobs;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_come_back_and_are_none_of_the_catalogs(number in 1u64..1 << 60) {
            prop_assert_eq!(end(source(number)), number);
            prop_assert_eq!(end(target(number)), number);
            prop_assert_ne!(source(number), target(number));
            prop_assert_eq!(queue(demand(number).block), number);
            prop_assert_eq!(file_number(file(number)), number);
            prop_assert!(of_jobs(demand(number).block.0) && !of_jobs(number));
            prop_assert!(file(number).0 <= i64::MAX as u64 && target(number).0 <= i64::MAX as u64);
        }

        #[test]
        fn any_vo_and_activity_have_a_share(vo in ".{0,80}", activity in ".{0,80}") {
            let row = JobQueueRow {
                id: 1, target: 1, vo, activity, priority: 3, strategy: String::new(), files: 0, bytes: 0,
            };
            let party = party(&row);
            prop_assert!(party.community.as_str().len() <= 64);
        }
    }

    #[test]
    fn priorities_keep_their_order() {
        let all: Vec<u8> = (1..=6).map(priority).collect();
        assert!(all.is_sorted() && all[0] == 1 && all[5] == 9);
    }
}
