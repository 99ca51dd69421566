//! globus-url-copy to globus-gridftp-server: four streams in extended block mode, `-fast` (channels kept);
//! many files with pipelining and four at once, eight where the way is long. Encrypted: GSI with private data
//! channels.

use super::{Direction, Program, Run, Security, Server};
use crate::transfers::launch::{FAR_HOST, Words};

const PORT: u16 = 2811;

pub(crate) struct GridFtp(pub(crate) Security);

impl Program for GridFtp {
    fn name(&self) -> &'static str {
        self.0.pick("gridftp", "gsiftp")
    }

    fn encrypted(&self) -> &'static str {
        self.0.pick("no", "GSI, private data (TLS)")
    }

    fn verified(&self) -> &'static str {
        "no"
    }

    fn direction(&self) -> Direction {
        Direction::Push
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        let words = Words::new("globus-gridftp-server").args("-s -p").arg(PORT.to_string());
        let words = words.args("-control-interface").arg(run.far).arg("-data-interface").arg(run.far);
        let words = match self.0 {
            Security::Clear => {
                words.args("-allow-anonymous -anonymous-user root -anonymous-group root -allow-root")
            }
            Security::Tls => words.args("-allow-root"),
        };
        Ok(Server::new(self.with_keys(words, run, "host"), PORT))
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let words = Words::new("globus-url-copy");
        let words = match self.0 {
            Security::Clear => words.arg("-nodcau"),
            Security::Tls => words.arg("-dcpriv"),
        };
        let scheme = self.0.pick("ftp", "gsiftp");
        let words = if run.is_one_file() {
            let (from, to) = (run.source_file(), run.target.join(&run.names[0]));
            let words = words.args("-fast -p 4").arg(format!("file://{}", from.display()));
            words.arg(format!("{scheme}://{FAR_HOST}:{PORT}{}", to.display()))
        } else {
            let at_once = if run.case.is_far() { "8" } else { "4" };
            let words = words.args("-r -fast -pp -p 4 -cc").arg(at_once);
            let words = words.arg(format!("file://{}/", run.source.display()));
            words.arg(format!("{scheme}://{FAR_HOST}:{PORT}{}/", run.target.display()))
        };
        Ok(self.with_keys(words, run, "user"))
    }
}

impl GridFtp {
    fn with_keys(&self, words: Words, run: &Run<'_>, who: &str) -> Words {
        let shown = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
        match self.0 {
            Security::Clear => words,
            Security::Tls => words
                .env("X509_CERT_DIR", shown(run.keys.trusted()))
                .env("X509_USER_CERT", shown(run.keys.certificate(who)))
                .env("X509_USER_KEY", shown(run.keys.key(who)))
                .env("GRIDMAP", shown(run.keys.grid_map())),
        }
    }
}
