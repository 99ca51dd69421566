//! What strangers, liars and bad disks cost the others.

mod liars;
mod repairs;
mod reporter;
mod strangers;

use crate::Rounds;
use crate::measure::Row;

pub(crate) fn run(rounds: &Rounds) -> Vec<Row> {
    let mut rows = strangers::run();
    rows.extend(repairs::run());
    rows.extend(liars::run(rounds));
    rows
}

fn at_most(figure: &'static str, value: f64, bound: f64, bar: &'static str) -> Row {
    Row::at_most("trust", figure, value, bound, bar)
}
