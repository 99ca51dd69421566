//! `user@host:DIR`: starts `longhaul serve --once` there and reads its URL.
//!
//! The server ends with the pipe to it, so it ends when we do, however we end.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};

use longhaul_model::units::printable;
use longhaul_model::{Fault, FaultCode};
use zeroize::Zeroizing;

use crate::url::{RemotePath, ServerUrl, URL_BYTES_MAX};

/// Names a program to use instead of ssh, with the same arguments.
const SSH_VARIABLE: &str = "LONGHAUL_SSH";

/// A server started over ssh. It ends when this is dropped.
pub(crate) struct SshServer {
    child: Child,
    /// Standard input of ssh, open until we end.
    _input: Option<ChildStdin>,
}

impl SshServer {
    /// Starts a server. A target directory is served itself; for a source its parent is served, since its
    /// name matters.
    pub(crate) fn serve(
        login: &str,
        directory: &str,
        writable: bool,
    ) -> Result<(SshServer, ServerUrl, RemotePath), Fault> {
        let (root, path) =
            if writable { (directory, RemotePath::root()) } else { split_directory(directory)? };
        let program = std::env::var_os(SSH_VARIABLE).unwrap_or_else(|| "ssh".into());
        let shown = printable(&program.to_string_lossy());
        let mut child = Command::new(&program)
            .args(["--", login, &remote_command(root, writable)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| {
                Fault::new(FaultCode::Unreachable, format!("cannot start {shown}: {error}"))
                    .with_source(error)
            })?;
        let input = child.stdin.take();
        let output = child.stdout.take();
        let mut started = SshServer { child, _input: input };
        let mut line = Zeroizing::new(String::new());
        if let Some(output) = output {
            // The pipe is closed after this line, so that further output cannot block the server.
            let mut lines = BufReader::new(output.take(URL_BYTES_MAX as u64 + 2));
            if lines.read_line(&mut line).is_err() {
                line.clear();
            }
        }
        let url = line.split_whitespace().next().unwrap_or_default();
        if url.is_empty() {
            return Err(started.failed(login));
        }
        let (mut url, _) = ServerUrl::parse(url)?;
        add_host(&mut url, login);
        Ok((started, url, path))
    }

    fn failed(&mut self, login: &str) -> Fault {
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let login = printable(login);
        let detail = format!("`longhaul serve` on {login} printed no URL ({status}): is it installed there?");
        Fault::new(FaultCode::Unreachable, detail)
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        // End of input ends the server; ssh itself may hang on a dead network.
        self._input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command line for the remote shell. Everything that is not ours is quoted.
fn remote_command(directory: &str, writable: bool) -> String {
    let write = if writable { " --write" } else { "" };
    format!(
        "exec longhaul serve --quiet --once --exit-with-parent --listen :0{write} -- {}",
        quoted(directory)
    )
}

fn quoted(text: &str) -> String {
    // The shell starts in the home directory and would not expand a tilde in quotes.
    let text = match text.strip_prefix("~/") {
        Some("") => ".",
        Some(rest) => rest,
        None if text == "~" => ".",
        None => text,
    };
    // `-x` would be an option even in quotes.
    let text = if text.starts_with('-') { format!("./{text}") } else { text.to_owned() };
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Splits into the directory to serve and the path in it.
fn split_directory(place: &str) -> Result<(&str, RemotePath), Fault> {
    let bare = place.trim_end_matches('/');
    let last = bare.rsplit('/').next().unwrap_or_default();
    if place.ends_with('/') || matches!(last, "" | "." | ".." | "~") {
        return Ok((place, RemotePath::root()));
    }
    let root = match bare.len() - last.len() {
        0 => ".",
        1 => "/",
        end => &bare[..end - 1],
    };
    Ok((root, last.parse()?))
}

/// Prefers the host name that ssh used; the addresses that the server reports serve if ssh knows the host by
/// a private alias.
fn add_host(url: &mut ServerUrl, login: &str) {
    let Some((_, host)) = login.rsplit_once('@') else { return };
    let Some(port) = url.addresses.first().and_then(|address| address.rsplit_once(':')).map(|(_, port)| port)
    else {
        return;
    };
    let address = format!("{host}:{port}");
    if !url.addresses.contains(&address) {
        url.addresses.insert(0, address);
        url.addresses.truncate(crate::url::ADDRESSES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_path_is_a_command() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("x'; rm -rf /; '"), "'x'\\''; rm -rf /; '\\'''");
        assert_eq!(quoted("-x"), "'./-x'");
        assert_eq!(quoted("~/run7"), "'run7'");
        assert_eq!(quoted("~"), "'.'");
        assert!(remote_command("d", true).ends_with("--write -- 'd'"));
        assert!(!remote_command("d", false).contains("--write"));
    }

    #[test]
    fn a_source_is_served_with_its_name() {
        let split = |place: &'static str| {
            let (root, path) = super::split_directory(place).unwrap();
            (root, path.path)
        };
        assert_eq!(split("run7"), (".", "run7".into()));
        assert_eq!(split("/data/run7"), ("/data", "run7".into()));
        assert_eq!(split("/data"), ("/", "data".into()));
        assert_eq!(split("data/run7/"), ("data/run7/", String::new()));
        assert_eq!(split("."), (".", String::new()));
        assert_eq!(split("../x"), ("..", "x".into()));
    }
}
