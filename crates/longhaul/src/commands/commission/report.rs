//! Displays commissioned links.

use longhaul_api::commissioning::{CommissionState, Grade, LinkCommission, LinkTest};
use longhaul_model::units::{printable, rate};

use crate::clock;
use crate::commands::commission::grade::RULES;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::{Style, Tone, wrapped};

pub fn grade_word(grade: Grade) -> &'static str {
    match grade {
        Grade::Commissioned => "commissioned",
        Grade::Slow => "slow",
        Grade::Failing => "failing",
        Grade::Unreachable => "unreachable",
    }
}

fn state_word(state: CommissionState) -> &'static str {
    match state {
        CommissionState::Untested => "untested",
        CommissionState::Commissioning => "commissioning",
        CommissionState::Commissioned => "commissioned",
        CommissionState::Degraded => "degraded",
    }
}

fn tone(grade: Grade) -> Tone {
    match grade {
        Grade::Commissioned => Tone::Good,
        Grade::Slow => Tone::Warn,
        Grade::Failing | Grade::Unreachable => Tone::Bad,
    }
}

/// One row per link.
pub fn links_table(links: &[LinkCommission]) -> Table {
    let mut table = Table::new([
        left("from"),
        left("to"),
        left("state"),
        left("grade"),
        right("rtt"),
        right("rate by parallel files").plain_title("rate by files at once"),
        left("tested"),
        prose("limited by"),
    ]);
    let now = clock::now();
    for link in links {
        let test = link.test.as_ref();
        table.row([
            Cell::text(link.source.as_str()),
            Cell::text(link.target.as_str()),
            Cell::text(state_word(link.state)),
            Cell::maybe(test, |test| Cell::text(grade_word(test.grade)).toned(tone(test.grade))),
            Cell::maybe(test.and_then(|test| test.rtt_us), |rtt| {
                Cell::both(format!("{:.1} ms", rtt / 1e3), format!("{rtt:.0}"))
            }),
            Cell::maybe(test, |test| Cell::text(by_concurrency(test))),
            Cell::time(link.since, now),
            Cell::maybe(test.filter(|test| !test.limited_by.is_empty()), |test| Cell::text(&test.limited_by)),
        ]);
    }
    table
}

fn by_concurrency(test: &LinkTest) -> String {
    let steps = test.steps.iter().map(|step| format!("{}: {}", step.files_at_once, rate(step.rate)));
    steps.collect::<Vec<_>>().join("  ")
}

/// The table, the reason for each grade, and faults.
pub fn report_text(shown: &[LinkCommission], style: Style, width: Option<usize>) -> String {
    let mut text = links_table(shown).human(style, width);
    text.push('\n');
    for link in shown {
        let Some(test) = &link.test else { continue };
        let name = format!("{} → {}", link.source, link.target);
        let grade = style.paint(tone(test.grade), grade_word(test.grade));
        text.push_str(&format!("{name}: {grade}: {}\n", printable(&test.why)));
        for fault in &test.faults {
            text.push_str(&wrapped(&format!("  {}", printable(fault)), width, 4));
            text.push('\n');
        }
    }
    text.push_str(&wrapped(&format!("Grades: {RULES}."), width, 2));
    text.push('\n');
    text
}
