//! xrdcp to xrootd: four streams for each file; many files four at once, sixteen where the way is long. By
//! default clear text carries a checksum per page of 4 kB, TLS carries none; `XRD_CPUSEPGWRTRD=0` switches
//! them off.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::{Direction, Program, Run, Server};
use crate::transfers::launch::{FAR_HOST, Words};

const PORT: u16 = 1094;
/// The server refuses to run as root; the package makes this account.
const ACCOUNT: &str = "xrootd";

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    PageChecksums,
    NoChecksums,
    Tls,
}

pub(crate) struct Xrdcp(pub(crate) Mode);

impl Program for Xrdcp {
    fn name(&self) -> &'static str {
        match self.0 {
            Mode::PageChecksums => "xrdcp",
            Mode::NoChecksums => "xrdcp-nocheck",
            Mode::Tls => "xrdcp-tls",
        }
    }

    fn encrypted(&self) -> &'static str {
        if self.0 == Mode::Tls { "TLS" } else { "no" }
    }

    fn verified(&self) -> &'static str {
        if self.0 == Mode::PageChecksums { "crc32c per 4 kB in flight" } else { "no" }
    }

    fn direction(&self) -> Direction {
        Direction::Push
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        let state = run.folder.join("xrootd");
        fs::create_dir_all(&state).map_err(|error| format!("{}: {error}", state.display()))?;
        let (user, group) = account()?;
        let own = |path: &Path| {
            chown(path, Some(user), Some(group)).map_err(|error| format!("{}: {error}", path.display()))
        };
        own(&state)?;
        own(run.target)?;
        let mut settings = format!(
            "all.export {target}\nall.adminpath {state}\nall.pidpath {state}\nxrd.port {PORT}\n",
            target = run.target.display(),
            state = state.display()
        );
        if self.0 == Mode::Tls {
            let (certificate, key) = (state.join("host.pem"), state.join("host.key"));
            for (from, to) in [(run.keys.certificate("host"), &certificate), (run.keys.key("host"), &key)] {
                fs::copy(&from, to).map_err(|error| format!("{}: {error}", to.display()))?;
                fs::set_permissions(to, fs::Permissions::from_mode(0o400))
                    .map_err(|error| format!("{}: {error}", to.display()))?;
                own(to)?;
            }
            settings += &format!(
                "xrd.tls {} {}\nxrd.tlsca certdir {}\nxrootd.tls capable all\n",
                certificate.display(),
                key.display(),
                run.keys.trusted().display()
            );
        }
        let path = run.file("xrootd.cfg", &settings)?;
        let words = Words::new("setpriv").arg(format!("--reuid={ACCOUNT}")).arg(format!("--regid={ACCOUNT}"));
        let words = words.args("--clear-groups xrootd -n bench -c").path(&path);
        Ok(Server::new(words.env("HOME", state.to_string_lossy()), PORT).with(settings))
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        let scheme = if self.0 == Mode::Tls { "roots" } else { "root" };
        let to = format!("{scheme}://{FAR_HOST}:{PORT}/{}", run.target.display());
        let words = Words::new("xrdcp").args("--silent --nopbar --force");
        let words = if run.is_one_file() {
            words.args("--streams 4").path(&run.source_file()).arg(format!("{to}/{}", run.names[0]))
        } else {
            let at_once = if run.case.is_far() { "16" } else { "4" };
            let list: String =
                run.names.iter().map(|name| format!("{}\n", run.source.join(name).display())).collect();
            let list = run.file("xrdcp.list", &list)?;
            words.arg("--parallel").arg(at_once).arg("--infiles").path(&list).arg(format!("{to}/"))
        };
        Ok(match self.0 {
            Mode::PageChecksums => words,
            Mode::NoChecksums => words.env("XRD_CPUSEPGWRTRD", "0"),
            Mode::Tls => words.env("X509_CERT_DIR", run.keys.trusted().to_string_lossy()),
        })
    }
}

/// Numbers of the server's account.
fn account() -> Result<(u32, u32), String> {
    let number = |flag: &str| {
        let output =
            Command::new("id").args([flag, ACCOUNT]).output().map_err(|error| format!("id: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        text.parse().map_err(|_| format!("no account {ACCOUNT}: is xrootd-server installed?"))
    };
    Ok((number("-u")?, number("-g")?))
}
