//! Typed client of the service for commands, with paging and retries.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use longhaul_api::client::Client;
use longhaul_api::native::Page;
use longhaul_api::routes::{self, PAGE_ITEMS_MAX, Route};
use longhaul_model::{FaultCode, Retry};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock;
use crate::config::{ClientConfig, SYSTEM_AUTHORITIES};
use crate::failure::Failure;

/// How long a waiting command retries while the service is down.
pub const RETRY_TIMEOUT: Duration = Duration::from_secs(300);
/// How long a command that watches waits for one answer. A service that hangs shows as one that is gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Items that a list fetches at most; of a longer one the command says that there are more.
pub const LIST_ITEMS_MAX: usize = 100_000;

/// Query parameters; those without a value are left out.
pub type Query<'a> = &'a [(&'static str, Option<String>)];

#[derive(Clone, Debug)]
pub struct Remote {
    client: Client,
}

impl Remote {
    pub fn connect(config: &ClientConfig) -> Result<Self, Failure> {
        if config.url.is_empty() {
            return Err(Failure::usage(
                "no service is configured",
                "no --url, --dir, LONGHAUL_URL, configuration or saved login says where it is",
                "longhaul login URL --token TOKEN --ca FILE, or give --dir STATE of a demo",
            ));
        }
        let token = Some(config.token.clone()).filter(|token| !token.is_empty());
        Ok(Remote { client: Client::new(&config.url, tls_config(config)?, token)? })
    }

    pub async fn get<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        query: Query<'_>,
    ) -> Result<T, Failure> {
        let mut request = self.client.request(route);
        for parameter in parameters {
            request = request.parameter(parameter);
        }
        for (name, value) in query {
            request = request.maybe(name, value.as_ref());
        }
        Ok(request.send().await?)
    }

    /// As [`Remote::get`] for polling: retries while the service is being restarted.
    pub async fn get_with_retry<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
    ) -> Result<T, Failure> {
        let begun = clock::now();
        loop {
            match self.get(route, parameters, &[]).await {
                Err(failure) if is_retryable(&failure) && clock::now().since(begun) < RETRY_TIMEOUT => {
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
                result => return result,
            }
        }
    }

    /// As [`Remote::get`] for watching: none if there is no answer now, but may be later.
    pub async fn poll<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
    ) -> Result<Option<T>, Failure> {
        match tokio::time::timeout(ANSWER_TIMEOUT, self.get(route, parameters, &[])).await {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(failure)) if !is_retryable(&failure) => Err(failure),
            Ok(Err(_)) | Err(_) => Ok(None),
        }
    }

    /// Fetches the first `limit` items of a list. `next` of the result is set if there are more.
    pub async fn list<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        query: Query<'_>,
        limit: usize,
    ) -> Result<Page<T>, Failure> {
        let pages = route.query.iter().any(|query| query.name == "limit");
        let mut items: Vec<T> = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut query = query.to_vec();
            if pages {
                let left = u32::try_from(limit - items.len()).unwrap_or(u32::MAX).clamp(1, PAGE_ITEMS_MAX);
                query.extend([("limit", Some(left.to_string())), ("after", after)]);
            }
            let page: Page<T> = self.get(route, parameters, &query).await?;
            items.extend(page.items);
            after = page.next;
            if after.is_none() || items.len() >= limit {
                break;
            }
        }
        items.truncate(limit);
        Ok(Page { items, next: after })
    }

    /// Fetches a whole list that is never long.
    pub async fn list_all<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        query: Query<'_>,
    ) -> Result<Vec<T>, Failure> {
        Ok(self.list(route, parameters, query, LIST_ITEMS_MAX).await?.items)
    }

    pub async fn post<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        let mut request = self.client.request(route);
        for parameter in parameters {
            request = request.parameter(parameter);
        }
        if route.idempotency_key {
            request = request.idempotency_key(&format!("cli-{}", clock::new_incident_id()));
        }
        if route.request != routes::Body::None {
            request = request.json(body);
        }
        Ok(request.send().await?)
    }

    pub async fn patch<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        body: &impl Serialize,
    ) -> Result<T, Failure> {
        self.post(route, parameters, body).await
    }

    pub async fn delete(&self, route: &'static Route, parameters: &[&str]) -> Result<(), Failure> {
        self.get(route, parameters, &[]).await
    }

    /// Uploads a file, or standard input for `-`.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        query: Query<'_>,
        file: &Path,
    ) -> Result<T, Failure> {
        if file == Path::new("-") {
            return self.upload_from(route, parameters, query, std::io::stdin()).await;
        }
        let open = File::open(file).map_err(|error| Failure::file("opening", file, &error))?;
        self.upload_from(route, parameters, query, open).await
    }

    pub async fn upload_from<T: DeserializeOwned>(
        &self,
        route: &'static Route,
        parameters: &[&str],
        query: Query<'_>,
        source: impl std::io::Read + Send + 'static,
    ) -> Result<T, Failure> {
        let mut request = self.client.request(route);
        for parameter in parameters {
            request = request.parameter(parameter);
        }
        for (name, value) in query {
            request = request.maybe(name, value.as_ref());
        }
        Ok(request.upload(source).send().await?)
    }
}

/// Whether the same request may succeed in a moment. A wrong clock waits for a person.
pub fn is_retryable(failure: &Failure) -> bool {
    let code = failure.problem.code;
    code.retry() != Retry::Never && code != FaultCode::ClockSkew
}

fn tls_config(config: &ClientConfig) -> Result<std::sync::Arc<rustls::ClientConfig>, Failure> {
    if let Some(fingerprint) = config.ca.strip_prefix("sha256:") {
        return Ok(longhaul_security::join_client_tls(fingerprint)?);
    }
    if config.ca == SYSTEM_AUTHORITIES {
        let authorities = longhaul_gateways::read_authorities(None)?;
        return Ok(longhaul_security::foreign_client_tls(
            longhaul_security::ForeignServerTrust::Authorities(&authorities),
        )?);
    }
    if config.ca.is_empty() {
        if config.url.starts_with("http://") {
            // Plain HTTP to a loopback address: this TLS configuration is never used.
            return Ok(longhaul_security::join_client_tls(&"0".repeat(64))?);
        }
        return Err(Failure::new(
            FaultCode::NotAuthenticated,
            format!("{} has its own CA, which is not configured", config.url),
        )
        .with_title("the service's CA is unknown")
        .with_remedy(
            "give --ca FILE or --ca sha256:FINGERPRINT, as printed by `longhaul service init`; --ca system \
             if the service shows a certificate that browsers believe",
        ));
    }
    let path = Path::new(&config.ca);
    let pem = std::fs::read_to_string(path).map_err(|error| Failure::file("reading the CA", path, &error))?;
    Ok(longhaul_security::people_client_tls(&pem)?)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use longhaul_testkit::http::{Response, listen, serve};
    use serde_json::{Value, json};
    use tokio::net::TcpSocket;

    use super::*;

    /// Far longer than a poll waits for its answer, and far shorter than a waiting command retries.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn remote(port: u16) -> Remote {
        let url = format!("http://127.0.0.1:{port}");
        Remote::connect(&ClientConfig { url, ..ClientConfig::default() }).unwrap()
    }

    #[tokio::test]
    async fn whoever_watches_a_service_that_is_gone_or_hangs_soon_hears_that_it_is_silent() {
        // Ports that stay ours: one refuses connections, at the other nobody answers.
        let gone = TcpSocket::new_v4().unwrap();
        gone.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let (_hangs, hangs_port) = listen();
        for port in [gone.local_addr().unwrap().port(), hangs_port] {
            let remote = remote(port);
            let polled = remote.poll::<Value>(&routes::STATUS, &[]);
            let polled = tokio::time::timeout(TEST_TIMEOUT, polled).await;
            assert_eq!(polled.expect("it waits for the service instead").unwrap(), None);
        }
    }

    #[tokio::test]
    async fn a_list_is_fetched_to_its_end_and_says_if_it_was_cut() {
        let (listener, port) = listen();
        serve(listener, None, |request| {
            let page = if request.query().contains("after=2") {
                json!({ "items": [3] })
            } else {
                json!({ "items": [1, 2], "next": "2" })
            };
            Response::json(200, &page)
        });
        let remote = remote(port);
        let list =
            async |limit| -> Page<u8> { remote.list(&routes::DATASET_LIST, &[], &[], limit).await.unwrap() };
        let whole = list(LIST_ITEMS_MAX).await;
        assert_eq!((whole.items, whole.next), (vec![1, 2, 3], None));
        let cut = list(2).await;
        assert_eq!((cut.items, cut.next.as_deref()), (vec![1, 2], Some("2")));
    }
}
