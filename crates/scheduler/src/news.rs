//! Replicas that came while questions for files were under way: an answer tells of the moment it was read,
//! and may reach the scheduler after such news. What it does not know yet is added to it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use longhaul_model::FileId;

/// The oldest are forgotten beyond this: an answer under way for so long is stale in any case.
const NEWS_MAX: usize = 100_000;

#[derive(Default)]
pub(crate) struct News {
    /// Number of the next piece of news.
    next: u64,
    /// Questions under way: the number of the first piece of news after each was asked.
    asked: BTreeSet<(u64, u32)>,
    since: BTreeMap<u32, u64>,
    list: VecDeque<(u64, FileId, u32)>,
}

impl News {
    /// A want's question leaves.
    pub(crate) fn asked(&mut self, want: u32) {
        self.answered(want);
        self.asked.insert((self.next, want));
        self.since.insert(want, self.next);
    }

    /// Its answer has come, or will not count.
    pub(crate) fn answered(&mut self, want: u32) {
        let Some(since) = self.since.remove(&want) else { return };
        self.asked.remove(&(since, want));
        let oldest = self.asked.first().map_or(self.next, |(since, _)| *since);
        while self.list.front().is_some_and(|(number, ..)| *number < oldest) {
            self.list.pop_front();
        }
    }

    pub(crate) fn replica(&mut self, file: FileId, storage: u32) {
        if self.asked.is_empty() {
            return;
        }
        if self.list.len() >= NEWS_MAX {
            self.list.pop_front();
        }
        self.list.push_back((self.next, file, storage));
        self.next += 1;
    }

    /// What came since a want asked.
    pub(crate) fn since(&self, want: u32) -> BTreeSet<(FileId, u32)> {
        let Some(&since) = self.since.get(&want) else { return BTreeSet::new() };
        let from = self.list.partition_point(|(number, ..)| *number < since);
        self.list.range(from..).map(|(_, file, storage)| (*file, *storage)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_is_kept_as_long_as_a_question_is_under_way() {
        let mut news = News::default();
        news.replica(FileId(1), 1);
        news.asked(7);
        news.replica(FileId(2), 1);
        news.asked(8);
        news.replica(FileId(3), 1);
        assert_eq!(news.since(7), BTreeSet::from([(FileId(2), 1), (FileId(3), 1)]));
        assert_eq!(news.since(8), BTreeSet::from([(FileId(3), 1)]));
        news.answered(7);
        assert_eq!(news.since(8).len(), 1);
        assert_eq!(news.list.len(), 1, "what nobody can miss is gone");
        news.answered(8);
        assert!(news.list.is_empty());
    }
}
