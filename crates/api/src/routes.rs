//! The table of all routes of the native API, from which the service's router, its checks of access, the
//! OpenAPI description, the client and the test of all routes are made.
//!
//! A parameter in a path, such as `{dataset}`, is one segment. Dataset names contain `/` and block names `#`,
//! so they are percent-encoded: `GET /api/v1/datasets/higgs%2Frun7` shows the dataset `higgs/run7`.
//! [`Route::fill`] does it. LFNs are long and full of slashes; they occur only in queries and bodies.
//!
//! Start with [`ALL`]; each route is also a constant of its own.

/// Items of a page when the request names no `limit`.
pub const PAGE_ITEMS_DEFAULT: u32 = 100;
/// Most items of a page.
pub const PAGE_ITEMS_MAX: u32 = 1_000;

/// Longest value in a query, in bytes.
pub const QUERY_VALUE_BYTES_MAX: usize = 4_096;

/// Header with a key that repetitions of a request share; see [`Route::idempotency_key`].
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";
/// Syntax of that key: visible ASCII characters.
pub const IDEMPOTENCY_KEY_SYNTAX: Syntax = Syntax { pattern: "^[!-~]+$", chars_max: 128 };
/// Header with the CSRF token of a login session, for requests that change something.
pub const CSRF_HEADER: &str = "x-csrf-token";
/// Cookie that holds a login session on the plain port.
pub const SESSION_COOKIE: &str = "longhaul_session";
/// The same over TLS. By the prefix, browsers take it from this host alone, over TLS, and for all its paths:
/// no other host of the domain, and nothing without TLS, can set it (RFC 6265bis, section 4.1.3.2).
pub const SESSION_COOKIE_TLS: &str = "__Host-longhaul_session";

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates or starts something.
    Post,
    /// Replaces.
    Put,
    /// Changes the given fields.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// The method as HTTP writes it.
    pub const fn word(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// Credential that a route requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// None, or one in the body: a join token, an API token.
    Public,
    /// As [`Access::Viewer`], or none from a loopback address of the service's own host.
    LocalOrViewer,
    /// An API token or a session with at least this role.
    Viewer,
    /// An administrator, or a viewer for whom the service copies between URLs, as `service.fts.people` or
    /// their login says. Rights to see and change a job are checked for each job.
    Submitter,
    /// An administrator, or a manager of what the change is bound by, as the [table of rights](crate::rights)
    /// says.
    Manager,
    /// An administrator.
    Admin,
    /// An API token that may send measurements, or one of an administrator.
    Observer,
    /// The certificate of an agent of this deployment, over TLS 1.3.
    AgentCertificate,
}

/// Content of a request or reply. Types are named as in the OpenAPI description: `Page_DatasetView` is
/// `Page<DatasetView>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Empty.
    None,
    /// `application/json`: one object of this type.
    Json(&'static str),
    /// `application/x-ndjson`: any number of lines, each with one object of this type.
    Lines(&'static str),
    /// `text/event-stream`: each event's data is one object of this type.
    Events(&'static str),
    /// `text/plain`.
    Text,
    /// `application/json`: a document without a type here.
    Document,
}

impl Body {
    /// Value of the `Content-Type` header; none for an empty body.
    pub const fn media_type(self) -> Option<&'static str> {
        match self {
            Body::None => None,
            Body::Json(_) | Body::Document => Some("application/json"),
            Body::Lines(_) => Some("application/x-ndjson"),
            Body::Events(_) => Some("text/event-stream"),
            Body::Text => Some("text/plain"),
        }
    }
}

/// Type of a query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryKind {
    /// Any text of at most [`QUERY_VALUE_BYTES_MAX`] bytes.
    Text,
    /// A name; an empty one is none.
    Name(Syntax),
    /// One of these words; an empty one is none.
    Word(&'static [&'static str]),
    /// A time (RFC 3339); an empty one is none.
    Time,
    /// A number from the first to the second of these.
    Integer(u64, u64),
    /// `true` or `false`.
    Boolean,
}

/// A query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Name in the query.
    pub name: &'static str,
    /// Type of the value.
    pub kind: QueryKind,
    /// Whether requests without it are refused.
    pub required: bool,
    /// One sentence for the API description.
    pub summary: &'static str,
}

/// A route of the API: method, path, access, and types of bodies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Operation id, unique: the constant's name in lower case.
    pub operation: &'static str,
    /// HTTP method.
    pub method: Method,
    /// Path with parameters in braces, as routers and OpenAPI write them.
    pub path: &'static str,
    /// One line for the API description, without a full stop.
    pub summary: &'static str,
    /// Credential that it requires.
    pub access: Access,
    /// Query parameters that it understands.
    pub query: &'static [Query],
    /// Content of a request.
    pub request: Body,
    /// Content of a successful reply.
    pub reply: Body,
    /// HTTP status of a successful reply.
    pub status: u16,
    /// Accepts an `Idempotency-Key` header: a repetition with the same key gets the first answer and does
    /// nothing.
    pub idempotency_key: bool,
}

impl Route {
    const fn new(operation: &'static str, method: Method, path: &'static str, access: Access) -> Route {
        Route {
            operation,
            method,
            path,
            summary: "",
            access,
            query: &[],
            request: Body::None,
            reply: Body::None,
            status: 204,
            idempotency_key: false,
        }
    }

    const fn takes(self, request: Body) -> Route {
        Route { request, ..self }
    }

    const fn asks(self, query: &'static [Query]) -> Route {
        Route { query, ..self }
    }

    const fn gives(self, status: u16, reply: Body) -> Route {
        Route { reply, status, ..self }
    }

    const fn with_idempotency_key(self) -> Route {
        Route { idempotency_key: true, ..self }
    }

    const fn says(self, summary: &'static str) -> Route {
        Route { summary, ..self }
    }

    /// Names of the parameters in the path, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }

    /// The path with percent-encoded `values` in place of its parameters.
    ///
    /// # Panics
    /// If the number of values is not that of the parameters: the caller named the wrong route.
    pub fn fill(&self, values: &[&str]) -> String {
        assert_eq!(self.parameters().count(), values.len(), "parameters of {}", self.operation);
        let mut values = values.iter();
        let mut filled = String::new();
        for segment in self.path.split('/').skip(1) {
            filled.push('/');
            match (segment.starts_with('{'), values.as_slice().first()) {
                (true, Some(value)) => {
                    filled.push_str(&encode_component(value));
                    values.next();
                }
                _ => filled.push_str(segment),
            }
        }
        filled
    }

    /// Path and query of a request: [`Route::fill`], then `?name=value&…`.
    pub fn target(&self, values: &[&str], query: &[(&str, &str)]) -> String {
        let mut target = self.fill(values);
        for (place, (name, value)) in query.iter().enumerate() {
            target.push(if place == 0 { '?' } else { '&' });
            target.push_str(&encode_component(name));
            target.push('=');
            target.push_str(&encode_component(value));
        }
        target
    }
}

/// The route with this operation id.
pub fn by_operation(operation: &str) -> Option<&'static Route> {
    ALL.iter().find(|route| route.operation == operation)
}

const fn text(name: &'static str, summary: &'static str) -> Query {
    Query { name, kind: QueryKind::Text, required: false, summary }
}

const fn name(name: &'static str, syntax: Syntax, summary: &'static str) -> Query {
    Query { name, kind: QueryKind::Name(syntax), required: false, summary }
}

const fn word(name: &'static str, words: &'static [&'static str], summary: &'static str) -> Query {
    Query { name, kind: QueryKind::Word(words), required: false, summary }
}

const fn integer(name: &'static str, most: u64, summary: &'static str) -> Query {
    Query { name, kind: QueryKind::Integer(0, most), required: false, summary }
}

/// Most in a query that is read as 32 bits.
const U32_MAX: u64 = u32::MAX as u64;

/// Syntax of a parameter in a path; none where it is any text.
pub fn parameter_syntax(parameter: &str) -> Option<Syntax> {
    match parameter {
        "dataset" => Some(DatasetName::SYNTAX),
        "site" => Some(SiteName::SYNTAX),
        "storage" | "source" | "target" => Some(StorageName::SYNTAX),
        "agent" | "subscription" | "task" | "transfer" => Some(STAMPED_SYNTAX),
        "job" => Some(JobId::SYNTAX),
        _ => None,
    }
}

const fn required(query: Query) -> Query {
    Query { required: true, ..query }
}

/// Words of `of` for the audit log.
pub const AUDIT_KINDS: &[&str] = &["changes", "logins"];
/// Words of `of` for access decisions.
pub const DECISION_KINDS: &[&str] = &["refused", "allowed"];

const LIMIT: Query = integer("limit", U32_MAX, "Page size; 100 if absent, at most 1,000.");
const AFTER: Query = text("after", "Cursor: `next` of the previous page.");
const DATASET: Query = name("dataset", DatasetName::SYNTAX, "Only this dataset.");
const STORAGE: Query = name("storage", StorageName::SYNTAX, "Only this storage.");
const PAGE: &[Query] = &[LIMIT, AFTER];

macro_rules! routes {
    ($($name:ident = $method:ident $path:literal $operation:literal $access:ident, $summary:literal
        $(, $step:ident($($argument:expr),*))*;)*) => {
        $(
            #[doc = $summary]
            pub const $name: Route =
                Route::new($operation, Method::$method, $path, Access::$access)
                    .says($summary)$(.$step($($argument),*))*;
        )*

        /// The table.
        pub const ALL: &[Route] = &[$($name),*];

        #[cfg(test)]
        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

use Body::{Document, Events, Json, Lines, Text};
use longhaul_model::id::STAMPED_SYNTAX;
use longhaul_model::limits::WHAT_IF_FILES_MAX;
use longhaul_model::percent::encode_component;
use longhaul_model::{
    BlockName, CommunityName, DatasetName, JobId, JobState, SiteName, StorageName, SubscriptionState, Syntax,
    TransferState,
};

routes! {
    DATASET_LIST = Get "/api/v1/datasets" "dataset_list" Viewer,
        "Lists datasets by name",
        asks(PAGE), gives(200, Json("Page_DatasetView"));
    DATASET_CREATE = Post "/api/v1/datasets" "dataset_create" Manager,
        "Creates an empty dataset, or returns the one of that name",
        takes(Json("DatasetCreate")), gives(200, Json("DatasetView"));
    DATASET_SHOW = Get "/api/v1/datasets/{dataset}" "dataset_show" Viewer,
        "Shows a dataset: sizes, replicas, files left out",
        gives(200, Json("DatasetView"));
    DATASET_CLOSE = Post "/api/v1/datasets/{dataset}/close" "dataset_close" Manager,
        "Closes a dataset: no more files can be added",
        gives(200, Json("DatasetView"));
    DATASET_DELETE = Delete "/api/v1/datasets/{dataset}" "dataset_delete" Manager,
        "Removes a dataset that has no replicas and no subscriptions";
    DATASET_BLOCKS = Get "/api/v1/datasets/{dataset}/blocks" "dataset_blocks" Viewer,
        "Lists the blocks of a dataset with their replicas",
        asks(PAGE), gives(200, Json("Page_BlockView"));
    DATASET_FILES = Get "/api/v1/datasets/{dataset}/files" "dataset_files" Viewer,
        "Lists the files of a dataset",
        asks(&[name("block", BlockName::SYNTAX, "Only this block."), LIMIT, AFTER]),
        gives(200, Json("Page_FileView"));
    DATASET_REPLICAS = Get "/api/v1/datasets/{dataset}/replicas" "dataset_replicas" Viewer,
        "Lists the replicas of a dataset, one row per storage",
        gives(200, Json("Page_ReplicaView"));
    DATASET_SCAN = Post "/api/v1/datasets/{dataset}/scan" "dataset_scan" Manager,
        "Starts a scan: an agent registers the files it finds at a storage",
        takes(Json("ScanRequest")), gives(202, Json("TaskView")), with_idempotency_key();
    DATASET_ADD_FILES = Post "/api/v1/datasets/{dataset}/files" "dataset_add_files" Manager,
        "Registers the files of a manifest; all or nothing",
        asks(&[name(
            "storage",
            StorageName::SYNTAX,
            "The storage that holds the files; without it only names are registered."
        )]),
        takes(Lines("ManifestLine")), gives(200, Json("Registered"));

    REPLICA_OF_FILE = Get "/api/v1/replicas" "replica_of_file" Viewer,
        "Lists the replicas of one file, and how each was verified",
        asks(&[required(text("lfn", "The file."))]), gives(200, Json("FileReplicas"));

    DELETION_CREATE = Post "/api/v1/deletions" "deletion_create" Manager,
        "Deletes a dataset's replicas at a storage, or previews the deletion",
        takes(Json("DeletionRequest")), gives(200, Json("DeletionReply")), with_idempotency_key();
    VERIFICATION_CREATE = Post "/api/v1/verifications" "verification_create" Manager,
        "Starts a verification: an agent reads a dataset's replicas and compares digests",
        takes(Json("VerificationRequest")), gives(202, Json("TaskView")), with_idempotency_key();

    TASK_LIST = Get "/api/v1/tasks" "task_list" Viewer,
        "Lists scans, verifications and deletions, newest first",
        asks(&[DATASET, STORAGE, LIMIT, AFTER]), gives(200, Json("Page_TaskView"));
    TASK_SHOW = Get "/api/v1/tasks/{task}" "task_show" Viewer,
        "Shows a task and its problems",
        gives(200, Json("TaskView"));
    TASK_CANCEL = Post "/api/v1/tasks/{task}/cancel" "task_cancel" Manager,
        "Cancels a task; finished work stays",
        gives(200, Json("TaskView"));

    SUBSCRIPTION_LIST = Get "/api/v1/subscriptions" "subscription_list" Viewer,
        "Lists subscriptions with progress and estimated completion",
        asks(&[
            DATASET,
            STORAGE,
            word("state", SubscriptionState::WORDS, "Only in this state."),
            LIMIT,
            AFTER
        ]),
        gives(200, Json("Page_SubscriptionView"));
    SUBSCRIPTION_CREATE = Post "/api/v1/subscriptions" "subscription_create" Manager,
        "Creates a subscription: keep a dataset or block at a storage",
        takes(Json("Subscribe")), gives(201, Json("SubscriptionView")), with_idempotency_key();
    SUBSCRIPTION_SHOW = Get "/api/v1/subscriptions/{subscription}" "subscription_show" Viewer,
        "Shows a subscription",
        gives(200, Json("SubscriptionView"));
    SUBSCRIPTION_CHANGE = Patch "/api/v1/subscriptions/{subscription}" "subscription_change" Manager,
        "Suspends, resumes or cancels a subscription, or changes its priority",
        takes(Json("SubscriptionChange")), gives(200, Json("SubscriptionView"));

    TRANSFER_LIST = Get "/api/v1/transfers" "transfer_list" Viewer,
        "Lists transfers, newest change first",
        asks(&[
            DATASET,
            name("source", StorageName::SYNTAX, "Only from this storage."),
            name("target", StorageName::SYNTAX, "Only to this storage."),
            word("state", TransferState::WORDS, "Only in this state."),
            LIMIT,
            AFTER
        ]),
        gives(200, Json("Page_TransferView"));
    TRANSFER_SHOW = Get "/api/v1/transfers/{transfer}" "transfer_show" Viewer,
        "Shows a transfer: its attempts, their phases, and why each source was chosen",
        gives(200, Json("TransferDetail"));
    TRANSFER_RETRY = Post "/api/v1/transfers/{transfer}/retry" "transfer_retry" Admin,
        "Retries a waiting or failed transfer now",
        gives(200, Json("TransferView"));

    JOB_LIST = Get "/api/v1/jobs" "job_list" Submitter,
        "Lists copy jobs, newest first",
        asks(&[
            word("state", JobState::WORDS, "Only in this state."),
            name("community", CommunityName::SYNTAX, "Only this community."),
            text("source", "Only from this host, or scheme://host."),
            text("target", "Only to this host, or scheme://host."),
            Query { kind: QueryKind::Time, ..text("since", "Only submitted at this time or later.") },
            LIMIT,
            AFTER
        ]),
        gives(200, Json("Page_JobView"));
    JOB_SUBMIT = Post "/api/v1/jobs" "job_submit" Submitter,
        "Submits a copy job: files from URL to URL",
        takes(Json("JobSubmit")), gives(201, Json("JobView")), with_idempotency_key();
    JOB_SHOW = Get "/api/v1/jobs/{job}" "job_show" Submitter,
        "Shows a job and its files: progress, failures, and what each file waits for",
        asks(&[integer("files", U32_MAX, "Files to show at most, failed ones first; 100 if absent.")]),
        gives(200, Json("JobDetail"));
    JOB_CANCEL = Post "/api/v1/jobs/{job}/cancel" "job_cancel" Submitter,
        "Cancels a job; files that arrived stay",
        gives(200, Json("JobView"));
    JOB_CHANGE = Patch "/api/v1/jobs/{job}" "job_change" Submitter,
        "Changes a job's priority",
        takes(Json("JobChange")), gives(200, Json("JobView"));

    SITE_LIST = Get "/api/v1/sites" "site_list" Viewer,
        "Lists sites with their storages and agents",
        asks(PAGE), gives(200, Json("Page_SiteView"));
    SITE_ADD = Post "/api/v1/sites" "site_add" Admin,
        "Creates a site and a join token for its first agent",
        takes(Json("SiteAdd")), gives(201, Json("SiteAdded"));
    SITE_SHOW = Get "/api/v1/sites/{site}" "site_show" Viewer,
        "Shows a site, its storages and its agents",
        gives(200, Json("SiteView"));
    SITE_CHANGE = Patch "/api/v1/sites/{site}" "site_change" Manager,
        "Pauses, drains or opens a site, or changes its limits",
        takes(Json("SiteChange")), gives(200, Json("SiteView"));
    SITE_JOIN_TOKEN = Post "/api/v1/sites/{site}/join-tokens" "site_join_token" Manager,
        "Creates a join token for one more agent of a site",
        takes(Json("JoinTokenCreate")), gives(201, Json("SiteAdded"));
    SITE_REMOVE = Post "/api/v1/sites/{site}/removal" "site_remove" Admin,
        "Removes a site for good, with its agents and storages, or previews what that means",
        takes(Json("SiteRemoval")), gives(200, Json("SiteRemoved"));
    SITE_COMMISSION = Post "/api/v1/sites/{site}/commissioning" "site_commission" Manager,
        "Records the results of test transfers from and to a site",
        takes(Json("Commissioning")), gives(200, Json("SiteView"));
    AGENT_REFUSE = Post "/api/v1/agents/{agent}/refusal" "agent_refuse" Admin,
        "Refuses all certificates of an agent, or previews what that means",
        takes(Json("AgentRefusal")), gives(200, Json("AgentRefused"));
    AGENT_REMOVE = Post "/api/v1/agents/{agent}/removal" "agent_remove" Admin,
        "Removes an agent that is gone for good, or previews what that means",
        takes(Json("AgentRemoval")), gives(200, Json("AgentRemoved"));
    STORAGE_LIST = Get "/api/v1/storages" "storage_list" Viewer,
        "Lists storages with their space and contents",
        asks(PAGE), gives(200, Json("Page_StorageView"));

    STORAGE_SHOW = Get "/api/v1/storages/{storage}" "storage_show" Viewer,
        "Shows a storage with its space, contents, pools and what is wanted from its tape",
        gives(200, Json("StorageView"));
    STORAGE_CHANGE = Patch "/api/v1/storages/{storage}" "storage_change" Manager,
        "Changes a storage: relay or not, and the strategy by which sources are chosen",
        takes(Json("StorageChange")), gives(200, Json("StorageView"));
    STORAGE_REMOVE = Post "/api/v1/storages/{storage}/removal" "storage_remove" Admin,
        "Removes a storage for good, or previews what that means",
        takes(Json("StorageRemoval")), gives(200, Json("StorageRemoved"));
    STORAGE_ALLOW = Put "/api/v1/storages/{storage}/site" "storage_allow" Admin,
        "Allows a site to have a storage of that name",
        takes(Json("StorageAllow")), gives(200, Json("StorageAllowed"));
    STORAGE_DISALLOW = Delete "/api/v1/storages/{storage}/site" "storage_disallow" Admin,
        "Takes an allowed storage name back, as long as there is no storage of that name";
    SHARE_LIST = Get "/api/v1/shares" "share_list" Viewer,
        "Lists the shares of communities and activities",
        gives(200, Json("Page_ShareView"));
    SHARE_SET = Post "/api/v1/shares" "share_set" Manager,
        "Changes the share of a community or an activity, with immediate effect",
        takes(Json("ShareChange")), gives(200, Json("Page_ShareView"));
    MOVER_LIST = Get "/api/v1/movers" "mover_list" Viewer,
        "Lists the sites whose agents stream copies between foreign storages, and for which communities",
        gives(200, Json("Page_MoverGrantView"));
    MOVER_SET = Post "/api/v1/movers" "mover_set" Admin,
        "Allows the agents of a site to stream for a community, or no longer, with immediate effect",
        takes(Json("MoverGrantChange")), gives(200, Json("Page_MoverGrantView"));
    LINK_LIST = Get "/api/v1/links" "link_list" Viewer,
        "Lists the allowed links between storages, and which storages are relays",
        gives(200, Json("LinksView"));
    LINK_SET = Put "/api/v1/links" "link_set" Admin,
        "Replaces the list of allowed links",
        takes(Json("LinksSet")), gives(200, Json("LinksView"));
    LINK_CHANGE = Patch "/api/v1/links" "link_change" Admin,
        "Adds or removes allowed links, or marks links as commissioned",
        takes(Json("LinksChange")), gives(200, Json("LinksView"));
    LIMIT_LIST = Get "/api/v1/limits" "limit_list" Viewer,
        "Lists the limits of links, storages and communities",
        gives(200, Json("Page_LimitView"));
    LIMIT_SET = Post "/api/v1/limits" "limit_set" Manager,
        "Sets or lifts a limit of a link, a storage or a community, with immediate effect",
        takes(Json("LimitChange")), gives(200, Json("Page_LimitView"));
    AUDIT_LIST = Get "/api/v1/audit" "audit_list" Viewer,
        "Lists the audit log, newest first: changes of settings and accounts, and log-ins",
        asks(&[word("of", AUDIT_KINDS, "Only changes, or only log-ins."), LIMIT, AFTER]),
        gives(200, Json("Page_AuditEntry"));

    DECISION_LIST = Get "/api/v1/audit/decisions" "decision_list" Manager,
        "Lists access decisions, newest first: every refusal with its reason, and allowed changes",
        asks(&[
            word("of", DECISION_KINDS, "Only refusals, or only what was allowed."),
            text("who", "Only this name."),
            name("site", SiteName::SYNTAX, "Only the doors of this site."),
            LIMIT,
            AFTER,
        ]),
        gives(200, Json("Page_DecisionEntry"));

    CIRCUIT_LIST = Get "/api/v1/circuits" "circuit_list" Viewer,
        "Lists the links that may have circuits, with their state and its reason",
        gives(200, Json("Page_CircuitView"));
    CIRCUIT_SHOW = Get "/api/v1/circuits/{circuit}" "circuit_show" Viewer,
        "Explains a circuit, or a link SOURCE:TARGET: its state, requests, and outcomes",
        gives(200, Json("CircuitDetail"));
    CIRCUIT_PLAN = Get "/api/v1/circuits/plan" "circuit_plan" Viewer,
        "Shows what the central plan of circuits would do now, and why; informative where agents decide",
        gives(200, Json("CircuitPlan"));
    CIRCUIT_REQUEST = Post "/api/v1/circuits/request" "circuit_request" Admin,
        "Requests a circuit, whatever the workload",
        takes(Json("CircuitRequest")), gives(202, Json("CircuitDetail")), with_idempotency_key();
    CIRCUIT_RELEASE = Post "/api/v1/circuits/{circuit}/release" "circuit_release" Admin,
        "Releases a circuit, by its name or by its link SOURCE:TARGET",
        gives(202, Json("CircuitDetail"));
    CIRCUIT_HISTORY = Get "/api/v1/history/circuits" "circuit_history" Viewer,
        "Lists past circuits, latest first: reserved, used, time gained, and why they ended",
        asks(PAGE), gives(200, Json("Page_CircuitRecord"));

    MEASUREMENT_SEND = Post "/api/v1/network/measurements" "measurement_send" Observer,
        "Accepts measurements of a perfSONAR host: a pScheduler result, or documents of version 5",
        takes(Document), gives(200, Json("MeasurementsTaken"));
    MEASUREMENT_PUT = Put "/api/v1/network/measurements" "measurement_put" Observer,
        "Accepts measurements by PUT, the default method of pScheduler's HTTP archiver",
        takes(Document), gives(200, Json("MeasurementsTaken"));
    HOST_LIST = Get "/api/v1/network/hosts" "host_list" Viewer,
        "Lists the sites of measurement hosts, foreign end points and networks",
        asks(PAGE), gives(200, Json("Page_HostView"));
    HOST_SET = Post "/api/v1/network/hosts" "host_set" Admin,
        "Maps hosts and networks to sites; all or nothing",
        takes(Json("HostsChange")), gives(200, Json("HostsChanged"));
    HOST_REMOVE = Delete "/api/v1/network/hosts/{host}" "host_remove" Admin,
        "Removes the mapping of a host or network to its site";
    UNMAPPED_LIST = Get "/api/v1/network/unmapped" "unmapped_list" Viewer,
        "Lists measured hosts without a site, or with an inferred one; most measurements first",
        asks(PAGE), gives(200, Json("Page_UnmappedHost"));
    ARCHIVE_LIST = Get "/api/v1/network/archives" "archive_list" Viewer,
        "Lists the measurement archives that are read, and the state of each",
        gives(200, Json("Page_ArchiveView"));

    STATUS = Get "/api/v1/status" "status" Viewer,
        "Shows what moves, what waits and what is wrong",
        gives(200, Json("Status"));
    PROBLEM_LIST = Get "/api/v1/problems" "problem_list" Viewer,
        "Lists faults, equal ones counted together, latest first",
        asks(PAGE), gives(200, Json("Page_ProblemView"));
    RATE_HISTORY = Get "/api/v1/history/rates" "rate_history" Viewer,
        "Shows goodput over time, in total and per link",
        asks(&[
            name("source", StorageName::SYNTAX, "Only from this storage."),
            name("target", StorageName::SYNTAX, "Only to this storage."),
            integer("seconds", U32_MAX, "Seconds to look back; 3,600 if absent.")
        ]),
        gives(200, Json("RateHistory"));
    NETWORK_SHOW = Get "/api/v1/network" "network_show" Viewer,
        "Shows the state of network knowledge: links known, forecast quality, recent changes",
        gives(200, Json("NetworkView"));
    NETWORK_LINKS = Get "/api/v1/network/links" "network_links" Viewer,
        "Lists links with their rates, forecasts and bottlenecks",
        asks(&[
            name("source", StorageName::SYNTAX, "Only from this storage."),
            name("target", StorageName::SYNTAX, "Only to this storage."),
            LIMIT,
            AFTER
        ]),
        gives(200, Json("Page_NetworkLink"));
    NETWORK_LINK = Get "/api/v1/network/links/{source}/{target}" "network_link" Viewer,
        "Explains one link: its rate and bottleneck, advice, changes, and forecasts for more work",
        asks(&[
            integer(
                "files",
                WHAT_IF_FILES_MAX as u64,
                "Forecast the rate for so many more files, up to 10,000; 1, 4 and 16 if absent."
            ),
            Query {
                kind: QueryKind::Integer(1, u64::MAX),
                ..text("bytes", "Forecast the time for this many bytes; 1 GB, 100 GB and 10 TB if absent.")
            }
        ]),
        gives(200, Json("NetworkLinkDetail"));
    NETWORK_EXPORT = Get "/api/v1/network/export" "network_export" Viewer,
        "Exports network knowledge of the links between sites",
        gives(200, Document);
    NETWORK_IMPORT = Post "/api/v1/network/import" "network_import" Admin,
        "Imports network knowledge of another instance, where less is known here",
        takes(Json("NetworkImport")), gives(200, Json("NetworkImported"));
    CHECK = Get "/api/v1/check" "check" Viewer,
        "Checks the invariants of the stored state",
        gives(200, Json("CheckReport"));
    EVENTS = Get "/api/v1/events" "events" Viewer,
        "Streams changes as server-sent events",
        gives(200, Events("ChangeEvent"));

    WHOAMI = Get "/api/v1/whoami" "whoami" Viewer,
        "Shows the caller's identity, role and scopes",
        gives(200, Json("WhoAmI"));
    TOKEN_LIST = Get "/api/v1/tokens" "token_list" Admin,
        "Lists API tokens, never their secrets",
        asks(PAGE), gives(200, Json("Page_TokenView"));
    TOKEN_CREATE = Post "/api/v1/tokens" "token_create" Admin,
        "Creates an API token",
        takes(Json("TokenCreate")), gives(201, Json("TokenCreated"));
    TOKEN_REVOKE = Delete "/api/v1/tokens/{token}" "token_revoke" Admin,
        "Revokes the API token of that name";
    ACCOUNT_LIST = Get "/api/v1/accounts" "account_list" Admin,
        "Lists local accounts, never their passwords",
        asks(PAGE), gives(200, Json("Page_AccountView"));
    ACCOUNT_ADD = Post "/api/v1/accounts" "account_add" Admin,
        "Creates a local account that logs in by password",
        takes(Json("AccountAdd")), gives(201, Json("AccountView"));
    ACCOUNT_CHANGE = Patch "/api/v1/accounts/{account}" "account_change" Admin,
        "Changes a local account: password, role, community, disabled or not; ends its sessions",
        takes(Json("AccountChange")), gives(200, Json("AccountView"));
    ACCOUNT_REMOVE = Delete "/api/v1/accounts/{account}" "account_remove" Admin,
        "Removes a local account and ends its sessions";
    SESSION_LOGIN = Post "/api/v1/session" "session_login" Public,
        "Opens a login session with an API token or a one-time login token",
        takes(Json("LoginRequest")), gives(200, Json("LoginReply"));
    SESSION_LOGOUT = Delete "/api/v1/session" "session_logout" Viewer,
        "Ends the login session";
    LOGIN_TOKEN_CREATE = Post "/api/v1/session/tokens" "login_token_create" Viewer,
        "Creates a one-time token that opens a login session as the caller",
        gives(201, Json("LoginToken"));

    AGENT_JOIN = Post "/api/v1/agent/join" "agent_join" Public,
        "Joins an agent to a site: takes a join token, returns a certificate",
        takes(Json("JoinRequest")), gives(200, Json("JoinReply"));
    AGENT_REPORT = Post "/api/v1/agent/report" "agent_report" AgentCertificate,
        "Accepts an agent's outcomes, progress and observations",
        takes(Json("Report")), gives(200, Json("ReportReply"));
    AGENT_WORK = Post "/api/v1/agent/work" "agent_work" AgentCertificate,
        "Long poll: returns work for an agent as soon as there is any",
        takes(Json("WorkRequest")), gives(200, Json("Work"));
    AGENT_RENEW = Post "/api/v1/agent/renew" "agent_renew" AgentCertificate,
        "Renews an agent's certificate",
        takes(Json("RenewRequest")), gives(200, Json("RenewReply"));

    OPENAPI = Get "/api/v1/openapi.json" "openapi" Public,
        "Returns this description",
        gives(200, Document);
    HEALTHZ = Get "/healthz" "healthz" Public,
        "Reports whether the process is alive",
        gives(200, Json("Health"));
    READYZ = Get "/readyz" "readyz" Public,
        "Reports whether requests are served, and if not, why",
        gives(200, Json("Health"));
    METRICS = Get "/metrics" "metrics" LocalOrViewer,
        "Returns metrics in the Prometheus text format",
        gives(200, Text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_routes_are_unique_and_named_after_their_constants() {
        for (place, route) in ALL.iter().enumerate() {
            assert_eq!(NAMES[place].to_lowercase(), route.operation);
            assert!(!route.summary.is_empty() && !route.summary.ends_with('.'), "{}", route.operation);
            for other in &ALL[..place] {
                assert!((route.method, route.path) != (other.method, other.path), "{} twice", route.path);
                assert_ne!(route.operation, other.operation);
            }
            assert_eq!(by_operation(route.operation), Some(route));
        }
    }

    #[test]
    fn only_reading_is_open_to_viewers() {
        // Opening and ending one's own session changes nothing that others see.
        let own = [SESSION_LOGOUT, LOGIN_TOKEN_CREATE];
        for route in ALL.iter().filter(|route| route.access == Access::Viewer && !own.contains(route)) {
            assert_eq!(route.method, Method::Get, "{}", route.operation);
        }
    }

    #[test]
    fn bodies_fit_methods_and_statuses() {
        for route in ALL {
            assert_eq!(route.reply == Body::None, route.status == 204, "{}", route.operation);
            if matches!(route.method, Method::Get | Method::Delete) {
                assert_eq!(route.request, Body::None, "{}", route.operation);
            }
        }
    }

    #[test]
    fn a_name_is_one_segment_whatever_is_in_it() {
        assert_eq!(DATASET_BLOCKS.fill(&["higgs/run 7%"]), "/api/v1/datasets/higgs%2Frun%207%25/blocks");
        assert_eq!(
            REPLICA_OF_FILE.target(&[], &[("lfn", "a/ü\n&b"), ("x", "")]),
            "/api/v1/replicas?lfn=a%2F%C3%BC%0A%26b&x="
        );
        assert_eq!(SITE_SHOW.parameters().collect::<Vec<_>>(), ["site"]);
    }

    #[test]
    #[should_panic(expected = "parameters of site_show")]
    fn a_missing_parameter_is_our_bug() {
        SITE_SHOW.fill(&[]);
    }
}
