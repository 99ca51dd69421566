-- When a storage was removed; NULL: it is there. The row stays for what history says of it, under another name,
-- so that a new storage can take the old one.
ALTER TABLE storages ADD COLUMN removed INTEGER;
