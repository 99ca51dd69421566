//! Checks directories for space and speed, with a quick benchmark of a tenth of a gigabyte each way.

use std::io;
use std::path::Path;

use longhaul_model::units::{bytes, printable, rate};

use crate::finding::{Finding, Group};
use crate::parts::disk::{DiskOptions, write_and_read};

/// Bytes written and read by the quick benchmark.
const SPEED_TEST_BYTES: u64 = 100_000_000;
/// Direct I/O is advised if it is faster than flushed writes by this factor.
const DIRECT_IO_GAIN_MIN: f64 = 1.5;

pub(crate) fn check(directory: &Path, path_bytes_per_s: u64) -> Vec<Finding> {
    let shown = printable(&directory.to_string_lossy());
    let space = match rustix::fs::statvfs(directory) {
        Ok(space) => space,
        Err(error) => {
            let error = io::Error::from(error);
            return vec![
                Finding::problem(Group::Disk, shown, format!("cannot be used: {}", error_text(&error)))
                    .remedy("give a directory that exists and that you may enter"),
            ];
        }
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let total = space.f_blocks.saturating_mul(space.f_frsize);
    let mut all = vec![free_space(&shown, free, total)];
    if free > SPEED_TEST_BYTES * 10 {
        all.push(speed(&shown, directory, path_bytes_per_s));
    } else {
        all.push(Finding::unknown(Group::Disk, format!("{shown} speed"), "not measured: too little is free"));
    }
    all
}

fn free_space(shown: &str, free: u64, total: u64) -> Finding {
    let check = format!("{shown} space");
    let share = free as f64 / total.max(1) as f64;
    let found = format!("{} of {} free ({:.0} %)", bytes(free), bytes(total), share * 100.0);
    match share {
        ..0.01 => Finding::problem(Group::Disk, check, found)
            .costs("transfers to it stop")
            .remedy("free space there; queues go on by themselves"),
        ..0.05 => Finding::advice(Group::Disk, check, found)
            .costs("large files do not fit, and most file systems are slow when nearly full")
            .remedy("free space there"),
        _ => Finding::ok(Group::Disk, check, found),
    }
}

fn speed(shown: &str, directory: &Path, path_bytes_per_s: u64) -> Finding {
    let check = format!("{shown} speed");
    let options = DiskOptions { size_bytes: SPEED_TEST_BYTES, ..DiskOptions::default() };
    let [written, read] = match write_and_read(directory, &options) {
        Ok(parts) => parts,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied || is_read_only(&error) => {
            return Finding::advice(Group::Disk, check, format!("cannot be written: {}", error_text(&error)))
                .costs("it can be a source and no target");
        }
        Err(error) => {
            return Finding::problem(Group::Disk, check, format!("fails: {}", error_text(&error)))
                .costs("transfers to and from it fail")
                .remedy("see the kernel's log: dmesg");
        }
    };
    let direct = write_and_read(directory, &DiskOptions { direct: true, ..options }).ok();
    let per_s = |gb_per_s: f64| rate(gb_per_s * 1e9);
    let direct_words = direct.as_ref().map_or("direct I/O is refused".to_owned(), |[write, read]| {
        format!("direct: {} and {}", per_s(write.gb_per_s), per_s(read.gb_per_s))
    });
    let found = format!(
        "writes {} with flushing, reads {} ({direct_words}); {} each",
        per_s(written.gb_per_s),
        per_s(read.gb_per_s),
        bytes(SPEED_TEST_BYTES)
    );
    let wanted = path_bytes_per_s as f64 / 1e9;
    let gain = direct.map(|[write, _]| write.gb_per_s / written.gb_per_s);
    if written.gb_per_s >= wanted {
        return Finding::ok(Group::Disk, check, found);
    }
    let finding = Finding::advice(Group::Disk, check, found).costs(format!(
        "a transfer to it is bounded by {}, not by the path ({})",
        per_s(written.gb_per_s),
        rate(path_bytes_per_s as f64)
    ));
    match gain {
        Some(gain) if gain > DIRECT_IO_GAIN_MIN => finding.remedy(format!(
            "measure more: longhaul bench disk --file {shown} --direct; if it stays {gain:.1} times as fast, \
                set \
             direct_io = true for this storage"
        )),
        _ => finding.remedy(format!(
            "measure more: longhaul bench disk --file {shown}; then more or faster \
            disks"
        )),
    }
}

fn is_read_only(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ReadOnlyFilesystem
}

pub(crate) fn error_text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
