//! Storage names are given with the site, or confirmed by an administrator: a hello takes none.

use longhaul_api::Problem;
use longhaul_api::agent::{DoorDecision, Fact, Report, StorageOffer, StorageSpace};
use longhaul_api::native::*;
use longhaul_api::routes;
use longhaul_model::{FaultCode, StorageName};

use crate::world::{Agent, World};

fn name(text: &str) -> StorageName {
    text.parse().unwrap()
}

/// What the agent's next hello offers.
fn offer(agent: &mut Agent, names: &[&str]) {
    let like = agent.storages[0].clone();
    agent.storages = names.iter().map(|text| StorageOffer { name: name(text), ..like.clone() }).collect();
}

async fn allow(world: &World, storage: &str, site: &str) -> Result<StorageAllowed, Problem> {
    let request = StorageAllow { site: site.parse().unwrap() };
    world.admin().request(&routes::STORAGE_ALLOW).parameter(storage).json(&request).send().await
}

async fn disallow(world: &World, storage: &str) -> Result<(), Problem> {
    world.admin().request(&routes::STORAGE_DISALLOW).parameter(storage).send().await
}

async fn site(world: &World, site: &str) -> SiteView {
    world.admin().request(&routes::SITE_SHOW).parameter(site).send().await.unwrap()
}

async fn storages(world: &World, site_name: &str) -> Vec<String> {
    site(world, site_name).await.storages.iter().map(|storage| storage.name.to_string()).collect()
}

/// The problems about names, by storage.
async fn problems(world: &World) -> Vec<ProblemView> {
    let about_names = |problem: &ProblemView| problem.fault.detail.contains("is not served");
    world.problems().await.into_iter().filter(about_names).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_is_served_once_its_name_is_confirmed() {
    let mut world = World::new().await;
    let mut beta = world.agent("beta").await;
    offer(&mut beta, &["beta", "vault", "beta-tape"]);
    assert_eq!(beta.hello(&[]).await.unwrap().unconfirmed, [name("vault")]);
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-tape"], "the others are served");
    assert_eq!(beta.report(&beta.empty_report()).await.unwrap().unconfirmed, [name("vault")], "still");
    let told = problems(&world).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].fault.code, told[0].storage.clone()), (FaultCode::Conflict, Some(name("vault"))));
    assert!(told[0].remedy.ends_with("longhaul storage allow vault --site beta"), "{}", told[0].remedy);
    // The next step works; the agent learns it with its next report, and says hello again.
    let allowed = allow(&world, "vault", "beta").await.unwrap();
    assert_eq!((allowed.storage, allowed.site.as_str()), (name("vault"), "beta"));
    assert!(problems(&world).await.is_empty());
    assert_eq!(site(&world, "beta").await.storage_names, [name("vault")]);
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-tape"], "nobody has offered it since");
    assert!(beta.report(&beta.empty_report()).await.unwrap().unconfirmed.is_empty());
    assert!(beta.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-tape", "vault"]);
    world.dataset("demo/set1", "vault", 2).await;
    // What is there is not taken away by a word.
    let problem = disallow(&world, "vault").await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.remedy.ends_with("longhaul storage remove vault"), "{}", problem.remedy);
    world.restart().await;
    assert!(beta.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-tape", "vault"]);
    world.assert_sound().await;
}

/// By a restart with another configuration, too, the problem goes.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_no_longer_offered_is_no_problem() {
    let world = World::new().await;
    let mut beta = world.agent("beta").await;
    let many: Vec<String> = (0..30).map(|number| format!("vault{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["beta"]).collect();
    offer(&mut beta, &many);
    assert_eq!(beta.hello(&[]).await.unwrap().unconfirmed.len(), 30);
    let told = problems(&world).await;
    assert!((1..30).contains(&told.len()), "{} problems are enough", told.len());
    assert!(told.last().unwrap().examples[0].contains("more storages"), "{told:?}");
    let mut next = beta.started_again(2, 12);
    offer(&mut next, &["beta"]);
    assert!(next.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert!(problems(&world).await.is_empty());
    world.assert_sound().await;
}

/// With its agent gone, that is the problem.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_an_absent_or_refused_agent_offered_is_no_problem() {
    let world = World::new().await;
    let mut beta = world.agent("beta").await;
    offer(&mut beta, &["beta", "vault"]);
    beta.hello(&[]).await.unwrap();
    assert_eq!(problems(&world).await.len(), 1);
    beta.report(&Report { ending: true, ..beta.empty_report() }).await.unwrap();
    assert!(problems(&world).await.is_empty(), "it has stopped");
    let next = beta.started_again(2, 12);
    next.hello(&[]).await.unwrap();
    assert_eq!(problems(&world).await.len(), 1);
    let refusal = AgentRefusal { reason: "its key was stolen".into(), dry_run: false };
    let request = world.admin().request(&routes::AGENT_REFUSE).parameter(next.id).json(&refusal);
    let refused: AgentRefused = request.send().await.unwrap();
    assert!(refused.refused && problems(&world).await.is_empty(), "it is refused");
    world.assert_sound().await;
}

/// What begins with its name is then the site's whose shorter name it begins with, too.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_a_removed_site_are_those_of_the_site_with_the_shorter_name() {
    let world = World::new().await;
    world.join_token("beta-north").await;
    let mut beta = world.agent("beta").await;
    offer(&mut beta, &["beta", "beta-north-1"]);
    assert_eq!(beta.hello(&[]).await.unwrap().unconfirmed, [name("beta-north-1")]);
    let removal = SiteRemoval { dry_run: false, force: false };
    let request = world.admin().request(&routes::SITE_REMOVE).parameter("beta-north").json(&removal);
    let removed: SiteRemoved = request.send().await.unwrap();
    assert!(removed.removed && problems(&world).await.is_empty());
    assert!(beta.report(&beta.empty_report()).await.unwrap().unconfirmed.is_empty());
    assert!(beta.hello(&[]).await.unwrap().unconfirmed.is_empty());
    // A site that is added later takes nothing.
    world.join_token("beta-north").await;
    assert!(beta.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-north-1"]);
    world.assert_sound().await;
}

/// Two agents of a site offer a storage of the same name, by mistake: once the name is confirmed one of them
/// has it, whoever is first, and the other goes on with what it serves.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_two_agents_offer_stops_neither() {
    let world = World::new().await;
    let (mut first, mut second) = (world.agent("beta").await, world.agent("beta").await);
    offer(&mut first, &["beta", "vault"]);
    offer(&mut second, &["beta-2", "vault"]);
    for agent in [&first, &second] {
        assert_eq!(agent.hello(&[]).await.unwrap().unconfirmed, [name("vault")]);
    }
    allow(&world, "vault", "beta").await.unwrap();
    for agent in [&first, &second] {
        let reply = agent.report(&agent.empty_report()).await.unwrap();
        assert!(reply.unconfirmed.is_empty(), "each is to say hello: {:?}", reply.unconfirmed);
    }
    assert!(first.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert_eq!(second.hello(&[]).await.unwrap().unconfirmed, [name("vault")], "it is let in without it");
    let reply = second.report(&second.empty_report()).await.unwrap();
    assert_eq!(reply.unconfirmed, [name("vault")], "it does not say hello for ever");
    assert_eq!(storages(&world, "beta").await, ["beta", "beta-2", "vault"]);
    let told = problems(&world).await;
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].fault.detail.contains("another agent of the site"), "{told:?}");
    // With the first one gone the second may have it.
    first.report(&Report { ending: true, ..first.empty_report() }).await.unwrap();
    assert!(second.report(&second.empty_report()).await.unwrap().unconfirmed.is_empty());
    assert!(second.hello(&[]).await.unwrap().unconfirmed.is_empty());
    assert!(problems(&world).await.is_empty());
    // Another start of the first is turned away, as ever.
    let problem = first.started_again(2, 12).hello(&[]).await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    world.assert_sound().await;
}

/// Nor does it learn anything about them, nor is it taken for an attacker.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_gets_no_names_of_other_sites() {
    let world = World::new().await;
    let (alpha, mut beta) = (world.agent("alpha").await, world.agent("beta").await);
    alpha.hello(&[]).await.unwrap();
    allow(&world, "attic", "alpha").await.unwrap();
    let others = ["alpha", "alpha-1", "attic", "nowhere"];
    offer(&mut beta, &[&others[..], &["beta"]].concat());
    assert_eq!(beta.hello(&[]).await.unwrap().unconfirmed, others.map(name));
    assert_eq!(
        (storages(&world, "alpha").await, storages(&world, "beta").await),
        (vec!["alpha".to_owned()], vec!["beta".to_owned()])
    );
    let told = problems(&world).await;
    let remedies: Vec<&str> = told.iter().map(|problem| problem.remedy.as_str()).collect();
    assert!(
        remedies[0].contains("give it another name") && !remedies[0].contains("longhaul"),
        "{remedies:?}"
    );
    assert!(remedies[1].ends_with("longhaul storage allow alpha-1 --site beta"), "{remedies:?}");
    assert!(remedies[2].contains("longhaul storage disallow attic, then: longhaul storage allow attic"));
    assert!(remedies[3].ends_with("longhaul storage allow nowhere --site beta"), "{remedies:?}");
    // What it says of them changes nothing.
    let now = beta.now();
    let decisions = others.map(|storage| DoorDecision {
        storage: name(storage),
        allowed: true,
        since: now,
        at: now,
        times: 1,
        who: "anna".into(),
        credential: "token".into(),
        origin: String::new(),
        operation: "door GET".into(),
        object: "/x".into(),
        why: String::new(),
    });
    let space = |storage| StorageSpace {
        storage: name(storage),
        total_bytes: 7_000,
        free_bytes: 7_000,
        trouble: None,
        pools: Vec::new(),
    };
    let entries = vec![beta.entry(Fact::Decided { decisions: decisions.to_vec() })];
    let spaces = others.map(space).to_vec();
    assert_eq!(
        beta.report(&Report { entries, spaces, ..beta.empty_report() }).await.unwrap().acknowledged,
        1
    );
    assert_eq!(site(&world, "alpha").await.storages[0].total_bytes, 0);
    let problems = world.problems().await;
    assert!(problems.iter().all(|problem| problem.fault.code != FaultCode::NotAllowed), "{problems:?}");
    // Each next step that is a command works, and the site that had the name has it no more.
    disallow(&world, "attic").await.unwrap();
    for storage in &others[1..] {
        allow(&world, storage, "beta").await.unwrap();
    }
    assert_eq!(beta.hello(&[]).await.unwrap().unconfirmed, [name("alpha")]);
    assert_eq!(storages(&world, "beta").await, ["alpha-1", "attic", "beta", "nowhere"]);
    let mut alpha = alpha.started_again(2, 12);
    offer(&mut alpha, &["alpha", "alpha-1"]);
    assert_eq!(alpha.hello(&[]).await.unwrap().unconfirmed, [name("alpha-1")]);
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_allowed_to_one_site_at_a_time() {
    let world = World::new().await;
    let beta = world.agent("beta").await;
    beta.hello(&[]).await.unwrap();
    let add = |storages: &[&str]| SiteAdd {
        name: "gamma".parse().unwrap(),
        token_seconds: None,
        storages: storages.iter().map(|text| name(text)).collect(),
    };
    let admin = world.admin();
    let added: Result<SiteAdded, Problem> =
        admin.request(&routes::SITE_ADD).json(&add(&["vault", "beta"])).send().await;
    let problem = added.err().unwrap();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.remedy.ends_with("longhaul storage remove beta"), "{}", problem.remedy);
    let sites: Page<SiteView> = admin.request(&routes::SITE_LIST).send().await.unwrap();
    assert_eq!(sites.items.len(), 1, "nothing was done");
    let added: SiteAdded =
        admin.request(&routes::SITE_ADD).json(&add(&["vault", "attic"])).send().await.unwrap();
    assert_eq!(added.name.as_str(), "gamma");
    assert_eq!(site(&world, "gamma").await.storage_names, [name("attic"), name("vault")]);
    let problem = allow(&world, "vault", "beta").await.unwrap_err();
    assert_eq!(problem.code, FaultCode::Conflict);
    assert!(problem.remedy.ends_with("longhaul storage disallow vault"), "{}", problem.remedy);
    disallow(&world, "vault").await.unwrap();
    allow(&world, "vault", "beta").await.unwrap();
    allow(&world, "vault", "beta").await.unwrap();
    let problem = allow(&world, "loft", "delta").await.unwrap_err();
    assert_eq!(problem.code, FaultCode::NotFound);
    assert!(problem.remedy.contains("longhaul site list"), "{}", problem.remedy);
    assert_eq!(disallow(&world, "loft").await.unwrap_err().code, FaultCode::NotFound);
    let many: Vec<String> = (0..257).map(|number| format!("vault{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let added: Result<SiteAdded, Problem> = admin.request(&routes::SITE_ADD).json(&add(&many)).send().await;
    assert_eq!(added.err().unwrap().status, 422);
    world.assert_sound().await;
}
