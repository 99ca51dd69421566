//! The frame around every page: heading, places to go, the same view as JSON and as a command.

use longhaul_security::{Principal, ResourceScope, authorise_for};
use maud::{DOCTYPE, Markup, html};

use crate::pages::Context;

/// What the frame says about a page.
pub struct Frame<'a> {
    /// The question the page answers, in its window's title.
    pub title: &'a str,
    /// Which entry of the navigation it belongs to.
    pub place: Place,
    /// The same view from the API.
    pub json: Option<String>,
    /// The same view on a command line.
    pub command: Option<String>,
    /// Whether the page changes by itself.
    pub live: bool,
    pub deployment: &'a str,
    /// Who looks, and the token that their forms must send back. None before login.
    pub viewer: Option<Viewer<'a>>,
}

impl<'a> Frame<'a> {
    /// A page that changes by itself and that the API and a command show too.
    pub fn live(
        context: Context<'a>,
        title: &'a str,
        place: Place,
        json: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Frame {
            title,
            place,
            json: Some(json.into()),
            command: Some(command.into()),
            live: true,
            deployment: context.deployment,
            viewer: context.viewer,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Viewer<'a> {
    pub principal: &'a Principal,
    pub form_token: &'a str,
}

impl Viewer<'_> {
    /// Whether they may change what is of that: nothing is offered that would be refused.
    pub fn may(&self, of: ResourceScope<'_>) -> bool {
        authorise_for(self.principal, "page", of).is_ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Overview,
    Datasets,
    Subscriptions,
    Transfers,
    Jobs,
    Sites,
    Circuits,
    Steer,
    Problems,
    Outside,
}

const PLACES: [(Place, &str, &str); 9] = [
    (Place::Overview, "/ui/", "Overview"),
    (Place::Datasets, "/ui/datasets", "Datasets"),
    (Place::Subscriptions, "/ui/subscriptions", "Subscriptions"),
    (Place::Transfers, "/ui/transfers", "Transfers"),
    (Place::Jobs, "/ui/jobs", "Jobs"),
    (Place::Sites, "/ui/sites", "Sites"),
    (Place::Circuits, "/ui/circuits", "Circuits"),
    (Place::Steer, "/ui/steer", "Steer"),
    (Place::Problems, "/ui/problems", "Problems"),
];

pub fn page(frame: &Frame<'_>, body: Markup) -> Markup {
    framed(frame, None, body)
}

/// A page that another one follows at once, also where scripts are off.
pub fn page_that_goes_on(frame: &Frame<'_>, address: &str, body: Markup) -> Markup {
    framed(frame, Some(address), body)
}

fn framed(frame: &Frame<'_>, follows: Option<&str>, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                @if let Some(address) = follows { meta http-equiv="refresh" content={ "0; url=" (address) }; }
                title { (frame.title) " · Longhaul" }
                link rel="stylesheet" href="/ui/assets/style.css";
                link rel="icon" href="/ui/assets/icon.svg" type="image/svg+xml";
                script src="/ui/assets/live.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to content" }
                header {
                    div.inner {
                        a.name href="/ui/" { "Longhaul" }
                        @if frame.viewer.is_some() {
                            nav aria-label="Pages" {
                                @for (place, address, name) in PLACES {
                                    a href=(address) aria-current=[(place == frame.place).then_some("page")] {
                                        (name)
                                    }
                                }
                            }
                        }
                        div.tail {
                            span { (frame.deployment) }
                            @if let Some(viewer) = frame.viewer {
                                span { (viewer.principal.name) }
                                form.leave method="post" action="/ui/logout" {
                                    input type="hidden" name="form_token" value=(viewer.form_token);
                                    button type="submit" { "Log out" }
                                }
                                @if frame.live { span #live role="status" {} }
                            }
                            button #theme type="button" title="Switch between light and dark" { "◐ Theme" }
                        }
                    }
                }
                main #main data-live[frame.live] { (body) }
                footer {
                    @if let Some(json) = &frame.json { a href=(json) { "This page as JSON" } }
                    @if let Some(command) = &frame.command {
                        span { "Command line: " code { (command) } }
                    }
                    span { "Times are in UTC" }
                }
            }
        }
    }
}

/// A form of one button that changes something, for [`Context::who_may`].
pub fn action(viewer: Option<Viewer<'_>>, address: &str, fields: &[(&str, &str)], label: &str) -> Markup {
    html! {
        @if let Some(viewer) = viewer {
            form.inline method="post" action=(address) {
                input type="hidden" name="form_token" value=(viewer.form_token);
                @for (name, value) in fields { input type="hidden" name=(name) value=(value); }
                button type="submit" { (label) }
            }
        }
    }
}
