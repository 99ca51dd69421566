//! Scenario files as written: TOML, every key documented in `docs/reference/scenarios.md`. Here they are only
//! parsed; `plan` checks them and makes a world.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::quantity::{Rate, Share, Size, Span};

/// A longer text is refused as a scenario.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub name: String,
    /// What it is after.
    #[serde(default)]
    pub about: String,
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// When it ends at the latest.
    pub until: Span,
    #[serde(default)]
    pub model: Model,
    #[serde(default)]
    pub links: Links,
    #[serde(default)]
    pub site: Vec<Site>,
    #[serde(default)]
    pub distance: Vec<Distance>,
    #[serde(default)]
    pub link: Vec<Link>,
    #[serde(default)]
    pub segment: Vec<Segment>,
    #[serde(default)]
    pub circuit: Vec<Circuit>,
    #[serde(default)]
    pub circuits: Circuits,
    #[serde(default)]
    pub provider: Vec<Provider>,
    #[serde(default)]
    pub community: Vec<Community>,
    #[serde(default)]
    pub dataset: Vec<Dataset>,
    #[serde(default)]
    pub campaign: Vec<Campaign>,
    #[serde(default)]
    pub stream: Vec<Stream>,
    #[serde(default)]
    pub recorded: Vec<Recorded>,
    #[serde(default)]
    pub failure: Vec<Failure>,
    #[serde(default)]
    pub history: Vec<History>,
}

fn default_seed() -> u64 {
    1
}

/// How things move in this world.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    pub rates: Rates,
    pub mover: Mover,
    /// TCP streams: of a session, or of each file.
    pub streams: u32,
    /// The most one stream has under way.
    pub window: Size,
    /// Bytes of payload in a packet.
    pub packet: u32,
    /// Between the order to move a file and its first byte.
    pub overhead: Span,
    /// Agents tell of progress so often.
    pub report_every: Span,
    /// Agent to service and back.
    pub service_round_trip: Span,
    /// The service gathers what comes in and writes its decisions in steps of this.
    pub service_step: Span,
    /// Files that a session keeps open, with at most this many bytes of them to go unless they are very few.
    pub files_open: u32,
    pub bytes_open: Size,
    /// Until an agent gives up a peer that does not answer.
    pub unreachable_after: Span,
    /// Attempts that fail without a cause of their own.
    pub failures: Share,
    /// Agents probe each link so often; 0: never.
    pub probe_every: Span,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rates {
    /// After every change.
    Exact,
    /// At most once a simulated second.
    Second,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mover {
    /// One standing session from a source to a target, which all their files share (Longhaul's agents).
    Session,
    /// Connections of its own for each file, begun as soon as it is leased (FTS3, GridFTP).
    File,
}

impl Default for Model {
    fn default() -> Self {
        Model {
            rates: Rates::Exact,
            mover: Mover::Session,
            streams: 8,
            window: Size(32e6),
            packet: 1_448,
            overhead: Span(0.05),
            report_every: Span(1.0),
            service_round_trip: Span(0.06),
            service_step: Span(0.01),
            files_open: 4,
            bytes_open: Size(64e6),
            unreachable_after: Span(5.0),
            failures: Share(0.0),
            probe_every: Span(0.0),
        }
    }
}

/// Which pairs of sites may move data.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    pub topology: Topology,
    pub rtt: Option<Span>,
    pub loss: Share,
    pub failures: Share,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// Each with each.
    #[default]
    Mesh,
    /// Each site with its `parent`, both ways, and sites without a parent with each other.
    Hierarchy,
    /// Those listed as `[[link]]` only.
    Listed,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    pub name: String,
    /// So many alike, called `name-1`, `name-2`, …
    #[serde(default)]
    pub count: Option<u32>,
    #[serde(default)]
    pub region: String,
    #[serde(default)]
    pub parent: Option<String>,
    /// Its ports to the world; each way.
    pub port: Option<Rate>,
    #[serde(rename = "in")]
    pub inward: Option<Rate>,
    #[serde(rename = "out")]
    pub outward: Option<Rate>,
    /// What its disks give and take, all together or each pool.
    pub read: Option<Rate>,
    pub write: Option<Rate>,
    /// Storages are made of so many pools; files lie in one of them.
    #[serde(default = "default_pools")]
    pub pools: u32,
    /// Attempts that a pool serves at once.
    pub pool_active: Option<u32>,
    pub active_in: Option<u32>,
    pub active_out: Option<u32>,
    /// Told to the scheduler and kept by the agents.
    pub limit_in: Option<Rate>,
    pub limit_out: Option<Rate>,
    /// Traffic of others, as a part of the ports; it varies around this.
    #[serde(default)]
    pub background: Share,
    pub tape: Option<Tape>,
    /// Passes on files for others (several hops).
    #[serde(default)]
    pub relay: bool,
}

fn default_pools() -> u32 {
    1
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tape {
    pub drives: u32,
    pub rate: Rate,
    /// Until a tape is mounted and wound.
    pub mount: Span,
    /// What lies here at the beginning is on tape only and must be recalled.
    #[serde(default = "default_recall")]
    pub recall: bool,
}

fn default_recall() -> bool {
    true
}

/// Between two regions, or within one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distance {
    pub from: String,
    pub to: String,
    pub rtt: Span,
    #[serde(default)]
    pub loss: Share,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub from: String,
    pub to: String,
    #[serde(default)]
    pub both: bool,
    pub rtt: Option<Span>,
    pub loss: Option<Share>,
    pub capacity: Option<Rate>,
    pub failures: Option<Share>,
}

/// A part of the network that several pairs share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    pub name: String,
    pub capacity: Rate,
    pub from: Vec<String>,
    pub to: Vec<String>,
    /// The other way too, with a capacity of its own.
    #[serde(default)]
    pub both: bool,
    #[serde(default)]
    pub background: Share,
}

/// Capacity of its own for one pair, in place of links and segments, for a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circuit {
    pub from: String,
    pub to: String,
    pub capacity: Rate,
    pub begin: Span,
    pub end: Span,
}

/// Rules by which circuits are requested.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Circuits {
    pub level: CircuitLevel,
    /// Work is looked at so often.
    pub every: Span,
    /// At an agent: asked for if what waits takes longer than this,
    pub work: Span,
    /// with this rate; else the largest there is.
    pub rate: Option<Rate>,
    /// At the service: work below this priority asks for none.
    pub floor: u8,
    /// What it must save.
    pub gain: Span,
    /// Waiting work counts as one priority higher for each such time.
    pub age_step: Span,
    /// Budget of each community per day, in Gbit/s times hours.
    pub budget: Option<f64>,
    /// What is forecast of a link is off by this factor, up or down by the seed.
    pub forecast_error: f64,
}

/// Where circuits are decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CircuitLevel {
    /// Nowhere: there are none.
    #[default]
    None,
    /// At the agent of each target, for each of its links.
    Agent,
    /// Centrally, where all is seen.
    Service,
}

impl CircuitLevel {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            CircuitLevel::None => "none",
            CircuitLevel::Agent => "agent",
            CircuitLevel::Service => "service",
        }
    }
}

impl Default for Circuits {
    fn default() -> Self {
        Circuits {
            level: CircuitLevel::None,
            every: Span(60.0),
            work: Span(5.0 * 3_600.0),
            rate: None,
            floor: 5,
            gain: Span(1_800.0),
            age_step: Span(6.0 * 3_600.0),
            budget: None,
            forecast_error: 1.0,
        }
    }
}

/// A circuit provider: what it reserves is taken from the ports of both ends, used or not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    pub name: String,
    #[serde(default = "default_sites")]
    pub sites: Vec<String>,
    /// What can be had.
    pub rates: Vec<Rate>,
    /// Circuits at once.
    pub at_once: u32,
    /// Capacity of all circuits together.
    pub capacity: Option<Rate>,
    /// The part of each port that may be reserved.
    #[serde(default = "default_port_share")]
    pub port_share: Share,
    /// From the request to the grant.
    #[serde(default = "default_setup")]
    pub setup: Span,
    /// No circuit lasts longer.
    #[serde(default = "default_lifetime")]
    pub lifetime: Span,
    #[serde(default = "default_requests_per_hour")]
    pub requests_per_hour: u32,
}

fn default_sites() -> Vec<String> {
    vec!["*".to_owned()]
}

fn default_port_share() -> Share {
    Share(0.6)
}

fn default_setup() -> Span {
    Span(120.0)
}

fn default_lifetime() -> Span {
    Span(6.0 * 3_600.0)
}

fn default_requests_per_hour() -> u32 {
    30
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Community {
    pub name: String,
    pub share: f64,
    /// Weights of its activities.
    #[serde(default)]
    pub activities: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dataset {
    pub name: String,
    pub count: Option<u32>,
    pub files: u32,
    #[serde(default)]
    pub sizes: Sizes,
    /// Files of a block.
    pub block: Option<u32>,
    pub at: Vec<String>,
    /// At so many of these, chosen by the seed for each dataset; else at all.
    pub copies: Option<u32>,
    /// Share of the replicas beyond the first that are damaged or gone.
    #[serde(default)]
    pub bad: Share,
    /// So many files of each dataset are damaged in every replica.
    #[serde(default)]
    pub damaged: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Sizes {
    Equal(Size),
    /// `grid`: the mixture of the reference; `lognormal`: by median and sigma.
    Spread(SizeDistribution),
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeDistribution {
    pub median: Option<Size>,
    pub sigma: Option<f64>,
    /// The mixture of sizes of the grid, scaled by this.
    pub grid: Option<f64>,
}

impl Default for Sizes {
    fn default() -> Self {
        Sizes::Equal(Size(1e9))
    }
}

/// Datasets wanted at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Campaign {
    #[serde(default)]
    pub at: Span,
    pub datasets: Vec<String>,
    pub to: Vec<String>,
    /// At so many of these, chosen by the seed for each dataset; else at all.
    pub copies: Option<u32>,
    #[serde(flatten)]
    pub terms: RequestTerms,
}

/// What a request asks beside the data.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct RequestTerms {
    #[serde(default)]
    pub community: String,
    #[serde(default)]
    pub activity: String,
    pub priority: Option<u8>,
    /// After the request.
    pub deadline: Option<Span>,
}

/// New datasets that come by and by, or in bursts, each wanted somewhere.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    pub name: String,
    #[serde(default)]
    pub begin: Span,
    pub end: Option<Span>,
    /// Files a day, over all datasets.
    pub files_per_day: f64,
    /// Files of a dataset.
    pub files: u32,
    #[serde(default)]
    pub sizes: Sizes,
    pub from: Vec<String>,
    #[serde(default = "default_copies")]
    pub copies: u32,
    pub to: Vec<String>,
    #[serde(default = "default_copies")]
    pub targets: u32,
    /// More by day than by night, by this part.
    #[serde(default)]
    pub daily: Share,
    /// So many datasets at the same moment.
    #[serde(default = "default_copies")]
    pub burst: u32,
    /// Damaged or gone, of the replicas beyond the first.
    #[serde(default)]
    pub bad: Share,
    #[serde(flatten)]
    pub terms: RequestTerms,
}

fn default_copies() -> u32 {
    1
}

/// Requests as they were, one a line; see `workload::read_recorded`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    pub requests: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    pub kind: FailureKind,
    /// Sites; for links, where from.
    #[serde(default)]
    pub at: Vec<String>,
    /// For links: where to.
    #[serde(default)]
    pub to: Vec<String>,
    #[serde(default)]
    pub begin: Span,
    /// How long it lasts; to the end if not given.
    pub lasts: Option<Span>,
    /// It comes again so often.
    pub every: Option<Span>,
    /// So often a day for each site (or link) named, at times and for lengths by the seed; then `lasts` is
    /// the mean.
    pub per_day: Option<f64>,
    /// What is left of a rate.
    pub factor: Option<f64>,
    /// By what the round trip grows.
    pub rtt_factor: Option<f64>,
    /// The error that attempts end with.
    pub code: Option<String>,
    /// Share of attempts that meet it.
    pub share: Option<Share>,
    /// For clocks: how far, in seconds; may be negative.
    pub jump: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureKind {
    /// Nobody answers there: agents and storages.
    SiteDown,
    /// Attempts from and to there fail at once, with `code`.
    SiteError,
    /// Its storages are slower, by `factor`.
    SlowStorage,
    /// A link carries less, by `factor`.
    LinkDegraded,
    /// The same, on another route: it has another signature and round trip.
    RouteChange,
    /// Permits of the site are refused.
    CredentialOutage,
    /// The agent restarts: what moves is interrupted, what it holds it holds.
    AgentRestart,
    /// There is no room at the site.
    TargetFull,
    /// The service's clock leaps by `jump`.
    ClockJump,
}

/// What the scheduler has been told of a link before the beginning, true or not.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    pub from: Vec<String>,
    pub to: Vec<String>,
    pub rate: Rate,
    #[serde(default)]
    pub failures: Share,
    #[serde(default = "default_transfers")]
    pub transfers: u32,
}

fn default_transfers() -> u32 {
    20
}

/// Why a text is no scenario: where, what, and what to do.
#[derive(Clone, Debug, PartialEq)]
pub struct ScenarioError {
    /// The table and key, or the line and column.
    pub place: String,
    pub what: String,
    pub next: String,
}

impl ScenarioError {
    pub fn new(place: impl Into<String>, what: impl Into<String>, next: impl Into<String>) -> Self {
        ScenarioError { place: place.into(), what: what.into(), next: next.into() }
    }
}

impl std::fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.place, self.what, self.next)
    }
}

impl Scenario {
    /// Reads the text; [`crate::plan::Plan::new`] finds what makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        if text.len() > TEXT_BYTES_MAX {
            let what = format!("{} bytes, the limit is {TEXT_BYTES_MAX}", text.len());
            return Err(ScenarioError::new("the file", what, "use `count` for things that are alike"));
        }
        toml::from_str(text).map_err(|error| {
            let place = error.span().map_or("the file".to_owned(), |span| {
                let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
                format!("line {line}")
            });
            ScenarioError::new(place, error.message(), "docs/reference/scenarios.md has every key")
        })
    }
}
