//! The name under which a file arrives. Where a storage can rename, a temporary one of this attempt's own, so
//! that a failed copy never replaces a good file and a late deletion never meets a later attempt; else the
//! final name.

use std::collections::HashMap;
use std::time::Duration;

use http::StatusCode;
use http::header::SERVER;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::failure::{Failure, Kind};
use crate::order::{Mode, Stat};
use crate::remote::Remote;
use crate::retry::BACKOFF;
use crate::url::RemoteUrl;
use crate::webdav::{Resource, method};

/// Names of temporary files begin so.
const PREFIX: &str = ".longhaul-";
const TAG_BYTES_MAX: usize = 80;
/// Times that the deletion of a temporary file is tried while connections break: XRootD breaks off one that
/// begins while another ends, and a copy that it broke off has just ended one.
const CLEANUP_TRIES_MAX: u32 = 3;
/// A server's support for renames is examined again after this.
const RENAME_CACHE_TTL: Duration = Duration::from_secs(600);
const RENAME_CACHE_MAX: usize = 4_096;

/// Servers that rename, and those that do not.
#[derive(Default)]
pub(crate) struct RenameCache(Mutex<HashMap<String, RenameSupport>>);

#[derive(Clone, Copy)]
struct RenameSupport {
    can: bool,
    /// Names with escapes too.
    any_name: bool,
    since: Instant,
}

/// XRootD renames to what the header says, escapes and all: such a name is only safe where it is not sent in
/// a header. Who does not say what he is may be XRootD.
fn reads_escapes(server: Option<&str>) -> bool {
    server.is_some_and(|server| !server.to_ascii_lowercase().contains("xrootd"))
}

/// The name under which one try writes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arrival {
    pub(crate) url: RemoteUrl,
    /// Nobody else has this name; it is given the file's own in the end.
    pub(crate) temporary: bool,
}

/// What a failed attempt may have left under the file's own name.
#[derive(Clone, Copy)]
pub(crate) struct Leftover<'a> {
    /// Nobody knows whether the storage still writes it.
    pub(crate) may_be_written: bool,
    /// The file that had the name before, which is not ours to delete.
    pub(crate) before: Option<&'a Stat>,
    /// The size of a good one.
    pub(crate) whole: Option<u64>,
}

/// As far as the storage tells.
fn is_same(before: &Stat, now: &Stat) -> bool {
    before.size == now.size && before.etag == now.etag && before.modified == now.modified
}

pub(crate) fn check_tag(tag: &str) -> Result<(), Failure> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if tag.is_empty() || tag.len() > TAG_BYTES_MAX || !tag.bytes().all(plain) {
        let text = format!("the tag of an attempt has 1 to {TAG_BYTES_MAX} letters, digits and hyphens");
        return Err(Failure::new(Kind::Order, text));
    }
    Ok(())
}

/// Each try has its own: an earlier one may still be written to.
pub(crate) fn arrival(target: &RemoteUrl, tag: &str, mode: Mode, renames: bool) -> Arrival {
    let temporary = renames.then(|| target.sibling(&format!("{PREFIX}{tag}-{mode}"))).flatten();
    match temporary {
        Some(url) => Arrival { url, temporary: true },
        None => Arrival { url: target.clone(), temporary: false },
    }
}

impl Remote {
    /// Whether a file beside the target could be renamed: asked by renaming what is not there. Who has no
    /// right to more than the file itself gets no temporary name either.
    pub(crate) async fn renames(&self, target: Resource<'_>, tag: &str) -> Result<bool, Failure> {
        // Nobody sees a file there before it is whole.
        if target.url.is_s3() {
            return Ok(false);
        }
        let is_plain = !target.url.path().contains('%');
        let key = target.url.origin().to_string();
        {
            let known = self.renames.0.lock();
            if let Some(known) = known.get(&key)
                && known.since.elapsed() < RENAME_CACHE_TTL
            {
                return Ok(known.can && (is_plain || known.any_name));
            }
        }
        let names = (
            target.url.sibling(&format!("{PREFIX}{tag}-none")),
            target.url.sibling(&format!("{PREFIX}{tag}-not")),
        );
        let (Some(from), Some(to)) = names else { return Ok(false) };
        let call = self.call(method("MOVE"), target.at(&from));
        let call = call.header("destination", &to.whole())?.header("overwrite", "F")?;
        let answer = self.exchange.send(call).await?;
        let (status, any_name) = (answer.status, reads_escapes(answer.header(SERVER.as_str())));
        answer.finish().await;
        let (can, keep) = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE | StatusCode::CONFLICT => (true, true),
            StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED => (false, true),
            // A failure of this credential at this path, not of the server.
            _ => (false, false),
        };
        if keep {
            let mut known = self.renames.0.lock();
            if known.len() >= RENAME_CACHE_MAX {
                known.clear();
            }
            known.insert(key, RenameSupport { can, any_name, since: Instant::now() });
        }
        Ok(can && (is_plain || any_name))
    }

    /// Deletes what a failed try has left, as far as it is surely ours; says what may be left. Never blindly:
    /// what is there is looked at first, and deleted only while it is the same.
    ///
    /// A file under its own name is left alone when nobody knows whether the storage still writes it: a
    /// deletion that is carried out late would hit the next attempt.
    pub(crate) async fn clean_up(
        &self,
        target: Resource<'_>,
        arrival: &Arrival,
        leftover: &Leftover<'_>,
    ) -> Option<String> {
        let may_be_left = || Some(format!("{} may be left", arrival.url));
        if !arrival.temporary && leftover.may_be_written {
            return may_be_left();
        }
        // A temporary name is this attempt's alone: to delete it twice meets nobody else's file.
        let tries_max = if arrival.temporary { CLEANUP_TRIES_MAX } else { 1 };
        let cleaning = async {
            for tries in 1..tries_max {
                match self.delete_leftover(target, arrival, leftover).await {
                    Err(failure) if failure.kind == Kind::Lost => sleep(BACKOFF.delay(tries, 0.0)).await,
                    ended => return ended,
                }
            }
            self.delete_leftover(target, arrival, leftover).await
        };
        match timeout(self.config.times.cleanup, cleaning).await {
            Ok(Ok(true)) => None,
            Ok(Ok(false) | Err(_)) | Err(_) => may_be_left(),
        }
    }

    /// One try; true if nothing of ours is left.
    async fn delete_leftover(
        &self,
        target: Resource<'_>,
        arrival: &Arrival,
        leftover: &Leftover<'_>,
    ) -> Result<bool, Failure> {
        let file = target.at(&arrival.url);
        let Some(stat) = self.head(file, None).await? else { return Ok(true) };
        if !arrival.temporary && leftover.before.is_some_and(|before| is_same(before, &stat)) {
            return Ok(true);
        }
        // Under the file's own name, something whole is nothing that a failed try has left.
        if !arrival.temporary && leftover.whole == Some(stat.size) {
            return Ok(false);
        }
        let strong = stat.etag.as_deref().filter(|etag| !etag.starts_with("W/"));
        self.delete(file, strong).await.map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_attempts_are_their_own() {
        let target = RemoteUrl::parse("https://a/x/y?t=1").unwrap();
        let one = arrival(&target, "7-1", Mode::Pull, true);
        assert_eq!(one.url.whole(), "https://a/x/.longhaul-7-1-pull?t=1");
        assert_ne!(one, arrival(&target, "7-1", Mode::Stream, true));
        assert_ne!(one, arrival(&target, "7-2", Mode::Pull, true));
        assert_eq!(arrival(&target, "7-1", Mode::Pull, false), Arrival { url: target, temporary: false });
        for wrong in ["", "a/b", "..", "a b", &"x".repeat(100)] {
            assert!(check_tag(wrong).is_err(), "{wrong}");
        }
    }
}
