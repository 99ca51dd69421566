//! Queries of lists of jobs and files.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_model::job::{JobFileState, JobState};
use longhaul_model::percent;
use longhaul_model::units::printable;

use super::Refusal;

const VALUE_BYTES_MAX: usize = 32 << 10;
const PAIRS_MAX: usize = 50;
const LIST_ITEMS_MAX: usize = 10_000;

/// Decoded query parameters; the first of a repeated parameter counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters(pub BTreeMap<String, String>);

impl Parameters {
    /// Decodes a query.
    ///
    /// # Errors
    /// The query is too long or not UTF-8.
    pub fn parse(query: &str) -> Result<Parameters, Refusal> {
        let mut parameters = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if value.len() > VALUE_BYTES_MAX || parameters.len() >= PAIRS_MAX {
                return Err(Refusal::bad("The query is too long"));
            }
            let decoded = |text: &str| decode(text).ok_or_else(|| Refusal::bad("The query is not UTF-8"));
            parameters.entry(decoded(name)?).or_insert(decoded(value)?);
        }
        Ok(Parameters(parameters))
    }

    /// Value of a parameter; none if absent or empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    fn number(&self, name: &str, most: u32) -> Result<Option<u32>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse::<u32>().ok().filter(|number| *number <= most);
        let shown = printable(&text.chars().take(40).collect::<String>());
        number.map(Some).ok_or_else(|| Refusal::bad(format!("{name} is {shown}: 0 to {most} is expected")))
    }

    fn states<T: std::str::FromStr>(&self) -> Result<Option<Vec<T>>, Refusal> {
        let Some(text) = self.get("state_in") else { return Ok(None) };
        // A state that does not exist (any more) matches nothing.
        Ok(Some(split_list(text)?.iter().filter_map(|word| word.parse().ok()).collect()))
    }

    fn window(&self) -> Result<Option<Duration>, Refusal> {
        let Some(text) = self.get("time_window") else { return Ok(None) };
        let (hours, minutes) = text.split_once(':').unwrap_or((text, "0"));
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < 1_000_000);
        match (number(hours), number(minutes)) {
            (Some(hours), Some(minutes)) => {
                Ok(Some(Duration::from_secs(u64::from(hours) * 3_600 + u64::from(minutes) * 60)))
            }
            _ => Err(Refusal::bad("time_window is expected as H or H:M")),
        }
    }
}

/// Decodes a name or value of a query or form, in which `+` is a blank too; none if malformed or not UTF-8.
pub fn decode(text: &str) -> Option<String> {
    percent::decode(&text.replace('+', " "))
}

/// Splits a comma-separated list; empty items are skipped.
///
/// # Errors
/// The list has too many items.
pub fn split_list(text: &str) -> Result<Vec<&str>, Refusal> {
    let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    if items.len() > LIST_ITEMS_MAX {
        return Err(Refusal::bad(format!("more than {LIST_ITEMS_MAX} items in a list")));
    }
    Ok(items)
}

/// Query of `GET /jobs`; each field narrows the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobQuery {
    /// Only jobs of this person.
    pub user_dn: Option<String>,
    /// Only jobs of this VO.
    pub vo: Option<String>,
    /// Only jobs submitted under this delegation id.
    pub delegation_id: Option<String>,
    /// Only from this storage element.
    pub source_se: Option<String>,
    /// Only to this storage element.
    pub dest_se: Option<String>,
    /// Only in one of these states.
    pub states: Option<Vec<JobState>>,
    /// Most jobs to return.
    pub limit: Option<u32>,
    /// Only jobs that ended within this time before now.
    pub window: Option<Duration>,
    /// Fields to return; absent: all.
    pub fields: Option<Vec<String>>,
}

impl JobQuery {
    /// Highest limit of FTS.
    pub const LIMIT_MAX: u32 = 500;

    /// Checks the parameters.
    ///
    /// # Errors
    /// A parameter is malformed or out of range.
    pub fn parse(parameters: &Parameters) -> Result<JobQuery, Refusal> {
        let text = |name| parameters.get(name).map(str::to_owned);
        let fields = parameters.get("fields").map(split_list).transpose()?;
        Ok(JobQuery {
            user_dn: text("user_dn"),
            vo: text("vo_name"),
            delegation_id: text("dlg_id"),
            source_se: text("source_se"),
            dest_se: text("dest_se"),
            states: parameters.states()?,
            limit: parameters.number("limit", Self::LIMIT_MAX)?.filter(|limit| *limit > 0),
            window: parameters.window()?,
            fields: fields.map(|fields| fields.into_iter().map(str::to_owned).collect()),
        })
    }

    /// Whether only unfinished jobs are listed, as FTS does unless states are given together with a window or
    /// limit.
    pub fn unfinished_only(&self) -> bool {
        self.states.is_none() || (self.limit.is_none() && self.window.is_none())
    }
}

/// Query of `GET /files`; each field narrows the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileQuery {
    /// Only files of this VO.
    pub vo: Option<String>,
    /// Only from this storage element.
    pub source_se: Option<String>,
    /// Only to this storage element.
    pub dest_se: Option<String>,
    /// Only to this URL.
    pub dest_surl: Option<String>,
    /// Only in one of these states.
    pub states: Option<Vec<JobFileState>>,
    /// Most files to return.
    pub limit: u32,
    /// Only files that ended within this time before now.
    pub window: Option<Duration>,
}

impl FileQuery {
    /// Highest limit of FTS, and the default.
    pub const LIMIT_MAX: u32 = 1_000;

    /// Checks the parameters.
    ///
    /// # Errors
    /// A parameter is malformed or out of range.
    pub fn parse(parameters: &Parameters) -> Result<FileQuery, Refusal> {
        let text = |name| parameters.get(name).map(str::to_owned);
        Ok(FileQuery {
            vo: text("vo_name"),
            source_se: text("source_se"),
            dest_se: text("dest_se"),
            dest_surl: text("dest_surl"),
            states: parameters.states()?,
            limit: parameters
                .number("limit", Self::LIMIT_MAX)?
                .filter(|limit| *limit > 0)
                .unwrap_or(Self::LIMIT_MAX),
            window: parameters.window()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn jobs(query: &str) -> Result<JobQuery, Refusal> {
        Parameters::parse(query).and_then(|parameters| JobQuery::parse(&parameters))
    }

    #[test]
    fn a_list_is_asked_for_as_fts_is() {
        let query =
            jobs("state_in=FINISHED,FAILED,DELETE&limit=500&time_window=1:30&user_dn=/CN=a%20b+c&vo_name=")
                .unwrap();
        assert_eq!(query.states, Some(vec![JobState::Finished, JobState::Failed]));
        assert_eq!((query.limit, query.window), (Some(500), Some(Duration::from_secs(5_400))));
        assert_eq!((query.user_dn.as_deref(), query.vo), (Some("/CN=a b c"), None));
        assert!(jobs("limit=501").is_err() && jobs("limit=-1").is_err() && jobs("time_window=x").is_err());
        assert!(jobs("user_dn=%ff").is_err() && jobs("user_dn=%4").is_err());
    }

    #[test]
    fn ended_jobs_are_listed_only_within_bounds() {
        assert!(jobs("").unwrap().unfinished_only());
        assert!(jobs("state_in=FINISHED").unwrap().unfinished_only());
        assert!(!jobs("state_in=FINISHED&limit=5").unwrap().unfinished_only());
        assert!(!jobs("state_in=FINISHED&time_window=5").unwrap().unfinished_only());
        assert!(jobs("limit=5").unwrap().unfinished_only());
    }

    proptest! {
        #[test]
        fn no_query_breaks_it(query in "[\\PC]{0,80}") {
            let _ = jobs(&query);
            let _ = Parameters::parse(&query).and_then(|parameters| FileQuery::parse(&parameters));
        }

        #[test]
        fn what_is_encoded_comes_back(text in "[\\PC]{0,40}") {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(decode(&encoded), Some(text));
        }
    }
}
