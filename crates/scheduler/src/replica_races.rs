//! Races between replica events and expansion queries: an answer describes the catalog when it was read, and
//! may reach the scheduler after newer replica events. Replicas recorded since the query are added to the
//! answer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_model::FileId;

/// Beyond this the oldest events are dropped: an answer under way for so long is stale in any case.
const REPLICAS_MAX: usize = 100_000;

#[derive(Default)]
pub(crate) struct ReplicaRaces {
    /// Sequence number of the next replica event.
    next: u64,
    /// Open queries: the sequence number at which each began, and its want.
    queries: BTreeSet<(u64, u32)>,
    query_start: BTreeMap<u32, u64>,
    replicas: VecDeque<(u64, FileId, u32)>,
}

impl ReplicaRaces {
    /// A query of a want is sent.
    pub(crate) fn begin_query(&mut self, want: u32) {
        self.end_query(want);
        self.queries.insert((self.next, want));
        self.query_start.insert(want, self.next);
    }

    /// The query is answered, or its answer will not count.
    pub(crate) fn end_query(&mut self, want: u32) {
        let Some(since) = self.query_start.remove(&want) else { return };
        self.queries.remove(&(since, want));
        let oldest = self.queries.first().map_or(self.next, |(since, _)| *since);
        while self.replicas.front().is_some_and(|(number, ..)| *number < oldest) {
            self.replicas.pop_front();
        }
    }

    pub(crate) fn record_replica(&mut self, file: FileId, storage: u32) {
        if self.queries.is_empty() {
            return;
        }
        if self.replicas.len() >= REPLICAS_MAX {
            self.replicas.pop_front();
        }
        self.replicas.push_back((self.next, file, storage));
        self.next += 1;
    }

    /// Replicas recorded since the query of a want was sent.
    pub(crate) fn replicas_since_query(&self, want: u32) -> BTreeSet<(FileId, u32)> {
        let Some(&since) = self.query_start.get(&want) else { return BTreeSet::new() };
        let from = self.replicas.partition_point(|(number, ..)| *number < since);
        self.replicas.range(from..).map(|(_, file, storage)| (*file, *storage)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_kept_as_long_as_a_question_is_under_way() {
        let mut news = ReplicaRaces::default();
        news.record_replica(FileId(1), 1);
        news.begin_query(7);
        news.record_replica(FileId(2), 1);
        news.begin_query(8);
        news.record_replica(FileId(3), 1);
        assert_eq!(news.replicas_since_query(7), BTreeSet::from([(FileId(2), 1), (FileId(3), 1)]));
        assert_eq!(news.replicas_since_query(8), BTreeSet::from([(FileId(3), 1)]));
        news.end_query(7);
        assert_eq!(news.replicas_since_query(8).len(), 1);
        assert_eq!(news.replicas.len(), 1, "what nobody can miss is gone");
        news.end_query(8);
        assert!(news.replicas.is_empty());
    }
}
