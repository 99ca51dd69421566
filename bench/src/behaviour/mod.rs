//! How our transfers behave beyond a rate: queued directories, growth, disks at both ends, windows, a shared
//! link, two uplinks.
//!
//! Each case is a file: it makes its own laboratory, adds rows of ours and of what limits them, measured in
//! the same run, and says which bars hold. Bytes are scaled by `--scale`. Not here: comparisons with other
//! programs (`transfers/`), of which its groups `mtu` and `fdt` belong to the same table of the issue. Start
//! with [`run_and_print`].

mod directories;
mod disk;
mod growth;
mod interactive;
pub(crate) mod options;
mod page;
mod report;
mod scavenger;
mod scene;
mod uplinks;
mod windows;

use std::path::PathBuf;

use crate::transfers::memory::{self, Memory};
use options::Options;
use report::Session;

const GB: u64 = 1_000_000_000;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    run: fn(&Memory, &Options, &mut Session) -> Result<(), String>,
}

pub(crate) const CASES: [Case; 6] = [
    Case { name: directories::NAME, what: directories::WHAT, run: directories::run },
    Case { name: growth::NAME, what: growth::WHAT, run: growth::run },
    Case { name: disk::NAME, what: disk::WHAT, run: disk::run },
    Case { name: windows::NAME, what: windows::WHAT, run: windows::run },
    Case { name: scavenger::NAME, what: scavenger::WHAT, run: scavenger::run },
    Case { name: uplinks::NAME, what: uplinks::WHAT, run: uplinks::run },
];

/// Measures, prints and writes what is asked for. True if every run worked; a bar that is missed is told, and
/// fails nothing.
pub(crate) fn run_and_print(options: &Options) -> Result<bool, String> {
    let memory = Memory::new()?;
    let warm = (4 * GB).min(memory::available() / 2);
    eprintln!("touching {:.1} GB of memory", warm as f64 / 1e9);
    memory.warm(warm)?;
    let mut session = Session::default();
    for case in CASES.iter().filter(|case| options.wants(case.name)) {
        eprintln!("{}: {}", case.name, case.what);
        session.cases.push((case.name, case.what.to_owned()));
        (case.run)(&memory, options, &mut session).map_err(|why| format!("{}: {why}", case.name))?;
    }
    session.hide(memory.path());
    print(options, &session)?;
    let failures = session.failures();
    failures.iter().for_each(|line| eprintln!("FAILED: {line}"));
    Ok(failures.is_empty())
}

fn print(options: &Options, session: &Session) -> Result<(), String> {
    let lines = session.json_lines();
    let text = format!("{}{}", page::words(options), session.markdown());
    let write = |path: &Option<PathBuf>, text: &str| match path {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    };
    write(&options.rows, &lines)?;
    write(&options.page, &text)?;
    if options.json {
        print!("{lines}")
    } else {
        print!("{text}")
    }
    Ok(())
}
