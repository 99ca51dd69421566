//! rsync to its own daemon: whole files, in place, one stream. It verifies a digest of each file in flight.

use super::{Direction, Program, Run, Server};
use crate::transfers::launch::Words;

const PORT: u16 = 8730;

pub(crate) struct Rsync;

impl Program for Rsync {
    fn name(&self) -> &'static str {
        "rsync"
    }

    fn encrypted(&self) -> &'static str {
        "no"
    }

    fn verified(&self) -> &'static str {
        "file digest in flight (xxh128)"
    }

    fn direction(&self) -> Direction {
        Direction::Push
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        let settings = format!(
            "address = {}\nport = {PORT}\nuid = root\ngid = root\nuse chroot = false\nlog file = \
                /dev/stderr\n\
             [target]\n  path = {}\n  read only = false\n",
            run.far,
            run.target.display()
        );
        let path = run.file("rsyncd.conf", &settings)?;
        let words =
            Words::new("rsync").args("--daemon --no-detach").arg(format!("--config={}", path.display()));
        Ok(Server::new(words, PORT).with(settings))
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let source = format!("{}/", run.source.display());
        Ok(Words::new("rsync")
            .args("--recursive --whole-file --inplace")
            .arg(source)
            .arg(format!("rsync://{}:{PORT}/target/", run.far)))
    }
}
