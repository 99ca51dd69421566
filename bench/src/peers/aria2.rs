//! aria2 from nginx: eight connections for each file, eight files at once; small files sixteen at once.

use super::{Run, Security, nginx};
use crate::transfers::launch::Words;

pub(crate) const CLIENT: nginx::Client =
    nginx::Client { clear: "aria2c", tls: "aria2c-tls", command: client };

fn client(run: &Run<'_>, security: Security) -> Result<Words, String> {
    let url = nginx::url(run, security);
    let links = run.names.iter().map(|name| format!("{url}{name}\n  out={name}\n"));
    let list = run.file("aria2.list", &links.collect::<String>())?;
    let at_once = if run.case.is_small_files() { "-j16" } else { "-j8" };
    let words = Words::new("aria2c")
        .args("--no-conf --quiet --async-dns=false --file-allocation=none -x8 -s8 -k1M")
        .args(at_once);
    let words = match security {
        Security::Clear => words,
        Security::Tls => words.arg(format!("--ca-certificate={}", run.keys.authority().display())),
    };
    Ok(words.arg("-d").path(run.target).arg("-i").path(&list))
}
