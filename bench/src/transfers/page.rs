//! The words above the tables of `docs/benchmarks/transfers.md`.

pub(crate) const HEAD: &str = "\
# Transfers against peers

`cargo xtask bench transfers [CASE...] [--quick] [--rounds N] [--limit SECONDS] [--only PROGRAM]... [--json] \
[--against FILE]`
installs the peers from Debian packages, runs all programs in turn and prints what follows; `--page FILE` \
and `--rows FILE` write it.
With `--book FILE` each run is kept as it ends, and not made again by the next command with that book. It \
needs root: both sides are network namespaces, joined by a pair of virtual Ethernet devices (LAN) or by the \
emulator of the testbed
(WAN).

* A rate is payload over the wall time of the client's whole command, from start to exit: connecting, \
handshakes and
  verification are inside. MB is 10^6 bytes. The server is started before and ended after.
* CPU time is that of all processes of the two sides, their children included; that of the path's emulator \
is apart. The emulator
  does part of the receiver's work (the kernel's), so CPU time of LAN cases says more about a program.
* Peak memory of a side is the sum of the peaks (`VmHWM`) of its processes that lived at the same time, plus \
its TCP sockets; what
  processes share is counted in each. Looked at every 20 ms.
* Files lie on a file system in memory, new files at the receiver. Memory is touched beforehand and kept \
from going back to the
  host. Contents are compared with the source after each run, outside the time.
* A program that is missing or fails is a row that says FAILED; one that needs longer than the limit is \
stopped, and not run again.
* Peers behind the best two of their case, against which no bar is held there, are run once: their rows \
say \"one run\".
* Peers run with the best settings that their documentation gives; they are printed at the end.
* The second half is the time in which the second half of the bytes arrived.

";
