//! Routes of login and logout: the login page, its forms, and the return from an OpenID issuer.
//!
//! The guard in front of all pages has checked that forms come from our own pages. Nothing here needs a
//! script.

use axum::Router;
use axum::extract::{Extension, Form, Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use longhaul_api::Problem;
use longhaul_identity::{Login, LoginReturn, Visitor};
use longhaul_service::{Operations, cookie};
use serde::Deserialize;

use crate::pages;
use crate::router::{AppState, CommonQuery, caller, context, html, show_problem};

const HOME_PATH: &str = "/ui/";

pub(crate) fn routes() -> Router<AppState> {
    Router::new()
        .route("/ui/login", get(login_page).post(token_login))
        .route("/ui/login/password", get(redirect_to_login).post(password_login))
        .route("/ui/login/certificate", get(redirect_to_login).post(certificate_login))
        .route("/ui/login/openid/{name}", get(openid_begin))
        .route("/ui/login/openid/{name}/callback", get(openid_callback))
        .route("/ui/logout", post(logout))
}

async fn login_page(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    Query(extra): Query<CommonQuery>,
) -> Response {
    match extra.token {
        Some(token) => confirm(&operations, &token),
        None => page(&operations, &visitor, None),
    }
}

/// The page of a one-time address. Opening it changes nothing: a link on another site must not log a browser
/// in as somebody else. Its button does.
pub(crate) fn confirm(operations: &Operations, token: &str) -> Response {
    html(StatusCode::OK, pages::confirm_login(context(operations, None), token))
}

/// Somebody reloaded the address of a form that had been sent.
async fn redirect_to_login() -> Redirect {
    Redirect::to("/ui/login")
}

#[derive(Deserialize)]
pub(crate) struct TokenForm {
    token: String,
}

async fn token_login(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<TokenForm>,
) -> Response {
    open_session(&operations, &visitor, form.token.trim().to_owned()).await
}

/// Opens a session and goes to the overview without the token in the address.
async fn open_session(operations: &AppState, visitor: &Visitor, token: String) -> Response {
    let from = visitor.clone();
    let opened =
        operations.run(move |operations| operations.identity().session_login(&token, Some(&from))).await;
    login_response(operations, visitor, opened)
}

#[derive(Deserialize)]
pub(crate) struct PasswordForm {
    name: String,
    password: String,
}

async fn password_login(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<PasswordForm>,
) -> Response {
    let opened = operations.identity().password_login(&visitor, &form.name, form.password.into()).await;
    login_response(&operations, &visitor, opened)
}

async fn certificate_login(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
) -> Response {
    let from = visitor.clone();
    let opened = operations.run(move |operations| operations.identity().certificate_login(&from)).await;
    login_response(&operations, &visitor, opened)
}

async fn openid_begin(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    Path(name): Path<String>,
) -> Response {
    match operations.identity().openid_begin(&name, &visitor).await {
        Ok(begun) => {
            let mut response = Redirect::to(&begun.address).into_response();
            add_header(&mut response, header::SET_COOKIE, &cookie::set_login(&begun.browser, visitor.secure));
            add_header(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(problem) => page(&operations, &visitor, Some(&problem)),
    }
}

/// The redirect back from an issuer. Parameters that occur twice are refused, unknown ones ignored.
async fn openid_callback(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let single = |name: &str| {
        let mut found = pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone());
        found.next().filter(|_| found.next().is_none())
    };
    let back = LoginReturn {
        state: single("state").unwrap_or_default(),
        code: single("code").unwrap_or_default(),
        error: single("error"),
        issuer: single("iss"),
        browser: cookie::get_login(&headers),
    };
    let mut response = match operations.openid_finish(&name, back, &visitor).await {
        // Not a redirect: on a redirect chain that began at another site, browsers do not send the new
        // `SameSite` cookie.
        Ok(login) => {
            let mut response = html(StatusCode::OK, pages::logged_in(context(&operations, None), HOME_PATH));
            add_header(&mut response, header::SET_COOKIE, &cookie::set(&login.cookie, visitor.secure));
            response
        }
        Err(problem) => page(&operations, &visitor, Some(&problem)),
    };
    add_header(&mut response, header::SET_COOKIE, &cookie::clear_login(visitor.secure));
    response
}

#[derive(Deserialize)]
pub(crate) struct LogoutForm {
    form_token: String,
}

async fn logout(
    State(operations): State<AppState>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(form): Form<LogoutForm>,
) -> Response {
    // Without a session there is nothing to end.
    if let Ok(caller) = caller(&operations, &headers) {
        if let Err(problem) = caller.check_csrf(Some(&form.form_token)) {
            return show_problem(&operations, &headers, &problem);
        }
        if let Some(value) = cookie::get(&headers) {
            let logout = move |operations: &Operations| {
                operations.identity().session_logout(&value);
                Ok(())
            };
            if let Err(problem) = operations.run(logout).await {
                return show_problem(&operations, &headers, &problem);
            }
        }
    }
    let mut response = Redirect::to("/ui/login").into_response();
    add_header(&mut response, header::SET_COOKIE, &cookie::clear(visitor.secure));
    response
}

fn login_response(operations: &Operations, visitor: &Visitor, opened: Result<Login, Problem>) -> Response {
    match opened {
        Ok(login) => {
            let mut response = Redirect::to(HOME_PATH).into_response();
            add_header(&mut response, header::SET_COOKIE, &cookie::set(&login.cookie, visitor.secure));
            response
        }
        Err(problem) => page(operations, visitor, Some(&problem)),
    }
}

fn page(operations: &Operations, visitor: &Visitor, failed: Option<&Problem>) -> Response {
    let methods = operations.identity().login_methods(visitor);
    let status = failed.map_or(200, |problem| problem.status);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    html(status, pages::login(context(operations, None), &methods, failed))
}

fn add_header(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().append(name, value);
    }
}
