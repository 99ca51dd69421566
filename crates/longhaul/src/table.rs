//! Tables: aligned for people, tab-separated for scripts. Each cell has both forms, and no content can break
//! either.

use longhaul_model::Timestamp;
use longhaul_model::units::{self, printable};

use crate::terminal::{Style, Tone, columns, cut, cut_front};
use crate::time_format;

/// Minimum width of a flexible column on a narrow terminal.
const FLEXIBLE_COLUMNS_MIN: usize = 12;

#[derive(Clone, Debug)]
pub struct Cell {
    human: String,
    plain: String,
    tone: Option<Tone>,
}

impl Cell {
    /// Text from any source: control characters are escaped.
    pub fn text(text: impl AsRef<str>) -> Self {
        let text = printable(text.as_ref());
        Cell { plain: text.clone(), human: text, tone: None }
    }

    /// Text that differs between people and `--plain`.
    pub fn both(human: impl AsRef<str>, plain: impl AsRef<str>) -> Self {
        Cell { human: printable(human.as_ref()), plain: printable(plain.as_ref()), tone: None }
    }

    /// No value: a dash for people, empty for scripts.
    pub fn none() -> Self {
        Cell::both("–", "")
    }

    pub fn maybe<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Self {
        value.map_or_else(Cell::none, cell)
    }

    pub fn count(value: u64) -> Self {
        Cell::both(units::count(value), value.to_string())
    }

    pub fn bytes(value: u64) -> Self {
        Cell::both(units::bytes(value), value.to_string())
    }

    pub fn rate(bytes_per_s: f64) -> Self {
        let human = if bytes_per_s > 0.0 { units::rate(bytes_per_s) } else { "–".to_owned() };
        Cell::both(human, format!("{bytes_per_s:.0}"))
    }

    /// Local time for people, UTC for scripts.
    pub fn time(at: Timestamp, now: Timestamp) -> Self {
        Cell::both(time_format::local(at, now), at.to_string())
    }

    pub fn toned(mut self, tone: Tone) -> Self {
        self.tone = Some(tone);
        self
    }

    pub fn toned_if(self, condition: bool, tone: Tone) -> Self {
        if condition { self.toned(tone) } else { self }
    }
}

/// Whole percent, rounded down; all of nothing is 100.
pub fn percent(part: u64, whole: u64) -> u64 {
    if part >= whole { 100 } else { (u128::from(part) * 100 / u128::from(whole)) as u64 }
}

/// Whole percent, rounded to nearest: for shares that should add up to about 100.
pub fn rounded_percent(part: u64, whole: u64) -> u64 {
    let whole = u128::from(whole.max(1));
    ((u128::from(part) * 200 + whole) / (2 * whole)) as u64
}

/// How a column behaves on a narrow terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Fixed,
    /// May be cut at the end.
    CutEnd,
    /// May be cut at the front: paths.
    CutFront,
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    /// Heading of `--plain`, which scripts read: it stays when the title changes.
    plain: &'static str,
    right: bool,
    width: Width,
}

impl Column {
    const fn new(title: &'static str, right: bool, width: Width) -> Column {
        Column { title, plain: title, right, width }
    }

    pub const fn plain_title(mut self, plain: &'static str) -> Column {
        self.plain = plain;
        self
    }
}

pub const fn left(title: &'static str) -> Column {
    Column::new(title, false, Width::Fixed)
}

pub const fn right(title: &'static str) -> Column {
    Column::new(title, true, Width::Fixed)
}

/// A column of prose, cut at the end if there is no room.
pub const fn prose(title: &'static str) -> Column {
    Column::new(title, false, Width::CutEnd)
}

/// A column of paths, cut at the front since the end matters.
pub const fn path(title: &'static str) -> Column {
    Column::new(title, false, Width::CutFront)
}

#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(columns: impl IntoIterator<Item = Column>) -> Self {
        Table { columns: columns.into_iter().collect(), rows: Vec::new() }
    }

    /// # Panics
    /// If the row does not have one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let cells: Vec<Cell> = cells.into_iter().collect();
        assert!(cells.len() == self.columns.len(), "one cell per column");
        self.rows.push(cells);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as a heading line and tab-separated values.
    pub fn plain(&self) -> String {
        let heading: Vec<String> = self.columns.iter().map(|column| column.plain.replace(' ', "_")).collect();
        let mut text = heading.join("\t");
        text.push('\n');
        for row in &self.rows {
            for (place, cell) in row.iter().enumerate() {
                if place > 0 {
                    text.push('\t');
                }
                text.push_str(&cell.plain);
            }
            text.push('\n');
        }
        text
    }

    /// The table with columns two spaces apart; with `width`, prose and paths are cut so that each row stays
    /// one line.
    pub fn human(&self, style: Style, width: Option<usize>) -> String {
        let widths = self.widths(width);
        let mut text = String::new();
        let titles = self.columns.iter().map(|column| (column.title.to_owned(), Some(Tone::Faint)));
        self.line(&mut text, &widths, style, titles);
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).zip(&widths).map(|((cell, column), &width)| {
                let human = match column.width {
                    Width::Fixed => cell.human.clone(),
                    Width::CutEnd => cut(&cell.human, width).into_owned(),
                    Width::CutFront => cut_front(&cell.human, width).into_owned(),
                };
                (human, cell.tone)
            });
            self.line(&mut text, &widths, style, cells);
        }
        text
    }

    fn line(
        &self,
        text: &mut String,
        widths: &[usize],
        style: Style,
        cells: impl Iterator<Item = (String, Option<Tone>)>,
    ) {
        let begin = text.len();
        for (place, (cell, tone)) in cells.enumerate() {
            let gap = widths[place].saturating_sub(columns(&cell));
            let painted = tone.map_or_else(|| cell.clone(), |tone| style.paint(tone, &cell));
            if place > 0 {
                text.push_str("  ");
            }
            let pad = " ".repeat(gap);
            if self.columns[place].right {
                text.push_str(&pad);
                text.push_str(&painted);
            } else {
                text.push_str(&painted);
                text.push_str(&pad);
            }
        }
        let end = begin + text[begin..].trim_end_matches(' ').len();
        text.truncate(end);
        text.push('\n');
    }

    fn widths(&self, limit: Option<usize>) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|column| columns(column.title)).collect();
        for row in &self.rows {
            for (slot, cell) in widths.iter_mut().zip(row) {
                *slot = (*slot).max(columns(&cell.human));
            }
        }
        let Some(limit) = limit else { return widths };
        loop {
            let total: usize = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
            let widest = (0..widths.len())
                .filter(|&at| self.columns[at].width != Width::Fixed && widths[at] > FLEXIBLE_COLUMNS_MIN)
                .max_by_key(|&at| widths[at]);
            match widest {
                Some(at) if total > limit => widths[at] -= 1,
                _ => return widths,
            }
        }
    }
}

/// Lines of `name  value` about one thing, names aligned.
pub fn facts(style: Style, width: Option<usize>, lines: &[(&str, String)]) -> String {
    let longest = lines.iter().map(|(name, _)| columns(name)).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in lines {
        let pad = " ".repeat(longest - columns(name));
        let line = format!("{}{pad}  {value}", style.paint(Tone::Faint, name));
        text.push_str(&crate::terminal::wrapped(&line, width, longest + 2));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Table {
        let mut table = Table::new([path("lfn"), left("state"), right("size"), prose("waits for")]);
        table.row([
            Cell::text("plain/name.root"),
            Cell::text("done"),
            Cell::bytes(4_100_000_000),
            Cell::none(),
        ]);
        table.row([
            Cell::text("evil/\u{1b}[2J\u{202e}name\twith\nall\rof it"),
            Cell::text("waiting").toned(Tone::Warn),
            Cell::bytes(0),
            Cell::text("a slot on alpha → beta: 8 of 8 busy, 120 before it"),
        ]);
        table
    }

    #[test]
    fn the_plain_heading_may_differ_from_the_title() {
        let mut table = Table::new([left("reason").plain_title("waits for"), right("size")]);
        table.row([Cell::text("a slot"), Cell::bytes(1)]);
        assert_eq!(table.plain(), "waits_for\tsize\na slot\t1\n");
        assert!(table.human(Style::plain(), None).starts_with("reason"));
    }

    #[test]
    fn aligns_for_people() {
        let text = sample().human(Style::plain(), None);
        assert_eq!(
            text,
            "lfn                                           state       size  waits for\n\
             plain/name.root                               done     4.10 GB  –\n\
             evil/\\u{1b}[2J\\u{202e}name\\twith\\nall\\rof it  waiting      0 B  \
             a slot on alpha → beta: 8 of 8 busy, 120 before it\n"
        );
    }

    #[test]
    fn stays_within_the_terminal() {
        for width in [60, 80, 100] {
            let text = sample().human(Style::plain(), Some(width));
            assert!(text.lines().all(|line| columns(line) <= width), "{width}:\n{text}");
            assert_eq!(text.lines().count(), 3);
        }
        assert!(sample().human(Style::plain(), Some(60)).contains("…"));
    }

    #[test]
    fn scripts_get_numbers_and_no_stray_tabs() {
        let text = sample().plain();
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(rows[0], ["lfn", "state", "size", "waits_for"]);
        assert_eq!(rows[1], ["plain/name.root", "done", "4100000000", ""]);
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.len() == 4));
    }

    #[test]
    fn a_hundred_percent_means_all() {
        assert_eq!(percent(999_999, 1_000_000), 99);
        assert_eq!(percent(0, 0), 100);
        assert_eq!(percent(u64::MAX - 1, u64::MAX), 99);
    }
    proptest! {
        /// No content moves the cursor, forges a row or shifts a column.
        #[test]
        fn no_name_breaks_a_table(
            names in prop::collection::vec(".{0,30}|[\\x00-\\x1f\u{202e}]{1,5}", 1..6),
            width in 40usize..120,
        ) {
            let mut table = Table::new([path("lfn"), right("size"), prose("why")]);
            for name in &names {
                table.row([Cell::text(name), Cell::bytes(7), Cell::text(name)]);
            }
            let humans = [Some(width), None].map(|width| table.human(Style::plain(), width));
            for text in humans.iter().chain([&table.plain()]) {
                prop_assert_eq!(text.matches('\n').count(), names.len() + 1);
                prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
            }
            prop_assert!(table.plain().lines().all(|line| line.matches('\t').count() == 2));
        }
    }
}
