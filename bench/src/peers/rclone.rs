//! rclone from nginx: eight streams for each large file, eight files at once; small files 16 at once, 64
//! where the way is long, without a request for the size of each.

use super::{Run, Security, nginx};
use crate::transfers::launch::Words;

pub(crate) const CLIENT: nginx::Client =
    nginx::Client { clear: "rclone", tls: "rclone-tls", command: client };

fn client(run: &Run<'_>, security: Security) -> Result<Words, String> {
    let how = match (run.case.is_small_files(), run.case.is_far()) {
        (true, true) => "--http-no-head --transfers 64 --checkers 64",
        (true, false) => "--http-no-head --transfers 16 --checkers 16",
        (false, _) => "--transfers 8 --multi-thread-streams 8 --multi-thread-cutoff 64M",
    };
    let words = Words::new("rclone").args("copy --config /dev/null").args(how);
    let words = match security {
        Security::Clear => words,
        Security::Tls => words.arg("--ca-cert").path(&run.keys.authority()),
    };
    let url = nginx::url(run, security);
    Ok(words.arg("--http-url").arg(url).arg(":http:").path(run.target))
}
