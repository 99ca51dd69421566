//! The mapping call-out: an administrator's command that maps a subject to its community, like the call-outs
//! of grid services (LCMAPS, Argus).
//!
//! It fails closed. A command that cannot be run, exceeds its time limit, exits with an error, or prints no
//! valid community maps nobody, and an expired answer is not used if no newer one can be had. Answers and
//! empty answers are cached for a while, failures for a shorter one, so that a user's thousand requests are
//! one call.
//!
//! The contract: the program gets its arguments and the subject as the last one, and nothing on standard
//! input. It prints the community on one line and exits with 0, or prints nothing and exits with 0 where the
//! subject has none. Anything else is a failure. Not here: when the call-out is used beside map files and
//! attributes (`identity`).
//!
//! Start with [`MappingCallout::resolve`]; it blocks.

use std::collections::HashMap;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use longhaul_model::units::printable;
use longhaul_model::{CommunityName, Fault, FaultCode, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process_group};

/// Words of the command, including its program.
const COMMAND_WORDS_MAX: usize = 100;
/// Bytes of an answer, which is one name.
const ANSWER_BYTES_MAX: usize = 1_024;
/// Bytes of a subject, which becomes an argument of the command.
const SUBJECT_BYTES_MAX: usize = 4_096;
/// Cached answers; beyond it the one that expires first is evicted.
const CACHED_ANSWERS_MAX: usize = 10_000;
/// Commands that run at a time; further requests are refused as busy.
const COMMANDS_MAX: usize = 8;
/// Requests that wait for a command of another request with the same subject.
const WAITERS_MAX: usize = 16;
/// How long a failure is cached: the command is not run again for the same subject before.
const FAILURE_TTL: Duration = Duration::from_secs(5);
/// Wait between checks whether a command that closed its output has exited.
const EXIT_POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingCalloutSettings {
    /// The program, by its absolute path, and its first arguments.
    pub command: Vec<String>,
    /// How long the command may run.
    pub time_limit: Duration,
    /// How long an answer is cached.
    pub cache_ttl: Duration,
}

impl MappingCalloutSettings {
    pub fn check(&self) -> Result<(), String> {
        match self.command.first() {
            None => return Err("there is no command".into()),
            Some(program) if !program.starts_with('/') => {
                return Err("it begins with the whole path of a program".into());
            }
            Some(_) => {}
        }
        if self.command.len() > COMMAND_WORDS_MAX || self.command.iter().any(|word| word.contains('\0')) {
            return Err(format!("it is no command: {COMMAND_WORDS_MAX} words at most, without NUL"));
        }
        if self.time_limit.is_zero() {
            return Err("it needs some time".into());
        }
        Ok(())
    }
}

/// The community of one subject, none if it has none, or why it is unknown.
type Mapping = Result<Option<CommunityName>, Fault>;

#[derive(Default)]
struct State {
    cache: HashMap<String, (Mapping, Timestamp)>,
    running: Vec<String>,
    waiters: usize,
}

pub struct MappingCallout {
    settings: MappingCalloutSettings,
    state: Mutex<State>,
    /// Signalled when a command has finished.
    answered: Condvar,
}

impl MappingCallout {
    pub fn new(settings: MappingCalloutSettings) -> MappingCallout {
        MappingCallout { settings, state: Mutex::default(), answered: Condvar::new() }
    }

    /// The community of a subject, none if the command knows none. Concurrent requests for one subject share
    /// one command.
    pub fn resolve(&self, subject: &str, now: Timestamp) -> Mapping {
        if subject.is_empty() || subject.len() > SUBJECT_BYTES_MAX || subject.contains('\0') {
            return Err(failed("this is no subject that could be asked about".into()));
        }
        let mut state = self.state();
        loop {
            if let Some((known, until)) = state.cache.get(subject)
                && now < *until
            {
                return known.clone();
            }
            if !state.running.iter().any(|asked| asked == subject) {
                break;
            }
            if state.waiters >= WAITERS_MAX {
                return Err(busy());
            }
            state.waiters += 1;
            self.answered.wait(&mut state);
            state.waiters -= 1;
        }
        if state.running.len() >= COMMANDS_MAX {
            return Err(busy());
        }
        state.running.push(subject.to_owned());
        drop(state);
        let known = self.run(subject);
        let kept = if known.is_ok() { self.settings.cache_ttl } else { FAILURE_TTL };
        let mut state = self.state();
        state.running.retain(|asked| asked != subject);
        state.cache_answer(subject, known.clone(), now, now + kept);
        self.answered.notify_all();
        known
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn run(&self, subject: &str) -> Mapping {
        let limit = self.settings.time_limit;
        let (program, first) =
            self.settings.command.split_first().ok_or_else(|| failed("there is no command".into()))?;
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(first).arg(subject).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.process_group(0).spawn();
        let mut group = ProcessGroup(
            child.map_err(|error| failed(format!("{program} cannot be run: {error}")).with_source(error))?,
        );
        let late = || failed(format!("{program} did not end within {limit:?}"));
        let said = match group.0.stdout.take() {
            Some(output) => read_output(output, limit).ok_or_else(late)?,
            None => Vec::new(),
        };
        let no_answer = |why: String| failed(format!("{program} said what is no answer: {why}"));
        if said.len() > ANSWER_BYTES_MAX {
            // It may print more and never exit.
            return Err(no_answer(too_long()));
        }
        let status = loop {
            match group.0.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() >= limit => return Err(late()),
                Ok(None) => std::thread::sleep(EXIT_POLL_INTERVAL),
                Err(error) => return Err(failed(format!("{program}: {error}"))),
            }
        };
        if !status.success() {
            return Err(failed(format!("{program} failed ({status})")));
        }
        parse_mapping_answer(&said).map_err(no_answer)
    }
}

impl State {
    fn cache_answer(&mut self, subject: &str, known: Mapping, now: Timestamp, until: Timestamp) {
        if self.cache.len() >= CACHED_ANSWERS_MAX && !self.cache.contains_key(subject) {
            self.cache.retain(|_, (_, until)| now < *until);
        }
        if self.cache.len() >= CACHED_ANSWERS_MAX && !self.cache.contains_key(subject) {
            let first = self.cache.iter().min_by_key(|(_, (_, until))| *until).map(|(name, _)| name.clone());
            first.and_then(|name| self.cache.remove(&name));
        }
        self.cache.insert(subject.to_owned(), (known, until));
    }
}

fn busy() -> Fault {
    Fault::new(FaultCode::Busy, format!("{COMMANDS_MAX} users are being asked about already"))
}

fn failed(why: String) -> Fault {
    Fault::new(FaultCode::Busy, format!("whose user this is cannot be found out: {why}"))
}

/// Reads the command's output up to one byte beyond the bound; None if that exceeds the time limit.
fn read_output(output: impl Read + Send + 'static, limit: Duration) -> Option<Vec<u8>> {
    let (sender, receiver) = sync_channel(1);
    std::thread::spawn(move || {
        let mut said = Vec::new();
        let read = output.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut said);
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| said).unwrap_or_default());
    });
    receiver.recv_timeout(limit).ok()
}

fn too_long() -> String {
    format!("more than {ANSWER_BYTES_MAX} bytes")
}

/// Parses a command's whole output.
pub fn parse_mapping_answer(said: &[u8]) -> Result<Option<CommunityName>, String> {
    if said.len() > ANSWER_BYTES_MAX {
        return Err(too_long());
    }
    let text = std::str::from_utf8(said).map_err(|_| "it is no UTF-8".to_owned())?;
    let line = text.strip_suffix('\n').unwrap_or(text);
    if line.is_empty() {
        return Ok(None);
    }
    let shown = || printable(&line.chars().take(80).collect::<String>());
    line.parse().map(Some).map_err(|error| format!("{:?}: {error}", shown()))
}

/// A command's process group; killed when dropped, if the command still runs.
struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The process id cannot be reused before it is waited for.
        if let Ok(None) = self.0.try_wait() {
            if let Some(id) = Pid::from_raw(self.0.id() as i32) {
                let _ = kill_process_group(id, Signal::KILL);
            }
            let _ = self.0.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LONG_TIMEOUT: Duration = Duration::from_secs(60);
    const ALICE: &str = "/DC=org/CN=alice o'neil";
    const NOW: Timestamp = Timestamp(1_000_000);

    /// A real command, which counts its calls in a file.
    struct Site {
        folder: tempfile::TempDir,
        out: MappingCallout,
    }

    impl Site {
        fn new(script: &str, limit: Duration) -> Site {
            let folder = tempfile::tempdir().unwrap();
            let counted = format!("echo x >> {}/calls; {script}", folder.path().display());
            let command = ["/bin/sh", "-c", &counted, "mapping"].map(str::to_owned).to_vec();
            let kept = Duration::from_secs(300);
            Site {
                folder,
                out: MappingCallout::new(MappingCalloutSettings {
                    command,
                    time_limit: limit,
                    cache_ttl: kept,
                }),
            }
        }

        fn calls(&self) -> usize {
            let text = std::fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
            text.lines().count()
        }
    }

    fn after(seconds: i64) -> Timestamp {
        Timestamp(NOW.0 + seconds * 1_000_000)
    }

    #[test]
    fn answers_are_cached() {
        let script = "case \"$1\" in */CN=alice*) echo higgs;; *) ;; esac";
        let site = Site::new(script, LONG_TIMEOUT);
        for second in [0, 1, 299] {
            let found = site.out.resolve(ALICE, after(second)).unwrap();
            assert_eq!(found.unwrap().as_str(), "higgs");
        }
        assert_eq!(site.calls(), 1);
        assert_eq!(site.out.resolve("/CN=nobody", NOW).unwrap(), None);
        assert_eq!(site.out.resolve("/CN=nobody", NOW).unwrap(), None);
        assert_eq!(site.calls(), 2, "that there is none is kept too");
        site.out.resolve(ALICE, after(301)).unwrap();
        assert_eq!(site.calls(), 3);
    }

    /// The subject is one argument, whatever is in it.
    #[test]
    fn a_subject_is_an_argument_and_nothing_else() {
        let site =
            Site::new("test $# = 1 && test \"$1\" = '/CN=$(touch x); echo b' && echo good", LONG_TIMEOUT);
        assert_eq!(site.out.resolve("/CN=$(touch x); echo b", NOW).unwrap().unwrap().as_str(), "good");
        for bad in ["", "/CN=a\0b", &"/".repeat(SUBJECT_BYTES_MAX + 1)] {
            assert!(site.out.resolve(bad, NOW).is_err());
        }
        assert_eq!(site.calls(), 1);
    }

    #[test]
    fn failures_and_bad_answers_map_nobody() {
        for (script, why) in [
            ("exit 3", "exit status: 3"),
            ("echo higgs; exit 1", "exit status: 1"),
            ("echo 'two words'", "no answer"),
            ("printf 'higgs\\natlas\\n'", "no answer"),
            ("printf 'higgs\\n\\n'", "no answer"),
            ("printf '\\377'", "no UTF-8"),
            ("yes higgs", "more than 1024 bytes"),
            ("kill -9 $$", "signal"),
        ] {
            let site = Site::new(script, LONG_TIMEOUT);
            let fault = site.out.resolve(ALICE, NOW).unwrap_err();
            assert!(fault.detail.contains(why), "{script}: {fault}");
            assert_eq!(site.out.resolve(ALICE, after(4)).unwrap_err(), fault, "not asked at once again");
            assert_eq!(site.calls(), 1);
            assert!(site.out.resolve(ALICE, after(6)).is_err());
            assert_eq!(site.calls(), 2, "{script}");
        }
        let command = vec!["/no/such/program".to_owned()];
        let out = MappingCallout::new(MappingCalloutSettings {
            command,
            time_limit: LONG_TIMEOUT,
            cache_ttl: LONG_TIMEOUT,
        });
        assert!(out.resolve(ALICE, NOW).unwrap_err().detail.contains("cannot be run"));
    }

    /// The former answer expires.
    #[test]
    fn an_expired_answer_is_not_used_when_the_command_fails() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answer");
        std::fs::write(&file, "higgs\n").unwrap();
        let command = vec!["/bin/sh".into(), "-c".into(), format!("cat {}", file.display())];
        let out = MappingCallout::new(MappingCalloutSettings {
            command,
            time_limit: LONG_TIMEOUT,
            cache_ttl: Duration::from_secs(10),
        });
        assert!(out.resolve(ALICE, NOW).unwrap().is_some());
        std::fs::remove_file(&file).unwrap();
        assert!(out.resolve(ALICE, after(9)).unwrap().is_some());
        assert!(out.resolve(ALICE, after(10)).is_err());
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_children() {
        for script in ["sleep 600 & echo $! > \"$0\"; wait", "exec >&-; sleep 600 & echo $! > \"$0\"; wait"] {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("pid");
            let command = ["/bin/sh", "-c", script, file.to_str().unwrap()].map(str::to_owned).to_vec();
            let limit = Duration::from_millis(400);
            let out = MappingCallout::new(MappingCalloutSettings {
                command,
                time_limit: limit,
                cache_ttl: LONG_TIMEOUT,
            });
            let fault = out.resolve(ALICE, NOW).unwrap_err();
            assert!(fault.detail.contains("did not end within 400ms"), "{fault}");
            let pid = std::fs::read_to_string(&file).unwrap();
            let gone = || {
                let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
                stat.map_or(true, |stat| stat.contains(") Z "))
            };
            let begun = Instant::now();
            while !gone() {
                assert!(begun.elapsed() < LONG_TIMEOUT, "a child lives on");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn equal_requests_share_a_command_and_too_many_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let go = folder.path().join("go");
        let script = format!("while ! test -e {}; do sleep 0.01; done; echo higgs", go.display());
        let site = Site::new(&script, LONG_TIMEOUT);
        std::thread::scope(|scope| {
            let mut asked = Vec::new();
            for number in 0..COMMANDS_MAX {
                let subject = format!("/CN={number}");
                for _ in 0..3 {
                    let (out, subject) = (&site.out, subject.clone());
                    asked.push(scope.spawn(move || out.resolve(&subject, NOW)));
                }
            }
            while site.calls() < COMMANDS_MAX {
                std::thread::yield_now();
            }
            let fault = site.out.resolve("/CN=one more", NOW).unwrap_err();
            assert_eq!(fault.code, FaultCode::Busy);
            std::fs::write(&go, "").unwrap();
            assert!(asked.into_iter().all(|asked| asked.join().unwrap().unwrap().is_some()));
        });
        assert_eq!(site.calls(), COMMANDS_MAX);
    }

    #[test]
    fn the_cache_is_bounded() {
        let mut state = State::default();
        for number in 0..CACHED_ANSWERS_MAX as i64 + 5 {
            state.cache_answer(&number.to_string(), Ok(None), NOW, after(number + 1));
        }
        assert_eq!(state.cache.len(), CACHED_ANSWERS_MAX);
        assert!(!state.cache.contains_key("0") && state.cache.contains_key("5"));
        state.cache_answer("new", Ok(None), after(CACHED_ANSWERS_MAX as i64 / 2), after(100_000));
        assert!(state.cache.len() < CACHED_ANSWERS_MAX, "what has ended goes first");
    }

    proptest! {
        #[test]
        fn any_answer_is_a_name_or_refused(said in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(Some(name)) = parse_mapping_answer(&said) {
                prop_assert_eq!(name.as_str().as_bytes(), said.strip_suffix(b"\n").unwrap_or(&said));
            }
        }
    }
}
