//! The certificate authorities that a client of an outside server believes: those of a named file, or of the
//! system.

use std::path::Path;
use std::sync::Arc;

use longhaul_model::{Fault, FaultCode};

/// Where systems keep the authorities that they believe.
pub const SYSTEM_AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Those of a file, else of the system, as PEM.
pub fn read(named: Option<&Path>) -> Result<Arc<str>, Fault> {
    let unreadable = |path: &Path, error: std::io::Error| {
        Fault::new(FaultCode::BadRequest, format!("authorities in {}: {error}", path.display()))
            .with_source(error)
    };
    if let Some(path) = named {
        return std::fs::read_to_string(path).map(Arc::from).map_err(|error| unreadable(path, error));
    }
    for path in SYSTEM_AUTHORITIES {
        match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            read => return read.map(Arc::from).map_err(|error| unreadable(Path::new(path), error)),
        }
    }
    let detail = "this system has no file of certificate authorities: name one with `authorities`";
    Err(Fault::new(FaultCode::BadRequest, detail))
}
