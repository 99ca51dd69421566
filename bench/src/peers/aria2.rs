//! aria2 from nginx: eight connections for each file, eight files at once; small files sixteen at once.

use super::{Program, Run, Security, Server, Way, nginx};
use crate::transfers::launch::Words;

pub(crate) struct Aria2(pub(crate) Security);

impl Program for Aria2 {
    fn name(&self) -> &'static str {
        self.0.pick("aria2c", "aria2c-tls")
    }

    fn encrypted(&self) -> &'static str {
        self.0.pick("no", nginx::ENCRYPTED)
    }

    fn verified(&self) -> &'static str {
        "no"
    }

    fn way(&self) -> Way {
        Way::Pull
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        nginx::server(run, self.0)
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let url = nginx::url(run, self.0);
        let links = run.names.iter().map(|name| format!("{url}{name}\n  out={name}\n"));
        let list = run.file("aria2.list", &links.collect::<String>())?;
        let at_once = if run.case.is_small_files() { "-j16" } else { "-j8" };
        let words = Words::new("aria2c")
            .args("--no-conf --quiet --async-dns=false --file-allocation=none -x8 -s8 -k1M")
            .args(at_once);
        let words = match self.0 {
            Security::Clear => words,
            Security::Tls => words.arg(format!("--ca-certificate={}", run.keys.authority().display())),
        };
        Ok(words.arg("-d").path(run.target).arg("-i").path(&list))
    }
}
