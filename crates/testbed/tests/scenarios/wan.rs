//! The emulated network: what was asked for is what the kernel's TCP meets, and nothing is left afterwards.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use longhaul_testbed::wan::{Change, Counters, Direction, Lab, Options, PathConfig, Side};
use longhaul_testbed::{CommandOutput, Random, needs};
use longhaul_testkit::wait_until;
use rustix::fs::{FlockOperation, flock};

const WITHIN: Duration = Duration::from_secs(60);
const THERE: Direction = Direction::LeftToRight;
const BACK: Direction = Direction::RightToLeft;

#[test]
fn the_kernel_measures_at_least_the_round_trip_that_was_set() {
    let Some(lab) = lab(&[PathConfig::new(30.0), PathConfig::new(60.0)]) else { return };
    for (path, v6, rtt_ms) in [(0, false, 30.0), (0, true, 30.0), (1, false, 60.0), (1, true, 60.0)] {
        let before = lab.counters(path, THERE).packets_carried;
        let (mut left, mut right) = connection(&lab, path, v6);
        left.write_all(b"ping").unwrap();
        right.read_exact(&mut [0; 4]).unwrap();
        right.write_all(b"pong").unwrap();
        left.read_exact(&mut [0; 4]).unwrap();
        let port = left.peer_addr().unwrap().port();
        let mut command = lab.command(Side::Left, "ss");
        let told =
            CommandOutput::from_command(command.args(["-tinH", "dport", "=", &format!(":{port}")]), WITHIN)
                .ok()
                .stdout;
        let measured = told.split_whitespace().find_map(|word| word.strip_prefix("minrtt:"));
        let measured: f64 = measured.unwrap_or_else(|| panic!("no minrtt in {told:?}")).parse().unwrap();
        assert!(measured >= rtt_ms, "{measured} ms on path {path}");
        assert!(lab.counters(path, THERE).packets_carried > before, "it went another way");
    }
    lab.set(0, Change::RttMs(80.0)).unwrap();
    let mut ping = lab.command(Side::Left, "ping");
    let address = lab.address(Side::Right, 0).to_string();
    if needs::program("ping", &["-V"]) {
        let told = CommandOutput::from_command(ping.args(["-c", "2", "-i", "0.2", "-q", &address]), WITHIN)
            .ok()
            .stdout;
        let least = told.split(" = ").nth(1).and_then(|figures| figures.split('/').next());
        assert!(least.unwrap().parse::<f64>().unwrap() >= 80.0, "{told}");
    } else {
        needs::not_run("a changed round trip by ping", "ping is missing");
    }
}

#[test]
fn what_passes_a_lossy_path_arrives_unchanged_and_losses_are_as_many_as_configured() {
    let lossy = PathConfig::new(0.5).loss(0.01).seed(8241);
    let Some(lab) = lab(&[lossy.clone(), lossy.mtu(9000)]) else { return };
    for (path, v6) in [(0, false), (0, true), (1, false), (1, true)] {
        let (left, right) = connection(&lab, path, v6);
        transfer(left, right, 50_000_000);
    }
    for path in [0, 1] {
        let counters = lab.counters(path, THERE);
        let packets = counters.packets() as f64;
        assert!(packets > 10_000.0 && counters.bytes_carried > 100_000_000, "{counters:?}");
        // Six standard deviations of a binomial distribution.
        let (expected, deviation) = (packets * 0.01, (packets * 0.01 * 0.99).sqrt());
        let lost = counters.packets_lost as f64;
        assert!((lost - expected).abs() < 6.0 * deviation, "{lost} lost of {packets}");
        assert!(
            counters.super_packets < counters.packets(),
            "the kernel cut every segment itself: {counters:?}"
        );
        assert_eq!(counters.packets_refused, 0, "the kernel did not like what it was given: {counters:?}");
    }
    assert!(lab.cpu_seconds() > 0.0);
    // The receiving kernel checks lengths and headers. What it drops for them is sent again, and would go
    // unseen here.
    for (file, errors) in
        [("snmp", "InHdrErrors"), ("snmp6", "Ip6InHdrErrors"), ("snmp6", "Ip6InTruncatedPkts")]
    {
        assert_eq!(kernel_counter(&lab, file, errors), 0, "{errors}");
    }
    assert!(kernel_counter(&lab, "snmp6", "Ip6InReceives") > 100, "the counters are those of another place");
    assert!(kernel_counter(&lab, "snmp", "InReceives") > 100, "the counters are those of another place");
}

#[test]
fn a_rate_is_kept_and_its_queue_is_bounded() {
    let queue = 400_000;
    let Some(lab) = lab(&[PathConfig::new(20.0).rate_mbit(200.0).queue_bytes(queue)]) else { return };
    let (left, right) = connection(&lab, 0, false);
    transfer(left, right, 20_000_000);
    let counters = lab.counters(0, THERE);
    assert!(counters.bytes_carried > 20_000_000);
    // The last packet had passed the rate 10 ms before it went out.
    let seconds = (counters.last_out_ns - counters.first_in_ns) as f64 / 1e9 - 0.010;
    let bytes_per_s = 200e6 / 8.0;
    assert!(counters.bytes_carried as f64 <= bytes_per_s * seconds, "{counters:?} in {seconds} s");
    assert!(counters.packets_overflowed > 0, "more than the queue was sent: {counters:?}");
}

#[test]
fn a_cut_path_carries_nothing_until_it_is_restored_and_the_other_goes_on() {
    let Some(lab) = lab(&[PathConfig::new(4.0), PathConfig::new(4.0)]) else { return };
    let (mut left, mut right) = connection(&lab, 0, false);
    left.write_all(b"before").unwrap();
    right.read_exact(&mut [0; 6]).unwrap();

    lab.set(0, Change::Cut).unwrap();
    let at_cut = [THERE, BACK].map(|direction| carried(&lab, direction));
    left.write_all(b"within").unwrap();
    wait_until(|| lab.counters(0, THERE).packets_cut > 0, || "no packet is cut".into());
    let (other_left, other_right) = connection(&lab, 1, false);
    transfer(other_left, other_right, 1_000_000);
    assert_eq!([THERE, BACK].map(|direction| carried(&lab, direction)), at_cut);
    right.set_nonblocking(true).unwrap();
    assert_eq!(right.read(&mut [0; 6]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    right.set_nonblocking(false).unwrap();

    lab.set(0, Change::Restore).unwrap();
    let mut received = [0; 6];
    right.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"within");
}

#[test]
fn a_path_that_is_cut_in_one_direction_carries_the_other() {
    let Some(lab) = lab(&[PathConfig::new(4.0)]) else { return };
    let (mut left, mut right) = connection(&lab, 0, false);
    lab.set(0, Change::CutOneWay(THERE)).unwrap();
    let at_cut = carried(&lab, THERE);
    left.write_all(b"lost").unwrap();
    wait_until(|| lab.counters(0, THERE).packets_cut > 0, || "no packet is cut".into());
    right.write_all(b"this arrives").unwrap();
    left.read_exact(&mut [0; 12]).unwrap();
    assert_eq!((carried(&lab, THERE), lab.counters(0, BACK).packets_cut), (at_cut, 0));
    lab.set(0, Change::Restore).unwrap();
    right.read_exact(&mut [0; 4]).unwrap();
}

#[test]
fn changes_that_make_no_sense_are_refused() {
    for config in [
        PathConfig::new(-1.0),
        PathConfig::new(f64::NAN),
        PathConfig::new(1.0).loss(1.5),
        PathConfig::new(1.0).rate_mbit(0.0),
        PathConfig::new(1.0).mtu(500),
        PathConfig::new(1.0).queue_bytes(100),
    ] {
        Lab::start(std::slice::from_ref(&config)).map(drop).expect_err(&format!("{config:?}"));
    }
    Lab::start(&[]).map(drop).expect_err("no path");
    let Some(lab) = lab(&[PathConfig::new(1.0)]) else { return };
    lab.set(0, Change::Loss(-0.1)).expect_err("a negative probability");
    lab.set(1, Change::Cut).expect_err("a path that is not there");
    lab.set_congestion_control(Side::Left, "perfect").expect_err("what the kernel does not have");
}

#[test]
fn each_namespace_has_its_own_settings_of_tcp() {
    // Who changes the list, for a moment, holds this lock.
    let allowed = || {
        let Ok(mut list) = File::open("/proc/sys/net/ipv4/tcp_allowed_congestion_control") else {
            return String::new();
        };
        flock(&list, FlockOperation::LockShared).unwrap();
        let mut names = String::new();
        list.read_to_string(&mut names).unwrap();
        names
    };
    let before = allowed();
    let options = Options { socket_buffer_bytes_max: 4 << 20, congestion_control: "reno".to_owned() };
    if let Err(why) = Lab::available() {
        return needs::not_run("the emulated network", &why);
    }
    let lab = Lab::start_with(&[PathConfig::new(1.0)], &options).unwrap();
    let setting = |side, name: &str| {
        let path = format!("/proc/sys/net/ipv4/{name}");
        let text = CommandOutput::from_command(lab.command(side, "cat").arg(path), WITHIN).ok().stdout;
        text.split_whitespace().last().unwrap_or_default().to_owned()
    };
    for side in Side::BOTH {
        assert_eq!(setting(side, "tcp_rmem"), "4194304");
        assert_eq!(setting(side, "tcp_wmem"), "4194304");
        assert_eq!(setting(side, "tcp_congestion_control"), "reno");
    }
    lab.set_congestion_control(Side::Left, "cubic").unwrap();
    lab.set_socket_buffers(Side::Left, 32 << 20).unwrap();
    assert_eq!(setting(Side::Left, "tcp_congestion_control"), "cubic");
    assert_eq!(setting(Side::Right, "tcp_congestion_control"), "reno");
    assert_eq!(setting(Side::Left, "tcp_rmem"), "33554432");
    assert_eq!(allowed(), before, "the machine's own setting");
}

#[test]
fn a_lan_carries_and_has_nothing_to_change() {
    if let Err(why) = Lab::available() {
        return needs::not_run("a LAN of namespaces", &why);
    }
    let lab = Lab::lan().unwrap();
    for v6 in [false, true] {
        let (left, right) = connection(&lab, 0, v6);
        transfer(left, right, 5_000_000);
    }
    lab.set(0, Change::Cut).expect_err("a LAN has no emulated path");
    assert_eq!(lab.counters(0, THERE), Counters::default());
}

#[test]
fn nothing_is_left_of_a_laboratory_that_was_dropped_or_whose_owner_panicked() {
    for panics in [false, true] {
        let Some(lab) = lab(&[PathConfig::new(10.0)]) else { return };
        let names = Side::BOTH.map(|side| lab.namespace(side).to_owned());
        assert!(names.iter().all(|name| exists(name)));
        let mut inside = lab.command(Side::Right, "sleep").arg("1000").spawn().unwrap();
        // It is inside once it is no longer `ip`.
        let program = format!("/proc/{}/comm", inside.id());
        wait_until(
            || std::fs::read_to_string(&program).unwrap_or_default() == "sleep\n",
            || "it does not begin".into(),
        );
        let end = AssertUnwindSafe(move || {
            let _lab = lab;
            assert!(!panics, "on purpose");
        });
        assert_eq!(catch_unwind(end).is_err(), panics);
        assert!(!names.iter().any(|name| exists(name)));
        assert_eq!(inside.wait().unwrap().signal(), Some(9), "a process lived on");
    }
}

#[test]
fn what_a_killed_process_left_is_removed_at_the_next_start() {
    let Some(first) = lab(&[PathConfig::new(10.0)]) else { return };
    let mut held = HeldLab::start(&["--rtt", "5"]);
    let names = held.names();
    assert!(names.iter().all(|name| exists(name)));
    held.child.kill().unwrap();
    held.child.wait().unwrap();
    let _second = Lab::lan().unwrap();
    assert!(!names.iter().any(|name| exists(name)), "{names:?}");
    assert!(exists(first.namespace(Side::Left)), "those of living processes stay");
}

#[test]
fn the_program_holds_a_network_and_obeys() {
    if let Err(why) = Lab::available() {
        return needs::not_run("longhaul-wan", &why);
    }
    let mut held = HeldLab::start(&["--rtt", "1", "--paths", "2", "--mtu", "9000"]);
    let names = held.names();
    for line in ["path 0 cut", "path 0 restore", "path 1 loss 1e-3", "path 1 rtt 50", "path 0 rate 100"] {
        assert_eq!(held.request(line), "ok", "{line}");
    }
    for line in ["path 7 cut", "path 0 loss 2", "path 0", "nonsense"] {
        assert!(held.request(line).starts_with("error: "), "{line}");
    }
    drop(held.input.take());
    assert!(held.child.wait().unwrap().success());
    assert!(!names.iter().any(|name| exists(name)));
}

#[test]
fn the_program_runs_a_command_with_the_names_in_its_environment() {
    if let Err(why) = Lab::available() {
        return needs::not_run("longhaul-wan", &why);
    }
    let script = "ip netns exec $LONGHAUL_WAN_LEFT ip -o route get $LONGHAUL_WAN_RIGHT_1; \
                  ip netns exec $LONGHAUL_WAN_RIGHT ip -o route get $LONGHAUL_WAN_LEFT6_0; exit 7";
    let ran = CommandOutput::from_command(program().args(["--paths", "2", "--", "sh", "-c", script]), WITHIN)
        .exits(7);
    assert!(ran.stdout.contains("dev wan1 src 10.77.1.1"), "{ran}");
    assert!(ran.stdout.contains("dev wan0") && ran.stdout.contains("src fd77::2"), "{ran}");
    assert!(ran.stderr.contains("emulator: "), "{ran}");
    let within =
        CommandOutput::from_command(program().args(["--in", "right", "--", "ip", "-o", "address"]), WITHIN)
            .ok();
    assert!(within.stdout.contains("10.77.0.2/24"), "{within}");
    for words in [&["--rtt"][..], &["--rtt", "x", "--", "true"], &["--"], &["--in", "up", "--", "true"]] {
        CommandOutput::from_command(program().args(words), WITHIN).exits(2);
    }
}

// ---- helpers ----------------------------------------------------------------------------------------------

/// None where this machine allows none, which is said loudly.
fn lab(paths: &[PathConfig]) -> Option<Lab> {
    if let Err(why) = Lab::available() {
        needs::not_run("the emulated network", &why);
        return None;
    }
    Some(Lab::start(paths).unwrap())
}

/// A connection from left to right over one path: both its ends.
fn connection(lab: &Lab, path: usize, v6: bool) -> (TcpStream, TcpStream) {
    let address: IpAddr =
        if v6 { lab.address_v6(Side::Right, path).into() } else { lab.address(Side::Right, path).into() };
    let listen = || TcpListener::bind(SocketAddr::new(address, 0));
    let listener = lab.inside(Side::Right, listen).unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let left = lab.inside(Side::Left, || TcpStream::connect_timeout(&to, WITHIN)).unwrap().unwrap();
    let (right, _) = listener.accept().unwrap();
    for end in [&left, &right] {
        end.set_read_timeout(Some(WITHIN)).unwrap();
        end.set_write_timeout(Some(WITHIN)).unwrap();
    }
    (left, right)
}

/// Sends random bytes from left to right and compares their digests.
fn transfer(mut left: TcpStream, mut right: TcpStream, bytes: usize) {
    let mut data = vec![0; bytes];
    Random::new(bytes as u64).fill(&mut data);
    let expected = blake3::hash(&data);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            left.write_all(&data).unwrap();
            left.shutdown(std::net::Shutdown::Write).unwrap();
            // The connection stays until the other side has all.
            let _ = left.read(&mut [0]);
        });
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            match right.read(&mut buffer).unwrap() {
                0 => break,
                length => hasher.update(&buffer[..length]),
            };
        }
        drop(right);
        assert_eq!(hasher.count(), bytes as u64);
        assert_eq!(hasher.finalize(), expected, "the content has changed on the way");
    });
}

/// What the kernel on the right counts: a name and its number on a line, or names on one line and numbers on
/// the next.
fn kernel_counter(lab: &Lab, file: &str, name: &str) -> u64 {
    let text =
        CommandOutput::from_command(lab.command(Side::Right, "cat").arg(format!("/proc/net/{file}")), WITHIN)
            .ok()
            .stdout;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    for (number, line) in lines.iter().enumerate() {
        match line.iter().position(|word| *word == name) {
            Some(0) => return line[1].parse().unwrap(),
            Some(place) => return lines[number + 1][place].parse().unwrap(),
            None => {}
        }
    }
    panic!("{name} is not in {text}");
}

fn carried(lab: &Lab, direction: Direction) -> u64 {
    lab.counters(0, direction).packets_carried
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_longhaul-wan"))
}

/// `longhaul-wan --hold`, ready.
struct HeldLab {
    child: Child,
    input: Option<std::process::ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    told: Vec<String>,
}

impl HeldLab {
    fn start(options: &[&str]) -> HeldLab {
        let mut command = program();
        command
            .args(options)
            .arg("--hold")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut held = HeldLab { child, input, output, told: Vec::new() };
        while held.told.last().is_none_or(|line| line != "ready") {
            let line = held.line();
            held.told.push(line);
        }
        held
    }

    fn names(&self) -> Vec<String> {
        let value = |name: &str| self.told.iter().find_map(|line| Some(line.strip_prefix(name)?.to_owned()));
        ["LONGHAUL_WAN_LEFT=", "LONGHAUL_WAN_RIGHT="].map(|name| value(name).unwrap()).to_vec()
    }

    fn request(&mut self, line: &str) -> String {
        writeln!(self.input.as_ref().unwrap(), "{line}").unwrap();
        self.line()
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.output.read_line(&mut line).unwrap() > 0, "it has ended: {:?}", self.told);
        line.trim_end().to_owned()
    }
}

impl Drop for HeldLab {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
