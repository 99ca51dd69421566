//! Space as sites publish it by WLCG's Storage Resource Reporting (SRR, schema 4.2): one JSON document with
//! sizes in bytes and times in seconds since 1970.
//!
//! Sites add fields, leave out others and write sizes as floating point numbers, so what is not needed is not
//! looked at. A size that cannot be (DPM has told negative ones, EOS a total of 0 where no quota is set) is
//! unknown, never none.
//!
//! Pure.

use std::time::Duration;

use longhaul_model::Timestamp;
use longhaul_model::units::printable_prefix;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Bytes of a report: some 100,000 shares.
pub(crate) const REPORT_BYTES_MAX: usize = 32 << 20;
/// A share that was measured longer ago tells nothing any more: what publishes reports may go on when what
/// measures has stopped.
pub(crate) const REPORT_AGE_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Names of shares in a message, and bytes of each.
const NAMES_SHOWN_MAX: usize = 8;
const NAME_BYTES_SHOWN_MAX: usize = 60;

/// What a report tells of one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShareSpace {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) measured_at: Timestamp,
}

impl ShareSpace {
    /// Whether it was measured too long ago to count.
    pub(crate) fn is_stale(&self, now: Timestamp) -> bool {
        now.since(self.measured_at) > REPORT_AGE_MAX
    }
}

#[derive(Deserialize)]
struct Report {
    storageservice: Service,
}

#[derive(Deserialize)]
struct Service {
    storageshares: Vec<Share>,
}

#[derive(Deserialize)]
struct Share {
    #[serde(default, deserialize_with = "texts")]
    name: Vec<String>,
    #[serde(default, deserialize_with = "texts")]
    path: Vec<String>,
    #[serde(default, deserialize_with = "number")]
    totalsize: Option<f64>,
    #[serde(default, deserialize_with = "number")]
    usedsize: Option<f64>,
    /// Not in the schema: told where total less used means nothing.
    #[serde(default, deserialize_with = "number")]
    freesize: Option<f64>,
    #[serde(default, deserialize_with = "number")]
    timestamp: Option<f64>,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_f64())
}

/// A text, or those of a list.
fn texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) => vec![text],
        Value::Array(list) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    })
}

/// The space of the share with this name or path.
///
/// # Errors
/// Why nothing follows from the report: it is malformed, has no or several such shares, or its numbers cannot
/// be.
pub(crate) fn read_share(report: &[u8], wanted: &str) -> Result<ShareSpace, String> {
    let report: Report =
        serde_json::from_slice(report).map_err(|error| format!("it is no storage report: {error}"))?;
    let shares = report.storageservice.storageshares;
    let mut found = shares.iter().filter(|share| share.is_called(wanted));
    match (found.next(), found.next()) {
        (Some(share), None) => share.space(),
        (Some(_), Some(_)) => Err(format!("several shares are called {wanted}; a path names one")),
        _ => Err(format!("no share is called {wanted}; there are {}", names(&shares))),
    }
}

fn names(shares: &[Share]) -> String {
    let known = shares.iter().filter_map(|share| share.name.first().or(share.path.first()));
    let shown = known.take(NAMES_SHOWN_MAX).map(|name| printable_prefix(name, NAME_BYTES_SHOWN_MAX));
    let shown: Vec<String> = shown.collect();
    match shown.len() {
        0 => "none with a name".to_owned(),
        count if count < shares.len() => format!("{} and {} more", shown.join(", "), shares.len() - count),
        _ => shown.join(", "),
    }
}

impl Share {
    fn is_called(&self, wanted: &str) -> bool {
        let plain = |path: &str| path.trim_end_matches('/').to_owned();
        self.name.iter().any(|name| name == wanted)
            || self.path.iter().any(|path| plain(path) == plain(wanted))
    }

    fn space(&self) -> Result<ShareSpace, String> {
        let sane = |what: &str, told: Option<f64>, least: f64| match told {
            Some(bytes) if bytes >= least => Ok(bytes),
            Some(bytes) => Err(format!("its {what} cannot be: {bytes:.0}")),
            None => Err(format!("its {what} is missing")),
        };
        let total = sane("totalsize", self.totalsize, 1.0)?;
        let free = match self.freesize.filter(|free| *free >= 0.0) {
            Some(free) => free.min(total),
            None => (total - sane("usedsize", self.usedsize, 0.0)?).max(0.0),
        };
        let measured_s = sane("timestamp", self.timestamp, 1.0)?;
        Ok(ShareSpace {
            total_bytes: total as u64,
            free_bytes: free as u64,
            measured_at: Timestamp((measured_s * 1e6) as i64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(fields: &str) -> Result<ShareSpace, String> {
        read_share(format!(r#"{{"storageservice":{{"storageshares":[{{{fields}}}]}}}}"#).as_bytes(), "DATA")
    }

    /// In the forms of dCache (floating point, no path), StoRM (no capacity block) and EOS (paths, no names).
    #[test]
    fn shares_are_found_by_name_or_path_in_the_forms_of_all_servers() {
        let report = br#"{"storageservice":{"name":"dcache","latestupdate":1790000000,"extra":[1],
            "storagecapacity":{"online":{"totalsize":-1,"usedsize":-1}},
            "storageshares":[
              {"name":"DATADISK","timestamp":1790000000,"totalsize":9.5e11,"usedsize":956663858.0,
               "vos":["/atlas/Role=production"],"assignedendpoints":["all"],"servingstate":"odd"},
              {"path":["/eos/atlas/","/eos/old"],"timestamp":1790000001,"totalsize":100,"usedsize":250},
              {"name":7,"path":"/belle","timestamp":179e7,"totalsize":99,"usedsize":0,"freesize":40}]}}"#;
        let found = read_share(report, "DATADISK").unwrap();
        assert_eq!((found.total_bytes, found.free_bytes), (950_000_000_000, 949_043_336_142));
        assert_eq!(found.measured_at, Timestamp(1_790_000_000_000_000));
        assert_eq!(read_share(report, "/eos/atlas").unwrap().free_bytes, 0, "more is used than there is");
        assert_eq!(read_share(report, "/belle/").unwrap().free_bytes, 40);
        let refused = read_share(report, "SCRATCH").unwrap_err();
        assert_eq!(refused, "no share is called SCRATCH; there are DATADISK, /eos/atlas/, /belle");
    }

    #[test]
    fn numbers_that_cannot_be_tell_nothing() {
        let whole = r#""name":"DATA","timestamp":1790000000,"totalsize":1000,"usedsize":10"#;
        assert_eq!(share(whole).unwrap().free_bytes, 990);
        for (from, to, why) in [
            (r#""usedsize":10"#, r#""usedsize":-879709663640"#, "its usedsize cannot be: -879709663640"),
            (r#""totalsize":1000"#, r#""totalsize":0"#, "its totalsize cannot be: 0"),
            (r#""totalsize":1000"#, r#""totalsize":"1000""#, "its totalsize is missing"),
            (r#""timestamp":1790000000,"#, "", "its timestamp is missing"),
            (r#""name":"DATA""#, r#""name":"OTHER""#, "no share is called DATA; there are OTHER"),
        ] {
            assert_eq!(share(&whole.replace(from, to)), Err(why.to_owned()), "{to}");
        }
        let huge = share(&whole.replace("1000,", "1e300,").replace("1790000000", "1e300")).unwrap();
        assert_eq!((huge.total_bytes, huge.measured_at), (u64::MAX, Timestamp(i64::MAX)));
        let login = read_share(b"<html>please log in</html>", "DATA").unwrap_err();
        assert!(login.starts_with("it is no storage report"), "{login}");
        let twice = format!(r#"{{"storageservice":{{"storageshares":[{{{whole}}},{{{whole}}}]}}}}"#);
        assert!(read_share(twice.as_bytes(), "DATA").unwrap_err().starts_with("several shares"));
    }

    #[test]
    fn a_share_is_stale_after_a_day() {
        let measured_at = Timestamp(1_790_000_000_000_000);
        let space = ShareSpace { total_bytes: 1, free_bytes: 1, measured_at };
        assert!(!space.is_stale(measured_at + REPORT_AGE_MAX));
        assert!(space.is_stale(measured_at + REPORT_AGE_MAX + Duration::from_secs(1)));
        assert!(!space.is_stale(Timestamp::ZERO), "measured by a clock that is ahead");
    }

    proptest! {
        #[test]
        fn no_report_breaks_it(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            number in any::<f64>(),
        ) {
            let _ = read_share(&bytes, "DATA");
            let text = format!(r#""name":"DATA","timestamp":{number:e},"totalsize":{number:e},"usedsize":1"#);
            if let Ok(space) = share(&text) {
                prop_assert!(space.free_bytes <= space.total_bytes);
            }
        }
    }
}
