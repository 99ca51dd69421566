//! Plain WebDAV servers, nginx and Apache, as people have them: copies to, from and between them, which only
//! we can make, and whatever else is done there.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use longhaul_model::FaultCode;
use longhaul_storage_remote::{
    Cancel, ChecksumMode, CopyOrder, Credential, End, Mode, Overwrite, Remote, RemoteConfig, Times, Trust,
};
use longhaul_testbed::foreign::{Apache, ForeignAuthority, Nginx, NginxRules, names};
use longhaul_testbed::{Random, needs, tree};

fn may_run() -> bool {
    needs::programs(
        "copies with plain servers",
        &[("apache2", "-v"), ("nginx", "-v"), ("openssl", "version")],
    )
}

struct World {
    apache: Apache,
    nginx: Nginx,
    remote: Remote,
}

impl World {
    fn new() -> World {
        let authority = ForeignAuthority::new("storages");
        let soon = Duration::from_secs(20);
        let times = Times { connect: soon, answer: soon, checksum: soon, stall: soon, ..Times::default() };
        let config = RemoteConfig {
            trust: Trust::Pem(authority.ca_pem().to_owned()),
            allow: vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
            times,
            ..RemoteConfig::default()
        };
        World {
            apache: Apache::start(&authority),
            nginx: Nginx::start(&authority, NginxRules::default()),
            remote: Remote::new(config).unwrap(),
        }
    }

    /// Each as a source and as a target: below which URL its files are, and where they lie.
    fn servers(&self) -> [(String, PathBuf); 2] {
        [(self.apache.url(""), self.apache.data()), (self.nginx.url(""), self.nginx.data())]
    }
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

fn end(url: String) -> End {
    End::new(url, Credential::None)
}

fn order(source: String, target: String) -> CopyOrder {
    let mut order = CopyOrder::new("1-1", end(source), end(target));
    order.checksum = Some("ADLER32".parse().unwrap());
    order.checksum_mode = ChecksumMode::Both;
    order
}

#[test]
fn files_are_copied_between_them_whole_or_not_at_all() {
    if !may_run() {
        return;
    }
    let world = World::new();
    let (large, small) = (tree::content(&mut Random::new(1), 9_000_000), b"small".to_vec());
    for (name, bytes) in [("large", &large), ("small", &small), ("empty", &Vec::new())] {
        world.apache.put(name, bytes);
        world.nginx.put(name, bytes);
    }
    run(async {
        for (from, (source, _)) in world.servers().into_iter().enumerate() {
            for (target, data) in world.servers() {
                let folder = format!("from{from}/with a blank");
                for (name, bytes) in [("large", &large), ("small", &small), ("empty", &Vec::new())] {
                    let order = order(
                        format!("{source}{name}"),
                        format!("{target}from{from}/with%20a%20blank/{name}"),
                    );
                    let done = world.remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap();
                    // One that is both ends can copy within itself; no other is asked to.
                    let itself = source == target;
                    assert!(done.mode == Mode::Stream || itself && done.mode == Mode::Push, "{done:?}");
                    assert_eq!(done.bytes, bytes.len() as u64);
                    assert!(done.source_checksum.is_some() && done.source_checksum == done.target_checksum);
                    assert!(fs::read(data.join(&folder).join(name)).unwrap() == **bytes, "{name}");
                    let fault = world.remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_err();
                    assert_eq!(
                        fault.detail,
                        "DESTINATION [17] Destination file exists and overwrite is not enabled"
                    );
                }
                // What does not arrive as it should replaces nothing.
                let mut wrong =
                    order(format!("{source}large"), format!("{target}from{from}/with%20a%20blank/small"));
                wrong.overwrite = Overwrite::Always;
                wrong.checksum = Some("ADLER32:12345678".parse().unwrap());
                wrong.checksum_mode = ChecksumMode::Target;
                world.remote.copy(&wrong, &|_| {}, &Cancel::never()).await.unwrap_err();
                assert!(fs::read(data.join(&folder).join("small")).unwrap() == small);
                wrong.checksum = None;
                wrong.checksum_mode = ChecksumMode::None;
                world.remote.copy(&wrong, &|_| {}, &Cancel::never()).await.unwrap();
                assert!(fs::read(data.join(&folder).join("small")).unwrap() == large);
                assert_eq!(names(&data.join(&folder)), ["empty", "large", "small"]);
            }
        }
    });
}

#[test]
fn apache_is_looked_into_and_tidied_up() {
    if !may_run() {
        return;
    }
    let World { apache, remote, .. } = World::new();
    apache.put("file & more", b"12345");
    run(async {
        remote.mkdir(&end(apache.url("a/b"))).await.unwrap();
        assert!(apache.data().join("a/b").is_dir());
        let listed = remote.list(&end(apache.url(""))).await.unwrap();
        let mut seen: Vec<_> = listed
            .iter()
            .map(|entry| (entry.name.as_str(), entry.stat.size, entry.stat.is_collection))
            .collect();
        seen.sort_unstable();
        assert_eq!(seen, [("a", 0, true), ("file & more", 5, false)]);
        let file = end(apache.url("file%20&%20more"));
        assert_eq!(remote.stat(&file, None).await.unwrap().unwrap().size, 5);
        remote.rename(&file, &apache.url("a/there"), false).await.unwrap();
        apache.put("other", b"other");
        let other = end(apache.url("other"));
        let fault = remote.rename(&other, &apache.url("a/there"), false).await.unwrap_err();
        assert_eq!(fault.code, FaultCode::NameClash);
        assert_eq!(fs::read(apache.data().join("a/there")).unwrap(), b"12345");
        remote.rename(&other, &apache.url("a/there"), true).await.unwrap();
        assert_eq!(fs::read(apache.data().join("a/there")).unwrap(), b"other");
        assert!(remote.remove(&end(apache.url("a/there"))).await.unwrap());
        assert!(!remote.remove(&end(apache.url("a/there"))).await.unwrap(), "it is gone");
    });
}
