//! What more of everything costs: files under way at once, and files in one job.

use std::fs;
use std::path::Path;
use std::time::Instant;

use longhaul_testbed::wan::Lab;

use super::options::Options;
use super::report::{Bound, Figures, OURS, Session};
use super::scene::{Scene, Wish, bytes_below};
use crate::measure::make_files;
use crate::transfers::case::CASES;
use crate::transfers::floor;
use crate::transfers::memory::Memory;
use crate::transfers::run::Failure;

pub(crate) const NAME: &str = "growth";
pub(crate) const WHAT: &str = "LAN, files in memory. The same 64 files (2 GB) with 1 to 64 of them under way \
    at once; then jobs of 1,000 files of 1 kB \
     and of ten times as many, up to `--files-max`. A job's start is what one file of 1 kB takes; it is \
     taken off in the last column";
const FILES: usize = 64;
const FILE_BYTES: usize = 32_000_000;
const FILES_CONCURRENT: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const SMALL_FILE_BYTES: usize = 1_000;
const JOB_FILES_MIN: usize = 1_000;
/// Bound for half the difference of the highest and the lowest value, over their middle.
const SPREAD_MAX: f64 = 0.1;
const PER_S: &str = "files/s";
const PER_S_RUNNING: &str = "files/s without start";

pub(crate) fn run(memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let lab = Lab::lan()?;
    concurrent_files(&lab, memory, options, session)?;
    jobs(&lab, memory, options, session)
}

fn concurrent_files(
    lab: &Lab,
    memory: &Memory,
    options: &Options,
    session: &mut Session,
) -> Result<(), String> {
    let scene = Scene::new(lab, memory)?;
    make_files(&scene.source, FILES, options.scaled(FILE_BYTES));
    let bytes = bytes_below(&scene.source)?;
    let counts: &[usize] = if options.quick { &[1, 8, 64] } else { &FILES_CONCURRENT };
    let setting = |count: usize| format!("{count} at once");
    for _ in 0..options.rounds {
        for &count in counts {
            let moved = scene.pull(&Wish::flags(format!("--parallel-files {count}")));
            session.record(
                NAME,
                &setting(count),
                OURS,
                moved.map(|moved| Figures::from_command(&moved, bytes)),
            );
        }
        let parts = floor::parts(lab, memory.path()).map_err(Failure::Failed);
        let floor = parts.map(|parts| {
            let run = parts.as_run(floor::NAMES[0], &CASES[0]);
            Figures { cpu_s_per_gb: Some(run.cpu_s_per_gb()), ..Figures::rate(run.mb_per_s()) }
        });
        session.record(NAME, "any", "floor", floor);
    }
    let figures: Vec<Option<Figures>> =
        counts.iter().map(|&count| session.get(NAME, &setting(count), OURS)).collect();
    let spread_of = |value: &dyn Fn(&Figures) -> Option<f64>| {
        spread(&figures.iter().map(|figures| value(figures.as_ref()?)).collect::<Option<Vec<f64>>>()?)
    };
    let (rate, cpu) = (spread_of(&|figures| figures.mb_per_s), spread_of(&|figures| figures.cpu_s_per_gb));
    session.bar(NAME, "MB/s, 1 to 64 at once: off the middle by", rate, Bound::AtMost(SPREAD_MAX));
    session.bar(NAME, "CPU s/GB, 1 to 64 at once: off the middle by", cpu, Bound::AtMost(SPREAD_MAX));
    Ok(())
}

fn jobs(lab: &Lab, memory: &Memory, options: &Options, session: &mut Session) -> Result<(), String> {
    let one = "1 file";
    for _ in 0..options.rounds {
        let start = job(lab, memory, 1, None)?;
        let seconds = start.as_ref().ok().map(|(_, seconds)| *seconds);
        session.record(NAME, one, OURS, start.map(|(figures, _)| figures));
        for count in counts(options.files_max) {
            let setting = format!("{count} files");
            session.record(
                NAME,
                &setting,
                OURS,
                job(lab, memory, count, seconds)?.map(|(figures, _)| figures),
            );
            session.record(NAME, &setting, "write and rename", plain(memory, count).map_err(Failure::Failed));
        }
    }
    let rates: Option<Vec<f64>> = counts(options.files_max)
        .map(|count| session.get(NAME, &format!("{count} files"), OURS)?.get(PER_S_RUNNING))
        .collect();
    let measured = rates.and_then(|rates| spread(&rates));
    let what =
        format!("files/s without start, {JOB_FILES_MIN} to {} files: off the middle by", options.files_max);
    session.bar(NAME, what, measured, Bound::AtMost(SPREAD_MAX));
    Ok(())
}

fn counts(most: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(JOB_FILES_MIN), |count| Some(count * 10))
        .take_while(move |count| *count <= most)
}

type Job = Result<(Figures, f64), Failure>;

/// One job of so many files: figures, and how long it took.
fn job(lab: &Lab, memory: &Memory, count: usize, start: Option<f64>) -> Result<Job, String> {
    let scene = Scene::new(lab, memory)?;
    make_files(&scene.source, count, SMALL_FILE_BYTES);
    let bytes = (count * SMALL_FILE_BYTES) as u64;
    Ok(scene.pull(&Wish::default()).map(|moved| {
        let running = start.filter(|start| moved.seconds > *start).map(|start| moved.seconds - start);
        let figures = Figures::from_command(&moved, bytes)
            .with(PER_S, Some(count as f64 / moved.seconds))
            .with(PER_S_RUNNING, running.map(|seconds| count as f64 / seconds));
        (figures, moved.seconds)
    }))
}

/// What the file system itself takes for so many new files under final names, one thread.
fn plain(memory: &Memory, count: usize) -> Result<Figures, String> {
    let folder = memory.path().join("plain");
    let bytes = [7u8; SMALL_FILE_BYTES];
    let work = |folder: &Path| {
        fs::create_dir_all(folder)?;
        let begun = Instant::now();
        for number in 0..count {
            let temporary = folder.join("temporary");
            fs::write(&temporary, bytes)?;
            fs::rename(&temporary, folder.join(format!("f{number:05}")))?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        fs::remove_dir_all(folder)?;
        Ok::<_, std::io::Error>(seconds)
    };
    let seconds = work(&folder).map_err(|error| format!("plain files: {error}"))?;
    let rate = (count * SMALL_FILE_BYTES) as f64 / 1e6 / seconds;
    Ok(Figures::rate(rate).with(PER_S, Some(count as f64 / seconds)))
}

/// How far the lowest and the highest are from their middle, as a share of it.
fn spread(values: &[f64]) -> Option<f64> {
    let most = values.iter().copied().reduce(f64::max)?;
    let least = values.iter().copied().reduce(f64::min)?;
    (most + least > 0.0).then(|| (most - least) / (most + least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_percent_off_the_middle_is_flat() {
        assert!((spread(&[90.0, 100.0, 110.0]).unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(spread(&[5.0]), Some(0.0));
        assert_eq!(spread(&[]), None);
        assert_eq!(counts(100_000).collect::<Vec<_>>(), [1_000, 10_000, 100_000]);
    }
}
