//! Licences and bans of third-party packages, by the lists in `deny.toml`, which `cargo deny` reads too.

use super::Findings;
use crate::tools::{cargo, root};

pub(crate) fn check(metadata: &serde_json::Value, findings: &mut Findings) {
    let settings = std::fs::read_to_string(root().join("deny.toml")).unwrap_or_default();
    let allowed = list(&settings, "allow = [");
    let banned = list(&settings, "deny = [");
    if allowed.is_empty() || banned.is_empty() {
        findings.push("deny.toml: has no list `allow` of licences or no list `deny` of packages".into());
    }
    if !refuses_known_vulnerabilities(&settings) {
        findings.push("deny.toml: has no table [advisories]: `cargo deny` refuses no vulnerability".into());
    }
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let licence = package["license"].as_str().unwrap_or_default();
        if !fits(licence, &allowed) {
            findings.push(format!("{name}: its licence ({licence}) is not on the list in deny.toml"));
        }
    }
    let built = built();
    for ban in banned.iter().filter(|ban| built.contains(ban)) {
        findings.push(format!("{ban}: is banned in deny.toml (cargo tree -i {ban})"));
    }
}

/// Whether `cargo deny check advisories` has its settings.
fn refuses_known_vulnerabilities(settings: &str) -> bool {
    settings.lines().any(|line| line.trim_end() == "[advisories]")
}

/// Names of the packages that are really built. The lock file also holds optional ones that nobody switched
/// on.
fn built() -> Vec<String> {
    let output = cargo()
        .args(["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--locked"])
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The quoted words of a TOML list that begins with `opening` at the start of a line.
fn list(settings: &str, opening: &str) -> Vec<String> {
    let Some(begin) = settings.lines().position(|line| line.starts_with(opening)) else { return Vec::new() };
    let mut words = Vec::new();
    for line in settings.lines().skip(begin) {
        let code = line.split('#').next().unwrap_or_default();
        words.extend(code.split('"').skip(1).step_by(2).map(str::to_owned));
        if code.trim_end().ends_with(']') {
            break;
        }
    }
    words
}

/// Whether an SPDX expression can be met with allowed licences alone.
fn fits(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `A OR B OR …`: every part is read, one has to fit.
fn any(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut fit = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        fit |= all(words, allowed);
    }
    fit
}

/// `A AND B AND …`: every part has to fit.
fn all(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut fit = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        fit &= one(words, allowed);
    }
    fit
}

/// A licence, with an exception (which only adds rights) or without, or an expression in brackets.
fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let fit = any(words, allowed);
        return words.next_if_eq(&")").is_some() && fit;
    }
    let fit = words.next().is_some_and(|word| allowed.iter().any(|licence| licence == word));
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions() {
        let allowed: Vec<String> = ["MIT", "Apache-2.0", "ISC"].map(str::to_owned).into();
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "ISC AND (Apache-2.0 OR ISC)",
            "MIT/Apache-2.0",
        ] {
            assert!(fits(good, &allowed), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "GPL-3.0 AND (X OR MIT)", "(MIT"] {
            assert!(!fits(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn known_vulnerabilities_are_refused() {
        let settings = std::fs::read_to_string(root().join("deny.toml")).unwrap();
        assert!(refuses_known_vulnerabilities(&settings));
        assert!(!refuses_known_vulnerabilities("# advisories\n[licenses]\nallow = [\"MIT\"]\n"));
    }

    #[test]
    fn lists_are_read() {
        let text = "[x]\nallow = [\n  \"A\", # why\n  \"B\",\n]\ndeny = [\"C\"]\n";
        assert_eq!(list(text, "allow = ["), ["A", "B"]);
        assert_eq!(list(text, "deny = ["), ["C"]);
    }
}
