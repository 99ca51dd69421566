//! Deadlines: how likely each is kept, and a warning while one is more likely missed than kept.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_api::native::ChangeKind;
use longhaul_api::steering::Promise;
use longhaul_catalog::{CatalogError, SubscriptionRow};
use longhaul_model::{SubscriptionId, Timestamp, units};
use longhaul_scheduler::{Event, Outlook, Scheduler};
use parking_lot::Mutex;

use crate::brain::Input;
use crate::control::Control;

/// A warning begins below this chance: the deadline is more likely missed than met.
const DANGER_BELOW: f64 = 0.5;
/// A warning ends above this chance. The gap to its beginning is hysteresis: it does not flicker.
const SAFE_ABOVE: f64 = 0.75;
/// Expediting ends above this chance. It is higher than the end of the warning, since the chance counts on
/// that help.
const EASY_ABOVE: f64 = 0.95;

/// Deadlines in danger at the last check.
#[derive(Default)]
pub struct Deadlines {
    danger: Mutex<BTreeMap<SubscriptionId, Danger>>,
}

#[derive(Clone, Debug)]
pub struct Danger {
    pub since: Timestamp,
    pub seen: Timestamp,
    /// A sentence for people: what is late, where, and why.
    pub words: String,
}

impl Deadlines {
    pub fn since(&self, subscription: SubscriptionId) -> Option<Timestamp> {
        self.danger.lock().get(&subscription).map(|danger| danger.since)
    }

    pub fn all(&self) -> Vec<(SubscriptionId, Danger)> {
        self.danger.lock().iter().map(|(id, danger)| (*id, danger.clone())).collect()
    }

    /// Applies the present chances; returns the deadlines that got into danger (true) or out of it.
    fn update(
        &self,
        seen: Vec<(SubscriptionId, f64, String)>,
        now: Timestamp,
    ) -> Vec<(SubscriptionId, bool)> {
        let mut danger = self.danger.lock();
        let mut changed = Vec::new();
        let before = std::mem::take(&mut *danger);
        for (id, chance, words) in seen {
            let was = before.get(&id).map(|danger| danger.since);
            let is = chance < if was.is_some() { SAFE_ABOVE } else { DANGER_BELOW };
            if is {
                danger.insert(id, Danger { since: was.unwrap_or(now), seen: now, words });
            }
            if is != was.is_some() {
                changed.push((id, is));
            }
        }
        let gone = before
            .keys()
            .filter(|id| !danger.contains_key(*id) && !changed.iter().any(|(seen, _)| seen == *id));
        let gone: Vec<(SubscriptionId, bool)> = gone.map(|id| (*id, false)).collect();
        changed.extend(gone);
        changed
    }
}

/// Checks every deadline. One without an estimate is in danger when more than half of its time is over:
/// something blocks it, for nobody knows how long.
pub fn watch(control: &Control) -> Result<(), CatalogError> {
    let rows = control.kernel.catalog.subscriptions_with_deadline()?;
    if rows.is_empty() && control.deadlines.all().is_empty() {
        return Ok(());
    }
    let ids: Vec<SubscriptionId> = rows.iter().map(|row| row.id).collect();
    let ask = move |scheduler: &Scheduler, now: Timestamp| {
        ids.into_iter().map(|id| scheduler.outlook(id, now)).collect::<Vec<Outlook>>()
    };
    // A scheduler that does not answer is asked again at the next check.
    let Some(outlooks) = control.kernel.scheduler.query(ask) else { return Ok(()) };
    let now = control.kernel.now();
    let promises = rows.iter().zip(&outlooks).filter_map(|(row, outlook)| {
        let promise = promise(row, outlook, None, now)?;
        let what = row.block_name.as_ref().map_or_else(|| row.dataset_name.to_string(), ToString::to_string);
        let words = format!("{what} at {}: {}", row.target_name, promise.words);
        Some((row.id, promise.chance.unwrap_or_else(|| blindly(row, now)), words))
    });
    let seen: Vec<(SubscriptionId, f64, String)> = promises.collect();
    let chances: BTreeMap<SubscriptionId, f64> = seen.iter().map(|(id, chance, _)| (*id, *chance)).collect();
    let changed = control.deadlines.update(seen, now);
    plan(control, rows.iter().zip(&outlooks), &chances, now);
    for (id, danger) in changed {
        if danger {
            tracing::warn!(subscription = %id, "its deadline is in danger");
        } else {
            tracing::info!(subscription = %id, "its deadline is in danger no more");
        }
        control.kernel.changes.touch(ChangeKind::Subscription, id, now);
        control.kernel.changes.touch(ChangeKind::Problem, "", now);
    }
    Ok(())
}

/// A deadline in danger goes before other work of its activity, until it is as good as safe or has passed.
fn plan<'a>(
    control: &Control,
    all: impl Iterator<Item = (&'a SubscriptionRow, &'a Outlook)>,
    chances: &BTreeMap<SubscriptionId, f64>,
    now: Timestamp,
) {
    let events = all.filter_map(|(row, outlook)| {
        let passed = row.terms.deadline.is_none_or(|deadline| deadline <= now);
        let chance = chances.get(&row.id).copied().unwrap_or(1.0);
        let hurry = !passed && hurry(chance, outlook.expedited, control.deadlines.since(row.id).is_some());
        (hurry != outlook.expedited).then(|| {
            tracing::info!(subscription = %row.id, chance, hurry, "its place within its activity changes");
            Event::Expedite { subscription: row.id, expedite: hurry }
        })
    });
    let events: Vec<Event> = events.collect();
    if !events.is_empty() {
        control.kernel.notify_scheduler(Input::Events(events));
    }
}

fn hurry(chance: f64, hurried: bool, in_danger: bool) -> bool {
    if hurried { chance < EASY_ABOVE } else { in_danger }
}

/// The chance that is assumed without an estimate.
fn blindly(row: &SubscriptionRow, now: Timestamp) -> f64 {
    let all = row.terms.deadline.map_or(Duration::ZERO, |deadline| deadline.since(row.created));
    if now.since(row.created) > all / 2 { 0.0 } else { 1.0 }
}

/// What can be said about a subscription's deadline; none if it has none.
pub fn promise(
    row: &SubscriptionRow,
    outlook: &Outlook,
    in_danger_since: Option<Timestamp>,
    now: Timestamp,
) -> Option<Promise> {
    let deadline = row.terms.deadline?;
    if deadline <= now {
        let late = units::duration(now.since(deadline));
        let words = format!("the deadline {deadline} passed {late} ago");
        return Some(Promise { chance: Some(0.0), words, in_danger_since });
    }
    let chance = outlook.chance_by(deadline, now);
    let words = match (chance, &outlook.why_none, &outlook.stuck) {
        (Some(chance), ..) => {
            let rests_on =
                outlook.rests_on.map(|basis| format!("; the rate rests on {basis}")).unwrap_or_default();
            let spare = spare(outlook.median, deadline);
            format!("{} chance by {deadline}{spare}{rests_on}", percent(chance))
        }
        (None, Some(why), _) => format!("no chance can be told for {deadline}: {why}"),
        (None, None, Some(stuck)) => {
            format!("not all of it can be there by {deadline} as things are: {}", stuck.why)
        }
        (None, None, None) => format!("no chance can be told for {deadline}"),
    };
    let plan = if outlook.expedited { "; it goes before all other work of its activity now" } else { "" };
    Some(Promise { chance, words: format!("{words}{plan}"), in_danger_since })
}

/// How far from the deadline it is expected.
fn spare(median: Option<Timestamp>, deadline: Timestamp) -> String {
    match median {
        Some(median) if median <= deadline => {
            format!(", expected {} before", units::duration(deadline.since(median)))
        }
        Some(median) => format!(", expected {} after", units::duration(median.since(deadline))),
        None => String::new(),
    }
}

/// Nothing is certain beforehand.
fn percent(chance: f64) -> String {
    match chance {
        chance if chance > 0.99 => "more than 99 %".to_owned(),
        chance if chance < 0.01 => "less than 1 %".to_owned(),
        chance => format!("{:.0} %", 100.0 * chance),
    }
}

/// Time between two checks of all deadlines.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_comes_once_and_goes_only_when_it_is_safe_again() {
        let deadlines = Deadlines::default();
        let id = SubscriptionId(1);
        let at = Timestamp::from_seconds;
        let look = |chance, seconds| deadlines.update(vec![(id, chance, String::new())], at(seconds));
        assert_eq!(look(0.6, 1), []);
        assert_eq!(look(0.4, 2), [(id, true)]);
        assert_eq!(look(0.6, 3), [], "better, and not yet well");
        assert_eq!(deadlines.since(id), Some(at(2)));
        assert_eq!(look(0.8, 4), [(id, false)]);
        assert_eq!(look(0.6, 5), []);
        assert_eq!(look(0.1, 6), [(id, true)]);
        assert_eq!(deadlines.update(Vec::new(), at(7)), [(id, false)], "it is complete, or wanted no more");
        assert!(deadlines.all().is_empty());
    }

    /// Without hysteresis it would be expedited and demoted at alternate checks.
    #[test]
    fn what_hurries_does_so_until_it_is_as_good_as_safe() {
        let steps = [(0.6, false), (0.4, true), (0.6, true), (0.8, true), (0.94, true), (0.97, false)];
        let (mut hurried, mut danger) = (false, false);
        for (chance, expected) in steps {
            danger = chance < if danger { SAFE_ABOVE } else { DANGER_BELOW };
            hurried = hurry(chance, hurried, danger);
            assert_eq!(hurried, expected, "{chance}");
        }
    }

    #[test]
    fn nothing_is_promised_as_certain() {
        assert_eq!([percent(1.0), percent(0.9), percent(0.0)], ["more than 99 %", "90 %", "less than 1 %"]);
    }
}
