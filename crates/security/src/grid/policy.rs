//! Signing policies: which subjects an authority may sign, from `.signing_policy` files (Globus EACL) and
//! `.namespaces` files (EUGridPMA).
//!
//! Patterns match whole subjects in the one-line form. A pattern that is not understood permits nothing.
//!
//! A slash between attributes and one within a value are different characters to a pattern, so
//! `/DC=example/*` does not permit `DC="example/x"`. `[^/]` refuses both.

use super::name::{canonical, canonical_kind, leading_kind};

/// A slash within a value, in patterns and in the subjects that they are compared with. No subject has this
/// character: those that cannot be printed are escaped.
const SLASH_IN_VALUE: char = '\u{e000}';
/// A slash of either kind, in patterns.
const ANY_SLASH: char = '\u{e001}';

/// Bytes of a policy file.
pub(super) const POLICY_BYTES_MAX: u64 = 256 << 10;
/// Rules of one file.
const RULES_MAX: usize = 1_000;
/// Elements of one pattern: bounds the time of a match.
const PATTERN_MAX: usize = 1_024;

/// One rule of a file about one authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) issuer: Issuer,
    pub(super) permit: bool,
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Issuer {
    /// Canonical one-line form.
    Named(String),
    /// The authority whose file it is.
    Own,
}

impl Rule {
    /// `subject` is in the canonical one-line form.
    pub(super) fn matches(&self, subject: &str) -> bool {
        let subject = subject.replace("\\/", &String::from(SLASH_IN_VALUE));
        self.patterns.iter().any(|pattern| pattern.matches(&subject))
    }
}

/// Blocks of `access_id_CA`, `pos_rights` and `cond_subjects`.
pub(super) fn signing_policy(bytes: &[u8]) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    let mut issuer: Option<String> = None;
    let mut signs = false;
    for (number, line) in lines(bytes)? {
        let bad = |why: &str| Err(format!("line {number} {why}"));
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
        let (kind, value) = rest.trim().split_once(char::is_whitespace).unwrap_or((rest.trim(), ""));
        let value = value.trim();
        match word {
            "access_id_CA" if kind.eq_ignore_ascii_case("x509") => {
                let [name] = &quoted(value)[..] else { return bad("names no authority") };
                issuer = Some(canonical(name));
                signs = false;
            }
            "pos_rights" if kind.eq_ignore_ascii_case("globus") => signs |= value == "CA:sign",
            "neg_rights" => return bad("takes rights away, which is not understood"),
            "cond_subjects" if kind.eq_ignore_ascii_case("globus") => {
                let Some(issuer) = &issuer else { return bad("stands before any authority") };
                let compiled = |text: &String| wildcards(&pattern_text(text, Syntax::Wildcards));
                let patterns = quoted(value).iter().map(compiled).collect::<Result<_, _>>()?;
                if signs {
                    rules.push(Rule { issuer: Issuer::Named(issuer.clone()), permit: true, patterns });
                }
            }
            _ => return bad("is not understood"),
        }
        if rules.len() > RULES_MAX {
            return bad("is one too many");
        }
    }
    if rules.is_empty() { Err("permits nothing to anybody".into()) } else { Ok(rules) }
}

/// Lines of `TO Issuer "…" PERMIT Subject "…"`, continued by a backslash.
pub(super) fn namespaces(bytes: &[u8]) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    let mut whole = String::new();
    for (number, line) in lines(bytes)? {
        match line.strip_suffix('\\') {
            Some(begin) => {
                whole.push_str(begin.trim_end());
                whole.push(' ');
                continue;
            }
            None => whole.push_str(&line),
        }
        let rule = namespace(&std::mem::take(&mut whole)).map_err(|why| format!("line {number} {why}"))?;
        rules.push(rule);
        if rules.len() > RULES_MAX {
            return Err(format!("line {number} is one too many"));
        }
    }
    match (rules.is_empty(), whole.is_empty()) {
        (_, false) => Err("ends within a line that goes on".into()),
        (true, _) => Err("permits nothing to anybody".into()),
        _ => Ok(rules),
    }
}

fn namespace(line: &str) -> Result<Rule, String> {
    let mut rest = line;
    let mut word = || -> Option<(String, bool)> {
        rest = rest.trim_start();
        if let Some(inside) = rest.strip_prefix('"') {
            let (word, after) = inside.split_once('"')?;
            rest = after;
            return Some((word.to_owned(), true));
        }
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let word = rest[..end].to_owned();
        rest = &rest[end..];
        (!word.is_empty()).then_some((word, false))
    };
    let words: Vec<(String, bool)> = std::iter::from_fn(&mut word).take(8).collect();
    let [(to, false), (who, false), (issuer, named), (right, false), (what, false), (pattern, true)] =
        &words[..]
    else {
        return Err("is not of the form TO Issuer \"…\" PERMIT Subject \"…\"".into());
    };
    let is = |word: &str, expected: &str| word.eq_ignore_ascii_case(expected);
    if !is(to, "TO") || !is(who, "Issuer") || !is(what, "Subject") {
        return Err("is not of the form TO Issuer \"…\" PERMIT Subject \"…\"".into());
    }
    let issuer = match (named, is(issuer, "SELF")) {
        (true, _) => Issuer::Named(canonical(issuer)),
        (false, true) => Issuer::Own,
        (false, false) => return Err(format!("names the issuer {issuer:?} without quotes")),
    };
    let permit = match () {
        () if is(right, "PERMIT") => true,
        () if is(right, "DENY") => false,
        () => return Err(format!("says {right:?}, neither PERMIT nor DENY")),
    };
    Ok(Rule { issuer, permit, patterns: vec![expression(&pattern_text(pattern, Syntax::Expression))?] })
}

/// Numbered lines with something in them; comments are none.
fn lines(bytes: &[u8]) -> Result<Vec<(usize, String)>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8".to_owned())?;
    let lines = text.lines().enumerate().map(|(place, line)| (place + 1, line.trim()));
    Ok(lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(n, line)| (n, line.to_owned()))
        .collect())
}

/// `'"a" "b"'`, `'a'`, `"a"` or `a`.
fn quoted(value: &str) -> Vec<String> {
    let value =
        value.strip_prefix('\'').and_then(|value| value.split_once('\'')).map_or(value, |(inside, _)| inside);
    if value.contains('"') {
        return value.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    }
    let value = value.trim();
    if value.is_empty() { Vec::new() } else { vec![value.to_owned()] }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Syntax {
    Wildcards,
    Expression,
}

impl Syntax {
    /// Characters that stand for others.
    fn special(self) -> &'static str {
        match self {
            Syntax::Wildcards => "*?",
            Syntax::Expression => "*?.+[\\()|{}^$",
        }
    }

    /// A slash that is escaped in a name.
    fn escaped_slash(self) -> &'static str {
        match self {
            Syntax::Wildcards => "\\/",
            Syntax::Expression => "\\\\/",
        }
    }
}

/// A pattern with today's types of attributes, and with its slashes told apart.
///
/// One before an attribute is between attributes, an escaped one is within a value, and so is one before
/// literal text without an attribute (`O=DANTE A/S`). Before anything else it is between attributes, but of
/// either kind within a common name (`CN=host/*`).
fn pattern_text(text: &str, syntax: Syntax) -> String {
    let text = text.replace(syntax.escaped_slash(), &String::from(SLASH_IN_VALUE));
    let text = match syntax {
        Syntax::Wildcards => text,
        Syntax::Expression => text.replace("\\/", "/"),
    };
    let mut parts = text.split('/');
    let mut result = parts.next().unwrap_or_default().to_owned();
    let mut in_common_name = false;
    for part in parts {
        match leading_kind(part.as_bytes()) {
            Some((kind, value)) => {
                let kind = canonical_kind(kind);
                result.push('/');
                result.push_str(&kind);
                result.push('=');
                result.push_str(&part[part.len() - value.len()..]);
                in_common_name = kind == "CN";
            }
            None => {
                let literal = !part.is_empty() && !part.contains(|c| syntax.special().contains(c));
                result.push(if literal || in_common_name { ANY_SLASH } else { '/' });
                result.push_str(part);
            }
        }
    }
    result
}

/// A pattern for whole texts, matched by simulating its NFA in O(pattern × text).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Element>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Element {
    matcher: Matcher,
    /// May be missing.
    optional: bool,
    /// May be there again.
    repeatable: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Matcher {
    Any,
    One(char),
    /// Between attributes, or within a value.
    AnySlash,
    /// One of these ranges, or none of them.
    Class(Vec<(char, char)>, bool),
}

impl Matcher {
    /// What matches a literal character of a pattern.
    fn literal(c: char) -> Self {
        if c == ANY_SLASH { Matcher::AnySlash } else { Matcher::One(c) }
    }

    fn matches(&self, c: char) -> bool {
        match self {
            Matcher::Any => true,
            Matcher::One(one) => *one == c,
            Matcher::AnySlash => matches!(c, '/' | SLASH_IN_VALUE),
            Matcher::Class(ranges, none) => {
                let c = if c == SLASH_IN_VALUE { '/' } else { c };
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *none
            }
        }
    }
}

impl Pattern {
    pub(super) fn matches(&self, text: &str) -> bool {
        // The NFA's active states after the text read so far.
        let mut at = vec![false; self.0.len() + 1];
        at[0] = true;
        self.skip_optional(&mut at);
        for c in text.chars() {
            let mut next = vec![false; at.len()];
            for (place, element) in self.0.iter().enumerate().filter(|(place, _)| at[*place]) {
                if element.matcher.matches(c) {
                    next[place + 1] = true;
                    next[place] |= element.repeatable;
                }
            }
            // An element that may come again may also be over.
            self.skip_optional(&mut next);
            at = next;
        }
        at[self.0.len()]
    }

    fn skip_optional(&self, at: &mut [bool]) {
        for (place, element) in self.0.iter().enumerate() {
            at[place + 1] |= at[place] && element.optional;
        }
    }

    fn push(&mut self, what: Matcher, optional: bool, again: bool) -> Result<(), String> {
        if self.0.len() == PATTERN_MAX {
            return Err(format!("has a pattern of more than {PATTERN_MAX} elements"));
        }
        self.0.push(Element { matcher: what, optional, repeatable: again });
        Ok(())
    }
}

/// Globus's patterns: `*` is any text, `?` any character.
fn wildcards(text: &str) -> Result<Pattern, String> {
    let mut pattern = Pattern(Vec::new());
    for c in text.chars() {
        match c {
            '*' => pattern.push(Matcher::Any, true, true)?,
            '?' => pattern.push(Matcher::Any, false, false)?,
            c => pattern.push(Matcher::literal(c), false, false)?,
        }
    }
    Ok(pattern)
}

/// The EUGridPMA's patterns: regular expressions, of which groups and alternatives are not understood.
fn expression(text: &str) -> Result<Pattern, String> {
    let unknown = |c: char| format!("has a pattern with {c:?}, which is not understood: {text:?}");
    let mut pattern = Pattern(Vec::new());
    let inside = text.strip_prefix('^').unwrap_or(text);
    let inside = if inside.ends_with("\\$") { inside } else { inside.strip_suffix('$').unwrap_or(inside) };
    let mut characters = inside.chars();
    while let Some(c) = characters.next() {
        match c {
            '*' | '+' | '?' => {
                let last = pattern.0.last_mut().filter(|last| !last.optional && !last.repeatable);
                let last = last.ok_or_else(|| unknown(c))?;
                last.optional = c != '+';
                last.repeatable = c != '?';
            }
            '.' => pattern.push(Matcher::Any, false, false)?,
            '[' => {
                let class = class(&mut characters).ok_or_else(|| unknown(c))?;
                pattern.push(class, false, false)?;
            }
            '\\' => {
                let escaped =
                    characters.next().filter(|c| !c.is_ascii_alphanumeric()).ok_or_else(|| unknown(c))?;
                pattern.push(Matcher::One(escaped), false, false)?;
            }
            '(' | ')' | '|' | '{' | '}' | '^' | '$' => return Err(unknown(c)),
            c => pattern.push(Matcher::literal(c), false, false)?,
        }
    }
    Ok(pattern)
}

/// What stands between square brackets.
fn class(characters: &mut std::str::Chars<'_>) -> Option<Matcher> {
    let mut ranges: Vec<(char, char)> = Vec::new();
    let mut none = false;
    let mut range = false;
    let mut first = true;
    loop {
        let c = match characters.next()? {
            SLASH_IN_VALUE | ANY_SLASH => '/',
            c => c,
        };
        match c {
            '^' if first && !none => {
                none = true;
                continue;
            }
            ']' if !first => {
                if range {
                    ranges.push(('-', '-'));
                }
                return Some(Matcher::Class(ranges, none));
            }
            '[' | '\\' => return None,
            '-' if !first && !range => range = true,
            c if range => {
                let (from, _) = ranges.pop()?;
                if from > c {
                    return None;
                }
                ranges.push((from, c));
                range = false;
            }
            c => ranges.push((c, c)),
        }
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn signing_policies_as_globus_writes_them() {
        let rules = signing_policy(
            b"# comment\n\n access_id_CA   X509    '/DC=org/DC=example/CN=Example CA'\n\
              \x20pos_rights   globus  CA:sign\n\
              cond_subjects globus  '\"/DC=org/DC=example/*\" \"/C=XX/O=Ex?mple/*\"'\n\
              access_id_CA X509 '/C=YY/Email=ca@yy'\npos_rights globus CA:sign\n\
              cond_subjects globus '/C=YY/*'\n",
        )
        .unwrap();
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[0].issuer, Issuer::Named("/DC=org/DC=example/CN=Example CA".into()));
        assert_eq!(rules[1].issuer, Issuer::Named("/C=YY/emailAddress=ca@yy".into()));
        for (subject, matches) in [
            ("/DC=org/DC=example/CN=a", true),
            ("/DC=org/DC=example/", true),
            ("/DC=org/DC=examples/CN=a", false),
            ("/C=XX/O=Example/CN=a/CN=b", true),
            ("/C=XX/O=Exmple/CN=a", false),
            ("x/DC=org/DC=example/CN=a", false),
        ] {
            assert_eq!(rules[0].matches(subject), matches, "{subject}");
        }
        for bad in [
            "",
            "cond_subjects globus '/C=XX/*'",
            "access_id_CA X509 '/C=XX'\nneg_rights globus CA:sign",
            "access_id_CA X509 '/C=XX'\nanything else",
            "access_id_CA X509\n",
            "access_id_CA X509 '/C=XX'\ncond_subjects globus '/C=XX/*'",
        ] {
            assert!(signing_policy(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn namespaces_as_the_eugridpma_writes_them() {
        let rules = namespaces(
            b"#NAMESPACES-VERSION: 1.0\nTO Issuer \"/DC=org/CN=CA\" \\\n\
              \x20 PERMIT Subject \"/DC=org/OU=[A-Z]+/CN=.*\"\n\
              to issuer self deny subject \"/DC=org/OU=A\\.B/.*\"\n",
        )
        .unwrap();
        assert_eq!((rules.len(), rules[0].permit, rules[1].permit), (2, true, false));
        assert_eq!(
            (&rules[0].issuer, &rules[1].issuer),
            (&Issuer::Named("/DC=org/CN=CA".into()), &Issuer::Own)
        );
        assert!(rules[0].matches("/DC=org/OU=ABC/CN=") && !rules[0].matches("/DC=org/OU=/CN=x"));
        assert!(!rules[0].matches("/DC=org/OU=ab/CN=x") && !rules[0].matches("x/DC=org/OU=A/CN=x"));
        assert!(rules[1].matches("/DC=org/OU=A.B/x") && !rules[1].matches("/DC=org/OU=AxB/x"));
        for bad in [
            "",
            "TO Issuer \"/CN=a\" PERMIT Subject \"(a|b)\"",
            "TO Issuer \"/CN=a\" PERMIT Subject \"a{2}\"",
            "TO Issuer \"/CN=a\" PERMIT Subject \"\\w\"",
            "TO Issuer \"/CN=a\" PERMIT Subject \"a**\"",
            "TO Issuer \"/CN=a\" PERMIT Subject \"[a\"",
            "TO Issuer /CN=a PERMIT Subject \"a\"",
            "TO Issuer \"/CN=a\" ALLOW Subject \"a\"",
            "TO Issuer \"/CN=a\" PERMIT Subject \\",
            "TO Issuer \"/CN=a\" PERMIT Subject",
        ] {
            assert!(namespaces(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    /// Whether a policy of either kind permits a subject.
    fn permits(pattern: &str, expression: &str, subject: &str) -> (bool, bool) {
        let policy = format!(
            "access_id_CA X509 '/CN=CA'\npos_rights globus CA:sign\ncond_subjects globus '\"{pattern}\"'"
        );
        let space = format!("TO Issuer \"/CN=CA\" PERMIT Subject \"{expression}\"");
        let rules = (signing_policy(policy.as_bytes()).unwrap(), namespaces(space.as_bytes()).unwrap());
        (rules.0[0].matches(subject), rules.1[0].matches(subject))
    }

    #[test]
    fn a_slash_in_a_value_leads_into_no_foreign_namespace() {
        for (pattern, expression, subject, permitted) in [
            ("/DC=org/DC=example/*", "/DC=org/DC=example/.*", "/DC=org/DC=example/CN=a", true),
            ("/DC=org/DC=example/*", "/DC=org/DC=example/.*", "/DC=org/DC=example\\/CN=a", false),
            ("/DC=org/DC=a/CN=*", "/DC=org/DC=a/CN=[^/]*", "/DC=org/DC=a\\/CN=x", false),
            ("/DC=org/CN=host/*", "/DC=org/CN=host/.*", "/DC=org/CN=host\\/a.example", true),
            ("/DC=org/CN=host\\/*", "/DC=org/CN=host\\\\/.*", "/DC=org/CN=host\\/a.example", true),
            ("/DC=org/CN=host\\/*", "/DC=org/CN=host\\\\/.*", "/DC=org/CN=host/CN=a", false),
            ("/O=DANTE A/S/*", "/O=DANTE A/S/.*", "/O=DANTE A\\/S/CN=a", true),
            ("/O=DANTE A/S/*", "\\/O=DANTE A\\/S\\/.*", "/O=DANTE A\\/S\\/CN=a", false),
        ] {
            assert_eq!(permits(pattern, expression, subject), (permitted, permitted), "{pattern} {subject}");
        }
        assert!(!permits("*", "/CN=[^/]*", "/CN=a\\/b").1);
    }

    /// Wildcards, slowly.
    fn naive(pattern: &[char], text: &[char]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            (['*', rest @ ..], _) => naive(rest, text) || (!text.is_empty() && naive(pattern, &text[1..])),
            (['?', rest @ ..], [_, more @ ..]) => naive(rest, more),
            ([one, rest @ ..], [c, more @ ..]) => one == c && naive(rest, more),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn wildcards_mean_what_they_should(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            let characters = |text: &str| text.chars().collect::<Vec<_>>();
            let expected = naive(&characters(&pattern), &characters(&text));
            prop_assert_eq!(wildcards(&pattern).unwrap().matches(&text), expected);
            let expression = expression(&pattern.replace('*', ".*").replace('?', ".")).unwrap();
            prop_assert_eq!(expression.matches(&text), expected);
        }

        #[test]
        fn nothing_panics(text in "(TO Issuer \"/CN=[a-z]*\" PERMIT Subject \"|access_id_CA X509 \
            '|cond_subjects globus |.|\n){0,12}") {
            let _ = (signing_policy(text.as_bytes()), namespaces(text.as_bytes()));
            let _ = expression(&text).map(|pattern| pattern.matches(&text));
        }
    }
}
