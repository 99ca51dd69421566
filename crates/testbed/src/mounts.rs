//! File systems of a test's own, small or read-only, in a mount namespace that ends with the test.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::run::CommandOutput;

/// A process that holds the namespace; it ends when its input does, and the mounts go with the last process
/// inside.
pub struct Mounts {
    holder: Child,
    rootless: bool,
}

impl Mounts {
    /// Runs `script` (with `arguments` as `$1`…) in a new namespace, where it mounts what it wants. None if
    /// this machine allows no such thing.
    pub fn new(script: &str, arguments: &[&Path]) -> Option<Mounts> {
        let rootless = !rustix::process::geteuid().is_root();
        let script = format!("set -e\n{script}\necho ready\nexec cat");
        let flags: &[&str] = if rootless { &["-r", "-m"] } else { &["-m"] };
        let mut holder = Command::new("unshare")
            .args(flags)
            .args(["sh", "-c", &script, "sh"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut line = String::new();
        let read = BufReader::new(holder.stdout.take()?).read_line(&mut line);
        if read.is_err() || line != "ready\n" {
            let _ = holder.kill();
            let _ = holder.wait();
            return None;
        }
        Some(Mounts { holder, rootless })
    }

    /// Words to put before a command that shall run inside.
    pub fn launcher(&self) -> Vec<String> {
        let mut words = vec!["nsenter".to_owned()];
        let namespace = format!("/proc/{}/ns", self.holder.id());
        if self.rootless {
            words.extend([format!("--user={namespace}/user"), "--preserve-credentials".to_owned()]);
        }
        words.push(format!("--mount={namespace}/mnt"));
        words
    }

    /// A shell command inside.
    #[track_caller]
    pub fn shell(&self, script: &str, arguments: &[&Path]) {
        let launcher = self.launcher();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).args(["sh", "-ec", script, "sh"]).args(arguments);
        CommandOutput::from_command(&mut command, Duration::from_secs(120)).ok();
    }

    /// Where a path inside is seen from outside.
    pub fn outside(&self, path: &Path) -> PathBuf {
        let mut outside = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        outside.extend(path.components().skip(1));
        outside
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
