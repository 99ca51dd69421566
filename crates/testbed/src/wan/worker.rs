//! The thread of one direction: reads packets from one device, asks the [`Line`] when they are due, writes
//! them to the other.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write, writev};
use rustix::process::setpriority_process;
use rustix::time::{ClockId, clock_gettime};

use super::config::{Change, Counters};
use super::line::Line;

/// Packets read before those that are due go out.
const READS_AT_ONCE: usize = 64;
/// The least is -20.
const PRIORITY: i32 = -15;

/// What a direction has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    pub(super) counters: Counters,
    pub(super) cpu_seconds: f64,
}

struct Order {
    change: Option<Change>,
    answer: SyncSender<Report>,
}

/// Dropping it ends the thread and waits for it.
#[derive(Debug)]
pub(super) struct Worker {
    /// None while it ends.
    orders: Option<Sender<Order>>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(super) fn start(name: &str, from: Arc<File>, to: Arc<File>, line: Line) -> Result<Worker, String> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| format!("making an event descriptor: {error}"))?;
        let bell = Arc::new(bell);
        let (orders, received) = channel();
        let mut carrier = Carrier { from, to, bell: Arc::clone(&bell), orders: received, line };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || carrier.run())
            .map_err(|error| format!("starting a thread of the emulator: {error}"))?;
        Ok(Worker { orders: Some(orders), bell, thread: Some(thread) })
    }

    /// Does as told, and tells how things stand then.
    pub(super) fn order(&self, change: Option<Change>) -> Result<Report, String> {
        let dead = || "a thread of the emulator has ended".to_owned();
        let (answer, answered) = sync_channel(1);
        self.orders.as_ref().ok_or_else(dead)?.send(Order { change, answer }).map_err(|_| dead())?;
        self.ring();
        answered.recv().map_err(|_| dead())
    }

    fn ring(&self) {
        // It can only fail when the counter is full, and then the bell is ringing.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Carrier {
    from: Arc<File>,
    to: Arc<File>,
    bell: Arc<OwnedFd>,
    orders: Receiver<Order>,
    line: Line,
}

impl Carrier {
    fn run(&mut self) {
        // An emulator that waits for a processor behind the programs under test lengthens their path. Before
        // them, it is they that wait, and TCP slows down the sender as on a real network. Without the right
        // to it, it goes as it may.
        let _ = setpriority_process(None, PRIORITY);
        loop {
            let more = self.read_packets();
            self.write_packets();
            if self.wait(more) && !self.obey() {
                return;
            }
        }
    }

    /// Whether more may be there.
    fn read_packets(&mut self) -> bool {
        for _ in 0..READS_AT_ONCE {
            let length = match read(&self.from, self.line.space()) {
                Ok(length) => length,
                Err(Errno::INTR) => continue,
                // Nothing is there, or the device is down, as someone in the namespace may want it: the bell
                // is heard in any case.
                Err(_) => return false,
            };
            self.line.arrive(now_ns(), length);
        }
        true
    }

    fn write_packets(&mut self) {
        let to = &self.to;
        self.line.deliver(now_ns(), |headers, payload| {
            if payload.is_empty() {
                return write(to, headers).is_ok();
            }
            writev(to, &[IoSlice::new(headers), IoSlice::new(payload)]).is_ok()
        });
    }

    /// Until something arrives or is due, and not before a rest. Whether there are orders.
    fn wait(&self, more: bool) -> bool {
        if more {
            return self.sleep(false, Some(0));
        }
        let rest_ns = self.line.rest_ns();
        if rest_ns > 0 && self.sleep(false, Some(rest_ns)) {
            return true;
        }
        self.sleep(true, self.line.next_ns().map(|due_ns| due_ns.saturating_sub(now_ns())))
    }

    /// Until the bell rings, the time is over or, if wanted, a packet arrives. Whether it was the bell.
    fn sleep(&self, until_packet: bool, timeout_ns: Option<u64>) -> bool {
        let timeout = timeout_ns
            .map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
        let packet = if until_packet { PollFlags::IN } else { PollFlags::empty() };
        let mut watched = [
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.from.as_fd(), packet),
        ];
        match poll(&mut watched, timeout.as_ref()) {
            Ok(_) => watched[0].revents().contains(PollFlags::IN),
            Err(_) => false,
        }
    }

    /// Whether to go on.
    fn obey(&mut self) -> bool {
        let _ = read(&self.bell, &mut [0_u8; 8]);
        loop {
            match self.orders.try_recv() {
                Ok(order) => {
                    if let Some(change) = order.change {
                        self.line.change(change);
                    }
                    let report = Report { counters: self.line.counters(), cpu_seconds: thread_seconds() };
                    // Whoever asked may have gone.
                    let _ = order.answer.send(report);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// CPU time of this thread, user and system.
fn thread_seconds() -> f64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// The devices of both ends, and the threads between them.
#[derive(Debug)]
pub(super) struct Wire {
    workers: [Worker; 2],
}

impl Wire {
    pub(super) fn start(number: usize, left: File, right: File, lines: [Line; 2]) -> Result<Wire, String> {
        let (left, right) = (Arc::new(left), Arc::new(right));
        let [there, back] = lines;
        Ok(Wire {
            workers: [
                Worker::start(&format!("wan{number}-there"), Arc::clone(&left), Arc::clone(&right), there)?,
                Worker::start(&format!("wan{number}-back"), right, left, back)?,
            ],
        })
    }

    pub(super) fn workers(&self) -> &[Worker; 2] {
        &self.workers
    }
}
