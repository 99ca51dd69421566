//! The options of a job's copies, parsed from the details that are stored as submitted.

use std::time::Duration;

use longhaul_catalog::{JobFileRow, JobRow};
use longhaul_model::Timestamp;
use longhaul_model::job::storage_element;
use longhaul_storage_remote::{Family, Overwrite};
use serde::Deserialize;

use crate::config_store::Objects;
use crate::derived_limits::CopyModes;
use crate::mover::Verify;

/// Longest timeout of a copy, and longest delay between two attempts, that a job can set.
const DURATION_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Connections of one copy.
const STREAMS_MAX: u32 = 64;

/// Options by FTS's rules; one that is missing or of another type takes its default.
#[derive(Debug, Default, PartialEq)]
pub struct Terms {
    /// Retries of a file. 0: as configured; negative: none.
    pub retry: i64,
    pub retry_delay: Option<Duration>,
    pub verify: Verify,
    /// Y always, R on a retry, M on hops before the last, D on the last one if what is there is on disk only,
    /// Q as M and D.
    pub overwrite: Option<char>,
    /// FTS's `dst_file_report`, which means something for archives only.
    pub reports_standing: bool,
    pub strict: bool,
    pub keeps_partial: bool,
    pub family: Option<Family>,
    pub timeout: Option<Duration>,
    pub streams: u32,
    /// FTS's name for path-style URLs: the bucket is part of the path.
    pub s3alternate: bool,
    /// Files on tape have to be on disk within this time.
    pub bring_online: Option<Duration>,
    /// Files from tape stay on disk this long.
    pub pin: Option<Duration>,
    /// Files that arrived have to be on tape within this time.
    pub archive_timeout: Option<Duration>,
    pub unmanaged_tokens: bool,
    /// Retries as configured for the job's community.
    pub usual_retries: Option<u32>,
    pub modes: CopyModes,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawOptions {
    retry: serde_json::Value,
    retry_delay: serde_json::Value,
    verify_checksum: serde_json::Value,
    overwrite_flag: serde_json::Value,
    timeout: serde_json::Value,
    nostreams: serde_json::Value,
    s3alternate: serde_json::Value,
    internal_job_params: serde_json::Value,
    bring_online: serde_json::Value,
    copy_pin_lifetime: serde_json::Value,
    archive_timeout: serde_json::Value,
    unmanaged_tokens: serde_json::Value,
    dst_file_report: serde_json::Value,
    strict_copy: serde_json::Value,
    disable_cleanup: serde_json::Value,
    ipv4: serde_json::Value,
    ipv6: serde_json::Value,
}

impl Terms {
    /// The options of one file: the job's own, completed by what is configured.
    pub fn for_file(job: &JobRow, file: &JobFileRow, configured: &Objects, now: Timestamp) -> Terms {
        let mut terms = Terms::read(&job.details);
        terms.timeout = terms.timeout.or_else(|| configured.timeout(&job.vo, file.size));
        terms.usual_retries = configured.retries(&job.vo);
        if let (Some(source), Some(target)) = (storage_element(&file.source), storage_element(&file.target)) {
            if terms.streams == 0 {
                terms.streams = configured.streams(&source, &target, now).min(STREAMS_MAX);
            }
            terms.modes = configured.copy_modes(&job.vo, &source, &target);
        }
        terms
    }

    /// The options that the job itself sets.
    pub fn for_job(job: &JobRow) -> Terms {
        Terms::read(&job.details)
    }

    fn read(details: &str) -> Terms {
        let said: RawOptions = serde_json::from_str(details).unwrap_or_default();
        let packed = said.internal_job_params.as_str().unwrap_or_default();
        let either = |value: &serde_json::Value, name| number(value).or_else(|| of_packed(packed, name));
        let seconds = |value: Option<i64>| {
            let seconds = value.filter(|value| *value > 0)?.unsigned_abs();
            Some(Duration::from_secs(seconds).min(DURATION_MAX))
        };
        let flag = |value: &serde_json::Value, name: &str| {
            *value == serde_json::Value::Bool(true) || packed.split(',').any(|one| one == name)
        };
        let archives = number(&said.archive_timeout).is_some_and(|seconds| seconds > 0);
        let first = |value: &serde_json::Value| value.as_str().and_then(|text| text.chars().next());
        Terms {
            retry: number(&said.retry).unwrap_or(0),
            retry_delay: seconds(number(&said.retry_delay)),
            verify: match first(&said.verify_checksum) {
                Some('s') => Verify::Source,
                Some('t') => Verify::Target,
                Some('b') => Verify::Both,
                _ => Verify::None,
            },
            overwrite: first(&said.overwrite_flag),
            timeout: seconds(either(&said.timeout, "timeout")),
            unmanaged_tokens: said.unmanaged_tokens == serde_json::Value::Bool(true),
            s3alternate: flag(&said.s3alternate, "s3alternate"),
            reports_standing: archives && said.dst_file_report == serde_json::Value::Bool(true),
            strict: flag(&said.strict_copy, "strict"),
            keeps_partial: flag(&said.disable_cleanup, "disable-cleanup"),
            family: match (flag(&said.ipv4, "ipv4"), flag(&said.ipv6, "ipv6")) {
                (true, _) => Some(Family::V4),
                (false, true) => Some(Family::V6),
                (false, false) => None,
            },
            bring_online: seconds(number(&said.bring_online)),
            pin: seconds(number(&said.copy_pin_lifetime)),
            archive_timeout: number(&said.archive_timeout)
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map(|seconds| Duration::from_secs(seconds).min(DURATION_MAX)),
            streams: either(&said.nostreams, "nostreams").unwrap_or(0).clamp(0, STREAMS_MAX.into()) as u32,
            usual_retries: None,
            modes: CopyModes::default(),
        }
    }

    /// Whether what stands at the target may be replaced, at this try of this file.
    pub fn overwrites(&self, retries: u32, last_hop: bool) -> Overwrite {
        let always = match self.overwrite {
            Some('Y') => true,
            Some('R') => retries > 0,
            Some('M' | 'Q') => !last_hop,
            _ => false,
        };
        match self.overwrite {
            _ if always => Overwrite::Always,
            Some('D' | 'Q') if last_hop => Overwrite::OnlyOnDisk,
            _ => Overwrite::Never,
        }
    }
}

/// A number, also if it was sent as text.
fn number(value: &serde_json::Value) -> Option<i64> {
    value.as_i64().or_else(|| value.as_str()?.parse().ok())
}

/// `nostreams:4,timeout:3600,strict`
fn of_packed(packed: &str, name: &str) -> Option<i64> {
    packed.split(',').find_map(|one| one.strip_prefix(name)?.strip_prefix(':')?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_as_clients_write_them() {
        let terms = Terms::read(
            r#"{"retry":-1,"retry_delay":7,"verify_checksum":"both","overwrite_flag":"R","timeout":"60",
                "internal_job_params":"nostreams:4,timeout:3600,strict,s3alternate,ipv6","bring_online":60,
                "copy_pin_lifetime":-1,"archive_timeout":0,"dst_file_report":true,"unmanaged_tokens":true,
                "other":[1]}"#,
        );
        assert_eq!(
            terms,
            Terms {
                unmanaged_tokens: true,
                retry: -1,
                retry_delay: Some(Duration::from_secs(7)),
                verify: Verify::Both,
                overwrite: Some('R'),
                reports_standing: false,
                strict: true,
                keeps_partial: false,
                family: Some(Family::V6),
                timeout: Some(Duration::from_secs(60)),
                streams: 4,
                s3alternate: true,
                bring_online: Some(Duration::from_secs(60)),
                pin: None,
                archive_timeout: Some(Duration::ZERO),
                usual_retries: None,
                modes: CopyModes::default(),
            }
        );
        let terms = Terms::read(
            r#"{"archive_timeout":60,"dst_file_report":true,"disable_cleanup":true,"ipv4":true,"ipv6":true}"#,
        );
        assert_eq!((terms.reports_standing, terms.strict, terms.keeps_partial), (true, false, true));
        assert_eq!(terms.family, Some(Family::V4), "it wins, as in FTS");
        for odd in ["", "[]", "{}", r#"{"retry":[],"timeout":-5,"verify_checksum":7}"#] {
            assert_eq!(Terms::read(odd), Terms::default(), "{odd}");
        }
        use Overwrite::{Always, Never, OnlyOnDisk};
        for (flag, first_hop, last_hop, last_hop_again) in [
            (None, Never, Never, Never),
            (Some('Y'), Always, Always, Always),
            (Some('R'), Never, Never, Always),
            (Some('M'), Always, Never, Never),
            (Some('D'), Never, OnlyOnDisk, OnlyOnDisk),
            (Some('Q'), Always, OnlyOnDisk, OnlyOnDisk),
        ] {
            let terms = Terms { overwrite: flag, ..Terms::default() };
            let found = [terms.overwrites(0, false), terms.overwrites(0, true), terms.overwrites(1, true)];
            assert_eq!(found, [first_hop, last_hop, last_hop_again], "{flag:?}");
        }
        let huge = Terms::read(r#"{"timeout":9223372036854775807}"#);
        assert_eq!(huge.timeout, Some(DURATION_MAX));
    }
}
