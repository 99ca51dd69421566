//! The lines of fdtcp's copyjobfile and reportfile: their words, and quoting.
//!
//! A word that begins with `"` ends with the next `"`; in between `\"`, `\\`, `\n`, `\r`, `\t` and `\u{1b}`
//! stand for what they say. In any other word every character stands for itself, backslashes too, as fdtcp
//! reads it.
//!
//! Not here: files of such lines, and what their words name (`copy`, `agent`). Start with [`words`] and
//! [`quoted`].

use std::iter::Peekable;
use std::str::Chars;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The lines of fdtcp: blanks and tabs separate words.
    Copyjob,
    /// The lines of `--from-file`: if there is a tab, only tabs separate words.
    FromFile,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub text: String,
    /// In characters, from 1.
    pub column: usize,
}

/// What a reportfile says of one pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportLine {
    pub source: String,
    pub target: String,
    /// 0: done; 1: error; 2: something else is there; 3: no permission.
    pub status: u8,
    pub text: String,
}

/// Where (in characters, from 1), and what.
pub type Wrong = (usize, String);

/// More words than a pair has are not told apart.
const WORDS_MAX: usize = 3;

/// None of a blank line and of a comment.
pub fn words(line: &str, format: Format) -> Result<Vec<Word>, Wrong> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let begins = line.trim_start_matches([' ', '\t']);
    if begins.is_empty() || begins.starts_with('#') {
        return Ok(Vec::new());
    }
    if let Some(place) = line.chars().position(|c| c == '\0') {
        return Err((place + 1, "a NUL character can be in no name".to_owned()));
    }
    let tabs_only = format == Format::FromFile && has_tab_outside_quotes(line);
    let separates = |c: char| c == '\t' || (c == ' ' && !tabs_only);
    let mut reader = Reader { chars: line.chars().peekable(), column: 1 };
    let mut words = Vec::new();
    while words.len() < WORDS_MAX {
        reader.skip(separates);
        let column = reader.column;
        let text = match reader.chars.peek() {
            None => break,
            Some('"') => reader.quoted(separates)?,
            Some(_) => reader.plain(separates),
        };
        words.push(Word { text, column });
    }
    Ok(words)
}

/// A line of a reportfile. None: it is a comment, or says nothing of any pair; readers pass over it.
pub fn report_line(line: &str) -> Option<ReportLine> {
    let line = line.strip_suffix('\r').unwrap_or(line);
    let begins = line.trim_start_matches(BLANKS);
    if begins.starts_with('#') || line.contains('\0') {
        return None;
    }
    let separates = |c: char| BLANKS.contains(&c);
    let mut reader = Reader { chars: line.chars().peekable(), column: 1 };
    let mut word = || {
        reader.skip(separates);
        match reader.chars.peek()? {
            '"' => reader.quoted(separates).ok(),
            _ => Some(reader.plain(separates)),
        }
    };
    let (source, target) = (word()?, word()?);
    let status = word()?.parse().ok()?;
    let text: String = reader.chars.collect();
    Some(ReportLine { source, target, status, text: text.trim().to_owned() })
}

const BLANKS: [char; 2] = [' ', '\t'];

/// A word that `words` reads as `text`, in either format.
pub fn quoted(text: &str) -> String {
    let special = |c: char| c == ' ' || c.is_control();
    let plain = !text.is_empty() && !text.starts_with(['"', '#']) && !text.chars().any(special);
    if plain {
        return text.to_owned();
    }
    let mut word = String::with_capacity(text.len() + 2);
    word.push('"');
    for c in text.chars() {
        match c {
            '"' => word.push_str("\\\""),
            '\\' => word.push_str("\\\\"),
            '\n' => word.push_str("\\n"),
            '\r' => word.push_str("\\r"),
            '\t' => word.push_str("\\t"),
            c if c.is_control() => word.extend(c.escape_unicode()),
            c => word.push(c),
        }
    }
    word.push('"');
    word
}

fn has_tab_outside_quotes(line: &str) -> bool {
    let mut reader = Reader { chars: line.chars().peekable(), column: 1 };
    let blank = |c: char| c == ' ' || c == '\t';
    loop {
        let mut tab = false;
        while let Some(c) = reader.chars.next_if(|c| blank(*c)) {
            tab |= c == '\t';
        }
        match reader.chars.peek() {
            _ if tab => return true,
            None => return false,
            Some('"') => {
                if reader.quoted(blank).is_err() {
                    return false;
                }
            }
            Some(_) => drop(reader.plain(blank)),
        }
    }
}

struct Reader<'a> {
    chars: Peekable<Chars<'a>>,
    column: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> Option<char> {
        let c = self.chars.next()?;
        self.column += 1;
        Some(c)
    }

    fn skip(&mut self, separates: impl Fn(char) -> bool) {
        while self.chars.next_if(|c| separates(*c)).is_some() {
            self.column += 1;
        }
    }

    fn plain(&mut self, separates: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(c) = self.chars.next_if(|c| !separates(*c)) {
            self.column += 1;
            text.push(c);
        }
        text
    }

    fn quoted(&mut self, separates: impl Fn(char) -> bool) -> Result<String, Wrong> {
        let opened = self.column;
        let unclosed = || (opened, "the \" is not closed".to_owned());
        self.next();
        let mut text = String::new();
        loop {
            let column = self.column;
            match self.next().ok_or_else(unclosed)? {
                '"' => break,
                '\\' => {
                    let c = self.escaped().ok_or_else(|| {
                        (
                            column,
                            "a backslash between quotes needs one of \" \\ n r t u{…} after it".to_owned(),
                        )
                    })?;
                    text.push(c);
                }
                c => text.push(c),
            }
        }
        match self.chars.peek() {
            Some(c) if !separates(*c) => {
                Err((self.column, "something follows the closing \" without a blank".to_owned()))
            }
            _ => Ok(text),
        }
    }

    fn escaped(&mut self) -> Option<char> {
        match self.next()? {
            c @ ('"' | '\\') => Some(c),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'u' => {
                if self.next()? != '{' {
                    return None;
                }
                let mut number = 0u32;
                let mut digits = 0;
                loop {
                    match self.next()? {
                        '}' if digits > 0 => return char::from_u32(number).filter(|c| *c != '\0'),
                        c => number = number * 16 + c.to_digit(16)?,
                    }
                    digits += 1;
                    if digits > 6 {
                        return None;
                    }
                }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(line: &str, format: Format) -> Result<Vec<String>, Wrong> {
        Ok(words(line, format)?.into_iter().map(|word| word.text).collect())
    }

    #[test]
    fn words_of_a_line() {
        for (line, expected) in [
            ("a b", &["a", "b"][..]),
            ("  a\t \tb  ", &["a", "b"]),
            ("a b\r", &["a", "b"]),
            ("\"a b\" c\\d", &["a b", "c\\d"]),
            (r#""\"\\\n\t\u{e9}" x#y"#, &["\"\\\n\té", "x#y"]),
            ("\"\" b", &["", "b"]),
            ("# a b", &[]),
            ("  # a", &[]),
            ("", &[]),
            (" \t ", &[]),
            ("a b c d", &["a", "b", "c"]),
        ] {
            assert_eq!(texts(line, Format::Copyjob).unwrap(), expected, "{line:?}");
        }
        assert_eq!(texts("a b\tc d", Format::FromFile).unwrap(), ["a b", "c d"]);
        assert_eq!(texts("\"a\\tb\" c", Format::FromFile).unwrap(), ["a\tb", "c"]);
        assert_eq!(texts("\"a b\"\t\"c\"", Format::FromFile).unwrap(), ["a b", "c"]);
        assert_eq!(texts(" \t ", Format::FromFile).unwrap(), [""; 0]);
        assert_eq!(texts("a b", Format::FromFile).unwrap(), ["a", "b"]);
    }

    #[test]
    fn what_is_wrong_has_a_column() {
        for (line, column) in [
            ("é \"b", 3),
            ("\"a\"b c", 4),
            ("\"a\\q\" c", 3),
            ("a \0", 3),
            ("\"\\u{110000}\"", 2),
            ("\"\\u{0}\"", 2),
        ] {
            assert_eq!(words(line, Format::Copyjob).unwrap_err().0, column, "{line:?}");
        }
    }

    #[test]
    fn lines_of_reports() {
        let line = report_line("fdt://h:8444/a \"/d/two words\" 1 no such file: a\r").unwrap();
        assert_eq!((line.source.as_str(), line.target.as_str()), ("fdt://h:8444/a", "/d/two words"));
        assert_eq!((line.status, line.text.as_str()), (1, "no such file: a"));
        let short = report_line("a b 0").unwrap();
        assert_eq!((short.status, short.text.as_str()), (0, ""));
        for other in ["", "# a b 0", "a b", "a b done", "a b -1", "a b 999", "\"a b 0", "a \0 0"] {
            assert_eq!(report_line(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_quoted_is_read_back(one in "[^\0]{0,12}|[ \t\"\\\\#a\u{85}\n\r]{0,8}",
            other in "[^\0]{0,12}") {
            for (format, separator) in [(Format::Copyjob, ' '), (Format::FromFile, '\t'), (Format::FromFile,
                ' ')] {
                let line = format!("{}{separator}{}", quoted(&one), quoted(&other));
                prop_assert!(!line.contains(['\n', '\r']));
                prop_assert_eq!(texts(&line, format).unwrap(), [one.clone(), other.clone()]);
            }
        }

        #[test]
        fn no_line_panics(line in ".{0,40}|[\"\\\\ \tu{}#a0]{0,20}") {
            let _ = words(&line, Format::Copyjob);
            let _ = words(&line, Format::FromFile);
            let _ = report_line(&line);
        }
    }
}
