//! The programs that are compared, one file each: how its server is started, its command for each case with
//! the best settings that its documentation gives, whether it encrypts and what it verifies.
//!
//! Not here: what is measured and how (`transfers/`). A new peer is a file here and a line in [`all`].

mod aria2;
mod curl;
mod gridftp;
mod iperf;
pub(crate) mod longhaul;
mod nginx;
mod rclone;
mod rsync;
mod xrootd;

use std::path::{Path, PathBuf};

use crate::transfers::case::Case;
use crate::transfers::keys::Keys;
use crate::transfers::launch::Words;

/// Clear text or encrypted, for peers that can be both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Security {
    Clear,
    Tls,
}

impl Security {
    fn pick<T>(self, clear: T, tls: T) -> T {
        match self {
            Security::Clear => clear,
            Security::Tls => tls,
        }
    }
}

/// Direction in which a program moves files. The client is always near, the server far; files are the same on
/// both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// The client sends.
    Push,
    /// The client fetches.
    Pull,
    /// The client sends bytes that are no files: a yardstick.
    Memory,
}

/// One run: what it moves, and where everything lies.
pub(crate) struct Run<'a> {
    pub(crate) case: &'a Case,
    /// The folder whose files are to be moved.
    pub(crate) source: &'a Path,
    /// An empty folder, where they arrive under their names.
    pub(crate) target: &'a Path,
    /// For settings and lists of this run.
    pub(crate) folder: &'a Path,
    /// Address of the server's side.
    pub(crate) far: &'a str,
    pub(crate) keys: &'a Keys,
    pub(crate) names: &'a [String],
}

impl Run<'_> {
    /// A file of settings or names for this run.
    fn file(&self, name: &str, text: &str) -> Result<PathBuf, String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }

    fn source_file(&self) -> PathBuf {
        self.source.join(&self.names[0])
    }

    fn is_one_file(&self) -> bool {
        self.names.len() == 1
    }
}

pub(crate) struct Server {
    pub(crate) words: Words,
    /// It is ready when it listens there,
    pub(crate) port: u16,
    /// and when this file is there, if it writes one for its clients.
    pub(crate) file: Option<PathBuf>,
    /// What its file of settings says.
    pub(crate) settings: String,
}

impl Server {
    fn new(words: Words, port: u16) -> Server {
        Server { words, port, file: None, settings: String::new() }
    }

    fn with(self, settings: String) -> Server {
        Server { settings, ..self }
    }

    pub(crate) fn shown(&self) -> String {
        let lines = self.settings.lines().map(|line| format!("\n    {}", line.trim_end()));
        self.words.shown() + &lines.collect::<String>()
    }
}

pub(crate) trait Program {
    fn name(&self) -> &'static str;
    /// By what, or "no".
    fn encrypted(&self) -> &'static str;
    /// What is verified by what, or "no".
    fn verified(&self) -> &'static str;
    fn direction(&self) -> Direction;
    /// Ours are measured against the others.
    fn is_ours(&self) -> bool {
        false
    }
    /// Whether the case means anything for it.
    fn takes(&self, _: &Case) -> bool {
        true
    }
    fn server(&self, run: &Run<'_>) -> Result<Server, String>;
    fn client(&self, run: &Run<'_>) -> Result<Words, String>;
    /// Bytes that arrived, from what the client printed; those of the case if it does not say.
    fn received(&self, _output: &str) -> Option<u64> {
        None
    }
}

pub(crate) fn all() -> Vec<Box<dyn Program>> {
    use Security::{Clear, Tls};
    use nginx::FromNginx;
    vec![
        Box::new(longhaul::Longhaul(longhaul::Data::Tls)),
        Box::new(longhaul::Longhaul(longhaul::Data::Authenticated)),
        Box::new(iperf::Iperf(1)),
        Box::new(iperf::Iperf(4)),
        Box::new(FromNginx(curl::CLIENT, Clear)),
        Box::new(FromNginx(curl::CLIENT, Tls)),
        Box::new(FromNginx(aria2::CLIENT, Clear)),
        Box::new(FromNginx(aria2::CLIENT, Tls)),
        Box::new(FromNginx(rclone::CLIENT, Clear)),
        Box::new(FromNginx(rclone::CLIENT, Tls)),
        Box::new(rsync::Rsync),
        Box::new(gridftp::GridFtp(Clear)),
        Box::new(gridftp::GridFtp(Tls)),
        Box::new(xrootd::Xrdcp(xrootd::Mode::PageChecksums)),
        Box::new(xrootd::Xrdcp(xrootd::Mode::NoChecksums)),
        Box::new(xrootd::Xrdcp(xrootd::Mode::Tls)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let all = all();
        for (place, program) in all.iter().enumerate() {
            assert!(all[..place].iter().all(|other| other.name() != program.name()), "{}", program.name());
        }
        assert_eq!(all.iter().filter(|program| program.is_ours()).count(), 2);
    }
}
