//! The words above the tables of `docs/benchmarks/behaviour.md`.

use super::options::Options;

const HEAD: &str = "\
# Behaviour

`cargo xtask bench behaviour [CASE...] [--quick] [--scale FACTOR] [--files-max N] [--rounds N] [--disk DIR] \
[--json]` prints what
follows; `--page FILE` and `--rows FILE` write it. It needs root: both sides are network namespaces, joined \
by a pair of virtual
Ethernet devices (LAN) or by the emulator of the testbed.

* A rate is payload over the wall time of `longhaul copy`, from start to exit, unless a column says \
otherwise. MB is 10^6 bytes.
* CPU time is that of both ends, without the path's emulator. Peak memory is that of the end that took more, \
its sockets included.
* Data travel by TLS 1.3, and every file's digest is compared end to end; contents are compared again \
outside the time.
* Rows of other names are what limits ours, measured in the same run.

";

pub(crate) fn words(options: &Options) -> String {
    let scaled = if (options.scale - 1.0).abs() < 1e-9 {
        String::new()
    } else {
        format!(" Bytes are {} of those by default: starts and ends weigh more.", options.scale)
    };
    format!("{HEAD}Medians of {} rounds.{scaled}\n\n", options.rounds)
}
