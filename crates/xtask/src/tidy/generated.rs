//! Pages that follow from the code: the map of crates, the error codes, the routes. `tidy` compares,
//! `tidy --fix` writes.

use std::fmt::Write as _;

use longhaul_model::FaultCode;

use super::rooms::{Kind, ROOMS};
use super::{Findings, members};
use crate::tools::root;

pub(crate) fn check(metadata: &serde_json::Value, fix: bool, findings: &mut Findings) {
    for (name, text) in [("crates/README.md", map(metadata)), ("docs/reference/errors.md", errors())] {
        let path = root().join(name);
        if std::fs::read_to_string(&path).is_ok_and(|present| present == text) {
            continue;
        }
        if !fix {
            findings.push(format!("{name}: differs from the code (cargo xtask tidy --fix)"));
            continue;
        }
        let folder = path.parent().map(std::fs::create_dir_all);
        if let Err(error) = folder.unwrap_or(Ok(())).and_then(|()| std::fs::write(&path, text)) {
            findings.push(format!("{name}: cannot be written: {error}"));
        }
    }
}

fn map(metadata: &serde_json::Value) -> String {
    let mut text = String::from("# The rooms, in the order in which data meets them\n\n```text\n");
    for room in ROOMS {
        let description = members(metadata)
            .find(|package| {
                package["name"]
                    .as_str()
                    .is_some_and(|name| name.strip_prefix("longhaul-").unwrap_or(name) == room.name)
            })
            .and_then(|package| package["description"].as_str())
            .unwrap_or_default();
        let kind = match room.kind {
            Kind::Pure => "pure",
            Kind::Edge => "edge",
            Kind::Joining => "joining",
            Kind::Top => "",
        };
        let _ = writeln!(text, "{:<10} {kind:<8} {}", room.name, description.trim_end_matches("; pure"));
    }
    text.push_str("```\n");
    text
}

fn errors() -> String {
    let mut text = String::from(
        "# Error codes\n\nEvery error says what happened, why, whose turn it is and what to do next. Numbers \
         are never reused.\n*Try again* is what the scheduler does by itself: `now` after seconds, `later` \
         after \
         half a minute and\nlonger, `never` not with this source, or not at all.\n\n\
         | code | whose turn | try again | what | next step |\n| --- | --- | --- | --- | --- |\n",
    );
    for &code in FaultCode::ALL {
        let retry = format!("{:?}", code.retry()).to_lowercase();
        let _ = writeln!(
            text,
            "| {code} | {} | {retry} | {} | {} |",
            code.blame(),
            code.title(),
            code.next_step().replace('|', "\\|")
        );
    }
    text
}
