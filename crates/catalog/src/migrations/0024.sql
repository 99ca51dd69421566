-- Whether a scan computes the digests of what it finds, or takes those that the storage's server tells.
ALTER TABLE tasks ADD COLUMN digests TEXT NOT NULL DEFAULT 'computed';
