//! The circuits page: which links have a circuit, why, and what did it gain?

use std::collections::BTreeMap;

use longhaul_api::circuits::{
    Circuit, CircuitPlan, CircuitPlanAct, CircuitPlanned, CircuitRecord, CircuitState, CircuitView,
};
use longhaul_model::units;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, page};
use crate::{show, timeline};

/// Rows in the table of one link: enough to compare, short enough to read.
const CIRCUITS_SHOWN_MAX: usize = 5;

/// Everything that the page shows.
pub struct CircuitsView {
    pub links: Vec<CircuitView>,
    pub plan: CircuitPlan,
    /// Present and past circuits by link, latest first.
    pub past: BTreeMap<String, Vec<CircuitRecord>>,
}

pub fn circuits(context: Context<'_>, view: &CircuitsView) -> Markup {
    let frame =
        Frame::live(context, "Circuits", Section::Circuits, "/api/v1/circuits", "longhaul circuit list");
    page(
        &frame,
        html! {
            h1 { "Circuits: which links have one, why, and what did it gain?" }
            @if view.links.is_empty() {
                p.empty {
                    "No agent reports circuits. An agent can request them if its configuration has a "
                    code { "[[agent.circuits]]" } " section."
                }
            } @else {
                (links(context, &view.links))
                @for link in &view.links { (link_section(context, link, view.past.get(&link.link))) }
                (plan(context, &view.plan))
            }
        },
    )
}

fn state(link: &CircuitView) -> Markup {
    let kind = match link.state {
        CircuitState::Established => "good",
        CircuitState::Requested | CircuitState::Draining | CircuitState::Resting => "warn",
        CircuitState::Off => "idle",
    };
    show::state(kind, link.state.word())
}

fn links(context: Context<'_>, links: &[CircuitView]) -> Markup {
    html! {
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "Link" }
                        th scope="col" { "State" }
                        th.number scope="col" { "Booked" }
                        th.number scope="col" { "Rate" }
                        th.number.wide scope="col" { "Carried" }
                        th.number scope="col" { "Gained" }
                        th.wide scope="col" { "Reported" }
                    }
                }
                tbody {
                    @for link in links {
                        tr {
                            td {
                                a href={ "#" (show::segment(&link.link)) } { (link.link) } br;
                                span.soft { (link.provider) }
                            }
                            td data-label="State" {
                                (state(link))
                                @if let Some(until) = link.until {
                                    br;
                                    span.soft { "until " (show::time(until, context.now)) }
                                }
                            }
                            td.number data-label="Booked" { (booked(link.circuit.as_ref())) }
                            td.number data-label="Rate" {
                                @match link.circuit.as_ref().and_then(Circuit::carried_bytes_per_s) {
                                    Some(rate) => (show::rate(rate)),
                                    None => "–",
                                }
                            }
                            td.number.wide {
                                @if let Some(circuit) = &link.circuit { (show::size(circuit.carried_bytes)) }
                                @else { "–" }
                            }
                            td.number data-label="Gained" {
                                @if let Some(gain) = link.gain_s { (timeline::signed_duration(gain)) }
                                @else { "–" }
                            }
                            td.wide {
                                @if link.connected {
                                    (show::ago(link.told, context.now))
                                } @else {
                                    @let ago = show::ago(link.told, context.now);
                                    (show::state("bad", &format!("silent, last report {ago}")))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn booked(circuit: Option<&Circuit>) -> String {
    let mbit = circuit.and_then(|circuit| circuit.booked_mbit);
    mbit.map_or_else(|| "–".to_owned(), |mbit| format!("{} Mb/s", units::count(mbit)))
}

/// A link with its time line and its latest circuits.
fn link_section(context: Context<'_>, link: &CircuitView, past: Option<&Vec<CircuitRecord>>) -> Markup {
    let records = past.map(Vec::as_slice).unwrap_or_default();
    // The report of the present circuit is newer than its record in the history.
    let current = link.circuit.as_ref();
    let older = records.iter().map(|record| &record.circuit);
    let older = older.filter(|circuit| current.is_none_or(|current| current.id != circuit.id));
    let all: Vec<&Circuit> = current.into_iter().chain(older).collect();
    html! {
        h2 id=(link.link) { (link.link) " " (state(link)) }
        p { (link.why) }
        @if let Some(current) = current.filter(|circuit| !circuit.why.is_empty()) {
            p.soft { "Requested because " (current.why) }
        }
        (timeline::circuits(&all, context.now))
        @if !all.is_empty() {
            div.scroll {
                table.stack {
                    thead {
                        tr {
                            th scope="col" { "Circuit" }
                            th.number scope="col" { "Booked" }
                            th.number scope="col" { "Used" }
                            th.number scope="col" { "Without circuit" }
                            th.number scope="col" { "Gained" }
                            th scope="col" { "Ended" }
                        }
                    }
                    tbody {
                        @for circuit in all.iter().take(CIRCUITS_SHOWN_MAX) {
                            tr {
                                td {
                                    (show::time(circuit.asked, context.now)) br;
                                    span.soft { (circuit.id.get(..8).unwrap_or(&circuit.id)) }
                                }
                                td.number data-label="Booked" { (booked(Some(circuit))) }
                                td.number data-label="Used" {
                                    (show::size(circuit.carried_bytes))
                                    @if let Some(rate) = circuit.carried_bytes_per_s() {
                                        br;
                                        (show::rate(rate))
                                    }
                                }
                                td.number data-label="Without circuit" {
                                    @if let Some(rate) = circuit.plain_bytes_per_s { (show::rate(rate)) }
                                    @else { "–" }
                                }
                                td.number data-label="Gained" {
                                    @if let Some(gain) = circuit.gain_s() {
                                        (timeline::signed_duration(gain))
                                    } @else {
                                        "–"
                                    }
                                }
                                td data-label="Ended" {
                                    @if let Some(at) = circuit.ended {
                                        (show::time(at, context.now)) ": "
                                        (circuit.end.as_deref().unwrap_or("reason unknown"))
                                    } @else {
                                        span.soft { "active" }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn plan(context: Context<'_>, plan: &CircuitPlan) -> Markup {
    html! {
        h2 { "What a plan would do now" }
        p.soft {
            "As of " (show::ago(plan.at, context.now)) ". "
            @if plan.level == "service" {
                "The service plans all circuits every " (plan.every_s) " s"
                @if let Some(at) = plan.planned { ", most recently " (show::ago(at, context.now)) }
                "."
            } @else {
                "Each agent decides about its own links; this plan is not carried out."
            }
        }
        div.scroll {
            table.stack {
                thead {
                    tr {
                        th scope="col" { "From" }
                        th scope="col" { "To" }
                        th scope="col" { "Action" }
                        th.number.wide scope="col" { "Waiting" }
                        th scope="col" { "Reason" }
                    }
                }
                tbody {
                    @for link in &plan.links {
                        tr {
                            td { (link.source) }
                            td data-label="To" { (link.target) }
                            td data-label="Action" { (action_state(link)) }
                            td.number.wide { (show::size(link.waits_bytes)) }
                            td data-label="Reason" { (link.why) }
                        }
                    }
                }
            }
        }
    }
}

fn action_state(link: &CircuitPlanned) -> Markup {
    let kind = match link.what {
        CircuitPlanAct::Ask | CircuitPlanAct::Keep => "good",
        CircuitPlanAct::GiveBack => "warn",
        CircuitPlanAct::None => "idle",
    };
    let mbit = link.mbit.map(|mbit| format!(" {} Mb/s", units::count(mbit))).unwrap_or_default();
    show::state(kind, &format!("{}{mbit}", link.what.word()))
}

/// A link with one circuit in use and one that ended. Text from outside is hostile.
#[cfg(test)]
pub(super) fn sample() -> CircuitsView {
    use longhaul_model::{AgentId, Timestamp};

    let at = |seconds: i64| Timestamp::from_seconds(1_763_717_531 + seconds);
    let circuit = |id: &str, begun: i64, ended: Option<i64>| Circuit {
        id: id.into(),
        why: "<u>much waits".into(),
        asked: at(begun),
        asked_mbit: 400,
        granted: Some(at(begun)),
        booked_mbit: Some(400),
        expires: None,
        used: Some(at(begun)),
        carried_bytes: 40_000_000_000,
        carried_s: 1_000.0,
        plain_bytes_per_s: Some(20e6),
        ended: ended.map(at),
        end: ended.map(|_| "<s>maintenance".into()),
    };
    let (now, past) = (circuit("00000002-x", -1_200, None), circuit("00000001-x", -9_000, Some(-5_000)));
    let link = CircuitView {
        link: "alpha:beta".into(),
        source: "alpha".parse().unwrap(),
        target: "beta".into(),
        agent: AgentId(3),
        host: "<host>".into(),
        told: at(-1),
        connected: true,
        provider: "nsi".into(),
        state: CircuitState::Established,
        until: None,
        gain_s: now.gain_s(),
        circuit: Some(now.clone()),
        why: "<u>1.1 TB wait".into(),
    };
    let planned = CircuitPlanned {
        source: "alpha".into(),
        target: "beta".into(),
        what: CircuitPlanAct::Keep,
        mbit: Some(400),
        waits_bytes: 1_100_000_000_000,
        plain_bytes_per_s: Some(20e6),
        why: "1.1 TB take 15 h the plain way".into(),
        done: None,
    };
    let plan = CircuitPlan {
        level: "service".into(),
        at: at(-5),
        planned: Some(at(-5)),
        every_s: 60,
        links: vec![planned],
        providers: Vec::new(),
        budgets: Vec::new(),
    };
    let record = |circuit: Circuit| CircuitRecord {
        link: "alpha:beta".into(),
        provider: "nsi".into(),
        gain_s: circuit.gain_s(),
        circuit,
    };
    let past = BTreeMap::from([("alpha:beta".to_owned(), vec![record(now), record(past)])]);
    CircuitsView { links: vec![link], plan, past }
}
