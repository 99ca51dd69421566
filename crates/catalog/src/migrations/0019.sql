-- When a site was removed; NULL: it is there. The row stays for what history says of it, under another name,
-- so that a new site can take the old one.
ALTER TABLE sites ADD COLUMN removed INTEGER;
