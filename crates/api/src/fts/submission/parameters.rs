//! The parameters of a job.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::job::JobKind;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::Fields;
use super::{Refusal, Rules, SubmittedFile};

const SPACE_TOKEN_BYTES_MAX: usize = 255;
/// Default for the staging time limit or the pin if only the other is given: a week.
const STAGING_S_DEFAULT: i64 = 604_800;

/// Parameters of a job beside kind, priority and expiry, under the names of FTS's job object; stored with the
/// job as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Metadata of the job; an object or null.
    pub job_metadata: Value,
    /// How the submitter logged in: `certificate` or `oauth2`.
    pub auth_method: String,
    /// Further attempts after a failure; 0 for the default, -1 for none.
    pub retry: i64,
    /// Seconds between two attempts.
    pub retry_delay: i64,
    /// When existing files are replaced: `Y` always, `R` on retries, `M` at all hops but the last, `D` if
    /// they are only on disk, `Q` as `M` and `D` together.
    pub overwrite_flag: Option<char>,
    /// Where checksums are compared: `s` source, `t` target, `b` both, `n` nowhere.
    pub verify_checksum: char,
    /// Space token of the source; stored and shown only.
    pub source_spacetoken: String,
    /// Space token of the target; stored and shown only.
    pub destination_spacetoken: String,
    /// Seconds to pin a staged file; -1 if not requested.
    pub copy_pin_lifetime: i64,
    /// Time limit of staging in seconds; -1 if not requested.
    pub bring_online: i64,
    /// Time limit of archiving in seconds; -1 if not requested.
    pub archive_timeout: i64,
    /// Report about existing target files.
    pub dst_file_report: bool,
    /// Time limit of a copy in seconds; absent: it depends on the size.
    pub timeout: Option<u32>,
    /// TCP streams of a copy.
    pub nostreams: Option<u32>,
    /// TCP buffer in bytes.
    pub buffer_size: Option<u64>,
    /// Skip all checks that a copy can do without.
    pub strict_copy: bool,
    /// Keep what a failed copy has written.
    pub disable_cleanup: bool,
    /// Use IPv4 only; wins over `ipv6`.
    pub ipv4: bool,
    /// Use IPv6 only.
    pub ipv6: bool,
    /// Address S3 buckets by path instead of by host name.
    pub s3alternate: bool,
    /// Use the tokens as given; do not refresh them.
    pub unmanaged_tokens: bool,
}

/// Parameters of a job whose stored ones cannot be read.
impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            job_metadata: Value::Null,
            auth_method: String::new(),
            retry: 0,
            retry_delay: 0,
            overwrite_flag: None,
            verify_checksum: 'n',
            source_spacetoken: String::new(),
            destination_spacetoken: String::new(),
            copy_pin_lifetime: -1,
            bring_online: -1,
            archive_timeout: -1,
            dst_file_report: false,
            timeout: None,
            nostreams: None,
            buffer_size: None,
            strict_copy: false,
            disable_cleanup: false,
            ipv4: false,
            ipv6: false,
            s3alternate: false,
            unmanaged_tokens: false,
        }
    }
}

impl Parameters {
    pub(super) fn parse(given: &Fields<'_>, files: &[Value], rules: &Rules) -> Result<Parameters, Refusal> {
        let number = |name: &str, default: i64| Ok::<i64, Refusal>(given.integer(name)?.unwrap_or(default));
        let space = |name: &str| {
            Ok::<String, Refusal>(
                given.short_text(name, SPACE_TOKEN_BYTES_MAX)?.unwrap_or_default().to_owned(),
            )
        };
        let mut parameters = Parameters {
            job_metadata: given.metadata("job_metadata", rules.metadata_bytes)?,
            auth_method: rules.auth_method.to_owned(),
            retry: number("retry", 0)?,
            retry_delay: number("retry_delay", 0)?.max(0),
            overwrite_flag: overwrite_flag(given)?,
            verify_checksum: verify_checksum(given, files)?,
            source_spacetoken: space("source_spacetoken")?,
            destination_spacetoken: space("destination_spacetoken")?,
            copy_pin_lifetime: number("copy_pin_lifetime", -1)?,
            bring_online: number("bring_online", -1)?,
            archive_timeout: number("archive_timeout", -1)?,
            dst_file_report: given.flag("dst_file_report")?,
            timeout: positive(given, "timeout")?,
            nostreams: positive(given, "nostreams")?,
            buffer_size: positive(given, "buffer_size")?,
            strict_copy: given.flag("strict_copy")?,
            disable_cleanup: given.flag("disable_cleanup")?,
            ipv4: given.flag("ipv4")?,
            ipv6: given.flag("ipv6")?,
            s3alternate: given.flag("s3alternate")?,
            unmanaged_tokens: given.flag("unmanaged_tokens")?,
        };
        if parameters.is_staging() {
            let or_default = |value: i64| if value > 0 { value } else { STAGING_S_DEFAULT };
            parameters.bring_online = or_default(parameters.bring_online);
            parameters.copy_pin_lifetime = or_default(parameters.copy_pin_lifetime);
        }
        Ok(parameters)
    }

    /// Whether files are staged from tape first.
    pub fn is_staging(&self) -> bool {
        self.bring_online > 0 || self.copy_pin_lifetime > 0
    }

    /// Checks what depends on the kind of job and its files.
    pub(super) fn check(&self, kind: JobKind, files: &[SubmittedFile]) -> Result<(), Refusal> {
        let flag = self.overwrite_flag;
        if matches!(flag, Some('M' | 'Q')) && kind != JobKind::Hops {
            return Err(Refusal::bad("'overwrite-hop' requires multihop job submission"));
        }
        if matches!(flag, Some('D' | 'Q')) {
            if self.archive_timeout <= 0 {
                return Err(Refusal::bad(
                    "'overwrite-when-only-on-disk' requires 'archive-timeout' to be set",
                ));
            }
            let web =
                |file: &SubmittedFile| ["https://", "davs://"].iter().any(|s| file.target_se.starts_with(s));
            let looked_at =
                if kind == JobKind::Hops { &files[files.len().saturating_sub(1)..] } else { files };
            if !looked_at.iter().all(web) {
                return Err(Refusal::bad(
                    "'overwrite-when-only-on-disk' requires an https or davs destination",
                ));
            }
        }
        let same =
            |a: &SubmittedFile, b: &SubmittedFile| a.source_se == b.source_se && a.target_se == b.target_se;
        if kind == JobKind::Reuse && !files.windows(2).all(|pair| same(&pair[0], &pair[1])) {
            return Err(Refusal::bad(
                "Reuse jobs can only contain transfers for the same source and destination storage",
            ));
        }
        Ok(())
    }

    /// Text for `internal_job_params` of the job object.
    pub fn internal(&self) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(self.nostreams.map(|streams| format!("nostreams:{streams}")));
        parts.extend(self.timeout.map(|seconds| format!("timeout:{seconds}")));
        parts.extend(self.buffer_size.map(|bytes| format!("buffersize:{bytes}")));
        let flags = [
            (self.strict_copy, "strict"),
            (self.disable_cleanup, "disable-cleanup"),
            (self.ipv4, "ipv4"),
            (self.ipv6 && !self.ipv4, "ipv6"),
            (self.s3alternate, "s3alternate"),
        ];
        parts.extend(flags.iter().filter(|(set, _)| *set).map(|(_, name)| (*name).to_owned()));
        (!parts.is_empty()).then(|| parts.join(","))
    }

    /// Metadata for replies: always an object.
    pub fn metadata(&self) -> Value {
        let mut metadata = self.job_metadata.as_object().cloned().unwrap_or_default();
        metadata.insert("auth_method".to_owned(), Value::from(self.auth_method.clone()));
        Value::Object(metadata)
    }
}

/// A number above zero; none for zero and less, which mean the default.
fn positive<T: TryFrom<i64>>(given: &Fields<'_>, name: &str) -> Result<Option<T>, Refusal> {
    match given.integer(name)? {
        Some(number) if number > 0 => {
            T::try_from(number).map(Some).map_err(|_| Refusal::malformed(format!("{name} is too large")))
        }
        _ => Ok(None),
    }
}

fn overwrite_flag(given: &Fields<'_>) -> Result<Option<char>, Refusal> {
    let flags = (
        given.flag("overwrite")?,
        given.flag("overwrite_on_retry")?,
        given.flag("overwrite_hop")?,
        given.flag("overwrite_when_only_on_disk")?,
    );
    match flags {
        (false, false, false, false) => Ok(None),
        (true, false, false, false) => Ok(Some('Y')),
        (false, true, false, false) => Ok(Some('R')),
        (false, false, true, false) => Ok(Some('M')),
        (false, false, false, true) => Ok(Some('D')),
        (false, false, true, true) => Ok(Some('Q')),
        _ => Err(Refusal::bad("Incompatible overwrite flags used at the same time")),
    }
}

fn verify_checksum(given: &Fields<'_>, files: &[Value]) -> Result<char, Refusal> {
    let valued = |file: &Value| file["checksum"].as_str().is_some_and(|text| text.contains(':'));
    let mode = match given.get("verify_checksum") {
        Some(Value::String(text)) => text.chars().next().unwrap_or('n').to_ascii_lowercase(),
        Some(Value::Bool(true)) => 'b',
        Some(Value::Bool(false)) | None => {
            if files.iter().any(valued) {
                't'
            } else {
                'n'
            }
        }
        Some(_) => 'x',
    };
    match mode {
        's' | 't' | 'b' | 'n' => Ok(mode),
        // `compare` and `relaxed` of old clients.
        'c' | 'r' => Ok('b'),
        _ => Err(Refusal::malformed("verify_checksum is expected to be source, target, both or none")),
    }
}

/// When the job is given up if it has not begun; the field is a number of hours, or a number with a unit.
pub(super) fn expiry(given: &Fields<'_>, now: Timestamp) -> Result<Option<Timestamp>, Refusal> {
    let seconds = match given.get("max_time_in_queue") {
        Some(Value::String(text)) => with_unit(text.trim()),
        _ => given.integer("max_time_in_queue")?.map(|hours| hours.checked_mul(3_600)).unwrap_or(Some(0)),
    };
    let wrong =
        || Refusal::malformed("max_time_in_queue is expected as hours, or with the unit s, m, h or d");
    let seconds = seconds.ok_or_else(wrong)?;
    Ok(u64::try_from(seconds).ok().filter(|s| *s > 0).map(|seconds| now + Duration::from_secs(seconds)))
}

fn with_unit(text: &str) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let (digits, factor) = match text.chars().last()? {
        's' => (&text[..text.len() - 1], 1),
        'm' => (&text[..text.len() - 1], 60),
        'h' => (&text[..text.len() - 1], 3_600),
        'd' => (&text[..text.len() - 1], 86_400),
        _ => (text, 3_600),
    };
    digits.trim().parse::<i64>().ok()?.checked_mul(factor)
}
