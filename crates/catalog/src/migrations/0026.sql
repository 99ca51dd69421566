-- The number of the mark in the root that several agents of the storage's site may serve; null if one does.
ALTER TABLE storages ADD COLUMN shared_root TEXT;
