//! What has to hold, from the tables of figures: each bar a value of ours against one of the same
//! session.

use std::fmt::Write as _;

use super::report::{Session, Summary};

const OURS: &str = "longhaul";
const AUTHENTICATED: &str = "longhaul authenticated";
const BOTH: [&str; 2] = [OURS, AUTHENTICATED];
const IPERF: [&str; 2] = ["iperf3 -P1", "iperf3 -P4"];
/// Memory bound of each end, sockets included.
const MEMORY_MB_MAX: f64 = 64.0;

/// What a value is compared with.
#[derive(Clone, Copy)]
enum Yardstick {
    Program(&'static str),
    /// The fastest of all peers that move files, or of iperf3.
    Best,
    /// The better of iperf3's rows in another case.
    IperfOf(&'static str),
    /// What the path can carry without headers.
    Capacity,
    /// The floor of the same round, as rate or as CPU time.
    Floor,
    Number(f64),
}

#[derive(Clone, Copy, PartialEq)]
enum Value {
    Rate,
    SecondHalf,
    Cpu,
}

struct Bar {
    case: &'static str,
    program: &'static str,
    value: Value,
    /// For rates at least, for CPU time at most so much of the yardstick.
    factor: f64,
    yardstick: Yardstick,
}

const fn bar(
    case: &'static str,
    program: &'static str,
    value: Value,
    factor: f64,
    yardstick: Yardstick,
) -> Bar {
    Bar { case, program, value, factor, yardstick }
}

fn bars() -> Vec<Bar> {
    use Value::{Cpu, Rate, SecondHalf};
    use Yardstick::{Best, Capacity, Floor, IperfOf, Number, Program};
    let mut bars = vec![
        bar("lan-2g", OURS, Rate, 1.0, Program("curl")),
        bar("lan-2g", OURS, Rate, 0.85, Floor),
        bar("lan-2g", OURS, Cpu, 1.0, Number(1.5)),
        bar("lan-2g", OURS, Cpu, 1.15, Floor),
        bar("lan-2g", AUTHENTICATED, Rate, 1.25, Program("curl")),
        bar("lan-2g", AUTHENTICATED, Cpu, 1.0, Number(1.05)),
        bar("lan-2g", AUTHENTICATED, Cpu, 1.2, Floor),
        bar("lan-20x100m", OURS, Rate, 1.1, Program("curl")),
        bar("lan-20x100m", AUTHENTICATED, Rate, 1.7, Program("curl")),
        bar("lan-5000x64k", OURS, Rate, 2.0, Program("rsync")),
        bar("lan-5000x64k", AUTHENTICATED, Rate, 2.4, Program("rsync")),
        bar("wan20-2g", OURS, Rate, 1.0, Program("curl")),
        bar("wan20-2g", AUTHENTICATED, Rate, 1.15, Program("curl")),
    ];
    for program in BOTH {
        for case in ["wan100-1g", "wan100-1g-bbr", "wan100-20x50m", "wan100-20x50m-bbr"] {
            bars.push(bar(case, program, Rate, 1.0, Best));
            bars.push(bar(case, program, SecondHalf, 0.98, Capacity));
        }
        bars.push(bar("wan100l-1g", program, Rate, 0.97, IperfOf("wan100-1g")));
        bars.push(bar("wan100l3-1g", program, Rate, 0.90, IperfOf("wan100-1g")));
        for case in ["wan100-1000x64k", "wan100-20000x64k"] {
            bars.push(bar(case, program, Rate, 1.9, Program("rsync")));
        }
        bars.push(bar("wan100-20000x64k", program, Rate, 0.85, Capacity));
    }
    bars
}

/// Whether something of ours is held against that very program in that case.
pub(crate) fn is_yardstick(case: &str, program: &str) -> bool {
    let names = |bar: &Bar| match bar.yardstick {
        Yardstick::Program(name) => bar.case == case && name == program,
        Yardstick::IperfOf(other) => other == case && IPERF.contains(&program),
        Yardstick::Best | Yardstick::Capacity | Yardstick::Floor | Yardstick::Number(_) => false,
    };
    bars().iter().any(names)
}

/// The floor that belongs to a program.
pub(crate) fn floor_of(program: &str) -> &'static str {
    if program == AUTHENTICATED { "floor authenticated" } else { "floor" }
}

/// All bars whose case and program were part of the session. One whose yardstick is missing is not reached.
pub(crate) fn table(session: &Session) -> String {
    let mut text = String::from(
        "| case | program | bar | measured | yardstick | ratio | reached |\n| --- | --- | --- | ---: | ---: \
            | ---: | --- |\n",
    );
    let measured = |case: &str, program: &str| {
        session.outcomes.iter().any(|outcome| outcome.case.name == case && outcome.program == program)
    };
    for bar in bars().iter().filter(|bar| measured(bar.case, bar.program)) {
        text += &bar.row(session);
    }
    for outcome in session.outcomes.iter().filter(|outcome| outcome.is_ours) {
        text += &memory_row(session, outcome.case.name, outcome.program);
    }
    text
}

impl Bar {
    fn row(&self, session: &Session) -> String {
        let value = session.get(self.case, self.program).and_then(|summary| self.value.extract(&summary));
        let yardstick = self.yardstick.resolve(session, self);
        let ratio = value.zip(yardstick).map(|(value, yardstick)| value / yardstick);
        let reached = ratio.is_some_and(|ratio| match self.value {
            Value::Cpu => ratio <= self.factor,
            Value::Rate | Value::SecondHalf => ratio >= self.factor,
        });
        row([self.case, self.program, &self.described()], value, yardstick, ratio, reached)
    }

    fn described(&self) -> String {
        let sign = if self.value == Value::Cpu { "≤" } else { "≥" };
        let what = match self.value {
            Value::Rate => "MB/s",
            Value::SecondHalf => "MB/s of the second half",
            Value::Cpu => "CPU s/GB",
        };
        let yardstick = match self.yardstick {
            Yardstick::Program(name) => name.to_owned(),
            Yardstick::Best => "best peer".to_owned(),
            Yardstick::IperfOf(case) => format!("iperf3 in {case}"),
            Yardstick::Capacity => "payload capacity".to_owned(),
            Yardstick::Floor => "floor".to_owned(),
            Yardstick::Number(number) => format!("{number}"),
        };
        format!("{what} {sign} {} × {yardstick}", self.factor)
    }
}

impl Value {
    fn extract(self, summary: &Summary) -> Option<f64> {
        match self {
            Value::Rate => Some(summary.mb_per_s),
            Value::SecondHalf => summary.second_half,
            Value::Cpu => Some(summary.cpu_s_per_gb),
        }
    }
}

impl Yardstick {
    fn resolve(self, session: &Session, bar: &Bar) -> Option<f64> {
        let case = session.outcomes.iter().find(|outcome| outcome.case.name == bar.case)?.case;
        let rate = |case: &str, program: &str| Some(session.get(case, program)?.mb_per_s);
        let iperf = |case: &str| {
            let rows = IPERF.into_iter().filter_map(|name| rate(case, name));
            rows.reduce(f64::max)
        };
        match self {
            // One that was stopped stayed below that: who beats the bound beats the program.
            Yardstick::Program(name) => session.rate_at_most(bar.case, name),
            Yardstick::Best => {
                let movers = session.best_peer(case).map(|(_, rate)| rate);
                [movers, iperf(bar.case)].into_iter().flatten().reduce(f64::max)
            }
            Yardstick::IperfOf(case) => iperf(case),
            Yardstick::Capacity => case.capacity(),
            Yardstick::Floor => bar.value.extract(&session.get(bar.case, floor_of(bar.program))?),
            Yardstick::Number(number) => Some(number),
        }
    }
}

/// Sockets may hold twice what is in flight on top.
fn memory_row(session: &Session, case: &str, program: &str) -> String {
    let outcome =
        session.outcomes.iter().find(|outcome| outcome.case.name == case && outcome.program == program);
    let summary = outcome.and_then(|outcome| Some((outcome.case, outcome.summary()?)));
    let peak = summary.as_ref().map(|(_, summary)| summary.peak_mb());
    let allowed = summary.map(|(case, summary)| MEMORY_MB_MAX + case.twice_in_flight(summary.mb_per_s) / 1e6);
    let ratio = peak.zip(allowed).map(|(peak, allowed)| peak / allowed);
    let reached = ratio.is_some_and(|ratio| ratio <= 1.0);
    row([case, program, "peak MB of each end ≤ 64 + 2 × BDP"], peak, allowed, ratio, reached)
}

fn row(
    words: [&str; 3],
    value: Option<f64>,
    yardstick: Option<f64>,
    ratio: Option<f64>,
    reached: bool,
) -> String {
    let shown = |value: Option<f64>| {
        value.map_or("missing".to_owned(), |value| {
            if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") }
        })
    };
    let [case, program, bar] = words;
    let (value, yardstick, ratio) = (shown(value), shown(yardstick), shown(ratio));
    let reached = if reached { "yes" } else { "NO" };
    let mut text = String::new();
    let _ = writeln!(text, "| {case} | {program} | {bar} | {value} | {yardstick} | {ratio} | {reached} |");
    text
}

#[cfg(test)]
mod tests {
    use super::super::case::CASES;
    use super::super::report::tests::{outcome, session};
    use super::super::run::Failure;
    use super::*;

    #[test]
    fn bars_name_cases_that_exist() {
        assert!(bars().iter().all(|bar| CASES.iter().any(|case| case.name == bar.case)));
    }

    #[test]
    fn a_bar_is_reached_or_not() {
        let session = session(vec![
            outcome("lan-2g", "longhaul", &[2.0]),
            outcome("lan-2g", "curl", &[1.9]),
            outcome("wan100-1g", "longhaul", &[9.0]),
            outcome("wan100-1g", "curl", &[9.5]),
            outcome("wan100-1g", "iperf3 -P4", &[9.1]),
        ]);
        let mut session = session;
        let mut stopped = outcome("wan100-1000x64k", "rsync", &[]);
        stopped.runs = vec![Err(Failure::TooSlow { limit_s: 20, below_mb_per_s: 3.3 })];
        session.outcomes.extend([stopped, outcome("wan100-1000x64k", "longhaul", &[2.0])]);
        let table = table(&session);
        for line in [
            "| lan-2g | longhaul | MB/s ≥ 1 × curl | 1000 | 1053 | 0.95 | NO |",
            "| lan-2g | longhaul | MB/s ≥ 0.85 × floor | 1000 | missing | missing | NO |",
            "| lan-2g | longhaul | CPU s/GB ≤ 1 × 1.5 | 1.50 | 1.50 | 1.00 | yes |",
            "| wan100-1g | longhaul | MB/s ≥ 1 × best peer | 111 | 110 | 1.01 | yes |",
            "| wan100-1g | longhaul | MB/s of the second half ≥ 0.98 × payload capacity | 124 | 124 | 1.00 | \
                yes |",
            "| wan100-1000x64k | longhaul | MB/s ≥ 1.9 × rsync | 33 | 3.30 | 9.93 | yes |",
            "| wan100-1g | longhaul | peak MB of each end ≤ 64 + 2 × BDP | 50 | 89 | 0.56 | yes |",
        ] {
            assert!(table.contains(line), "{line}\n{table}");
        }
        assert!(!table.contains("authenticated") && !table.contains("wan20"), "not measured, no bar");
    }
}
