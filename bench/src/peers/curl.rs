//! curl from nginx: one stream for one file, 16 in parallel for many.

use super::{Run, Security, nginx};
use crate::transfers::launch::Words;

pub(crate) const CLIENT: nginx::Client = nginx::Client { clear: "curl", tls: "curl-tls", command: client };

fn client(run: &Run<'_>, security: Security) -> Result<Words, String> {
    let url = nginx::url(run, security);
    let words = Words::new("curl").args("--silent --show-error --fail");
    let words = match security {
        Security::Clear => words,
        Security::Tls => words.arg("--cacert").path(&run.keys.authority()),
    };
    if run.is_one_file() {
        let name = &run.names[0];
        return Ok(words.arg("-o").path(&run.target.join(name)).arg(format!("{url}{name}")));
    }
    let target = run.target.display();
    let pairs = run.names.iter().map(|name| format!("url = \"{url}{name}\"\noutput = \"{target}/{name}\"\n"));
    let list = run.file("curl.list", &pairs.collect::<String>())?;
    Ok(words.args("--parallel --parallel-max 16 --config").path(&list))
}
