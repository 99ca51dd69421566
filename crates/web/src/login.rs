//! Routes of the door: the page of logins, what its forms ask for, the way back from an issuer, and out
//! again.
//!
//! Forms come from our own pages only, which the guard before all pages has checked. Nothing here needs a
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
use crate::router::{Extra, Shared, caller, context, html, show_problem};

const HOME: &str = "/ui/";

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/ui/login", get(login_page).post(token_login))
        .route("/ui/login/password", get(to_page).post(password_login))
        .route("/ui/login/certificate", get(to_page).post(certificate_login))
        .route("/ui/login/openid/{name}", get(openid_begin))
        .route("/ui/login/openid/{name}/callback", get(openid_callback))
        .route("/ui/logout", post(logout))
}

async fn login_page(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Query(extra): Query<Extra>,
) -> Response {
    match extra.token {
        Some(token) => open_session(&operations, &visitor, token).await,
        None => page(&operations, &visitor, None),
    }
}

/// Of a form that was sent, and whose address was opened again.
async fn to_page() -> Redirect {
    Redirect::to("/ui/login")
}

#[derive(Deserialize)]
struct TokenForm {
    token: String,
}

async fn token_login(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<TokenForm>,
) -> Response {
    open_session(&operations, &visitor, form.token.trim().to_owned()).await
}

/// Opens a session and goes to the overview without the token in the address.
pub(crate) async fn open_session(operations: &Shared, visitor: &Visitor, token: String) -> Response {
    let from = visitor.clone();
    let opened =
        operations.run(move |operations| operations.identity().session_login(&token, Some(&from))).await;
    entered(operations, visitor, opened)
}

#[derive(Deserialize)]
struct PasswordForm {
    name: String,
    password: String,
}

async fn password_login(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Form(form): Form<PasswordForm>,
) -> Response {
    let opened = operations.identity().password_login(&visitor, &form.name, form.password.into()).await;
    entered(&operations, &visitor, opened)
}

async fn certificate_login(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
) -> Response {
    let from = visitor.clone();
    let opened = operations.run(move |operations| operations.identity().certificate_login(&from)).await;
    entered(&operations, &visitor, opened)
}

async fn openid_begin(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Path(name): Path<String>,
) -> Response {
    match operations.identity().openid_begin(&name, &visitor).await {
        Ok(begun) => {
            let mut response = Redirect::to(&begun.address).into_response();
            set(&mut response, header::SET_COOKIE, &cookie::set_login(&begun.browser, visitor.secure));
            set(&mut response, header::CACHE_CONTROL, "no-store");
            response
        }
        Err(problem) => page(&operations, &visitor, Some(&problem)),
    }
}

/// What an issuer puts into the address. Anything that is there twice is refused, as all else that is not
/// understood is let be.
async fn openid_callback(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    Path(name): Path<String>,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
) -> Response {
    let one = |name: &str| {
        let mut found = pairs.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone());
        found.next().filter(|_| found.next().is_none())
    };
    let back = LoginReturn {
        state: one("state").unwrap_or_default(),
        code: one("code").unwrap_or_default(),
        error: one("error"),
        issuer: one("iss"),
        browser: cookie::get_login(&headers),
    };
    let mut response = match operations.openid_finish(&name, back, &visitor).await {
        // No redirect: a browser that comes from another site would not send the new cookie along with it.
        Ok(login) => {
            let mut response = html(StatusCode::OK, pages::logged_in(context(&operations, None), HOME));
            set(&mut response, header::SET_COOKIE, &cookie::set(&login.cookie, visitor.secure));
            response
        }
        Err(problem) => page(&operations, &visitor, Some(&problem)),
    };
    set(&mut response, header::SET_COOKIE, &cookie::clear_login(visitor.secure));
    response
}

#[derive(Deserialize)]
struct LogoutForm {
    form_token: String,
}

async fn logout(
    State(operations): State<Shared>,
    Extension(visitor): Extension<Visitor>,
    headers: HeaderMap,
    Form(form): Form<LogoutForm>,
) -> Response {
    // Whoever is not logged in any more is where they want to be.
    if let Ok(caller) = caller(&operations, &headers) {
        if let Err(problem) = caller.check_csrf(Some(&form.form_token)) {
            return show_problem(&operations, &headers, &problem);
        }
        if let Some(value) = cookie::get(&headers) {
            operations.identity().session_logout(&value);
        }
    }
    let mut response = Redirect::to("/ui/login").into_response();
    set(&mut response, header::SET_COOKIE, &cookie::clear(visitor.secure));
    response
}

fn entered(operations: &Operations, visitor: &Visitor, opened: Result<Login, Problem>) -> Response {
    match opened {
        Ok(login) => {
            let mut response = Redirect::to(HOME).into_response();
            set(&mut response, header::SET_COOKIE, &cookie::set(&login.cookie, visitor.secure));
            response
        }
        Err(problem) => page(operations, visitor, Some(&problem)),
    }
}

fn page(operations: &Operations, visitor: &Visitor, failed: Option<&Problem>) -> Response {
    let ways = operations.identity().login_methods(visitor);
    let status = failed.map_or(200, |problem| problem.status);
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    html(status, pages::login(context(operations, None), &ways, failed))
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().append(name, value);
    }
}
