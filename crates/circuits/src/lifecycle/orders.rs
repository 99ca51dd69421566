//! Orders of people: a circuit regardless of the work, or the release of the present one.

use std::time::Duration;

use longhaul_model::{CircuitOrderId, Timestamp};

use super::replacement::Replacement;
use super::{Lifecycle, Phase};
use crate::deadline::Deadline;
use crate::ledger::{CooldownReason, RequestKey};
use crate::{Note, Order, OrderKind};

/// A person's order for a circuit.
#[derive(Debug)]
pub(super) struct StandingOrder {
    id: CircuitOrderId,
    by: String,
    mbit: u64,
    until: Timestamp,
    /// After this the order is not worth a request.
    deadline: Deadline,
    stage: OrderStage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrderStage {
    /// Until the previous circuit is gone.
    Pending,
    /// The circuit that existed already satisfies it.
    Satisfied,
    /// The present circuit was requested for it.
    Requested,
}

impl StandingOrder {
    pub(super) fn id(&self) -> CircuitOrderId {
        self.id
    }

    pub(super) fn by(&self) -> &str {
        &self.by
    }

    pub(super) fn mbit(&self) -> u64 {
        self.mbit
    }

    pub(super) fn until(&self) -> Timestamp {
        self.until
    }

    pub(super) fn is_over(&mut self, now: Timestamp) -> bool {
        self.deadline.is_past(now)
    }

    /// The order with a circuit that was requested for it.
    pub(super) fn into_requested(self) -> StandingOrder {
        StandingOrder { stage: OrderStage::Requested, ..self }
    }

    fn accepted_note(&self) -> Note {
        Note::OrderAccepted { order: self.id, by: self.by.clone(), mbit: self.mbit, until: self.until }
    }
}

impl Lifecycle {
    pub(super) fn set_orders(&mut self, mut orders: Vec<Order>, now: Timestamp) {
        if self.owner_ended {
            return;
        }
        orders.sort_by_key(|order| order.id);
        let is_there = |id: CircuitOrderId| orders.iter().any(|order| order.id == id);
        let stands = self.order.as_ref().is_some_and(|standing| is_there(standing.id));
        let following = self.replacement.as_ref().and_then(Replacement::order).filter(|id| !is_there(*id));
        if let Some(order) = self.unreported_order.take().filter(|id| is_there(*id)) {
            self.note(Note::OrderFailedBefore { order });
        }
        orders.retain(|order| order.id > self.last_order);
        self.last_order = orders.last().map_or(self.last_order, |order| order.id);
        let (releases, requests): (Vec<Order>, Vec<Order>) =
            orders.into_iter().partition(|order| matches!(order.kind, OrderKind::Release(_)));
        // First, so that a circuit whose order is withdrawn as well counts as released by a person.
        for order in releases {
            if let OrderKind::Release(key) = order.kind {
                self.release(order.id, order.by, key, now);
            }
        }
        if let Some(order) = following {
            self.withdraw_replacement_order(order, now);
        }
        if !stands {
            self.withdraw_order(now);
        }
        for order in requests {
            if let OrderKind::Circuit { mbit, until, replaces } = order.kind {
                let over = until - self.settings.expiry_margin;
                let over = Deadline::restored(over, over.since(now));
                let standing = StandingOrder {
                    id: order.id,
                    by: order.by,
                    mbit,
                    until,
                    deadline: over,
                    stage: OrderStage::Pending,
                };
                // A replacement that exists already may stem from this very order, before a restart.
                match replaces.filter(|key| self.current().is_some_and(|there| there.key == *key)) {
                    Some(key) => {
                        self.note(Note::Replacement(Box::new(standing.accepted_note())));
                        self.plan_replacement(Some(standing), key, now);
                    }
                    None => self.accept_order(standing, now),
                }
            }
        }
    }

    pub(super) fn accept_order(&mut self, standing: StandingOrder, now: Timestamp) {
        self.note(standing.accepted_note());
        self.replace_order(standing);
        self.start_order(now);
    }

    /// Replaces the present order.
    pub(super) fn replace_order(&mut self, standing: StandingOrder) {
        if let Some(StandingOrder { id: order, .. }) = self.order.replace(standing) {
            self.note(Note::OrderReplaced { order });
        }
    }

    fn withdraw_replacement_order(&mut self, order: CircuitOrderId, now: Timestamp) {
        if self.replacement.as_ref().and_then(Replacement::order) == Some(order) {
            self.note(Note::OrderWithdrawn { order });
            self.cancel_replacement(now);
        }
    }

    fn start_order(&mut self, now: Timestamp) {
        let Some(standing) = &mut self.order else { return };
        match &self.phase {
            Phase::Off | Phase::Cooldown { .. } => self.retry_order(now),
            Phase::Requested { reservation, .. } | Phase::Established { reservation, .. } => {
                let (order, mbit) = (standing.id, reservation.mbit);
                standing.stage = OrderStage::Satisfied;
                self.note(Note::OrderSatisfied { order, mbit });
            }
            // Requested at the next check.
            Phase::Draining { .. } => {}
        }
    }

    /// Requests the ordered circuit again. There is no other.
    pub(super) fn retry_order(&mut self, now: Timestamp) {
        self.expire_order(now);
        let Some(standing) = &mut self.order else { return };
        standing.stage = OrderStage::Requested;
        self.request(0, Deadline::after(now, self.settings.request_timeout), now);
    }

    /// Mbit/s to request at the given step.
    pub(super) fn requested_mbit(&self, step: usize) -> Option<u64> {
        let ordered = self
            .order
            .as_ref()
            .filter(|standing| standing.stage == OrderStage::Requested)
            .map(|standing| standing.mbit);
        self.settings.step(ordered.unwrap_or(self.settings.mbit), step)
    }

    /// Lifetime to request for the order.
    pub(super) fn order_lifetime(&self, now: Timestamp) -> Option<Duration> {
        let standing = self.order.as_ref().filter(|standing| standing.stage == OrderStage::Requested)?;
        Some(standing.until.since(now))
    }

    pub(super) fn expire_order(&mut self, now: Timestamp) {
        if !self.order.as_mut().is_some_and(|standing| standing.deadline.is_past(now)) {
            return;
        }
        if let Some(standing) = self.order.take() {
            self.note(Note::OrderExpired { order: standing.id });
            self.release_if_requested(standing.stage, now);
        }
    }

    /// The order was withdrawn.
    fn withdraw_order(&mut self, now: Timestamp) {
        if let Some(standing) = self.order.take() {
            self.note(Note::OrderWithdrawn { order: standing.id });
            self.release_if_requested(standing.stage, now);
        }
    }

    /// Releases what was requested for the order. Work may request another.
    fn release_if_requested(&mut self, stage: OrderStage, now: Timestamp) {
        let begun = stage == OrderStage::Requested;
        match &self.phase {
            Phase::Requested { .. } if begun && !self.wanted => {
                self.note(Note::NoLongerWanted);
                self.release_current(None, now);
            }
            Phase::Established { .. } if begun && !self.wanted => {
                self.note(Note::NoLongerWanted);
                self.start_draining(None, now);
            }
            _ => {}
        }
    }

    /// The order failed: a person decides anew. A pending order has not failed.
    pub(super) fn fail_order(&mut self) {
        if let Some(order) = self.order_in_backoff() {
            self.order = None;
            self.note(Note::OrderFailed { order });
        }
    }

    /// The order that fails if the link cools down now.
    pub(super) fn order_in_backoff(&self) -> Option<CircuitOrderId> {
        self.order.as_ref().filter(|standing| standing.stage != OrderStage::Pending).map(StandingOrder::id)
    }

    fn release(&mut self, order: CircuitOrderId, by: String, key: RequestKey, now: Timestamp) {
        let Some(key) = self.resolve_key(key) else {
            return self.note(Note::NothingToRelease { order, key });
        };
        if let Some(following) = self.replacement.as_ref().and_then(Replacement::order) {
            self.note(Note::OrderWithdrawn { order: following });
        }
        self.cancel_replacement(now);
        if let Some(standing) = self.order.take() {
            self.note(Note::OrderWithdrawn { order: standing.id });
        }
        self.note(Note::Released { order, by, key });
        match &mut self.phase {
            Phase::Requested { .. } => self.release_current(Some(CooldownReason::Released), now),
            // It is draining already, and work must not request another at once: a person said that it is not
            // wanted.
            Phase::Draining { then, .. } => {
                then.get_or_insert(CooldownReason::Released);
                self.persist();
            }
            _ => self.start_draining(Some(CooldownReason::Released), now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Action, Answer, CircuitEndpoints, CircuitHistory, CircuitRequest, Event, Grant, OrderState, Settings,
        State,
    };

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);
    const START: Timestamp = Timestamp(1_790_000_000_000_000);
    /// Three hours of work at 100 MB/s.
    const WORKLOAD_BYTES_SMALL: u64 = 3 * 3600 * 100_000_000;
    /// Eight hours of work at 100 MB/s.
    const WORKLOAD_BYTES_LARGE: u64 = 8 * 3600 * 100_000_000;

    struct Link {
        machine: Lifecycle,
        record: CircuitHistory,
        now: Timestamp,
    }

    impl Link {
        fn new() -> Link {
            let machine = Lifecycle::new("beta→alpha", Settings::default(), 1, START);
            Link { machine, record: CircuitHistory::default(), now: START }
        }

        /// Handles an event; returns the request that it led to, if any.
        fn handle(&mut self, event: Event) -> Option<CircuitRequest> {
            self.machine.handle(event, self.now);
            let mut wish = None;
            while let Some(action) = self.machine.poll() {
                match action {
                    Action::Note(note) => self.record.note(&note, self.now),
                    Action::Request(of) => wish = Some(of),
                    _ => {}
                }
            }
            wish
        }

        fn after(&mut self, time: Duration) -> Option<CircuitRequest> {
            self.now = self.now.plus(time);
            self.handle(Event::Tick)
        }

        fn work(&mut self, pending_bytes: u64) -> Option<CircuitRequest> {
            self.handle(Event::Work { pending_bytes, bytes_per_s: Some(1e8) })
        }

        fn grant(&mut self, wish: &CircuitRequest) {
            let ends = CircuitEndpoints { source: "10.1.0.1".into(), target: "10.1.0.2".into() };
            let expires = wish.lifetime.map(|lifetime| self.now.plus(lifetime));
            let answer = Answer::Granted(Grant { mbit: wish.mbit, ends, expires });
            self.handle(Event::Answer { key: wish.key, answer });
            self.handle(Event::Probed { key: wish.key, good: true });
        }

        fn refuse(&mut self, key: RequestKey, less: bool) -> Option<CircuitRequest> {
            self.handle(Event::Answer { key, answer: Answer::Refused { less, detail: "maintenance".into() } })
        }

        fn order(&self, id: u64) -> Option<&OrderState> {
            self.record.orders().find(|(order, _)| order.0 == id).map(|(_, state)| state)
        }

        fn why(&self) -> String {
            self.machine.explain().to_string()
        }

        fn is_used(&self) -> bool {
            matches!(self.machine.state(), State::Established { used: true, .. })
        }
    }

    fn circuit(id: u64, mbit: u64, time: Duration) -> Order {
        let what = OrderKind::Circuit { mbit, until: START.plus(time), replaces: None };
        Order { id: CircuitOrderId(id), by: "ada".into(), kind: what }
    }

    fn release(id: u64, key: RequestKey) -> Order {
        Order { id: CircuitOrderId(id), by: "ada".into(), kind: OrderKind::Release(key) }
    }

    #[test]
    fn an_order_is_requested_once_kept_without_work_and_expires() {
        let mut link = Link::new();
        let orders = vec![circuit(1, 400, 6 * HOUR)];
        let wish = link.handle(Event::Orders(orders.clone())).unwrap();
        assert_eq!((wish.mbit, wish.lifetime), (400, Some(6 * HOUR)));
        assert_eq!(link.handle(Event::Orders(orders.clone())), None, "said again");
        assert_eq!(link.order(1), Some(&OrderState::Accepted));
        link.grant(&wish);
        link.work(0);
        assert_eq!((link.after(2 * HOUR), link.is_used()), (None, true), "without work");
        assert!(link.why().contains("ada requested it"), "{}", link.why());
        assert_eq!(link.order(1), Some(&OrderState::Satisfied));
        assert!(link.record.current().unwrap().reason.contains("ada requests a circuit of 400 Mbit/s"));
        link.after(4 * HOUR - MINUTE);
        assert_eq!(link.machine.state(), State::Off);
        assert!(matches!(link.order(1), Some(OrderState::Done(why)) if why.contains("is over")));
        assert_eq!((link.handle(Event::Orders(orders)), link.after(HOUR)), (None, None), "and not again");
    }

    #[test]
    fn a_refused_order_reports_the_provider_and_is_not_retried() {
        let mut link = Link::new();
        let orders = vec![circuit(1, 400, 6 * HOUR)];
        let first = link.handle(Event::Orders(orders.clone())).unwrap();
        let second = link.refuse(first.key, true).unwrap();
        assert_eq!(second.mbit, 200, "half of what was ordered");
        assert_eq!(link.refuse(second.key, false), None);
        let failed = |state: &OrderState| {
            matches!(state, OrderState::Failed(why) if why == "200 Mbit/s were \
            refused: maintenance")
        };
        assert!(link.order(1).is_some_and(failed), "{:?}", link.order(1));
        assert!(link.why().contains("the last request failed, so none is requested until"), "{}", link.why());
        assert_eq!((link.handle(Event::Orders(orders)), link.after(2 * HOUR)), (None, None));
        // A person may insist during the cool-down.
        let third = link.refuse_all_then(circuit(2, 100, 6 * HOUR));
        assert_eq!(third.mbit, 100);
    }

    impl Link {
        /// Cools down after a refusal, and gets an order then.
        fn refuse_all_then(&mut self, order: Order) -> CircuitRequest {
            let before = circuit(order.id.0 - 1, 100, 6 * HOUR);
            self.handle(Event::Orders(vec![before]));
            self.work(WORKLOAD_BYTES_LARGE);
            let wish = self.after(2 * MINUTE).unwrap();
            self.refuse(wish.key, false);
            assert!(matches!(self.machine.state(), State::Cooldown(_)));
            self.handle(Event::Orders(vec![order])).unwrap()
        }
    }

    #[test]
    fn a_released_circuit_is_not_requested_again_for_work_at_once() {
        let mut link = Link::new();
        link.work(WORKLOAD_BYTES_LARGE);
        let wish = link.after(2 * MINUTE).unwrap();
        link.grant(&wish);
        link.handle(Event::Orders(vec![release(1, RequestKey(7))]));
        assert!(matches!(link.order(1), Some(OrderState::Failed(why)) if why.contains("not there")));
        assert!(link.is_used());
        link.handle(Event::Orders(vec![release(2, wish.key)]));
        assert!(
            matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Released)
        );
        assert!(matches!(link.order(2), Some(OrderState::Done(_))));
        assert!(link.why().contains("somebody released the last circuit"), "{}", link.why());
        let ended = link.record.ended().last().unwrap().ended.clone().unwrap();
        assert!(ended.1.starts_with("ada releases"), "{ended:?}");
        assert_eq!(link.after(HOUR - MINUTE), None);
        assert!(link.after(3 * MINUTE).is_some(), "after the rest, the work counts again");
    }

    #[test]
    fn a_release_cools_down_even_if_killed_while_draining() {
        let mut link = Link::new();
        link.work(WORKLOAD_BYTES_LARGE);
        let wish = link.after(MINUTE).unwrap();
        link.grant(&wish);
        link.handle(Event::Users(2));
        link.handle(Event::Orders(vec![release(1, wish.key)]));
        assert_eq!(link.machine.state(), State::Draining);
        let (released, book) = (link.now, link.machine.ledger());
        link.now = link.now.plus(MINUTE);
        link.machine = Lifecycle::restore("beta→alpha", Settings::default(), 2, book, link.now);
        let State::Cooldown(rest) = link.machine.state() else { panic!("{:?}", link.machine.state()) };
        assert_eq!(
            (rest.reason, rest.since, rest.until),
            (CooldownReason::Released, released, released.plus(HOUR))
        );
        let torn_down = std::iter::from_fn(|| link.machine.poll())
            .any(|action| matches!(action, Action::TearDown(key) if key == wish.key));
        assert!(torn_down, "what was there is given back");
        link.work(WORKLOAD_BYTES_LARGE);
        assert_eq!(link.after(HOUR - 2 * MINUTE), None, "the work brings none before");
        assert!(link.after(2 * MINUTE).is_some() || link.after(MINUTE).is_some());
    }

    #[test]
    fn a_release_while_draining_cools_down() {
        let mut link = Link::new();
        let wish = link.handle(Event::Orders(vec![circuit(1, 400, HOUR)])).unwrap();
        link.grant(&wish);
        link.handle(Event::Users(2));
        // The withdrawal may arrive before the release.
        link.handle(Event::Orders(Vec::new()));
        assert_eq!(link.machine.state(), State::Draining);
        link.handle(Event::Orders(vec![release(2, wish.key)]));
        assert!(matches!(link.order(2), Some(OrderState::Done(_))), "{:?}", link.order(2));
        assert!(
            link.machine.ledger().cooldown.is_some_and(|rest| rest.reason == CooldownReason::Released),
            "it is in the book"
        );
        link.handle(Event::Users(0));
        assert!(
            matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Released)
        );
    }

    #[test]
    fn a_failed_order_is_reported_and_not_retried_after_a_kill() {
        let mut link = Link::new();
        let orders = vec![circuit(1, 400, 6 * HOUR)];
        let wish = link.handle(Event::Orders(orders.clone())).unwrap();
        link.refuse(wish.key, false);
        let book = link.machine.ledger();
        link.record = CircuitHistory::default();
        link.machine = Lifecycle::restore("beta→alpha", Settings::default(), 2, book, link.now);
        assert_eq!(link.handle(Event::Orders(orders.clone())), None, "the link rests");
        let failed = |state: &OrderState| {
            matches!(state, OrderState::Failed(why) if why.contains("before \
            the restart"))
        };
        assert!(link.order(1).is_some_and(failed), "{:?}", link.order(1));
        assert_eq!(
            (link.handle(Event::Orders(orders)), link.after(HOUR)),
            (None, None),
            "and not later either"
        );
        assert!(
            link.handle(Event::Orders(vec![circuit(2, 100, 6 * HOUR)])).is_some(),
            "a new request is another matter"
        );
    }

    #[test]
    fn a_release_ends_an_ordered_circuit() {
        let mut link = Link::new();
        let wish = link.handle(Event::Orders(vec![circuit(1, 400, HOUR)])).unwrap();
        link.grant(&wish);
        // The service sends the release in place of the order.
        link.handle(Event::Orders(vec![release(2, wish.key)]));
        assert!(matches!(link.order(2), Some(OrderState::Done(_))), "{:?}", link.order(2));
        assert!(matches!(link.order(1), Some(OrderState::Done(_))), "{:?}", link.order(1));
        assert!(
            matches!(link.machine.state(), State::Cooldown(rest) if rest.reason == CooldownReason::Released)
        );
    }

    #[test]
    fn a_withdrawn_order_releases_only_its_own_circuit() {
        for begun in [true, false] {
            let mut link = Link::new();
            let wish = match begun {
                true => link.handle(Event::Orders(vec![circuit(1, 400, HOUR)])),
                false => {
                    link.work(WORKLOAD_BYTES_LARGE);
                    link.after(2 * MINUTE)
                }
            };
            link.grant(&wish.unwrap());
            link.handle(Event::Orders(vec![circuit(1, 400, HOUR)]));
            assert_eq!((link.is_used(), link.order(1)), (true, Some(&OrderState::Satisfied)));
            link.handle(Event::Orders(Vec::new()));
            assert_eq!(link.is_used(), !begun);
        }
    }

    #[test]
    fn an_order_while_draining_is_for_the_next_circuit() {
        let mut link = Link::new();
        let wish = link.handle(Event::Orders(vec![circuit(1, 400, 6 * HOUR)])).unwrap();
        link.grant(&wish);
        link.handle(Event::Users(1));
        link.handle(Event::Orders(vec![release(2, wish.key)]));
        assert_eq!(link.machine.state(), State::Draining);
        assert_eq!(link.handle(Event::Orders(vec![circuit(3, 300, 6 * HOUR)])), None);
        link.handle(Event::Users(0));
        assert_eq!(link.after(2 * MINUTE).map(|wish| wish.mbit), Some(300), "{}", link.why());
    }

    #[test]
    fn with_a_central_planner_only_orders_request_circuits() {
        let mut link = Link::new();
        link.handle(Event::SetPlannedCentrally(true));
        link.work(WORKLOAD_BYTES_LARGE);
        assert_eq!(link.after(HOUR), None);
        let why = link.why();
        assert!(why.contains("2.88 TB wait") && why.contains("the service's plan decides"), "{why}");
        let wish = link.handle(Event::Orders(vec![circuit(1, 400, 6 * HOUR)])).unwrap();
        link.grant(&wish);
        assert!(link.is_used());
        link.handle(Event::Orders(vec![release(2, wish.key)]));
        link.handle(Event::SetPlannedCentrally(false));
        link.work(WORKLOAD_BYTES_LARGE);
        assert!(link.after(2 * HOUR).is_some(), "and when it does no more, the work counts again");
    }

    #[test]
    fn a_link_explains_why_it_has_no_circuit() {
        let mut link = Link::new();
        assert!(link.why().contains("nothing waits; a circuit is requested"), "{}", link.why());
        link.handle(Event::Work { pending_bytes: WORKLOAD_BYTES_SMALL, bytes_per_s: None });
        assert!(link.why().contains("the link's rate is not known yet"), "{}", link.why());
        link.work(WORKLOAD_BYTES_SMALL);
        let why = link.why();
        assert_eq!(
            why,
            "no circuit now: 1.08 TB wait = 3.0 h at the 800.0 Mbit/s that the link is expected to carry; a \
                circuit is requested above 5.0 h, which is 1.80 TB"
        );
        link.handle(Event::Work { pending_bytes: WORKLOAD_BYTES_LARGE, bytes_per_s: Some(2e8) });
        assert!(link.why().contains("a circuit of 1000 Mbit/s would not be faster"), "{}", link.why());
        link.work(WORKLOAD_BYTES_LARGE);
        assert!(link.why().contains("more than 5.0 h, as 0 of 1 checks"), "{}", link.why());
        let wish = link.after(2 * MINUTE).unwrap();
        assert!(link.why().contains("the provider has not answered"), "{}", link.why());
        link.grant(&wish);
        assert!(
            link.why().starts_with("transfers go by a circuit of 1000 Mbit/s: 2.88 TB wait = 8.0 h"),
            "{}",
            link.why()
        );
        let entry = link.record.current().unwrap();
        assert!(entry.reason.contains("what waits takes 8.0 h") && entry.used_since.is_some(), "{entry:?}");
    }
}
