//! Terminal capabilities of a stream (terminal or not, colour, width), and text layout for it.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use unicode_width::UnicodeWidthChar;

/// Meaning of a piece of text; colour never carries it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Good,
    Warn,
    Bad,
    Faint,
    Strong,
}

/// Whether to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    colour: bool,
}

impl Style {
    #[cfg(test)]
    pub const fn plain() -> Self {
        Style { colour: false }
    }

    pub fn is_coloured(self) -> bool {
        self.colour
    }

    #[cfg(test)]
    pub const fn coloured() -> Self {
        Style { colour: true }
    }

    pub fn paint(self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Warn => "33",
            Tone::Bad => "1;31",
            Tone::Faint => "2",
            Tone::Strong => "1",
        };
        if self.colour { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// One of our two output streams and its capabilities.
#[derive(Clone, Copy, Debug)]
pub struct Terminal {
    pub is_terminal: bool,
    pub style: Style,
    stream: Stream,
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Out,
    Error,
}

impl Terminal {
    pub fn out(no_colour: bool) -> Self {
        Terminal::new(Stream::Out, std::io::stdout().is_terminal(), no_colour)
    }

    pub fn error(no_colour: bool) -> Self {
        Terminal::new(Stream::Error, std::io::stderr().is_terminal(), no_colour)
    }

    fn new(stream: Stream, is_terminal: bool, no_colour: bool) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let dumb = set("TERM").is_none_or(|term| term == "dumb");
        let colour = is_terminal && !dumb && !no_colour && set("NO_COLOR").is_none();
        Terminal { is_terminal: is_terminal && !dumb, style: Style { colour }, stream }
    }

    /// Current width in columns (windows are resized), if it is a terminal.
    pub fn width(&self) -> Option<usize> {
        self.size().map(|(columns, _)| columns)
    }

    /// Current height in lines, if it is a terminal.
    pub fn height(&self) -> Option<usize> {
        self.size().map(|(_, lines)| lines)
    }

    fn size(&self) -> Option<(usize, usize)> {
        if !self.is_terminal {
            return None;
        }
        let size = match self.stream {
            Stream::Out => rustix::termios::tcgetwinsize(rustix::stdio::stdout()),
            Stream::Error => rustix::termios::tcgetwinsize(rustix::stdio::stderr()),
        };
        let known = |cells: u16, otherwise| if cells == 0 { otherwise } else { usize::from(cells) };
        Some(size.map_or((80, 24), |size| (known(size.ws_col, 80), known(size.ws_row, 24))))
    }

    /// Writes text. If the reader of standard output is gone (`| head`) the program ends quietly; a standard
    /// error that cannot be written is ignored.
    pub fn write(&self, text: &str) -> io::Result<()> {
        match self.stream {
            Stream::Out => {
                let mut out = io::stdout().lock();
                match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
                    result => result,
                }
            }
            Stream::Error => {
                let _ = io::stderr().lock().write_all(text.as_bytes());
                Ok(())
            }
        }
    }
}

/// Number of columns that `text` takes on a terminal. Our own colour sequences take none.
pub fn columns(text: &str) -> usize {
    char_widths(text).map(|(_, _, columns)| columns).sum()
}

/// Each character with its byte offset and width in columns.
fn char_widths(text: &str) -> impl DoubleEndedIterator<Item = (usize, char, usize)> {
    let mut in_colour = false;
    let mut sizes = Vec::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        in_colour |= c == '\u{1b}';
        sizes.push((at, c, if in_colour { 0 } else { c.width().unwrap_or(0) }));
        in_colour &= c != 'm';
    }
    sizes.into_iter()
}

/// Cuts `text` to at most `width` columns, with an ellipsis at the end if it was longer.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut kept = String::new();
    let mut used = 1;
    for (_, c, columns) in char_widths(text) {
        used += columns;
        if used > width {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    if kept.contains('\u{1b}') {
        kept.push_str("\u{1b}[0m");
    }
    Cow::Owned(kept)
}

/// As [`cut`], but keeps the end, which distinguishes names in one directory. For text without colours.
pub fn cut_front(text: &str, width: usize) -> Cow<'_, str> {
    if columns(text) <= width {
        return Cow::Borrowed(text);
    }
    let mut used = 1;
    let mut start = text.len();
    for (at, _, columns) in char_widths(text).rev() {
        used += columns;
        if used > width {
            break;
        }
        start = at;
    }
    Cow::Owned(format!("…{}", &text[start..]))
}

/// Wraps at spaces to `width` columns in total; lines after the first are indented by `indent` spaces.
pub fn wrapped(text: &str, width: Option<usize>, indent: usize) -> String {
    let Some(width) = width.filter(|width| *width >= 20) else { return text.to_owned() };
    let body = text.trim_start_matches(' ');
    let mut used = text.len() - body.len();
    let mut out = " ".repeat(used);
    let mut first = true;
    for word in body.split(' ') {
        let size = columns(word);
        if !first && used + 1 + size > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            used = indent;
        } else if !first {
            out.push(' ');
            used += 1;
        }
        first = false;
        out.push_str(word);
        used += size;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn measures_and_cuts_by_columns() {
        assert_eq!(columns("日本x"), 5);
        assert_eq!(columns("e\u{301}"), 1);
        assert_eq!(cut("abcdef", 4), "abc…");
        assert_eq!(cut("日本語", 4), "日…");
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut_front("a/b/file.root", 10), "…file.root");
        assert_eq!(cut_front("日本語", 3), "…語");
        let red = Style::coloured().paint(Tone::Bad, "abcdef");
        assert_eq!(columns(&red), 6);
        assert_eq!(cut(&red, 4), "\u{1b}[1;31mabc…\u{1b}[0m");
    }

    #[test]
    fn combining_marks_of_every_script_take_no_column() {
        assert_eq!(columns("\u{e01}\u{e34}"), 1, "Thai");
        assert_eq!(columns("\u{5d0}\u{5b8}"), 1, "Hebrew");
        assert_eq!(columns("\u{643}\u{64e}"), 1, "Arabic");
        assert_eq!(columns("\u{915}\u{941}"), 1, "Devanagari");
        assert_eq!(cut("\u{e01}\u{e34}\u{e01}\u{e34}\u{e01}", 2), "\u{e01}\u{e34}…");
    }

    #[test]
    fn wide_signs_outside_of_east_asian_scripts_take_two_columns() {
        assert_eq!(columns("⌚"), 2);
        assert_eq!(columns("⚡x"), 3);
        assert_eq!(columns("\u{1f170}"), 1, "narrow unless shown as a picture");
        assert_eq!(cut_front("⚡⚡⚡", 3), "…⚡");
    }

    #[test]
    fn wraps_at_spaces() {
        assert_eq!(wrapped("aaaaaaaaaa bbbbbbbbbb cccc", Some(21), 2), "aaaaaaaaaa bbbbbbbbbb\n  cccc");
        assert_eq!(
            wrapped("  data     of twenty columns and more", Some(24), 11),
            "  data     of twenty\n           columns and\n           more"
        );
        assert_eq!(wrapped("a b", None, 2), "a b");
    }

    #[test]
    fn colours_only_when_asked() {
        assert_eq!(Style::plain().paint(Tone::Bad, "x"), "x");
        assert_eq!(Style::coloured().paint(Tone::Bad, "x"), "\u{1b}[1;31mx\u{1b}[0m");
    }
    proptest! {
        #[test]
        fn whatever_is_cut_fits_and_keeps_its_end_or_its_beginning(
            text in "[a-zé日\u{301} ]{0,40}",
            width in 1usize..30,
        ) {
            let (front, back) = (cut_front(&text, width), cut(&text, width));
            prop_assert!(columns(&front) <= width && columns(&back) <= width);
            prop_assert!(text.ends_with(front.trim_start_matches('…')));
            prop_assert!(text.starts_with(back.trim_end_matches('…')));
        }

        #[test]
        fn wrapping_loses_no_word(
            text in "[a-z日]{1,9}( {1,3}[a-z日]{1,9}){0,20}",
            width in 30usize..60,
            indent in 0usize..8,
        ) {
            let done = wrapped(&text, Some(width), indent);
            prop_assert!(done.lines().all(|line| columns(line) <= width), "{}", done);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&done), words(&text));
        }
    }
}
