-- Measurement hosts, end points of storages that are not ours, and networks, with the site each belongs to. `host` is a
-- host name or address, or a network with its length; a network has no role.
CREATE TABLE site_hosts (
  host TEXT PRIMARY KEY,
  site INTEGER NOT NULL,
  role TEXT,
  family TEXT,
  mapping TEXT NOT NULL,
  created INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
