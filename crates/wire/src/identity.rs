//! Identity of a file at both ends: at the source, what must not change while it is read; at the target, the
//! key of its progress.

use longhaul_model::hex::Hex;
use longhaul_model::{Algorithm, DigestSet, Hasher, Lfn, StorageName};

use crate::codec::{FieldReader, Malformed, PutField};

/// Identity of an open file at the source. If it differs between two openings, the content may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceIdentity {
    /// Size in bytes.
    pub size: u64,
    /// Modification time, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Inode number; 0 if the storage has none.
    pub inode: u64,
}

impl SourceIdentity {
    pub(crate) fn put(&self, into: &mut Vec<u8>) {
        into.put_u64(self.size);
        into.put_i64(self.mtime_ns);
        into.put_u64(self.inode);
    }

    pub(crate) fn read(from: &mut FieldReader<'_>) -> Result<Self, Malformed> {
        Ok(SourceIdentity { size: from.u64()?, mtime_ns: from.i64()?, inode: from.u64()? })
    }
}

/// Key of a wanted file, stable across restarts: a hash of target storage, name, size and digests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileKey(pub [u8; 16]);

impl FileKey {
    /// The key of a file for a storage; equal after a restart for the same name, size and digests.
    pub fn derive(target: &StorageName, lfn: &Lfn, size: u64, digests: &DigestSet) -> Self {
        // None of the texts can contain a NUL, so different inputs never give the same bytes.
        let text = format!("longhaul file\0{target}\0{lfn}\0{size}\0{digests}");
        FileKey(truncated_hash(text.as_bytes()))
    }

    /// Name of the temporary file. Agents may share a storage, so it begins with a prefix of the agent.
    pub fn temporary_name(&self, agent: u64) -> [u8; 16] {
        let mut name = self.0;
        name[..4].copy_from_slice(&FileKey::temporary_prefix(agent));
        name
    }

    /// The common prefix of an agent's temporary file names.
    pub fn temporary_prefix(agent: u64) -> [u8; 4] {
        let mut text = b"longhaul temporary\0".to_vec();
        text.extend_from_slice(&agent.to_le_bytes());
        let short = truncated_hash(&text);
        [short[0], short[1], short[2], short[3]]
    }
}

fn truncated_hash(bytes: &[u8]) -> [u8; 16] {
    let mut hasher = Hasher::new([Algorithm::Blake3]);
    hasher.update(bytes);
    let digests = hasher.finish();
    let mut short = [0; 16];
    if let Some(whole) = digests.get(Algorithm::Blake3) {
        short.copy_from_slice(&whole.value()[..16]);
    }
    short
}

impl std::fmt::Debug for FileKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", Hex(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_key() {
        let storage: StorageName = "beta".parse().unwrap();
        let lfn: Lfn = "a/b".parse().unwrap();
        let digests: DigestSet = "adler32:00000002".parse().unwrap();
        let key = FileKey::derive(&storage, &lfn, 7, &digests);
        assert_eq!(key, FileKey::derive(&storage, &lfn, 7, &digests));
        assert_ne!(key, FileKey::derive(&"gamma".parse().unwrap(), &lfn, 7, &digests));
        assert_ne!(key, FileKey::derive(&storage, &"a/c".parse().unwrap(), 7, &digests));
        assert_ne!(key, FileKey::derive(&storage, &lfn, 8, &digests));
        assert_ne!(key, FileKey::derive(&storage, &lfn, 7, &DigestSet::default()));
        assert_ne!(key.temporary_name(1), key.temporary_name(2));
        assert_ne!(key.temporary_name(1), key.0);
    }
}
