//! A wrong clock for one process: a library put before the C library that shifts what it calls the time of
//! day.

use std::path::Path;
use std::process::Command;

/// Interposes the calls that tell the time of day; what runs by the monotonic clock is not touched.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long shift(void) {
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
    let (source, library) = (directory.join("clock.c"), directory.join("clock.so"));
    std::fs::write(&source, SOURCE).expect("the source is written");
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).status();
    let library = library.to_str().expect("paths of tests are UTF-8").to_owned();
    compiled
        .is_ok_and(|status| status.success())
        .then(|| vec![("LD_PRELOAD".to_owned(), library), ("CLOCK_SHIFT_S".to_owned(), seconds.to_string())])
}

#[cfg(test)]
mod tests {
    use super::*;

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
