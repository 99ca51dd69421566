//! Output of commands: data to standard output in one of three formats, everything else to standard error.

use longhaul_api::native::Page;
use longhaul_model::units::count;
use serde::Serialize;

use crate::failure::Failure;
use crate::table::Table;
use crate::terminal::{Style, Terminal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Human,
    /// Tab-separated with a heading line.
    Plain,
    /// One JSON document.
    Json,
}

#[derive(Clone, Copy, Debug)]
pub struct Output {
    pub format: Format,
    pub out: Terminal,
    pub error: Terminal,
    pub quiet: bool,
}

impl Output {
    pub fn new(format: Format, no_colour: bool, quiet: bool) -> Self {
        Output { format, out: Terminal::out(no_colour), error: Terminal::error(no_colour), quiet }
    }

    /// Prints a document as JSON or as a table.
    pub fn table<T: Serialize>(&self, document: &T, table: impl Fn(&T) -> Table) -> Result<(), Failure> {
        self.view(document, |document, style, width| table(document).human(style, width), &table)
    }

    /// Prints a list. If it is not all, standard error says so; in JSON `next` is set then.
    pub fn list<T: Serialize>(
        &self,
        page: &Page<T>,
        table: impl Fn(&Page<T>) -> Table,
    ) -> Result<(), Failure> {
        self.table(page, table)?;
        if let Some(text) = cut_text(page) {
            self.print_message(&text);
        }
        Ok(())
    }

    /// Prints a document as JSON, as text for people, or as a table.
    pub fn view<T: Serialize>(
        &self,
        document: &T,
        human: impl FnOnce(&T, Style, Option<usize>) -> String,
        plain: impl FnOnce(&T) -> Table,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(document),
            Format::Plain => self.write(&plain(document).plain()),
            Format::Human => self.write(&human(document, self.out.style, self.out.width())),
        }
    }

    /// Prints a document as JSON, otherwise a sentence about it.
    pub fn sentence<T: Serialize>(
        &self,
        document: &T,
        sentence: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        match self.format {
            Format::Json => self.json(document),
            Format::Human | Format::Plain => self.write(&format!("{}\n", sentence(document))),
        }
    }

    pub fn json<T: Serialize>(&self, document: &T) -> Result<(), Failure> {
        let mut text = serde_json::to_string_pretty(document).map_err(|error| {
            Failure::new(
                longhaul_model::FaultCode::Internal,
                format!("cannot write the reply as JSON: {error}"),
            )
        })?;
        text.push('\n');
        self.write(&text)
    }

    /// Prints one of many JSON documents on a line of its own.
    pub fn json_line<T: Serialize>(&self, document: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(document).map_err(|error| {
            Failure::new(
                longhaul_model::FaultCode::Internal,
                format!("cannot write an event as JSON: {error}"),
            )
        })?;
        self.write(&(text + "\n"))
    }

    /// Writes data to standard output.
    pub fn write(&self, text: &str) -> Result<(), Failure> {
        self.out
            .write(text)
            .map_err(|error| Failure::file("writing to", std::path::Path::new("standard output"), &error))
    }

    /// Writes a message to standard error, unless `--quiet`.
    pub fn print_message(&self, message: &str) {
        if !self.quiet {
            let _ = self.error.write(&format!("{message}\n"));
        }
    }

    /// Prints a failure in its four parts to standard error.
    pub fn print_failure(&self, failure: &Failure) {
        let _ = self.error.write(&failure.render(self.error.style, self.error.width()));
    }

    /// Reports a failure at the end of a command; with `--json` also as a problem on standard output.
    pub fn fail(&self, failure: &Failure) {
        self.print_failure(failure);
        if self.format == Format::Json && self.json(&failure.problem).is_err() {
            let _ = self.error.write("(cannot write to standard output either)\n");
        }
    }
}

/// What to say of a list that has been cut; none if it is whole.
fn cut_text<T>(page: &Page<T>) -> Option<String> {
    page.next.as_ref()?;
    Some(format!(
        "these are the first {}; there are more: give a larger --limit",
        count(page.items.len() as u64)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_cut_says_so() {
        let page = |next: Option<&str>| Page { items: vec![1; 1_500], next: next.map(str::to_owned) };
        assert_eq!(cut_text(&page(None)), None);
        let text = cut_text(&page(Some("x"))).unwrap();
        assert!(text.contains("1,500") && text.contains("--limit"), "{text}");
    }
}
