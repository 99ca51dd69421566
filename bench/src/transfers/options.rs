//! What is asked for on the command line of `cargo xtask bench transfers`.

use std::path::PathBuf;

use super::case::{CASES, GROUPS, QUICK};

const ROUNDS: usize = 5;
/// Nobody is waited for longer with `--quick`, in seconds.
const QUICK_LIMIT_S: u64 = 20;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// None named: all.
    pub(crate) cases: Vec<String>,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    /// A peer that needs longer is stopped; none: what the case allows. Ours always gets that.
    pub(crate) limit_s: Option<u64>,
    pub(crate) json: bool,
    pub(crate) against: Option<PathBuf>,
    /// The page with the tables is written here.
    pub(crate) page: Option<PathBuf>,
    /// The rows as JSON are written here.
    pub(crate) rows: Option<PathBuf>,
    /// Runs are kept here, and those that are there are not made again.
    pub(crate) book: Option<PathBuf>,
}

pub(crate) const USAGE: &str = "bench transfers [CASE...] [--quick] [--rounds N] [--limit SECONDS] [--only \
    PROGRAM]... \
                                [--json] [--against FILE] [--page FILE] [--rows FILE] [--book FILE]";

impl Options {
    pub(crate) fn parse(words: &[String], programs: &[&str]) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            only: Vec::new(),
            rounds: ROUNDS,
            limit_s: None,
            json: false,
            against: None,
            page: None,
            rows: None,
            book: None,
        };
        let (mut quick, mut rounds) = (false, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--json" => options.json = true,
                "--quick" => quick = true,
                "--rounds" => {
                    let count = value()?.parse().ok().filter(|count| (1..=100).contains(count));
                    rounds = Some(count.ok_or("--rounds is a number from 1 to 100")?);
                }
                "--limit" => {
                    let seconds = value()?.parse().ok().filter(|seconds| (1..=3_600).contains(seconds));
                    options.limit_s = Some(seconds.ok_or("--limit is a number from 1 to 3600")?);
                }
                "--only" => options.only.push(known(&value()?, programs)?),
                "--against" => options.against = Some(value()?.into()),
                "--page" => options.page = Some(value()?.into()),
                "--rows" => options.rows = Some(value()?.into()),
                "--book" => options.book = Some(value()?.into()),
                word => match GROUPS.iter().find(|(name, _)| *name == word) {
                    Some((_, cases)) => options.cases.extend(cases.iter().map(|case| (*case).to_owned())),
                    None => {
                        let cases = CASES.iter().map(|case| case.name);
                        let names: Vec<&str> = cases.chain(GROUPS.iter().map(|(name, _)| *name)).collect();
                        options.cases.push(known(word, &names)?);
                    }
                },
            }
        }
        if quick {
            options.limit_s.get_or_insert(QUICK_LIMIT_S);
            if options.cases.is_empty() {
                options.cases = QUICK.map(str::to_owned).to_vec();
            }
        }
        options.rounds = rounds.unwrap_or(if quick { 1 } else { ROUNDS });
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
        let group = parse("mtu --limit 7").unwrap();
        assert!(group.wants_case("wan100-1g-mtu1500") && !group.wants_case("fdt-1x1g"));
        assert_eq!(group.limit_s, Some(7));
        let quick = parse("--quick").unwrap();
        assert!(quick.wants_case("lan-2g") && !quick.wants_case("fdt-1x1g"));
        assert_eq!((quick.rounds, quick.limit_s), (1, Some(QUICK_LIMIT_S)));
        let chosen = parse("--quick --rounds 2 fdt").unwrap();
        assert!(chosen.wants_case("fdt-1x1g") && !chosen.wants_case("lan-2g") && chosen.rounds == 2);
        let all = parse("").unwrap();
        assert!(all.wants_case("wan20-2g") && all.wants_program("xrdcp") && all.rounds == ROUNDS);
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for line in
            ["lan-3g", "--only wget", "--rounds 0", "--rounds", "--limit 0", "--against", "--book", "--jsn"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
