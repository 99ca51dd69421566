//! The service over HTTPS: [`ServiceApi`] with the typed client, and joining, the one call without a
//! certificate.

use std::time::Duration;

use longhaul_api::agent::{
    JoinReply, JoinRequest, RenewReply, RenewRequest, Report, ReportReply, Work, WorkRequest,
};
use longhaul_api::client::Client;
use longhaul_api::{Problem, routes};
use longhaul_model::{Fault, FaultCode};
use longhaul_security::{Credentials, join_client_tls, service_client_tls};
use parking_lot::Mutex;

use crate::service_api::{Reply, ServiceApi};

/// Time that the network may add to the time that the service holds a long poll.
const WORK_TIMEOUT_SLACK: Duration = Duration::from_secs(15);

pub(crate) struct HttpServiceApi {
    url: String,
    client: Mutex<Client>,
}

impl HttpServiceApi {
    pub(crate) fn new(url: &str, credentials: &Credentials) -> Result<Self, Fault> {
        Ok(HttpServiceApi { url: url.to_owned(), client: Mutex::new(connect(url, credentials)?) })
    }

    fn client(&self) -> Client {
        self.client.lock().clone()
    }
}

impl ServiceApi for HttpServiceApi {
    fn report(&self, report: Report) -> Reply<'_, ReportReply> {
        let client = self.client();
        Box::pin(
            async move { client.request(&routes::AGENT_REPORT).json(&report).send().await.map_err(to_fault) },
        )
    }

    fn work(&self, request: WorkRequest) -> Reply<'_, Work> {
        let client = self.client();
        let timeout = Duration::from_millis(request.wait_ms.into()) + WORK_TIMEOUT_SLACK;
        Box::pin(async move {
            client.request(&routes::AGENT_WORK).json(&request).timeout(timeout).send().await.map_err(to_fault)
        })
    }

    fn renew(&self, request: RenewRequest) -> Reply<'_, RenewReply> {
        let client = self.client();
        Box::pin(
            async move { client.request(&routes::AGENT_RENEW).json(&request).send().await.map_err(to_fault) },
        )
    }

    fn use_credentials(&self, credentials: &Credentials) -> Result<(), Fault> {
        *self.client.lock() = connect(&self.url, credentials)?;
        Ok(())
    }
}

/// Joins a deployment. Trusts only the CA with this fingerprint; the request's secret is the only credential.
pub(crate) async fn join(url: &str, ca_fingerprint: &str, request: JoinRequest) -> Result<JoinReply, Fault> {
    require_https(url)?;
    let client = Client::new(url, join_client_tls(ca_fingerprint)?, None).map_err(to_fault)?;
    client.request(&routes::AGENT_JOIN).json(&request).send().await.map_err(to_fault)
}

fn connect(url: &str, credentials: &Credentials) -> Result<Client, Fault> {
    require_https(url)?;
    Client::new(url, service_client_tls(credentials)?, None).map_err(to_fault)
}

/// Agents and service only ever speak TLS, whatever is configured.
fn require_https(url: &str) -> Result<(), Fault> {
    if url.starts_with("https://") {
        return Ok(());
    }
    let detail = "the service's address must begin with https://: agents never speak in clear text";
    Err(Fault::new(FaultCode::BadRequest, detail))
}

fn to_fault(problem: Problem) -> Fault {
    let same = problem.title == problem.code.title();
    let detail = if same { problem.detail.clone() } else { problem.to_string() };
    Fault::new(problem.code, detail).with_source(problem)
}
