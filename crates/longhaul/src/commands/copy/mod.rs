//! `longhaul copy`.

mod events;
mod progress;

use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{ArgMatches, Args, FromArgMatches, ValueEnum};
use longhaul_copy::batch;
use longhaul_copy::report::{BatchReport, CopyResult, FdtcpExit, Report};
use longhaul_copy::{
    CircuitConfig, CircuitNote, CopyRequest, DataSecurity, Endpoint, FileOutcome, Options, Outcome, Progress,
    ReplicaShare, ReplicaTotals, Stop, Totals, copy, copy_pairs,
};
use longhaul_gateways::circuits::FILE_BYTES_MAX as CIRCUIT_BYTES_MAX;
use longhaul_model::units::{self, printable};
use longhaul_model::{Algorithm, Digest, Fault, FaultCode, TrafficClass, Verification};

use events::{Event, FailedFile, FileReporter};
use progress::ProgressPainter;

use super::{Context, Threads, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::time_format;

const AFTER_HELP: &str = "\
Sources and targets
  /data/run7  run7/           local; a trailing slash means the contents, not the directory (as with rsync)
  lh://SECRET@host:port/path  URL printed by `longhaul serve`; a path may be appended
  @FILE  @FILE/path           URL read from FILE, which keeps the secret off the command line
  me@host:DIR                 starts `longhaul serve --once` on that host over ssh

Files that exist with the same size and time are skipped, so the same command resumes after an interruption.
Files that exist and differ are an error, unless --update or --checksum says what to do.

Exit status
  0 everything copied and verified   7 some files failed   130 interrupted; others: longhaul --help";

/// Failed files listed at the end.
const FAILED_FILES_SHOWN_MAX: usize = 10;

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct CopyArgs {
    /// What to copy, and where to
    #[arg(
        value_name = "SOURCE... TARGET",
        num_args = 1..,
        required_unless_present_any = ["from_file", "copyjobfile"]
    )]
    places: Vec<String>,
    /// Copy directories with their contents
    #[arg(long, short)]
    recursive: bool,
    /// Replace files that are older at the target; skip newer ones
    #[arg(long)]
    update: bool,
    /// Compare contents instead of size and time; replace files that differ
    #[arg(long)]
    checksum: bool,
    /// Show what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
    /// Limit the rate, such as 100MB (per second)
    #[arg(long, value_name = "RATE")]
    limit: Option<RateOption>,
    /// Traffic class relative to other traffic on the network
    #[arg(long, value_enum, value_name = "CLASS", default_value_t = ClassOption::Bulk)]
    class: ClassOption,
    /// What to verify: chunks on the wire; the source's digest against the bytes written; or also read the
    /// files back
    #[arg(long, value_enum, value_name = "HOW", default_value_t = VerifyOption::EndToEnd)]
    verify: VerifyOption,
    /// Write the outcome of each file to FILE: fdtcp's format, or JSON if the name ends in .json
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Copy the pairs in FILE, one SOURCE TARGET per line
    #[arg(long, value_name = "FILE", conflicts_with = "places")]
    from_file: Option<PathBuf>,
    /// As --from-file in fdtcp's format, with fdtcp's exit codes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["places", "from_file"])]
    copyjobfile: Option<PathBuf>,
    #[command(flatten)]
    filters: FilterArgs,
    /// Number of TCP connections [default: as many as the path needs]
    #[arg(long, value_name = "N")]
    streams: Option<usize>,
    /// Maximum number of files in flight
    #[arg(long, value_name = "N")]
    parallel_files: Option<usize>,
    /// Open streams from this local address; with several, from all of them at once (several uplinks)
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    bind: Vec<IpAddr>,
    /// Memory for buffers at this end, such as 64MiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<SizeOption>,
    /// How data is protected in transit
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SecurityOption::Tls)]
    data_security: SecurityOption,
    /// Between two servers: continue after this command has ended
    #[arg(long)]
    detach: bool,
    /// Another server with the same data as SOURCE, read in parallel; may be repeated
    #[arg(long = "replica", value_name = "URL", conflicts_with_all = ["from_file", "copyjobfile"])]
    replicas: Vec<String>,
    /// BLAKE3 digest that the file must have (printed by `longhaul digest FILE`), so that no server has to be
    /// trusted
    #[arg(long, value_name = "HEX", conflicts_with_all = ["from_file", "copyjobfile"])]
    blake3: Option<Blake3Option>,
    /// Request the circuit described in FILE and use it when it is up
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["from_file", "copyjobfile", "detach", "replicas", "dry_run"]
    )]
    circuit: Option<PathBuf>,
}

/// `--include` and `--exclude` in the order in which they were typed.
#[derive(Clone, Debug, Default)]
pub struct FilterArgs(Vec<(bool, String)>);

impl FilterArgs {
    const INCLUDE: &str = "include";
    const EXCLUDE: &str = "exclude";
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all: Vec<(usize, bool, String)> = Vec::new();
        for (name, include) in [(Self::INCLUDE, true), (Self::EXCLUDE, false)] {
            let (Some(places), Some(patterns)) = (matches.indices_of(name), matches.get_many::<String>(name))
            else {
                continue;
            };
            all.extend(places.zip(patterns).map(|(place, pattern)| (place, include, pattern.clone())));
        }
        all.sort_unstable_by_key(|(place, _, _)| *place);
        Ok(FilterArgs(all.into_iter().map(|(_, include, pattern)| (include, pattern)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FilterArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        let pattern = |name: &'static str, help: &'static str| {
            clap::Arg::new(name).long(name).value_name("PATTERN").help(help).action(clap::ArgAction::Append)
        };
        command
            .arg(pattern(
                Self::INCLUDE,
                "Include what matches the pattern; the first pattern that matches decides",
            ))
            .arg(pattern(Self::EXCLUDE, "Exclude what matches the pattern"))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum VerifyOption {
    Wire,
    EndToEnd,
    Readback,
}

impl From<VerifyOption> for Verification {
    fn from(option: VerifyOption) -> Verification {
        match option {
            VerifyOption::Wire => Verification::Wire,
            VerifyOption::EndToEnd => Verification::EndToEnd,
            VerifyOption::Readback => Verification::Readback,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum SecurityOption {
    /// Encrypted
    Tls,
    /// Clear text, each frame with a keyed checksum; the other end must allow it too
    Authenticated,
}

impl From<SecurityOption> for DataSecurity {
    fn from(option: SecurityOption) -> DataSecurity {
        match option {
            SecurityOption::Tls => DataSecurity::Tls,
            SecurityOption::Authenticated => DataSecurity::Authenticated,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ClassOption {
    /// Shares the network like any TCP connection
    Bulk,
    /// Yields to all other traffic and uses what is left
    Scavenger,
}

impl From<ClassOption> for TrafficClass {
    fn from(option: ClassOption) -> TrafficClass {
        match option {
            ClassOption::Bulk => TrafficClass::Bulk,
            ClassOption::Scavenger => TrafficClass::Scavenger,
        }
    }
}

/// A rate: `100MB` or `100MB/s`.
#[derive(Clone, Copy, Debug)]
pub struct RateOption(pub u64);

impl FromStr for RateOption {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let rate = units::parse_bytes(text.trim_end_matches("/s"))?;
        if rate == 0 { Err("the rate must be more than 0".into()) } else { Ok(RateOption(rate)) }
    }
}

/// A BLAKE3 digest: 64 hexadecimal digits, with or without `blake3:` in front.
#[derive(Clone, Copy, Debug)]
pub struct Blake3Option(pub Digest);

impl FromStr for Blake3Option {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        format!("{}:{}", Algorithm::Blake3, text.trim_start_matches("blake3:")).parse().map(Blake3Option)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SizeOption(pub u64);

impl FromStr for SizeOption {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        units::parse_bytes(text).map(SizeOption)
    }
}

/// Stops the copy at the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once, which does
/// no harm.
pub fn stop_at_signals(stop: &Stop) -> Result<(), Failure> {
    let stop = stop.clone();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let listened = super::block_on(Threads::One, async move {
            let first = crate::signals::shutdown()?;
            let _ = ready.send(());
            first.await;
            // Registered only now: a listener registered before would receive the first signal as well.
            let second = crate::signals::shutdown();
            stop.stop();
            second?.await;
            Ok::<(), Failure>(())
        });
        if listened.is_ok() {
            std::process::exit(Exit::Interrupted as i32);
        }
    });
    // A signal before this ends the process as if it had not started.
    let _ = is_ready.recv();
    Ok(())
}

pub fn run(context: &Context, args: CopyArgs) -> Result<Exit, Failure> {
    if context.output.format != Format::Json {
        return run_copy(context, args);
    }
    // One object per line, whatever happens.
    context.output.json_line(&Event::Begun { version: env!("CARGO_PKG_VERSION"), at: clock::now() })?;
    run_copy(context, args).or_else(|failure| {
        let failure = failure.with_id(clock::new_incident_id);
        context.output.print_failure(&failure);
        let exit = failure.exit;
        context.output.json_line(&Event::Error { exit_code: exit as u8, problem: &failure.problem })?;
        Ok(exit)
    })
}

fn run_copy(context: &Context, args: CopyArgs) -> Result<Exit, Failure> {
    let stop = Stop::default();
    stop_at_signals(&stop)?;
    if let Some(file) = &args.copyjobfile {
        run_copyjob(context, &args, file, &stop);
    }
    if let Some(file) = &args.from_file {
        return run_batch(context, &args, file, batch::Format::FromFile, &stop).map(|(exit, _)| exit);
    }
    let order = copy_request(&args)?;
    let mut report = args.report.as_deref().map(Report::create).transpose()?;
    let progress = Arc::new(Progress::default());
    let begun = Instant::now();
    let mut told = FileReporter::new(context.output, args.dry_run);
    let watched = ProgressPainter::start(context, &progress);
    let mut report_fault = None;
    let copied = copy(&order, &progress, &stop, &mut |outcome| {
        told.report(outcome);
        if let Some(report) = &mut report
            && let Some(line) = report_line(outcome)
            && let Err(fault) = report.add(&outcome.source, &outcome.target, &line)
        {
            report_fault.get_or_insert(fault);
        }
    });
    watched.stop();
    let exit = exit_status(&copied, &progress);
    if let Some(report) = report {
        report.finish(&CopyResult { exit_code: exit as u8, fault: copied.as_ref().err() })?;
    }
    if let Some(fault) = report_fault {
        return Err(fault.into());
    }
    told.finish()?;
    summary(context, &args, &copied, &progress, begun, exit, exit as u8)
}

/// `--copyjobfile`: callers of fdtcp look at its report and its exit codes, which differ from ours.
fn run_copyjob(context: &Context, args: &CopyArgs, file: &Path, stop: &Stop) -> ! {
    let code = match run_batch(context, args, file, batch::Format::Copyjob, stop) {
        Ok((_, code)) => code,
        Err(failure) => {
            context.output.fail(&failure);
            FdtcpExit::from_setup_fault(&Fault::new(failure.problem.code, ""))
        }
    };
    std::process::exit(code.code().into())
}

/// `--from-file`: every pair has its line in the report, and a pair that fails does not affect the others.
fn run_batch(
    context: &Context,
    args: &CopyArgs,
    file: &Path,
    format: batch::Format,
    stop: &Stop,
) -> Result<(Exit, FdtcpExit), Failure> {
    let check = |url: &str| Endpoint::parse(url).map(drop).map_err(|fault| fault.detail);
    let batch = match batch::read(file, format, &check).map_err(Fault::from) {
        Ok(batch) => batch,
        Err(fault) => {
            // A reader that waits for the report finds the reason in it.
            if let Some(path) = &args.report {
                let exit_code = FdtcpExit::from_setup_fault(&fault).code();
                Report::create(path)?.finish(&CopyResult { exit_code, fault: Some(&fault) })?;
            }
            return Err(fault.into());
        }
    };
    let mut report = args.report.as_deref().map(|path| BatchReport::create(path, &batch)).transpose()?;
    let progress = Arc::new(Progress::default());
    let begun = Instant::now();
    let mut told = FileReporter::new(context.output, args.dry_run);
    let mut outcomes: Vec<Option<longhaul_copy::report::Outcome>> = vec![None; batch.pairs.len()];
    let mut places = Vec::new();
    let mut indices = Vec::new();
    for (index, pair) in batch.pairs.iter().enumerate() {
        let both = Endpoint::parse(&pair.source.to_string())
            .and_then(|source| Ok((source, Endpoint::parse(&pair.target.to_string())?)));
        match both {
            Ok(both) => {
                places.push(both);
                indices.push(index);
            }
            Err(fault) => {
                progress.change(|totals| totals.files += 1);
                progress.fail(&pair.target.shown(), &fault);
                outcomes[index] = Some(longhaul_copy::report::Outcome::from_fault(&fault));
            }
        }
    }
    for bad in &batch.bad {
        let fault = Fault::new(FaultCode::BadRequest, bad.to_string());
        progress.change(|totals| totals.files += 1);
        progress.fail(&printable(&file.to_string_lossy()), &fault);
    }
    let watched = ProgressPainter::start(context, &progress);
    let copied =
        copy_pairs(&places, &options(args), data_security(args), &progress, stop, &mut |pair, outcome| {
            told.report(outcome);
            let place = &mut outcomes[indices[pair]];
            // For a directory the first failure counts.
            if let Some(line) = report_line(outcome)
                && place.as_ref().is_none_or(|known| known.status == longhaul_copy::report::Status::Ok)
            {
                *place = Some(line);
            }
        });
    watched.stop();
    let exit = exit_status(&copied, &progress);
    let all_right = copied.is_ok() && progress.totals().files_failed == 0;
    let fdtcp = match &copied {
        Err(fault) => FdtcpExit::from_setup_fault(fault),
        Ok(()) if all_right => FdtcpExit::Ok,
        Ok(()) => FdtcpExit::CopyError,
    };
    let code = if matches!(format, batch::Format::Copyjob) { fdtcp.code() } else { exit as u8 };
    if let Some(report) = &mut report {
        for (index, outcome) in outcomes.iter().enumerate() {
            if let Some(outcome) = outcome {
                report.add(index, outcome)?;
            }
        }
    }
    if let Some(report) = report {
        report.finish(&CopyResult { exit_code: code, fault: copied.as_ref().err() })?;
    }
    told.finish()?;
    summary(context, args, &copied, &progress, begun, exit, code)?;
    Ok((exit, fdtcp))
}

pub fn options(args: &CopyArgs) -> Options {
    Options {
        recursive: args.recursive,
        update: args.update,
        checksum: args.checksum,
        verification: args.verify.into(),
        limit: args.limit.map(|rate| rate.0),
        class: args.class.into(),
        filters: args.filters.0.clone(),
        streams: args.streams,
        parallel_files: args.parallel_files,
        bind: args.bind.clone(),
        memory_bytes: args.memory.map_or(longhaul_copy::MEMORY_BYTES, |size| size.0),
        dry_run: args.dry_run,
    }
}

pub fn data_security(args: &CopyArgs) -> DataSecurity {
    args.data_security.into()
}

fn copy_request(args: &CopyArgs) -> Result<CopyRequest, Failure> {
    let Some((target, sources)) = args.places.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(Failure::usage(
            "the target is missing",
            "copy needs a source and a target",
            "longhaul copy SOURCE... TARGET",
        ));
    };
    let endpoint = |text: &String| Endpoint::parse(text).map_err(|fault| copy_failure(&fault));
    Ok(CopyRequest {
        sources: sources.iter().map(endpoint).collect::<Result<_, _>>()?,
        target: endpoint(target)?,
        options: options(args),
        data_security: data_security(args),
        detach: args.detach,
        replicas: args.replicas.iter().map(endpoint).collect::<Result<_, _>>()?,
        blake3: args.blake3.map(|root| root.0),
        circuit: args.circuit.as_deref().map(read_circuit).transpose()?,
    })
}

fn read_circuit(path: &Path) -> Result<CircuitConfig, Fault> {
    let shown = printable(&path.to_string_lossy());
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(CIRCUIT_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| Fault::new(FaultCode::BadRequest, format!("{shown}: {error}")).with_source(error))?;
    CircuitConfig::parse(&text, &shown)
}

/// The report's row for a file; none for what is not a file.
pub fn report_line(outcome: &FileOutcome) -> Option<longhaul_copy::report::Outcome> {
    use longhaul_copy::report::Outcome as Line;
    Some(match &outcome.outcome {
        Outcome::Done { verification } => {
            Line::ok(copied_from(&outcome.replicas), outcome.size).verified(verification.to_string(), None)
        }
        Outcome::Skipped(reason) => Line::ok(format!("skipped: {}", reason.text()), outcome.size),
        Outcome::WouldCopy { .. } => Line::ok("would be copied", 0),
        Outcome::Failed(fault) => Line::from_fault(fault),
        Outcome::LeftOut(_) => return None,
    })
}

/// Which servers contributed, if there were several, and which sent wrong bytes.
fn copied_from(replicas: &[ReplicaShare]) -> String {
    let mut text = "copied".to_owned();
    for share in replicas {
        text.push_str(&format!("; {} from {}", units::bytes(share.bytes), share.replica));
        if let Some(first) = share.wrong.first() {
            let (count, at) = (share.wrong.len(), first.offset);
            text.push_str(&format!(", with {count} corrupt ranges (the first at byte {at})"));
        }
        if let Some(fault) = &share.fault {
            text.push_str(&format!(" ({fault})"));
        }
    }
    text
}

pub fn exit_status(copied: &Result<(), Fault>, progress: &Progress) -> Exit {
    let totals = progress.totals();
    match copied {
        Err(fault) if matches!(fault.code, FaultCode::Interrupted | FaultCode::Cancelled) => {
            Exit::Interrupted
        }
        Err(fault) => Failure::from(fault.clone()).exit,
        Ok(()) if totals.files_failed == 0 => Exit::Ok,
        Ok(()) => {
            let failed = progress.failed();
            let nothing_done = totals.files_done + totals.files_skipped == 0;
            if failed.iter().all(|(_, fault)| fault.code == FaultCode::WrongDigest) {
                Exit::Mismatch
            } else if nothing_done && failed.len() == 1 {
                Failure::from(failed[0].1.clone()).exit
            } else {
                Exit::Partly
            }
        }
    }
}

pub fn summary(
    context: &Context,
    args: &CopyArgs,
    copied: &Result<(), Fault>,
    progress: &Progress,
    begun: Instant,
    exit: Exit,
    code: u8,
) -> Result<Exit, Failure> {
    let totals = progress.totals();
    let failed = progress.failed();
    let elapsed = begun.elapsed();
    if context.output.format == Format::Json {
        let per_second = totals.bytes_moved as f64 / elapsed.as_secs_f64().max(1e-9);
        context.output.json_line(&Event::Summary {
            complete: copied.is_ok() && totals.files_failed == 0,
            exit_code: code,
            seconds: elapsed.as_secs_f64(),
            bytes_per_s: per_second,
            totals: &totals,
            failed: failed.iter().map(|(path, fault)| FailedFile { path, fault }).collect(),
            replicas: progress.replicas(),
            circuit: progress.circuit_notes(),
            fault: copied.as_ref().err(),
        })?;
        return Ok(exit);
    }
    for (path, fault) in failed.iter().take(FAILED_FILES_SHOWN_MAX) {
        context.output.print_message(&format!("failed  {}: {fault}", printable(path)));
    }
    let more = totals.files_failed.saturating_sub(FAILED_FILES_SHOWN_MAX as u64);
    if more > 0 {
        context
            .output
            .print_message(&format!("        and {} more (list all with --report FILE)", units::count(more)));
    }
    match copied {
        Err(fault) if exit == Exit::Interrupted => {
            context.output.print_message(&format!("stopped; {}", fault.detail));
            Ok(exit)
        }
        Err(fault) => Err(copy_failure(fault)),
        Ok(()) => {
            let words = if args.dry_run {
                dry_run_summary(&totals)
            } else {
                copy_summary(&totals, elapsed, args.detach)
            };
            context.output.print_message(&words);
            progress.replicas().iter().for_each(|each| context.output.print_message(&replica_line(each)));
            progress
                .circuit_notes()
                .iter()
                .for_each(|note| context.output.print_message(&circuit_line(note)));
            Ok(exit)
        }
    }
}

/// The failure of a whole copy. A copy has no catalog and no agents: the next step is one of its own.
fn copy_failure(fault: &Fault) -> Failure {
    let failure = Failure::from(fault.clone());
    match fault.code {
        FaultCode::SourceMissing => failure.with_remedy("check the path of the source"),
        FaultCode::ForeignDeployment => failure.with_remedy(
            "use the address that `longhaul serve` printed last there: each start makes a new key",
        ),
        FaultCode::Unreachable => {
            failure.with_remedy("check that `longhaul serve` or sshd runs there and that its port is open")
        }
        FaultCode::NotFound => failure.with_remedy("check the path"),
        FaultCode::Conflict => failure.with_remedy("choose a target outside of the source, or --exclude it"),
        FaultCode::WrongDigest => failure.with_remedy("the copy at the source is damaged: take another one"),
        FaultCode::TargetFull => {
            failure.with_remedy("free space at the target, then repeat the command: what arrived is kept")
        }
        FaultCode::TargetReadOnly => failure.with_remedy(
            "correct the permissions at the target, or serve it with: longhaul serve DIR --write",
        ),
        _ => failure,
    }
}

fn circuit_line(note: &CircuitNote) -> String {
    format!("  {} circuit: {}", time_format::local(note.at, clock::now()), note.words)
}

/// What one of several servers contributed, and what was wrong with it.
fn replica_line(each: &ReplicaTotals) -> String {
    let mut text = format!("  {:>8} from {}", units::bytes(each.bytes), each.replica);
    if each.wrong_ranges > 0 {
        let (ranges, bytes) = (units::count(each.wrong_ranges), units::bytes(each.wrong_bytes));
        let many = if each.wrong_ranges == 1 { "range" } else { "ranges" };
        text.push_str(&format!("; {ranges} {many} ({bytes}) CORRUPT, fetched from another server"));
    }
    match (&each.fault, each.files_faulty) {
        (Some(fault), 0 | 1) => text.push_str(&format!("; {fault}")),
        (Some(fault), files) => {
            text.push_str(&format!("; {} failed there, the first: {fault}", words::files(files)));
        }
        (None, _) => {}
    }
    text
}

fn dry_run_summary(totals: &Totals) -> String {
    let files = totals.files.saturating_sub(totals.files_skipped + totals.files_failed);
    let bytes = totals.bytes.saturating_sub(totals.bytes_skipped);
    let (files, bytes) = (words::files(files), units::bytes(bytes));
    format!("would copy {files}, {bytes}; {} exist already", units::count(totals.files_skipped))
}

/// Summary of the copy, and how its files were verified.
fn copy_summary(totals: &Totals, elapsed: Duration, detached: bool) -> String {
    if detached {
        return "the copy continues at the target; the same command shows its progress".to_owned();
    }
    let fresh = totals.bytes_done.saturating_sub(totals.bytes_resumed);
    let rate = fresh as f64 / elapsed.as_secs_f64().max(1e-9);
    let mut text = format!("{}, {}", words::files(totals.files_done), units::bytes(totals.bytes_done));
    if totals.bytes_resumed > 0 {
        let (fresh, resumed) = (units::bytes(fresh), units::bytes(totals.bytes_resumed));
        text.push_str(&format!(" ({fresh} moved now, {resumed} had come before)"));
    }
    text.push_str(&format!(" in {} ({})", units::duration(elapsed), units::rate(rate)));
    let verified = [
        (totals.verified_end_to_end, "verified end to end (source digest = digest of the bytes written)"),
        (totals.verified_readback, "verified and read back"),
        (totals.verified_wire, "verified on the wire only"),
        (totals.verified_local, "copied by the file system, not verified"),
    ];
    for (files, how) in verified.into_iter().filter(|(files, _)| *files > 0) {
        text.push_str(&format!("; {} {how}", units::count(files)));
    }
    let others = [
        (totals.files_skipped, "existed already"),
        (totals.files_failed, "failed"),
        (totals.left_out, "left out (not files)"),
        (totals.excluded, "excluded"),
    ];
    for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!("; {} {what}", units::count(count)));
    }
    if totals.retries > 0 {
        text.push_str(&format!("; {}", words::retries(totals.retries)));
    }
    if totals.bytes_resent > 0 {
        text.push_str(&format!("; {} resent", units::bytes(totals.bytes_resent)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn parsed(arguments: &[&str]) -> CopyArgs {
        let all = ["longhaul", "copy"].into_iter().chain(arguments.iter().copied());
        match Cli::try_parse_from(all).unwrap().command {
            Command::Copy(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn patterns_keep_their_order() {
        let args = parsed(&["a", "b", "--exclude", "*.tmp", "--include", "x", "--exclude", "y"]);
        let filters = [(false, "*.tmp".into()), (true, "x".into()), (false, "y".into())];
        assert_eq!(options(&args).filters, filters);
    }

    #[test]
    fn the_last_place_is_the_target() {
        let order = copy_request(&parsed(&["a", "b/", "c"])).unwrap();
        assert_eq!((order.sources.len(), order.target), (2, Endpoint::Local("c".into())));
        assert!(super::copy_request(&parsed(&["a"])).unwrap_err().problem.title.contains("target"));
    }

    #[test]
    fn ends_with_the_right_status() {
        let progress = Progress::default();
        assert_eq!(exit_status(&Ok(()), &progress), Exit::Ok);
        let interrupted = Fault::new(FaultCode::Interrupted, "");
        assert_eq!(exit_status(&Err(interrupted), &progress), Exit::Interrupted);
        progress.fail("a", &Fault::new(FaultCode::WrongDigest, ""));
        assert_eq!(exit_status(&Ok(()), &progress), Exit::Mismatch);
        progress.fail("b", &Fault::new(FaultCode::SourceMissing, ""));
        assert_eq!(exit_status(&Ok(()), &progress), Exit::Partly);
    }

    #[test]
    fn the_next_step_is_one_that_a_copy_has() {
        for code in [
            FaultCode::SourceMissing,
            FaultCode::ForeignDeployment,
            FaultCode::Unreachable,
            FaultCode::NotFound,
            FaultCode::Conflict,
            FaultCode::WrongDigest,
            FaultCode::TargetFull,
            FaultCode::TargetReadOnly,
        ] {
            let remedy = copy_failure(&Fault::new(code, "x")).problem.remedy;
            for other in ["longhaul verify", "agent", "queue", "another replica", "with the matching"] {
                assert!(!remedy.contains(other), "{code}: {remedy}");
            }
        }
    }

    #[test]
    fn says_what_was_verified_and_how() {
        let totals = Totals {
            files_done: 3,
            bytes_done: 10,
            verified_end_to_end: 2,
            verified_wire: 1,
            ..Totals::default()
        };
        let text = copy_summary(&totals, Duration::from_secs(1), false);
        assert!(
            text.contains("2 verified end to end") && text.contains("1 verified on the wire only"),
            "{text}"
        );
        let totals = Totals { files_done: 1, bytes_done: 300, bytes_resumed: 100, ..Totals::default() };
        let text = copy_summary(&totals, Duration::from_secs(2), false);
        assert!(
            text.starts_with("1 file, 300 B (200 B moved now, 100 B had come before) in 2.0 s (100 B/s)"),
            "{text}"
        );
    }
}
