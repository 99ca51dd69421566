//! What the methods do, and what they leave alone.

use crate::house::{Changes, House, PLAIN, READER};

#[test]
fn files_come_and_go() {
    let house = House::new();
    assert_eq!(house.request("GET", "/a/b%20c", PLAIN, b"").status, 404);
    let put = house.request("PUT", "/a/b%20c", PLAIN, b"hello");
    assert_eq!(put.status, 201, "{put:?}");
    assert_eq!(std::fs::read(house.root.join("a/b c")).unwrap(), b"hello");
    let tag = put.header("etag").unwrap().to_owned();
    let got = house.request("GET", "/a/b%20c", PLAIN, b"");
    assert_eq!((got.status, got.text().as_str()), (200, "hello"));
    assert_eq!(got.header("etag"), Some(tag.as_str()));
    assert_eq!(got.header("accept-ranges"), Some("bytes"));
    let head = house.request("HEAD", "/a/b%20c", &[("Want-Digest", "adler32")], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("5")));
    assert_eq!(head.header("digest"), Some("adler32=062c0215"));
    assert_eq!(house.request("GET", "/a/b%20c", &[("If-None-Match", &tag)], b"").status, 304);
    assert_eq!(house.request("PUT", "/a/b%20c", PLAIN, b"again").status, 204);
    assert_eq!(house.request("PUT", "/a/b%20c", &[("If-Match", &tag)], b"late").status, 412);
    assert_eq!(house.request("PUT", "/a/b%20c", &[("If-None-Match", "*")], b"late").status, 412);
    assert_eq!(house.request("DELETE", "/a/b%20c", &[("If-Match", &tag)], b"").status, 412);
    assert_eq!(house.request("GET", "/a/b%20c", PLAIN, b"").text(), "again");
    assert_eq!(house.request("DELETE", "/a/b%20c", PLAIN, b"").status, 204);
    assert_eq!(house.request("DELETE", "/a/b%20c", PLAIN, b"").status, 404);
    assert!(house.root.join("a").is_dir(), "a directory stays when its last file goes");
    assert_eq!(house.temps(), Vec::<String>::new());
}

#[test]
fn ranges_and_digests() {
    let house = House::new();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(house.root.join("f"), &bytes).unwrap();
    let whole = house.request("GET", "/f", PLAIN, b"");
    assert!(whole.whole && whole.body == bytes);
    let part = house.request("GET", "/f", &[("Range", "bytes=1000000-1999999")], b"");
    assert_eq!((part.status, part.header("content-range")), (206, Some("bytes 1000000-1999999/3000000")));
    assert!(part.body == bytes[1_000_000..2_000_000]);
    let past = house.request("GET", "/f", &[("Range", "bytes=3000000-")], b"");
    assert_eq!((past.status, past.header("content-range")), (416, Some("bytes */3000000")));
    let tag = whole.header("etag").unwrap();
    assert_eq!(house.request("GET", "/f", &[("Range", "bytes=0-1"), ("If-Range", tag)], b"").status, 206);
    assert_eq!(house.request("GET", "/f", &[("Range", "bytes=0-1"), ("If-Range", "\"x\"")], b"").status, 200);
    let parts = house.request("GET", "/f", &[("Range", "bytes=0-1,5-6")], b"");
    assert_eq!(parts.status, 206);
    assert!(parts.header("content-type").unwrap().starts_with("multipart/byteranges"));
    assert_eq!(parts.text().matches("Content-Range: bytes ").count(), 2);
    let digests =
        house.request("HEAD", "/f", &[("Want-Digest", "md5"), ("Want-Repr-Digest", "sha-256=1")], b"");
    assert!(digests.header("digest").unwrap().starts_with("md5="));
    assert!(digests.header("repr-digest").unwrap().starts_with("sha-256=:"));
    assert_eq!(house.request("GET", "/f/", PLAIN, b"").status, 404, "a file is no directory");
}

/// Promise 2.
#[test]
fn a_digest_is_compared_before_anything_is_seen() {
    let house = House::new();
    std::fs::write(house.root.join("f"), "good").unwrap();
    for (name, value) in [
        ("Digest", "adler32=00000001"),
        ("Digest", "sha-256=47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="),
        ("Repr-Digest", "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"),
        ("Content-MD5", "1B2M2Y8AsgTpgAmY7PhCfg=="),
        ("Digest", "adler32=soup"),
    ] {
        let refused = house.request("PUT", "/f", &[(name, value)], b"evil");
        assert_eq!(refused.status, 400, "{name}: {value}");
    }
    assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"good");
    assert_eq!(house.request("PUT", "/f", &[("Digest", "adler32=062C0215")], b"hello").status, 204);
    house.wait_until_clean();
}

#[test]
fn uploads_of_all_kinds() {
    let house = House::new();
    let mut wire = house.connect();
    let head = format!("PUT /x HTTP/1.1\r\nHost: d\r\nAuthorization: Bearer {}\r\n", crate::house::WRITER);
    wire.send(format!("{head}Expect: 100-continue\r\nContent-Length: 3\r\n\r\n").as_bytes());
    assert_eq!(wire.reply(false).status, 100);
    wire.send(b"abc");
    assert_eq!(wire.reply(false).status, 201);
    let mut wire = house.connect();
    wire.send(format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n").as_bytes());
    assert_eq!(wire.reply(false).status, 204);
    assert_eq!(std::fs::read(house.root.join("x")).unwrap(), b"def");
    let partial = house.request("PUT", "/x", &[("Content-Range", "bytes 0-0/3")], b"z");
    assert_eq!(partial.status, 501);
    assert!(partial.text().contains("Content-Range"), "{}", partial.text());
    assert_eq!(house.request("PUT", "/x", &[("Content-Encoding", "gzip")], b"z").status, 415);
    assert_eq!(house.request("PUT", "/x/", PLAIN, b"z").status, 405);
    assert_eq!(house.request("PUT", "/x/below", PLAIN, b"z").status, 409);
    let mut refused = house.connect();
    refused.send(b"PUT /y HTTP/1.1\r\nHost: d\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    assert_eq!(refused.reply(false).status, 401, "before the body is asked for");
    assert_eq!(std::fs::read(house.root.join("x")).unwrap(), b"def");
}

#[test]
fn directories_are_made_moved_and_copied() {
    let house = House::with(Changes { make_parents: false, ..Changes::default() });
    let ask =
        |method: &str, path: &str, headers: &[(&str, &str)]| house.request(method, path, headers, b"").status;
    assert_eq!(ask("MKCOL", "/d/", PLAIN), 201);
    assert_eq!(ask("MKCOL", "/d", PLAIN), 405);
    assert_eq!(ask("MKCOL", "/none/d", PLAIN), 409);
    assert_eq!(house.request("MKCOL", "/e", PLAIN, b"body").status, 415);
    assert_eq!(house.request("PUT", "/none/f", PLAIN, b"x").status, 409);
    assert_eq!(house.request("PUT", "/d/f", PLAIN, b"1").status, 201);
    assert_eq!(ask("DELETE", "/d/", PLAIN), 409, "full");
    let to = |path: &str| house.url(path);
    assert_eq!(ask("COPY", "/d/f", &[("Destination", &to("/g"))]), 201);
    assert_eq!(ask("COPY", "/d/f", &[("Destination", &to("/g")), ("Overwrite", "F")]), 412);
    assert_eq!(ask("COPY", "/d/f", &[("Destination", &to("/g"))]), 204);
    assert_eq!(ask("COPY", "/d/f", &[("Destination", &to("/d/f"))]), 403);
    assert_eq!(ask("COPY", "/d", &[("Destination", &to("/d/inner"))]), 403);
    assert_eq!(ask("COPY", "/d", &[("Destination", &to("/c/"))]), 201);
    assert_eq!(std::fs::read(house.root.join("c/f")).unwrap(), b"1");
    assert_eq!(ask("COPY", "/d", &[("Destination", &to("/c/"))]), 409, "a full one is not replaced");
    assert_eq!(ask("MOVE", "/d", &[("Destination", &to("/m"))]), 201);
    assert_eq!(ask("MOVE", "/m/f", &[("Destination", &to("/none/f"))]), 409);
    assert_eq!(ask("MOVE", "/m/f", &[("Destination", &to("/g"))]), 204);
    assert_eq!(ask("MOVE", "/m/f", &[("Destination", &to("/g"))]), 404);
    assert_eq!(ask("MOVE", "/g", &[("Destination", "https://elsewhere.example/g")]), 502);
    assert_eq!(ask("DELETE", "/m/", PLAIN), 204);
    assert_eq!(ask("DELETE", "/", PLAIN), 403);
    assert_eq!(ask("POST", "/g", PLAIN), 405);
}

#[test]
fn trees_go_only_where_that_is_said() {
    let house = House::with(Changes { delete_trees: true, ..Changes::default() });
    house.request("PUT", "/t/a/b/c", PLAIN, b"x");
    house.request("PUT", "/t/d", PLAIN, b"x");
    assert_eq!(house.request("DELETE", "/t", PLAIN, b"").status, 204);
    assert!(!house.root.join("t").exists());
}

#[test]
fn properties_are_told() {
    let house = House::new();
    house.request("PUT", "/d/%3Cimg%20src=x%3E%26", PLAIN, b"12345");
    let all = house.request("PROPFIND", "/d", &[("Depth", "1")], b"");
    assert_eq!(all.status, 207);
    let text = all.text();
    assert!(text.contains("<D:href>/d/</D:href>") && text.contains("<D:collection/>"), "{text}");
    assert!(text.contains("<D:href>/d/%3Cimg%20src%3Dx%3E%26</D:href>"), "{text}");
    assert!(text.contains("<D:displayname>&lt;img src=x&gt;&amp;</D:displayname>"), "{text}");
    assert!(text.contains("<D:getcontentlength>5</D:getcontentlength>"), "{text}");
    assert!(!text.contains("quota"), "only when asked for");
    let ask = |names: &str| {
        let body = format!("<propfind xmlns='DAV:' xmlns:x='urn:x'><prop>{names}</prop></propfind>");
        house.request("PROPFIND", "/d", &[("Depth", "0")], body.as_bytes()).text()
    };
    let quota = ask("<quota-available-bytes/><quota-used-bytes/><x:own/>");
    assert!(quota.contains("<D:quota-available-bytes>") && quota.contains("<D:quota-used-bytes>"), "{quota}");
    assert!(quota.contains("404 Not Found") && quota.contains("own"), "{quota}");
    let infinite = house.request("PROPFIND", "/", &[("Depth", "infinity")], b"");
    assert_eq!(infinite.status, 403);
    assert!(infinite.text().contains("propfind-finite-depth"));
    assert_eq!(house.request("PROPFIND", "/none", &[("Depth", "0")], b"").status, 404);
    let page = house.request("GET", "/d/", PLAIN, b"").text();
    assert!(page.contains("./%3Cimg%20src%3Dx%3E%26") && !page.contains("<img"), "{page}");
    for path in ["/d", "//d", "/%64"] {
        assert_eq!(house.request("GET", path, PLAIN, b"").header("location"), Some("/d/"), "of this host");
    }
}

#[test]
fn rights_come_first() {
    let house = House::new();
    std::fs::write(house.root.join("f"), "x").unwrap();
    let none = [("Authorization", "")];
    let reader = format!("Bearer {READER}");
    let reader = [("Authorization", reader.as_str())];
    assert_eq!(house.request("OPTIONS", "/f", &none, b"").status, 200);
    for path in ["/f", "/none"] {
        assert_eq!(house.request("GET", path, &none, b"").status, 401, "whether it is there or not");
        assert_eq!(house.request("PUT", path, &reader, b"x").status, 403);
        assert_eq!(house.request("DELETE", path, &reader, b"").status, 403);
    }
    assert_eq!(house.request("GET", "/f", &reader, b"").status, 200);
    let unknown = house.request("GET", "/f", &[("Authorization", "Bearer 0123456789012345678901234")], b"");
    assert_eq!(unknown.status, 401);
    assert!(unknown.header("www-authenticate").unwrap().contains("invalid_token"));
    for (method, allowed) in [("COPY", false), ("MOVE", false)] {
        let headers = [reader[0], ("Destination", "/g")];
        assert_eq!(house.request(method, "/f", &headers, b"").status == 201, allowed, "{method}");
    }
    let open = House::with(Changes { anonymous: true, ..Changes::default() });
    std::fs::write(open.root.join("f"), "x").unwrap();
    assert_eq!(open.request("GET", "/f", &none, b"").status, 200);
    assert_eq!(open.request("PUT", "/f", &none, b"y").status, 401);
}
