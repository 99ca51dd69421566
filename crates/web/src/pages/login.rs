//! The door, and the page that says what went wrong.

use longhaul_api::Problem;
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Place, page};

fn frame<'a>(context: Context<'a>, title: &'a str) -> Frame<'a> {
    Frame {
        title,
        place: Place::Outside,
        json: None,
        command: None,
        live: false,
        deployment: context.deployment,
        viewer: context.viewer,
    }
}

pub fn login(context: Context<'_>, failed: Option<&str>) -> Markup {
    page(
        &frame(context, "Log in"),
        html! {
            h1 { "Log in" }
            @if let Some(why) = failed { p.state.bad role="alert" { "■ " (why) } }
            p { "Paste an API token. " code { "longhaul token create NAME" } " makes one; the demo prints an address that needs none." }
            form.filter method="post" action="/ui/login" {
                label { "API token" input type="password" name="token" size="44" autocomplete="current-password" required autofocus; }
                button type="submit" { "Log in" }
            }
        },
    )
}

pub fn problem(context: Context<'_>, problem: &Problem) -> Markup {
    page(
        &frame(context, &problem.title),
        html! {
            h1 { (problem.title) " " small { (problem.code) } }
            dl.facts {
                dt { "why" } dd { (problem.detail) }
                dt { "next" } dd { (problem.remedy) }
                @if let Some(id) = problem.instance { dt { "id" } dd { code { (id) } } }
            }
            p { a href="/ui/" { "Back to the overview" } }
        },
    )
}
