//! The problems page: what needs fixing first, and who should act?

use longhaul_api::native::ProblemView;
use longhaul_model::units;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, page};
use crate::show;

pub fn problems(context: Context<'_>, list: &[ProblemView]) -> Markup {
    let frame = Frame::live(context, "Problems", Section::Problems, "/api/v1/problems", "longhaul problems");
    page(
        &frame,
        html! {
            h1 { "Problems: what needs fixing first, and who should act?" }
            @if list.is_empty() { p.empty { "No problems." } }
            @for problem in list { (problem_card(context, problem)) }
        },
    )
}

pub fn problem_card(context: Context<'_>, problem: &ProblemView) -> Markup {
    html! {
        div.problem.closed[!problem.open] {
            p {
                span.what {
                    (problem.fault.code) " " (problem.fault.code.title())
                    @if let Some(storage) = &problem.storage { " at " (storage) }
                }
                " "
                span.soft {
                    "× " (units::count(problem.count)) ", last " (show::ago(problem.last_seen, context.now))
                    @if !problem.open { ", no longer holds anything up" }
                }
            }
            p { (units::printable(&problem.fault.detail)) }
            p { b { "To do (" (problem.fault.blame) "): " } (problem.remedy) }
            @if !problem.examples.is_empty() {
                details {
                    summary { "Examples" }
                    ul { @for example in &problem.examples { li { code { (units::printable(example)) } } } }
                }
            }
        }
    }
}
