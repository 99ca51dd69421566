//! The static provider: a configured pair of addresses, granted to one request at a time, and to a successor
//! that follows it.

use std::collections::BTreeSet;

use longhaul_circuits::{Answer, CircuitRequest, Event, Grant, RequestKey};
use longhaul_model::Timestamp;

use super::{FixedConfig, Provider};

/// Circuits held at a time: one in use, and its successor.
const HELD_MAX: usize = 2;

pub(super) struct Fixed {
    config: FixedConfig,
    held: BTreeSet<RequestKey>,
    /// Events with the time from which each is due.
    news: Vec<(Timestamp, Event)>,
}

impl Fixed {
    pub(super) fn new(config: FixedConfig) -> Fixed {
        Fixed { config, held: BTreeSet::new(), news: Vec::new() }
    }

    fn answer(&mut self, wish: &CircuitRequest, at: Timestamp) -> Answer {
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
    fn request(&mut self, wish: &CircuitRequest, now: Timestamp) {
        if self.config.silent {
            return;
        }
        let at = now.plus(self.config.setup);
        let answer = self.answer(wish, at);
        let is_granted = matches!(answer, Answer::Granted(_));
        self.news.push((at, Event::Answer { key: wish.key, answer }));
        if let Some(after) = self.config.lose_after.filter(|_| is_granted) {
            let answer = Answer::Lost { detail: "its file says that it is lost now".to_owned() };
            self.news.push((at.plus(after), Event::Answer { key: wish.key, answer }));
        }
    }

    fn tear_down(&mut self, key: RequestKey, now: Timestamp) {
        self.held.remove(&key);
        self.news.retain(|(_, event)| !matches!(event, Event::Answer { key: of, .. } if *of == key));
        self.news.push((now, Event::TornDown(key)));
    }

    /// There is no memory of earlier runs, so a listing would prove nothing.
    fn list(&mut self, _now: Timestamp) {}

    fn news(&mut self, now: Timestamp) -> Vec<Event> {
        self.news.extract_if(.., |(at, _)| *at <= now).map(|(_, event)| event).collect()
    }

    fn next_news(&self) -> Option<Timestamp> {
        self.news.iter().map(|(at, _)| *at).min()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longhaul_circuits::CircuitEndpoints;

    use super::super::{CircuitConfig, ProviderConfig};
    use super::*;

    const FILE: &str = "provider = \"static\"\nsource = \"10.1.0.2\"\ntarget = \"10.1.0.1\"\nmbit = 100\n";
    const NOW: Timestamp = Timestamp(1_000_000_000);

    fn fixed(more: &str) -> Fixed {
        let config = CircuitConfig::parse(&format!("{FILE}{more}"), "file").unwrap();
        let ProviderConfig::Static(config) = config.provider else { panic!("it is static") };
        Fixed::new(config)
    }

    fn wish(key: u128, mbit: u64) -> CircuitRequest {
        CircuitRequest { key: RequestKey(key), mbit, lifetime: None }
    }

    fn after(seconds: f64) -> Timestamp {
        NOW.plus(Duration::from_secs_f64(seconds))
    }

    /// What it says until then, in short.
    fn said(fixed: &mut Fixed, at: Timestamp) -> Vec<(u128, &'static str)> {
        let short = |event| match event {
            Event::Answer { key, answer: Answer::Granted(_) } => (key.0, "granted"),
            Event::Answer { key, answer: Answer::Refused { less: true, .. } } => (key.0, "less"),
            Event::Answer { key, answer: Answer::Refused { less: false, .. } } => (key.0, "refused"),
            Event::Answer { key, answer: Answer::Lost { .. } } => (key.0, "lost"),
            Event::TornDown(key) => (key.0, "gone"),
            other => panic!("{other:?}"),
        };
        fixed.news(at).into_iter().map(short).collect()
    }

    #[test]
    fn an_answer_takes_the_time_that_its_file_says() {
        let mut fixed = fixed("setup_s = 2.5\n");
        fixed.request(&wish(1, 100), NOW);
        assert_eq!((fixed.next_news(), said(&mut fixed, after(2.4))), (Some(after(2.5)), vec![]));
        let [Event::Answer { key: RequestKey(1), answer: Answer::Granted(grant) }] =
            &fixed.news(after(2.5))[..]
        else {
            panic!("it is granted")
        };
        let ends = CircuitEndpoints { source: "10.1.0.2".to_owned(), target: "10.1.0.1".to_owned() };
        assert_eq!(*grant, Grant { mbit: 100, ends, expires: None });
        assert_eq!((fixed.next_news(), said(&mut fixed, after(1e6))), (None, vec![]));
        // Given back before it was answered: nothing is granted any more.
        fixed.request(&wish(2, 100), NOW);
        fixed.tear_down(RequestKey(2), after(1.0));
        assert_eq!(said(&mut fixed, after(9.0)), [(2, "gone")]);
    }

    #[test]
    fn a_circuit_lasts_as_long_as_its_file_says_or_as_is_wanted_if_that_is_less() {
        for (lifetime_s, expected_s) in [(None, 60.0), (Some(90), 60.0), (Some(5), 5.0)] {
            let mut fixed = fixed("lasts_s = 60\nsetup_s = 1\n");
            let lifetime = lifetime_s.map(Duration::from_secs);
            fixed.request(&CircuitRequest { lifetime, ..wish(1, 100) }, NOW);
            let [Event::Answer { answer: Answer::Granted(grant), .. }] = &fixed.news(after(1.0))[..] else {
                panic!("it is granted")
            };
            assert_eq!(grant.expires, Some(after(1.0 + expected_s)), "{lifetime_s:?}");
        }
    }

    #[test]
    fn it_refuses_what_its_file_says_what_is_too_much_and_a_third_one() {
        let mut refuses = fixed("refuse = \"maintenance\"\n");
        refuses.request(&wish(1, 100), NOW);
        let refused = Answer::Refused { less: false, detail: "maintenance".to_owned() };
        assert_eq!(refuses.news(NOW), [Event::Answer { key: RequestKey(1), answer: refused }]);
        let mut fixed = fixed("");
        fixed.request(&wish(1, 101), NOW);
        assert_eq!(said(&mut fixed, NOW), [(1, "less")]);
        (2..5).for_each(|key| fixed.request(&wish(key, 100), NOW));
        assert_eq!(said(&mut fixed, NOW), [(2, "granted"), (3, "granted"), (4, "refused")]);
        fixed.tear_down(RequestKey(2), NOW);
        fixed.request(&wish(5, 100), NOW);
        assert_eq!(said(&mut fixed, NOW), [(2, "gone"), (5, "granted")]);
    }

    #[test]
    fn one_that_is_silent_never_answers_and_takes_back() {
        let mut fixed = fixed("silent = true\nlose_after_s = 1\n");
        fixed.request(&wish(1, 100), NOW);
        assert_eq!((fixed.next_news(), said(&mut fixed, after(1e6))), (None, vec![]));
        fixed.tear_down(RequestKey(1), after(2.0));
        assert_eq!(said(&mut fixed, after(2.0)), [(1, "gone")]);
    }

    #[test]
    fn a_circuit_is_lost_so_long_after_its_grant_unless_it_was_given_back() {
        let mut fixed = fixed("setup_s = 1\nlose_after_s = 3\n");
        fixed.request(&wish(1, 100), NOW);
        assert_eq!(said(&mut fixed, after(3.9)), [(1, "granted")]);
        assert_eq!((fixed.next_news(), said(&mut fixed, after(4.0))), (Some(after(4.0)), vec![(1, "lost")]));
        fixed.request(&wish(2, 100), after(4.0));
        assert_eq!(said(&mut fixed, after(6.0)), [(2, "granted")]);
        fixed.tear_down(RequestKey(2), after(6.5));
        assert_eq!(said(&mut fixed, after(9.0)), [(2, "gone")]);
        // What is refused cannot be lost.
        fixed.request(&wish(3, 1_000), after(9.0));
        assert_eq!(said(&mut fixed, after(99.0)), [(3, "less")]);
    }
}
