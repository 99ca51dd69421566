//! Verification of a copy: sizes always, checksums as the order says.

use longhaul_model::{Algorithm, Fault, FaultCode};

use crate::checksum::Checksum;
use crate::failure::{Failure, Kind, Scope};
use crate::order::{ChecksumMode, CopyOrder, Stat, Verified};
use crate::remote::Remote;
use crate::stream::ScopedResult;
use crate::url::RemoteUrl;
use crate::webdav::Resource;

/// What storages tell without reading the file, if they tell anything.
const TOLD_ALGORITHM: Algorithm = Algorithm::Adler32;

/// Comparisons to make, and those made.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) mode: ChecksumMode,
    /// The algorithm; with the value that the user named.
    user: Option<Checksum>,
    pub(crate) source: Option<Checksum>,
    /// Confirmed by the storage part by part on arrival: it need not be read again.
    pub(crate) arrived: Option<Checksum>,
    pub(crate) target: Option<Checksum>,
    pub(crate) verified: Verified,
}

impl Comparison {
    pub(crate) fn new(order: &CopyOrder) -> Comparison {
        Comparison {
            mode: match order.checksum {
                Some(_) if !order.unchecked => order.checksum_mode,
                _ => ChecksumMode::None,
            },
            user: order.checksum.clone(),
            source: None,
            arrived: None,
            target: None,
            verified: Verified::default(),
        }
    }

    /// The one that the source has to be asked for.
    pub(crate) fn of_source(&self) -> Option<Algorithm> {
        self.user.as_ref().filter(|_| self.mode.source()).map(|user| user.algorithm)
    }

    pub(crate) fn of_target(&self) -> Option<Algorithm> {
        self.user.as_ref().filter(|_| self.mode.target()).map(|user| user.algorithm)
    }

    /// The one of interest at all.
    pub(crate) fn algorithm(&self) -> Option<Algorithm> {
        self.of_source().or_else(|| self.of_target())
    }

    fn known_to_user(&self) -> Option<&Checksum> {
        self.user.as_ref().filter(|user| user.is_known())
    }

    /// Records the source's checksum, and compares it with the user's.
    pub(crate) fn take_source(&mut self, found: Checksum) -> ScopedResult<()> {
        if let Some(told) = self.source.as_ref().filter(|told| **told != found) {
            let text = differ("Source and transferred", told, &found);
            return Err((Scope::Source, Failure::new(Kind::WrongChecksum, text)));
        }
        if let Some(user) = self.known_to_user().filter(|_| self.mode.source()) {
            if *user != found {
                let text = differ("Source and user-defined", &found, user);
                return Err((Scope::Source, Failure::new(Kind::WrongChecksum, text)));
            }
            self.verified.source_with_user = true;
        }
        self.source = Some(found);
        Ok(())
    }

    pub(crate) fn take_target(&mut self, found: Checksum) -> ScopedResult<()> {
        if let Some(user) = self.known_to_user() {
            if *user != found {
                let text = differ("User-defined and destination", user, &found);
                return Err((Scope::Target, Failure::new(Kind::WrongChecksum, text)));
            }
            self.verified.target_with_user = true;
        }
        if let Some(source) = &self.source {
            if *source != found {
                let text = differ("Source and destination", source, &found);
                return Err((Scope::Target, Failure::new(Kind::WrongChecksum, text)));
            }
            self.verified.target_with_source = true;
        }
        self.target = Some(found);
        Ok(())
    }

    /// Whether there is anything that the target's could be compared with.
    fn compares_target(&self) -> bool {
        self.known_to_user().is_some() || self.source.is_some()
    }
}

fn differ(which: &str, one: &Checksum, other: &Checksum) -> String {
    format!("{which} {} checksum do not match ({} != {})", one.label(), one.hex(), other.hex())
}

impl Remote {
    /// Looks at the target of a copy that somebody else reports as complete: the file is there, has the size
    /// of the source's and, where the order names a checksum or both storages tell one, its checksum. Returns
    /// the size in bytes.
    ///
    /// # Errors
    /// The file is missing or another one, or a storage does not answer.
    pub async fn confirm_target(&self, order: &CopyOrder) -> Result<u64, Fault> {
        let scoped = |(_, failure): (Scope, Failure)| failure.fault();
        let (source, target) = (RemoteUrl::parse(&order.source.url)?, RemoteUrl::parse(&order.target.url)?);
        let at_source = Resource { url: &source, credential: &order.source.credential };
        let at_target = Resource { url: &target, credential: &order.target.credential };
        let mut comparison = Comparison::new(order);
        let named = comparison.user.clone().filter(|_| !order.unchecked);
        let algorithm = named.as_ref().map_or(TOLD_ALGORITHM, |checksum| checksum.algorithm);
        let Some(stat) = self.head(at_source, Some(algorithm)).await.map_err(|failure| failure.fault())?
        else {
            return Err(Fault::new(FaultCode::SourceMissing, format!("{source}: there is no such file")));
        };
        if let Some(named) = named {
            comparison.mode = ChecksumMode::Target;
            if !named.is_known() {
                let found = self.told_or_read(at_source, &stat, algorithm).await;
                comparison.source = Some(found.map_err(|failure| failure.fault())?);
            }
        } else if let Some(told) = stat.checksum
            && let Ok(Some(there)) = self.head(at_target, Some(algorithm)).await
            && let Some(found) = there.checksum
        {
            comparison.source = Some(told);
            comparison.take_target(found).map_err(scoped)?;
        }
        let size = order.size.unwrap_or(stat.size);
        self.compare_target(at_target, size, &mut comparison).await.map_err(scoped)?;
        Ok(size)
    }

    /// Looks at what has arrived: whether it is there, whole, and what it should be.
    pub(crate) async fn compare_target(
        &self,
        place: Resource<'_>,
        size: u64,
        comparison: &mut Comparison,
    ) -> ScopedResult<()> {
        let at_target = |failure| (Scope::Target, failure);
        let wanted = comparison.of_target().filter(|_| comparison.compares_target());
        let Some(stat) = self.head(place, wanted).await.map_err(at_target)? else {
            let text = format!("{}: the storage said that it has the file, and has not", place.url);
            return Err((Scope::Target, Failure::new(Kind::NotThere, text)));
        };
        if stat.size != size {
            let text = format!("Source and destination file size mismatch ({size} != {})", stat.size);
            return Err((Scope::Target, Failure::new(Kind::WrongSize, text)));
        }
        let Some(algorithm) = wanted else { return Ok(()) };
        let found = match comparison.arrived.take() {
            Some(arrived) => arrived,
            None => self.told_or_read(place, &stat, algorithm).await.map_err(at_target)?,
        };
        comparison.take_target(found)
    }

    /// The checksum of a file of which a storage tells none, by reading it, where that is allowed.
    pub(crate) async fn told_or_read(
        &self,
        place: Resource<'_>,
        stat: &Stat,
        algorithm: Algorithm,
    ) -> Result<Checksum, Failure> {
        if let Some(told) = &stat.checksum {
            return Ok(told.clone());
        }
        if !self.config.checksum_by_reading {
            let text = format!("{}: the storage tells no {algorithm} checksum", place.url);
            return Err(Failure::new(Kind::NoChecksum, text));
        }
        let digests = self.digest_by_reading(place, stat, [algorithm], 1).await?;
        digests.get(algorithm).as_ref().map(Checksum::from_digest).ok_or_else(|| {
            Failure::new(Kind::NoChecksum, format!("{}: no {algorithm} was computed", place.url))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::{Credential, End};

    fn comparison(user: &str, mode: ChecksumMode) -> Comparison {
        let end = End::new("https://a/x", Credential::None);
        let mut order = CopyOrder::new("1", end.clone(), end);
        order.checksum = Some(user.parse().unwrap());
        order.checksum_mode = mode;
        Comparison::new(&order)
    }

    #[test]
    fn texts_are_those_that_other_software_knows() {
        let (one, other): (Checksum, Checksum) = ("ADLER32:1".parse().unwrap(), "ADLER32:2".parse().unwrap());
        let text = |result: ScopedResult<()>| result.unwrap_err().1.text;
        let mut both = comparison("ADLER32:0001", ChecksumMode::Both);
        assert_eq!(
            text(both.take_source(other.clone())),
            "Source and user-defined ADLER32 checksum do not match (00000002 != 00000001)"
        );
        both.take_source(one.clone()).unwrap();
        assert!(
            text(both.take_target(other.clone()))
                .starts_with("User-defined and destination ADLER32 checksum do not match")
        );
        let mut found = comparison("ADLER32", ChecksumMode::Both);
        found.take_source(one.clone()).unwrap();
        assert!(
            text(found.take_target(other))
                .starts_with("Source and destination ADLER32 checksum do not match")
        );
        found.take_target(one).unwrap();
        assert_eq!(found.verified, Verified { target_with_source: true, ..Verified::default() });
    }

    #[test]
    fn only_what_the_order_says_is_asked_for() {
        assert_eq!(comparison("MD5", ChecksumMode::None).algorithm(), None);
        assert_eq!(comparison("MD5", ChecksumMode::Source).of_target(), None);
        assert!(!comparison("MD5", ChecksumMode::Target).compares_target());
        assert!(comparison("MD5:1", ChecksumMode::Target).compares_target());
    }
}
