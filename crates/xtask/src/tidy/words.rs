//! Rules on words: names by which an expert finds things, comments that stand alone, lines that fit.
//!
//! The glossary (`docs/glossary.md`) holds both the words that the project uses and a table of those that it
//! does not use as names: [`BannedWords`] reads that table, so that the list is in one place.

use super::Findings;
use crate::tools::root;

/// Columns of a line of code, comment or Markdown: two files fit side by side.
const COLUMNS_MAX: usize = 110;

/// A longer span of code in Markdown, such as a command with its options, may exceed the columns.
const CODE_SPAN_MAX: usize = 50;

/// Words that begin a fragment, not a sentence.
const FRAGMENTS: &[&str] = &["Of", "Whose", "Who", "Whom", "What for", "By whom", "Of what", "Of which"];

/// Where the table of words that are not used as names is.
const GLOSSARY: &str = "docs/glossary.md";
const GLOSSARY_HEADING: &str = "## Words not used";

/// The first column of the glossary's table. The spelling of a word says what it must not name.
#[derive(Default)]
struct BannedWords {
    /// `Kept`: types, and in any case modules and files.
    types: Vec<String>,
    /// `look()`: functions, modules and files.
    functions: Vec<String>,
    /// `ENOUGH`: constants.
    constants: Vec<String>,
}

impl BannedWords {
    fn parse(glossary: &str) -> BannedWords {
        let mut words = BannedWords::default();
        let table = glossary.split_once(GLOSSARY_HEADING).map_or("", |(_, rest)| rest);
        let table = table.split("\n## ").next().unwrap_or_default();
        for row in table.lines().filter_map(|line| line.strip_prefix('|')) {
            let cell = row.split('|').next().unwrap_or_default();
            for word in cell.split('`').skip(1).step_by(2) {
                if let Some(function) = word.strip_suffix("()") {
                    words.functions.push(function.to_owned());
                } else if word.chars().any(char::is_lowercase) {
                    words.types.push(word.to_owned());
                } else {
                    words.constants.push(word.to_owned());
                }
            }
        }
        words
    }

    fn bans_module(&self, name: &str) -> bool {
        self.types.iter().chain(&self.functions).any(|banned| banned.eq_ignore_ascii_case(name))
    }
}

pub(crate) fn check(files: &[String], findings: &mut Findings) {
    let glossary = std::fs::read_to_string(root().join(GLOSSARY)).unwrap_or_default();
    let banned = BannedWords::parse(&glossary);
    if banned.types.is_empty() || banned.functions.is_empty() || banned.constants.is_empty() {
        findings.push(format!("{GLOSSARY}: the table \"{GLOSSARY_HEADING}\" is missing or incomplete"));
    }
    for name in files {
        let is_rust = name.ends_with(".rs");
        if !is_rust && !name.ends_with(".md") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        if is_rust {
            check_rust(name, &text, &banned, findings);
        } else {
            check_markdown(name, &text, findings);
        }
    }
}

fn check_rust(name: &str, text: &str, banned: &BannedWords, findings: &mut Findings) {
    if let Some(stem) = file_stem(name).filter(|stem| banned.bans_module(stem)) {
        findings.push(format!("{name}: a file named `{stem}` tells nobody what is in it"));
    }
    for (number, line) in text.lines().enumerate() {
        let place = || format!("{name}:{}", number + 1);
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            findings.push(format!("{}: {columns} columns, over {COLUMNS_MAX}", place()));
        }
        let trimmed = line.trim_start();
        if let Some(comment) = trimmed.strip_prefix("///").or_else(|| trimmed.strip_prefix("//!")) {
            if let Some(word) = FRAGMENTS.iter().find(|word| begins_with(comment.trim_start(), word)) {
                findings
                    .push(format!("{}: a comment that begins with \"{word}\" does not stand alone", place()));
            }
            continue;
        }
        if let Some((kind, bare)) = banned_name(trimmed, banned) {
            findings.push(format!(
                "{}: {kind} `{bare}`: name its subject ({GLOSSARY}, \"{GLOSSARY_HEADING}\")",
                place()
            ));
        }
    }
}

/// Tables and fenced text keep their lines: neither can be wrapped.
fn check_markdown(name: &str, text: &str, findings: &mut Findings) {
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            fenced = !fenced;
        }
        let columns = line.chars().count();
        let is_link = trimmed.split_whitespace().count() <= 2;
        let has_long_code = line.split('`').skip(1).step_by(2).any(|code| code.len() > CODE_SPAN_MAX);
        if columns > COLUMNS_MAX && !fenced && !trimmed.starts_with('|') && !is_link && !has_long_code {
            findings.push(format!("{name}:{}: {columns} columns, over {COLUMNS_MAX}", number + 1));
        }
    }
}

/// If a line declares something by a banned name: what it declares, and the name.
fn banned_name<'l>(line: &'l str, banned: &BannedWords) -> Option<(&'static str, &'l str)> {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "async" | "unsafe" | "static" | "extern") || word.starts_with("pub(")
    });
    let mut keyword = words.next()?;
    let mut next = words.next()?;
    if keyword == "const" && next == "fn" {
        (keyword, next) = (next, words.next()?);
    }
    let name = next.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    let is_in = |list: &[String]| list.iter().any(|word| word == name);
    let (kind, is_banned) = match keyword {
        "struct" | "enum" | "trait" | "type" => ("type", is_in(&banned.types)),
        "mod" => ("module", banned.bans_module(name)),
        "fn" => ("function", is_in(&banned.functions)),
        "const" => ("constant", is_in(&banned.constants)),
        _ => return None,
    };
    is_banned.then_some((kind, name))
}

fn begins_with(text: &str, word: &str) -> bool {
    text.strip_prefix(word)
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_whitespace() || c == '.' || c == ','))
}

fn file_stem(name: &str) -> Option<&str> {
    name.rsplit('/').next()?.strip_suffix(".rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of the glossary itself.
    fn banned() -> BannedWords {
        BannedWords::parse(&std::fs::read_to_string(root().join(GLOSSARY)).unwrap())
    }

    fn findings_of(text: &str) -> Findings {
        let mut findings = Findings::new();
        check_rust("crates/wire/src/frame.rs", text, &banned(), &mut findings);
        findings
    }

    #[test]
    fn the_glossary_alone_says_which_names_are_refused() {
        let glossary = "## Words\n| `Frame` | x |\n## Words not used\n\n| not | but |\n| --- | --- |\n\
            | `Foo`, `bar()` | `Kept` |\n| `BAZ` | x |\n## More\n| `Other` | x |\n";
        let banned = BannedWords::parse(glossary);
        let text = "struct Foo;\nmod foo;\nfn bar() {}\nmod bar;\nconst BAZ: u8 = 1;\nfn foo() {}\n\
            fn kept() {}\nstruct Kept;\nstruct Other;\nstruct Frame;\n";
        let mut findings = Findings::new();
        check_rust("crates/wire/src/frame.rs", text, &banned, &mut findings);
        check_rust("crates/wire/src/bar.rs", "", &banned, &mut findings);
        assert_eq!(findings.len(), 6, "{findings:?}");
    }

    #[test]
    fn a_struct_with_a_bare_name_is_refused() {
        assert_eq!(findings_of("pub(crate) struct Kept<T> {\n").len(), 1);
        assert_eq!(findings_of("struct KeptJobs;\n").len(), 0);
    }

    #[test]
    fn a_comment_that_is_a_fragment_is_refused() {
        assert_eq!(findings_of("    /// Of what.\n").len(), 1);
        assert_eq!(findings_of("    /// Offers a file.\n").len(), 0);
    }

    #[test]
    fn a_constant_without_a_subject_is_refused() {
        assert_eq!(findings_of("const ENOUGH: f64 = 0.9;\n").len(), 1);
        assert_eq!(findings_of("const fn of(x: u8) -> u8 {\n").len(), 1);
        assert_eq!(findings_of("const SETTLE_MS_MIN: u64 = 9;\n").len(), 0);
    }

    #[test]
    fn a_long_line_is_refused() {
        assert_eq!(findings_of(&format!("// {}\n", "x".repeat(127))).len(), 1);
        let mut findings = Findings::new();
        check_markdown(
            "README.md",
            &format!("{}\n| {} |\n", "word ".repeat(26), "x".repeat(130)),
            &mut findings,
        );
        assert_eq!(findings.len(), 1, "{findings:?}");
    }

    #[test]
    fn a_file_with_a_bare_name_is_refused() {
        let mut findings = Findings::new();
        check_rust("crates/catalog/src/kept.rs", "\n", &banned(), &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
