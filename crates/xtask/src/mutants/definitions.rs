//! Mutants as they are written down, in TOML: which fault comes back by which edits, and which test has to
//! fail then.
//!
//! [`read`] finds those that do not fit the sources any more, for `tidy` and before each run: a mutant whose
//! text is no more would prove nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Where the mutants are, relative to the root: one file for each chapter of faults.
pub(crate) const MUTANTS_FOLDER: &str = "crates/xtask/mutants";

/// The `target` of tests that stand in the sources of a package.
pub(crate) const UNIT_TESTS: &str = "lib";

/// One file of mutants.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MutantFile {
    #[serde(rename = "mutant")]
    mutants: Vec<Mutant>,
}

/// A fault that is brought back, and the test that must fail then.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// A letter and a number: the chapter, and the row in it.
    pub(crate) fault: String,
    /// What the product did, in one short sentence.
    pub(crate) behaviour: String,
    /// The package with the test.
    pub(crate) package: String,
    /// The test program: a file or folder of `tests/`, or [`UNIT_TESTS`].
    pub(crate) target: String,
    /// The full name of the test in its program.
    pub(crate) test: String,
    #[serde(rename = "edit")]
    pub(crate) edits: Vec<Edit>,
}

/// A text that occurs once in a file, and what stands there in the mutant.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Edit {
    /// Relative to the root.
    pub(crate) file: String,
    pub(crate) from: String,
    pub(crate) to: String,
}

/// A program of tests: one target of a package.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program<'m> {
    pub(crate) package: &'m str,
    pub(crate) target: &'m str,
}

/// One test of a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestCase<'m> {
    pub(crate) program: Program<'m>,
    pub(crate) name: &'m str,
}

/// Adds a finding for each mutant that does not fit the sources.
pub(crate) fn check(findings: &mut Vec<String>) {
    read(&crate::tools::root(), findings);
}

/// All mutants, in the order of their faults; those that do not fit the sources below `root` are findings.
pub(crate) fn read(root: &Path, findings: &mut Vec<String>) -> Vec<Mutant> {
    let entries = std::fs::read_dir(root.join(MUTANTS_FOLDER)).into_iter().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| name.ends_with(".toml"));
    names.sort();
    let mut mutants = Vec::new();
    for name in names.iter().map(|name| format!("{MUTANTS_FOLDER}/{name}")) {
        let text = std::fs::read_to_string(root.join(&name)).map_err(|error| error.to_string());
        match text.and_then(|text| parse(&text)) {
            Ok(file) => mutants.extend(file.mutants.into_iter().map(|mutant| (name.clone(), mutant))),
            Err(why) => findings.push(format!("{name}: {why}")),
        }
    }
    for (name, mutant) in &mutants {
        if let Err(why) = mutant.check(root) {
            findings.push(format!("{name}: {} ({}): {why}", mutant.fault, mutant.behaviour));
        }
    }
    let mut mutants: Vec<Mutant> = mutants.into_iter().map(|(_, mutant)| mutant).collect();
    mutants.sort_by_key(|mutant| fault_number(&mutant.fault));
    mutants
}

fn parse(text: &str) -> Result<MutantFile, String> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        format!("line {}: {}", before.matches('\n').count() + 1, error.message())
    })
}

/// The chapter and the number of a fault, by which faults are in order: A9 before A10.
pub(crate) fn fault_number(fault: &str) -> Option<(char, u32)> {
    let mut characters = fault.chars();
    let chapter = characters.next().filter(char::is_ascii_uppercase)?;
    Some((chapter, characters.as_str().parse().ok()?))
}

/// The order in which little is built again: mutants with one package and one file follow each other.
pub(crate) fn in_build_order(mutants: &[Mutant]) -> Vec<&Mutant> {
    let mut ordered: Vec<&Mutant> = mutants.iter().collect();
    ordered.sort_by_key(|&mutant| {
        let files: Vec<&str> = mutant.edits.iter().map(|edit| edit.file.as_str()).collect();
        (mutant.package.as_str(), files, mutant.target.as_str())
    });
    ordered
}

impl Mutant {
    pub(crate) fn test_case(&self) -> TestCase<'_> {
        let program = Program { package: &self.package, target: &self.target };
        TestCase { program, name: &self.test }
    }

    /// The files that it changes, with their texts afterwards.
    pub(crate) fn mutate(&self, root: &Path) -> Result<BTreeMap<&str, String>, String> {
        let mut texts = BTreeMap::new();
        for edit in &self.edits {
            let text = match texts.remove(edit.file.as_str()) {
                Some(text) => text,
                None => std::fs::read_to_string(root.join(&edit.file)).map_err(|error| {
                    format!("{}: {error}: name the file that has the code now", edit.file)
                })?,
            };
            texts.insert(edit.file.as_str(), edit.apply(&text)?);
        }
        Ok(texts)
    }

    /// The error says what does not fit the sources, and what to do.
    fn check(&self, root: &Path) -> Result<(), String> {
        if fault_number(&self.fault).is_none() {
            return Err("`fault` is not a letter and a number, such as A2: correct it".into());
        }
        if self.edits.is_empty() {
            return Err("it has no edit: add one that brings the old behaviour back".into());
        }
        if let Some(edit) = self.edits.iter().find(|edit| edit.is_of_test()) {
            return Err(format!("{} is a test: edit the product's code instead", edit.file));
        }
        self.test_case().program.source(root)?;
        self.mutate(root).map(drop)
    }
}

impl Edit {
    pub(crate) fn apply(&self, text: &str) -> Result<String, String> {
        let Edit { file, from, to } = self;
        if from.trim().is_empty() || from == to {
            return Err(format!("{file}: `from` and `to` change nothing: write what to replace by what"));
        }
        match text.matches(from.as_str()).count() {
            1 => Ok(text.replacen(from.as_str(), to, 1)),
            count => {
                let line = from.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
                Err(format!(
                    "`from` (\"{line}\") occurs {count} times in {file}, not once: write it anew, so that \
                     the old behaviour comes back"
                ))
            }
        }
    }

    fn is_of_test(&self) -> bool {
        Path::new(&self.file).iter().any(|part| part == "tests" || part == "tests.rs")
    }
}

impl Program<'_> {
    /// The file in which it begins, relative to `root`.
    pub(crate) fn source(&self, root: &Path) -> Result<PathBuf, String> {
        let Program { package, target } = self;
        let folder = match package.strip_prefix("longhaul-").unwrap_or(package) {
            "bench" => PathBuf::from("bench"),
            short => Path::new("crates").join(short),
        };
        let manifest = std::fs::read_to_string(root.join(&folder).join("Cargo.toml")).unwrap_or_default();
        let name = format!("name = \"{package}\"");
        if !manifest.lines().any(|line| line == name) {
            return Err(format!("there is no package {package}: write the name in its Cargo.toml"));
        }
        let candidates = match *target {
            UNIT_TESTS => ["src/lib.rs".to_owned(), "src/main.rs".to_owned()],
            target => [format!("tests/{target}.rs"), format!("tests/{target}/main.rs")],
        };
        let found = candidates.iter().map(|file| folder.join(file)).find(|file| root.join(file).is_file());
        found.ok_or_else(|| {
            format!(
                "{package} has no test program {target}: name a file or folder of its tests, or {UNIT_TESTS}"
            )
        })
    }
}

impl fmt::Display for Program<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package, self.target)
    }
}

impl fmt::Display for TestCase<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.name)
    }
}
