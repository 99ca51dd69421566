//! `longhaul subscribe` and `longhaul subscription`.

use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_api::formats::SubscriptionPriority;
use longhaul_api::native::{Page, Subscribe, SubscriptionChange, SubscriptionView};
use longhaul_api::routes;
use longhaul_api::steering::{Terms, TermsChange};
use longhaul_model::units::{self, bytes, count, printable};
use longhaul_model::{
    ActivityName, BlockName, CommunityName, DatasetName, FaultCode, StorageName, SubscriptionId,
    SubscriptionState, Timestamp, Verification,
};
use longhaul_scheduler::Strategy;

use super::{Context, status, words};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::progress::{Measure, ProgressBoard, REPAINT_INTERVAL, lines};
use crate::remote::{LIST_ITEMS_MAX, RETRY_TIMEOUT, Remote};
use crate::table::{Cell, Table, facts, left, prose, right};
use crate::terminal::{Style, Tone};
use crate::time_format;

/// A wait shows that the service is silent from here on; a slow answer is no news.
const SILENCE_SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Priorities of subscriptions: 1 (lowest) to 9.
const PRIORITIES: std::ops::RangeInclusive<i64> =
    *SubscriptionPriority::RANGE.start() as i64..=*SubscriptionPriority::RANGE.end() as i64;

#[derive(Debug, Args)]
pub struct SubscribeArgs {
    /// Dataset, such as higgs/run7-aod, or one of its blocks, such as higgs/run7-aod#0001
    #[arg(value_name = "DATASET|BLOCK")]
    what: DatasetOrBlock,
    /// Storage to keep it at
    storage: StorageName,
    /// Priority of the subscription: 1 (lowest) to 9; jobs have 1 to 5 [default: 5]
    #[arg(long, short, value_parser = clap::value_parser!(u8).range(PRIORITIES))]
    priority: Option<u8>,
    /// How to verify: wire, end-to-end or readback [default: end-to-end]
    #[arg(long, value_name = "HOW")]
    verify: Option<Verification>,
    /// Community whose share is charged [default: the dataset's]
    #[arg(long)]
    community: Option<CommunityName>,
    /// Activity within the community, such as production
    #[arg(long)]
    activity: Option<ActivityName>,
    /// How to choose sources: best or one of FTS3's nine [default: the target's or the service's]
    #[arg(long)]
    strategy: Option<Strategy>,
    /// Keep it on purpose: only a manager of the data's community and one of the site can cancel it, together
    #[arg(long)]
    custodial: bool,
    /// When all of it must be there: 14:00, "2026-11-28 14:00", 2026-11-28T13:00:00Z, or from now: 90m, 6h,
    /// 2d
    #[arg(long, value_name = "TIME", value_parser = time_format::parse)]
    deadline: Option<Timestamp>,
    /// Wait until it is complete, with progress; with SECONDS at most that long
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "0", require_equals = true)]
    wait: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub enum SubscriptionCommand {
    /// List subscriptions with progress and expected end
    List(ListArgs),
    /// Show a subscription
    Show {
        /// Id of the subscription
        subscription: SubscriptionId,
    },
    /// Suspend a subscription: start nothing new for it; running transfers finish
    Suspend {
        /// Id of the subscription
        subscription: SubscriptionId,
    },
    /// Resume a suspended subscription
    Resume {
        /// Id of the subscription
        subscription: SubscriptionId,
    },
    /// Cancel a subscription; files that have arrived stay. A custodial one needs two people in two roles
    Cancel {
        /// Id of the subscription
        subscription: SubscriptionId,
    },
    /// Change a subscription's priority, on the scale of subscriptions (1 to 9)
    Priority {
        /// Id of the subscription
        subscription: SubscriptionId,
        /// Priority of the subscription: 1 (lowest) to 9; jobs have 1 to 5
        #[arg(value_parser = clap::value_parser!(u8).range(PRIORITIES))]
        priority: u8,
    },
    /// Change a subscription's community, activity, strategy or deadline
    Change(ChangeArgs),
}

#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Id of the subscription
    subscription: SubscriptionId,
    #[command(flatten)]
    what: TermChanges,
}

/// Terms to change; what is not given stays.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
pub struct TermChanges {
    /// Community whose share is charged, or none for the dataset's
    #[arg(long)]
    community: Option<String>,
    /// Activity within the community, or none
    #[arg(long)]
    activity: Option<String>,
    /// How to choose sources, or none for the target's or the service's default
    #[arg(long, value_parser = super::storage::parse_strategy)]
    strategy: Option<String>,
    /// When all of it must be there, as for subscribe, or none
    #[arg(long, value_name = "TIME", value_parser = parse_time_or_none)]
    deadline: Option<String>,
}

/// A time as in the API, in full, or `none`.
fn parse_time_or_none(text: &str) -> Result<String, String> {
    if text == "none" { Ok(text.to_owned()) } else { time_format::parse(text).map(|at| at.to_string()) }
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only subscriptions to this dataset
    #[arg(long)]
    dataset: Option<DatasetName>,
    /// Only subscriptions at this storage
    #[arg(long)]
    storage: Option<StorageName>,
    /// Only subscriptions in this state: active, suspended or cancelled
    #[arg(long)]
    state: Option<SubscriptionState>,
    /// Maximum number of subscriptions [default: all, up to 100,000]
    #[arg(long, default_value_t = LIST_ITEMS_MAX, hide_default_value = true)]
    limit: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub enum DatasetOrBlock {
    Dataset(DatasetName),
    Block(BlockName),
}

impl std::str::FromStr for DatasetOrBlock {
    type Err = longhaul_model::NameError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.contains('#') {
            text.parse().map(DatasetOrBlock::Block)
        } else {
            text.parse().map(DatasetOrBlock::Dataset)
        }
    }
}

pub async fn subscribe(context: &Context, remote: &Remote, args: SubscribeArgs) -> Result<Exit, Failure> {
    let (dataset, block) = match args.what {
        DatasetOrBlock::Dataset(dataset) => (dataset, None),
        DatasetOrBlock::Block(block) => (block.dataset(), Some(block)),
    };
    let wish = Subscribe {
        dataset,
        block,
        storage: args.storage,
        priority: args.priority,
        verification: args.verify,
        custodial: args.custodial,
        terms: Terms {
            community: args.community,
            activity: args.activity,
            strategy: args.strategy.map(|strategy| strategy.to_string()),
            deadline: args.deadline,
        },
    };
    let made: SubscriptionView = remote.post(&routes::SUBSCRIPTION_CREATE, &[], &wish).await?;
    if let Some(warning) = &made.space_warning {
        context.output.print_message(&format!("warning: {}", printable(warning)));
    }
    let Some(seconds) = args.wait else {
        context.output.sentence(&made, |made| {
            format!(
                "{} will be at {}: {}, {} to go{}; see: longhaul subscription show {}",
                subject(made),
                made.storage,
                words::files(made.files_wanted.saturating_sub(made.files_present)),
                bytes(made.bytes_wanted.saturating_sub(made.bytes_present)),
                made.promise
                    .as_ref()
                    .map(|promise| format!("; {}", time_format::sentence(&promise.words, clock::now())))
                    .unwrap_or_default(),
                made.id
            )
        })?;
        return Ok(Exit::Ok);
    };
    let limit = (seconds > 0).then(|| Duration::from_secs(seconds));
    wait(context, remote, &made, limit).await
}

async fn wait(
    context: &Context,
    remote: &Remote,
    made: &SubscriptionView,
    limit: Option<Duration>,
) -> Result<Exit, Failure> {
    let id = made.id;
    let goes_on = || {
        format!(
            "the subscription continues; see: longhaul subscription show {id}     cancel: longhaul \
                subscription cancel {id}"
        )
    };
    let watch = async {
        match limit {
            Some(limit) => {
                tokio::time::timeout(limit, watch(context, remote, made)).await.unwrap_or_else(|_| {
                    Err(Failure::new(
                        FaultCode::Busy,
                        format!(
                            "{} is not complete at {} after {}",
                            subject(made),
                            made.storage,
                            units::duration(limit)
                        ),
                    )
                    .with_title("timed out")
                    .with_remedy(format!("the subscription continues; see: longhaul subscription show {id}"))
                    .with_exit(Exit::TimedOut))
                })
            }
            None => watch(context, remote, made).await,
        }
    };
    let Some(done) = super::unless_interrupted(context, goes_on, watch).await? else {
        return Ok(Exit::Interrupted);
    };
    context.output.sentence(&done, |done| {
        if done.complete && done.files_wanted == 0 {
            return format!("{} is complete at {}: it is empty", subject(done), done.storage);
        }
        format!(
            "{} is complete at {}: {}, {}; verified: {}",
            subject(done),
            done.storage,
            words::files(done.files_present),
            bytes(done.bytes_present),
            words::verified(&done.verified)
        )
    })?;
    Ok(if done.complete { Exit::Ok } else { Exit::Partly })
}

async fn watch(
    context: &Context,
    remote: &Remote,
    made: &SubscriptionView,
) -> Result<SubscriptionView, Failure> {
    let mut board = ProgressBoard::new(context.output.error, context.output.quiet);
    let mut view = made.clone();
    let mut answered = clock::now();
    loop {
        let now = clock::now();
        let name = view.storage.to_string();
        let mut measure = measure(&view, now);
        if now.since(answered) >= SILENCE_SHOWN_AFTER {
            measure.end = status::no_answer_since(answered, now);
        }
        let line = lines(&[(&name, measure.clone())], context.output.error.width());
        board.show(now, &line, || measure.plain(&name));
        if view.complete || view.state == SubscriptionState::Cancelled {
            board.clear();
            return Ok(view);
        }
        tokio::time::sleep(REPAINT_INTERVAL).await;
        let id = made.id.to_string();
        match remote.poll(&routes::SUBSCRIPTION_SHOW, &[&id]).await? {
            Some(fresh) => (view, answered) = (fresh, clock::now()),
            None if clock::now().since(answered) < RETRY_TIMEOUT => {}
            None => view = remote.get(&routes::SUBSCRIPTION_SHOW, &[&id], &[]).await?,
        }
    }
}

/// Says how many files an estimate leaves out; empty if it is of all.
pub fn stuck_clause(view: &SubscriptionView) -> String {
    let stuck = view.expected.stuck.as_ref();
    stuck.map_or_else(String::new, |stuck| format!("; {} cannot come", units::count(stuck.files)))
}

/// Progress of a subscription as one line; also used for the demo's block.
pub fn measure(view: &SubscriptionView, now: Timestamp) -> Measure {
    let end = match (view.complete, view.completed, view.expected.median) {
        (true, Some(at), _) => format!("done {}", time_format::local(at, now)),
        (true, None, _) => "done".to_owned(),
        (false, _, Some(at)) => {
            let end = if at > now { time_format::expected(at, now) } else { "soon".to_owned() };
            format!("done {end}{}", stuck_clause(view))
        }
        (false, _, None) => {
            view.expected.why_none.as_ref().map(|why| time_format::sentence(why, now)).unwrap_or_default()
        }
    };
    Measure {
        files_done: view.files_present,
        files: Some(view.files_wanted),
        bytes_done: view.bytes_present,
        bytes: Some(view.bytes_wanted),
        // Current rate over the last ten seconds; at the end only the average is meaningful.
        rate_now: if view.complete { 0.0 } else { view.rate_now },
        rate_average: view.rate_average,
        end,
        left: String::new(),
        notes: if view.retries > 0 { words::retries(view.retries) } else { String::new() },
    }
}

pub async fn run(context: &Context, remote: &Remote, command: SubscriptionCommand) -> Result<Exit, Failure> {
    let (id, change) = match command {
        SubscriptionCommand::List(args) => return list(context, remote, args).await,
        SubscriptionCommand::Show { subscription } => {
            let view: SubscriptionView =
                remote.get(&routes::SUBSCRIPTION_SHOW, &[&subscription.to_string()], &[]).await?;
            context.output.view(&view, human, |view| table(std::slice::from_ref(view), clock::now()))?;
            return Ok(Exit::Ok);
        }
        SubscriptionCommand::Suspend { subscription } => {
            (subscription, state_change(SubscriptionState::Suspended))
        }
        SubscriptionCommand::Resume { subscription } => {
            (subscription, state_change(SubscriptionState::Active))
        }
        SubscriptionCommand::Cancel { subscription } => {
            (subscription, state_change(SubscriptionState::Cancelled))
        }
        SubscriptionCommand::Priority { subscription, priority } => {
            (subscription, SubscriptionChange { priority: Some(priority), ..SubscriptionChange::default() })
        }
        SubscriptionCommand::Change(args) => {
            let TermChanges { community, activity, strategy, deadline } = args.what;
            let terms = TermsChange { community, activity, strategy, deadline };
            (args.subscription, SubscriptionChange { terms, ..SubscriptionChange::default() })
        }
    };
    let view: SubscriptionView =
        remote.patch(&routes::SUBSCRIPTION_CHANGE, &[&id.to_string()], &change).await?;
    context.output.sentence(&view, |view| {
        let terms = terms_text(&view.terms);
        let promise = view
            .promise
            .as_ref()
            .map(|promise| format!("; {}", time_format::sentence(&promise.words, clock::now())));
        format!(
            "{} to {} is {}, priority {}{}{}{}",
            subject(view),
            view.storage,
            view.state,
            words::subscription_priority(view.priority),
            if terms.is_empty() { "" } else { ", " },
            terms,
            promise.unwrap_or_default()
        ) + &consent_text(view)
    })?;
    Ok(Exit::Ok)
}

/// What is still needed to cancel a custodial subscription; empty if nobody wants that.
fn consent_text(view: &SubscriptionView) -> String {
    let Some(consent) = &view.cancel_consent else { return String::new() };
    format!(
        "\nit is custodial and stays: {} wants it cancelled, and {} has to consent within seven days, by\n\
            longhaul subscription cancel {}",
        printable(&consent.who),
        printable(&consent.missing),
        view.id
    )
}

fn state_change(state: SubscriptionState) -> SubscriptionChange {
    SubscriptionChange { state: Some(state), ..SubscriptionChange::default() }
}

async fn list(context: &Context, remote: &Remote, args: ListArgs) -> Result<Exit, Failure> {
    let query = [
        ("dataset", args.dataset.as_ref().map(|name| name.as_str().to_owned())),
        ("storage", args.storage.as_ref().map(|name| name.as_str().to_owned())),
        ("state", args.state.map(|state| state.word().to_owned())),
    ];
    let page: Page<SubscriptionView> =
        remote.list(&routes::SUBSCRIPTION_LIST, &[], &query, args.limit).await?;
    context.output.list(&page, |page| table(&page.items, clock::now()))?;
    Ok(Exit::Ok)
}

fn subject(view: &SubscriptionView) -> String {
    view.block.as_ref().map_or_else(|| view.dataset.to_string(), |block| block.to_string())
}

/// The terms in words; empty if there are none.
fn terms_text(terms: &Terms) -> String {
    let mut parts = Vec::new();
    parts.extend(terms.community.as_ref().map(|community| format!("charged to {community}")));
    parts.extend(terms.activity.as_ref().map(|activity| format!("activity {activity}")));
    parts
        .extend(terms.strategy.as_ref().map(|strategy| format!("sources chosen by {}", printable(strategy))));
    parts.join(", ")
}

fn table(list: &[SubscriptionView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("subscription"),
        left("dataset or block"),
        left("to"),
        left("state"),
        right("priority"),
        right("done"),
        right("left"),
        right("rate now"),
        left("expected"),
        prose("held up by"),
    ]);
    for view in list {
        table.row([
            Cell::text(view.id.to_string()),
            Cell::text(subject(view)),
            Cell::text(view.storage.as_str()),
            Cell::text(view.state.word()).toned_if(view.state == SubscriptionState::Suspended, Tone::Warn),
            Cell::both(words::subscription_priority(view.priority), view.priority.to_string()),
            status::done_cell(view),
            Cell::bytes(view.bytes_wanted.saturating_sub(view.bytes_present)),
            Cell::rate(view.rate_now),
            status::expected_cell(view, now),
            status::delay_cell(view),
        ]);
    }
    table
}

fn human(view: &SubscriptionView, style: Style, width: Option<usize>) -> String {
    let now = clock::now();
    let mut lines = vec![
        ("subscription", format!("{}: {} at {}", view.id, subject(view), view.storage)),
        (
            "state",
            format!(
                "{}{}, priority {}",
                view.state,
                if view.complete { ", complete" } else { "" },
                words::subscription_priority(view.priority)
            ),
        ),
        (
            "done",
            format!(
                "{} %: {} of {}, {} of {}",
                status::percent_done(view),
                count(view.files_present),
                words::files(view.files_wanted),
                bytes(view.bytes_present),
                bytes(view.bytes_wanted)
            ),
        ),
        (
            "rate",
            format!("{} now, {} on average", words::rate(view.rate_now), words::rate(view.rate_average)),
        ),
        ("running", words::files(view.files_running)),
        ("retries", format!("{} since it was created", words::retries(view.retries))),
        ("verified", words::verified(&view.verified)),
        ("verify", view.verification.to_string()),
        ("created", time_format::local(view.created, now)),
    ];
    if view.custodial {
        let standing = view.cancel_consent.as_ref().map(|consent| {
            let (who, missing) = (printable(&consent.who), printable(&consent.missing));
            format!("; {who} wants it cancelled, {missing} has to consent")
        });
        lines.push(("custodial", format!("two people cancel it{}", standing.unwrap_or_default())));
    }
    let terms = terms_text(&view.terms);
    if !terms.is_empty() {
        lines.push(("terms", terms));
    }
    match (&view.promise, view.terms.deadline) {
        (Some(promise), _) => {
            let danger = if promise.in_danger_since.is_some() { "in danger: " } else { "" };
            lines.push(("deadline", format!("{danger}{}", time_format::sentence(&promise.words, now))));
        }
        (None, Some(deadline)) => lines.push(("deadline", time_format::local(deadline, now))),
        (None, None) => {}
    }
    lines.extend(view.space_warning.as_ref().map(|warning| ("space", printable(warning))));
    if view.failed_files > 0 {
        lines.push(("failed", words::files(view.failed_files)));
    }
    if !view.sources.is_empty() {
        lines.push(("sources", sources_text(view)));
    }
    lines.extend(end_facts(view, now));
    facts(style, width, &lines)
}

fn sources_text(view: &SubscriptionView) -> String {
    let all: u64 = view.sources.iter().map(|source| source.files).sum();
    let shown: Vec<String> = view
        .sources
        .iter()
        .map(|source| {
            format!(
                "{} {} % ({}, {})",
                source.storage,
                crate::table::rounded_percent(source.files, all),
                words::files(source.files),
                bytes(source.bytes)
            )
        })
        .collect();
    shown.join(", ")
}

fn end_facts(view: &SubscriptionView, now: Timestamp) -> Vec<(&'static str, String)> {
    if let (true, Some(at)) = (view.complete, view.completed) {
        return vec![("completed", time_format::local(at, now))];
    }
    let stuck = stuck_clause(view);
    let expected = match (view.expected.median, view.expected.ninety) {
        (Some(median), Some(ninety)) => {
            let (median, ninety) = (time_format::ahead(median, now), time_format::ahead(ninety, now));
            format!("{median}; 90 %: {ninety}{stuck}")
        }
        (Some(median), None) => format!("{}{stuck}", time_format::ahead(median, now)),
        (None, _) => format!(
            "no estimate: {}",
            view.expected
                .why_none
                .as_deref()
                .map_or("reason unknown".into(), |why| time_format::sentence(why, now))
        ),
    };
    let mut lines = vec![("expected", expected)];
    lines.extend(view.expected.held_up_by.iter().map(|why| ("held up by", time_format::sentence(why, now))));
    lines
}
