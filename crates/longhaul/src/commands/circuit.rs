//! `longhaul circuit`: circuits that agents hold, why, and what operators request.

mod plan;

use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_api::circuits::{
    Circuit, CircuitDetail, CircuitOrderView, CircuitPlan, CircuitRecord, CircuitRequest, CircuitView,
    CircuitWish,
};
use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_model::units;
use longhaul_model::{StorageName, Timestamp};

use super::Context;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, left, prose, right};
use crate::terminal::{Style, Tone, wrapped};
use crate::time_format;

/// Characters of a circuit's id in lists.
const ID_CHARS_SHOWN: usize = 8;
const INDENT: usize = 2;

#[derive(Debug, Subcommand)]
pub enum CircuitCommand {
    /// List links that may have circuits and their present ones; with --past, former circuits
    List(ListArgs),
    /// Show a circuit, or a link with its circuits: booked and used bandwidth, time gained, why they ended
    Show(CircuitOrLink),
    /// Explain, with numbers, why a link has a circuit or none
    Explain(CircuitOrLink),
    /// Show what a plan of all circuits would do now, and why; it takes effect only where the service decides
    Plan,
    /// Request a circuit, whatever is queued; `circuit explain` shows the provider's answer
    Request(RequestArgs),
    /// Release a circuit; the agent requests none on that link for an hour, unless somebody does so here
    Release(CircuitOrLink),
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// List former circuits, latest first
    #[arg(long)]
    past: bool,
    /// Maximum number of circuits, with --past
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
}

#[derive(Debug, Args)]
pub struct CircuitOrLink {
    /// Id of a circuit or its first characters, or a link SOURCE:TARGET
    #[arg(value_name = "CIRCUIT|SOURCE")]
    first: String,
    /// With SOURCE only: the site or storage at the other end
    target: Option<String>,
}

impl CircuitOrLink {
    fn name(&self) -> String {
        match &self.target {
            Some(target) => format!("{}:{target}", self.first),
            None => self.first.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub struct RequestArgs {
    /// Storage that files come from
    source: StorageName,
    /// Site or storage that files go to; its agent makes the request
    target: String,
    /// Bandwidth in Mbit/s
    #[arg(long, value_name = "MBIT", value_parser = clap::value_parser!(u64).range(1..))]
    mbit: u64,
    /// Duration from now, such as 90m or 6h
    #[arg(long = "for", value_name = "TIME", value_parser = parse_seconds)]
    time: u64,
    /// Replace the present circuit, which is used until the new one is up; otherwise a present circuit serves
    /// the request
    #[arg(long)]
    replace: bool,
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds = time_format::parse_span_s(text).filter(|seconds| *seconds > 0);
    seconds
        .ok_or_else(|| format!("`{}` is not a duration such as 30s, 90m, 6h or 2d", units::printable(text)))
}

pub async fn run(context: &Context, remote: &Remote, command: CircuitCommand) -> Result<Exit, Failure> {
    let now = crate::clock::now();
    let detail = match command {
        CircuitCommand::List(ListArgs { past: true, limit }) => {
            let page: Page<CircuitRecord> =
                remote.list(&routes::CIRCUIT_HISTORY, &[], &[], limit as usize).await?;
            context.output.list(&page, |page| past_table(&page.items, now))?;
            return Ok(Exit::Ok);
        }
        CircuitCommand::List(_) => {
            let page: Page<CircuitView> = remote.get(&routes::CIRCUIT_LIST, &[], &[]).await?;
            context.output.view(
                &page,
                |page, style, width| links_text(&page.items, style, width, now),
                |page| links_table(&page.items, now),
            )?;
            return Ok(Exit::Ok);
        }
        CircuitCommand::Show(which) => {
            let detail: CircuitDetail = remote.get(&routes::CIRCUIT_SHOW, &[&which.name()], &[]).await?;
            context.output.view(
                &detail,
                |detail, style, width| show_text(detail, style, width, now),
                |detail| past_table(&detail.circuits, now),
            )?;
            return Ok(Exit::Ok);
        }
        CircuitCommand::Plan => {
            let found: CircuitPlan = remote.get(&routes::CIRCUIT_PLAN, &[], &[]).await?;
            context.output.view(
                &found,
                |found, style, width| plan::plan_text(found, style, width, now),
                |found| plan::links_table(&found.links),
            )?;
            return Ok(Exit::Ok);
        }
        CircuitCommand::Explain(which) => {
            remote.get::<CircuitDetail>(&routes::CIRCUIT_SHOW, &[&which.name()], &[]).await?
        }
        CircuitCommand::Request(args) => {
            let RequestArgs { source, target, mbit, time: seconds, replace } = args;
            let request = CircuitRequest { source, target, mbit, seconds, replace };
            remote.post(&routes::CIRCUIT_REQUEST, &[], &request).await?
        }
        CircuitCommand::Release(which) => {
            remote.post(&routes::CIRCUIT_RELEASE, &[&which.name()], &()).await?
        }
    };
    context.output.sentence(&detail, |detail| explain_text(detail, now))?;
    Ok(Exit::Ok)
}

// ---- lists -----------------------------------------------------------------------------------------------

fn links_text(links: &[CircuitView], style: Style, width: Option<usize>, now: Timestamp) -> String {
    if links.is_empty() {
        return "no agent uses circuits; an agent does so if its configuration has [[agent.circuits]]\n"
            .to_owned();
    }
    let mut text = links_table(links, now).human(style, width);
    for link in links {
        let why = format!("{}: {}", link.link, time_format::sentence(&link.why, now));
        text.push_str(&format!("\n{}", wrapped(&why, width, INDENT)));
    }
    text.trim_end().to_owned() + "\n"
}

fn links_table(links: &[CircuitView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("link"),
        left("provider"),
        left("state"),
        left("circuit"),
        right("booked"),
        right("rate").plain_title("carries"),
        left("until"),
        right("carried"),
        right("gained"),
        left("reported").plain_title("told"),
    ]);
    for link in links {
        let circuit = link.circuit.as_ref();
        let until = circuit.and_then(|circuit| circuit.expires).or(link.until);
        let reported = format!("{} ago", units::duration(now.since(link.told)));
        table.row([
            Cell::text(&link.link),
            Cell::text(&link.provider),
            Cell::text(link.state.word()),
            Cell::maybe(circuit, |circuit| Cell::both(short_id(&circuit.id), &circuit.id)),
            Cell::maybe(circuit.and_then(|circuit| circuit.booked_mbit), |mbit| Cell::text(megabits(mbit))),
            Cell::maybe(circuit.and_then(Circuit::carried_bytes_per_s), Cell::rate),
            Cell::maybe(until, |until| Cell::time(until, now)),
            Cell::maybe(circuit, |circuit| Cell::bytes(circuit.carried_bytes)),
            Cell::maybe(link.gain_s, |gain| Cell::text(gain_text(gain))),
            Cell::text(reported).toned_if(!link.connected, Tone::Bad),
        ]);
    }
    table
}

fn past_table(circuits: &[CircuitRecord], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("circuit"),
        left("link"),
        left("requested").plain_title("asked"),
        right("booked"),
        left("ended"),
        right("carried"),
        right("gained"),
        prose("why it ended"),
    ]);
    for record in circuits {
        let circuit = &record.circuit;
        table.row([
            Cell::both(short_id(&circuit.id), &circuit.id),
            Cell::text(&record.link),
            Cell::time(circuit.asked, now),
            Cell::maybe(circuit.booked_mbit, |mbit| Cell::text(megabits(mbit))),
            Cell::maybe(circuit.ended, |ended| Cell::time(ended, now)),
            Cell::bytes(circuit.carried_bytes),
            Cell::maybe(record.gain_s, |gain| Cell::text(gain_text(gain))),
            Cell::maybe(circuit.end.as_ref(), |end| Cell::text(time_format::sentence(end, now))),
        ]);
    }
    table
}

fn short_id(id: &str) -> &str {
    id.get(..ID_CHARS_SHOWN).unwrap_or(id)
}

fn megabits(mbit: u64) -> String {
    format!("{} Mb/s", units::count(mbit))
}

/// Time gained, or lost if negative.
fn gain_text(gain: f64) -> String {
    let span = Duration::try_from_secs_f64(gain.abs()).unwrap_or(Duration::MAX);
    let sign = if gain < 0.0 { "-" } else { "" };
    format!("{sign}{}", units::duration(span))
}

// ---- one -------------------------------------------------------------------------------------------------

fn show_text(detail: &CircuitDetail, style: Style, width: Option<usize>, now: Timestamp) -> String {
    let mut text = match &detail.link {
        Some(link) => link_header(link, now),
        None => "the agent no longer has circuits on this link\n".to_owned(),
    };
    for record in &detail.circuits {
        text.push_str(&format!("\n{}", circuit_text(record, now)));
    }
    if detail.circuits.is_empty() {
        text.push_str("no circuit has been requested yet\n");
    }
    if !detail.circuits.is_empty() && style.is_coloured() && width.is_some() {
        text.push_str(&format!("\nsee why: longhaul circuit explain {}\n", detail.circuits[0].link));
    }
    text
}

fn link_header(link: &CircuitView, now: Timestamp) -> String {
    let state = link.state.word();
    let told = time_format::ago(link.told, now);
    let contact = if link.connected { "" } else { ", which is not connected now" };
    format!(
        "{}: {state}, {} circuits of the agent on {}, reported {told}{contact}\n",
        link.link, link.provider, link.host
    )
}

fn circuit_text(record: &CircuitRecord, now: Timestamp) -> String {
    let circuit = &record.circuit;
    let at = |time: Timestamp| time_format::local(time, now);
    let mut text = format!("circuit {}\n", circuit.id);
    let mut line = |what: &str, words: String| text.push_str(&format!("  {what:<11}{words}\n"));
    line("requested", format!("{} for {}", at(circuit.asked), megabits(circuit.asked_mbit)));
    if !circuit.why.is_empty() {
        line("because", time_format::sentence(&circuit.why, now));
    }
    if let (Some(granted), Some(mbit)) = (circuit.granted, circuit.booked_mbit) {
        let until = circuit.expires.map(|until| format!(" until {}", at(until))).unwrap_or_default();
        line("booked", format!("{} {}{until}", at(granted), megabits(mbit)));
    }
    if let Some(used) = circuit.used {
        let rate = circuit.carried_bytes_per_s().map(|rate| format!(" at {}", units::rate(rate)));
        let carried = units::bytes(circuit.carried_bytes);
        line("used", format!("since {}: carried {carried}{}", at(used), rate.unwrap_or_default()));
    }
    if let (Some(gain), Some(plain)) = (record.gain_s, circuit.plain_bytes_per_s) {
        let plain = units::rate(plain);
        line(
            "gained",
            format!(
                "{} compared with the path without a circuit, which carried {plain} before",
                gain_text(gain)
            ),
        );
    }
    if let Some(ended) = circuit.ended {
        let why = circuit.end.as_deref().unwrap_or("for an unknown reason");
        line("ended", format!("{} {}", at(ended), time_format::sentence(why, now)));
    }
    text
}

fn explain_text(detail: &CircuitDetail, now: Timestamp) -> String {
    let mut text = match &detail.link {
        Some(link) => format!("{}  {}\n", link_header(link, now), time_format::sentence(&link.why, now)),
        None => "the agent no longer has circuits on this link\n".to_owned(),
    };
    if let Some(current) = detail.link.as_ref().and_then(|link| link.circuit.as_ref())
        && !current.why.is_empty()
    {
        text.push_str(&format!("  requested because {}\n", time_format::sentence(&current.why, now)));
    }
    if let Some(planned) = &detail.plan {
        text.push_str(&plan::link_plan_text(planned, now));
    }
    let gain = detail.link.as_ref().and_then(|link| link.gain_s);
    if let Some(gain) = gain {
        text.push_str(&format!("  gained so far {}\n", gain_text(gain)));
    }
    for order in detail.orders.iter().take(3) {
        text.push_str(&format!("  {}\n", order_text(order, now)));
    }
    if !detail.notes.is_empty() {
        text.push_str("events:\n");
    }
    for note in &detail.notes {
        text.push_str(&format!(
            "  {}  {}\n",
            time_format::local(note.at, now),
            time_format::sentence(&note.words, now)
        ));
    }
    text.trim_end().to_owned()
}

fn order_text(order: &CircuitOrderView, now: Timestamp) -> String {
    let what = match &order.what {
        CircuitWish::Request { mbit, until, replaces } => {
            let place = replaces.as_ref().map(|circuit| format!(" in place of {}", short_id(circuit)));
            let until = time_format::local(*until, now);
            format!("requested {} until {until}{}", megabits(*mbit), place.unwrap_or_default())
        }
        CircuitWish::Release { circuit } if circuit.is_empty() => "withdrew the request".to_owned(),
        CircuitWish::Release { circuit } => format!("gave {} back", short_id(circuit)),
    };
    use longhaul_api::circuits::CircuitOrderState as State;
    let became = match order.state {
        State::Sent => "the agent has not answered yet".to_owned(),
        State::Taken => "the agent is working on it".to_owned(),
        State::Had => "transfers use a circuit".to_owned(),
        State::Done if order.words.is_empty() => "done".to_owned(),
        State::Done => time_format::sentence(&order.words, now),
        State::Failed => format!("failed: {}", time_format::sentence(&order.words, now)),
    };
    format!("{} {} {what}: {became}", time_format::local(order.at, now), units::printable(&order.by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_typed_and_a_gain_may_be_a_loss() {
        assert_eq!((parse_seconds("6h"), parse_seconds("90m")), (Ok(21_600), Ok(5_400)));
        for wrong in ["", "6", "soon", "0s"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!((gain_text(3_600.0), gain_text(-90.0)), ("1 h".to_owned(), "-1 min 30 s".to_owned()));
    }

    #[test]
    fn a_link_is_named_by_one_word_or_two() {
        let which = |first: &str, target: Option<&str>| {
            CircuitOrLink { first: first.into(), target: target.map(str::to_owned) }.name()
        };
        assert_eq!(which("beta:alpha", None), which("beta", Some("alpha")));
        assert_eq!(which("8f3c", None), "8f3c");
    }
}
