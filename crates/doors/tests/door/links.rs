//! Links within a storage: whose places they lead to.

use std::os::unix::fs::symlink;

use crate::house::{Changes, House, JANE};

const SECRET: &str = "what jane may not read";

/// `people/jane` is jane's, `secret` is not; links in her place lead there.
fn house() -> House {
    let house = House::with(Changes { delete_trees: true, ..Changes::default() });
    for directory in ["people/jane/sub", "secret/inner"] {
        std::fs::create_dir_all(house.root.join(directory)).unwrap();
    }
    for (file, text) in [("secret/f", SECRET), ("secret/inner/g", SECRET), ("people/jane/own", "hers")] {
        std::fs::write(house.root.join(file), text).unwrap();
    }
    for (target, link) in [
        ("../../secret", "people/jane/inlink"),
        ("../../secret/f", "people/jane/filelink"),
        ("../../../secret", "people/jane/sub/inlink"),
        ("../../../secret/f", "people/jane/sub/filelink"),
        ("own", "people/jane/mine"),
    ] {
        symlink(target, house.root.join(link)).unwrap();
    }
    house
}

fn jane(house: &House, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let bearer = format!("Bearer {JANE}");
    let headers = [&[("Authorization", bearer.as_str())], headers].concat();
    let reply = house.request(method, path, &headers, body);
    (reply.status, reply.text())
}

fn secret_is_whole(house: &House) {
    for file in ["secret/f", "secret/inner/g"] {
        assert_eq!(std::fs::read_to_string(house.root.join(file)).unwrap(), SECRET, "{file}");
    }
    assert_eq!(std::fs::read_dir(house.root.join("secret")).unwrap().count(), 2);
}

#[test]
fn a_link_gives_no_right_to_the_place_that_it_leads_to() {
    let house = house();
    let port = house.address.port();
    let here = format!("https://localhost:{port}/people/jane/copy");
    let lock = "<D:lockinfo xmlns:D=\"DAV:\"><D:lockscope><D:exclusive/></D:lockscope><D:locktype><D:write/>\
        </D:locktype></D:lockinfo>";
    let patch = "<D:propertyupdate xmlns:D=\"DAV:\"><D:set><D:prop><x xmlns=\"u\">1</x></D:prop></D:set>\
        </D:propertyupdate>";
    for path in ["/people/jane/inlink/f", "/people/jane/filelink", "/people/jane/inlink/inner"] {
        for (method, headers, body) in [
            ("GET", vec![], ""),
            ("GET", vec![("Range", "bytes=0-3")], ""),
            ("HEAD", vec![], ""),
            ("HEAD", vec![("Want-Digest", "adler32")], ""),
            ("PROPFIND", vec![("Depth", "0")], ""),
            ("PROPFIND", vec![("Depth", "1")], ""),
            ("PROPPATCH", vec![], patch),
            ("DELETE", vec![], ""),
            ("MOVE", vec![("Destination", here.as_str())], ""),
            ("COPY", vec![("Destination", here.as_str())], ""),
            ("LOCK", vec![], lock),
            ("PUT", vec![], "hers"),
            ("COPY", vec![("Source", "https://other.example/f")], ""),
        ] {
            let (status, text) = jane(&house, method, path, &headers, body.as_bytes());
            assert_eq!(status, 403, "{method} {path} {headers:?}: {text}");
            assert!(!text.contains(SECRET) && !text.contains("getcontentlength"), "{method} {path}: {text}");
        }
        assert!(!house.root.join("people/jane/copy").exists());
    }
    let (status, _) =
        jane(&house, "COPY", "/people/jane/filelink", &[("Destination", "https://other.example/f")], b"");
    assert_eq!(status, 403);
    for (method, path) in [("PUT", "/people/jane/inlink/new"), ("MKCOL", "/people/jane/inlink/new")] {
        let (status, text) = jane(&house, method, path, &[], b"");
        assert!((400..500).contains(&status) && !house.root.join("secret/new").exists(), "{status} {text}");
    }
    for (method, name) in
        [("MOVE", "inlink/new"), ("COPY", "inlink/new"), ("MOVE", "filelink"), ("COPY", "filelink")]
    {
        let there = format!("https://localhost:{port}/people/jane/{name}");
        let (status, text) = jane(&house, method, "/people/jane/own", &[("Destination", &there)], b"");
        assert!((400..500).contains(&status), "{method} to {name}: {status} {text}");
    }
    secret_is_whole(&house);
    assert!(house.root.join("people/jane/filelink").is_symlink());
}

#[test]
fn links_serve_whoever_has_the_right_at_both_ends() {
    let house = house();
    assert_eq!(jane(&house, "GET", "/people/jane/mine", &[], b""), (200, "hers".to_owned()));
    assert_eq!(house.request("GET", "/people/jane/inlink/f", &[], b"").text(), SECRET);
    assert_eq!(house.request("GET", "/people/jane/filelink", &[], b"").text(), SECRET);
}

#[test]
fn listings_and_copies_leave_out_what_links_give_no_right_to() {
    let house = house();
    for (method, headers) in [("PROPFIND", &[("Depth", "1")][..]), ("GET", &[])] {
        let (_, hers) = jane(&house, method, "/people/jane/", headers, b"");
        assert!(hers.contains("own") && hers.contains("mine") && hers.contains("sub"), "{hers}");
        assert!(!hers.contains("inlink") && !hers.contains("filelink"), "{hers}");
        let all = house.request(method, "/people/jane/", headers, b"").text();
        assert!(all.contains("inlink") && all.contains("filelink"), "{all}");
    }
    let to = format!("https://localhost:{}/people/jane/copy", house.address.port());
    assert_eq!(jane(&house, "COPY", "/people/jane/sub", &[("Destination", &to)], b"").0, 201);
    assert_eq!(std::fs::read_dir(house.root.join("people/jane/copy")).unwrap().count(), 0);
}

#[test]
fn deleting_a_tree_deletes_its_links_and_not_what_they_lead_to() {
    let house = house();
    assert_eq!(house.request("DELETE", "/people/jane/sub", &[], b"").status, 204);
    assert!(!house.root.join("people/jane/sub").exists());
    assert_eq!(house.request("DELETE", "/people/jane/inlink", &[], b"").status, 204);
    assert!(!house.root.join("people/jane/inlink").is_symlink());
    secret_is_whole(&house);
}
