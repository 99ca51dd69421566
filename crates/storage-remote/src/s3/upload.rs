//! A file on its way into a bucket (multipart upload): read in order, cut into parts of which a few are in
//! flight, and completed only when all of it has been compared. Until then nobody sees it, and what has the
//! name stays.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use longhaul_model::hex;
use longhaul_model::{Algorithm, Digest, DigestSet, Hasher};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::answer::ListedPart;
use super::object::{Object, Part, UploadEnd, is_md5};
pub(crate) use super::parts::PartMemory;
use super::parts::part_bytes;
use super::records::{Record, RecordLease};
use crate::failure::{Failure, Kind, Scope};
use crate::order::Stat;
use crate::remote::Remote;
use crate::stream::{Progress, Reading, ScopedResult};
use crate::webdav::Resource;

/// Parts on their way at once.
const PARTS_MIN: usize = 2;
const PARTS_MAX: usize = 8;

/// A multipart upload that the storage knows.
pub(crate) struct StartedUpload {
    upload: String,
    record: Option<RecordLease>,
}

/// The upload that one attempt has started, for cleaning up after it.
pub(crate) type Slot = Mutex<Option<StartedUpload>>;

/// A file whose bytes are all here or uploaded, and that has no name yet.
pub(crate) struct GatheredFile {
    pub(crate) digests: DigestSet,
    held: Body,
}

enum Body {
    Whole { bytes: Bytes, _room: OwnedSemaphorePermit },
    Parts(Vec<Part>),
}

type SentPart = (Result<Part, Failure>, u64);

impl Remote {
    /// Reads the source to its end, and sends what does not fit into one part.
    pub(crate) async fn gather(
        &self,
        source: Resource<'_>,
        stat: &Stat,
        target: Resource<'_>,
        algorithms: &[Algorithm],
        streams: u16,
        progress: Progress<'_>,
        slot: &Slot,
    ) -> ScopedResult<GatheredFile> {
        let at_target = |failure| (Scope::Target, failure);
        let part_bytes = part_bytes(self.config.s3.part_bytes, stat.size).map_err(at_target)?;
        let mut cutter = Cutter {
            reading: self.read(source, stat, streams),
            rest: Bytes::new(),
            whole: Hasher::new(algorithms.iter().copied()),
        };
        if stat.size <= part_bytes {
            let room = self.part_memory.reserve(stat.size).await.map_err(at_target)?;
            let (bytes, _) = cutter.cut(stat.size).await?;
            let held = Body::Whole { bytes, _room: room };
            return Ok(GatheredFile { digests: cutter.whole.finish(), held });
        }
        let object = Arc::new(self.object(target));
        let (begun, there) = self.begin(&object, target, stat.size, part_bytes).await.map_err(at_target)?;
        let upload: Arc<str> = begun.upload.as_str().into();
        *slot.lock() = Some(begun);
        let mut sending = Sending::new(usize::from(streams).clamp(PARTS_MIN, PARTS_MAX), progress);
        for (number, start) in (1_u32..).zip((0..stat.size).step_by(part_bytes as usize)) {
            let len = part_bytes.min(stat.size - start);
            sending.make_room().await.map_err(at_target)?;
            let room = self.part_memory.reserve(len).await.map_err(at_target)?;
            let (bytes, md5) = cutter.cut(len).await?;
            // Only what has the very bytes of this part: the source may be another one than it was.
            if let Some(part) = there.get(&number).filter(|part| part.size == len && is_md5(&part.etag, &md5))
            {
                sending.arrived(Part { number, etag: part.etag.clone(), confirmed: true }, len);
                continue;
            }
            let (object, upload) = (object.clone(), upload.clone());
            sending.tasks.spawn(async move {
                let part = object.part(&upload, number, bytes, &md5).await;
                drop(room);
                (part, len)
            });
        }
        let parts = sending.finish().await.map_err(at_target)?;
        Ok(GatheredFile { digests: cutter.whole.finish(), held: Body::Parts(parts) })
    }

    /// A new upload, or the one of a process before us with the parts that it has.
    async fn begin(
        &self,
        object: &Object,
        target: Resource<'_>,
        size: u64,
        part_bytes: u64,
    ) -> Result<(StartedUpload, HashMap<u32, ListedPart>), Failure> {
        let url = target.url.to_string();
        let record = self.records.hold(&url);
        if let Some(before) = record.as_ref().and_then(RecordLease::read) {
            if (before.size, before.part_bytes) == (size, part_bytes)
                && let Some(parts) = object.list(&before.upload).await?
            {
                tracing::info!(target = %target.url, parts = parts.len(), "an upload goes on");
                let parts = parts.into_iter().map(|part| (part.number, part)).collect();
                return Ok((StartedUpload { upload: before.upload, record }, parts));
            }
            object.abort(&before.upload).await?;
        }
        let upload = object.begin().await?;
        if let Some(record) = &record {
            record.write(&Record { url, upload: upload.clone(), size, part_bytes });
        }
        Ok((StartedUpload { upload, record }, HashMap::new()))
    }

    /// Gives the file its name. Says whether the storage has confirmed all that it got.
    pub(crate) async fn reveal(
        &self,
        gathered: GatheredFile,
        target: Resource<'_>,
        size: u64,
        replaces: bool,
        slot: &Slot,
    ) -> Result<bool, Failure> {
        let object = self.object(target);
        let parts = match gathered.held {
            Body::Whole { bytes, .. } => return object.put(bytes, replaces).await,
            Body::Parts(parts) => parts,
        };
        let upload = {
            let slot = slot.lock();
            slot.as_ref().map(|begun| begun.upload.clone())
        };
        let Some(upload) = upload else {
            return Err(Failure::new(Kind::Cancelled, "the upload was given up meanwhile"));
        };
        let confirmed = parts.iter().all(|part| part.confirmed);
        if let UploadEnd::Gone = object.complete(&upload, &parts, replaces).await? {
            // The answer of an earlier request may have been lost, and the file be there.
            let there = self.head(target, None).await?;
            let same = there.is_some_and(|stat| stat.size == size && confirmed && is_whole_of(&stat, &parts));
            if !same {
                let text = format!("{}: the storage has forgotten the upload", target.url);
                return Err(Failure::new(Kind::Lost, text));
            }
        }
        if let Some(StartedUpload { record: Some(record), .. }) = take(slot) {
            record.forget();
        }
        Ok(confirmed)
    }

    /// Takes back what a failed try has begun; says what is left. What cannot be taken back stays on record,
    /// for the next try.
    pub(crate) async fn abandon(&self, target: Resource<'_>, slot: &Slot) -> Option<String> {
        let begun = take(slot)?;
        match tokio::time::timeout(self.config.times.cleanup, self.object(target).abort(&begun.upload)).await
        {
            Ok(Ok(())) => {
                if let Some(record) = &begun.record {
                    record.forget();
                }
                None
            }
            Ok(Err(_)) | Err(_) => Some(format!("parts of an upload to {} may be left", target.url)),
        }
    }
}

fn take(slot: &Slot) -> Option<StartedUpload> {
    slot.lock().take()
}

fn plain(etag: &str) -> String {
    etag.trim().trim_matches('"').to_ascii_lowercase()
}

/// Whether an object is made of these parts, by its ETag.
pub(crate) fn is_whole_of(stat: &Stat, parts: &[Part]) -> bool {
    let etag = etag_of(parts);
    etag.is_some() && stat.etag.as_deref().map(plain) == etag
}

/// That of a file of these parts: the MD5 of their MD5s, and how many they are.
fn etag_of(parts: &[Part]) -> Option<String> {
    let mut hasher = Hasher::new([Algorithm::Md5]);
    for part in parts {
        let mut md5 = [0; 16];
        hex::decode_into(plain(&part.etag).get(..32)?, &mut md5)?;
        hasher.update(&md5);
    }
    let md5 = hasher.finish().get(Algorithm::Md5)?;
    Some(format!("{}-{}", hex::encode(md5.value()), parts.len()))
}

/// Cuts what is read into parts, and computes what has to be known of them and of the whole.
struct Cutter {
    reading: Reading,
    rest: Bytes,
    whole: Hasher,
}

impl Cutter {
    async fn cut(&mut self, len: u64) -> ScopedResult<(Bytes, Digest)> {
        let at_source = |failure| (Scope::Source, failure);
        let mut part = BytesMut::with_capacity(len as usize);
        let mut md5 = Hasher::new([Algorithm::Md5]);
        while (part.len() as u64) < len {
            if self.rest.is_empty() {
                let piece = self.reading.next().await.map_err(at_source)?;
                self.rest = piece
                    .ok_or_else(|| at_source(Failure::new(Kind::Lost, "the source ended before its size")))?;
            }
            let some = self.rest.split_to(self.rest.len().min(len as usize - part.len()));
            self.whole.update(&some);
            md5.update(&some);
            part.extend_from_slice(&some);
        }
        let md5 = md5.finish().get(Algorithm::Md5);
        let md5 = md5.ok_or_else(|| (Scope::Transfer, Failure::new(Kind::Order, "no MD5 was computed")))?;
        Ok((part.freeze(), md5))
    }
}

/// Parts on their way. They end with this.
struct Sending<'a> {
    tasks: JoinSet<SentPart>,
    most: usize,
    parts: BTreeMap<u32, Part>,
    bytes: u64,
    progress: Progress<'a>,
}

impl<'a> Sending<'a> {
    fn new(most: usize, progress: Progress<'a>) -> Sending<'a> {
        Sending { tasks: JoinSet::new(), most, parts: BTreeMap::new(), bytes: 0, progress }
    }

    fn arrived(&mut self, part: Part, len: u64) {
        self.parts.insert(part.number, part);
        self.bytes += len;
        (self.progress)(self.bytes);
    }

    fn ended(&mut self, ended: Result<SentPart, tokio::task::JoinError>) -> Result<(), Failure> {
        let (part, len) = ended
            .map_err(|error| Failure::new(Kind::Lost, format!("sending a part ended abnormally: {error}")))?;
        self.arrived(part?, len);
        Ok(())
    }

    async fn make_room(&mut self) -> Result<(), Failure> {
        while self.tasks.len() >= self.most
            && let Some(ended) = self.tasks.join_next().await
        {
            self.ended(ended)?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<Vec<Part>, Failure> {
        while let Some(ended) = self.tasks.join_next().await {
            self.ended(ended)?;
        }
        Ok(self.parts.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_file_of_parts_is_known_before() {
        let part = |number, etag: &str| Part { number, etag: etag.into(), confirmed: true };
        // MD5 of the sixteen bytes of the MD5 of nothing.
        let one = part(1, "\"d41d8cd98f00b204e9800998ecf8427e\"");
        assert_eq!(etag_of(std::slice::from_ref(&one)).unwrap(), "59adb24ef3cdbe0297f05b395827453f-1");
        assert!(etag_of(&[one.clone(), one]).unwrap().ends_with("-2"));
        assert_eq!(etag_of(&[part(1, "x")]), None);
    }
}
