//! `/fts3/ftsmon/`: where programs such as Rucio send people who want to see a job. Ours are below
//! `/ui/jobs`.
//!
//! They name the job behind a `#`, which browsers keep to themselves: so a script has to lead on.

use http::HeaderName;
use longhaul_api::fts::Refusal;

use super::request::{FtsRequest, Reply};
use super::routes;

const POLICY: &str = "default-src 'none'; script-src 'self'; frame-ancestors 'none'; base-uri 'none'";
const PAGE: &str = r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Jobs</title>
<script src="/fts3/ftsmon/lead.js"></script>
<p>The pages of jobs are at <a href="/ui/jobs">/ui/jobs</a>.</p>
</html>
"#;
/// Only what looks like the id of a job gets into an address.
const SCRIPT: &str = concat!(
    r#"const job = /^#\/?job\/([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})(?:[/?]|$)/"#,
    r#".exec(location.hash);
location.replace(job ? "/ui/jobs/" + job[1].toLowerCase() : "/ui/jobs");
"#
);

pub fn answer(ask: &FtsRequest, words: &[&str]) -> Result<Reply, Refusal> {
    match words {
        [] => Ok(guarded("text/html; charset=utf-8", PAGE)),
        ["lead.js"] => Ok(guarded("text/javascript; charset=utf-8", SCRIPT)),
        _ => Err(routes::refused(ask)),
    }
}

fn guarded(kind: &'static str, text: &str) -> Reply {
    [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ]
    .into_iter()
    .fold(Reply::text(kind, text), |reply, (name, value)| {
        reply.with_header(HeaderName::from_static(name), value)
    })
}
