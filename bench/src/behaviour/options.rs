//! What is asked for on the command line of `cargo xtask bench behaviour`.

use std::path::PathBuf;

use super::CASES;

pub(crate) const USAGE: &str = "bench behaviour [CASE...] [--quick] [--scale FACTOR] [--files-max N] \
    [--rounds N] [--disk DIR] \
                                [--json] [--page FILE] [--rows FILE]";
const FILES_MAX: usize = 100_000;
const QUICK_FILES_MAX: usize = 10_000;
const QUICK_SCALE: f64 = 0.2;

#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    /// None named: all.
    pub(crate) cases: Vec<String>,
    /// Fewer settings, and a fifth of the bytes unless `--scale` says otherwise.
    pub(crate) quick: bool,
    /// Factor on the bytes of each case.
    pub(crate) scale: f64,
    /// Files of the largest job of `growth`.
    pub(crate) files_max: usize,
    pub(crate) rounds: usize,
    /// Where `disk` reads and writes.
    pub(crate) disk: PathBuf,
    pub(crate) json: bool,
    pub(crate) page: Option<PathBuf>,
    pub(crate) rows: Option<PathBuf>,
}

impl Options {
    pub(crate) fn parse(words: &[String]) -> Result<Options, String> {
        let mut options = Options {
            cases: Vec::new(),
            quick: false,
            scale: 1.0,
            files_max: FILES_MAX,
            rounds: 1,
            disk: std::env::temp_dir(),
            json: false,
            page: None,
            rows: None,
        };
        let (mut scale, mut files_max) = (None, None);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
            match word.as_str() {
                "--json" => options.json = true,
                "--quick" => options.quick = true,
                "--scale" => {
                    let factor = value()?.parse().ok().filter(|factor| (0.01..=100.0).contains(factor));
                    scale = Some(factor.ok_or("--scale is a number from 0.01 to 100")?);
                }
                "--files-max" => {
                    let count = value()?.parse().ok().filter(|count| (1_000..=10_000_000).contains(count));
                    files_max = Some(count.ok_or("--files-max is a number from 1000 to 10000000")?);
                }
                "--rounds" => {
                    let count = value()?.parse().ok().filter(|count| (1..=100).contains(count));
                    options.rounds = count.ok_or("--rounds is a number from 1 to 100")?;
                }
                "--disk" => options.disk = value()?.into(),
                "--page" => options.page = Some(value()?.into()),
                "--rows" => options.rows = Some(value()?.into()),
                case if CASES.iter().any(|known| known.name == case) => options.cases.push(case.to_owned()),
                other => {
                    let names: Vec<&str> = CASES.iter().map(|case| case.name).collect();
                    return Err(format!("{other} is none of: {}; {USAGE}", names.join(", ")));
                }
            }
        }
        options.scale = scale.unwrap_or(if options.quick { QUICK_SCALE } else { 1.0 });
        options.files_max = files_max.unwrap_or(if options.quick { QUICK_FILES_MAX } else { FILES_MAX });
        Ok(options)
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|case| case == name)
    }

    /// Bytes of a case, scaled; never so few that a figure says nothing.
    pub(crate) fn scaled(&self, bytes: usize) -> usize {
        ((bytes as f64 * self.scale) as usize).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn cases_and_sizes_are_chosen() {
        let options = parse("growth --scale 0.5 --files-max 1000000 --rounds 5 --disk /x --json").unwrap();
        assert!(options.wants("growth") && !options.wants("disk"));
        assert_eq!((options.scaled(10), options.files_max, options.rounds), (5, 1_000_000, 5));
        assert!(options.json && options.disk == std::path::Path::new("/x"));
        let quick = parse("--quick").unwrap();
        assert!(quick.wants("disk") && quick.scaled(10) == 2 && quick.files_max == QUICK_FILES_MAX);
        assert_eq!(parse("--scale 3 --quick").unwrap().scaled(10), 30, "what is said holds");
    }

    #[test]
    fn what_is_unknown_is_refused() {
        for line in ["lan-2g", "--scale 0", "--scale x", "--files-max 5", "--rounds 0", "--disk", "--qick"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
