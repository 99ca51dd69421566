//! The pages, one file per kind. Each function turns a view of the API into a whole page.

mod circuits;
mod datasets;
mod jobs;
mod login;
mod overview;
mod problems;
mod sites;
mod steer;
mod storages;
mod subscriptions;
mod transfers;

pub use circuits::{CircuitsView, circuits};
pub use datasets::{dataset, datasets};
pub use jobs::{job, jobs};
pub use login::{confirm_login, logged_in, login, problem};
pub use overview::overview;
pub use problems::problems;
pub use sites::{site, sites};
pub use steer::{SteerView, steer};
pub use storages::{storage, storages};
pub use subscriptions::{subscription, subscriptions};
pub use transfers::{transfer, transfers};

use longhaul_model::Timestamp;
use longhaul_security::ResourceScope;

use crate::layout::Viewer;

/// The input that every page needs besides its view.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub deployment: &'a str,
    pub viewer: Option<Viewer<'a>>,
    pub now: Timestamp,
}

impl<'a> Context<'a> {
    /// The viewer, if they may change things in `scope`.
    pub fn viewer_for(&self, scope: ResourceScope<'_>) -> Option<Viewer<'a>> {
        self.viewer.filter(|viewer| viewer.may_change(scope))
    }

    /// The viewer, if they may change things of `community`.
    pub fn viewer_for_community(&self, community: &str) -> Option<Viewer<'a>> {
        match community.parse() {
            Ok(name) => self.viewer_for(ResourceScope::Community(&name)),
            // A name from before names had rules.
            Err(_) => self.viewer_for(ResourceScope::Deployment),
        }
    }
}

#[cfg(test)]
mod tests {
    use longhaul_api::agent::AttemptTimes;
    use longhaul_api::jobs::{JobCounts, JobDetail, JobFault, JobFileView, JobView};
    use longhaul_api::native::AttemptView;
    use longhaul_api::native::{
        AgentView, Candidate, Choice, Expected, LinkView, Page, ProblemView, SiteLimits, SiteState, SiteView,
        Status, StorageView, SubscriptionView, TransferDetail, TransferQuery, TransferView,
    };
    use longhaul_api::pools::{PoolDrainReport, PoolReport};
    use longhaul_api::steering::{Promise, Terms};
    use longhaul_model::{
        AgentId, AttemptId, Blame, DigestSet, Fault, FaultCode, JobFileState, JobState, PoolState,
        SubscriptionId, SubscriptionState, TransferId, TransferState, Verification,
    };

    use super::*;
    use longhaul_security::{ManagerScope, Principal, Role};

    const HOSTILE: &str = "x/<img src=x onerror=alert(1)>\n\u{1b}[2J\"'";

    fn context(viewer: Option<Viewer<'_>>) -> Context<'_> {
        Context { deployment: "test", viewer, now: Timestamp::from_seconds(1_763_717_531) }
    }

    fn admin() -> Viewer<'static> {
        viewer_of(Principal::new("root<u>", Role::Admin))
    }

    fn viewer_of(principal: Principal) -> Viewer<'static> {
        Viewer { principal: Box::leak(Box::new(principal)), form_token: "secret-form-token" }
    }

    fn manager(sites: &str, community: Option<&str>) -> Viewer<'static> {
        let community = community.map(|name| name.parse().unwrap());
        let sites = ManagerScope::parse_sites(sites).unwrap();
        let charge = ManagerScope::new(Role::Manager, sites, community.as_ref()).unwrap();
        viewer_of(Principal { manages: charge, ..Principal::new("gina", Role::Manager) })
    }

    fn subscription_view() -> SubscriptionView {
        SubscriptionView {
            id: SubscriptionId(7),
            dataset: "higgs/run7".parse().unwrap(),
            block: None,
            storage: "beta".parse().unwrap(),
            state: SubscriptionState::Active,
            priority: 5,
            verification: Verification::EndToEnd,
            charged_to: Some("higgs".parse().unwrap()),
            terms: Terms { strategy: Some("<u>best".into()), ..Terms::default() },
            custodial: true,
            cancel_consent: None,
            promise: Some(Promise {
                chance: Some(0.4),
                words: "40 % chance <u>".into(),
                in_danger_since: Some(Timestamp::from_seconds(1_763_717_400)),
            }),
            created: Timestamp::from_seconds(1_763_717_000),
            files_wanted: 2_000,
            bytes_wanted: 1_000_000_000,
            files_present: 1_481,
            bytes_present: 741_000_000,
            complete: false,
            completed: None,
            rate_now: 612e6,
            rate_average: 588e6,
            files_running: 12,
            retries: 0,
            failed_files: 0,
            sources: vec![],
            space_warning: None,
            expected: Expected {
                held_up_by: vec!["<u>alpha's outbound limit</u>".into()],
                ..Expected::default()
            },
            verified: vec![],
        }
    }

    fn transfer_view() -> TransferView {
        TransferView {
            id: TransferId(9),
            dataset: "higgs/run7".parse().unwrap(),
            lfn: HOSTILE.parse().unwrap(),
            size: 4_100,
            target: "gamma".parse().unwrap(),
            source: Some("beta".parse().unwrap()),
            state: TransferState::Waiting,
            attempts: 2,
            bytes_done: 0,
            changed: Timestamp::from_seconds(1_763_717_500),
            waits_for: Some("a slot on beta → gamma: 8 of 8 busy <script>".into()),
            fault: Some(Fault::new(FaultCode::WrongDigest, "<script>alert(2)</script>")),
            verification: None,
        }
    }

    fn status_view() -> Status {
        let link = LinkView {
            source: "alpha".parse().unwrap(),
            target: "beta".parse().unwrap(),
            rate_now: 1e6,
            active: 2,
            files_done: 9,
            bytes_done: 1,
            attempts_failed: 1,
        };
        let problem = ProblemView {
            fault: Fault::new(FaultCode::TargetFull, "0 B free"),
            storage: Some("beta".parse().unwrap()),
            count: 3,
            first_seen: Timestamp::from_seconds(1_763_717_000),
            last_seen: Timestamp::from_seconds(1_763_717_100),
            remedy: "free space".into(),
            examples: vec![HOSTILE.into()],
            open: true,
        };
        Status {
            deployment: "test".into(),
            version: "0".into(),
            now: Timestamp::from_seconds(1_763_717_531),
            started: Timestamp::ZERO,
            rate_now: 0.0,
            files_done: 0,
            bytes_done: 0,
            transfers_running: 0,
            transfers_waiting: 0,
            subscriptions: vec![subscription_view()],
            subscriptions_more: 0,
            links: vec![link],
            problems: vec![problem],
            failures_by_blame: vec![],
            history: vec![0.0, 1e6],
            history_step_s: 1,
        }
    }

    fn detail() -> TransferDetail {
        let candidate = Candidate {
            storage: "alpha".parse().unwrap(),
            chosen: false,
            finish_us: None,
            rate_bytes_per_s: f64::NAN,
            rate_by: "<u>".into(),
            bytes_ahead: 0,
            failure_share: 0.5,
            unusable: Some("<s>paused</s>".into()),
        };
        let attempt = AttemptView {
            id: AttemptId(1),
            source: "beta".parse().unwrap(),
            chosen: Timestamp::from_seconds(1_763_717_500),
            choice: Choice {
                reason: "beta, because it finishes <first>".into(),
                candidates: vec![candidate],
                ..Choice::default()
            },
            times: AttemptTimes::default(),
            bytes_moved: 0,
            bytes_resent: 0,
            executor: None,
            fault: None,
            verification: None,
            digests: DigestSet::default(),
            already_there: false,
            finished: false,
        };
        TransferDetail { transfer: transfer_view(), attempts: vec![attempt] }
    }

    fn site_view() -> SiteView {
        SiteView {
            region: None,
            name: "beta".parse().unwrap(),
            state: SiteState::Paused,
            reason: Some("UPS <work>".into()),
            limits: SiteLimits::default(),
            links: Vec::new(),
            storages: vec![StorageView {
                site: Some("beta".parse().unwrap()),
                kind: longhaul_model::StorageKind::Posix,
                name: "beta".parse().unwrap(),
                writable: true,
                total_bytes: 0,
                free_bytes: 0,
                files: 0,
                bytes: 0,
                trouble: None,
                relay: true,
                strategy: Some("<u>best".into()),
                promised_bytes: None,
                space_policy: None,
                rules_version: 1,
                agents: None,
                tape_queue: None,
                pools: Vec::new(),
            }],
            storage_names: vec!["vault".parse().unwrap()],
            agents: vec![AgentView {
                mover: None,
                refused_since: None,
                id: AgentId(3),
                host: "<host>".into(),
                version: "0".into(),
                incarnation: 1,
                last_contact: None,
                connected: false,
                data_addresses: vec![],
                clock_offset_ms: -3_600_000,
                certificate_expires: None,
            }],
            rate_in: 0.0,
            rate_out: 0.0,
            active_in: 0,
            active_out: 0,
            queued_files: 0,
            queued_bytes: 0,
        }
    }

    fn job_detail() -> JobDetail {
        let at = Timestamp::from_seconds(1_763_717_000);
        let job = JobView {
            id: "0a1b2c3d-0000-4000-8000-000000000000".parse().unwrap(),
            state: JobState::Active,
            kind: "copies".into(),
            community: "<u>atlas".into(),
            user: HOSTILE.into(),
            priority: 3,
            source: Some("https://<u>alpha".into()),
            target: None,
            files: 120,
            files_done: Some(7),
            files_failed: Some(2),
            submitted: at,
            finished: None,
            expires: Some(at),
            reason: Some("<s>".into()),
            metadata: serde_json::Value::Null,
        };
        let file = JobFileView {
            mover: None,
            id: 1,
            index: 0,
            state: JobFileState::Failed,
            source: HOSTILE.into(),
            target: "https://beta/<u>".into(),
            activity: "<u>".into(),
            size: Some(5_000_000),
            checksum: None,
            attempts: 2,
            bytes_done: 10,
            rate: 3e6,
            started: Some(at),
            finished: None,
            mode: Some("<u>pull".into()),
            fault: Some(JobFault { blame: Blame::Source, errno: 2, text: "<u>gone".into(), passing: true }),
            waits_for: None,
        };
        let counts = JobCounts { running: 3, done: 7, failed: 2, waiting: 108, ..JobCounts::default() };
        JobDetail { job, counts, bytes_done: 1_000, bytes: Some(2_000), rate_now: 5e6, files: vec![file] }
    }

    #[test]
    fn a_job_shows_its_progress_and_its_failures() {
        let text = job(context(Some(admin())), &job_detail()).into_string();
        for words in [
            "7 of 120 files arrived",
            "3 running",
            "2 failed",
            "&lt;u&gt;gone",
            "may be temporary",
            "Raise priority",
            "119 more files are not shown",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let mut ended = job_detail();
        ended.job.state = JobState::Finished;
        let text = job(context(Some(admin())), &ended).into_string();
        // The header has a form of its own, to log out.
        let (_, main) = text.split_once("<main").unwrap();
        assert!(!main.contains("Cancel") && !main.contains("method=\"post\""), "{main}");
    }

    #[test]
    fn a_link_shows_bandwidth_booked_used_and_time_gained() {
        let text = circuits(context(None), &super::circuits::sample()).into_string();
        for words in ["400 Mb/s", "40.0 MB/s", "20.0 MB/s", "16 min", "keep 400 Mb/s", "every 60 s"] {
            assert!(text.contains(words), "{words} in {text}");
        }
        assert_eq!(text.matches("rect class=\"booked\"").count(), 2, "both circuits are drawn: {text}");
    }

    fn all(viewer: Option<Viewer<'_>>) -> Vec<String> {
        let context = context(viewer);
        let transfers_page = Page { items: vec![transfer_view()], next: Some("a&b".into()) };
        [
            overview(context, &status_view()),
            subscriptions(context, &Page { items: vec![subscription_view()], next: None }),
            subscription(context, &subscription_view()),
            transfers(context, &TransferQuery::default(), &transfers_page),
            transfer(context, &detail()),
            jobs(
                context,
                Some(JobState::Active),
                &Page { items: vec![job_detail().job], next: Some("a&b".into()) },
            ),
            job(context, &job_detail()),
            sites(context, &[site_view()]),
            site(context, &site_view()),
            storages(context, &Page { items: vec![storage_view()], next: Some("a&b".into()) }),
            storage(context, &(storage_view(), Page { items: vec![subscription_view()], next: None })),
            circuits(context, &super::circuits::sample()),
            steer(context, &super::steer::sample(site_view().storages.remove(0))),
            problems(context, &status_view().problems),
            login(context, &super::login::sample("<u>"), Some(&hostile_problem("<u>"))),
            confirm_login(context, "<u>"),
        ]
        .map(maud::Markup::into_string)
        .to_vec()
    }

    /// A storage of pools, one of which says something hostile.
    fn storage_view() -> StorageView {
        let pool = PoolReport {
            name: "<host>".to_owned(),
            state: PoolState::Draining,
            total_bytes: 100,
            free_bytes: 50,
            write_bytes_per_s: Some(1_000_000),
            trouble: Some(Fault::new(FaultCode::SourceUnreadable, "<u>no mark")),
            drain: None,
        };
        StorageView { pools: vec![pool], ..site_view().storages.remove(0) }
    }

    #[test]
    fn a_storage_shows_its_pools_and_what_is_wrong_with_them() {
        let shown = |storage: StorageView| {
            let wanted = Page { items: Vec::new(), next: None };
            super::storage(context(Some(admin())), &(storage, wanted)).into_string()
        };
        let text = shown(storage_view());
        for words in ["1 of 1 pools in trouble", "&lt;u&gt;no mark", "1.00 MB/s", "not told"] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let mut drained = storage_view();
        let drain = PoolDrainReport { moved_files: 7, is_empty: true, ..PoolDrainReport::default() };
        drained.pools[0] = PoolReport { trouble: None, drain: Some(drain), ..drained.pools[0].clone() };
        assert!(shown(drained).contains("drained: it is empty"));
    }

    fn hostile_problem(detail: &str) -> longhaul_api::Problem {
        longhaul_model::Fault::new(longhaul_model::FaultCode::NotAuthenticated, detail).into()
    }

    #[test]
    fn untrusted_text_never_becomes_markup() {
        for text in all(Some(admin())) {
            for mark in
                ["<img", "alert(1)>", "<u>", "<s>", "<first>", "<work>", "<host>", "<script>", "\u{1b}"]
            {
                assert!(!text.contains(mark), "{mark} in {text}");
            }
            assert!(text.contains("&lt;"), "the untrusted part is not shown at all: {text}");
        }
    }

    #[test]
    fn forms_are_shown_only_to_those_who_may_use_them() {
        let viewer = viewer_of(Principal::new("shift", Role::Viewer));
        // Everybody may log out.
        let leave = "method=\"post\" action=\"/ui/logout\"";
        let forms = |text: &String| {
            text.replace(leave, "").contains("method=\"post\"") && !text.contains("/ui/login")
        };
        assert_eq!(all(Some(viewer)).iter().filter(|text| forms(text)).count(), 0);
        assert!(all(Some(admin())).iter().filter(|text| forms(text)).count() >= 3);
        assert_eq!(all(Some(manager("elsewhere", None))).iter().filter(|text| forms(text)).count(), 1);
        let pages = all(Some(viewer)).concat();
        assert_eq!(pages.matches("secret-form-token").count(), pages.matches(leave).count());
    }

    #[test]
    fn a_virtual_storage_is_not_offered_as_an_end_of_a_link() {
        let kinds = [longhaul_model::StorageKind::Posix, longhaul_model::StorageKind::Virtual];
        let offered = kinds.map(|kind| {
            let storage = StorageView { kind, ..site_view().storages.remove(0) };
            let text = steer(context(Some(admin())), &super::steer::sample(storage)).into_string();
            text.matches("<option value=\"beta\">").count()
        });
        assert_eq!(offered, [2, 0]);
    }

    #[test]
    fn an_attempt_that_has_ended_says_who_moved_its_bytes() {
        let shown = |executor| {
            let mut detail = detail();
            let attempt = detail.attempts.remove(0);
            detail.attempts.push(AttemptView { finished: true, executor, ..attempt });
            transfer(context(Some(admin())), &detail).into_string()
        };
        let by_server = longhaul_model::Executor::TargetServer;
        assert!(shown(Some(by_server)).contains(by_server.sentence()));
        assert!(!shown(None).contains("moved by"));
    }

    #[test]
    fn no_page_needs_an_inline_script_or_style() {
        for text in all(Some(admin())) {
            assert!(
                !text.contains("style=") && !text.contains("<style") && !text.contains("onclick"),
                "{text}"
            );
            assert_eq!(text.matches("<script").count(), 1, "only our own script");
        }
    }
}
