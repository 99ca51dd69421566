//! The documents do what they say: the tutorial and other walkthroughs run, every command line and
//! configuration in them is accepted, tables equal the code, and links within pages lead somewhere. (Links
//! between files: `cargo xtask tidy`.)
//!
//! `LONGHAUL_DOCS=write` rewrites the tables that stand between marks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::routes::{self, Access, Body, Route};
use longhaul_model::FaultCode;
use longhaul_testbed::foreign::S3Program;
use longhaul_testbed::{CommandOutput, Deployment, SiteOptions, binary, free_port, needs};
use serde_json::Value;

/// A page takes seconds; whatever it starts is ended with it after this.
const PAGE_WITHIN_S: u64 = 240;
const COMMAND_WITHIN: Duration = Duration::from_secs(30);
/// An id that parses, in place of those that a reader has to fill in.
const SOME_ID: &str = "0CMZ7RQYM0000";
const SOME_JOB: &str = "3c0f7d8a-5a0e-4c6b-9d6a-0f6b8a1f2e11";
/// Every table of the documents that is compared with the code begins with this.
const TABLE_MARK: &str = "<!-- kept equal to the code by crates/testbed/tests/scenarios/docs.rs: ";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// README, ARCHITECTURE and everything below `docs/` but decisions, with their texts.
fn documents() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![root().join("docs")];
    let mut files = vec![root().join("README.md"), root().join("ARCHITECTURE.md")];
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("decisions") {
                waiting.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                files.push(path);
            }
        }
    }
    for path in files {
        let name = path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        found.insert(name, fs::read_to_string(&path).unwrap());
    }
    assert!(found.len() > 10, "{:?}", found.keys());
    found
}

/// The fenced blocks of a page: the word after the fence, the line it stands on, the text.
fn blocks(text: &str) -> Vec<(String, usize, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, usize, String)> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => open = Some((language.to_owned(), number + 1, String::new())),
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some((.., body))) => body.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

/// The binary with nothing of this shell's set-up, and a home of its own.
fn clean(program: impl AsRef<std::ffi::OsStr>, home: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LONGHAUL_") {
            command.env_remove(name);
        }
    }
    command.env("HOME", home).env_remove("XDG_CONFIG_HOME").env("NO_COLOR", "1");
    command
}

// ---- pages that run ---------------------------------------------------------------------------------------

/// A page whose blocks of shell are one script, run in an empty directory.
struct Walkthrough {
    page: &'static str,
    /// Ports of the page, in place of which free ones are taken.
    ports: &'static [u16],
    /// At least so many blocks of shell.
    blocks: usize,
    /// Where it finds programs beside ours.
    search: Vec<PathBuf>,
}

impl Walkthrough {
    fn script(&self) -> String {
        let text = fs::read_to_string(root().join(self.page)).unwrap();
        let mut script = String::from("set -eu\n");
        let mut count = 0;
        for (language, line, body) in blocks(&text) {
            let at = format!("{}:{line}", self.page);
            assert!(["sh", "console", "text"].contains(&language.as_str()), "{at}: a block of {language:?}");
            if language == "sh" {
                assert!(!body.contains("sleep"), "{at}: a page waits for events, not for time");
                let _ = write!(script, "echo '== {at}'\n{body}");
                count += 1;
            }
        }
        assert!(count >= self.blocks, "{count} blocks");
        for port in self.ports {
            let (written, free) = (format!(":{port}"), format!(":{}", free_port()));
            assert!(script.contains(&written), "{written} is not in {}", self.page);
            script = script.replace(&written, &free);
        }
        script
    }

    fn run(&self) -> CommandOutput {
        let directory = tempfile::Builder::new().prefix("longhaul-page-").tempdir().unwrap();
        let (bin, empty) = (directory.path().join("bin"), directory.path().join("here"));
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&empty).unwrap();
        // Servers that the page starts give up root.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        symlink(fs::canonicalize(binary()).unwrap(), bin.join("longhaul")).unwrap();
        let file = directory.path().join("page.sh");
        fs::write(&file, self.script()).unwrap();
        let own = std::env::var_os("PATH").unwrap();
        let search = std::iter::once(bin).chain(self.search.clone()).chain(std::env::split_paths(&own));
        // Ends the shell and everything that it started, in a process group of its own, if that takes too
        // long.
        let mut command = clean("timeout", directory.path());
        command.args(["--kill-after=5", &PAGE_WITHIN_S.to_string(), "sh"]).arg(&file);
        command.current_dir(&empty).env("PATH", std::env::join_paths(search).unwrap());
        let ran = CommandOutput::from_command(&mut command, Duration::from_secs(PAGE_WITHIN_S + 30));
        if ran.status != 0 {
            end_what_is_left(&empty);
        }
        ran.ok()
    }
}

#[test]
fn the_tutorial_runs() {
    let ports = &[8443, 8080, 7471, 7472, 7473];
    let ran = Walkthrough { page: "docs/tutorial.md", ports, blocks: 8, search: Vec::new() }.run();
    for said in [
        "higgs/run7 is complete at beta: 304 files",
        "higgs/run7 is complete at gamma: 304 files",
        "exit code 10",
        "late news\nlate news",
    ] {
        assert!(ran.stdout.contains(said), "{said:?} is not in {ran}");
    }
    assert!(ran.stdout.contains(" hold\n"), "the state is not sound: {ran}");
}

#[test]
fn a_dataset_goes_through_storages_of_every_kind_by_the_commands_of_its_page() {
    let what = "the page of storages of every kind";
    if !needs::programs(what, &[("apache2", "-v")]) {
        return;
    }
    let Some(S3Program::Versitygw(program)) = S3Program::find() else {
        return needs::not_run(what, "there is no versitygw");
    };
    let search = vec![program.parent().unwrap().to_owned()];
    let ports = &[8443, 8480, 7070, 7471, 7472, 7473];
    let ran = Walkthrough { page: "docs/howto/every-kind.md", ports, blocks: 7, search }.run();
    for storage in ["alpha-dav", "alpha-s3", "alpha-tape", "beta"] {
        for said in [
            format!("higgs/run7 is complete at {storage}: 53 files"),
            format!("read again at {storage}; all match the catalog"),
            format!("53 files of higgs/run7 deleted at {storage}"),
        ] {
            assert!(ran.stdout.contains(&said), "{said:?} is not in {ran}");
        }
    }
    assert!(ran.stdout.contains("53 files of higgs/run7 deleted at alpha\n"), "{ran}");
    assert!(ran.stderr.contains("E1006") && ran.stdout.contains("exit code 6"), "{ran}");
    assert!(!ran.stdout.contains(".dat\n"), "a copy is left: {ran}");
    assert!(ran.stdout.contains(" hold\n"), "the state is not sound: {ran}");
}

/// A page that breaks off leaves the processes whose ids it has written down.
fn end_what_is_left(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pid") => drop(Command::new("kill").arg(fs::read_to_string(&path).unwrap().trim()).status()),
            Some("log") => {
                println!("==== {}\n{}", path.display(), fs::read_to_string(&path).unwrap_or_default())
            }
            _ => {}
        }
    }
}

// ---- command lines and configurations ---------------------------------------------------------------------

/// A shell line as words; operators are words of their own, and a comment ends it.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote: Option<char> = None;
    let mut begun = false;
    for c in line.chars() {
        let last = words.last_mut().unwrap();
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => last.push(c),
            (None, '"' | '\'') => quote = Some(c),
            (None, '#') if last.is_empty() && begun => break,
            (None, c) if c.is_whitespace() => words.push(String::new()),
            (None, '|' | ';' | '&' | '<' | '>' | '(' | ')') => words.extend([c.to_string(), String::new()]),
            (None, c) => last.push(c),
        }
        begun = true;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The arguments of every `longhaul` in a shell line.
fn commands(line: &str) -> Vec<Vec<String>> {
    let line = line.replace("cargo run --release --", "longhaul").replace("$(", "( ");
    let words = words(&line);
    let operator = |word: &str| ["|", ";", "&", "<", ">", "(", ")"].contains(&word);
    let starts = |place: usize| {
        let Some(before) = place.checked_sub(1).map(|before| words[before].as_str()) else { return true };
        operator(before)
            || ["$", "#", "do", "then", "until", "if", "--"].contains(&before)
            || before.contains('=')
    };
    let mut found = Vec::new();
    for place in (0..words.len()).filter(|&place| words[place] == "longhaul" && starts(place)) {
        let rest = words[place + 1..].iter().take_while(|word| !operator(word));
        let mut arguments: Vec<String> = rest.cloned().collect();
        // A redirection's number belongs to it.
        let next = words.get(place + 1 + arguments.len()).map(String::as_str);
        if next == Some(">") && arguments.last().is_some_and(|last| last == "2") {
            arguments.pop();
        }
        found.push(arguments);
    }
    found
}

/// What a reader fills in, filled in.
fn filled_in(argument: &str) -> Option<String> {
    match argument {
        "…" => None,
        "AGENT" | "SUBSCRIPTION" | "TRANSFER" | "TASK" | "$transfer" | "$failed" => Some(SOME_ID.to_owned()),
        "JOB" => Some(SOME_JOB.to_owned()),
        "$site" | "$next" | "$1" => Some("alpha".to_owned()),
        _ => Some(argument.replace("=SECONDS", "=60")),
    }
}

#[test]
fn every_command_line_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    let mut count = 0;
    let mut wrong = Vec::new();
    for (name, text) in documents() {
        let mut lines: Vec<(usize, String)> = Vec::new();
        for (language, at, body) in blocks(&text) {
            let typed = |line: &&str| language == "sh" || line.starts_with("$ ") || line.starts_with("# ");
            if ["sh", "console"].contains(&language.as_str()) {
                let whole = body.replace("\\\n", " ");
                lines.extend(whole.lines().filter(typed).map(|line| (at, line.to_owned())));
            }
        }
        for (number, line) in outside_blocks(&text) {
            // Of an odd number of marks the last begins a span that the line's end breaks; none of ours does.
            let spans = line.split('`').skip(1).step_by(2).filter(|span| span.starts_with("longhaul "));
            lines.extend(spans.map(|span| (number, span.to_owned())));
        }
        for (number, line) in lines {
            for arguments in commands(&line) {
                let arguments: Vec<String> = arguments.iter().filter_map(|one| filled_in(one)).collect();
                // It parses what stands before `--help`, and then does nothing.
                let mut command = clean(binary(), home.path());
                command.args(&arguments);
                if arguments.first().is_none_or(|first| first != "help") {
                    command.arg("--help");
                }
                let ran = CommandOutput::from_command(&mut command, COMMAND_WITHIN);
                count += 1;
                if ran.status != 0 {
                    wrong.push(format!("{name}:{number}: longhaul {}\n{}", arguments.join(" "), ran.stderr));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} command lines were found");
}

fn outside_blocks(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence {
            lines.push((number + 1, line));
        }
    }
    lines
}

#[test]
fn every_configuration_is_accepted() {
    let home = tempfile::tempdir().unwrap();
    let mut count = 0;
    for (name, text) in documents() {
        for (_, line, body) in blocks(&text).into_iter().filter(|(language, ..)| language == "toml") {
            let file = home.path().join("longhaul.toml");
            fs::write(&file, body).unwrap();
            let mut command = clean(binary(), home.path());
            let ran = CommandOutput::from_command(
                command.args(["config", "check", "--config"]).arg(&file),
                COMMAND_WITHIN,
            );
            assert_eq!(ran.status, 0, "{name}:{line}: {ran}");
            count += 1;
        }
    }
    assert!(count >= 4, "only {count} configurations were found");
}

#[test]
fn shell_lines_are_taken_apart() {
    let line = [
        r#"until longhaul whoami --dir service 2> /dev/null;"#,
        r#"do x=$(longhaul site add "a b" | sed -n 1p) longhaul status; done # longhaul x"#,
    ]
    .join(" ");
    let expected = [vec!["whoami", "--dir", "service"], vec!["site", "add", "a b"], vec!["status"]];
    assert_eq!(commands(&line), expected);
    assert_eq!(commands("# runuser -u longhaul -- longhaul service init"), [["service", "init"]]);
    assert_eq!(commands("$ cargo run --release -- demo --exit"), [["demo", "--exit"]]);
    assert!(
        commands("$ journalctl -u longhaul-agent").is_empty() && commands("chown longhaul: /data").is_empty()
    );
}

// ---- tables -----------------------------------------------------------------------------------------------

/// The rows of the table that follows, each as its cells.
fn rows(text: &str) -> Vec<Vec<String>> {
    let table =
        text.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    // `\|` is a bar within a cell; none of ours needs one.
    table
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect())
        .collect()
}

fn page(name: &str) -> String {
    fs::read_to_string(root().join("docs/reference").join(name)).unwrap()
}

/// The text between backticks at the beginning of a cell.
fn code(cell: &str) -> &str {
    cell.strip_prefix('`').and_then(|rest| rest.split('`').next()).unwrap_or(cell)
}

#[test]
fn every_setting_is_documented_with_its_default() {
    let home = tempfile::tempdir().unwrap();
    let mut command = clean(binary(), home.path());
    let shown =
        CommandOutput::from_command(command.args(["config", "show", "--json"]), COMMAND_WITHIN).ok().json();
    let text = page("configuration.md");
    let (_, tables) = text.split_once(&format!("{TABLE_MARK}keys and defaults -->")).unwrap();
    let mut documented: BTreeMap<String, String> = BTreeMap::new();
    for section in tables.split("\n## ") {
        for cells in rows(section).into_iter().filter(|cells| cells.len() == 4) {
            documented.insert(code(&cells[0]).to_owned(), code(&cells[1]).to_owned());
        }
    }
    let mut real = BTreeMap::new();
    for one in shown.as_array().unwrap() {
        let key = one["key"].as_str().unwrap();
        let value = match &one["value"] {
            Value::Null => "none".to_owned(),
            Value::String(text) if text.is_empty() => "\"\"".to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        real.insert(key.to_owned(), value);
        // The rule that the page gives.
        let variable = key.strip_prefix("client.").unwrap_or(key).replace('.', "_").to_uppercase();
        assert_eq!(one["variable"], Value::from(format!("LONGHAUL_{variable}")));
    }
    assert_eq!(documented, real);
}

/// Compares the lines between a mark and `<!-- end -->` with `wanted`, or writes them.
fn kept_equal(name: &str, mark: &str, wanted: &str) {
    let text = page(name);
    let begin = format!("{TABLE_MARK}{mark} -->\n");
    let from = text.find(&begin).unwrap_or_else(|| panic!("{name} has no mark for {mark}")) + begin.len();
    let to = from + text[from..].find("<!-- end -->").unwrap_or_else(|| panic!("{name}: {mark} has no end"));
    let wanted = format!("\n{wanted}\n");
    if text[from..to] == wanted {
        return;
    }
    if std::env::var("LONGHAUL_DOCS").is_ok_and(|value| value == "write") {
        fs::write(
            root().join("docs/reference").join(name),
            format!("{}{wanted}{}", &text[..from], &text[to..]),
        )
        .unwrap();
        return;
    }
    panic!(
        "docs/reference/{name}: {mark} differ from the code; run this test with LONGHAUL_DOCS=write. \
            Wanted:\n{wanted}"
    );
}

#[test]
fn every_route_is_documented() {
    let mut table =
        String::from("| route | who | takes → gives | what it does |\n| --- | --- | --- | --- |\n");
    for route in routes::ALL {
        let who = match route.access {
            Access::Public => "–",
            Access::LocalOrViewer => "viewer, or local",
            Access::Viewer => "viewer",
            Access::Submitter => "submitter",
            Access::Manager => "manager",
            Access::Admin => "admin",
            Access::Observer => "observer",
            Access::AgentCertificate => "agent",
        };
        let key = if route.idempotency_key { " *key*" } else { "" };
        let _ = writeln!(
            table,
            "| `{} {}{}`{key} | {who} | {} → {} | {} |",
            route.method.word(),
            route.path,
            query(route),
            kind(route.request),
            kind(route.reply),
            route.summary
        );
    }
    kept_equal("api.md", "routes", &table);
}

fn query(route: &Route) -> String {
    let names: Vec<&str> = route.query.iter().map(|query| query.name).collect();
    if names.is_empty() { String::new() } else { format!("?{}", names.join("&")) }
}

fn kind(body: Body) -> String {
    match body {
        Body::None => "–".to_owned(),
        Body::Json(name) => {
            name.strip_prefix("Page_").map_or(name.to_owned(), |item| format!("page of {item}"))
        }
        Body::Lines(name) => format!("lines of {name}"),
        Body::Events(name) => format!("events: {name}"),
        Body::Text => "text".to_owned(),
        Body::Document => "JSON".to_owned(),
    }
}

#[test]
fn every_error_has_its_exit_code() {
    let mut by_exit: BTreeMap<u8, Vec<FaultCode>> = BTreeMap::new();
    for &code in FaultCode::ALL {
        by_exit.entry(Problem::new(code, "", "").exit_code()).or_default().push(code);
    }
    let mut table = String::from("| exit code | errors |\n| ---: | --- |\n");
    for (exit, codes) in by_exit {
        let codes: Vec<String> = codes.iter().map(ToString::to_string).collect();
        let _ = writeln!(table, "| {exit} | {} |", codes.join(", "));
    }
    kept_equal("exit-codes.md", "exit codes", &table);
}

#[test]
fn every_metric_is_documented() {
    let text = page("metrics.md");
    let (_, table) = text.split_once(&format!("{TABLE_MARK}metrics -->")).unwrap();
    let documented: BTreeMap<String, (String, String)> = rows(table)
        .into_iter()
        .map(|cells| (code(&cells[0]).to_owned(), (cells[1].clone(), cells[2].replace(['`', ' '], ""))))
        .collect();

    let mut deployment = Deployment::new();
    for site in ["alpha", "beta"] {
        deployment.add_site(SiteOptions::new(site));
    }
    fs::write(deployment.storage("alpha").join("file"), "content").unwrap();
    deployment.register("run7", "alpha");
    deployment.deliver("run7", "beta", 60);
    let scraped = deployment.metrics();
    let exposed = exposed(&scraped);
    for (name, (kind, labels)) in &exposed {
        let (documented_kind, documented_labels) =
            documented.get(name).unwrap_or_else(|| panic!("{name} is not documented"));
        assert_eq!(kind, documented_kind, "type of {name}");
        // A family without a sample yet shows no labels.
        assert!(
            labels.as_ref().is_none_or(|labels| labels == documented_labels),
            "labels of {name}: {labels:?}"
        );
    }
    // What only faults bring about has not shown up; it is in the code all the same.
    let sources = sources_of_service();
    for name in documented.keys() {
        assert!(exposed.contains_key(name) || sources.contains(&format!("\"{name}\"")), "there is no {name}");
    }
}

/// Every family with its type and the labels of its first sample.
fn exposed(scraped: &str) -> BTreeMap<String, (String, Option<String>)> {
    let mut families: BTreeMap<String, (String, Option<String>)> = BTreeMap::new();
    for line in scraped.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            families.insert(name.to_owned(), (kind.to_owned(), None));
        } else if !line.starts_with('#') {
            let (name, labels) = line
                .split_once('{')
                .map_or((line.split(' ').next().unwrap(), ""), |(name, rest)| (name, rest));
            let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let family = stem.filter(|stem| families.contains_key(*stem)).unwrap_or(name).to_owned();
            let labels = labels.split('}').next().unwrap_or_default();
            let names: Vec<&str> = labels
                .split(',')
                .filter_map(|label| label.split_once('='))
                .map(|(name, _)| name)
                .filter(|name| *name != "le")
                .collect();
            families
                .get_mut(&family)
                .unwrap_or_else(|| panic!("{line} has no type"))
                .1
                .get_or_insert(names.join(","));
        }
    }
    assert!(families.len() > 10, "{scraped}");
    families
}

fn sources_of_service() -> String {
    let mut all = String::new();
    let crates = ["identity", "control", "jobs", "netops", "service"];
    let sources = crates.map(|name| root().join("crates").join(name).join("src"));
    let mut waiting: Vec<_> = sources.into_iter().filter(|path| path.is_dir()).collect();
    while let Some(directory) = waiting.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                all.push_str(&fs::read_to_string(path).unwrap());
            }
        }
    }
    all
}

// ---- links ------------------------------------------------------------------------------------------------

#[test]
fn links_to_headings_lead_somewhere() {
    let documents = documents();
    let mut wrong = Vec::new();
    for (name, text) in &documents {
        for (number, line) in outside_blocks(text) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let Some((file, heading)) = target.split_once('#').filter(|(file, _)| !file.contains("://"))
                else {
                    continue;
                };
                let path = if file.is_empty() { name.clone() } else { beside(name, file) };
                let Some(other) = documents.get(&path) else { continue };
                if !outside_blocks(other).iter().any(|(_, line)| slug(line).as_deref() == Some(heading)) {
                    wrong.push(format!("{name}:{number}: {path} has no heading #{heading}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A relative link of a document, from the root.
fn beside(document: &str, link: &str) -> String {
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// How a heading is named in links.
fn slug(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = heading.to_lowercase().replace(' ', "-");
    Some(kept.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect())
}
