//! A wrong clock for one process: a library put before the C library that shifts what it calls the time of
//! day.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Interposes the calls that tell the time of day; what runs by the monotonic clock is not touched.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
    const char *path = getenv("CLOCK_SHIFT_FILE");
    if (path) {
        char now[32] = {0};
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return 0;
        ssize_t length = read(file, now, sizeof now - 1);
        close(file);
        return length > 0 ? atol(now) : 0;
    }
    const char *text = getenv("CLOCK_SHIFT_S");
    return text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (at) *at = exact.tv_sec;
    return exact.tv_sec;
}
"#;

/// Variables that put the clock of a process forward by `seconds` (or back). None without a C compiler.
pub fn shifted(directory: &Path, seconds: i64) -> Option<Vec<(String, String)>> {
    Some(vec![preload(directory)?, ("CLOCK_SHIFT_S".to_owned(), seconds.to_string())])
}

/// The clock of a process that a test steps while the process runs.
pub struct SteppedClock {
    file: PathBuf,
    preload: (String, String),
}

impl SteppedClock {
    /// Right at first. None without a C compiler.
    pub fn new(directory: &Path) -> Option<SteppedClock> {
        let clock = SteppedClock { file: directory.join("clock-shift"), preload: preload(directory)? };
        clock.set(0);
        Some(clock)
    }

    /// For the environment of the process.
    pub fn variables(&self) -> Vec<(String, String)> {
        let file = self.file.to_str().expect("paths of tests are UTF-8").to_owned();
        vec![self.preload.clone(), ("CLOCK_SHIFT_FILE".to_owned(), file)]
    }

    /// The clock is so many seconds ahead from now on.
    pub fn set(&self, seconds: i64) {
        let next = self.file.with_extension("next");
        std::fs::write(&next, seconds.to_string()).expect("the step is written");
        std::fs::rename(&next, &self.file).expect("the step is taken");
    }
}

/// The variable that puts the library before the C library.
fn preload(directory: &Path) -> Option<(String, String)> {
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    std::fs::write(&source, SOURCE).expect("the source is written");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    let library = library.to_str().expect("paths of tests are UTF-8").to_owned();
    compiled.is_ok_and(|status| status.success()).then(|| ("LD_PRELOAD".to_owned(), library))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_clock_stepped() {
        let directory = tempfile::tempdir().unwrap();
        let Some(clock) = SteppedClock::new(directory.path()) else {
            return crate::needs::not_run("a stepped clock", "there is no C compiler");
        };
        // The second reading comes after the step.
        let mut process = Command::new("sh")
            .args(["-c", "date +%s; read line; date +%s"])
            .envs(clock.variables())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        clock.set(-7_200);
        drop(process.stdin.take());
        let output = process.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let last: i64 = text.lines().last().unwrap().parse().unwrap();
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!((last - now + 7_200).abs() < 600, "{text}");
    }

    #[test]
    fn a_process_sees_another_hour() {
        let directory = tempfile::tempdir().unwrap();
        let Some(variables) = shifted(directory.path(), 7_200) else {
            return crate::needs::not_run("a wrong clock", "there is no C compiler");
        };
        let now = |variables: Vec<(String, String)>| -> u64 {
            let output = Command::new("date").arg("+%s").envs(variables).output().unwrap();
            String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
        };
        let ahead = now(variables) - now(Vec::new());
        assert!((7_190..=7_200).contains(&ahead), "{ahead}");
    }
}
