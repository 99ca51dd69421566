//! `longhaul simulate --replay`: replays a service's recording into the scheduler and checks that it makes
//! the same decisions.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use longhaul_model::units::{bytes, count, duration, plural, printable};
use longhaul_scheduler::Strategy;
use longhaul_simulator::replay::{
    Difference, Replay, ReplayError, ReplayOptions, ReplayReport, StrategyComparison,
};
use serde::Serialize;

use super::{Context, words};
use crate::failure::{Exit, Failure};
use crate::output::Format;
use crate::table::{Cell, Table, left, right};
use crate::terminal::{Style, Tone};

/// File extension of recording segments.
const SEGMENT_EXTENSION: &str = "lhr";
const CHUNK_BYTES: usize = 1 << 20;
const RECORDING_REMEDY: &str =
    "give a directory written by a service (service.record_dir), one run in it, or a segment 000000.lhr";

/// One object per run with `--json`.
#[derive(Serialize)]
struct ReplayView<'a> {
    recording: String,
    version: &'a str,
    from: longhaul_model::Timestamp,
    to: longhaul_model::Timestamp,
    events: u64,
    observations: u64,
    lessons: u64,
    polls: u64,
    decisions_equal: u64,
    leases: u64,
    same: bool,
    torn_bytes: u64,
    difference: Option<DifferenceView<'a>>,
    beside: Vec<BesideView<'a>>,
}

#[derive(Serialize)]
struct DifferenceView<'a> {
    number: u64,
    at: longhaul_model::Timestamp,
    recorded: &'a str,
    replayed: &'a str,
    fields: &'a [String],
}

#[derive(Serialize)]
struct BesideView<'a> {
    strategy: &'static str,
    choices: u64,
    same: u64,
    bytes_by_source: &'a std::collections::BTreeMap<String, [u64; 2]>,
    example: Option<&'a str>,
}

impl<'a> DifferenceView<'a> {
    fn from_difference(difference: &'a Difference) -> Self {
        DifferenceView {
            number: difference.number,
            at: difference.at,
            recorded: &difference.recorded,
            replayed: &difference.replayed,
            fields: &difference.fields,
        }
    }
}

impl<'a> BesideView<'a> {
    fn from_comparison(beside: &'a StrategyComparison) -> Self {
        BesideView {
            strategy: beside.strategy.name(),
            choices: beside.choices,
            same: beside.same,
            bytes_by_source: &beside.bytes,
            example: beside.example.as_deref(),
        }
    }
}

pub fn run(context: &Context, path: &Path, strategies: &[String]) -> Result<Exit, Failure> {
    let beside = strategies.iter().map(|name| name.parse()).collect::<Result<Vec<Strategy>, _>>();
    let beside = beside
        .map_err(|why| Failure::usage("no such strategy", why.to_string(), "longhaul simulate --help"))?;
    let mut all_same = true;
    for (recording, segments) in find_recordings(path)? {
        let replayed = replay(&recording, &segments, beside.clone())?;
        all_same &= replayed.is_same();
        let name = printable(&recording.to_string_lossy());
        match context.output.format {
            Format::Json => context.output.json_line(&replay_view(name, &replayed))?,
            _ => context.output.write(&replay_text(&name, &replayed, context))?,
        }
    }
    Ok(if all_same { Exit::Ok } else { Exit::Mismatch })
}

/// Finds the recordings at a path, oldest first, each with its segments.
fn find_recordings(path: &Path) -> Result<Vec<(PathBuf, Vec<PathBuf>)>, Failure> {
    let shown = printable(&path.to_string_lossy());
    let about = fs::metadata(path).map_err(|error| Failure::file("reading", path, &error))?;
    if about.is_file() {
        return Ok(vec![(path.to_owned(), vec![path.to_owned()])]);
    }
    let own = entries(path, |entry| entry.extension().is_some_and(|end| end == SEGMENT_EXTENSION))?;
    if !own.is_empty() {
        return Ok(vec![(path.to_owned(), own)]);
    }
    let mut found = Vec::new();
    for run in entries(path, Path::is_dir)? {
        let segments = entries(&run, |entry| entry.extension().is_some_and(|end| end == SEGMENT_EXTENSION))?;
        if !segments.is_empty() {
            found.push((run, segments));
        }
    }
    if found.is_empty() {
        return Err(Failure::usage(
            format!("{shown} contains no recording"),
            "there is no segment",
            RECORDING_REMEDY,
        ));
    }
    Ok(found)
}

fn entries(directory: &Path, wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>, Failure> {
    let trouble = |error: std::io::Error| Failure::file("reading", directory, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(trouble)? {
        let path = entry.map_err(trouble)?.path();
        if wanted(&path) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn replay(recording: &Path, segments: &[PathBuf], beside: Vec<Strategy>) -> Result<ReplayReport, Failure> {
    let cannot = |error: ReplayError| {
        Failure::usage("a recording cannot answer this", error.to_string(), "longhaul simulate --help")
    };
    let mut replay = Replay::new(ReplayOptions { compare: beside, settings: None }).map_err(cannot)?;
    let damaged = |error: ReplayError| {
        let shown = printable(&recording.to_string_lossy());
        let title = format!("{shown} is not a complete recording");
        Failure::usage(title, error.to_string(), RECORDING_REMEDY)
    };
    let mut chunk = vec![0; CHUNK_BYTES];
    for segment in segments {
        let trouble = |error: std::io::Error| Failure::file("reading", segment, &error);
        let mut file = File::open(segment).map_err(trouble)?;
        while !replay.is_over() {
            match file.read(&mut chunk) {
                Ok(0) => break,
                Ok(length) => replay.feed(&chunk[..length]).map_err(damaged)?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(trouble(error)),
            }
        }
    }
    replay.end().map_err(damaged)
}

fn replay_view(recording: String, replayed: &ReplayReport) -> ReplayView<'_> {
    ReplayView {
        recording,
        version: &replayed.version,
        from: replayed.from,
        to: replayed.to,
        events: replayed.inputs.events,
        observations: replayed.inputs.observations,
        lessons: replayed.inputs.imports,
        polls: replayed.inputs.polls,
        decisions_equal: replayed.equal,
        leases: replayed.leases,
        same: replayed.is_same(),
        torn_bytes: replayed.torn,
        difference: replayed.difference.as_ref().map(DifferenceView::from_difference),
        beside: replayed.comparisons.iter().map(BesideView::from_comparison).collect(),
    }
}

fn replay_text(name: &str, replayed: &ReplayReport, context: &Context) -> String {
    let style: Style = context.output.out.style;
    let mut text = String::new();
    let inputs = &replayed.inputs;
    let _ = writeln!(text, "{}", style.paint(Tone::Strong, name));
    let _ = writeln!(
        text,
        "  {} from {}, by longhaul {}: {}, {} by others, {}; polled {}",
        duration(replayed.lasted()),
        replayed.from,
        printable(&replayed.version),
        words::plural(inputs.events, "event"),
        words::plural(inputs.observations, "measurement"),
        words::plural(inputs.imports, "import"),
        words::plural(inputs.polls, "time")
    );
    if replayed.torn > 0 {
        let torn = format!(
            "  the last {} are a partial line, written when the service was killed",
            bytes(replayed.torn)
        );
        let _ = writeln!(text, "{}", style.paint(Tone::Faint, &torn));
    }
    match &replayed.difference {
        None => {
            let line = format!(
                "  same: all {} decisions, {} of them leases, were made again",
                count(replayed.equal),
                count(replayed.leases)
            );
            let _ = writeln!(text, "{}", style.paint(Tone::Good, &line));
        }
        Some(difference) => {
            let line = format!(
                "  different: {} made again, but number {} at {} differs",
                plural(replayed.equal, "decision was", "decisions were"),
                count(difference.number),
                difference.at
            );
            let _ = writeln!(text, "{}", style.paint(Tone::Bad, &line));
            let _ = writeln!(text, "    then  {}", difference.recorded);
            let _ = writeln!(text, "    now   {}", difference.replayed);
            for field in &difference.fields {
                let _ = writeln!(text, "          {}", style.paint(Tone::Faint, field));
            }
            text.push_str("  later events answer decisions that were not made here and are not compared\n");
        }
    }
    for beside in &replayed.comparisons {
        text.push_str(&comparison_text(beside, context));
    }
    text
}

fn comparison_text(beside: &StrategyComparison, context: &Context) -> String {
    let name = beside.strategy.name();
    if beside.choices == 0 {
        return format!("\n  {name}: no lease had a choice of sources\n");
    }
    let mut text = format!(
        "\n  {name} would have chosen the same source in {} of {} cases, each taken separately with the \
            recorded queues\n",
        count(beside.same),
        count(beside.choices)
    );
    let mut table = Table::new([left("source"), right("recorded"), right(name)]);
    for (source, [recorded, other]) in &beside.bytes {
        table.row([Cell::text(source), Cell::bytes(*recorded), Cell::bytes(*other)]);
    }
    for line in table.human(context.output.out.style, None).lines() {
        let _ = writeln!(text, "    {line}");
    }
    if let Some(example) = &beside.example {
        let _ = writeln!(text, "    for example {example}");
    }
    text
}
