//! Completion of names while people type, and states of single files.

use crate::sql::Optional;
use longhaul_model::JobFileState;

use super::file_state;
use crate::rows::codec::number;
use crate::{Catalog, CatalogError};

/// A kind of name that occurs in jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobName {
    User,
    Vo,
    Source,
    Target,
}

impl JobName {
    /// The query for the next name after another: one step in an index, however many jobs share a name.
    fn next(self) -> &'static str {
        match self {
            JobName::User => "SELECT min(user) FROM jobs WHERE user > ?1",
            JobName::Vo => "SELECT min(vo) FROM jobs WHERE vo > ?1",
            JobName::Source => {
                "SELECT min(source_se) FROM jobs WHERE source_se > ?1 AND source_se IS NOT NULL"
            }
            JobName::Target => {
                "SELECT min(target_se) FROM jobs WHERE target_se > ?1 AND target_se IS NOT NULL"
            }
        }
    }
}

impl Catalog {
    /// Names with this prefix, sorted.
    pub fn job_names(&self, what: JobName, prefix: &str, limit: usize) -> Result<Vec<String>, CatalogError> {
        self.read(|tx| {
            let mut names: Vec<String> = Vec::new();
            let mut select = tx.prepare_cached(what.next())?;
            // The prefix itself may be a name, so the search begins just before it.
            let mut after = just_before(prefix);
            while names.len() < limit {
                let next: Option<String> = select.query_row([&after], |row| row.get(0))?;
                match next.filter(|name| name.starts_with(prefix)) {
                    Some(name) => after = name.clone(),
                    None => break,
                }
                names.push(after.clone());
            }
            Ok(names)
        })
    }

    /// The state of each file, in the order of `files`; none where there is no such file.
    pub fn job_file_states(&self, files: &[u64]) -> Result<Vec<Option<JobFileState>>, CatalogError> {
        self.read(|tx| {
            let mut select = tx.prepare_cached("SELECT state FROM job_files WHERE id = ?1")?;
            let state = |file: &u64| {
                select
                    .query_row([number(*file)], |row| file_state(row, 0))
                    .optional()
                    .map_err(CatalogError::from)
            };
            files.iter().map(state).collect()
        })
    }
}

/// A text that sorts just before the prefix, with no name in between.
fn just_before(prefix: &str) -> String {
    let mut text = prefix.to_owned();
    let last = text.pop().and_then(|last| char::from_u32(u32::from(last).checked_sub(1)?));
    if let Some(lower) = last {
        text.push(lower);
        text.push(char::MAX);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_begins_just_before_the_prefix() {
        assert_eq!(just_before(""), "");
        let last = just_before("davs");
        assert!(*last < *"davs" && *last > *"davr~~");
    }
}
