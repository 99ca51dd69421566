//! What services tell each other of the network reaches their decisions.

use crate::world::{Agent, World, manifest_line};
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
    json!({ "format": "longhaul-network", "version": 1, "instances": ["elsewhere"], "written": seen, "links": links })
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
