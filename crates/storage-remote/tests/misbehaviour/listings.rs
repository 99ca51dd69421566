//! Listings of collections: as large as they come, broken off, and larger than anything.

use std::ops::ControlFlow;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};
use longhaul_storage::{Storage as _, Visit};
use longhaul_storage_remote::{Credential, Remote, RemoteStorage, RemoteStorageOptions};

use super::server::{Reply, Server};
use super::{config, impatient_remote};

const HEAD: &str = "<?xml version=\"1.0\"?><D:multistatus xmlns:D=\"DAV:\"><D:response><D:href>/data/\
    </D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype></D:prop><D:status>HTTP/1.1 \
    200 OK</D:status></D:propstat></D:response>";

fn member(name: &str) -> String {
    format!(
        "<D:response><D:href>/data/{name}</D:href><D:propstat><D:prop><D:getcontentlength>7\
         </D:getcontentlength><D:resourcetype/></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat>\
         </D:response>"
    )
}

fn multistatus(body: &str, missing_bytes: usize) -> Vec<u8> {
    let length = body.len() + missing_bytes;
    format!("HTTP/1.1 207 Multi-Status\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

/// The names of files that a walk finds where each PROPFIND is answered so.
fn walk(remote: Remote, answer: Vec<u8>) -> Result<Vec<String>, Fault> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let rule = move |_: &_| Some(Reply::SayAndClose(answer.clone()));
    let server = runtime.block_on(Server::start(rule));
    let name = "disk".parse().unwrap();
    let options = RemoteStorageOptions::new(name, server.url("/data/"), Credential::None);
    let storage = RemoteStorage::open(Arc::new(remote), options, runtime.handle().clone()).unwrap();
    let mut names = Vec::new();
    storage.walk("", &mut |visit| {
        let Visit::File { at, identity } = visit else { panic!("{visit:?} is a file") };
        assert_eq!(identity.size, 7);
        names.push(at.path().to_owned());
        ControlFlow::Continue(())
    })?;
    Ok(names)
}

/// More than are held with all that is told of them.
#[test]
fn a_large_collection_is_listed_in_the_order_of_names() {
    let names: Vec<String> = (0..60_000).map(|number| format!("f{:05}", number * 7 % 60_000)).collect();
    let members: String = names.iter().map(|name| member(name)).collect();
    let body = format!("{HEAD}{members}</D:multistatus>");
    let found = walk(Remote::new(config()).unwrap(), multistatus(&body, 0)).unwrap();
    assert!(found.is_sorted() && found.len() == names.len(), "{}", found.len());
}

#[test]
fn a_listing_that_breaks_off_is_none() {
    let body = format!("{HEAD}{}", member("f1"));
    let fault = walk(impatient_remote(), multistatus(&body, 100)).unwrap_err();
    assert_eq!(fault.code, FaultCode::ConnectionLost, "{fault}");
    // Its length is right, and its end is missing.
    let fault = walk(Remote::new(config()).unwrap(), multistatus(&body, 0)).unwrap_err();
    assert!(fault.detail.contains("ends early"), "{fault}");
}

#[test]
fn what_is_larger_than_any_member_is_refused() {
    let comment = format!("<!--{}-->", "x".repeat(100_000));
    let body = format!("{HEAD}{comment}{}</D:multistatus>", member("f1"));
    let fault = walk(Remote::new(config()).unwrap(), multistatus(&body, 0)).unwrap_err();
    assert!(fault.detail.contains("more than 65536 bytes"), "{fault}");
}
