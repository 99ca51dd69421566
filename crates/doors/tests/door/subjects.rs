//! Names of certificates at a door.

use crate::house::House;

/// The same letters in another name: what is one value of theirs is no part of ours.
#[test]
fn no_certificate_passes_for_somebody_elses() {
    let house = House::new();
    assert_eq!(house.request_as("alice-of-example", "PUT", "/f", b"hers").status, 201);
    for forged in ["forged", "forged-whole", "forged-end", "mallory"] {
        for (method, path) in [("PUT", "/f"), ("DELETE", "/f"), ("GET", "/f"), ("MKCOL", "/d")] {
            let status = house.request_as(forged, method, path, b"").status;
            assert_eq!(status, 403, "{method} {path} as {forged}");
        }
    }
    assert_eq!(std::fs::read(house.root.join("f")).unwrap(), b"hers");
    assert!(!house.root.join("d").exists());
}

#[test]
fn a_revoked_certificate_opens_nothing() {
    let house = House::new();
    assert_eq!(house.request_as("alice", "PUT", "/f", b"hers").status, 201);
    for (method, path) in [("GET", "/f"), ("PUT", "/f"), ("OPTIONS", "/")] {
        assert_eq!(house.request_as("revoked", method, path, b"").status, 0, "{method}: the handshake fails");
    }
    assert_eq!(house.request_as("alice", "GET", "/f", b"").text(), "hers", "others go on");
}
