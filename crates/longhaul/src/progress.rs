//! Progress on standard error: a block of lines repainted in place on a terminal, otherwise a line every few
//! seconds. Messages go above the block.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::units;

use crate::table::percent;
use crate::terminal::{Terminal, columns, cut};

/// Without a terminal: one report each so often.
const PLAIN_EVERY: Duration = Duration::from_secs(5);
/// With one: repaint no more often than the eye follows.
pub const REPAINT_EVERY: Duration = Duration::from_millis(200);

/// Where no terminal says how wide it is.
const WIDE: usize = 110;
/// A shorter bar says nothing, a longer one no more.
const BAR_CELLS_MIN: usize = 4;
const BAR_CELLS_MAX: usize = 27;

#[derive(Debug)]
pub struct Board {
    terminal: Terminal,
    quiet: bool,
    painted_lines: usize,
    last_plain: Option<Timestamp>,
}

impl Board {
    pub fn new(terminal: Terminal, quiet: bool) -> Self {
        Board { terminal, quiet, painted_lines: 0, last_plain: None }
    }

    pub fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Shows the present state: `lines` on a terminal, `plain` elsewhere if it is time.
    pub fn show(&mut self, now: Timestamp, lines: &[String], plain: impl FnOnce() -> String) {
        if self.quiet {
            return;
        }
        if self.terminal.is_terminal {
            let lines = self.fitting(lines);
            let text = self.erased() + &self.block(lines);
            self.painted_lines = lines.len();
            self.write(&text);
        } else if self.last_plain.is_none_or(|last| now.since(last) >= PLAIN_EVERY) {
            self.last_plain = Some(now);
            self.write(&format!("{}\n", plain()));
        }
    }

    /// A message that stays.
    pub fn say(&mut self, message: &str) {
        let erased = self.erased();
        self.painted_lines = 0;
        let message = if self.quiet { String::new() } else { format!("{message}\n") };
        self.write(&(erased + &message));
    }

    /// Leaves `lines` as the last state on the screen.
    pub fn leave(&mut self, lines: &[String]) {
        if self.terminal.is_terminal && !self.quiet {
            self.write(&(self.erased() + &self.block(lines)));
        }
        self.painted_lines = 0;
    }

    pub fn clear(&mut self) {
        self.write(&self.erased());
        self.painted_lines = 0;
    }

    fn write(&self, text: &str) {
        if !text.is_empty() {
            // Progress that cannot be shown stops nothing.
            let _ = self.terminal.write(text);
        }
    }

    /// No more lines than can be gone back over.
    fn fitting<'a>(&self, lines: &'a [String]) -> &'a [String] {
        let most = self.terminal.height().map_or(usize::MAX, |lines| lines.saturating_sub(1).max(1));
        &lines[..lines.len().min(most)]
    }

    fn erased(&self) -> String {
        if self.painted_lines == 0 {
            String::new()
        } else {
            format!("\u{1b}[{}A\r\u{1b}[J", self.painted_lines)
        }
    }

    /// A line wider than the terminal would wrap, and the next repaint would begin in the wrong place.
    fn block(&self, lines: &[String]) -> String {
        let width = self.terminal.width().unwrap_or(usize::MAX);
        lines.iter().map(|line| format!("{}\n", cut(line, width))).collect()
    }
}

/// `████████░░░░`, `cells` wide; full only when all is done.
pub fn bar(part: u64, whole: u64, cells: usize) -> String {
    let full = if part >= whole { cells } else { (part as f64 / whole as f64 * cells as f64) as usize };
    let full = if part < whole { full.min(cells.saturating_sub(1)) } else { full };
    "█".repeat(full) + &"░".repeat(cells - full)
}

/// How far files and bytes are, and how fast.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measure {
    pub files_done: u64,
    /// Unknown while a scan still finds more.
    pub files: Option<u64>,
    pub bytes_done: u64,
    pub bytes: Option<u64>,
    pub rate_now: f64,
    pub rate_average: f64,
    /// Expected end, as text.
    pub end: String,
    pub notes: String,
}

impl Measure {
    /// One line of a block: name, bar, percent, files, bytes, rates, end. On a narrow terminal it moves together;
    /// the bar takes what is left, and goes if that is too little.
    pub fn line(&self, name: &str, name_width: usize, width: Option<usize>) -> String {
        let width = width.unwrap_or(WIDE);
        let wide = self.laid_out(name, name_width, width, "  ");
        match wide {
            Some(line) => line,
            None => {
                let narrow = self.laid_out(name, name_width, width, " ");
                narrow.unwrap_or_else(|| cut(&self.without_bar(name, name_width, " "), width).into_owned())
            }
        }
    }

    /// For a log: no bar, never cut.
    pub fn plain(&self, name: &str) -> String {
        self.without_bar(name, 0, "  ").trim_start().to_owned()
    }

    /// None if there is no room for a bar.
    fn laid_out(&self, name: &str, name_width: usize, width: usize, gap: &str) -> Option<String> {
        let text = self.text(gap);
        let Some(bytes) = self.bytes else { return Some(self.without_bar(name, name_width, gap)) };
        let taken = 2 + name_width.max(columns(name)) + 2 * gap.len() + columns(&text);
        let cells = width.checked_sub(taken).filter(|cells| *cells >= BAR_CELLS_MIN)?.min(BAR_CELLS_MAX);
        Some(format!("  {name:<name_width$}{gap}{}{gap}{text}", bar(self.bytes_done, bytes, cells)))
    }

    fn without_bar(&self, name: &str, name_width: usize, gap: &str) -> String {
        format!("  {name:<name_width$}{gap}{}", self.text(gap))
    }

    fn text(&self, gap: &str) -> String {
        let mut parts = Vec::new();
        let over = if gap.len() > 1 { " / " } else { "/" };
        match (self.files, self.bytes) {
            (Some(files), Some(bytes)) => {
                let share = percent(self.files_done, files).min(percent(self.bytes_done, bytes));
                let files_width = columns(&units::count(files));
                parts.push(format!("{share:>3} %"));
                let done = units::count(self.files_done);
                parts.push(format!("{done:>files_width$}{over}{} files", units::count(files)));
            }
            _ => parts.push(format!("{} files", units::count(self.files_done))),
        }
        parts.push(format!("{:>7}", units::bytes(self.bytes_done)));
        if self.rate_now > 0.0 || self.rate_average > 0.0 {
            let average = short_rate(self.rate_now, self.rate_average);
            parts.push(format!("{:>8} (avg {average})", units::rate(self.rate_now)));
        }
        parts.extend([&self.end, &self.notes].into_iter().filter(|text| !text.is_empty()).cloned());
        parts.join(gap)
    }
}

/// The average without its unit if it has the unit of the rate before it.
fn short_rate(now: f64, average: f64) -> String {
    let (now, average) = (units::rate(now), units::rate(average));
    match (now.split_once(' '), average.split_once(' ')) {
        (Some((_, unit)), Some((number, same))) if unit == same => number.to_owned(),
        _ => average,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure() -> Measure {
        Measure {
            files_done: 1_481,
            files: Some(2_000),
            bytes_done: 741_000_000,
            bytes: Some(1_000_000_000),
            rate_now: 612e6,
            rate_average: 588e6,
            end: "done 14:02:11".into(),
            notes: String::new(),
        }
    }

    #[test]
    fn a_line_has_it_all() {
        let wide = measure().line("beta", 5, Some(120));
        assert_eq!(
            wide,
            "  beta   ████████████████████░░░░░░░   74 %  1,481 / 2,000 files   741 MB  612 MB/s (avg 588)  done 14:02:11"
        );
        let narrow = measure().line("beta", 5, Some(80));
        assert_eq!(
            narrow,
            "  beta  █████░░  74 % 1,481/2,000 files  741 MB 612 MB/s (avg 588) done 14:02:11"
        );
    }

    #[test]
    fn fits_the_terminal() {
        for width in 40..200 {
            let line = measure().line("gamma", 5, Some(width));
            assert!(crate::terminal::columns(&line) <= width, "{width}: {line}");
        }
    }

    #[test]
    fn a_bar_is_full_only_at_the_end() {
        assert_eq!(bar(999_999, 1_000_000, 4), "███░");
        assert_eq!(bar(0, 0, 4), "████");
        assert_eq!(bar(1, 4, 4), "█░░░");
    }

    #[test]
    fn a_scan_has_no_end_in_sight() {
        let scan = Measure { files_done: 1_200, bytes_done: 5_000, ..Measure::default() };
        assert_eq!(scan.line("scan", 4, Some(80)), "  scan  1,200 files  5.00 kB");
    }

    #[test]
    fn averages_name_their_unit_when_it_differs() {
        assert_eq!(short_rate(612e6, 588e6), "588");
        assert_eq!(short_rate(1.2e9, 588e6), "588 MB/s");
    }
}
