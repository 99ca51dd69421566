//! Leases bear the marks that the administrator's rules give to their community and activity.

use longhaul_api::agent::Report;
use longhaul_api::native::{Subscribe, SubscriptionView};
use longhaul_api::routes;
use longhaul_api::steering::Terms;
use longhaul_model::{Mark, SciTag, TrafficClass};
use longhaul_service::{Config, MarkingConfig};

use crate::world::World;

const RULES: &str = r#"{"rules": [
    {"community": "cms", "activity": "production", "experiment": "cms",
     "experiment_activity": "production input", "dscp": "cs1"},
    {"community": "cms", "experiment": 3, "class": "scavenger"}
]}"#;

async fn subscribe(world: &World, dataset: &str, community: &str, activity: Option<&str>) {
    let terms = Terms {
        community: Some(community.parse().unwrap()),
        activity: activity.map(|name| name.parse().unwrap()),
        ..Terms::default()
    };
    let wish = Subscribe {
        dataset: dataset.parse().unwrap(),
        block: None,
        storage: "beta".parse().unwrap(),
        priority: None,
        verification: None,
        custodial: false,
        terms,
    };
    let _: SubscriptionView =
        world.admin().request(&routes::SUBSCRIPTION_CREATE).json(&wish).send().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_bear_the_marks_of_their_community_and_activity() {
    let marking: MarkingConfig = serde_json::from_str(RULES).unwrap();
    let world = World::with(|config| config.marking = marking).await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    for agent in [&alpha, &beta] {
        agent.hello(&[]).await.unwrap();
    }
    let mark = |activity, dscp: Option<&str>| Mark {
        scitag: SciTag::new(3, activity).ok(),
        dscp: dscp.map(|name| name.parse().unwrap()),
    };
    let wanted = [
        ("d1", "cms", Some("production"), mark(12, Some("cs1")), TrafficClass::Bulk),
        ("d2", "cms", Some("tests"), mark(1, None), TrafficClass::Scavenger),
        ("d3", "atlas", None, Mark::default(), TrafficClass::Bulk),
    ];
    for (dataset, community, activity, ..) in wanted {
        world.dataset(dataset, "alpha", 3).await;
        subscribe(&world, dataset, community, activity).await;
    }
    let leases = beta.leases(9).await;
    for (dataset, _, _, mark, class) in wanted {
        let of = leases.iter().filter(|(_, lease)| lease.lfn.as_str().starts_with(dataset));
        let bears: Vec<(Mark, TrafficClass)> = of.map(|(batch, _)| (batch.mark, batch.class)).collect();
        assert_eq!(bears, [(mark, class); 3], "{dataset}");
    }
    let entries = leases.iter().map(|(_, lease)| beta.done(lease)).collect();
    beta.report(&Report { entries, ..beta.empty_report() }).await.unwrap();
    let metrics = world.service().operations().metrics();
    let marked: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("longhaul_marked_bytes_total{")).collect();
    assert_eq!(marked.len(), 2, "{marked:#?}");
    let link = r#"source="alpha",target="beta""#;
    for rest in
        [r#"experiment="3",activity="12",dscp="cs1"} 3000"#, r#"experiment="3",activity="1",dscp=""} 3000"#]
    {
        let line = format!("longhaul_marked_bytes_total{{{link},{rest}");
        assert!(marked.contains(&line.as_str()), "{line} is not in {marked:#?}");
    }
    world.assert_sound().await;
}

#[test]
fn names_are_those_of_the_registry_that_is_configured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("api.json");
    std::fs::write(&path, r#"{"version":1,"experiments":[{"expName":"new","expId":99}]}"#).unwrap();
    let rules = r#"{"community":"cms","experiment":"new","dscp":"cs1","class":"scavenger"}"#;
    let with_file = format!(r#"{{"registry":{path:?},"rules":[{rules}]}}"#);
    let said = |marking: &str| {
        let marking = serde_json::from_str(marking).unwrap();
        let checked = Config { marking, ..Config::default() }.check();
        checked.map_err(|fault| fault.detail)
    };
    assert_eq!(said(&with_file), Ok(()));
    let unknown = said(&format!(r#"{{"rules":[{rules}]}}"#)).unwrap_err();
    assert!(
        unknown.starts_with("service.marking: rule 1 for marks: the registry has no experiment"),
        "{unknown}"
    );
    std::fs::write(&path, "[]").unwrap();
    assert!(said(&with_file).unwrap_err().contains("api.json: the registry of SciTags"));
    std::fs::remove_file(&path).unwrap();
    assert!(said(&with_file).unwrap_err().contains("No such file"));
}
