//! Rates of the catalog, as one JSON object: registration of 10^6 files, lease-to-outcome cycles, first page
//! of a new subscription, `check`, and the memory and CPU that all this took.
//!
//! `cargo run --release -p longhaul-catalog --example rates [FILES [CYCLES [BATCH]]]`

use std::time::Instant;

use longhaul_catalog::{
    AttemptTimes, Catalog, Incarnation, LeaseResult, ManifestError, NewAttempt, NewFile, NewSubscription,
    ReportItem, ReportedFact, ReportedOutcome, StorageOfferRow,
};
use longhaul_model::{
    AgentId, AttemptId, Digest, Epoch, Fault, FaultCode, FileId, IdMaker, NameRules, StorageId, StorageKind,
    SubscriptionId, Timestamp, TransferId, Verification,
};

const NOW: Timestamp = Timestamp(1_800_000_000_000_000);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse::<u64>());
    let (files, cycles, batch) = (next(1_000_000)?, next(100_000)?, next(1_000)?);
    let directory = tempfile::Builder::new().prefix("rates").tempdir_in(std::env::temp_dir())?;
    let catalog = Catalog::open(&directory.path().join("catalog.db"), NOW)?;
    let storages = two_sites(&catalog)?;
    let (dataset, _) = catalog.create_dataset(&"bench/run7".parse()?, &"bench".parse()?, NOW)?;

    let start = Instant::now();
    let mut lines = (1..=files).map(|line| {
        let lfn = format!("bench/run7/raw/{:04}/event-data-{line:012}.root", line / 1_000);
        let refused = |error: longhaul_model::NameError| ManifestError {
            line,
            fault: Fault::new(FaultCode::BadName, error.to_string()),
        };
        Ok(NewFile {
            lfn: lfn.parse().map_err(refused)?,
            size: 64_000 + line % 1_000,
            digests: [Digest::adler32(line as u32 | 1), Digest::crc32c(line as u32)].into_iter().collect(),
            block: None,
            line,
        })
    });
    catalog.add_files(dataset.id, &mut lines, Some(storages[0]), NOW)?;
    let registration = start.elapsed();
    let after_registration = memory_kib("VmHWM");

    let start = Instant::now();
    let wish = NewSubscription {
        id: SubscriptionId(1),
        dataset: dataset.id,
        block: None,
        target: storages[1],
        priority: 5,
        verification: Verification::EndToEnd,
        terms: longhaul_catalog::Terms::default(),
        custodial: false,
    };
    let demands = catalog.add_subscription(&wish, NOW)?.demands;
    let subscribed = start.elapsed();
    let page = catalog.expand(demands[0].block, storages[1], None, batch as usize)?;
    let first_lease = start.elapsed();
    assert!(!page.files.is_empty(), "there is something to move");

    let mut ids = IdMaker::default();
    let (mut done, mut sequence, mut begin_s, mut apply_s) = (0, 0, 0.0, 0.0);
    let mut demands = demands.iter();
    let start = Instant::now();
    while done < cycles {
        let mut attempts = Vec::new();
        while attempts.len() < batch as usize {
            let Some(demand) = demands.next() else { break };
            let page = catalog.expand(demand.block, storages[1], None, batch as usize)?;
            attempts.extend(page.files.iter().map(|file| lease(&mut ids, file.file, &storages)));
        }
        if attempts.is_empty() {
            break;
        }
        for leases in attempts.chunks(batch as usize) {
            let begun = Instant::now();
            let answers = catalog.begin_attempts(leases, NOW)?;
            begin_s += begun.elapsed().as_secs_f64();
            assert!(answers.iter().all(|answer| *answer == LeaseResult::Leased), "all were free");
            let items: Vec<ReportItem> = leases.iter().map(|lease| outcome(&mut sequence, lease)).collect();
            let applied = Instant::now();
            catalog.apply_report(AgentId(2), &items, sequence, NOW)?;
            apply_s += applied.elapsed().as_secs_f64();
            done += leases.len() as u64;
        }
    }
    let cycle = start.elapsed();
    let start = Instant::now();
    let sound = catalog.check()?.iter().all(|result| result.violations == 0);
    let check = start.elapsed();
    let cpu = cpu_seconds();
    print_line(&format!(
        "{{\"files\":{files},\"files_per_s\":{:.0},\"memory_after_registration_kib\":{after_registration},\
         \"subscribe_ms\":{:.1},\"first_page_ms\":{:.1},\"cycles\":{done},\"batch\":{batch},\
         \"cycles_per_s\":{:.0},\
         \"begin_per_s\":{:.0},\"apply_per_s\":{:.0},\"check_s\":{:.2},\"sound\":{sound},\"cpu_s\":{cpu:.1},\
         \"memory_peak_kib\":{},\"memory_now_kib\":{},\"database_bytes\":{}}}",
        files as f64 / registration.as_secs_f64(),
        subscribed.as_secs_f64() * 1e3,
        first_lease.as_secs_f64() * 1e3,
        done as f64 / cycle.as_secs_f64(),
        done as f64 / begin_s,
        done as f64 / apply_s,
        check.as_secs_f64(),
        memory_kib("VmHWM"),
        memory_kib("VmRSS"),
        std::fs::metadata(directory.path().join("catalog.db"))?.len(),
    ));
    Ok(())
}

fn two_sites(catalog: &Catalog) -> Result<Vec<StorageId>, Box<dyn std::error::Error>> {
    let mut storages = Vec::new();
    for (agent, name) in [(AgentId(1), "alpha"), (AgentId(2), "beta")] {
        let (site, _) = catalog.add_site(&name.parse()?, NOW)?;
        catalog.add_agent(agent, site.id, name, Timestamp::MAX, NOW)?;
        let offer = StorageOfferRow {
            name: name.parse()?,
            kind: StorageKind::Posix,
            rules: NameRules::default(),
            writable: true,
            case_insensitive: false,
            shared_root: None,
        };
        let first = Incarnation { number: 1, nonce: 1 };
        storages.push(catalog.agent_hello(agent, first, name, "1", &[], &[offer], NOW)?.storages[0].id);
    }
    Ok(storages)
}

fn lease(ids: &mut IdMaker, file: FileId, storages: &[StorageId]) -> NewAttempt {
    let transfer: TransferId = ids.next(NOW);
    let attempt: AttemptId = ids.next(NOW);
    NewAttempt {
        transfer,
        attempt,
        epoch: Epoch(1),
        file,
        source: storages[0],
        target: storages[1],
        agent: AgentId(2),
        subscription: SubscriptionId(1),
        start_by: NOW,
        choice: [
            r#"{"reason":"the only replica","candidates":[{"storage":"alpha","chosen":true,"#,
            r#""finish_us":1200345,"rate_bytes_per_s":1.1e8,"bytes_ahead":123456789,"#,
            r#""failure_share":0.0,"unusable":null}],"#,
            r#""waited_us":1234,"waited_for":"a slot"}"#,
        ]
        .concat(),
    }
}

fn outcome(sequence: &mut u64, lease: &NewAttempt) -> ReportItem {
    *sequence += 1;
    ReportItem {
        sequence: *sequence,
        fact: ReportedFact::Outcome(ReportedOutcome {
            attempt: lease.attempt,
            epoch: lease.epoch,
            fault: None,
            digests: [Digest::crc32c(lease.file.0 as u32)].into_iter().collect(),
            verification: Verification::EndToEnd,
            already_there: false,
            bytes_moved: 64_000,
            bytes_resent: 0,
            executor: None,
            times: AttemptTimes {
                received: NOW,
                started: Some(NOW),
                committed: Some(NOW),
                ..Default::default()
            },
        }),
    }
}

fn memory_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|text| text.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// User and system time of this process; the kernel counts in hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|text| text.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

#[allow(clippy::print_stdout)]
fn print_line(text: &str) {
    println!("{text}");
}
