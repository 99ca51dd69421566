//! One command of a site: run to its end or to its time, with the last that it said.

use std::process::Stdio;
use std::time::Duration;

use longhaul_model::{Fault, FaultCode};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Of what it says, from the end.
const SAID_BYTES_MAX: usize = 300;
/// For the rest of what it said, after it has ended: whoever it left behind may hold the pipe.
const REST: Duration = Duration::from_millis(200);

#[derive(Debug, PartialEq)]
pub(super) struct Ended {
    /// None: by a signal.
    pub(super) code: Option<i32>,
    /// The last words on its standard error.
    pub(super) said: String,
}

/// In a process group of its own, which ends with it when its time is over, or when nobody waits any more.
pub(super) async fn run(words: &[String], more: &[String], limit: Duration) -> Result<Ended, Fault> {
    let failed = |why: String| Fault::new(FaultCode::HookRefused, why);
    let (program, first) = words.split_first().ok_or_else(|| failed("there is no command".into()))?;
    let mut command = Command::new(program);
    command.args(first).args(more).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| failed(format!("{program} cannot be run: {error}")))?;
    let mut group = Group(child);
    let mut said = Vec::new();
    let mut errors = group.0.stderr.take();
    let waited = tokio::time::timeout(limit, async {
        tokio::select! {
            status = group.0.wait() => return status,
            () = listen(&mut errors, &mut said) => {}
        }
        group.0.wait().await
    });
    let status = waited.await.map_err(|_| failed(format!("{program} did not end within {limit:?}")))?;
    let status = status.map_err(|error| failed(format!("{program}: {error}")))?;
    let _ = tokio::time::timeout(REST, listen(&mut errors, &mut said)).await;
    Ok(Ended { code: status.code(), said: String::from_utf8_lossy(&said).into_owned() })
}

/// Until there is no more.
async fn listen(from: &mut Option<impl AsyncRead + Unpin>, said: &mut Vec<u8>) {
    let Some(from) = from else { return };
    let mut buffer = [0; 1_024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        said.extend_from_slice(&buffer[..read]);
        said.drain(..said.len().saturating_sub(SAID_BYTES_MAX));
    }
}

/// Ends what is still there when it is dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // Its id is its own until it is waited for.
        let id = self.0.id().and_then(|id| Pid::from_raw(id as i32));
        if let Some(id) = id {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, more: &[&str], limit: Duration) -> Result<Ended, Fault> {
        let words = ["/bin/sh", "-c", script, "hook"].map(str::to_owned);
        let more: Vec<String> = more.iter().map(|&word| word.to_owned()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(&words, &more, limit))
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn its_code_and_its_last_words_are_known() {
        let ended = shell("echo \"$1 $2\" >&2; exit 3", &["a b", "c"], LONG).unwrap();
        assert_eq!(ended, Ended { code: Some(3), said: "a b c\n".into() });
        let much = shell("yes no | head -c 1000000 >&2; echo last >&2", &[], LONG).unwrap();
        assert_eq!(much.code, Some(0));
        assert!(much.said.len() <= SAID_BYTES_MAX && much.said.ends_with("last\n"), "{much:?}");
        assert_eq!(shell("kill -9 $$", &[], LONG).unwrap().code, None);
    }

    #[test]
    fn one_that_does_not_end_is_ended_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = "sleep 600 & echo $! > \"$1\"; wait";
        let fault = shell(script, &[file.to_str().unwrap()], Duration::from_millis(300)).unwrap_err();
        assert!(fault.detail.contains("did not end within 300ms"), "{fault}");
        let pid = std::fs::read_to_string(&file).unwrap();
        let gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        let begun = std::time::Instant::now();
        while !gone() {
            assert!(begun.elapsed() < LONG, "a child lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_not_there_is_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fault = runtime.block_on(run(&["/nowhere/hook".to_owned()], &[], LONG)).unwrap_err();
        assert!(fault.detail.contains("/nowhere/hook cannot be run"), "{fault}");
    }
}
