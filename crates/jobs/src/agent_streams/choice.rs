//! Which agent streams a copy. Pure.

use longhaul_model::{AgentId, SiteName, units};

/// An agent that may be given a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub agent: AgentId,
    pub site: SiteName,
    pub host: String,
    pub near: Near,
    /// Copies that it has, and how many it may have.
    pub busy: u32,
    pub files: u32,
    /// Copies that all agents of its site have, and how many these may have; none: any number.
    pub site_busy: u32,
    pub site_files: Option<u32>,
    /// Why it gets none now, whatever its places.
    pub unwilling: Option<&'static str>,
}

/// Why an agent can be given no copy now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CandidateError {
    #[error("{0}")]
    Unwilling(&'static str),
    #[error("all its {files} places are taken")]
    AgentFull { files: u32 },
    #[error("its site moves {} at once, its limit", describe_files(.files))]
    SiteFull { files: u32 },
}

fn describe_files(files: &u32) -> String {
    units::plural(u64::from(*files), "file", "files")
}

/// Why no agent can be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// There is nothing to say of any agent, which is why the text is empty.
    #[error("")]
    NoCandidate,
    /// The reason of each candidate, by its name.
    #[error("{}", .0.iter().map(|(name, error)| format!("{name}: {error}")).collect::<Vec<_>>().join("; "))]
    NoneAble(Vec<(String, CandidateError)>),
}

/// How near it is to the storages, the nearest first: from its site to its target a file has half of its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Near {
    Target,
    Source,
    Neither,
}

impl Near {
    fn words(self) -> &'static str {
        match self {
            Near::Target => "at the target's site",
            Near::Source => "at the source's site",
            Near::Neither => "at neither storage's site",
        }
    }
}

impl Candidate {
    /// Why it gets none, if so.
    fn refuses(&self) -> Option<CandidateError> {
        let of_site = self.site_files.filter(|most| self.site_busy >= *most);
        match (self.unwilling, of_site) {
            (Some(why), _) => Some(CandidateError::Unwilling(why)),
            (None, _) if self.busy >= self.files => Some(CandidateError::AgentFull { files: self.files }),
            (None, Some(files)) => Some(CandidateError::SiteFull { files }),
            (None, None) => None,
        }
    }

    pub fn name(&self) -> String {
        format!("the agent {} of {}", self.host, self.site)
    }
}

/// The nearest one; among those the least busy by its places, then the first that joined. With the reason in
/// words; or why there is none, of each.
pub fn choose(candidates: &[Candidate]) -> Result<(&Candidate, String), ChoiceError> {
    let able = candidates.iter().filter(|one| one.refuses().is_none());
    let best = able.min_by(|a, b| {
        let share = |one: &Candidate, other: &Candidate| u64::from(one.busy) * u64::from(other.files);
        a.near.cmp(&b.near).then(share(a, b).cmp(&share(b, a))).then(a.agent.cmp(&b.agent))
    });
    let Some(best) = best else {
        let errors = candidates.iter().filter_map(|one| Some((one.name(), one.refuses()?)));
        return Err(match candidates {
            [] => ChoiceError::NoCandidate,
            _ => ChoiceError::NoneAble(errors.collect()),
        });
    };
    let others = candidates.len() - 1;
    let among = match others {
        0 => "the only mover".to_owned(),
        _ => format!("the nearest, then the least busy, of {} movers", candidates.len()),
    };
    let text = format!(
        "{}: {among}, {}, {} of {} places taken",
        best.name(),
        best.near.words(),
        best.busy,
        best.files
    );
    Ok((best, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(agent: u64, near: Near, busy: u32, files: u32) -> Candidate {
        Candidate {
            agent: AgentId(agent),
            site: "beta".parse().unwrap(),
            host: format!("h{agent}"),
            near,
            busy,
            files,
            site_busy: busy,
            site_files: None,
            unwilling: None,
        }
    }

    fn chosen(candidates: &[Candidate]) -> u64 {
        choose(candidates).unwrap().0.agent.0
    }

    #[test]
    fn the_nearest_comes_first_then_the_least_busy_then_the_eldest() {
        use Near::*;
        assert_eq!(chosen(&[candidate(1, Neither, 0, 9), candidate(2, Source, 8, 9)]), 2);
        assert_eq!(chosen(&[candidate(1, Source, 0, 9), candidate(2, Target, 8, 9)]), 2);
        // A half against a third: shares of places, not numbers of files.
        assert_eq!(chosen(&[candidate(1, Target, 1, 2), candidate(2, Target, 3, 9)]), 2);
        assert_eq!(chosen(&[candidate(4, Target, 2, 4), candidate(3, Target, 1, 2)]), 3);
    }

    #[test]
    fn who_has_no_place_or_is_not_to_begin_gets_none_and_it_is_said_why() {
        use Near::*;
        let full = candidate(1, Target, 2, 2);
        assert_eq!(chosen(&[full.clone(), candidate(2, Neither, 1, 2)]), 2);
        let paused = Candidate { unwilling: Some("its site is paused"), ..candidate(3, Target, 0, 2) };
        let limited = Candidate { site_files: Some(1), ..candidate(4, Target, 1, 2) };
        let why = choose(&[full, paused, limited]).unwrap_err().to_string();
        assert_eq!(
            why,
            "the agent h1 of beta: all its 2 places are taken; the agent h3 of beta: its site is paused; \
             the agent h4 of beta: its site moves 1 file at once, its limit"
        );
        assert_eq!(choose(&[]).unwrap_err().to_string(), "");
    }

    #[test]
    fn the_reason_names_the_agent_and_the_rule() {
        let two = [candidate(1, Near::Target, 1, 4), candidate(2, Near::Neither, 0, 4)];
        assert_eq!(
            choose(&two).unwrap().1,
            "the agent h1 of beta: the nearest, then the least busy, of 2 movers, at the target's site, 1 of \
                4 places taken"
        );
        assert!(choose(&two[..1]).unwrap().1.contains("the only mover"));
    }
}
