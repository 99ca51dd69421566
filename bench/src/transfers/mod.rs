//! Whole transfers by whole programs, ours and others', alternating in one session over the same paths.
//!
//! For each case a laboratory of two namespaces is made; in each round every program has its turn, with its own server,
//! started just before and ended just after. The clock runs from the start of the client to its end. CPU time and
//! memory are those of all processes of a side; contents are compared when the clock has stopped.
//!
//! Not here: the programs themselves (`peers/`), figures of the whole system (`cases/`). Start with [`run_and_print`].

pub(crate) mod account;
mod against;
mod bars;
pub(crate) mod case;
mod costs;
pub(crate) mod floor;
pub(crate) mod keys;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod options;
mod page;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod traffic;
pub(crate) mod trees;

use std::path::{Path, PathBuf};

use longhaul_testbed::wan::{Lab, Side};

use crate::measure::make_files;
use crate::peers::{self, Program, Run};
use case::{CASES, Case};
use keys::Keys;
use launch::Stage;
use memory::Memory;
use options::Options;
use report::{Outcome, Session};
use run::Failure;

/// Beyond source and target: what programs themselves and their buffers may touch.
const WARM_MORE: u64 = 2 << 30;
/// Other programs of the machine need memory too.
const WARM_SHARE: f64 = 0.6;

/// Measures, prints and writes what is asked for. True if every program worked and ours did not fall behind.
pub(crate) fn run_and_print(options: &Options) -> Result<bool, String> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    // A file that cannot be read is told before an hour of measuring.
    let earlier = options.against.as_ref().map(|path| against::parse(&read(path)?)).transpose()?;
    let session = run(options)?;
    let rows = session.rows();
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let write = |path: &Option<PathBuf>, text: &str| match path {
        Some(path) => std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display())),
        None => Ok(()),
    };
    write(&options.rows, &lines)?;
    write(&options.page, &format!("{}{}", page::HEAD, session.markdown()))?;
    if options.json {
        print!("{lines}")
    } else {
        print!("{}", session.markdown())
    }
    let (held, fallen) = earlier.map(|earlier| against::compare(&earlier, &rows)).unwrap_or_default();
    held.iter().for_each(|line| eprintln!("holds: {line}"));
    fallen.iter().for_each(|line| eprintln!("FALLEN: {line}"));
    let failures = session.failures();
    failures.iter().for_each(|line| eprintln!("FAILED: {line}"));
    Ok(failures.is_empty() && fallen.is_empty())
}

/// Measures. An error is one of the session itself; a program that fails is a row.
fn run(options: &Options) -> Result<Session, String> {
    let cases: Vec<&Case> = CASES.iter().filter(|case| options.wants_case(case.name)).collect();
    let programs: Vec<Box<dyn Program>> =
        peers::all().into_iter().filter(|program| options.wants_program(program.name())).collect();
    let memory = Memory::new()?;
    let most = cases.iter().map(|case| case.bytes()).max().unwrap_or(0);
    let warm = (2 * most + WARM_MORE).min((memory::available() as f64 * WARM_SHARE) as u64);
    eprintln!("touching {:.1} GB of memory", warm as f64 / 1e9);
    memory.warm(warm)?;
    let mut session = Session::new(options.rounds, account::Group::new().how());
    for case in cases {
        run_case(case, &programs, &memory, options, &mut session)?;
    }
    session.hide(memory.path());
    Ok(session)
}

fn run_case(
    case: &'static Case,
    programs: &[Box<dyn Program>],
    memory: &Memory,
    options: &Options,
    session: &mut Session,
) -> Result<(), String> {
    eprintln!("{}: {}", case.name, case.described());
    let taken = programs.iter().filter(|program| program.takes(case));
    let mut outcomes: Vec<Outcome> = taken.map(|program| Outcome::new(case, &**program)).collect();
    if floor::takes(case) {
        let names = floor::NAMES.into_iter().filter(|name| options.wants_program(name));
        outcomes.extend(names.map(|name| Outcome::floor(case, name)));
    }
    let places = Places::new(memory.path());
    let lab = match case.lab() {
        Ok(lab) => lab,
        Err(why) => {
            outcomes.iter_mut().for_each(|outcome| outcome.runs.push(Err(Failure::Failed(why.clone()))));
            session.outcomes.append(&mut outcomes);
            return Ok(());
        }
    };
    let stage = Stage::new(&lab, places.stage.clone())?;
    let far = lab.address(Side::Right, 0).to_string();
    let keys = Keys::make(&places.stage, &far)?;
    make_files(&places.source, case.files, case.size);
    let names = trees::names(&places.source)?;
    let run = Run {
        case,
        source: &places.source,
        target: &places.target,
        folder: &places.run,
        far: &far,
        keys: &keys,
        names: &names,
    };
    for round in 0..options.rounds {
        one_round(round, programs, &stage, &run, options, &mut outcomes);
        if floor::takes(case) && outcomes.iter().any(|outcome| outcome.is_floor()) {
            let measured = floor::measure(&lab, memory.path(), case);
            for (name, measured) in floor::NAMES.into_iter().zip(measured) {
                eprintln!("  round {}: {}", round + 1, report::line(name, &measured));
                let outcome = outcomes.iter_mut().find(|outcome| outcome.program == name);
                outcome.into_iter().for_each(|outcome| outcome.runs.push(measured.clone()));
            }
        }
    }
    session.outcomes.append(&mut outcomes);
    std::fs::remove_dir_all(&places.source).map_err(|error| format!("making room: {error}"))
}

/// Every program has its turn, in another order in each round, so that nobody always follows the same neighbour.
fn one_round(
    round: usize,
    programs: &[Box<dyn Program>],
    stage: &Stage<'_>,
    run: &Run<'_>,
    options: &Options,
    outcomes: &mut [Outcome],
) {
    for turn in 0..programs.len() {
        let program = &programs[(turn + round) % programs.len()];
        let outcome = outcomes.iter_mut().find(|outcome| outcome.program == program.name());
        // What was too slow or failed once is not tried again: its row says so.
        let Some(outcome) = outcome.filter(|outcome| !outcome.has_failed()) else { continue };
        // A row of ours that was stopped would tell nothing.
        let limit_s = options.limit_s.filter(|_| !program.is_ours()).unwrap_or(run.case.limit_s);
        let measured = run::measure(stage, &**program, &Run { case: &Case { limit_s, ..*run.case }, ..*run });
        eprintln!("  round {}: {}", round + 1, report::line(outcome.program, &measured));
        outcome.runs.push(measured);
    }
}

/// A laboratory and memory for the parts of the floor and for the programs that check them.
pub(crate) struct Yardsticks {
    memory: Memory,
    lab: Lab,
}

pub(crate) fn yardsticks() -> Result<Yardsticks, String> {
    let memory = Memory::new()?;
    memory.warm(WARM_MORE)?;
    Ok(Yardsticks { memory, lab: CASES[0].lab()? })
}

impl Yardsticks {
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    pub(crate) fn folder(&self) -> &Path {
        self.memory.path()
    }

    /// CPU s/GB of one stream of iperf3, both ends.
    pub(crate) fn iperf(&self) -> Result<f64, String> {
        let case = &CASES[0];
        let places = Places::new(self.folder());
        let stage = Stage::new(&self.lab, places.stage.clone())?;
        let far = self.lab.address(Side::Right, 0).to_string();
        let keys = Keys::make(&places.stage, &far)?;
        let (source, target, folder) = (&places.source, &places.target, &places.run);
        let run = Run { case, source, target, folder, far: &far, keys: &keys, names: &[] };
        let programs = peers::all();
        let iperf = programs.iter().find(|program| program.name() == "iperf3 -P1").ok_or("no iperf3")?;
        match run::measure(&stage, &**iperf, &run) {
            Ok(measured) => Ok(measured.cpu_s_per_gb()),
            Err(Failure::Failed(why)) => Err(why),
            Err(Failure::TooSlow { limit_s, .. }) => Err(format!("iperf3 needed more than {limit_s} s")),
        }
    }

    /// CPU s/GB of dd for a GB in pieces of 1 MB.
    pub(crate) fn dd(&self, words: &[&str]) -> Result<f64, String> {
        const COUNT: u64 = 1000;
        let stage = Stage::new(&self.lab, self.folder().join("stage"))?;
        let mut dd = launch::Words::new("dd").args(&format!("bs=1048576 count={COUNT}"));
        dd.words.extend(words.iter().map(|word| (*word).to_owned()));
        let mut dd = stage.prepare(Side::Left, &dd, "dd.log")?;
        dd.go();
        match dd.wait(std::time::Duration::from_secs(60)) {
            Some(status) if status.success() => Ok(dd.cpu_seconds() / (COUNT << 20) as f64 * 1e9),
            _ => Err(format!("dd: {}", dd.log_end())),
        }
    }
}

struct Places {
    source: PathBuf,
    target: PathBuf,
    run: PathBuf,
    stage: PathBuf,
}

impl Places {
    fn new(memory: &Path) -> Places {
        let place = |name: &str| memory.join(name);
        Places { source: place("source"), target: place("target"), run: place("run"), stage: place("stage") }
    }
}
