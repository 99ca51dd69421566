//! The door, and the page that says what went wrong.

use longhaul_api::Problem;
use longhaul_identity::{CertificateStatus, LoginMethods};
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Place, page, page_that_goes_on};

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

/// Shows the ways that are open here, and no others. A token opens the door everywhere.
pub fn login(context: Context<'_>, ways: &LoginMethods, failed: Option<&Problem>) -> Markup {
    let only_token =
        !ways.password && ways.openid.is_empty() && ways.certificate == CertificateStatus::Closed;
    page(
        &frame(context, "Log in"),
        html! {
            h1 { "Log in" }
            @if let Some(problem) = failed {
                p.state.bad role="alert" { "■ Login failed: " (why(problem)) "." }
                p { "What to do: " (problem.remedy) "." }
            }
            @if ways.password {
                h2 { "With your name and password" }
                form.filter method="post" action="/ui/login/password" {
                    label {
                        "Name"
                        input name="name" autocomplete="username" autocapitalize="none" spellcheck="false"
                            required autofocus;
                    }
                    label {
                        "Password"
                        input type="password" name="password" autocomplete="current-password" required;
                    }
                    button type="submit" { "Log in" }
                }
            }
            @if !ways.openid.is_empty() {
                h2 { "Through your organisation" }
                p { "You log in there and return here." }
                p {
                    @for way in &ways.openid {
                        a.button href=(way.address) { "Log in with " (way.title) } " "
                    }
                }
            }
            (certificate(&ways.certificate))
            h2 { "With an API token" }
            p {
                code { "longhaul token create NAME" }
                " makes one; the demo prints an address that needs none."
            }
            form.filter method="post" action="/ui/login" {
                label {
                    "API token"
                    input type="password" name="token" size="44" autocomplete="off" required
                        autofocus[only_token];
                }
                button type="submit" { "Log in" }
            }
        },
    )
}

/// The particulars; and what happened, where that is more than what its code says of every such refusal.
fn why(problem: &Problem) -> String {
    if problem.title == problem.code.title() && !problem.detail.is_empty() {
        return problem.detail.clone();
    }
    format!("{}: {}", problem.title, problem.detail)
}

fn certificate(way: &CertificateStatus) -> Markup {
    html! {
        @if *way != CertificateStatus::Closed { h2 { "With your certificate" } }
        @match way {
            CertificateStatus::Closed => {}
            CertificateStatus::NoneShown => {
                p { "Your browser showed none. Import yours into it, and open a new window: it asks then \
                    which one to show." }
            }
            CertificateStatus::Unusable(why) => {
                p { "The certificate that your browser presented is not accepted: " (why) }
            }
            CertificateStatus::Shown(subject) => {
                p { "Your browser presented the certificate of " code { (subject) } "." }
                form.inline method="post" action="/ui/login/certificate" {
                    button type="submit" { "Log in with your certificate" }
                }
            }
        }
    }
}

/// After a login elsewhere: goes on by itself.
pub fn logged_in(context: Context<'_>, address: &str) -> Markup {
    page_that_goes_on(
        &frame(context, "Logged in"),
        address,
        html! {
            h1 { "You are logged in" }
            p { a href=(address) { "Continue to the overview" } }
        },
    )
}

pub fn problem(context: Context<'_>, problem: &Problem) -> Markup {
    page(
        &frame(context, &problem.title),
        html! {
            h1 { (problem.title) " " small { (problem.code) } }
            dl.facts {
                dt { "Reason" } dd { (problem.detail) }
                dt { "Next step" } dd { (problem.remedy) }
                @if let Some(id) = problem.instance { dt { "ID" } dd { code { (id) } } }
            }
            p { a href="/ui/" { "Back to the overview" } }
        },
    )
}

/// All ways, with that text wherever one from outside is shown.
#[cfg(test)]
pub(super) fn sample(text: &str) -> LoginMethods {
    let way = longhaul_identity::OpenIdMethod { title: text.into(), address: format!("https://x/{text}") };
    LoginMethods { password: true, certificate: CertificateStatus::Shown(text.into()), openid: vec![way] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{Fault, FaultCode, Timestamp};

    fn shown(ways: &LoginMethods, failed: Option<&Problem>) -> String {
        let context = Context { deployment: "test", viewer: None, now: Timestamp::ZERO };
        login(context, ways, failed).into_string()
    }

    #[test]
    fn only_the_ways_that_are_open_are_shown() {
        let closed =
            LoginMethods { password: false, certificate: CertificateStatus::Closed, openid: Vec::new() };
        let bare = shown(&closed, None);
        assert!(bare.contains("API token") && !bare.contains("name=\"password\""), "{bare}");
        assert!(!bare.contains("certificate") && !bare.contains("organisation"), "{bare}");
        let page = shown(&sample("the lab"), None);
        for part in ["name=\"password\"", "Log in with the lab", "action=\"/ui/login/certificate\""] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert_eq!(page.matches("autofocus").count(), 1, "{page}");
    }

    #[test]
    fn a_refusal_says_what_and_what_next() {
        let ways =
            LoginMethods { password: true, certificate: CertificateStatus::NoneShown, openid: Vec::new() };
        let problem = Problem::from(Fault::new(FaultCode::NotAuthenticated, "<script>"));
        let page = shown(&ways, Some(&problem));
        assert!(
            page.contains("role=\"alert\"")
                && page.contains("&lt;script&gt;")
                && page.contains("log in again")
        );
    }
}
