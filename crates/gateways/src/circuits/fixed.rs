//! The static provider: a pair of addresses that is always there, lent to one at a time, and to another that follows it.

use std::collections::BTreeSet;

use longhaul_circuits::{Answer, Event, Grant, RequestKey, Wish};
use longhaul_model::Timestamp;

use super::{FixedConfig, Provider};

/// One that is used, and one that is to be used in its place.
const HELD_MAX: usize = 2;

pub(super) struct Fixed {
    config: FixedConfig,
    held: BTreeSet<RequestKey>,
    /// With the time from which each may be told.
    news: Vec<(Timestamp, Event)>,
}

impl Fixed {
    pub(super) fn new(config: FixedConfig) -> Fixed {
        Fixed { config, held: BTreeSet::new(), news: Vec::new() }
    }

    fn answer(&mut self, wish: &Wish, at: Timestamp) -> Answer {
        let refused = |less, detail| Answer::Refused { less, detail };
        if let Some(detail) = &self.config.refuse {
            return refused(false, detail.clone());
        }
        if wish.mbit > self.config.mbit {
            return refused(true, format!("there are {} Mbit/s", self.config.mbit));
        }
        if self.held.len() >= HELD_MAX {
            return refused(false, "it is in use".to_owned());
        }
        self.held.insert(wish.key);
        let lasts = [self.config.lasts, wish.lifetime].into_iter().flatten().min();
        let expires = lasts.map(|lasts| at.plus(lasts));
        Answer::Granted(Grant { mbit: wish.mbit, ends: self.config.ends.clone(), expires })
    }
}

impl Provider for Fixed {
    fn request(&mut self, wish: &Wish, now: Timestamp) {
        if self.config.silent {
            return;
        }
        let at = now.plus(self.config.setup);
        let answer = self.answer(wish, at);
        self.news.push((at, Event::Answer { key: wish.key, answer }));
    }

    fn tear_down(&mut self, key: RequestKey, now: Timestamp) {
        self.held.remove(&key);
        self.news.retain(|(_, event)| !matches!(event, Event::Answer { key: of, .. } if *of == key));
        self.news.push((now, Event::Gone(key)));
    }

    /// It remembers nothing of earlier runs, so that its list would prove nothing.
    fn list(&mut self, _now: Timestamp) {}

    fn news(&mut self, now: Timestamp) -> Vec<Event> {
        self.news.extract_if(.., |(at, _)| *at <= now).map(|(_, event)| event).collect()
    }

    fn next_news(&self) -> Option<Timestamp> {
        self.news.iter().map(|(at, _)| *at).min()
    }
}
