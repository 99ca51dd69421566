//! Commands that texts of the product name, in remedies, refusals, reports and pages: each has to exist, with
//! all of its arguments.
//!
//! Texts are written where they are told, in all crates, so the sources are read: each string literal outside
//! of tests. What begins with `longhaul ` there is parsed by the program's own command line. Words in
//! capitals stand for names, and what is inserted may be any value.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Cli;

/// Crates that talk to nobody but us.
const TOOLS: &[&str] = &["testbed", "testkit", "xtask"];

/// Words about the program that are no command.
const PROSE: &[&str] = &["longhaul ends"];

/// What may stand for a name in capitals, or be inserted. Nothing at all only within a word.
const VALUES: &[&str] = &[
    "",
    "alpha",
    "01JD3QW8V0G01",
    "d4482976-e57e-11f1-aea5-02fc00000001",
    "7",
    "150ms",
    "10Gbit",
    "127.0.0.1",
];

/// What ends a command in a text.
const COMMAND_ENDS: &[&str] =
    &["`", ";", ",", "(", ")", "\"", "…", ">", "<", "|", "\n", "  ", ": ", ". ", "? "];

/// Combinations of values that are tried.
const COMBINATIONS_MAX: usize = 10_000;

/// With fewer commands found, the sources were not read to the end.
const COMMANDS_MIN: usize = 100;

/// A command in a text.
struct NamedCommand {
    words: String,
    /// It is quoted as a name, or a page appends the rest: its arguments may be missing.
    is_name: bool,
}

fn named_commands(text: &str) -> Vec<NamedCommand> {
    // Marks an argument that may be repeated.
    let text = text.replace("...", "");
    let mut commands = Vec::new();
    for (at, program) in text.match_indices("longhaul ") {
        let before = text[..at].chars().next_back();
        let is_part = before.is_some_and(|c| c.is_alphanumeric() || "-_./".contains(c));
        let rest = &text[at..];
        // The first word is a command or an option; a dash alone is neither.
        let first = rest[program.len()..].trim_start_matches('-').chars().next();
        let is_word = first.is_some_and(|c| c.is_ascii_lowercase());
        if is_part || !is_word {
            continue;
        }
        let end = COMMAND_ENDS.iter().filter_map(|&mark| rest.find(mark)).min().unwrap_or(rest.len());
        let words = rest[..end].trim_end_matches([' ', '.', ':', '?']).to_owned();
        if !PROSE.contains(&words.as_str()) {
            let is_continued = end == rest.len() && rest.ends_with(' ');
            commands.push(NamedCommand { words, is_name: before == Some('`') || is_continued });
        }
    }
    commands
}

/// The parts of a command, each with all that may stand for it.
fn alternatives(words: &str) -> Vec<Vec<&str>> {
    let mut parts = Vec::new();
    let mut rest = words;
    let mut is_in_word = false;
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '{' => rest.find('}').map_or(rest.len(), |end| end + 1),
            'A'..='Z' => span(rest, |c| c.is_ascii_uppercase() || c == '_'),
            _ => span(rest, |c| c != '{' && !c.is_ascii_uppercase()),
        };
        let (part, after) = rest.split_at(length);
        let goes_on = after.chars().next().is_some_and(|c| c != ' ');
        parts.push(match first {
            '{' | 'A'..='Z' if is_in_word || goes_on => VALUES.to_vec(),
            '{' | 'A'..='Z' => VALUES[1..].to_vec(),
            _ => vec![part],
        });
        is_in_word = !part.ends_with(' ');
        rest = after;
    }
    parts
}

/// The combination of that number.
fn combine(parts: &[Vec<&str>], mut number: usize) -> String {
    let mut words = String::new();
    for part in parts {
        words += part[number % part.len()];
        number /= part.len();
    }
    words
}

fn exists(command: &mut clap::Command, named: &NamedCommand) -> bool {
    let parts = alternatives(&named.words);
    let combinations = parts.iter().map(Vec::len).fold(1, usize::saturating_mul);
    (0..combinations.min(COMBINATIONS_MAX))
        .any(|number| is_accepted(command, &combine(&parts, number), named.is_name))
}

fn is_accepted(command: &mut clap::Command, words: &str, may_lack_arguments: bool) -> bool {
    let Err(error) = command.try_get_matches_from_mut(words.split_whitespace()) else { return true };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::MissingSubcommand
        | ErrorKind::MissingRequiredArgument => may_lack_arguments,
        _ => false,
    }
}

/// The string literals of a source, without those of its tests. Bytes are no text, and neither is what holds
/// a NUL: it separates domains of digests.
fn string_literals(source: &str) -> Vec<String> {
    let mut rest = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut literals = Vec::new();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => {
                let (text, length) = plain_literal(rest);
                literals.push(text);
                length
            }
            '\'' => character_length(rest),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            c if is_word_character(c) => {
                let (word, after) = rest.split_at(span(rest, is_word_character));
                let literal = match word {
                    "r" | "br" => raw_literal(after),
                    "b" if after.starts_with('"') => Some(plain_literal(after)),
                    _ => None,
                };
                let length = literal.as_ref().map_or(0, |(_, length)| *length);
                literals.extend(literal.filter(|_| word == "r").map(|(text, _)| text));
                word.len() + length
            }
            c => c.len_utf8(),
        };
        rest = &rest[length..];
    }
    literals.retain(|text| !text.contains('\0'));
    literals
}

/// The text of the literal with which the source begins, and its length there.
fn plain_literal(source: &str) -> (String, usize) {
    let mut text = String::new();
    let mut chars = source.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, at + 1),
            '\\' => match chars.next() {
                Some((_, '\n')) => while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {},
                Some((_, 'n')) => text.push('\n'),
                Some((_, '0')) => text.push('\0'),
                Some((_, c)) => text.push(c),
                None => {}
            },
            c => text.push(c),
        }
    }
    (text, source.len())
}

/// The same of a raw literal, after its `r`.
fn raw_literal(source: &str) -> Option<(String, usize)> {
    let hashes = span(source, |c| c == '#');
    let text = source[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = text.find(&close)?;
    Some((text[..end].to_owned(), hashes + 1 + end + close.len()))
}

/// The length of the character, or of the mark of a lifetime, with which the source begins.
fn character_length(source: &str) -> usize {
    let mut chars = source.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        // At least one character is escaped, and it may be a mark itself.
        (Some((_, '\\')), Some((at, c))) => {
            let after = at + c.len_utf8();
            source[after..].find('\'').map_or(source.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The bytes at the beginning that are all of such characters.
fn span(text: &str, is_such: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_such(c)).unwrap_or(text.len())
}

/// The texts of all crates, each with its file.
fn texts() -> Vec<(PathBuf, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for entry in fs::read_dir(crates).unwrap() {
        let directory = entry.unwrap().path();
        let sources = directory.join("src");
        if sources.is_dir() && !TOOLS.iter().any(|tool| directory.ends_with(tool)) {
            read_texts(&sources, &mut found);
        }
    }
    found
}

fn read_texts(directory: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            read_texts(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).unwrap();
            found.extend(string_literals(&source).into_iter().map(|text| (path.clone(), text)));
        }
    }
}

#[test]
fn every_command_that_a_text_names_exists() {
    let mut command = Cli::command();
    let (mut count, mut wrong) = (0, Vec::new());
    for (path, text) in texts() {
        for named in named_commands(&text) {
            count += 1;
            if !exists(&mut command, &named) {
                wrong.push(format!("{}: {}", path.display(), named.words));
            }
        }
    }
    assert!(wrong.is_empty(), "no such command, or without its arguments:\n{}", wrong.join("\n"));
    assert!(count >= COMMANDS_MIN, "{count} commands are named");
}

/// The first argument in capitals that bears the name of another one of the command's, as `DATASET` in
/// `longhaul verify DATASET beta`.
fn misplaced(command: &clap::Command, words: &str) -> Option<String> {
    let mut words = words.split_whitespace().skip(1).peekable();
    let mut command = command;
    while let Some(next) = words.peek().and_then(|word| command.find_subcommand(word)) {
        command = next;
        words.next();
    }
    let name = |argument: &clap::Arg| {
        argument.get_value_names().and_then(|names| names.first().map(|name| name.to_string()))
    };
    let named: Vec<Option<String>> = command.get_positionals().map(name).collect();
    let mut at = 0;
    while let Some(word) = words.next() {
        if let Some(option) = word.strip_prefix("--") {
            let takes_value = |argument: &&clap::Arg| argument.get_action().takes_values();
            let known = command.get_arguments().find(|argument| argument.get_long() == Some(option));
            known.filter(takes_value).and_then(|_| words.next());
            continue;
        }
        let is_of_another = named.iter().flatten().any(|name| name == word);
        if is_of_another && named.get(at).is_some_and(|name| name.as_deref() != Some(word)) {
            return Some(word.to_owned());
        }
        at += 1;
    }
    None
}

fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let (mut found, mut folders) = (Vec::new(), vec![root.join("docs")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn arguments_that_texts_and_pages_name_stand_in_their_places() {
    let mut command = Cli::command();
    // Only then has each command the options of all.
    command.build();
    let mut wrong = Vec::new();
    for (path, text) in texts().into_iter().chain(pages()) {
        for named in named_commands(&text) {
            if let Some(word) = misplaced(&command, &named.words) {
                wrong.push(format!("{}: {}: {word}", path.display(), named.words));
            }
        }
    }
    assert!(wrong.is_empty(), "arguments in the place of others:\n{}", wrong.join("\n"));
    assert_eq!(misplaced(&command, "longhaul verify DATASET beta").as_deref(), Some("DATASET"));
    assert_eq!(misplaced(&command, "longhaul verify --token DATASET beta DATASET"), None);
    assert_eq!(misplaced(&command, "longhaul verify STORAGE DATASET"), None);
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    let mut command = Cli::command();
    let mut check = |text: &str| exists(&mut command, &named_commands(text)[0]);
    assert!(check("see: longhaul verify {storage} DATASET; then wait"));
    assert!(check("see: longhaul agent run --storage {name}=/data"));
    assert!(check("see: longhaul job show {}"));
    assert!(check("see: longhaul replica delete {dataset} {storage} --yes{force}"));
    assert!(check("`longhaul verify` reads them again"));
    assert!(check("longhaul site commission "));
    assert!(!check("see: longhaul verify"));
    assert!(!check("see: longhaul replica invalidate LFN"));
    assert!(!check("see `longhaul invalidate`"));
    assert!(!check("see: longhaul site remove {site} --now"));
    assert!(!check("see: longhaul site show {site} {agent}"));
}

#[test]
fn commands_are_told_from_other_words() {
    let named = |text: &str| {
        let found = named_commands(text).into_iter();
        found.map(|named| (named.words, named.is_name)).collect::<Vec<_>>()
    };
    let text = "do: longhaul copy SOURCE... TARGET. Or: `longhaul tune`, x-longhaul b, by longhaul {version}";
    assert_eq!(
        named(text),
        [("longhaul copy SOURCE TARGET".to_owned(), false), ("longhaul tune".to_owned(), true)]
    );
    assert_eq!(named("longhaul ends: {part}").len(), 0);
}

#[test]
fn literals_are_read_as_the_compiler_reads_them() {
    let source = concat!(
        "// \"comment\"\n/* \"comment\" */ fn f<'a>(c: char) { c == '\"' || c == '\\'' }\n",
        "let a = \"one \\\n        two\\n\"; let b = b\"bytes\"; let c = r#\"raw \"x\"\"#;\n",
        "let d = \"x\\0\";\n",
        "#[cfg(test)]\nmod tests { \"test\" }",
    );
    assert_eq!(string_literals(source), ["one two\n", "raw \"x\""]);
}
