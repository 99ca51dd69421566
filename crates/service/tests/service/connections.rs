//! Floods of connections: they keep out neither people elsewhere nor agents.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longhaul_api::native::WhoAmI;
use longhaul_api::routes;
use longhaul_security::{agent_client_tls, people_client_tls};
use longhaul_service::HttpLimits;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;

use crate::world::{World, until};

/// Connections of each listener, of which these are for anonymous ones after their handshake.
const CONNECTIONS: u32 = 64;
const ANONYMOUS: usize = 32;
const ANONYMOUS_OF_ADDRESS: usize = 8;
const HANDSHAKES: usize = 16;

/// A connection from that address of the loopback interface.
async fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, last], 0))).unwrap();
    socket.connect(to).await.unwrap()
}

/// A connection that has shown no certificate and got an answer; none if the service closed it.
async fn anonymous_from(world: &World, last: u8) -> Option<TlsStream<TcpStream>> {
    let connector = TlsConnector::from(people_client_tls(&world.ca_pem).unwrap());
    let stream = connect_from(last, world.address()).await;
    let name = IpAddr::from([127, 0, 0, 1]).into();
    let mut stream = connector.connect(name, stream).await.ok()?;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: {}\r\n\r\n", world.address());
    stream.write_all(head.as_bytes()).await.ok()?;
    let answered = stream.read_u8().await;
    answered.is_ok().then_some(stream)
}

/// Else a request could be written while the service closes its connection, and be lost.
#[test]
fn clients_close_connections_well_before_the_service_does() {
    let (client, service) = (longhaul_api::client::IDLE_TIMEOUT, HttpLimits::default().head());
    assert!(2 * client <= service, "{client:?} and {service:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_keeps_out_neither_other_addresses_nor_agents() {
    let mut world = World::with(|config| {
        config.limits.connections = CONNECTIONS;
    })
    .await;
    let agent = world.agent("alpha").await;

    // Silent ones displace each other; those who come later are answered.
    let mut silent = Vec::new();
    for _ in 0..300 {
        silent.push(connect_from(2, world.address()).await);
    }
    let caller: WhoAmI = world.admin().request(&routes::WHOAMI).send().await.unwrap();
    assert_eq!(caller.role, "admin");
    let stay = silent.split_off(silent.len() - HANDSHAKES);
    for mut stream in silent {
        assert!(stream.read_u8().await.is_err(), "closed, the oldest first");
    }

    // With a handshake and a request, one address has its share, and all together have theirs.
    let mut open = Vec::new();
    for last in 3..13 {
        let before = open.len();
        for _ in 0..ANONYMOUS_OF_ADDRESS + 2 {
            open.extend(anonymous_from(&world, last).await);
        }
        assert!(open.len() - before <= ANONYMOUS_OF_ADDRESS, "from one address");
        if last == 3 {
            assert_eq!(open.len(), ANONYMOUS_OF_ADDRESS);
        }
    }
    assert!(open.len() <= ANONYMOUS, "{}", open.len());
    assert!(anonymous_from(&world, 14).await.is_none(), "no place is left for anonymous ones");
    agent.started_again(1, 11).hello(&[]).await.unwrap();
    let (status, _) = world.request(&world.admin_token, "GET", "/api/v1/whoami", "").await;
    assert_eq!(status, 200, "the plain port has places of its own");

    // What was closed makes room.
    drop((open, stay));
    until("a place", async || anonymous_from(&world, 14).await.map(drop).ok_or_else(|| "refused".to_owned()))
        .await;
    world.stop().await;
}

/// A connection that says nothing ends by itself, before its handshake and after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_connection_is_closed() {
    let mut world = World::with(|config| config.limits.head_ms = 500).await;
    let mut silent = connect_from(2, world.address()).await;
    let mut plain = connect_from(2, world.http_address()).await;
    let mut idle = until("a handshake within the limit", async || {
        anonymous_from(&world, 2).await.ok_or_else(|| "closed".to_owned())
    })
    .await;
    let mut rest = Vec::new();
    assert!(silent.read_u8().await.is_err());
    plain.read_to_end(&mut rest).await.unwrap_or_default();
    idle.read_to_end(&mut rest).await.unwrap_or_default();
    world.stop().await;
}

/// An open connection with these settings.
async fn connect_by(world: &World, tls: Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(world.address()).await.unwrap();
    TlsConnector::from(tls).connect(IpAddr::from([127, 0, 0, 1]).into(), stream).await.unwrap()
}

/// The head of an answer; its body is read and dropped.
async fn answer_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    head
}

/// An agent may hold its connection for longer than its certificate is valid.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_does_not_outlive_the_certificate_that_opened_it() {
    let mut world = World::new().await;
    let agent = world.agent("alpha").await;
    agent.hello(&[]).await.unwrap();
    let mut stream = connect_by(&world, agent_client_tls(&agent.credentials).unwrap()).await;
    let report = serde_json::to_string(&agent.empty_report()).unwrap();
    let request = format!(
        "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: \
            {}\r\n\r\n{report}",
        routes::AGENT_REPORT.path,
        world.address(),
        report.len()
    );
    for (days, status) in [(0, 200), (31, 401)] {
        world.shift_s.store(days * 86_400, Ordering::Relaxed);
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = answer_head(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "after {days} days: {head}");
    }
    world.stop().await;
}

/// Browsers that came by TLS once come by TLS only; not to a name that the plain port has too.
#[tokio::test(flavor = "multi_thread")]
async fn answers_over_tls_bind_browsers_to_it() {
    let mut world = World::new().await;
    let request = |host: &str| format!("GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let is_bound = |head: &str| head.contains("\r\nstrict-transport-security: ");
    for (host, bound) in [("127.0.0.1:8443", true), ("longhaul.example", true), ("localhost:8443", false)] {
        let mut stream = connect_by(&world, people_client_tls(&world.ca_pem).unwrap()).await;
        stream.write_all(request(host).as_bytes()).await.unwrap();
        let head = answer_head(&mut stream).await;
        assert_eq!(is_bound(&head), bound, "{host}: {head}");
    }
    let mut plain = TcpStream::connect(world.http_address()).await.unwrap();
    plain.write_all(request(&world.http_address().to_string()).as_bytes()).await.unwrap();
    assert!(!is_bound(&answer_head(&mut plain).await), "the plain port has no TLS");
    world.stop().await;
}
