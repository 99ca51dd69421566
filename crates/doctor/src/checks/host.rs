//! Checks the host: clock, file limits, CPU, kernel features.

use longhaul_model::units::{bytes, count};

use crate::facts::HostFacts;
use crate::finding::{Finding, Group};
use crate::sys::ClockState;

/// Open files that an agent needs for some hundreds of transfers.
const OPEN_FILES_ADVISED: u64 = 65_536;
/// Open files below which transfers fail.
const OPEN_FILES_MIN: u64 = 4_096;
/// Clock error beyond which tokens and certificates fail at their edges.
const CLOCK_ERROR_US_MAX: i64 = 1_000_000;

/// Facts that only the running kernel can tell.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KernelProbes {
    pub(crate) clock: Option<ClockState>,
    pub(crate) kernel_tls: Option<bool>,
    pub(crate) openat2: Option<bool>,
}

impl KernelProbes {
    pub(crate) fn run() -> KernelProbes {
        KernelProbes {
            clock: crate::sys::clock_state().ok(),
            kernel_tls: crate::sys::has_kernel_tls().ok(),
            openat2: has_openat2(),
        }
    }
}

fn has_openat2() -> Option<bool> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, ".", flags, Mode::empty(), ResolveFlags::BENEATH) {
        Ok(_) => Some(true),
        // Seccomp filters answer `EPERM` to calls that they do not know.
        Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Some(false),
        Err(_) => None,
    }
}

pub(crate) fn check(facts: &HostFacts, probes: &KernelProbes) -> Vec<Finding> {
    vec![
        clock(probes.clock),
        open_files(facts),
        processor(facts),
        kernel_tls(probes),
        openat2_support(facts, probes),
        pressure(facts),
    ]
}

fn clock(state: Option<ClockState>) -> Finding {
    let check = "clock";
    let Some(state) = state else { return Finding::unknown(Group::Host, check, "the kernel does not tell") };
    let off = state.offset_us.unsigned_abs() as f64 / 1e3;
    let error = state.error_us_max as f64 / 1e3;
    let finding = if !state.synchronised {
        Finding::advice(Group::Host, check, "the kernel says that nobody sets it")
    } else if state.error_us_max > CLOCK_ERROR_US_MAX {
        Finding::advice(Group::Host, check, format!("{off:.1} ms off, and may be by {error:.0} ms"))
    } else {
        return Finding::ok(
            Group::Host,
            check,
            format!("{off:.1} ms off, set by NTP (surely within {error:.0} ms)"),
        );
    };
    finding
        .costs(
            "when it drifts, certificates, tokens and permits are refused, and times in logs do not compare",
        )
        .remedy("systemctl enable --now systemd-timesyncd    (or chrony)")
}

fn open_files(facts: &HostFacts) -> Finding {
    let check = "open files";
    let Some((soft, hard)) = facts.open_files else {
        return Finding::unknown(Group::Host, check, "/proc/self/limits cannot be read");
    };
    let word = |limit: Option<u64>| limit.map_or("without limit".to_owned(), count);
    let found = format!("{} for this process, {} at the most", word(soft), word(hard));
    let remedy = |finding: Finding| {
        let finding = finding.remedy("in the unit of the agent: LimitNOFILE=1048576");
        if hard.is_none_or(|hard| hard >= OPEN_FILES_ADVISED) {
            finding.remedy(format!("for this shell: ulimit -n {OPEN_FILES_ADVISED}"))
        } else {
            finding
        }
    };
    match soft {
        Some(..OPEN_FILES_MIN) => remedy(
            Finding::problem(Group::Host, check, found)
                .costs("some hundred transfers at once end with \"too many open files\""),
        ),
        Some(..OPEN_FILES_ADVISED) => remedy(
            Finding::advice(Group::Host, check, found)
                .costs("thousands of files and streams at once do not fit"),
        ),
        _ => Finding::ok(Group::Host, check, found),
    }
}

fn processor(facts: &HostFacts) -> Finding {
    let check = "cpu";
    let cpu = &facts.processor;
    let (Some(aes), Some(carryless)) = (cpu.aes, cpu.carryless) else {
        return Finding::unknown(Group::Host, check, "/proc/cpuinfo does not list what it can do");
    };
    let has = [(aes, "AES"), (cpu.wide_aes == Some(true), "VAES"), (carryless, "carry-less multiplication")];
    let has: Vec<&str> = has.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
    let model = cpu.model.as_deref().unwrap_or("a CPU");
    let memory = facts.memory_bytes.map_or(String::new(), |memory| format!("; {} of memory", bytes(memory)));
    let found = format!(
        "{} × {model} with {}{memory}",
        cpu.cpus,
        if has.is_empty() { "none of AES, VAES, PCLMUL".into() } else { has.join(", ") }
    );
    if aes && carryless {
        return Finding::ok(Group::Host, check, found);
    }
    Finding::advice(Group::Host, check, found)
        .costs("encryption takes 5 to 20 times the CPU time")
        .remedy("in a virtual machine: pass the host's CPU through (cpu mode host-passthrough)")
}

fn kernel_tls(probes: &KernelProbes) -> Finding {
    let check = "kernel tls";
    match probes.kernel_tls {
        Some(true) => Finding::ok(Group::Host, check, "there"),
        // Harmless while records are handled in large batches in user space.
        Some(false) => Finding::ok(
            Group::Host,
            check,
            "not there (modprobe tls brings it); records are handled in the program",
        ),
        None => Finding::unknown(Group::Host, check, "cannot be asked"),
    }
}

fn openat2_support(facts: &HostFacts, probes: &KernelProbes) -> Finding {
    let check = "openat2";
    let kernel = facts.kernel.as_deref().unwrap_or("unknown");
    match probes.openat2 {
        Some(true) => Finding::ok(Group::Host, check, format!("there (kernel {kernel})")),
        Some(false) => Finding::advice(Group::Host, check, format!("not there (kernel {kernel})"))
            .costs(
                "exported roots are guarded component by component: as safe, a system call more for each \
                level",
            )
            .remedy("kernel 5.6 or later; in a container: a seccomp profile that knows openat2"),
        None => Finding::unknown(Group::Host, check, "cannot be asked"),
    }
}

fn pressure(facts: &HostFacts) -> Finding {
    let check = "pressure";
    if facts.io_pressure {
        return Finding::ok(Group::Host, check, "the kernel tells when others wait for the disks (PSI)");
    }
    Finding::advice(Group::Host, check, "the kernel does not tell when others wait for the disks (no PSI)")
        .costs("transfers cannot give way to local users before their disks are slow")
        .remedy("boot with psi=1")
}
