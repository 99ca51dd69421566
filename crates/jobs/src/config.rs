//! The settings of jobs (`service.jobs`).

use std::path::PathBuf;

use longhaul_model::address::IpNetwork;
use longhaul_model::{CommunityName, Fault, FaultCode};
use serde::{Deserialize, Serialize};

use crate::names::NamesConfig;
use crate::s3::S3Config;
use crate::tape::TapeConfig;

/// Settings of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JobsConfig {
    /// Concurrent copies over all end points; further ones wait.
    pub copies: u32,
    /// Concurrent copies from one host, and to one host.
    pub host_copies: u32,
    /// Unfinished files of one user in all jobs. 0: no limit.
    pub user_files: u64,
    /// Limits of unfinished files per user that hold for single communities.
    pub user_files_of: Vec<UserFiles>,
    /// Retries of a file unless its job sets them.
    pub retries: u32,
    /// Seconds between two attempts unless the job sets them.
    pub retry_delay_s: u32,
    /// Loopback, link-local and private networks whose storages may be used; all public ones may.
    pub allow_networks: Vec<String>,
    /// PEM files with the authorities trusted for storages; none: those of the system.
    pub authorities: Vec<PathBuf>,
    /// Keys of storages that speak S3.
    pub s3: Vec<S3Config>,
    /// Memory for parts of files on their way to S3, over all copies.
    pub s3_memory_mib: u32,
    /// Name rules of hosts whose files jobs may name by schemes that are not served.
    pub names: Vec<NamesConfig>,
    pub tape: TapeConfig,
}

impl Default for JobsConfig {
    fn default() -> Self {
        JobsConfig {
            copies: 400,
            host_copies: 60,
            user_files: 2_000_000,
            user_files_of: Vec::new(),
            retries: 0,
            retry_delay_s: 120,
            allow_networks: Vec::new(),
            authorities: Vec::new(),
            s3: Vec::new(),
            s3_memory_mib: 512,
            names: Vec::new(),
            tape: TapeConfig::default(),
        }
    }
}

/// The limit of unfinished files for each user of one community.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserFiles {
    pub community: CommunityName,
    /// 0: no limit.
    pub files: u64,
}

impl JobsConfig {
    /// Limit of unfinished files of a user of this community; none: no limit.
    pub fn files_of_user(&self, community: &str) -> Option<u64> {
        let own = self.user_files_of.iter().find(|own| own.community.as_str() == community);
        Some(own.map_or(self.user_files, |own| own.files)).filter(|most| *most > 0)
    }

    pub fn check(&self) -> Result<(), Fault> {
        for (name, value) in [
            ("copies", self.copies),
            ("host_copies", self.host_copies),
            ("s3_memory_mib", self.s3_memory_mib),
        ] {
            if value == 0 {
                let text = format!("service.jobs.{name} is 0: it must be positive");
                return Err(Fault::new(FaultCode::BadRequest, text));
            }
        }
        for (place, own) in self.user_files_of.iter().enumerate() {
            if self.user_files_of[..place].iter().any(|other| other.community == own.community) {
                let text = format!("service.jobs.user_files_of names {} twice", own.community);
                return Err(Fault::new(FaultCode::BadRequest, text));
            }
        }
        self.s3.iter().try_for_each(S3Config::check)?;
        NamesConfig::check_all(&self.names)?;
        self.tape.check()?;
        self.allowed_networks().map(drop)
    }

    pub(crate) fn allowed_networks(&self) -> Result<Vec<IpNetwork>, Fault> {
        let parse = |text: &String| {
            text.parse::<IpNetwork>().map_err(|error| {
                Fault::new(FaultCode::BadRequest, format!("service.jobs.allow_networks: {error}"))
            })
        };
        self.allow_networks.iter().map(parse).collect()
    }
}
