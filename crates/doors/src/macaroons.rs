//! Macaroons of a door: who comes with a certificate, which cannot be lent, or with a token of the door's
//! file, which should not be, may have a token for one file or directory, for some activities and for some
//! time, which another server can show here in a third-party copy. As dCache and XRootD give them.
//!
//! A macaroon has no rights of its own. It counts for as much as whoever was given it may do at the time when
//! it is shown, and is good until the door is opened anew. Conditions that its holder has added hold as well;
//! one that is not known here makes it void.
//!
//! Not here: its format and signature (`security::macaroon`).

use std::net::IpAddr;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode, header};
use jiff::{Span, SpanRelativeTo, Timestamp};
use longhaul_model::address::IpNetwork;
use longhaul_model::percent::encode_path;
use longhaul_security::macaroon::{Macaroon, MacaroonFault, Macaroons};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::answer::{Outcome, Refusal, set};
use crate::body::Body;
use crate::request::{RequestPath, is_within};
use crate::rights::{Action, Grant, bearer, not_authenticated};
use crate::serve::Call;

/// What the first packet of each says; nobody's secret, and no address, since doors have several.
const LOCATION: &str = "longhaul-door";
const KIND: &str = "application/macaroon-request";
const BODY_BYTES_MAX: usize = 16 << 10;
const CAVEATS_REQUESTED_MAX: usize = 16;
/// Validity of a macaroon where the client does not say.
const VALIDITY_DEFAULT: Duration = Duration::from_secs(3_600);
/// The longest validity that is given: what a client keeps longer may leak.
const VALIDITY_MAX: Duration = Duration::from_secs(86_400);
/// The activities of dCache's macaroons, each with the action that it is mainly for.
const ACTIVITIES: &[(&str, Action)] = &[
    ("DOWNLOAD", Action::Read),
    ("UPLOAD", Action::Create),
    ("DELETE", Action::Change),
    ("MANAGE", Action::MakeDirectory),
    ("LIST", Action::List),
    ("READ_METADATA", Action::Look),
    ("UPDATE_METADATA", Action::Change),
    ("STAGE", Action::Stage),
];

#[derive(Deserialize)]
struct MacaroonRequest {
    #[serde(default)]
    caveats: Vec<String>,
    #[serde(default)]
    validity: Option<String>,
}

/// In a macaroon: the names whose rights it delegates, and the pseudonym of a token of the door's file.
#[derive(Serialize, Deserialize)]
struct Grantor {
    who: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Which conditions it sets on what is done; those on when and from where have been checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restrictions {
    /// Each of these has to allow it.
    activities: Vec<Vec<String>>,
    paths: Vec<String>,
}

/// A macaroon whose signature, time and address are good.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerifiedMacaroon {
    pub(crate) who: Vec<String>,
    /// Pseudonym of the token that it was given for, if one was shown.
    pub(crate) token: Option<String>,
    pub(crate) terms: Restrictions,
}

/// The grantor's rights, and the caveats that restrict them.
#[derive(Clone, Debug)]
pub(crate) struct DelegatedRights {
    pub(crate) grants: Vec<Grant>,
    pub(crate) terms: Restrictions,
}

impl DelegatedRights {
    pub(crate) fn may(&self, action: Action, path: &str) -> bool {
        self.terms.allow(action, path) && self.grants.iter().any(|grant| grant.allows(action, path))
    }
}

impl Restrictions {
    pub(crate) fn allow(&self, action: Action, path: &str) -> bool {
        let lists = |list: &Vec<String>| list.iter().any(|activity| includes(activity, action));
        self.activities.iter().all(lists) && self.paths.iter().all(|below| is_within(path, below))
    }
}

/// Whatever somebody does to a file, he may see how large it is: copies are compared by that.
fn includes(activity: &str, action: Action) -> bool {
    match activity {
        "DOWNLOAD" => matches!(action, Action::Read | Action::Look | Action::Poll),
        "UPLOAD" => matches!(action, Action::Create | Action::MakeDirectory | Action::Look),
        "DELETE" => matches!(action, Action::Change | Action::Look),
        "MANAGE" => matches!(action, Action::MakeDirectory | Action::Look),
        "LIST" => matches!(action, Action::List | Action::Look | Action::Poll),
        "READ_METADATA" => matches!(action, Action::Look | Action::Poll),
        "UPDATE_METADATA" => matches!(action, Action::Look),
        "STAGE" => matches!(action, Action::Stage | Action::Poll),
        _ => false,
    }
}

pub(crate) fn is_macaroon_request(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.and_then(|kind| kind.split(';').next()).is_some_and(|kind| kind.trim().eq_ignore_ascii_case(KIND))
}

/// `subjects` are the names in the client's certificate, which ends at `certificate_ends`: the macaroon does
/// too. The names and a token of the door's file count together, as in every request.
pub(crate) async fn issue(mut call: Call, subjects: &[String], certificate_ends: Timestamp) -> Outcome {
    let token = call.granted.own_token();
    if subjects.is_empty() && token.is_none() {
        let text = "macaroons are given for a client certificate or a token of this door's file; a macaroon \
                    is narrowed by its holder, an issuer's token by its issuer";
        let refusal = match call.granted.who.is_empty() {
            true => not_authenticated(text, None),
            false => Refusal::new(StatusCode::FORBIDDEN, text),
        };
        return Err(refusal);
    }
    let body = call.small_body(BODY_BYTES_MAX).await?;
    let now = whole_second(Timestamp::now());
    let allowed = |action| call.granted.may(action, &call.place.path);
    let (caveats, ends) = caveats(&body, &call.place, allowed, now, certificate_ends)?;
    let token = token.map(|hash| call.shared.macaroons.pseudonym(&hash));
    let identifier = serde_json::to_string(&Grantor { who: subjects.to_vec(), token })
        .map_err(|error| Refusal::bad(error.to_string()))?;
    let given = call.shared.macaroons.give(LOCATION, &Macaroon { identifier, caveats });
    let given = given.ok_or_else(|| Refusal::bad("the macaroon would be too long: ask for fewer caveats"))?;
    let lasts = ends.duration_since(now).as_secs();
    let host = call.header("host")?.unwrap_or_default();
    let (base, path) = (format!("https://{host}/"), encode_path(&call.place.path));
    let (target, macaroon) = (format!("{base}{path}"), given.as_str());
    // The forms with the macaroon in the query are left out: a door takes no credential from a URL.
    let answer =
        json!({ "macaroon": macaroon, "expires_in": lasts, "uri": { "target": target, "base": base } });
    let mut answer = Response::new(Body::from(answer.to_string()));
    set(answer.headers_mut(), header::CONTENT_TYPE, "application/json");
    set(answer.headers_mut(), header::CACHE_CONTROL, "no-store");
    Ok(answer)
}

fn whole_second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// What is asked for, as far as it may be had; and until when, which is `latest` at most.
pub(crate) fn caveats(
    body: &[u8],
    place: &RequestPath,
    allowed: impl Fn(Action) -> bool,
    now: Timestamp,
    latest: Timestamp,
) -> Outcome<(Vec<String>, Timestamp)> {
    let malformed =
        |error: serde_json::Error| Refusal::bad(format!("the request for a macaroon is malformed: {error}"));
    // A list would be taken for an object without names.
    let object: Map<String, Value> = serde_json::from_slice(body).map_err(malformed)?;
    let wish: MacaroonRequest = serde_json::from_value(Value::Object(object)).map_err(malformed)?;
    if wish.caveats.len() > CAVEATS_REQUESTED_MAX {
        return Err(Refusal::bad(format!("more than {CAVEATS_REQUESTED_MAX} caveats are asked for")));
    }
    let lasts = wish.validity.as_deref().map_or(Ok(VALIDITY_DEFAULT), validity)?.min(VALIDITY_MAX);
    let mut ends = (now + lasts).min(latest);
    // Encoded, since what a holder adds may be.
    let mut caveats = vec![format!("path:/{}", encode_path(&place.path))];
    let mut activities: Vec<&str> = ACTIVITIES.iter().map(|(name, _)| *name).collect();
    for caveat in &wish.caveats {
        match parse_caveat(caveat)? {
            Caveat::Activities(asked) => activities.retain(|name| asked.iter().any(|one| one == name)),
            Caveat::Before(before) => ends = ends.min(before),
            // Beneath what was asked about.
            Caveat::Path(path) => {
                let within = [place.path.as_str(), path.as_str()].join("/");
                caveats.push(format!("path:/{}", encode_path(within.trim_matches('/'))));
            }
            Caveat::From(_) => caveats.push(caveat.trim().to_owned()),
        }
    }
    let may = |name: &&str| ACTIVITIES.iter().any(|(known, action)| known == name && allowed(*action));
    activities.retain(may);
    if activities.is_empty() {
        let text = "nothing of what the macaroon should be for is allowed here";
        return Err(Refusal::new(StatusCode::FORBIDDEN, text));
    }
    caveats.push(format!("activity:{}", activities.join(",")));
    caveats.push(format!("before:{ends}"));
    Ok((caveats, ends))
}

/// A duration of ISO 8601, such as `PT30M`.
fn validity(text: &str) -> Outcome<Duration> {
    let bad = || Refusal::bad("validity is no duration such as PT30M");
    // Others are read as well, such as "1 hour".
    let text = text.trim();
    if !text.starts_with('P') {
        return Err(bad());
    }
    let span: Span = text.parse().map_err(|_| bad())?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| bad())?;
    Duration::try_from(duration).ok().filter(|duration| !duration.is_zero()).ok_or_else(bad)
}

enum Caveat {
    Activities(Vec<String>),
    Path(String),
    Before(Timestamp),
    From(Vec<IpNetwork>),
}

fn parse_caveat(caveat: &str) -> Outcome<Caveat> {
    let unknown =
        || Refusal::bad("a caveat of the macaroon is not known here: activity, path, ip and before are");
    let (kind, value) = caveat.trim().split_once(':').ok_or_else(unknown)?;
    let list = || value.split(',').map(str::trim).filter(|word| !word.is_empty());
    match kind {
        "activity" => Ok(Caveat::Activities(list().map(str::to_owned).collect())),
        "path" => Ok(Caveat::Path(RequestPath::parse(value).map(|place| place.path)?)),
        "before" => {
            let bad = |_| Refusal::bad("a caveat before: has no time such as 2026-11-24T18:00:00Z");
            Ok(Caveat::Before(value.trim().parse().map_err(bad)?))
        }
        "ip" => {
            let parsed: Result<Vec<IpNetwork>, _> = list().map(str::parse).collect();
            Ok(Caveat::From(parsed.map_err(|_| Refusal::bad("a caveat ip: has no address or network"))?))
        }
        _ => Err(unknown()),
    }
}

/// The macaroon of this door that a request comes with; none if it comes with another token, or with none.
pub(crate) fn verify_bearer(
    macaroons: &Macaroons,
    headers: &HeaderMap,
    from: IpAddr,
) -> Outcome<Option<VerifiedMacaroon>> {
    let Some(token) = bearer(headers)? else { return Ok(None) };
    match macaroons.open(LOCATION, token) {
        Ok(macaroon) => terms(&macaroon, from, Timestamp::now()).map(Some),
        Err(MacaroonFault::NotOurs) => Ok(None),
        Err(fault) => Err(not_authenticated(&fault.to_string(), Some("invalid_token"))),
    }
}

pub(crate) fn terms(macaroon: &Macaroon, from: IpAddr, now: Timestamp) -> Outcome<VerifiedMacaroon> {
    let void = |why: &str| not_authenticated(why, Some("invalid_token"));
    let giver: Grantor =
        serde_json::from_str(&macaroon.identifier).map_err(|_| void("the macaroon is malformed"))?;
    let mut terms = Restrictions::default();
    for caveat in &macaroon.caveats {
        match parse_caveat(caveat).map_err(|refusal| void(&refusal.text))? {
            Caveat::Activities(list) => terms.activities.push(list),
            Caveat::Path(path) => terms.paths.push(path),
            Caveat::Before(before) if now >= before => return Err(void("the macaroon has expired")),
            Caveat::Before(_) => {}
            Caveat::From(networks) if networks.iter().any(|network| network.contains(from)) => {}
            Caveat::From(_) => return Err(void("the macaroon does not count from this address")),
        }
    }
    Ok(VerifiedMacaroon { who: giver.who, token: giver.token, terms })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::Right;
    use proptest::prelude::*;

    const NOW: &str = "2026-11-24T12:00:00Z";

    fn now() -> Timestamp {
        NOW.parse().unwrap()
    }

    fn asked(body: &str, allowed: impl Fn(Action) -> bool) -> Outcome<(Vec<String>, Timestamp)> {
        caveats(
            body.as_bytes(),
            &RequestPath { path: "a/f".into(), slash: false },
            allowed,
            now(),
            Timestamp::MAX,
        )
    }

    fn lent(caveats: &[&str]) -> DelegatedRights {
        let identifier = r#"{"who":["/CN=alice"]}"#.to_owned();
        let caveats = caveats.iter().map(|caveat| (*caveat).to_owned()).collect();
        let shown = terms(&Macaroon { identifier, caveats }, "192.0.2.7".parse().unwrap(), now()).unwrap();
        DelegatedRights {
            grants: vec![Grant { may: Right::Write, below: String::new() }],
            terms: shown.terms,
        }
    }

    #[test]
    fn what_is_asked_for_becomes_conditions() {
        let all = |_| true;
        let (caveats, ends) =
            asked(r#"{"caveats":["activity:DOWNLOAD,LIST"],"validity":"PT71M"}"#, all).unwrap();
        assert_eq!(caveats, ["path:/a/f", "activity:DOWNLOAD,LIST", "before:2026-11-24T13:11:00Z"]);
        assert_eq!(ends.duration_since(now()).as_secs(), 71 * 60);
        let (caveats, _) = asked(
            r#"{"caveats":["path:/b","ip:192.0.2.0/24","before:2026-11-24T12:01:00Z","activity:LIST"]}"#,
            all,
        )
        .unwrap();
        assert_eq!(
            caveats,
            ["path:/a/f", "path:/a/f/b", "ip:192.0.2.0/24", "activity:LIST", "before:2026-11-24T12:01:00Z"]
        );
        let odd = RequestPath { path: "a/50%20 ü".into(), slash: false };
        let (caveats, _) = super::caveats(b"{}", &odd, all, now(), Timestamp::MAX).unwrap();
        assert!(
            lent(&[&caveats[0]]).may(Action::Read, "a/50%20 ü")
                && !lent(&[&caveats[0]]).may(Action::Read, "a/50  ü")
        );
        // No longer than the certificate that it is given for.
        let soon = now() + Duration::from_secs(20);
        for wish in ["{}", r#"{"validity":"PT24H"}"#, r#"{"caveats":["before:2027-01-01T00:00:00Z"]}"#] {
            let (caveats, ends) = super::caveats(wish.as_bytes(), &odd, all, now(), soon).unwrap();
            assert_eq!((ends, caveats.last().unwrap()), (soon, &format!("before:{soon}")), "{wish}");
        }
        // No longer than a day, and nothing that its giver may not do.
        let (caveats, ends) = asked(r#"{"validity":"P400D"}"#, |action| action != Action::Change).unwrap();
        assert_eq!(ends.duration_since(now()).as_secs(), 86_400);
        assert_eq!(caveats[1], "activity:DOWNLOAD,UPLOAD,MANAGE,LIST,READ_METADATA,STAGE");
        assert_eq!(asked("{}", |_| false).unwrap_err().status, StatusCode::FORBIDDEN);
        for bad in [
            "",
            "[]",
            r#"{"validity":"1 hour"}"#,
            r#"{"validity":"-PT1H"}"#,
            r#"{"validity":"PT0S"}"#,
            r#"{"caveats":["name:root"]}"#,
            r#"{"caveats":["path:/../x"]}"#,
            r#"{"caveats":["ip:soup"]}"#,
            r#"{"caveats":["before:tomorrow"]}"#,
            r#"{"caveats":["soup"]}"#,
        ] {
            assert_eq!(asked(bad, all).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad}");
        }
    }

    #[test]
    fn every_condition_holds() {
        let download = lent(&["path:/a", "activity:DOWNLOAD,LIST"]);
        assert!(
            download.may(Action::Read, "a/f")
                && download.may(Action::Look, "a")
                && download.may(Action::List, "a")
        );
        assert!(!download.may(Action::Read, "ab") && !download.may(Action::Create, "a/f"));
        let narrower = lent(&["path:/a", "activity:DOWNLOAD,UPLOAD", "activity:UPLOAD,DELETE", "path:/a/b"]);
        assert!(narrower.may(Action::Create, "a/b/f"));
        assert!(!narrower.may(Action::Create, "a/c") && !narrower.may(Action::Read, "a/b/f"));
        assert!(!narrower.may(Action::Change, "a/b/f"));
        assert!(!lent(&["activity:SOUP"]).may(Action::Look, "a"));
        // Rights that the grantor has lost, a macaroon does not keep.
        let lapsed = DelegatedRights { grants: Vec::new(), ..lent(&["path:/"]) };
        assert!(!lapsed.may(Action::Look, "a"));
    }

    #[test]
    fn what_is_not_known_or_over_makes_it_void() {
        let opened = |identifier: &str, caveat: &str| {
            let macaroon = Macaroon { identifier: identifier.into(), caveats: vec![caveat.into()] };
            terms(&macaroon, "192.0.2.7".parse().unwrap(), now()).map_err(|refusal| refusal.status)
        };
        let alice = r#"{"who":["/CN=alice"]}"#;
        assert!(opened(alice, "ip:192.0.2.0/24,2001:db8::/32").is_ok());
        assert!(opened(alice, "before:2026-11-24T12:00:01Z").is_ok());
        for bad in ["ip:198.51.100.1", "ip:", "before:2026-11-24T12:00:00Z", "max-upload:7", "path:../x", "x"]
        {
            assert_eq!(opened(alice, bad), Err(StatusCode::UNAUTHORIZED), "{bad}");
        }
        assert_eq!(opened("alice", "path:/"), Err(StatusCode::UNAUTHORIZED));
    }

    proptest! {
        #[test]
        fn no_caveat_breaks_it(caveat in "(activity|path|before|ip|name)?:?[ -~]{0,40}",
            path in "[a-z/]{0,12}") {
            if let Ok(Caveat::Path(within)) = parse_caveat(&caveat) {
                prop_assert!(!within.split('/').any(|part| part == ".."));
            }
            let _ = asked(&json!({ "caveats": [caveat], "validity": path }).to_string(), |_| true);
        }
    }
}
