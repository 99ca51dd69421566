//! Managers of sites and of communities at every route of the native API: what is theirs they change, of
//! others' things they change nothing. Each route has a rule in [`RULES`]; one without fails the walk.

use longhaul_api::native::{
    DatasetCreate, DatasetView, DeletionReply, LoginReply, Page, SubscriptionView, TaskView, TokenCreate,
    TokenCreated,
};
use longhaul_api::routes::{self, Access, Route};
use longhaul_api::steering::DecisionEntry;
use serde_json::{Value, json};

use crate::isolation::Play;
use crate::world::{Agent, World, manifest_line};

/// Callers beside administrators that may use a route.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// Every manager, as every viewer.
    Reads,
    /// Managers of the site that it is about.
    Site,
    /// Managers of the community that it is about.
    Community,
    /// Managers of either.
    SiteOrCommunity,
    /// Managers of both.
    SiteAndCommunity,
    /// Whoever works for a community; which jobs are theirs is said by `Play`.
    Jobs,
    Nobody,
}

use Rule::{Community, Jobs, Nobody, Reads, Site, SiteAndCommunity, SiteOrCommunity};

const RULES: [(&str, Rule); 90] = [
    ("dataset_list", Reads),
    ("dataset_create", Community),
    ("dataset_show", Reads),
    ("dataset_close", Community),
    ("dataset_delete", Community),
    ("dataset_blocks", Reads),
    ("dataset_files", Reads),
    ("dataset_replicas", Reads),
    ("dataset_scan", SiteAndCommunity),
    ("dataset_add_files", Community),
    ("replica_of_file", Reads),
    ("deletion_create", SiteOrCommunity),
    ("verification_create", Site),
    ("task_list", Reads),
    ("task_show", Reads),
    ("task_cancel", SiteOrCommunity),
    ("subscription_list", Reads),
    ("subscription_create", Community),
    ("subscription_show", Reads),
    ("subscription_change", Community),
    ("transfer_list", Reads),
    ("transfer_show", Reads),
    ("transfer_retry", Nobody),
    ("job_list", Jobs),
    ("job_submit", Jobs),
    ("job_show", Jobs),
    ("job_cancel", Jobs),
    ("job_change", Jobs),
    ("site_list", Reads),
    ("site_add", Nobody),
    ("site_show", Reads),
    ("site_change", Site),
    ("site_join_token", Site),
    ("site_remove", Nobody),
    ("site_commission", Site),
    ("agent_refuse", Nobody),
    ("agent_remove", Nobody),
    ("storage_list", Reads),
    ("storage_show", Reads),
    ("storage_change", Site),
    ("storage_remove", Nobody),
    ("storage_allow", Nobody),
    ("storage_disallow", Nobody),
    ("share_list", Reads),
    ("share_set", Community),
    ("mover_list", Reads),
    ("mover_set", Nobody),
    ("link_list", Reads),
    ("link_set", Nobody),
    ("link_change", Nobody),
    ("limit_list", Reads),
    ("limit_set", Site),
    ("audit_list", Reads),
    // Which of them they see depends on their sites.
    ("decision_list", Reads),
    ("circuit_list", Reads),
    ("circuit_show", Reads),
    ("circuit_plan", Reads),
    ("circuit_request", Nobody),
    ("circuit_release", Nobody),
    ("circuit_history", Reads),
    ("measurement_send", Nobody),
    ("measurement_put", Nobody),
    ("host_list", Reads),
    ("host_set", Nobody),
    ("host_remove", Nobody),
    ("unmapped_list", Reads),
    ("archive_list", Reads),
    ("status", Reads),
    ("problem_list", Reads),
    ("rate_history", Reads),
    ("network_show", Reads),
    ("network_links", Reads),
    ("network_link", Reads),
    ("network_export", Reads),
    ("network_import", Nobody),
    ("check", Reads),
    ("events", Reads),
    ("whoami", Reads),
    ("token_list", Nobody),
    ("token_create", Nobody),
    ("token_revoke", Nobody),
    ("account_list", Nobody),
    ("account_add", Nobody),
    ("account_change", Nobody),
    ("account_remove", Nobody),
    // Their own session.
    ("session_logout", Reads),
    ("login_token_create", Reads),
    ("openapi", Reads),
    ("healthz", Reads),
    ("readyz", Reads),
];

/// One of each kind of thing, all of one site and one community.
struct Side {
    site: &'static str,
    community: &'static str,
    dataset: String,
    subscription: String,
    task: String,
}

impl Side {
    fn path(&self, route: &Route) -> String {
        let value = |name: &str| match name {
            "site" | "storage" => self.site.to_owned(),
            "dataset" => self.dataset.clone(),
            "subscription" => self.subscription.clone(),
            "task" => self.task.clone(),
            other => format!("no-such-{other}"),
        };
        let values: Vec<String> = route.parameters().map(value).collect();
        route.fill(&values.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn body(&self, route: &Route) -> Value {
        let (site, dataset, community) = (self.site, &self.dataset, self.community);
        match route.operation {
            "verification_create" => json!({ "dataset": dataset, "storage": site }),
            "dataset_create" => json!({ "name": dataset, "community": community }),
            "dataset_scan" => json!({ "storage": site }),
            "deletion_create" => json!({ "dataset": dataset, "storage": site, "dry_run": true }),
            "subscription_create" => json!({ "dataset": dataset, "storage": "delta" }),
            "subscription_change" => json!({ "priority": 6 }),
            "site_change" => json!({ "state": "open" }),
            "site_commission" => json!({ "begin": [], "tests": [] }),
            "storage_change" => json!({ "relay": false }),
            "limit_set" => json!({ "of": "into", "name": site, "active": 5 }),
            "share_set" => json!({ "community": community, "activity": "production", "weight": 2.0 }),
            _ => json!({}),
        }
    }
}

struct Scene {
    world: World,
    /// The manager's side: site gamma, community higgs.
    own: Side,
    /// The other side: site alpha, community atlas.
    foreign: Side,
    _agents: Vec<Agent>,
}

impl Scene {
    async fn new() -> Scene {
        let world = World::new().await;
        let mut agents = Vec::new();
        for site in ["alpha", "gamma", "delta"] {
            let agent = world.agent(site).await;
            agent.hello(&[]).await.unwrap();
            agents.push(agent);
        }
        let own = side(&world, "gamma", "higgs").await;
        let foreign = side(&world, "alpha", "atlas").await;
        Scene { world, own, foreign, _agents: agents }
    }

    async fn manager(&self, name: &str, sites: &[&str], community: Option<&str>) -> String {
        manager(&self.world, name, sites, community).await
    }

    async fn status(&self, token: &str, route: &Route, side: &Side) -> (u16, Value) {
        let body = side.body(route).to_string();
        self.world.request(token, route.method.word(), &side.path(route), &body).await
    }
}

async fn manager(world: &World, name: &str, sites: &[&str], community: Option<&str>) -> String {
    let create = TokenCreate {
        name: name.into(),
        role: "manager".into(),
        sites: sites.iter().map(|site| site.parse().unwrap()).collect(),
        community: community.map(|name| name.parse().unwrap()),
        ..TokenCreate::default()
    };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&create).send().await.unwrap();
    made.token
}

/// A dataset of that community at that site, wished elsewhere, and a task there.
async fn side(world: &World, site: &'static str, community: &'static str) -> Side {
    let dataset = format!("{community}/set");
    let community_name = Some(community.parse().unwrap());
    let create = DatasetCreate { name: dataset.parse().unwrap(), community: community_name };
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    world.register(&dataset, Some(site), manifest_line(&format!("{dataset}/f"), 1_000)).await.unwrap();
    let wished: SubscriptionView = world.subscribe(&dataset, "delta").await;
    let verify = json!({ "dataset": dataset, "storage": site });
    let task: TaskView =
        world.admin().request(&routes::VERIFICATION_CREATE).json(&verify).send().await.unwrap();
    Side { site, community, dataset, subscription: wished.id.to_string(), task: task.id.to_string() }
}

fn rule(route: &Route) -> Rule {
    let found = RULES.iter().find(|(operation, _)| *operation == route.operation);
    found.unwrap_or_else(|| panic!("{} has no rule for managers", route.operation)).1
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_has_a_rule_for_managers() {
    let scene = Scene::new().await;
    let gina = scene.manager("gina", &["gamma"], None).await;
    let hugo = scene.manager("hugo", &[], Some("higgs")).await;
    let both = scene.manager("both", &["gamma"], Some("higgs")).await;
    let mut wrong = Vec::new();
    let walked = routes::ALL.iter().filter(|route| route.access != Access::AgentCertificate);
    // A stream would be held open; what is in a body says who logs in or joins; numbers are no JSON.
    let apart = ["events", "session_login", "agent_join", "metrics"];
    // Not after another step of the walk: the dataset is closed, or still wished for; files come in lines.
    let apart_in_order = ["dataset_scan", "dataset_delete", "dataset_add_files"];
    for route in walked.filter(|route| !apart.contains(&route.operation)) {
        for (token, who, sites, communities) in
            [(&gina, "gina", true, false), (&hugo, "hugo", false, true), (&both, "both", true, true)]
        {
            for (side, theirs) in [(&scene.own, true), (&scene.foreign, false)] {
                let may = match rule(route) {
                    Reads => true,
                    Site => sites && theirs,
                    Community => communities && theirs,
                    SiteOrCommunity => theirs,
                    SiteAndCommunity => sites && communities && theirs,
                    Jobs => communities,
                    Nobody => false,
                };
                let (status, answer) = scene.status(token, route, side).await;
                if (status != 403) != may {
                    wrong.push(format!("{} of {} as {who}: {status} {answer}", route.operation, side.site));
                }
                // What is theirs is really done, not refused for another reason.
                let acts = !matches!(rule(route), Reads | Jobs) && !apart_in_order.contains(&route.operation);
                if may && theirs && acts && status >= 300 {
                    wrong.push(format!("{} as {who}: {status} {answer}", route.operation));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(rule(&routes::EVENTS), Reads);
    scene.world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_of_several_is_of_all_their_managers() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let gina = scene.manager("gina", &["gamma"], None).await;
    let wide = scene.manager("wide", &["gamma", "alpha"], None).await;
    let hugo = scene.manager("hugo", &[], Some("higgs")).await;
    let limits = |body: Value| ("POST", "/api/v1/limits".to_owned(), body);
    let shares = |body: Value| ("POST", "/api/v1/shares".to_owned(), body);
    let wishes = |body: Value| ("POST", "/api/v1/subscriptions".to_owned(), body);
    let wish = format!("/api/v1/subscriptions/{}", scene.own.subscription);
    let (own, foreign) = (&scene.own.dataset, &scene.foreign.dataset);
    for (who, (method, path, body), wanted) in [
        (&gina, limits(json!({ "of": "out", "name": "gamma", "active": 3 })), 200),
        (&gina, limits(json!({ "of": "link", "name": "alpha:gamma", "active": 3 })), 403),
        (&gina, limits(json!({ "of": "link", "name": "gamma:alpha" })), 403),
        (&wide, limits(json!({ "of": "link", "name": "alpha:gamma", "active": 3 })), 200),
        (&gina, limits(json!({ "of": "community", "name": "higgs", "active": 3 })), 403),
        (&hugo, limits(json!({ "of": "community", "name": "higgs", "active": 3 })), 403),
        // How much of all their community gets is not for its manager to say.
        (&hugo, shares(json!({ "community": "higgs", "weight": 9.0 })), 403),
        (&hugo, shares(json!({ "community": "*", "weight": 9.0 })), 403),
        (&hugo, shares(json!({ "community": "higgs", "activity": "*", "weight": 9.0 })), 200),
        (&hugo, shares(json!({ "community": "atlas", "activity": "*", "weight": 9.0 })), 403),
        // The data has to be theirs, and whose share it is charged to.
        (&hugo, wishes(json!({ "dataset": own, "storage": "alpha", "community": "atlas" })), 403),
        (&hugo, wishes(json!({ "dataset": foreign, "storage": "gamma", "community": "higgs" })), 403),
        (&hugo, wishes(json!({ "dataset": foreign, "storage": "gamma" })), 403),
        (&hugo, ("PATCH", wish.clone(), json!({ "community": "atlas" })), 403),
        (&hugo, ("PATCH", wish.clone(), json!({ "community": "none", "state": "suspended" })), 200),
    ] {
        let (status, answer) = world.request(who, method, &path, &body.to_string()).await;
        assert_eq!(status, wanted, "{method} {path} {body}: {answer}");
    }
    world.assert_sound().await;
}

/// The life of data as its community's manager leads it, each step also tried at another community's.
#[tokio::test(flavor = "multi_thread")]
async fn a_communitys_manager_registers_subscribes_closes_and_deletes_its_data_alone() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let hugo = scene.manager("hugo", &[], Some("higgs")).await;
    let both = scene.manager("both", &["gamma"], Some("higgs")).await;
    let (own, foreign) = (&scene.own, &scene.foreign);
    let of = |side: &Side| side.dataset.replace('/', "%2F");
    let files = |side: &Side, at: &str| format!("/api/v1/datasets/{}/files{at}", of(side));
    let close = |side: &Side| format!("/api/v1/datasets/{}/close", of(side));
    let delete = |side: &Side, force: bool| {
        json!({ "dataset": side.dataset, "storage": side.site, "force": force }).to_string()
    };
    let line = |side: &Side, name: &str| manifest_line(&format!("{}/{name}", side.dataset), 10);
    let wish = |side: &Side| json!({ "dataset": side.dataset, "storage": "alpha" }).to_string();
    let suspend = |side: &Side| format!("/api/v1/subscriptions/{}", side.subscription);
    let create = |name: &str, of: Option<&str>| json!({ "name": name, "community": of }).to_string();
    let suspended = r#"{"state":"suspended"}"#.to_owned();
    let cancelled = r#"{"state":"cancelled"}"#.to_owned();
    let deletions = || "/api/v1/deletions".to_owned();
    for (who, method, path, body, wanted) in [
        (&hugo, "POST", "/api/v1/datasets".to_owned(), create("new/one", None), 200),
        (&hugo, "POST", "/api/v1/datasets".to_owned(), create("new/two", Some("atlas")), 403),
        (&hugo, "POST", "/api/v1/datasets".to_owned(), create(&foreign.dataset, None), 409),
        (&hugo, "POST", files(own, ""), line(own, "g"), 200),
        (&hugo, "POST", files(foreign, ""), line(foreign, "g"), 403),
        // What a storage has is not for them alone to say.
        (&hugo, "POST", files(own, "?storage=gamma"), line(own, "h"), 403),
        (&both, "POST", files(own, "?storage=gamma"), line(own, "h"), 200),
        (&both, "POST", files(own, "?storage=alpha"), line(own, "i"), 403),
        (&hugo, "POST", "/api/v1/subscriptions".to_owned(), wish(own), 201),
        (&hugo, "POST", "/api/v1/subscriptions".to_owned(), wish(foreign), 403),
        (&hugo, "PATCH", suspend(own), suspended.clone(), 200),
        (&hugo, "PATCH", suspend(foreign), suspended, 403),
        (&hugo, "POST", close(own), "{}".to_owned(), 200),
        (&hugo, "POST", close(foreign), "{}".to_owned(), 403),
        (&hugo, "PATCH", suspend(own), cancelled, 200),
        (&hugo, "POST", deletions(), delete(foreign, true), 403),
        (&hugo, "POST", deletions(), delete(own, true), 200),
        (&hugo, "DELETE", format!("/api/v1/datasets/{}", of(foreign)), String::new(), 403),
        (&hugo, "DELETE", "/api/v1/datasets/new%2Fone".to_owned(), String::new(), 204),
    ] {
        let (status, answer) = world.request(who, method, &path, &body).await;
        assert_eq!(status, wanted, "{method} {path} {body}: {answer}");
    }
    let (_, view) = world.request(&world.admin_token, "GET", "/api/v1/datasets/new%2Fone", "").await;
    assert_eq!(view["status"], 404, "{view}");
    world.assert_sound().await;
}

/// At the own storages whoever's the data is, at no other site's, and never the last copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_sites_manager_subscribes_suspends_and_deletes_at_its_storages_alone() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let gina = scene.manager("gina", &["gamma"], None).await;
    let foreign = &scene.foreign.dataset;
    let subscriptions = || "/api/v1/subscriptions".to_owned();
    let wish = |storage: &str| json!({ "dataset": foreign, "storage": storage });
    let charged = json!({ "dataset": foreign, "storage": "gamma", "community": "higgs" });
    let delete = |storage: &str, force: bool| {
        json!({ "dataset": foreign, "storage": storage,
        "force": force, "dry_run": true })
    };
    let (status, here) = world.request(&gina, "POST", &subscriptions(), &wish("gamma").to_string()).await;
    assert_eq!((status, &here["charged_to"]), (201, &json!("atlas")), "{here}");
    let here = format!("/api/v1/subscriptions/{}", here["id"].as_str().unwrap());
    let there = format!("/api/v1/subscriptions/{}", scene.foreign.subscription);
    let deletions = || "/api/v1/deletions".to_owned();
    for (method, path, body, wanted) in [
        ("POST", subscriptions(), wish("alpha"), 403),
        ("POST", subscriptions(), charged, 403),
        ("PATCH", here.clone(), json!({ "state": "suspended" }), 200),
        ("PATCH", here.clone(), json!({ "state": "active" }), 200),
        ("PATCH", there.clone(), json!({ "state": "suspended" }), 403),
        // The order of what is charged to a community is for its managers to say.
        ("PATCH", here.clone(), json!({ "priority": 9 }), 403),
        ("PATCH", here.clone(), json!({ "state": "suspended", "deadline": "none" }), 403),
        ("PATCH", here, json!({ "state": "cancelled" }), 200),
        ("POST", deletions(), delete("gamma", false), 200),
        ("POST", deletions(), delete("alpha", false), 403),
        ("POST", deletions(), delete("gamma", true), 403),
        ("POST", "/api/v1/datasets".to_owned(), json!({ "name": "new/one" }), 403),
        ("POST", "/api/v1/datasets/atlas%2Fset/close".to_owned(), json!({}), 403),
        ("DELETE", "/api/v1/datasets/atlas%2Fset".to_owned(), json!({}), 403),
    ] {
        let (status, answer) = world.request(&gina, method, &path, &body.to_string()).await;
        assert_eq!(status, wanted, "{method} {path} {body}: {answer}");
    }
    world.assert_sound().await;
}

/// The two-person rule: one who answers for the data and one who answers for the site; nobody alone, and no
/// two of one role.
#[tokio::test(flavor = "multi_thread")]
async fn a_custodial_subscription_is_cancelled_by_two_in_two_roles() {
    let mut world = World::new().await;
    for site in ["alpha", "gamma"] {
        world.agent(site).await.hello(&[]).await.unwrap();
    }
    let create = json!({ "name": "higgs/raw", "community": "higgs" });
    let _: DatasetView = world.admin().request(&routes::DATASET_CREATE).json(&create).send().await.unwrap();
    world.register("higgs/raw", Some("gamma"), manifest_line("higgs/raw/f", 1_000)).await.unwrap();
    let wish = json!({ "dataset": "higgs/raw", "storage": "gamma", "custodial": true });
    let kept: SubscriptionView =
        world.admin().request(&routes::SUBSCRIPTION_CREATE).json(&wish).send().await.unwrap();
    assert!(kept.custodial && kept.cancel_consent.is_none());
    let curator = manager(&world, "curator", &[], Some("higgs")).await;
    let second = manager(&world, "second-curator", &[], Some("higgs")).await;
    let site = manager(&world, "site", &["gamma"], None).await;
    let root = world.admin_token.clone();
    let path = routes::SUBSCRIPTION_CHANGE.fill(&[&kept.id.to_string()]);
    let set = async |world: &World, token: &str, state: &str| -> (Value, Value) {
        let (status, view) =
            world.request(token, "PATCH", &path, &json!({ "state": state }).to_string()).await;
        assert_eq!(status, 200, "{view}");
        (view["state"].clone(), view["cancel_consent"].clone())
    };
    let (state, consent) = set(&world, &curator, "cancelled").await;
    assert_eq!((&state, &consent["who"]), (&json!("active"), &json!("curator")));
    assert_eq!(consent["missing"], "a manager of gamma");
    for again in [&curator, &second] {
        let (state, consent) = set(&world, again, "cancelled").await;
        assert_eq!((&state, &consent["who"]), (&json!("active"), &json!("curator")), "one role");
    }
    // Meanwhile nothing of it can be deleted: neither the replica, nor the storage or its site.
    let deletion = json!({ "dataset": "higgs/raw", "storage": "gamma", "dry_run": false, "force": true });
    let refused: Result<DeletionReply, longhaul_api::Problem> =
        world.admin().request(&routes::DELETION_CREATE).json(&deletion).send().await;
    assert_eq!(refused.unwrap_err().remedy, format!("end it: longhaul subscription cancel {}", kept.id));
    assert_eq!(set(&world, &second, "active").await, (json!("active"), Value::Null), "withdrawn");
    for _ in 0..2 {
        let (state, consent) = set(&world, &root, "cancelled").await;
        assert_eq!(state, "active", "not even an administrator alone");
        assert_eq!(consent["missing"], "another manager of higgs or of gamma");
    }
    set(&world, &root, "active").await;
    set(&world, &site, "cancelled").await;
    world.restart().await;
    let (state, consent) = set(&world, &curator, "cancelled").await;
    assert_eq!((state, consent), (json!("cancelled"), Value::Null));
    world.assert_sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_says_whose_right_is_missing_and_who_gives_it() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let gina = scene.manager("gina", &["gamma"], None).await;
    let why = "site_change needs the role admin, or a manager of the site alpha; gina is manager of the site \
        gamma: \
               an administrator can give it";
    let (status, answer) =
        world.request(&gina, "PATCH", "/api/v1/sites/alpha", r#"{"state":"paused"}"#).await;
    assert_eq!((status, answer["detail"].as_str()), (403, Some(why)));
    let (status, _) = world.request(&gina, "PATCH", "/api/v1/sites/gamma", r#"{"state":"paused"}"#).await;
    assert_eq!(status, 200);
    let request = world.admin().request(&routes::DECISION_LIST).query("who", "gina");
    let list: Page<DecisionEntry> = request.send().await.unwrap();
    let of = |allowed: bool| list.items.iter().find(|entry| entry.allowed == allowed).unwrap();
    assert_eq!((of(false).why.as_str(), of(false).object.as_str()), (why, "/api/v1/sites/alpha"));
    assert_eq!(of(true).why, "manager of the site gamma");
    // Of what the service decided, which names everybody, a manager sees nothing.
    let (status, seen) = world.request(&gina, "GET", "/api/v1/audit/decisions", "").await;
    assert_eq!((status, &seen["items"]), (200, &json!([])));
}

/// By a session as by a token, and told by whoami.
#[tokio::test(flavor = "multi_thread")]
async fn a_manager_logs_in_as_what_they_are() {
    let scene = Scene::new().await;
    let world = &scene.world;
    let both = scene.manager("both", &["gamma"], Some("higgs")).await;
    let (_, me) = world.request(&both, "GET", "/api/v1/whoami", "").await;
    assert_eq!((&me["role"], &me["sites"]), (&json!("manager"), &json!(["gamma"])));
    assert_eq!(me["community"], "higgs");
    let login = json!({ "token": both });
    let reply: LoginReply =
        world.person(None).request(&routes::SESSION_LOGIN).json(&login).send().await.unwrap();
    assert_eq!((reply.name.as_str(), reply.role.as_str()), ("both", "manager"));
    let scoped = TokenCreate {
        name: "scoped".into(),
        role: "manager".into(),
        scopes: vec!["steering".into()],
        sites: vec!["gamma".parse().unwrap()],
        ..TokenCreate::default()
    };
    let made: TokenCreated = world.admin().request(&routes::TOKEN_CREATE).json(&scoped).send().await.unwrap();
    for (path, body, wanted) in [
        ("/api/v1/limits", json!({ "of": "into", "name": "gamma", "active": 2 }), 200),
        ("/api/v1/sites/gamma/join-tokens", json!({}), 403),
    ] {
        assert_eq!(world.request(&made.token, "POST", path, &body.to_string()).await.0, wanted, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_is_one_of_something_that_there_is() {
    let world = World::new().await;
    world.join_token("gamma").await;
    let admin = &world.admin_token;
    for (body, wanted, why) in [
        (json!({ "name": "a", "role": "manager" }), 422, "name them"),
        (json!({ "name": "a", "role": "manager", "sites": ["nowhere"] }), 404, "nowhere"),
        (json!({ "name": "a", "role": "viewer", "sites": ["gamma"] }), 422, "role manager"),
        (json!({ "name": "a", "role": "manager", "sites": ["gamma"] }), 201, ""),
    ] {
        let (status, answer) = world.request(admin, "POST", "/api/v1/tokens", &body.to_string()).await;
        assert_eq!(status, wanted, "{body}: {answer}");
        assert!(why.is_empty() || answer["detail"].as_str().unwrap().contains(why), "{answer}");
    }
    let (_, list) = world.request(admin, "GET", "/api/v1/tokens", "").await;
    assert!(list["items"].as_array().unwrap().iter().any(|one| one["sites"] == json!(["gamma"])), "{list}");

    let password = "correct horse battery staple";
    let add = |role: &str, sites: Value| {
        json!({ "name": "gina", "password": password, "role": role, "sites": sites }).to_string()
    };
    for (body, wanted) in [
        (add("manager", json!([])), 422),
        (add("viewer", json!(["gamma"])), 422),
        (add("manager", json!(["nowhere"])), 404),
        (add("manager", json!(["gamma"])), 201),
    ] {
        let (status, answer) = world.request(admin, "POST", "/api/v1/accounts", &body).await;
        assert_eq!(status, wanted, "{body}: {answer}");
    }
    for (change, wanted, sites, role) in [
        (json!({ "sites": [] }), 422, None, ""),
        (json!({ "community": "higgs", "sites": [] }), 200, None, "manager"),
        (json!({ "community": "" }), 422, None, ""),
        (json!({ "sites": ["gamma"] }), 200, Some(json!(["gamma"])), "manager"),
        // Who is a manager no more is one of no site.
        (json!({ "role": "viewer" }), 200, None, "viewer"),
        (json!({ "role": "manager", "community": "" }), 422, None, ""),
    ] {
        let (status, answer) =
            world.request(admin, "PATCH", "/api/v1/accounts/gina", &change.to_string()).await;
        assert_eq!(status, wanted, "{change}: {answer}");
        if status == 200 {
            assert_eq!((answer.get("sites"), &answer["role"]), (sites.as_ref(), &json!(role)), "{change}");
        }
    }
}

/// Jobs of the native API and of FTS's, which are the same.
#[tokio::test(flavor = "multi_thread")]
async fn managers_of_a_community_have_its_jobs() {
    let mut play = Play::new().await;
    for (name, community) in [("theirs", "testvo"), ("others", "othervo")] {
        let token = manager(&play.world, name, &[], Some(community)).await;
        play.tokens.insert(name.into(), token);
    }
    let (job, _) = play.job_of("alice").await;
    for path in [format!("/api/v1/jobs/{job}"), format!("/jobs/{job}")] {
        assert_eq!(play.request("theirs", "GET", &path, "").await.0, 200, "{path}");
        assert_eq!(play.request("others", "GET", &path, "").await.0, 403, "{path}");
    }
    for path in ["/api/v1/jobs", "/jobs"] {
        assert!(play.request("theirs", "GET", path, "").await.1.contains(&job), "{path}");
        assert!(!play.request("others", "GET", path, "").await.1.contains(&job), "{path}");
    }
    // What is everybody's is no manager's.
    assert_eq!(play.request("theirs", "GET", "/config", "").await.0, 403);
    assert_eq!(play.request("theirs", "GET", "/ban/se", "").await.0, 403);
    let cancel = format!("/api/v1/jobs/{job}/cancel");
    assert_eq!(play.request("others", "POST", &cancel, "{}").await.0, 403);
    assert_eq!(play.request("theirs", "POST", &cancel, "{}").await.0, 200);
    play.world.assert_sound().await;
    play.world.stop().await;
}
