//! An agent by its certificate, without anything that an agent does beside reporting.

use longhaul_api::{AGENT_PROTOCOL, routes};
use longhaul_security::service_client_tls;
use longhaul_testbed::Deployment;
use longhaul_testbed::http::{Api, KeptAlive};
use serde_json::{Value, json};

pub(super) struct Reporter {
    api: Api,
    /// What every report says.
    frame: Value,
}

impl Reporter {
    /// Joins a new site as its agent.
    pub(super) fn join(deployment: &Deployment, site: &str) -> Reporter {
        let credentials = deployment.join_by_hand(site, "reporter");
        let api = deployment.api();
        let tls = service_client_tls(&credentials).expect("its certificate");
        let now = api.get(&routes::STATUS, &[], &[])["now"].clone();
        let frame = json!({ "versions": AGENT_PROTOCOL, "incarnation": { "number": 1, "nonce": 1 },
            "now": now });
        let mut first = frame.clone();
        first["hello"] = json!({ "host": "reporter", "version": "0", "data_addresses": ["127.0.0.1:9"],
            "storages": [], "held": [] });
        let agent = api.with_tls(tls);
        agent.call(&routes::AGENT_REPORT, &[], &[], &first).expect("an answer").expect(200);
        Reporter { api: agent, frame }
    }

    /// A report with nothing in it.
    pub(super) fn report(&self) -> Value {
        self.frame.clone()
    }

    pub(super) fn connect(&self) -> ReportConnection {
        ReportConnection(self.api.kept_alive().expect("a connection"))
    }
}

/// A connection that is kept for many reports.
pub(super) struct ReportConnection(KeptAlive);

impl ReportConnection {
    pub(super) fn send(&mut self, report: Value) {
        let target = routes::AGENT_REPORT.target(&[], &[]);
        self.0.send("POST", &target, report.to_string().as_bytes()).expect("an answer").expect(200);
    }
}
