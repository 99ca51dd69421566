//! Whole transfers by whole programs, ours and others', alternating in one session over the same paths.
//!
//! For each case a laboratory of two namespaces is made; in each round every program has its turn, with its
//! own server, started just before and ended just after. The clock runs from the start of the client to its
//! end. CPU time and memory are those of all processes of a side; contents are compared when the clock has
//! stopped.
//!
//! Not here: the programs themselves (`peers/`), figures of the whole system (`cases/`). Start with
//! [`run_and_print`].

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
mod run_log;
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
use run::{Failure, Measured};
use run_log::RunLog;

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
    let run_log =
        options.book.as_ref().map(|path| RunLog::open(path, &longhaul_testbed::binary())).transpose()?;
    let memory = Memory::new()?;
    let most = cases.iter().map(|case| case.bytes()).max().unwrap_or(0);
    let warm = (2 * most + WARM_MORE).min((memory::available() as f64 * WARM_SHARE) as u64);
    eprintln!("touching {:.1} GB of memory", warm as f64 / 1e9);
    memory.warm(warm)?;
    let session = Session::new(options.rounds, account::Group::new().how());
    let mut measuring = Measuring { programs, memory, options, run_log, session };
    for case in cases {
        measuring.case(case)?;
    }
    Ok(measuring.session)
}

/// What all cases of a session share.
struct Measuring<'a> {
    programs: Vec<Box<dyn Program>>,
    memory: Memory,
    options: &'a Options,
    run_log: Option<RunLog>,
    session: Session,
}

impl Measuring<'_> {
    fn case(&mut self, case: &'static Case) -> Result<(), String> {
        eprintln!("{}: {}", case.name, case.described());
        let mut outcomes = self.outcomes(case);
        if !outcomes.iter().any(|outcome| self.is_wanted(outcome, &outcomes)) {
            self.session.outcomes.append(&mut outcomes);
            return Ok(());
        }
        let places = Folders::new(self.memory.path());
        let lab = match case.lab() {
            Ok(lab) => lab,
            Err(why) => {
                outcomes.iter_mut().for_each(|outcome| outcome.runs.push(Err(Failure::Failed(why.clone()))));
                self.session.outcomes.append(&mut outcomes);
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
        for round in 0..self.options.rounds {
            self.round(round, &stage, &run, &mut outcomes)?;
            self.floor_round(round, &lab, case, &mut outcomes)?;
        }
        self.session.outcomes.append(&mut outcomes);
        std::fs::remove_dir_all(&places.source).map_err(|error| format!("making room: {error}"))
    }

    /// Outcomes of all programs that take part, with the runs that the log has.
    fn outcomes(&self, case: &'static Case) -> Vec<Outcome> {
        let taken = self.programs.iter().filter(|program| program.takes(case));
        let mut outcomes: Vec<Outcome> = taken.map(|program| Outcome::new(case, &**program)).collect();
        if floor::takes(case) {
            let names = floor::NAMES.into_iter().filter(|name| self.options.wants_program(name));
            outcomes.extend(names.map(|name| Outcome::floor(case, name)));
        }
        for outcome in &mut outcomes {
            let kept = self.run_log.iter().flat_map(|log| log.runs(case.name, outcome.program));
            outcome.runs = kept.take(self.options.rounds).collect();
        }
        outcomes
    }

    /// Whether more runs of it are to be made. What was too slow or failed once is not tried again: its row
    /// says so.
    fn is_wanted(&self, outcome: &Outcome, all: &[Outcome]) -> bool {
        outcome.runs.len() < self.options.rounds && !outcome.has_failed() && !is_behind(outcome, all)
    }

    /// Every program has its turn, in another order in each round, so that nobody always follows the same
    /// neighbour.
    fn round(
        &mut self,
        round: usize,
        stage: &Stage<'_>,
        run: &Run<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<(), String> {
        for turn in 0..self.programs.len() {
            let program = &self.programs[(turn + round) % self.programs.len()];
            let found = outcomes.iter().position(|outcome| outcome.program == program.name());
            let wanted = |place: &usize| {
                let outcome = &outcomes[*place];
                outcome.runs.len() == round && self.is_wanted(outcome, outcomes)
            };
            let Some(place) = found.filter(wanted) else { continue };
            // A row of ours that was stopped would tell nothing.
            let limit_s = self.options.limit_s.filter(|_| !program.is_ours()).unwrap_or(run.case.limit_s);
            let run = Run { case: &Case { limit_s, ..*run.case }, ..*run };
            let measured = run::measure(stage, &**program, &run);
            self.record(round, measured, &mut outcomes[place])?;
        }
        Ok(())
    }

    fn floor_round(
        &mut self,
        round: usize,
        lab: &Lab,
        case: &Case,
        outcomes: &mut [Outcome],
    ) -> Result<(), String> {
        let lacks = |outcome: &Outcome| outcome.is_floor() && outcome.runs.len() == round;
        if !outcomes.iter().any(lacks) {
            return Ok(());
        }
        let measured = floor::measure(lab, self.memory.path(), case);
        for (name, measured) in floor::NAMES.into_iter().zip(measured) {
            let outcome = outcomes.iter_mut().find(|outcome| outcome.program == name && lacks(outcome));
            outcome.into_iter().try_for_each(|outcome| self.record(round, measured.clone(), outcome))?;
        }
        Ok(())
    }

    fn record(
        &mut self,
        round: usize,
        measured: Result<Measured, Failure>,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        eprintln!("  round {}: {}", round + 1, report::line(outcome.program, &measured));
        let measured = report::without_folders(measured, self.memory.path());
        if let Some(log) = &mut self.run_log {
            log.append(outcome.case.name, outcome.program, &measured)?;
        }
        outcome.runs.push(measured);
        Ok(())
    }
}

/// Whether more rounds of a peer would tell nothing: bars are held against those that they name and against
/// the best of the case, so the best two are enough beside them.
fn is_behind(outcome: &Outcome, all: &[Outcome]) -> bool {
    const BEST: usize = 2;
    if outcome.is_ours || outcome.is_floor() || bars::is_yardstick(outcome.case.name, outcome.program) {
        return false;
    }
    let Some(rate) = outcome.first_rate() else { return false };
    let others = all.iter().filter(|other| !other.is_ours && !other.is_floor());
    others.filter_map(Outcome::first_rate).filter(|other| *other > rate).count() >= BEST
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
        let places = Folders::new(self.folder());
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

struct Folders {
    source: PathBuf,
    target: PathBuf,
    run: PathBuf,
    stage: PathBuf,
}

impl Folders {
    fn new(memory: &Path) -> Folders {
        let place = |name: &str| memory.join(name);
        Folders { source: place("source"), target: place("target"), run: place("run"), stage: place("stage") }
    }
}

#[cfg(test)]
mod tests {
    use super::report::tests::outcome;
    use super::*;

    #[test]
    fn who_is_behind_two_and_holds_no_bar_runs_once() {
        let all = [
            outcome("wan20-2g", "longhaul", &[9.0]),
            outcome("wan20-2g", "curl", &[4.0]),
            outcome("wan20-2g", "aria2", &[1.0, 9.0]),
            outcome("wan20-2g", "rsync", &[1.2]),
            outcome("wan20-2g", "xrdcp", &[1.3]),
            outcome("wan20-2g", "gridftp", &[]),
        ];
        let behind: Vec<&str> =
            all.iter().filter(|one| is_behind(one, &all)).map(|one| one.program).collect();
        assert_eq!(
            behind,
            ["xrdcp"],
            "a bar is held against curl; the first run decides; no run says nothing"
        );
    }
}
