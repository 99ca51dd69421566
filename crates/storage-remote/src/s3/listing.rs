//! The keys of a bucket that begin with a prefix, page by page (ListObjectsV2).

use bytes::Bytes;
use http::Method;

use super::answer::{self, BYTES_MAX};
use super::object::retry_policy;
use crate::exchange::{Call, Payload};
use crate::failure::{Failure, Kind};
use crate::order::Stat;
use crate::remote::Remote;
use crate::webdav::Resource;

const WHAT: &str = "GET (the objects of a bucket)";

/// An object as a listing tells of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListedObject {
    pub(crate) key: String,
    pub(crate) stat: Stat,
}

/// A listing that is read page by page.
pub(crate) struct ObjectListing<'a> {
    remote: &'a Remote,
    bucket: Resource<'a>,
    prefix: String,
    next: NextPage,
}

enum NextPage {
    First,
    After(String),
    None,
}

impl Remote {
    /// The objects of a bucket whose keys begin with this.
    pub(crate) fn list_objects<'a>(&'a self, bucket: Resource<'a>, prefix: &str) -> ObjectListing<'a> {
        ObjectListing { remote: self, bucket, prefix: prefix.to_owned(), next: NextPage::First }
    }
}

impl ObjectListing<'_> {
    /// The next page, which may be empty; none after the last.
    pub(crate) async fn next_page(&mut self) -> Result<Option<Vec<ListedObject>>, Failure> {
        let token = match &self.next {
            NextPage::First => None,
            NextPage::After(token) => Some(token.clone()),
            NextPage::None => return Ok(None),
        };
        let mut query = vec![("list-type", "2"), ("prefix", self.prefix.as_str()), ("encoding-type", "url")];
        query.extend(token.as_deref().map(|token| ("continuation-token", token)));
        let url = self.bucket.url.asking(&query);
        let times = self.remote.config.times;
        let policy = retry_policy(true);
        let call = || {
            let mut call = Call::new(Method::GET, &url, self.bucket.credential, times.answer);
            call.payload = Payload::Bytes(Bytes::new());
            Ok(call)
        };
        let answer = self.remote.exchange.send_with_retries(&policy, WHAT, call).await?.ok(WHAT).await?;
        let document = answer.bytes(BYTES_MAX, times.stall).await?;
        let malformed = |why: String| {
            Failure::new(Kind::Malformed, format!("{WHAT} {}: the answer: {why}", self.bucket.url))
        };
        let page = answer::objects(&document).map_err(malformed)?;
        self.next = match page.more {
            Some(more) if more.is_empty() || Some(&more) == token.as_ref() => {
                return Err(malformed("it leads back to where it was asked for".to_owned()));
            }
            Some(more) => NextPage::After(more),
            None => NextPage::None,
        };
        let listed = page.objects.into_iter().map(|(key, stat)| ListedObject { key, stat });
        Ok(Some(listed.collect()))
    }
}
