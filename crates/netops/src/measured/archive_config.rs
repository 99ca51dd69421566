//! What an administrator can set about an archive of measurements.

use std::path::PathBuf;

use longhaul_gateways::perfsonar::archive::{Archive, Settings};
use longhaul_model::{Fault, FaultCode};
use serde::{Deserialize, Serialize};

/// A measurement archive of perfSONAR, or a template that says who should have results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArchiveConfig {
    pub url: String,
    /// `esmond`, `opensearch` or `mesh`.
    pub kind: String,
    /// Whether the server's certificate is checked.
    #[serde(default = "yes")]
    pub verify: bool,
    /// A PEM file with the authorities that are believed; none: those of the system.
    #[serde(default)]
    pub authorities: Option<PathBuf>,
    /// Seconds between two readings.
    #[serde(default = "every_s")]
    pub every_s: u32,
}

fn yes() -> bool {
    true
}

fn every_s() -> u32 {
    300
}

/// Shorter would only burden the archive: results come every minute at best.
const EVERY_S_MIN: u32 = 10;

impl ArchiveConfig {
    pub fn settings(&self) -> Result<Settings, Fault> {
        let kind = self.kind.parse().map_err(|error: String| Fault::new(FaultCode::BadRequest, error))?;
        Ok(Settings {
            url: self.url.clone(),
            kind,
            verify: self.verify,
            authorities: self.authorities.clone(),
        })
    }

    pub fn check(&self) -> Result<(), Fault> {
        let about = |fault: Fault| {
            Fault::new(fault.code, format!("service.perfsonar: {}", fault.detail)).with_source(fault)
        };
        if self.every_s < EVERY_S_MIN {
            let detail = format!("every_s of {} is {}: at least {EVERY_S_MIN}", self.url, self.every_s);
            return Err(about(Fault::new(FaultCode::BadRequest, detail)));
        }
        self.settings().and_then(|settings| Archive::open(&settings)).map(drop).map_err(about)
    }
}
