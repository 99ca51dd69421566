//! rclone from nginx: eight streams for each large file, eight files at once; small files 16 at once, 64 where the way is
//! long, without a request for the size of each.

use super::{Program, Run, Security, Server, Way, nginx};
use crate::transfers::launch::Words;

pub(crate) struct Rclone(pub(crate) Security);

impl Program for Rclone {
    fn name(&self) -> &'static str {
        self.0.pick("rclone", "rclone-tls")
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
        let how = match (run.case.is_small_files(), run.case.is_far()) {
            (true, true) => "--http-no-head --transfers 64 --checkers 64",
            (true, false) => "--http-no-head --transfers 16 --checkers 16",
            (false, _) => "--transfers 8 --multi-thread-streams 8 --multi-thread-cutoff 64M",
        };
        let words = Words::new("rclone").args("copy --config /dev/null").args(how);
        let words = match self.0 {
            Security::Clear => words,
            Security::Tls => words.arg("--ca-cert").path(&run.keys.authority()),
        };
        let url = nginx::url(run, self.0);
        Ok(words.arg("--http-url").arg(url).arg(":http:").path(run.target))
    }
}
