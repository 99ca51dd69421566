//! The login page, and the page that explains an error.

use longhaul_api::Problem;
use longhaul_identity::{CertificateStatus, LoginMethods};
use maud::{Markup, html};

use super::Context;
use crate::layout::{Frame, Section, page, redirecting_page};

fn frame<'a>(context: Context<'a>, title: &'a str) -> Frame<'a> {
    Frame {
        title,
        section: Section::Outside,
        json: None,
        command: None,
        live: false,
        deployment: context.deployment,
        viewer: context.viewer,
    }
}

/// The login page with the methods that are enabled here. A token always works.
pub fn login(context: Context<'_>, methods: &LoginMethods, failed: Option<&Problem>) -> Markup {
    let only_token =
        !methods.password && methods.openid.is_empty() && methods.certificate == CertificateStatus::Closed;
    page(
        &frame(context, "Log in"),
        html! {
            h1 { "Log in" }
            @if let Some(problem) = failed {
                p.state.bad role="alert" { "■ Login failed: " (why(problem)) "." }
                p { "What to do: " (problem.remedy) "." }
            }
            @if methods.password {
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
            @if !methods.openid.is_empty() {
                h2 { "Through your organisation" }
                p { "You log in there and return here." }
                p {
                    @for method in &methods.openid {
                        a.button href=(method.address) { "Log in with " (method.title) } " "
                    }
                }
            }
            (certificate(&methods.certificate))
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

/// Why the login failed: the detail, after the title where that says more than the error code does.
fn why(problem: &Problem) -> String {
    if problem.title == problem.code.title() && !problem.detail.is_empty() {
        return problem.detail.clone();
    }
    format!("{}: {}", problem.title, problem.detail)
}

fn certificate(method: &CertificateStatus) -> Markup {
    html! {
        @if *method != CertificateStatus::Closed { h2 { "With your certificate" } }
        @match method {
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

/// The page that a one-time address opens: one click logs in.
pub fn confirm_login(context: Context<'_>, token: &str) -> Markup {
    page(
        &frame(context, "Log in"),
        html! {
            h1 { "Log in" }
            p { "This address logs this browser in, once." }
            form.inline method="post" action="/ui/login" {
                input type="hidden" name="token" value=(token);
                button type="submit" autofocus { "Log in" }
            }
        },
    )
}

/// The page after a login at an issuer: it goes on to `address` by itself.
pub fn logged_in(context: Context<'_>, address: &str) -> Markup {
    redirecting_page(
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

/// All methods, with `text` wherever text from outside is shown.
#[cfg(test)]
pub(super) fn sample(text: &str) -> LoginMethods {
    let method = longhaul_identity::OpenIdMethod { title: text.into(), address: format!("https://x/{text}") };
    LoginMethods { password: true, certificate: CertificateStatus::Shown(text.into()), openid: vec![method] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_model::{Fault, FaultCode, Timestamp};

    fn shown(methods: &LoginMethods, failed: Option<&Problem>) -> String {
        let context = Context { deployment: "test", viewer: None, now: Timestamp::ZERO };
        login(context, methods, failed).into_string()
    }

    #[test]
    fn only_enabled_methods_are_shown() {
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
    fn a_refusal_says_why_and_what_to_do() {
        let methods =
            LoginMethods { password: true, certificate: CertificateStatus::NoneShown, openid: Vec::new() };
        let problem = Problem::from(Fault::new(FaultCode::NotAuthenticated, "<script>"));
        let page = shown(&methods, Some(&problem));
        assert!(
            page.contains("role=\"alert\"")
                && page.contains("&lt;script&gt;")
                && page.contains("log in again")
        );
    }
}
