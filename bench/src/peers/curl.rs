//! curl from nginx: one stream for one file, 16 in parallel for many.

use super::{Program, Run, Security, Server, Way, nginx};
use crate::transfers::launch::Words;

pub(crate) struct Curl(pub(crate) Security);

impl Program for Curl {
    fn name(&self) -> &'static str {
        self.0.pick("curl", "curl-tls")
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
        let words = Words::new("curl").args("--silent --show-error --fail");
        let words = match self.0 {
            Security::Clear => words,
            Security::Tls => words.arg("--cacert").path(&run.keys.authority()),
        };
        if run.is_one_file() {
            let name = &run.names[0];
            return Ok(words.arg("-o").path(&run.target.join(name)).arg(format!("{url}{name}")));
        }
        let target = run.target.display();
        let pairs =
            run.names.iter().map(|name| format!("url = \"{url}{name}\"\noutput = \"{target}/{name}\"\n"));
        let list = run.file("curl.list", &pairs.collect::<String>())?;
        Ok(words.args("--parallel --parallel-max 16 --config").path(&list))
    }
}
