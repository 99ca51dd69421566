//! `longhaul transfer`.

use std::time::Duration;

use clap::{Args, Subcommand};
use longhaul_api::native::{AttemptView, Choice, Page, TransferDetail, TransferView};
use longhaul_api::routes;
use longhaul_model::units::{self, bytes, duration, printable};
use longhaul_model::{DatasetName, StorageName, Timestamp, TransferId, TransferState};

use super::{Context, status};
use crate::clock;
use crate::failure::{Exit, Failure};
use crate::remote::Remote;
use crate::table::{Cell, Table, facts, left, path, prose, right};
use crate::terminal::{Style, Tone, wrapped};
use crate::time_format;

#[derive(Debug, Subcommand)]
pub enum TransferCommand {
    /// List transfers, most recently changed first
    List(ListArgs),
    /// Show a transfer and its attempts
    Show {
        /// Id of the transfer
        transfer: TransferId,
    },
    /// Explain a transfer: why this source was chosen, what the others would have cost, where the time went
    Explain {
        /// Id of the transfer
        transfer: TransferId,
    },
    /// Retry a waiting or failed transfer now
    Retry {
        /// Id of the transfer
        transfer: TransferId,
    },
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only transfers of this dataset
    #[arg(long)]
    dataset: Option<DatasetName>,
    /// Only transfers from this storage
    #[arg(long)]
    source: Option<StorageName>,
    /// Only transfers to this storage
    #[arg(long)]
    target: Option<StorageName>,
    /// Only transfers in this state: waiting, leased, done, failed or cancelled
    #[arg(long)]
    state: Option<TransferState>,
    /// Maximum number of transfers
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

pub async fn run(context: &Context, remote: &Remote, command: TransferCommand) -> Result<Exit, Failure> {
    match command {
        TransferCommand::List(args) => {
            let query = [
                ("dataset", args.dataset.as_ref().map(|name| name.as_str().to_owned())),
                ("source", args.source.as_ref().map(|name| name.as_str().to_owned())),
                ("target", args.target.as_ref().map(|name| name.as_str().to_owned())),
                ("state", args.state.map(|state| state.word().to_owned())),
            ];
            let page: Page<TransferView> =
                remote.list(&routes::TRANSFER_LIST, &[], &query, args.limit).await?;
            context.output.list(&page, |page| table(&page.items, clock::now()))?;
        }
        TransferCommand::Show { transfer } => {
            let detail = fetch(remote, transfer).await?;
            context
                .output
                .view(&detail, show_text, |detail| attempts_table(&detail.attempts, clock::now()))?;
        }
        TransferCommand::Explain { transfer } => {
            let detail = fetch(remote, transfer).await?;
            let human =
                |detail: &TransferDetail, style, width| explain_text(detail, clock::now(), style, width);
            context.output.view(&detail, human, |detail| {
                candidates_table(detail.attempts.last().map(|last| (&last.choice, last.chosen)), clock::now())
            })?;
        }
        TransferCommand::Retry { transfer } => {
            let view: TransferView =
                remote.post(&routes::TRANSFER_RETRY, &[&transfer.to_string()], &()).await?;
            context.output.sentence(&view, |view| {
                format!("{} to {} is being retried", view.lfn.shown(), view.target)
            })?;
        }
    }
    Ok(Exit::Ok)
}

async fn fetch(remote: &Remote, transfer: TransferId) -> Result<TransferDetail, Failure> {
    remote.get(&routes::TRANSFER_SHOW, &[&transfer.to_string()], &[]).await
}

fn table(transfers: &[TransferView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("transfer"),
        path("file"),
        right("size"),
        left("from"),
        left("to"),
        left("state"),
        right("attempts"),
        left("changed"),
        prose("reason").plain_title("because"),
    ]);
    for transfer in transfers {
        table.row([
            Cell::text(transfer.id.to_string()),
            Cell::text(transfer.lfn.as_str()),
            Cell::bytes(transfer.size),
            Cell::maybe(transfer.source.as_ref(), |source| Cell::text(source.as_str())),
            Cell::text(transfer.target.as_str()),
            state_cell(transfer),
            Cell::count(u64::from(transfer.attempts)),
            Cell::time(transfer.changed, now),
            Cell::text(reason_text(transfer)),
        ]);
    }
    table
}

fn state_cell(transfer: &TransferView) -> Cell {
    let word = transfer.state.word();
    match transfer.state {
        TransferState::Done => Cell::text(word).toned(Tone::Good),
        TransferState::Failed => Cell::text(word).toned(Tone::Bad),
        TransferState::Leased if transfer.size > 0 && transfer.bytes_done > 0 => {
            let share = crate::table::percent(transfer.bytes_done, transfer.size);
            Cell::both(format!("{word} {share} %"), word)
        }
        _ => Cell::text(word),
    }
}

fn reason_text(transfer: &TransferView) -> String {
    match (&transfer.waits_for, &transfer.fault, transfer.verification) {
        (Some(why), _, _) => why.clone(),
        (None, Some(fault), _) if transfer.state != TransferState::Done => format!("{} {fault}", fault.code),
        (None, _, Some(verification)) => format!("verified {verification}"),
        _ => String::new(),
    }
}

fn show_text(detail: &TransferDetail, style: Style, width: Option<usize>) -> String {
    let (transfer, now) = (&detail.transfer, clock::now());
    let mut lines = vec![
        ("transfer", transfer.id.to_string()),
        ("dataset", transfer.dataset.to_string()),
        ("file", format!("{} ({})", transfer.lfn.shown(), bytes(transfer.size))),
        ("to", transfer.target.to_string()),
        ("state", format!("{}, changed {}", transfer.state, time_format::local(transfer.changed, now))),
    ];
    if let Some(why) = &transfer.waits_for {
        lines.push(("waits for", time_format::sentence(why, now)));
    }
    if let Some(fault) = &transfer.fault {
        lines.push(("fault", format!("{} {}", fault.code, printable(&fault.to_string()))));
        lines.push(("turn", status::whose_turn(fault.blame).to_owned()));
        lines.push(("next", fault.code.next_step().to_owned()));
    }
    if let Some(verification) = transfer.verification {
        lines.push(("verified", verification.to_string()));
    }
    let mut text = facts(style, width, &lines);
    text.push('\n');
    text.push_str(&attempts_table(&detail.attempts, now).human(style, width));
    text.push_str(&format!("explain the source: longhaul transfer explain {}\n", transfer.id));
    text
}

fn attempts_table(attempts: &[AttemptView], now: Timestamp) -> Table {
    let mut table = Table::new([
        left("attempt"),
        left("from"),
        left("chosen"),
        right("took"),
        right("moved"),
        right("resent").plain_title("sent again"),
        left("verified"),
        prose("result").plain_title("end"),
    ]);
    for attempt in attempts {
        table.row([
            Cell::text(attempt.id.to_string()),
            Cell::text(attempt.source.as_str()),
            Cell::time(attempt.chosen, now),
            Cell::maybe(attempt_duration(attempt), |took| {
                Cell::both(duration(took), took.as_micros().to_string())
            }),
            Cell::bytes(attempt.bytes_moved),
            Cell::bytes(attempt.bytes_resent),
            Cell::maybe(attempt.verification, |verification| Cell::text(verification.word())),
            Cell::text(end_text(attempt)),
        ]);
    }
    table
}

fn attempt_duration(attempt: &AttemptView) -> Option<Duration> {
    let end = attempt.times.committed.or(attempt.times.last_byte).filter(|_| attempt.finished)?;
    Some(end.since(attempt.times.started.unwrap_or(attempt.chosen)))
}

fn end_text(attempt: &AttemptView) -> String {
    match (&attempt.fault, attempt.finished, attempt.already_there) {
        (Some(fault), _, _) => format!("{} {fault}", fault.code),
        (None, true, true) => "existed already, verified".to_owned(),
        (None, true, false) => "done".to_owned(),
        (None, false, _) => "running".to_owned(),
    }
}

fn explain_text(detail: &TransferDetail, now: Timestamp, style: Style, width: Option<usize>) -> String {
    let transfer = &detail.transfer;
    let mut text = format!(
        "{}  {}  {}  → {}      {}\n",
        transfer.dataset,
        style.paint(Tone::Strong, &transfer.lfn.shown()),
        bytes(transfer.size),
        transfer.target,
        outcome_text(detail)
    );
    if let Some(why) = &transfer.waits_for {
        text.push_str(&format!("waits for {}\n", time_format::sentence(why, now)));
    }
    for (place, attempt) in detail.attempts.iter().enumerate() {
        let number =
            if detail.attempts.len() > 1 { format!("attempt {}: ", place + 1) } else { String::new() };
        text.push_str(&format!(
            "\n{number}source chosen at {}: {}\n",
            time_format::local(attempt.chosen, now),
            printable(&attempt.choice.reason)
        ));
        if let Some(wanted_at) = attempt.choice.way.last() {
            let way: Vec<String> = std::iter::once(&attempt.source)
                .chain(&attempt.choice.way)
                .map(ToString::to_string)
                .collect();
            text.push_str(&format!("  route to {wanted_at}: {}\n", way.join(" → ")));
        }
        if !attempt.choice.charged_to.is_empty() {
            text.push_str(&format!("  charged to {}\n", printable(&attempt.choice.charged_to)));
        }
        if let Some(executor) = attempt.executor {
            text.push_str(&format!("  {}\n", executor.sentence()));
        }
        let table = candidates_table(Some((&attempt.choice, attempt.chosen)), now);
        let table = table.human(style, width.map(|width| width.saturating_sub(2)));
        table.lines().for_each(|line| text.push_str(&format!("  {line}\n")));
        text.push_str(&wrapped(&format!("time: {}", phases_text(attempt)), width, 6));
        text.push('\n');
        if !attempt.digests.is_empty() {
            text.push_str(&format!("digests of the bytes written: {}\n", attempt.digests));
        }
        if let Some(fault) = &attempt.fault {
            text.push_str(&format!(
                "{} {}\n  turn: {}\n  next: {}\n",
                style.paint(Tone::Bad, &fault.code.to_string()),
                printable(&fault.to_string()),
                status::whose_turn(fault.blame),
                fault.code.next_step()
            ));
        }
    }
    text
}

fn outcome_text(detail: &TransferDetail) -> String {
    let transfer = &detail.transfer;
    let mut parts = vec![format!("attempt {}", transfer.attempts.max(1))];
    match (transfer.state, detail.attempts.last().and_then(attempt_duration)) {
        (TransferState::Done, Some(took)) => parts.push(format!("done in {}", duration(took))),
        (state, _) => parts.push(state.to_string()),
    }
    if let Some(verification) = transfer.verification {
        parts.push(format!("verified {verification}"));
    }
    parts.join(", ")
}

/// The chosen source and the alternatives.
fn candidates_table(choice: Option<(&Choice, Timestamp)>, now: Timestamp) -> Table {
    let mut table = Table::new([
        left("source"),
        left("expected"),
        right("rate"),
        left("rate from").plain_title("known by"),
        right("queued").plain_title("work ahead"),
        right("failures"),
        prose("unusable because").plain_title("cannot be used because"),
    ]);
    let Some((choice, chosen)) = choice else { return table };
    for candidate in &choice.candidates {
        let mark = if candidate.chosen { "* " } else { "  " };
        table.row([
            Cell::both(format!("{mark}{}", candidate.storage), candidate.storage.as_str())
                .toned_if(candidate.chosen, Tone::Strong),
            Cell::maybe(candidate.finish_us, |us| Cell::time(chosen.plus(Duration::from_micros(us)), now)),
            Cell::rate(candidate.rate_bytes_per_s),
            Cell::text(&candidate.rate_by),
            Cell::bytes(candidate.bytes_ahead),
            Cell::both(
                format!("{:.1} %", 100.0 * candidate.failure_share),
                format!("{:.4}", candidate.failure_share),
            ),
            Cell::text(candidate.unusable.as_deref().unwrap_or_default()),
        ]);
    }
    table
}

/// Phases of an attempt:
/// `waited 6.2 s (slot on beta → gamma) · connect 12 ms · first byte 0.15 s · data 37.4 s · commit 0.3 s`.
fn phases_text(attempt: &AttemptView) -> String {
    let times = &attempt.times;
    let waited = Duration::from_micros(attempt.choice.waited_us);
    let mut parts = vec![format!("waited {}", duration(waited))];
    if !attempt.choice.waited_for.is_empty() {
        parts[0].push_str(&format!(" ({})", printable(&attempt.choice.waited_for)));
    }
    let mut before = Some(attempt.chosen);
    let marks = [
        ("at the agent after", Some(times.received).filter(|at| *at > Timestamp::ZERO)),
        ("started after", times.started),
        ("first byte after", times.first_byte),
        ("data", times.last_byte),
        ("verified and committed after", times.committed),
    ];
    for (name, at) in marks {
        if let (Some(from), Some(at)) = (before, at) {
            parts.push(format!("{name} {}", duration(at.since(from))));
        }
        before = at.or(before);
    }
    if attempt.bytes_resent > 0 {
        parts.push(format!("{} resent", bytes(attempt.bytes_resent)));
    }
    if let (Some(first), Some(last)) = (times.first_byte, times.last_byte) {
        let seconds = last.since(first).as_secs_f64();
        if seconds >= 0.001 {
            parts.push(format!("at {}", units::rate(attempt.bytes_moved as f64 / seconds)));
        }
    }
    parts.join(" · ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_api::agent::AttemptTimes;
    use longhaul_api::native::Candidate;
    use longhaul_model::{Fault, FaultCode, IdMaker, Verification};

    fn at(seconds: f64) -> Timestamp {
        Timestamp(1_763_733_600_000_000 + (seconds * 1e6) as i64)
    }

    fn detail() -> TransferDetail {
        let mut maker = IdMaker::default();
        let candidate = |name: &str, chosen, unusable: Option<&str>| Candidate {
            storage: name.parse().unwrap(),
            chosen,
            finish_us: unusable.is_none().then_some(38_000_000),
            rate_bytes_per_s: 110e6,
            rate_by: "its own transfers".into(),
            bytes_ahead: 12_000_000_000,
            failure_share: 0.001,
            unusable: unusable.map(str::to_owned),
        };
        TransferDetail {
            transfer: TransferView {
                id: maker.next(at(0.0)),
                dataset: "higgs/run7-aod".parse().unwrap(),
                lfn: "higgs/run7/\u{1b}[2Jf00172.root".parse().unwrap(),
                size: 4_100_000_000,
                target: "gamma".parse().unwrap(),
                source: Some("beta".parse().unwrap()),
                state: TransferState::Done,
                attempts: 1,
                bytes_done: 4_100_000_000,
                changed: at(40.0),
                waits_for: None,
                fault: None,
                verification: Some(Verification::EndToEnd),
            },
            attempts: vec![AttemptView {
                id: maker.next(at(0.0)),
                source: "beta".parse().unwrap(),
                chosen: at(0.0),
                choice: Choice {
                    reason: "beta, because it finishes first: 38 s".into(),
                    way: vec!["gamma".parse().unwrap(), "delta".parse().unwrap()],
                    charged_to: "atlas, production".into(),
                    candidates: vec![
                        candidate("beta", true, None),
                        candidate("alpha", false, Some("paused")),
                    ],
                    waited_us: 6_200_000,
                    waited_for: "slot on beta → gamma: 8 of 8 busy".into(),
                },
                times: AttemptTimes {
                    received: at(0.01),
                    started: Some(at(0.02)),
                    first_byte: Some(at(0.15)),
                    last_byte: Some(at(37.6)),
                    committed: Some(at(37.9)),
                },
                bytes_moved: 4_100_000_000,
                bytes_resent: 0,
                executor: None,
                fault: None,
                verification: Some(Verification::EndToEnd),
                digests: "adler32:0a1b2c3d".parse().unwrap(),
                already_there: false,
                finished: true,
            }],
        }
    }

    /// Promise 10: every choice can be explained afterwards.
    #[test]
    fn explains_choice_and_time() {
        let text = explain_text(&detail(), at(60.0), Style::plain(), Some(120));
        for part in [
            "higgs/run7-aod  higgs/run7/\\u{1b}[2Jf00172.root  4.10 GB  → gamma      attempt 1, done in 37 \
                s, verified end-to-end",
            "beta, because it finishes first",
            "* beta",
            "route to delta: beta → gamma → delta",
            "charged to atlas, production",
            "its own transfers",
            "paused",
            "waited 6.2 s (slot on beta → gamma: 8 of 8 busy)",
            "data 37 s",
            "verified and committed after 300 ms",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_failed_attempt_says_whose_turn_it_is() {
        let mut detail = detail();
        detail.attempts[0].fault = Some(Fault::new(FaultCode::WrongDigest, "f00172.root at alpha"));
        let text = explain_text(&detail, at(60.0), Style::plain(), None);
        assert!(text.contains("turn: the source's administrator"), "{text}");
        assert!(text.contains(FaultCode::WrongDigest.next_step()), "{text}");
    }
}
