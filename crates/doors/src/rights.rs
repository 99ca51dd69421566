//! Authorization at a door: by the subject of a client certificate, by a bearer token from a file, of a
//! trusted issuer or of the door itself (a macaroon), or anonymously where reading is open to all.
//!
//! Rights are checked before the storage is accessed, so that who may not read learns nothing of what exists.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use http::{HeaderMap, StatusCode, header};
use longhaul_model::units::printable;
use longhaul_security::grid::canonical;
use longhaul_security::macaroon::Macaroons;
use longhaul_security::{PeerIdentity, SubjectPattern, constant_time_eq, hash_secret, read_private};

use crate::answer::{Outcome, Refusal};
use crate::macaroons::{DelegatedRights, VerifiedMacaroon};
use crate::request::{is_within, single};
use crate::settings::VOMS;
use crate::trusted_issuers::{TokenScope, TrustedIssuers};

/// Tokens of one file.
const TOKENS_MAX: usize = 10_000;
/// Shorter ones can be guessed.
const TOKEN_BYTES_MIN: usize = 20;
/// No token is longer, also those of issuers.
const TOKEN_BYTES_MAX: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    Read,
    /// Have files brought from tape, and kept on disk, as well.
    Stage,
    /// Make, replace, rename and delete as well.
    Write,
}

/// What a request does to one file or directory. Tokens of issuers tell more of these apart than our own
/// rights do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Whether it is there, and how large.
    Look,
    /// List a directory.
    List,
    /// Read the bytes of a file.
    Read,
    /// Where nothing is yet.
    Create,
    /// Replace, rename, delete.
    Change,
    MakeDirectory,
    /// Bring it from tape, keep it on disk, let it go.
    Stage,
    /// Whether it is on disk, on tape, or both.
    Poll,
}

impl Action {
    fn needs(self) -> Right {
        match self {
            Action::Look | Action::List | Action::Read | Action::Poll => Right::Read,
            Action::Stage => Right::Stage,
            Action::Create | Action::Change | Action::MakeDirectory => Right::Write,
        }
    }

    fn shown(self) -> &'static str {
        match self {
            Action::Look | Action::List | Action::Read => "read",
            Action::Create | Action::MakeDirectory => "write",
            Action::Change => "replace, rename or delete",
            Action::Stage => "bring files from tape",
            Action::Poll => "ask where files are",
        }
    }
}

/// A right and the part of the storage that it is for; the empty path is all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub may: Right,
    pub below: String,
}

/// The holders of a grant.
#[derive(Clone, Debug)]
pub enum Subjects {
    /// Everybody with a certificate that is believed here.
    Certified,
    /// `/DC=org/CN=name` or `longhaul://DEPLOYMENT/…`, exactly, see [`Subjects::named`].
    Named(BTreeSet<String>),
    /// Identities of Longhaul's of one shape.
    Like(SubjectPattern),
    /// Holders of an attribute of a virtual organisation: `/atlas/prod`, which groups below it imply, or
    /// `/atlas/Role=production`, exactly.
    Voms(BTreeSet<String>),
}

#[derive(Clone, Debug, Default)]
pub struct Rights {
    pub subjects: Vec<(Subjects, Grant)>,
    /// Hashes of bearer tokens, and what each allows.
    pub tokens: Vec<([u8; 32], Grant)>,
    /// What anonymous clients may read.
    pub anonymous: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct TokenFileError(pub String);

impl std::fmt::Display for TokenFileError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TokenFileError {}

/// Reads a file of lines `read|stage|write PATH TOKEN`; `/` is the whole storage, `#` begins a comment. The
/// message never quotes a token.
pub fn read_tokens(path: &Path) -> Result<Vec<([u8; 32], Grant)>, TokenFileError> {
    let text = read_private(path).map_err(|error| TokenFileError(error.to_string()))?;
    if std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0) {
        tracing::warn!(file = %path.display(), "others may read this file of tokens: chmod 600");
    }
    parse_tokens(&text).map_err(|why| TokenFileError(format!("{}: {why}", path.display())))
}

fn parse_tokens(text: &str) -> Result<Vec<([u8; 32], Grant)>, String> {
    let mut tokens = Vec::new();
    for (place, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong =
            |why: &str| format!("line {}: {why} (read|stage|write PATH TOKEN is expected)", place + 1);
        let mut words = line.split_whitespace();
        let may = match words.next() {
            Some("read") => Right::Read,
            Some("stage") => Right::Stage,
            Some("write") => Right::Write,
            _ => return Err(wrong("begins with none of read, stage and write")),
        };
        let below = words.next().and_then(|path| path.strip_prefix('/'));
        let below = below.ok_or_else(|| wrong("the path does not begin with /"))?;
        let token = words.next().ok_or_else(|| wrong("there is no token"))?;
        if words.next().is_some_and(|word| !word.starts_with('#')) {
            return Err(wrong("there are more than three words"));
        }
        if token.len() < TOKEN_BYTES_MIN {
            return Err(wrong(&format!("the token has fewer than {TOKEN_BYTES_MIN} characters")));
        }
        let below = below.trim_end_matches('/').to_owned();
        tokens.push((hash_secret(token), Grant { may, below }));
        if tokens.len() > TOKENS_MAX {
            return Err(format!("more than {TOKENS_MAX} tokens"));
        }
    }
    Ok(tokens)
}

/// The rights of one request.
#[derive(Clone, Debug)]
pub(crate) struct GrantedRights {
    grants: Vec<Grant>,
    scoped: Option<TokenScope>,
    lent: Option<DelegatedRights>,
    /// Hash of the token of the door's file that counts, by itself or by a macaroon that was given for it.
    token: Option<[u8; 32]>,
    /// The subjects of verified credentials: names of certificates, holders of tokens of issuers, "a
    /// token".
    pub(crate) who: Vec<String>,
    /// The kind of that credential.
    pub(crate) by: &'static str,
}

impl Rights {
    /// `subjects` are the names in the client's certificate. A token counts beside a certificate; a bad one
    /// is an error even where none is needed, since its owner believes to be somebody.
    pub(crate) async fn check(
        &self,
        subjects: &[String],
        headers: &HeaderMap,
        issued: Option<&TrustedIssuers>,
    ) -> Outcome<GrantedRights> {
        let mut granted = self.without_token(subjects);
        let Some(token) = bearer(headers)? else { return Ok(granted) };
        let hash = hash_secret(token);
        let known = self.tokens.iter().filter(|(known, _)| constant_time_eq(known, &hash));
        let before = granted.grants.len();
        granted.grants.extend(known.map(|(_, grant)| grant.clone()));
        if granted.grants.len() > before {
            granted.token = Some(hash);
            granted.who.push("a token".into());
            granted.by = "token";
            return Ok(granted);
        }
        // A JSON web token has three parts.
        let Some(issued) = issued.filter(|_| token.split('.').count() == 3) else {
            return Err(not_authenticated("the bearer token is not known here", Some("invalid_token")));
        };
        let (scoped, who) = issued.verify(token).await?;
        granted.scoped = Some(scoped);
        granted.who.push(who);
        granted.by = "issuer's token";
        Ok(granted)
    }

    /// The same with a macaroon of this door: what its giver may do now, as far as it goes.
    pub(crate) fn delegated(
        &self,
        subjects: &[String],
        shown: VerifiedMacaroon,
        macaroons: &Macaroons,
    ) -> GrantedRights {
        let mut granted = self.without_token(subjects);
        let giver = shown.who.first().map_or("a token", String::as_str);
        granted.who.push(format!("{giver} by macaroon"));
        granted.by = "macaroon";
        let mut grants = self.of_subjects(&shown.who);
        if let Some(pseudonym) = &shown.token {
            let of_giver = |(hash, _): &&([u8; 32], Grant)| macaroons.pseudonym(hash) == *pseudonym;
            let of_token: Vec<_> = self.tokens.iter().filter(of_giver).collect();
            granted.token = of_token.first().map(|(hash, _)| *hash);
            grants.extend(of_token.into_iter().map(|(_, grant)| grant.clone()));
        }
        granted.lent = Some(DelegatedRights { grants, terms: shown.terms });
        granted
    }

    fn without_token(&self, subjects: &[String]) -> GrantedRights {
        let anonymous = self.anonymous.clone().map(|below| Grant { may: Right::Read, below });
        let grants = anonymous.into_iter().chain(self.of_subjects(subjects)).collect();
        let by = if subjects.is_empty() { "none" } else { "certificate" };
        GrantedRights { grants, scoped: None, lent: None, token: None, who: subjects.to_vec(), by }
    }

    fn of_subjects(&self, subjects: &[String]) -> Vec<Grant> {
        if subjects.is_empty() {
            return Vec::new();
        }
        let fits = |(whom, _): &&(Subjects, Grant)| subjects.iter().any(|name| whom.fits(name));
        self.subjects.iter().filter(fits).map(|(_, grant)| grant.clone()).collect()
    }
}

impl Grant {
    pub(crate) fn allows(&self, action: Action, path: &str) -> bool {
        self.may >= action.needs() && is_within(path, &self.below)
    }
}

impl Subjects {
    /// Names in any form in which files have them, as names of certificates are written.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Subjects::Named(names.into_iter().map(canonical).collect())
    }

    fn fits(&self, name: &str) -> bool {
        match self {
            Subjects::Certified => true,
            Subjects::Named(names) => names.contains(name),
            Subjects::Like(pattern) => name.parse::<PeerIdentity>().is_ok_and(|peer| pattern.fits(&peer)),
            Subjects::Voms(wanted) => {
                let shown = name.strip_prefix(VOMS).map(attribute);
                shown.is_some_and(|shown| wanted.iter().any(|wanted| implies(shown, attribute(wanted))))
            }
        }
    }
}

/// An attribute without what says nothing: `/atlas/Role=NULL/Capability=NULL` is `/atlas`.
fn attribute(fqan: &str) -> &str {
    let fqan = fqan.split("/Capability=").next().unwrap_or(fqan);
    fqan.strip_suffix("/Role=NULL").unwrap_or(fqan)
}

fn implies(shown: &str, wanted: &str) -> bool {
    if wanted.contains("/Role=") {
        return shown == wanted;
    }
    let within = |rest: &str| rest.is_empty() || rest.starts_with('/');
    !wanted.is_empty() && shown.strip_prefix(wanted).is_some_and(within)
}

impl GrantedRights {
    /// Why the rights are as they are, for the audit log.
    pub(crate) fn right(&self) -> &'static str {
        match (&self.scoped, &self.lent) {
            (Some(_), _) => "scopes of the token, or rules of the door",
            (None, Some(_)) => "the macaroon, within the rights of its giver",
            (None, None) => "rules of the door",
        }
    }

    /// Hash of the token of the door's file that was shown itself.
    pub(crate) fn own_token(&self) -> Option<[u8; 32]> {
        self.token.filter(|_| self.lent.is_none())
    }

    /// Whether the token that counted is still one of the door's.
    pub(crate) fn still_hold(&self, rights: &Rights) -> bool {
        self.token.is_none_or(|hash| rights.tokens.iter().any(|(known, _)| *known == hash))
    }

    pub(crate) fn check(&self, action: Action, path: &str) -> Outcome<()> {
        if self.may(action, path) {
            return Ok(());
        }
        if self.who.is_empty() {
            return Err(not_authenticated("a client certificate or a bearer token is needed for this", None));
        }
        let what = action.shown();
        let text = match (&self.scoped, &self.lent) {
            (Some(_), _) => format!("the scopes of the token do not allow to {what} here"),
            (None, Some(_)) => {
                format!("the macaroon, or the rights of its giver, do not allow to {what} here")
            }
            (None, None) => format!("not allowed to {what} here; an administrator of this door can allow it"),
        };
        let refusal = Refusal::new(StatusCode::FORBIDDEN, text);
        Err(refusal.with(header::WWW_AUTHENTICATE, "Bearer realm=\"longhaul\", error=\"insufficient_scope\""))
    }

    pub(crate) fn may(&self, action: Action, path: &str) -> bool {
        self.grants.iter().any(|grant| grant.allows(action, path))
            || self.scoped.as_ref().is_some_and(|scoped| scoped.allows(action, path))
            || self.lent.as_ref().is_some_and(|lent| lent.may(action, path))
    }
}

pub(crate) fn not_authenticated(text: &str, error: Option<&str>) -> Refusal {
    let error = error.map_or(String::new(), |error| format!(", error=\"{error}\""));
    let challenge = format!("Bearer realm=\"longhaul\"{error}");
    Refusal::new(StatusCode::UNAUTHORIZED, text).with(header::WWW_AUTHENTICATE, &challenge)
}

/// The scheme may be written in any case.
pub(crate) fn bearer(headers: &HeaderMap) -> Outcome<Option<&str>> {
    let Some(value) = single(headers, "authorization")? else { return Ok(None) };
    let (scheme, token) = value.trim().split_once(' ').unwrap_or((value, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        let text = format!("credentials of the kind {} are not taken here", printable(scheme));
        return Err(not_authenticated(&text, None));
    }
    let token = token.trim();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        return Err(not_authenticated("the bearer token is malformed", Some("invalid_token")));
    }
    Ok(Some(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TOKEN: &str = "0123456789abcdefghij";

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("authorization", value.parse().unwrap());
        headers
    }

    fn rights() -> Rights {
        Rights {
            subjects: vec![
                (
                    Subjects::Named(["/DC=org/CN=alice".to_owned()].into()),
                    Grant { may: Right::Write, below: "home/alice".into() },
                ),
                (Subjects::Certified, Grant { may: Right::Read, below: "public".into() }),
                (
                    Subjects::Like("longhaul://*/agent/beta/*".parse().unwrap()),
                    Grant { may: Right::Read, below: String::new() },
                ),
            ],
            tokens: parse_tokens(&format!("# tokens\n\nwrite /drop/ {TOKEN} # a robot\n")).unwrap(),
            anonymous: None,
        }
    }

    #[test]
    fn rules_name_nobody_whose_name_has_a_slash_within_a_value() {
        let alice = Subjects::named(["/DC=org/DC=example/CN=alice", "/2.5.4.3=host/a.example"]);
        assert!(alice.fits("/DC=org/DC=example/CN=alice") && alice.fits("/CN=host\\/a.example"));
        assert!(!alice.fits("/DC=org/DC=example\\/CN=alice") && !alice.fits("/CN=host/CN=a.example"));
    }

    #[tokio::test]
    async fn certificates_count_by_their_subject() {
        let nobody = HeaderMap::new();
        let alice = rights().check(&["/DC=org/CN=alice".to_owned()], &nobody, None).await.unwrap();
        assert!(alice.may(Action::Change, "home/alice/x") && alice.may(Action::Read, "public/y"));
        assert!(!alice.may(Action::Create, "home/alicex") && !alice.may(Action::Create, "public/y"));
        assert_eq!(alice.check(Action::Read, "x").unwrap_err().status, StatusCode::FORBIDDEN);
        let beta = rights()
            .check(&["longhaul://d/agent/beta/0CMZ85KX70000".to_owned()], &nobody, None)
            .await
            .unwrap();
        assert!(beta.may(Action::Read, "home") && !beta.may(Action::Create, "home"));
        let anonymous = rights().check(&[], &nobody, None).await.unwrap();
        assert_eq!(anonymous.check(Action::Read, "public").unwrap_err().status, StatusCode::UNAUTHORIZED);
    }

    #[test]
    fn attributes_count_by_group_and_role() {
        let whom = |wanted: &str| Subjects::Voms([wanted.to_owned()].into());
        let production = "voms:/atlas/prod/Role=production/Capability=NULL";
        for (wanted, fits) in [
            ("/atlas", true),
            ("/atlas/prod", true),
            ("/atlas/prod/Role=production", true),
            ("/atlas/Role=production", false),
            ("/atlas/prod/Role=NULL", true),
            ("/atl", false),
            ("/cms", false),
            ("", false),
        ] {
            assert_eq!(whom(wanted).fits(production), fits, "{wanted}");
        }
        assert!(!whom("/atlas").fits("/atlas/CN=x"), "a subject is no attribute");
        assert!(whom("/atlas").fits("voms:/atlas/Role=NULL/Capability=NULL"));
        assert!(!whom("/atlas/Role=production").fits("voms:/atlas/Role=NULL/Capability=NULL"));
    }

    #[tokio::test]
    async fn tokens_count_in_their_directory() {
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let robot = rights().check(&[], &with(&format!("{scheme} {TOKEN}")), None).await.unwrap();
            assert!(robot.may(Action::Create, "drop/x") && !robot.may(Action::Read, "dropped"));
        }
        for bad in ["Bearer", "Bearer 0123456789abcdefghiX", "Basic YTpi"] {
            assert_eq!(
                rights().check(&[], &with(bad), None).await.unwrap_err().status,
                StatusCode::UNAUTHORIZED,
                "{bad}"
            );
        }
    }

    #[tokio::test]
    async fn who_may_stage_writes_nothing_and_who_may_write_stages() {
        let text = "stage /run7 stager-0123456789abcdef\nwrite /run7 writer-0123456789abcdef\nread /run7 \
            reader-0123456789abcdef";
        let rights = Rights { tokens: parse_tokens(text).unwrap(), ..Rights::default() };
        for (who, may) in [
            ("stager", [true, true, true, false]),
            ("writer", [true; 4]),
            ("reader", [true, true, false, false]),
        ] {
            let granted =
                rights.check(&[], &with(&format!("Bearer {who}-0123456789abcdef")), None).await.unwrap();
            let found = [Action::Poll, Action::Read, Action::Stage, Action::Change]
                .map(|action| granted.may(action, "run7/f"));
            assert_eq!(found, may, "{who}");
            assert!(!granted.may(Action::Stage, "run8/f"));
        }
    }

    #[test]
    fn token_files_are_read_strictly() {
        for bad in ["read / short", "look / 0123456789abcdefghij", "read x 0123456789abcdefghij", "read /"] {
            let why = parse_tokens(bad).unwrap_err();
            assert!(why.contains("line 1") && !why.contains("0123456789"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_token_file_panics(text in "(read|stage|write|/| |#|\n|[a-z0-9]{1,30}){0,20}") {
            let _ = parse_tokens(&text);
        }
    }
}
