//! Two network namespaces with a wide-area network between them, emulated packet by packet, so that the
//! kernel's real TCP (windows, loss recovery, pacing, cubic or bbr) is exercised by whole programs.
//!
//! The kernel's own emulator (netem) is not everywhere. Here a thread per direction carries packets from one
//! TUN device to another and applies delay, rate, loss and a bounded queue. Super-packets of up to 64 kB pass
//! in one piece, which makes over 1 GB/s possible on two cores; rate and loss are those of the segments they
//! would be on the wire.
//!
//! Not here: reordering, duplication, jitter, ECN marks, several networks in a row. Start with [`Lab`].

mod config;
mod lab;
mod line;
mod namespace;
mod packet;
mod sockets;
mod stall;
mod tun;
mod worker;

pub use config::{Change, Counters, Direction, Options, PACKET_PAYLOAD_FRACTION, PathConfig, Side};
pub use lab::Lab;
pub use sockets::SocketMemory;
pub use stall::{DATA_BYTES, Stall};
