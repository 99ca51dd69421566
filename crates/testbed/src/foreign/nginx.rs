//! nginx with its own WebDAV module: a plain server that copies nothing between servers and tells no
//! checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{ForeignAuthority, open_folder, open_folder_in, wait_until_listening};
use crate::{Log, Process, free_port};

pub struct Nginx {
    folder: tempfile::TempDir,
    port: u16,
    _process: Process,
}

/// Access rules and rate limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct NginxRules<'a> {
    /// The one token that opens it.
    pub token: Option<&'a str>,
    /// Only clients with a certificate of the authority.
    pub certificate: bool,
    /// Rate limit of one answer.
    pub bytes_per_s: Option<u32>,
    /// Where its files lie, if not where temporary ones do.
    pub below: Option<&'a Path>,
}

impl Nginx {
    /// Serves, when this returns.
    pub fn start(authority: &ForeignAuthority, rules: NginxRules<'_>) -> Nginx {
        let folder = rules.below.map_or_else(open_folder, open_folder_in);
        let port = free_port();
        for name in ["data", "temp"] {
            fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        let (certificate, key) = authority.issue_files(folder.path(), "nginx");
        let here = folder.path().display();
        let mut more = String::new();
        if let Some(token) = rules.token {
            more += &format!("if ($http_authorization != \"Bearer {token}\") {{ return 403; }}\n");
        }
        if let Some(rate) = rules.bytes_per_s {
            more += &format!("limit_rate {rate};\n");
        }
        if rules.certificate {
            let ca = authority.ca_file();
            more += &format!("ssl_client_certificate {};\nssl_verify_client on;\n", ca.display());
        }
        // One process: workers would outlive a master that is killed.
        let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {here}/temp/{name};\n"))
            .concat();
        let config = format!(
            "daemon off;\nmaster_process off;\npid {here}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 256; }}\n\
             http {{\naccess_log off;\n{paths}client_max_body_size 0;\nserver {{\n\
             listen 127.0.0.1:{port} ssl;\nserver_name localhost;\n\
             ssl_certificate {};\nssl_certificate_key {};\nroot {here};\n{more}\
             location /data/ {{ dav_methods PUT DELETE MKCOL COPY MOVE; create_full_put_path on; \
             }}\n}}\n}}\n",
            certificate.display(),
            key.display()
        );
        let config_file = folder.path().join("nginx.conf");
        fs::write(&config_file, config).expect("a file");
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-c").arg(&config_file);
        let log = Log::default();
        let mut process = Process::start("nginx", &mut command, &log, &folder.path().join("log"));
        wait_until_listening(&mut process, port);
        Nginx { folder, port, _process: process }
    }

    /// Where its files lie.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// URL of one of its files.
    pub fn url(&self, name: &str) -> String {
        format!("https://localhost:{}/data/{name}", self.port)
    }

    /// A file as others have left it.
    pub fn put(&self, name: &str, content: &[u8]) {
        fs::write(self.data().join(name), content).expect("a file");
    }
}
