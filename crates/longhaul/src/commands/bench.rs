//! `longhaul bench`: measures the parts of a transfer separately and names the bottleneck.

use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use longhaul_doctor::parts::Part;
use longhaul_doctor::parts::disk::{self, DiskOptions, Flush};
use longhaul_doctor::parts::floor::{Floor, FloorOptions, floor};
use longhaul_doctor::parts::network::{self, Mode, NetworkOptions, NetworkRun};
use longhaul_doctor::parts::terabyte::{Terabyte, terabyte};
use longhaul_doctor::tune;
use longhaul_model::FaultCode;
use longhaul_model::units::{bytes, duration, parse_bytes, printable, rate};
use parking_lot::Mutex;

use super::Context;
use crate::failure::{Exit, Failure, plain_io};
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::Style;

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Write and read one file in blocks
    Disk(DiskArgs),
    /// Send from memory to memory over loopback or to a peer, in clear text and encrypted
    Network(NetworkArgs),
    /// Generate a virtual terabyte, checksum, encrypt, send, decrypt, verify and discard it
    Terabyte(TerabyteArgs),
    /// Measure TCP, encryption, checksum and disk separately and name the bottleneck
    Floor(FloorArgs),
}

#[derive(Debug, Args)]
pub struct DiskArgs {
    /// Directory for a temporary file, or the file to read or create [default: current directory]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    shape: DiskShape,
    /// Read FILE
    #[arg(long, requires = "file", conflicts_with = "write")]
    read: bool,
    /// Create FILE, which must not exist, and keep it
    #[arg(long, requires = "file")]
    write: bool,
}

#[derive(Debug, Args)]
struct DiskShape {
    /// Size of the file
    #[arg(long, default_value = "1GB", value_parser = parse_bytes)]
    size: u64,
    /// Size of a buffer
    #[arg(long, default_value = "1MiB", value_parser = parse_bytes)]
    block: u64,
    /// Buffers per system call
    #[arg(long, visible_alias = "count-buffers", value_name = "N", default_value_t = 1)]
    buffers: usize,
    /// When to flush data to disk
    #[arg(long, value_enum, default_value_t = FlushMode::End)]
    sync: FlushMode,
    /// Bypass the page cache (O_DIRECT)
    #[arg(long)]
    direct: bool,
    /// Read from the page cache
    #[arg(long)]
    cached: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FlushMode {
    /// Leave it to the kernel
    None,
    /// Once, within the measured time
    End,
    /// Data, with every write (O_DSYNC)
    #[value(name = "dsync")]
    EachData,
    /// Data and metadata, with every write (O_SYNC)
    #[value(name = "sync")]
    EachAll,
}

impl DiskShape {
    fn options(&self) -> Result<DiskOptions, Failure> {
        Ok(DiskOptions {
            size_bytes: self.size,
            block_bytes: usize::try_from(self.block).unwrap_or(usize::MAX),
            buffers: self.buffers,
            flush: match self.sync {
                FlushMode::None => Flush::None,
                FlushMode::End => Flush::End,
                FlushMode::EachData => Flush::Dsync,
                FlushMode::EachAll => Flush::Sync,
            },
            direct: self.direct,
            cold: !self.cached,
        })
    }
}

#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// Receive and discard what others send with --connect, until Ctrl-C
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "connect")]
    listen: Option<String>,
    /// Exit after one run
    #[arg(long, requires = "listen")]
    once: bool,
    /// Send to a peer that listens
    #[arg(long, value_name = "HOST:PORT")]
    connect: Option<String>,
    /// Bytes to send in each mode
    #[arg(long, default_value = "4GB", value_parser = parse_bytes)]
    size: u64,
    /// Number of TCP connections
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(network::STREAMS_MAX))
    )]
    streams: u32,
    /// Only this mode [default: plain, then sealed]
    #[arg(long, value_enum)]
    mode: Option<NetworkMode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NetworkMode {
    /// TCP only
    Plain,
    /// Encrypted with AES-128-GCM
    Sealed,
    /// Encrypted, with crc32c at both ends
    Checked,
}

#[derive(Debug, Args)]
pub struct TerabyteArgs {
    /// How much of it to send
    #[arg(long, default_value = "20GB", value_parser = parse_bytes)]
    size: u64,
    /// Number of TCP connections
    #[arg(
        long,
        default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(network::STREAMS_MAX))
    )]
    streams: u32,
}

#[derive(Debug, Args)]
pub struct FloorArgs {
    /// Bytes for each part
    #[arg(long, default_value = "1GB", value_parser = parse_bytes)]
    size: u64,
    /// Number of TCP connections
    #[arg(
        long,
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(network::STREAMS_MAX))
    )]
    streams: u32,
    /// Directory whose disk is measured [default: current directory]
    #[arg(long, value_name = "DIR")]
    disk: Option<PathBuf>,
    /// Skip the disk: from memory to memory
    #[arg(long, conflicts_with = "disk")]
    no_disk: bool,
    /// Rate of the link between the hosts, to compare with
    #[arg(long, value_name = "RATE", value_parser = tune::parse_bandwidth)]
    link: Option<u64>,
}

pub fn run(context: &Context, command: BenchCommand) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Disk(args) => run_disk(context, &args),
        BenchCommand::Network(args) => run_network(context, &args),
        BenchCommand::Terabyte(args) => run_terabyte(context, &args),
        BenchCommand::Floor(args) => run_floor(context, &args),
    }
}

fn run_disk(context: &Context, args: &DiskArgs) -> Result<Exit, Failure> {
    let options = args.shape.options()?;
    let here = PathBuf::from(".");
    let path = args.file.as_deref().unwrap_or(&here);
    let failed = |error: io::Error| disk_failed("measuring", path, &error);
    let parts = if args.read {
        vec![disk::read(path, &options).map_err(failed)?]
    } else if args.write {
        let part = disk::write(path, &options).map_err(failed)?;
        context.output.print_message(&format!("{} is kept.", printable(&path.to_string_lossy())));
        vec![part]
    } else if path.is_dir() {
        disk::write_and_read(path, &options).map_err(failed)?.into()
    } else {
        let why = "it is not a directory, so --read or --write is needed";
        return Err(Failure::usage(
            format!("it is not clear what to do with --file {}", printable(&path.to_string_lossy())),
            why,
            "add --read to read it, or --write to create it",
        ));
    };
    context.output.table(&parts, |parts| parts_table(parts))?;
    Ok(Exit::Ok)
}

/// The system's error, or ours for options that make no sense.
fn disk_failed(doing: &str, path: &Path, error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() {
        return Failure::usage("the options are not valid", error.to_string(), "longhaul bench disk --help");
    }
    Failure::file(doing, path, error)
}

fn network_failed(error: &io::Error) -> Failure {
    let code = match error.kind() {
        io::ErrorKind::InvalidData => FaultCode::Corrupted,
        io::ErrorKind::InvalidInput => FaultCode::BadRequest,
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            FaultCode::ConnectionLost
        }
        io::ErrorKind::WouldBlock => FaultCode::Stalled,
        _ => FaultCode::Unreachable,
    };
    Failure::new(code, plain_io(error))
        .with_remedy("run on the peer: longhaul bench network --listen ADDR:PORT, and open the port")
}

fn run_network(context: &Context, args: &NetworkArgs) -> Result<Exit, Failure> {
    if let Some(address) = &args.listen {
        return listen(context, address, args.once);
    }
    let peer = args.connect.as_deref().map(resolve).transpose()?;
    let modes = match args.mode {
        Some(NetworkMode::Plain) => vec![Mode::Plain],
        Some(NetworkMode::Sealed) => vec![Mode::Sealed],
        Some(NetworkMode::Checked) => vec![Mode::Checked],
        None => vec![Mode::Plain, Mode::Sealed],
    };
    let mut runs = Vec::new();
    for mode in modes {
        let options = NetworkOptions { bytes: args.size, streams: args.streams, mode };
        let progress = Progress::new(context, args.size);
        let told = |bytes| progress.add(bytes);
        let run = match peer {
            Some(address) => network::connect(address, &options, &told),
            None => network::loopback(&options, &told),
        };
        progress.end();
        runs.push(run.map_err(|error| network_failed(&error))?);
    }
    context.output.table(&runs, |runs| {
        let mut table =
            Table::new([right("rate"), right("sender"), right("receiver"), right("bytes"), prose("how")]);
        for run in runs {
            table.row([
                Cell::rate(run.part.gb_per_s * 1e9),
                cpu_cell(run.sender_cpu_s_per_gb),
                cpu_cell(run.receiver_cpu_s_per_gb),
                Cell::bytes(run.part.bytes),
                Cell::text(&run.part.how),
            ]);
        }
        table
    })?;
    Ok(Exit::Ok)
}

fn resolve(text: &str) -> Result<SocketAddr, Failure> {
    let wrong = |why: String| {
        Failure::usage("the address is not valid", why, "write HOST:PORT, such as far.example:7471")
    };
    let mut all = text.to_socket_addrs().map_err(|error| wrong(plain_io(&error)))?;
    all.next().ok_or_else(|| wrong(format!("{} has no address", printable(text))))
}

fn listen(context: &Context, address: &str, once: bool) -> Result<Exit, Failure> {
    let address = resolve(address)?;
    let listener = TcpListener::bind(address).map_err(|error| {
        Failure::new(FaultCode::from_listen_error(error.kind()), plain_io(&error))
            .with_title(format!("cannot listen on {address}"))
            .with_remedy("choose another port, or stop the process that uses it: ss -ltnp")
    })?;
    let bound = listener.local_addr().unwrap_or(address);
    context
        .output
        .print_message(&format!("listening on {bound} and discarding what arrives; stop with Ctrl-C"));
    let ended = AtomicU32::new(0);
    network::listen(&listener, &|peer, received| match received {
        Ok(one) => {
            context.output.print_message(&format!("{peer}: received {}", bytes(one.bytes)));
            once && ended.fetch_add(1, Ordering::Relaxed) + 1 >= one.streams
        }
        Err(error) => {
            context.output.print_message(&format!("{peer}: {}", plain_io(error)));
            false
        }
    })
    .map_err(|error| network_failed(&error))?;
    Ok(Exit::Ok)
}

fn run_terabyte(context: &Context, args: &TerabyteArgs) -> Result<Exit, Failure> {
    let progress = Progress::new(context, args.size);
    let done = terabyte(args.size, args.streams, &|bytes| progress.add(bytes));
    progress.end();
    let done = done.map_err(|error| network_failed(&error))?;
    context.output.view(
        &done,
        |done, _, _| terabyte_text(done),
        |done| parts_table(std::slice::from_ref(&done.run.part)),
    )?;
    Ok(Exit::Ok)
}

fn terabyte_text(done: &Terabyte) -> String {
    let NetworkRun { part, sender_cpu_s_per_gb, receiver_cpu_s_per_gb, .. } = &done.run;
    format!(
        "{} of a virtual terabyte in {}: {}, every chunk verified\n\
         {} CPU s/GB (sender {:.2}, receiver {:.2}); {}\n\
         a whole terabyte would take {} and {} of CPU time\n",
        bytes(part.bytes),
        duration(Duration::from_secs_f64(part.seconds)),
        rate(part.gb_per_s * 1e9),
        two_decimals(part.cpu_s_per_gb),
        sender_cpu_s_per_gb,
        receiver_cpu_s_per_gb,
        part.how,
        duration(Duration::from_secs_f64(done.terabyte_s)),
        duration(Duration::from_secs_f64(done.cpu_s_per_terabyte)),
    )
}

fn run_floor(context: &Context, args: &FloorArgs) -> Result<Exit, Failure> {
    let here = PathBuf::from(".");
    let directory = (!args.no_disk).then(|| args.disk.as_deref().unwrap_or(&here));
    let options = FloorOptions {
        bytes: args.size,
        streams: args.streams,
        directory,
        disk: DiskOptions { size_bytes: args.size, ..DiskOptions::default() },
        link_bytes_per_s: args.link,
    };
    let done =
        floor(&options).map_err(|error| disk_failed("measuring", directory.unwrap_or(&here), &error))?;
    context.output.view(&done, floor_text, |done| parts_table(&done.parts))?;
    Ok(Exit::Ok)
}

fn floor_text(done: &Floor, style: Style, width: Option<usize>) -> String {
    let mut text = parts_table(&done.parts).human(style, width);
    let _ = writeln!(
        text,
        "\nall parts together: {} CPU s/GB on {} CPUs",
        two_decimals(done.cpu_s_per_gb),
        done.cpus
    );
    let mut table = Table::new([left("bound"), right("at most")]);
    for limit in &done.limits {
        table.row([Cell::text(&limit.what), Cell::rate(limit.gb_per_s * 1e9)]);
    }
    text.push_str(&table.human(style, width));
    let _ = writeln!(text, "limited by: {} ({})", done.limited_by, rate(done.gb_per_s_max * 1e9));
    text
}

fn parts_table(parts: &[Part]) -> Table {
    let mut table = Table::new([left("part"), right("rate"), right("cpu"), right("bytes"), prose("how")]);
    for part in parts {
        table.row([
            Cell::text(&part.part),
            Cell::rate(part.gb_per_s * 1e9),
            cpu_cell(part.cpu_s_per_gb),
            Cell::bytes(part.bytes),
            Cell::text(&part.how),
        ]);
    }
    table
}

fn cpu_cell(cpu_s_per_gb: f64) -> Cell {
    Cell::both(format!("{} s/GB", two_decimals(cpu_s_per_gb)), format!("{cpu_s_per_gb:.4}"))
}

fn two_decimals(value: f64) -> String {
    format!("{value:.2}")
}

/// A line on the terminal that is overwritten; nothing without a terminal.
struct Progress<'a> {
    context: &'a Context,
    total: u64,
    done: AtomicU64,
    began: Instant,
    shown: Mutex<Option<Instant>>,
}

impl<'a> Progress<'a> {
    fn new(context: &'a Context, total: u64) -> Progress<'a> {
        Progress { context, total, done: AtomicU64::new(0), began: Instant::now(), shown: Mutex::new(None) }
    }

    fn visible(&self) -> bool {
        self.context.output.error.is_terminal && !self.context.output.quiet
    }

    fn add(&self, bytes_more: u64) {
        let done = self.done.fetch_add(bytes_more, Ordering::Relaxed) + bytes_more;
        // If it is locked, another thread is updating the line.
        let Some(mut shown) = self.shown.try_lock() else { return };
        let recent = shown.unwrap_or(self.began).elapsed() < Duration::from_millis(250);
        if recent || !self.visible() {
            return;
        }
        *shown = Some(Instant::now());
        let per_s = done as f64 / self.began.elapsed().as_secs_f64();
        let left = Duration::from_secs_f64(self.total.saturating_sub(done) as f64 / per_s.max(1.0));
        let percent = crate::table::percent(done, self.total);
        let line = format!(
            "\r\u{1b}[K{percent:3} %  {} of {}  {}  {} left",
            bytes(done),
            bytes(self.total),
            rate(per_s),
            duration(left)
        );
        let _ = self.context.output.error.write(&line);
    }

    fn end(&self) {
        let shown = self.shown.lock().is_some();
        if shown {
            let _ = self.context.output.error.write("\r\u{1b}[K");
        }
    }
}
