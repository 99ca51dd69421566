//! One copy between two storages of others, through us or by themselves, with its rate:
//! `copy CA.pem SOURCE TARGET pull|push|stream [STREAMS]`. Loopback is allowed, for measurements on one
//! machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::time::Instant;

use longhaul_storage_remote::{
    Cancel, CopyOrder, Credential, End, Mode, Overwrite, Remote, RemoteConfig, Trust,
};

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [authorities, source, target, mode, more @ ..] = words.as_slice() else {
        panic!("copy CA.pem SOURCE TARGET pull|push|stream [STREAMS]");
    };
    let allow = vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()];
    let trust = Trust::Files(vec![authorities.into()]);
    let remote = Remote::new(RemoteConfig { trust, allow, ..RemoteConfig::default() }).unwrap();
    let end = |url: &str| End::new(url, Credential::None);
    let mut order = CopyOrder::new(format!("example-{}", std::process::id()), end(source), end(target));
    order.modes = Mode::ALL.iter().copied().filter(|known| known.word() == mode).collect();
    order.overwrite = Overwrite::Always;
    order.streams = more.first().map_or(1, |streams| streams.parse().unwrap());
    let begun = Instant::now();
    let done = remote.copy(&order, &|_| {}, &Cancel::never()).await.unwrap_or_else(|fault| panic!("{fault}"));
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "{} bytes by {} in {seconds:.2} s: {:.0} MB/s",
        done.bytes,
        done.mode,
        done.bytes as f64 / seconds / 1e6
    );
}
