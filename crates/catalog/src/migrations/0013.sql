-- What holds the files of a storage: 'posix', or 'virtual' for a storage of test data that holds nothing.
ALTER TABLE storages ADD COLUMN kind TEXT NOT NULL DEFAULT 'posix';
-- Every verified replica of the block there was verified at this time or later; 0: not known.
ALTER TABLE block_replicas ADD COLUMN verified INTEGER NOT NULL DEFAULT 0;
