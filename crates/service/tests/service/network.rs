//! What services tell each other of the network reaches their decisions.

use crate::world::{Agent, World, manifest_line};
use longhaul_api::native::{SiteChange, SiteView};
use longhaul_api::network::*;
use longhaul_api::routes;
use longhaul_model::FaultCode;
use serde_json::{Value, json};

/// Alpha and beta hold a file that gamma will want.
async fn deployment() -> (World, Vec<Agent>) {
    let world = World::new().await;
    let mut agents = Vec::new();
    for site in ["alpha", "beta", "gamma"] {
        let agent = world.agent(site).await;
        agent.hello(&[]).await.unwrap();
        agents.push(agent);
    }
    (world, agents)
}

fn link(source: &str, bytes_per_s: f64, seen: &str) -> Value {
    json!({ "source": source, "target": "gamma", "bytes_per_s": bytes_per_s, "spread": 0.2, "seconds": 600.0,
        "seen": seen, "rtt_us": 50_000.0, "loss": 0.0 })
}

fn document(links: &[Value], seen: &str) -> Value {
    json!({
        "format": "longhaul-network", "version": 1, "instances": ["elsewhere"], "written": seen,
        "links": links,
    })
}

async fn import(world: &World, document: Value, aliases: &[(&str, &str)]) -> NetworkImported {
    let aliases = aliases.iter().map(|&(theirs, ours)| (theirs.to_owned(), ours.to_owned())).collect();
    let request = NetworkImport { document, aliases };
    world.admin().request(&routes::NETWORK_IMPORT).json(&request).send().await.unwrap()
}

/// A link known only to the second service changes the first one's choice.
#[tokio::test(flavor = "multi_thread")]
async fn knowledge_of_another_service_changes_a_choice() {
    for (fast, slow) in [("alpha", "beta"), ("beta", "alpha")] {
        let (second, _agents) = deployment().await;
        let seen = _agents[0].now().to_string();
        let links = [link(fast, 900e6, &seen), link(slow, 5e6, &seen), link("nowhere", 1e6, &seen)];
        let imported = import(&second, document(&links, &seen), &[]).await;
        assert_eq!((imported.taken, imported.unmapped), (2, vec!["nowhere".to_owned()]));
        let exported: Value = second.admin().request(&routes::NETWORK_EXPORT).send().await.unwrap();
        assert_eq!(exported["links"].as_array().unwrap().len(), 2, "{exported}");

        let (first, mut agents) = deployment().await;
        let imported = import(&first, exported, &[]).await;
        assert_eq!(imported.taken, 2, "{imported:?}");
        first.dataset("d", "alpha", 0).await;
        let line = manifest_line("d/large", 4_000_000_000);
        first.register("d", Some("alpha"), line.clone()).await.unwrap();
        first.register("d", Some("beta"), line).await.unwrap();
        first.subscribe("d", "gamma").await;
        let (batch, _) = agents[2].leases(1).await.remove(0);
        assert_eq!(batch.source.storage.as_str(), fast);
        let detail: NetworkLinkDetail = first
            .admin()
            .request(&routes::NETWORK_LINK)
            .parameter(fast)
            .parameter("gamma")
            .send()
            .await
            .unwrap();
        assert!(detail.link.rate > 100e6 && detail.link.rtt_us.is_some(), "{detail:?}");
        assert!(detail.explanation[0].contains("between its two sites"), "{detail:?}");
        let view: NetworkView = first.admin().request(&routes::NETWORK_SHOW).send().await.unwrap();
        assert_eq!((view.links, view.changes.len()), (1, 0));
        first.assert_sound().await;
    }
}

/// What more work on a link would come to, asked over the wire, with what was asked for already ahead of it.
#[tokio::test(flavor = "multi_thread")]
async fn more_work_is_foretold_by_number_and_by_blame() {
    let (world, mut agents) = deployment().await;
    let ask = async |files: &str, bytes: &str| {
        let asked = world.admin().request(&routes::NETWORK_LINK).parameter("alpha").parameter("gamma");
        let asked = if files.is_empty() { asked } else { asked.query("files", files) };
        let asked = if bytes.is_empty() { asked } else { asked.query("bytes", bytes) };
        asked.send::<NetworkLinkDetail>().await.map(|detail| detail.what_if)
    };
    let cold = ask("", "").await.unwrap();
    assert_eq!(cold.rates.iter().map(|row| row.more_files).collect::<Vec<_>>(), [1, 4, 16]);
    assert_eq!(cold.times.iter().map(|row| row.files).collect::<Vec<_>>(), [1, 100, 10_000]);
    assert!(cold.failures.is_empty(), "{cold:?}");
    for (row, next) in cold.times.iter().zip(&cold.times[1..]) {
        assert!(row.seconds_low < row.seconds && row.seconds < row.seconds_high, "{row:?}");
        assert!(next.seconds > 10.0 * row.seconds, "{row:?} {next:?}");
    }
    let chosen = ask("8", "5000000000").await.unwrap();
    assert_eq!((chosen.rates.len(), chosen.rates[0].more_files), (1, 8));
    assert_eq!(
        (chosen.times[0].bytes, chosen.times[0].files, chosen.times[0].at_once),
        (5_000_000_000, 5, 5)
    );
    for (files, bytes, why) in [("10001", "", "files is more than 10000"), ("", "0", "bytes is 0")] {
        let problem = ask(files, bytes).await.unwrap_err();
        assert!(problem.detail.contains(why), "{problem:?}");
    }

    // Two large files are asked of it, of which one fails by the network.
    world.dataset("d", "alpha", 0).await;
    for name in ["d/one", "d/two"] {
        world.register("d", Some("alpha"), manifest_line(name, 400_000_000_000)).await.unwrap();
    }
    world.subscribe("d", "gamma").await;
    let leases = agents[2].leases(2).await;
    let fault = longhaul_model::Fault::new(FaultCode::ConnectionLost, "reset by peer");
    let lost = agents[2].outcome(&leases[0].1, Some(fault));
    agents[2].send(vec![lost]).await.unwrap();
    let warm = ask("1", "1000000000").await.unwrap();
    assert_eq!(warm.failures[0].blame, "network", "{warm:?}");
    assert!((0.05..0.5).contains(&warm.failures[0].share), "{warm:?}");
    assert!(warm.times[0].seconds > 50.0 * cold.times[0].seconds, "behind 400 GB: {warm:?}");
    world.assert_sound().await;
}

/// A link that nobody measured is believed from what links between its two regions give, as soon as somebody
/// says where the sites lie, and not from what links elsewhere do; and so after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_link_is_believed_from_its_regions() {
    let mut world = World::new().await;
    let mut seen = String::new();
    for site in ["tokyo", "osaka", "berlin", "paris", "rome", "lyon"] {
        let agent = world.agent(site).await;
        agent.hello(&[]).await.unwrap();
        seen = agent.now().to_string();
    }
    let set = async |world: &World, site: &str, region: &str| {
        let change = SiteChange { region: Some(region.to_owned()), ..SiteChange::default() };
        let request = world.admin().request(&routes::SITE_CHANGE).parameter(site).json(&change);
        request.send::<SiteView>().await
    };
    for (region, sites) in
        [("asia", &["tokyo", "osaka"][..]), ("europe", &["berlin", "paris", "rome", "lyon"])]
    {
        for site in sites {
            assert_eq!(set(&world, site, region).await.unwrap().region.unwrap().as_str(), region);
        }
    }
    let problem = set(&world, "tokyo", "no such name").await.unwrap_err();
    assert!(problem.detail.contains("region name"), "{problem:?}");

    let row = |source: &str, target: &str, bytes_per_s: f64| {
        json!({
            "source": source, "target": target, "bytes_per_s": bytes_per_s, "spread": 0.2,
            "seconds": 6000.0, "seen": seen,
        })
    };
    let document = document(&[row("paris", "rome", 900e6), row("tokyo", "berlin", 5e6)], &seen);
    assert_eq!(import(&world, document, &[]).await.taken, 2);
    let rate = async |world: &World, source: &str, target: &str| {
        let request = world.admin().request(&routes::NETWORK_LINK).parameter(source).parameter(target);
        request.send::<NetworkLinkDetail>().await.unwrap().link
    };
    let far = rate(&world, "osaka", "lyon").await;
    let near = rate(&world, "lyon", "paris").await;
    assert!(far.rate < 60e6 && near.rate > 3.0 * far.rate, "{far:?} {near:?}");
    assert_eq!(far.basis, "links between the two regions");
    world.restart().await;
    let again = rate(&world, "osaka", "lyon").await;
    assert!((again.rate / far.rate - 1.0).abs() < 0.05, "{far:?} {again:?}");
    set(&world, "osaka", "").await.unwrap();
    assert!(rate(&world, "osaka", "lyon").await.rate > 1.5 * far.rate, "it lies nowhere again");
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_document_is_refused_and_changes_nothing() {
    let (world, agents) = deployment().await;
    let seen = agents[0].now().to_string();
    let absurd = link("alpha", -3.0, &seen);
    let alias = [("beta".to_owned(), "alpha".to_owned())].into_iter().collect();
    for (document, aliases, why) in [
        (json!({ "format": "longhaul-network" }), Default::default(), "no network knowledge: missing field"),
        (json!([1, 2]), Default::default(), "no network knowledge"),
        (document(&[absurd], &seen), Default::default(), "link 1 of the document: bytes_per_s is -3"),
        (document(&[], &seen), alias, "beta is a site of its own here"),
    ] {
        let request = NetworkImport { document, aliases };
        let problem = world
            .admin()
            .request(&routes::NETWORK_IMPORT)
            .json(&request)
            .send::<NetworkImported>()
            .await
            .unwrap_err();
        assert_eq!(problem.code, FaultCode::BadRequest);
        assert!(problem.detail.contains(why), "{problem:?}");
    }
    let exported: Value = world.admin().request(&routes::NETWORK_EXPORT).send().await.unwrap();
    assert_eq!(exported["links"], json!([]));
}
