//! The adapter of WebDAV storages over a door: a storage of ours reached as one of others.

use std::sync::Arc;
use std::sync::Mutex;

use longhaul_storage::{Storage, conformance};
use longhaul_storage_remote::{Credential, Remote, RemoteConfig, RemoteStorage, RemoteStorageOptions, Trust};

use crate::house::{House, WRITER};

fn remote(house: &House) -> Arc<Remote> {
    let config = RemoteConfig {
        trust: Trust::Files(vec![house.ca.clone()]),
        allow: vec!["127.0.0.0/8".parse().unwrap()],
        ..RemoteConfig::default()
    };
    Arc::new(Remote::new(config).unwrap())
}

fn open(house: &House, runtime: &tokio::runtime::Runtime) -> RemoteStorage {
    let credential = Credential::Bearer(WRITER.to_owned().into());
    let options = RemoteStorageOptions::new("disk".parse().unwrap(), house.url("/"), credential);
    RemoteStorage::open(remote(house), options, runtime.handle().clone()).unwrap()
}

#[test]
fn a_door_conforms_as_a_storage() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Each storage of the suite has a door of its own, which lives as long as the suite.
    let houses = Mutex::new(Vec::new());
    let make = || {
        let house = House::new();
        let storage = open(&house, &runtime);
        houses.lock().unwrap().push(house);
        Box::new(storage) as Box<dyn Storage>
    };
    conformance::check(&make);
}
