//! `longhaul-wan`: an emulated wide-area network for one command, or for as long as standard input is open.
//!
//! Everything is in `longhaul_testbed::wan`; here are only words of command lines.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fmt::Write as _;
use std::io::BufRead;
use std::process::{Command, ExitCode};

use longhaul_testbed::wan::{Change, Counters, Direction, Lab, Options, PathConfig, Side};

const HELP: &str = "\
Two network namespaces, left and right, with an emulated wide-area network between them.

Usage: longhaul-wan [OPTIONS] [--in left|right] -- COMMAND [WORD...]
       longhaul-wan [OPTIONS] --hold
       longhaul-wan [OPTIONS] --check

The command is run without a shell, outside unless --in says where. It finds in its environment
  LONGHAUL_WAN_LEFT, LONGHAUL_WAN_RIGHT            the namespaces' names, for `ip netns exec NAME ...`
  LONGHAUL_WAN_LEFT_0, LONGHAUL_WAN_RIGHT_0        the addresses on path 0 (then _1, ...)
  LONGHAUL_WAN_LEFT6_0, LONGHAUL_WAN_RIGHT6_0      the same, IPv6
Its exit status is ours. What the emulator did is told at the end on standard error.

Options:
  --rtt MS          round trip, half of it each way              [default: 20]
  --rate MBIT       rate of each direction in Mbit/s             [default: no limit]
  --loss P          probability of the loss of a packet          [default: 0]
  --queue BYTES     what may wait before the rate                [default: one BDP, at least 256 kB]
  --mtu BYTES                                                    [default: 1500]
  --paths N         so many paths, all alike                     [default: 1]
  --seed N          other losses                                 [default: 1]
  --buffers BYTES   upper end of tcp_rmem and tcp_wmem           [default: 268435456]
  --congestion NAME cubic, bbr, ...                              [default: cubic]
  --lan             no emulation: a pair of virtual Ethernet devices, MTU 9000
  --hold            print the names and wait; lines on standard input change paths, its end ends all:
                      path 0 cut | path 0 restore | path 0 loss 1e-3 | path 0 rtt 50 | path 0 rate 100 | \
                      path 0 blackhole 1400
                      path 0 rate none | path 0 cut left-to-right | path 0 cut right-to-left | show
  --check           say whether this machine allows it
";

/// As with a command line that cannot be understood anywhere in Longhaul.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().take_while(|word| *word != "--").any(|word| word == "--help" || word == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let wish = match Wish::read(&words) {
        Ok(wish) => wish,
        Err(problem) => {
            eprintln!("longhaul-wan: {problem}\nnext: longhaul-wan --help");
            return ExitCode::from(USAGE);
        }
    };
    match wish.grant() {
        Ok(status) => status,
        Err(problem) => {
            eprintln!("longhaul-wan: {problem}");
            ExitCode::FAILURE
        }
    }
}

enum Action {
    Run { side: Option<Side>, command: Vec<String> },
    Hold,
    Check,
}

struct Wish {
    path: PathConfig,
    paths: usize,
    lan: bool,
    options: Options,
    action: Action,
}

impl Wish {
    fn read(words: &[String]) -> Result<Wish, String> {
        let mut wish = Wish {
            path: PathConfig::new(20.0),
            paths: 1,
            lan: false,
            options: Options::default(),
            action: Action::Run { side: None, command: Vec::new() },
        };
        let mut side = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--rtt" => wish.path.rtt_ms = number(word, value()?)?,
                "--rate" => wish.path.rate_mbit = rate(value()?)?,
                "--loss" => wish.path.loss = number(word, value()?)?,
                "--queue" => wish.path.queue_bytes = Some(number(word, value()?)?),
                "--mtu" => wish.path.mtu = number(word, value()?)?,
                "--paths" => wish.paths = number(word, value()?)?,
                "--seed" => wish.path.seed = number(word, value()?)?,
                "--buffers" => wish.options.socket_buffer_bytes_max = number(word, value()?)?,
                "--congestion" => wish.options.congestion_control.clone_from(value()?),
                "--in" => side = Some(side_named(value()?)?),
                "--lan" => wish.lan = true,
                "--hold" => wish.action = Action::Hold,
                "--check" => wish.action = Action::Check,
                "--" => {
                    if let Action::Run { command, .. } = &mut wish.action {
                        command.extend(words.by_ref().cloned());
                    }
                }
                _ => return Err(format!("{word:?} is not known")),
            }
        }
        if let Action::Run { side: within, command } = &mut wish.action {
            *within = side;
            if command.is_empty() {
                return Err("a command is missing after --".to_owned());
            }
        }
        Ok(wish)
    }

    fn grant(self) -> Result<ExitCode, String> {
        if let Action::Check = self.action {
            return Lab::available().map(|()| {
                println!("emulated paths are possible here");
                ExitCode::SUCCESS
            });
        }
        let lab = if self.lan {
            Lab::lan_with(&self.options)?
        } else {
            Lab::start_with(&vec![self.path; self.paths], &self.options)?
        };
        let status = match &self.action {
            Action::Run { side, command } => run(&lab, *side, command)?,
            Action::Hold | Action::Check => hold(&lab),
        };
        if !self.lan {
            eprint!("{}", account(&lab));
        }
        Ok(status)
    }
}

fn run(lab: &Lab, side: Option<Side>, words: &[String]) -> Result<ExitCode, String> {
    let [program, arguments @ ..] = words else { return Err("a command is missing".to_owned()) };
    let mut command = side.map_or_else(|| Command::new(program), |side| lab.command(side, program));
    command.args(arguments).envs(names(lab));
    let status = command.status().map_err(|error| format!("{program}: {error}"))?;
    Ok(status.code().map_or(ExitCode::FAILURE, |code| ExitCode::from(code as u8)))
}

fn hold(lab: &Lab) -> ExitCode {
    for (name, value) in names(lab) {
        println!("{name}={value}");
    }
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match obey(lab, &line) {
            Ok(answer) => println!("{answer}"),
            Err(problem) => println!("error: {problem}"),
        }
    }
    ExitCode::SUCCESS
}

fn obey(lab: &Lab, line: &str) -> Result<String, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (path, change) = match words.as_slice() {
        [] => return Ok(String::new()),
        ["show"] => return Ok(account(lab).trim_end().to_owned()),
        ["path", path, "cut"] => (path, Change::Cut),
        ["path", path, "cut", way] => (path, Change::CutOneWay(direction_named(way)?)),
        ["path", path, "restore"] => (path, Change::Restore),
        ["path", path, "loss", value] => (path, Change::Loss(number("loss", value)?)),
        ["path", path, "rtt", value] => (path, Change::RttMs(number("rtt", value)?)),
        ["path", path, "rate", value] => (path, Change::RateMbit(rate(value)?)),
        ["path", path, "blackhole", "off"] => (path, Change::BlackHole(None)),
        ["path", path, "blackhole", value] => (path, Change::BlackHole(Some(number("blackhole", value)?))),
        _ => {
            return Err(format!(
                "{line:?} is not known: path N cut [left-to-right|right-to-left]|restore|loss P|rtt MS|rate \
                    MBIT|blackhole BYTES|blackhole off, or show"
            ));
        }
    };
    lab.set(number("path", path)?, change).map(|()| "ok".to_owned())
}

fn names(lab: &Lab) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for side in Side::BOTH {
        let word = side.name().to_uppercase();
        names.push((format!("LONGHAUL_WAN_{word}"), lab.namespace(side).to_owned()));
        for path in 0..lab.paths() {
            names.push((format!("LONGHAUL_WAN_{word}_{path}"), lab.address(side, path).to_string()));
            names.push((format!("LONGHAUL_WAN_{word}6_{path}"), lab.address_v6(side, path).to_string()));
        }
    }
    names
}

fn account(lab: &Lab) -> String {
    let mut text = String::new();
    for path in 0..lab.paths() {
        for (direction, arrow) in Direction::BOTH.into_iter().zip(["left to right", "right to left"]) {
            let counted = lab.counters(path, direction);
            let _ = writeln!(text, "path {path} {arrow}: {}", describe(&counted));
        }
    }
    let _ = writeln!(text, "emulator: {:.2} CPU s", lab.cpu_seconds());
    text
}

fn describe(counted: &Counters) -> String {
    let mut text = format!(
        "{:.1} MB in {} packets ({} super-packets), {} lost, {} overflowed; at most {:.1} MB held; late by \
            {:.2} ms, \
         at most {:.1} ms",
        counted.bytes_carried as f64 / 1e6,
        counted.packets_carried,
        counted.super_packets,
        counted.packets_lost,
        counted.packets_overflowed,
        counted.bytes_held_max as f64 / 1e6,
        counted.late_ns_sum as f64 / 1e6 / counted.super_packets.max(1) as f64,
        counted.late_ns_max as f64 / 1e6,
    );
    for (count, what) in [(counted.packets_cut, "dropped by a cut"), (counted.packets_refused, "refused")] {
        if count > 0 {
            let _ = write!(text, "; {count} {what}");
        }
    }
    text
}

fn side_named(name: &str) -> Result<Side, String> {
    let named = Side::BOTH.into_iter().find(|side| side.name() == name);
    named.ok_or_else(|| format!("--in {name:?}: left or right"))
}

fn direction_named(name: &str) -> Result<Direction, String> {
    let named = Direction::BOTH.into_iter().find(|direction| direction.name() == name);
    named.ok_or_else(|| format!("cut {name:?}: left-to-right or right-to-left"))
}

fn rate(text: &str) -> Result<Option<f64>, String> {
    if text == "none" { Ok(None) } else { number("rate", text).map(Some) }
}

fn number<T: std::str::FromStr>(what: &str, text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{what} {text:?} is not a number that fits"))
}
