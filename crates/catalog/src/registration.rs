//! Registration of files: from a manifest, all or nothing, and from scans, file by file.

use crate::sql::Optional;
use longhaul_model::limits::{BLOCK_BYTES, BLOCK_FILES, FILE_BYTES_MAX};
use longhaul_model::{
    BlockId, BlockName, DatasetId, Fault, FaultCode, FileId, StorageId, Timestamp, Verification, units,
};

use crate::block_replica::Presence;
use crate::consequences;
use crate::ledger::Ledger;
use crate::rows::codec::{Columns, encode_digests, key};
use crate::{
    AddError, Catalog, CatalogError, DatasetRow, ManifestError, NewFile, RegistrationResult,
    VerificationState,
};

/// Bytes of all files of a catalog together, so that no sum of sizes overflows, whatever a manifest claims.
const CATALOG_BYTES_MAX: u64 = 1 << 61;

impl Catalog {
    /// Registers all files or none. With `at`, they count as present at that storage. Occupies the writer
    /// while `files` yields: let it read from memory or a local file, not from a slow peer.
    pub fn add_files(
        &self,
        dataset: DatasetId,
        files: &mut dyn Iterator<Item = Result<NewFile, ManifestError>>,
        at: Option<StorageId>,
        now: Timestamp,
    ) -> Result<RegistrationResult, AddError> {
        self.write(|tx| {
            if let Some(storage) = at {
                crate::sites::require_storage(tx, storage)?;
                crate::test_data::check_registration(tx, dataset, storage)?;
            }
            let mut ledger = Ledger::new(tx, now);
            let mut registrar = FileRegistrar::new(&ledger, dataset, at)?;
            for file in files {
                let file = file?;
                registrar
                    .add(&mut ledger, &file, Evidence::Claimed)?
                    .map_err(|fault| ManifestError { line: file.line, fault })?;
            }
            registrar.finish(&ledger)?;
            consequences::flush(&mut ledger)?;
            let mut effects = ledger.effects;
            let (demands, demands_gone) = effects.take_demands();
            Ok(RegistrationResult {
                files_added: registrar.files_added,
                bytes_added: registrar.bytes_added,
                files_known: registrar.files_known,
                blocks: effects.blocks.into_values().collect(),
                complete: effects.complete.into_keys().collect(),
                found: registrar.found,
                demands,
                demands_gone,
                cancelled: effects.cancelled,
            })
        })
    }
}

/// How it is known that a storage holds a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// By a manifest, or by digests that the storage's server tells.
    Claimed,
    /// The digests were computed from the storage's present content, so a match verifies the replica and
    /// clears a suspicion.
    Read,
}

/// Registers files of one dataset, one by one.
pub(crate) struct FileRegistrar {
    dataset: DatasetRow,
    at: Option<StorageId>,
    next_file: i64,
    bytes_left: u64,
    /// The automatically made block that takes new files, 0 if none.
    filling: BlockId,
    next_number: u64,
    blocks_made: i64,
    /// The last block that a file named.
    named: Option<(String, BlockId)>,
    pub(crate) files_added: u64,
    pub(crate) bytes_added: u64,
    pub(crate) files_known: u64,
    /// Known files that are at the storage now and were not before.
    pub(crate) found: Vec<(FileId, BlockId, StorageId)>,
}

impl FileRegistrar {
    pub(crate) fn new(
        ledger: &Ledger<'_>,
        dataset: DatasetId,
        at: Option<StorageId>,
    ) -> Result<Self, CatalogError> {
        let tx = ledger.tx;
        let row = crate::datasets::require_dataset(tx, dataset)?;
        let (filling, next_number) = tx
            .prepare_cached("SELECT filling, next_number FROM datasets WHERE id = ?1")?
            .query_row([key!(dataset)], |row| Ok((row.id(0)?, row.number(1)?)))?;
        let next_file: i64 =
            tx.query_row("SELECT coalesce(max(id), 0) + 1 FROM files", (), |row| row.get(0))?;
        let bytes = tx.query_row("SELECT coalesce(sum(bytes), 0) FROM datasets", (), |row| row.number(0))?;
        Ok(FileRegistrar {
            dataset: row,
            at,
            next_file,
            bytes_left: CATALOG_BYTES_MAX.saturating_sub(bytes),
            filling,
            next_number,
            blocks_made: 0,
            named: None,
            files_added: 0,
            bytes_added: 0,
            files_known: 0,
            found: Vec::new(),
        })
    }

    /// Writes the counters that the ledger does not keep.
    pub(crate) fn finish(&self, ledger: &Ledger<'_>) -> Result<(), CatalogError> {
        ledger
            .tx
            .prepare_cached(
                "UPDATE datasets SET filling = ?2, next_number = ?3, blocks = blocks + ?4 WHERE id = ?1",
            )?
            .execute_deferred((
                key!(self.dataset.id),
                key!(self.filling),
                crate::rows::codec::number(self.next_number),
                self.blocks_made,
            ))?;
        Ok(())
    }

    /// Registers one file. The inner fault is about this file alone.
    pub(crate) fn add(
        &mut self,
        ledger: &mut Ledger<'_>,
        file: &NewFile,
        evidence: Evidence,
    ) -> Result<Result<(), Fault>, CatalogError> {
        if file.size > FILE_BYTES_MAX {
            return Ok(Err(Fault::new(
                FaultCode::BadManifest,
                format!("{} has an impossible size", file.lfn.shown()),
            )));
        }
        let refusal = self.refusal(file);
        // While a block is open the file is inserted at once; a conflict shows that it is known.
        let open = if refusal.is_none() { self.open_block(ledger, file)? } else { None };
        let block = match open {
            Some(block) => block,
            None => {
                if let Some(answer) = self.register_known(ledger, file, evidence)? {
                    return Ok(answer);
                }
                match refusal.map_or_else(|| self.make_block(ledger, file), |fault| Ok(Err(fault)))? {
                    Ok(block) => block,
                    Err(fault) => return Ok(Err(fault)),
                }
            }
        };
        if self.insert(ledger, block, file)? {
            self.count(ledger, block, file, evidence)?;
            return Ok(Ok(()));
        }
        match self.register_known(ledger, file, evidence)? {
            Some(answer) => Ok(answer),
            None => unreachable!("an LFN conflicts and is absent"),
        }
    }

    /// Why no new file can be added now, if so.
    fn refusal(&self, file: &NewFile) -> Option<Fault> {
        if !self.dataset.open {
            return Some(Fault::new(FaultCode::Conflict, format!("dataset {} is closed", self.dataset.name)));
        }
        (file.size > self.bytes_left)
            .then(|| Fault::new(FaultCode::TooLarge, "all files together would exceed 2 EiB"))
    }

    fn insert(&mut self, ledger: &Ledger<'_>, block: BlockId, file: &NewFile) -> Result<bool, CatalogError> {
        let mut insert = ledger.tx.prepare_cached(
            "INSERT INTO files (id, block, lfn, size, digests) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO \
                NOTHING",
        )?;
        let digests = encode_digests(&file.digests);
        Ok(insert.execute((self.next_file, key!(block), file.lfn.as_str(), file.size as i64, digests))? == 1)
    }

    /// The block that the file goes to, if that is known without a query.
    fn open_block(&self, ledger: &mut Ledger<'_>, file: &NewFile) -> Result<Option<BlockId>, CatalogError> {
        let block = match (&file.block, &self.named) {
            (None, _) => self.filling,
            (Some(wanted), Some((name, block))) if wanted == name => *block,
            _ => return Ok(None),
        };
        Ok(if block.0 != 0 && ledger.block(block)?.open { Some(block) } else { None })
    }

    fn make_block(
        &mut self,
        ledger: &Ledger<'_>,
        file: &NewFile,
    ) -> Result<Result<BlockId, Fault>, CatalogError> {
        let Some(suffix) = &file.block else {
            loop {
                let name = BlockName::numbered(&self.dataset.name, self.next_number);
                self.next_number += 1;
                // A manifest may have given this name to one of its blocks.
                if let Some(block) = self.insert_block(ledger, &name)? {
                    self.filling = block;
                    return Ok(Ok(block));
                }
            }
        };
        let name = match BlockName::parse(&format!("{}#{suffix}", self.dataset.name)) {
            Ok(name) => name,
            Err(error) => return Ok(Err(Fault::from(error))),
        };
        let block = match self.insert_block(ledger, &name)? {
            Some(block) => block,
            None => {
                let mut select = ledger.tx.prepare_cached("SELECT id, open FROM blocks WHERE name = ?1")?;
                let (block, open) =
                    select.query_row([name.as_str()], |row| Ok((row.id(0)?, row.get::<bool>(1)?)))?;
                if !open {
                    return Ok(Err(Fault::new(FaultCode::Conflict, format!("block {name} is closed"))));
                }
                block
            }
        };
        self.named = Some((suffix.clone(), block));
        Ok(Ok(block))
    }

    /// None if there is one of that name.
    fn insert_block(
        &mut self,
        ledger: &Ledger<'_>,
        name: &BlockName,
    ) -> Result<Option<BlockId>, CatalogError> {
        let mut insert = ledger.tx.prepare_cached(
            "INSERT INTO blocks (dataset, name, open, created) VALUES (?1, ?2, 1, ?3)
             ON CONFLICT DO NOTHING RETURNING id",
        )?;
        let made = insert
            .query_row((key!(self.dataset.id), name.as_str(), ledger.now.0), |row| row.id(0))
            .optional()?;
        self.blocks_made += i64::from(made.is_some());
        Ok(made)
    }

    fn count(
        &mut self,
        ledger: &mut Ledger<'_>,
        block: BlockId,
        file: &NewFile,
        evidence: Evidence,
    ) -> Result<(), CatalogError> {
        let id = FileId::from(self.next_file as u64);
        let state = ledger.add_file(block, id, file.size)?;
        if let Some(storage) = self.at {
            ledger.add_registered(block, storage, id, file.size, verification(file, evidence))?;
        }
        if block == self.filling && (state.files as u64 >= BLOCK_FILES || state.bytes as u64 >= BLOCK_BYTES) {
            ledger.block(block)?.open = false;
            self.filling = BlockId(0);
        }
        self.next_file += 1;
        self.bytes_left -= file.size;
        self.files_added += 1;
        self.bytes_added += file.size;
        consequences::flush_if_full(ledger)
    }

    /// Registers a file that the catalog has already; None if it has no file of that LFN. Size and digests
    /// must agree with what is registered. The file then counts as present at the storage, like a new one.
    fn register_known(
        &mut self,
        ledger: &mut Ledger<'_>,
        file: &NewFile,
        evidence: Evidence,
    ) -> Result<Option<Result<(), Fault>>, CatalogError> {
        let mut select =
            ledger.tx.prepare_cached("SELECT id, block, size, digests FROM files WHERE lfn = ?1")?;
        let found = select.query_row([file.lfn.as_str()], |row| {
            Ok((row.id::<FileId>(0)?, row.id::<BlockId>(1)?, row.number(2)?, row.digests(3)?))
        });
        let Some((id, block, size, digests)) = found.optional()? else { return Ok(None) };
        let dataset = ledger.block(block)?.dataset;
        let differs = |what: String| {
            Ok(Some(Err(Fault::new(FaultCode::AlreadyExists, format!("{} {what}", file.lfn.shown())))))
        };
        if dataset != self.dataset.id {
            let other = crate::datasets::require_dataset(ledger.tx, dataset)?;
            return differs(format!("is registered in dataset {}", other.name));
        }
        let registered = format!("is registered in dataset {} with", self.dataset.name);
        if size != file.size {
            let bytes = units::plural(size, "byte", "bytes");
            return differs(format!("{registered} {bytes}, not {}", file.size));
        }
        if let Some((ours, theirs)) = digests.contradiction(&file.digests) {
            return differs(format!("{registered} {ours}, not {theirs}"));
        }
        if !digests.is_empty() && !file.digests.is_empty() && !digests.comparable(&file.digests) {
            return differs(format!(
                "{registered} {digests}, which cannot be compared with {}",
                file.digests
            ));
        }
        self.files_known += 1;
        if let Some(storage) = self.at {
            self.add_known_at(ledger, (id, block, storage), file, evidence)?;
        }
        consequences::flush_if_full(ledger)?;
        Ok(Some(Ok(())))
    }

    fn add_known_at(
        &mut self,
        ledger: &mut Ledger<'_>,
        (id, block, storage): (FileId, BlockId, StorageId),
        file: &NewFile,
        evidence: Evidence,
    ) -> Result<(), CatalogError> {
        let how = verification(file, evidence);
        let was = ledger.presence(block, storage, id)?;
        match was {
            // What was verified stays as verified as it was; what was only claimed has been read now.
            Presence::Good(known) if known != VerificationState::Registered || known == how => return Ok(()),
            Presence::Suspect(_) if evidence == Evidence::Claimed => return Ok(()),
            Presence::Absent | Presence::Suspect(_) | Presence::Good(_) => {}
        }
        ledger.set_presence(block, storage, id, file.size, Presence::Good(how), None)?;
        if !matches!(was, Presence::Good(_)) {
            self.found.push((id, block, storage));
        }
        Ok(())
    }
}

/// How much is known of the file at the storage.
fn verification(file: &NewFile, evidence: Evidence) -> VerificationState {
    match evidence {
        Evidence::Read if !file.digests.is_empty() => VerificationState::Verified(Verification::Readback),
        Evidence::Read | Evidence::Claimed => VerificationState::Registered,
    }
}
