//! nginx, the server for all clients that speak HTTP: sendfile, two workers, TLS 1.3 with AES-128-GCM (the
//! fastest here).

use super::{Direction, Program, Run, Security, Server};
use crate::transfers::launch::Words;

const CLEAR_PORT: u16 = 8080;
const TLS_PORT: u16 = 8443;

/// What sets the clients apart: their names without and with TLS, and their commands.
#[derive(Clone, Copy)]
pub(crate) struct Client {
    pub(super) clear: &'static str,
    pub(super) tls: &'static str,
    pub(super) command: fn(&Run<'_>, Security) -> Result<Words, String>,
}

/// A client that fetches from here. None of them verifies anything.
pub(crate) struct FromNginx(pub(crate) Client, pub(crate) Security);

impl Program for FromNginx {
    fn name(&self) -> &'static str {
        self.1.pick(self.0.clear, self.0.tls)
    }

    fn encrypted(&self) -> &'static str {
        self.1.pick("no", "TLS 1.3, AES-128-GCM")
    }

    fn verified(&self) -> &'static str {
        "no"
    }

    fn direction(&self) -> Direction {
        Direction::Pull
    }

    fn server(&self, run: &Run<'_>) -> Result<Server, String> {
        server(run, self.1)
    }

    fn client(&self, run: &Run<'_>) -> Result<Words, String> {
        (self.0.command)(run, self.1)
    }
}

fn server(run: &Run<'_>, security: Security) -> Result<Server, String> {
    let port = security.pick(CLEAR_PORT, TLS_PORT);
    let tls = format!(
        "ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites \
         TLS_AES_128_GCM_SHA256; ssl_session_cache shared:a:1m;",
        run.keys.certificate("host").display(),
        run.keys.key("host").display()
    );
    let settings = format!(
        "user root; daemon off; worker_processes 2; pid {folder}/nginx.pid; error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000; types {{ }}\n  \
           client_body_temp_path {folder}/b; proxy_temp_path {folder}/p; fastcgi_temp_path {folder}/f; \
           uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n  \
           server {{ listen {far}:{port}{ssl}; root {root}; autoindex on; {tls} }}\n}}\n",
        folder = run.folder.display(),
        far = run.far,
        ssl = security.pick("", " ssl"),
        root = run.source.display(),
        tls = security.pick("", &tls),
    );
    let path = run.file("nginx.conf", &settings)?;
    Ok(Server::new(Words::new("nginx").args("-e stderr -c").path(&path), port).with(settings))
}

/// With a slash at its end.
pub(super) fn url(run: &Run<'_>, security: Security) -> String {
    let (scheme, port) = security.pick(("http", CLEAR_PORT), ("https", TLS_PORT));
    format!("{scheme}://{}:{port}/", run.far)
}
