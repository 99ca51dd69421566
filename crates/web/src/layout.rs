//! The layout around every page: header, navigation, and a footer with the same view as JSON and as a
//! command.

use longhaul_security::{Principal, ResourceScope, authorise_for};
use maud::{DOCTYPE, Markup, html};

use crate::pages::Context;

/// What the layout shows about a page.
pub struct Frame<'a> {
    /// The title of the window.
    pub title: &'a str,
    /// The entry of the navigation that is marked as current.
    pub section: Section,
    /// The same view from the API.
    pub json: Option<String>,
    /// The same view on a command line.
    pub command: Option<String>,
    /// Whether the script refreshes the page.
    pub live: bool,
    pub deployment: &'a str,
    /// The person logged in. None before login.
    pub viewer: Option<Viewer<'a>>,
}

impl<'a> Frame<'a> {
    /// A page that refreshes itself and that the API and a command show too.
    pub fn live(
        context: Context<'a>,
        title: &'a str,
        section: Section,
        json: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Frame {
            title,
            section,
            json: Some(json.into()),
            command: Some(command.into()),
            live: true,
            deployment: context.deployment,
            viewer: context.viewer,
        }
    }
}

/// The person who is logged in, and the token that protects their forms from cross-site requests (CSRF).
#[derive(Clone, Copy)]
pub struct Viewer<'a> {
    pub principal: &'a Principal,
    pub form_token: &'a str,
}

impl Viewer<'_> {
    /// Whether they may change things in `scope`: pages offer nothing that would be refused.
    pub fn may_change(&self, scope: ResourceScope<'_>) -> bool {
        authorise_for(self.principal, "page", scope).is_ok()
    }
}

/// An entry of the navigation. [`Section::Outside`] is for pages without one, such as the login.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Overview,
    Datasets,
    Subscriptions,
    Transfers,
    Jobs,
    Sites,
    Storages,
    Circuits,
    Steer,
    Problems,
    Outside,
}

const NAVIGATION: [(Section, &str, &str); 10] = [
    (Section::Overview, "/ui/", "Overview"),
    (Section::Datasets, "/ui/datasets", "Datasets"),
    (Section::Subscriptions, "/ui/subscriptions", "Subscriptions"),
    (Section::Transfers, "/ui/transfers", "Transfers"),
    (Section::Jobs, "/ui/jobs", "Jobs"),
    (Section::Sites, "/ui/sites", "Sites"),
    (Section::Storages, "/ui/storages", "Storages"),
    (Section::Circuits, "/ui/circuits", "Circuits"),
    (Section::Steer, "/ui/steer", "Steer"),
    (Section::Problems, "/ui/problems", "Problems"),
];

pub fn page(frame: &Frame<'_>, body: Markup) -> Markup {
    render(frame, None, body)
}

/// A page that goes to `address` at once, without scripts too.
pub fn redirecting_page(frame: &Frame<'_>, address: &str, body: Markup) -> Markup {
    render(frame, Some(address), body)
}

fn render(frame: &Frame<'_>, refresh_to: Option<&str>, body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                @if let Some(address) = refresh_to {
                    meta http-equiv="refresh" content={ "0; url=" (address) };
                }
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
                                @for (section, address, name) in NAVIGATION {
                                    a href=(address)
                                        aria-current=[(section == frame.section).then_some("page")] {
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

/// A form with one button that changes something. Empty without a viewer who may: see
/// [`Context::viewer_for`].
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
