//! Directory index as an HTML page, for people: names, sizes, times. No scripts, no external resources, and
//! every name is escaped.

use http::{Response, StatusCode, header};
use longhaul_model::percent::encode_path;
use longhaul_model::units;
use longhaul_storage::Entry;
use maud::{DOCTYPE, Markup, html};

use crate::answer::{Outcome, set};
use crate::body::Body;
use crate::conditions::iso_date;
use crate::rights::Action;
use crate::serve::Call;

pub(crate) const CONTENT_TYPE: &str = "text/html; charset=utf-8";
/// Entries of one page; further ones are behind a link.
const PAGE_ENTRIES: usize = 1_000;
const STYLE: &str = "body{font-family:system-ui,sans-serif;margin:2rem}table{border-collapse:collapse}\
    td,th{padding:.2rem 1rem .2rem 0;text-align:left}td.n,th.n{text-align:right}";

pub(crate) fn page(call: &Call) -> Outcome {
    let (shared, place) = (&call.shared, &call.place);
    let after = call.request.uri().query().and_then(|query| query.strip_prefix("after="));
    let after = match after {
        None => None,
        Some(after) => {
            let name = crate::request::RequestPath::parse(&format!("/{after}"))?.path;
            Some(name).filter(|name| !name.contains('/'))
        }
    };
    let listing = shared.list((&call.granted, Action::Look), &place.path, after.as_deref(), PAGE_ENTRIES)?;
    let space = shared.storage().space().ok();
    let title = format!("{}:/{}", shared.storage().name(), units::printable(&place.path));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { (title) }
                style { (maud::PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @if let Some(space) = space {
                    p { (units::bytes(space.free_bytes)) " free of " (units::bytes(space.total_bytes)) }
                }
                table {
                    thead { tr { th { "Name" } th.n { "Size" } th { "Modified" } } }
                    tbody {
                        @if !place.is_root() { tr { td { a href="../" { "../" } } td {} td {} } }
                        @for entry in &listing.entries { (row(entry)) }
                    }
                }
                @if let Some(last) = &listing.more_after {
                    p { a href={ "?after=" (encode_path(last)) } { "More" } }
                }
            }
        }
    };
    let mut answer = Response::new(Body::from(page.into_string()));
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    set(headers, header::CONTENT_TYPE, CONTENT_TYPE);
    set(headers, header::CACHE_CONTROL, "no-store");
    let policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; \
        form-action 'none'";
    set(headers, header::CONTENT_SECURITY_POLICY, policy);
    set(headers, header::REFERRER_POLICY, "same-origin");
    Ok(answer)
}

fn row(entry: &Entry) -> Markup {
    let slash = if entry.is_directory { "/" } else { "" };
    html! {
        tr {
            // A name with a colon would be read as a scheme, and one that begins with a question mark is
            // encoded.
            td { a href={ "./" (encode_path(&entry.name)) (slash) } {
                (units::printable(&entry.name)) (slash) } }
            td.n { @if !entry.is_directory { (units::bytes(entry.identity.size)) } }
            td { (iso_date(entry.identity.mtime_ns).unwrap_or_default()) }
        }
    }
}
