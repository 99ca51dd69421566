//! The plan of all circuits as it would be now, and its entry for one link.

use longhaul_api::circuits::{CircuitPlan, CircuitPlanAct, CircuitPlanned};
use longhaul_model::{Timestamp, units};

use super::{INDENT, megabits};
use crate::table::{Cell, Table, left, right};
use crate::terminal::{Style, wrapped};
use crate::time_format;

pub(super) fn plan_text(plan: &CircuitPlan, style: Style, width: Option<usize>, now: Timestamp) -> String {
    let mut text = wrapped(&plan_header(plan, now), width, 0);
    if plan.links.is_empty() {
        text.push_str(
            "no agent uses circuits; an agent does so if its configuration has [[agent.circuits]]\n",
        );
        return text;
    }
    text.push_str(&format!("\n{}", links_table(&plan.links).human(style, width)));
    for link in &plan.links {
        let why = format!("{} → {}: {}", link.source, link.target, time_format::sentence(&link.why, now));
        text.push_str(&format!("\n{}", wrapped(&why, width, INDENT)));
    }
    text.push_str("\n\n");
    text.push_str(&providers_table(plan).human(style, width));
    for budget in
        plan.budgets.iter().filter(|budget| budget.booked_gbit_h > 0.0 || budget.budget_gbit_h.is_some())
    {
        let of = budget.budget_gbit_h.map(|of| format!(" of {of:.1}")).unwrap_or_default();
        text.push_str(&format!(
            "{} booked {:.1}{of} Gbit/s·h within a day\n",
            budget.community, budget.booked_gbit_h
        ));
    }
    text
}

/// What decides about circuits, and when the last plan was made.
fn plan_header(plan: &CircuitPlan, now: Timestamp) -> String {
    match (plan.level.as_str(), plan.planned) {
        ("service", Some(planned)) => format!(
            "the service plans all circuits every {} s, last {}; now it would do this:\n",
            plan.every_s,
            time_format::ago(planned, now)
        ),
        ("service", None) => {
            "the service plans all circuits but has not done so since it started; now it would \
         do this:\n"
                .to_owned()
        }
        _ => "each agent decides about its own links; a plan of all circuits would do this (nothing is \
         done):\n"
            .to_owned(),
    }
}

pub(super) fn links_table(links: &[CircuitPlanned]) -> Table {
    let mut table = Table::new([
        left("from"),
        left("to"),
        left("action").plain_title("what"),
        right("circuit"),
        right("waiting").plain_title("waits"),
        right("without circuit").plain_title("plain way"),
    ]);
    for link in links {
        table.row([
            Cell::text(&link.source),
            Cell::text(&link.target),
            Cell::text(link.what.word()),
            Cell::maybe(link.mbit, |mbit| Cell::text(megabits(mbit))),
            Cell::bytes(link.waits_bytes),
            Cell::maybe(link.plain_bytes_per_s, Cell::rate),
        ]);
    }
    table
}

fn providers_table(plan: &CircuitPlan) -> Table {
    let mut table = Table::new([
        left("provider"),
        right("links"),
        right("circuits"),
        right("limit").plain_title("at once"),
        right("booked"),
        right("bandwidth limit").plain_title("at most"),
        right("gained"),
    ]);
    for provider in &plan.providers {
        let gained = provider.gained_bytes;
        let sign = if gained < 0 { "-" } else { "" };
        table.row([
            Cell::text(&provider.name),
            Cell::text(units::count(provider.links.into())),
            Cell::text(units::count(provider.circuits.into())),
            Cell::text(units::count(provider.at_once.into())),
            Cell::text(megabits(provider.mbit)),
            Cell::maybe(provider.mbit_all, |mbit| Cell::text(megabits(mbit))),
            Cell::text(format!("{sign}{}", units::bytes(gained.unsigned_abs()))),
        ]);
    }
    table
}

/// The plan's entry for one link, for `circuit explain`.
pub(super) fn link_plan_text(planned: &CircuitPlanned, now: Timestamp) -> String {
    let which = match (planned.what, planned.mbit) {
        (CircuitPlanAct::Keep, Some(mbit)) => format!("keeps {}: ", megabits(mbit)),
        (CircuitPlanAct::GiveBack, _) => "releases the circuit: ".to_owned(),
        _ => String::new(),
    };
    let mut text = format!("  the service's plan: {which}{}\n", time_format::sentence(&planned.why, now));
    if let Some(done) = &planned.done {
        text.push_str(&format!(
            "  last action, {}: {}\n",
            time_format::local(done.at, now),
            time_format::sentence(&done.words, now)
        ));
    }
    text
}
