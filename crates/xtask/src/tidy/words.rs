//! Rules on words: names by which an expert finds things, comments that stand alone, lines that fit.
//!
//! The glossary (`docs/glossary.md`) says which words the project uses; here are those that it does not.

use super::Findings;
use crate::tools::root;

/// Columns of a line of code, comment or Markdown: two files fit side by side.
const COLUMNS_MAX: usize = 110;

/// A longer span of code in Markdown, such as a command with its options, may exceed the columns.
const CODE_SPAN_MAX: usize = 50;

/// Names that say nothing alone, as types: each stood for several things. A subject makes a name of them
/// (`ReadCache`, `PlaceName`).
const BARE_TYPES: &[&str] = &[
    "Again", "Asked", "Begun", "Book", "Came", "Decided", "Desk", "Fate", "Found", "Given", "Handed", "Held",
    "Kept", "Keeper", "Known", "Landing", "Lasting", "Lately", "Lent", "Look", "Looker", "Looks", "Made",
    "Parcel", "Place", "Places", "Said", "Scribe", "Seen", "Shared", "Shelf", "Shown", "Spot", "Taken",
    "Tally", "Told", "Way", "Ways", "Witness",
];

/// Names of functions that tell neither what is done nor to what.
const BARE_FUNCTIONS: &[&str] = &[
    "again", "ask", "come", "did", "do_it", "ease", "fade", "had", "it", "keep", "look", "made", "mind",
    "of", "pursue", "say", "told", "tell", "think",
];

/// Names of constants without a subject or a unit.
const BARE_CONSTANTS: &[&str] = &[
    "AGAIN",
    "ALL_OF",
    "AT_ONCE",
    "AS_MUCH",
    "ENOUGH",
    "EVERY",
    "FAR",
    "FEW",
    "HURRIED",
    "KEPT",
    "LEAST",
    "LITTLE",
    "LONG",
    "LOOK",
    "LOTS",
    "MANY",
    "MOST",
    "MOSTLY",
    "MUCH",
    "MUCH_SOONER",
    "OFTEN",
    "OTHER",
    "OWN",
    "PATIENCE",
    "PIECES",
    "SEVERAL",
    "SHORT",
    "SILENT",
    "SOME",
    "SOON",
    "STANDS",
    "WAIT",
    "WORTH",
];

/// Words that begin a fragment, not a sentence.
const FRAGMENTS: &[&str] = &["Of", "Whose", "Who", "Whom", "What for", "By whom", "Of what", "Of which"];

/// Where the words are still being changed; nothing may be added here.
const PENDING: &[&str] = &[
    "crates/api/",
    "crates/control/",
    "crates/jobs/",
    "crates/service/",
    "fuzz/",
];

pub(crate) fn check(files: &[String], findings: &mut Findings) {
    println!("tidy: words are not checked yet in {}", PENDING.join(" "));
    for name in files {
        if PENDING.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        let is_rust = name.ends_with(".rs");
        if !is_rust && !name.ends_with(".md") {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        if is_rust {
            check_rust(name, &text, findings);
        } else {
            check_markdown(name, &text, findings);
        }
    }
}

fn check_rust(name: &str, text: &str, findings: &mut Findings) {
    if let Some(stem) = file_stem(name)
        && BARE_TYPES.iter().chain(BARE_FUNCTIONS).any(|bare| bare.eq_ignore_ascii_case(stem))
    {
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
        if let Some((kind, bare)) = bare_name(trimmed) {
            findings.push(format!("{}: {kind} `{bare}`: name its subject (docs/glossary.md)", place()));
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

/// If a line declares something by a name that says nothing: what it declares, and the name.
fn bare_name(line: &str) -> Option<(&'static str, &str)> {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "async" | "unsafe" | "static" | "extern") || word.starts_with("pub(")
    });
    let keyword = words.next()?;
    let mut next = words.next()?;
    if keyword == "const" && next == "fn" {
        next = words.next()?;
        return bare("function", next, BARE_FUNCTIONS);
    }
    match keyword {
        "struct" | "enum" | "trait" | "type" => bare("type", next, BARE_TYPES),
        "mod" => bare("module", next, BARE_TYPES).or_else(|| bare("module", next, BARE_FUNCTIONS)),
        "fn" => bare("function", next, BARE_FUNCTIONS),
        "const" => bare("constant", next, BARE_CONSTANTS),
        _ => None,
    }
}

fn bare<'l>(kind: &'static str, word: &'l str, banned: &[&str]) -> Option<(&'static str, &'l str)> {
    let name = word.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    let same = |bare: &&str| if kind == "module" { bare.eq_ignore_ascii_case(name) } else { **bare == *name };
    banned.iter().find(|bare| same(bare)).map(|_| (kind, name))
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

    fn findings_of(text: &str) -> Findings {
        let mut findings = Findings::new();
        check_rust("crates/wire/src/frame.rs", text, &mut findings);
        findings
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
        check_rust("crates/catalog/src/kept.rs", "\n", &mut findings);
        assert_eq!(findings.len(), 1);
    }
}
