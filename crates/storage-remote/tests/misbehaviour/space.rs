//! Reports of space: as they should be, and as sites have them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_model::FaultCode;
use longhaul_storage::{Space, Storage as _, TempName};
use longhaul_storage_remote::{
    Credential, Remote, RemoteConfig, RemoteStorage, RemoteStorageOptions, SpaceReport, Trust,
};
use longhaul_testkit::CertificateAuthority;
use tokio::runtime::Runtime;
use zeroize::Zeroizing;

use super::server::{ReceivedRequest, Server};
use super::{acceptor, config, reply};

const UNKNOWN: Space = Space { total_bytes: 0, free_bytes: 0 };

fn report(fields: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let fields = fields.replace("NOW", &now.to_string());
    format!(r#"{{"storageservice":{{"storageshares":[{{"name":"DATA",{fields}}}]}}}}"#)
}

struct Site {
    runtime: Runtime,
    authority: CertificateAuthority,
}

impl Site {
    fn new() -> Site {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Site { runtime: runtime.unwrap(), authority: CertificateAuthority::new("storages") }
    }

    /// A server whose report is this answer.
    fn server(&self, status: &'static str, report: String) -> Server {
        let rule = move |asked: &ReceivedRequest| {
            (asked.path == "/srr").then(|| reply(status, "Content-Type: application/json\r\n", &report))
        };
        self.runtime.block_on(Server::start_with(Some(acceptor(&self.authority)), rule))
    }

    /// A storage of the one server, and its report of the other.
    fn storage(&self, server: &Server, reports: &Server) -> RemoteStorage {
        let config = RemoteConfig { trust: Trust::Pem(self.authority.ca_pem.clone()), ..config() };
        let token = Credential::Bearer(Zeroizing::new("TOKEN".to_owned()));
        let url = server.url("/data/");
        let options = RemoteStorageOptions {
            space_report: Some(SpaceReport::new(&reports.url("/srr"), "DATA").unwrap()),
            ..RemoteStorageOptions::new("disk".parse().unwrap(), url, token)
        };
        let remote = Arc::new(Remote::new(config).unwrap());
        RemoteStorage::open(remote, options, self.runtime.handle().clone()).unwrap()
    }
}

#[test]
fn a_share_bounds_what_is_sent_and_the_token_stays_at_its_host() {
    let site = Site::new();
    let share = report(r#""timestamp":NOW,"totalsize":1e6,"usedsize":4e5"#);
    let (own, other) = (site.server("200 OK", share.clone()), site.server("200 OK", share));
    let shown = |server: &Server| {
        let asked = server.asked("GET");
        assert_eq!(asked.len(), 1, "read once, and not for each look at the space");
        asked[0].header("authorization").map(str::to_owned)
    };
    for (reports, credential) in [(&own, Some("Bearer TOKEN")), (&other, None)] {
        let storage = site.storage(&own, reports);
        assert_eq!(storage.space(), Ok(Space { total_bytes: 1_000_000, free_bytes: 600_000 }));
        storage.create(&TempName::from_bytes([1; 16]), None, 500_000).unwrap();
        assert_eq!(storage.space().unwrap().free_bytes, 100_000);
        let fault = storage.create(&TempName::from_bytes([2; 16]), None, 100_001).err().unwrap();
        assert_eq!(fault.code, FaultCode::TargetFull, "{fault}");
        assert_eq!(shown(reports).as_deref(), credential);
    }
}

#[test]
fn a_report_that_tells_nothing_takes_no_storage_out_of_use() {
    let site = Site::new();
    for (status, answer) in [
        ("404 Not Found", String::new()),
        ("503 Service Unavailable", String::new()),
        ("200 OK", "<html>please log in</html>".to_owned()),
        ("200 OK", report(r#""timestamp":NOW,"totalsize":1000,"usedsize":-879709663640"#)),
        ("200 OK", report(r#""timestamp":1600000000,"totalsize":1000,"usedsize":10"#)),
        ("200 OK", report(r#""timestamp":NOW,"totalsize":0,"usedsize":0"#)),
        ("200 OK", report(r#""timestamp":NOW,"totalsize":1000,"usedsize":10"#).replace("DATA", "OTHER")),
    ] {
        let server = site.server(status, answer.clone());
        let storage = site.storage(&server, &server);
        assert_eq!(storage.space(), Ok(UNKNOWN), "{status} {answer}");
        assert!(storage.create(&TempName::from_bytes([1; 16]), None, 1 << 40).is_ok(), "{status} {answer}");
    }
}
