//! Locks bind the clients of a door to each other, and what clients say of a file stays with it.

use crate::house::{House, PLAIN, READER, Reply};

const LOCK: &str = "<lockinfo xmlns='DAV:'><lockscope><exclusive/></lockscope><locktype><write/></locktype>\
                    <owner>me</owner></lockinfo>";
const SHARED: &str =
    "<lockinfo xmlns='DAV:'><lockscope><shared/></lockscope><locktype><write/></locktype></lockinfo>";

fn lock(house: &House, path: &str, body: &str, headers: &[(&str, &str)]) -> Reply {
    house.request("LOCK", path, headers, body.as_bytes())
}

/// With brackets, as the header has it.
fn token(reply: &Reply) -> String {
    reply.header("lock-token").unwrap_or_else(|| panic!("{reply:?}")).to_owned()
}

/// How long a lock is said to last.
fn lasts_s(reply: &Reply) -> u64 {
    let text = reply.text();
    let (_, rest) = text.split_once("Second-").unwrap_or_else(|| panic!("{text}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

fn put(house: &House, path: &str, headers: &[(&str, &str)]) -> u16 {
    house.request("PUT", path, headers, b"x").status
}

#[test]
fn what_is_locked_is_changed_by_its_holder_only() {
    let house = House::new();
    house.request("MKCOL", "/d", PLAIN, b"");
    assert_eq!(put(&house, "/d/a", PLAIN), 201);
    let locked = lock(&house, "/d/a", LOCK, PLAIN);
    assert_eq!(locked.status, 200, "{locked:?}");
    let held = token(&locked);
    for word in ["<D:exclusive/>", "<D:owner>me</D:owner>", "Second-", &held[1..held.len() - 1]] {
        assert!(locked.text().contains(word), "{word}: {}", locked.text());
    }
    let shown = (format!("({held})"), format!("(<urn:x>) ({held})"), "(Not <urn:x>)");
    assert_eq!(put(&house, "/d/a", PLAIN), 423);
    assert_eq!(put(&house, "/d/a", &[("If", &shown.0)]), 204);
    assert_eq!(put(&house, "/d/a", &[("If", &shown.1)]), 204, "one of the lists is true");
    assert_eq!(put(&house, "/d/a", &[("If", shown.2)]), 423, "true, and no token");
    assert_eq!(put(&house, "/d/b", &[("If", &shown.0)]), 412, "it does not cover that");
    for (method, path, headers) in [
        ("DELETE", "/d/a", vec![]),
        ("MOVE", "/d/a", vec![("Destination", "/d/c")]),
        ("PROPPATCH", "/d/a", vec![]),
        ("COPY", "/d/a", vec![("Destination", "/d/a2"), ("If", "(<urn:x>)")]),
    ] {
        let patch = b"<propertyupdate xmlns='DAV:'><set><prop><p xmlns='u'/></prop></set></propertyupdate>";
        let body: &[u8] = if method == "PROPPATCH" { patch } else { b"" };
        let expected = if method == "COPY" { 412 } else { 423 };
        assert_eq!(house.request(method, path, &headers, body).status, expected, "{method}");
    }
    // The directory goes only with all that is locked in it.
    let other = lock(&house, "/d", SHARED, &[("Depth", "infinity")]);
    assert_eq!(other.status, 423);
    assert!(other.text().contains("/d/a is locked"), "{}", other.text());
    // A reader may not lock, and a token is of no use to somebody else.
    let reader = format!("Bearer {READER}");
    assert_eq!(lock(&house, "/d/b", LOCK, &[("Authorization", &reader)]).status, 403);
    assert_eq!(house.request("UNLOCK", "/d/b", &[("Lock-Token", &held)], b"").status, 409);
    assert_eq!(house.request("UNLOCK", "/d/a", PLAIN, b"").status, 400);
    assert_eq!(house.request("UNLOCK", "/d/a", &[("Lock-Token", &held)], b"").status, 204);
    assert_eq!(put(&house, "/d/a", PLAIN), 204);
}

#[test]
fn a_name_can_be_locked_before_there_is_a_file() {
    let house = House::new();
    let locked = lock(&house, "/new", LOCK, &[("Timeout", "Second-60")]);
    assert_eq!(locked.status, 201, "{locked:?}");
    assert!((1..=60).contains(&lasts_s(&locked)), "{}", locked.text());
    assert_eq!(house.request("GET", "/new", PLAIN, b"").body, b"");
    assert_eq!(lock(&house, "/new", SHARED, PLAIN).status, 423);
    let held = format!("({})", token(&locked));
    let again = lock(&house, "/new", "", &[("If", &held), ("Timeout", "Infinite")]);
    assert_eq!(again.status, 200, "{again:?}");
    assert!((3_500..=3_600).contains(&lasts_s(&again)), "{}", again.text());
    assert_eq!(lock(&house, "/new", "", PLAIN).status, 412, "which one?");
    assert_eq!(house.request("DELETE", "/new", &[("If", &held)], b"").status, 204);
    assert_eq!(put(&house, "/new", PLAIN), 201, "a lock goes with what it was on");
    for (body, depth, expected) in [("<x/>", "0", 400), (LOCK, "1", 400), ("<", "0", 400)] {
        assert_eq!(lock(&house, "/new", body, &[("Depth", depth)]).status, expected, "{body} {depth}");
    }
    assert_eq!(lock(&house, "/none/", LOCK, PLAIN).status, 409);
}

#[test]
fn a_locked_directory_keeps_its_members() {
    let house = House::new();
    house.request("MKCOL", "/d", PLAIN, b"");
    let held = format!("({})", token(&lock(&house, "/d", LOCK, &[("Depth", "0")])));
    let tagged = format!("</d> {held}");
    assert_eq!(put(&house, "/d/a", PLAIN), 423, "a new member");
    assert_eq!(put(&house, "/d/a", &[("If", &held)]), 412, "the lock is of the directory alone");
    assert_eq!(put(&house, "/d/a", &[("If", &tagged)]), 201);
    assert_eq!(put(&house, "/d/a", PLAIN), 204, "the member itself is free");
    assert_eq!(house.request("MKCOL", "/d/e", PLAIN, b"").status, 423);
    assert_eq!(house.request("MOVE", "/d/a", &[("Destination", "/a")], b"").status, 423);
    assert_eq!(house.request("COPY", "/d/a", &[("Destination", "/d/b")], b"").status, 423);
    assert_eq!(house.request("COPY", "/d/a", &[("Destination", "/b")], b"").status, 201);
    let found = b"<propfind xmlns='DAV:'><prop><lockdiscovery/><supportedlock/></prop></propfind>";
    let told = house.request("PROPFIND", "/d", &[("Depth", "0")], found).text();
    assert!(told.contains("<D:depth>0</D:depth>") && told.contains("<D:shared/>"), "{told}");
}

fn patch(house: &House, path: &str, xml: &str) -> Reply {
    let body = format!("<propertyupdate xmlns='DAV:' xmlns:u='urn:u'>{xml}</propertyupdate>");
    house.request("PROPPATCH", path, PLAIN, body.as_bytes())
}

fn property(house: &House, path: &str) -> Option<String> {
    let body = b"<propfind xmlns='DAV:'><prop><p xmlns='urn:u'/></prop></propfind>";
    let told = house.request("PROPFIND", path, &[("Depth", "0")], body).text();
    let (_, rest) = told.split_once("<x:p xmlns:x=\"urn:u\">")?;
    Some(rest.split_once("</x:p>")?.0.to_owned())
}

#[test]
fn what_clients_say_of_a_file_stays_with_it() {
    let house = House::new();
    put(&house, "/a", PLAIN);
    let done = patch(&house, "/a", "<set><prop><u:p>one &amp; <u:q/></u:p></prop></set>");
    assert!(done.status == 207 && done.text().contains("200 OK"), "{done:?}");
    let value = Some("one &amp; <x:q xmlns:x=\"urn:u\"/>".to_owned());
    assert_eq!(property(&house, "/a"), value);
    put(&house, "/a", PLAIN);
    assert_eq!(property(&house, "/a"), value, "also of its next version");
    house.request("COPY", "/a", &[("Destination", "/b")], b"");
    house.request("MOVE", "/a", &[("Destination", "/c")], b"");
    assert_eq!((property(&house, "/b"), property(&house, "/c")), (value.clone(), value.clone()));
    put(&house, "/a", PLAIN);
    assert_eq!(property(&house, "/a"), None, "it went with the file");
    // All or nothing.
    let refused = patch(
        &house,
        "/b",
        "<remove><prop><u:p/></prop></remove><set><prop><getetag>1</getetag></prop></set>",
    );
    assert!(refused.text().contains("403 Forbidden") && refused.text().contains("424 Failed"), "{refused:?}");
    assert_eq!(property(&house, "/b"), value);
    let house = house.reopened();
    assert_eq!(property(&house, "/b"), value, "also of a door that was closed");
    let listed = house.request("PROPFIND", "/", &[("Depth", "1")], b"").text();
    assert_eq!(listed.matches("one &amp; ").count(), 2, "with all others: {listed}");
    assert_eq!(patch(&house, "/b", "<remove><prop><u:p/></prop></remove>").status, 207);
    assert_eq!(property(&house, "/b"), None);
    house.request("DELETE", "/c", PLAIN, b"");
    put(&house, "/c", PLAIN);
    assert_eq!(property(&house, "/c"), None);
    assert_eq!(patch(&house, "/none", "<set><prop><u:p/></prop></set>").status, 404);
}
