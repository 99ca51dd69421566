//! The service's port, played over real TLS and HTTP: joins agents and takes each to its desk.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use longhaul_api::Problem;
use longhaul_api::agent::{JoinReply, JoinRequest};
use longhaul_api::problem::status_of;
use longhaul_model::{AgentId, Fault, FaultCode};
use longhaul_security::{Credentials, JoinToken, PeerIdentity, client_identity, service_server_tls};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::Deployment;
use super::fake_service::FakeService;
use crate::service_api::ServiceApi;

pub(crate) struct Front {
    pub deployment: Deployment,
    pub url: String,
    desks: BTreeMap<AgentId, Arc<FakeService>>,
    /// Secrets of join tokens not yet used, with site and agent they are for.
    secrets: Mutex<BTreeMap<String, (String, AgentId)>>,
}

impl Front {
    /// Desks for agents 1 (alpha) and 2 (beta).
    pub async fn open() -> Arc<Front> {
        let deployment = Deployment::new();
        let pair = deployment.authority.issue_service(&["127.0.0.1".into()], deployment.clock.now()).unwrap();
        let credentials = Credentials {
            certificate_pem: pair.certificate_pem,
            key_pem: pair.key_pem,
            ca_pem: deployment.authority.ca_pem().into(),
        };
        let acceptor = TlsAcceptor::from(service_server_tls(&credentials, None).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let desks = [1, 2].map(|agent| (AgentId(agent), FakeService::new(&deployment.clock, false)));
        let front = Arc::new(Front {
            url: format!("https://{}", listener.local_addr().unwrap()),
            deployment,
            desks: desks.into(),
            secrets: Mutex::default(),
        });
        let answering = front.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (front, acceptor) = (answering.clone(), acceptor.clone());
                // A client that leaves in the middle is no failure of the test.
                tokio::spawn(async move { drop(front.serve(stream, acceptor).await) });
            }
        });
        front
    }

    pub fn service(&self, agent: u64) -> Arc<FakeService> {
        self.desks[&AgentId(agent)].clone()
    }

    pub fn token(&self, site: &str, agent: u64) -> JoinToken {
        let secret = format!("secret of {site}");
        self.secrets.lock().insert(secret.clone(), (site.into(), AgentId(agent)));
        JoinToken {
            url: self.url.clone(),
            ca_fingerprint: self.deployment.authority.ca_fingerprint(),
            secret,
        }
    }

    async fn serve(&self, stream: TcpStream, acceptor: TlsAcceptor) -> io::Result<()> {
        let mut stream = acceptor.accept(stream).await?;
        let peer = client_identity(stream.get_ref().1, "tests").map_err(io::Error::other)?;
        loop {
            let (path, body) = read_request(&mut stream).await?;
            let mut byte = [0];
            let answer = tokio::select! {
                answer = self.answer(&path, &body, peer.as_ref()) => answer,
                _ = stream.read(&mut byte) => return Ok(()),
            };
            let (status, json) = match answer {
                Ok(json) => (200, json),
                Err(fault) => (status_of(fault.code), to_json(&Problem::from(fault))),
            };
            let head = format!(
                "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                json.len()
            );
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(&json).await?;
            stream.flush().await?;
        }
    }

    async fn answer(&self, path: &str, body: &[u8], peer: Option<&PeerIdentity>) -> Result<Vec<u8>, Fault> {
        let bad = |error: serde_json::Error| Fault::new(FaultCode::BadRequest, error.to_string());
        if path == "/api/v1/agent/join" {
            return self.join(&serde_json::from_slice(body).map_err(bad)?).map(|reply| to_json(&reply));
        }
        let nobody = || Fault::new(FaultCode::NotAuthenticated, "an agent's certificate is needed");
        let (agent, _) = peer.ok_or_else(nobody)?.require_agent()?;
        let service = &self.desks[&agent];
        match path {
            "/api/v1/agent/report" => {
                Ok(to_json(&service.report(serde_json::from_slice(body).map_err(bad)?).await?))
            }
            "/api/v1/agent/work" => {
                Ok(to_json(&service.work(serde_json::from_slice(body).map_err(bad)?).await?))
            }
            _ => Err(Fault::new(FaultCode::NotFound, path)),
        }
    }

    fn join(&self, request: &JoinRequest) -> Result<JoinReply, Fault> {
        let used = || Fault::new(FaultCode::JoinTokenUsed, "nothing changed");
        let (site, agent) = self.secrets.lock().remove(&request.secret).ok_or_else(used)?;
        let authority = &self.deployment.authority;
        let site = site.parse().unwrap();
        let issued =
            authority.issue_agent(&request.signing_request, agent, &site, self.deployment.clock.now())?;
        Ok(JoinReply {
            agent,
            site,
            deployment: "tests".into(),
            certificate: issued.certificate_pem,
            ca: authority.ca_pem().into(),
            permit_key: authority.permit_key_pem(),
        })
    }
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

async fn read_request(stream: &mut TlsStream<TcpStream>) -> io::Result<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).map_err(io::Error::other)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await?;
    Ok((path, body))
}
