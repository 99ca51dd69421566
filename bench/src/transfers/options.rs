//! What is asked for on the command line of `cargo xtask bench transfers`.

use std::path::PathBuf;

use super::case::CASES;

const ROUNDS: usize = 5;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// None named: all.
    pub(crate) cases: Vec<String>,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) json: bool,
    pub(crate) against: Option<PathBuf>,
    /// The page with the tables is written here.
    pub(crate) page: Option<PathBuf>,
    /// The rows as JSON are written here.
    pub(crate) rows: Option<PathBuf>,
}

pub(crate) const USAGE: &str = "bench transfers [CASE...] [--rounds N] [--only PROGRAM]... [--json] [--against FILE] \
                                [--page FILE] [--rows FILE]";

impl Options {
    pub(crate) fn parse(words: &[String], programs: &[&str]) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            only: Vec::new(),
            rounds: ROUNDS,
            json: false,
            against: None,
            page: None,
            rows: None,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--json" => options.json = true,
                "--rounds" => {
                    let count = value()?.parse().ok().filter(|count| (1..=100).contains(count));
                    options.rounds = count.ok_or("--rounds is a number from 1 to 100")?;
                }
                "--only" => options.only.push(known(&value()?, programs)?),
                "--against" => options.against = Some(value()?.into()),
                "--page" => options.page = Some(value()?.into()),
                "--rows" => options.rows = Some(value()?.into()),
                case => {
                    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
                    options.cases.push(known(case, &names)?);
                }
            }
        }
        Ok(options)
    }

    pub(crate) fn wants_case(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case == name)
    }

    pub(crate) fn wants_program(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|program| program == name)
    }
}

fn known(name: &str, names: &[&str]) -> Result<String, String> {
    let found = names.iter().find(|known| **known == name);
    found
        .map(|name| (*name).to_owned())
        .ok_or_else(|| format!("{name} is none of: {}; {USAGE}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words, &["curl", "rsync"])
    }

    #[test]
    fn cases_programs_and_rounds_are_chosen() {
        let options = parse("lan-2g --rounds 3 --only curl --only rsync --json --against old.json").unwrap();
        assert!(options.wants_case("lan-2g") && !options.wants_case("lan-20x100m"));
        assert!(options.wants_program("curl") && !options.wants_program("xrdcp"));
        assert_eq!((options.rounds, options.json), (3, true));
        assert_eq!(options.against, Some("old.json".into()));
        let all = parse("").unwrap();
        assert!(all.wants_case("wan20-2g") && all.wants_program("xrdcp") && all.rounds == ROUNDS);
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for line in ["lan-3g", "--only wget", "--rounds 0", "--rounds", "--against", "--jsn"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
