//! Two sources, each behind a path of its own to the target; the fast path becomes the slow one while data
//! flows.

use std::net::SocketAddr;
use std::time::Duration;

use longhaul_testbed::wan::{Change, Lab, PathConfig, Side};
use longhaul_testbed::{Deployment, Random, ServiceOptions, SiteOptions, needs, tree};
use serde_json::json;

/// What each source may be given ahead, however slow it is: more than five times as much is left to decide
/// on when the links are swapped, so that a shift within a minute leaves the fast one twice as much as the
/// slow one.
const AHEAD_BYTES: u64 = 128_000_000;
const FILES: usize = 2_400;
const FILE_BYTES: u64 = 400_000;
/// The fast path carries 10 MB/s, which is no more than machines move; the slow one a tenth of it.
const FAST_MBIT: f64 = 80.0;
const SLOW_MBIT: f64 = 8.0;
const SLOW_BYTES_PER_S: u64 = 1_000_000;
/// Moved before the links are swapped: what each gives is known by then.
const BEFORE: u64 = 100_000_000;
const WITHIN: Duration = Duration::from_secs(600);
/// Paths: of alpha, of beta, and of what agents and the service say to each other.
const ALPHA: usize = 0;
const BETA: usize = 1;
const CONTROL: usize = 2;

#[test]
fn best_leaves_a_source_whose_link_became_slow_within_a_minute_and_says_why() {
    let paths = [
        PathConfig::new(10.0).rate_mbit(FAST_MBIT),
        PathConfig::new(10.0).rate_mbit(SLOW_MBIT),
        PathConfig::new(1.0),
    ];
    let lab = match Lab::available().and_then(|()| Lab::start(&paths)) {
        Ok(lab) => lab,
        Err(why) => return needs::not_run("sources behind emulated links", &why),
    };
    // All but the target lives on the left side; this thread, its sockets and its children do too.
    lab.inside(Side::Left, || shift(&lab)).unwrap();
}

fn shift(lab: &Lab) {
    let at = |side, path, port| SocketAddr::from((lab.address(side, path), port));
    let listen = Some(at(Side::Left, CONTROL, 8_443));
    let mut deployment = Deployment::with(ServiceOptions { listen, ..ServiceOptions::default() });
    for (site, side, path) in
        [("alpha", Side::Left, ALPHA), ("beta", Side::Left, BETA), ("gamma", Side::Right, CONTROL)]
    {
        let mut options = SiteOptions::new(site);
        let listen = at(side, path, 7_470).to_string();
        options.environment.push(("LONGHAUL_AGENT_LISTEN".to_owned(), listen));
        if side == Side::Right {
            options.launcher = ["ip", "netns", "exec", lab.namespace(side)].map(str::to_owned).to_vec();
        }
        deployment.add_site(options);
    }
    for site in ["alpha", "beta"] {
        // All have one size: a number of leases is a number of bytes then.
        tree::make_uniform(&deployment.storage(site), FILES, FILE_BYTES, &mut Random::new(5));
        deployment.register("run5", site);
    }
    let bytes = FILES as u64 * FILE_BYTES;
    let subscription = deployment.json(&["subscribe", "run5", "gamma"])["id"].as_str().unwrap().to_owned();

    let before = deployment.until("the fast link is in use", WITHIN, || {
        let given = given(&deployment, &subscription);
        (given[0] + given[1] >= BEFORE).then_some(given)
    });
    assert!(before[0] > 3 * before[1], "best prefers the fast link: {before:?}");
    lab.set(ALPHA, Change::RateMbit(Some(SLOW_MBIT))).unwrap();
    lab.set(BETA, Change::RateMbit(Some(FAST_MBIT))).unwrap();
    let leased_at_swap = leased(&deployment);

    let leased = deployment.until("nearly all is leased", WITHIN, || {
        let leased = leased(&deployment);
        (leased[0] + leased[1] >= FILES as u64 * 19 / 20).then_some(leased)
    });
    let after = [0, 1].map(|at| (leased[at] - leased_at_swap[at]) * FILE_BYTES);
    // Shifted within a minute: what was decided for the slow link since is less than it carries in a minute,
    // and what it is given ahead.
    assert!(after[0] < AHEAD_BYTES + 60 * SLOW_BYTES_PER_S, "{after:?}");
    assert!(after[1] > 2 * after[0] && after[1] > bytes / 4, "{after:?}");
    // What was decided only needs to come.
    [ALPHA, BETA].iter().for_each(|&path| lab.set(path, Change::RateMbit(None)).unwrap());
    deployment.deliver("run5", "gamma", WITHIN.as_secs());
    explained(&deployment, leased[1] - leased_at_swap[1]);
    deployment.assert_nothing_failed();
    deployment.check();
}

/// Bytes that came from alpha and beta.
fn given(deployment: &Deployment, subscription: &str) -> [u64; 2] {
    let view = deployment.json(&["subscription", "show", subscription]);
    let sources = view["sources"].as_array().unwrap();
    let of = |name: &str| {
        let source = sources.iter().find(|source| source["storage"] == json!(name));
        source.map_or(0, |source| source["bytes"].as_u64().unwrap())
    };
    [of("alpha"), of("beta")]
}

/// Leases that alpha and beta serve, since the start.
fn leased(deployment: &Deployment) -> [u64; 2] {
    ["alpha", "beta"].map(|name| {
        deployment.metric(&format!("longhaul_leases_total{{source=\"{name}\",target=\"gamma\"}}")) as u64
    })
}

/// The last file from beta for which both could be used, among the last ones (those that were decided since
/// the swap), says why it came from there, with the numbers of both.
fn explained(deployment: &Deployment, last_files: u64) {
    let limit = last_files.to_string();
    let done = ["--source", "beta", "--target", "gamma", "--state", "done", "--limit", &limit];
    let list = deployment.json(&[&["transfer", "list"][..], &done].concat());
    let mut last = String::new();
    let id = list["items"].as_array().unwrap().iter().find_map(|item| {
        let id = item["id"].as_str()?;
        last = deployment.longhaul(&["transfer", "explain", id]).ok().stdout;
        let told = last.contains("beta, because it finishes first: ") && last.contains(" at alpha, which ");
        told.then_some(id)
    });
    let id = id.unwrap_or_else(|| panic!("{last}"));
    let detail = deployment.json(&["transfer", "explain", id]);
    let choice = &detail["attempts"][0]["choice"];
    let finish = |name: &str| {
        let all = choice["candidates"].as_array().unwrap();
        all.iter().find(|one| one["storage"] == json!(name)).unwrap()["finish_us"].as_u64()
    };
    assert!(finish("beta").unwrap() <= finish("alpha").unwrap_or(u64::MAX), "{choice:#}");
}
