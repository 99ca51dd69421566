//! `longhaul submit`: submits copy jobs from URL to URL to the service.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use longhaul_api::fts::submission::Rules;
use longhaul_api::fts::{Submission, UrlNames};
use longhaul_api::jobs::{JobFileSubmit, JobSubmit, JobView};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_model::units::printable;
use longhaul_model::{CommunityName, Fault, FaultCode};
use longhaul_scheduler::Strategy;
use serde_json::{Map, Value};

use super::{Context, job, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;

/// The service's limit for a request body.
const FILE_BYTES_MAX: u64 = 16 << 20;
const JOBS_MAX: usize = 10_000;

#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// URL of the source file, such as https://a.example/data/f1
    #[arg(required_unless_present = "file")]
    source: Option<String>,
    /// URL of the target file, such as https://b.example/data/f1
    #[arg(required_unless_present = "file")]
    target: Option<String>,
    /// File with jobs in FTS's JSON format, one or a list; - is standard input
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["source", "target", "single"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    single: SingleJobArgs,
    /// Community whose share is charged [default: that of the credential]
    #[arg(long)]
    community: Option<CommunityName>,
    /// Wait for the jobs to end, with progress; with SECONDS at most that long
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    wait: Option<u64>,
}

/// Options that a file of jobs contains itself.
#[derive(Debug, Args)]
#[group(id = "single", multiple = true)]
struct SingleJobArgs {
    /// URL of another replica of the file; may be repeated
    #[arg(long, value_name = "URL")]
    replica: Vec<String>,
    /// Expected checksum, such as ADLER32:0a1b2c3d
    #[arg(long, value_name = "ALGORITHM:VALUE")]
    checksum: Option<String>,
    /// Where to verify the checksum: source, target, both or none
    #[arg(long, value_name = "WHICH", value_parser = ["source", "target", "both", "none"])]
    verify: Option<String>,
    /// Size of the file
    #[arg(long, value_name = "BYTES")]
    size: Option<u64>,
    /// Overwrite an existing target
    #[arg(long)]
    overwrite: bool,
    /// Number of retries [default: the service's]
    #[arg(long)]
    retries: Option<u32>,
    /// Priority of the job: 1 (lowest) to 5, as a subscription's 1, 3, 5, 6 and 8 of 9 [default: 3]
    #[arg(long, short, value_parser = clap::value_parser!(u8).range(job::PRIORITIES))]
    priority: Option<u8>,
    /// Activity within the community, such as production
    #[arg(long)]
    activity: Option<String>,
    /// How to choose one of several replicas
    #[arg(long)]
    strategy: Option<Strategy>,
    /// Metadata shown with the job: a JSON object
    #[arg(long, value_name = "JSON", value_parser = parse_object)]
    metadata: Option<Map<String, Value>>,
    /// File with the bearer token for the source
    #[arg(long, value_name = "FILE")]
    source_token: Option<PathBuf>,
    /// File with the bearer token for the target
    #[arg(long, value_name = "FILE")]
    target_token: Option<PathBuf>,
}

fn parse_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

pub async fn run(context: &Context, remote: &Remote, args: SubmitArgs) -> Result<Exit, Failure> {
    let several = args.file.is_some();
    let jobs = match args.file {
        Some(file) => jobs_from_file(&file, args.community.as_ref())?,
        None => vec![single_job(args.source, args.target, args.community, args.single)?],
    };
    let mut made: Vec<JobView> = Vec::with_capacity(jobs.len());
    for job in &jobs {
        match remote.post(&routes::JOB_SUBMIT, &[], job).await {
            Ok(view) => made.push(view),
            Err(failure) if made.is_empty() => return Err(failure),
            Err(mut failure) => {
                // Jobs submitted before have started and must not be forgotten.
                let ids: Vec<String> = made.iter().map(|job| job.id.to_string()).collect();
                failure.problem.detail = format!(
                    "the first {1} of {0} jobs were submitted ({2}), then: {3}",
                    jobs.len(),
                    made.len(),
                    ids.join(" "),
                    failure.problem.detail
                );
                return Err(failure);
            }
        }
    }
    if let Some(seconds) = args.wait {
        let ids: Vec<_> = made.iter().map(|job| job.id).collect();
        let limit = (seconds > 0).then(|| Duration::from_secs(seconds));
        return job::wait(context, remote, &ids, limit).await;
    }
    if !several && let [one] = made.as_slice() {
        context.output.sentence(one, submitted_sentence)?;
        return Ok(Exit::Ok);
    }
    let page = Page { items: made, next: None };
    context
        .output
        .sentence(&page, |page| page.items.iter().map(submitted_sentence).collect::<Vec<_>>().join("\n"))?;
    Ok(Exit::Ok)
}

fn submitted_sentence(job: &JobView) -> String {
    let target = job.target.as_ref().map(|target| format!(" to {}", printable(target))).unwrap_or_default();
    format!("{}: {}{target} submitted; see: longhaul job show {}", job.id, words::files(job.files), job.id)
}

fn single_job(
    source: Option<String>,
    target: Option<String>,
    community: Option<CommunityName>,
    given: SingleJobArgs,
) -> Result<JobSubmit, Failure> {
    let file = JobFileSubmit {
        sources: source.into_iter().chain(given.replica).collect(),
        target: target.unwrap_or_default(),
        size: given.size,
        checksum: given.checksum,
        metadata: None,
        source_token: given.source_token.as_deref().map(read_token).transpose()?,
        target_token: given.target_token.as_deref().map(read_token).transpose()?,
    };
    Ok(JobSubmit {
        community,
        files: vec![file],
        priority: given.priority,
        activity: given.activity,
        overwrite: given.overwrite,
        retries: given.retries,
        verify: given.verify,
        strategy: given.strategy.map(|strategy| strategy.to_string()),
        metadata: given.metadata,
        ..JobSubmit::default()
    })
}

/// Reads a token from a file, so that it does not appear in the process list.
fn read_token(path: &Path) -> Result<String, Failure> {
    Ok(read(path)?.trim().to_owned())
}

fn read(path: &Path) -> Result<String, Failure> {
    let wrong = |error| Failure::file("reading", path, &error);
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(wrong)?)
    };
    let mut text = String::new();
    source.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(wrong)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("{} has more than {FILE_BYTES_MAX} bytes", printable(&path.to_string_lossy()));
        return Err(Fault::new(FaultCode::TooLarge, why).into());
    }
    Ok(text)
}

fn jobs_from_file(path: &Path, community: Option<&CommunityName>) -> Result<Vec<JobSubmit>, Failure> {
    parse(&read(path)?, &printable(&path.to_string_lossy()), community)
}

/// All jobs are checked before the first is submitted.
fn parse(text: &str, name: &str, community: Option<&CommunityName>) -> Result<Vec<JobSubmit>, Failure> {
    let wrong = |why: String| {
        Failure::usage(
            format!("{name} contains no jobs that can be submitted"),
            why,
            "correct it and submit it again (nothing was begun); for the format see \
                docs/howto/copy-between-storages.md",
        )
    };
    let document: Value =
        serde_json::from_str(text).map_err(|error| wrong(format!("it is not JSON: {error}")))?;
    let listed = document.is_array();
    let jobs = match document {
        Value::Array(jobs) => jobs,
        one => vec![one],
    };
    if jobs.is_empty() || jobs.len() > JOBS_MAX {
        return Err(wrong(format!("it has {} jobs; 1 to {JOBS_MAX} are allowed", jobs.len())));
    }
    // The service checks the size of metadata and host aliases itself.
    let rules = Rules {
        now: clock::now(),
        metadata_bytes: usize::MAX,
        auth_method: "oauth2",
        names: UrlNames::elsewhere(),
    };
    let mut submissions = Vec::with_capacity(jobs.len());
    for (place, job) in jobs.into_iter().enumerate() {
        let which = if listed { format!("job {}: ", place + 1) } else { String::new() };
        Submission::parse(&job, &rules).map_err(|refusal| wrong(format!("{which}{}", refusal.message)))?;
        let Value::Object(fts) = job else { continue };
        submissions.push(JobSubmit { community: community.cloned(), fts: Some(fts), ..JobSubmit::default() });
    }
    Ok(submissions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_holds_one_job_or_a_list_and_all_are_looked_at() {
        let good = r#"{"files":[{"sources":["https://a/x"],"destinations":["https://b/x"]}],"params":null}"#;
        assert_eq!(parse(good, "f", None).unwrap().len(), 1);
        assert_eq!(parse(&format!("[{good},{good}]"), "f", None).unwrap().len(), 2);
        let bad = r#"{"files":[{"sources":["https://a/x"]}]}"#;
        let failure = parse(&format!("[{good},{bad}]"), "f", None).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert_eq!(failure.problem.detail, "job 2: Missing parameter: destinations");
        for wrong in ["", "[]", "7", "[7]", "{}"] {
            assert!(parse(wrong, "f", None).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it(text in "[\\[\\]{}\":,a-z0-9 ]{0,80}") {
            let _ = parse(&text, "f", None);
        }
    }
}
