//! Circuits of the agents' links: seen, explained, requested and given back.

use std::time::Duration;

use longhaul_api::Problem;
use longhaul_api::circuits::{
    CircuitDetail, CircuitLook, CircuitOrderState, CircuitOrderView, CircuitPlan, CircuitRecord,
    CircuitRequest, CircuitState, CircuitView, CircuitWish, MBIT_MAX, SECONDS_MAX,
};
use longhaul_api::native::Page;
use longhaul_catalog::{CircuitOrderRow, CircuitRow};
use longhaul_control::metrics::Gauges;
use longhaul_identity::Caller;
use longhaul_model::units::printable;
use longhaul_model::{AgentId, Fault, FaultCode, StorageName, Timestamp};
use longhaul_netops::circuits::{LinkKey, RecordedCircuit, RecordedOrder, ReportedLink, is_circuit_id};

use super::{Operations, PageQuery, bad_request, not_found, page, problem, unprocessable};

/// Circuits of one link in a view.
const CIRCUITS_PER_LINK_MAX: usize = 20;
/// Orders of one link in a view.
const ORDERS_PER_LINK_MAX: usize = 20;
/// Shortest prefix of a circuit's name that a request may give.
const NAME_PREFIX_CHARS_MIN: usize = 4;

impl Operations {
    pub fn circuit_list(&self) -> Result<Page<CircuitView>, Problem> {
        let links = self.shared.netops.circuits.links();
        Ok(Page {
            items: links.iter().map(|(key, known)| self.circuit_view(key, known)).collect(),
            next: None,
        })
    }

    /// What a plan would do now.
    pub fn circuit_plan(&self) -> Result<CircuitPlan, Problem> {
        longhaul_netops::plan::plan(&self.shared.netops).map_err(problem)
    }

    /// The same, for pages that are drawn again and again.
    pub fn circuit_plan_lately(&self) -> Result<CircuitPlan, Problem> {
        longhaul_netops::plan::recent_plan(&self.shared.netops).map_err(problem)
    }

    pub fn circuit_show(&self, which: &str) -> Result<CircuitDetail, Problem> {
        if is_circuit_id(which)
            && let Some(row) = self.shared.kernel.catalog.circuit(which).map_err(problem)?
        {
            return self.circuit_detail(&(row.agent, row.source.clone()), Some(row));
        }
        let (key, circuit) = self.find_circuit(which)?;
        let row = match circuit {
            Some(id) => self.shared.kernel.catalog.circuit(&id).map_err(problem)?,
            None => None,
        };
        self.circuit_detail(&key, row)
    }

    pub fn circuit_history(&self, query: &PageQuery) -> Result<Page<CircuitRecord>, Problem> {
        let after: Option<String> = query.after()?;
        let cursor = after.as_deref().map(|text| {
            let (at, id) = text.split_once('~')?;
            Some((Timestamp(at.parse().ok()?), id))
        });
        let before = match cursor {
            Some(None) => return Err(unprocessable("that is no cursor of this list")),
            cursor => cursor.flatten(),
        };
        let limit = query.limit();
        let rows = self.shared.kernel.catalog.circuits_page(before, limit + 1).map_err(problem)?;
        page(rows, limit, |row| format!("{}~{}", row.requested.0, row.id), |row| self.circuit_record(&row))
    }

    pub fn circuit_request(
        &self,
        caller: &Caller,
        request: &CircuitRequest,
    ) -> Result<CircuitDetail, Problem> {
        if request.mbit == 0 || request.mbit > MBIT_MAX {
            return Err(bad_request(format!("{} Mbit/s: 1 to {MBIT_MAX} can be asked for", request.mbit)));
        }
        if request.seconds == 0 || request.seconds > SECONDS_MAX {
            let detail =
                format!("for {} s: a circuit is requested for 1 to {SECONDS_MAX} s", request.seconds);
            return Err(bad_request(detail));
        }
        let key = self.find_link(&request.source, &request.target)?;
        let until = self.now().plus(Duration::from_secs(request.seconds));
        let there = self
            .shared
            .netops
            .circuits
            .link(&key)
            .filter(|known| known.link.state == CircuitState::Established);
        let there = there.and_then(|known| known.link.circuit).filter(|_| request.replace);
        let wish =
            CircuitWish::Request { mbit: request.mbit, until, replaces: there.map(|circuit| circuit.id) };
        let link = self.link_name(&key);
        let what = format!("circuit {link}: {} Mbit/s requested until {until}", request.mbit);
        self.order(caller, &key, wish, CircuitOrderState::Sent, &what)
    }

    pub fn circuit_release(&self, caller: &Caller, which: &str) -> Result<CircuitDetail, Problem> {
        let (key, id) = self.find_circuit(which)?;
        let had = self.shared.netops.circuits.link(&key).and_then(|known| {
            let there = matches!(known.link.state, CircuitState::Requested | CircuitState::Established);
            known.link.circuit.filter(|circuit| there && id.as_ref().is_none_or(|id| *id == circuit.id))
        });
        let link = self.link_name(&key);
        let what = format!("circuit {link}: given back");
        match had {
            Some(circuit) => {
                let wish = CircuitWish::Release { circuit: circuit.id };
                self.order(caller, &key, wish, CircuitOrderState::Sent, &what)
            }
            // The agent hears that nothing is requested any more.
            None if id.is_none() && self.shared.netops.circuits.is_requested(&key) => {
                let wish = CircuitWish::Release { circuit: String::new() };
                self.order(caller, &key, wish, CircuitOrderState::Done, &what)
            }
            None => {
                let detail = format!("there is no circuit on {link} that could be given back");
                Err(Problem::from(Fault::new(FaultCode::Conflict, detail))
                    .with_remedy(format!("see what there is: longhaul circuit show {link}")))
            }
        }
    }

    fn order(
        &self,
        caller: &Caller,
        key: &LinkKey,
        what: CircuitWish,
        state: CircuitOrderState,
        words: &str,
    ) -> Result<CircuitDetail, Problem> {
        let (by, at) = (printable(&caller.principal.name), self.now());
        let order = RecordedOrder {
            id: self.shared.kernel.new_id(),
            by,
            at,
            what,
            state,
            words: String::new(),
            booking: None,
        };
        tracing::info!(by = %order.by, "{words}");
        self.shared
            .netops
            .circuits
            .place_order(&self.shared.kernel.catalog, key, order, words)
            .map_err(problem)?;
        self.circuit_detail(key, None)
    }

    /// A link `SOURCE:TARGET`, or the circuit of that name, or beginning of a name, that a link has now.
    fn find_circuit(&self, which: &str) -> Result<(LinkKey, Option<String>), Problem> {
        if let Some((source, target)) = which.split_once(':') {
            let source = StorageName::parse(source)
                .map_err(|error| unprocessable(printable(&format!("{source}: {error}"))))?;
            return Ok((self.find_link(&source, target)?, None));
        }
        let links = self.shared.netops.circuits.links();
        let mut found = links.into_iter().filter_map(|(key, known)| {
            let id = known.link.circuit?.id;
            (which.len() >= NAME_PREFIX_CHARS_MIN && id.starts_with(which)).then_some((key, Some(id)))
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(unprocessable(format!("more than one circuit begins with {which}"))),
            (None, _) => Err(not_found("circuit or link", which, "longhaul circuit list")),
        }
    }

    /// `target` is a site, a storage, or an agent.
    fn find_link(&self, source: &StorageName, target: &str) -> Result<LinkKey, Problem> {
        let directory = self.shared.kernel.directory();
        let storage = directory.storage(target);
        let serves = storage.and_then(|row| self.shared.control.agents.of_storage(row.id));
        let fits = |agent: AgentId| {
            let known = self.shared.control.agents.agent(agent);
            serves == Some(agent)
                || agent.to_string() == target
                || known.is_some_and(|known| known.site_name.as_str() == target)
        };
        let links = self.shared.netops.circuits.links();
        let mut found =
            links.into_iter().map(|(key, _)| key).filter(|(agent, of)| of == source && fits(*agent));
        match (found.next(), found.next()) {
            (Some(key), None) => Ok(key),
            (Some(first), Some(second)) => {
                let detail = format!(
                    "several agents of {target} have circuits from {source}: name one, such as {source}:{} \
                        or {source}:{}",
                    first.0, second.0
                );
                Err(unprocessable(printable(&detail)))
            }
            (None, _) => {
                let link = printable(&format!("{source}:{target}"));
                Err(not_found("link with circuits", link, "longhaul circuit list").with_remedy(format!(
                    "see what there is: longhaul circuit list; an agent of the target has circuits from \
                        {source} if its \
                     configuration has [[agent.circuits]] with from = \"{source}\""
                )))
            }
        }
    }

    fn link_name(&self, (agent, source): &LinkKey) -> String {
        match self.shared.control.agents.agent(*agent) {
            Some(known) => format!("{source}:{}", known.site_name),
            None => format!("{source}:{agent}"),
        }
    }

    fn circuit_view(&self, key: &LinkKey, known: &ReportedLink) -> CircuitView {
        let (agent, source) = key;
        let whose = self.shared.control.agents.agent(*agent);
        let link = &known.link;
        // With what it carried in runs of its agent before.
        let kept = link.circuit.as_ref().and_then(|circuit| known.recorded(&circuit.id));
        let circuit = kept.map(|kept| kept.circuit.clone()).or_else(|| link.circuit.clone());
        CircuitView {
            link: self.link_name(key),
            source: source.clone(),
            target: whose.as_ref().map(|known| known.site_name.to_string()).unwrap_or_default(),
            agent: *agent,
            host: whose.map(|known| known.host).unwrap_or_default(),
            told: known.told,
            connected: self.shared.control.agents.is_connected(*agent, self.now()),
            provider: link.provider.clone(),
            state: link.state,
            until: link.until,
            gain_s: circuit.as_ref().and_then(|circuit| circuit.gain_s()),
            circuit,
            why: self.circuit_words(source, known),
        }
    }

    /// What the agent says; and that its configuration may name what is not there.
    fn circuit_words(&self, source: &StorageName, known: &ReportedLink) -> String {
        let words = &known.link.look.words;
        if self.shared.kernel.directory().storage(source.as_str()).is_some() {
            return words.clone();
        }
        format!("{words}; no storage is called {source}, so nothing comes from there")
    }

    fn circuit_record(&self, row: &CircuitRow) -> Result<CircuitRecord, Problem> {
        let RecordedCircuit { provider, circuit, .. } = RecordedCircuit::from_row(row).map_err(problem)?;
        let link = self.link_name(&(row.agent, row.source.clone()));
        Ok(CircuitRecord { link, provider, gain_s: circuit.gain_s(), circuit })
    }

    fn circuit_detail(&self, key: &LinkKey, only: Option<CircuitRow>) -> Result<CircuitDetail, Problem> {
        let (agent, source) = key;
        let catalog = &self.shared.kernel.catalog;
        let rows = match only {
            Some(row) => vec![row],
            None => catalog.circuits_of(*agent, source, CIRCUITS_PER_LINK_MAX).map_err(problem)?,
        };
        let circuits = rows.iter().map(|row| self.circuit_record(row)).collect::<Result<_, _>>()?;
        let orders = catalog.circuit_orders_of(*agent, source, ORDERS_PER_LINK_MAX).map_err(problem)?;
        let orders = orders.iter().map(order_view).collect::<Result<_, _>>()?;
        let known = self.shared.netops.circuits.link(key);
        let link = known.as_ref().map(|known| self.circuit_view(key, known));
        let look = known.as_ref().zip(link.as_ref());
        Ok(CircuitDetail {
            look: look
                .map(|(known, link)| CircuitLook { words: link.why.clone(), ..known.link.look.clone() }),
            link,
            plan: longhaul_netops::plan::last_decision(&self.shared.netops, key),
            notes: known.map(|known| known.link.notes).unwrap_or_default(),
            orders,
            circuits,
        })
    }

    pub(super) fn circuit_gauges(&self, gauges: &mut Gauges) {
        for (community, booked) in longhaul_netops::plan::booked(&self.shared.netops) {
            gauges.gauge(
                "longhaul_circuit_booked_gbit_hours",
                "What the service's plan booked for a community within a day.",
                vec![("community", community.to_string())],
                booked,
            );
        }
        for (key, known) in self.shared.netops.circuits.links() {
            let labels = longhaul_netops::circuits::metric_labels(&self.shared.netops, &key);
            for state in CircuitState::ALL {
                let mut labels = labels.clone();
                labels.push(("state", state.word().to_owned()));
                let is = f64::from(u8::from(known.link.state == state));
                gauges.gauge("longhaul_circuit_state", "1 for the state of a link's circuit.", labels, is);
            }
            let view = self.circuit_view(&key, &known);
            let circuit = view.circuit.as_ref();
            let booked = circuit.and_then(|circuit| circuit.booked_mbit).unwrap_or(0) as f64 * 125_000.0;
            gauges.gauge(
                "longhaul_circuit_booked_bytes_per_second",
                "What is booked on a link.",
                labels.clone(),
                booked,
            );
            let used = circuit.and_then(|circuit| circuit.carried_bytes_per_s()).unwrap_or(0.0);
            gauges.gauge(
                "longhaul_circuit_used_bytes_per_second",
                "What a link's circuit carries while it is used.",
                labels.clone(),
                used,
            );
            gauges.gauge(
                "longhaul_circuit_gain_seconds",
                "How much shorter transfers were by a link's present circuit.",
                labels,
                view.gain_s.unwrap_or(0.0),
            );
        }
    }
}

fn order_view(row: &CircuitOrderRow) -> Result<CircuitOrderView, Problem> {
    let RecordedOrder { id, by, at, what, state, words, .. } =
        RecordedOrder::from_row(row).map_err(problem)?;
    Ok(CircuitOrderView { id, by, at, what, state, words })
}
