//! Progress on standard error: a block of lines repainted in place on a terminal, otherwise a line every few
//! seconds. Messages go above the block.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::units;

use crate::table::percent;
use crate::terminal::{Terminal, columns, cut, wrapped};

/// Time between two lines without a terminal; what ends sooner gets none.
const PLAIN_REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two repaints on a terminal: no more often than the eye follows.
pub const REPAINT_INTERVAL: Duration = Duration::from_millis(200);

/// Width where no terminal reports one.
const COLUMNS_DEFAULT: usize = 110;
const GAP_WIDE: &str = "  ";
const GAP_NARROW: &str = " ";
/// Bounds of a bar: a shorter one says nothing, a longer one no more.
const BAR_CELLS_MIN: usize = 4;
const BAR_CELLS_MAX: usize = 27;
/// Minimum columns of each non-empty cell, so that nothing beside it moves while numbers change.
const CELL_COLUMNS_MIN: [usize; 6] = [0, 0, 7, 20, 0, 0];
/// Minimum columns of the remaining time, such as `1 min 16 s`.
const LEFT_COLUMNS_MIN: usize = 11;

#[derive(Debug)]
pub struct ProgressBoard {
    terminal: Terminal,
    quiet: bool,
    painted_lines: usize,
    last_plain: Option<Timestamp>,
}

impl ProgressBoard {
    pub fn new(terminal: Terminal, quiet: bool) -> Self {
        ProgressBoard { terminal, quiet, painted_lines: 0, last_plain: None }
    }

    pub fn terminal(&self) -> Terminal {
        self.terminal
    }

    /// Shows the current state: `lines` on a terminal, `plain` elsewhere if it is time.
    pub fn show(&mut self, now: Timestamp, lines: &[String], plain: impl FnOnce() -> String) {
        if self.quiet {
            return;
        }
        if self.terminal.is_terminal {
            let lines = self.visible_lines(lines);
            let text = self.erase_sequence() + &self.cut_lines(lines);
            self.painted_lines = lines.len();
            self.write(&text);
        } else if now.since(*self.last_plain.get_or_insert(now)) >= PLAIN_REPORT_INTERVAL {
            self.last_plain = Some(now);
            self.write(&format!("{}\n", plain()));
        }
    }

    /// Prints a permanent message, wrapped on a terminal, further lines indented.
    pub fn print_wrapped(&mut self, message: &str, indent: usize) {
        let width = self.terminal.width();
        self.print_message(&wrapped(message, width, indent));
    }

    /// Prints a permanent message.
    pub fn print_message(&mut self, message: &str) {
        let erased = self.erase_sequence();
        self.painted_lines = 0;
        let message = if self.quiet { String::new() } else { format!("{message}\n") };
        self.write(&(erased + &message));
    }

    /// Leaves `lines` on the screen as the final state.
    pub fn finish_with(&mut self, lines: &[String]) {
        if self.terminal.is_terminal && !self.quiet {
            self.write(&(self.erase_sequence() + &self.cut_lines(lines)));
        }
        self.painted_lines = 0;
    }

    pub fn clear(&mut self) {
        self.write(&self.erase_sequence());
        self.painted_lines = 0;
    }

    fn write(&self, text: &str) {
        if !text.is_empty() {
            // Failing to show progress is no reason to stop.
            let _ = self.terminal.write(text);
        }
    }

    /// No more lines than the cursor can move back over.
    fn visible_lines<'a>(&self, lines: &'a [String]) -> &'a [String] {
        let most = self.terminal.height().map_or(usize::MAX, |lines| lines.saturating_sub(1).max(1));
        &lines[..lines.len().min(most)]
    }

    fn erase_sequence(&self) -> String {
        if self.painted_lines == 0 {
            String::new()
        } else {
            format!("\u{1b}[{}A\r\u{1b}[J", self.painted_lines)
        }
    }

    /// A line wider than the terminal would wrap, and the next repaint would start in the wrong place.
    fn cut_lines(&self, lines: &[String]) -> String {
        let width = self.terminal.width().unwrap_or(usize::MAX);
        lines.iter().map(|line| format!("{}\n", cut(line, width))).collect()
    }
}

/// A bar such as `████████░░░░`, `cells` wide; full only when everything is done.
pub fn bar(part: u64, whole: u64, cells: usize) -> String {
    let full = if part >= whole { cells } else { (part as f64 / whole as f64 * cells as f64) as usize };
    let full = if part < whole { full.min(cells.saturating_sub(1)) } else { full };
    "█".repeat(full) + &"░".repeat(cells - full)
}

/// Progress of files and bytes, with rates.
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
    /// Remaining time, if there is room for it.
    pub left: String,
    pub notes: String,
}

impl Measure {
    /// One line for a log: no bar, never cut.
    pub fn plain(&self, name: &str) -> String {
        format!(
            "{name}  {}",
            self.cells(GAP_WIDE)
                .iter()
                .map(String::as_str)
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>()
                .join(GAP_WIDE)
        )
    }

    /// Cells: percent, files, bytes, rates, end, notes.
    fn cells(&self, gap: &str) -> [String; 6] {
        let over = if gap.len() > 1 { " / " } else { "/" };
        let (share, files) = match (self.files, self.bytes) {
            (Some(files), Some(bytes)) => {
                let share = percent_done(self.files_done, files, self.bytes_done, bytes);
                let (done, all) = (units::count(self.files_done), units::plural(files, "file", "files"));
                let width = columns(&units::count(files));
                (format!("{share:>3} %"), format!("{done:>width$}{over}{all}"))
            }
            _ => (String::new(), units::plural(self.files_done, "file", "files")),
        };
        let rates = match (self.rate_now > 0.0, self.rate_average > 0.0) {
            (true, _) => {
                format!(
                    "{} (avg {})",
                    units::rate(self.rate_now),
                    short_rate(self.rate_now, self.rate_average)
                )
            }
            (false, true) => format!("avg {}", units::rate(self.rate_average)),
            (false, false) => String::new(),
        };
        let end = match self.left.as_str() {
            left if left.is_empty() || gap == GAP_NARROW => self.end.clone(),
            left => format!("{} {:<width$}", self.end, format!("({left})"), width = LEFT_COLUMNS_MIN + 2),
        };
        [share, files, units::bytes(self.bytes_done), rates, end, self.notes.clone()]
    }
}

/// One line each: name, bar, percent, files, bytes, rates, end; aligned. On a narrow terminal gaps shrink;
/// the bars take what is left and are dropped if that is too little.
pub fn lines(measures: &[(&str, Measure)], width: Option<usize>) -> Vec<String> {
    let width = width.unwrap_or(COLUMNS_DEFAULT);
    for gap in [GAP_WIDE, GAP_NARROW] {
        let rows = align_rows(measures, gap);
        let widest = rows.iter().map(|(name, rest)| columns(name) + columns(rest)).max().unwrap_or(0);
        let room = width.saturating_sub(widest + 2 * gap.len());
        if room >= BAR_CELLS_MIN || gap == GAP_NARROW {
            return rows
                .into_iter()
                .zip(measures)
                .map(|((name, rest), (_, measure))| match measure.bytes {
                    Some(bytes) if room >= BAR_CELLS_MIN => {
                        let bar = bar(measure.bytes_done, bytes, room.min(BAR_CELLS_MAX));
                        format!("{name}{gap}{bar}{gap}{rest}").trim_end().to_owned()
                    }
                    _ => cut(format!("{name}{gap}{rest}").trim_end(), width).into_owned(),
                })
                .collect();
        }
    }
    unreachable!("the narrow form is always taken")
}

/// Names and the cells after the bar, padded to the widest of their column.
fn align_rows(measures: &[(&str, Measure)], gap: &str) -> Vec<(String, String)> {
    let cells: Vec<[String; 6]> = measures.iter().map(|(_, measure)| measure.cells(gap)).collect();
    let widest = |place: usize| match cells.iter().map(|row| columns(&row[place])).max().unwrap_or(0) {
        0 => 0,
        widest => widest.max(CELL_COLUMNS_MIN[place]),
    };
    let names = measures.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    let rows = measures.iter().zip(&cells).map(|((name, _), row)| {
        let padded = row.iter().enumerate().filter(|(place, _)| widest(*place) > 0).map(|(place, cell)| {
            let pad = " ".repeat(widest(place) - columns(cell));
            // Numbers are right-aligned, words left-aligned.
            if place < 4 { format!("{pad}{cell}") } else { format!("{cell}{pad}") }
        });
        (format!("  {name:<names$}"), padded.collect::<Vec<_>>().join(gap))
    });
    rows.collect()
}

/// Percentage of the bytes, which take the time; 100 only when all files are done.
fn percent_done(files_done: u64, files: u64, bytes_done: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        return percent(files_done, files);
    }
    let most = if files_done < files { 99 } else { 100 };
    percent(bytes_done, bytes).min(most)
}

/// The average, without its unit if that is the unit of the current rate.
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
            left: String::new(),
            notes: String::new(),
        }
    }

    #[test]
    fn lines_have_it_all_and_are_aligned() {
        let done = Measure {
            files_done: 2_000,
            bytes_done: 1_000_000_000,
            rate_now: 0.0,
            end: "done 14:02:09".into(),
            notes: "3 retries".into(),
            ..measure()
        };
        let both = [("beta", measure()), ("gamma", done)];
        assert_eq!(
            lines(&both, Some(120)),
            [
                "  beta   ███████████████████░░░░░░░   74 %  1,481 / 2,000 files   741 MB    612 MB/s (avg \
                    588)  done 14:02:11",
                "  gamma  ██████████████████████████  100 %  2,000 / 2,000 files  1.00 GB          avg 588 \
                    MB/s  done 14:02:09  3 retries",
            ]
        );
        assert_eq!(
            lines(&both[..1], Some(80)),
            ["  beta ████░░  74 % 1,481/2,000 files  741 MB   612 MB/s (avg 588) done 14:02:11"]
        );
    }

    /// Otherwise everything beside a number jumps with each digit.
    #[test]
    fn bars_are_steady_while_numbers_change() {
        let early = Measure { bytes_done: 900_000, rate_now: 327e3, rate_average: 327e3, ..measure() };
        let cells = |measure: &Measure, left: &str, width| {
            let shown = lines(&[("copy", Measure { left: left.to_owned(), ..measure.clone() })], Some(width));
            shown[0].chars().filter(|c| "█░".contains(*c)).count()
        };
        for width in [80, 110] {
            assert_eq!(cells(&early, "9.0 s", width), cells(&measure(), "1 min 16 s", width), "{width}");
        }
        assert!(
            lines(&[("copy", Measure { left: "24 min".into(), ..measure() })], Some(120))[0]
                .contains("(24 min)")
        );
    }

    #[test]
    fn lines_fit_the_terminal() {
        let waits =
            Measure { end: "no estimate: nothing has been moved yet and nobody knows".into(), ..measure() };
        for width in 20..200 {
            for line in lines(&[("gamma", waits.clone()), ("b", measure())], Some(width)) {
                assert!(columns(&line) <= width, "{width}: {line}");
            }
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
        assert_eq!(lines(&[("scan", scan.clone())], Some(80)), ["  scan  1,200 files  5.00 kB"]);
        assert_eq!(scan.plain("scan"), "scan  1,200 files  5.00 kB");
    }

    #[test]
    fn a_large_file_moves_the_percentage() {
        assert_eq!(percent_done(0, 1, 50, 100), 50);
        assert_eq!(percent_done(0, 1, 100, 100), 99);
        assert_eq!(percent_done(2, 2, 100, 100), 100);
        assert_eq!((percent_done(1, 2, 0, 0), percent_done(0, 0, 0, 0)), (50, 100));
    }

    #[test]
    fn averages_name_their_unit_when_it_differs() {
        assert_eq!(short_rate(612e6, 588e6), "588");
        assert_eq!(short_rate(1.2e9, 588e6), "588 MB/s");
    }
}
