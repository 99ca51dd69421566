//! The log of decisions over a real service: what is in it, what is not, and that it outlives the service.

use longhaul_api::native::Page;
use longhaul_api::routes;
use longhaul_api::steering::DecisionEntry;

use crate::isolation::Play;

async fn entries(play: &Play, of: &str, who: Option<&str>) -> Vec<DecisionEntry> {
    let request = play.world.admin().request(&routes::DECISION_LIST).query("of", of);
    let page: Page<DecisionEntry> = request.maybe("who", who).send().await.unwrap();
    page.items
}

fn find<'a>(entries: &'a [DecisionEntry], operation: &str, object: &str) -> &'a DecisionEntry {
    let found = entries.iter().find(|one| one.operation == operation && one.object == object);
    found.unwrap_or_else(|| panic!("{operation} of {object} is not in {entries:#?}"))
}

/// How often that was decided: alike ones are counted in one entry, unless the log was written in between, as
/// it is every two seconds.
fn times(entries: &[DecisionEntry], operation: &str, object: &str) -> u64 {
    let alike = entries.iter().filter(|one| one.operation == operation && one.object == object);
    alike.map(|one| one.times).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_was_refused_and_who_was_allowed_is_kept() {
    let mut play = Play::new().await;
    let (job, _) = play.job_of("alice").await;
    let path = format!("/jobs/{job}");
    for _ in 0..3 {
        assert_eq!(play.request("bob", "DELETE", &path, "").await.0, 403);
    }
    let mixed = format!("/jobs/{job},{job}");
    assert_eq!(play.request("bob", "GET", &mixed, "").await.0, 207);
    assert_eq!(play.request("certificate", "GET", "/config", "").await.0, 403);
    assert_eq!(play.request("reader", "DELETE", &path, "").await.0, 403);
    assert_eq!(play.request("nobody", "GET", "/jobs", "").await.0, 401);
    assert_eq!(play.request("carol", "POST", "/api/v1/sites", r#"{"name":"x"}"#).await.0, 403);
    assert_eq!(play.request("carol", "GET", "/jobs", "").await.0, 200);
    assert_eq!(play.request("carol", "DELETE", &path, "").await.0, 200);
    assert_eq!(play.request("admin", "POST", "/api/v1/sites", r#"{"name":"x"}"#).await.0, 201);
    let secret = "lht_thisisnotoneofthetokens";
    assert_eq!(play.world.request(secret, "GET", "/api/v1/status?token=lht_query", "").await.0, 401);

    let refused = entries(&play, "refused", None).await;
    let of_bob = entries(&play, "refused", Some("bob")).await;
    let once = find(&of_bob, "fts DELETE /jobs/{}", &path);
    assert_eq!((once.who.as_str(), once.credential.as_str()), ("bob", "API token"));
    assert_eq!(times(&of_bob, "fts DELETE /jobs/{}", &path), 3);
    assert_eq!((once.allowed, once.origin.as_str()), (false, "127.0.0.1"));
    assert_eq!(once.why, "not theirs", "{once:?}");
    assert_eq!(times(&refused, "fts GET /jobs/{}", &job), 2, "each job of a list");
    let by_certificate = find(&refused, "fts GET /config", "/config");
    assert!(by_certificate.who.ends_with("/CN=dora") && by_certificate.credential == "certificate");
    let confined = refused.iter().find(|one| one.who == "reader").unwrap();
    assert!(confined.why.contains("needs the scope jobs; the token has jobs:read"), "{confined:?}");
    let nobody = find(&refused, "fts GET /jobs", "/jobs");
    assert_eq!((nobody.who.as_str(), nobody.credential.as_str()), ("nobody", "none"));
    let native = find(&refused, "site_add", "/api/v1/sites");
    assert_eq!(native.who, "carol");
    assert!(native.why.contains("needs the role admin"), "{native:?}");
    let unknown = find(&refused, "status", "/api/v1/status");
    let told = (unknown.who.as_str(), unknown.credential.as_str());
    assert_eq!(told, ("nobody", "a token that does not count"));
    assert!(refused.iter().all(|one| !one.allowed));

    let allowed = entries(&play, "allowed", None).await;
    let cancelled = find(&allowed, "fts DELETE /jobs/{}", &path);
    assert_eq!((cancelled.who.as_str(), cancelled.why.as_str()), ("carol", "of testvo"));
    assert_eq!(find(&allowed, "site_add", "/api/v1/sites").why, "role admin");
    assert!(allowed.iter().all(|one| one.operation != "fts GET /jobs"), "reading is not kept");
    assert!(!entries(&play, "refused", Some("bob")).await.iter().any(|one| one.who != "bob"));
    // No secret, whatever was shown.
    let all = format!("{refused:?}{allowed:?}");
    for token in play.tokens.values().map(String::as_str).chain([secret, "lht_query"]) {
        assert!(!all.contains(token));
    }

    // Only administrators see who did what.
    assert_eq!(play.request("manager", "GET", "/api/v1/audit/decisions", "").await.0, 403);
    assert_eq!(play.request("admin", "GET", "/api/v1/audit/decisions?of=all", "").await.0, 400);
    play.world.restart().await;
    let kept = entries(&play, "refused", Some("manager")).await;
    assert_eq!(find(&kept, "decision_list", "/api/v1/audit/decisions").times, 1);
    play.world.assert_sound().await;
    play.world.stop().await;
}
