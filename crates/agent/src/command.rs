//! Runs one external command of the site, in a process group of its own, with a time limit.
//!
//! Not here: which commands there are and what their exit codes mean (`hooks`, `tape`, `command_mover`).

use std::process::Stdio;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode, units};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Bytes kept of standard error, from its end.
const STDERR_BYTES_MAX: usize = 300;
/// How long to read on after the command has ended: a child that it left behind may hold the pipe open.
const PIPE_DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// Program and arguments of one configured command.
const WORDS_MAX: usize = 100;

/// Checks a configured command; `name` is its setting. An empty one runs nothing.
pub(crate) fn check_command(name: &str, words: &[String]) -> Result<(), String> {
    if words.first().is_some_and(|program| !program.starts_with('/')) {
        return Err(format!("{name} begins with the whole path of a program"));
    }
    if words.len() > WORDS_MAX || words.iter().any(|word| word.contains('\0')) {
        return Err(format!("{name} is no command: {WORDS_MAX} words at most, without NUL"));
    }
    Ok(())
}

/// A command to run, and how.
#[derive(Clone, Copy, Default)]
pub(crate) struct CommandSpec<'a> {
    /// The program's absolute path and its first arguments, as configured.
    pub(crate) program: &'a [String],
    pub(crate) arguments: &'a [String],
    /// Environment variables added to the agent's.
    pub(crate) environment: &'a [(&'a str, String)],
    /// Bytes kept of standard output, from its beginning; 0: standard output is discarded.
    pub(crate) stdout_bytes_max: usize,
    pub(crate) timeout: Duration,
    /// Code of the fault if the command cannot be run to its end; none: that of a hook.
    pub(crate) failure_code: Option<FaultCode>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct CommandExit {
    /// Exit code; none if a signal ended it.
    pub(crate) code: Option<i32>,
    /// The end of its standard error.
    pub(crate) stderr_tail: String,
    /// The beginning of its standard output, if requested.
    pub(crate) stdout: String,
}

impl CommandExit {
    /// How it ended, with its last output, for people.
    pub(crate) fn describe(&self) -> String {
        let how = match self.code {
            Some(code) => format!("exit code {code}"),
            None => "it was ended by a signal".to_owned(),
        };
        let said = units::printable(self.stderr_tail.trim());
        if said.is_empty() { format!("({how})") } else { format!("({how}): {said}") }
    }
}

/// Site commands that fetch from one source over its circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CircuitCommands {
    /// Running now.
    pub(crate) running: usize,
    /// Bytes of files that arrived, since the agent's start.
    pub(crate) bytes: u64,
}

/// Runs a command to its end. Its process group is killed at the time limit, and when the future is dropped.
pub(crate) async fn run(order: CommandSpec<'_>) -> Result<CommandExit, Fault> {
    let failed = |why: String| Fault::new(order.failure_code.unwrap_or(FaultCode::HookRefused), why);
    let (program, first) = order.program.split_first().ok_or_else(|| failed("there is no command".into()))?;
    let limit = order.timeout;
    let mut command = Command::new(program);
    command
        .args(first)
        .args(order.arguments)
        .envs(order.environment.iter().map(|(name, value)| (name, value)))
        .process_group(0);
    let answers = order.stdout_bytes_max > 0;
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(if answers { Stdio::piped() } else { Stdio::null() });
    let child = command
        .spawn()
        .map_err(|error| failed(format!("{program} cannot be run: {error}")).with_source(error))?;
    let mut group = ProcessGroup(child);
    let mut said = CapturedStream { bytes: Vec::new(), max: STDERR_BYTES_MAX, keeps_tail: true };
    let mut answer = CapturedStream { bytes: Vec::new(), max: order.stdout_bytes_max, keeps_tail: false };
    let (mut errors, mut output) = (group.0.stderr.take(), group.0.stdout.take());
    let waited = tokio::time::timeout(limit, async {
        let listening =
            async { tokio::join!(said.read_to_end(&mut errors), answer.read_to_end(&mut output)) };
        tokio::select! {
            status = group.0.wait() => return status,
            _ = listening => {}
        }
        group.0.wait().await
    });
    let status = waited.await.map_err(|_| failed(format!("{program} did not end within {limit:?}")))?;
    let status = status.map_err(|error| failed(format!("{program}: {error}")).with_source(error))?;
    let rest = async { tokio::join!(said.read_to_end(&mut errors), answer.read_to_end(&mut output)) };
    let _ = tokio::time::timeout(PIPE_DRAIN_TIMEOUT, rest).await;
    Ok(CommandExit { code: status.code(), stderr_tail: said.text(), stdout: answer.text() })
}

/// The kept part of an output stream.
struct CapturedStream {
    bytes: Vec<u8>,
    max: usize,
    /// Keeps the end of the stream instead of its beginning.
    keeps_tail: bool,
}

impl CapturedStream {
    /// Reads to the end of the stream.
    async fn read_to_end(&mut self, from: &mut Option<impl AsyncRead + Unpin>) {
        let Some(from) = from else { return };
        let mut buffer = [0; 1_024];
        while let Ok(read @ 1..) = from.read(&mut buffer).await {
            self.bytes.extend_from_slice(&buffer[..read]);
            match self.keeps_tail {
                true => drop(self.bytes.drain(..self.bytes.len().saturating_sub(self.max))),
                false => self.bytes.truncate(self.max),
            }
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Kills the whole process group when dropped.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The process id cannot be reused before the child is waited for.
        let id = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(id) = id {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, more: &[&str], limit: Duration) -> Result<CommandExit, Fault> {
        let words = ["/bin/sh", "-c", script, "hook"].map(str::to_owned);
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(CommandSpec {
            program: &words,
            arguments: &more,
            timeout: limit,
            ..CommandSpec::default()
        }))
    }

    const AMPLE_TIME: Duration = Duration::from_secs(60);

    #[test]
    fn exit_code_and_end_of_stderr_are_captured() {
        let ended = shell("echo \"$1 $2\" >&2; exit 3", &["a b", "c"], AMPLE_TIME).unwrap();
        assert_eq!(
            ended,
            CommandExit { code: Some(3), stderr_tail: "a b c\n".into(), stdout: String::new() }
        );
        assert_eq!(ended.describe(), "(exit code 3): a b c");
        let much = shell("yes no | head -c 1000000 >&2; echo last >&2", &[], AMPLE_TIME).unwrap();
        assert_eq!(much.code, Some(0));
        assert!(
            much.stderr_tail.len() <= STDERR_BYTES_MAX && much.stderr_tail.ends_with("last\n"),
            "{much:?}"
        );
        assert_eq!(shell("kill -9 $$", &[], AMPLE_TIME).unwrap().code, None);
    }

    #[test]
    fn stdout_is_bounded_and_the_environment_is_passed() {
        let words = ["/bin/sh", "-c", "echo \"$TOLD\"; yes no | head -c 1000000"].map(str::to_owned);
        let order = CommandSpec {
            program: &words,
            environment: &[("TOLD", "a b".into())],
            stdout_bytes_max: 10,
            timeout: AMPLE_TIME,
            ..CommandSpec::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let ended = runtime.block_on(run(order)).unwrap();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "a b\nno\nno\n"));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = "sleep 600 & echo $! > \"$1\"; wait";
        // On a busy machine the short time may be over before there is a child.
        let pid = [300, 3_000, 30_000].map(Duration::from_millis).into_iter().find_map(|limit| {
            let fault = shell(script, &[file.to_str().unwrap()], limit).unwrap_err();
            assert!(fault.detail.contains(&format!("did not end within {limit:?}")), "{fault}");
            std::fs::read_to_string(&file).ok().filter(|pid| pid.ends_with('\n'))
        });
        let pid = pid.expect("it began");
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let begun = std::time::Instant::now();
        while !gone() {
            assert!(begun.elapsed() < AMPLE_TIME, "a child lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_missing_program_is_reported() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fault = runtime
            .block_on(run(CommandSpec {
                program: &["/nowhere/hook".to_owned()],
                timeout: AMPLE_TIME,
                ..CommandSpec::default()
            }))
            .unwrap_err();
        assert!(fault.detail.contains("/nowhere/hook cannot be run"), "{fault}");
    }
}
