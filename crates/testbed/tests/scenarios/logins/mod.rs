//! How people log in to the pages: with a password, at an issuer, with a certificate; and everything that
//! must not let them in.

mod browser;
mod certificate;
mod issuer;
mod openid;
mod password;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use longhaul_api::routes;
use longhaul_testbed::http::{Api, Reply};
use longhaul_testbed::{Deployment, ServiceOptions};
use serde_json::Value;

pub const PASSWORD: &str = "correct horse battery staple";

/// As a browser comes: with no token.
fn visitor(deployment: &Deployment) -> Api {
    deployment.api().with_token(None)
}

fn with_settings(settings: String) -> Deployment {
    Deployment::with(ServiceOptions { settings, pages: true, ..ServiceOptions::default() })
}

fn form(fields: &[(&str, &str)]) -> String {
    let pairs = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", longhaul_model::percent::encode_component(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A form of a page, sent as browsers do.
fn post(api: &Api, path: &str, fields: &[(&str, &str)], cookie: Option<&str>) -> Reply {
    let origin = format!("https://{}", api.address);
    let mut headers =
        vec![("content-type", "application/x-www-form-urlencoded"), ("origin", origin.as_str())];
    headers.extend(cookie.map(|cookie| ("cookie", cookie)));
    api.send("POST", path, &headers, form(fields).as_bytes()).unwrap()
}

fn get(api: &Api, path: &str, cookie: Option<&str>) -> Reply {
    let headers: Vec<(&str, &str)> = cookie.map(|cookie| ("cookie", cookie)).into_iter().collect();
    api.send("GET", path, &headers, b"").unwrap()
}

/// `name=value` of the cookie that a reply sets, and its attributes.
#[track_caller]
fn cookie(reply: &Reply, name: &str) -> (String, String) {
    let lines = reply.headers.iter().filter(|(key, _)| key.eq_ignore_ascii_case("set-cookie"));
    let line = lines.map(|(_, value)| value).find(|value| value.starts_with(&format!("{name}=")));
    let line = line.unwrap_or_else(|| panic!("no cookie {name}: {:?} {}", reply.headers, reply.text()));
    let (pair, attributes) = line.split_once("; ").unwrap();
    (pair.to_owned(), attributes.to_owned())
}

/// The session that a reply opens.
#[track_caller]
fn session(reply: &Reply) -> String {
    let (pair, attributes) = cookie(reply, routes::SESSION_COOKIE_TLS);
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Strict; Secure");
    assert!(pair.contains("=lhc_"), "{pair}");
    pair
}

/// The user of a session cookie; none if it is not valid.
fn whoami(api: &Api, cookie: &str) -> Option<Value> {
    let reply = get(api, "/api/v1/whoami", Some(cookie));
    (reply.status == 200).then(|| reply.json())
}

fn logins(deployment: &Deployment) -> Vec<String> {
    let entries = deployment.json(&["audit", "--of", "logins"]);
    let entries = entries["items"].as_array().unwrap().iter();
    entries
        .map(|entry| format!("{}: {}", entry["who"].as_str().unwrap(), entry["what"].as_str().unwrap()))
        .collect()
}

/// `longhaul account …` with a password on its standard input.
#[track_caller]
fn account(deployment: &Deployment, words: &[&str], password: &str) -> String {
    let mut command = deployment.command(&[&["account"], words, &["--password-stdin"]].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(!said.contains(password), "{said}");
    format!("{} {said}", output.status.code().unwrap_or(-1))
}

/// Whether any file below holds the text.
fn is_in_files(directory: &Path, text: &str) -> bool {
    fs::read_dir(directory).unwrap().flatten().any(|entry| {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => is_in_files(&path, text),
            kind if kind.is_file() => {
                let bytes = fs::read(&path).unwrap_or_default();
                bytes.windows(text.len()).any(|window| window == text.as_bytes())
            }
            _ => false,
        }
    })
}
