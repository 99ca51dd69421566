//! The project's chores, in Rust so that no other tool has to be installed: `cargo xtask <chore>`.
//!
//! * `test`  — everything a change must pass; `.ci/run` calls just this.
//! * `tidy`  — the rules of the rooms and of the text, alone. `tidy --fix` rewrites generated pages.
//! * `circles` — modules that import each other.
//! * `deny` — licences, bans, sources and known vulnerabilities of what is built.
//! * `dist` — the program as users install it.
//! * `terms` — the field's words for what the product does, and where none is used.
//! * `mutants` — faults of the last release brought back one by one, and whether their tests fail.
//! * `soak`  — the random and long tests in full.
//! * `bench` — the benchmarks, printed as ratios.
//! * `previous` — this version beside the last release.
//! * `interop` — programs of others against the service, installed for it.
//! * `testbed` — scenarios of several processes on the emulated WAN, with their figures and plots.
//!
//! Not here: what is tested (beside the code, and in `testbed`) and what is measured (`bench/`).

// A command's output is its purpose here.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod bench_comparison;
mod build;
mod deny;
mod dist;
mod fuzz;
mod interop;
mod modules;
mod mutants;
mod previous;
mod python;
mod runner;
mod soak;
mod terms;
mod test;
mod testbed;
mod tidy;
mod tools;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask <chore>

  test                 format, lints, tidy, all tests, an end-to-end demo
  circles [CRATE...]   modules that import each other, by crate
  tidy [--fix]         the rules of the rooms and of the text; --fix rewrites generated pages
  deny                 licences, bans, sources and known vulnerabilities of what is built
  dist                 the program as users install it: stripped, at most 60 MB
  terms                the field's words for what the product does, with their hits
  mutants [--list] [FAULT...]
                       faults of 0.1.0 brought back one by one (A2, or a chapter: A): their tests must fail
  soak kill [N]        the main job under N kill -9 (default 100)
  soak away [SECONDS]  the service away in mid-campaign (default 120)
  soak tree [FILES]    a real tree of at least so many files (default 20,000)
  soak hostile [N]     hostile peers, with N streams of one of them (default 1,000,000)
  soak steady [MONTHS] months without change in the simulator: false alarms (default 12)
  soak third-party [N] N of the 16 pairings of storages for each program that orders copies (default 16)
  soak random [ROOM…]  the property tests with 10,000 cases each
  soak fuzz [LIMIT]    every decoder under libFuzzer (default 600 s or 10,000,000 executions each)
  soak all             all of these
  bench [--profile NAME] [CASE]
                       benchmarks, as ratios (cases: cargo xtask bench list)
  bench transfers [CASE...] [--rounds N] [--only PROGRAM]... [--against FILE]
                       one command against its peers
  previous upgrade     a deployment of the last release goes on with this version
  previous reports [SCENARIO...]
                       the simulator's reports beside those of the last release
  previous bench [--rounds N] [CASE...]
                       benchmarks of both, in alternation
  interop rucio [CASE...]
                       Rucio with all its daemons replicates through the service
  testbed agents [--json] [--link MBIT] [--kill SECONDS] [--svg FILE]
                       one storage served by four agents over four emulated links
  testbed tape [--json] [--files N] [--without-places] [--svg FILE]
                       files of many cartridges recalled through a small disk
  testbed anse [--json] [--half SECONDS] [--svg FILE]
                       the experiment of the ANSE paper on the emulated WAN, scaled down";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["test"] => test::run(),
        ["circles", crates @ ..] => modules::run(crates),
        ["deny"] => deny::run(),
        ["tidy"] => tidy::run(false),
        ["tidy", "--fix"] => tidy::run(true),
        ["dist"] => dist::run(),
        ["terms"] => terms::run(),
        ["mutants", rest @ ..] => mutants::run(rest),
        ["soak", rest @ ..] => soak::run(rest),
        ["bench", rest @ ..] => bench::run(rest),
        ["previous", rest @ ..] => previous::run(rest),
        ["interop", "rucio", cases @ ..] => interop::rucio(cases),
        ["testbed", rest @ ..] => testbed::run(rest),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
