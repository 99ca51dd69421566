//! Ours: `longhaul serve` far, `longhaul copy` near, by default settings. What it moves has its digest
//! compared end to end.

use std::path::{Path, PathBuf};

use super::{Direction, Program, Run, Server};
use crate::transfers::launch::Words;

const PORT: u16 = 7000;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Data {
    Tls,
    Authenticated,
}

pub(crate) struct Longhaul(pub(crate) Data);

impl Data {
    pub(crate) fn words(self, command: &str) -> Words {
        let words = Words::new(longhaul_testbed::binary().to_string_lossy()).arg(command);
        match self {
            Data::Tls => words,
            Data::Authenticated => words.args("--data-security authenticated"),
        }
    }

    /// Exports `source`, and writes its URL to the file once it listens.
    pub(crate) fn server(self, source: &Path, url: PathBuf, far: &str) -> Server {
        let words = self.words("serve").path(source).arg("--url-file").path(&url);
        let words = words.arg("--listen").arg(format!("{far}:{PORT}"));
        Server { file: Some(url), ..Server::new(words, PORT) }
    }
}

impl Program for Longhaul {
    fn name(&self) -> &'static str {
        if self.0 == Data::Tls { "longhaul" } else { "longhaul authenticated" }
    }

    fn encrypted(&self) -> &'static str {
        if self.0 == Data::Tls { "TLS 1.3" } else { "no" }
    }

    fn verified(&self) -> &'static str {
        "file digest end to end"
    }

    fn direction(&self) -> Direction {
        Direction::Pull
    }

    fn is_ours(&self) -> bool {
        true
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        Ok(self.0.server(run.source, run.folder.join("url"), run.far))
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let from = format!("@{}/", run.folder.join("url").display());
        Ok(self.0.words("copy").arg("--recursive").arg(from).path(run.target))
    }
}
